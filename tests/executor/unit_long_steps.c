/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of steps that take minutes on a clock that the test moves. The traversal of the ops is
 * never far ahead of them and ends soon after it is told to stop. A watcher sees exactly the ops
 * that have ended. Progress is printed at the right times. The trace holds what there is of a step
 * that was cut short. */
#include "executor/backends.h"
#include "commands/run_progress.h"
#include "executor/timings.h"
#include "executor/walk.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"
#include "traces/reader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GIB (UINT64_C(1) << 30)
#define STEP_SECONDS 600.0 /* of each step of a run, predicted and actual */

enum { LEAST_OPS = 4000, LAUNCH_NS = 20000 };

/* ---- the clock, and the backend ---- */

static int64_t clock_ns;

/* With -Wl,--wrap the linker sends every call from our objects here. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    *time = (struct timespec){clock_ns / 1000000000, clock_ns % 1000000000};
    return 0;
}

static struct slow {
    int64_t *ends_ns[TDM_MAX_LANES]; /* by position */
    uint64_t *numbers[TDM_MAX_LANES];
    uint64_t launched[TDM_MAX_LANES], ended[TDM_MAX_LANES];
    struct tdm_forecast *forecast; /* ops take its times multiplied by `factor`; NULL: op_ns */
    double factor;
    int64_t op_ns;
    /* longest from a launch to its end, after the first `settled` launches */
    int64_t most_ahead_ns;
    /* the same if two or more earlier ops of the compute lane had not ended */
    int64_t most_third_ns;
    uint64_t settled;
    int64_t stop_ns; /* when the run is told to stop; 0: never */
    volatile sig_atomic_t stop;
    bool stops_early;
    int64_t began_ns; /* first launch of a step */
    struct tdm_timings timings;
} slow;

static void slow_reset(const struct tdm_program *program)
{
    for (int lane = 0; lane < TDM_LANES; lane++) {
        free(slow.ends_ns[lane]);
        free(slow.numbers[lane]);
    }
    free(slow.timings.items);
    memset(&slow, 0, sizeof(slow));
    slow.factor = 1;
    if (program == NULL)
        return;
    for (int lane = 0; lane < TDM_LANES; lane++) {
        slow.ends_ns[lane] = calloc(program->op_count + 1, sizeof(int64_t));
        slow.numbers[lane] = calloc(program->op_count + 1, sizeof(uint64_t));
    }
    assert_true(tdm_timings_open(&slow.timings, 1, &program));
}

static int64_t duration_ns(enum tdm_lane lane)
{
    if (slow.forecast == NULL || lane != TDM_LANE_COMPUTE)
        return lane == TDM_LANE_COMPUTE ? slow.op_ns : 1000;
    uint64_t position = slow.launched[lane] + 1;
    return (int64_t)(1e9 * slow.factor *
                     (tdm_forecast_seconds(slow.forecast, position) -
                      tdm_forecast_seconds(slow.forecast, position - 1)));
}

static enum tdm_status run_slow(struct tdm_executor *executor, const struct tdm_launch *launch,
                                struct tdm_error *err)
{
    enum tdm_lane lane = launch->op->lane;
    uint64_t at = slow.launched[lane];
    (void)executor, (void)err;
    if (launch->op->number == 0)
        slow.began_ns = clock_ns;
    clock_ns += LAUNCH_NS;
    int64_t begin =
        at > 0 && slow.ends_ns[lane][at - 1] > clock_ns ? slow.ends_ns[lane][at - 1] : clock_ns;
    slow.ends_ns[lane][at] = begin + duration_ns(lane);
    slow.numbers[lane][at] = launch->op->number;
    slow.launched[lane]++;
    if (at >= slow.settled && slow.ends_ns[lane][at] - clock_ns > slow.most_ahead_ns)
        slow.most_ahead_ns = slow.ends_ns[lane][at] - clock_ns;
    if (lane == TDM_LANE_COMPUTE && at >= slow.settled && at >= 2 &&
        slow.ends_ns[lane][at - 2] > clock_ns &&
        slow.ends_ns[lane][at] - clock_ns > slow.most_third_ns)
        slow.most_third_ns = slow.ends_ns[lane][at] - clock_ns;
    if (slow.stop_ns > 0 && clock_ns >= slow.stop_ns)
        slow.stop = 1;
    return TDM_OK;
}

