/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes: enumerates knobs, and finds the best split of each by its estimate. */
#include "planner/recipes.h"

#include "base/size.h"
#include "planner/places.h"
#include "schedule/gather.h"
#include "schedule/layout.h"
#include "schedule/optimizer.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_CHUNK 256u
#define LARGEST_CHUNK 16384u
#define MOST_CHUNKS 1024u  /* in a step: more cost planning time and launches, and gain nothing */
#define LARGEST_TILE 4096u /* of the LM head: more rows gain at most 5% of its time */
#define CHUNK_LIMIT 65536u /* maximum chunks of a program */
#define SPLIT_STEPS 8u     /* splits tried, including the earliest one */

/* ---- search space ---- */

static uint64_t chunks_at(const struct tdm_schedule *schedule, uint64_t chunk_tokens)
{
    uint64_t chunks = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        chunks =
            tdm_size_add(chunks, tdm_size_ceil_div(schedule->sequences[s].tokens, chunk_tokens));
    return chunks;
}

/* Chunk sizes to try: powers of two; the whole context if it is small; for a very long context the
 * smallest power of two with few enough chunks. No size is below a page, because a chunk occupies
 * whole pages, unless the context is. */
static uint32_t chunk_sizes(const struct tdm_schedule *schedule, const struct tdm_pins *pins,
                            uint64_t sizes[TDM_CHUNK_SIZES])
{
    uint64_t longest = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        if (schedule->sequences[s].tokens > longest)
            longest = schedule->sequences[s].tokens;
    if (pins->chunk_tokens != 0) {
        sizes[0] = pins->chunk_tokens < longest ? pins->chunk_tokens : longest;
        return 1;
    }
    uint64_t most = schedule->sequence_count > MOST_CHUNKS ? schedule->sequence_count : MOST_CHUNKS;
    uint32_t count = 0;
    uint64_t size = LEAST_CHUNK;
    for (; size <= LARGEST_CHUNK && size < longest; size *= 2)
        if (size >= schedule->page_tokens && chunks_at(schedule, size) <= most)
            sizes[count++] = size;
    if (longest <= LARGEST_CHUNK)
        sizes[count++] = longest;
    while (count == 0) {
        if (size >= longest || (size >= schedule->page_tokens && chunks_at(schedule, size) <= most))
            sizes[count++] = size < longest ? size : longest;
        size *= 2;
    }
    return count;
}

/* Keeps the sizes at which attention has space for the pages that its lists name, if it gathers. */
static enum tdm_status keep_gatherable(const struct tdm_schedule *schedule,
                                       const struct tdm_pins *pins, uint64_t sizes[TDM_CHUNK_SIZES],
                                       uint32_t *count, struct tdm_error *err)
{
    uint32_t kept = 0;
    if ((pins->has_order && pins->order != TDM_CHUNK_MAJOR) ||
        (pins->has_kv && (pins->kv != TDM_KV_KEEP || !tdm_is_far(pins->kv_place))))
        return TDM_OK;
    for (uint32_t i = 0; i < *count; i++) {
        struct tdm_schedule of_size = *schedule;
        of_size.chunk_tokens = sizes[i];
        if (tdm_gather_fits(&of_size, "no schedule fits", err) == TDM_OK)
            sizes[kept++] = sizes[i];
    }
    *count = kept;
    if (kept == 0)
        err->status = TDM_INFEASIBLE; /* keeps the reason of the last size */
    return kept > 0 ? TDM_OK : TDM_INFEASIBLE;
}

enum tdm_status tdm_search_space_check(const struct tdm_schedule *schedule,
                                       const struct tdm_pins *pins, struct tdm_error *err)
{
    uint64_t sizes[TDM_CHUNK_SIZES];
    uint32_t count = chunk_sizes(schedule, pins, sizes);
    return keep_gatherable(schedule, pins, sizes, &count, err);
}

/* Prefetch must cover the copy of a layer's state, which may come in between. The moments of 0.25
 * billion parameters take as long as the backward of a few thousand tokens. */
