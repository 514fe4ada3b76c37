/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding: converts shares to counts, then searches locally over the moves of a schedule. */
#include "planner/rounding.h"

#include "base/size.h"
#include "planner/places.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* likely seconds of a neighbour that is worth a simulation, over those of the best */
#define HOPEFUL 1.001

/* The effort limit is given for a model of so many layers, and at most so many layers times
 * chunks. */
#define LAYERS 28u
#define BODIES 448u

/* An estimate takes less time for a model of few layers, and more for a step of many bodies, on
 * which a deep search is shorter. */
static unsigned affordable(const struct tdm_kitchen *kitchen, uint32_t size, bool deep,
                           unsigned estimates)
{
    const uint32_t layers = kitchen->schedule->model->layers;
    const uint64_t bodies = (uint64_t)layers * tdm_estimator_chunks(kitchen->estimators[size]);
    if (deep && tdm_estimator_knows_lanes(kitchen->estimators[size]) && bodies > BODIES)
        return (unsigned)((uint64_t)estimates * BODIES / bodies);
    return layers < LAYERS ? estimates * LAYERS / layers : estimates;
}

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
    double enough;           /* a point that takes so long is refused: no need to know how long */
    unsigned left;           /* remaining estimates */
    enum tdm_set kept, held; /* sets that decide_fit() stores */
    uint64_t scramble;       /* state of the order of travel() */
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
    tdm_estimate_without_tile(s->estimator, kitchen->schedule, s->enough, &known);
    if (known.seconds < s->enough)
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
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
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
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
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
    s->enough = s->best_cost;
    double cost = cost_of(s);
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

static void change(const struct search *s, struct tdm_group *group, int move)
{
    const enum tdm_set richest = s->limits->richest;
    const struct tdm_schedule *schedule = s->kitchen->schedule;
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
        change(s, group, (int)(move - 2 * STEPS));
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

/* Homes and rings change together with what fills the memory that a change leaves, or frees what it
 * needs: as many layers of one state at home on the device as fit. */
enum { FILL_NOTHING = TDM_STATE_MOMENTS + 1, FILLS };

static void fill(struct search *s, int state)
{
    uint32_t low = 0, high = s->kitchen->schedule->model->layers;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        s->point.homes[state].device_layers = middle;
        if (fits(s))
            low = middle;
        else
            high = middle - 1;
    }
    s->point.homes[state].device_layers = low;
}

/* Changes of homes and rings, by number. */
#define RING_CHANGES 4u
#define CHANGES_OF_STATE (STEPS + 2)
#define HOME_CHANGES (RING_CHANGES + (TDM_STATE_MOMENTS + 1) * CHANGES_OF_STATE)

/* False: the change is not allowed, or changes nothing. *state: the state that it changes;
 * FILL_NOTHING: it changes a ring. */
static bool change_home(struct search *s, uint32_t change, int *state)
{
    const uint32_t layers = s->kitchen->schedule->model->layers;
    *state = FILL_NOTHING;
    if (change < RING_CHANGES) {
        struct tdm_rings *rings = &s->point.rings;
        uint32_t *slots = change % 2 == 0 ? &rings->optimizer : &rings->weights, before = *slots;
        *slots = change >= 2 ? *slots + (*slots < TDM_MOST_SLOTS) : *slots - (*slots > 1);
        return !s->limits->fixed_rings && *slots != before;
    }
    const uint32_t move = (change - RING_CHANGES) % CHANGES_OF_STATE;
    *state = (int)((change - RING_CHANGES) / CHANGES_OF_STATE);
    struct tdm_home *home = &s->point.homes[*state];
    if (s->limits->fixed_homes[*state])
        return false;
    if (move >= STEPS) {
        enum tdm_place *place = move == STEPS ? &home->embedding : &home->head;
        *place = tdm_other_place(s->kitchen->schedule, *place);
        return true;
    }
    const uint32_t before = home->device_layers;
    home->device_layers = moved(before, steps[move], layers);
    return home->device_layers != before;
}

