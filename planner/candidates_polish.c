/* SPDX-License-Identifier: Apache-2.0 */
/* Polishing: searches the neighbours of schedules by simulation, of small steps all of them, and
 * of others those with richer sets; and walks by simulation, of steps that wait for the host. */
#include "planner/candidates_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Counts a remembered schedule as effort and as tried, so that a memo does not change the
 * result. */
static void count_again(struct tdm_candidates *run, const struct measured *measured)
{
    run->ops += measured->ops;
    run->counts.lowered++;
    run->counts.simulated += measured->step_seconds < TDM_UNMEASURED;
}

static bool measure(void *self, const struct tdm_rounded *rounded, double *seconds)
{
    struct tdm_candidates *run = self;
    struct measured measured;
    const struct tdm_memo_key key = tdm_rounded_key(rounded);
    uint64_t used_bytes[TDM_MAX_PLACES], before = run->ops;
    bool fits;
    *seconds = TDM_UNMEASURED;
    if (run->status != TDM_OK) /* the search asks on until its turn is over */
        return false;
    if (run->ops + run->simulation.op_count > run->most_ops || !tdm_candidates_could_win(run, 0))
        return false;
    if (tdm_memo_find(run->measured, key, &measured)) {
        count_again(run, &measured);
        *seconds = measured.step_seconds;
        return true;
    }
    tdm_rounded_write(&run->space, rounded);
    run->status = tdm_candidates_try_schedule(run, rounded->size, &rounded->tiles, &fits,
                                              used_bytes, seconds, &run->err);
    measured = (struct measured){.step_seconds = *seconds, .ops = run->ops - before};
    if (run->status == TDM_OK)
        tdm_memo_note(run->measured, key, &measured);
    return run->status == TDM_OK;
}

/* ---- a point ---- */

#define STARTS 18u

/* Sets all groups of a point to one set at one place. K and V are on the device, on the host, or on
 * the host for the lower half of the groups. */
static void start_over(enum tdm_place far, struct tdm_rounded *point, unsigned start)
{
    for (uint32_t g = 0; g < point->group_count; g++) {
        struct tdm_group *group = &point->groups[g];
        group->kept = (enum tdm_set)(TDM_SET_ATTENTION_OUTPUT + start % 3);
        group->kept_from_chunk = 0;
        group->kept_place = start / 3 % 2 == 0 ? TDM_DEVICE : far;
        bool far_kv = start / 6 % 3 == 1 || (start / 6 % 3 == 2 && 2 * g + 1 < point->group_count);
        group->kv_place = far_kv ? far : TDM_DEVICE;
        group->kv = TDM_KV_KEEP;
    }
}

/* The fastest schedule of an order (TDM_ORDERS: of any), or NULL. */
static const struct tdm_rounded *best_of(const struct tdm_candidates *run, int order)
{
    const struct tdm_rounded *best = NULL;
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++) {
        const struct tdm_rounded *of = &run->best[i];
        if (of->fits && tdm_candidates_is_due(run, of->size) &&
            (order == TDM_ORDERS || (int)of->order == order) &&
            (best == NULL || of->seconds < best->seconds))
            best = of;
    }
    return best;
}

#define SMALL_OPS 600u

/* Is a step so small that simulations are cheap, and waits inside bodies matter? */
static bool is_small(const struct tdm_candidates *run)
{
    return run->simulation.op_count < SMALL_OPS;
}

/* tdm_polish() of a copy of a point. */
static enum tdm_status polish_with(struct tdm_candidates *run,
                                   const struct tdm_rounding_limits *limits,
                                   const struct tdm_rounded *from, double seconds,
                                   struct tdm_error *err)
{
    struct tdm_rounded point;
    if (!tdm_rounded_duplicate(&run->space, from, &point))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    enum tdm_status status = tdm_polish(&run->space, limits, &point, seconds, measure, run, err);
    tdm_rounded_free(&point);
    if (status == TDM_OK && run->status != TDM_OK)
        *err = run->err;
    return status == TDM_OK ? run->status : status;
}

/* Searches the neighbours of a point by simulation. `start` above 0: begins at the variant of the
 * point that start_over() makes, in `order`. */
