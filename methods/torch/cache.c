/* SPDX-License-Identifier: Apache-2.0 */
/* use_cache: K and V of all layers are held as long as the model's output object exists, although
 * nothing reads them. Source: transformers/cache_utils.py, DynamicLayer and
 * DynamicSlidingWindowLayer. */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

#define SLOTS 3u /* per layer: K, V, its window */

static size_t slots_of(const struct tdm_torch_model *t)
{
    return (size_t)t->config->layers * SLOTS;
}

bool tdm_torch_cache_create(struct tdm_torch_model *t)
{
    for (unsigned i = 0; i < 2 && t->caches; i++) {
        t->cached[i] = calloc(slots_of(t), sizeof(struct tdm_eager_value *));
        if (t->cached[i] == NULL)
            return false;
    }
    return true;
}

static void drop_all(struct tdm_torch_model *t, struct tdm_eager_value **cached)
{
    for (size_t i = 0; cached != NULL && i < slots_of(t); i++) {
        tdm_drop(t->m, cached[i]);
        cached[i] = NULL;
    }
}

void tdm_torch_cache_free(struct tdm_torch_model *t)
{
    for (unsigned i = 0; i < 2; i++) {
        drop_all(t, t->cached[i]);
        free(t->cached[i]);
    }
}

/* Joins an empty tensor, which has K's dtype for V too, and `old`. The cache and the caller each
 * have a reference to the result. */
static struct tdm_eager_value *join(struct tdm_eager *m, struct tdm_eager_value *old,
                                    uint16_t element_bytes, struct tdm_eager_value **slot)
{
    *slot = tdm_cat_alone(m, old, element_bytes);
    return tdm_take(*slot);
}

void tdm_torch_cache_update(const struct tdm_torch_model *t, uint32_t number,
                            struct tdm_eager_value **k, struct tdm_eager_value **v)
{
    if (!t->caches)
        return;
    struct tdm_eager *m = t->m;
    struct tdm_eager_value **slots = &t->cached[0][(size_t)number * SLOTS], *old_k = *k,
                           *old_v = *v;
    if (t->config->layer_kinds[number].window > 0)
        slots[2] = tdm_value_new(m, 1, 1, INT64);
    if (tdm_adapter_prefix_tokens(&t->settings) > 0) { /* a trained prefix is in the cache */
        tdm_torch_prefix_join(t, &slots[0], k);
        tdm_torch_prefix_join(t, &slots[1], v);
        return;
    }
    /* A window's cache is a view of the last tokens, so all of the memory stays. */
    *k = join(m, old_k, old_k->element_bytes, &slots[0]);
    *v = join(m, old_v, old_k->element_bytes, &slots[1]);
    tdm_drop(m, old_k);
    tdm_drop(m, old_v);
}

struct tdm_eager_value **tdm_torch_cache_slot(const struct tdm_torch_model *t, uint32_t layer,
                                              unsigned part)
{
    return &t->cached[0][(size_t)layer * SLOTS + part];
}

void tdm_torch_cache_drop(struct tdm_torch_model *t)
{
    drop_all(t, t->cached[0]);
}

void tdm_torch_cache_hold(struct tdm_torch_model *t)
{
    struct tdm_eager_value **before = t->cached[1];
    drop_all(t, before);
    t->cached[1] = t->cached[0];
    t->cached[0] = before;
}