static bool move_homes(struct search *s, bool (*decided)(struct search *))
{
    bool better = false;
    for (uint32_t change = 0; change < HOME_CHANGES; change++)
        for (int with = FILLS - 1; with >= (s->limits->deep ? 0 : FILL_NOTHING); with--) {
            int state;
            bool changed = change_home(s, change, &state) && with != state;
            if (changed && with < FILL_NOTHING && s->limits->fixed_homes[with])
                changed = false;
            if (!changed) {
                tdm_rounded_copy(&s->point, s->best);
                continue;
            }
            if (with < FILL_NOTHING)
                fill(s, with);
            better = decided(s) || better;
        }
    return better;
}

/* Tries homes from a grid: layers' masters and moments all at one place, embedding and head
 * likewise, and the memory that is left for one state, or for what groups keep. */
static void start_homes(struct search *s)
{
    const uint32_t layers = s->kitchen->schedule->model->layers;
    const enum tdm_place far_place = tdm_far_place(s->kitchen->schedule);
    const bool *fixed = s->limits->fixed_homes;
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
                if (!s->limits->fixed_rings)
                    s->point.rings.optimizer = slots;
                if (with < FILL_NOTHING)
                    fill(s, with);
                decide_fit(s);
            }
}

/* Moves a layer of group g to the group above it, or of that group to g. A group without layers
 * ends. */
static void move_layer(struct search *s, uint32_t g, bool up)
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
            move_layer(s, g, up);
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
            change(s, &s->point.groups[g], move);
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
    if (s->limits->grid) {
        const unsigned left = s->left;
        start_homes(s);
        s->left = left;
    }
    for (bool better = true; better && s->left > 0;) {
        better = move_places(s, 0, s->point.group_count);
        better = move_homes(s, decide_fit) || better;
        for (uint32_t g = 0; g < s->point.group_count && s->left > 0; g++)
            better = move_places(s, g, g + 1) || better;
        better = move_boundaries(s, decide_fit) || better;
    }
}

/* ---- travel ---- */

/*
 * A longer search, which leaves local optima. From the current point it goes to one that differs in
 * a few moves, if that is not much slower; at first by up to SLOWER, in the end not at all. Moves
 * come in one fixed scrambled order, so the same request gives the same plan.
 */
#define SLOWER 0.006
#define MORE_MOVES 0.45 /* share of points that differ in one move more */
#define SCRAMBLE 6364136223846793005u
#define KINDS_OF_MOVES 16u /* of which: */
#define OF_SETTINGS 7u
#define OF_COPIES 1u
#define OF_BOUNDARIES 3u

/* The next number of the scrambled order, below `below`. */
static uint32_t draw(struct search *s, uint32_t below)
{
    s->scramble = s->scramble * SCRAMBLE + 1442695040888963407u;
    return (uint32_t)(((s->scramble >> 33) * below) >> 31);
}

/* One setting of a group, of some groups or of all. */
static void travel_settings(struct search *s)
{
    const uint32_t chunks = tdm_estimator_chunks(s->estimator), count = s->point.group_count;
    uint32_t from = draw(s, count), to = from + 1, range = draw(s, 4);
    if (range == 0) {
        from = 0;
        to = count;
    } else if (range == 1) {
        to += draw(s, count - from);
    }
    size_t move = draw(s, 2) == 0 ? draw(s, 2 * STEPS) : 2 * STEPS + draw(s, MOVES);
    for (uint32_t g = from; g < to; g++)
        move_group(s, &s->point.groups[g], move, chunks);
}

/* A group gets the settings of another; half of the time, that one gets its own. */
static void travel_copy(struct search *s)
{
    struct tdm_group *a = &s->point.groups[draw(s, s->point.group_count)];
    struct tdm_group *b = &s->point.groups[draw(s, s->point.group_count)], settings = *a;
    const uint32_t layers = a->layers;
    settings.layers = b->layers;
    if (draw(s, 2) == 0) {
        *a = *b;
        a->layers = layers;
    }
    *b = settings;
}

/* Cuts a group, or moves a layer to the group above or below. */
static void travel_boundary(struct search *s)
{
    const uint32_t layers = s->kitchen->schedule->model->layers;
    uint32_t g = draw(s, s->point.group_count), what = draw(s, 5);
    struct tdm_group *group = &s->point.groups[g];
    if (s->limits->fixed_groups)
        return;
    if (what < 2 && group->layers >= 2 && s->point.group_count < layers) {
        uint32_t below = 1 + draw(s, group->layers - 1);
        memmove(group + 1, group, (s->point.group_count - g) * sizeof(*group));
        group[1].layers = group->layers - below;
        group->layers = below;
        s->point.group_count++;
    } else if (g + 1 < s->point.group_count) {
        move_layer(s, g, draw(s, 2) == 0);
    }
}

