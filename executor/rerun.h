/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the last steps of a training again, op by op, to find where a value stops being finite;
 * private to train.c. */
#ifndef TDM_EXECUTOR_RERUN_H
#define TDM_EXECUTOR_RERUN_H

#include "executor/batch.h"
#include "executor/run_parts.h"
#include "executor/team_walk.h"

/* A training whose step `last` went wrong. All but the last two are borrowed. */
struct tdm_rerun {
    struct tdm_run *run;
    const struct tdm_program *program;
    struct tdm_team_walk *walk;
    struct tdm_batch *batch;
    const volatile sig_atomic_t *stop; /* NULL: never */
    uint64_t saved_step;               /* of the last checkpoint of the run; 0: none */
    uint64_t within_step;              /* the last one within which it saved; 0: none */
    uint64_t last;
};

/* Where it went on: after a step, and, if the run itself went on within the next one and has saved
 * none since, with an op of that (of its first rank), not 0. */
struct tdm_rerun_start {
    uint64_t step, op;
};

/* Goes back to the last checkpoint after a step, or to the beginning of the run, and runs the steps
 * up to `last` again. TDM_INPUT with the first op whose output is not finite; TDM_OK if all outputs
 * are. The state of the training is lost. */
enum tdm_status tdm_rerun(const struct tdm_rerun *rerun, struct tdm_rerun_start *from,
                          struct tdm_error *err);

#endif
