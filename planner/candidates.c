/* SPDX-License-Identifier: Apache-2.0 */
/* The search: goes through the places of updates; at each it computes bounds, then lowers and
 * simulates candidates in order of rising estimated time, until none can win. */
#include "planner/candidates_parts.h"

#include "base/file.h"
#include "base/size.h"
#include "planner/ladder.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *tdm_attention_store_name(enum tdm_attention_store store)
{
    static const char *const names[TDM_ATTENTION_STORES] = {"none", "held", "kept"};
    return names[store];
}

const char *tdm_heuristic_name(enum tdm_heuristic heuristic)
{
    static const char *const names[TDM_HEURISTICS] = {"enumeration", "rounding", "structure",
                                                      "fine", "polish"};
    return names[heuristic];
}

void tdm_pins_free(struct tdm_pins *pins)
{
    free(pins->groups);
    pins->groups = NULL;
    pins->group_count = 0;
}

bool tdm_pins_fix_stores(const struct tdm_pins *pins)
{
    return pins->has_input_place || pins->has_kept_place || pins->has_held_place || pins->has_kv ||
           pins->kept_set != TDM_SET_INPUT || pins->held_set != TDM_SET_INPUT ||
           pins->kept_from_unit != TDM_SPLIT_FREE || tdm_is_far(pins->kv_place) ||
           tdm_is_far(pins->kv_gradients_place);
}

void tdm_copy_choices(struct tdm_schedule *to, const struct tdm_schedule *from)
{
    to->order = from->order;
    to->chunk_tokens = from->chunk_tokens;
    to->prefetch = from->prefetch;
    to->packed_bytes = from->packed_bytes;
    to->optimizer.on = from->optimizer.on;
    to->head_tile_tokens = from->head_tile_tokens;
    to->group_count = from->group_count;
    memcpy(to->groups, from->groups, from->group_count * sizeof(*from->groups));
    memcpy(to->homes, from->homes, sizeof(to->homes));
    to->rings = from->rings;
}

void tdm_search_set_bound(struct tdm_search *search, double seconds)
{
    const double step = search->simulation.step_seconds;
    search->bound_seconds = seconds < step ? seconds : step;
    search->beyond_seconds = seconds < step ? 0 : seconds - step;
    search->gap = search->bound_seconds > 0 ? step / search->bound_seconds - 1 : 0;
}

/* The bound. Without a linear program, the best recipe is the bound if the estimates of all
 * recipes were examined. */
static double bound_of(const struct tdm_candidates *run, bool trains)
{
    if (trains)
        return tdm_candidates_bound_of_all(run);
    return run->counts.complete ? run->simulation.step_seconds : 0;
}

/* Updates on the host are searched first where their bound is below this share of the other's: what
 * is found first keeps the search at the other place from its slower points. */
#define FIRST 0.98

/* A place of updates, and what the search found there. */
struct updates_at {
    enum tdm_place on;
    bool is_ruled_out;    /* neither the plan nor the bound comes from there */
    bool is_relaxed;      /* its programs were solved */
    double floor_seconds; /* no step is faster there */
    bool found;
    const struct tdm_rounded *winner;
    struct tdm_simulation simulation; /* of the winner */
};

/* Seconds of a step for comparison: the host is taken only if that is worth it. */
static double weighed(const struct updates_at *at, double seconds)
{
    return tdm_is_far(at->on) ? WORTH_THE_HOST * seconds + WORTH_THE_HOST_SECONDS : seconds;
}

/* The inverse: the step at a place of which weighed() makes `seconds`; always more than 0. */
static double unweighed(const struct updates_at *at, double seconds)
{
    if (!tdm_is_far(at->on))
        return seconds;
    return fmax((seconds - WORTH_THE_HOST_SECONDS) / WORTH_THE_HOST, DBL_MIN);
}

/* Continues the search at a place. `other`: the other one, or NULL. */
static void enter(struct tdm_candidates *run, const struct updates_at *at,
                  const struct updates_at *other)
{
    run->on = at->on;
    run->found = at->found;
    run->winner = at->winner;
    run->simulation = at->simulation;
    run->other_seconds = other != NULL && other->found
                             ? unweighed(at, weighed(other, other->simulation.step_seconds))
                             : 0;
}

static void leave(const struct tdm_candidates *run, struct updates_at *at)
{
    at->found = run->found;
    at->winner = run->winner;
    at->simulation = run->simulation;
}

/* Neither the plan nor the bound can come from a place where no step is faster than `seconds`. */
static bool rules_out(const struct tdm_candidates *run, double seconds)
{
    return run->other_seconds > 0 && run->other_seconds <= seconds && run->bound_seconds <= seconds;
}

