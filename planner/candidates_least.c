/* SPDX-License-Identifier: Apache-2.0 */
/* The least memory of a place for which some schedule fits. */
#include "planner/candidates_parts.h"

#include "base/size.h"
#include "planner/team_least.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"

#include <stdlib.h>
#include <string.h>

/* When the minimum memory is sought, estimates this close to the minimum are not lowered. */
#define NEAR 0.9995

/* The bytes that a schedule uses, from lowering it without its ops. Where `place` takes no less
 * than `least`, how much more it takes is not found out. */
static enum tdm_status measure(const struct tdm_schedule *schedule, enum tdm_place place,
                               uint64_t least, uint64_t used_bytes[TDM_MAX_PLACES],
                               struct tdm_error *err)
{
    const struct tdm_topology *topology = &schedule->machine->topology;
    uint64_t below_bytes[TDM_MAX_PLACES];
    for (uint32_t other = 0; other < TDM_MAX_PLACES; other++)
        below_bytes[other] = TDM_SIZE_MAX;
    below_bytes[place] = least - tdm_least(topology->places[place].runtime_bytes, least);
    enum tdm_status status = tdm_schedule_check(schedule, "plan", err);
    if (status == TDM_OK)
        status = tdm_program_measure(schedule, below_bytes, used_bytes, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t i = 0; i < topology->place_count; i++)
        used_bytes[i] = tdm_size_add(used_bytes[i], topology->places[i].runtime_bytes);
    return TDM_OK;
}

struct least_estimate {
    const struct tdm_candidates *run;
    enum tdm_place place;
    uint64_t bytes; /* the least so far */
};

static bool note_estimate(void *self, const struct tdm_recipe *offered)
{
    struct least_estimate *least = self;
    struct tdm_recipe recipe = *offered;
    if (tdm_recipe_estimate(&least->run->space, &recipe, least->run->limit_bytes))
        least->bytes = tdm_least(least->bytes, recipe.bytes[least->place]);
    return true;
}

/* Finds the least estimate of `place` with updates at run->on; lowers *least. */
static void find_least_estimate(const struct tdm_candidates *run, enum tdm_place place,
                                uint64_t *least)
{
    struct least_estimate found = {run, place, *least};
    tdm_recipes_enumerate(&run->space, run->on, note_estimate, &found);
    *least = found.bytes;
}

/* Finds the minimum of `place` with updates at run->on; lowers *least. It ends as soon as it is
 * known whether the minimum is at most `enough`. Schedules of a chunk size and an order take about
 * as much more of the other place than estimated: where n of them exceeded its limit, others are
 * not lowered that would do so by 1 - 2^-n of the least excess seen. */
static enum tdm_status find_least(struct tdm_candidates *run, enum tdm_place place, bool estimated,
                                  uint64_t enough, uint64_t *least, struct tdm_error *err)
{
    if (estimated)
        find_least_estimate(run, place, least);
    if (estimated || *least <= enough)
        return TDM_OK;
    const enum tdm_place other = tdm_other_place(run->space.schedule, place);
    const uint64_t limit_bytes = run->limit_bytes[other];
    struct {
        uint64_t bytes; /* the least so far */
        uint32_t seen;
    } excesses[TDM_BASES][TDM_ORDERS] = {{{0}}}, *excess;
    enum tdm_status status = tdm_candidates_enumerate(run, err);
    for (const struct tdm_recipe *first = tdm_candidates_first(&run->queue);
         status == TDM_OK && first != NULL; first = tdm_candidates_first(&run->queue)) {
        const struct tdm_recipe recipe = *first;
        run->queue.count--;
        bool hopeless =
            enough > 0 && recipe.bytes[place] > enough; /* estimates are never too high */
        if (hopeless || *least <= enough || (double)recipe.bytes[place] >= NEAR * (double)*least)
            break;
        excess = &excesses[recipe.size][recipe.order];
        if (recipe.bytes[other] + excess->bytes - (excess->bytes >> excess->seen) > limit_bytes)
            continue;
        uint64_t used_bytes[TDM_MAX_PLACES];
        tdm_recipe_write(&run->space, &recipe);
        status = measure(run->space.schedule, place, *least, used_bytes, err);
        if (status != TDM_OK)
            break;
        if (used_bytes[other] > limit_bytes) {
            const uint64_t by = used_bytes[other] - recipe.bytes[other]; /* never too high */
            excess->bytes = excess->seen == 0 || by < excess->bytes ? by : excess->bytes;
            excess->seen += excess->seen < 63;
        } else if (used_bytes[place] < *least)
            *least = used_bytes[place];
    }
    return status;
}

