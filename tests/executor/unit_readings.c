/* SPDX-License-Identifier: Apache-2.0 */
/* Counts how often a run reads its program until its first step has ended. The linker wraps the
 * lowering and the simulator, so that this test can count their calls. */
#include "base/json.h"
#include "executor/backend.h"
#include "executor/examples.h"
#include "executor/run.h"
#include "schedule/program.h"
#include "simulator/simulate.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

struct counts {
    unsigned lowerings, simulations;
};

static struct counts so_far, at_first_step;

enum tdm_status __real_tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                                 struct tdm_error *err);
enum tdm_status __wrap_tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                                 struct tdm_error *err);
enum tdm_status __wrap_tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                                 struct tdm_error *err)
{
    so_far.lowerings++;
    return __real_tdm_lower(program, sink, self, err);
}

enum tdm_status __real_tdm_simulator_new(const struct tdm_program *program, bool keep_starts,
                                         struct tdm_simulator **simulator, struct tdm_error *err);
enum tdm_status __wrap_tdm_simulator_new(const struct tdm_program *program, bool keep_starts,
                                         struct tdm_simulator **simulator, struct tdm_error *err);
enum tdm_status __wrap_tdm_simulator_new(const struct tdm_program *program, bool keep_starts,
                                         struct tdm_simulator **simulator, struct tdm_error *err)
{
    so_far.simulations++;
    return __real_tdm_simulator_new(program, keep_starts, simulator, err);
}

static void planned(void *self, const char *path, const struct tdm_program *program,
                    const struct tdm_amounts *amounts, double predicted_seconds)
{
    (void)self, (void)path, (void)program, (void)amounts, (void)predicted_seconds;
}

static void stepped(void *self, const struct tdm_program *program, uint64_t step, double loss,
                    double gradient_norm, double seconds)
{
    (void)self, (void)program, (void)loss, (void)gradient_norm, (void)seconds;
    if (step == 1)
        at_first_step = so_far;
}

static const char *path_of(const char *name, char path[4096])
{
    snprintf(path, 4096, "%s/%s", getenv("TDM_SCRATCH"), name);
    return path;
}

static void write_schedule(const char *path)
{
    const struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES, .max_tokens = 256};
    struct tdm_schedule *schedule;
    struct tdm_error err;
    json_t *json;
    assert_int_equal(tdm_random_schedule(7, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &json, &err), TDM_OK);
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
    tdm_schedule_free(schedule);
}

/* Runs two steps of a schedule on a backend that computes nothing. */
static void run(const struct tdm_backend *backend, const char *trace)
{
    char schedule[4096];
    const char *const paths[] = {path_of("readings.json", schedule)};
    struct tdm_run_options options = {.schedule_count = 1,
                                      .schedule_paths = paths,
                                      .backend = backend,
                                      .steps = 2,
                                      .command = "tidemark run",
                                      .trace_path = trace};
    const struct tdm_run_listener listener = {.planned = planned, .stepped = stepped};
    struct tdm_run_result result;
    struct tdm_error err = {0};
    write_schedule(schedule);
    so_far = at_first_step = (struct counts){0};
    if (tdm_run(&options, &listener, &result, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(result.steps, 2);
    print_message("%u lowerings and %u simulations until step 1 has ended, %u lowerings in all\n",
                  at_first_step.lowerings, at_first_step.simulations, so_far.lowerings);
    /* it is lowered for its sizes, for the checks, and for each step */
    assert_int_equal(at_first_step.lowerings, 3);
    assert_int_equal(at_first_step.simulations, 1);
    assert_int_equal(so_far.lowerings, 4);
    assert_int_equal(so_far.simulations, 1);
}

static struct tdm_backend null_backend(void)
{
    const struct tdm_backend *backend;
    struct tdm_error err;
    assert_int_equal(tdm_backend_find("null", &backend, &err), TDM_OK);
    return *backend;
}

static void a_run_reads_its_program_once_to_check_it(void **state)
{
    (void)state;
    struct tdm_backend backend = null_backend();
    run(&backend, NULL);
}

static void a_trace_needs_no_other_reading(void **state)
{
    char trace[4096];
    (void)state;
    struct tdm_backend backend = null_backend();
    run(&backend, path_of("readings.db", trace));
}

static struct tdm_op prepared[TDM_EXAMPLES];
static size_t prepared_count;

static enum tdm_status prepare(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err)
{
    (void)executor, (void)err;
    assert_true(prepared_count < TDM_EXAMPLES);
    prepared[prepared_count++] = *launch->op;
    return TDM_OK;
}

/* Are ops of the same kind, part, shape and operands? */
static bool are_alike(const struct tdm_op *a, const struct tdm_op *b)
{
    bool alike = a->kind == b->kind && a->part == b->part && a->tokens == b->tokens &&
                 a->entries == b->entries;
    for (uint32_t i = 0; alike && i < a->access_count; i++) {
        bool there = a->access[i].buffer != TDM_NONE;
        alike = there == (b->access[i].buffer != TDM_NONE) &&
                (!there || a->access[i].mode == b->access[i].mode);
    }
    return alike;
}

static enum tdm_status look_for_example(void *self, const struct tdm_item *item,
                                        struct tdm_error *err)
{
    uint64_t *ops = self;
    (void)err;
    if (item->kind != TDM_RUN || item->op->lane != TDM_LANE_COMPUTE)
        return TDM_OK;
    size_t alike = 0, first = prepared_count;
    for (size_t i = prepared_count; i-- > 0;)
        if (are_alike(&prepared[i], item->op)) {
            alike++;
            first = i;
        }
    assert_true(alike == 1 && prepared[first].number <= item->op->number);
    ++*ops;
    return TDM_OK;
}

/* Of ops that are alike a backend prepares the first one. */
static void preparing_needs_no_other_reading(void **state)
{
    (void)state;
    struct tdm_backend backend = null_backend();
    char path[4096];
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_error err;
    uint64_t ops = 0;
    prepared_count = 0;
    backend.prepare = prepare;
    run(&backend, NULL);
    assert_int_equal(tdm_schedule_load(path_of("readings.json", path), &schedule, &err), TDM_OK);
    assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
    assert_int_equal(tdm_program_emit(program, look_for_example, &ops, &err), TDM_OK);
    print_message("%zu examples of %llu ops\n", prepared_count, (unsigned long long)ops);
    assert_true(prepared_count > 10 && 2 * prepared_count < ops);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_reads_its_program_once_to_check_it),
        cmocka_unit_test(a_trace_needs_no_other_reading),
        cmocka_unit_test(preparing_needs_no_other_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
