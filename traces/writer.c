/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer of traces. The caller's thread writes programs, and a thread of its own writes steps.
 *
 * Both use one connection, never at the same time: a program waits until the thread is idle, and
 * keeps it idle until the program ends. Batches cycle between a pool and a queue of the same small
 * size. After the first failure the thread drops batches, so that nobody waits for it.
 */
#include "traces/trace.h"

#include "ops/move.h"
#include "schedule/tags.h"
#include "traces/companions.h"
#include "traces/create.h"
#include "traces/sqlite.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum insertion {
    INSERT_PROGRAM,
    INSERT_PROGRAM_PLACE,
    INSERT_BUFFER,
    INSERT_OP,
    INSERT_MEMORY,
    INSERT_ALLOCATION,
    INSERT_REACHED,
    INSERT_STEP,
    INSERT_EVALUATION,
    INSERT_TIMING,
    INSERT_TOUCHED,
    INSERT_OBSERVED,
    INSERT_ARENA,
    INSERT_USED,
    INSERTIONS
};

static const char *const insertion_sql[INSERTIONS] = {
    [INSERT_PROGRAM] = "INSERT INTO program (name, schedule, ranks) VALUES (?, ?, ?)",
    [INSERT_PROGRAM_PLACE] = "INSERT INTO program_place VALUES (?, ?, ?, ?, ?)",
    [INSERT_BUFFER] = "INSERT INTO buffer VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_OP] = "INSERT INTO op VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
                  "?, ?)",
    [INSERT_MEMORY] = "INSERT INTO memory VALUES (?, ?, ?, ?, ?, ?)",
    [INSERT_ALLOCATION] = "INSERT INTO allocation VALUES (?, ?, ?, ?, ?)",
    [INSERT_REACHED] = "INSERT INTO reached VALUES (?, ?, ?, ?, ?) "
                       "ON CONFLICT (run, program, step) DO UPDATE SET "
                       "op_number = excluded.op_number, seconds = excluded.seconds",
    [INSERT_STEP] = "INSERT INTO step (run, program, step, loss, gradient_norm, tokens, seconds) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
    [INSERT_EVALUATION] = "INSERT INTO evaluation VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_TIMING] = "INSERT INTO timing VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_TOUCHED] = "INSERT INTO touched VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_OBSERVED] = "INSERT INTO observed VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_ARENA] = "INSERT INTO arena VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_USED] = "INSERT INTO used_memory VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
};

struct tdm_trace {
    char *path; /* as the caller named it, for messages */
    struct tdm_trace_file file;
    sqlite3 *db;
    sqlite3_stmt *insertion[INSERTIONS];
    int64_t run_id;

    /* The program that is being recorded. */
    int64_t program_id;
    struct tdm_topology topology; /* the programs of a run have the same rows */

    struct tdm_trace_capacity capacity;
    struct tdm_trace_batch batches[TDM_TRACE_MOST_BATCHES];
    size_t batch_count;

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t to_thread, from_thread;
    /* Guarded by the mutex. */
    struct tdm_trace_batch *free_batches[TDM_TRACE_MOST_BATCHES];
    size_t free_count;
    struct tdm_trace_batch *queue[TDM_TRACE_MOST_BATCHES]; /* oldest first */
    size_t queue_count;
    bool writing;   /* the thread has the connection */
    bool recording; /* a program has it */
    bool closing;
    struct tdm_error failure; /* the first one of the thread */
};

static struct tdm_value number_or_null(uint32_t number)
{
    return number == TDM_NONE ? tdm_null() : tdm_integer(number);
}

static enum tdm_status insert(struct tdm_trace *trace, enum insertion which, size_t values,
                              const struct tdm_value *value, struct tdm_error *err)
{
    return tdm_sqlite_run(trace->db, trace->path, trace->insertion[which], values, value, err);
}

#define INSERT(trace, which, err, ...)                                                             \
    insert((trace), (which), sizeof((struct tdm_value[]){__VA_ARGS__}) / sizeof(struct tdm_value), \
           (struct tdm_value[]){__VA_ARGS__}, (err))

