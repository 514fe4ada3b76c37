/* SPDX-License-Identifier: Apache-2.0 */
/* The moves of a local search: splits and settings of groups, homes and rings, boundaries of
 * groups. */
#include "planner/rounding_parts.h"

#include <string.h>

/* Steps of a split, or of the layers at home on the device. */
static const int32_t steps[STEPS] = {-64, -16, -4, -1, 1, 4, 16, 64};

/* ---- groups ---- */

static uint32_t moved(uint32_t from, int32_t by, uint32_t chunks)
{
    int64_t to = (int64_t)from + by;
    return to < 0 ? 0 : to > (int64_t)chunks ? chunks : (uint32_t)to;
}

/* Moves the split of what is kept or held; at the end nothing is. */
static void move_split(enum tdm_set *set, uint32_t *from_chunk, int32_t by, uint32_t chunks)
{
    const uint32_t to = moved(*set == TDM_SET_INPUT ? chunks : *from_chunk, by, chunks);
    if (to == chunks)
        *set = TDM_SET_INPUT;
    else if (*set == TDM_SET_INPUT)
        *set = TDM_SET_ATTENTION_OUTPUT;
    *from_chunk = to == chunks ? 0 : to;
}

static enum tdm_set richer(enum tdm_set set, enum tdm_set richest)
{
    return set == richest ? set : tdm_set_richer(set);
}

static void change(const struct tdm_local_search *s, struct tdm_group *group, int move)
{
    const enum tdm_set richest = s->limits->richest;
    const struct tdm_schedule *schedule = s->space->schedule;
    switch (move) {
    case MOVE_KEPT_RICHER:
        group->kept = richer(group->kept, richest);
        if (tdm_set_has(group->kept, TDM_STORE_KV) &&
            group->kv == TDM_KV_RECOMPUTE) { /* K and V are needed by the set */
            group->kv = TDM_KV_KEEP;
            group->kv_place = group->kept_place;
        }
        break;
    case MOVE_KEPT_POORER:
        group->kept = tdm_set_poorer(group->kept);
        break;
    case MOVE_HELD_RICHER:
        group->held = richer(group->held, richest);
        break;
    case MOVE_HELD_POORER:
        group->held = tdm_set_poorer(group->held);
        break;
    case MOVE_KEPT_PLACE:
        group->kept_place = tdm_other_place(schedule, group->kept_place);
        break;
    case MOVE_HELD_PLACE:
        group->held_place = tdm_other_place(schedule, group->held_place);
        break;
    case MOVE_INPUT_PLACE:
        group->input_place = tdm_other_place(schedule, group->input_place);
        break;
    case MOVE_KV:
        group->kv = group->kv == TDM_KV_KEEP ? TDM_KV_RECOMPUTE : TDM_KV_KEEP;
        break;
    case MOVE_KV_PLACE:
        group->kv_place = tdm_other_place(schedule, group->kv_place);
        break;
    default:
        group->kv_gradients_place = tdm_other_place(schedule, group->kv_gradients_place);
    }
}

void tdm_rounding_move_group(const struct tdm_local_search *s, struct tdm_group *group, size_t move,
                             uint32_t chunks)
{
    if (move < STEPS)
        move_split(&group->kept, &group->kept_from_chunk, steps[move], chunks);
    else if (move < 2 * STEPS)
        move_split(&group->held, &group->held_from_chunk, steps[move - STEPS], chunks);
    else
        change(s, group, (int)(move - 2 * STEPS));
}

bool tdm_rounding_move_groups(struct tdm_local_search *s, uint32_t from, uint32_t to)
{
    uint32_t chunks = tdm_estimator_chunks(s->estimator);
    bool better = false;
    for (size_t move = 0; move < GROUP_MOVES; move++)
        do {
            for (uint32_t g = from; g < to; g++)
                tdm_rounding_move_group(s, &s->point.groups[g], move, chunks);
            if (!tdm_rounding_decide(s))
                break;
            better = true;
        } while (s->left > 0 && move < 2 * STEPS);
    return better;
}

bool tdm_rounding_move_pair(struct tdm_local_search *s)
{
    uint32_t chunks = tdm_estimator_chunks(s->estimator);
    for (uint32_t apart = 0; apart < s->point.group_count; apart++)
        for (uint32_t g = 0; g + apart < s->point.group_count; g++)
            for (size_t first = 0; first < GROUP_MOVES; first++)
                for (size_t second = apart == 0 ? first + 1 : 0; second < GROUP_MOVES; second++) {
                    if (s->left == 0)
                        return false;
                    tdm_rounding_move_group(s, &s->point.groups[g], first, chunks);
                    tdm_rounding_move_group(s, &s->point.groups[g + apart], second, chunks);
                    if (tdm_rounding_decide(s))
                        return true;
                }
    return false;
}

bool tdm_rounding_move_places(struct tdm_local_search *s, uint32_t from, uint32_t to)
{
    bool better = false;
    for (int move = MOVE_KEPT_PLACE; move <= MOVE_INPUT_PLACE; move++) {
        for (uint32_t g = from; g < to; g++)
            change(s, &s->point.groups[g], move);
        better = tdm_rounding_decide_fit(s) || better;
    }
    return better;
}

