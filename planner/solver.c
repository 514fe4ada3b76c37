/* SPDX-License-Identifier: Apache-2.0 */
/* The solver: GLPK, with hooks that return its errors. */
#include "planner/solver.h"

#include "base/file.h"
#include "planner/scaling.h"

#include <errno.h>
#include <glpk.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tdm_solver {
    glp_prob *problem;
    unsigned life; /* value of `lives` when the problem was made */
    bool scaled;
};

/* GLPK calls stop() instead of aborting. Its work is lost, and all its memory is freed, that of
 * every problem of the thread: GLPK has an environment for each thread. `lives` counts the stops,
 * `problems` what is in the environment. */
static _Thread_local jmp_buf stopped;
static _Thread_local unsigned lives, problems;

static void stop(void *info)
{
    (void)info;
    glp_free_env();
    problems = 0;
    lives++;
    longjmp(stopped, 1);
}

/* GLPK gives the reason of a stop only as text: its memory limit is exceeded, or no memory is
 * left. */
static _Thread_local bool limit_passed;

static int read_reason(void *info, const char *text)
{
    (void)info;
    limit_passed = limit_passed || strstr(text, "limit exceeded") != NULL;
    return 1; /* suppresses the text */
}

static void set_hooks(void)
{
    glp_term_out(GLP_OFF);
    glp_term_hook(read_reason, NULL);
    glp_error_hook(stop, NULL);
}

/* Limit of a program. By design a whole plan takes 300 MB. */
#define MEMORY_MIB 192

static enum tdm_status broken(struct tdm_error *err)
{
    if (limit_passed)
        return tdm_fail(err, TDM_INTERNAL, "the linear program takes more than %d MiB", MEMORY_MIB);
    return tdm_fail(err, TDM_NO_MEMORY, "the solver stopped: it is out of memory");
}

static bool is_broken(const struct tdm_solver *solver)
{
    return solver->problem == NULL || solver->life != lives;
}

/* Runs `call`, and returns an error if GLPK stops. */
#define GUARDED(solver, err, call) \
    do {                           \
        if (is_broken(solver))     \
            return broken(err);    \
        if (setjmp(stopped) != 0)  \
            return broken(err);    \
        set_hooks();               \
        call;                      \
    } while (0)

