/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a refusal lowers few schedules: the longest context and clear misses come from the
 * estimates, which are not too high, and what is said to fit was lowered. */
#include "planner/request.h"
#include "planner/shortage.h"
#include "schedule/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define K UINT64_C(1024)
#define GIB (K * K * K)

static unsigned lowered;

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

static void ask(uint64_t context, uint64_t memory_bytes, struct asked *asked)
{
    struct tdm_error err;
    const struct tdm_request request = {.model = "llama-3.1-8b",
                                        .machine = "rtx-4090",
                                        .context = context,
                                        .ranks = 1,
                                        .sequences = 1,
                                        .unchecked = true,
                                        .optimizer = TDM_OPTIMIZER_ADAMW,
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
    ask(1024 * K, 16 * GIB, &asked);
    lowered = 0;
    must(tdm_shortage_is_clear(asked.schedule, &asked.pins, &clear, &err), &err);
    assert_true(clear);
    assert_int_equal(lowered, 0);
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
    forget(&asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clear_misses_lower_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
