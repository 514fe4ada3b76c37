/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves within steps: where the backward of a step pauses, and the last checkpoint is old or the
 * run is to stop, a checkpoint within the step is written. A part of train.c.
 *
 * Several ranks pause after the same team op. The first rank of process 0 decides; each rank writes
 * its own memory, and process 0 the note.
 */
#ifndef TDM_EXECUTOR_WITHIN_H
#define TDM_EXECUTOR_WITHIN_H

#include "executor/run_parts.h"
#include "executor/team_walk.h"
#include "schedule/pauses.h"

struct tdm_within;

/* For the steps of a program, whose walks it sets to pause, if the run saves within steps; else
 * *within is NULL. All arguments are borrowed. TDM_INPUT if its ranks do not pause at the same
 * points. */
enum tdm_status tdm_within_open(struct tdm_run *run, struct tdm_team_walk *walk,
                                const struct tdm_program *program,
                                const struct tdm_history *history, struct tdm_run_result *result,
                                struct tdm_within **within, struct tdm_error *err);
void tdm_within_close(struct tdm_within *within);

/* Begins a step. `earlier_seconds`: what its ops took before the run went on within it; else 0.
 * NULL: does nothing, as the next. */
void tdm_within_begin(struct tdm_within *within, uint64_t step, double earlier_seconds);

/* Has the step ended because it was saved and the run is to stop? Then says so in *err. */
bool tdm_within_stopped(const struct tdm_within *within, struct tdm_error *err);

/* The next step of the walks begins where a checkpoint within it is; NULL: with its first op. */
void tdm_within_go_on(struct tdm_team_walk *walk, const struct tdm_arenas *arenas,
                      const struct tdm_checkpoint *checkpoint);

/* Tells the listener of a run what its checkpoints within a step of the first program take. */
enum tdm_status tdm_within_tell_costs(const struct tdm_run *run, struct tdm_error *err);

#endif