static enum tdm_status ended_slow(struct tdm_executor *executor, enum tdm_lane lane, uint64_t await,
                                  uint64_t *ended, struct tdm_error *err)
{
    (void)executor, (void)err;
    assert_true(await <= slow.launched[lane]);
    for (uint64_t at; (at = slow.ended[lane]) < slow.launched[lane]; slow.ended[lane]++) {
        int64_t end = slow.ends_ns[lane][at];
        if (end > clock_ns && at >= await)
            break;
        clock_ns = end > clock_ns ? end : clock_ns;
        tdm_timings_push(&slow.timings, (struct tdm_timing){.op_number = slow.numbers[lane][at],
                                                            .start_ns = end - duration_ns(lane) / 2,
                                                            .end_ns = end});
    }
    *ended = slow.ended[lane];
    return TDM_OK;
}

static enum tdm_status finish_slow(struct tdm_executor *executor, struct tdm_error *err)
{
    uint64_t ended;
    for (int lane = 0; lane < TDM_LANES; lane++) {
        ended_slow(executor, (enum tdm_lane)lane, slow.launched[lane], &ended, err);
        slow.launched[lane] = slow.ended[lane] = 0;
    }
    return TDM_OK;
}

static size_t reap_slow(struct tdm_executor *executor, struct tdm_timing *timings, size_t capacity)
{
    (void)executor;
    return tdm_timings_reap(&slow.timings, timings, capacity);
}

static int64_t now_slow(struct tdm_executor *executor)
{
    (void)executor;
    return clock_ns;
}

/* The used memory is highest in the middle of each minute. */
static enum tdm_status used_slow(const struct tdm_executor *executor, uint64_t *used_bytes,
                                 uint64_t *free_bytes, struct tdm_error *err)
{
    (void)executor, (void)err;
    double minute = (double)(clock_ns - slow.began_ns) / 60e9;
    *used_bytes = GIB + (uint64_t)(1e6 * sin(3.14159265 * (minute - floor(minute))));
    if (free_bytes != NULL)
        *free_bytes = 100 * GIB;
    return TDM_OK;
}

/* Called when the arenas are taken and nothing is in the trace yet. */
static uint64_t outside_bytes_slow(const struct tdm_executor *executor)
{
    (void)executor;
    slow.stop = slow.stops_early;
    return 0;
}

static struct tdm_backend slow_backend(void)
{
    struct tdm_backend backend = tdm_null_backend;
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        backend.run[kind] = run_slow;
    backend.ended = ended_slow;
    backend.finish = finish_slow;
    backend.reap = reap_slow;
    backend.now = now_slow;
    backend.used = used_slow;
    backend.outside_bytes = outside_bytes_slow;
    return backend;
}

/* ---- a program with many ops ---- */

struct example {
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    uint64_t compute_ops;
};

static struct example example_new(void)
{
    const struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES, .max_tokens = 1024};
    struct tdm_error err;
    for (uint64_t seed = 100; seed < 400; seed++) {
        struct example example;
        assert_int_equal(tdm_random_schedule(seed, &options, &example.schedule, &err), TDM_OK);
        if (tdm_program_lower(example.schedule, &example.program, &err) != TDM_OK)
            fail_msg("%s", err.message);
        struct tdm_forecast *forecast;
        assert_int_equal(tdm_forecast_new(example.program, &forecast, &err), TDM_OK);
        example.compute_ops = forecast->count;
        tdm_forecast_free(forecast);
        if (example.compute_ops >= LEAST_OPS && example.schedule->model->layers > 1)
            return example;
        tdm_program_free(example.program);
        tdm_schedule_free(example.schedule);
    }
    fail_msg("no random schedule has %d ops", LEAST_OPS);
    return (struct example){0};
}

static void example_free(struct example *example)
{
    tdm_program_free(example->program);
    tdm_schedule_free(example->schedule);
    slow_reset(NULL);
}

/* ---- the traversal ---- */

static struct seen {
    uint64_t looks, ended;
    double seconds, longest_pause;
} seen;

static enum tdm_status look(void *self, uint64_t ended, double seconds, struct tdm_error *err)
{
    (void)self, (void)err;
    uint64_t truly = seen.ended; /* what had ended still has */
    while (truly < slow.launched[TDM_LANE_COMPUTE] &&
           slow.ends_ns[TDM_LANE_COMPUTE][truly] <= clock_ns)
        truly++;
    assert_true(ended == truly && ended >= seen.ended);
    if (seconds - seen.seconds > seen.longest_pause)
        seen.longest_pause = seconds - seen.seconds;
    seen.looks++;
    seen.ended = ended;
    seen.seconds = seconds;
    return TDM_OK;
}

