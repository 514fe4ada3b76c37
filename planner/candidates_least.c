/* SPDX-License-Identifier: Apache-2.0 */
/* The least memory of a place for which some schedule fits. */
#include "planner/candidates_parts.h"

#include "planner/team_least.h"
#include "schedule/program.h"

#include <string.h>

/* When the minimum memory is sought, estimates this close to the minimum are not lowered. */
#define NEAR 0.9995

/* Finds the minimum of `place` with updates at run->on; lowers *least. It ends as soon as it is
 * known whether the minimum is at most `enough`. Schedules of a chunk size and an order take about
 * as much more of the other place than estimated: where they exceed its limit, others are not
 * lowered that would do so by half the least excess seen. */
static enum tdm_status find_least(struct tdm_candidates *run, enum tdm_place place, bool estimated,
                                  uint64_t enough, uint64_t *least, struct tdm_error *err)
{
    if (*least <= enough)
        return TDM_OK;
    const enum tdm_place other = tdm_other_place(run->space.schedule, place);
    const uint64_t limit_bytes = run->limit_bytes[other];
    uint64_t excess_bytes[TDM_BASES][TDM_ORDERS] = {{0}}; /* the least so far */
    run->queue.count = 0;
    enum tdm_status status = tdm_candidates_enumerate(run, err);
    if (estimated && run->queue.count > 0 && run->queue.recipes[0].bytes[place] < *least)
        *least = run->queue.recipes[0].bytes[place];
    while (status == TDM_OK && !estimated && run->queue.count > 0) {
        struct tdm_recipe recipe = tdm_candidates_pop(&run->queue);
        bool hopeless =
            enough > 0 && recipe.bytes[place] > enough; /* estimates are never too high */
        if (hopeless || *least <= enough || (double)recipe.bytes[place] >= NEAR * (double)*least)
            break;
        uint64_t *excess = &excess_bytes[recipe.size][recipe.order];
        if (recipe.bytes[other] + *excess / 2 > limit_bytes)
            continue;
        struct tdm_program *program;
        uint64_t used_bytes[TDM_MAX_PLACES];
        tdm_recipe_write(&run->space, &recipe);
        status = tdm_candidates_lower(run, false, &program, used_bytes, err);
        if (status != TDM_OK)
            break;
        tdm_program_free(program);
        if (used_bytes[other] > limit_bytes) {
            const uint64_t by = used_bytes[other] - recipe.bytes[other]; /* never too high */
            *excess = *excess == 0 || by < *excess ? by : *excess;
        } else if (used_bytes[place] < *least)
            *least = used_bytes[place];
    }
    return status;
}

/* tdm_team_least(), with the schedule's choices as they were, but for its nest. */
static enum tdm_status least_of_team(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t enough, uint64_t *bytes,
                                     struct tdm_error *err)
{
    struct tdm_home homes[TDM_STATES];
    const struct tdm_rings rings = schedule->rings;
    const enum tdm_place on = schedule->optimizer.on;
    const enum tdm_exchange_kind exchange = schedule->exchange;
    const uint32_t head_ranks = schedule->head_ranks;
    const bool sliced_weights = schedule->sliced_weights;
    memcpy(homes, schedule->homes, sizeof(homes));
    enum tdm_status status = tdm_team_least(schedule, pins, place, enough, bytes, err);
    memcpy(schedule->homes, homes, sizeof(homes));
    schedule->rings = rings;
    schedule->optimizer.on = on;
    schedule->exchange = exchange;
    schedule->head_ranks = head_ranks;
    schedule->sliced_weights = sliced_weights;
    return status;
}