static enum tdm_status execute(struct tdm_trace *trace, const char *sql, struct tdm_error *err)
{
    return tdm_sqlite_status(sqlite3_exec(trace->db, sql, NULL, NULL, NULL), TDM_SQLITE_WRITE,
                             trace->path, trace->db, err);
}

/* Ends a transaction that failed; SQLite may have done so itself. */
static void roll_back(struct tdm_trace *trace)
{
    if (!sqlite3_get_autocommit(trace->db))
        (void)execute(trace, "ROLLBACK", NULL);
}

static struct tdm_value count_or_null(uint64_t count)
{
    return count == 0 ? tdm_null() : tdm_count(count);
}

/* The thread. */

/* What a step is as a whole. */
static enum tdm_status write_whole(struct tdm_trace *trace, const struct tdm_trace_batch *batch,
                                   struct tdm_error *err)
{
    struct tdm_value run = tdm_integer(trace->run_id);
    struct tdm_value program = tdm_integer(batch->program_id);
    struct tdm_value step = tdm_count(batch->step);
    enum tdm_status status =
        INSERT(trace, INSERT_REACHED, err, run, program, step,
               batch->ops_ended == 0 ? tdm_null() : tdm_count(batch->ops_ended - 1),
               tdm_real(batch->seconds));
    return status != TDM_OK || batch->unfinished
               ? status
               : INSERT(trace, INSERT_STEP, err, run, program, step, tdm_real(batch->loss),
                        tdm_real(batch->gradient_norm), tdm_count(batch->tokens),
                        tdm_real(batch->seconds));
}

static enum tdm_status write_rows(struct tdm_trace *trace, const struct tdm_trace_batch *batch,
                                  struct tdm_error *err)
{
    struct tdm_value run = tdm_integer(trace->run_id);
    struct tdm_value program = tdm_integer(batch->program_id);
    struct tdm_value step = tdm_count(batch->step);
    if (batch->evaluated_by != 0)
        return INSERT(trace, INSERT_EVALUATION, err, run, program, step, tdm_text(batch->text),
                      tdm_integer(batch->evaluated_by), tdm_real(batch->loss),
                      tdm_count(batch->tokens), tdm_real(batch->seconds));
    struct tdm_value rank = tdm_integer(batch->rank);
    enum tdm_status status = batch->rank == 0 ? write_whole(trace, batch, err) : TDM_OK;
    for (size_t i = 0; i < batch->timing_count && status == TDM_OK; i++) {
        const struct tdm_trace_timing *row = &batch->timings[i];
        status =
            INSERT(trace, INSERT_TIMING, err, run, program, step, rank, tdm_count(row->op_number),
                   tdm_integer(row->start_ns), tdm_integer(row->end_ns), count_or_null(row->pairs),
                   count_or_null(row->fetched_bytes), count_or_null(row->sent_bytes));
    }
    for (size_t i = 0; i < batch->touch_count && status == TDM_OK; i++) {
        const struct tdm_values_touch *row = &batch->touches[i];
        status =
            INSERT(trace, INSERT_TOUCHED, err, run, program, step, rank, tdm_integer(row->buffer),
                   tdm_count(row->bytes), tdm_count(row->first_op), tdm_count(row->last_op));
    }
    for (size_t i = 0; i < batch->observed_count && status == TDM_OK; i++) {
        const struct tdm_values_change *row = &batch->observed[i];
        status =
            INSERT(trace, INSERT_OBSERVED, err, run, program, step, rank, tdm_count(row->op_number),
                   tdm_text(tdm_place_name(&trace->topology, row->place)),
                   tdm_text(tdm_category_name(row->category)), tdm_count(row->value_bytes));
    }
    for (size_t i = 0; i < batch->arena_count && status == TDM_OK; i++) {
        const struct tdm_trace_arena *row = &batch->arenas[i];
        status = INSERT(trace, INSERT_ARENA, err, run, program, step, rank,
                        tdm_text(tdm_place_name(&trace->topology, row->place)),
                        tdm_count(row->planned_bytes), tdm_count(row->touched_bytes),
                        tdm_count(row->highest_byte));
    }
    for (size_t i = 0; i < batch->used_count && status == TDM_OK; i++) {
        const struct tdm_trace_used *row = &batch->used[i];
        status =
            INSERT(trace, INSERT_USED, err, run, program, step, rank, tdm_integer(row->time_ns),
                   tdm_text(tdm_place_name(&trace->topology, row->place)),
                   tdm_count(row->used_bytes), tdm_count(row->arenas));
    }
    return status;
}

