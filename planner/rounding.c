/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding: converts shares to counts, then searches locally over the moves of a schedule. */
#include "planner/rounding.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS 28u /* layers of the model for which the effort limit is given */

/* ---- a point ---- */

void tdm_rounded_free(struct tdm_rounded *rounded)
{
    free(rounded->groups);
    rounded->groups = NULL;
}

void tdm_rounded_copy(struct tdm_rounded *to, const struct tdm_rounded *from)
{
    struct tdm_group *groups = to->groups;
    memcpy(groups, from->groups, from->group_count * sizeof(*groups));
    *to = *from;
    to->groups = groups;
}

void tdm_rounded_write(const struct tdm_kitchen *kitchen, const struct tdm_rounded *rounded)
{
    struct tdm_schedule *schedule = kitchen->schedule;
    schedule->order = rounded->order;
    schedule->chunk_tokens = kitchen->bases[rounded->size].chunk_tokens;
    schedule->prefetch = kitchen->bases[rounded->size].prefetch;
    schedule->optimizer.on = kitchen->bases[rounded->size].optimizer.on;
    schedule->head_tile_tokens = rounded->tiles.safe;
    schedule->group_count = rounded->group_count;
    memcpy(schedule->groups, rounded->groups, rounded->group_count * sizeof(*rounded->groups));
    memcpy(schedule->homes, rounded->homes, sizeof(schedule->homes));
    schedule->rings = rounded->rings;
}

struct tdm_memo_key tdm_rounded_key(const struct tdm_rounded *rounded)
{
    const uint32_t what[] = {rounded->size, rounded->order, rounded->group_count};
    struct tdm_memo_key key = tdm_memo_mix(TDM_MEMO_NOTHING, what, sizeof(what));
    key = tdm_memo_mix(key, rounded->homes, sizeof(rounded->homes));
    key = tdm_memo_mix(key, &rounded->rings, sizeof(rounded->rings));
    return tdm_memo_mix(key, rounded->groups, rounded->group_count * sizeof(*rounded->groups));
}

/* State of a local search. */
struct search {
    const struct tdm_kitchen *kitchen;
    const struct tdm_rounding_limits *limits;
    struct tdm_estimator *estimator;
    struct tdm_home homes[TDM_STATES]; /* current homes of the estimator */
    struct tdm_rings rings;
    struct tdm_rounded point; /* being changed */
    struct tdm_rounded *best;
    double best_cost, price; /* seconds per byte beyond a limit */
    unsigned left;           /* remaining estimates */
    enum tdm_set kept, held; /* sets that decide_fit() stores */
    bool far_kv;             /* K and V that a set needs are at the place where the set is kept */
    tdm_measure measure;     /* NULL: estimates decide */
    void *self;
};

/* Adjusts settings to what the order and the sets allow. */
static void mend(const struct search *s)
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
        if (group->kept == TDM_SET_INPUT)
            group->kept_from_chunk = 0;
        if (group->held == TDM_SET_INPUT)
            group->held_from_chunk = 0;
    }
}

/* Sets the estimator's state to the point's. */
static void set_state(struct search *s)
{
    if (memcmp(s->homes, s->point.homes, sizeof(s->homes)) == 0 &&
        memcmp(&s->rings, &s->point.rings, sizeof(s->rings)) == 0)
        return;
    memcpy(s->homes, s->point.homes, sizeof(s->homes));
    s->rings = s->point.rings;
    tdm_estimator_set_state(s->estimator, s->homes, &s->rings);
}

/* Estimates the point without a tile, after mend(). A search that finds nothing better visits all
 * neighbours of its best once more, so the memo answers more than half of the requests. */
static struct tdm_estimate estimate_point(struct search *s)
{
    struct tdm_estimate known;
    const struct tdm_kitchen *kitchen = s->kitchen;
    const struct tdm_memo_key key = tdm_rounded_key(&s->point);
    set_state(s);
    tdm_rounded_write(kitchen, &s->point);
    if (tdm_memo_find(kitchen->estimates, key, &known))
        return known;
    tdm_estimate_without_tile(s->estimator, kitchen->schedule, &known);
    tdm_memo_note(kitchen->estimates, key, &known);
    return known;
}

