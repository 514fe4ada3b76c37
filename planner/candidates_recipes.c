/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes as candidates: enumerated, then tried in order of rising estimated time until none can
 * win. */
#include "planner/candidates_parts.h"

#define QUICK_PARTS 8u /* divides the effort for recipes, for `quick` */

static bool take_recipe(void *self, const struct tdm_recipe *offered)
{
    struct tdm_candidates *run = self;
    struct tdm_recipe recipe = *offered;
    run->counts.examined++;
    if (!tdm_recipe_estimate(&run->space, &recipe, run->limit_bytes))
        run->counts.too_large++;
    else if (!tdm_candidates_push(&run->queue, &recipe))
        run->no_memory = true;
    return !run->no_memory;
}

enum tdm_status tdm_candidates_enumerate(struct tdm_candidates *run, struct tdm_error *err)
{
    tdm_recipes_enumerate(&run->space, run->on, take_recipe, run);
    return run->no_memory ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates") : TDM_OK;
}

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
    if (tdm_recipe_estimate(&run->space, recipe, run->limit_bytes) &&
        recipe->kept_from_chunk != before && !tdm_candidates_push(&run->queue, recipe))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates");
    return status;
}

static enum tdm_status try_recipes(struct tdm_candidates *run, struct tdm_error *err)
{
    const uint64_t most_ops = run->space.pins->quick ? MOST_OPS / QUICK_PARTS : MOST_OPS;
    enum tdm_status status = TDM_OK;
    run->ops = 0;
    while (run->queue.count > 0 && status == TDM_OK) {
        if (!tdm_candidates_could_win(run, run->queue.recipes[0].seconds)) {
            run->counts.too_slow += run->queue.count;
            break;
        }
        if (run->found && run->ops > most_ops) {
            run->counts.complete = false;
            break;
        }
        struct tdm_recipe recipe = tdm_candidates_pop(&run->queue);
        status = try_recipe(run, &recipe, err);
    }
    return status;
}

enum tdm_status tdm_candidates_look_at_recipes(struct tdm_candidates *run, bool trains,
                                               struct tdm_error *err)
{
    if (trains && tdm_candidates_without(run, TDM_ENUMERATION))
        return TDM_OK;
    run->queue.count = 0;
    enum tdm_status status = tdm_candidates_enumerate(run, err);
    if (status == TDM_OK)
        status = try_recipes(run, err);
    if (status != TDM_OK || run->found || !trains || tdm_is_far(run->on))
        return status;
    tdm_search_space_stream_state(&run->space);
    status = tdm_candidates_enumerate(run, err);
    return status == TDM_OK ? try_recipes(run, err) : status;
}
