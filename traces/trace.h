/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace: a run recorded to SQLite by a separate thread, in one transaction per step, or a few
 * for a long step. Several ranks have one trace.
 *
 * schema.sql defines the tables and views (STRICT tables, user_version and application_id set). The
 * database is in WAL mode while the run lasts, and one plain file afterwards. A killed run leaves a
 * database with every finished step, and the parts of the current step that were sent. The run
 * passes batches from a small fixed pool, so that in a step it neither allocates nor waits for the
 * disk unless the pool is empty.
 */
#ifndef TDM_TRACES_TRACE_H
#define TDM_TRACES_TRACE_H

#include "base/status.h"
#include "schedule/program.h"
#include "schedule/values.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TDM_TRACE_APPLICATION_ID 0x54444d4b /* "TDMK" */
#define TDM_TRACE_VERSION 8

/* Batches in the pool shared by the run and the thread: so many, and one more for each rank after
 * the first, up to the most. */
#define TDM_TRACE_BATCHES 4
#define TDM_TRACE_MOST_BATCHES 20

/* The properties of a run that are known when it starts. Strings are borrowed during the call. */
struct tdm_trace_run {
    const char *command;                   /* quoted, for a shell */
    const char *backend;                   /* "cpu" */
    const char *where;                     /* host name, cores or GPU */
    const char *versions;                  /* tidemark and libraries */
    const char *started_at;                /* ISO 8601, UTC */
    const char *resumed_from;              /* NULL: a fresh run */
    uint64_t pinned_bytes, pageable_bytes; /* of host memory */
};

/* An op's time as the backend measured it. */
struct tdm_trace_timing {
    uint64_t op_number;
    int64_t start_ns, end_ns; /* from the start of the step */
    /* counts; 0: not counted */
    uint64_t pairs;                     /* (query, key) pairs of the lists that it made */
    uint64_t fetched_bytes, sent_bytes; /* copied from and to the host by the op itself */
};

/* What the scan of a place's arena found after a measured step. */
struct tdm_trace_arena {
    enum tdm_place place;
    uint64_t planned_bytes;
    uint64_t touched_bytes; /* words that no longer hold the pattern */
    uint64_t highest_byte;
};

/* Memory of the device as its driver reports it, or of the process, at one time. */
struct tdm_trace_used {
    int64_t time_ns; /* from the start of the run */
    enum tdm_place place;
    uint64_t used_bytes;
    uint32_t arenas; /* in that memory: of as many ranks of the process */
};

/* The longest name of a text to evaluate on, with its 0; the name of one that nobody named. */
#define TDM_TEXT_NAME 33
#define TDM_TEXT_UNNAMED "validation"

/* Maximum number of samples in a batch. */
#define TDM_TRACE_SAMPLES 64

/* One step, one evaluation after a step, or a part of an unfinished step: the times and samples
 * that no earlier batch had. Arrays belong to the batch and have the capacities given at open. What
 * other ranks have of a step or a part follows in a batch each, of which only the arrays are used.
 */
struct tdm_trace_batch {
    uint32_t rank; /* whose arrays these are */
    bool more;     /* the next batch is of the same step or part, and is written with it */
    int64_t program_id;
    int64_t evaluated_by; /* not 0: an evaluation by this program; only text, step, loss, tokens,
                             seconds are used */
    char text[TDM_TEXT_NAME]; /* on which */
    uint64_t step;
    bool unfinished; /* the step has not ended: `seconds` since it began, no loss and no tokens */
    uint64_t ops_ended; /* 1 + number of the compute lane's last ended op; 0: none */
    double loss, gradient_norm, seconds;
    uint64_t tokens;
    size_t timing_count, touch_count, observed_count, arena_count, used_count;
    struct tdm_trace_timing *timings;
    struct tdm_values_touch *touches;   /* of buffers by the launches */
    struct tdm_values_change *observed; /* value bytes observed at the launches */
    struct tdm_trace_arena arenas[TDM_MAX_PLACES];
    struct tdm_trace_used used[TDM_TRACE_SAMPLES];
};