/* A home or a ring, often with what fills the memory again. */
static void travel_home(struct search *s)
{
    int state, with = (int)draw(s, FILLS + 1);
    if (change_home(s, draw(s, HOME_CHANGES), &state) && with < FILL_NOTHING && with != state &&
        !s->limits->fixed_homes[with])
        fill(s, with);
}

static void travel_once(struct search *s)
{
    do {
        uint32_t what = draw(s, KINDS_OF_MOVES);
        if (what < OF_SETTINGS)
            travel_settings(s);
        else if (what < OF_SETTINGS + OF_COPIES)
            travel_copy(s);
        else if (what < OF_SETTINGS + OF_COPIES + OF_BOUNDARIES)
            travel_boundary(s);
        else
            travel_home(s);
    } while (draw(s, 1000) < (uint32_t)(1000 * MORE_MOVES));
}

static enum tdm_status travel(struct search *s, struct tdm_error *err)
{
    const uint32_t layers = s->kitchen->schedule->model->layers;
    struct tdm_rounded here = *s->best;
    double here_cost = s->best_cost;
    here.groups = calloc((size_t)layers + 1, sizeof(*here.groups));
    if (here.groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    tdm_rounded_copy(&here, s->best);
    const unsigned count = affordable(s->kitchen, s->best->size, true, s->limits->travelled);
    s->scramble = 1;
    for (unsigned i = 0; i < count; i++) {
        double left = (double)(count - i) / count;
        tdm_rounded_copy(&s->point, &here);
        travel_once(s);
        if (!fits(s))
            continue;
        s->enough = here_cost * (1 + SLOWER * left * left);
        double cost = cost_of(s);
        if (!s->point.fits || cost >= s->enough)
            continue;
        here_cost = cost;
        tdm_rounded_copy(&here, &s->point);
        if (cost < s->best_cost * (1 - 1e-9)) {
            s->best_cost = cost;
            tdm_rounded_copy(s->best, &s->point);
        }
    }
    s->enough = HUGE_VAL;
    tdm_rounded_copy(&s->point, s->best);
    free(here.groups);
    return TDM_OK;
}

/* Starts a search from a schedule. */
static enum tdm_status open_search(const struct tdm_kitchen *kitchen,
                                   const struct tdm_rounding_limits *limits,
                                   struct tdm_rounded *rounded, struct search *s,
                                   struct tdm_error *err)
{
    uint32_t layers = kitchen->schedule->model->layers;
    struct tdm_group *groups = calloc((size_t)layers + 1, sizeof(*groups));
    *s = (struct search){
        .kitchen = kitchen,
        .limits = limits,
        .estimator = kitchen->estimators[rounded->size],
        .point = *rounded,
        .best = rounded,
        .enough = HUGE_VAL,
        .left = affordable(kitchen, rounded->size, limits->deep, limits->most_estimates)};
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
    if (limits->travelled > 0)
        status = travel(&s, err);
    if (status == TDM_OK && limits->deep)
        search_finely(&s);
    free(s.point.groups);
    return status;
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
    s.best_cost = TDM_UNMEASURED;
    cost_of(&s);
    rounded->likely_seconds = s.point.likely_seconds;
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
    s.best_cost = TDM_UNMEASURED;
    cost_of(&s);
    rounded->likely_seconds = s.point.likely_seconds;
    s.best_cost = seconds;
    decide_richest(&s, false);
    decide_richest(&s, true);
    search_finely(&s);
    free(s.point.groups);
    return TDM_OK;
}

/* ---- from shares to counts ---- */

static enum tdm_place place_of(const struct tdm_schedule *schedule, double share)
{
    return share >= 0.5 ? TDM_DEVICE : tdm_far_place(schedule);
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
                                    place_of(schedule, relaxed->embedding[state]),
                                    place_of(schedule, relaxed->head[state])};
    return TDM_OK;
}
