/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulation predicts of a schedule, as JSON: fields in snake_case with units. */
#ifndef TDM_COMMANDS_PREDICTION_H
#define TDM_COMMANDS_PREDICTION_H

#include "planner/candidates.h"

#include <jansson.h>

/* Share of the machine's peak that the step uses, recompute not counted. */
double tdm_prediction_mfu(const struct tdm_schedule *schedule,
                          const struct tdm_simulation *simulation);

/* By how much packing exceeds the live peak of the device: 0.01 is one percent. */
double tdm_prediction_overhead(const struct tdm_simulation *simulation);

/* A new object: peak_bytes (used), peak_allocated_bytes (live), peak_reserved_bytes (arena), the
 * same of the host, categories at the peaks and at their own, page lists and means at the device's,
 * seconds by phase, stalls, copies. NULL: out of memory. */
json_t *tdm_prediction_json(const struct tdm_schedule *schedule,
                            const struct tdm_simulation *simulation);

/* Adds bound_seconds, gap (null where no bound is known) and by how much a GiB more lowers the
 * bound to an object. */
void tdm_bound_json(json_t **root, const struct tdm_search *search);

/* How a search went, as a new object. NULL: out of memory. */
json_t *tdm_search_counts_json(const struct tdm_search_counts *counts);

#endif