#define TOKENS_AHEAD 8192u
#define LEAST_AHEAD 2u
#define MOST_AHEAD 16u

static uint32_t bodies_ahead(uint64_t chunk_tokens)
{
    uint64_t bodies = TOKENS_AHEAD / chunk_tokens;
    return bodies < LEAST_AHEAD ? LEAST_AHEAD : bodies > MOST_AHEAD ? MOST_AHEAD : (uint32_t)bodies;
}

bool tdm_host_homes(const struct tdm_schedule *schedule, const struct tdm_pins *pins,
                    struct tdm_home homes[TDM_STATES], struct tdm_error *err)
{
    struct tdm_schedule trial = *schedule;
    const enum tdm_place far = tdm_far_place(schedule);
    struct tdm_home all = {0, far, far};
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        if (pins->has_home[state])
            all = schedule->homes[state];
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        if (!pins->has_home[state])
            trial.homes[state] = all;
    trial.optimizer.on = far;
    if (tdm_update_place_check(&trial, "plan", err) != TDM_OK)
        return false;
    memcpy(homes, trial.homes, sizeof(trial.homes));
    return true;
}

bool tdm_search_space_passes(const struct tdm_search_space *space, uint32_t size)
{
    const struct tdm_schedule *base = &space->bases[size];
    const bool *pinned = space->pins->has_home;
    return tdm_is_far(base->optimizer.on) && !pinned[TDM_STATE_WEIGHTS] &&
           (pinned[TDM_STATE_MASTER] || pinned[TDM_STATE_MOMENTS]) &&
           base->homes[TDM_STATE_MASTER].device_layers == 0 &&
           base->homes[TDM_STATE_MOMENTS].device_layers == 0;
}

/* Which state is on the device, where units are updated on the host. */
enum near_state {
    AS_PINNED, /* what pins put there, and what follows it */
    ENDS,      /* embedding and head, which are updated on the device */
    WEIGHTS    /* weights that are pinned there, without masters and moments of layers */
};

/* Adds a base for a chunk size and a place of updates, if that place is searched. */
static enum tdm_status add_base(struct tdm_search_space *space, enum tdm_place on,
                                uint64_t chunk_tokens, enum near_state near, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = space->schedule;
    const struct tdm_pins *pins = space->pins;
    struct tdm_schedule *base = &space->bases[space->size_count];
    struct tdm_error refused;
    bool trains = schedule->pass == TDM_TRAIN; /* otherwise the place of updates is not searched */
    *base = *schedule;
    if (((pins->has_update_place || !trains) && on != schedule->optimizer.on) ||
        (tdm_is_far(on) && trains && !tdm_host_homes(schedule, pins, base->homes, &refused)))
        return TDM_OK;
    for (int state = 0; state <= TDM_STATE_MOMENTS && near == ENDS; state++)
        base->homes[state] = (struct tdm_home){0, TDM_DEVICE, TDM_DEVICE};
    for (int state = TDM_STATE_MASTER; state <= TDM_STATE_MOMENTS && near == WEIGHTS; state++)
        base->homes[state].device_layers = 0;
    base->optimizer.on = on;
    base->chunk_tokens = chunk_tokens;
    if (!pins->has_prefetch)
        base->prefetch = bodies_ahead(chunk_tokens);
    base->head_tile_tokens = chunk_tokens < LARGEST_TILE ? chunk_tokens : LARGEST_TILE;
    if (pins->head_tile_tokens != 0)
        base->head_tile_tokens =
            pins->head_tile_tokens < chunk_tokens ? pins->head_tile_tokens : chunk_tokens;
    const struct tdm_estimator *like = NULL; /* of the same chunks */
    for (uint32_t i = 0; i < space->size_count; i++)
        if (space->bases[i].chunk_tokens == chunk_tokens)
            like = space->estimators[i];
    enum tdm_status status = tdm_estimator_new_like(base, space->least, like,
                                                    &space->estimators[space->size_count], err);
    space->size_count += status == TDM_OK;
    return status;
}

