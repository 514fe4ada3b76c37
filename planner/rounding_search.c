/* SPDX-License-Identifier: Apache-2.0 */
/* Local search: improves a schedule by its estimates, or by measurements of its neighbours. */
#include "planner/rounding_parts.h"

#include <math.h>
#include <string.h>

/* Sets and places that all groups store together, with the splits that fit. */
static const struct stored_sets {
    enum tdm_set kept, held;
    bool far_kv;
} stored_sets[] = {
    {TDM_SET_ATTENTION_OUTPUT, TDM_SET_ATTENTION_OUTPUT, false},
    {TDM_SET_ALL, TDM_SET_ATTENTION_OUTPUT, false},
    {TDM_SET_ALL, TDM_SET_ATTENTION_OUTPUT, true},
    {TDM_SET_QKV, TDM_SET_ATTENTION_OUTPUT, false},
    {TDM_SET_QKV, TDM_SET_ATTENTION_OUTPUT, true},
    {TDM_SET_ATTENTION_OUTPUT, TDM_SET_ALL, false},
    {TDM_SET_ATTENTION_OUTPUT, TDM_SET_ATTENTION_OUTPUT, true},
};
/* a start may be slower than the best schedule known by so much */
#define EVENLY_SLOWER 1.04

/* the last one only where some layers are at home on the device and others are updated on the
 * host: with it elsewhere plans were slower */
#define STORED_SETS (sizeof(stored_sets) / sizeof(stored_sets[0]))
#define USUAL_SETS (STORED_SETS - 1)

static void choose_sets(struct tdm_local_search *s, size_t number)
{
    s->kept = stored_sets[number].kept;
    s->held = stored_sets[number].held;
    s->far_kv = stored_sets[number].far_kv;
}

/* Replaces the groups by equal ones of `layers` each. */
static void make_equal_groups(struct tdm_local_search *s, uint32_t layers, enum tdm_place place)
{
    uint32_t left = s->space->schedule->model->layers;
    s->point.group_count = 0;
    while (left > 0) {
        const uint32_t count = layers < left ? layers : left;
        s->point.groups[s->point.group_count++] = (struct tdm_group){
            .layers = count, .input_place = place, .kept_place = place, .kv = TDM_KV_KEEP};
        left -= count;
    }
}

/* Puts all state that may move at a place. */
static void put_states(struct tdm_local_search *s, enum tdm_place place)
{
    const uint32_t layers = tdm_is_far(place) ? 0 : s->space->schedule->model->layers;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        if (!s->limits->fixed_homes[state] && !s->limits->tied)
            s->point.homes[state] = (struct tdm_home){layers, place, place};
}

/* Replaces the groups by at most `count` ones that are smaller from the bottom up: the top one has
 * about 1 - `fall` of the layers of the lowest one. */
static void make_falling_groups(struct tdm_local_search *s, uint32_t count, double fall,
                                enum tdm_place place)
{
    const uint32_t layers = s->space->schedule->model->layers;
    uint32_t below = 0;
    s->point.group_count = 0;
    for (uint32_t g = 0; g < count; g++) {
        const double part = (g + 1.0) / count;
        const double share = part * (1 - fall / 2 * part) / (1 - fall / 2);
        const uint32_t end = (uint32_t)(share * layers + 0.5);
        if (end == below)
            continue;
        s->point.groups[s->point.group_count++] = (struct tdm_group){.layers = end - below,
                                                                     .input_place = place,
                                                                     .kept_place = place,
                                                                     .held_place = place,
                                                                     .kv = TDM_KV_KEEP};
        below = end;
    }
}

/* Tries groups that are smaller from the bottom up. What a group holds is there with the inputs of
 * all groups below it, so where memory decides how much is computed again, a group may hold the
 * less the higher it is. */