static enum tdm_status polish_point(struct tdm_candidates *run, const struct tdm_rounded *from,
                                    enum tdm_order order, unsigned start, enum tdm_set richest,
                                    struct tdm_error *err)
{
    struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, from);
    struct tdm_rounded point;
    limits.richest = richest;
    limits.doubtful = is_small(run);
    if (!tdm_rounded_duplicate(&run->space, from, &point))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    point.order = order;
    if (start > 0)
        start_over(tdm_far_place(run->space.schedule), &point, start - 1);
    enum tdm_status status =
        polish_with(run, &limits, &point, start > 0 ? TDM_UNMEASURED : point.seconds, err);
    tdm_rounded_free(&point);
    return status;
}

/* ---- small steps ---- */

#define POLISH_OPS 100000u /* lowered and simulated at most from a starting point, */
#define ORDER_OPS 50000u   /* and from those of an order, until no other one is begun */

/* Polishes a small step in each order: from the fastest schedule, and from other starting points.
 */
static enum tdm_status polish_small(struct tdm_candidates *run, unsigned first_start,
                                    enum tdm_set richest, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (!is_small(run))
        return TDM_OK;
    run->most_ops = POLISH_OPS;
    for (int order = 0; order < TDM_ORDERS; order++) {
        run->ops = 0;
        for (unsigned start = first_start; start <= STARTS && run->ops < ORDER_OPS; start++) {
            const struct tdm_rounded *best = best_of(run, order);
            if (best == NULL && start > 0)
                best = best_of(run, TDM_ORDERS);
            if (best != NULL && status == TDM_OK && tdm_candidates_may_have(run, order) &&
                tdm_candidates_could_win(run, 0))
                status = polish_point(run, best, (enum tdm_order)order, start, richest, err);
        }
    }
    return status;
}

static bool may_polish(const struct tdm_candidates *run)
{
    const struct tdm_pins *pins = run->space.pins;
    return tdm_candidates_may_round(run) && !pins->quick && !pins->brief &&
           !tdm_candidates_without(run, TDM_POLISH);
}

enum tdm_status tdm_candidates_polish(struct tdm_candidates *run, struct tdm_error *err)
{
    if (!run->found || !may_polish(run))
        return TDM_OK;
    return polish_small(run, 0, TDM_SEARCHED_SET, err);
}

/* ---- steps that wait for the host ---- */

/* Where layers are updated on the host and the step is far from its bound, it waits for the link,
 * for the host's cores and for bytes that other buffers leave, and estimates are off by up to 5%.
 * So what they put in order within that is noise. */
#define MOST_WAITING_OPS 6000u /* of a step: simulations are cheap */
#define OTHERS_OPS 200000u     /* lowered and simulated at most: of roundings that were left, */
#define WALK_OPS 100000u       /* in a walk from the fastest of an order and chunk size, */
#define WINNER_OPS 300000u     /* and in one from the winner, */
#define WORTH_A_WALK 5e-4 /* which is the last one if it saves less than this share of the step */
#define MAYBE_FASTER 1.08 /* likely seconds of a rounding over the best step */
#define MAYBE_AFTER_WALK 1.05 /* step over the best one, of what is walked from */
#define WALK_POINTS 20000u    /* more than are simulated */
#define FIRST_WALK 20u        /* its number: others are lower */

/* Walks from a schedule by simulation. */
static enum tdm_status walk_from(struct tdm_candidates *run, const struct tdm_rounded *from,
                                 uint64_t most_ops, unsigned number, struct tdm_error *err)
{
    struct tdm_rounding_limits limits = tdm_candidates_rounding_limits(run, from);
    limits.deep = limits.stashes = true;
    limits.travelled = WALK_POINTS;
    limits.walk = FIRST_WALK + number;
    run->ops = 0;
    run->most_ops = most_ops;
    return polish_with(run, &limits, from, from->seconds, err);
}

/* Simulates the roundings that were left because others of their order and chunk size were slower
 * than estimated. */