/* Does the point fit by its estimate? Like cost_of(), without the cost. */
static bool fits(struct search *s)
{
    const struct tdm_kitchen *kitchen = s->kitchen;
    struct tdm_estimate estimate;
    struct tdm_tiles tiles;
    mend(s);
    set_state(s);
    tdm_rounded_write(kitchen, &s->point);
    tdm_estimate_bytes_only(s->estimator, kitchen->schedule, &estimate);
    tdm_tiles_choose(kitchen, s->point.size, 0, &estimate, &tiles);
    s->left -= s->left > 0 ? 1 : 0;
    for (int place = 0; place < TDM_PLACES; place++)
        if (tdm_size_add(estimate.bytes[place], s->limits->reserve[place]) >
            s->limits->bytes[place])
            return false;
    return true;
}

static double cost_of(struct search *s)
{
    mend(s);
    struct tdm_estimate of_point = estimate_point(s);
    const struct tdm_estimate *estimate = &of_point;
    tdm_tiles_choose(s->kitchen, s->point.size,
                     tdm_size_left(s->limits->bytes[TDM_DEVICE], s->limits->reserve[TDM_DEVICE]),
                     &of_point, &s->point.tiles);
    s->point.seconds = estimate->seconds;
    s->point.fits = true;
    s->point.likely_seconds = estimate->likely_seconds;
    double cost = estimate->likely_seconds + s->limits->copies * estimate->copy_seconds;
    for (int place = 0; place < TDM_PLACES; place++) {
        uint64_t bytes = tdm_size_add(estimate->bytes[place], s->limits->reserve[place]);
        s->point.bytes[place] = estimate->bytes[place];
        if (bytes > s->limits->bytes[place]) {
            s->point.fits = false;
            cost += s->price * (double)(bytes - s->limits->bytes[place]);
        }
    }
    s->point.cost = cost;
    s->left -= s->left > 0 ? 1 : 0;
    return cost;
}

/* A group with its unused fields normalised, for comparison. */
static struct tdm_group plain(struct tdm_group group, enum tdm_order order, bool first)
{
    if (first)
        group.input_place = TDM_DEVICE;
    if (group.kept == TDM_SET_INPUT)
        group.kept_place = TDM_DEVICE;
    if (order == TDM_LAYER_MAJOR && group.layers == 1)
        group.held_place = TDM_DEVICE;
    return group;
}

/* Is the point equal to the best, except in unused fields? Call after mend(). */
static bool is_best(const struct search *s)
{
    const struct tdm_rounded *a = &s->point, *b = s->best;
    if (a->order != b->order || a->group_count != b->group_count ||
        memcmp(a->homes, b->homes, sizeof(a->homes)) != 0 ||
        memcmp(&a->rings, &b->rings, sizeof(a->rings)) != 0)
        return false;
    for (uint32_t g = 0; g < a->group_count; g++) {
        struct tdm_group left = plain(a->groups[g], a->order, g == 0);
        struct tdm_group right = plain(b->groups[g], b->order, g == 0);
        if (memcmp(&left, &right, sizeof(left)) != 0)
            return false;
    }
    return true;
}

