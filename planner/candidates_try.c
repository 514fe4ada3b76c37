/* SPDX-License-Identifier: Apache-2.0 */
/* Tries a schedule: lowers, packs and simulates it; and validates the winner. */
#include "planner/candidates_parts.h"

#include "base/size.h"
#include "schedule/kv_row.h"
#include "schedule/nest.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"

#include <string.h>

/* What the runtime leaves of the limits. */
static void find_capacities(const struct tdm_candidates *run,
                            uint64_t capacity_bytes[TDM_MAX_PLACES])
{
    const struct tdm_place_row *places = run->space.schedule->machine->topology.places;
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        capacity_bytes[place] = tdm_size_left(run->limit_bytes[place], places[place].runtime_bytes);
}

enum tdm_status tdm_candidates_lower(struct tdm_candidates *run, bool quick,
                                     struct tdm_program **program,
                                     uint64_t used_bytes[TDM_MAX_PLACES], struct tdm_error *err)
{
    struct tdm_schedule *schedule = run->space.schedule;
    uint64_t capacity_bytes[TDM_MAX_PLACES];
    find_capacities(run, capacity_bytes);
    enum tdm_status status = tdm_schedule_check(schedule, "plan", err);
    if (status == TDM_OK)
        status = quick ? tdm_program_lower_within(schedule, capacity_bytes, program, err)
                       : tdm_program_lower(schedule, program, err);
    if (status != TDM_OK)
        return status;
    run->counts.lowered++;
    run->ops += (*program)->op_count;
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        enum tdm_place place = tdm_planned_place(schedule, i);
        used_bytes[place] = tdm_size_add((*program)->arena_bytes[place],
                                         schedule->machine->topology.places[place].runtime_bytes);
    }
    return TDM_OK;
}

static bool within(const struct tdm_candidates *run, const uint64_t used_bytes[TDM_MAX_PLACES])
{
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        enum tdm_place place = tdm_planned_place(run->space.schedule, i);
        if (used_bytes[place] > run->limit_bytes[place])
            return false;
    }
    return true;
}

void tdm_candidates_add_reserve(const struct tdm_candidates *run,
                                const uint64_t used_bytes[TDM_MAX_PLACES],
                                const uint64_t estimated_bytes[TDM_MAX_PLACES],
                                uint64_t reserve[TDM_MAX_PLACES])
{
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        enum tdm_place place = tdm_planned_place(run->space.schedule, i);
        if (used_bytes[place] > run->limit_bytes[place])
            reserve[place] = used_bytes[place] -
                             (reserve[place] == 0 ? run->limit_bytes : estimated_bytes)[place];
    }
}

/* Lowers the search space's schedule with the large tile, and if that is not within the limits,
 * with the safe one. */
static enum tdm_status lower_with(struct tdm_candidates *run, const struct tdm_tiles *tiles,
                                  struct tdm_program **program, uint64_t used_bytes[TDM_MAX_PLACES],
                                  struct tdm_error *err)
{
    run->space.schedule->head_tile_tokens = tiles->large;
    enum tdm_status status = tdm_candidates_lower(run, true, program, used_bytes, err);
    if (status != TDM_OK || tiles->large == tiles->safe || within(run, used_bytes))
        return status;
    tdm_program_free(*program);
    run->space.schedule->head_tile_tokens = tiles->safe;
    return tdm_candidates_lower(run, true, program, used_bytes, err);
}

enum tdm_status tdm_candidates_try_schedule(struct tdm_candidates *run, uint32_t size,
                                            const struct tdm_tiles *tiles, bool *fits,
                                            uint64_t used_bytes[TDM_MAX_PLACES],
                                            double *step_seconds, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = run->space.schedule;
    struct tdm_program *program;
    struct tdm_simulation simulation;
    enum tdm_status status = lower_with(run, tiles, &program, used_bytes, err);
    if (status != TDM_OK)
        return status;
    *fits = within(run, used_bytes);
    if (*fits) {
        status = tdm_simulate(program, NULL, NULL, &simulation, err);
        run->counts.simulated++;
        *step_seconds = simulation.step_seconds;
    }
    tdm_program_free(program);
    struct tdm_rounded *best = &run->best[schedule->order * TDM_BASES + size];
    if (status != TDM_OK || !*fits || (best->fits && simulation.step_seconds >= best->seconds))
        return status;
    struct tdm_group *groups = best->groups;
    memcpy(groups, schedule->groups, schedule->group_count * sizeof(*groups));
    *best = (struct tdm_rounded){.size = size,
                                 .order = schedule->order,
                                 .group_count = schedule->group_count,
                                 .groups = groups,
                                 .rings = schedule->rings,
                                 .prefetch = schedule->prefetch,
                                 .passes_only = tdm_search_space_passes(&run->space, size),
                                 .tiles = {schedule->head_tile_tokens, schedule->head_tile_tokens},
                                 .seconds = simulation.step_seconds,
                                 .fits = true};
    memcpy(best->homes, schedule->homes, sizeof(best->homes));
    if (!run->found || simulation.step_seconds < run->simulation.step_seconds) {
        run->simulation = simulation;
        run->winner = best;
        run->found = true;
    }
    return TDM_OK;
}