/* Are bases with embedding and head on the device searched, where layers are updated on the host?
 * Not if that is more than the device has, or homes are pinned, or in a quick search. */
static bool may_bring_ends(const struct tdm_search_space *space)
{
    const struct tdm_schedule *schedule = space->schedule;
    const struct tdm_pins *pins = space->pins;
    const struct tdm_model *model = schedule->model;
    static const enum tdm_content contents[] = {TDM_UNIT_WEIGHTS, TDM_UNIT_MASTER, TDM_UNIT_MOMENT1,
                                                TDM_UNIT_MOMENT2};
    uint64_t bytes = 0;
    if (schedule->pass != TDM_TRAIN || space->least || pins->quick)
        return false;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        if (pins->has_home[state])
            return false;
    for (uint32_t unit = model->layers; unit < model->unit_count; unit++)
        for (size_t i = 0; i < sizeof(contents) / sizeof(contents[0]); i++)
            bytes = tdm_size_add(bytes, tdm_content_bytes(schedule, contents[i], unit, 0));
    return bytes < schedule->memory_bytes;
}

/* Are bases searched in which layers whose weights are pinned to the device have these alone there,
 * and masters and moments pass? Not if other homes are pinned, too. */
static bool may_bring_weights(const struct tdm_search_space *space)
{
    const struct tdm_schedule *schedule = space->schedule;
    const bool *pinned = space->pins->has_home;
    return schedule->pass == TDM_TRAIN && pinned[TDM_STATE_WEIGHTS] && !pinned[TDM_STATE_MASTER] &&
           !pinned[TDM_STATE_MOMENTS] && schedule->homes[TDM_STATE_WEIGHTS].device_layers > 0;
}

enum tdm_status tdm_search_space_open(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      bool least, struct tdm_search_space *space,
                                      struct tdm_error *err)
{
    uint32_t layers = schedule->model->layers;
    uint64_t sizes[TDM_CHUNK_SIZES];
    *space = (struct tdm_search_space){.schedule = schedule, .pins = pins, .least = least};
    enum tdm_status status =
        pins->group_count > 0
            ? tdm_group_lists_fixed(layers, pins->groups, pins->group_count, &space->lists, err)
            : tdm_group_lists_make(layers, &space->lists, err);
    if (status != TDM_OK)
        return status;

    /* large enough for the longest list, so that writing a recipe allocates nothing */
    struct tdm_group *groups = calloc((size_t)layers + 1, sizeof(*groups));
    if (groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u groups", layers);
    free(schedule->groups);
    schedule->groups = groups;
    schedule->group_count = 0;

    uint32_t count = chunk_sizes(schedule, pins, sizes);
    status = keep_gatherable(schedule, pins, sizes, &count, err);
    if (status != TDM_OK)
        return status;
    uint64_t chunks = chunks_at(schedule, sizes[0]);
    if (chunks > CHUNK_LIMIT) {
        tdm_fail(err, TDM_USAGE,
                 "chunk: %llu chunks of %llu tokens in a step; at most %u are "
                 "supported",
                 (unsigned long long)chunks, (unsigned long long)sizes[0], CHUNK_LIMIT);
        return tdm_hint(err, "use larger chunks");
    }
    for (int on = 0; on < TDM_PLANNED_PLACES; on++)
        for (uint32_t i = 0; i < count && status == TDM_OK; i++)
            status = add_base(space, tdm_planned_place(schedule, on), sizes[i], AS_PINNED, err);
    const enum near_state other = may_bring_ends(space)      ? ENDS
                                  : may_bring_weights(space) ? WEIGHTS
                                                             : AS_PINNED;
    for (uint32_t i = 0; i < count && status == TDM_OK && other != AS_PINNED; i++)
        status = add_base(space, tdm_far_place(schedule), sizes[i], other, err);
    return status;
}

void tdm_search_space_close(struct tdm_search_space *space)
{
    tdm_group_lists_free(&space->lists);
    for (uint32_t i = 0; i < space->size_count; i++)
        tdm_estimator_free(space->estimators[i]);
    tdm_memo_free(space->estimates);
    space->size_count = 0;
}

void tdm_search_space_stream_state(struct tdm_search_space *space)
{
    const enum tdm_place far = tdm_far_place(space->schedule);
    for (uint32_t i = 0; i < space->size_count; i++) {
        struct tdm_schedule *base = &space->bases[i];
        if (tdm_is_far(base->optimizer.on))
            continue;
        for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
            if (!space->pins->has_home[state])
                base->homes[state] = (struct tdm_home){0, far, far};
        tdm_estimator_set_state(space->estimators[i], base->homes, &base->rings);
    }
}

/* ---- enumeration ---- */

static bool has_inner_layers(const struct tdm_group_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->sizes[i] > 1)
            return true;
    return false;
}

