/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulates all ranks of a program, each on a thread of its own: in a team op (ops/team.h) every
 * rank waits until the last one is ready for it. The result does not depend on the threads.
 *
 * Of more than TDM_SIMULATED_RANKS, only three are simulated: the first, and those whose attention
 * costs most and least.
 */
#ifndef TDM_SIMULATOR_TEAM_H
#define TDM_SIMULATOR_TEAM_H

#include "simulator/simulate.h"

/* The times at which ranks are ready. */
struct tdm_team_clock;

/* A member of the team is ready for its next team op at *seconds. Sets *seconds to when all are,
 * and *last to the member that came last. TDM_INTERRUPTED if another member has failed. */
enum tdm_status tdm_team_clock_meet(struct tdm_team_clock *clock, uint32_t member, double *seconds,
                                    uint32_t *last, struct tdm_error *err);

/* Simulates the program's own rank, as a member of the team; `clock` NULL: without others. */
enum tdm_status tdm_simulate_rank(const struct tdm_program *program, struct tdm_team_clock *clock,
                                  uint32_t member, tdm_simulated see, void *self,
                                  struct tdm_simulation *simulation, struct tdm_error *err);

/* tdm_simulate() of a program with several ranks. *simulation is of rank 0, except its step's
 * seconds and `team`, which are of all. `see` sees the first `seen` ranks, each with its own
 * selves[rank], and on its own thread. `seen` is 0, 1 or all; with all, all are simulated, however
 * many. */
enum tdm_status tdm_simulate_team(const struct tdm_program *program, tdm_simulated see,
                                  void *const *selves, uint32_t seen,
                                  struct tdm_simulation *simulation, struct tdm_error *err);

#endif
