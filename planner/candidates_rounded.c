/* SPDX-License-Identifier: Apache-2.0 */
/* Roundings as candidates: which is simulated next, searched again with other limits, or searched
 * longer, and in which other chunk sizes the best one is tried. */
#include "planner/candidates_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ops that are lowered and simulated for roundings, at one place of updates. */
#define ROUNDED_OPS (MOST_OPS / 4)
#define BRIEF_PARTS 16u /* divides them, for `brief` */

#define MOST_ESTIMATES 8000u  /* of a longer search */
#define TOO_SLOW 1.06         /* likely cost over the best step; deepening gains less */
#define TOO_SLOW_UNTRIED 1.16 /* the same for an order of which nothing was deepened yet */
#define AS_IT_IS 1.02         /* the same for what is not searched longer */
#define STALLED 1.003         /* simulated over estimated */
#define FREE_SLOTS 2u         /* of a ring of state: enough that copies do not wait */
#define MOST_IDLE 2u          /* walks from the winner that gain nothing, until no more is made */
#define MOST_MENDED 3u        /* retries of a rounding because packing took more than estimated */

/* Longer searches of the most promising roundings: in the first turn of some, one of each order and
 * chunk size; in the second of the best of them. */
static const struct turn {
    unsigned most, travelled; /* roundings, at one place of updates; points of the walk of each */
} turns[TDM_TURNS] = {{4, 1500}, {1, 6000}};

/* Simulated over likely seconds of the last simulated schedule of an order and chunk size; 0: none
 * was simulated. */
static double *ratio_of(struct tdm_candidates *run, const struct tdm_rounded *rounded)
{
    return &run->ratio[rounded->order][rounded->size];
}

/* The likely cost of a rounding, corrected by simulations of its kind. */
static double corrected_cost(struct tdm_candidates *run, const struct tdm_rounded *rounded)
{
    double ratio = *ratio_of(run, rounded);
    return ratio > 0 ? ratio * rounded->cost : rounded->cost;
}

static bool may_deepen(const struct tdm_candidates *run, const struct tdm_rounded *rounded)
{
    const unsigned turn = rounded->turns;
    return turn < TDM_TURNS &&
           run->all_deepened[turn] < turns[turn].most * tdm_candidates_share_of_effort(run) &&
           run->deepened[rounded->order][rounded->size] <= turn;
}

/* A lower bound on what a rounding is or, if it is searched longer, becomes. */
static double least_of(const struct tdm_candidates *run, const struct tdm_rounded *rounded)
{
    return may_deepen(run, rounded) ? run->floor_seconds[rounded->order][rounded->size]
                                    : rounded->seconds;
}

/* Was a rounding of an order deepened, with updates at the current place? */
static bool is_tried(const struct tdm_candidates *run, enum tdm_order order)
{
    for (uint32_t size = 0; size < run->space.size_count; size++)
        if (tdm_candidates_is_due(run, size) && run->deepened[order][size] > 0)
            return true;
    return false;
}

/* Among the roundings that could win and have the earliest turn, the one with the lowest corrected
 * cost, or NULL. */
static struct tdm_rounded *fastest_rounded(struct tdm_candidates *run)
{
    struct tdm_rounded *fastest = NULL;
    unsigned earliest = TDM_TURNS + 1;
    double most[TDM_ORDERS], best = tdm_candidates_best_seconds(run);
    for (int order = 0; order < TDM_ORDERS; order++)
        most[order] = best * (is_tried(run, (enum tdm_order)order) ? TOO_SLOW : TOO_SLOW_UNTRIED);
    for (uint32_t i = 0; i < run->rounded_count; i++) {
        struct tdm_rounded *rounded = &run->rounded[i];
        double cost = corrected_cost(run, rounded);
        const unsigned turn = may_deepen(run, rounded) ? rounded->turns : TDM_TURNS;
        if (!rounded->fits || !tdm_candidates_is_due(run, rounded->size) ||
            cost >= (turn == 0 ? most[rounded->order] : AS_IT_IS * best) ||
            !tdm_candidates_could_win(run, least_of(run, rounded)))
            continue;
        if (turn < earliest || (turn == earliest && cost < corrected_cost(run, fastest))) {
            earliest = turn;
            fastest = rounded;
        }
    }
    return fastest;
}

/* Simulates a rounding. If packing takes more than estimated, searches it again with less memory.
 * If the compute lane stalls more than a rough estimate says, searches it again with dearer copies.
 * The result waits for its next turn. */