static const struct tdm_walk_watch watch = {NULL, look};

/* A traversal of an example whose step is predicted to take `seconds`. */
static struct tdm_walk *walk_of(const struct example *example, const struct tdm_arenas *arenas,
                                double seconds)
{
    struct tdm_walk *walk;
    struct tdm_forecast *forecast;
    struct tdm_error err;
    assert_int_equal(tdm_forecast_new(example->program, &forecast, &err), TDM_OK);
    double factor = seconds / forecast->step_seconds;
    forecast->step_seconds = seconds;
    for (uint64_t i = 0; i < forecast->count; i++)
        forecast->ops[i].end_seconds = (float)(factor * (double)forecast->ops[i].end_seconds);
    assert_int_equal(tdm_walk_new(example->program, forecast, arenas, &walk, &err), TDM_OK);
    slow_reset(example->program);
    slow.forecast = forecast;
    tdm_walk_watch(walk, &watch);
    seen = (struct seen){0};
    return walk;
}

static void free_walk(struct tdm_walk *walk)
{
    tdm_walk_free(walk);
    tdm_forecast_free(slow.forecast);
    slow.forecast = NULL;
}

static void the_walk_keeps_pace(void **state)
{
    (void)state;
    struct tdm_backend backend = slow_backend();
    const struct tdm_arenas arenas = {.backend = &backend};
    const struct tdm_step step = {.number = 1};
    struct example example = example_new();
    struct tdm_error err = {0};
    for (int factor = 1; factor <= 4; factor += 3) { /* ops take as long as predicted, and longer */
        struct tdm_walk *walk = walk_of(&example, &arenas, 100);
        slow.factor = factor;
        slow.settled = slow.forecast->count / 4;
        int64_t begin_ns = clock_ns;
        assert_int_equal(tdm_walk_step(walk, &step, NULL, NULL, &err), TDM_OK);
        double seconds = 1e-9 * (double)(clock_ns - begin_ns);
        assert_true(seconds > 90 * factor && seconds < 101 * factor); /* the lane was never idle */
        assert_true(slow.most_ahead_ns > 1000000000);
        assert_true(slow.most_ahead_ns < 4000000000);
        assert_true(seen.looks > 200 && seen.longest_pause < 3);
        assert_true(seconds - seen.seconds < 0.5); /* it looks until the end */
        free_walk(walk);
    }
    example_free(&example);
}

/* With ops of seconds, one op is launched ahead of the one that runs, and the lane is never
 * idle. */
static void the_walk_keeps_pace_with_long_ops(void **state)
{
    (void)state;
    struct tdm_backend backend = slow_backend();
    const struct tdm_arenas arenas = {.backend = &backend};
    const struct tdm_step step = {.number = 1};
    struct example example = example_new();
    struct tdm_error err = {0};
    double due = 5.0 * (double)example.compute_ops;
    struct tdm_walk *walk = walk_of(&example, &arenas, due);
    slow.settled = 10;
    int64_t begin_ns = clock_ns;
    assert_int_equal(tdm_walk_step(walk, &step, NULL, NULL, &err), TDM_OK);
    double seconds = 1e-9 * (double)(clock_ns - begin_ns);
    assert_true(seconds > 0.99 * due && seconds < 1.01 * due);
    assert_true(slow.most_ahead_ns > 3000000000);
    assert_true(slow.most_third_ns < 2100000000);
    free_walk(walk);
    example_free(&example);
}

static void a_walk_ends_soon(void **state)
{
    (void)state;
    struct tdm_backend backend = slow_backend();
    const struct tdm_arenas arenas = {.backend = &backend};
    const struct tdm_step step = {.number = 7};
    struct example example = example_new();
    struct tdm_error err = {0};
    struct tdm_walk *walk = walk_of(&example, &arenas, 100);
    slow.stop_ns = clock_ns + 30000000000; /* this falls in an op of a layer */
    assert_int_equal(tdm_walk_step(walk, &step, NULL, &slow.stop, &err), TDM_INTERRUPTED);
    assert_true(clock_ns - slow.stop_ns < 3000000000);
    assert_non_null(strstr(err.message, "interrupted in step 7, before op "));
    assert_non_null(strstr(err.message, ", layer "));
    free_walk(walk);
    example_free(&example);
}

/* ---- a run ---- */

static const char *in_scratch(const char *name, char out[512])
{
    const char *scratch = getenv("TDM_SCRATCH");
    snprintf(out, 512, "%s/%s", scratch == NULL ? "/tmp" : scratch, name);
    return out;
}

