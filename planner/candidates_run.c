/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a search: opening, closing, and what its steps ask: what pins allow, what is due,
 * and what could still win. */
#include "planner/candidates_parts.h"

#include "base/size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ESTIMATES_LOG2 16u   /* estimates remembered in a search */
#define MEASURED_LOG2 12u    /* and simulations remembered while polishing */
#define QUICK_ESTIMATES 100u /* of one rounding */
#define LEAST_EFFORT 0.2     /* share of the effort that remains at the bound, */
#define WIDE_GAP 0.01        /* and the gap from which on all of it does */

/* ---- opening and closing ---- */

/* Rings that are not pinned have their usual slots. */
static void forget_rings(struct tdm_rings *rings, const struct tdm_pins *pins)
{
    const struct tdm_rings given = *rings, usual = TDM_DEFAULT_RINGS;
    const struct tdm_ring_pins *has = &pins->has_ring;
    *rings = usual;
    rings->weights = (has->weights ? &given : &usual)->weights;
    rings->optimizer = (has->optimizer ? &given : &usual)->optimizer;
    rings->stashed = (has->stashed ? &given : &usual)->stashed;
    rings->kv = (has->kv ? &given : &usual)->kv;
    rings->gather = (has->gather ? &given : &usual)->gather;
    rings->ahead = (has->ahead ? &given : &usual)->ahead;
    rings->host_gradients = (pins->has_host_gradients ? &given : &usual)->host_gradients;
}

/* State that is not pinned starts on the device, whatever an earlier search found; on the host if
 * updates run there. TDM_USAGE: host updates are requested and homes do not allow them. */
enum tdm_status tdm_candidates_forget_homes(struct tdm_schedule *schedule,
                                            const struct tdm_pins *pins, struct tdm_error *err)
{
    if (!pins->has_update_place)
        schedule->optimizer.on = TDM_DEVICE;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        if (!pins->has_home[state])
            schedule->homes[state] =
                (struct tdm_home){schedule->model->layers, TDM_DEVICE, TDM_DEVICE};
    forget_rings(&schedule->rings, pins);
    if (tdm_is_far(schedule->optimizer.on) &&
        !tdm_host_homes(schedule, pins, schedule->homes, err)) {
        err->status = TDM_USAGE;
        return TDM_USAGE;
    }
    return TDM_OK;
}

enum tdm_status tdm_candidates_open(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                    int queue_place, struct tdm_candidates *run,
                                    struct tdm_error *err)
{
    *run = (struct tdm_candidates){.queue = {.place = queue_place}, .bound_seconds = NO_BOUND};
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        run->bound_of[place] = NO_BOUND;
    tdm_place_limits(schedule, run->limit_bytes);
    if (queue_place < (int)TDM_MAX_PLACES)
        run->limit_bytes[queue_place] = TDM_SIZE_MAX;
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++)
        run->least_seconds[i / TDM_BASES][i % TDM_BASES] = NO_BOUND;
    enum tdm_status status = tdm_candidates_forget_homes(schedule, pins, err);
    memcpy(run->asked.homes, schedule->homes, sizeof(run->asked.homes));
    run->asked.rings = schedule->rings;
    run->asked.on = run->on = schedule->optimizer.on;
    if (status == TDM_OK)
        status = tdm_search_space_open(schedule, pins, queue_place < (int)TDM_MAX_PLACES,
                                       &run->space, err);
    if (status != TDM_OK)
        return status;
    if (schedule->pass == TDM_TRAIN && queue_place == (int)TDM_MAX_PLACES) {
        run->space.estimates = tdm_memo_new(sizeof(struct tdm_estimate), ESTIMATES_LOG2);
        run->measured = tdm_memo_new(sizeof(struct measured), MEASURED_LOG2);
    }
    /* of every order and chunk size: that of its program, layers laid out evenly, and more layers
     * on the device; variants of the winner: two of each chunk size, and one of each walk */
    run->rounded = calloc((size_t)TDM_BASES * (3 * TDM_ORDERS + 2) +
                              TDM_PLANNED_PLACES * TDM_WALKS + TDM_CLIMBS + TDM_LAYER_TURNS,
                          sizeof(*run->rounded));
    bool ok = run->rounded != NULL;
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++) {
        struct tdm_rounded *best = &run->best[i];
        best->groups = calloc((size_t)schedule->model->layers + 1, sizeof(*best->groups));
        ok = ok && best->groups != NULL;
    }
    if (!ok)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates");
    return TDM_OK;
}

void tdm_candidates_restore(const struct tdm_candidates *run, struct tdm_schedule *schedule)
{
    memcpy(schedule->homes, run->asked.homes, sizeof(schedule->homes));
    schedule->rings = run->asked.rings;
    schedule->optimizer.on = run->asked.on;
}

