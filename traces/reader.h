/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of traces, with the queries of reports, plots and exports.
 *
 * It opens a file read-only, also one that a killed run left. A query returns an array of plain
 * rows, which the caller frees with one free(). An empty answer is TDM_OK with *count 0 and *rows
 * NULL. All queries see the trace as it was when it was opened, so a run may go on meanwhile. Of
 * several ranks they see one, and at first rank 0.
 */
#ifndef TDM_TRACES_READER_H
#define TDM_TRACES_READER_H

#include "base/status.h"
#include "schedule/program.h"
#include "schedule/values.h"
#include "traces/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As the `step` of a query: all of the program's steps. */
#define TDM_TRACE_EVERY_STEP INT64_C(-1)

struct tdm_trace_reader;

/* TDM_IO if there is no such file or it cannot be read; TDM_INPUT if it is not a trace, one of
 * another version, or damaged. The caller owns *reader. */
enum tdm_status tdm_trace_reader_open(const char *path, struct tdm_trace_reader **reader,
                                      struct tdm_error *err);
void tdm_trace_reader_close(struct tdm_trace_reader *reader);

/* The run (the last one, if a file holds several). Strings belong to the reader. */
struct tdm_trace_run_info {
    const char *command, *backend, *ran_on, *versions, *started_at;
    const char *resumed_from;              /* NULL: a fresh run */
    const char *ended_at;                  /* NULL if ending is */
    const char *ending;                    /* NULL: it was killed, or still runs */
    uint64_t pinned_bytes, pageable_bytes; /* of host memory */
};
const struct tdm_trace_run_info *tdm_trace_reader_run(const struct tdm_trace_reader *reader);

/* Lets later queries see `rank`, which may be one that the trace does not have: then they find
 * nothing. */
void tdm_trace_reader_see(struct tdm_trace_reader *reader, uint32_t rank);

/* The tables that number places and lanes in the rows below: those of the machine of the run's
 * programs. They belong to the reader. */
const struct tdm_topology *tdm_trace_reader_topology(const struct tdm_trace_reader *reader);

/* A program, in the order of recording. */
struct tdm_trace_program_row {
    int64_t program; /* for the queries below */
    char name[128];  /* cut if longer */
    uint32_t ranks;
    uint64_t ops;             /* of the rank */
    double predicted_seconds; /* end of the last op, of all ranks */
    uint64_t arena_bytes[TDM_MAX_PLACES];
    uint64_t live_peak_bytes[TDM_MAX_PLACES]; /* the lower bound of packing */
    uint64_t runtime_bytes[TDM_MAX_PLACES];   /* outside the arena */
    uint64_t steps, timed_steps;              /* of the run; timed: op times of the rank */
};
enum tdm_status tdm_trace_read_programs(struct tdm_trace_reader *reader,
                                        struct tdm_trace_program_row **rows, size_t *count,
                                        struct tdm_error *err);

/* The JSON of a program's schedule; malloc'ed, the caller frees. */
enum tdm_status tdm_trace_read_schedule(struct tdm_trace_reader *reader, int64_t program,
                                        char **json, struct tdm_error *err);

/* Steps of all programs, in the order in which they ended. */
struct tdm_trace_step_row {
    int64_t program, step;
    double loss, gradient_norm, seconds; /* NAN if not a number */
    uint64_t tokens;
    bool timed; /* has op times */
};
enum tdm_status tdm_trace_read_steps(struct tdm_trace_reader *reader,
                                     struct tdm_trace_step_row **rows, size_t *count,
                                     struct tdm_error *err);

/* What of the last of `count` steps is not a number: "loss" or "gradient norm"; NULL: nothing. If
 * no step of its program has a loss, or a norm, the program has none. */
const char *tdm_trace_failed(const struct tdm_trace_step_row *rows, size_t count);

/* How many ranks, from rank 0 on, have op times of a step, up to the first that has none. */
enum tdm_status tdm_trace_read_timed_ranks(struct tdm_trace_reader *reader, int64_t program,
                                           int64_t step, uint32_t *ranks, struct tdm_error *err);

/* Steps that have begun but not ended, because the run was cut short or still runs. By program and
 * step. */
