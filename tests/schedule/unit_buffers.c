/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the buffers of a program: any number of buffers can be declared, and lowering reports
 * TDM_NO_MEMORY whichever allocation fails.
 */
#include "schedule/buffers_parts.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 5000, PROGRAMS = 60, MOST_ALLOCATIONS = 100000 };

/* ---- allocations that fail ---- */

/* The allocation that fails, counted from 1; 0: none. */
static uint64_t until_failure;

static bool fails(void)
{
    return until_failure > 0 && --until_failure == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *block, size_t bytes)
{
    return fails() ? NULL : __real_realloc(block, bytes);
}

/* Lowers again and again; each time the next allocation fails. */
static void test_out_of_memory(void **unused)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS};
    struct tdm_error err;
    (void)unused;
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        struct tdm_schedule *schedule;
        struct tdm_program *program = NULL;
        enum tdm_status status = TDM_NO_MEMORY;
        assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
        for (uint64_t n = 1; n < MOST_ALLOCATIONS && status != TDM_OK; n++) {
            err = (struct tdm_error){0};
            until_failure = n;
            status = tdm_program_lower(schedule, &program, &err);
            bool failed = until_failure == 0;
            until_failure = 0;
            if (status != (failed ? TDM_NO_MEMORY : TDM_OK))
                fail_msg("seed %u, allocation %u: status %d, %s", (unsigned)seed, (unsigned)n,
                         (int)status, err.message);
        }
        assert_int_equal(status, TDM_OK);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
}

/* ---- any number of buffers ---- */

static void test_many(void **unused)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_TRAIN};
    struct tdm_schedule *schedule;
    struct tdm_error err;
    char name[40];
    (void)unused;
    assert_int_equal(tdm_random_schedule(1, &options, &schedule, &err), TDM_OK);
    struct tdm_program program = {.schedule = schedule};
    struct tdm_builder builder = {
        .program = &program, .schedule = schedule, .model = schedule->model};
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(tdm_declare(&builder, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, TDM_X, 0,
                                     1, 1, "buffer %u", i),
                         i);
    assert_int_equal(program.buffer_count, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        snprintf(name, sizeof(name), "buffer %u", i);
        assert_string_equal(program.buffers[i].name, name);
        assert_false(program.buffers[i].resident);
    }

    /* one more needs an allocation */
    while (program.buffer_count < builder.buffer_capacity)
        tdm_declare(&builder, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, TDM_X, 0, 1, 1, "more");
    assert_false(builder.out_of_memory);
    until_failure = 1;
    assert_int_equal(
        tdm_declare(&builder, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, TDM_X, 0, 1, 1, "too many"),
        0);
    until_failure = 0;
    assert_true(builder.out_of_memory);
    assert_int_equal(program.buffer_count, builder.buffer_capacity);
    assert_string_equal(program.buffers[0].name, "buffer 0");
    free(program.buffers);
    tdm_schedule_free(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("buffers", tests, NULL, NULL);
}
