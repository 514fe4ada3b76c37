/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of published runs (accuracy_runs.c), of the components among them (accuracy_components.c)
 * and of servers (accuracy_serving.c). */
#ifndef TDM_BENCH_ACCURACY_RUNS_H
#define TDM_BENCH_ACCURACY_RUNS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Predicts every row of tests/data/published_runs.csv and later_runs.csv that has a recipe in the
 * file of recipes beside it. Prints both figures, then the median and worst error by
 * source. Returns false if a file is broken, if a run is predicted to fit where its source ran out
 * of memory, or if an error exceeds the bound of the recipe. */
bool check_published_runs(const char *sources);

/* Prints tokens of vLLM's cache as logged and as predicted, of rows of tests/data/serving_logs.csv
 * that tell all settings. Returns false if the file is broken. */
bool compare_served(const char *sources);

/* Predicts the peak of allocated bytes of a component's forward and backward, which run repeatedly
 * as in the component's benchmark, with the PyTorch allocator on an A100. `name` is the component;
 * the NAME=NUMBER `pairs` give its sizes. Returns TDM_USAGE if one of them is unknown. */
enum tdm_status predict_component(const char *name, const char *const *pairs, size_t count,
                                  uint64_t *peak_bytes, struct tdm_error *err);

#endif
