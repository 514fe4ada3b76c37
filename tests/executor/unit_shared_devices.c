/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ranks that share a device: what its driver reports is compared with the arenas of all
 * ranks on it and one runtime, in the result of a run, in its trace and in what is printed. */
#include "commands/run_progress.h"
#include "executor/backends.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"
#include "traces/reader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, DEVICES = 2 };

/* Ranks 1 to 3 have device 1. */
static const uint32_t devices[RANKS] = {0, 1, 1, 1};

#define BESIDE_BYTES (UINT64_C(123) << 20) /* that the driver reports beside the arenas */

/* ---- a backend whose driver counts the arenas of each device ---- */

static uint64_t arena_bytes[DEVICES];

struct counted {
    uint32_t device;
};

static enum tdm_status open_counted(uint32_t count, const struct tdm_program *const *programs,
                                    uint32_t device, struct tdm_executor **executor,
                                    struct tdm_error *err)
{
    (void)count, (void)programs, (void)err;
    struct counted *counted = malloc(sizeof(*counted));
    assert_non_null(counted);
    counted->device = device;
    *executor = (struct tdm_executor *)counted;
    return TDM_OK;
}

static void close_counted(struct tdm_executor *executor)
{
    free(executor);
}

static enum tdm_status arena_counted(struct tdm_executor *executor, enum tdm_place place,
                                     uint64_t bytes, void **base, struct tdm_error *err)
{
    (void)err;
    if (place == TDM_DEVICE)
        arena_bytes[((struct counted *)executor)->device] += bytes;
    *base = NULL;
    return TDM_OK;
}

static enum tdm_status used_counted(const struct tdm_executor *executor, uint64_t *used_bytes,
                                    uint64_t *free_bytes, struct tdm_error *err)
{
    (void)err;
    *used_bytes = arena_bytes[((const struct counted *)executor)->device] + BESIDE_BYTES;
    if (free_bytes != NULL)
        *free_bytes = UINT64_C(1) << 40;
    return TDM_OK;
}

static enum tdm_status devices_counted(uint32_t *count, struct tdm_error *err)
{
    (void)err;
    *count = DEVICES;
    return TDM_OK;
}

static struct tdm_backend counted_backend(void)
{
    struct tdm_backend backend = tdm_null_backend;
    backend.open = open_counted;
    backend.close = close_counted;
    backend.arena = arena_counted;
    backend.used = used_counted;
    backend.devices = devices_counted;
    return backend;
}

/* ---- a run ---- */

static const char *in_scratch(const char *name, char out[512])
{
    const char *scratch = getenv("TDM_SCRATCH");
    snprintf(out, 512, "%s/%s", scratch == NULL ? "/tmp" : scratch, name);
    return out;
}

/* Writes a random schedule of RANKS ranks. It has thousands of team ops, which the trace's views of
 * waits must not join with all ops. */
static void write_schedule(const char *path)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_TRAIN, .ranks = RANKS};
    struct tdm_error err;
    for (uint64_t seed = 1;; seed++) {
        struct tdm_schedule *schedule;
        json_t *json;
        assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
        const bool found = schedule->ranks == RANKS;
        if (found) {
            assert_int_equal(tdm_schedule_to_json(schedule, NULL, &json, &err), TDM_OK);
            assert_int_equal(json_dump_file(json, path, 0), 0);
            json_decref(json);
        }
        tdm_schedule_free(schedule);
        if (found)
            return;
    }
}

/* The trace says of each rank how many arenas its device has. */
static void check_trace(const char *path, uint64_t planned_bytes)
{
    struct tdm_trace_reader *reader;
    struct tdm_trace_rank_row *ranks;
    struct tdm_trace_used_row *used;
    struct tdm_error err;
    size_t count;
    assert_int_equal(tdm_trace_reader_open(path, &reader, &err), TDM_OK);
    assert_int_equal(tdm_trace_read_ranks(reader, 1, TDM_TRACE_EVERY_STEP, &ranks, &count, &err),
                     TDM_OK);
    assert_int_equal(count, RANKS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(ranks[rank].arenas, rank == 0 ? 1 : 3);
        assert_int_equal(ranks[rank].used_bytes, planned_bytes * ranks[rank].arenas + BESIDE_BYTES);
    }
    free(ranks);
    assert_int_equal(tdm_trace_read_used(reader, 1, TDM_TRACE_EVERY_STEP, &used, &count, &err),
                     TDM_OK);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) /* of rank 0, and of the process */
        assert_int_equal(used[i].arenas, used[i].place == TDM_DEVICE ? 1 : RANKS);
    free(used);
    tdm_trace_reader_close(reader);
}

static void a_device_has_the_arenas_of_its_ranks(void **state)
{
    (void)state;
    char path[512], trace[512], text[1 << 14];
    const char *paths[] = {in_scratch("shared_devices.json", path)};
    const struct tdm_backend backend = counted_backend();
    struct tdm_run_result result;
    struct tdm_error err = {0};
    write_schedule(path);
    FILE *out = tmpfile();
    assert_non_null(out);
    struct tdm_progress progress;
    tdm_progress_begin(&progress, out, 1);
    const struct tdm_run_listener listener = tdm_progress_listener(&progress);
    const struct tdm_run_options options = {.schedule_count = 1,
                                            .schedule_paths = paths,
                                            .backend = &backend,
                                            .steps = 1,
                                            .timed_every = 1,
                                            .trace_path = in_scratch("shared_devices.db", trace),
                                            .force = true,
                                            .command = "test",
                                            .device_count = RANKS,
                                            .devices = devices};
    if (tdm_run(&options, &listener, &result, &err) != TDM_OK)
        fail_msg("%s", err.message);
    struct tdm_backend computes = backend; /* only then is there more to print */
    struct tdm_run_options shown = options;
    computes.executes = true;
    shown.backend = &computes;
    tdm_progress_end(&progress, &shown, &result, TDM_OK);
    rewind(out);
    text[fread(text, 1, sizeof(text) - 1, out)] = '\0';
    fclose(out);
    const uint64_t arena = result.arenas[TDM_DEVICE].planned_bytes;
    assert_int_equal(result.device_ranks, 3);
    assert_int_equal(result.device_used_bytes, 3 * arena + BESIDE_BYTES);
    assert_int_equal(result.device_planned_bytes, 3 * arena + result.runtime_planned_bytes);
    if (strstr(text, ": 123 MiB beside the arenas of 3 ranks, planned ") == NULL)
        fail_msg("%s", text);
    check_trace(trace, arena);
    unlink(path);
    unlink(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_device_has_the_arenas_of_its_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