static enum tdm_status try_one(struct tdm_candidates *run, struct tdm_rounded *rounded,
                               struct tdm_error *err)
{
    static const double dearer[] = {1, 10, 50, 200};
    struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, rounded);
    uint64_t used_bytes[TDM_MAX_PLACES];
    double step_seconds, estimated = rounded->likely_seconds;
    bool fits, rough = !tdm_estimator_knows_lanes(run->space.estimators[rounded->size]);
    tdm_rounded_write(&run->space, rounded);
    enum tdm_status status = tdm_candidates_try_schedule(run, rounded->size, &rounded->tiles, &fits,
                                                         used_bytes, &step_seconds, err);
    if (status != TDM_OK)
        return status;
    rounded->simulated = fits;
    if (fits)
        *ratio_of(run, rounded) = step_seconds / estimated;
    if (!fits) {
        tdm_candidates_add_reserve(run, used_bytes, rounded->bytes, rounded->reserve);
        rounded->mended++;
        limits.no_structure = true;
    } else if (rough && step_seconds >= STALLED * estimated) {
        rounded->dearer++;
    } else {
        return TDM_OK;
    }
    if (rounded->mended > MOST_MENDED || rounded->dearer == sizeof(dearer) / sizeof(dearer[0])) {
        rounded->fits = false; /* finished */
        return TDM_OK;
    }
    rounded->simulated = false;
    limits.copies = COPIES * dearer[rounded->dearer];
    /* with one slot, a fetch waits until the previous content was sent, and delays the chunks'
     * copies */
    if (rounded->dearer > 0 && !limits.fixed_rings.optimizer &&
        rounded->rings.optimizer < FREE_SLOTS) {
        rounded->rings.optimizer = FREE_SLOTS;
        limits.fixed_rings = (struct tdm_ring_pins){true, true, true, true, true, true};
    }
    memcpy(limits.reserve, rounded->reserve, sizeof(limits.reserve));
    return tdm_improve(&run->space, &limits, rounded, err);
}

/* Points of a longer search's walk. */
static unsigned travelled(const struct tdm_candidates *run, unsigned turn)
{
    return (unsigned)(turns[turn].travelled * tdm_candidates_share_of_effort(run));
}

/* Searches longer from a rounding: its next turn. */
static enum tdm_status deepen(struct tdm_candidates *run, struct tdm_rounded *rounded,
                              struct tdm_error *err)
{
    struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, rounded);
    limits.most_estimates = (unsigned)(MOST_ESTIMATES * tdm_candidates_share_of_effort(run));
    limits.deep = true;
    limits.grid = rounded->turns == 0;
    limits.no_structure = limits.no_structure || !limits.grid;
    limits.walk = rounded->turns;
    limits.travelled = travelled(run, rounded->turns);
    memcpy(limits.reserve, rounded->reserve, sizeof(limits.reserve));
    rounded->simulated = false;
    run->deepened[rounded->order][rounded->size]++;
    run->all_deepened[rounded->turns++]++;
    return tdm_improve(&run->space, &limits, rounded, err);
}

/* Is a rounding like one that was simulated? */
static bool is_known(const struct tdm_candidates *run, const struct tdm_rounded *rounded)
{
    const struct tdm_memo_key key = tdm_rounded_key(rounded);
    for (uint32_t i = 0; i < run->rounded_count; i++) {
        const struct tdm_rounded *other = &run->rounded[i];
        struct tdm_memo_key known = tdm_rounded_key(other);
        if (other != rounded && other->simulated && memcmp(&known, &key, sizeof(key)) == 0)
            return true;
    }
    return false;
}

enum tdm_status tdm_candidates_try_rounded(struct tdm_candidates *run, struct tdm_error *err)
{
    const uint64_t most_ops = run->space.pins->brief ? ROUNDED_OPS / BRIEF_PARTS : ROUNDED_OPS;
    struct tdm_rounded *rounded;
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && (rounded = fastest_rounded(run)) != NULL && run->ops < most_ops)
        if (*ratio_of(run, rounded) > 0 && may_deepen(run, rounded))
            status = deepen(run, rounded, err);
        else if (!rounded->simulated && !is_known(run, rounded))
            status = try_one(run, rounded, err);
        else
            rounded->fits = false; /* finished */
    return status;
}

/* ---- other chunk sizes, and deferred programs ---- */

