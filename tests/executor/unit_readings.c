/* SPDX-License-Identifier: Apache-2.0 */
/* Counts how often a run reads its program until its first step has ended. The linker wraps the
 * lowering and the simulator, so that this test can count their calls. */
#include "base/json.h"
#include "executor/backend.h"
#include "executor/run.h"
#include "schedule/lowering.h"
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

enum tdm_status __real_tdm_simulator_new(const struct tdm_program *program, tdm_simulated see,
                                         void *self, struct tdm_simulator **simulator,
                                         struct tdm_error *err);
enum tdm_status __wrap_tdm_simulator_new(const struct tdm_program *program, tdm_simulated see,
                                         void *self, struct tdm_simulator **simulator,
                                         struct tdm_error *err);
enum tdm_status __wrap_tdm_simulator_new(const struct tdm_program *program, tdm_simulated see,
                                         void *self, struct tdm_simulator **simulator,
                                         struct tdm_error *err)
{
    so_far.simulations++;
    return __real_tdm_simulator_new(program, see, self, simulator, err);
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

/* Runs two steps of a schedule on the null backend. */
static void run(const char *trace)
{
    char schedule[4096];
    const char *const paths[] = {path_of("readings.json", schedule)};
    struct tdm_run_options options = {.schedule_count = 1,
                                      .schedule_paths = paths,
                                      .steps = 2,
                                      .command = "tidemark run",
                                      .trace_path = trace};
    const struct tdm_run_listener listener = {.planned = planned, .stepped = stepped};
    struct tdm_run_result result;
    struct tdm_error err = {0};
    write_schedule(schedule);
    so_far = at_first_step = (struct counts){0};
    assert_int_equal(tdm_backend_find("null", &options.backend, &err), TDM_OK);
    if (tdm_run(&options, &listener, &result, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(result.steps, 2);
    print_message("%u lowerings and %u simulations until step 1 has ended, %u lowerings in all\n",
                  at_first_step.lowerings, at_first_step.simulations, so_far.lowerings);
}

/* The program is lowered for sizes, for checks, and for the step. */
static void a_run_reads_its_program_once_to_check_it(void **state)
{
    (void)state;
    run(NULL);
    assert_int_equal(at_first_step.lowerings, 3);
    assert_int_equal(at_first_step.simulations, 1);
    assert_int_equal(so_far.lowerings, 4);
}

/* It is lowered once more for the predictions in the trace. */
static void a_traced_run_reads_it_once_more(void **state)
{
    char trace[4096];
    (void)state;
    run(path_of("readings.db", trace));
    assert_int_equal(at_first_step.lowerings, 4);
    assert_int_equal(at_first_step.simulations, 1);
    assert_int_equal(so_far.lowerings, 5);
    assert_int_equal(so_far.simulations, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_reads_its_program_once_to_check_it),
        cmocka_unit_test(a_traced_run_reads_it_once_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