/* Runs two steps of ten minutes each. The run is told to stop after `stop_after` seconds (0: never;
 * negative: when memory is allocated). `text` receives what is printed. */
static enum tdm_status run_minutes(const struct example *example, bool terminal, int64_t stop_after,
                                   const char *trace, struct tdm_run_result *result, char *text,
                                   size_t text_bytes)
{
    char path[512];
    const char *paths[] = {in_scratch("long_steps.json", path)};
    struct tdm_backend backend = slow_backend();
    struct tdm_error err = {0};
    json_t *json;
    assert_int_equal(tdm_schedule_to_json(example->schedule, NULL, &json, &err), TDM_OK);
    json_object_set_new(json_object_get(json, "machine"), "launch_seconds",
                        json_real(STEP_SECONDS / (double)example->compute_ops));
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);

    slow_reset(example->program);
    slow.op_ns = (int64_t)(1e9 * STEP_SECONDS / (double)example->compute_ops);
    slow.stop_ns = stop_after > 0 ? clock_ns + stop_after * 1000000000 : 0;
    slow.stops_early = stop_after < 0;
    FILE *out = tmpfile();
    assert_non_null(out);
    struct tdm_progress progress;
    tdm_progress_begin(&progress, out, 2);
    progress.terminal = terminal;
    const struct tdm_run_listener listener = tdm_progress_listener(&progress);
    const struct tdm_run_options options = {.schedule_count = 1,
                                            .schedule_paths = paths,
                                            .backend = &backend,
                                            .steps = 2,
                                            .timed_every = 1,
                                            .trace_path = trace,
                                            .force = true,
                                            .command = "test",
                                            .stop = &slow.stop};
    enum tdm_status status = tdm_run(&options, &listener, result, &err);
    rewind(out);
    text[fread(text, 1, text_bytes - 1, out)] = '\0';
    fclose(out);
    unlink(path);
    return status;
}

static size_t count(const char *text, const char *what)
{
    size_t found = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what))
        found++;
    return found;
}

static char text[1 << 22];

/* Lines come every five seconds, later every thirty, and say where the step is. */
static void lines_come_now_and_then(void **state)
{
    (void)state;
    struct tdm_run_result result;
    struct example example = example_new();
    setenv("TIDEMARK_PROGRESS", "yes", 1);
    assert_int_equal(run_minutes(&example, false, 0, NULL, &result, text, sizeof(text)), TDM_OK);
    size_t first = count(text, "step 1/2  forward, layer "), all = count(text, "step 1/2  ");
    assert_true(first > 5 && all > 30 && all < 60);
    assert_true(count(text, "step 2/2  backward, layer ") > 5);
    assert_true(count(text, "left ") > all);
    assert_true(count(text, "device 1.00 GiB used of ") >= all - 2);
    assert_true(result.device_used_bytes >= GIB + 990000); /* between two steps it is less */

    assert_int_equal(run_minutes(&example, true, 0, NULL, &result, text, sizeof(text)), TDM_OK);
    assert_true(count(text, "\r\033[K[.........") > 200); /* the bar moves within a step */
    assert_true(count(text, "\r\033[K[#........") > 100);
    assert_true(count(text, "\r\033[K[####.....") > 100);
    assert_true(count(text, "\r\033[K[#########.") > 100);

    setenv("TIDEMARK_PROGRESS", "no", 1);
    assert_int_equal(run_minutes(&example, false, 0, NULL, &result, text, sizeof(text)), TDM_OK);
    assert_int_equal(count(text, "layer "), 0);
    assert_true(tdm_progress_pause(0) == 5 && tdm_progress_pause(100) == 10 &&
                tdm_progress_pause(5000) == 30);
    example_free(&example);
}