/* Converts a split to another chunk size. */
static void scale_split(enum tdm_set *set, uint32_t *from, uint32_t chunks, uint32_t to_chunks)
{
    *from = (uint32_t)(((uint64_t)*from * to_chunks + chunks / 2) / chunks);
    if (*from >= to_chunks)
        *set = TDM_SET_INPUT;
}

/* A schedule, with another base, as a rounding that was not searched yet. The caller adds or frees
 * it. */
static enum tdm_status copy_of(const struct tdm_candidates *run, const struct tdm_rounded *from,
                               uint32_t size, struct tdm_rounded *rounded, struct tdm_error *err)
{
    const struct tdm_search_space *space = &run->space;
    uint32_t chunks = tdm_estimator_chunks(space->estimators[from->size]);
    uint32_t to_chunks = tdm_estimator_chunks(space->estimators[size]);
    const bool on_host = tdm_is_far(space->bases[size].optimizer.on);
    bool fixed[TDM_STATES];
    if (!tdm_rounded_duplicate(space, from, rounded))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    if (size != from->size)
        rounded->prefetch = space->bases[size].prefetch;
    rounded->size = size;
    rounded->passes_only = tdm_search_space_passes(space, size);
    rounded->turns = 0;
    rounded->simulated = false;
    tdm_candidates_fixed_homes(run, size, fixed);
    for (int state = 0; state < TDM_STATES; state++)
        if (fixed[state] || on_host)
            rounded->homes[state] = space->bases[size].homes[state];
    if (on_host && !fixed[TDM_STATE_WEIGHTS])
        tdm_rounded_set_near(rounded, from->homes[TDM_STATE_WEIGHTS].device_layers,
                             tdm_rounded_passes(from));
    for (uint32_t g = 0; g < from->group_count; g++) {
        struct tdm_group *group = &rounded->groups[g];
        scale_split(&group->kept, &group->kept_from_chunk, chunks, to_chunks);
        scale_split(&group->held, &group->held_from_chunk, chunks, to_chunks);
        group->held_device_chunks =
            (uint32_t)((uint64_t)group->held_device_chunks * to_chunks / chunks);
    }
    return TDM_OK;
}

/* Improves the winner with another chunk size. A schedule found for one chunk size is a good start
 * for others, sometimes better than their own. With its own size: by walk number `walk`. */
static enum tdm_status vary_size(struct tdm_candidates *run, uint32_t size, unsigned walk,
                                 struct tdm_error *err)
{
    struct tdm_rounded *rounded = &run->rounded[run->rounded_count];
    enum tdm_status status = copy_of(run, run->winner, size, rounded, err);
    if (status != TDM_OK)
        return status;
    struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, rounded);
    if (size == run->winner->size) {
        limits.stashes = limits.deep = limits.no_structure = true;
        limits.travelled = travelled(run, TDM_TURNS - 1);
        limits.walk = walk;
        limits.slower = walk > TDM_TURNS ? SLOWER_LATE : SLOWER;
    }
    return tdm_candidates_improve_new(run, &limits, rounded, err);
}

/* In all orders that pins leave, and all chunk sizes: layers of few kinds, each kind spread evenly,
 * searched longer. Single moves and walks do not lead there. */
static enum tdm_status try_evenly(struct tdm_candidates *run, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int order = 0; order < TDM_ORDERS && status == TDM_OK; order++)
        for (uint32_t size = 0; size < run->space.size_count && status == TDM_OK; size++) {
            struct tdm_rounded *rounded = &run->rounded[run->rounded_count];
            if (!tdm_candidates_may_have(run, order) || !tdm_candidates_is_due(run, size) ||
                !tdm_candidates_size_could_win(run, order, size))
                continue;
            status = copy_of(run, run->winner, size, rounded, err);
            if (status != TDM_OK)
                return status;
            struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, rounded);
            limits.evenly = limits.stashes = limits.deep = limits.no_structure = true;
            limits.evenly_cost = tdm_candidates_best_seconds(run);
            if (run->ratio[order][size] > 0)
                limits.evenly_cost /= run->ratio[order][size];
            limits.travelled = travelled(run, 0);
            limits.slower = SLOWER;
            rounded->order = (enum tdm_order)order;
            status = tdm_candidates_improve_new(run, &limits, rounded, err);
        }
    return status == TDM_OK ? tdm_candidates_try_rounded(run, err) : status;
}