struct tdm_trace_unfinished_row {
    int64_t program, step;
    double seconds; /* since it began, when last seen */
    uint64_t ops;   /* 1 + number of the last op of the compute lane that had ended; 0: none */
    enum tdm_phase phase;     /* of that op, if there is one */
    uint32_t layer, chunk;    /* or TDM_NONE */
    uint32_t layers, chunks;  /* of the program */
    double predicted_seconds; /* to that op's end; 0 if there is none */
    bool timed;               /* has op times */
};
enum tdm_status tdm_trace_read_unfinished(struct tdm_trace_reader *reader,
                                          struct tdm_trace_unfinished_row **rows, size_t *count,
                                          struct tdm_error *err);

/* Evaluations of all programs, by program, step and text. */
struct tdm_trace_evaluation_row {
    int64_t program, step;    /* the program that was trained, and the step after which */
    int64_t evaluated_by;     /* program */
    char text[TDM_TEXT_NAME]; /* the name of the text */
    double loss, seconds;     /* NAN if not a number */
    uint64_t tokens;
};
enum tdm_status tdm_trace_read_evaluations(struct tdm_trace_reader *reader,
                                           struct tdm_trace_evaluation_row **rows, size_t *count,
                                           struct tdm_error *err);

/* Bytes of a place that hold values. */
struct tdm_trace_peak {
    bool known;                       /* there is a row */
    int64_t step;                     /* the step with the measured peak */
    uint64_t op_number;               /* the first op at which the place holds most */
    uint64_t value_bytes;             /* at that op, of all categories */
    uint64_t at_peak[TDM_CATEGORIES]; /* at that op, of each */
    uint64_t most[TDM_CATEGORIES];    /* of each at any op; measured: in any of the steps */
};
struct tdm_trace_peaks {
    struct tdm_trace_peak predicted[TDM_MAX_PLACES], measured[TDM_MAX_PLACES];
};
/* The peaks of `step`, or the highest of every step. */
enum tdm_status tdm_trace_read_peaks(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_peaks *peaks, struct tdm_error *err);

/* Seconds by phase and op kind, in the order of the enums. Measured: of a step, or the mean over
 * every timed step; NAN if none is timed. */
struct tdm_trace_time_row {
    enum tdm_phase phase;
    enum tdm_op_kind kind;
    uint64_t ops;
    double predicted_seconds, measured_seconds;
};
enum tdm_status tdm_trace_read_times(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_time_row **rows, size_t *count,
                                     struct tdm_error *err);

/* The same for those ops of an unfinished step that had ended: their number, and their predicted
 * and measured times. */
enum tdm_status tdm_trace_read_unfinished_times(struct tdm_trace_reader *reader, int64_t program,
                                                int64_t step, struct tdm_trace_time_row **rows,
                                                size_t *count, struct tdm_error *err);

/* The page lists of a program with select ops: how much they can hold and how much they held, and
 * the bytes of all buffers of lists and of page means. */
struct tdm_trace_selection {
    uint64_t ops;        /* select ops of a step; 0: there are no lists */
    uint64_t room_pairs; /* (query, key) pairs that all lists can hold */
    double held_pairs;   /* of a step, or the mean over every timed step; NAN if none is counted */
    bool touched;        /* touched bytes are known: of a step, or the most of every step */
    /* bytes that attention itself fetches from the host and sends there, in sum; held as above */
    uint64_t gathered_bytes;
    double held_gathered_bytes;
    uint64_t list_bytes, touched_list_bytes;
    uint64_t mean_bytes, touched_mean_bytes;
};
enum tdm_status tdm_trace_read_selection(struct tdm_trace_reader *reader, int64_t program,
                                         int64_t step, struct tdm_trace_selection *selection,
                                         struct tdm_error *err);

/* How long each lane worked, and how long it was idle before its last op ended. Measured times are
 * as above. */
struct tdm_trace_lane_row {
    enum tdm_lane lane;
    uint64_t ops, copied_bytes; /* per step */
    double predicted_busy_seconds, measured_busy_seconds;
    double predicted_stall_seconds, measured_stall_seconds;
};
enum tdm_status tdm_trace_read_lanes(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_lane_row **rows, size_t *count,
                                     struct tdm_error *err);

/* The same for those ops of an unfinished step that had ended. Lanes without one are left out. */
enum tdm_status tdm_trace_read_unfinished_lanes(struct tdm_trace_reader *reader, int64_t program,
                                                int64_t step, struct tdm_trace_lane_row **rows,
                                                size_t *count, struct tdm_error *err);

/* What each of several ranks does in a step, by rank. Measured times are as above, NAN of a rank
 * whose ops were not timed. Needs no tdm_trace_reader_see(). */
