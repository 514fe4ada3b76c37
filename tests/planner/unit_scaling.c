/* SPDX-License-Identifier: Apache-2.0 */
/* Scale factors of a matrix are, bit by bit, those of GLPK, with which plans were made before. */
#include "planner/scaling.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <glpk.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_ROWS 40
#define MOST_COLUMNS 60

static uint64_t state = 1;

/* A random number from 0 to `most` - 1. */
static int drawn(int most)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)most);
}

/* A program with entries from 1e-6 to 1e6, and some rows and columns without any. */
static glp_prob *draw(int rows, int columns)
{
    glp_prob *problem = glp_create_prob();
    int row[MOST_ROWS + 1];
    double value[MOST_ROWS + 1];
    glp_add_rows(problem, rows);
    glp_add_cols(problem, columns);
    for (int column = 1; column <= columns; column++) {
        int count = 0;
        for (int i = 1; i <= rows; i++)
            if (drawn(3) == 0 && i % 11 != 0) {
                row[++count] = i;
                value[count] = (drawn(2) ? 1 : -1) * pow(10, drawn(1200) / 100.0 - 6);
            }
        glp_set_mat_col(problem, column, count, row, value);
    }
    return problem;
}

static void check(int rows, int columns)
{
    glp_prob *problem = draw(rows, columns);
    int first[MOST_COLUMNS + 1], row[MOST_ROWS * MOST_COLUMNS + 1], line[MOST_ROWS + 1], entry = 0;
    double value[MOST_ROWS * MOST_COLUMNS + 1], line_value[MOST_ROWS + 1];
    double row_factor[MOST_ROWS], column_factor[MOST_COLUMNS];
    struct tdm_error err;
    for (int column = 0; column < columns; column++) {
        int count = glp_get_mat_col(problem, column + 1, line, line_value);
        first[column] = entry;
        for (int i = 1; i <= count; i++) {
            row[entry] = line[i] - 1;
            value[entry++] = fabs(line_value[i]);
        }
    }
    first[columns] = entry;
    const struct tdm_scaled_matrix matrix = {rows, columns, first, row, value};
    assert_int_equal(tdm_matrix_scale(&matrix, row_factor, column_factor, &err), TDM_OK);
    glp_scale_prob(problem, GLP_SF_GM | GLP_SF_EQ);
    for (int i = 0; i < rows; i++)
        assert_memory_equal(&row_factor[i], &(double){glp_get_rii(problem, i + 1)}, sizeof(double));
    for (int i = 0; i < columns; i++)
        assert_memory_equal(&column_factor[i], &(double){glp_get_sjj(problem, i + 1)},
                            sizeof(double));
    glp_delete_prob(problem);
}

static void test_as_glpk(void **unused)
{
    (void)unused;
    glp_term_out(GLP_OFF);
    for (int i = 0; i < 300; i++)
        check(1 + drawn(MOST_ROWS), 1 + drawn(MOST_COLUMNS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_glpk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