/* ---- homes and rings ---- */

void tdm_rounding_set_layers(struct tdm_local_search *s, int state, uint32_t device_layers)
{
    const uint32_t layers = s->space->schedule->model->layers;
    if (!s->limits->tied)
        s->point.homes[state].device_layers = device_layers;
    else
        tdm_rounded_set_near(&s->point, device_layers < layers ? device_layers : layers - 1,
                             tdm_rounded_passes(&s->point));
}

void tdm_rounding_fill(struct tdm_local_search *s, int state)
{
    uint32_t low = 0, high = s->space->schedule->model->layers - s->limits->tied;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        tdm_rounding_set_layers(s, state, middle);
        if (tdm_rounding_fits(s))
            low = middle;
        else
            high = middle - 1;
    }
    tdm_rounding_set_layers(s, state, low);
}

uint32_t tdm_rounding_stashed(const struct tdm_local_search *s, uint32_t slots)
{
    const uint32_t least = s->space->bases[s->point.size].rings.stashed;
    const uint32_t chunks = tdm_estimator_chunks(s->estimator);
    const uint32_t most = chunks < TDM_MOST_STASHED ? chunks : TDM_MOST_STASHED;
    return slots < least || most < least ? least : slots < most ? slots : most;
}

/* Changes the number of a ring's slots, K and V that are made ahead or how far fetches run ahead.
 * False: that is not allowed, or changes nothing. */
static bool change_ring(struct tdm_local_search *s, uint32_t change)
{
    struct tdm_rings *rings = &s->point.rings;
    const struct tdm_ring_pins *fixed = &s->limits->fixed_rings;
    if (change >= AHEAD_CHANGES && change < KV_AHEAD_CHANGE) {
        const uint32_t most = s->space->bases[s->point.size].prefetch, before = s->point.prefetch;
        const uint32_t ahead = change == AHEAD_CHANGES ? before / 2 : 2 * before;
        if (!s->limits->deep || s->space->pins->has_prefetch)
            return false;
        s->point.prefetch = ahead < TDM_LEAST_AHEAD ? TDM_LEAST_AHEAD : ahead > most ? most : ahead;
        return s->point.prefetch != before;
    }
    if (change == KV_AHEAD_CHANGE) { /* it needs the weights of two layers */
        if (!s->limits->deep || s->point.order != TDM_LAYER_MAJOR || fixed->ahead ||
            (fixed->weights && rings->weights == 1))
            return false;
        rings->ahead ^= 1;
        if (rings->ahead > 0 && rings->weights == 1)
            rings->weights = 2;
        return true;
    }
    if (change >= STASHED_CHANGES) {
        const uint32_t before = rings->stashed;
        if (!s->limits->stashes || fixed->stashed)
            return false;
        rings->stashed =
            tdm_rounding_stashed(s, change == STASHED_CHANGES ? before / 2 : 2 * before);
        return rings->stashed != before;
    }
    if (change % 2 == 0 ? fixed->optimizer : fixed->weights)
        return false;
    uint32_t *slots = change % 2 == 0 ? &rings->optimizer : &rings->weights, before = *slots;
    *slots = change >= 2 ? *slots + (*slots < TDM_MOST_SLOTS) : *slots - (*slots > 1);
    return *slots != before;
}

bool tdm_rounding_change_home(struct tdm_local_search *s, uint32_t change, int *state)
{
    const uint32_t layers = s->space->schedule->model->layers;
    *state = FILL_NOTHING;
    if (change < RING_CHANGES || change >= STASHED_CHANGES)
        return change_ring(s, change);
    const uint32_t move = (change - RING_CHANGES) % CHANGES_OF_STATE;
    *state = (int)((change - RING_CHANGES) / CHANGES_OF_STATE);
    struct tdm_home *home = &s->point.homes[*state];
    if (s->limits->fixed_homes[*state])
        return false;
    if (move >= STEPS && s->limits->tied) {
        if (!s->limits->passing || move > STEPS || home->device_layers == 0 || s->point.passes_only)
            return false;
        tdm_rounded_set_near(&s->point, home->device_layers, !tdm_rounded_passes(&s->point));
        return true;
    }
    if (move >= STEPS) {
        enum tdm_place *place = move == STEPS ? &home->embedding : &home->head;
        *place = tdm_other_place(s->space->schedule, *place);
        return true;
    }
    const uint32_t before = home->device_layers;
    tdm_rounding_set_layers(s, *state, moved(before, steps[move], layers));
    return home->device_layers != before;
}

bool tdm_rounding_move_homes(struct tdm_local_search *s, bool (*decided)(struct tdm_local_search *))
{
    bool better = false;
    for (uint32_t change = 0; change < HOME_CHANGES; change++)
        for (int with = FILLS - 1; with >= (s->limits->deep ? 0 : FILL_NOTHING); with--) {
            int state;
            bool changed = tdm_rounding_change_home(s, change, &state);
            if (with < FILL_NOTHING && (with == state || s->limits->fixed_homes[with]))
                changed = false;
            if (!changed) {
                tdm_rounded_copy(&s->point, s->best);
                continue;
            }
            if (with < FILL_NOTHING)
                tdm_rounding_fill(s, with);
            better = decided(s) || better;
        }
    return better;
}

