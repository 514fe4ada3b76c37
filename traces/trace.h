/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace: a run recorded to SQLite by a thread of its own, one transaction a step, and a few in
 * one that takes long.
 *
 * schema.sql holds tables and views (design: STRICT tables, user_version and application_id set).
 * WAL while the run lasts, one plain file after. A killed run leaves a database that holds every
 * finished step, and of the one under way what was sent. The run hands over batches from a small
 * fixed pool: no allocation and no waiting on the disk in a step, unless the pool is exhausted.
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
#define TDM_TRACE_VERSION 5

/* Batches that go round between the run and the thread. */
#define TDM_TRACE_BATCHES 4

/* What is known of a run when it starts. Strings are borrowed during the call. */
struct tdm_trace_run {
    const char *command;                   /* as typed */
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
    int64_t start_ns, end_ns; /* from the begin of the step */
    /* what was counted; 0: nothing */
    uint64_t pairs;                     /* (query, key) pairs of the lists that it made */
    uint64_t fetched_bytes, sent_bytes; /* from and to the host by the op itself */
};

/* What the arena of a place showed after a measured step. */
struct tdm_trace_arena {
    enum tdm_place place;
    uint64_t planned_bytes;
    uint64_t touched_bytes; /* words that no longer hold the pattern */
    uint64_t highest_byte;
};

/* Driver-reported or process memory at a moment. */
struct tdm_trace_used {
    int64_t time_ns; /* from the begin of the run */
    enum tdm_place place;
    uint64_t used_bytes;
};

/* Samples that a batch has room for. */
#define TDM_TRACE_SAMPLES 64

/* One step, or one evaluation after a step; or of a step that has not ended what no batch before
 * had: times and samples. Arrays belong to the batch and have the capacities given at open. */
struct tdm_trace_batch {
    int64_t program_id;
    int64_t
        evaluated_by; /* not 0: an evaluation by this program; step, loss, tokens, seconds count */
    uint64_t step;
    bool unfinished; /* the step has not ended: `seconds` since it began, no loss and no tokens */
    uint64_t ops_ended; /* number of the compute lane's last op that has ended, and 1; 0: none */
    double loss, gradient_norm, seconds;
    uint64_t tokens;
    size_t timing_count, touch_count, observed_count, arena_count, used_count;
    struct tdm_trace_timing *timings;
    struct tdm_values_touch *touches;   /* as the launches touched buffers */
    struct tdm_values_change *observed; /* value bytes as observed at the launches */
    struct tdm_trace_arena arenas[TDM_MAX_PLACES];
    struct tdm_trace_used used[TDM_TRACE_SAMPLES];
};

struct tdm_trace_capacity {
    size_t timings, touches, observed;
};

struct tdm_trace;

/* Creates a new database at `path`, writes the run, starts the writer thread. An existing file is
 * refused (TDM_USAGE, hint --force) unless `force`, which replaces it. TDM_IO if it cannot be
 * written. The caller owns *trace. */
enum tdm_status tdm_trace_open(const char *path, bool force, const struct tdm_trace_run *run,
                               struct tdm_trace_capacity capacity, struct tdm_trace **trace,
                               struct tdm_error *err);

/* Records a program before its first step (synchronously, one transaction): begin, its ops in
 * program order, allocated and value bytes of ops that are there already and only where they
 * change, end. `schedule_json` is stored whole. */
enum tdm_status tdm_trace_program_begin(struct tdm_trace *trace, const char *name,
                                        const char *schedule_json,
                                        const struct tdm_program *program, int64_t *program_id,
                                        struct tdm_error *err);
enum tdm_status tdm_trace_op(struct tdm_trace *trace, const struct tdm_op *op,
                             int64_t predicted_start_ns, int64_t predicted_end_ns,
                             struct tdm_error *err);
enum tdm_status tdm_trace_allocation(struct tdm_trace *trace, uint64_t op_number,
                                     enum tdm_place place, uint64_t allocated_bytes,
                                     struct tdm_error *err);
enum tdm_status tdm_trace_memory(struct tdm_trace *trace, const struct tdm_values_change *change,
                                 struct tdm_error *err);
enum tdm_status tdm_trace_program_end(struct tdm_trace *trace, struct tdm_error *err);

/* An empty batch from the pool (waits for the writer if none is free); hand it back with send.
 * A failure of the writer thread (disk full) is reported by the next take: TDM_IO. */
enum tdm_status tdm_trace_take(struct tdm_trace *trace, struct tdm_trace_batch **batch,
                               struct tdm_error *err);

/* The same without waiting: *batch is NULL if none is free. */
enum tdm_status tdm_trace_take_free(struct tdm_trace *trace, struct tdm_trace_batch **batch,
                                    struct tdm_error *err);
void tdm_trace_send(struct tdm_trace *trace, struct tdm_trace_batch *batch);

/* Waits for the writer, leaves one plain file, frees. Returns the first failure of the writer; the
 * hint says where SQLite's own files had to stay beside it.
 * `ending` is stored with the run: "finished", "interrupted", "failed". */
enum tdm_status tdm_trace_close(struct tdm_trace *trace, const char *ending, struct tdm_error *err);

#endif
