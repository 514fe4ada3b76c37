/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans for several ranks.
 *
 * A rank has its part of the chunks and of what they leave to the backward, and of the state of all
 * weights, but all weights. So its needs are those of one rank for the whole step with more memory
 * than it has. The search plans for one rank with such memory, gives the result to the ranks,
 * lowers that, and bisects the memory for the most with which each rank stays within its limits.
 * The result is exact: lowered, simulated and validated for all ranks. How far it is from the best
 * is not known.
 */
#ifndef TDM_PLANNER_TEAM_SEARCH_H
#define TDM_PLANNER_TEAM_SEARCH_H

#include "planner/objective.h"

/* Finds a fast schedule for request->ranks ranks (more than one), each with
 * request->memory_bytes of device memory, all of one computer, which share request's host memory.
 * TDM_INFEASIBLE: none was found that fits; found->schedule is NULL. TDM_USAGE: a pin that several
 * ranks cannot follow. */
enum tdm_status tdm_team_search(const struct tdm_request *request, enum tdm_effort effort,
                                struct tdm_objective_found *found, struct tdm_error *err);

/* Completes a schedule of several ranks that was found by the least memory (team_least.h):
 * found->schedule with found->pins. Takes the fastest exchange for it, unless it was asked for,
 * simulates and validates it. TDM_INFEASIBLE: it is not within its limits. `found` stays with the
 * caller, also when this fails. */
enum tdm_status tdm_team_complete(struct tdm_objective_found *found, struct tdm_error *err);

/* What a step of `ranks` ranks takes at least, if one that has the memory of all takes at least
 * `seconds`: it could do the work of each in turns, and would exchange nothing. Only sums begin
 * once on each rank, without reading what was there, which saves time where memory limits an op. */
double tdm_team_bound(const struct tdm_schedule *schedule, uint32_t ranks, double seconds);

#endif