/* tdm_team_least(), with the schedule's choices as they were, but for its nest. `tried`: not NULL,
 * tdm_team_least_alike(). */
static enum tdm_status least_of_team(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t enough,
                                     struct tdm_team_memo *memo, bool *tried, uint64_t *bytes,
                                     struct tdm_error *err)
{
    struct tdm_home homes[TDM_STATES];
    const struct tdm_rings rings = schedule->rings;
    const enum tdm_place on = schedule->optimizer.on;
    const enum tdm_exchange_kind exchange = schedule->exchange;
    const uint32_t head_ranks = schedule->head_ranks;
    const bool sliced_weights = schedule->sliced_weights;
    memcpy(homes, schedule->homes, sizeof(homes));
    enum tdm_status status =
        tried == NULL
            ? tdm_team_least(schedule, pins, place, enough, memo, bytes, err)
            : tdm_team_least_alike(schedule, pins, place, enough, memo, tried, bytes, err);
    memcpy(schedule->homes, homes, sizeof(homes));
    schedule->rings = rings;
    schedule->optimizer.on = on;
    schedule->exchange = exchange;
    schedule->head_ranks = head_ranks;
    schedule->sliced_weights = sliced_weights;
    if (status == TDM_INFEASIBLE)
        *bytes = 0;
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

/* Tries state where the user put it, then streamed from the host, then updated on the host. */
static enum tdm_status least_anywhere(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      enum tdm_place place, bool estimated, uint64_t enough,
                                      uint64_t *bytes, struct tdm_error *err)
{
    const bool streams = schedule->pass == TDM_TRAIN;
    uint64_t least = TDM_SIZE_MAX;
    struct tdm_team_memo memo;
    if (schedule->ranks > 1)
        return least_of_team(schedule, pins, place, enough, &memo, NULL, bytes, err);
    struct tdm_candidates run;
    enum tdm_status status = tdm_candidates_open(schedule, pins, (int)place, &run, err);
    if (status == TDM_OK)
        status = find_least(&run, place, estimated, enough, &least, err);
    if (status == TDM_OK && streams && !tdm_is_far(run.asked.on)) {
        tdm_search_space_stream_state(&run.space);
        status = find_least(&run, place, estimated, enough, &least, err);
    }
    if (status == TDM_OK && streams && !tdm_is_far(run.asked.on) && !pins->has_update_place) {
        run.on = tdm_far_place(schedule);
        status = find_least(&run, place, estimated, enough, &least, err);
    }
    tdm_candidates_close(&run);
    tdm_candidates_restore(&run, schedule);
    *bytes = status == TDM_OK && least < TDM_SIZE_MAX ? least : 0;
    return status == TDM_INFEASIBLE ? TDM_OK : status;
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
    uint64_t bytes = 0;
    enum tdm_status status = least_anywhere(schedule, pins, place, false, enough, &bytes, err);
    *is_enough = bytes > 0 && bytes <= enough;
    return status;
}

enum tdm_status tdm_candidates_enough_of_team(struct tdm_schedule *schedule,
                                              const struct tdm_pins *pins, uint64_t enough,
                                              bool doubts, struct tdm_team_memo *memo,
                                              bool *is_enough, struct tdm_error *err)
{
    uint64_t bytes = 0;
    bool tried = false;
    enum tdm_status status = TDM_OK;
    if (doubts)
        status = least_of_team(schedule, pins, TDM_DEVICE, enough, memo, &tried, &bytes, err);
    if (status == TDM_OK && !tried)
        status = least_of_team(schedule, pins, TDM_DEVICE, enough, memo, NULL, &bytes, err);
    *is_enough = bytes > 0 && bytes <= enough;
    return status;
}

enum tdm_status tdm_candidates_least_estimate(struct tdm_schedule *schedule,
                                              const struct tdm_pins *pins, enum tdm_place place,
                                              uint64_t *bytes, struct tdm_error *err)
{
    return least_anywhere(schedule, pins, place, true, 0, bytes, err);
}

/* ---- what no schedule is below ---- */

/* Lowers *least to the bounds of all orders and chunk sizes with updates at run->on. It ends as
 * soon as *least is below `asked`. `prices`: NULL, or those of each order. */
static enum tdm_status prove_least(struct tdm_candidates *run, enum tdm_place place, uint64_t asked,
                                   struct tdm_prices *prices, uint64_t *least,
                                   struct tdm_error *err)
{
    const struct tdm_search_space *space = &run->space;
    enum tdm_status status = TDM_OK;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < space->size_count && status == TDM_OK && *least >= asked;
             size++) {
            bool fixed[TDM_STATES];
            uint64_t bytes = 0;
            if (!tdm_candidates_is_due(run, size) || !tdm_candidates_may_have(run, order))
                continue;
            tdm_candidates_program_homes(run, size, fixed);
            status = tdm_relaxation_least(space->estimators[size], (enum tdm_order)order,
                                          run->limit_bytes, fixed, tdm_candidates_pinned_list(run),
                                          place, *least, prices == NULL ? NULL : &prices[order],
                                          &bytes, err);
            if (status == TDM_INTERNAL) { /* too large for the solver */
                bytes = 0;
                status = TDM_OK;
            }
            *least = bytes < *least ? bytes : *least;
        }
    return status;
}

