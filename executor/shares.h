/* SPDX-License-Identifier: Apache-2.0 */
/* What team ops (ops/team.h) move between ranks: where chunks and gradients lie in their operands,
 * the same on every backend. */
#ifndef TDM_EXECUTOR_SHARES_H
#define TDM_EXECUTOR_SHARES_H

#include "executor/backend.h"

/* The bytes of a chunk in one of the operands of a launch; NULL if none of them has it. */
void *tdm_share_of_chunk(const struct tdm_launch *launch, uint32_t chunk);

/* Bytes of K and V of a chunk, or of their gradients. */
uint64_t tdm_share_chunk_bytes(const struct tdm_launch *launch, enum tdm_content content,
                               uint32_t chunk);

/* A range of elements. */
struct tdm_range {
    uint64_t first, count;
};

/* The elements of a gradient that a TDM_OP_REDUCE_ALL sums: those of its part of the unit, or all,
 * with the gaps between tensors. */
struct tdm_range tdm_share_range(const struct tdm_launch *launch);

/* The part of that range which a rank sums for all. Parts begin at multiples of
 * TDM_SHARE_ALIGN elements from the range's first. */
#define TDM_SHARE_ALIGN 64u
struct tdm_range tdm_share_slice(struct tdm_range range, uint32_t rank, uint32_t ranks);

/* Rows that a rank copies from another's memory in an exchange of heads. */
struct tdm_row_copy {
    void *to;
    const void *from;
    uint64_t to_stride_bytes, from_stride_bytes; /* from row to row */
    uint64_t row_bytes, rows;
};
#define TDM_ROW_COPIES 2 /* the output of attention has a second array, the LSE */

/* What a rank takes from `other` (itself included) in a TDM_OP_ALL_TO_ALL. Returns the number of
 * copies; 0: nothing. */
uint32_t tdm_share_heads(const struct tdm_launch *launch, const struct tdm_launch *other,
                         struct tdm_row_copy copies[TDM_ROW_COPIES]);

#endif