static void a_trace_has_what_there_is(void **state)
{
    (void)state;
    struct tdm_run_result result;
    struct tdm_trace_reader *reader;
    struct tdm_trace_unfinished_row *unfinished;
    struct tdm_trace_step_row *steps;
    struct tdm_trace_interval *intervals;
    struct tdm_trace_used_row *used;
    struct tdm_trace_time_row *times;
    struct tdm_error err = {0};
    char trace[512];
    size_t rows, step_rows;
    struct example example = example_new();
    uint64_t ops = example.program->op_count;
    in_scratch("long_steps.db", trace);
    assert_int_equal(run_minutes(&example, false, 900, trace, &result, text, sizeof(text)),
                     TDM_INTERRUPTED);

    assert_int_equal(tdm_trace_reader_open(trace, &reader, &err), TDM_OK);
    assert_int_equal(tdm_trace_read_steps(reader, &steps, &step_rows, &err), TDM_OK);
    assert_int_equal(step_rows, 1);
    assert_int_equal(tdm_trace_read_unfinished(reader, &unfinished, &rows, &err), TDM_OK);
    assert_int_equal(rows, 1);
    assert_true(unfinished->step == 2 && unfinished->timed);
    assert_true(unfinished->seconds > 900 - steps->seconds && unfinished->seconds < 310);
    assert_true(unfinished->ops > ops / 3 && unfinished->ops < ops * 2 / 3);
    assert_true(unfinished->layers == example.schedule->model->layers);

    /* The trace has every op of the whole step, and the ended ops of the other. The means are of
     * the whole step only. */
    assert_int_equal(
        tdm_trace_read_intervals(reader, unfinished->program, 1, &intervals, &rows, &err), TDM_OK);
    size_t measured = 0, part = 0;
    for (size_t i = 0; i < rows; i++)
        measured += intervals[i].measured;
    assert_int_equal(measured, ops);
    free(intervals);
    assert_int_equal(
        tdm_trace_read_intervals(reader, unfinished->program, 2, &intervals, &rows, &err), TDM_OK);
    for (size_t i = 0; i < rows; i++) {
        part += intervals[i].measured;
        assert_true(!intervals[i].measured || intervals[i].lane != TDM_LANE_COMPUTE ||
                    intervals[i].op_number < unfinished->ops);
    }
    assert_true(part > ops / 3);
    free(intervals);
    assert_int_equal(
        tdm_trace_read_unfinished_times(reader, unfinished->program, 2, &times, &rows, &err),
        TDM_OK);
    uint64_t counted = 0;
    for (size_t i = 0; i < rows; i++)
        counted += times[i].ops;
    assert_int_equal(counted, part);
    free(times);
    double mean = 0;
    assert_int_equal(tdm_trace_read_times(reader, unfinished->program, TDM_TRACE_EVERY_STEP, &times,
                                          &rows, &err),
                     TDM_OK);
    for (size_t i = 0; i < rows; i++)
        mean += times[i].measured_seconds;
    /* each op is measured at half its time; the other step would lower the mean */
    assert_true(mean > 0.49 * STEP_SECONDS && mean < 0.51 * STEP_SECONDS);
    free(times);

    /* the driver's used memory was read during the steps */
    assert_int_equal(
        tdm_trace_read_used(reader, unfinished->program, TDM_TRACE_EVERY_STEP, &used, &rows, &err),
        TDM_OK);
    size_t of_device = 0;
    for (size_t i = 0; i < rows; i++) {
        assert_true(i == 0 || used[i].time_ns >= used[i - 1].time_ns);
        of_device += used[i].place == TDM_DEVICE;
    }
    assert_true(of_device >= 20);
    free(used);
    free(steps);
    free(unfinished);
    tdm_trace_reader_close(reader);
    unlink(trace);
    example_free(&example);
}

/* A run that is told to stop before its first step ends while it writes the predictions, and leaves
 * none of them. */
static void a_run_ends_before_it_begins(void **state)
{
    (void)state;
    struct tdm_run_result result;
    struct tdm_trace_reader *reader;
    struct tdm_trace_program_row *programs;
    struct tdm_error err = {0};
    char trace[512];
    size_t rows;
    struct example example = example_new();
    in_scratch("long_steps.db", trace);
    assert_int_equal(run_minutes(&example, false, 0, NULL, &result, text, sizeof(text)), TDM_OK);
    assert_true(result.begun);
    assert_int_equal(run_minutes(&example, false, -1, trace, &result, text, sizeof(text)),
                     TDM_INTERRUPTED);
    assert_false(result.begun);
    assert_int_equal(tdm_trace_reader_open(trace, &reader, &err), TDM_OK);
    assert_string_equal(tdm_trace_reader_run(reader)->ending, "interrupted");
    assert_int_equal(tdm_trace_read_programs(reader, &programs, &rows, &err), TDM_OK);
    assert_int_equal(rows, 0);
    free(programs);
    tdm_trace_reader_close(reader);
    unlink(trace);
    example_free(&example);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_walk_keeps_pace),
        cmocka_unit_test(the_walk_keeps_pace_with_long_ops),
        cmocka_unit_test(a_walk_ends_soon),
        cmocka_unit_test(lines_come_now_and_then),
        cmocka_unit_test(a_trace_has_what_there_is),
        cmocka_unit_test(a_run_ends_before_it_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
