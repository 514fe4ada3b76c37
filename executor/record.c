/* SPDX-License-Identifier: Apache-2.0 */
/* Records a run in its trace: the predicted ops and memory of programs, and the measured steps. Of
 * several processes, the first has the trace; the others send it what they measured. */
#include "executor/record.h"

#include "config.h"
#include "base/json.h"
#include "executor/gather.h"

#include <jansson.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct tdm_recorder {
    struct tdm_trace *trace; /* NULL: process 0 has it */
    struct tdm_processes *processes;
    struct tdm_trace_batch passing; /* of several processes: of a rank, to be sent or dropped */
    const struct tdm_run_listener *listener;
    const volatile sig_atomic_t *stop; /* NULL: never */
    bool is_lost; /* the trace could not be written, and the run goes on without it */
    struct tdm_error why_lost;
    uint32_t ranks;
    uint64_t timed_every, first_step;
    int64_t program_id;         /* the program that is trained */
    int64_t evaluator_id;       /* 0: none yet */
    int64_t run_start_ns;       /* start of the first recorded step */
    struct tdm_timing *timings; /* [timing_capacity], as reaped */
    size_t timing_capacity;
    struct tdm_trace_timing *relative; /* [timing_capacity] of rank 0 in the current step: */
    size_t timing_count, sent_count;   /* reaped, and already in the trace */
    struct tdm_trace_used used[TDM_TRACE_SAMPLES]; /* not in the trace yet */
    size_t used_count;
};

static enum tdm_status open_trace(struct tdm_recorder *recorder,
                                  const struct tdm_run_options *options,
                                  struct tdm_recorded_start start,
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
                                .resumed_from = start.resumed_from,
                                .pinned_bytes = start.pinned_bytes,
                                .pageable_bytes = start.pageable_bytes};
    return tdm_trace_open(options->trace_path, options->force, &run, capacity, &recorder->trace,
                          err);
}

uint64_t tdm_recorder_op_bytes(void)
{
    return sizeof(struct tdm_timing) + sizeof(struct tdm_trace_timing) +
           TDM_TRACE_BATCHES * sizeof(struct tdm_trace_timing);
}

static void free_recorder(struct tdm_recorder *recorder)
{
    tdm_trace_batch_close(&recorder->passing);
    free(recorder->timings);
    free(recorder->relative);
    free(recorder);
}

enum tdm_status tdm_recorder_open(const struct tdm_run_options *options,
                                  const struct tdm_run_listener *listener,
                                  struct tdm_recorded_start start, uint32_t count,
                                  const struct tdm_program *const *programs, uint64_t timed_every,
                                  struct tdm_recorder **out, struct tdm_error *err)
{
    struct tdm_trace_capacity capacity = {0};
    for (uint32_t i = 0; i < count; i++) {
        capacity.ranks = programs[i]->ranks;
        for (uint32_t rank = 0; rank < capacity.ranks; rank++) {
            uint64_t ops = tdm_program_of_rank(programs[i], rank).op_count;
            capacity.timings = capacity.timings < ops ? ops : capacity.timings;
        }
        if (capacity.touches < programs[i]->buffer_count)
            capacity.touches = programs[i]->buffer_count;
        if (capacity.observed < tdm_values_change_capacity(programs[i]))
            capacity.observed = tdm_values_change_capacity(programs[i]);
    }
    struct tdm_recorder *recorder = calloc(1, sizeof(*recorder));
    if (recorder == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a recorder");
    recorder->listener = listener;
    recorder->stop = options->stop;
    recorder->processes = options->processes;
    recorder->ranks = capacity.ranks;
    recorder->timed_every = timed_every;
    recorder->timing_capacity = capacity.timings;
    recorder->timings = calloc(capacity.timings + 1, sizeof(*recorder->timings));
    recorder->relative = calloc(capacity.timings + 1, sizeof(*recorder->relative));
    enum tdm_status status = TDM_OK;
    const bool alone = tdm_processes_count(options->processes) == 1;
    if (recorder->timings == NULL || recorder->relative == NULL ||
        (!alone && !tdm_trace_batch_open(&recorder->passing, capacity)))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the times of %zu ops",
                          capacity.timings);
    if (status == TDM_OK && tdm_processes_number(options->processes) == 0)
        status = open_trace(recorder, options, start, capacity, err);
    if (status != TDM_OK) {
        free_recorder(recorder);
        return status;
    }
    *out = recorder;
    return TDM_OK;
}