/* ---- the winner ---- */

/* Gives the winner a larger LM-head tile if memory is left after packing: the gradient of the
 * head's weights is read and written once per tile. */
static enum tdm_status grow_tile(struct tdm_candidates *run, struct tdm_error *err)
{
    const uint64_t most = run->space.bases[run->winner->size].head_tile_tokens;
    enum tdm_status status = TDM_OK;
    bool grows = run->space.pins->head_tile_tokens == 0;
    run->grown = *run->winner; /* shares the winner's groups */
    while (grows && run->grown.tiles.safe < most) {
        struct tdm_rounded larger = run->grown;
        struct tdm_program *program;
        struct tdm_simulation simulation;
        uint64_t used_bytes[TDM_MAX_PLACES];
        larger.tiles.safe = tdm_size_mul(2, larger.tiles.safe);
        if (larger.tiles.safe > most)
            larger.tiles.safe = most;
        tdm_rounded_write(&run->space, &larger);
        status = tdm_candidates_lower(run, true, &program, used_bytes, err);
        if (status != TDM_OK)
            break;
        grows = within(run, used_bytes);
        if (grows) {
            status = tdm_simulate(program, NULL, NULL, &simulation, err);
            run->counts.simulated++;
            grows = status == TDM_OK && simulation.step_seconds < run->simulation.step_seconds;
        }
        tdm_program_free(program);
        if (grows) {
            run->grown = larger;
            run->simulation = simulation;
            run->winner = &run->grown;
        }
    }
    return status;
}

/* Packs the winner completely, which stays within the limits (program.h), or with packed_bytes of
 * the schedule as they are given, and simulates it again. `check`: unless pins disable it,
 * validates the program with code that took no part in the choice. */
static enum tdm_status settle(struct tdm_candidates *run, uint64_t packed_bytes, bool check,
                              struct tdm_error *err)
{
    struct tdm_program *program;
    uint64_t used_bytes[TDM_MAX_PLACES], capacity_bytes[TDM_MAX_PLACES];
    tdm_rounded_write(&run->space, run->winner);
    struct tdm_schedule *schedule = run->space.schedule;
    schedule->packed_bytes = packed_bytes;
    enum tdm_status status = tdm_candidates_lower(run, false, &program, used_bytes, err);
    if (status != TDM_OK)
        return status;
    /* a slot that nothing uses is not asked for, nor is it said that there is one */
    if (!tdm_nest_any_kv_ahead(schedule, tdm_kv_row_is_whole(program), NULL))
        schedule->rings.ahead = 0;
    find_capacities(run, capacity_bytes);
    struct tdm_error reason;
    if (!within(run, used_bytes))
        status = tdm_fail(&reason, TDM_INTERNAL, "it does not fit");
    else if (check && !run->space.pins->unchecked)
        status = tdm_program_validate(program, capacity_bytes, &reason);
    if (status == TDM_OK) /* packing changes offsets, and with them waits */
        status = tdm_simulate(program, NULL, NULL, &run->simulation, err);
    else
        status = tdm_fail(err, status == TDM_NO_MEMORY ? status : TDM_INTERNAL,
                          "the schedule found is not valid: %s", reason.message);
    tdm_program_free(program);
    return status;
}

/* The least share of a step that an arena which is larger than needed must save. */
#define WORTH_ROOM 1e-4

/* Packs the winner completely; or, if that is slower, as far as it was packed when it took
 * `quick_seconds`. */
static enum tdm_status settle_faster(struct tdm_candidates *run, double quick_seconds, bool check,
                                     struct tdm_error *err)
{
    uint64_t capacity_bytes[TDM_MAX_PLACES];
    enum tdm_status status = settle(run, 0, check, err);
    const double most = (1 - WORTH_ROOM) * run->simulation.step_seconds;
    if (status != TDM_OK || quick_seconds >= most)
        return status;
    find_capacities(run, capacity_bytes);
    status = settle(run, capacity_bytes[TDM_DEVICE], check, err);
    return status == TDM_OK && run->simulation.step_seconds >= most ? settle(run, 0, check, err)
                                                                    : status;
}

enum tdm_status tdm_candidates_validate_best(struct tdm_candidates *run, struct tdm_error *err)
{
    const struct tdm_rounded *winner = run->winner;
    const double quick_seconds = run->simulation.step_seconds;
    enum tdm_status status = grow_tile(run, err);
    const double grown_seconds = run->simulation.step_seconds;
    if (status != TDM_OK || run->winner == winner)
        return status == TDM_OK ? settle_faster(run, quick_seconds, true, err) : status;
    run->winner = winner;
    status = settle_faster(run, quick_seconds, false, err);
    const double seconds = run->simulation.step_seconds;
    run->winner = &run->grown;
    if (status == TDM_OK)
        status = settle_faster(run, grown_seconds, true, err);
    if (status != TDM_OK || run->simulation.step_seconds <= seconds)
        return status;
    run->winner = winner;
    return settle_faster(run, quick_seconds, true, err);
}
