/* SPDX-License-Identifier: Apache-2.0 */
/* Draws random settings that fit, plans and executes them. */
#include "tests/support/plan_cases.h"

#include "planner/candidates.h"
#include "schedule/optimizer.h"
#include "tests/support/backend_cases.h"
#include "tests/support/random_schedule.h"
#include "tests/support/run_steps.h"

#include <math.h>
#include <string.h>

#define AMPLE (UINT64_C(1) << 40)
#define DRIVER_BOUND (UINT64_C(1) << 26)

/* The current case. */
struct setting {
    uint64_t seed;
    struct tdm_dice dice;
    struct tdm_schedule *drawn; /* with a random nest */
    struct tdm_schedule *plan;  /* the same step, to be planned */
    struct tdm_pins pins;
};

/* At the rates of a large card, small models are dominated by launches. With these rates compute,
 * memory and links matter in many proportions. */
static void draw_rates(struct tdm_dice *dice, struct tdm_machine *machine)
{
    machine->launch_seconds = 1e-9;
    machine->copy_seconds = 1e-9;
    for (int rate = 0; rate < TDM_RATES; rate++) {
        struct tdm_rate_table *table = &machine->table[rate];
        double factor = pow(10, (double)tdm_dice_roll(dice, 0, 300) / 100 - 1.5);
        if (tdm_rate_is_share((enum tdm_rate)rate))
            continue;
        machine->rate[rate] *= factor;
        for (uint32_t i = 0; i < table->count; i++)
            table->rate[i] *= factor;
    }
    double one_way = fmin(machine->rate[TDM_RATE_H2D], machine->rate[TDM_RATE_D2H]);
    machine->rate[TDM_RATE_BOTH_WAYS] = one_way * (1 + (double)tdm_dice_roll(dice, 0, 100) / 100);
    tdm_machine_set_links(machine);
}

static void draw_pins(struct setting *s)
{
    /* small contexts have few chunks unless chunks are pinned */
    if (tdm_dice_chance(&s->dice, 75)) {
        s->pins.chunk_tokens = s->plan->chunk_tokens;
        s->pins.head_tile_tokens = s->plan->head_tile_tokens;
    }
    if (tdm_dice_chance(&s->dice, 20)) {
        s->pins.has_order = true;
        s->pins.order = s->drawn->order;
    }
}

static enum tdm_status draw_setting(uint64_t seed, struct setting *s, struct tdm_error *err)
{
    *s = (struct setting){.seed = seed};
    tdm_dice_seed(&s->dice, seed ^ 0x91a7);
    enum tdm_status status = tdm_backend_case(tdm_case_of(seed), seed, &s->drawn, err);
    if (status == TDM_OK)
        status = tdm_random_variant(s->drawn, seed, &s->plan, err);
    if (status != TDM_OK)
        return status;
    draw_rates(&s->dice, s->plan->machine);
    /* homes of state are as drawn, or searched */
    bool as_drawn = tdm_dice_chance(&s->dice, 30);
    for (int state = 0; state < TDM_STATES; state++)
        s->pins.has_home[state] = as_drawn;
    draw_pins(s);
    return TDM_OK;
}

static void free_setting(struct setting *s)
{
    tdm_pins_free(&s->pins);
    tdm_schedule_free(s->plan);
    tdm_schedule_free(s->drawn);
}

/* A limit between the least that fits and what an ample plan uses, often close to the least. */
static uint64_t draw_limit(struct tdm_dice *dice, uint64_t least, uint64_t ample)
{
    uint64_t spare = ample > least ? ample - least : 0;
    if (tdm_dice_chance(dice, 25))
        return least;
    return least + tdm_dice_roll(dice, 0, tdm_dice_chance(dice, 50) ? spare : spare / 8);
}

/* Draws limits that some schedule is known to fit. */
static enum tdm_status draw_limits(struct setting *s, struct tdm_plan_outcome *outcome,
                                   struct tdm_error *err)
{
    uint64_t *least = outcome->least_bytes, *limit = outcome->limit_bytes;
    struct tdm_search ample = {0};
    s->plan->memory_bytes = s->plan->host_memory_bytes = AMPLE;
    enum tdm_status status = tdm_candidates_search(s->plan, &s->pins, &ample, err);
    if (status == TDM_OK)
        status = tdm_candidates_least(s->plan, &s->pins, TDM_DEVICE, &least[TDM_DEVICE], err);
    if (status != TDM_OK)
        return status;
    const uint64_t *used = ample.simulation.used_peak_bytes;
    limit[TDM_DEVICE] = draw_limit(&s->dice, least[TDM_DEVICE], used[TDM_DEVICE]);
    s->plan->memory_bytes = limit[TDM_DEVICE];
    status = tdm_candidates_least(s->plan, &s->pins, TDM_HOST, &least[TDM_HOST], err);
    if (status != TDM_OK)
        return status;
    uint64_t much = 2 * least[TDM_HOST] + used[TDM_DEVICE] - least[TDM_DEVICE] + used[TDM_HOST];
    limit[TDM_HOST] = draw_limit(&s->dice, least[TDM_HOST], much);
    s->plan->host_memory_bytes = limit[TDM_HOST];
    return TDM_OK;
}

