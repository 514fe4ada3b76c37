/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A linear program and its solver, behind a small interface, so that another solver can replace
 * it.
 *
 * Minimises a sum over columns. Rows and columns are numbered from 0 in the order of addition.
 * Columns may be added between solutions; the next solution starts from the last basis. The solver
 * is GLPK. Its messages are off. Its errors and lack of memory are returned as a status
 * (TDM_NO_MEMORY; TDM_INTERNAL if a program is too large); GLPK never ends the process. After such
 * an error all programs are lost: calls for them fail, or return 0 and "". They can be freed, and
 * new ones made. Not for use from several threads at once.
 */
#ifndef TDM_PLANNER_SOLVER_H
#define TDM_PLANNER_SOLVER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tdm_solver;

/* An entry of a column. */
struct tdm_entry {
    int row;
    double value;
};

/* Stands for a missing bound of a row or column. */
#define TDM_UNBOUNDED 1e300

/* The caller owns *solver. */
enum tdm_status tdm_solver_new(const char *name, struct tdm_solver **solver, struct tdm_error *err);
void tdm_solver_free(struct tdm_solver *solver);

/* Adds a row with bounds, which may be TDM_UNBOUNDED (negative: no lower bound). *row: its
 * number. */
enum tdm_status tdm_solver_row(struct tdm_solver *solver, const char *name, double least,
                               double most, int *row, struct tdm_error *err);

/* Adds a column. *column: its number. */
enum tdm_status tdm_solver_column(struct tdm_solver *solver, const char *name, double least,
                                  double most, double cost, const struct tdm_entry *entries,
                                  size_t count, int *column, struct tdm_error *err);

/* Changes the limits of a column. */
void tdm_solver_limit(struct tdm_solver *solver, int column, double least, double most);

/* Changes the cost of a column. */
void tdm_solver_cost(struct tdm_solver *solver, int column, double cost);

/* Changes the limits of a row. */
void tdm_solver_limit_row(struct tdm_solver *solver, int row, double least, double most);

/* Solves, within a number of iterations from the start; before that tries an eighth of them from
 * the last solution. TDM_INFEASIBLE if there is no solution, TDM_INTERNAL if the solver gives up.
 */
enum tdm_status tdm_solver_solve(struct tdm_solver *solver, int iterations, struct tdm_error *err);

/* Of the last solution: its value, the value of a column, the price of a row (by how much the value
 * rises with the row's bound). */
double tdm_solver_value(const struct tdm_solver *solver);
double tdm_solver_column_value(const struct tdm_solver *solver, int column);
double tdm_solver_price(const struct tdm_solver *solver, int row);

const char *tdm_solver_row_name(const struct tdm_solver *solver, int row);

/* The program in CPLEX LP format: `bytes` bytes of malloc'ed text, which the caller frees. GLPK
 * writes it to a temporary file first, in TMPDIR. */
enum tdm_status tdm_solver_text(struct tdm_solver *solver, char **text, uint64_t *bytes,
                                struct tdm_error *err);

/* Can several threads solve programs of their own at the same time? */
bool tdm_solver_has_threads(void);

#endif
