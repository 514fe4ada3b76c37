/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch of kernels: the constants that decide how much they use. The kernels that use it and the
 * functions that plan it (the records of ops, attention.c) include this file. It compiles as C and
 * as CUDA C.
 */
#ifndef TDM_OPS_SCRATCH_H
#define TDM_OPS_SCRATCH_H

#include "ops/selector.h"

/* Every array in it is aligned to this number of bytes. */
#define TDM_SCRATCH_ALIGN 256u

/* ---- sums over rows ----
 *
 * They are made in two steps, so that results repeat: first of a number of slices of the rows that
 * does not depend on the GPU, then of the slices. */
#define TDM_NORM_SLICES \
    264u /* gradient of a norm: two for each multiprocessor of an H100 or H200 */
#define TDM_HEAD_SLICES 528u /* gradient of a QK-norm, by head: four for each */
#define TDM_BIAS_SLICES 64u  /* gradient of a bias */

/* The largest number of partial sums of squares of a tensor. */
#define TDM_SQUARE_BLOCKS 1024u

/* ---- forward of attention ----
 *
 * Blocks take items one after the other: tiles of rows of a query head, several in a cluster of
 * blocks. In the last round there may be fewer items than multiprocessors. Then the keys of these
 * items are divided into parts, whose results are joined from scratch
 * (executor/cuda/attention_hopper.cu). How is decided by the shape alone, so that results do not
 * depend on the GPU. */

#define TDM_ATTEND_TILE 128u   /* tokens of a tile of rows */
#define TDM_ATTEND_BLOCKS 132u /* multiprocessors of an H100 or H200 */
#define TDM_ATTEND_MOST_PARTS 8u
#define TDM_ATTEND_PART_STEPS 8u /* least number of steps of a part; a step has up to 176 keys */

/* The first `whole` items are not divided. Each of the others is divided into up to `parts`. */
struct tdm_attend_split {
    uint32_t whole, parts;
};

/* Number of partial results that scratch has space for: tiles of rows, all columns in fp32. Four
 * for each multiprocessor are enough for all shapes that were measured. */
TDM_ANYWHERE uint64_t tdm_attend_part_tiles(uint64_t tokens, uint64_t query_heads)
{
    const uint64_t all = tokens / TDM_ATTEND_TILE * query_heads, most = 4 * TDM_ATTEND_BLOCKS;
    return all < most ? all : most;
}

/* Time of the last round, in thousandths of a step: `left` items of `steps` steps each, divided
 * into `parts`, on blocks that take `at_once`. A part takes about two steps more than its own, the
 * joining kernel as long as 4. */
TDM_ANYWHERE uint64_t tdm_attend_last_round(uint64_t left, uint64_t steps, uint64_t parts,
                                            uint64_t at_once)
{
    const uint64_t rounds = (left * parts + at_once - 1) / at_once;
    return rounds * (steps + 2 * parts) * 1000 / parts + (parts > 1 ? 4000 : 0);
}

/* The most keys that an item of `tiles` tiles sees of `keys`. `window`: tokens; 0: none. */
TDM_ANYWHERE uint64_t tdm_attend_most_keys(uint64_t keys, uint64_t window, uint64_t tiles)
{
    const uint64_t rows = tiles * TDM_ATTEND_TILE;
    return window > 0 && keys > rows && window < keys - rows ? window + rows : keys;
}

/* How `items` items of `tiles` tiles each are divided, if none has more than `steps` steps, and
 * scratch has space for `space` partial results. */
TDM_ANYWHERE struct tdm_attend_split tdm_attend_split_of(uint64_t items, uint64_t tiles,
                                                         uint64_t steps, uint64_t space)
{
    struct tdm_attend_split split = {(uint32_t)items, 1};
    const uint64_t at_once = TDM_ATTEND_BLOCKS / tiles, left = items % at_once;
    uint64_t least = tdm_attend_last_round(left, steps, 1, at_once);
    for (uint64_t parts = 2; parts <= TDM_ATTEND_MOST_PARTS && left * parts * tiles <= space;
         parts++) {
        const uint64_t time = tdm_attend_last_round(left, steps, parts, at_once);
        if (items < at_once || left == 0 || steps < parts * TDM_ATTEND_PART_STEPS || time >= least)
            continue;
        least = time;
        split.whole = (uint32_t)(items - left);
        split.parts = (uint32_t)parts;
    }
    return split;
}

/* ---- backward of attention ----
 *
 * Kernels that sum dQ in scratch do so for tiles of rows and tiles of keys, with a counter for each
 * tile that orders the sums (executor/cuda/attention_grad_hopper.cu). */

/* Tokens of a tile of rows, and of a tile of keys. */
#define TDM_ATTEND_ROWS 64u
#define TDM_ATTEND_KEYS 128u

/* Pages before the chunk that many query pages read are split into blocks, each with some of the
 * query heads, if a list has on average at most this many of them. Otherwise each is one block. */
#define TDM_ATTEND_FEW_PAGES 8u

/* Tokens rounded up to whole tiles of rows. */
TDM_ANYWHERE uint64_t tdm_attend_rows(uint64_t tokens)
{
    return (tokens + TDM_ATTEND_ROWS - 1) / TDM_ATTEND_ROWS * TDM_ATTEND_ROWS;
}

/* Number of counters: two for each tile of rows of a query head, one for each tile of keys of a KV
 * head, and one more. */
TDM_ANYWHERE uint64_t tdm_attend_turns(uint64_t tokens, uint64_t keys, uint64_t query_heads,
                                       uint64_t kv_heads)
{
    return 2 * query_heads * (tdm_attend_rows(tokens) / TDM_ATTEND_ROWS) +
           (keys + TDM_ATTEND_KEYS - 1) / TDM_ATTEND_KEYS * kv_heads + 1;
}

/* The largest number of processed parts of (key page, list) pairs. Each list has at most
 * `read_pages` pages that are read. Of these the chunk's own, as many as query pages, and up to
 * TDM_ATTEND_FEW_PAGES others have `parts` parts each; the rest have one. */
TDM_ANYWHERE uint64_t tdm_attend_parts(uint64_t read_pages, uint64_t query_pages, uint64_t lists,
                                       uint64_t parts)
{
    return (read_pages + (query_pages + TDM_ATTEND_FEW_PAGES) * (parts - 1)) * lists;
}

/* Largest number of blocks for one key page and one query page each, of a KV head. `capacity`:
 * pages of a list. */
TDM_ANYWHERE uint64_t tdm_attend_items_of_some(uint64_t key_pages, uint64_t query_pages,
                                               uint64_t lists, uint64_t capacity)
{
    const uint64_t before = key_pages > query_pages ? key_pages - query_pages : 0;
    return (before < capacity ? before : capacity) * query_pages * lists;
}

/* Words of scratch for the processing order: two for each pair of a key page and a query page;
 * three numbers; two half-words for each list of a query page; the parts; and the rank of each key
 * page in the list of each query page, two to a word. `ratio`: query heads of a KV head. */
TDM_ANYWHERE uint64_t tdm_attend_order(uint64_t key_pages, uint64_t query_pages, uint64_t lists,
                                       uint64_t ratio, uint64_t capacity)
{
    return 2 * tdm_attend_items_of_some(key_pages, query_pages, lists, capacity) + 3 +
           query_pages * lists + tdm_attend_parts(key_pages, query_pages, lists, ratio) +
           (key_pages * lists * query_pages + 1) / 2;
}

#endif
