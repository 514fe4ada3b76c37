/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of attention that gathers pages from the host. */
#include "tests/support/gather_cases.h"

#include "schedule/gather.h"
#include "schedule/optimizer.h"
#include "schedule/params.h"
#include "schedule/schedule_check.h"
#include "tests/support/backend_cases.h"
#include "tests/support/random_schedule.h"
#include "tests/support/run_steps.h"

#include <math.h>
#include <string.h>

static void roll_selector(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    do {
        schedule->selector = (struct tdm_selector){0};
        tdm_random_selector(dice, schedule);
    } while (!tdm_selector_lists(schedule->selector.kind));
}

/* Short chunks of a few pages, K and V mostly on the host. */
static void roll_places(struct tdm_dice *dice, uint64_t page_tokens, struct tdm_schedule *schedule)
{
    schedule->page_tokens = page_tokens;
    schedule->chunk_tokens = page_tokens * tdm_dice_roll(dice, 1, 4);
    tdm_schedule_set_order(schedule, TDM_CHUNK_MAJOR);
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        struct tdm_group *group = &schedule->groups[i];
        group->held_place = TDM_DEVICE;
        group->held_device_chunks = 0;
        group->kv_place = tdm_dice_chance(dice, 85) ? TDM_HOST : TDM_DEVICE;
        group->kv_gradients_place = tdm_dice_chance(dice, 60) ? TDM_HOST : TDM_DEVICE;
    }
    roll_selector(dice, schedule);
}

/* One long sequence, in half of the cases divided into documents. */
static enum tdm_status cut_large(struct tdm_dice *dice, struct tdm_schedule *schedule,
                                 struct tdm_error *err)
{
    uint64_t tokens = tdm_dice_roll(dice, 600, 1600);
    enum tdm_status status = tdm_schedule_set_sequences(schedule, 1, tokens, err);
    if (status == TDM_OK && tdm_dice_chance(dice, 50))
        status = tdm_sequence_divide(&schedule->sequences[0], "large",
                                     tdm_dice_roll(dice, 100, tokens), err);
    return status;
}

enum tdm_status tdm_gather_case(uint64_t seed, bool large, struct tdm_schedule **out,
                                struct tdm_error *err)
{
    static const uint64_t pages[] = {128, 128, 128, 64, 32, 256};
    const struct tdm_random_options options = {
        .dtypes = TDM_RANDOM_FP32, .optimizer = TDM_RANDOM_NO_OPTIMIZER, .max_tokens = 96};
    struct tdm_schedule *schedule;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed ^ 0x6a7e);
    enum tdm_status status = large ? tdm_backend_case(TDM_CASE_LARGE, seed, &schedule, err)
                                   : tdm_random_schedule(seed, &options, &schedule, err);
    if (status != TDM_OK)
        return status;
    if (large) {
        tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_NONE);
        status = cut_large(&dice, schedule, err);
    }
    roll_places(&dice, large ? pages[tdm_dice_roll(&dice, 0, 5)] : tdm_dice_roll(&dice, 1, 5),
                schedule);
    if (large && tdm_dice_chance(&dice, 50))
        schedule->dtypes.kv_gradients = TDM_DTYPE_BF16;
    schedule->rings.gather = 0;
    if (status != TDM_OK) {
        tdm_schedule_free(schedule);
        return status;
    }
    *out = schedule;
    return TDM_OK;
}

static enum tdm_status run(struct tdm_schedule *schedule, uint32_t gather,
                           const struct tdm_backend *backend, const struct tdm_step_data *data,
                           uint64_t seed, struct tdm_steps *steps, struct tdm_error *err)
{
    schedule->rings.gather = gather;
    enum tdm_status status = tdm_schedule_check(schedule, "gather", err);
    return status == TDM_OK ? tdm_steps_run(schedule, backend, data, seed, true, steps, err)
                            : status;
}

static uint32_t least_gather(struct tdm_schedule *schedule)
{
    struct tdm_error err;
    for (uint32_t gather = 1;; gather++) {
        schedule->rings.gather = gather;
        if (tdm_gather_check(schedule, "gather", &err) == TDM_OK)
            return gather;
    }
}

static void compare(const struct tdm_steps *least, const struct tdm_steps *due,
                    struct tdm_gather_outcome *outcome)
{
    double error = 0, size = 0;
    const float *values = tdm_steps_values(least, 0, TDM_LEFT_VALUES);
    const float *due_values = tdm_steps_values(due, 0, TDM_LEFT_VALUES);
    outcome->same_losses = memcmp(least->losses, due->losses, due->steps * sizeof(double)) == 0;
    for (size_t i = 0; i < due->count; i++) {
        double difference = (double)values[i] - (double)due_values[i];
        error += difference * difference;
        size += (double)due_values[i] * (double)due_values[i];
    }
    outcome->error = error == 0 ? 0 : sqrt(error / size);
}

enum tdm_status tdm_gather_compare(struct tdm_schedule *schedule, const struct tdm_backend *backend,
                                   uint64_t seed, struct tdm_gather_outcome *outcome,
                                   struct tdm_error *err)
{
    struct tdm_steps whole = {0}, all = {0}, least = {0};
    struct tdm_step_data data;
    *outcome = (struct tdm_gather_outcome){0};
    if (!tdm_step_data_draw(&data, schedule, seed))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for weights");
    enum tdm_status status = run(schedule, 0, backend, &data, seed, &whole, err);
    if (status == TDM_OK)
        status = run(schedule, TDM_MAX_GATHER, backend, &data, seed, &all, err);
    if (status == TDM_OK)
        status = run(schedule, least_gather(schedule), backend, &data, seed, &least, err);
    if (status == TDM_OK) {
        outcome->same = tdm_steps_same(&whole, &all);
        outcome->gathered = tdm_gathers_at_all(schedule);
        struct tdm_params params;
        tdm_params_fill(schedule, &params);
        outcome->batched =
            outcome->gathered && tdm_gather_batches(&params, schedule->chunk_tokens) > 1;
        compare(&least, &whole, outcome);
    }
    tdm_steps_free(&whole);
    tdm_steps_free(&all);
    tdm_steps_free(&least);
    tdm_step_data_free(&data);
    return status;
}