static void start_falling(struct tdm_local_search *s)
{
    static const double falls[] = {0.5, 0.85, 0.95};
    const uint32_t layers = s->space->schedule->model->layers;
    for (uint32_t count = 2; count < layers && !s->limits->fixed_groups; count += 1 + count / 8)
        for (size_t fall = 0; fall < sizeof(falls) / sizeof(falls[0]); fall++)
            for (int place = 0; place < TDM_PLANNED_PLACES; place++) {
                make_falling_groups(s, count, falls[fall],
                                    tdm_planned_place(s->space->schedule, place));
                tdm_rounding_decide_fit(s);
            }
}

/* Tries the lists that are best for the homes so far, and for all state on the host, with one slot
 * of weights or as many as there are. What a group holds is there with the inputs of all groups
 * below it, so where memory decides how much is computed again, a group may hold the less the
 * higher it is. */
static void start_stacks(struct tdm_local_search *s)
{
    const uint32_t layers = s->best->homes[TDM_STATE_WEIGHTS].device_layers;
    if (s->limits->fixed_groups)
        return;
    for (int start = 0; start < 4; start++) {
        if (start / 2 && (s->limits->tied || layers == 0))
            break;
        if (start % 2 && (s->limits->fixed_rings.weights || s->point.rings.weights == 1))
            continue;
        if (start / 2)
            put_states(s, tdm_far_place(s->space->schedule));
        if (start % 2)
            s->point.rings.weights = 1;
        tdm_rounding_stack(s);
    }
}

/* Tries groups of equal sizes, with the homes found so far and with all state on the device: single
 * moves of boundaries seldom lead from few groups to many. */
static void start_groups(struct tdm_local_search *s)
{
    const uint32_t layers = s->space->schedule->model->layers;
    size_t best = s->sets;
    uint32_t best_size = 1;
    for (uint32_t size = 1; size <= layers && !s->limits->fixed_groups; size += 1 + size / 3)
        for (unsigned start = 0; start < 4; start++)
            for (size_t sets = 0; sets < USUAL_SETS; sets++) {
                make_equal_groups(s, size,
                                  start % 2 ? tdm_far_place(s->space->schedule) : TDM_DEVICE);
                if (start / 2)
                    put_states(s, TDM_DEVICE);
                choose_sets(s, sets);
                if (tdm_rounding_decide_fit(s)) {
                    best = sets;
                    best_size = size;
                }
            }
    choose_sets(s, s->sets = best);
    if (best_size > 1) { /* memory makes layers compute again */
        start_falling(s);
        start_stacks(s);
    }
}

/* Tries homes from a grid. If layers are updated on the host, numbers of them that are not, with
 * all sets. Else layers' masters and moments all at one place, embedding and head
 * likewise, and the memory that is left for one state, or for what groups keep. */
static void start_homes(struct tdm_local_search *s)
{
    const uint32_t layers = s->space->schedule->model->layers;
    const enum tdm_place far_place = tdm_far_place(s->space->schedule);
    const bool *fixed = s->limits->fixed_homes;
    const bool tied = s->limits->tied && !fixed[TDM_STATE_WEIGHTS];
    const bool passing = tdm_rounded_passes(s->best); /* it stays so: moves change it */
    for (uint32_t near = passing; near < layers && tied; near += 1 + near / 4)
        for (size_t sets = 0; sets < (near > 0 ? STORED_SETS : USUAL_SETS); sets++)
            for (uint32_t slots = 1;
                 slots <= (passing && !s->limits->fixed_rings.optimizer ? 2 : 1); slots++) {
                choose_sets(s, sets);
                tdm_rounded_set_near(&s->point, near, passing);
                if (slots > 1)
                    s->point.rings.optimizer = slots;
                if (tdm_rounding_decide_fit(s))
                    s->sets = sets;
            }
    choose_sets(s, s->sets);
    if (fixed[TDM_STATE_WEIGHTS] || fixed[TDM_STATE_MASTER] || fixed[TDM_STATE_MOMENTS])
        return;
    for (unsigned start = 0; start < 32; start++)
        for (int with = FILLS - 1; with >= 0; with--)
            for (uint32_t slots = 1; slots <= 2; slots++) {
                for (int state = 0; state <= TDM_STATE_MOMENTS; state++) {
                    bool far = (start >> (state > 0 ? 2 * state - 1 : 0)) & 1;
                    bool ends_far = state > 0 ? (start >> (2 * state)) & 1 : far;
                    enum tdm_place ends = ends_far ? far_place : TDM_DEVICE;
                    s->point.homes[state] = (struct tdm_home){far ? 0 : layers, ends, ends};
                }
                if (!s->limits->fixed_rings.optimizer)
                    s->point.rings.optimizer = slots;
                if (with < FILL_NOTHING)
                    tdm_rounding_fill(s, with);
                tdm_rounding_decide_fit(s);
            }
}

