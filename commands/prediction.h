/* SPDX-License-Identifier: Apache-2.0 */
/* A simulation's prediction for a schedule, as JSON. Field names are snake_case and include
 * units. */
#ifndef TDM_COMMANDS_PREDICTION_H
#define TDM_COMMANDS_PREDICTION_H

#include "planner/candidates.h"

#include <jansson.h>

/* Fraction of the machine's peak that the step achieves, without recompute. */
double tdm_prediction_mfu(const struct tdm_schedule *schedule,
                          const struct tdm_simulation *simulation);

/* Packing overhead on the device: arena size over live peak, minus 1. 0.01 is one percent. */
double tdm_prediction_overhead(const struct tdm_simulation *simulation);

/* A new object: peak_bytes (used), peak_allocated_bytes (live), peak_reserved_bytes (arena), the
 * same for the host, categories at these peaks and at their own peaks, page lists and means at the
 * device's peak, seconds by phase, stalls, copies. NULL: out of memory. */
json_t *tdm_prediction_json(const struct tdm_schedule *schedule,
                            const struct tdm_simulation *simulation);

/* Adds to an object: bound_seconds, gap (null if no bound is known), and how much 1 GiB more lowers
 * the bound. */
void tdm_bound_json(json_t **root, const struct tdm_search *search);

/* Statistics of a search, as a new object. NULL: out of memory. */
json_t *tdm_search_counts_json(const struct tdm_search_counts *counts);

/* Index into team->of of the rank for which `of` waits most. */
uint32_t tdm_rank_awaited(const struct tdm_team_use *team, const struct tdm_rank_use *of);

/* The least and the most of any rank: what is exposed of its team ops, and their waits for other
 * ranks. */
void tdm_ranks_exposed(const struct tdm_team_use *team, double *least_seconds,
                       double *most_seconds);
void tdm_ranks_waits(const struct tdm_team_use *team, double *least_seconds, double *most_seconds);

/* Does any rank copy on this lane, other than from rank to rank? */
bool tdm_ranks_copy(const struct tdm_team_use *team, uint32_t lane);

#endif