/* Slots of the rings of weights and of optimizer states; 0: as they serve. */
struct slots {
    uint32_t weights, states;
};

/* Searches longer from a schedule with so many layers at home on the device; a walk that may change
 * their number goes back to the one before. Takes what promises more than the best so far. */
static enum tdm_status improve_with(struct tdm_candidates *run, uint32_t layers, struct slots slots,
                                    const struct tdm_rounded *from, struct tdm_rounded *best,
                                    struct tdm_error *err)
{
    struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, from);
    struct tdm_rounded next;
    enum tdm_status status = copy_of(run, from, from->size, &next, err);
    if (status != TDM_OK)
        return status;
    limits.deep = limits.fixed_homes[TDM_STATE_WEIGHTS] = true;
    limits.travelled = travelled(run, 0);
    tdm_rounded_set_near(&next, layers, tdm_rounded_passes(from));
    if (slots.weights > 0) {
        limits.fixed_rings.weights = limits.fixed_rings.optimizer = true;
        next.rings.weights = slots.weights;
        next.rings.optimizer = slots.states;
    }
    status = tdm_improve(&run->space, &limits, &next, err);
    tdm_candidates_take_better(best, &next);
    return status;
}

/* The same with rings as they serve, and with fewer slots: single moves of a search do not lead
 * there. A slot of weights is what a layer needs. A second slot of states needs several of them. */
static enum tdm_status improve_ways(struct tdm_candidates *run, uint32_t layers,
                                    const struct tdm_rounded *from, struct tdm_rounded *best,
                                    struct tdm_error *err)
{
    const struct tdm_rings rings = from->rings;
    const struct tdm_ring_pins *pins = &run->space.pins->has_ring;
    const bool fixed = pins->weights || pins->optimizer, is_first = from != best;
    enum tdm_status status = TDM_OK;
    if (fixed || is_first || rings.optimizer == 1 || rings.weights == 1)
        status = improve_with(run, layers, (struct slots){0, 0}, from, best, err);
    if (status == TDM_OK && !fixed && rings.weights > 1)
        status = improve_with(run, layers, (struct slots){rings.weights - 1, rings.optimizer}, from,
                              best, err);
    if (status == TDM_OK && !fixed && rings.optimizer == 1 && rings.weights > 1)
        status = improve_with(run, layers, (struct slots){FREE_SLOTS, FREE_SLOTS}, from, best, err);
    return status;
}

/* Goes on from a schedule with one layer more at home on the device after the other, until two in a
 * row promise nothing more. */
static enum tdm_status climb_layers(struct tdm_candidates *run, const struct tdm_rounded *from,
                                    struct tdm_error *err)
{
    const uint32_t layers = run->space.schedule->model->layers;
    struct tdm_rounded *best = &run->rounded[run->rounded_count];
    bool fixed[TDM_STATES];
    tdm_candidates_fixed_homes(run, from->size, fixed);
    if (fixed[TDM_STATE_WEIGHTS])
        return TDM_OK;
    enum tdm_status status = copy_of(run, from, from->size, best, err);
    if (status != TDM_OK)
        return status;
    uint32_t near = best->homes[TDM_STATE_WEIGHTS].device_layers;
    best->fits = false;
    for (unsigned idle = 0; idle < MOST_IDLE && ++near < layers && status == TDM_OK;) {
        const double before = best->fits ? best->cost : NO_BOUND;
        status = improve_ways(run, near, best->fits ? best : from, best, err);
        idle = best->fits && best->cost < before ? 0 : idle + 1;
    }
    if (status == TDM_OK && best->fits) {
        *ratio_of(run, best) = 0; /* with other homes, estimates are off by something else */
        run->rounded_count++;
    } else {
        tdm_rounded_free(best);
    }
    return status;
}

/* The rounding of an order and chunk size that promises most, or NULL. */
static const struct tdm_rounded *most_promising(struct tdm_candidates *run, int order,
                                                uint32_t size)
{
    const struct tdm_rounded *most = NULL;
    for (uint32_t i = 0; i < run->rounded_count; i++) {
        const struct tdm_rounded *rounded = &run->rounded[i];
        if ((int)rounded->order == order && rounded->size == size &&
            (most == NULL || rounded->cost < most->cost))
            most = rounded;
    }
    return most;
}

/* Climbs from the rounding of each order and chunk size that promises most, if that is not much
 * slower than the winner. */
