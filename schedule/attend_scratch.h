/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch of the backward of attention: how much of what, for plans (scratch.c) and for the kernels that use it.
 *
 * Kernels that add up dQ in scratch do so for tiles of rows and tiles of keys, with a counter for each tile that
 * orders the sums (executor/cuda/attention_grad_hopper.cu).
 */
#ifndef TDM_SCHEDULE_ATTEND_SCRATCH_H
#define TDM_SCHEDULE_ATTEND_SCRATCH_H

#include "schedule/selector.h"

/* Tokens of a tile of rows, and of a tile of keys. */
#define TDM_ATTEND_ROWS 64u
#define TDM_ATTEND_KEYS 128u

/* Pages before the chunk that most query pages read are worked on by a block for each query head, if no more than so many
 * are (of each list); else by one. */
#define TDM_ATTEND_FEW_PAGES 8u

/* Tokens rounded up to whole tiles of rows. */
TDM_ANYWHERE uint64_t tdm_attend_rows(uint64_t tokens)
{
    return (tokens + TDM_ATTEND_ROWS - 1) / TDM_ATTEND_ROWS * TDM_ATTEND_ROWS;
}

/* Counters: two for each tile of rows of a query head, one for each tile of keys of a KV head, and one more. */
TDM_ANYWHERE uint64_t tdm_attend_turns(uint64_t tokens, uint64_t keys, uint64_t query_heads,
                                       uint64_t kv_heads)
{
    return 2 * query_heads * (tdm_attend_rows(tokens) / TDM_ATTEND_ROWS) +
           (keys + TDM_ATTEND_KEYS - 1) / TDM_ATTEND_KEYS * kv_heads + 1;
}

/* Parts of (key page, list) that are worked on at most: `read_pages` pages of each list that may be read at all, those of
 * the chunk, as many as there are query pages, and a few more in `parts`. */
TDM_ANYWHERE uint64_t tdm_attend_parts(uint64_t read_pages, uint64_t query_pages, uint64_t lists,
                                       uint64_t parts)
{
    return (read_pages + (query_pages + TDM_ATTEND_FEW_PAGES) * (parts - 1)) * lists;
}

/* Words of scratch that say in which order they are worked on: three numbers, one for each list, and the parts; and
 * the rank of each key page in the list of each query page, two to a word. `ratio`: query heads of a KV head. */
TDM_ANYWHERE uint64_t tdm_attend_order(uint64_t key_pages, uint64_t query_pages, uint64_t lists,
                                       uint64_t ratio)
{
    return 3 + query_pages * lists + tdm_attend_parts(key_pages, query_pages, lists, ratio) +
           (key_pages * lists * query_pages + 1) / 2;
}

#endif
