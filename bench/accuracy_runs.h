/* SPDX-License-Identifier: Apache-2.0 */
/* Published runs (accuracy_runs.c) and the components among them (accuracy_components.c). */
#ifndef TDM_BENCH_ACCURACY_RUNS_H
#define TDM_BENCH_ACCURACY_RUNS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Predicts every row of tests/data/published_runs.csv that tests/data/published_runs_recipes.csv
 * has a recipe for, and prints both, then median and worst by source. False if a file is broken, a
 * run is said to fit where its source ran out of memory, or a row is farther off than its recipe
 * allows. */
bool check_published_runs(const char *sources);

/* Peak of allocated bytes of a component's forward and backward, run again and again as its
 * benchmark does, with the PyTorch allocator on an A100. `name` is a component, `pairs` of
 * NAME=NUMBER say how large it is. TDM_USAGE. */
enum tdm_status predict_component(const char *name, const char *const *pairs, size_t count,
                                  uint64_t *peak_bytes, struct tdm_error *err);

#endif
