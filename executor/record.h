/* SPDX-License-Identifier: Apache-2.0 */
/* Recording: what a run tells its trace. */
#ifndef TDM_EXECUTOR_RECORD_H
#define TDM_EXECUTOR_RECORD_H

#include "executor/arenas.h"
#include "executor/forecast.h"
#include "executor/observer.h"
#include "executor/run.h"

struct tdm_recorder;

/* Host memory of the run, as taken. */
struct tdm_recorded_memory {
    uint64_t pinned_bytes, pageable_bytes;
};

/* Creates the trace of a run; op times are recorded for the first step of a program and for every
 * `timed_every`-th step. */
enum tdm_status tdm_recorder_open(const struct tdm_run_options *options,
                                  struct tdm_recorded_memory memory, uint32_t count,
                                  const struct tdm_program *const *programs, uint64_t timed_every,
                                  struct tdm_recorder **recorder, struct tdm_error *err);

/* Bytes that a recorder and its trace take for an op of the longest program. */
uint64_t tdm_recorder_op_bytes(void);

/* Are the times of a step's ops recorded? */
bool tdm_recorder_times(const struct tdm_recorder *recorder, uint64_t step);

/* A program is about to run: its schedule, ops with predicted times, what is allocated, what holds
 * values. `forecast` is of the program and for a trace; `first_step` is the number of the step that
 * comes first. The run's *stop ends it: TDM_INTERRUPTED, with nothing of it in the trace. */
enum tdm_status tdm_recorder_program(struct tdm_recorder *recorder, const char *name,
                                     const struct tdm_forecast *forecast, uint64_t first_step,
                                     struct tdm_error *err);

/* Of a step that has not ended. */
struct tdm_recorded_part {
    uint64_t step;
    int64_t start_ns;   /* of the step, on the backend's clock */
    double seconds;     /* since then */
    uint64_t ops_ended; /* number of the compute lane's last op that has ended, and 1; 0: none */
};

/* Samples the memory of this process in a step, for the next part; and notes what the driver of the
 * device reports (0: nothing). */
void tdm_recorder_sample(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                         const struct tdm_recorded_part *part, uint64_t device_used_bytes);

/* Sends the trace what there is of a step: times of ops that have ended, samples. If the trace is
 * still busy with what it was sent before, waits or (not *sent) leaves it for the next time. */
enum tdm_status tdm_recorder_part(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                                  const struct tdm_recorded_part *part, bool wait, bool *sent,
                                  struct tdm_error *err);

struct tdm_recorded_step {
    uint64_t step;
    double loss, gradient_norm;
    int64_t start_ns, end_ns;             /* on the backend's clock */
    struct tdm_observer *observer;        /* NULL: not observed */
    const struct tdm_trace_arena *arenas; /* [TDM_MAX_PLACES], NULL: not scanned */
    uint64_t device_used_bytes;           /* as its driver reports it; 0: there is none */
};

/* A step has ended. Reaps the backend's times. */
enum tdm_status tdm_recorder_step(struct tdm_recorder *recorder, const struct tdm_program *program,
                                  const struct tdm_arenas *arenas,
                                  const struct tdm_recorded_step *recorded, struct tdm_error *err);

/* The program that evaluates, before its first evaluation; once a run. */
enum tdm_status tdm_recorder_evaluator(struct tdm_recorder *recorder, const char *name,
                                       const struct tdm_forecast *forecast, struct tdm_error *err);

/* An evaluation after a step of the program that is trained has ended. */
enum tdm_status tdm_recorder_evaluated(struct tdm_recorder *recorder, uint64_t step, double loss,
                                       uint64_t tokens, double seconds, struct tdm_error *err);

/* Ends the trace as `status` says and frees; NULL is allowed. Returns `status`, or the trace's own
 * failure if that is the first. */
enum tdm_status tdm_recorder_close(struct tdm_recorder *recorder, enum tdm_status status,
                                   struct tdm_error *err);

#endif