/* What layers keep that do not keep all. They have a place of their own for K and V: of all layers,
 * these can be too much for the link on the host, and too much for the memory on the device. */
static const struct poor_layers {
    enum tdm_set kept;
    bool is_far, far_kv;
} poor_layers[] = {
    {TDM_SET_QKV, true, false},
    {TDM_SET_QKV, true, true},
    {TDM_SET_QKV, false, false},
    {TDM_SET_ATTENTION_OUTPUT, true, true},
    {TDM_SET_ATTENTION_OUTPUT, false, false},
};
#define POOR_LAYERS (sizeof(poor_layers) / sizeof(poor_layers[0]))

/* Groups of one layer, each kind of which is spread evenly: what layers of one kind send in a row
 * would have to wait for the link. */
struct layout {
    uint32_t far; /* layers that keep all on the host; the others, on the device, but */
    const struct poor_layers *poor; /* as few as fit keep this */
    enum tdm_place kv_place;        /* of layers that keep all */
    uint32_t stashed;               /* slots for chunks on their way to the host */
};

/* `poor`: layers that keep less. */
static void lay_evenly(struct tdm_local_search *s, const struct layout *layout, uint32_t poor)
{
    const uint32_t layers = s->space->schedule->model->layers, far = layout->far;
    const enum tdm_place far_place = tdm_far_place(s->space->schedule);
    uint32_t others = 0; /* layers so far that do not keep all on the host */
    make_equal_groups(s, 1, far_place);
    for (uint32_t layer = 0; layer < layers; layer++) {
        struct tdm_group *group = &s->point.groups[layer];
        const bool is_far = far * (layer + 1) / layers > far * layer / layers;
        const bool is_poor =
            !is_far && poor * (others + 1) / (layers - far) > poor * others / (layers - far);
        others += !is_far;
        group->kept = is_poor ? layout->poor->kept : TDM_SEARCHED_SET;
        group->kept_place = is_far || (is_poor && layout->poor->is_far) ? far_place : TDM_DEVICE;
        group->held = TDM_SET_ATTENTION_OUTPUT;
        group->held_place = TDM_DEVICE;
        group->kv_place = is_poor && layout->poor->far_kv ? far_place : layout->kv_place;
    }
}

static bool fits_evenly(struct tdm_local_search *s, const struct layout *layout, uint32_t poor)
{
    lay_evenly(s, layout, poor);
    return tdm_rounding_fits(s);
}

static bool decide_evenly(struct tdm_local_search *s, const struct layout *layout)
{
    uint32_t poor = 0, high = s->space->schedule->model->layers - layout->far;
    s->point.rings.stashed = layout->stashed;
    if (!fits_evenly(s, layout, high)) {
        tdm_rounded_copy(&s->point, s->best);
        return false;
    }
    while (poor < high) {
        const uint32_t middle = (poor + high) / 2;
        if (fits_evenly(s, layout, middle))
            high = middle;
        else
            poor = middle + 1;
    }
    lay_evenly(s, layout, poor);
    return tdm_rounding_decide(s);
}