struct tdm_trace_capacity {
    uint32_t ranks;                    /* 0: one */
    size_t timings, touches, observed; /* of a rank */
};

/* Allocates the arrays of a batch outside the pool; false: no memory, and then closing it is due
 * too. */
bool tdm_trace_batch_open(struct tdm_trace_batch *batch, struct tdm_trace_capacity capacity);
void tdm_trace_batch_close(struct tdm_trace_batch *batch);

/* What the trace says of an op. It is smaller than the op: many are kept until they are written. */
struct tdm_trace_op {
    uint64_t number, tokens, flops, bytes;
    uint64_t copied_bytes; /* of a copy between places */
    uint64_t pairs, fetched_bytes, sent_bytes;
    int64_t predicted_start_ns, predicted_end_ns;
    uint32_t layer, chunk;
    uint32_t team_op;                         /* the how many-th of the team ops, from 1; 0: none */
    uint8_t kind, part, content, phase, lane; /* of the enums of an op; content: of a copy */
    bool has_part, between_places;
};

/* Without `team_op`, which follows from the ops before. */
struct tdm_trace_op tdm_trace_op_of(const struct tdm_op *op, int64_t predicted_start_ns,
                                    int64_t predicted_end_ns);

struct tdm_trace;

/* Creates a database at `path`, writes the run and starts the writer thread. An existing file is
 * refused (TDM_USAGE, hint --force) unless `force`, which replaces it. TDM_IO if it cannot be
 * written. The caller owns *trace. */
enum tdm_status tdm_trace_open(const char *path, bool force, const struct tdm_trace_run *run,
                               struct tdm_trace_capacity capacity, struct tdm_trace **trace,
                               struct tdm_error *err);

/* Records a program before its first step (synchronously, in one transaction): begin; the ops of
 * each rank in program order; allocated and value bytes, after their op was added and only where
 * they change; end. `schedule_json` is stored unchanged. */
enum tdm_status tdm_trace_program_begin(struct tdm_trace *trace, const char *name,
                                        const char *schedule_json,
                                        const struct tdm_program *program, int64_t *program_id,
                                        struct tdm_error *err);
enum tdm_status tdm_trace_op(struct tdm_trace *trace, uint32_t rank, const struct tdm_trace_op *op,
                             struct tdm_error *err);
enum tdm_status tdm_trace_allocation(struct tdm_trace *trace, uint32_t rank, uint64_t op_number,
                                     enum tdm_place place, uint64_t allocated_bytes,
                                     struct tdm_error *err);
enum tdm_status tdm_trace_memory(struct tdm_trace *trace, uint32_t rank,
                                 const struct tdm_values_change *change, struct tdm_error *err);
enum tdm_status tdm_trace_program_end(struct tdm_trace *trace, struct tdm_error *err);

/* Takes an empty batch from the pool; waits for the writer if none is free. Return it with
 * tdm_trace_send(). A failure of the writer thread (disk full) is reported by the next take:
 * TDM_IO. */
enum tdm_status tdm_trace_take(struct tdm_trace *trace, struct tdm_trace_batch **batch,
                               struct tdm_error *err);

/* The same without waiting: *batch is NULL if none is free. */
enum tdm_status tdm_trace_take_free(struct tdm_trace *trace, struct tdm_trace_batch **batch,
                                    struct tdm_error *err);
void tdm_trace_send(struct tdm_trace *trace, struct tdm_trace_batch *batch);

/* Waits for the writer, turns the trace into one plain file, and frees. Returns the writer's first
 * failure; the hint says if SQLite's own files had to stay beside it. `ending` is stored with the
 * run: "finished", "interrupted", "failed". */
enum tdm_status tdm_trace_close(struct tdm_trace *trace, const char *ending, struct tdm_error *err);

#endif