static enum tdm_status write_step(struct tdm_trace *trace, const struct tdm_trace_batch *batch,
                                  struct tdm_error *err)
{
    if (batch->timing_count > trace->capacity.timings ||
        batch->touch_count > trace->capacity.touches ||
        batch->observed_count > trace->capacity.observed || batch->arena_count > TDM_MAX_PLACES ||
        batch->used_count > TDM_TRACE_SAMPLES)
        return tdm_fail(err, TDM_INTERNAL,
                        "%s: step %" PRIu64 " has more rows than its batch has room for",
                        trace->path, batch->step);

    enum tdm_status status = TDM_OK;
    if (sqlite3_get_autocommit(trace->db)) /* no transaction is open */
        status = execute(trace, "BEGIN IMMEDIATE", err);
    if (status == TDM_OK)
        status = write_rows(trace, batch, err);
    if (status == TDM_OK && !batch->more)
        status = execute(trace, "COMMIT", err);
    if (status != TDM_OK)
        roll_back(trace);
    return status;
}

static void *write_steps(void *argument)
{
    struct tdm_trace *trace = argument;
    (void)pthread_setname_np(pthread_self(), "tidemark-trace");

    pthread_mutex_lock(&trace->mutex);
    for (;;) {
        while (trace->queue_count == 0 ? !trace->closing : trace->recording)
            pthread_cond_wait(&trace->to_thread, &trace->mutex);
        if (trace->queue_count == 0)
            break;
        struct tdm_trace_batch *batch = trace->queue[0];
        trace->queue_count--;
        memmove(trace->queue, trace->queue + 1, trace->queue_count * sizeof(trace->queue[0]));
        bool failed = trace->failure.status != TDM_OK;
        trace->writing = true;
        pthread_mutex_unlock(&trace->mutex);

        struct tdm_error failure = {.status = TDM_OK};
        if (!failed)
            (void)write_step(trace, batch, &failure);

        pthread_mutex_lock(&trace->mutex);
        if (failure.status != TDM_OK)
            trace->failure = failure;
        trace->writing = false;
        trace->free_batches[trace->free_count++] = batch;
        pthread_cond_broadcast(&trace->from_thread);
    }
    pthread_mutex_unlock(&trace->mutex);
    roll_back(trace); /* a step of which not all ranks came */
    return NULL;
}

/* Starts the thread with all signals blocked: the main thread ends the run on Ctrl-C, between two
 * ops. */
static int start_thread(struct tdm_trace *trace)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int reason = pthread_create(&trace->thread, NULL, write_steps, trace);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reason;
}

/* Opening and closing. */

bool tdm_trace_batch_open(struct tdm_trace_batch *batch, struct tdm_trace_capacity capacity)
{
    batch->timings = calloc(capacity.timings + 1, sizeof(batch->timings[0]));
    batch->touches = calloc(capacity.touches + 1, sizeof(batch->touches[0]));
    batch->observed = calloc(capacity.observed + 1, sizeof(batch->observed[0]));
    return batch->timings != NULL && batch->touches != NULL && batch->observed != NULL;
}

void tdm_trace_batch_close(struct tdm_trace_batch *batch)
{
    free(batch->timings);
    free(batch->touches);
    free(batch->observed);
}