struct tdm_trace_rank_times {
    double step_seconds;    /* until its last op ends */
    double compute_seconds; /* its compute lane, without team ops */
    double team_seconds;    /* team ops, without waits */
    double wait_seconds;    /* in team ops, for other ranks that are not ready */
};
struct tdm_trace_rank_row {
    uint32_t rank;
    uint64_t ops, copied_bytes;          /* copied: over links to places other than ranks */
    uint64_t received_bytes, sent_bytes; /* from and to other ranks */
    struct tdm_trace_rank_times predicted, measured;
    uint64_t used_bytes; /* most of the device that its driver reported; 0: unknown */
    uint32_t arenas;     /* on it, of as many ranks; 0: unknown */
};
enum tdm_status tdm_trace_read_ranks(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_rank_row **rows, size_t *count,
                                     struct tdm_error *err);

/* How long `rank` waited in team ops for `awaited`, which came last; by rank, the longest first. */
struct tdm_trace_rank_wait {
    uint32_t rank, awaited;
    double predicted_seconds, measured_seconds; /* a step; measured: NAN if no op was timed */
};
enum tdm_status tdm_trace_read_rank_waits(struct tdm_trace_reader *reader, int64_t program,
                                          int64_t step, struct tdm_trace_rank_wait **rows,
                                          size_t *count, struct tdm_error *err);

/* Ops of one step in program order, with the predicted interval and, if `measured`, the measured
 * one. With TDM_TRACE_EVERY_STEP: predicted only. */
struct tdm_trace_interval {
    uint64_t op_number;
    enum tdm_op_kind kind;
    enum tdm_phase phase;
    enum tdm_lane lane;
    uint32_t layer, chunk;    /* or TDM_NONE */
    enum tdm_content content; /* of a copy; else TDM_EMPTY */
    bool measured;
    int64_t predicted_start_ns, predicted_end_ns;
    int64_t start_ns, end_ns;
    uint64_t flops, bytes;
};
enum tdm_status tdm_trace_read_intervals(struct tdm_trace_reader *reader, int64_t program,
                                         int64_t step, struct tdm_trace_interval **rows,
                                         size_t *count, struct tdm_error *err);

/* Bytes that hold values, predicted and observed: a row for each change, by rising op number. They
 * are 0 before the first row of a place and category. */
enum tdm_status tdm_trace_read_memory(struct tdm_trace_reader *reader, int64_t program,
                                      struct tdm_values_change **rows, size_t *count,
                                      struct tdm_error *err);
enum tdm_status tdm_trace_read_observed(struct tdm_trace_reader *reader, int64_t program,
                                        int64_t step, struct tdm_values_change **rows,
                                        size_t *count, struct tdm_error *err);

/* Allocated bytes, in the same way. */
struct tdm_trace_allocation_row {
    uint64_t op_number, allocated_bytes;
    enum tdm_place place;
};
enum tdm_status tdm_trace_read_allocation(struct tdm_trace_reader *reader, int64_t program,
                                          struct tdm_trace_allocation_row **rows, size_t *count,
                                          struct tdm_error *err);

/* What the scans of the arenas found; with TDM_TRACE_EVERY_STEP the most of each place. */
struct tdm_trace_arena_row {
    enum tdm_place place;
    uint64_t planned_bytes, touched_bytes, highest_byte;
};
enum tdm_status tdm_trace_read_arenas(struct tdm_trace_reader *reader, int64_t program,
                                      int64_t step, struct tdm_trace_arena_row **rows,
                                      size_t *count, struct tdm_error *err);

/* Used bytes as sampled, by time, of a step or of every step. */
struct tdm_trace_used_row {
    int64_t step, time_ns; /* from the start of the run */
    enum tdm_place place;
    uint64_t used_bytes;
    uint32_t arenas; /* in that memory, of as many ranks of the process */
};
enum tdm_status tdm_trace_read_used(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                    struct tdm_trace_used_row **rows, size_t *count,
                                    struct tdm_error *err);

/* Buffers that a step touched, by number. */
struct tdm_trace_touched_row {
    uint32_t buffer;
    char name[sizeof(((struct tdm_buffer *)0)->name)];
    enum tdm_place place;
    enum tdm_category category;
    uint64_t bytes, offset; /* planned */
    uint64_t touched_bytes;
    uint64_t first_op, last_op;
};
enum tdm_status tdm_trace_read_touched(struct tdm_trace_reader *reader, int64_t program,
                                       int64_t step, struct tdm_trace_touched_row **rows,
                                       size_t *count, struct tdm_error *err);

#endif
