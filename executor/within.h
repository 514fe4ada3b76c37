/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves within steps: where the backward of a step pauses, and the last checkpoint is old or the
 * run is to stop, a checkpoint within the step is written. A part of train.c.
 */
#ifndef TDM_EXECUTOR_WITHIN_H
#define TDM_EXECUTOR_WITHIN_H

#include "executor/run_parts.h"
#include "executor/walk.h"
#include "schedule/pauses.h"

struct tdm_within {
    struct tdm_run *run;
    const struct tdm_program *program;
    const struct tdm_history *history; /* of the steps before */
    struct tdm_run_result *result;
    struct tdm_pauses *pauses;
    struct tdm_walk_pauser pauser; /* to pass to the walk */
    uint32_t next;                 /* pause of the step under way */
    uint64_t step, saved_step;
    double earlier_seconds; /* of the step, before this run */
    double saved_seconds;   /* on a clock: when the last checkpoint was written, or the run began */
};

/* Initialises for the steps of a program, if the run saves within steps; else it does nothing. All
 * arguments are borrowed. tdm_within_close() must follow, also after a failure. */
enum tdm_status tdm_within_open(struct tdm_within *within, struct tdm_run *run,
                                const struct tdm_program *program,
                                const struct tdm_history *history, struct tdm_run_result *result,
                                struct tdm_error *err);
void tdm_within_close(struct tdm_within *within);

/* Begins a step. `earlier_seconds`: what its ops took before the run went on within it; else 0. */
void tdm_within_begin(struct tdm_within *within, uint64_t step, double earlier_seconds);

/* Tells the listener of a run what its checkpoints within a step of the first program take. */
enum tdm_status tdm_within_tell_costs(const struct tdm_run *run, struct tdm_error *err);

#endif
