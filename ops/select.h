/* SPDX-License-Identifier: Apache-2.0 */
/* Selection of the pages that a chunk's queries see, and the page means that the votes score. */
#ifndef TDM_OPS_SELECT_H
#define TDM_OPS_SELECT_H

#include "ops/ops.h"

/* The scratch of a vote: where its arrays begin, in bytes. */
struct tdm_vote_scratch {
    uint64_t lse;   /* fp32 [2, tokens, query_heads] */
    uint64_t votes; /* fp32 [query pages, kv_heads, pages of the longest sequence] */
    uint64_t bytes; /* total; 0 without a vote; saturates */
};
struct tdm_vote_scratch tdm_vote_scratch(const struct tdm_params *params, uint64_t tokens);

enum tdm_page_means_operand {
    TDM_PAGE_MEANS_PAGES, /* read: pages of K and V of the op's chunk */
    TDM_PAGE_MEANS_OUT,   /* written: means of the pages' K, [pages, kv_heads, head_dim] */
    TDM_PAGE_MEANS_OPERANDS
};
extern const struct tdm_op_type tdm_page_means_type;

enum tdm_select_operand {
    TDM_SELECT_Q, /* read if pages win by a vote, else absent: [tokens, query_heads, head_dim] */
    /* read if pages win by a vote: the means of the chunks before the op's that it sees; absent if
     * there are none */
    TDM_SELECT_MEANS,
    TDM_SELECT_LISTS, /* written: which pages each query page sees (schedule/layout.h) */
    TDM_SELECT_OPERANDS
};
extern const struct tdm_op_type tdm_select_type;

#endif