/* Without a backward only the chunk size matters: layer-major order runs the same ops with K and V
 * of only one layer. Groups matter only if chunk-major order is pinned. */
static bool is_of_use_to_evaluate(const struct tdm_pins *pins, const struct tdm_recipe *recipe)
{
    return recipe->order == TDM_LAYER_MAJOR ? recipe->list == 0 : pins->has_order;
}

/* Do the pins allow a recipe, and can it be better than others? */
static bool is_of_use(const struct tdm_search_space *space, const struct tdm_recipe *recipe)
{
    const struct tdm_pins *pins = space->pins;
    const struct tdm_group_list *list = &space->lists.lists[recipe->list];
    const bool by_layer = recipe->order == TDM_LAYER_MAJOR, inner = has_inner_layers(list);
    const bool keep = pins->has_attention && pins->attention == TDM_ATTENTION_KEPT;
    const bool hold = (pins->has_attention && pins->attention == TDM_ATTENTION_HELD) ||
                      pins->held_set != TDM_SET_INPUT;
    const bool hold_not = pins->has_attention && pins->attention == TDM_ATTENTION_NONE;
    if (pins->has_input_place ? pins->input_place != recipe->input_place
                              : list->count == 1 && tdm_is_far(recipe->input_place))
        return false;
    if (recipe->held ? hold_not || !(inner || !by_layer || hold) : hold)
        return false;
    if (pins->has_held_place && by_layer ? pins->held_place != recipe->held_place
                                         : tdm_is_far(recipe->held_place) && !(by_layer && inner))
        return false;
    if (!recipe->kept)
        return !keep;
    return (keep || (!pins->has_attention && !space->least)) &&
           (!pins->has_kept_place || pins->kept_place == recipe->kept_place);
}

/* Offers the recipes of a chunk size, an order and a list: with inputs and what is held at either
 * place, attention outputs held or not, and not kept, kept on the device, or on the host. */
static bool offer_variants(const struct tdm_search_space *space, struct tdm_recipe *recipe,
                           tdm_recipe_visitor visit, void *self)
{
    enum { PLACES = TDM_PLANNED_PLACES, KEPT = 1 + PLACES, VARIANTS = PLACES * 2 * PLACES * KEPT };
    const bool trains = space->schedule->pass != TDM_EVALUATE;
    for (int variant = 0; variant < (trains ? VARIANTS : 1); variant++) {
        const int kept = variant % KEPT;
        recipe->kept = kept > 0;
        recipe->kept_place = tdm_planned_place(space->schedule, kept > 0 ? kept - 1 : 0);
        recipe->held_place = tdm_planned_place(space->schedule, variant / KEPT % PLACES);
        recipe->held = variant / KEPT / PLACES % 2 == 1;
        recipe->input_place = tdm_planned_place(space->schedule, variant / KEPT / PLACES / 2);
        if (trains ? !is_of_use(space, recipe) : !is_of_use_to_evaluate(space->pins, recipe))
            continue;
        if (!visit(self, recipe))
            return false;
        recipe->number++;
    }
    return true;
}

