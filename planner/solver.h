/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A linear program and its solver, behind a small interface, so that another solver can take its
 * place.
 *
 * Minimises a sum over columns. Rows and columns are numbered from 0 in the order in which they are
 * added; columns may be added between solutions, and the next one starts from the last basis. The
 * solver is GLPK: its messages are off, its errors and its lack of memory come back as a status
 * (TDM_NO_MEMORY; TDM_INTERNAL where a program is larger than it may be), and nothing it does ends
 * the process. When it stops so, all programs are lost: calls for them fail, or give 0 and ""; they
 * can be freed, and new ones made. Not for use from several threads at once.
 */
#ifndef TDM_PLANNER_SOLVER_H
#define TDM_PLANNER_SOLVER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct tdm_solver;

/* An entry of a column. */
struct tdm_entry {
    int row;
    double value;
};

/* A bound of a row or column that is not there. */
#define TDM_UNBOUNDED 1e300

/* The caller owns *solver. */
enum tdm_status tdm_solver_new(const char *name, struct tdm_solver **solver, struct tdm_error *err);
void tdm_solver_free(struct tdm_solver *solver);

/* Adds a row with bounds, which may be TDM_UNBOUNDED (negative: none below), and says its
 * number. */
enum tdm_status tdm_solver_row(struct tdm_solver *solver, const char *name, double least,
                               double most, int *row, struct tdm_error *err);

/* Adds a column. */
enum tdm_status tdm_solver_column(struct tdm_solver *solver, const char *name, double least,
                                  double most, double cost, const struct tdm_entry *entries,
                                  size_t count, int *column, struct tdm_error *err);

/* Solves, within `seconds`. TDM_INFEASIBLE if there is no solution, TDM_INTERNAL if the solver
 * gives up. */
enum tdm_status tdm_solver_solve(struct tdm_solver *solver, double seconds, struct tdm_error *err);

/* Of the last solution: its value, of a column, and the price of a row (by how much the value rises
 * with the row's bound). */
double tdm_solver_value(const struct tdm_solver *solver);
double tdm_solver_column_value(const struct tdm_solver *solver, int column);
double tdm_solver_price(const struct tdm_solver *solver, int row);

const char *tdm_solver_row_name(const struct tdm_solver *solver, int row);

/* Writes the program in CPLEX LP format, whole or not at all, over an older file too. */
enum tdm_status tdm_solver_write(struct tdm_solver *solver, const char *path,
                                 struct tdm_error *err);

/* The solver's name and version. */
const char *tdm_solver_version(void);

#endif