/* Keeps the point if it is better than the best; otherwise restores the best. */
static bool decide(struct search *s)
{
    double cost = cost_of(s);
    if (s->measure != NULL && s->best_cost < TDM_UNMEASURED && is_best(s))
        return false;
    if (s->measure != NULL) {
        bool hopeful = s->point.fits && s->point.seconds < s->best_cost;
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

/* ---- moves ---- */

static uint32_t moved(uint32_t from, int32_t by, uint32_t chunks)
{
    int64_t to = (int64_t)from + by;
    return to < 0 ? 0 : to > (int64_t)chunks ? chunks : (uint32_t)to;
}

/* Moves the split of what is kept; at the end nothing is kept. */
static void move_kept(struct tdm_group *group, int32_t by, uint32_t chunks)
{
    uint32_t from = group->kept == TDM_SET_INPUT ? chunks : group->kept_from_chunk;
    from = moved(from, by, chunks);
    if (from == chunks)
        group->kept = TDM_SET_INPUT;
    else if (group->kept == TDM_SET_INPUT)
        group->kept = TDM_SET_ATTENTION_OUTPUT;
    group->kept_from_chunk = from == chunks ? 0 : from;
}

static void move_held(struct tdm_group *group, int32_t by, uint32_t chunks)
{
    uint32_t from = group->held == TDM_SET_INPUT ? chunks : group->held_from_chunk;
    from = moved(from, by, chunks);
    if (from == chunks)
        group->held = TDM_SET_INPUT;
    else if (group->held == TDM_SET_INPUT)
        group->held = TDM_SET_ATTENTION_OUTPUT;
    group->held_from_chunk = from == chunks ? 0 : from;
}

static enum tdm_place other(enum tdm_place place)
{
    return place == TDM_DEVICE ? TDM_HOST : TDM_DEVICE;
}

enum {
    MOVE_KEPT_RICHER,
    MOVE_KEPT_POORER,
    MOVE_HELD_RICHER,
    MOVE_HELD_POORER,
    MOVE_KEPT_PLACE,
    MOVE_HELD_PLACE,
    MOVE_INPUT_PLACE,
    MOVE_KV,
    MOVE_KV_PLACE,
    MOVE_KV_GRADIENTS_PLACE,
    MOVES
};

static enum tdm_set richer(enum tdm_set set, enum tdm_set richest)
{
    return set == richest ? set : tdm_set_richer(set);
}

static void change(struct tdm_group *group, int move, enum tdm_set richest)
{
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
        group->kept_place = other(group->kept_place);
        break;
    case MOVE_HELD_PLACE:
        group->held_place = other(group->held_place);
        break;
    case MOVE_INPUT_PLACE:
        group->input_place = other(group->input_place);
        break;
    case MOVE_KV:
        group->kv = group->kv == TDM_KV_KEEP ? TDM_KV_RECOMPUTE : TDM_KV_KEEP;
        break;
    case MOVE_KV_PLACE:
        group->kv_place = other(group->kv_place);
        break;
    default:
        group->kv_gradients_place = other(group->kv_gradients_place);
    }
}

static const int32_t steps[] = {-64, -16, -4, -1, 1, 4, 16, 64};
#define STEPS (sizeof(steps) / sizeof(steps[0]))

/* Sets the same splits in all groups. Below `chunks`: kept from chunk `at` on, held before. From
 * `chunks` on: nothing is kept, and held from chunk `at - chunks` on. */
static void set_splits(struct search *s, uint32_t at, uint32_t chunks)
{
    for (uint32_t g = 0; g < s->point.group_count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        group->kept = at < chunks ? s->kept : TDM_SET_INPUT;
        group->kept_from_chunk = at < chunks ? at : 0;
        group->held = at < 2 * chunks ? s->held : TDM_SET_INPUT;
        group->held_from_chunk = at < chunks ? 0 : at < 2 * chunks ? at - chunks : 0;
        if (s->point.order == TDM_LAYER_MAJOR) {
            group->kv = tdm_set_has(group->kept, TDM_STORE_KV) ? TDM_KV_KEEP : TDM_KV_RECOMPUTE;
            group->kv_place = s->far_kv ? group->kept_place : TDM_DEVICE;
        }
    }
}

/* Finds the earliest splits that fit, the same in all groups, for the current places, homes and
 * groups; then calls decide(). */
static bool decide_fit(struct search *s)
{
    uint32_t chunks = tdm_estimator_chunks(s->estimator), low = 0, high = 2 * chunks;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        set_splits(s, middle, chunks);
        if (fits(s))
            high = middle;
        else
            low = middle + 1;
    }
    set_splits(s, high, chunks);
    return decide(s);
}

/* Moves of a group: a split by a step, or one of its settings. */
#define GROUP_MOVES (2 * STEPS + MOVES)