void tdm_recipes_enumerate(const struct tdm_search_space *space, enum tdm_place on,
                           tdm_recipe_visitor visit, void *self)
{
    struct tdm_recipe recipe = {0};
    for (int order = 0; order < TDM_ORDERS; order++) {
        if (space->pins->has_order && (int)space->pins->order != order)
            continue;
        recipe.order = (enum tdm_order)order;
        for (recipe.size = 0; recipe.size < space->size_count; recipe.size++) {
            if (space->bases[recipe.size].optimizer.on != on)
                continue;
            for (recipe.list = 0; recipe.list < space->lists.count; recipe.list++)
                if (!offer_variants(space, &recipe, visit, self))
                    return;
        }
    }
}

/* ---- a recipe as a nest ---- */

static enum tdm_set at_least_attention(enum tdm_set set)
{
    return tdm_set_has(set, TDM_STORE_ATTENTION) ? set : TDM_SET_ATTENTION_OUTPUT;
}

/* Sets K and V as the order's default, unless pinned. A kept set with q requires kept K and V. */
static void write_kv(const struct tdm_pins *pins, struct tdm_group *group)
{
    if (pins->has_kv)
        group->kv = pins->kv;
    if (tdm_set_has(group->kept, TDM_STORE_KV))
        group->kv = TDM_KV_KEEP;
    if (group->kv == TDM_KV_KEEP)
        group->kv_place = pins->kv_place;
    group->kv_gradients_place = pins->kv_gradients_place;
}

void tdm_recipe_write(const struct tdm_search_space *space, const struct tdm_recipe *recipe)
{
    struct tdm_schedule *schedule = space->schedule;
    const struct tdm_group_list *list = &space->lists.lists[recipe->list];
    schedule->chunk_tokens = space->bases[recipe->size].chunk_tokens;
    schedule->prefetch = space->bases[recipe->size].prefetch;
    schedule->packed_bytes = 0;
    memcpy(schedule->homes, space->bases[recipe->size].homes, sizeof(schedule->homes));
    schedule->optimizer.on = space->bases[recipe->size].optimizer.on;
    schedule->rings = space->bases[recipe->size].rings;
    schedule->head_tile_tokens = recipe->tiles.safe;
    schedule->group_count = list->count;
    for (uint32_t i = 0; i < list->count; i++) {
        struct tdm_group *group = &schedule->groups[i];
        *group = (struct tdm_group){.layers = list->sizes[i],
                                    .input_place = recipe->input_place,
                                    .held_place = recipe->held_place};
        if (recipe->held)
            group->held = at_least_attention(space->pins->held_set);
        if (recipe->kept) {
            group->kept = at_least_attention(space->pins->kept_set);
            group->kept_from_chunk = recipe->kept_from_chunk;
            group->kept_place = recipe->kept_place;
        }
    }
    tdm_schedule_set_order(schedule, recipe->order);
    for (uint32_t i = 0; i < list->count; i++)
        write_kv(space->pins, &schedule->groups[i]);
}

/* ---- estimates ---- */

void tdm_tiles_choose(const struct tdm_search_space *space, uint32_t size, uint64_t most_bytes,
                      struct tdm_estimate *estimate, struct tdm_tiles *tiles)
{
    const struct tdm_estimator *e = space->estimators[size];
    const uint64_t most = space->bases[size].head_tile_tokens;
    const bool fixed = space->pins->head_tile_tokens != 0;
    tiles->large = tdm_estimate_add_tile(e, most, fixed, most_bytes, estimate);
    tiles->safe = tdm_estimate_add_tile(e, most, fixed, 0, estimate);
}

/* Estimates the bytes of a recipe with its current split, with the safe LM-head tile. */
static void estimate_bytes(const struct tdm_search_space *space, struct tdm_recipe *recipe,
                           const uint64_t limit_bytes[TDM_MAX_PLACES])
{
    const uint64_t most = space->bases[recipe->size].head_tile_tokens;
    struct tdm_estimate estimate;
    recipe->tiles = (struct tdm_tiles){.safe = most, .large = most};
    tdm_recipe_write(space, recipe);
    tdm_estimate_bytes_only(space->estimators[recipe->size], space->schedule, &estimate);
    tdm_tiles_choose(space, recipe->size,
                     tdm_size_left(limit_bytes[TDM_DEVICE], recipe->reserve[TDM_DEVICE]), &estimate,
                     &recipe->tiles);
    memcpy(recipe->bytes, estimate.bytes, sizeof(recipe->bytes));
}

