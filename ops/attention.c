/* SPDX-License-Identifier: Apache-2.0 */
/* The records of attention, and the layout of its scratch. */
#include "ops/attention.h"

#include "ops/params.h"

/* ---- scratch ---- */

/* Reserves `bytes` after the arrays so far and returns where they begin. */
static uint64_t take(uint64_t *end, uint64_t bytes)
{
    uint64_t begin = *end;
    *end = tdm_size_add(begin, tdm_size_align(bytes, TDM_SCRATCH_ALIGN));
    return begin;
}

/* With page lists: where each row's document begins. The backward also needs the inverse lists, two
 * bits for each query page, and the order in which key pages are processed. */
static void take_lists(const struct tdm_params *params, uint64_t tokens,
                       struct tdm_attention_scratch *x)
{
    const struct tdm_pages_params *pages = &params->pages;
    uint64_t key_pages = params->attention.gather.key_pages, word = sizeof(uint32_t);
    uint64_t words = tdm_size_ceil_div(tokens, tdm_size_mul(32, pages->page_tokens));
    uint64_t order =
        tdm_attend_order(key_pages, tdm_size_ceil_div(tokens, pages->page_tokens), pages->lists,
                         params->attention.query_heads / pages->kv_heads, pages->list_capacity);
    x->start = take(&x->bytes, tdm_size_mul(tokens, word));
    x->readers = take(&x->bytes, tdm_size_mul(tdm_size_mul(key_pages, pages->lists),
                                              tdm_size_mul(words, 2 * word)));
    x->order = take(&x->bytes, tdm_size_mul(order, word));
}

/* With gathered pages: the buffers for pages and their gradients, the lists of a batch, the page at
 * each place of the buffer for each list, the first keys that tokens see in each list, and where
 * batches end. */
static void take_gathering(const struct tdm_params *params, uint64_t tokens,
                           struct tdm_attention_scratch *x)
{
    const struct tdm_gather_params *gather = &params->attention.gather;
    const struct tdm_pages_params *pages = &params->pages;
    uint64_t word = sizeof(uint32_t), of_lists = pages->lists * word;
    uint64_t query_pages = tdm_size_ceil_div(tokens, pages->page_tokens);
    x->pages = take(&x->bytes, gather->kv_buffer_bytes);
    x->gradients = take(&x->bytes, gather->dkv_buffer_bytes);
    x->listed =
        take(&x->bytes,
             tdm_size_mul(query_pages, tdm_size_mul(of_lists, 1 + (uint64_t)pages->list_capacity)));
    x->table = take(&x->bytes, tdm_size_mul(gather->pages, of_lists));
    x->sight = take(&x->bytes, tdm_size_mul(tokens, of_lists));
    x->begin = take(&x->bytes, tdm_size_mul(tokens, of_lists));
    x->bounds = take(&x->bytes, (tdm_gather_batches(params, tokens) + 1) * word);
    x->ends = take(&x->bytes, 3 * of_lists);
}

struct tdm_attention_scratch tdm_attention_scratch(const struct tdm_params *params, uint64_t tokens)
{
    const struct tdm_attention_params *attention = &params->attention;
    const struct tdm_pages_params *pages = &params->pages;
    uint64_t rows = tdm_attend_rows(tokens), heads = attention->query_heads;
    uint64_t keys = tdm_size_mul(attention->gather.key_pages, pages->page_tokens);
    struct tdm_attention_scratch x = {0};
    x.from = take(&x.bytes, tdm_size_mul(tokens, sizeof(uint64_t)));
    x.d = take(&x.bytes, tdm_size_mul(rows, 2 * sizeof(float) * heads));
    if (attention->sums_dq) {
        uint64_t turns = tdm_attend_turns(tokens, keys, heads, pages->kv_heads);
        x.dq_sums =
            take(&x.bytes, tdm_size_mul(rows, heads * sizeof(float) * (uint64_t)pages->head_dim));
        x.turns = take(&x.bytes, tdm_size_mul(turns, sizeof(uint32_t)));
    }
    if (attention->divides_keys) {
        uint64_t tile = TDM_ATTEND_TILE * sizeof(float) * (uint64_t)pages->head_dim;
        x.parts = attention->sums_dq
                      ? x.dq_sums
                      : take(&x.bytes, tdm_size_mul(tdm_attend_part_tiles(tokens, heads), tile));
    }
    if (pages->lists_by != TDM_SELECT_DENSE)
        take_lists(params, tokens, &x);
    if (attention->gather.pages > 0)
        take_gathering(params, tokens, &x);
    return x;
}

