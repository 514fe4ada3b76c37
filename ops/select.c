/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the selection ops, and the layout of their scratch. */
#include "ops/select.h"

#include "base/size.h"
#include "ops/params.h"
#include "ops/scratch.h"

/* Q K^T of the means, twice: for the sums of rows, then the votes. */
static uint64_t vote_flops(const struct tdm_params *params, const struct tdm_work *work)
{
    return tdm_size_mul(2 * 2 * (uint64_t)params->attention.query_heads * params->pages.head_dim,
                        work->scores);
}

struct tdm_vote_scratch tdm_vote_scratch(const struct tdm_params *params, uint64_t tokens)
{
    const struct tdm_pages_params *pages = &params->pages;
    struct tdm_vote_scratch x = {0};
    if (pages->lists_by != TDM_SELECT_TOP_K)
        return x;
    uint64_t query_pages = tdm_size_ceil_div(tokens, pages->page_tokens);
    uint64_t votes = tdm_size_mul(query_pages, tdm_size_mul(pages->longest_pages, pages->kv_heads));
    uint64_t lse =
        tdm_size_mul(tokens, 2 * sizeof(float) * (uint64_t)params->attention.query_heads);
    x.votes = tdm_size_align(lse, TDM_SCRATCH_ALIGN);
    x.bytes = tdm_size_add(x.votes,
                           tdm_size_align(tdm_size_mul(votes, sizeof(float)), TDM_SCRATCH_ALIGN));
    return x;
}

static uint64_t vote_bytes(const struct tdm_params *params, uint64_t tokens)
{
    return tdm_vote_scratch(params, tokens).bytes;
}

const struct tdm_op_type tdm_page_means_type = {
    .name = "page_means",
    .operands = TDM_PAGE_MEANS_OPERANDS,
    .operand =
        {
            [TDM_PAGE_MEANS_PAGES] = {"k, v pages", TDM_READS, false},
            [TDM_PAGE_MEANS_OUT] = {"page means", TDM_WRITES, false},
        },
    .rate = TDM_RATE_PAGE_MEANS,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_select_type = {
    .name = "select",
    .operands = TDM_SELECT_OPERANDS,
    .operand =
        {
            [TDM_SELECT_Q] = {"q", TDM_READS, true},
            [TDM_SELECT_MEANS] = {"page means", TDM_READS, true},
            [TDM_SELECT_LISTS] = {"page lists", TDM_WRITES, false},
        },
    .sight = TDM_SIGHT_PAGES,
    .rate = TDM_RATE_SELECT,
    .flops = vote_flops,
    .scratch = vote_bytes,
};
