/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of base/parallel: every task runs once, errors, and that tasks run at the same time. */
#include "base/parallel.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define TASKS 1000u

struct tasks {
    atomic_uint runs[TASKS];
    size_t fails_from; /* tasks from this number on fail */
    atomic_uint together;
};

static enum tdm_status count_run(void *self, size_t number, struct tdm_error *err)
{
    struct tasks *tasks = self;
    atomic_fetch_add(&tasks->runs[number], 1);
    return number >= tasks->fails_from ? tdm_fail(err, TDM_IO, "task %zu", number) : TDM_OK;
}

static void test_all_run_once(void **state)
{
    (void)state;
    static const size_t threads[] = {0, 1, 2, 7, 1000};
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        struct tasks tasks = {.fails_from = TASKS};
        struct tdm_error err = {0};
        assert_int_equal(tdm_parallel(TASKS, threads[i], count_run, &tasks, &err), TDM_OK);
        for (size_t n = 0; n < TASKS; n++)
            assert_int_equal(tasks.runs[n], 1);
        assert_int_equal(tdm_parallel(0, threads[i], count_run, &tasks, &err), TDM_OK);
        assert_int_equal(err.status, TDM_OK);
    }
}

/* The failed task with the lowest number is named, and few begin after it. */
static void test_first_failure(void **state)
{
    (void)state;
    for (size_t threads = 1; threads <= 8; threads++) {
        struct tasks tasks = {.fails_from = 300};
        struct tdm_error err = {0};
        size_t late = 0;
        assert_int_equal(tdm_parallel(TASKS, threads, count_run, &tasks, &err), TDM_IO);
        assert_string_equal(err.message, "task 300");
        for (size_t n = 0; n < TASKS; n++) {
            if (n <= 300)
                assert_int_equal(tasks.runs[n], 1);
            late += n > 300 && tasks.runs[n] > 0;
        }
        assert_true(late < threads);
    }
}

/* Waits until another task is here too, for at most ten seconds. */
static enum tdm_status meet(void *self, size_t number, struct tdm_error *err)
{
    struct tasks *tasks = self;
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)number;
    atomic_fetch_add(&tasks->together, 1);
    for (int i = 0; i < 10000 && tasks->together < 2; i++)
        nanosleep(&pause, NULL);
    return tasks->together < 2 ? tdm_fail(err, TDM_INTERNAL, "nobody came") : TDM_OK;
}

static void test_at_the_same_time(void **state)
{
    (void)state;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < 2)
        skip();
    struct tasks tasks = {.fails_from = TASKS};
    struct tdm_error err = {0};
    assert_int_equal(tdm_parallel(2, 2, meet, &tasks, &err), TDM_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_run_once),
        cmocka_unit_test(test_first_failure),
        cmocka_unit_test(test_at_the_same_time),
    };
    return cmocka_run_group_tests_name("unit_parallel", tests, NULL, NULL);
}