/* Solves the programs of a place, unless their floors rule it out. */
static enum tdm_status relax(struct tdm_candidates *run, struct updates_at *at,
                             const struct updates_at *other, struct tdm_error *err)
{
    enter(run, at, other);
    if (at->is_relaxed || at->is_ruled_out)
        return TDM_OK;
    at->is_relaxed = true;
    at->is_ruled_out = rules_out(run, at->floor_seconds);
    return at->is_ruled_out ? TDM_OK : tdm_candidates_relax(run, err);
}

static void set_base_states(const struct tdm_search_space *space)
{
    for (uint32_t i = 0; i < space->size_count; i++)
        tdm_estimator_set_state(space->estimators[i], space->bases[i].homes,
                                &space->bases[i].rings);
}

/* Looks at what was put off, again, now that the best step and its place are known. */
static enum tdm_status look_late(struct tdm_candidates *run, struct tdm_error *err)
{
    const double before = tdm_candidates_best_seconds(run);
    run->late = true;
    enum tdm_status status = tdm_candidates_try_put_off(run, err);
    run->late = false;
    set_base_states(&run->space);
    if (status == TDM_OK && tdm_candidates_best_seconds(run) < before)
        status = tdm_candidates_polish(run, err);
    return status;
}

/* Finds the fastest schedule with updates at a place, independently of what was found at the other:
 * results from there would keep this search away from points that lead to its best. */
static enum tdm_status look(struct tdm_candidates *run, struct updates_at *at,
                            const struct updates_at *other, bool trains, struct tdm_error *err)
{
    enter(run, at, other);
    at->is_ruled_out = at->is_ruled_out ||
                       (run->bound_of[at->on] < NO_BOUND && rules_out(run, run->bound_of[at->on]));
    if (at->is_ruled_out)
        return TDM_OK;
    run->ops = 0;
    memset(run->all_deepened, 0, sizeof(run->all_deepened));
    enum tdm_status status = tdm_candidates_try_rounded(run, err);
    if (status == TDM_OK)
        status = tdm_candidates_try_put_off(run, err);
    if (status == TDM_OK)
        status = run->space.pins->brief ? TDM_OK : tdm_candidates_try_other_sizes(run, err);
    set_base_states(&run->space);
    /* roundings are never slower than recipes */
    if (status == TDM_OK && !run->found &&
        (run->other_seconds <= 0 || !tdm_candidates_may_round(run)))
        status = tdm_candidates_look_at_recipes(run, trains, err);
    if (status == TDM_OK && trains)
        status = tdm_candidates_polish(run, err);
    leave(run, at);
    return status;
}

/* Searches both places of updates, or only the requested one; first where roundings promise more.
 * Computes bounds on the way. */
static enum tdm_status look_at_places(struct tdm_candidates *run, bool trains, bool fixed,
                                      struct tdm_error *err)
{
    struct updates_at places[TDM_PLANNED_PLACES] = {0}, *first = &places[0], *second = NULL;
    enum tdm_status status = TDM_OK;
    const bool bounds = trains && !run->space.pins->quick;
    run->counts.complete = true;
    for (int i = 0; i < TDM_PLANNED_PLACES && status == TDM_OK; i++) {
        places[i].on = fixed ? run->asked.on : tdm_planned_place(run->space.schedule, i);
        run->on = places[i].on;
        if (bounds && (i == 0 || !fixed))
            status = tdm_candidates_find_floors(run, &places[i].floor_seconds, err);
    }
    if (!fixed)
        second = &places[1];
    if (status == TDM_OK && bounds)
        status = relax(run, first, second, err);
    if (status == TDM_OK && bounds && second != NULL &&
        weighed(second, second->floor_seconds) <
            weighed(first, tdm_candidates_promised_seconds(run))) {
        double promised = weighed(first, tdm_candidates_promised_seconds(run));
        status = relax(run, second, first, err);
        if (weighed(second, tdm_candidates_promised_seconds(run)) < FIRST * promised) {
            second = first;
            first = &places[1];
        }
    }
    if (status == TDM_OK)
        status = look(run, first, second, trains, err);
    if (status == TDM_OK && second != NULL && bounds)
        status = relax(run, second, first, err);
    if (status == TDM_OK && second != NULL)
        status = look(run, second, first, trains, err);
    const struct updates_at *best = first;
    if (second != NULL && second->found &&
        (!first->found || weighed(second, second->simulation.step_seconds) <
                              weighed(first, first->simulation.step_seconds)))
        best = second;
    enter(run, best, NULL);
    if (status == TDM_OK && run->found && trains && !run->space.pins->brief)
        status = look_late(run, err);
    if (status == TDM_OK && trains)
        status = tdm_candidates_walk_by_simulation(run, err);
    return status;
}