static enum tdm_status allocate_batches(struct tdm_trace *trace, struct tdm_error *err)
{
    struct tdm_trace_capacity capacity = trace->capacity;
    trace->batch_count = TDM_TRACE_BATCHES + (capacity.ranks > 1 ? capacity.ranks - 1 : 0);
    if (trace->batch_count > TDM_TRACE_MOST_BATCHES)
        trace->batch_count = TDM_TRACE_MOST_BATCHES;
    for (size_t i = 0; i < trace->batch_count; i++) {
        struct tdm_trace_batch *batch = &trace->batches[i];
        if (!tdm_trace_batch_open(batch, capacity))
            return tdm_fail(
                err, TDM_NO_MEMORY,
                "%s: no memory for %zu steps of %zu op times, %zu buffers and %zu changes",
                trace->path, trace->batch_count, capacity.timings, capacity.touches,
                capacity.observed);
        trace->free_batches[trace->free_count++] = batch;
    }
    return TDM_OK;
}

static void trace_free(struct tdm_trace *trace)
{
    for (size_t i = 0; i < trace->batch_count; i++)
        tdm_trace_batch_close(&trace->batches[i]);
    tdm_trace_file_close(&trace->file);
    free(trace->path);
    free(trace);
}

static void close_database(struct tdm_trace *trace)
{
    for (size_t i = 0; i < INSERTIONS; i++)
        sqlite3_finalize(trace->insertion[i]);
    sqlite3_close(trace->db);
}

static enum tdm_status prepare_insertions(struct tdm_trace *trace, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < INSERTIONS && status == TDM_OK; i++)
        status = tdm_sqlite_status(sqlite3_prepare_v3(trace->db, insertion_sql[i], -1,
                                                      SQLITE_PREPARE_PERSISTENT,
                                                      &trace->insertion[i], NULL),
                                   TDM_SQLITE_WRITE, trace->path, trace->db, err);
    return status;
}

enum tdm_status tdm_trace_open(const char *path, bool force, const struct tdm_trace_run *run,
                               struct tdm_trace_capacity capacity, struct tdm_trace **trace,
                               struct tdm_error *err)
{
    struct tdm_trace *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for a trace", path);
    made->capacity = capacity;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->to_thread, NULL);
    pthread_cond_init(&made->from_thread, NULL);

    made->run_id = 1; /* of a new file */
    made->path = strdup(path);
    enum tdm_status status = TDM_OK;
    if (made->path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for a trace", path);
    if (status == TDM_OK)
        status = allocate_batches(made, err);
    if (status == TDM_OK)
        status = tdm_trace_create(path, force, run, &made->file, &made->db, err);
    if (status != TDM_OK)
        goto free_trace;

    status = prepare_insertions(made, err);
    if (status == TDM_OK) {
        int reason = start_thread(made);
        if (reason == 0) {
            tdm_trace_file_keep(&made->file);
            *trace = made;
            return TDM_OK;
        }
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: the thread that writes it cannot start: %s",
                          path, strerror(reason));
    }
    close_database(made);
    tdm_trace_file_undo(&made->file);
free_trace:
    trace_free(made);
    return status;
}

static void now_text(char out[32])
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

/* Stores how the run ended and turns the database into one plain file. If another program is
 * reading it, it stays in WAL mode, and is complete nevertheless. */
static enum tdm_status finish_database(struct tdm_trace *trace, const char *ending,
                                       struct tdm_error *err)
{
    char now[32];
    now_text(now);
    sqlite3_stmt *update = NULL;
    enum tdm_status status = tdm_sqlite_status(
        sqlite3_prepare_v2(trace->db, "UPDATE run SET ending = ?, ended_at = ? WHERE id = ?", -1,
                           &update, NULL),
        TDM_SQLITE_WRITE, trace->path, trace->db, err);
    if (status == TDM_OK) {
        struct tdm_value values[] = {tdm_text(ending), tdm_text(now), tdm_integer(trace->run_id)};
        status = tdm_sqlite_run(trace->db, trace->path, update, 3, values, err);
    }
    sqlite3_finalize(update);
    for (size_t i = 0; i < INSERTIONS; i++) {
        sqlite3_finalize(trace->insertion[i]);
        trace->insertion[i] = NULL;
    }
    if (status == TDM_OK)
        status = execute(trace, "PRAGMA wal_checkpoint(TRUNCATE)", err);
    if (status == TDM_OK) {
        int code = sqlite3_exec(trace->db, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL);
        if ((code & 0xff) != SQLITE_BUSY && (code & 0xff) != SQLITE_LOCKED)
            status = tdm_sqlite_status(code, TDM_SQLITE_WRITE, trace->path, trace->db, err);
    }
    return status;
}

