/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of traces. What is written is read back. A file is overwritten only on request. A writer
 * says if the disk is full. A killed writer leaves every finished step. What is no trace is named.
 */
#include "ops/move.h"
#include "traces/create.h"
#include "traces/reader.h"
#include "traces/sqlite.h"
#include "traces/trace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { OPS = 40, BUFFERS = 5, CHANGES = 30, POOL = 4 };

static char folder[512]; /* an empty folder for this test */

static const struct tdm_trace_run example_run = {
    .command = "tidemark run tiny.json --trace x",
    .backend = "null",
    .where = "here, 2 cores",
    .versions = "tidemark 0.1.0",
    .started_at = "2025-01-02T03:04:05Z",
};

static const struct tdm_trace_capacity capacity = {1, OPS, BUFFERS, CHANGES};

static const char *in_folder(const char *name, char out[640])
{
    snprintf(out, 640, "%s/%s", folder, name);
    return out;
}

/* Number of entries of the folder, without "." and "..". */
static int count_files(const char *path)
{
    int files = 0;
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while (readdir(directory) != NULL)
        files++;
    closedir(directory);
    return files - 2;
}

static void remove_files(void)
{
    char path[1024];
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (entry->d_type != DT_DIR)
            unlink(path);
        else if (entry->d_name[0] != '.')
            rmdir(path);
    }
    closedir(directory);
}