/* Decides on such layouts with homes and rings of `from`. */
static bool decide_layouts(struct tdm_local_search *s, const struct tdm_rounded *from,
                           enum tdm_place kv_place)
{
    const uint32_t layers = s->space->schedule->model->layers;
    const uint32_t least = tdm_rounding_stashed(s, 0);
    const uint32_t most =
        s->limits->fixed_rings.stashed ? least : tdm_rounding_stashed(s, TDM_MOST_STASHED);
    bool better = false;
    for (size_t poor = 0; poor < POOR_LAYERS; poor++)
        for (uint32_t stashed = least; stashed <= most; stashed *= 2)
            for (uint32_t far = 0; far < layers; far++) {
                const struct layout layout = {far, &poor_layers[poor], kv_place, stashed};
                memcpy(s->point.homes, from->homes, sizeof(from->homes));
                s->point.rings = from->rings;
                better = decide_evenly(s, &layout) || better;
            }
    return better;
}

/* Takes the best of such layouts: with state as it was or on the host, and with rings as they were
 * or with few slots, since many leave little memory for what layers keep. False: all are much
 * slower than the best so far. */
static bool start_evenly(struct tdm_local_search *s)
{
    const struct tdm_rings were = s->point.rings, few = s->space->bases[s->point.size].rings;
    const bool fixed_weights = s->limits->fixed_rings.weights;
    const uint32_t most = fixed_weights ? 1 : few.weights;
    struct tdm_rounded from = s->point;
    bool better = false;
    if (s->limits->fixed_groups || s->limits->richest < TDM_SEARCHED_SET)
        return false;
    s->best_cost = EVENLY_SLOWER * fmin(s->best_cost, s->limits->evenly_cost);
    for (int states = 0; states < (s->limits->tied ? 1 : 2); states++) {
        if (states == 1) {
            put_states(s, tdm_far_place(s->space->schedule));
            memcpy(from.homes, s->point.homes, sizeof(from.homes));
        }
        for (uint32_t slots = 0; slots <= most; slots++) {
            from.rings = slots == 0 ? were : few;
            from.rings.weights = slots == 0 || fixed_weights ? were.weights : slots;
            for (int kv = 0; kv < TDM_PLANNED_PLACES; kv++)
                better =
                    decide_layouts(s, &from, tdm_planned_place(s->space->schedule, kv)) || better;
        }
    }
    return better;
}

/* Searches places, homes and groups, each with the splits that fit. */
static void search_structure(struct tdm_local_search *s)
{
    for (size_t i = 0; i < USUAL_SETS; i++) {
        choose_sets(s, i);
        if (tdm_rounding_decide_fit(s))
            s->sets = i;
    }
    choose_sets(s, s->sets);
    if (s->limits->grid) {
        const unsigned left = s->left;
        start_groups(s);
        start_homes(s);
        s->left = left;
    }
    for (bool better = true; better && s->left > 0;) {
        better = tdm_rounding_move_places(s, 0, s->point.group_count);
        better = tdm_rounding_move_homes(s, tdm_rounding_decide_fit) || better;
        for (uint32_t g = 0; g < s->point.group_count && s->left > 0; g++)
            better = tdm_rounding_move_places(s, g, g + 1) || better;
        better = tdm_rounding_move_boundaries(s, tdm_rounding_decide_fit) || better;
    }
}

/* `pairs`: of moves too. */
static void search_finely(struct tdm_local_search *s, bool pairs)
{
    for (bool better = true; better && s->left > 0;) {
        better = tdm_rounding_move_groups(s, 0, s->point.group_count);
        better = tdm_rounding_move_homes(s, tdm_rounding_decide) || better;
        for (uint32_t g = 0; g < s->point.group_count && s->left > 0; g++)
            better = tdm_rounding_move_groups(s, g, g + 1) || better;
        better = tdm_rounding_move_boundaries(s, tdm_rounding_decide) || better;
        better = tdm_rounding_move_boundaries(s, tdm_rounding_decide_held) || better;
        better = better || (pairs && tdm_rounding_move_pair(s));
    }
}