static void move_group(const struct search *s, struct tdm_group *group, size_t move,
                       uint32_t chunks)
{
    if (move < STEPS)
        move_kept(group, steps[move], chunks);
    else if (move < 2 * STEPS)
        move_held(group, steps[move - STEPS], chunks);
    else
        change(group, (int)(move - 2 * STEPS), s->limits->richest);
}

/* Tries all moves on the groups [from, to) together; repeats a move of a split while it helps. */
static bool move_groups(struct search *s, uint32_t from, uint32_t to)
{
    uint32_t chunks = tdm_estimator_chunks(s->estimator);
    bool better = false;
    for (size_t move = 0; move < GROUP_MOVES; move++)
        do {
            for (uint32_t g = from; g < to; g++)
                move_group(s, &s->point.groups[g], move, chunks);
            if (!decide(s))
                break;
            better = true;
        } while (s->left > 0 && move < 2 * STEPS);
    return better;
}

/* Tries pairs of moves, in one group or two, until one pair helps. */
static bool move_pair(struct search *s)
{
    uint32_t chunks = tdm_estimator_chunks(s->estimator);
    for (uint32_t apart = 0; apart < s->point.group_count; apart++)
        for (uint32_t g = 0; g + apart < s->point.group_count; g++)
            for (size_t first = 0; first < GROUP_MOVES; first++)
                for (size_t second = apart == 0 ? first + 1 : 0; second < GROUP_MOVES; second++) {
                    if (s->left == 0)
                        return false;
                    move_group(s, &s->point.groups[g], first, chunks);
                    move_group(s, &s->point.groups[g + apart], second, chunks);
                    if (decide(s))
                        return true;
                }
    return false;
}

static bool move_homes(struct search *s, bool (*decided)(struct search *))
{
    uint32_t layers = s->kitchen->schedule->model->layers;
    bool better = false;
    for (int more = 0; more < 2 && !s->limits->fixed_rings; more++)
        for (int weights = 0; weights < 2; weights++) {
            struct tdm_rings *rings = &s->point.rings;
            uint32_t *slots = weights ? &rings->weights : &rings->optimizer;
            *slots = more ? *slots + (*slots < TDM_MOST_SLOTS) : *slots - (*slots > 1);
            better = decided(s) || better;
        }
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++) {
        if (s->limits->fixed_homes[state])
            continue;
        for (size_t i = 0; i < STEPS; i++) {
            struct tdm_home *home = &s->point.homes[state];
            home->device_layers = moved(home->device_layers, steps[i], layers);
            better = decided(s) || better;
        }
        for (int head = 0; head < 2; head++) {
            struct tdm_home *home = &s->point.homes[state];
            enum tdm_place *place = head ? &home->head : &home->embedding;
            *place = other(*place);
            better = decided(s) || better;
        }
    }
    return better;
}

/* Moves boundaries: one layer to the group above or below (which joins groups of one layer), or one
 * group cut in two. */
static bool move_boundaries(struct search *s, bool (*decided)(struct search *))
{
    bool better = false;
    uint32_t layers = s->kitchen->schedule->model->layers;
    if (s->limits->fixed_groups)
        return false;
    for (uint32_t g = 0; g + 1 < s->point.group_count; g++)
        for (int up = 0; up < 2 && g + 1 < s->point.group_count; up++) {
            struct tdm_group *from = &s->point.groups[up ? g : g + 1];
            struct tdm_group *to = &s->point.groups[up ? g + 1 : g];
            to->layers++;
            if (--from->layers == 0) {
                memmove(from, from + 1,
                        (size_t)(s->point.groups + s->point.group_count - from - 1) *
                            sizeof(*from));
                s->point.group_count--;
            }
            better = decided(s) || better;
        }
    for (uint32_t g = 0; g < s->point.group_count && s->point.group_count < layers; g++) {
        struct tdm_group *group = &s->point.groups[g];
        if (group->layers < 2)
            continue;
        memmove(group + 1, group, (s->point.group_count - g) * sizeof(*group));
        group->layers -= group->layers / 2;
        group[1].layers /= 2;
        s->point.group_count++;
        better = decided(s) || better;
    }
    return better;
}