/* ---- boundaries ---- */

void tdm_rounding_move_layer(struct tdm_local_search *s, uint32_t g, bool up)
{
    struct tdm_group *from = &s->point.groups[up ? g : g + 1];
    struct tdm_group *to = &s->point.groups[up ? g + 1 : g];
    to->layers++;
    if (--from->layers > 0)
        return;
    memmove(from, from + 1,
            (size_t)(s->point.groups + s->point.group_count - from - 1) * sizeof(*from));
    s->point.group_count--;
}

void tdm_rounding_cut_group(struct tdm_local_search *s, uint32_t g, uint32_t below)
{
    struct tdm_group *group = &s->point.groups[g];
    memmove(group + 1, group, (s->point.group_count - g) * sizeof(*group));
    group[1].layers -= below;
    group->layers = below;
    s->point.group_count++;
}

/* The most chunks that a group can hold on the device. */
static uint32_t most_near(struct tdm_local_search *s, struct tdm_group *group)
{
    uint32_t low = 0, high = tdm_estimator_chunks(s->estimator);
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        group->held_device_chunks = middle;
        if (tdm_rounding_fits_device(s))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Lets a group hold a set from the earliest chunk on that fits. */
static void hold_most(struct tdm_local_search *s, struct tdm_group *group, enum tdm_set held)
{
    const uint32_t chunks = tdm_estimator_chunks(s->estimator);
    uint32_t low = 0, high = chunks;
    group->held = held;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        group->held_from_chunk = middle;
        if (tdm_rounding_fits(s))
            high = middle;
        else
            low = middle + 1;
    }
    group->held_from_chunk = high;
    if (high == chunks) {
        group->held = TDM_SET_INPUT;
        group->held_from_chunk = 0;
    }
}

/* A group that holds on the host holds the last chunks on the device: as many as fit there with
 * the set, up to as many as fit without it. */
struct holding {
    enum tdm_set set;
    uint32_t least, most;
};

/* Chooses the fewest of these with which what the groups hold without their sets fits both places.
 */
static bool hold_inputs(struct tdm_local_search *s, const struct holding *holding)
{
    for (uint32_t g = 0; g < s->point.group_count; g++)
        s->point.groups[g].held_device_chunks = holding[g].most;
    if (!tdm_rounding_fits(s))
        return false;
    for (uint32_t g = 0; g < s->point.group_count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        uint32_t low = holding[g].least, high = holding[g].most;
        bool is_first = true; /* most groups need no more than the least */
        while (low < high) {
            const uint32_t middle = is_first ? low : low + (high - low) / 2;
            group->held_device_chunks = middle;
            is_first = false;
            if (tdm_rounding_fits(s))
                high = middle;
            else
                low = middle + 1;
        }
        group->held_device_chunks = high;
    }
    return true;
}

void tdm_rounding_hold(struct tdm_local_search *s)
{
    struct holding holding[TDM_MOST_HOLDING] = {{0}};
    const uint32_t count = s->point.group_count;
    if (s->point.order != TDM_LAYER_MAJOR || count > TDM_MOST_HOLDING)
        return;
    for (uint32_t g = 0; g < count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        holding[g].set = group->held == TDM_SET_INPUT ? TDM_SET_ATTENTION_OUTPUT : group->held;
        group->held = TDM_SET_INPUT;
        group->held_from_chunk = group->held_device_chunks = 0;
    }
    for (uint32_t g = 0; g < count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        if (group->layers == 1 || !tdm_is_far(group->held_place))
            continue;
        holding[g].most = most_near(s, group);
        group->held = holding[g].set;
        holding[g].least = most_near(s, group);
        group->held = TDM_SET_INPUT;
        group->held_device_chunks = 0;
    }
    if (!hold_inputs(s, holding))
        return;
    for (uint32_t g = 0; g < count; g++)
        if (s->point.groups[g].layers > 1)
            hold_most(s, &s->point.groups[g], holding[g].set);
}

bool tdm_rounding_decide_held(struct tdm_local_search *s)
{
    tdm_rounding_hold(s);
    return tdm_rounding_decide(s);
}

bool tdm_rounding_move_boundaries(struct tdm_local_search *s,
                                  bool (*decided)(struct tdm_local_search *))
{
    bool better = false;
    uint32_t layers = s->space->schedule->model->layers;
    if (s->limits->fixed_groups)
        return false;
    for (uint32_t g = 0; g + 1 < s->point.group_count; g++)
        for (int up = 0; up < 2 && g + 1 < s->point.group_count; up++) {
            tdm_rounding_move_layer(s, g, up);
            better = decided(s) || better;
        }
    for (uint32_t g = 0; g < s->point.group_count && s->point.group_count < layers; g++) {
        struct tdm_group *group = &s->point.groups[g];
        if (group->layers < 2)
            continue;
        tdm_rounding_cut_group(s, g, group->layers - group->layers / 2);
        better = decided(s) || better;
    }
    return better;
}