static enum tdm_status find_plan(struct setting *s, struct tdm_plan_outcome *outcome,
                                 struct tdm_error *err)
{
    struct tdm_search search = {0};
    enum tdm_status status = draw_limits(s, outcome, err);
    if (status != TDM_OK)
        return status;
    status = tdm_candidates_search(s->plan, &s->pins, &search, err);
    if (status == TDM_INFEASIBLE)
        return tdm_fail(err, TDM_INTERNAL, "a setting that fits was refused");
    if (status != TDM_OK)
        return status;
    tdm_schedule_describe(s->plan, outcome->text, sizeof(outcome->text));
    outcome->offloads = search.simulation.arena_bytes[TDM_HOST] > 0;
    for (int place = 0; place < TDM_PLACES; place++) {
        outcome->planned_bytes[place] = search.simulation.used_peak_bytes[place];
        if (outcome->planned_bytes[place] > outcome->limit_bytes[place])
            return tdm_fail(err, TDM_INTERNAL, "the plan takes more of the %s than it may",
                            tdm_place_name(&s->plan->machine->topology, (enum tdm_place)place));
    }
    return TDM_OK;
}

/* Runs steps in arenas of the planned size. Touching more is an error. */
static enum tdm_status run(const struct setting *s, const struct tdm_backend *backend,
                           const struct tdm_step_data *data, struct tdm_steps *steps,
                           struct tdm_plan_outcome *outcome, struct tdm_error *err)
{
    enum tdm_status status = tdm_steps_run(s->plan, backend, data, s->seed, false, steps, err);
    uint64_t planned = outcome->planned_bytes[TDM_DEVICE];
    outcome->used_bytes = steps->used_bytes;
    if (status == TDM_OK && steps->used_bytes > planned + DRIVER_BOUND)
        status = tdm_fail(err, TDM_INTERNAL, "the driver reports %llu bytes, %llu are planned",
                          (unsigned long long)steps->used_bytes, (unsigned long long)planned);
    for (uint32_t i = 0; i < steps->steps && status == TDM_OK; i++)
        if (!isfinite(steps->losses[i]))
            status =
                tdm_fail(err, TDM_INTERNAL, "the loss of step %u is %g", i + 1, steps->losses[i]);
    return status;
}

/* The random nest has the same chunks, and results do not depend on the nest. */
static enum tdm_status compare(const struct setting *s, const struct tdm_backend *backend,
                               const struct tdm_step_data *data, const struct tdm_steps *steps,
                               struct tdm_error *err)
{
    struct tdm_steps other;
    enum tdm_status status = tdm_steps_run(s->drawn, backend, data, s->seed, false, &other, err);
    if (status == TDM_OK && !tdm_steps_same(steps, &other))
        status = tdm_fail(err, TDM_INTERNAL, "another nest leaves other bits than the plan");
    tdm_steps_free(&other);
    return status;
}

enum tdm_status tdm_plan_case_run(uint64_t seed, const struct tdm_backend *backend,
                                  struct tdm_plan_outcome *outcome, struct tdm_error *err)
{
    struct setting s;
    struct tdm_step_data data = {0};
    struct tdm_steps steps = {0};
    *outcome = (struct tdm_plan_outcome){0};
    enum tdm_status status = draw_setting(seed, &s, err);
    if (status == TDM_OK)
        status = find_plan(&s, outcome, err);
    if (status == TDM_OK && !tdm_step_data_draw(&data, s.plan, seed))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for weights and tokens");
    if (status == TDM_OK)
        status = run(&s, backend, &data, &steps, outcome, err);
    bool same_chunks = s.pins.chunk_tokens != 0 && s.plan != NULL &&
                       s.plan->head_tile_tokens == s.drawn->head_tile_tokens;
    outcome->compared = status == TDM_OK && same_chunks && seed % 4 == 0;
    if (outcome->compared)
        status = compare(&s, backend, &data, &steps, err);
    tdm_steps_free(&steps);
    tdm_step_data_free(&data);
    free_setting(&s);
    return status;
}