static bool move_places(struct search *s, uint32_t from, uint32_t to)
{
    bool better = false;
    for (int move = MOVE_KEPT_PLACE; move <= MOVE_INPUT_PLACE; move++) {
        for (uint32_t g = from; g < to; g++)
            change(&s->point.groups[g], move, s->limits->richest);
        better = decide_fit(s) || better;
    }
    return better;
}

/* Searches places, homes and groups, each with the splits that fit. */
static void search_structure(struct search *s)
{
    static const struct {
        enum tdm_set kept, held;
        bool far_kv;
    } sets[] = {
        {TDM_SET_ATTENTION_OUTPUT, TDM_SET_ATTENTION_OUTPUT, false},
        {TDM_SET_ALL, TDM_SET_ATTENTION_OUTPUT, false},
        {TDM_SET_ALL, TDM_SET_ATTENTION_OUTPUT, true},
        {TDM_SET_QKV, TDM_SET_ATTENTION_OUTPUT, false},
        {TDM_SET_QKV, TDM_SET_ATTENTION_OUTPUT, true},
        {TDM_SET_ATTENTION_OUTPUT, TDM_SET_ALL, false},
    };
    size_t count = sizeof(sets) / sizeof(sets[0]), best = 0;
    for (size_t i = 0; i <= count; i++) {
        size_t at = i < count ? i : best;
        s->kept = sets[at].kept;
        s->held = sets[at].held;
        s->far_kv = sets[at].far_kv;
        if (i < count && decide_fit(s))
            best = i;
    }
    for (bool better = true; better && s->left > 0;) {
        better = move_places(s, 0, s->point.group_count);
        better = move_homes(s, decide_fit) || better;
        for (uint32_t g = 0; g < s->point.group_count && s->left > 0; g++)
            better = move_places(s, g, g + 1) || better;
        better = move_boundaries(s, decide_fit) || better;
    }
}