/* A trace that cannot be written does not end a training that has begun: its weights are worth
 * more. The recorder then drops what it is given, and closing reports the failure. Returns the
 * status of other failures. */
static enum tdm_status lose(struct tdm_recorder *recorder, const struct tdm_error *failure,
                            struct tdm_error *err)
{
    const enum tdm_status status = failure->status;
    if (status == TDM_OK)
        return TDM_OK;
    if ((status != TDM_IO && status != TDM_NO_MEMORY) || recorder->run_start_ns == 0) {
        if (err != NULL)
            *err = *failure;
        return status;
    }
    recorder->is_lost = true;
    recorder->why_lost = *failure;
    if (recorder->listener->trace_lost != NULL)
        recorder->listener->trace_lost(recorder->listener->self, failure);
    return TDM_OK;
}

/* Does this process write a trace? */
static bool writes(const struct tdm_recorder *recorder)
{
    return recorder->trace != NULL && !recorder->is_lost;
}

/* ---- what is predicted ---- */

static enum tdm_status check_stop(const struct tdm_recorder *recorder, struct tdm_error *err)
{
    return recorder->stop != NULL && *recorder->stop
               ? tdm_fail(err, TDM_INTERRUPTED, "interrupted while predictions were recorded")
               : TDM_OK;
}

/* Records the ops of a rank, each with the allocated bytes that change with it. */
static enum tdm_status record_ops(struct tdm_recorder *recorder,
                                  const struct tdm_forecast *forecast, struct tdm_error *err)
{
    struct tdm_trace *trace = recorder->trace;
    const uint32_t rank = forecast->program->rank;
    const struct tdm_forecast_allocation *next = forecast->allocations;
    const struct tdm_forecast_allocation *end = next + forecast->allocation_count;
    enum tdm_status status = TDM_OK;
    for (uint64_t op = 0; op < forecast->program->op_count && status == TDM_OK; op++) {
        status = check_stop(recorder, err);
        if (status == TDM_OK)
            status = tdm_trace_op(trace, rank, &forecast->traced[op], err);
        for (; status == TDM_OK && next < end && next->op_number == op; next++)
            status = tdm_trace_allocation(trace, rank, op, next->place, next->bytes, err);
    }
    return status;
}

/* Records how many bytes are predicted to hold values. */
static enum tdm_status record_values(struct tdm_recorder *recorder,
                                     const struct tdm_forecast *forecast, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < forecast->change_count && status == TDM_OK; i++) {
        status =
            tdm_trace_memory(recorder->trace, forecast->program->rank, &forecast->changes[i], err);
        if (status == TDM_OK)
            status = check_stop(recorder, err);
    }
    return status;
}

static enum tdm_status record_program(struct tdm_recorder *recorder, const char *name,
                                      struct tdm_forecast *const *forecasts, int64_t *id,
                                      struct tdm_error *err)
{
    const struct tdm_program *program = forecasts[0]->program;
    json_t *json;
    enum tdm_status status = tdm_schedule_to_json(program->schedule, NULL, &json, err);
    if (status != TDM_OK)
        return status;
    char *text = tdm_json_dump(json, JSON_COMPACT);
    json_decref(json);
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the schedule's JSON");
    status = tdm_trace_program_begin(recorder->trace, name, text, program, id, err);
    free(text);
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++) {
        status = record_ops(recorder, forecasts[rank], err);
        if (status == TDM_OK)
            status = record_values(recorder, forecasts[rank], err);
    }
    return status == TDM_OK ? tdm_trace_program_end(recorder->trace, err) : status;
}

enum tdm_status tdm_recorder_program(struct tdm_recorder *recorder, const char *name,
                                     struct tdm_forecast *const *forecasts, uint64_t first_step,
                                     struct tdm_error *err)
{
    struct tdm_error failure = {.status = TDM_OK};
    recorder->first_step = first_step;
    if (!writes(recorder))
        return TDM_OK;
    (void)record_program(recorder, name, forecasts, &recorder->program_id, &failure);
    return lose(recorder, &failure, err);
}

