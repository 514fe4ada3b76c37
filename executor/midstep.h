/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress within a long step. A few times a second the walk calls the watch. It sends the progress
 * to the listener, the device memory that the driver reports to the result, and both with the times
 * of ended ops to the trace, so that a killed run leaves them.
 */
#ifndef TDM_EXECUTOR_MIDSTEP_H
#define TDM_EXECUTOR_MIDSTEP_H

#include "executor/record.h"
#include "executor/run.h"
#include "executor/walk.h"

struct tdm_midstep {
    const struct tdm_arenas *arenas;     /* [ranks]; within a step only the first rank's are read */
    const struct tdm_forecast *forecast; /* of rank 0 */
    const struct tdm_run_listener *listener;
    struct tdm_recorder *recorder; /* NULL: no trace */
    uint64_t planned_bytes;        /* planned for the device: arenas and runtime */
    uint64_t most_used_bytes;      /* maximum over all steps that the device's driver reported */
    const volatile sig_atomic_t *stop; /* not zero: the run ends after this step; NULL: never */
    bool pauses;                       /* or within it: run.h */
    struct tdm_walk_watch watch;       /* to pass to the walk */
    uint64_t step;                     /* the current one */
    uint64_t used_bytes;               /* last sample; 0: not known */
    double sampled_seconds, sent_seconds;
    enum tdm_phase sent_phase; /* phase of the last batch sent to the trace */
    struct tdm_unfinished_step unfinished;
};

/* Initialises for the steps of one program; all arguments are borrowed. */
void tdm_midstep_open(struct tdm_midstep *midstep, const struct tdm_arenas *arenas,
                      const struct tdm_forecast *forecast, const struct tdm_run_listener *listener,
                      struct tdm_recorder *recorder, uint64_t planned_bytes);

/* Begins a step; `start_ns` is on the backend's clock. */
void tdm_midstep_begin(struct tdm_midstep *midstep, uint64_t step, int64_t start_ns);

/* Called when the current step will not finish, after `ended` ops of the compute lane. Sends what
 * was measured to the trace. */
enum tdm_status tdm_midstep_cut(struct tdm_midstep *midstep, uint64_t ended, int64_t now_ns,
                                struct tdm_error *err);

#endif
