/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least memory with which several ranks have a schedule.
 *
 * A rank has the chunks of a step that is as many times shorter as there are ranks, and beside
 * these a part of the state and what it exchanges. So recipes are estimated for one rank with its
 * part of the sequences, and lowered for all ranks. How much more or less than estimated that takes
 * is about the same for all recipes with one chunk size and one choice of where state is: what was
 * lowered corrects the other estimates.
 */
#ifndef TDM_PLANNER_TEAM_LEAST_H
#define TDM_PLANNER_TEAM_LEAST_H

#include "planner/candidates.h"

/* Finds a schedule of schedule->ranks (more than one) ranks that uses few bytes of `place`, within
 * the limit of the other place: of the device those of each rank, of the host those of all ranks of
 * a node. Ends as soon as it is at most `enough`; 0: finds the least. *bytes: what it uses, from
 * lowering it. `schedule` has all its choices then. TDM_INFEASIBLE: none is within the limit of the
 * other place; TDM_USAGE: pins that several ranks cannot follow. */
enum tdm_status tdm_team_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                               enum tdm_place place, uint64_t enough, uint64_t *bytes,
                               struct tdm_error *err);

#endif