enum tdm_status tdm_solver_new(const char *name, struct tdm_solver **out, struct tdm_error *err)
{
    struct tdm_solver *solver = calloc(1, sizeof(*solver));
    if (solver == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the solver");
    if (glp_init_env() == 2) { /* any other call would abort */
        free(solver);
        return tdm_fail(err, TDM_NO_MEMORY, "the solver cannot start: it is out of memory");
    }
    if (setjmp(stopped) != 0) {
        free(solver);
        return broken(err);
    }
    set_hooks();
    limit_passed = false;
    glp_mem_limit(MEMORY_MIB);
    solver->life = lives;
    solver->problem = glp_create_prob();
    problems++;
    glp_set_prob_name(solver->problem, name);
    glp_set_obj_dir(solver->problem, GLP_MIN);
    *out = solver;
    return TDM_OK;
}

void tdm_solver_free(struct tdm_solver *solver)
{
    if (solver != NULL && !is_broken(solver)) {
        glp_delete_prob(solver->problem);
        if (--problems == 0)
            glp_free_env(); /* a thread that ends would leave it behind */
    }
    free(solver);
}

static int kind_of(double least, double most)
{
    if (least <= -TDM_UNBOUNDED)
        return most >= TDM_UNBOUNDED ? GLP_FR : GLP_UP;
    if (most >= TDM_UNBOUNDED)
        return GLP_LO;
    return least < most ? GLP_DB : GLP_FX;
}

enum tdm_status tdm_solver_row(struct tdm_solver *solver, const char *name, double least,
                               double most, int *row, struct tdm_error *err)
{
    GUARDED(solver, err, {
        int number = glp_add_rows(solver->problem, 1);
        glp_set_row_name(solver->problem, number, name);
        glp_set_row_bnds(solver->problem, number, kind_of(least, most), least, most);
        *row = number - 1;
    });
    return TDM_OK;
}

enum tdm_status tdm_solver_column(struct tdm_solver *solver, const char *name, double least,
                                  double most, double cost, const struct tdm_entry *entries,
                                  size_t count, int *column, struct tdm_error *err)
{
    int *rows = malloc((count + 1) * sizeof(*rows));
    double *values = malloc((count + 1) * sizeof(*values));
    if (rows == NULL || values == NULL) {
        free(rows);
        free(values);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a column of the linear program");
    }
    for (size_t i = 0; i < count; i++) {
        rows[i + 1] = entries[i].row + 1;
        values[i + 1] = entries[i].value;
    }
    if (is_broken(solver) || setjmp(stopped) != 0) {
        free(rows);
        free(values);
        return broken(err);
    }
    set_hooks();
    int number = glp_add_cols(solver->problem, 1);
    glp_set_col_name(solver->problem, number, name);
    glp_set_col_bnds(solver->problem, number, kind_of(least, most), least, most);
    glp_set_obj_coef(solver->problem, number, cost);
    glp_set_mat_col(solver->problem, number, (int)count, rows, values);
    *column = number - 1;
    free(rows);
    free(values);
    return TDM_OK;
}

void tdm_solver_limit(struct tdm_solver *solver, int column, double least, double most)
{
    if (!is_broken(solver))
        glp_set_col_bnds(solver->problem, column + 1, kind_of(least, most), least, most);
}

void tdm_solver_cost(struct tdm_solver *solver, int column, double cost)
{
    if (!is_broken(solver))
        glp_set_obj_coef(solver->problem, column + 1, cost);
}

void tdm_solver_limit_row(struct tdm_solver *solver, int row, double least, double most)
{
    if (!is_broken(solver))
        glp_set_row_bnds(solver->problem, row + 1, kind_of(least, most), least, most);
}

/* A copy of the program's matrix. */
struct matrix {
    int rows, columns, entries;
    int *first, *row; /* [columns + 1]; [entries + 1]: GLPK leaves out the first of an array */
    double *value, *row_factor, *column_factor; /* [entries + 1], [rows], [columns] */
};

static void matrix_free(struct matrix *m)
{
    free(m->first);
    free(m->row);
    free(m->value);
    free(m->row_factor);
    free(m->column_factor);
}

static bool matrix_new(const struct tdm_solver *solver, struct matrix *m)
{
    *m = (struct matrix){.rows = glp_get_num_rows(solver->problem),
                         .columns = glp_get_num_cols(solver->problem),
                         .entries = glp_get_num_nz(solver->problem)};
    m->first = calloc((size_t)m->columns + 1, sizeof(*m->first));
    m->row = calloc((size_t)m->entries + 1, sizeof(*m->row));
    m->value = calloc((size_t)m->entries + 1, sizeof(*m->value));
    m->row_factor = calloc((size_t)m->rows + 1, sizeof(*m->row_factor));
    m->column_factor = calloc((size_t)m->columns + 1, sizeof(*m->column_factor));
    return m->first != NULL && m->row != NULL && m->value != NULL && m->row_factor != NULL &&
           m->column_factor != NULL;
}

static void matrix_read(const struct tdm_solver *solver, struct matrix *m)
{
    int count = 0;
    for (int column = 0; column < m->columns; column++) {
        m->first[column] = count;
        count += glp_get_mat_col(solver->problem, column + 1, m->row + count, m->value + count);
    }
    m->first[m->columns] = count;
    for (int entry = 0; entry < count; entry++) {
        m->row[entry] = m->row[entry + 1] - 1;
        m->value[entry] = fabs(m->value[entry + 1]);
    }
}

static enum tdm_status scale_matrix(struct tdm_solver *solver, struct matrix *m,
                                    struct tdm_error *err)
{
    matrix_read(solver, m);
    const struct tdm_scaled_matrix matrix = {m->rows, m->columns, m->first, m->row, m->value};
    enum tdm_status status = tdm_matrix_scale(&matrix, m->row_factor, m->column_factor, err);
    for (int row = 0; row < m->rows && status == TDM_OK; row++)
        glp_set_rii(solver->problem, row + 1, m->row_factor[row]);
    for (int column = 0; column < m->columns && status == TDM_OK; column++)
        glp_set_sjj(solver->problem, column + 1, m->column_factor[column]);
    return status;
}

static enum tdm_status scale(struct tdm_solver *solver, struct tdm_error *err)
{
    struct matrix m;
    if (is_broken(solver))
        return broken(err);
    if (!matrix_new(solver, &m)) {
        matrix_free(&m);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the linear program");
    }
    if (setjmp(stopped) != 0) {
        matrix_free(&m);
        return broken(err);
    }
    set_hooks();
    enum tdm_status status = scale_matrix(solver, &m, err);
    matrix_free(&m);
    return status;
}

/* From the basis of the solution before few iterations are needed, unless the simplex goes in a
 * circle. So the first try has this part of them. */
#define FIRST_TRY 8

enum tdm_status tdm_solver_solve(struct tdm_solver *solver, int iterations, struct tdm_error *err)
{
    int code = 0;
    if (!solver->scaled) {
        enum tdm_status status = scale(solver, err);
        if (status != TDM_OK)
            return status;
    }
    solver->scaled = true;
    GUARDED(solver, err, {
        glp_smcp how;
        glp_init_smcp(&how);
        how.msg_lev = GLP_MSG_OFF;
        how.it_lim = iterations / FIRST_TRY;
        code = glp_simplex(solver->problem, &how);
        /* a cycle, or numerical trouble, of which no solution can be one, too: start again */
        if (code != 0 || glp_get_status(solver->problem) == GLP_NOFEAS) {
            glp_std_basis(solver->problem);
            how.presolve = GLP_ON;
            how.it_lim = iterations;
            code = glp_simplex(solver->problem, &how);
        }
    });
    if (code == GLP_EITLIM)
        return tdm_fail(err, TDM_INTERNAL, "the solver took too many iterations");
    int status = code == 0 ? glp_get_status(solver->problem) : GLP_UNDEF;
    if (status == GLP_NOFEAS || code == GLP_ENOPFS)
        return tdm_fail(err, TDM_INFEASIBLE, "the linear program has no solution");
    if (status != GLP_OPT)
        return tdm_fail(err, TDM_INTERNAL, "the solver gave up (code %d, status %d)", code, status);
    return TDM_OK;
}

double tdm_solver_value(const struct tdm_solver *solver)
{
    return is_broken(solver) ? 0 : glp_get_obj_val(solver->problem);
}

double tdm_solver_column_value(const struct tdm_solver *solver, int column)
{
    return is_broken(solver) ? 0 : glp_get_col_prim(solver->problem, column + 1);
}

double tdm_solver_price(const struct tdm_solver *solver, int row)
{
    return is_broken(solver) ? 0 : glp_get_row_dual(solver->problem, row + 1);
}

const char *tdm_solver_row_name(const struct tdm_solver *solver, int row)
{
    return is_broken(solver) ? "" : glp_get_row_name(solver->problem, row + 1);
}

static enum tdm_status write_text(struct tdm_solver *solver, const char *path,
                                  struct tdm_error *err)
{
    int failed = 1;
    GUARDED(solver, err, failed = glp_write_lp(solver->problem, NULL, path));
    return failed == 0 ? TDM_OK : tdm_file_failed(path, errno != 0 ? errno : EIO, err);
}

static bool ends_with(const char *text, uint64_t bytes, const char *end)
{
    return bytes >= strlen(end) && strcmp(text + bytes - strlen(end), end) == 0;
}

/* GLPK does not say if it could not write the last bytes of a file: then its end is missing. */
enum tdm_status tdm_solver_text(struct tdm_solver *solver, char **text, uint64_t *bytes,
                                struct tdm_error *err)
{
    const char *folder = getenv("TMPDIR");
    char temporary[4096];
    int length = snprintf(temporary, sizeof(temporary), "%s/tidemark.lp.XXXXXX",
                          folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    int fd = length < (int)sizeof(temporary) ? mkstemp(temporary) : -1;
    if (fd < 0)
        return tdm_file_failed(temporary, errno, err);
    close(fd);
    enum tdm_status status = write_text(solver, temporary, err);
    if (status == TDM_OK)
        status = tdm_file_read(temporary, UINT64_MAX, text, bytes, err);
    (void)unlink(temporary);
    if (status == TDM_OK && !ends_with(*text, *bytes, "\nEnd\n")) {
        free(*text);
        *text = NULL;
        status = tdm_file_failed(temporary, EIO, err);
    }
    return status;
}

bool tdm_solver_has_threads(void)
{
    return glp_config("TLS") != NULL; /* an environment for each thread */
}
