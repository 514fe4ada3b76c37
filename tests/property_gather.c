/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: attention that gathers the pages of its lists from the host computes what attention over whole chunks does.
 *
 * A random chunk-major schedule with lists keeps K and V on the host. It runs with whole chunks fetched; with room for
 * all pages, which leaves the same bits; and with the least room that a schedule may have, so that query pages
 * take turns: then losses have the same bits, and gradients, which have a sum for each batch, differ by rounding alone.
 */
#include "executor/backends.h"
#include "models/model.h"
#include "schedule/gather.h"
#include "tests/random_schedule.h"
#include "tests/run_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BASE_SEED 91000u

/* Of the norm of all gradients. In 400 cases the worst was 4e-6. */
#define ROUNDING 5e-5

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static void roll_selector(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    do {
        schedule->selector = (struct tdm_selector){0};
        tdm_random_selector(dice, schedule);
    } while (!tdm_selector_lists(schedule->selector.kind));
}

/* Short chunks of a few pages, K and V on the host. */
static struct tdm_schedule *draw(uint64_t seed)
{
    const struct tdm_random_options options = {.dtypes = TDM_RANDOM_FP32,
                                               .optimizer = TDM_RANDOM_NO_OPTIMIZER,
                                               .max_tokens = 96};
    struct tdm_schedule *schedule;
    struct tdm_error err;
    struct tdm_dice dice;
    must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
    tdm_dice_seed(&dice, seed ^ 0x6a7e);
    schedule->page_tokens = tdm_dice_roll(&dice, 1, 5);
    schedule->chunk_tokens = schedule->page_tokens * tdm_dice_roll(&dice, 1, 4);
    tdm_schedule_set_order(schedule, TDM_CHUNK_MAJOR);
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        struct tdm_group *group = &schedule->groups[i];
        group->held_place = TDM_DEVICE;
        group->kv_place = tdm_dice_chance(&dice, 85) ? TDM_HOST : TDM_DEVICE;
        group->kv_gradients_place = tdm_dice_chance(&dice, 60) ? TDM_HOST : TDM_DEVICE;
    }
    roll_selector(&dice, schedule);
    schedule->rings.gather = 0;
    return schedule;
}

static struct tdm_steps run(struct tdm_schedule *schedule, uint32_t gather,
                            const struct tdm_step_data *data, uint64_t seed)
{
    struct tdm_steps steps;
    struct tdm_error err;
    schedule->rings.gather = gather;
    must(tdm_schedule_check(schedule, "gather", &err), &err);
    must(tdm_steps_run(schedule, &tdm_cpu_backend, data, seed, true, &steps, &err), &err);
    return steps;
}

static uint32_t least_room(struct tdm_schedule *schedule)
{
    struct tdm_error err;
    for (uint32_t gather = 1;; gather++) {
        schedule->rings.gather = gather;
        if (tdm_gather_check(schedule, "gather", &err) == TDM_OK)
            return gather;
    }
}

static uint64_t most_batches(const struct tdm_schedule *schedule)
{
    return tdm_gathers_at_all(schedule) ? tdm_gather_batches(schedule, schedule->chunk_tokens) : 1;
}

static bool is_near(const struct tdm_steps *a, const struct tdm_steps *due)
{
    double error = 0, size = 0;
    for (uint32_t step = 0; step < due->steps; step++)
        if (memcmp(&a->losses[step], &due->losses[step], sizeof(double)) != 0)
            return false;
    const float *values = tdm_steps_values(a, 0, TDM_LEFT_VALUES);
    const float *due_values = tdm_steps_values(due, 0, TDM_LEFT_VALUES);
    for (size_t i = 0; i < due->count; i++) {
        error += ((double)values[i] - due_values[i]) * ((double)values[i] - due_values[i]);
        size += (double)due_values[i] * due_values[i];
    }
    return sqrt(error) <= ROUNDING * sqrt(size);
}

static bool gathers_the_same(uint64_t seed, uint64_t *batched)
{
    char text[768];
    struct tdm_schedule *schedule = draw(seed);
    struct tdm_step_data data;
    assert_true(tdm_step_data_draw(&data, schedule, seed));
    struct tdm_steps whole = run(schedule, 0, &data, seed);
    struct tdm_steps all = run(schedule, TDM_MAX_GATHER, &data, seed);
    struct tdm_steps least = run(schedule, least_room(schedule), &data, seed);
    bool same = tdm_steps_same(&whole, &all);
    bool near = is_near(&least, &whole);
    *batched += most_batches(schedule) > 1;
    if (!same || !near) {
        fprintf(stderr, "seed %llu: with room for all %s, with the least %s: %s\n",
                (unsigned long long)seed, same ? "the same" : "not the same",
                near ? "near" : "not near",
                tdm_schedule_describe(schedule, text, sizeof(text)));
        tdm_case_again("property_gather", seed);
    }
    tdm_steps_free(&whole);
    tdm_steps_free(&all);
    tdm_steps_free(&least);
    tdm_step_data_free(&data);
    tdm_schedule_free(schedule);
    return same && near;
}

static void gathered_pages_are_the_pages(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(40, 400), failed = 0, batched = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !gathers_the_same(tdm_case_seed(BASE_SEED, i), &batched);
    print_message("%llu cases, %llu in batches\n", (unsigned long long)cases,
                  (unsigned long long)batched);
    assert_int_equal(failed, 0);
    assert_true(cases < 40 || batched >= cases / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gathered_pages_are_the_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
