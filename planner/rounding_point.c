/* SPDX-License-Identifier: Apache-2.0 */
/* The point of a local search: its estimate and cost, and whether it is better than the best. */
#include "planner/rounding_parts.h"

#include "base/size.h"

#include <math.h>
#include <string.h>

/* likely seconds of a neighbour that is worth a simulation, over those of the best */
#define HOPEFUL 1.001

/* The effort limit is given for a model of so many layers, and at most so many layers times
 * chunks. */
#define LAYERS 28u
#define BODIES 448u

unsigned tdm_rounding_affordable(const struct tdm_search_space *space, uint32_t size, bool deep,
                                 unsigned estimates)
{
    const uint32_t layers = space->schedule->model->layers;
    const uint64_t bodies = (uint64_t)layers * tdm_estimator_chunks(space->estimators[size]);
    if (deep && tdm_estimator_knows_lanes(space->estimators[size]) && bodies > BODIES)
        return (unsigned)((uint64_t)estimates * BODIES / bodies);
    return layers < LAYERS ? estimates * LAYERS / layers : estimates;
}

/* Adjusts settings to what the order and the sets allow. */
static void mend(const struct tdm_local_search *s)
{
    for (uint32_t g = 0; g < s->point.group_count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        if (s->point.order == TDM_CHUNK_MAJOR) {
            group->kv = TDM_KV_KEEP;
            group->held_place = TDM_DEVICE;
        } else {
            group->kv_gradients_place = TDM_DEVICE;
            if (tdm_set_has(group->kept, TDM_STORE_KV))
                group->kv = TDM_KV_KEEP;
            if (group->kv == TDM_KV_RECOMPUTE)
                group->kv_place = TDM_DEVICE;
            if (group->layers == 1) {
                group->held = TDM_SET_INPUT;
                group->held_from_chunk = 0;
            }
        }
        if (group->layers == 1 || !tdm_is_far(group->held_place))
            group->held_device_chunks = 0;
        if (group->kept == TDM_SET_INPUT)
            group->kept_from_chunk = 0;
        if (group->held == TDM_SET_INPUT)
            group->held_from_chunk = 0;
    }
}

/* Sets the estimator's state to the point's. */
static void set_state(struct tdm_local_search *s)
{
    if (memcmp(s->homes, s->point.homes, sizeof(s->homes)) == 0 &&
        memcmp(&s->rings, &s->point.rings, sizeof(s->rings)) == 0)
        return;
    memcpy(s->homes, s->point.homes, sizeof(s->homes));
    s->rings = s->point.rings;
    tdm_estimator_set_state(s->estimator, s->homes, &s->rings);
}

/* Is a number of bytes within a place's limit? */
static bool is_within(const struct tdm_local_search *s, enum tdm_place place, uint64_t bytes)
{
    return tdm_size_add(bytes, s->limits->reserve[place]) <= s->limits->bytes[place];
}

/* The point's estimate: one that is remembered, or that of its bytes alone, which may be that of
 * the last call. False: its seconds are not there. */
static bool estimate_as_it_is(struct tdm_local_search *s, struct tdm_estimate *estimate,
                              struct tdm_memo_key *key)
{
    *key = tdm_rounded_key(&s->point);
    if (tdm_memo_find(s->space->estimates, *key, estimate))
        return true;
    set_state(s);
    tdm_rounded_write(s->space, &s->point);
    if (memcmp(key, &s->sized, sizeof(*key)) != 0)
        tdm_estimate_bytes_only(s->estimator, s->space->schedule, &s->of_sized);
    s->sized = *key;
    *estimate = s->of_sized;
    return false;
}

/* The same with as many slots for gradients on the host as its memory has left: they save waits of
 * the compute lane, and never cost time. */
static bool find_estimate(struct tdm_local_search *s, struct tdm_estimate *estimate,
                          struct tdm_memo_key *key)
{
    const enum tdm_place far = tdm_far_place(s->space->schedule);
    uint32_t *slots = &s->point.rings.host_gradients;
    mend(s);
    if (!s->limits->tied || s->space->pins->has_host_gradients)
        return estimate_as_it_is(s, estimate, key);
    *slots = TDM_MOST_HOST_GRADIENTS;
    const struct tdm_memo_key most = tdm_rounded_key(&s->point);
    const bool again = memcmp(&most, &s->with_most, sizeof(most)) == 0;
    *slots = s->host_gradients > 0 ? s->host_gradients : TDM_MOST_HOST_GRADIENTS;
    bool known = estimate_as_it_is(s, estimate, key);
    while (!again && *slots > 1 && !is_within(s, far, estimate->bytes[far])) {
        *slots /= 2;
        known = estimate_as_it_is(s, estimate, key);
    }
    /* the last point had few, and this one may have more */
    while (!again && *slots == s->host_gradients && *slots < TDM_MOST_HOST_GRADIENTS &&
           is_within(s, far, estimate->bytes[far])) {
        struct tdm_estimate more;
        struct tdm_memo_key with_more;
        *slots *= 2;
        const bool knows_more = estimate_as_it_is(s, &more, &with_more);
        if (!is_within(s, far, more.bytes[far])) {
            *slots /= 2;
            break;
        }
        s->host_gradients = *slots;
        *estimate = more;
        *key = with_more;
        known = knows_more;
    }
    s->with_most = most;
    s->host_gradients = *slots;
    if (!known) {
        s->sized = *key;
        s->of_sized = *estimate;
    }
    return known;
}

struct tdm_estimate tdm_rounding_size_up(struct tdm_local_search *s)
{
    struct tdm_estimate estimate;
    struct tdm_memo_key key;
    struct tdm_tiles tiles;
    find_estimate(s, &estimate, &key);
    tdm_tiles_choose(s->space, s->point.size, 0, &estimate, &tiles);
    s->left -= s->left > 0 ? 1 : 0;
    return estimate;
}