static enum tdm_status climb_all(struct tdm_candidates *run, struct tdm_error *err)
{
    const double slowest = TOO_SLOW * tdm_candidates_best_seconds(run);
    enum tdm_status status = TDM_OK;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < run->space.size_count && status == TDM_OK; size++) {
            const struct tdm_rounded *from =
                tdm_candidates_is_due(run, size) ? most_promising(run, order, size) : NULL;
            if (from != NULL && fmin(from->cost, corrected_cost(run, from)) < slowest)
                status = climb_layers(run, from, err);
        }
    return status;
}

/* Where layers are updated on the host: tries more of them at home on the device, from the winner,
 * as long as that helps. Before that, far from the bound, in all orders and chunk sizes. */
static enum tdm_status try_layers(struct tdm_candidates *run, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (!tdm_is_far(run->space.bases[run->winner->size].optimizer.on))
        return TDM_OK;
    if (run->simulation.step_seconds > FAR_FROM_BOUND * run->bound_of[run->on])
        status = climb_all(run, err);
    else
        status = climb_layers(run, run->winner, err);
    for (unsigned turn = 0; turn < TDM_LAYER_TURNS && status == TDM_OK; turn++) {
        const double before = run->simulation.step_seconds;
        status = tdm_candidates_try_rounded(run, err);
        if (status != TDM_OK || run->simulation.step_seconds >= before)
            return status;
        status = climb_layers(run, run->winner, err);
    }
    return status == TDM_OK ? tdm_candidates_try_rounded(run, err) : status;
}

/* Tries the winner in all other chunk sizes. */
static enum tdm_status vary_sizes(struct tdm_candidates *run, struct tdm_error *err)
{
    const struct tdm_rounded *from = run->winner;
    enum tdm_status status = TDM_OK;
    for (uint32_t size = 0; size < run->space.size_count && status == TDM_OK; size++)
        if (size != from->size && tdm_candidates_is_due(run, size) &&
            tdm_candidates_size_could_win(run, (int)from->order, size))
            status = vary_size(run, size, 0, err);
    return status == TDM_OK ? tdm_candidates_try_rounded(run, err) : status;
}

enum tdm_status tdm_candidates_try_other_sizes(struct tdm_candidates *run, struct tdm_error *err)
{
    if (!run->found || !tdm_candidates_may_round(run) ||
        !tdm_candidates_is_due(run, run->winner->size) || !tdm_candidates_could_win(run, 0))
        return TDM_OK;
    enum tdm_status status = vary_sizes(run, err);
    const double before = run->simulation.step_seconds;
    if (status == TDM_OK && tdm_candidates_could_win(run, 0))
        status = try_layers(run, err);
    if (status == TDM_OK && run->simulation.step_seconds < before)
        status = vary_sizes(run, err);
    if (status == TDM_OK && tdm_candidates_could_win(run, 0))
        status = try_evenly(run, err);
    if (status != TDM_OK ||
        run->simulation.step_seconds > AS_IT_IS * tdm_candidates_best_seconds(run))
        return status;
    unsigned idle = 0; /* walks in a row that gained nothing */
    for (unsigned i = 0;
         i < TDM_WALKS && idle < MOST_IDLE && status == TDM_OK && tdm_candidates_could_win(run, 0);
         i++) {
        const double before = run->simulation.step_seconds;
        status = tdm_candidates_walk_on(run, i, err);
        idle = run->simulation.step_seconds < before ? 0 : idle + 1;
    }
    return status;
}

enum tdm_status tdm_candidates_walk_on(struct tdm_candidates *run, unsigned number,
                                       struct tdm_error *err)
{
    enum tdm_status status = vary_size(run, run->winner->size, TDM_TURNS + number, err);
    return status == TDM_OK ? tdm_candidates_try_rounded(run, err) : status;
}

enum tdm_status tdm_candidates_try_put_off(struct tdm_candidates *run, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    int order;
    uint32_t size;
    while (status == TDM_OK && tdm_candidates_next_put_off(run, &order, &size)) {
        run->is_put_off[order][size] = false;
        if (run->late) { /* it is searched as if it came first */
            memset(run->all_deepened, 0, sizeof(run->all_deepened));
            run->deepened[order][size] = 0;
        }
        status = tdm_candidates_relax_one(run, (enum tdm_order)order, size, err);
        if (status == TDM_OK)
            status = tdm_candidates_try_rounded(run, err);
    }
    return status;
}
