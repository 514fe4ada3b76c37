/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of context parallelism share. Not for use outside methods/context/. */
#ifndef TDM_METHODS_CONTEXT_PARTS_H
#define TDM_METHODS_CONTEXT_PARTS_H

#include "methods/context/context.h"
#include "methods/eager/dtypes.h"

/* Later steps of a ring turn allocate and free what the previous step did, so only this many steps
 * of each turn are run. */
#define TDM_RING_STEPS 4u

/* A block of queries and one of keys. */
struct tdm_block_shape {
    uint64_t batch, query_heads, kv_heads, query_tokens, key_tokens, head_dim;
};

/* Rows of head_dim numbers. */
uint64_t tdm_block_query_rows(const struct tdm_block_shape *shape);

/* _flash_attn_forward of the flash_attn package, which makes output and log-sum-exps; and the
 * scratch of _flash_attn_backward, whose results are allocated by the caller. `has_sums`: the row
 * sums of dO * O are given. */
void tdm_flash_forward(struct tdm_eager *m, const struct tdm_block_shape *shape,
                       struct tdm_eager_value **output, struct tdm_eager_value **sums);
void tdm_flash_backward(struct tdm_eager *m, const struct tdm_block_shape *shape, bool has_sums);

/* An fp32 output with log-sum-exps, to which blocks are added; and the last block added, which
 * Python's names hold until the next block exists. */
struct tdm_partial {
    struct tdm_eager_value *output, *sums, *block_output, *block_sums;
};

void tdm_partial_add(struct tdm_eager *m, const struct tdm_block_shape *shape,
                     struct tdm_partial *partial);
/* Returns the output in bf16. Frees the rest but the log-sum-exps, which become *sums. */
struct tdm_eager_value *tdm_partial_end(struct tdm_eager *m, struct tdm_partial *partial,
                                        struct tdm_eager_value **sums);

/* A buffer to send to, or receive from, other GPUs. */
struct tdm_eager_value *tdm_sent_like(struct tdm_eager *m, const struct tdm_eager_value *like);

/* Two tensors that travel together: K and V, or dK and dV. */
struct tdm_pair tdm_pair_take(struct tdm_pair pair);
struct tdm_pair tdm_pair_sent_like(struct tdm_eager *m, struct tdm_pair like);
struct tdm_pair tdm_pair_new(struct tdm_eager *m, struct tdm_pair like, uint16_t element_bytes);
void tdm_pair_drop(struct tdm_eager *m, struct tdm_pair pair);
/* Rebinds a name: `pair` replaces *old. */
void tdm_pair_replace(struct tdm_eager *m, struct tdm_pair *old, struct tdm_pair pair);

/* Rings, for dividers (ring.c, double_ring.c). */
struct tdm_eager_value *tdm_ring_forward(struct tdm_eager *m, const struct tdm_context *context,
                                         const struct tdm_block_shape *shape, struct tdm_pair kv,
                                         struct tdm_eager_value **sums);
void tdm_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                       const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                       struct tdm_pair kv, struct tdm_eager_value **results);
/* PyTorch's own (torch_ring.c). */
struct tdm_eager_value *tdm_torch_ring_forward(struct tdm_eager *m,
                                               const struct tdm_context *context,
                                               const struct tdm_block_shape *shape,
                                               struct tdm_pair kv, struct tdm_eager_value **sums);
void tdm_torch_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                             const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                             struct tdm_pair kv, struct tdm_eager_value **results);
struct tdm_eager_value *tdm_double_ring_forward(struct tdm_eager *m,
                                                const struct tdm_context *context,
                                                const struct tdm_block_shape *shape,
                                                struct tdm_pair kv, struct tdm_eager_value **sums);
void tdm_double_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                              const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                              struct tdm_pair kv, struct tdm_eager_value **results);

/* Exchanges all heads of a rank's tokens for some heads of all ranks' tokens (`to_heads`), or back
 * (ulysses.c). */
struct tdm_eager_value *tdm_all_to_all(struct tdm_eager *m, struct tdm_eager_value *x,
                                       uint64_t batch, bool to_heads);

#endif