bool tdm_rounding_fits(struct tdm_local_search *s)
{
    const struct tdm_estimate estimate = tdm_rounding_size_up(s);
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        if (!is_within(s, (enum tdm_place)place, estimate.bytes[place]))
            return false;
    return true;
}

bool tdm_rounding_fits_device(struct tdm_local_search *s)
{
    return is_within(s, TDM_DEVICE, tdm_rounding_size_up(s).bytes[TDM_DEVICE]);
}

/* Bytes of the point beyond the limits, after their estimate; chooses its tiles. */
static uint64_t excess_bytes(struct tdm_local_search *s, struct tdm_estimate estimate)
{
    uint64_t excess = 0;
    tdm_tiles_choose(s->space, s->point.size,
                     tdm_size_left(s->limits->bytes[TDM_DEVICE], s->limits->reserve[TDM_DEVICE]),
                     &estimate, &s->point.tiles);
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
        const uint64_t bytes = tdm_size_add(estimate.bytes[place], s->limits->reserve[place]);
        s->point.bytes[place] = estimate.bytes[place];
        excess = tdm_size_add(excess, tdm_size_left(bytes, s->limits->bytes[place]));
    }
    return excess;
}

/* Its cost. A search that finds nothing better visits all neighbours of its best once more, so the
 * memo answers more than half of the requests. Seconds are not exact where the cost is `enough`. */
double tdm_rounding_cost_of(struct tdm_local_search *s)
{
    const struct tdm_search_space *space = s->space;
    struct tdm_estimate estimate;
    struct tdm_memo_key key;
    const bool known = find_estimate(s, &estimate, &key);
    const uint64_t excess = excess_bytes(s, estimate);
    const double charge = s->price * (double)excess;
    const double tile_seconds = tdm_estimator_tile_seconds(s->estimator, s->point.tiles.large);
    const bool refused = excess > 0 && s->measure != NULL; /* it will not be measured */
    const double enough = refused ? 0 : s->enough - charge - tile_seconds;
    const double copies = s->measure == NULL ? s->limits->copies : 0;
    if (!known ||
        (estimate.is_cut && estimate.likely_seconds + copies * estimate.copy_seconds < enough)) {
        set_state(s);
        tdm_rounded_write(space, &s->point);
        tdm_estimate_add_seconds(s->estimator, space->schedule, enough, copies, &estimate);
        tdm_memo_note(space->estimates, key, &estimate);
    }
    s->point.seconds = estimate.seconds;
    s->point.likely_seconds = estimate.likely_seconds + tile_seconds;
    s->point.fits = excess == 0;
    s->point.cost = s->point.likely_seconds + s->limits->copies * estimate.copy_seconds + charge;
    s->left -= s->left > 0 ? 1 : 0;
    return s->point.cost;
}

/* Is the point equal to the best, except in unused fields? Call after mend(). */
static bool is_best(const struct tdm_local_search *s)
{
    const struct tdm_memo_key point = tdm_rounded_key(&s->point), best = tdm_rounded_key(s->best);
    return memcmp(&point, &best, sizeof(point)) == 0;
}

bool tdm_rounding_decide(struct tdm_local_search *s)
{
    s->enough = s->measure == NULL    ? s->best_cost
                : s->limits->doubtful ? 0
                                      : HOPEFUL * s->best->likely_seconds;
    double cost = tdm_rounding_cost_of(s);
    s->enough = HUGE_VAL;
    if (s->measure != NULL && s->best_cost < TDM_UNMEASURED && is_best(s))
        return false;
    if (s->measure != NULL) {
        bool hopeful =
            s->point.fits && s->point.seconds < s->best_cost &&
            (s->limits->doubtful || s->point.likely_seconds < HOPEFUL * s->best->likely_seconds);
        cost = TDM_UNMEASURED;
        if (hopeful && !s->measure(s->self, &s->point, &cost))
            s->left = 0;
    }
    if (cost < s->best_cost * (1 - 1e-9)) {
        s->best_cost = cost;
        tdm_rounded_copy(s->best, &s->point);
        return true;
    }
    tdm_rounded_copy(&s->point, s->best);
    return false;
}

/* ---- the same splits in all groups ---- */

/* Sets the same splits in all groups. Below `chunks`: kept from chunk `at` on, held before. From
 * `chunks` on: nothing is kept, and held from chunk `at - chunks` on. */
static void set_splits(struct tdm_local_search *s, uint32_t at, uint32_t chunks)
{
    for (uint32_t g = 0; g < s->point.group_count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        group->kept = at < chunks ? s->kept : TDM_SET_INPUT;
        group->kept_from_chunk = at < chunks ? at : 0;
        group->held = at < 2 * chunks ? s->held : TDM_SET_INPUT;
        group->held_from_chunk = at < chunks ? 0 : at < 2 * chunks ? at - chunks : 0;
        if (s->point.order == TDM_LAYER_MAJOR) {
            const bool keeps = tdm_set_has(group->kept, TDM_STORE_KV) || (s->far_kv && at < chunks);
            group->kv = keeps ? TDM_KV_KEEP : TDM_KV_RECOMPUTE;
            group->kv_place = s->far_kv ? group->kept_place : TDM_DEVICE;
        }
    }
}

bool tdm_rounding_decide_fit(struct tdm_local_search *s)
{
    uint32_t chunks = tdm_estimator_chunks(s->estimator), low = 0, high = 2 * chunks;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        set_splits(s, middle, chunks);
        if (tdm_rounding_fits(s))
            high = middle;
        else
            low = middle + 1;
    }
    set_splits(s, high, chunks);
    return tdm_rounding_decide(s);
}