enum tdm_status tdm_recorder_evaluator(struct tdm_recorder *recorder, const char *name,
                                       struct tdm_forecast *const *forecasts, struct tdm_error *err)
{
    struct tdm_error failure = {.status = TDM_OK};
    if (recorder->evaluator_id != 0 || !writes(recorder))
        return TDM_OK;
    (void)record_program(recorder, name, forecasts, &recorder->evaluator_id, &failure);
    return lose(recorder, &failure, err);
}

/* ---- what is measured ---- */

/* Takes times of ended ops of a rank from the backend. They become relative to
 * the step's start. Returns how many. */
static size_t reap(struct tdm_recorder *recorder, const struct tdm_arenas *arenas, int64_t start_ns,
                   struct tdm_trace_timing *relative, size_t capacity)
{
    size_t count = arenas->backend->reap(arenas->executor, recorder->timings, capacity);
    for (size_t i = 0; i < count; i++) {
        const struct tdm_timing *timing = &recorder->timings[i];
        relative[i] = (struct tdm_trace_timing){
            timing->op_number,    timing->start_ns - start_ns,  timing->end_ns - start_ns,
            timing->counts.pairs, timing->counts.fetched_bytes, timing->counts.sent_bytes};
    }
    return count;
}

/* The same for rank 0, of which parts of a step may be in the trace already. */
static void reap_first(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                       int64_t start_ns)
{
    recorder->timing_count +=
        reap(recorder, arenas, start_ns, recorder->relative + recorder->timing_count,
             recorder->timing_capacity - recorder->timing_count);
}

/* Fills a batch with the times of rank 0 and the samples that are not in the trace yet. */
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

/* Drops a sample that does not fit: then the trace has been busy for long. */
static void add_sample(struct tdm_recorder *recorder, int64_t now_ns, enum tdm_place place,
                       uint64_t used_bytes, uint32_t arenas)
{
    if (used_bytes > 0 && recorder->used_count < TDM_TRACE_SAMPLES)
        recorder->used[recorder->used_count++] =
            (struct tdm_trace_used){now_ns - recorder->run_start_ns, place, used_bytes, arenas};
}

/* The run's clock starts with its first step. */
static void start_run(struct tdm_recorder *recorder, int64_t start_ns)
{
    if (recorder->run_start_ns == 0)
        recorder->run_start_ns = start_ns;
}

/* Adds what is in use at each place. */
static void sample_places(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                          int64_t now_ns, uint64_t device_used_bytes)
{
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
        add_sample(recorder, now_ns, (enum tdm_place)place,
                   tdm_arenas_used(arenas, (enum tdm_place)place, device_used_bytes),
                   arenas->sharers[place]);
}

void tdm_recorder_sample(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                         const struct tdm_unfinished_step *unfinished, uint64_t device_used_bytes)
{
    int64_t now_ns = unfinished->start_ns + (int64_t)(1e9 * unfinished->seconds);
    start_run(recorder, unfinished->start_ns);
    if (!writes(recorder) ||
        recorder->used_count + 2 * TDM_PLACES > TDM_TRACE_SAMPLES) /* for the step's end */
        return;
    sample_places(recorder, arenas, now_ns, device_used_bytes);
}

/* The same in all processes: what is lost to one of them is asked of the others, and dropped. */
bool tdm_recorder_times(const struct tdm_recorder *recorder, uint64_t step)
{
    return step == recorder->first_step || step % recorder->timed_every == 0;
}

/* What was observed of a rank, and found in its arenas. */
static void add_observed(uint32_t rank, const struct tdm_recorded_step *recorded,
                         uint32_t place_count, struct tdm_trace_batch *batch)
{
    batch->rank = rank;
    if (recorded->observers != NULL) {
        struct tdm_values *values = tdm_observer_values(recorded->observers[rank]);
        batch->touch_count = tdm_values_touches(values, batch->touches);
        batch->observed_count = tdm_values_changes(values, batch->observed);
    }
    if (recorded->scanned != NULL) {
        memcpy(batch->arenas, recorded->scanned[rank], sizeof(batch->arenas));
        batch->arena_count = place_count;
    }
}

