/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch: planned for every op of every shipped model, and counted where it lives. */
#include "base/size.h"
#include "executor/backend.h"
#include "models/model.h"
#include "planner/simulate.h"
#include "schedule/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>

static struct tdm_schedule *schedule_of(const char *name, uint64_t chunk_tokens)
{
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err;
    assert_int_equal(tdm_model_load(name, &model, &err), TDM_OK);
    assert_int_equal(tdm_machine_load("h200-published", &machine, &err), TDM_OK);
    assert_int_equal(tdm_schedule_new(model, machine, 131072, &schedule, &err), TDM_OK);
    schedule->chunk_tokens = chunk_tokens;
    assert_int_equal(tdm_schedule_check(schedule, name, &err), TDM_OK);
    return schedule;
}

static struct tdm_program *program_of(const struct tdm_schedule *schedule)
{
    struct tdm_program *program;
    struct tdm_error err;
    assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
    return program;
}

static void test_bytes(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = schedule_of("qwen2.5-7b", 4096);
    uint64_t few = tdm_scratch_bytes(schedule, 128), many = tdm_scratch_bytes(schedule, 1 << 20);
    assert_true(few > 0 && few < many);
    /* attention: where a row sees from, facts of its 28 query heads, sums of dQ, and counters of their tiles */
    uint64_t turns = 2 * 28 * ((uint64_t)1 << 20) / 64 + 131072 / 128 * 4 + 1;
    assert_int_equal(many, ((uint64_t)1 << 20) * (8 + 2 * 4 * 28 + 28 * 128 * 4) +
                               tdm_size_align(4 * turns, 256));
    schedule->pass = TDM_EVALUATE;
    assert_int_equal(tdm_scratch_bytes(schedule, 1 << 20), ((uint64_t)1 << 20) * (8 + 2 * 4 * 28));
    schedule->pass = TDM_TRAIN;
    schedule->dtypes.activations = TDM_DTYPE_FP32; /* no kernel sums dQ in scratch */
    assert_int_equal(tdm_scratch_bytes(schedule, 1 << 20), ((uint64_t)1 << 20) * (8 + 2 * 4 * 28));
    schedule->dtypes.activations = TDM_DTYPE_BF16;
    assert_int_equal(tdm_scratch_bytes(schedule, UINT64_MAX / 8), TDM_SIZE_MAX);
    tdm_schedule_free(schedule);
}

/* Lists take scratch where some layer makes them: none does if the model gives windows to all. */
static void test_lists(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = schedule_of("mistral-7b-v0.1", 4096);
    uint64_t dense = tdm_scratch_bytes(schedule, 131072);
    schedule->selector = (struct tdm_selector){.kind = TDM_SELECT_TOP_K, .budget = 4096};
    assert_int_equal(tdm_schedule_lists(schedule), TDM_SELECT_DENSE);
    assert_int_equal(tdm_scratch_bytes(schedule, 131072), dense);
    schedule->model->layer_kinds[1].window = 0;
    assert_int_equal(tdm_schedule_lists(schedule), TDM_SELECT_TOP_K);
    assert_true(tdm_scratch_bytes(schedule, 131072) > dense);
    tdm_schedule_free(schedule);
}

/* It is a buffer like others: in the arena, workspace, at the peak. */
static void test_is_counted(void **state)
{
    (void)state;
    struct tdm_error err;
    struct tdm_simulation simulation;
    struct tdm_schedule *schedule = schedule_of("qwen2.5-0.5b", 4096);
    struct tdm_program *program = program_of(schedule);
    const struct tdm_buffer *scratch = &program->buffers[program->scratch];
    assert_true(scratch->used && !scratch->resident && scratch->place == TDM_DEVICE);
    assert_true(scratch->bytes >= tdm_scratch_bytes(schedule, 4096));
    assert_true(scratch->offset + scratch->bytes <= program->arena_bytes[TDM_DEVICE]);
    assert_int_equal(tdm_simulate(program, NULL, NULL, &simulation, &err), TDM_OK);
    assert_true(simulation.peak_categories[TDM_DEVICE][TDM_WORKSPACE] >= scratch->bytes);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

/* Some shipped models are there for predictions of other systems alone. */
static bool can_run(const char *name)
{
    struct tdm_model *model;
    struct tdm_error err;
    assert_int_equal(tdm_model_load(name, &model, &err), TDM_OK);
    bool can = !model->sized_only;
    tdm_model_free(model);
    return can;
}

/* A backend that needs more says so when it is opened, before it looks for its device. */
static void test_is_enough(void **state)
{
    (void)state;
    static const uint64_t chunks[] = {64, 4096, 131072};
    const struct tdm_backend *backend;
    struct tdm_error err;
    char **names;
    if (tdm_backend_find("cuda", &backend, &err) != TDM_OK)
        skip();
    assert_int_equal(tdm_model_names(&names, &err), TDM_OK);
    for (char **name = names; *name != NULL; name++)
        for (size_t i = 0; can_run(*name) && i < sizeof(chunks) / sizeof(chunks[0]); i++) {
            struct tdm_schedule *schedule = schedule_of(*name, chunks[i]);
            struct tdm_program *program = program_of(schedule);
            const struct tdm_program *programs[] = {program};
            struct tdm_executor *executor = NULL;
            enum tdm_status status = backend->open(1, programs, &executor, &err);
            if (status == TDM_OK)
                backend->close(executor);
            else if (status == TDM_INTERNAL)
                fail_msg("%s, chunks of %llu tokens: %s", *name, (unsigned long long)chunks[i],
                         err.message);
            tdm_program_free(program);
            tdm_schedule_free(schedule);
        }
    free(names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_is_counted),
        cmocka_unit_test(test_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