/* Starts a search from a schedule. */
static enum tdm_status open_search(const struct tdm_search_space *space,
                                   const struct tdm_rounding_limits *limits,
                                   struct tdm_rounded *rounded, struct tdm_local_search *s,
                                   struct tdm_error *err)
{
    *s = (struct tdm_local_search){.space = space,
                                   .limits = limits,
                                   .estimator = space->estimators[rounded->size],
                                   .best = rounded,
                                   .enough = HUGE_VAL,
                                   .left = tdm_rounding_affordable(
                                       space, rounded->size, limits->deep, limits->most_estimates)};
    if (!tdm_rounded_duplicate(space, rounded, &s->point))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    memcpy(s->homes, rounded->homes, sizeof(s->homes));
    s->rings = rounded->rings;
    tdm_estimator_set_state(s->estimator, s->homes, &s->rings);
    return TDM_OK;
}

enum tdm_status tdm_improve(const struct tdm_search_space *space,
                            const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                            struct tdm_error *err)
{
    struct tdm_local_search s;
    enum tdm_status status = open_search(space, limits, rounded, &s, err);
    if (status != TDM_OK)
        return status;
    tdm_rounding_cost_of(&s);
    /* a price above what any byte saves: a tenth of the step for a thousandth of the limit */
    s.price = 100 * s.point.seconds / (double)limits->bytes[TDM_DEVICE];
    s.best_cost = tdm_rounding_cost_of(&s);
    tdm_rounded_copy(rounded, &s.point);
    if (limits->evenly && !start_evenly(&s)) {
        rounded->fits = false;
        tdm_rounded_free(&s.point);
        return TDM_OK;
    }
    if (!limits->no_structure)
        search_structure(&s);
    if (!limits->no_fine)
        search_finely(&s, limits->travelled == 0);
    if (limits->travelled > 0)
        status = tdm_rounding_travel(&s, err);
    if (status == TDM_OK && limits->deep) {
        if (s.point.group_count < space->schedule->model->layers && !limits->fixed_groups)
            tdm_rounding_stack(&s);
        search_finely(&s, true);
    }
    tdm_rounded_free(&s.point);
    if (status == TDM_OK && s.no_memory)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for lists of groups");
    return status;
}

/* ---- by measurement ---- */

/* Changes the search's richest set to the richest of all, in the top `count` groups. */
static void set_richest(struct tdm_local_search *s, bool held, uint32_t count)
{
    for (uint32_t g = s->point.group_count - count; g < s->point.group_count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        enum tdm_set *set = held ? &group->held : &group->kept;
        *set = *set == TDM_SEARCHED_SET ? s->limits->richest : *set;
    }
}

/* Enriches as many groups as fit by the estimate; if measurement refuses them, fewer. */
static void decide_richest(struct tdm_local_search *s, bool held)
{
    uint32_t fitting = 0, high = s->point.group_count;
    while (fitting < high) {
        uint32_t middle = high - (high - fitting) / 2;
        set_richest(s, held, middle);
        tdm_rounding_cost_of(s);
        if (s->point.fits)
            fitting = middle;
        else
            high = middle - 1;
        tdm_rounded_copy(&s->point, s->best);
    }
    for (uint32_t count = fitting; count > 0 && s->left > 0; count /= 2) {
        set_richest(s, held, count);
        if (tdm_rounding_decide(s))
            break;
    }
}

enum tdm_status tdm_polish(const struct tdm_search_space *space,
                           const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                           double seconds, tdm_measure measure, void *self, struct tdm_error *err)
{
    struct tdm_local_search s;
    enum tdm_status status = open_search(space, limits, rounded, &s, err);
    if (status != TDM_OK)
        return status;
    s.measure = measure;
    s.self = self;
    s.best_cost = TDM_UNMEASURED;
    tdm_rounding_cost_of(&s);
    rounded->likely_seconds = s.point.likely_seconds;
    s.best_cost = seconds;
    if (seconds >= TDM_UNMEASURED)
        tdm_rounding_decide(&s);
    if (limits->richest > TDM_SEARCHED_SET) {
        decide_richest(&s, false);
        decide_richest(&s, true);
    }
    if (limits->travelled > 0)
        status = tdm_rounding_travel(&s, err);
    else
        search_finely(&s, true);
    tdm_rounded_free(&s.point);
    return status;
}
