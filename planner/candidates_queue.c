/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of recipes: a heap, with the next one to try first. */
#include "planner/candidates_parts.h"

#include <stdlib.h>

static bool goes_before(const struct tdm_recipe_queue *queue, const struct tdm_recipe *a,
                        const struct tdm_recipe *b)
{
    if (queue->place < (int)TDM_MAX_PLACES) {
        if (a->bytes[queue->place] != b->bytes[queue->place])
            return a->bytes[queue->place] < b->bytes[queue->place];
    } else if (a->seconds < b->seconds || a->seconds > b->seconds) {
        return a->seconds < b->seconds;
    }
    return a->number < b->number;
}

bool tdm_candidates_push(struct tdm_recipe_queue *queue, const struct tdm_recipe *recipe)
{
    if (queue->count == queue->capacity) {
        size_t capacity = queue->capacity == 0 ? 1024 : queue->capacity * 2;
        struct tdm_recipe *moved = realloc(queue->recipes, capacity * sizeof(*moved));
        if (moved == NULL)
            return false;
        queue->recipes = moved;
        queue->capacity = capacity;
    }
    size_t at = queue->count++;
    for (; at > 0; at = (at - 1) / 2) {
        struct tdm_recipe *parent = &queue->recipes[(at - 1) / 2];
        if (!goes_before(queue, recipe, parent))
            break;
        queue->recipes[at] = *parent;
    }
    queue->recipes[at] = *recipe;
    return true;
}

struct tdm_recipe tdm_candidates_pop(struct tdm_recipe_queue *queue)
{
    struct tdm_recipe first = queue->recipes[0];
    struct tdm_recipe last = queue->recipes[--queue->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= queue->count)
            break;
        if (child + 1 < queue->count &&
            goes_before(queue, &queue->recipes[child + 1], &queue->recipes[child]))
            child++;
        if (!goes_before(queue, &queue->recipes[child], &last))
            break;
        queue->recipes[at] = queue->recipes[child];
        at = child;
    }
    queue->recipes[at] = last;
    return first;
}
