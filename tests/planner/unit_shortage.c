/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a refusal lowers few schedules: the longest context and clear misses come from the
 * estimates, which are not too high, and what is said to fit was lowered. These estimates are of
 * bytes alone: they are those of an estimator that has seconds too, and no op is timed for them.
 * Nearer misses are proved by linear programs, of which few are solved, and where they prove one,
 * no search finds a schedule. */
#include "planner/places.h"
#include "planner/recipes.h"
#include "planner/request.h"
#include "planner/shortage.h"
#include "planner/solver.h"
#include "schedule/cost.h"
#include "schedule/pack_search.h"
#include "schedule/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define K UINT64_C(1024)
#define GIB (K * K * K)

static unsigned lowered, timed, small_steps, solved, packings;

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
                                           const uint64_t *below_bytes,
                                           uint64_t arena_bytes[TDM_MAX_PLACES],
                                           struct tdm_error *err);
enum tdm_status __wrap_tdm_program_measure(const struct tdm_schedule *schedule,
                                           const uint64_t *below_bytes,
                                           uint64_t arena_bytes[TDM_MAX_PLACES],
                                           struct tdm_error *err);

enum tdm_status __wrap_tdm_program_measure(const struct tdm_schedule *schedule,
                                           const uint64_t *below_bytes,
                                           uint64_t arena_bytes[TDM_MAX_PLACES],
                                           struct tdm_error *err)
{
    lowered++;
    return __real_tdm_program_measure(schedule, below_bytes, arena_bytes, err);
}

enum tdm_status __real_tdm_solver_solve(struct tdm_solver *solver, int iterations,
                                        struct tdm_error *err);
enum tdm_status __wrap_tdm_solver_solve(struct tdm_solver *solver, int iterations,
                                        struct tdm_error *err);

enum tdm_status __wrap_tdm_solver_solve(struct tdm_solver *solver, int iterations,
                                        struct tdm_error *err)
{
    solved++;
    return __real_tdm_solver_solve(solver, iterations, err);
}

enum tdm_status __real_tdm_pack_search_run(struct tdm_pack_search *search, uint64_t capacity_bytes,
                                           uint64_t *steps, uint64_t *offsets,
                                           enum tdm_pack_answer *answer, struct tdm_error *err);
enum tdm_status __wrap_tdm_pack_search_run(struct tdm_pack_search *search, uint64_t capacity_bytes,
                                           uint64_t *steps, uint64_t *offsets,
                                           enum tdm_pack_answer *answer, struct tdm_error *err);

enum tdm_status __wrap_tdm_pack_search_run(struct tdm_pack_search *search, uint64_t capacity_bytes,
                                           uint64_t *steps, uint64_t *offsets,
                                           enum tdm_pack_answer *answer, struct tdm_error *err)
{
    packings++;
    return __real_tdm_pack_search_run(search, capacity_bytes, steps, offsets, answer, err);
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
    enum tdm_foreseen foreseen;
    (void)state;
    ask("llama-3.1-8b", 1024 * K, TDM_OPTIMIZER_ADAMW, 16 * GIB, &asked);
    lowered = timed = small_steps = 0;
    must(tdm_shortage_foresee(asked.schedule, &asked.pins, true, &foreseen, &err), &err);
    assert_int_equal(foreseen, TDM_CLEARLY_MISSES);
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

/* Of a thousand schedules that take about as much, few are packed to the end. */
static void few_packings_are_searched_for(void **state)
{
    struct asked asked;
    struct tdm_error err;
    uint64_t bytes;
    (void)state;
    ask("qwen2.5-1.5b", 32 * K, TDM_OPTIMIZER_ADAMW, GIB, &asked);
    lowered = packings = 0;
    must(tdm_candidates_least(asked.schedule, &asked.pins, TDM_DEVICE, &bytes, &err), &err);
    if (lowered < 500 || packings > lowered / 20)
        fail_msg("packings of %u schedules: %u searches", lowered, packings);
    forget(&asked);
}

/* ---- near misses ---- */

/* 22 GiB, where the least that is known to fit takes 26. A few solutions prove a miss for all
 * orders, chunk sizes and places of updates. */
static void near_misses_solve_few(void **state)
{
    struct asked asked;
    struct tdm_error err;
    enum tdm_foreseen foreseen;
    (void)state;
    ask("qwen2.5-14b", 1024 * K, TDM_OPTIMIZER_ADAMW, 22 * GIB, &asked);
    asked.schedule->host_memory_bytes = 2048 * GIB;
    lowered = timed = solved = 0;
    must(tdm_shortage_foresee(asked.schedule, &asked.pins, true, &foreseen, &err), &err);
    assert_int_equal(foreseen, TDM_SURELY_MISSES);
    assert_int_equal(lowered, 0);
    assert_int_equal(timed, 0);
    if (solved == 0 || solved > 40) /* 377 if each program is solved by itself */
        fail_msg("%u programs were solved", solved);
    forget(&asked);
}

/* Where a miss is proved, no search finds a schedule, and where one does, nothing is foreseen. */
static void proofs_are_right(void **state)
{
    static const char *const models[] = {"qwen2.5-0.5b", "llama-3.2-1b"};
    static const enum tdm_optimizer optimizers[] = {TDM_OPTIMIZER_ADAMW, TDM_OPTIMIZER_SGD};
    static const uint64_t contexts[] = {3000, 16 * K};
    unsigned proved = 0, found = 0;
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned part = 20; part < 29; part += 4) { /* twentieths of what is proved */
            struct asked asked;
            struct tdm_error err;
            struct tdm_search search;
            enum tdm_foreseen foreseen;
            uint64_t least;
            ask(models[i / 2], contexts[i % 2], optimizers[i / 2], GIB, &asked);
            must(tdm_candidates_least_proved(asked.schedule, &asked.pins, TDM_DEVICE, &least, &err),
                 &err);
            assert_true(least > 0);
            asked.schedule->memory_bytes = least / 100 * (5 * part - 1); /* 99%, 119%, 139% */
            must(tdm_shortage_foresee(asked.schedule, &asked.pins, true, &foreseen, &err), &err);
            asked.pins.brief = foreseen == TDM_MAY_FIT;
            enum tdm_status status =
                tdm_candidates_search(asked.schedule, &asked.pins, &search, &err);
            if (status != TDM_INFEASIBLE)
                must(status, &err);
            if (part == 20) /* the proof of the least is found again */
                assert_int_equal(foreseen, TDM_SURELY_MISSES);
            if (status == TDM_OK)
                assert_int_equal(foreseen, TDM_MAY_FIT);
            proved += foreseen == TDM_SURELY_MISSES;
            found += status == TDM_OK;
            forget(&asked);
        }
    if (proved < 4 || found < 4)
        fail_msg("%u misses were proved, %u schedules found", proved, found);
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
        cmocka_unit_test(few_packings_are_searched_for),
        cmocka_unit_test(near_misses_solve_few),
        cmocka_unit_test(proofs_are_right),
        cmocka_unit_test(bytes_do_not_depend_on_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
