/* SPDX-License-Identifier: Apache-2.0 */
/* Recording: predicted ops and memory of a program, and batches of measured steps. */
#include "executor/record.h"

#include "config.h"
#include "base/json.h"
#include "simulator/simulate.h"

#include <jansson.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct tdm_recorder {
    struct tdm_trace *trace;
    const volatile sig_atomic_t *stop; /* NULL: never */
    uint64_t timed_every;
    int64_t program_id;         /* that is trained */
    int64_t evaluator_id;       /* 0: none yet */
    int64_t run_start_ns;       /* begin of the first recorded step */
    struct tdm_timing *timings; /* [timing_capacity] of one step, as reaped */
    struct tdm_trace_timing *relative;
    size_t timing_capacity;
    size_t timing_count, sent_count; /* of the step under way: reaped, and in the trace already */
    struct tdm_trace_used used[TDM_TRACE_SAMPLES]; /* not in the trace yet */
    size_t used_count;
    uint64_t allocated[TDM_MAX_PLACES]; /* predicted, as last recorded */
};

/* What an observer of a program can hand over, before there is one. */
static enum tdm_status observed_capacity(const struct tdm_program *program,
                                         struct tdm_trace_capacity *capacity, struct tdm_error *err)
{
    struct tdm_values *values;
    enum tdm_status status = tdm_values_new(program, &values, err);
    if (status != TDM_OK)
        return status;
    if (capacity->touches < program->buffer_count)
        capacity->touches = program->buffer_count;
    if (capacity->observed < tdm_values_change_capacity(values))
        capacity->observed = tdm_values_change_capacity(values);
    tdm_values_free(values);
    return TDM_OK;
}