uint64_t tdm_gather_batches(const struct tdm_params *params, uint64_t tokens)
{
    uint64_t query_pages = tdm_size_ceil_div(tokens, params->pages.page_tokens);
    return tdm_size_ceil_div(query_pages, params->attention.gather.batch_pages);
}

static uint64_t scratch_bytes(const struct tdm_params *params, uint64_t tokens)
{
    return tdm_attention_scratch(params, tokens).bytes;
}

/* ---- records ---- */

/* FLOPs of `products` matrix products over the pairs. */
static uint64_t flops_of(const struct tdm_params *params, const struct tdm_work *work,
                         uint64_t products)
{
    uint64_t of_pair = 2 * (uint64_t)params->attention.query_heads * params->pages.head_dim;
    return tdm_size_mul(products * of_pair, work->pairs);
}

/* Q K^T and P V. */
static uint64_t forward_flops(const struct tdm_params *params, const struct tdm_work *work)
{
    return flops_of(params, work, 2);
}

/* Q K^T again, dO V^T, P^T dO, dS K, dS^T Q. */
static uint64_t backward_flops(const struct tdm_params *params, const struct tdm_work *work)
{
    return flops_of(params, work, 5);
}

const struct tdm_op_type tdm_attention_type = {
    .name = "attention",
    .operands = TDM_ATTENTION_OPERANDS,
    .operand =
        {
            [TDM_ATTENTION_Q] = {"q", TDM_READS, false},
            [TDM_ATTENTION_KV] = {"k, v pages", TDM_READS, false},
            [TDM_ATTENTION_O] = {"output", TDM_WRITES, false},
            [TDM_ATTENTION_LISTS] = {"page lists", TDM_READS, true},
        },
    .sight = TDM_SIGHT_KEYS,
    .rate = TDM_RATE_ATTENTION_FORWARD,
    .flops = forward_flops,
    .scratch = scratch_bytes,
};

const struct tdm_op_type tdm_attention_grad_type = {
    .name = "attention_grad",
    .operands = TDM_ATTENTION_GRAD_OPERANDS,
    .operand =
        {
            [TDM_ATTENTION_GRAD_Q] = {"q", TDM_READS, false},
            [TDM_ATTENTION_GRAD_KV] = {"k, v pages", TDM_READS, false},
            [TDM_ATTENTION_GRAD_O] = {"output", TDM_READS, true},
            [TDM_ATTENTION_GRAD_DO] = {"output's gradient", TDM_READS, true},
            [TDM_ATTENTION_GRAD_DQ] = {"gradient of q", TDM_WRITES, false},
            [TDM_ATTENTION_GRAD_DKV_OPENED] =
                {"gradient of the k, v pages that no later chunk sees", TDM_WRITES, true},
            [TDM_ATTENTION_GRAD_DKV_ADDED] = {"gradient of the k, v pages that a later chunk sees",
                                              TDM_CHANGES, true},
            [TDM_ATTENTION_GRAD_LISTS] = {"page lists", TDM_READS, true},
        },
    .sight = TDM_SIGHT_KEYS,
    .rate = TDM_RATE_ATTENTION_BACKWARD,
    .flops = backward_flops,
    .scratch = scratch_bytes,
};

const struct tdm_op_type tdm_pack_queries_type = {
    .name = "pack_queries",
    .operands = TDM_PACK_QUERIES_OPERANDS,
    .operand =
        {
            [TDM_PACK_QUERIES_Q] = {"q", TDM_READS, false},
            [TDM_PACK_QUERIES_O] = {"output", TDM_READS, false},
            [TDM_PACK_QUERIES_DO] = {"output's gradient", TDM_READS, false},
            [TDM_PACK_QUERIES_OUT] = {"queries for other ranks", TDM_WRITES, false},
        },
    .rate = TDM_RATE_ELEMENTWISE,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_merge_type = {
    .name = "merge",
    .operands = TDM_MERGE_OPERANDS,
    .operand =
        {
            [TDM_MERGE_PART] = {"part", TDM_READS, false},
            [TDM_MERGE_SUM] = {"parts so far", TDM_READS | TDM_WRITES | TDM_CHANGES, false},
            [TDM_MERGE_OUT] = {"all parts", TDM_WRITES, true},
        },
    .rate = TDM_RATE_ELEMENTWISE,
    .flops = tdm_no_flops,
};
