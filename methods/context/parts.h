/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of context parallelism share. Not for use outside methods/context/. */
#ifndef TDM_METHODS_CONTEXT_PARTS_H
#define TDM_METHODS_CONTEXT_PARTS_H

#include "methods/context/context.h"
#include "methods/eager/dtypes.h"

/* A step of a ring like the one before it takes and gives what that one did: so many are run of
 * each turn. */
#define TDM_RING_STEPS 4u

/* A block of queries and one of keys. */
struct tdm_block_shape {
    uint64_t batch, query_heads, kv_heads, query_tokens, key_tokens, head_dim;
};

/* Rows of head_dim numbers. */
uint64_t tdm_block_query_rows(const struct tdm_block_shape *shape);
uint64_t tdm_block_key_rows(const struct tdm_block_shape *shape);

/* The flash_attn package's _flash_attn_forward: output and log-sum-exps; and the scratch of
 * _flash_attn_backward, whose results have memory already. `has_sums`: the row sums of dO * O are
 * given. */
void tdm_flash_forward(struct tdm_eager *m, const struct tdm_block_shape *shape,
                       struct tdm_eager_value **output, struct tdm_eager_value **sums);
void tdm_flash_backward(struct tdm_eager *m, const struct tdm_block_shape *shape, bool has_sums);

/* An output in fp32 that blocks are added to, with its log-sum-exps, and the block that was added
 * last, whose names Python binds anew only when the next one is there. */
struct tdm_partial {
    struct tdm_eager_value *output, *sums, *block_output, *block_sums;
};

void tdm_partial_add(struct tdm_eager *m, const struct tdm_block_shape *shape,
                     struct tdm_partial *partial);
/* The output in bf16; what else there was goes, but the log-sum-exps, which become *sums. */
struct tdm_eager_value *tdm_partial_end(struct tdm_eager *m, struct tdm_partial *partial,
                                        struct tdm_eager_value **sums);

/* A buffer of bytes that go to or come from other GPUs. */
struct tdm_eager_value *tdm_sent_like(struct tdm_eager *m, const struct tdm_eager_value *like);

/* Two tensors that go together: K and V, or dK and dV. */
struct tdm_pair tdm_pair_take(struct tdm_pair pair);
struct tdm_pair tdm_pair_sent_like(struct tdm_eager *m, struct tdm_pair like);
struct tdm_pair tdm_pair_new(struct tdm_eager *m, struct tdm_pair like, uint16_t element_bytes);
void tdm_pair_drop(struct tdm_eager *m, struct tdm_pair pair);
/* A name bound anew. */
void tdm_pair_replace(struct tdm_eager *m, struct tdm_pair *old, struct tdm_pair pair);

/* Rings, for dividers (ring.c, double_ring.c). */
struct tdm_eager_value *tdm_ring_forward(struct tdm_eager *m, const struct tdm_context *context,
                                         const struct tdm_block_shape *shape, struct tdm_pair kv,
                                         struct tdm_eager_value **sums);
void tdm_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                       const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                       struct tdm_pair kv, struct tdm_eager_value **results);
struct tdm_eager_value *tdm_double_ring_forward(struct tdm_eager *m,
                                                const struct tdm_context *context,
                                                const struct tdm_block_shape *shape,
                                                struct tdm_pair kv, struct tdm_eager_value **sums);
void tdm_double_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                              const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                              struct tdm_pair kv, struct tdm_eager_value **results);

/* Tokens of all ranks of some heads for some tokens of all heads, or back (ulysses.c). */
struct tdm_eager_value *tdm_all_to_all(struct tdm_eager *m, struct tdm_eager_value *x,
                                       uint64_t batch, bool to_heads);

#endif