static void name_companions(const char *path, struct tdm_error *err)
{
    char hint[sizeof(err->hint)];
    memcpy(hint, err->hint, sizeof(hint));
    tdm_hint(err, "%.300s%s%.300s-wal and -shm hold a part of it: keep them with it, or remove all",
             hint, hint[0] == '\0' ? "" : "; ", path);
}

enum tdm_status tdm_trace_close(struct tdm_trace *trace, const char *ending, struct tdm_error *err)
{
    if (trace == NULL)
        return TDM_OK;
    if (trace->recording)
        roll_back(trace); /* a program whose caller gave up; the thread waits until then */
    pthread_mutex_lock(&trace->mutex);
    trace->recording = false;
    trace->closing = true;
    pthread_cond_signal(&trace->to_thread);
    pthread_mutex_unlock(&trace->mutex);
    pthread_join(trace->thread, NULL);

    struct tdm_error late = {.status = TDM_OK};
    enum tdm_status status = finish_database(trace, ending, &late);
    if (trace->failure.status != TDM_OK)
        late = trace->failure;
    status = late.status != TDM_OK ? late.status : status;
    close_database(trace);
    if (status != TDM_OK && tdm_companions_left(trace->file.path))
        name_companions(trace->path, &late);
    if (status != TDM_OK && err != NULL)
        *err = late;
    pthread_cond_destroy(&trace->from_thread);
    pthread_cond_destroy(&trace->to_thread);
    pthread_mutex_destroy(&trace->mutex);
    trace_free(trace);
    return status;
}

/* Programs. */

/* Passes on the failure of the thread. The caller holds the mutex. */
static enum tdm_status thread_failure(const struct tdm_trace *trace, struct tdm_error *err)
{
    if (trace->failure.status != TDM_OK && err != NULL)
        *err = trace->failure;
    return trace->failure.status;
}

static void stop_recording(struct tdm_trace *trace)
{
    pthread_mutex_lock(&trace->mutex);
    trace->recording = false;
    pthread_cond_signal(&trace->to_thread);
    pthread_mutex_unlock(&trace->mutex);
}

/* A failure while recording leaves nothing of the program. */
static enum tdm_status give_up_program(struct tdm_trace *trace, enum tdm_status status)
{
    roll_back(trace);
    stop_recording(trace);
    return status;
}

static enum tdm_status no_program(const struct tdm_trace *trace, struct tdm_error *err)
{
    return tdm_fail(err, TDM_INTERNAL, "%s: no program is being recorded", trace->path);
}

static enum tdm_status write_program(struct tdm_trace *trace, const char *name,
                                     const char *schedule_json, const struct tdm_program *program,
                                     struct tdm_error *err)
{
    enum tdm_status status = INSERT(trace, INSERT_PROGRAM, err, tdm_text(name),
                                    tdm_text(schedule_json), tdm_integer(program->ranks));
    trace->program_id = sqlite3_last_insert_rowid(trace->db);
    struct tdm_value id = tdm_integer(trace->program_id);
    trace->topology = program->schedule->machine->topology;
    const struct tdm_topology *topology = &trace->topology;
    for (uint32_t place = 0; place < topology->place_count && status == TDM_OK; place++)
        status = INSERT(
            trace, INSERT_PROGRAM_PLACE, err, id, tdm_text(topology->places[place].name),
            tdm_count(program->arena_bytes[place]), tdm_count(program->live_peak_bytes[place]),
            tdm_count(topology->places[place].runtime_bytes));
    for (uint32_t i = 0; i < program->buffer_count && status == TDM_OK; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        if (buffer->used)
            status = INSERT(trace, INSERT_BUFFER, err, id, tdm_integer(i), tdm_text(buffer->name),
                            tdm_text(tdm_place_name(&trace->topology, buffer->place)),
                            tdm_text(tdm_category_name(buffer->category)),
                            tdm_text(tdm_content_name(buffer->content)), tdm_count(buffer->bytes),
                            tdm_count(buffer->offset));
    }
    return status;
}

