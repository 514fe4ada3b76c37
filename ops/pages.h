/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of all ops over pages of K and V, and over the lists of pages that queries see. The
 * layout of pages and lists is in schedule/layout.h. */
#ifndef TDM_OPS_PAGES_H
#define TDM_OPS_PAGES_H

#include "base/dtype.h"
#include "models/model.h"
#include "ops/selector.h"

struct tdm_pages_params {
    uint32_t kv_heads, head_dim;
    uint64_t chunk_tokens, page_tokens;
    uint64_t page_elements, plane_elements; /* of a page, with its K and V planes; of one plane */
    enum tdm_dtype kv, kv_gradients;        /* as stored */
    struct tdm_selector selector;           /* of the layers for which the model gives no window */
    const struct tdm_layer_kind *layer_kinds; /* [layers] with their windows; the model's */
    /* the selector by which layers list pages; TDM_SELECT_DENSE: none does */
    enum tdm_selector_kind lists_by;
    uint32_t lists;         /* of a query page: one for each KV head, or one for all */
    uint32_t list_capacity; /* pages */
    uint64_t longest_pages; /* of the longest sequence */
    uint64_t voted_pages;   /* largest number of pages voted on; 0 without a vote */
};

/* What a layer's queries see: the window of its kind in the model, or else what the schedule's
 * selector gives. */
static inline struct tdm_page_rule tdm_page_rule_in(const struct tdm_selector *selector,
                                                    uint64_t chunk_tokens, uint64_t page_tokens,
                                                    const struct tdm_layer_kind *kind,
                                                    uint32_t layer)
{
    struct tdm_page_rule rule = {.selector = *selector,
                                 .chunk_tokens = chunk_tokens,
                                 .page_tokens = page_tokens,
                                 .layer = layer};
    if (kind->window > 0)
        rule.selector = (struct tdm_selector){.kind = TDM_SELECT_WINDOW, .window = kind->window};
    return rule;
}

static inline struct tdm_page_rule tdm_page_rule_of(const struct tdm_pages_params *pages,
                                                    uint32_t layer)
{
    return tdm_page_rule_in(&pages->selector, pages->chunk_tokens, pages->page_tokens,
                            &pages->layer_kinds[layer], layer);
}

/* Bytes of a page of K and V, or of their gradients, stored as `dtype`. */
static inline uint64_t tdm_page_bytes_of(const struct tdm_pages_params *pages, enum tdm_dtype dtype)
{
    return pages->page_elements * tdm_dtype_bytes(dtype);
}

#endif