/* Starts a search from a schedule. */
static enum tdm_status open_search(const struct tdm_kitchen *kitchen,
                                   const struct tdm_rounding_limits *limits,
                                   struct tdm_rounded *rounded, struct search *s,
                                   struct tdm_error *err)
{
    uint32_t layers = kitchen->schedule->model->layers;
    struct tdm_group *groups = calloc((size_t)layers + 1, sizeof(*groups));
    *s = (struct search){.kitchen = kitchen,
                         .limits = limits,
                         .estimator = kitchen->estimators[rounded->size],
                         .point = *rounded,
                         .best = rounded,
                         /* an estimate takes less time for a model of few layers */
                         .left =
                             limits->most_estimates * LAYERS / (layers < LAYERS ? layers : LAYERS)};
    if (groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    s->point.groups = groups;
    memcpy(groups, rounded->groups, rounded->group_count * sizeof(*groups));
    memcpy(s->homes, rounded->homes, sizeof(s->homes));
    s->rings = rounded->rings;
    tdm_estimator_set_state(s->estimator, s->homes, &s->rings);
    return TDM_OK;
}

static void search_finely(struct search *s)
{
    for (bool better = true; better && s->left > 0;) {
        better = move_groups(s, 0, s->point.group_count);
        better = move_homes(s, decide) || better;
        for (uint32_t g = 0; g < s->point.group_count && s->left > 0; g++)
            better = move_groups(s, g, g + 1) || better;
        better = move_boundaries(s, decide) || better;
        better = better || move_pair(s);
    }
}

enum tdm_status tdm_improve(const struct tdm_kitchen *kitchen,
                            const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                            struct tdm_error *err)
{
    struct search s;
    enum tdm_status status = open_search(kitchen, limits, rounded, &s, err);
    if (status != TDM_OK)
        return status;
    cost_of(&s);
    /* a price above what any byte saves: a tenth of the step for a thousandth of the limit */
    s.price = 100 * s.point.seconds / (double)limits->bytes[TDM_DEVICE];
    s.best_cost = cost_of(&s);
    tdm_rounded_copy(rounded, &s.point);
    if (!limits->no_structure)
        search_structure(&s);
    if (!limits->no_fine)
        search_finely(&s);
    free(s.point.groups);
    return TDM_OK;
}

enum tdm_status tdm_polish(const struct tdm_kitchen *kitchen,
                           const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                           double seconds, tdm_measure measure, void *self, struct tdm_error *err)
{
    struct search s;
    enum tdm_status status = open_search(kitchen, limits, rounded, &s, err);
    if (status != TDM_OK)
        return status;
    s.measure = measure;
    s.self = self;
    s.best_cost = seconds;
    if (seconds >= TDM_UNMEASURED)
        decide(&s);
    search_finely(&s);
    free(s.point.groups);
    return TDM_OK;
}

/* ---- sets richer than those of the search ---- */

/* Changes the search's richest set to the richest of all, in the top `count` groups. */
static void set_richest(struct search *s, bool held, uint32_t count)
{
    for (uint32_t g = s->point.group_count - count; g < s->point.group_count; g++) {
        struct tdm_group *group = &s->point.groups[g];
        enum tdm_set *set = held ? &group->held : &group->kept;
        *set = *set == TDM_SEARCHED_SET ? s->limits->richest : *set;
    }
}

/* Enriches as many groups as fit by the estimate; if measurement refuses them, fewer. */
static void decide_richest(struct search *s, bool held)
{
    uint32_t fitting = 0, high = s->point.group_count;
    while (fitting < high) {
        uint32_t middle = high - (high - fitting) / 2;
        set_richest(s, held, middle);
        cost_of(s);
        if (s->point.fits)
            fitting = middle;
        else
            high = middle - 1;
        tdm_rounded_copy(&s->point, s->best);
    }
    for (uint32_t count = fitting; count > 0 && s->left > 0; count /= 2) {
        set_richest(s, held, count);
        if (decide(s))
            break;
    }
}

enum tdm_status tdm_enrich(const struct tdm_kitchen *kitchen,
                           const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                           double seconds, tdm_measure measure, void *self, struct tdm_error *err)
{
    struct search s;
    enum tdm_status status = open_search(kitchen, limits, rounded, &s, err);
    if (status != TDM_OK)
        return status;
    s.measure = measure;
    s.self = self;
    s.best_cost = seconds;
    decide_richest(&s, false);
    decide_richest(&s, true);
    search_finely(&s);
    free(s.point.groups);
    return TDM_OK;
}

/* ---- from shares to counts ---- */

static enum tdm_place place_of(double share)
{
    return share >= 0.5 ? TDM_DEVICE : TDM_HOST;
}

enum tdm_status tdm_round(const struct tdm_kitchen *kitchen, uint32_t size, enum tdm_order order,
                          struct tdm_relaxation *relaxation, const struct tdm_relaxed *relaxed,
                          enum tdm_rounding rounding, struct tdm_rounded *rounded,
                          struct tdm_error *err)
{
    const struct tdm_schedule *schedule = kitchen->schedule;
    const uint64_t tile = kitchen->bases[size].head_tile_tokens;
    *rounded = (struct tdm_rounded){.size = size,
                                    .order = order,
                                    .rings = schedule->rings,
                                    .tiles = {.safe = tile, .large = tile}};
    rounded->groups = calloc((size_t)schedule->model->layers + 1, sizeof(*rounded->groups));
    if (rounded->groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    enum tdm_status status =
        tdm_relaxation_groups(relaxation, rounding, rounded->groups, &rounded->group_count, err);
    if (status != TDM_OK) {
        tdm_rounded_free(rounded);
        return status;
    }
    memcpy(rounded->homes, kitchen->bases[size].homes, sizeof(rounded->homes));
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        rounded->homes[state] =
            rounding == TDM_NEAR
                ? (struct tdm_home){schedule->model->layers, TDM_DEVICE, TDM_DEVICE}
                : (struct tdm_home){(uint32_t)(relaxed->device_layers[state] + 1e-6),
                                    place_of(relaxed->embedding[state]),
                                    place_of(relaxed->head[state])};
    return TDM_OK;
}
