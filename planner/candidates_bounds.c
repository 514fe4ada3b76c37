/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds of a search: the linear programs of its orders and chunk sizes, and schedules rounded from
 * their solutions. */
#include "planner/candidates_parts.h"

#include "planner/relaxation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SOLUTIONS 60u  /* of one linear program */
#define TOLERANCE 3e-4      /* of its bound */
#define BRIEF_SOLUTIONS 12u /* the same, where only the schedules rounded from it matter */
#define BRIEF_TOLERANCE 1e-2
/* points of the walk from a rounding; where estimates are rough, and cheap */
#define QUICK_TRAVELLED 300u
#define QUICK_TRAVELLED_ROUGH 3000u

/* ---- roundings ---- */

enum tdm_status tdm_candidates_improve_new(struct tdm_candidates *run,
                                           const struct tdm_rounding_limits *limits,
                                           struct tdm_rounded *rounded, struct tdm_error *err)
{
    enum tdm_status status = tdm_improve(&run->space, limits, rounded, err);
    if (status == TDM_OK && rounded->fits)
        run->rounded_count++;
    else
        tdm_rounded_free(rounded);
    return status;
}

void tdm_candidates_take_better(struct tdm_rounded *rounded, struct tdm_rounded *other)
{
    if (other->fits && (!rounded->fits || other->cost < rounded->cost))
        tdm_rounded_copy(rounded, other);
    tdm_rounded_free(other);
}

/* Searches the same with some layers at home on the device, if others are updated on the host and
 * none is there yet. Takes it if it promises more. */
static enum tdm_status bring_layers(struct tdm_candidates *run, struct tdm_rounding_limits limits,
                                    struct tdm_rounded *rounded, struct tdm_error *err)
{
    struct tdm_rounded other;
    tdm_candidates_fixed_homes(run, rounded->size, limits.fixed_homes);
    if (!limits.tied || limits.fixed_homes[TDM_STATE_WEIGHTS] ||
        rounded->homes[TDM_STATE_WEIGHTS].device_layers > 0)
        return TDM_OK;
    if (!tdm_rounded_duplicate(&run->space, rounded, &other))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    tdm_rounded_set_near(&other, 1, false);
    enum tdm_status status = tdm_improve(&run->space, &limits, &other, err);
    tdm_candidates_take_better(rounded, &other);
    return status;
}

/* Rounds the solution of a program. Homes come from a grid too: solutions hardly tell one home from
 * another, and single moves seldom lead to the best ones. */
static enum tdm_status round_one(struct tdm_candidates *run, enum tdm_order order, uint32_t size,
                                 struct tdm_relaxation *relaxation,
                                 const struct tdm_relaxed *relaxed, struct tdm_rounded *rounded,
                                 struct tdm_error *err)
{
    enum tdm_status status = tdm_round(&run->space, size, order, relaxation, relaxed, rounded, err);
    if (status != TDM_OK)
        return status;
    struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, rounded);
    limits.grid = true;
    limits.no_fine = true;
    limits.travelled = tdm_estimator_knows_lanes(run->space.estimators[size])
                           ? QUICK_TRAVELLED
                           : QUICK_TRAVELLED_ROUGH;
    status = tdm_improve(&run->space, &limits, rounded, err);
    return status == TDM_OK && rounded->fits ? bring_layers(run, limits, rounded, err) : status;
}

/* Rounds a program's solution, or both of two ways. */
static enum tdm_status round_solution(struct tdm_candidates *run, enum tdm_order order,
                                      uint32_t size, struct tdm_relaxation *relaxation,
                                      struct tdm_relaxed *relaxed, struct tdm_error *err)
{
    struct tdm_rounded *rounded = &run->rounded[run->rounded_count], other;
    struct tdm_relaxed turned = *relaxed;
    enum tdm_status status = round_one(run, order, size, relaxation, relaxed, rounded, err);
    if (status == TDM_OK && tdm_relaxation_turn(relaxation, &turned)) {
        status = round_one(run, order, size, relaxation, &turned, &other, err);
        tdm_candidates_take_better(rounded, &other);
    }
    if (status == TDM_OK && rounded->fits)
        run->rounded_count++;
    else
        tdm_rounded_free(rounded);
    return status;
}

/* ---- one program ---- */