static int setup_folder(void **state)
{
    (void)state;
    const char *scratch = getenv("TDM_SCRATCH");
    /* Root runs some tests as user nobody, who must be able to enter the folder. */
    if (scratch == NULL || strlen(scratch) > 400 || getuid() == 0)
        scratch = "/tmp";
    snprintf(folder, sizeof(folder), "%s/traces-XXXXXX", scratch);
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int teardown_folder(void **state)
{
    (void)state;
    remove_files();
    return rmdir(folder);
}

static int setup_case(void **state)
{
    (void)state;
    remove_files();
    return 0;
}

/* The result of a query: one integer. */
static int64_t ask(const char *path, const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *statement;
    struct tdm_error err = {0};
    assert_int_equal(tdm_sqlite_open(path, SQLITE_OPEN_READONLY, NULL, &db, &err), TDM_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        fail_msg("%s: %s: %s", path, sql, sqlite3_errmsg(db));
    int64_t answer = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return answer;
}

static void change(const char *path, const char *sql)
{
    sqlite3 *db;
    struct tdm_error err = {0};
    assert_int_equal(
        tdm_sqlite_open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL, &db, &err), TDM_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s: %s", path, sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void assert_sound(const char *path)
{
    assert_int_equal(ask(path, "SELECT integrity_check = 'ok' FROM pragma_integrity_check"), 1);
    assert_int_equal(ask(path, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
}

/* A program without a real schedule, and its ops. */

struct example {
    struct tdm_machine machine;
    struct tdm_schedule schedule;
    struct tdm_buffer buffers[BUFFERS];
    struct tdm_program program;
};

static void example_make(struct example *example)
{
    memset(example, 0, sizeof(*example));
    tdm_topology_begin(&example->machine.topology);
    example->machine.topology.places[TDM_DEVICE].runtime_bytes = 100;
    example->schedule.machine = &example->machine;
    example->program.schedule = &example->schedule;
    example->program.ranks = 1;
    example->program.buffers = example->buffers;
    example->program.buffer_count = BUFFERS;
    example->program.arena_bytes[TDM_DEVICE] = 5000;
    example->program.arena_bytes[TDM_HOST] = 700;
    example->program.live_peak_bytes[TDM_DEVICE] = 4900;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        struct tdm_buffer *buffer = &example->buffers[i];
        snprintf(buffer->name, sizeof(buffer->name), "buffer %u", i);
        buffer->place = i == 4 ? TDM_HOST : TDM_DEVICE;
        buffer->category = i == 0 ? TDM_WEIGHTS : TDM_RESIDUALS;
        buffer->bytes = 1000 * (i + 1);
        buffer->offset = 10 * i;
        buffer->used = i != 2;
    }
}

/* Every fourth op is a copy; products take 10 ns and copies 5 ns. */
static struct tdm_op example_op(uint64_t number)
{
    struct tdm_op op = {.number = number, .tokens = 16, .flops = 1000, .bytes = 2 * (number + 1)};
    op.kind = number % 4 == 3 ? TDM_OP_COPY : TDM_OP_PRODUCT;
    op.part = number % 4 == 3 ? 0 : TDM_PART_Q;
    op.lane = number % 4 == 3 ? TDM_LANE_H2D : TDM_LANE_COMPUTE;
    op.phase = number < OPS / 2 ? TDM_FORWARD : TDM_BACKWARD;
    op.layer = number % 4 == 3 ? TDM_NONE : (uint32_t)number % 3;
    op.chunk = number % 4 == 3 ? 1 : TDM_NONE;
    op.access_count = TDM_COPY_OPERANDS;
    op.access[TDM_COPY_FROM].bytes = number + 1;
    op.access[TDM_COPY_TO].bytes = number + 1;
    return op;
}

static int64_t example_duration(uint64_t number)
{
    return number % 4 == 3 ? 5 : 10;
}

static void write_value(struct tdm_trace *trace, uint64_t op_number, enum tdm_place place,
                        enum tdm_category category, uint64_t value_bytes)
{
    const struct tdm_values_change change = {op_number, place, category, value_bytes};
    struct tdm_error err = {0};
    assert_int_equal(tdm_trace_memory(trace, 0, &change, &err), TDM_OK);
}

static enum tdm_status add_op(struct tdm_trace *trace, const struct tdm_op *op, int64_t start_ns,
                              int64_t end_ns, struct tdm_error *err)
{
    struct tdm_trace_op traced = tdm_trace_op_of(op, start_ns, end_ns);
    return tdm_trace_op(trace, 0, &traced, err);
}

static int64_t write_program(struct tdm_trace *trace, const char *name)
{
    struct example example;
    struct tdm_error err = {0};
    int64_t id = -1;
    example_make(&example);
    assert_int_equal(
        tdm_trace_program_begin(trace, name, "{\"format\":\"x\"}", &example.program, &id, &err),
        TDM_OK);
    for (uint64_t i = 0; i < OPS; i++) {
        struct tdm_op op = example_op(i);
        int64_t start = (int64_t)i * 20;
        assert_int_equal(add_op(trace, &op, start, start + example_duration(i), &err), TDM_OK);
        if (i % 10 == 0)
            assert_int_equal(tdm_trace_allocation(trace, 0, i, TDM_DEVICE, 4500 + i, &err), TDM_OK);
        if (i == 0)
            write_value(trace, 0, TDM_DEVICE, TDM_WEIGHTS, 1000);
        /* Both change at the same op: 3000 and 500 are never live together. */
        if (i % 10 == 5) {
            write_value(trace, i, TDM_DEVICE, TDM_RESIDUALS, i == 15 ? 3000 : 10);
            write_value(trace, i, TDM_DEVICE, TDM_KV, i == 15 ? 0 : 500);
            write_value(trace, i, TDM_HOST, TDM_RESIDUALS, i);
        }
    }
    assert_int_equal(tdm_trace_program_end(trace, &err), TDM_OK);
    return id;
}

static void fill_batch(struct tdm_trace_batch *batch, int64_t program, uint64_t step)
{
    batch->program_id = program;
    batch->step = step;
    batch->loss = 8.0 / (double)step;
    batch->gradient_norm = step == 1 ? NAN : 0.5;
    batch->seconds = 0.25;
    batch->tokens = 64;
    for (uint64_t i = 0; i < OPS; i++) {
        int64_t start = (int64_t)i * 40;
        batch->timings[batch->timing_count++] =
            (struct tdm_trace_timing){i, start, start + 2 * example_duration(i), 0, 0, 0};
    }
    for (uint32_t i = 0; i < BUFFERS; i++)
        if (i != 2)
            batch->touches[batch->touch_count++] =
                (struct tdm_values_touch){i, 900 + i, i, OPS - 1 - i};
    for (uint64_t i = 0; i < CHANGES; i++)
        batch->observed[batch->observed_count++] = (struct tdm_values_change){
            i, i % 3 == 2 ? TDM_HOST : TDM_DEVICE, i % 3 == 0 ? TDM_WEIGHTS : TDM_RESIDUALS,
            i % 11 * 100 + step};
    batch->arenas[batch->arena_count++] =
        (struct tdm_trace_arena){TDM_DEVICE, 5000, 4000 + step, 4500 + step};
    batch->used[batch->used_count++] =
        (struct tdm_trace_used){(int64_t)step * 1000, TDM_HOST, 123456 + step, 1};
}

static enum tdm_status send_step(struct tdm_trace *trace, int64_t program, uint64_t step,
                                 struct tdm_error *err)
{
    struct tdm_trace_batch *batch;
    enum tdm_status status = tdm_trace_take(trace, &batch, err);
    if (status != TDM_OK)
        return status;
    fill_batch(batch, program, step);
    tdm_trace_send(trace, batch);
    return TDM_OK;
}

static struct tdm_trace *open_trace(const char *path)
{
    struct tdm_trace *trace = NULL;
    struct tdm_error err = {0};
    if (tdm_trace_open(path, false, &example_run, capacity, &trace, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return trace;
}

static void close_trace(struct tdm_trace *trace)
{
    struct tdm_error err = {0};
    if (tdm_trace_close(trace, "finished", &err) != TDM_OK)
        fail_msg("%s", err.message);
}

static struct tdm_trace_reader *open_reader(const char *path)
{
    struct tdm_trace_reader *reader = NULL;
    struct tdm_error err = {0};
    if (tdm_trace_reader_open(path, &reader, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return reader;
}

/* Writes a finished trace with one program of `steps` steps. */
static void write_trace(const char *path, uint64_t steps)
{
    struct tdm_error err = {0};
    struct tdm_trace *trace = open_trace(path);
    int64_t program = write_program(trace, "one");
    for (uint64_t step = 1; step <= steps; step++)
        assert_int_equal(send_step(trace, program, step, &err), TDM_OK);
    close_trace(trace);
}

static void read_is_refused(const char *path, enum tdm_status status, const char *why)
{
    struct tdm_trace_reader *reader = NULL;
    struct tdm_error err = {0};
    enum tdm_status got = tdm_trace_reader_open(path, &reader, &err);
    tdm_trace_reader_close(reader);
    if (got != status || strstr(err.message, path) != err.message ||
        strstr(err.message, why) == NULL)
        fail_msg("status %d, not %d: %s (should say: %s)", got, status, err.message, why);
}

/* Runs `act` in a child process, as user nobody if this is root, and returns its exit status. */
static int in_child(int (*act)(const char *path), const char *path, bool as_nobody)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (as_nobody && getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            _exit(99);
        _exit(act(path));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The tests. */

static void check_programs(struct tdm_trace_reader *reader)
{
    struct tdm_error err = {0};
    struct tdm_trace_program_row *programs;
    size_t count;
    assert_int_equal(tdm_trace_read_programs(reader, &programs, &count, &err), TDM_OK);
    assert_int_equal(count, 2);
    assert_string_equal(programs[1].name, "two");
    assert_int_equal(programs[0].ops, OPS);
    assert_int_equal(programs[0].steps, 10);
    assert_int_equal(programs[1].steps, 9);
    assert_int_equal(programs[1].timed_steps, 9);
    assert_int_equal(programs[0].arena_bytes[TDM_HOST], 700);
    assert_int_equal(programs[0].live_peak_bytes[TDM_DEVICE], 4900);
    assert_int_equal(programs[0].runtime_bytes[TDM_DEVICE], 100);
    assert_true(fabs(programs[0].predicted_seconds - ((OPS - 1) * 20 + 5) * 1e-9) < 1e-15);
    char *json;
    assert_int_equal(tdm_trace_read_schedule(reader, programs[1].program, &json, &err), TDM_OK);
    assert_string_equal(json, "{\"format\":\"x\"}");
    free(json);
    assert_int_equal(tdm_trace_read_schedule(reader, 77, &json, &err), TDM_INPUT);
    free(programs);
}

static void check_steps(struct tdm_trace_reader *reader)
{
    struct tdm_error err = {0};
    struct tdm_trace_step_row *steps;
    size_t count;
    assert_int_equal(tdm_trace_read_steps(reader, &steps, &count, &err), TDM_OK);
    assert_int_equal(count, 19);
    assert_true(steps[0].loss == 8.0 && isnan(steps[0].gradient_norm));
    assert_true(steps[1].gradient_norm == 0.5 && steps[1].seconds == 0.25 && steps[1].timed);
    assert_int_equal(steps[1].tokens, 64);
    assert_int_equal(steps[9].step, 10);
    assert_int_equal(steps[10].step, 1); /* of the second program */
    assert_int_equal(steps[10].program, 2);
    free(steps);
}

static void check_time(struct tdm_trace_reader *reader)
{
    struct tdm_error err = {0};
    struct tdm_trace_time_row *times;
    struct tdm_trace_lane_row *lanes;
    struct tdm_trace_interval *ops;
    size_t count;
    const int64_t steps[] = {TDM_TRACE_EVERY_STEP, 3};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(tdm_trace_read_times(reader, 1, steps[i], &times, &count, &err), TDM_OK);
        assert_int_equal(count, 4);
        assert_true(times[0].phase == TDM_FORWARD && times[0].kind == TDM_OP_COPY);
        assert_true(times[1].phase == TDM_FORWARD && times[1].kind == TDM_OP_PRODUCT);
        assert_true(times[2].phase == TDM_BACKWARD && times[2].kind == TDM_OP_COPY);
        assert_int_equal(times[1].ops, 15);
        assert_true(fabs(times[1].predicted_seconds - 150e-9) < 1e-15);
        assert_true(fabs(times[1].measured_seconds - 300e-9) < 1e-15);
        free(times);

        assert_int_equal(tdm_trace_read_lanes(reader, 1, steps[i], &lanes, &count, &err), TDM_OK);
        assert_int_equal(count, 2);
        assert_true(lanes[0].lane == TDM_LANE_COMPUTE && lanes[1].lane == TDM_LANE_H2D);
        assert_int_equal(lanes[0].copied_bytes, 0);
        assert_int_equal(lanes[1].copied_bytes, 4 + 8 + 12 + 16 + 20 + 24 + 28 + 32 + 36 + 40);
        assert_true(fabs(lanes[0].predicted_busy_seconds - 300e-9) < 1e-15);
        assert_true(fabs(lanes[0].predicted_stall_seconds - (38 * 20 + 10 - 300) * 1e-9) < 1e-15);
        assert_true(fabs(lanes[1].measured_busy_seconds - 100e-9) < 1e-15);
        assert_true(fabs(lanes[1].measured_stall_seconds - (39 * 40 + 10 - 100) * 1e-9) < 1e-15);
        free(lanes);
    }
    assert_int_equal(tdm_trace_read_times(reader, 1, 99, &times, &count, &err), TDM_OK);
    assert_true(count == 4 && isnan(times[0].measured_seconds));
    free(times);

    assert_int_equal(tdm_trace_read_intervals(reader, 2, 9, &ops, &count, &err), TDM_OK);
    assert_int_equal(count, OPS);
    assert_true(ops[7].kind == TDM_OP_COPY && ops[7].lane == TDM_LANE_H2D && ops[7].measured);
    assert_true(ops[7].layer == TDM_NONE && ops[7].chunk == 1 && ops[8].chunk == TDM_NONE);
    assert_int_equal(ops[7].predicted_start_ns, 140);
    assert_int_equal(ops[7].end_ns, 290);
    assert_int_equal(ops[7].bytes, 16);
    free(ops);
    assert_int_equal(tdm_trace_read_intervals(reader, 2, 10, &ops, &count, &err), TDM_OK);
    assert_true(count == OPS && !ops[7].measured);
    free(ops);
    assert_int_equal(tdm_trace_read_intervals(reader, 3, 1, &ops, &count, &err), TDM_OK);
    assert_true(count == 0 && ops == NULL);
}

static void check_memory(struct tdm_trace_reader *reader)
{
    struct tdm_error err = {0};
    struct tdm_values_change *changes;
    struct tdm_trace_allocation_row *allocations;
    struct tdm_trace_arena_row *arenas;
    struct tdm_trace_used_row *used;
    struct tdm_trace_touched_row *touched;
    struct tdm_trace_peaks peaks;
    size_t count;
    assert_int_equal(tdm_trace_read_memory(reader, 1, &changes, &count, &err), TDM_OK);
    assert_int_equal(count, 13);
    assert_true(changes[0].category == TDM_WEIGHTS && changes[0].value_bytes == 1000);
    assert_int_equal(changes[1].op_number, changes[3].op_number);
    assert_int_equal(changes[12].op_number, 35);
    free(changes);
    assert_int_equal(tdm_trace_read_observed(reader, 2, 9, &changes, &count, &err), TDM_OK);
    assert_int_equal(count, CHANGES);
    assert_true(changes[5].place == TDM_HOST && changes[5].value_bytes == 509);
    free(changes);
    assert_int_equal(tdm_trace_read_allocation(reader, 2, &allocations, &count, &err), TDM_OK);
    assert_int_equal(count, 4);
    assert_true(allocations[3].op_number == 30 && allocations[3].allocated_bytes == 4530);
    free(allocations);

    assert_int_equal(tdm_trace_read_peaks(reader, 1, TDM_TRACE_EVERY_STEP, &peaks, &err), TDM_OK);
    const struct tdm_trace_peak *peak = &peaks.predicted[TDM_DEVICE];
    assert_true(peak->known && peak->value_bytes == 4000 && peak->op_number == 15);
    assert_int_equal(peak->at_peak[TDM_RESIDUALS], 3000);
    assert_int_equal(peak->at_peak[TDM_KV], 0);
    assert_int_equal(peak->most[TDM_RESIDUALS], 3000);
    assert_int_equal(peak->most[TDM_KV], 500);
    assert_int_equal(peaks.predicted[TDM_HOST].value_bytes, 35);
    assert_int_equal(peaks.measured[TDM_DEVICE].step, 10);
    assert_int_equal(tdm_trace_read_peaks(reader, 1, 4, &peaks, &err), TDM_OK);
    assert_int_equal(peaks.measured[TDM_DEVICE].step, 4);

    assert_int_equal(tdm_trace_read_arenas(reader, 1, TDM_TRACE_EVERY_STEP, &arenas, &count, &err),
                     TDM_OK);
    assert_true(count == 1 && arenas[0].touched_bytes == 4010 && arenas[0].highest_byte == 4510);
    free(arenas);
    assert_int_equal(tdm_trace_read_arenas(reader, 1, 2, &arenas, &count, &err), TDM_OK);
    assert_true(count == 1 && arenas[0].touched_bytes == 4002 && arenas[0].planned_bytes == 5000);
    free(arenas);
    assert_int_equal(tdm_trace_read_used(reader, 1, TDM_TRACE_EVERY_STEP, &used, &count, &err),
                     TDM_OK);
    assert_true(count == 10 && used[9].used_bytes == 123466 && used[9].place == TDM_HOST);
    free(used);
    assert_int_equal(tdm_trace_read_touched(reader, 1, 2, &touched, &count, &err), TDM_OK);
    assert_true(count == 4 && touched[2].buffer == 3 && touched[2].touched_bytes == 903);
    assert_string_equal(touched[2].name, "buffer 3");
    assert_true(touched[3].place == TDM_HOST && touched[3].last_op == OPS - 5);
    free(touched);
}

/* Several programs, and more steps than the pool has batches. */
static void test_round_trip(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace *trace = open_trace(in_folder("run.trace", path));
    int64_t first = write_program(trace, "one");
    for (uint64_t step = 1; step <= 10; step++)
        assert_int_equal(send_step(trace, first, step, &err), TDM_OK);
    int64_t second = write_program(trace, "two"); /* while the thread may still write */
    assert_int_not_equal(first, second);
    for (uint64_t step = 1; step <= 9; step++)
        assert_int_equal(send_step(trace, second, step, &err), TDM_OK);
    close_trace(trace);

    assert_int_equal(count_files(folder), 1);
    assert_sound(path);
    assert_int_equal(ask(path, "PRAGMA application_id"), TDM_TRACE_APPLICATION_ID);
    assert_int_equal(ask(path, "PRAGMA user_version"), TDM_TRACE_VERSION);
    assert_int_equal(ask(path, "SELECT journal_mode = 'delete' FROM pragma_journal_mode"), 1);
    assert_int_equal(ask(path, "SELECT count(*) FROM timing"), 19 * OPS);
    assert_int_equal(ask(path, "SELECT count(*) FROM op WHERE part = 'q'"), 60);
    assert_int_equal(ask(path, "SELECT count(*) FROM buffer"), 2 * (BUFFERS - 1));
    assert_int_equal(ask(path, "SELECT sum(bytes) FROM transfer WHERE step = 1 AND lane = 'h2d'"),
                     2 * 220);
    assert_int_equal(ask(path, "SELECT count(*) FROM prediction_error WHERE error = -0.5"), 19 * 4);
    assert_int_equal(ask(path, "SELECT predicted_at_peak_bytes FROM peak_by_category "
                               "WHERE program = 1 AND place = 'device' AND category = 'residuals'"),
                     3000);
    assert_int_equal(ask(path, "SELECT predicted_most_bytes FROM peak_by_category "
                               "WHERE program = 1 AND place = 'device' AND category = 'kv'"),
                     500);

    struct tdm_trace_reader *reader = open_reader(path);
    const struct tdm_trace_run_info *run = tdm_trace_reader_run(reader);
    assert_string_equal(run->command, example_run.command);
    assert_string_equal(run->ran_on, example_run.where);
    assert_string_equal(run->ending, "finished");
    assert_null(run->resumed_from);
    assert_non_null(run->ended_at);
    check_programs(reader);
    check_steps(reader);
    check_time(reader);
    check_memory(reader);
    tdm_trace_reader_close(reader);
}

/* Places and lanes that the machine of a program adds are read back by their names. */
static void test_more_places(void **state)
{
    (void)state;
    static const char tables[] =
        "{\"machine\": {\"places\": [{\"name\": \"second\", \"bytes\": 1000}], \"links\": "
        "[{\"from\": \"second\", \"to\": \"device\", \"lane\": \"near\", "
        "\"bytes_per_second\": 9}]}}";
    char path[640];
    struct example example;
    struct tdm_error err;
    struct tdm_json_reader json = {.file = "tables", .prefix = "machine", .err = &err};
    json_t *root = json_loads(tables, 0, NULL);
    int64_t id;
    example_make(&example);
    json.object = json_object_get(root, "machine");
    tdm_topology_read(&json, &example.machine.topology);
    assert_int_equal(tdm_json_status(&json), TDM_OK);
    json_decref(root);

    struct tdm_trace *trace = open_trace(in_folder("places.trace", path));
    enum tdm_place second = (enum tdm_place)TDM_PLACES;
    struct tdm_op op = example_op(0);
    op.lane = (enum tdm_lane)TDM_LANES;
    example.program.live_peak_bytes[second] = 77;
    assert_int_equal(tdm_trace_program_begin(trace, "one", tables, &example.program, &id, &err),
                     TDM_OK);
    assert_int_equal(add_op(trace, &op, 0, 10, &err), TDM_OK);
    write_value(trace, 0, second, TDM_RESIDUALS, 66);
    assert_int_equal(tdm_trace_program_end(trace, &err), TDM_OK);
    close_trace(trace);
    assert_int_equal(ask(path, "SELECT count(*) FROM op WHERE lane = 'near'"), 1);
    assert_int_equal(ask(path, "SELECT value_bytes FROM memory WHERE place = 'second'"), 66);

    struct tdm_trace_reader *reader = open_reader(path);
    struct tdm_trace_program_row *programs;
    struct tdm_trace_interval *ops;
    struct tdm_trace_peaks peaks;
    size_t count;
    assert_int_equal(tdm_trace_read_programs(reader, &programs, &count, &err), TDM_OK);
    assert_int_equal(programs[0].live_peak_bytes[second], 77);
    free(programs);
    assert_int_equal(tdm_trace_read_intervals(reader, id, 1, &ops, &count, &err), TDM_OK);
    assert_string_equal(tdm_lane_name(tdm_trace_reader_topology(reader), ops[0].lane), "near");
    free(ops);
    assert_int_equal(tdm_trace_read_peaks(reader, id, TDM_TRACE_EVERY_STEP, &peaks, &err), TDM_OK);
    assert_int_equal(peaks.predicted[second].value_bytes, 66);
    tdm_trace_reader_close(reader);
}

/* Evaluations are separate rows, next to the steps after which they ran. */
static void test_evaluations(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace *trace = open_trace(in_folder("evaluated.trace", path));
    int64_t trained = write_program(trace, "train"), evaluator = write_program(trace, "evaluate");
    for (uint64_t step = 1; step <= 6; step++) {
        assert_int_equal(send_step(trace, trained, step, &err), TDM_OK);
        if (step % 2 != 0)
            continue;
        struct tdm_trace_batch *batch;
        assert_int_equal(tdm_trace_take(trace, &batch, &err), TDM_OK);
        batch->program_id = trained;
        batch->evaluated_by = evaluator;
        snprintf(batch->text, sizeof(batch->text), "%s", step == 2 ? "books" : "web");
        batch->step = step;
        batch->loss = step == 6 ? NAN : 4.5 - 0.25 * (double)step;
        batch->tokens = 100 * step;
        batch->seconds = 0.5;
        tdm_trace_send(trace, batch);
    }
    close_trace(trace);
    assert_sound(path);

    struct tdm_trace_reader *reader = open_reader(path);
    struct tdm_trace_evaluation_row *rows;
    struct tdm_trace_step_row *steps;
    size_t count;
    assert_int_equal(tdm_trace_read_evaluations(reader, &rows, &count, &err), TDM_OK);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        assert_true(rows[i].program == trained && rows[i].evaluated_by == evaluator);
        assert_int_equal(rows[i].step, 2 * i + 2);
        assert_int_equal(rows[i].tokens, 200 * i + 200);
        assert_string_equal(rows[i].text, i == 0 ? "books" : "web");
        assert_true(i == 2 ? isnan(rows[i].loss) : rows[i].loss == 4.0 - 0.5 * (double)i);
    }
    free(rows);
    assert_int_equal(tdm_trace_read_steps(reader, &steps, &count, &err), TDM_OK);
    assert_int_equal(count, 6);
    free(steps);
    tdm_trace_reader_close(reader);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* On random streams the reader, in one pass, finds the same peaks as the views of the schema. */
static void test_peaks_as_views(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    const char *given = getenv("TDM_SEED");
    uint64_t seed = given == NULL ? (uint64_t)time(NULL) : strtoull(given, NULL, 0);
    print_message("# TDM_SEED=%" PRIu64 "\n", seed);
    uint64_t random = seed * 2654435761u + 1;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace *trace = open_trace(in_folder("random.trace", path));
    int64_t program = write_program(trace, "one");
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct tdm_trace_batch *batch;
        assert_int_equal(tdm_trace_take(trace, &batch, &err), TDM_OK);
        batch->program_id = program;
        batch->step = step;
        bool told[TDM_MAX_PLACES][TDM_CATEGORIES] = {{false}}; /* of this op */
        uint64_t op_number = 0;
        size_t changes = next_random(&random) % (CHANGES + 1);
        for (size_t i = 0; i < changes; i++) {
            int place = next_random(&random) % TDM_PLACES;
            int category = next_random(&random) % TDM_CATEGORIES;
            if (next_random(&random) % 3 > 0 || told[place][category]) {
                op_number++;
                memset(told, 0, sizeof(told));
            }
            told[place][category] = true;
            batch->observed[batch->observed_count++] = (struct tdm_values_change){
                op_number, (enum tdm_place)place, (enum tdm_category)category,
                next_random(&random) % 1000};
        }
        tdm_trace_send(trace, batch);
    }
    close_trace(trace);
    assert_sound(path);

    struct tdm_trace_reader *reader = open_reader(path);
    for (int64_t step = 0; step <= STEPS; step++) {
        struct tdm_trace_peaks peaks;
        assert_int_equal(tdm_trace_read_peaks(reader, program,
                                              step == 0 ? TDM_TRACE_EVERY_STEP : step, &peaks,
                                              &err),
                         TDM_OK);
        for (int place = 0; place < TDM_PLACES; place++) {
            char sql[256];
            const struct tdm_trace_peak *peak = &peaks.measured[place];
            snprintf(sql, sizeof(sql),
                     "SELECT max(value_bytes) FROM observed_peak WHERE (%" PRId64
                     " = 0 OR step = %" PRId64 ") AND place = '%s'",
                     step, step,
                     tdm_place_name(tdm_trace_reader_topology(reader), (enum tdm_place)place));
            assert_int_equal(ask(path, sql), peak->value_bytes);
            snprintf(sql, sizeof(sql),
                     "SELECT coalesce(sum(value_bytes), 0) FROM observed_peak_category "
                     "WHERE step = %" PRId64 " AND place = '%s'",
                     peak->step,
                     tdm_place_name(tdm_trace_reader_topology(reader), (enum tdm_place)place));
            assert_int_equal(ask(path, sql), peak->value_bytes);
            for (int c = 0; c < TDM_CATEGORIES && step == 0; c++) {
                snprintf(sql, sizeof(sql),
                         "SELECT coalesce(max(measured_most_bytes), 0) FROM peak_by_category "
                         "WHERE place = '%s' AND category = '%s'",
                         tdm_place_name(tdm_trace_reader_topology(reader), (enum tdm_place)place),
                         tdm_category_name((enum tdm_category)c));
                assert_int_equal(ask(path, sql), peak->most[c]);
            }
        }
    }
    tdm_trace_reader_close(reader);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_refuses_and_forces(void **state)
{
    (void)state;
    char path[640];
    char link[640];
    struct tdm_error err = {0};
    struct tdm_trace *trace = NULL;
    write_trace(in_folder("run.trace", path), 3);
    assert_int_equal(tdm_trace_open(path, false, &example_run, capacity, &trace, &err), TDM_USAGE);
    assert_null(trace);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.hint, "--force"));
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 3);

    /* Through a link the file is replaced. What a killed run left next to it is removed, but
     * nothing that SQLite did not write. */
    char wal[700];
    snprintf(wal, sizeof(wal), "%s-wal", path);
    assert_int_equal(symlink(path, in_folder("link", link)), 0);
    write_file(wal, "a text of the user's");
    assert_int_equal(tdm_trace_open(link, true, &example_run, capacity, &trace, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, wal));
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 3);
    write_file(wal, "\x37\x7f\x06\x82 left by a killed run");
    assert_int_equal(tdm_trace_open(link, true, &example_run, capacity, &trace, &err), TDM_OK);
    close_trace(trace);
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 0);
    assert_int_equal(count_files(folder), 2);

    assert_int_equal(tdm_trace_open(folder, true, &example_run, capacity, &trace, &err), TDM_IO);
    assert_int_equal(tdm_trace_open("", true, &example_run, capacity, &trace, &err), TDM_USAGE);
    assert_int_equal(tdm_trace_close(NULL, "finished", &err), TDM_OK);
}

/* What is not a trace is not replaced, with force or without. An empty file is. */
static void test_only_traces_are_replaced(void **state)
{
    (void)state;
    static const char *const texts[] = {"x", "SQLite format 3 begins this text of the user's\n"};
    char path[640], data[200];
    struct tdm_error err = {0};
    struct tdm_trace *trace = NULL;
    in_folder("notes", path);
    for (int i = 0; i < 4; i++) {
        if (i < 2) {
            write_file(path, texts[i]);
        } else { /* a database: of no program, and of another one */
            assert_int_equal(unlink(path), 0);
            snprintf(data, sizeof(data), "PRAGMA application_id = %d; CREATE TABLE t (a)",
                     i == 2 ? 0 : TDM_TRACE_APPLICATION_ID + 1);
            change(path, data);
        }
        for (int force = 0; force <= 1; force++) {
            assert_int_equal(tdm_trace_check(path, force, true, &err), TDM_USAGE);
            assert_int_equal(tdm_trace_open(path, force, &example_run, capacity, &trace, &err),
                             TDM_USAGE);
            assert_non_null(strstr(err.message, "notes: is no trace"));
        }
        assert_int_equal(count_files(folder), 1);
    }
    assert_int_equal(ask(path, "SELECT count(*) FROM t"), 0);
    write_file(path, "");
    assert_int_equal(tdm_trace_open(path, true, &example_run, capacity, &trace, &err), TDM_OK);
    close_trace(trace);
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 0);
}

/* SQLite would take these names for a URI and for a database in memory. */
static void test_odd_names(void **state)
{
    (void)state;
    static const char *const names[] = {":memory:", "file:x?mode=memory", "a b%20c#d"};
    char before[512];
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(folder), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        write_trace(names[i], 1);
        assert_int_equal(access(names[i], F_OK), 0);
        struct tdm_trace_reader *reader = open_reader(names[i]);
        tdm_trace_reader_close(reader);
    }
    assert_int_equal(count_files("."), 3);
    assert_int_equal(chdir(before), 0);
}

static int open_must_fail(const char *path)
{
    struct tdm_trace *trace = NULL;
    struct tdm_error err = {0};
    if (tdm_trace_open(path, true, &example_run, capacity, &trace, &err) != TDM_IO)
        return 1;
    return strstr(err.message, path) == err.message && err.hint[0] != '\0' && trace == NULL ? 0 : 2;
}

static void test_unwritable(void **state)
{
    (void)state;
    char path[640];
    assert_int_equal(open_must_fail(in_folder("no/such/run.trace", path)), 0);
    int fd = open(in_folder("file", path), O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(open_must_fail(in_folder("file/run.trace", path)), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    assert_int_equal(in_child(open_must_fail, in_folder("run.trace", path), true), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(count_files(folder), 1);
}

/* There is no space for the schema: an old file is unchanged, a new one does not appear. */
static int open_without_space(const char *path)
{
    struct rlimit limit = {.rlim_cur = 20000, .rlim_max = 20000};
    struct tdm_trace *trace = NULL;
    struct tdm_error err = {0};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 1;
    if (tdm_trace_open(path, true, &example_run, capacity, &trace, &err) != TDM_IO)
        return 2;
    return strstr(err.message, path) == err.message && err.hint[0] != '\0' ? 0 : 3;
}

static void test_no_space_to_open(void **state)
{
    (void)state;
    char path[640];
    assert_int_equal(in_child(open_without_space, in_folder("new.trace", path), false), 0);
    assert_int_equal(count_files(folder), 0);
    write_trace(in_folder("old.trace", path), 3);
    assert_int_equal(in_child(open_without_space, path, false), 0);
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 3);
    assert_int_equal(count_files(folder), 1);
}

/* The file system refuses to let files grow in the middle of a run. */
static int run_out_of_space(const char *path)
{
    struct rlimit limit;
    struct tdm_error err = {0};
    struct tdm_trace *trace;
    if (tdm_trace_open(path, false, &example_run, capacity, &trace, &err) != TDM_OK)
        return 1;
    struct example example;
    int64_t program;
    example_make(&example);
    program = write_program(trace, "one");
    if (send_step(trace, program, 1, &err) != TDM_OK)
        return 2;
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 3;
    limit.rlim_cur = 400000;
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 3;
    enum tdm_status status = TDM_OK;
    uint64_t step = 2;
    for (; status == TDM_OK && step < 100000; step++)
        status = send_step(trace, program, step, &err);
    if (status != TDM_IO || strstr(err.message, path) != err.message ||
        strstr(err.message, "the trace cannot be written: disk I/O error: ") == NULL ||
        strstr(err.message, strerror(EFBIG)) == NULL || err.hint[0] == '\0') {
        fprintf(stderr, "step %" PRIu64 ": status %d: %s\n", step, status, err.message);
        return 4;
    }
    /* Without waiting for the thread, which cannot write, a step, a program and the end fail. */
    if (send_step(trace, program, step, &err) != TDM_IO)
        return 5;
    if (tdm_trace_program_begin(trace, "two", "{}", &example.program, &program, &err) != TDM_IO)
        return 6;
    memset(&err, 0, sizeof(err));
    if (tdm_trace_close(trace, "failed", &err) != TDM_IO || strstr(err.message, path) == NULL)
        return 7;
    return 0;
}

static void test_disk_full(void **state)
{
    (void)state;
    char path[640];
    assert_int_equal(in_child(run_out_of_space, in_folder("run.trace", path), false), 0);
    assert_sound(path);
    assert_true(ask(path, "SELECT count(*) FROM step") >= 1);
    assert_int_equal(ask(path, "SELECT (SELECT count(*) FROM timing) = "
                               "(SELECT count(*) FROM step) * (SELECT count(*) FROM op)"),
                     1);
}

/* An op that the schema refuses, or a program that is abandoned, leaves nothing of the program. */
static void test_bad_program(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace *trace = open_trace(in_folder("run.trace", path));
    struct example example;
    int64_t program;
    example_make(&example);
    struct tdm_op op = example_op(0);
    /* The schema refuses the same op twice. */
    assert_int_equal(tdm_trace_program_begin(trace, "x", "{}", &example.program, &program, &err),
                     TDM_OK);
    assert_int_equal(add_op(trace, &op, 0, 1, &err), TDM_OK);
    assert_int_equal(add_op(trace, &op, 0, 1, &err), TDM_INTERNAL);
    assert_int_equal(add_op(trace, &op, 0, 1, &err), TDM_INTERNAL);
    const struct tdm_values_change value = {0, TDM_HOST, TDM_KV, 1};
    assert_int_equal(tdm_trace_memory(trace, 0, &value, &err), TDM_INTERNAL);
    assert_int_equal(tdm_trace_allocation(trace, 0, 0, TDM_HOST, 1, &err), TDM_INTERNAL);
    assert_int_equal(tdm_trace_program_end(trace, &err), TDM_INTERNAL);
    /* A program that is abandoned in the middle. */
    assert_int_equal(tdm_trace_program_begin(trace, "y", "{}", &example.program, &program, &err),
                     TDM_OK);
    assert_int_equal(tdm_trace_program_begin(trace, "z", "{}", &example.program, &program, &err),
                     TDM_INTERNAL);
    assert_int_equal(add_op(trace, &op, 0, 1, &err), TDM_OK);
    assert_int_equal(tdm_trace_close(trace, "failed", &err), TDM_OK);
    assert_int_equal(ask(path, "SELECT count(*) FROM program"), 0);
    assert_int_equal(ask(path, "SELECT ending = 'failed' FROM run"), 1);
    assert_int_equal(count_files(folder), 1);
}

/* A batch whose counts are above its capacity, and a step that is sent twice. */
static void test_bad_batches(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace_batch *batch;
    struct tdm_trace *trace = open_trace(in_folder("capacity.trace", path));
    int64_t program = write_program(trace, "one");
    assert_int_equal(tdm_trace_take(trace, &batch, &err), TDM_OK);
    batch->program_id = program;
    batch->timing_count = OPS + 1;
    tdm_trace_send(trace, batch);
    assert_int_equal(tdm_trace_close(trace, "finished", &err), TDM_INTERNAL);

    trace = open_trace(in_folder("twice.trace", path));
    program = write_program(trace, "one");
    for (uint64_t step = 1; step <= 2; step++)
        assert_int_equal(send_step(trace, program, 1, &err), TDM_OK);
    assert_int_equal(tdm_trace_close(trace, "finished", &err), TDM_INTERNAL);
    assert_non_null(strstr(err.message, "UNIQUE"));
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 1);
}

/* The thread has a name. */
static void test_thread(void **state)
{
    (void)state;
    char path[640];
    bool found = false;
    struct tdm_error err = {0};
    struct tdm_trace *trace = open_trace(in_folder("run.trace", path));
    int64_t program = write_program(trace, "one");
    for (uint64_t step = 1; step <= 2 * POOL; step++) /* by then it has started */
        assert_int_equal(send_step(trace, program, step, &err), TDM_OK);
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        char name[600];
        char comm[32] = "";
        snprintf(name, sizeof(name), "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(name, "r");
        if (file == NULL)
            continue;
        if (fgets(comm, sizeof(comm), file) != NULL && strcmp(comm, "tidemark-trace\n") == 0)
            found = true;
        fclose(file);
    }
    closedir(tasks);
    close_trace(trace);
    assert_true(found);
}

/* Progress of the child that will be killed, in memory shared with it. */
struct progress {
    volatile uint64_t taken, sent;
};
static struct progress *progress;

static int write_until_killed(const char *path)
{
    struct tdm_trace *trace = open_trace(path);
    int64_t program = write_program(trace, "one");
    struct tdm_error err = {0};
    for (uint64_t step = 1;; step++) {
        struct tdm_trace_batch *batch;
        if (tdm_trace_take(trace, &batch, &err) != TDM_OK)
            return 1;
        progress->taken++;
        fill_batch(batch, program, step);
        progress->sent++;
        tdm_trace_send(trace, batch);
    }
}

static pid_t start_writer(const char *path)
{
    progress =
        mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(progress != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(write_until_killed(path));
    return child;
}

static void kill_writer(pid_t child)
{
    int status;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* All steps are there except those of unfinished batches, each complete. */
static void test_killed(void **state)
{
    (void)state;
    char path[640];
    for (unsigned round = 0; round < 8; round++) {
        setup_case(NULL);
        pid_t child = start_writer(in_folder("run.trace", path));
        while (progress->sent < 20 + 37 * round)
            usleep(200);
        kill_writer(child);
        uint64_t taken = progress->taken;
        uint64_t sent = progress->sent;
        munmap(progress, sizeof(*progress));

        struct tdm_error err = {0};
        struct tdm_trace_reader *reader = open_reader(path);
        struct tdm_trace_step_row *steps;
        size_t count;
        assert_null(tdm_trace_reader_run(reader)->ending);
        assert_int_equal(tdm_trace_read_steps(reader, &steps, &count, &err), TDM_OK);
        print_message("# killed after %" PRIu64 " steps: %zu recorded\n", sent, count);
        assert_true(count <= sent && count + POOL >= taken);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(steps[i].step, i + 1);
        free(steps);
        tdm_trace_reader_close(reader);
        assert_sound(path);
        assert_int_equal(ask(path, "SELECT count(*) FROM timing"), count * OPS);
        assert_int_equal(ask(path, "SELECT count(*) FROM observed"), count * CHANGES);
    }
}

static int read_steps(const char *path)
{
    struct tdm_error err = {0};
    struct tdm_trace_reader *reader;
    struct tdm_trace_step_row *steps;
    size_t count;
    if (tdm_trace_reader_open(path, &reader, &err) != TDM_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    enum tdm_status status = tdm_trace_read_steps(reader, &steps, &count, &err);
    tdm_trace_reader_close(reader);
    if (status != TDM_OK || count < 2)
        return 2;
    free(steps);
    return 0;
}

/* What a killed run left can be read in a read-only folder, also without its -wal file. */
static void test_read_only_folder(void **state)
{
    (void)state;
    char path[640];
    pid_t child = start_writer(in_folder("killed.trace", path));
    while (progress->sent < 20)
        usleep(200);
    kill_writer(child);
    munmap(progress, sizeof(*progress));
    assert_int_equal(chmod(folder, 0555), 0);
    assert_int_equal(in_child(read_steps, path, true), 0);
    assert_int_equal(chmod(folder, 0755), 0);

    write_trace(in_folder("alone.trace", path), 5);
    change(path, "PRAGMA journal_mode = WAL; CREATE TABLE t (a);");
    assert_int_equal(chmod(folder, 0555), 0);
    assert_int_equal(in_child(read_steps, path, true), 0);
    assert_int_equal(chmod(folder, 0755), 0);
}

/* A trace can be read while it is written, and the run may end meanwhile. */
static void test_read_while_running(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace *trace = open_trace(in_folder("run.trace", path));
    int64_t program = write_program(trace, "one");
    for (uint64_t step = 1; step <= 10; step++)
        assert_int_equal(send_step(trace, program, step, &err), TDM_OK);
    struct tdm_trace_reader *reader = open_reader(path);
    assert_null(tdm_trace_reader_run(reader)->ending);
    close_trace(trace);
    struct tdm_trace_step_row *steps;
    size_t count;
    assert_int_equal(tdm_trace_read_steps(reader, &steps, &count, &err), TDM_OK);
    assert_true(count >= 10 - POOL && count <= 10);
    free(steps);
    tdm_trace_reader_close(reader);
    reader = open_reader(path);
    assert_string_equal(tdm_trace_reader_run(reader)->ending, "finished");
    tdm_trace_reader_close(reader);
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 10);
}

static void copy_cut(const char *from, const char *to, size_t bytes)
{
    static char data[1 << 20];
    int fd = open(from, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t got = read(fd, data, sizeof(data));
    close(fd);
    assert_true(got > 0 && bytes <= (size_t)got);
    fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}

static void test_bad_files(void **state)
{
    (void)state;
    char whole[640];
    char path[640];
    struct stat info;
    write_trace(in_folder("whole.trace", whole), 5);
    assert_int_equal(stat(whole, &info), 0);
    in_folder("cut.trace", path);
    const size_t sizes[] = {1, 50, 100, 511, 512, 1000, 4095, 4096, 4097, 20000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        copy_cut(whole, path, sizes[i]);
        read_is_refused(path, TDM_INPUT, "");
    }
    copy_cut(whole, path, (size_t)info.st_size - 1);
    read_is_refused(path, TDM_INPUT, "cut short");
    copy_cut(whole, path, 0);
    read_is_refused(path, TDM_INPUT, "empty");

    read_is_refused(in_folder("none.trace", path), TDM_IO, "No such file");
    read_is_refused(folder, TDM_INPUT, "a directory");
    read_is_refused("/dev/null", TDM_INPUT, "not a regular file");
    FILE *file = fopen(in_folder("text.trace", path), "w");
    assert_non_null(file);
    for (int i = 0; i < 100; i++)
        fputs("{\"format\": \"tidemark-schedule-2\"}\n", file);
    fclose(file);
    read_is_refused(path, TDM_INPUT, "no SQLite database");
    change(in_folder("other.db", path), "CREATE TABLE t (a); INSERT INTO t VALUES (1);");
    read_is_refused(path, TDM_INPUT, "another program's database");
    change(whole, "PRAGMA user_version = 99;");
    read_is_refused(whole, TDM_INPUT, "version 99");
    char sql[96];
    snprintf(sql, sizeof(sql), "PRAGMA user_version = %d; DELETE FROM run;", TDM_TRACE_VERSION);
    change(whole, sql);
    read_is_refused(whole, TDM_INPUT, "holds no run");
    change(whole, "ALTER TABLE run RENAME TO runs;");
    read_is_refused(whole, TDM_INPUT, "is not a trace: it has no table \"run\"");
}

/* Writes another statement for the table of runs into the file. */
#define EDIT_RUN(sql)                                                 \
    "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = " sql \
    " WHERE name = 'run'; PRAGMA writable_schema = 0;"

/* In place of the expected tables a file may have views, and reading a view runs it. */
static void test_other_schemas(void **state)
{
    (void)state;
    char path[640];
    write_trace(in_folder("views.trace", path), 2);
    change(path, "ALTER TABLE touched RENAME TO seen; CREATE VIEW touched AS SELECT * FROM seen;");
    read_is_refused(path, TDM_INPUT, "its \"touched\" is a view, not a table");
    write_trace(in_folder("view.trace", path), 2);
    change(path, "DROP VIEW transfer; CREATE VIEW transfer AS WITH RECURSIVE n(i) AS (SELECT 1 "
                 "UNION ALL SELECT i + 1 FROM n) SELECT i FROM n;");
    read_is_refused(path, TDM_INPUT, "its view \"transfer\" is another one");
    write_trace(in_folder("comment.trace", path), 2); /* of an earlier version */
    change(path, EDIT_RUN("replace(sql, 'quoted, so that a shell can run it again', 'as typed')"));
    tdm_trace_reader_close(open_reader(path));
    write_trace(in_folder("hidden.trace", path), 2);
    change(path, EDIT_RUN("replace(sql, 'again' || char(10), 'again')"));
    read_is_refused(path, TDM_INPUT, "its table \"run\" is another one");
    write_trace(in_folder("quoted.trace", path), 2);
    change(path, EDIT_RUN("replace(sql, 'command ', '\"command--\" ')"));
    read_is_refused(path, TDM_INPUT, "its table \"run\" is another one");
    write_trace(in_folder("more.trace", path), 2);
    change(path, "CREATE TABLE of_mine (a);"); /* nothing reads it */
    tdm_trace_reader_close(open_reader(path));
}

/* Anybody may have written the names, and they are printed: unprintable bytes are replaced. */
static void test_unprintable_names(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace_program_row *programs;
    size_t count;
    write_trace(in_folder("names.trace", path), 2);
    change(path, "UPDATE run SET command = 'run ' || char(27) || ']0;x' || char(7, 155, 228) || "
                 "CAST(x'ff' AS TEXT);"
                 "UPDATE program SET name = 'a' || char(10) || 'b';");
    struct tdm_trace_reader *reader = open_reader(path);
    assert_string_equal(tdm_trace_reader_run(reader)->command, "run ?]0;x??\xc3\xa4?");
    assert_int_equal(tdm_trace_read_programs(reader, &programs, &count, &err), TDM_OK);
    assert_string_equal(programs[0].name, "a?b");
    free(programs);
    tdm_trace_reader_close(reader);
}

/* A name that this program does not know is an error. */
static void test_unknown_names(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    write_trace(in_folder("run.trace", path), 2);
    change(path, "UPDATE memory SET category = 'moonlight' WHERE op_number = 0;");
    struct tdm_trace_reader *reader = open_reader(path);
    struct tdm_trace_peaks peaks;
    assert_int_equal(tdm_trace_read_peaks(reader, 1, 1, &peaks, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "moonlight"));
    assert_non_null(strstr(err.hint, example_run.versions));
    tdm_trace_reader_close(reader);
}

/* A step sent in parts is read as one step. tdm_trace_take_free() does not wait for a batch. */
static void test_parts(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace_unfinished_row *unfinished;
    struct tdm_trace_step_row *steps;
    struct tdm_trace_batch *batches[POOL + 1];
    size_t count;
    struct tdm_trace *trace = open_trace(in_folder("parts", path));
    int64_t program = write_program(trace, "one");
    for (uint64_t step = 1; step <= 2; step++)
        for (uint64_t part = 0; part < 3; part++) {
            assert_int_equal(tdm_trace_take(trace, &batches[0], &err), TDM_OK);
            fill_batch(batches[0], program, step);
            batches[0]->unfinished = part < 2;
            batches[0]->ops_ended = 12 * part;
            batches[0]->timing_count = part < 2 ? 12 : OPS - 24;
            memmove(batches[0]->timings, batches[0]->timings + 12 * part,
                    batches[0]->timing_count * sizeof(*batches[0]->timings));
            if (part < 2)
                batches[0]->touch_count = batches[0]->observed_count = batches[0]->arena_count = 0;
            if (step < 2 || part < 2)
                tdm_trace_send(trace, batches[0]);
        }
    /* the last part is not sent: the step is unfinished */
    for (size_t i = 1; i < POOL; i++)
        assert_int_equal(tdm_trace_take(trace, &batches[i], &err), TDM_OK);
    assert_int_equal(tdm_trace_take_free(trace, &batches[POOL], &err), TDM_OK);
    assert_null(batches[POOL]);
    close_trace(trace);
    assert_sound(path);

    struct tdm_trace_reader *reader = open_reader(path);
    assert_int_equal(tdm_trace_read_steps(reader, &steps, &count, &err), TDM_OK);
    assert_true(count == 1 && steps->step == 1 && steps->timed);
    assert_int_equal(tdm_trace_read_unfinished(reader, &unfinished, &count, &err), TDM_OK);
    assert_true(count == 1 && unfinished->step == 2 && unfinished->timed);
    assert_true(unfinished->ops == 12 && unfinished->seconds == 0.25);
    assert_true(unfinished->phase == TDM_FORWARD && unfinished->layer == TDM_NONE); /* a copy */
    assert_int_equal(unfinished->chunk, 1);
    free(steps);
    free(unfinished);
    tdm_trace_reader_close(reader);
    assert_int_equal(ask(path, "SELECT count(*) FROM timing WHERE step = 1"), OPS);
    assert_int_equal(ask(path, "SELECT count(*) FROM timing WHERE step = 2"), 24);
    assert_int_equal(ask(path, "SELECT count(*) FROM used_memory"), 5);
    assert_int_equal(ask(path, "SELECT sum(ops) FROM unfinished_time"), 24);
    assert_int_equal(ask(path, "SELECT count(*) FROM measured_time WHERE step = 2"), 0);
    assert_int_equal(ask(path, "SELECT count(*) FROM stalls WHERE step = 2"), 0);
}

/* ---- several ranks ---- */

enum { RANKS = 3, RANK_OPS = 4 };

/* Ops of a rank: it computes, meets the others, computes and meets them again. */
static const int64_t ready_ns[2][RANKS] = {{1000, 4000, 2000}, {9000, 6000, 9000}};

static void add_rank_ops(struct tdm_trace *trace, uint32_t rank)
{
    struct tdm_error err = {0};
    for (uint64_t i = 0; i < RANK_OPS; i++) {
        const bool meets = i % 2 == 1;
        const int64_t start = meets ? ready_ns[i / 2][rank] : i == 0 ? 0 : 5000;
        const int64_t end = meets ? (i == 1 ? 5000 : 9500) : ready_ns[i / 2][rank];
        struct tdm_op op = {.number = i, .kind = TDM_OP_PRODUCT, .part = TDM_PART_Q};
        op.lane = TDM_LANE_COMPUTE;
        op.layer = op.chunk = TDM_NONE;
        if (meets) {
            op.kind = i == 1 ? TDM_OP_GATHER : TDM_OP_REDUCE;
            op.part = 0;
            op.fetched_bytes = 100 + rank;
            op.sent_bytes = 200 + rank;
        }
        struct tdm_trace_op traced = tdm_trace_op_of(&op, start, end);
        traced.team_op = meets ? (uint32_t)(i / 2) + 1 : 0;
        assert_int_equal(tdm_trace_op(trace, rank, &traced, &err), TDM_OK);
        if (i == 0) {
            const struct tdm_values_change value = {i, TDM_DEVICE, TDM_KV, 1000 + rank};
            assert_int_equal(tdm_trace_memory(trace, rank, &value, &err), TDM_OK);
            assert_int_equal(tdm_trace_allocation(trace, rank, i, TDM_DEVICE, 2000, &err), TDM_OK);
        }
    }
}

/* Sends what a rank has of a step: twice as slow as predicted, with ranks 0 and 1 in each other's
 * place. */
static void send_rank(struct tdm_trace *trace, int64_t program, uint64_t step, uint32_t rank)
{
    struct tdm_trace_batch *batch;
    struct tdm_error err = {0};
    assert_int_equal(tdm_trace_take(trace, &batch, &err), TDM_OK);
    const uint32_t as = rank == 2 ? 2 : 1 - rank;
    *batch = (struct tdm_trace_batch){.rank = rank,
                                      .more = rank + 1 < RANKS,
                                      .program_id = program,
                                      .step = step,
                                      .seconds = 19e-6,
                                      .ops_ended = RANK_OPS,
                                      .timings = batch->timings,
                                      .touches = batch->touches,
                                      .observed = batch->observed};
    for (uint64_t i = 0; i < RANK_OPS; i++) {
        const bool meets = i % 2 == 1;
        const int64_t start = meets ? ready_ns[i / 2][as] : i == 0 ? 0 : 5000;
        const int64_t end = meets ? (i == 1 ? 5000 : 9500) : ready_ns[i / 2][as];
        batch->timings[batch->timing_count++] =
            (struct tdm_trace_timing){.op_number = i, .start_ns = 2 * start, .end_ns = 2 * end};
    }
    batch->touches[batch->touch_count++] = (struct tdm_values_touch){0, 900 + rank, 0, 3};
    batch->observed[batch->observed_count++] =
        (struct tdm_values_change){0, TDM_DEVICE, TDM_KV, 1000 + rank};
    batch->arenas[batch->arena_count++] =
        (struct tdm_trace_arena){TDM_DEVICE, 5000, 4000 + rank, 4500};
    batch->used[batch->used_count++] = (struct tdm_trace_used){10, TDM_DEVICE, 7000 + rank, 1};
    tdm_trace_send(trace, batch);
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) < 1e-12))
        fail_msg("%g is not %g", a, b);
}

/* Each rank has rows of its own, and a step is written with all ranks or not at all. */
static void test_ranks(void **state)
{
    (void)state;
    char path[640];
    struct tdm_error err = {0};
    struct tdm_trace *trace = NULL;
    struct example example;
    const struct tdm_trace_capacity of_ranks = {RANKS, OPS, BUFFERS, CHANGES};
    int64_t program;
    size_t count;
    example_make(&example);
    example.program.ranks = RANKS;
    assert_int_equal(
        tdm_trace_open(in_folder("ranks", path), false, &example_run, of_ranks, &trace, &err),
        TDM_OK);
    assert_int_equal(tdm_trace_program_begin(trace, "r", "{}", &example.program, &program, &err),
                     TDM_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        add_rank_ops(trace, rank);
    assert_int_equal(tdm_trace_program_end(trace, &err), TDM_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        send_rank(trace, program, 1, rank);
    for (uint32_t rank = 0; rank + 1 < RANKS; rank++) /* the last one does not come */
        send_rank(trace, program, 2, rank);
    close_trace(trace);
    assert_sound(path);
    assert_int_equal(ask(path, "SELECT count(*) FROM step"), 1);
    assert_int_equal(ask(path, "SELECT count(*) FROM timing"), RANKS * RANK_OPS);

    struct tdm_trace_reader *reader = open_reader(path);
    struct tdm_trace_program_row *programs;
    struct tdm_trace_rank_row *ranks;
    struct tdm_trace_rank_wait *waits;
    assert_int_equal(tdm_trace_read_programs(reader, &programs, &count, &err), TDM_OK);
    assert_true(programs->ranks == RANKS && programs->ops == RANK_OPS);
    free(programs);
    assert_int_equal(tdm_trace_read_ranks(reader, program, 1, &ranks, &count, &err), TDM_OK);
    assert_int_equal(count, RANKS);
    /* ready at 1, 4, 2 and then 9, 6, 9 us, work ends at 5 and 9.5 us */
    const double computes[] = {5e-6, 5e-6, 6e-6}, waited[] = {3e-6, 3e-6, 2e-6};
    for (uint32_t i = 0; i < RANKS; i++) {
        const uint32_t as = i == 2 ? 2 : 1 - i;
        assert_int_equal(ranks[i].rank, i);
        assert_near(ranks[i].predicted.step_seconds, 9.5e-6);
        assert_near(ranks[i].measured.step_seconds, 19e-6);
        assert_near(ranks[i].predicted.compute_seconds, computes[i]);
        assert_near(ranks[i].measured.compute_seconds, 2 * computes[as]);
        assert_near(ranks[i].predicted.wait_seconds, waited[i]);
        assert_near(ranks[i].measured.wait_seconds, 2 * waited[as]);
        assert_near(ranks[i].predicted.team_seconds, 1e-6 + 0.5e-6);
        assert_near(ranks[i].measured.team_seconds, 2e-6 + 1e-6);
        assert_true(ranks[i].received_bytes == 2 * (100 + i));
        assert_true(ranks[i].sent_bytes == 2 * (200 + i));
        assert_true(ranks[i].used_bytes == 7000 + i);
    }
    free(ranks);
    assert_int_equal(
        tdm_trace_read_rank_waits(reader, program, TDM_TRACE_EVERY_STEP, &waits, &count, &err),
        TDM_OK);
    double of[RANKS] = {0};
    for (size_t i = 0; i < count; i++) {
        assert_true(waits[i].rank != waits[i].awaited);
        of[waits[i].rank] += waits[i].measured_seconds;
        /* the first time all wait for rank 1, as predicted, and in truth for rank 0 */
        if (waits[i].rank == 2) {
            assert_near(waits[i].predicted_seconds, waits[i].awaited == 1 ? 2e-6 : 0);
            assert_near(waits[i].measured_seconds, waits[i].awaited == 0 ? 4e-6 : 0);
        }
    }
    for (uint32_t i = 0; i < RANKS; i++)
        assert_near(of[i], 2 * waited[i == 2 ? 2 : 1 - i]);
    free(waits);
    for (uint32_t rank = 0; rank <= RANKS; rank++) {
        struct tdm_trace_interval *intervals;
        struct tdm_values_change *values;
        struct tdm_trace_touched_row *touched;
        struct tdm_trace_peaks peaks;
        tdm_trace_reader_see(reader, rank);
        assert_int_equal(tdm_trace_read_intervals(reader, program, 1, &intervals, &count, &err),
                         TDM_OK);
        assert_int_equal(count, rank < RANKS ? RANK_OPS : 0);
        assert_true(count == 0 || intervals[1].predicted_start_ns == ready_ns[0][rank]);
        free(intervals);
        assert_int_equal(tdm_trace_read_memory(reader, program, &values, &count, &err), TDM_OK);
        assert_true(rank < RANKS ? values[0].value_bytes == 1000 + rank : count == 0);
        free(values);
        assert_int_equal(tdm_trace_read_touched(reader, program, 1, &touched, &count, &err),
                         TDM_OK);
        assert_true(rank < RANKS ? touched[0].touched_bytes == 900 + rank : count == 0);
        free(touched);
        assert_int_equal(tdm_trace_read_peaks(reader, program, 1, &peaks, &err), TDM_OK);
        assert_true(peaks.measured[TDM_DEVICE].known == (rank < RANKS));
        assert_true(rank == RANKS || peaks.measured[TDM_DEVICE].value_bytes == 1000 + rank);
    }
    tdm_trace_reader_close(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_round_trip, setup_case),
        cmocka_unit_test_setup(test_parts, setup_case),
        cmocka_unit_test_setup(test_ranks, setup_case),
        cmocka_unit_test_setup(test_more_places, setup_case),
        cmocka_unit_test_setup(test_evaluations, setup_case),
        cmocka_unit_test_setup(test_peaks_as_views, setup_case),
        cmocka_unit_test_setup(test_refuses_and_forces, setup_case),
        cmocka_unit_test_setup(test_only_traces_are_replaced, setup_case),
        cmocka_unit_test_setup(test_odd_names, setup_case),
        cmocka_unit_test_setup(test_unwritable, setup_case),
        cmocka_unit_test_setup(test_no_space_to_open, setup_case),
        cmocka_unit_test_setup(test_disk_full, setup_case),
        cmocka_unit_test_setup(test_bad_program, setup_case),
        cmocka_unit_test_setup(test_bad_batches, setup_case),
        cmocka_unit_test_setup(test_thread, setup_case),
        cmocka_unit_test_setup(test_killed, setup_case),
        cmocka_unit_test_setup(test_read_only_folder, setup_case),
        cmocka_unit_test_setup(test_read_while_running, setup_case),
        cmocka_unit_test_setup(test_bad_files, setup_case),
        cmocka_unit_test_setup(test_other_schemas, setup_case),
        cmocka_unit_test_setup(test_unprintable_names, setup_case),
        cmocka_unit_test_setup(test_unknown_names, setup_case),
    };
    return cmocka_run_group_tests_name("traces", tests, setup_folder, teardown_folder);
}
