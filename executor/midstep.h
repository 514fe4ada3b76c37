/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the middle of a step that takes long: how far it is goes to the listener, what the driver
 * reports of memory to the result, and both with the times of ops that have ended to the trace, so
 * that a run that is killed leaves them. Looks come from the walk, a few times a second.
 */
#ifndef TDM_EXECUTOR_MIDSTEP_H
#define TDM_EXECUTOR_MIDSTEP_H

#include "executor/record.h"
#include "executor/run.h"
#include "executor/walk.h"

struct tdm_midstep {
    const struct tdm_arenas *arenas;
    const struct tdm_forecast *forecast;
    const struct tdm_run_listener *listener;
    struct tdm_recorder *recorder; /* NULL: no trace */
    uint64_t planned_bytes;        /* of the device: arena and runtime */
    uint64_t most_used_bytes;      /* of the device as its driver reports it, of all steps */
    struct tdm_walk_watch watch;   /* for the walk */
    uint64_t step;                 /* under way */
    uint64_t used_bytes;           /* as last sampled; 0: not known */
    double sampled_seconds, sent_seconds;
    enum tdm_phase sent_phase; /* that the trace was sent last */
    struct tdm_recorded_part part;
};

/* Of one program's steps; all is borrowed. */
void tdm_midstep_open(struct tdm_midstep *midstep, const struct tdm_arenas *arenas,
                      const struct tdm_forecast *forecast, const struct tdm_run_listener *listener,
                      struct tdm_recorder *recorder, uint64_t planned_bytes);

/* A step begins, at a time on the backend's clock. */
void tdm_midstep_begin(struct tdm_midstep *midstep, uint64_t step, int64_t start_ns);

/* The step under way will not end, and `ended` ops of the compute lane have: the trace gets what
 * there is. */
enum tdm_status tdm_midstep_cut(struct tdm_midstep *midstep, uint64_t ended, int64_t now_ns,
                                struct tdm_error *err);

#endif