const struct tdm_group_list *tdm_candidates_pinned_list(const struct tdm_candidates *run)
{
    return run->space.pins->group_count > 0 ? &run->space.lists.lists[0] : NULL;
}

double tdm_candidates_richer_seconds(const struct tdm_candidates *run, uint32_t size)
{
    const struct tdm_pins *pins = run->space.pins;
    bool may_be_richer = tdm_candidates_may_round(run) ||
                         !tdm_set_covers(TDM_SEARCHED_SET, pins->kept_set) ||
                         !tdm_set_covers(TDM_SEARCHED_SET, pins->held_set);
    return may_be_richer ? tdm_estimator_richer_seconds(run->space.estimators[size]) : 0;
}

static void note_least(struct tdm_candidates *run, int order, uint32_t size, double seconds)
{
    run->least_seconds[order][size] = fmax(seconds - tdm_candidates_richer_seconds(run, size), 0);
}

double tdm_candidates_promised_seconds(const struct tdm_candidates *run)
{
    double least = NO_BOUND;
    for (uint32_t i = 0; i < run->rounded_count; i++)
        if (run->rounded[i].fits && tdm_candidates_is_due(run, run->rounded[i].size))
            least = fmin(least, run->rounded[i].likely_seconds);
    return least;
}

/* Is a bound so far from the least one that its schedules hardly win? They are then as far from
 * their bound as the best is from its own, or almost. The second look, when the rest of the search
 * has ended, is at those that were put off at first. */
#define BETWEEN 0.35
#define BETWEEN_LATE 0.95
static bool hardly_wins(const struct tdm_candidates *run, double floor_seconds)
{
    double best = tdm_candidates_best_seconds(run);
    if (best >= NO_BOUND)
        best = tdm_candidates_promised_seconds(run);
    return best < NO_BOUND && run->bound_seconds < best &&
           floor_seconds > run->bound_seconds +
                               (run->late ? BETWEEN_LATE : BETWEEN) * (best - run->bound_seconds);
}

enum tdm_status tdm_candidates_relax_one(struct tdm_candidates *run, enum tdm_order order,
                                         uint32_t size, struct tdm_error *err)
{
    const struct tdm_search_space *space = &run->space;
    const struct tdm_pins *pins = space->pins;
    struct tdm_relaxation *relaxation;
    struct tdm_prices *prices = &run->prices[order][size];
    struct tdm_relaxed relaxed;
    bool fixed[TDM_STATES];
    tdm_candidates_program_homes(run, size, fixed);
    enum tdm_status status =
        tdm_relaxation_new(space->estimators[size], order, run->limit_bytes, fixed,
                           tdm_candidates_pinned_list(run), false, &relaxation, err);
    double *bound = &run->bound_of[space->bases[size].optimizer.on];
    if (status == TDM_INTERNAL) {
        *bound = run->bound_seconds = 0;
        return TDM_OK;
    }
    if (status != TDM_OK)
        return status;
    if (run->last[order] != NULL)
        tdm_relaxation_warm(relaxation, run->last[order]);
    status = tdm_relaxation_solve(relaxation, *bound, pins->brief ? BRIEF_TOLERANCE : TOLERANCE,
                                  pins->brief ? BRIEF_SOLUTIONS : MOST_SOLUTIONS, &relaxed, err);
    if (status != TDM_OK) {
        tdm_relaxation_free(relaxation);
        return status;
    }
    run->counts.programs++;
    /* where solutions were too few for the program, its floor can be more */
    relaxed.bound_seconds = fmax(relaxed.bound_seconds, run->floor_seconds[order][size]);
    note_least(run, order, size, relaxed.bound_seconds);
    if (relaxed.bound_seconds < *bound)
        *bound = relaxed.bound_seconds;
    if (relaxed.bound_seconds < run->bound_seconds) {
        run->bound_seconds = relaxed.bound_seconds;
        run->binding = relaxed;
        if (pins->program_path != NULL) {
            free(run->program);
            run->program = NULL;
            status = tdm_relaxation_text(relaxation, &run->program, &run->program_bytes, err);
        }
    }
    if (relaxed.bound_seconds > run->floor_seconds[order][size])
        run->floor_seconds[order][size] = relaxed.bound_seconds;
    run->is_put_off[order][size] = hardly_wins(run, relaxed.bound_seconds);
    free(prices->of_rows);
    *prices = tdm_relaxation_prices(relaxation);
    run->last[order] = prices;
    run->passing[order][size] = relaxed.passing;
    if (status == TDM_OK && relaxed.solved && tdm_candidates_may_round(run) &&
        !run->is_put_off[order][size])
        status = round_solution(run, order, size, relaxation, &relaxed, err);
    tdm_relaxation_free(relaxation);
    return status;
}