static enum tdm_status open_trace(struct tdm_recorder *recorder,
                                  const struct tdm_run_options *options,
                                  struct tdm_recorded_memory memory,
                                  struct tdm_trace_capacity capacity, struct tdm_error *err)
{
    char where[160] = "", host[64] = "", versions[128], started[32];
    time_t now = time(NULL);
    struct tm utc;
    gethostname(host, sizeof(host) - 1);
    snprintf(where, sizeof(where), "%s, %ld cores", host, sysconf(_SC_NPROCESSORS_ONLN));
    snprintf(versions, sizeof(versions), "%s %s, SQLite %s, Jansson %s", PACKAGE_NAME,
             PACKAGE_VERSION, sqlite3_libversion(), JANSSON_VERSION);
    strftime(started, sizeof(started), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    struct tdm_trace_run run = {.command = options->command,
                                .backend = options->backend->name,
                                .where = where,
                                .versions = versions,
                                .started_at = started,
                                .pinned_bytes = memory.pinned_bytes,
                                .pageable_bytes = memory.pageable_bytes};
    return tdm_trace_open(options->trace_path, options->force, &run, capacity, &recorder->trace,
                          err);
}

uint64_t tdm_recorder_op_bytes(void)
{
    return sizeof(struct tdm_timing) + sizeof(struct tdm_trace_timing) +
           TDM_TRACE_BATCHES * sizeof(struct tdm_trace_timing);
}

enum tdm_status tdm_recorder_open(const struct tdm_run_options *options,
                                  struct tdm_recorded_memory memory, uint32_t count,
                                  const struct tdm_program *const *programs, uint64_t timed_every,
                                  struct tdm_recorder **out, struct tdm_error *err)
{
    struct tdm_trace_capacity capacity = {0};
    for (uint32_t i = 0; i < count; i++) {
        if (capacity.timings < programs[i]->op_count)
            capacity.timings = programs[i]->op_count;
        enum tdm_status status = observed_capacity(programs[i], &capacity, err);
        if (status != TDM_OK)
            return status;
    }
    struct tdm_recorder *recorder = calloc(1, sizeof(*recorder));
    if (recorder == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a recorder");
    recorder->stop = options->stop;
    recorder->timed_every = timed_every;
    recorder->timing_capacity = capacity.timings;
    recorder->timings = calloc(capacity.timings + 1, sizeof(*recorder->timings));
    recorder->relative = calloc(capacity.timings + 1, sizeof(*recorder->relative));
    enum tdm_status status = TDM_OK;
    if (recorder->timings == NULL || recorder->relative == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the times of %zu ops",
                          capacity.timings);
    if (status == TDM_OK)
        status = open_trace(recorder, options, memory, capacity, err);
    if (status != TDM_OK) {
        free(recorder->timings);
        free(recorder->relative);
        free(recorder);
        return status;
    }
    *out = recorder;
    return TDM_OK;
}

/* ---- what is predicted ---- */

/* An op, and what is allocated while it runs. */
static enum tdm_status record_op(void *self, const struct tdm_op *op, double start_seconds,
                                 double end_seconds,
                                 const uint64_t live_bytes[TDM_MAX_PLACES][TDM_CATEGORIES],
                                 struct tdm_error *err)
{
    struct tdm_recorder *recorder = self;
    int64_t start_ns = llround(start_seconds * 1e9), end_ns = llround(end_seconds * 1e9);
    if (recorder->stop != NULL && *recorder->stop)
        return tdm_fail(err, TDM_INTERRUPTED, "interrupted while predictions were recorded");
    enum tdm_status status = tdm_trace_op(recorder->trace, op, start_ns, end_ns, err);
    for (uint32_t place = 0; place < TDM_MAX_PLACES && status == TDM_OK; place++) {
        uint64_t allocated = 0;
        for (int category = 0; category < TDM_CATEGORIES; category++)
            allocated += live_bytes[place][category];
        if (allocated == recorder->allocated[place])
            continue;
        recorder->allocated[place] = allocated;
        status = tdm_trace_allocation(recorder->trace, op->number, (enum tdm_place)place, allocated,
                                      err);
    }
    return status;
}

/* Bytes that are to hold values. */
static enum tdm_status record_values(struct tdm_recorder *recorder,
                                     const struct tdm_program *program, struct tdm_error *err)
{
    struct tdm_values_change *changes;
    size_t count;
    enum tdm_status status = tdm_values_predict(program, &changes, &count, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        status = tdm_trace_memory(recorder->trace, &changes[i], err);
        if (status == TDM_OK && recorder->stop != NULL && *recorder->stop)
            status = tdm_fail(err, TDM_INTERRUPTED, "interrupted while predictions were recorded");
    }
    free(changes);
    return status;
}

static enum tdm_status record_program(struct tdm_recorder *recorder, const char *name,
                                      const struct tdm_program *program, int64_t *id,
                                      struct tdm_error *err)
{
    json_t *json;
    struct tdm_simulation simulation;
    enum tdm_status status = tdm_schedule_to_json(program->schedule, NULL, &json, err);
    if (status != TDM_OK)
        return status;
    char *text = tdm_json_dump(json, JSON_COMPACT);
    json_decref(json);
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the schedule's JSON");
    memset(recorder->allocated, 0, sizeof(recorder->allocated));
    status = tdm_trace_program_begin(recorder->trace, name, text, program, id, err);
    free(text);
    if (status == TDM_OK)
        status = tdm_simulate(program, record_op, recorder, &simulation, err);
    if (status == TDM_OK)
        status = record_values(recorder, program, err);
    return status == TDM_OK ? tdm_trace_program_end(recorder->trace, err) : status;
}

enum tdm_status tdm_recorder_program(struct tdm_recorder *recorder, const char *name,
                                     const struct tdm_program *program, struct tdm_error *err)
{
    return record_program(recorder, name, program, &recorder->program_id, err);
}

enum tdm_status tdm_recorder_evaluator(struct tdm_recorder *recorder, const char *name,
                                       const struct tdm_program *program, struct tdm_error *err)
{
    if (recorder->evaluator_id != 0)
        return TDM_OK;
    return record_program(recorder, name, program, &recorder->evaluator_id, err);
}

/* ---- what is measured ---- */

/* Takes times of a step from the backend, behind those that it gave before; relative to its
 * begin. */
static void reap(struct tdm_recorder *recorder, const struct tdm_arenas *arenas, int64_t start_ns)
{
    size_t first = recorder->timing_count;
    recorder->timing_count += arenas->backend->reap(arenas->executor, recorder->timings + first,
                                                    recorder->timing_capacity - first);
    for (size_t i = first; i < recorder->timing_count; i++) {
        const struct tdm_timing *timing = &recorder->timings[i];
        recorder->relative[i] = (struct tdm_trace_timing){
            timing->op_number,    timing->start_ns - start_ns,  timing->end_ns - start_ns,
            timing->counts.pairs, timing->counts.fetched_bytes, timing->counts.sent_bytes};
    }
}

/* What of the step under way is not in the trace yet. */
static void hand_over(struct tdm_recorder *recorder, uint64_t step, struct tdm_trace_batch *batch)
{
    size_t count = recorder->timing_count - recorder->sent_count;
    if (tdm_recorder_times(recorder, step)) {
        memcpy(batch->timings, recorder->relative + recorder->sent_count,
               count * sizeof(*batch->timings));
        batch->timing_count = count;
    }
    recorder->sent_count = recorder->timing_count;
    memcpy(batch->used, recorder->used, recorder->used_count * sizeof(*batch->used));
    batch->used_count = recorder->used_count;
    recorder->used_count = 0;
}

/* A sample too many is dropped: the trace has been busy for long. */
static void add_sample(struct tdm_recorder *recorder, int64_t now_ns, enum tdm_place place,
                       uint64_t used_bytes)
{
    if (used_bytes > 0 && recorder->used_count < TDM_TRACE_SAMPLES)
        recorder->used[recorder->used_count++] =
            (struct tdm_trace_used){now_ns - recorder->run_start_ns, place, used_bytes};
}

/* The run's clock starts with its first step. */
static void start_run(struct tdm_recorder *recorder, int64_t start_ns)
{
    if (recorder->run_start_ns == 0)
        recorder->run_start_ns = start_ns;
}

void tdm_recorder_sample(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                         const struct tdm_recorded_part *part, uint64_t device_used_bytes)
{
    int64_t now_ns = part->start_ns + (int64_t)(1e9 * part->seconds);
    start_run(recorder, part->start_ns);
    if (recorder->used_count + 2 * TDM_PLACES > TDM_TRACE_SAMPLES) /* room for the step's end */
        return;
    add_sample(recorder, now_ns, TDM_HOST, tdm_arenas_host_used(arenas));
    add_sample(recorder, now_ns, TDM_DEVICE, device_used_bytes);
}

bool tdm_recorder_times(const struct tdm_recorder *recorder, uint64_t step)
{
    return step == 1 || step % recorder->timed_every == 0;
}

enum tdm_status tdm_recorder_part(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                                  const struct tdm_recorded_part *part, bool wait, bool *sent,
                                  struct tdm_error *err)
{
    struct tdm_trace_batch *batch = NULL;
    enum tdm_status status = wait ? tdm_trace_take(recorder->trace, &batch, err)
                                  : tdm_trace_take_free(recorder->trace, &batch, err);
    *sent = status == TDM_OK && batch != NULL;
    if (!*sent)
        return status;
    start_run(recorder, part->start_ns);
    batch->program_id = recorder->program_id;
    batch->step = part->step;
    batch->unfinished = true;
    batch->ops_ended = part->ops_ended;
    batch->seconds = part->seconds;
    reap(recorder, arenas, part->start_ns);
    hand_over(recorder, part->step, batch);
    tdm_trace_send(recorder->trace, batch);
    return TDM_OK;
}

enum tdm_status tdm_recorder_step(struct tdm_recorder *recorder, const struct tdm_program *program,
                                  const struct tdm_arenas *arenas,
                                  const struct tdm_recorded_step *recorded, struct tdm_error *err)
{
    struct tdm_trace_batch *batch;
    enum tdm_status status = tdm_trace_take(recorder->trace, &batch, err);
    if (status != TDM_OK)
        return status;
    start_run(recorder, recorded->start_ns);
    batch->program_id = recorder->program_id;
    batch->step = recorded->step;
    batch->loss = recorded->loss;
    batch->gradient_norm = recorded->gradient_norm;
    batch->seconds = 1e-9 * (double)(recorded->end_ns - recorded->start_ns);
    batch->tokens = tdm_schedule_tokens(program->schedule);
    batch->ops_ended = program->op_count;
    reap(recorder, arenas, recorded->start_ns);
    add_sample(recorder, recorded->end_ns, TDM_HOST, tdm_arenas_host_used(arenas));
    add_sample(recorder, recorded->end_ns, TDM_DEVICE, recorded->device_used_bytes);
    hand_over(recorder, recorded->step, batch);
    if (recorded->observer != NULL) {
        struct tdm_values *values = tdm_observer_values(recorded->observer);
        batch->touch_count = tdm_values_touches(values, batch->touches);
        batch->observed_count = tdm_values_changes(values, batch->observed);
    }
    if (recorded->arenas != NULL) {
        memcpy(batch->arenas, recorded->arenas, sizeof(batch->arenas));
        batch->arena_count = program->schedule->machine->topology.place_count;
    }
    recorder->timing_count = recorder->sent_count = 0;
    tdm_trace_send(recorder->trace, batch);
    return TDM_OK;
}

enum tdm_status tdm_recorder_evaluated(struct tdm_recorder *recorder, uint64_t step, double loss,
                                       uint64_t tokens, double seconds, struct tdm_error *err)
{
    struct tdm_trace_batch *batch;
    enum tdm_status status = tdm_trace_take(recorder->trace, &batch, err);
    if (status != TDM_OK)
        return status;
    batch->program_id = recorder->program_id;
    batch->evaluated_by = recorder->evaluator_id;
    batch->step = step;
    batch->loss = loss;
    batch->tokens = tokens;
    batch->seconds = seconds;
    tdm_trace_send(recorder->trace, batch);
    return TDM_OK;
}

enum tdm_status tdm_recorder_close(struct tdm_recorder *recorder, enum tdm_status status,
                                   struct tdm_error *err)
{
    if (recorder == NULL)
        return status;
    const char *ending = status == TDM_OK            ? "finished"
                         : status == TDM_INTERRUPTED ? "interrupted"
                                                     : "failed";
    struct tdm_error late = {.status = TDM_OK};
    enum tdm_status closed = tdm_trace_close(recorder->trace, ending, &late);
    /* where the run failed because the trace could not be written, closing knows what is left of
     * it */
    if (closed != TDM_OK && err != NULL &&
        (status == TDM_OK || strcmp(late.message, err->message) == 0))
        *err = late;
    free(recorder->timings);
    free(recorder->relative);
    free(recorder);
    return status == TDM_OK ? closed : status;
}