static bool fits_at(const struct tdm_recipe *recipe, const uint64_t limit_bytes[TDM_MAX_PLACES],
                    int place)
{
    return tdm_size_add(recipe->bytes[place], recipe->reserve[place]) <= limit_bytes[place];
}

static bool fits(const struct tdm_recipe *recipe, const uint64_t limit_bytes[TDM_MAX_PLACES])
{
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        if (!fits_at(recipe, limit_bytes, place))
            return false;
    return true;
}

/* Estimates a recipe with its current split; its seconds only if it fits. */
static bool estimate_point(const struct tdm_search_space *space, struct tdm_recipe *recipe,
                           const uint64_t limit_bytes[TDM_MAX_PLACES])
{
    estimate_bytes(space, recipe, limit_bytes);
    if (!fits(recipe, limit_bytes))
        return false;
    if (!space->least)
        recipe->seconds =
            tdm_estimate_least_seconds(space->estimators[recipe->size], space->schedule);
    return true;
}

/* Does a split fit the place where outputs are kept? */
static bool split_fits(const struct tdm_search_space *space, struct tdm_recipe *recipe,
                       uint32_t kept_from_chunk, const uint64_t limit_bytes[TDM_MAX_PLACES])
{
    recipe->kept_from_chunk = kept_from_chunk;
    estimate_bytes(space, recipe, limit_bytes);
    return fits_at(recipe, limit_bytes, recipe->kept_place);
}

/* Finds the earliest split that fits the place where outputs are kept, then the fastest from it on:
 * over a slow link, fewer kept outputs can be faster. */
static bool estimate_best_split(const struct tdm_search_space *space, struct tdm_recipe *recipe,
                                const uint64_t limit_bytes[TDM_MAX_PLACES])
{
    uint32_t chunks = tdm_estimator_chunks(space->estimators[recipe->size]);
    uint32_t low = 0, high = chunks - 1, last;
    if (!split_fits(space, recipe, high, limit_bytes) || space->least)
        return fits(recipe, limit_bytes);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (split_fits(space, recipe, middle, limit_bytes))
            high = middle;
        else
            low = middle + 1;
    }

    recipe->kept_from_chunk = last = low;
    bool any = estimate_point(space, recipe, limit_bytes);
    struct tdm_recipe best = *recipe;
    for (uint32_t step = 1; step < SPLIT_STEPS; step++) {
        uint32_t split = low + (uint32_t)((uint64_t)(chunks - 1 - low) * step / SPLIT_STEPS);
        if (split == last)
            continue;
        recipe->kept_from_chunk = last = split;
        if (estimate_point(space, recipe, limit_bytes) &&
            (!any || recipe->seconds < best.seconds)) {
            best = *recipe;
            any = true;
        }
    }
    *recipe = best;
    return any;
}

bool tdm_recipe_estimate(const struct tdm_search_space *space, struct tdm_recipe *recipe,
                         const uint64_t limit_bytes[TDM_MAX_PLACES])
{
    const struct tdm_pins *pins = space->pins;
    if (recipe->kept && pins->kept_from_unit == TDM_SPLIT_FREE)
        return estimate_best_split(space, recipe, limit_bytes);
    if (recipe->kept) {
        uint64_t chunks = tdm_estimator_chunks(space->estimators[recipe->size]);
        recipe->kept_from_chunk = pins->kept_from_unit == TDM_SPLIT_CHUNK
                                      ? pins->kept_from
                                      : (uint32_t)((chunks * pins->kept_from + 50) / 100);
    }
    return estimate_point(space, recipe, limit_bytes);
}