static enum tdm_status try_others(struct tdm_candidates *run, struct tdm_error *err)
{
    double seconds;
    run->ops = 0;
    run->most_ops = OTHERS_OPS;
    for (uint32_t i = 0; i < run->rounded_count; i++) {
        const struct tdm_rounded *rounded = &run->rounded[i];
        if (tdm_candidates_is_due(run, rounded->size) && !rounded->simulated &&
            rounded->likely_seconds < MAYBE_FASTER * run->simulation.step_seconds &&
            !measure(run, rounded, &seconds))
            break;
    }
    if (run->status != TDM_OK)
        *err = run->err;
    return run->status;
}

static bool waits_for_host(const struct tdm_candidates *run)
{
    return run->found && may_polish(run) && tdm_is_far(run->on) &&
           run->simulation.op_count <= MOST_WAITING_OPS &&
           run->simulation.step_seconds >= FAR_FROM_BOUND * run->bound_of[run->on];
}

enum tdm_status tdm_candidates_walk_by_simulation(struct tdm_candidates *run, struct tdm_error *err)
{
    if (!waits_for_host(run))
        return TDM_OK;
    enum tdm_status status = try_others(run, err);
    const double most = MAYBE_AFTER_WALK * run->simulation.step_seconds;
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES && status == TDM_OK; i++) {
        const struct tdm_rounded *from = &run->best[i];
        if (from->fits && tdm_candidates_is_due(run, from->size) && from->seconds < most)
            status = walk_from(run, from, WALK_OPS, 0, err);
    }
    double before = HUGE_VAL;
    for (unsigned number = 1; number <= TDM_WALKS && status == TDM_OK &&
                              run->simulation.step_seconds < (1 - WORTH_A_WALK) * before;
         number++) {
        before = run->simulation.step_seconds;
        status = walk_from(run, best_of(run, TDM_ORDERS), WINNER_OPS, number, err);
    }
    return status;
}

/* ---- richer sets ---- */

/* Sets richer than those of the search must save this share of a step to be worth their bytes:
 * simulated times are not more exact. */
#define WORTH_RICHER 0.001

/* Are richer sets worth a search? If the schedule keeps all searched sets already, richer sets use
 * the memory that is left. Otherwise a byte saves more time for what is not kept yet, and richer
 * sets are tried only if they could save this share of a step. */
#define MAYBE_WORTH_RICHER 0.01

static bool may_enrich(const struct tdm_candidates *run)
{
    const struct tdm_rounded *winner = run->winner;
    bool keeps_all = true;
    for (uint32_t g = 0; g < winner->group_count; g++)
        keeps_all = keeps_all && winner->groups[g].kept == TDM_SEARCHED_SET &&
                    winner->groups[g].kept_from_chunk == 0;
    return keeps_all || tdm_estimator_richer_seconds(run->space.estimators[winner->size]) >=
                            MAYBE_WORTH_RICHER * run->simulation.step_seconds;
}

enum tdm_status tdm_candidates_enrich(struct tdm_candidates *run, struct tdm_error *err)
{
    const struct tdm_simulation simulation = run->simulation;
    struct tdm_rounded poorer;
    enum tdm_status status = TDM_OK;
    if (!run->found || !tdm_candidates_may_round(run) || !may_enrich(run))
        return TDM_OK;
    if (!tdm_rounded_duplicate(&run->space, run->winner, &poorer))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    run->on = run->space.bases[poorer.size].optimizer.on;
    run->bound_of[run->on] = tdm_candidates_bound_of_all(run);
    run->most_ops = MOST_OPS / 8;
    for (int order = 0; order < TDM_ORDERS && status == TDM_OK; order++) {
        const struct tdm_rounded *best = best_of(run, order);
        run->ops = 0;
        if (best != NULL)
            status = polish_point(run, best, best->order, 0, TDM_SETS - 1, err);
    }
    if (status == TDM_OK)
        status = polish_small(run, 1, TDM_SETS - 1, err);
    if (run->simulation.step_seconds > (1 - WORTH_RICHER) * simulation.step_seconds) {
        struct tdm_rounded *was = &run->best[poorer.order * TDM_BASES + poorer.size];
        tdm_rounded_copy(was, &poorer);
        run->winner = was;
        run->simulation = simulation;
    }
    tdm_rounded_free(&poorer);
    return status;
}
