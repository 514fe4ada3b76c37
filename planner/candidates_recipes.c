/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes as candidates: enumerated, then tried in order of rising estimated time until none can
 * win. */
#include "planner/candidates_parts.h"

#include <stdlib.h>

#define QUICK_PARTS 8u /* divides the effort for recipes, for `quick` */

/* ---- the queue ---- */

/* The last recipe is the first to be taken: the one with the least cost. */
static int by_falling_cost(const void *left, const void *right)
{
    const struct tdm_recipe *a = left, *b = right;
    if (a->cost < b->cost || a->cost > b->cost)
        return a->cost < b->cost ? 1 : -1;
    return (a->number < b->number) - (a->number > b->number);
}

static bool add(struct tdm_recipe_queue *queue, const struct tdm_recipe *recipe)
{
    if (queue->count == queue->capacity) {
        size_t capacity = queue->capacity == 0 ? 1024 : queue->capacity * 2;
        struct tdm_recipe *moved = realloc(queue->recipes, capacity * sizeof(*moved));
        if (moved == NULL)
            return false;
        queue->recipes = moved;
        queue->capacity = capacity;
    }
    queue->recipes[queue->count++] = *recipe;
    return true;
}

/* Puts a recipe that was taken back to where it belongs. */
static void put_back(struct tdm_recipe_queue *queue, const struct tdm_recipe *recipe)
{
    size_t at = queue->count++;
    for (; at > 0 && by_falling_cost(&queue->recipes[at - 1], recipe) > 0; at--)
        queue->recipes[at] = queue->recipes[at - 1];
    queue->recipes[at] = *recipe;
}

/* Estimates a recipe. False: it does not fit. */
static bool estimate(const struct tdm_candidates *run, struct tdm_recipe *recipe)
{
    const int place = run->queue.place;
    const bool fits = tdm_recipe_estimate(&run->space, recipe, run->limit_bytes);
    recipe->cost = place < (int)TDM_MAX_PLACES ? (double)recipe->bytes[place] : recipe->seconds;
    return fits;
}

static bool take_recipe(void *self, const struct tdm_recipe *offered)
{
    struct tdm_candidates *run = self;
    struct tdm_recipe recipe = *offered;
    run->counts.examined++;
    if (!estimate(run, &recipe))
        run->counts.too_large++;
    else if (!add(&run->queue, &recipe))
        run->no_memory = true;
    return !run->no_memory;
}

enum tdm_status tdm_candidates_enumerate(struct tdm_candidates *run, struct tdm_error *err)
{
    run->queue.count = 0;
    tdm_recipes_enumerate(&run->space, run->on, take_recipe, run);
    if (run->no_memory)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates");
    if (run->queue.count > 0)
        qsort(run->queue.recipes, run->queue.count, sizeof(*run->queue.recipes), by_falling_cost);
    return TDM_OK;
}

const struct tdm_recipe *tdm_candidates_first(const struct tdm_recipe_queue *queue)
{
    return queue->count > 0 ? &queue->recipes[queue->count - 1] : NULL;
}

/* ---- trying them ---- */

static enum tdm_status try_recipe(struct tdm_candidates *run, struct tdm_recipe *recipe,
                                  struct tdm_error *err)
{
    uint64_t used_bytes[TDM_MAX_PLACES];
    double step_seconds;
    bool fits;
    tdm_recipe_write(&run->space, recipe);
    enum tdm_status status = tdm_candidates_try_schedule(run, recipe->size, &recipe->tiles, &fits,
                                                         used_bytes, &step_seconds, err);
    if (status != TDM_OK || fits || !recipe->kept)
        return status;
    /* queued again with a larger reserve, if it still fits */
    uint32_t before = recipe->kept_from_chunk;
    tdm_candidates_add_reserve(run, used_bytes, recipe->bytes, recipe->reserve);
    if (estimate(run, recipe) && recipe->kept_from_chunk != before)
        put_back(&run->queue, recipe);
    return status;
}

static enum tdm_status try_recipes(struct tdm_candidates *run, struct tdm_error *err)
{
    const uint64_t most_ops = run->space.pins->quick ? MOST_OPS / QUICK_PARTS : MOST_OPS;
    enum tdm_status status = TDM_OK;
    run->ops = 0;
    const struct tdm_recipe *first;
    while (status == TDM_OK && (first = tdm_candidates_first(&run->queue)) != NULL) {
        if (!tdm_candidates_could_win(run, first->seconds)) {
            run->counts.too_slow += run->queue.count;
            break;
        }
        if (run->found && run->ops > most_ops) {
            run->counts.complete = false;
            break;
        }
        struct tdm_recipe recipe = *first;
        run->queue.count--;
        status = try_recipe(run, &recipe, err);
    }
    return status;
}

enum tdm_status tdm_candidates_look_at_recipes(struct tdm_candidates *run, bool trains,
                                               struct tdm_error *err)
{
    if (trains && tdm_candidates_without(run, TDM_ENUMERATION))
        return TDM_OK;
    enum tdm_status status = tdm_candidates_enumerate(run, err);
    if (status == TDM_OK)
        status = try_recipes(run, err);
    if (status != TDM_OK || run->found || !trains || tdm_is_far(run->on))
        return status;
    tdm_search_space_stream_state(&run->space);
    status = tdm_candidates_enumerate(run, err);
    return status == TDM_OK ? try_recipes(run, err) : status;
}