enum tdm_status tdm_trace_program_begin(struct tdm_trace *trace, const char *name,
                                        const char *schedule_json,
                                        const struct tdm_program *program, int64_t *program_id,
                                        struct tdm_error *err)
{
    if (trace->recording)
        return tdm_fail(err, TDM_INTERNAL, "%s: a program is being recorded already", trace->path);
    pthread_mutex_lock(&trace->mutex);
    while (trace->queue_count > 0 || trace->writing)
        pthread_cond_wait(&trace->from_thread, &trace->mutex);
    enum tdm_status status = thread_failure(trace, err);
    if (status == TDM_OK)
        trace->recording = true;
    pthread_mutex_unlock(&trace->mutex);
    if (status != TDM_OK)
        return status;

    status = execute(trace, "BEGIN IMMEDIATE", err);
    if (status == TDM_OK)
        status = write_program(trace, name, schedule_json, program, err);
    if (status != TDM_OK)
        return give_up_program(trace, status);
    *program_id = trace->program_id;
    return TDM_OK;
}

/* Does an op use a part of the weights? Part 0 is the attention norm for norms and for copies of a
 * part, and no part for all others. */
static bool has_part(const struct tdm_op *op)
{
    bool copies_part = op->kind == TDM_OP_COPY && op->access[TDM_COPY_FROM].part < TDM_PARTS &&
                       tdm_content_is_of_unit(op->access[TDM_COPY_FROM].before.content);
    return op->part != 0 || op->kind == TDM_OP_NORM || op->kind == TDM_OP_NORM_GRAD || copies_part;
}

struct tdm_trace_op tdm_trace_op_of(const struct tdm_op *op, int64_t predicted_start_ns,
                                    int64_t predicted_end_ns)
{
    struct tdm_trace_op traced = {.number = op->number,
                                  .tokens = op->tokens,
                                  .flops = op->flops,
                                  .bytes = op->bytes,
                                  .pairs = op->pairs,
                                  .fetched_bytes = op->fetched_bytes,
                                  .sent_bytes = op->sent_bytes,
                                  .predicted_start_ns = predicted_start_ns,
                                  .predicted_end_ns = predicted_end_ns,
                                  .layer = op->layer,
                                  .chunk = op->chunk,
                                  .kind = (uint8_t)op->kind,
                                  .part = (uint8_t)op->part,
                                  .phase = (uint8_t)op->phase,
                                  .lane = (uint8_t)op->lane,
                                  .has_part = has_part(op)};
    if (op->kind == TDM_OP_COPY) {
        traced.content = (uint8_t)op->access[TDM_COPY_TO].after.content;
        traced.copied_bytes = op->access[TDM_COPY_FROM].bytes;
        traced.between_places = op->link != TDM_NO_LINK;
    }
    return traced;
}

enum tdm_status tdm_trace_op(struct tdm_trace *trace, uint32_t rank, const struct tdm_trace_op *op,
                             struct tdm_error *err)
{
    if (!trace->recording)
        return no_program(trace, err);
    enum tdm_status status = INSERT(
        trace, INSERT_OP, err, tdm_integer(trace->program_id), tdm_integer(rank),
        tdm_count(op->number), count_or_null(op->team_op),
        tdm_text(tdm_op_kind_name((enum tdm_op_kind)op->kind)),
        tdm_text(op->has_part ? tdm_part_name((enum tdm_part)op->part) : NULL),
        op->kind == TDM_OP_COPY ? tdm_text(tdm_content_name((enum tdm_content)op->content))
                                : tdm_null(),
        tdm_text(tdm_phase_name((enum tdm_phase)op->phase)),
        tdm_text(tdm_lane_name(&trace->topology, (enum tdm_lane)op->lane)),
        number_or_null(op->layer), number_or_null(op->chunk), tdm_count(op->tokens),
        tdm_count(op->flops), tdm_count(op->bytes),
        op->between_places ? tdm_count(op->copied_bytes) : tdm_null(), count_or_null(op->pairs),
        count_or_null(op->fetched_bytes), count_or_null(op->sent_bytes),
        tdm_integer(op->predicted_start_ns), tdm_integer(op->predicted_end_ns));
    return status == TDM_OK ? TDM_OK : give_up_program(trace, status);
}