void tdm_candidates_close(struct tdm_candidates *run)
{
    for (uint32_t i = 0; i < run->rounded_count; i++)
        tdm_rounded_free(&run->rounded[i]);
    free(run->rounded);
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++)
        tdm_rounded_free(&run->best[i]);
    free(run->queue.recipes);
    free(run->program);
    tdm_memo_free(run->measured);
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < TDM_BASES; size++)
            free(run->prices[order][size].of_rows);
    tdm_search_space_close(&run->space);
}

/* ---- what pins and passes allow ---- */

bool tdm_candidates_without(const struct tdm_candidates *run, enum tdm_heuristic heuristic)
{
    return (run->space.pins->without >> heuristic) & 1;
}

bool tdm_candidates_may_have(const struct tdm_candidates *run, int order)
{
    const struct tdm_pins *pins = run->space.pins;
    return !pins->has_order || (int)pins->order == order;
}

bool tdm_candidates_is_due(const struct tdm_candidates *run, uint32_t size)
{
    return run->space.bases[size].optimizer.on == run->on;
}

bool tdm_candidates_may_round(const struct tdm_candidates *run)
{
    const struct tdm_pins *pins = run->space.pins;
    return !tdm_candidates_without(run, TDM_ROUNDING) && !pins->has_attention &&
           !tdm_pins_fix_stores(pins);
}

void tdm_candidates_fixed_homes(const struct tdm_candidates *run, uint32_t size,
                                bool fixed[TDM_STATES])
{
    const bool host = tdm_is_far(run->space.bases[size].optimizer.on);
    const bool *pinned = run->space.pins->has_home;
    const bool any =
        pinned[TDM_STATE_WEIGHTS] || pinned[TDM_STATE_MASTER] || pinned[TDM_STATE_MOMENTS];
    for (int state = 0; state < TDM_STATES; state++)
        fixed[state] = host || pinned[state];
    if (host) /* the others go with them, unless they are all on the host */
        fixed[TDM_STATE_WEIGHTS] = any && !tdm_search_space_passes(&run->space, size);
}

void tdm_candidates_program_homes(const struct tdm_candidates *run, uint32_t size,
                                  bool fixed[TDM_STATES])
{
    tdm_candidates_fixed_homes(run, size, fixed);
    if (tdm_is_far(run->space.bases[size].optimizer.on) && !fixed[TDM_STATE_WEIGHTS])
        fixed[TDM_STATE_MASTER] = fixed[TDM_STATE_MOMENTS] =
            tdm_search_space_passes(&run->space, size);
}

struct tdm_rounding_limits tdm_candidates_rounding_limits(const struct tdm_candidates *run,
                                                          const struct tdm_rounded *rounded)
{
    const uint32_t size = rounded->size;
    const struct tdm_pins *pins = run->space.pins;
    struct tdm_rounding_limits limits = {.fixed_groups = pins->group_count > 0,
                                         .no_structure = tdm_candidates_without(run, TDM_STRUCTURE),
                                         .no_fine = tdm_candidates_without(run, TDM_FINE),
                                         .most_estimates = QUICK_ESTIMATES,
                                         .richest = TDM_SEARCHED_SET,
                                         .slower = SLOWER,
                                         .copies = COPIES};
    memcpy(limits.bytes, run->limit_bytes, sizeof(limits.bytes));
    limits.fixed_rings = pins->has_ring;
    tdm_candidates_fixed_homes(run, size, limits.fixed_homes);
    limits.tied = tdm_is_far(run->space.bases[size].optimizer.on);
    limits.passing = limits.tied && run->passing[rounded->order][size];
    if (limits.tied && rounded->homes[TDM_STATE_WEIGHTS].device_layers == 0)
        limits.fixed_homes[TDM_STATE_WEIGHTS] = true;
    return limits;
}

/* ---- what could win ---- */

/* A schedule this close to the bound needs no improvement. */
#define ENOUGH (1 + 1e-5)

bool tdm_candidates_could_win(const struct tdm_candidates *run, double seconds)
{
    double best = run->simulation.step_seconds;
    double bound = run->bound_of[run->on];
    bool done = bound < NO_BOUND && best <= ENOUGH * bound;
    return !run->found || (seconds < best && !done);
}

double tdm_candidates_best_seconds(const struct tdm_candidates *run)
{
    double seconds = run->found ? run->simulation.step_seconds : NO_BOUND;
    return run->found && run->other_seconds > 0 ? fmin(seconds, run->other_seconds) : seconds;
}

double tdm_candidates_share_of_effort(const struct tdm_candidates *run)
{
    double bound = run->bound_of[run->on];
    double gap =
        run->found && bound > 0 && bound < NO_BOUND ? run->simulation.step_seconds / bound - 1 : 1;
    return fmin(fmax(gap / WIDE_GAP, LEAST_EFFORT), 1);
}