/* Tries state where the user put it, then streamed from the host, then updated on the host. */
static enum tdm_status least_anywhere(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      enum tdm_place place, bool estimated, uint64_t enough,
                                      uint64_t *bytes, struct tdm_error *err)
{
    struct tdm_home homes[TDM_STATES];
    uint64_t least = TDM_SIZE_MAX;
    if (schedule->ranks > 1)
        return least_of_team(schedule, pins, place, enough, bytes, err);
    enum tdm_status status = tdm_candidates_forget_homes(schedule, pins, err);
    if (status != TDM_OK)
        return status;
    const enum tdm_place asked_on = schedule->optimizer.on;
    bool trains = schedule->pass == TDM_TRAIN;
    memcpy(homes, schedule->homes, sizeof(homes));
    uint64_t limit_bytes[TDM_MAX_PLACES];
    tdm_place_limits(schedule, limit_bytes);
    limit_bytes[place] = TDM_SIZE_MAX;
    struct tdm_candidates run;
    status = tdm_candidates_open(schedule, pins, limit_bytes, (int)place, &run, err);
    run.on = asked_on;
    if (status == TDM_OK)
        status = find_least(&run, place, estimated, enough, &least, err);
    if (status == TDM_OK && trains && !tdm_is_far(asked_on)) {
        tdm_search_space_stream_state(&run.space);
        status = find_least(&run, place, estimated, enough, &least, err);
    }
    if (status == TDM_OK && trains && !tdm_is_far(asked_on) && !pins->has_update_place) {
        run.on = tdm_far_place(schedule);
        status = find_least(&run, place, estimated, enough, &least, err);
    }
    tdm_candidates_close(&run);
    memcpy(schedule->homes, homes, sizeof(homes));
    schedule->optimizer.on = asked_on;
    if (status != TDM_OK)
        return status;
    if (least == TDM_SIZE_MAX)
        return tdm_fail(
            err, TDM_INFEASIBLE, "no schedule fits the memory of the %s",
            tdm_place_name(&schedule->machine->topology, tdm_other_place(schedule, place)));
    *bytes = least;
    return TDM_OK;
}

enum tdm_status tdm_candidates_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t *bytes, struct tdm_error *err)
{
    return least_anywhere(schedule, pins, place, false, 0, bytes, err);
}

enum tdm_status tdm_candidates_enough(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      enum tdm_place place, uint64_t enough, bool *is_enough,
                                      struct tdm_error *err)
{
    uint64_t bytes = TDM_SIZE_MAX;
    enum tdm_status status = least_anywhere(schedule, pins, place, false, enough, &bytes, err);
    *is_enough = status == TDM_OK && bytes <= enough;
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

enum tdm_status tdm_candidates_least_estimate(struct tdm_schedule *schedule,
                                              const struct tdm_pins *pins, enum tdm_place place,
                                              uint64_t *bytes, struct tdm_error *err)
{
    return least_anywhere(schedule, pins, place, true, 0, bytes, err);
}

/* ---- what no schedule is below ---- */

/* Lowers *least to the bounds of all orders and chunk sizes with updates at run->on. */
static enum tdm_status prove_least(struct tdm_candidates *run, enum tdm_place place,
                                   uint64_t *least, struct tdm_error *err)
{
    const struct tdm_search_space *space = &run->space;
    enum tdm_status status = TDM_OK;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < space->size_count && status == TDM_OK; size++) {
            bool fixed[TDM_STATES];
            uint64_t bytes = 0;
            if (!tdm_candidates_is_due(run, size) || !tdm_candidates_may_have(run, order))
                continue;
            tdm_candidates_fixed_homes(run, size, fixed);
            status = tdm_relaxation_least(space->estimators[size], (enum tdm_order)order,
                                          run->limit_bytes, fixed, tdm_candidates_pinned_list(run),
                                          place, *least, &bytes, err);
            if (status == TDM_INTERNAL) { /* too large for the solver */
                bytes = 0;
                status = TDM_OK;
            }
            *least = bytes < *least ? bytes : *least;
        }
    return status;
}

enum tdm_status tdm_candidates_least_proved(struct tdm_schedule *schedule,
                                            const struct tdm_pins *pins, enum tdm_place place,
                                            uint64_t *bytes, struct tdm_error *err)
{
    struct tdm_home homes[TDM_STATES];
    const struct tdm_rings rings = schedule->rings;
    const enum tdm_place asked_on = schedule->optimizer.on;
    uint64_t limit_bytes[TDM_MAX_PLACES], least = TDM_SIZE_MAX;
    struct tdm_candidates run;
    *bytes = 0;
    if (schedule->pass != TDM_TRAIN || schedule->ranks > 1)
        return TDM_OK;
    memcpy(homes, schedule->homes, sizeof(homes));
    enum tdm_status status = tdm_candidates_forget_homes(schedule, pins, err);
    if (status != TDM_OK)
        return status;
    tdm_place_limits(schedule, limit_bytes);
    status = tdm_candidates_open(schedule, pins, limit_bytes, (int)TDM_MAX_PLACES, &run, err);
    for (int i = 0; i < TDM_PLANNED_PLACES && status == TDM_OK; i++) {
        run.on = tdm_planned_place(schedule, i);
        if (!pins->has_update_place || run.on == schedule->optimizer.on)
            status = prove_least(&run, place, &least, err);
    }
    tdm_candidates_close(&run);
    memcpy(schedule->homes, homes, sizeof(homes));
    schedule->rings = rings;
    schedule->optimizer.on = asked_on;
    if (status == TDM_OK && least < TDM_SIZE_MAX)
        *bytes = least;
    return status;
}