/* What a rank of this process has of a step. */
static void fill(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                 const struct tdm_recorded_step *recorded, uint32_t rank, uint32_t place_count,
                 struct tdm_trace_batch *batch)
{
    size_t count = reap(recorder, &arenas[rank], recorded->start_ns, batch->timings,
                        recorder->timing_capacity);
    if (tdm_recorder_times(recorder, recorded->step))
        batch->timing_count = count;
    if (recorded->device_used_bytes != NULL && recorded->device_used_bytes[rank] > 0)
        batch->used[batch->used_count++] = (struct tdm_trace_used){
            recorded->end_ns - recorder->run_start_ns, TDM_DEVICE,
            recorded->device_used_bytes[rank], arenas[rank].sharers[TDM_DEVICE]};
    add_observed(rank, recorded, place_count, batch);
}

/* Of several processes, all: process 0 gets what a rank of another one has of a step, with times on
 * its own clock. */
static enum tdm_status gather(const struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                              const struct tdm_recorded_step *recorded, uint32_t rank,
                              struct tdm_trace_batch *batch, struct tdm_error *err)
{
    const struct tdm_arenas *here = tdm_arenas_here(arenas);
    const uint32_t process = tdm_processes_of(recorder->processes, recorder->ranks, rank);
    int64_t start_ns = recorded->start_ns, ahead_ns = 0;
    if (process == 0)
        return TDM_OK;
    enum tdm_status status = tdm_gather_clock(recorder->processes, process, here->backend->now,
                                              here->executor, &ahead_ns, err);
    if (status == TDM_OK)
        status = tdm_gather_batch(recorder->processes, process, batch, &start_ns, err);
    const int64_t later_ns = start_ns - ahead_ns - recorded->start_ns;
    for (size_t i = 0; i < batch->timing_count && status == TDM_OK; i++) {
        batch->timings[i].start_ns += later_ns;
        batch->timings[i].end_ns += later_ns;
    }
    for (size_t i = 0; i < batch->used_count && status == TDM_OK; i++)
        batch->used[i].time_ns = recorded->end_ns - recorder->run_start_ns;
    return status;
}

/* Records what ranks other than the first have of a step, in the transaction that the first has
 * begun. Of a step that has ended and whose ops are timed, all processes send it to process 0, also
 * if its trace is lost: they do not know. */
static enum tdm_status record_others(struct tdm_recorder *recorder, const struct tdm_arenas *arenas,
                                     const struct tdm_recorded_step *recorded, uint32_t place_count,
                                     bool ended, struct tdm_error *err)
{
    const bool gathers = tdm_processes_count(recorder->processes) > 1 && ended &&
                         tdm_recorder_times(recorder, recorded->step);
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 1; rank < recorder->ranks && status == TDM_OK; rank++) {
        struct tdm_trace_batch *batch = NULL;
        struct tdm_error failure = {.status = TDM_OK};
        if (writes(recorder) && tdm_trace_take(recorder->trace, &batch, &failure) != TDM_OK)
            status = lose(recorder, &failure, err);
        if (status == TDM_OK && batch == NULL && !gathers)
            return TDM_OK;
        struct tdm_trace_batch *into = batch != NULL ? batch : &recorder->passing;
        *into = (struct tdm_trace_batch){.timings = into->timings,
                                         .touches = into->touches,
                                         .observed = into->observed,
                                         .program_id = recorder->program_id,
                                         .step = recorded->step,
                                         .more = rank + 1 < recorder->ranks};
        if (status == TDM_OK && arenas[rank].backend != NULL)
            fill(recorder, arenas, recorded, rank, place_count, into);
        if (status == TDM_OK && gathers)
            status = gather(recorder, arenas, recorded, rank, into, err);
        into->rank = rank;
        if (status == TDM_OK && batch != NULL)
            tdm_trace_send(recorder->trace, batch);
    }
    return status;
}

