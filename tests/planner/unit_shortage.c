/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a refusal lowers few schedules: the longest context and clear misses come from the
 * estimates, which are not too high, and what is said to fit was lowered. These estimates are of
 * bytes alone: they are those of an estimator that has seconds too, and no op is timed for them. */
#include "planner/places.h"
#include "planner/recipes.h"
#include "planner/request.h"
#include "planner/shortage.h"
#include "schedule/cost.h"
#include "schedule/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define K UINT64_C(1024)
#define GIB (K * K * K)

static unsigned lowered, timed, small_steps;

double __real_tdm_op_seconds(const struct tdm_machine *machine, const struct tdm_op *op);
double __wrap_tdm_op_seconds(const struct tdm_machine *machine, const struct tdm_op *op);

double __wrap_tdm_op_seconds(const struct tdm_machine *machine, const struct tdm_op *op)
{
    timed++;
    return __real_tdm_op_seconds(machine, op);
}

enum tdm_status __real_tdm_program_emit(const struct tdm_program *program, tdm_sink sink,
                                        void *self, struct tdm_error *err);
enum tdm_status __wrap_tdm_program_emit(const struct tdm_program *program, tdm_sink sink,
                                        void *self, struct tdm_error *err);

enum tdm_status __wrap_tdm_program_emit(const struct tdm_program *program, tdm_sink sink,
                                        void *self, struct tdm_error *err)
{
    small_steps++;
    return __real_tdm_program_emit(program, sink, self, err);
}

enum tdm_status __real_tdm_program_measure(const struct tdm_schedule *schedule,
                                           uint64_t arena_bytes[TDM_MAX_PLACES],
                                           struct tdm_error *err);
enum tdm_status __wrap_tdm_program_measure(const struct tdm_schedule *schedule,
                                           uint64_t arena_bytes[TDM_MAX_PLACES],
                                           struct tdm_error *err);

enum tdm_status __wrap_tdm_program_measure(const struct tdm_schedule *schedule,
                                           uint64_t arena_bytes[TDM_MAX_PLACES],
                                           struct tdm_error *err)
{
    lowered++;
    return __real_tdm_program_measure(schedule, arena_bytes, err);
}

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

struct asked {
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
};

static void ask(const char *model, uint64_t context, enum tdm_optimizer optimizer,
                uint64_t memory_bytes, struct asked *asked)
{
    struct tdm_error err;
    const struct tdm_request request = {.model = model,
                                        .machine = "rtx-4090",
                                        .context = context,
                                        .ranks = 1,
                                        .sequences = 1,
                                        .unchecked = true,
                                        .optimizer = optimizer,
                                        .has_memory = true,
                                        .memory_bytes = memory_bytes,
                                        .has_host_memory = true,
                                        .host_memory_bytes = 128 * GIB};
    must(tdm_request_make(&request, &asked->schedule, &asked->pins, &err), &err);
}

static void forget(struct asked *asked)
{
    tdm_pins_free(&asked->pins);
    tdm_schedule_free(asked->schedule);
}

static void clear_misses_lower_few(void **state)
{
    struct asked asked;
    struct tdm_shortage brief, whole;
    struct tdm_error err;
    bool clear;
    (void)state;
    ask("llama-3.1-8b", 1024 * K, TDM_OPTIMIZER_ADAMW, 16 * GIB, &asked);
    lowered = timed = small_steps = 0;
    must(tdm_shortage_is_clear(asked.schedule, &asked.pins, &clear, &err), &err);
    assert_true(clear);
    assert_int_equal(lowered, 0);
    assert_in_range(small_steps, 1, TDM_CHUNK_SIZES); /* one for each chunk size */
    must(tdm_shortage_find(asked.schedule, &asked.pins, true, &brief, &err), &err);
    if (lowered > 4)
        fail_msg("%u schedules were lowered", lowered);
    lowered = 0;
    must(tdm_shortage_find(asked.schedule, &asked.pins, false, &whole, &err), &err);
    if (lowered > 8)
        fail_msg("%u schedules were lowered", lowered);
    assert_int_equal(brief.longest_context, whole.longest_context);
    assert_int_equal(brief.binding, whole.binding);
    /* more than the card has: an estimate, which is not too high, nor much too low */
    assert_true(brief.needed_bytes[TDM_DEVICE] > 24 * GIB);
    assert_true(brief.needed_bytes[TDM_DEVICE] <= whole.needed_bytes[TDM_DEVICE]);
    assert_true((double)brief.needed_bytes[TDM_DEVICE] >
                0.99 * (double)whole.needed_bytes[TDM_DEVICE]);
    assert_int_equal(timed, 0);
    forget(&asked);
}

/* ---- estimates of bytes alone ---- */

struct compared {
    struct tdm_search_space *timed;
    const struct tdm_search_space *untimed;
    unsigned count;
};

static bool compare(void *self, const struct tdm_recipe *recipe)
{
    uint64_t no_limits[TDM_MAX_PLACES];
    struct compared *c = self;
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        no_limits[place] = UINT64_MAX;
    struct tdm_recipe with = *recipe, without = *recipe;
    assert_int_equal(c->timed->bases[with.size].chunk_tokens,
                     c->untimed->bases[without.size].chunk_tokens);
    (void)tdm_recipe_estimate(c->timed, &with, no_limits);
    (void)tdm_recipe_estimate(c->untimed, &without, no_limits);
    assert_memory_equal(with.bytes, without.bytes, sizeof(with.bytes));
    c->count++;
    return true;
}

static void bytes_do_not_depend_on_seconds(void **state)
{
    static const char *const models[] = {"llama-3.1-8b", "qwen2.5-0.5b", "mistral-7b-v0.1"};
    static const enum tdm_optimizer optimizers[] = {TDM_OPTIMIZER_ADAMW, TDM_OPTIMIZER_ADAMW_BF16,
                                                    TDM_OPTIMIZER_SGD};
    static const uint64_t contexts[] = {5000, 32 * K, 300 * K};
    unsigned count = 0;
    (void)state;
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++)
        for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
            struct asked with, without;
            struct tdm_search_space timed_space, untimed_space;
            struct tdm_error err;
            ask(models[m], contexts[i], optimizers[m], 16 * GIB, &with);
            ask(models[m], contexts[i], optimizers[m], 16 * GIB, &without);
            must(tdm_search_space_open(with.schedule, &with.pins, false, &timed_space, &err), &err);
            must(tdm_search_space_open(without.schedule, &without.pins, true, &untimed_space, &err),
                 &err);
            for (int streams = 0; streams < 2; streams++) {
                struct compared c = {&timed_space, &untimed_space, 0};
                for (int on = 0; on < 2; on++)
                    tdm_recipes_enumerate(&untimed_space, tdm_planned_place(with.schedule, on),
                                          compare, &c);
                count += c.count;
                tdm_search_space_stream_state(&timed_space);
                tdm_search_space_stream_state(&untimed_space);
            }
            tdm_search_space_close(&timed_space);
            tdm_search_space_close(&untimed_space);
            forget(&with);
            forget(&without);
        }
    if (count < 2000)
        fail_msg("%u recipes were compared", count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clear_misses_lower_few),
        cmocka_unit_test(bytes_do_not_depend_on_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