/* Checks that both places together can hold the state. Otherwise the search is skipped: a model
 * that is far too large often has many layers, and a search would take long. */
static bool can_hold_state(const struct tdm_candidates *run)
{
    const struct tdm_search_space *space = &run->space;
    uint64_t most = tdm_size_add(run->limit_bytes[TDM_DEVICE],
                                 run->limit_bytes[tdm_far_place(space->schedule)]);
    for (uint32_t i = 0; i < space->size_count; i++)
        if (tdm_estimator_resident_bytes(space->estimators[i]) <= most)
            return true;
    return space->pins->program_path != NULL; /* the program is written even if nothing fits */
}

/* Goes on with more memory from the schedule found, step by step. Notes what was found and, of the
 * steps, what is faster. */
static enum tdm_status climb_on(struct tdm_candidates *run, const struct tdm_climb *climb,
                                struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (unsigned i = climb->first + 1; i <= TDM_CLIMBS && status == TDM_OK; i++) {
        const double before = run->simulation.step_seconds;
        run->limit_bytes[TDM_DEVICE] = climb->bytes[i];
        run->ops = 0;
        status = tdm_candidates_walk_on(run, TDM_WALKS + i, err);
        if (status != TDM_OK || run->simulation.step_seconds >= before)
            continue;
        const struct tdm_rounded *winner = run->winner;
        const struct tdm_simulation simulation = run->simulation;
        status = tdm_candidates_validate_best(run, err);
        if (status == TDM_OK)
            status = climb->found(climb->self, climb->bytes[i], run->space.schedule,
                                  &run->simulation, err);
        run->winner = winner; /* as it was before its complete packing */
        run->simulation = simulation;
    }
    return status;
}

enum tdm_status tdm_candidates_search(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      struct tdm_search *search, struct tdm_error *err)
{
    return pins->effort > 1 ? tdm_ladder_search(pins->ladder, schedule, pins, search, err)
                            : tdm_candidates_climb(schedule, pins, NULL, search, err);
}

/* Once, when the search knows which program it is: an older file stays if it fails before. */
static enum tdm_status write_program(const struct tdm_candidates *run, const char *path,
                                     struct tdm_error *err)
{
    if (run->program == NULL)
        return tdm_fail(err, TDM_INTERNAL, "%s: not written: no linear program was made", path);
    return tdm_file_write(path, run->program, run->program_bytes, true, err);
}

enum tdm_status tdm_candidates_climb(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     const struct tdm_climb *climb, struct tdm_search *search,
                                     struct tdm_error *err)
{
    const bool trains = schedule->pass == TDM_TRAIN;
    const bool improves = trains && !pins->quick && !pins->brief;
    struct tdm_candidates run;
    enum tdm_status status = tdm_candidates_open(schedule, pins, (int)TDM_MAX_PLACES, &run, err);
    if (status != TDM_OK) {
        tdm_candidates_close(&run);
        return status;
    }
    const bool can_hold = can_hold_state(&run);
    if (can_hold)
        status = look_at_places(&run, trains, pins->has_update_place || !trains, err);
    if (status == TDM_OK && improves)
        status = tdm_candidates_enrich(&run, err);
    if (status == TDM_OK && improves && run.found && pins->program_path == NULL)
        status = tdm_candidates_tighten(&run, err);
    if (status == TDM_OK && pins->program_path != NULL)
        status = write_program(&run, pins->program_path, err);
    run.counts.rounded = run.rounded_count;
    run.counts.recipes_alone =
        trains && !tdm_candidates_without(&run, TDM_ROUNDING) && !tdm_candidates_may_round(&run);
    search->counts = run.counts;
    if (status == TDM_OK && !run.found) {
        tdm_candidates_restore(&run, schedule);
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");
        search->bound_seconds = can_hold ? tdm_candidates_bound_of_all(&run) : NO_BOUND;
    }
    const struct tdm_rounded *winner = run.winner;
    const struct tdm_simulation simulation = run.simulation;
    if (status == TDM_OK && pins->as_tried)
        tdm_rounded_write(&run.space, winner);
    else if (status == TDM_OK)
        status = tdm_candidates_validate_best(&run, err);
    search->simulation = run.simulation;
    if (status == TDM_OK) {
        tdm_search_set_bound(search, bound_of(&run, trains));
        search->binding = run.binding;
    }
    if (status == TDM_OK && climb != NULL)
        status = climb->found(climb->self, schedule->memory_bytes, schedule, &run.simulation, err);
    if (status == TDM_OK && climb != NULL && tdm_candidates_may_round(&run)) {
        run.winner = winner; /* as it was before its complete packing */
        run.simulation = simulation;
        status = climb_on(&run, climb, err);
    }
    tdm_candidates_close(&run);
    return status;
}