enum tdm_status tdm_recorder_unfinished(struct tdm_recorder *recorder,
                                        const struct tdm_arenas *arenas,
                                        const struct tdm_unfinished_step *unfinished, bool all,
                                        bool *sent, struct tdm_error *err)
{
    struct tdm_trace_batch *batch = NULL;
    struct tdm_error failure = {.status = TDM_OK};
    start_run(recorder, unfinished->start_ns);
    *sent = !writes(recorder);
    if (*sent)
        return TDM_OK;
    (void)(all ? tdm_trace_take(recorder->trace, &batch, &failure)
               : tdm_trace_take_free(recorder->trace, &batch, &failure));
    *sent = batch != NULL;
    if (batch == NULL)
        return lose(recorder, &failure, err);
    batch->program_id = recorder->program_id;
    batch->step = unfinished->step;
    batch->unfinished = true;
    batch->ops_ended = unfinished->ops_ended;
    batch->seconds = unfinished->seconds;
    batch->more = all && recorder->ranks > 1;
    reap_first(recorder, arenas, unfinished->start_ns);
    hand_over(recorder, unfinished->step, batch);
    tdm_trace_send(recorder->trace, batch);
    const struct tdm_recorded_step others = {.step = unfinished->step,
                                             .start_ns = unfinished->start_ns};
    return all ? record_others(recorder, arenas, &others, 0, false, err) : TDM_OK;
}

enum tdm_status tdm_recorder_step(struct tdm_recorder *recorder, const struct tdm_program *program,
                                  const struct tdm_arenas *arenas,
                                  const struct tdm_recorded_step *recorded, struct tdm_error *err)
{
    struct tdm_trace_batch *batch = NULL;
    struct tdm_error failure = {.status = TDM_OK};
    const uint32_t place_count = program->schedule->machine->topology.place_count;
    start_run(recorder, recorded->start_ns);
    if (!writes(recorder))
        return record_others(recorder, arenas, recorded, place_count, true, err);
    if (tdm_trace_take(recorder->trace, &batch, &failure) != TDM_OK) {
        enum tdm_status status = lose(recorder, &failure, err);
        return status == TDM_OK ? record_others(recorder, arenas, recorded, place_count, true, err)
                                : status;
    }
    batch->program_id = recorder->program_id;
    batch->step = recorded->step;
    batch->loss = recorded->loss;
    batch->gradient_norm = recorded->gradient_norm;
    batch->seconds = 1e-9 * (double)(recorded->end_ns - recorded->start_ns);
    batch->tokens = tdm_schedule_tokens(program->schedule);
    batch->ops_ended = program->op_count;
    batch->more = recorder->ranks > 1;
    reap_first(recorder, arenas, recorded->start_ns);
    sample_places(recorder, arenas, recorded->end_ns, recorded->device_used_bytes[0]);
    hand_over(recorder, recorded->step, batch);
    add_observed(0, recorded, place_count, batch);
    recorder->timing_count = recorder->sent_count = 0;
    tdm_trace_send(recorder->trace, batch);
    return record_others(recorder, arenas, recorded, place_count, true, err);
}

enum tdm_status tdm_recorder_evaluated(struct tdm_recorder *recorder, uint64_t step,
                                       const char *text, double loss, uint64_t tokens,
                                       double seconds, struct tdm_error *err)
{
    struct tdm_trace_batch *batch = NULL;
    struct tdm_error failure = {.status = TDM_OK};
    if (!writes(recorder))
        return TDM_OK;
    if (tdm_trace_take(recorder->trace, &batch, &failure) != TDM_OK)
        return lose(recorder, &failure, err);
    batch->program_id = recorder->program_id;
    batch->evaluated_by = recorder->evaluator_id;
    snprintf(batch->text, sizeof(batch->text), "%s", text);
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
    if (recorder->trace == NULL) {
        free_recorder(recorder);
        return status;
    }
    const char *ending = recorder->is_lost           ? "failed"
                         : status == TDM_OK          ? "finished"
                         : status == TDM_INTERRUPTED ? "interrupted"
                                                     : "failed";
    struct tdm_error late = {.status = TDM_OK};
    enum tdm_status closed = tdm_trace_close(recorder->trace, ending, &late);
    if (recorder->is_lost) {
        if (closed == TDM_OK)
            late = recorder->why_lost;
        closed = recorder->why_lost.status;
        size_t length = strlen(late.message);
        snprintf(late.message + length, sizeof(late.message) - length,
                 "; the training went on without it");
    }
    /* if the run failed because the trace could not be written, closing knows what is left of the
     * trace */
    if (closed != TDM_OK && err != NULL &&
        (status == TDM_OK || strcmp(late.message, err->message) == 0))
        *err = late;
    free_recorder(recorder);
    return status == TDM_OK ? closed : status;
}
