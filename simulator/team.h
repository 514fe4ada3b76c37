/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulates all ranks of a program, each on a thread of its own: a team op (ops/team.h) starts on
 * every rank when the last one is ready for it. The result does not depend on the threads.
 *
 * Of more than TDM_SIMULATED_RANKS, only three are simulated: the first, and those whose attention
 * costs most and least.
 */
#ifndef TDM_SIMULATOR_TEAM_H
#define TDM_SIMULATOR_TEAM_H

#include "simulator/simulate.h"

#define TDM_SIMULATED_RANKS 16u

/* The times at which ranks are ready. */
struct tdm_team_clock;

/* A member of the team is ready for its next team op at *seconds. Sets *seconds to when all are.
 * TDM_INTERRUPTED if another member has failed. */
enum tdm_status tdm_team_clock_meet(struct tdm_team_clock *clock, uint32_t member, double *seconds,
                                    struct tdm_error *err);

/* tdm_simulate() of a program with several ranks. `see` (may be NULL) sees rank 0, of which
 * *simulation is, except its step's seconds and `team`, which are of all. */
enum tdm_status tdm_simulate_team(const struct tdm_program *program, tdm_simulated see, void *self,
                                  struct tdm_simulation *simulation, struct tdm_error *err);

#endif
