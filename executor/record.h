/* SPDX-License-Identifier: Apache-2.0 */
/* Recording: writes a run into its trace. */
#ifndef TDM_EXECUTOR_RECORD_H
#define TDM_EXECUTOR_RECORD_H

#include "executor/arenas.h"
#include "executor/forecast.h"
#include "executor/observer.h"
#include "executor/run.h"

struct tdm_recorder;

/* How the run began. */
struct tdm_recorded_start {
    const char *resumed_from;              /* the checkpoint; NULL: none */
    uint64_t pinned_bytes, pageable_bytes; /* host memory, as allocated */
};

/* Creates the trace of a run; of several processes, the first does, and the others a recorder that
 * sends it what they measured, if it has one (`timed_every` is the same in all). The listener must
 * outlive it. If the trace cannot be written any more after the first step began, the listener is
 * told, the functions below record nothing and return TDM_OK, and tdm_recorder_close() returns the
 * failure. Op times are recorded for the first step of each program and for every `timed_every`-th
 * step. */
enum tdm_status tdm_recorder_open(const struct tdm_run_options *options,
                                  const struct tdm_run_listener *listener,
                                  struct tdm_recorded_start start, uint32_t count,
                                  const struct tdm_program *const *programs, uint64_t timed_every,
                                  struct tdm_recorder **recorder, struct tdm_error *err);

/* Bytes that a recorder and its trace allocate, at most, for each op of each rank of the longest
 * program. */
uint64_t tdm_recorder_op_bytes(void);

/* Are the times of a step's ops recorded? */
bool tdm_recorder_times(const struct tdm_recorder *recorder, uint64_t step);

/* Records a program before it runs: its schedule, its ops with predicted times, allocated bytes and
 * bytes that hold values. `forecasts` are of all ranks of the program and made for a trace.
 * `first_step` is the number of its first step. A set *stop of the run ends it with
 * TDM_INTERRUPTED, and then the trace holds nothing of the program. */
enum tdm_status tdm_recorder_program(struct tdm_recorder *recorder, const char *name,
                                     struct tdm_forecast *const *forecasts, uint64_t first_step,
                                     struct tdm_error *err);

/* The state of a step that has not ended. */
struct tdm_unfinished_step {
    uint64_t step;
    int64_t start_ns;   /* of the step, on the backend's clock */
    double seconds;     /* since start_ns */
    uint64_t ops_ended; /* 1 + number of the compute lane's last ended op; 0: none */
};

/* Samples the memory of this process in a step, for the next batch, and notes what the device's
 * driver reports (0: nothing). */
void tdm_recorder_sample(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                         const struct tdm_unfinished_step *unfinished, uint64_t device_used_bytes);

/* Sends the trace the data of a step that has not ended: times of ended ops, and samples. While the
 * step runs, of rank 0 alone, and if the trace is still busy with earlier data, sets *sent to false
 * and keeps the data for later. `all`: no rank runs any more; of all ranks (`arenas` has as many),
 * and waits for the trace. */
enum tdm_status tdm_recorder_unfinished(struct tdm_recorder *recorder,
                                        const struct tdm_arenas *arenas,
                                        const struct tdm_unfinished_step *unfinished, bool all,
                                        bool *sent, struct tdm_error *err);

struct tdm_recorded_step {
    uint64_t step;
    double loss, gradient_norm;
    int64_t start_ns, end_ns; /* on the backend's clock */
    /* [ranks] each */
    struct tdm_observer *const *observers;                   /* NULL: not observed */
    const struct tdm_trace_arena (*scanned)[TDM_MAX_PLACES]; /* NULL: not scanned */
    const uint64_t *device_used_bytes; /* as the drivers report it; 0: there is none */
};

/* Records a step that has ended, of all ranks: `arenas` has program->ranks. Reaps the backend's op
 * times. */
enum tdm_status tdm_recorder_step(struct tdm_recorder *recorder, const struct tdm_program *program,
                                  const struct tdm_arenas *arenas,
                                  const struct tdm_recorded_step *recorded, struct tdm_error *err);

/* Records the evaluation program, before its first evaluation; once a run. */
enum tdm_status tdm_recorder_evaluator(struct tdm_recorder *recorder, const char *name,
                                       struct tdm_forecast *const *forecasts,
                                       struct tdm_error *err);

/* Records an evaluation on a text that ran after a step of the trained program. */
enum tdm_status tdm_recorder_evaluated(struct tdm_recorder *recorder, uint64_t step,
                                       const char *text, double loss, uint64_t tokens,
                                       double seconds, struct tdm_error *err);

/* Closes the trace with the ending that `status` implies, and frees; NULL is allowed. Returns
 * `status`, or the trace's own failure if `status` is TDM_OK. */
enum tdm_status tdm_recorder_close(struct tdm_recorder *recorder, enum tdm_status status,
                                   struct tdm_error *err);

#endif