double tdm_candidates_bound_of_all(const struct tdm_candidates *run)
{
    double least = NO_BOUND;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < run->space.size_count; size++)
            least = fmin(least, run->least_seconds[order][size]);
    /* 0: a program was too large for the solver, or none was made */
    return run->bound_seconds > 0 && least < NO_BOUND ? least : 0;
}

/* ---- all orders and chunk sizes ---- */

enum tdm_status tdm_candidates_find_floors(struct tdm_candidates *run, double *least,
                                           struct tdm_error *err)
{
    const struct tdm_search_space *space = &run->space;
    *least = NO_BOUND;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < space->size_count; size++) {
            double *floor_seconds = &run->floor_seconds[order][size];
            bool fixed[TDM_STATES];
            if (!tdm_candidates_is_due(run, size) || !tdm_candidates_may_have(run, order))
                continue;
            tdm_candidates_program_homes(run, size, fixed);
            enum tdm_status status = tdm_relaxation_floor(
                space->estimators[size], (enum tdm_order)order, run->limit_bytes, fixed,
                tdm_candidates_pinned_list(run), floor_seconds, err);
            if (status == TDM_INTERNAL) /* too large for the solver */
                *floor_seconds = 0;
            else if (status != TDM_OK)
                return status;
            *least = fmin(*least, *floor_seconds);
            note_least(run, order, size, *floor_seconds);
        }
    return TDM_OK;
}

bool tdm_candidates_size_could_win(const struct tdm_candidates *run, int order, uint32_t size)
{
    double floor_seconds = run->floor_seconds[order][size];
    if (run->other_seconds > 0 && floor_seconds >= run->other_seconds &&
        floor_seconds >= run->bound_seconds)
        return false;
    return !run->found || floor_seconds < run->simulation.step_seconds;
}

bool tdm_candidates_next_put_off(const struct tdm_candidates *run, int *order, uint32_t *size)
{
    double least = NO_BOUND;
    for (int o = 0; o < TDM_ORDERS; o++)
        for (uint32_t i = 0; i < run->space.size_count; i++)
            if (run->is_put_off[o][i] && tdm_candidates_is_due(run, i) &&
                tdm_candidates_size_could_win(run, o, i) && run->floor_seconds[o][i] < least &&
                !hardly_wins(run, run->floor_seconds[o][i])) {
                least = run->floor_seconds[o][i];
                *order = o;
                *size = i;
            }
    return least < NO_BOUND;
}

/* Chunk sizes by rising forward time: the first one most likely has the lowest bound. */
static void sort_sizes(const struct tdm_search_space *space, uint32_t sizes[TDM_BASES])
{
    double seconds[TDM_BASES];
    for (uint32_t i = 0; i < space->size_count; i++) {
        double time = tdm_estimator_forward_seconds(space->estimators[i]);
        uint32_t at = i;
        for (; at > 0 && seconds[at - 1] > time; at--) {
            seconds[at] = seconds[at - 1];
            sizes[at] = sizes[at - 1];
        }
        seconds[at] = time;
        sizes[at] = i;
    }
}

enum tdm_status tdm_candidates_relax(struct tdm_candidates *run, struct tdm_error *err)
{
    uint32_t sizes[TDM_BASES];
    enum tdm_status status = TDM_OK;
    sort_sizes(&run->space, sizes);
    for (int order = 0; order < TDM_ORDERS; order++) {
        run->last[order] = NULL;
        for (uint32_t i = 0; i < run->space.size_count && tdm_candidates_may_have(run, order);
             i++) {
            if (!tdm_candidates_is_due(run, sizes[i]) || status != TDM_OK)
                continue;
            if (hardly_wins(run, run->floor_seconds[order][sizes[i]]) ||
                !tdm_candidates_size_could_win(run, order, sizes[i]))
                run->is_put_off[order][sizes[i]] = true;
            else
                status = tdm_candidates_relax_one(run, (enum tdm_order)order, sizes[i], err);
        }
    }
    return status;
}
