/* SPDX-License-Identifier: Apache-2.0 */
/* Property: selectors that see all tokens give the bits of dense attention, and a window gives the
 * same bits whether the model or the schedule asks for it.
 *
 * A random schedule runs dense on the cpu backend, then with each selector that covers its context:
 * windows, blocks and budgets no smaller than the context. The results are the same to the last
 * bit, with page lists and without. Then all layers of the model get a window, and after that the
 * schedule's selector gets the same window instead. */
#include "executor/backends.h"
#include "models/model.h"
#include "schedule/schedule_check.h"
#include "tests/support/random_schedule.h"
#include "tests/support/run_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

#define BASE_SEED 77000u

/* Longer than all sequences of a case. */
#define ALL UINT64_C(1024)

enum { COVERING = 7 }; /* selectors that see all tokens */

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static struct tdm_steps run(const struct tdm_schedule *schedule, const struct tdm_step_data *data,
                            uint64_t seed)
{
    struct tdm_steps steps;
    struct tdm_error err;
    must(tdm_schedule_check(schedule, "selectors", &err), &err);
    must(tdm_steps_run(schedule, &tdm_cpu_backend, data, seed, true, &steps, &err), &err);
    return steps;
}

/* Runs a schedule with a selector. Returns whether the results are those of `due`. */
static bool is_same(struct tdm_schedule *schedule, const struct tdm_selector *selector,
                    const struct tdm_step_data *data, uint64_t seed, const struct tdm_steps *due)
{
    char text[768];
    schedule->selector = *selector;
    struct tdm_steps steps = run(schedule, data, seed);
    bool same = tdm_steps_same(&steps, due);
    if (!same) {
        fprintf(stderr, "seed %llu: selector %d is not the same: %s\n", (unsigned long long)seed,
                (int)selector->kind, tdm_schedule_describe(schedule, text, sizeof(text)));
        tdm_case_again("executor/property_selectors", seed);
    }
    tdm_steps_free(&steps);
    return same;
}

static struct tdm_schedule *draw(uint64_t seed)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS, .max_tokens = 90};
    struct tdm_schedule *schedule;
    struct tdm_error err;
    must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
    schedule->selector = (struct tdm_selector){0};
    return schedule;
}

/* Adds to *listed the comparisons whose attention uses page lists. */
static bool all_is_seen(uint64_t seed, uint64_t *listed)
{
    struct tdm_schedule *schedule = draw(seed);
    uint64_t page = schedule->page_tokens, pages = ALL / page + 1;
    const struct tdm_selector covering[COVERING] = {
        {.kind = TDM_SELECT_WINDOW, .window = ALL},
        {.kind = TDM_SELECT_BLOCK, .block = ALL},
        {.kind = TDM_SELECT_LONGFORMER, .window = ALL, .global = 1},
        {.kind = TDM_SELECT_LONGFORMER, .window = 1, .global = ALL},
        {.kind = TDM_SELECT_BIGBIRD, .window = ALL, .global = 3, .random = 2, .seed = seed},
        {.kind = TDM_SELECT_DILATED, .window = pages * page, .dilation = 1},
        {.kind = TDM_SELECT_TOP_K, .budget = pages * page},
    };
    struct tdm_step_data data;
    assert_true(tdm_step_data_draw(&data, schedule, seed));
    struct tdm_steps dense = run(schedule, &data, seed);
    bool same = true;
    for (int i = 0; i < COVERING; i++) {
        /* Pages begin anew with every chunk, so a context may have many more of them. */
        struct tdm_selector selector = covering[i];
        if (selector.kind == TDM_SELECT_DILATED || selector.kind == TDM_SELECT_TOP_K)
            selector.window *= ALL, selector.budget *= ALL;
        same = is_same(schedule, &selector, &data, seed, &dense) && same;
        *listed += tdm_schedule_lists(schedule) != TDM_SELECT_DENSE;
    }
    tdm_steps_free(&dense);
    tdm_step_data_free(&data);
    tdm_schedule_free(schedule);
    return same;
}

/* Tokens of the longest document. */
static uint64_t longest_document(const struct tdm_schedule *schedule)
{
    uint64_t longest = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        for (uint32_t d = 0; d < schedule->sequences[s].document_count; d++) {
            uint64_t start = d == 0 ? 0 : tdm_document_end(&schedule->sequences[s], d - 1);
            uint64_t tokens = tdm_document_end(&schedule->sequences[s], d) - start;
            longest = tokens > longest ? tokens : longest;
        }
    return longest;
}

/* Adds 1 to *cuts if the window hides a token from another. */
static bool windows_are_windows(uint64_t seed, uint64_t *cuts)
{
    struct tdm_schedule *schedule = draw(seed);
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed);
    const struct tdm_selector window = {.kind = TDM_SELECT_WINDOW,
                                        .window = tdm_dice_roll(&dice, 1, 90)};
    *cuts += window.window < longest_document(schedule);
    struct tdm_step_data data;
    assert_true(tdm_step_data_draw(&data, schedule, seed));
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
        schedule->model->layer_kinds[layer].window = window.window;
    struct tdm_steps by_model = run(schedule, &data, seed);
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
        schedule->model->layer_kinds[layer].window = 0;
    bool same = is_same(schedule, &window, &data, seed, &by_model);
    tdm_steps_free(&by_model);
    tdm_step_data_free(&data);
    tdm_schedule_free(schedule);
    return same;
}

static void selectors_that_see_all_are_dense(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(12, 60), failed = 0, listed = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !all_is_seen(tdm_case_seed(BASE_SEED, i), &listed);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("comparisons with dense attention went by lists", listed,
                                cases * COVERING, 0.3));
}

static void a_window_is_a_window(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(12, 100), failed = 0, cuts = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !windows_are_windows(tdm_case_seed(BASE_SEED, i), &cuts);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("windows were shorter than a document", cuts, cases, 0.1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selectors_that_see_all_are_dense),
        cmocka_unit_test(a_window_is_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