enum tdm_status tdm_trace_allocation(struct tdm_trace *trace, uint32_t rank, uint64_t op_number,
                                     enum tdm_place place, uint64_t allocated_bytes,
                                     struct tdm_error *err)
{
    if (!trace->recording)
        return no_program(trace, err);
    enum tdm_status status =
        INSERT(trace, INSERT_ALLOCATION, err, tdm_integer(trace->program_id), tdm_integer(rank),
               tdm_count(op_number), tdm_text(tdm_place_name(&trace->topology, place)),
               tdm_count(allocated_bytes));
    return status == TDM_OK ? TDM_OK : give_up_program(trace, status);
}

enum tdm_status tdm_trace_memory(struct tdm_trace *trace, uint32_t rank,
                                 const struct tdm_values_change *change, struct tdm_error *err)
{
    if (!trace->recording)
        return no_program(trace, err);
    enum tdm_status status = INSERT(
        trace, INSERT_MEMORY, err, tdm_integer(trace->program_id), tdm_integer(rank),
        tdm_count(change->op_number), tdm_text(tdm_place_name(&trace->topology, change->place)),
        tdm_text(tdm_category_name(change->category)), tdm_count(change->value_bytes));
    return status == TDM_OK ? TDM_OK : give_up_program(trace, status);
}

enum tdm_status tdm_trace_program_end(struct tdm_trace *trace, struct tdm_error *err)
{
    if (!trace->recording)
        return no_program(trace, err);
    enum tdm_status status = execute(trace, "COMMIT", err);
    if (status != TDM_OK)
        return give_up_program(trace, status);
    stop_recording(trace);
    return TDM_OK;
}

/* Steps. */

/* Takes a free batch. If there is none, it waits if `wait`, else *batch is NULL. */
static enum tdm_status take_batch(struct tdm_trace *trace, bool wait,
                                  struct tdm_trace_batch **batch, struct tdm_error *err)
{
    struct tdm_trace_batch *taken = NULL;
    pthread_mutex_lock(&trace->mutex);
    while (wait && trace->free_count == 0)
        pthread_cond_wait(&trace->from_thread, &trace->mutex);
    enum tdm_status status = thread_failure(trace, err);
    if (status == TDM_OK && trace->free_count > 0)
        taken = trace->free_batches[--trace->free_count];
    pthread_mutex_unlock(&trace->mutex);
    if (status != TDM_OK)
        return status;

    if (taken != NULL)
        *taken = (struct tdm_trace_batch){
            .timings = taken->timings, .touches = taken->touches, .observed = taken->observed};
    *batch = taken;
    return TDM_OK;
}

enum tdm_status tdm_trace_take(struct tdm_trace *trace, struct tdm_trace_batch **batch,
                               struct tdm_error *err)
{
    return take_batch(trace, true, batch, err);
}

enum tdm_status tdm_trace_take_free(struct tdm_trace *trace, struct tdm_trace_batch **batch,
                                    struct tdm_error *err)
{
    return take_batch(trace, false, batch, err);
}

void tdm_trace_send(struct tdm_trace *trace, struct tdm_trace_batch *batch)
{
    pthread_mutex_lock(&trace->mutex);
    trace->queue[trace->queue_count++] = batch;
    pthread_cond_signal(&trace->to_thread);
    pthread_mutex_unlock(&trace->mutex);
}