/* The same of all that a request allows. If something is asked for, estimators time nothing, which
 * changes no bytes, and the prices of one program may prove it for the others. */
static enum tdm_status prove_anywhere(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      enum tdm_place place, uint64_t asked, uint64_t *least,
                                      struct tdm_error *err)
{
    struct tdm_candidates run;
    struct tdm_prices prices[TDM_ORDERS] = {{.of_rows = NULL}};
    const int timed = (int)TDM_MAX_PLACES;
    enum tdm_status status =
        tdm_candidates_open(schedule, pins, asked > 0 ? (int)place : timed, &run, err);
    for (int i = 0; i < TDM_PLANNED_PLACES && status == TDM_OK; i++) {
        run.on = tdm_planned_place(schedule, i);
        if (!pins->has_update_place || run.on == schedule->optimizer.on)
            status = prove_least(&run, place, asked, asked > 0 ? prices : NULL, least, err);
    }
    for (int order = 0; order < TDM_ORDERS; order++)
        free(prices[order].of_rows);
    tdm_candidates_close(&run);
    tdm_candidates_restore(&run, schedule);
    return status;
}

static bool can_prove(const struct tdm_schedule *schedule)
{
    return schedule->pass == TDM_TRAIN && schedule->ranks == 1;
}

enum tdm_status tdm_candidates_least_proved(struct tdm_schedule *schedule,
                                            const struct tdm_pins *pins, enum tdm_place place,
                                            uint64_t *bytes, struct tdm_error *err)
{
    uint64_t least = TDM_SIZE_MAX;
    *bytes = 0;
    if (!can_prove(schedule))
        return TDM_OK;
    enum tdm_status status = prove_anywhere(schedule, pins, place, 0, &least, err);
    if (status == TDM_OK && least < TDM_SIZE_MAX)
        *bytes = least;
    return status;
}

/* Programs may stop so far above what is asked for: a bound in MiB is rounded. */
#define SURELY (UINT64_C(1) << 20)

enum tdm_status tdm_candidates_prove_more(struct tdm_schedule *schedule,
                                          const struct tdm_pins *pins, enum tdm_place place,
                                          uint64_t bytes, bool *is_proved, struct tdm_error *err)
{
    uint64_t least = tdm_size_add(bytes, SURELY);
    *is_proved = false;
    if (!can_prove(schedule))
        return TDM_OK;
    enum tdm_status status = prove_anywhere(schedule, pins, place, bytes + 1, &least, err);
    *is_proved = status == TDM_OK && least > bytes;
    return status;
}
