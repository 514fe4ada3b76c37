/* SPDX-License-Identifier: Apache-2.0 */
/* The search: goes through the places of updates; at each it computes bounds, then lowers and
 * simulates candidates in order of rising estimated time, until none can win. */
#include "planner/candidates_parts.h"

#include "base/size.h"

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

/* Sets the bound. Without a linear program, the best recipe is the bound if the estimates of all
 * recipes were examined. */
static void say_bound(const struct tdm_candidates *run, bool trains, struct tdm_search *search)
{
    double step = run->simulation.step_seconds;
    search->bound_seconds = trains                 ? tdm_candidates_bound_of_all(run)
                            : run->counts.complete ? step
                                                   : 0;
    if (search->bound_seconds > step) /* nothing that fits is faster */
        search->bound_seconds = step;
    search->gap = search->bound_seconds > 0 ? step / search->bound_seconds - 1 : 0;
    search->binding = run->binding;
}

/* Finds the fastest schedule with updates at run->on, independently of the other place: results
 * from there would keep this search away from points that lead to its best. */
static enum tdm_status look(struct tdm_candidates *run, bool trains, struct tdm_error *err)
{
    struct tdm_search_space *space = &run->space;
    run->found = false;
    run->ops = 0;
    run->all_deepened = 0;
    enum tdm_status status = tdm_candidates_try_rounded(run, err);
    if (status == TDM_OK)
        status = tdm_candidates_try_put_off(run, err);
    if (status == TDM_OK)
        status = tdm_candidates_try_other_sizes(run, err);
    for (uint32_t i = 0; i < space->size_count; i++)
        tdm_estimator_set_state(space->estimators[i], space->bases[i].homes,
                                &space->bases[i].rings);
    /* roundings are never slower than recipes */
    if (status == TDM_OK && !run->found)
        status = tdm_candidates_look_at_recipes(run, trains, err);
    return status == TDM_OK && trains ? tdm_candidates_polish(run, err) : status;
}

/* Searches both places of updates, or only the requested one. Computes bounds on the way. */
static enum tdm_status look_at_places(struct tdm_candidates *run, bool trains, bool fixed,
                                      enum tdm_place asked_on, struct tdm_error *err)
{
    const struct tdm_rounded *winner = NULL;
    struct tdm_simulation simulation = {0};
    enum tdm_status status = TDM_OK;
    const bool bounds = trains && !run->space.pins->quick;
    run->counts.complete = true;
    for (int i = 0; i < TDM_PLANNED_PLACES && status == TDM_OK; i++) {
        double floor_seconds = 0;
        run->on = tdm_planned_place(run->space.schedule, i);
        if (fixed && run->on != asked_on)
            continue;
        if (bounds)
            status = tdm_candidates_find_floors(run, &floor_seconds, err);
        /* neither the plan nor the bound can come from this place */
        if (winner != NULL && simulation.step_seconds <= WORTH_THE_HOST * floor_seconds &&
            run->bound_seconds <= floor_seconds)
            continue;
        run->found = false;
        if (status == TDM_OK && bounds)
            status = tdm_candidates_relax(run, err);
        if (status != TDM_OK ||
            (winner != NULL && run->bound_of[run->on] < NO_BOUND &&
             simulation.step_seconds <= WORTH_THE_HOST * run->bound_of[run->on]))
            continue;
        status = look(run, trains, err);
        if (run->found && (winner == NULL || WORTH_THE_HOST * run->simulation.step_seconds <=
                                                 simulation.step_seconds)) {
            winner = run->winner;
            simulation = run->simulation;
        }
        run->other_seconds = winner != NULL ? simulation.step_seconds : 0;
    }
    run->found = winner != NULL;
    run->winner = winner;
    run->simulation = simulation;
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

enum tdm_status tdm_candidates_search(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      struct tdm_search *search, struct tdm_error *err)
{
    uint64_t limit_bytes[TDM_MAX_PLACES];
    bool trains = schedule->pass == TDM_TRAIN;
    enum tdm_status status = tdm_candidates_forget_homes(schedule, pins, err);
    if (status != TDM_OK)
        return status;
    tdm_place_limits(schedule, limit_bytes);
    struct tdm_home homes[TDM_STATES];
    const struct tdm_rings rings = schedule->rings;
    const enum tdm_place asked_on = schedule->optimizer.on;
    struct tdm_candidates run;
    memcpy(homes, schedule->homes, sizeof(homes));
    status = tdm_candidates_open(schedule, pins, limit_bytes, (int)TDM_MAX_PLACES, &run, err);
    if (status == TDM_OK && can_hold_state(&run))
        status = look_at_places(&run, trains, pins->has_update_place || !trains, asked_on, err);
    if (status == TDM_OK && trains && !pins->quick)
        status = tdm_candidates_enrich(&run, err);
    if (status == TDM_OK && pins->program_path != NULL && !run.program_written)
        status = tdm_fail(err, TDM_INTERNAL, "%s: not written: no linear program was made",
                          pins->program_path);
    run.counts.rounded = run.rounded_count;
    run.counts.recipes_alone =
        trains && !tdm_candidates_without(&run, TDM_ROUNDING) && !tdm_candidates_may_round(&run);
    search->counts = run.counts;
    if (status == TDM_OK && !run.found) {
        memcpy(schedule->homes, homes, sizeof(homes));
        schedule->rings = rings;
        schedule->optimizer.on = asked_on;
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");
    }
    if (status == TDM_OK)
        status = tdm_candidates_validate_best(&run, err);
    if (status == TDM_OK)
        say_bound(&run, trains, search);
    search->simulation = run.simulation;
    tdm_candidates_close(&run);
    return status;
}
