/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of rings: FlashAttention-2 on a block of queries and one of keys, outputs that are
 * joined by their log-sum-exps, and buffers to send.
 * Sources: Dao-AILab/flash-attention csrc/flash_attn/flash_api.cpp (mha_fwd);
 * ring_flash_attn/utils.py (update_out_and_lse, RingComm). */
#include "methods/context/parts.h"

#include "base/size.h"

#include <stddef.h>

uint64_t tdm_block_query_rows(const struct tdm_block_shape *shape)
{
    return tdm_size_mul(shape->batch * shape->query_heads, shape->query_tokens);
}

void tdm_flash_forward(struct tdm_eager *m, const struct tdm_block_shape *shape,
                       struct tdm_eager_value **output, struct tdm_eager_value **sums)
{
    uint64_t rows = tdm_block_query_rows(shape);
    *output = tdm_value_new(m, rows, shape->head_dim, BF16);
    *sums = tdm_value_new(m, rows, 1, FP32);
}

void tdm_flash_backward(struct tdm_eager *m, const struct tdm_block_shape *shape, bool has_sums)
{
    uint64_t heads = shape->batch * shape->query_heads;
    bool wide = shape->kv_heads < shape->query_heads;
    const struct tdm_flash_scratch scratch = {
        .query_rows = tdm_size_mul(heads, tdm_size_align(shape->query_tokens, TDM_FLASH_ROWS)),
        .wide_rows = wide ? tdm_size_mul(heads, shape->key_tokens) : 0,
        .head_dim = shape->head_dim,
        .has_sums = has_sums};
    tdm_flash_backward_scratch(m, &scratch);
}

/* The function that joins two outputs is scripted. Its kernels are fused, so only its results are
 * allocated. */
void tdm_partial_add(struct tdm_eager *m, const struct tdm_block_shape *shape,
                     struct tdm_partial *partial)
{
    struct tdm_eager_value *output, *sums;
    tdm_flash_forward(m, shape, &output, &sums);
    tdm_drop(m, partial->block_output);
    tdm_drop(m, partial->block_sums);
    partial->block_output = output;
    partial->block_sums = sums;
    if (partial->output == NULL) {
        partial->output = tdm_value_new(m, output->rows, output->columns, FP32);
        partial->sums = tdm_take(sums);
        return;
    }
    struct tdm_eager_value *joined = tdm_value_new(m, output->rows, output->columns, FP32);
    struct tdm_eager_value *joined_sums = tdm_value_like(m, sums);
    tdm_drop(m, partial->output);
    tdm_drop(m, partial->sums);
    partial->output = joined;
    partial->sums = joined_sums;
}

struct tdm_eager_value *tdm_partial_end(struct tdm_eager *m, struct tdm_partial *partial,
                                        struct tdm_eager_value **sums)
{
    struct tdm_eager_value *output =
        tdm_value_new(m, partial->output->rows, partial->output->columns, BF16);
    *sums = partial->sums;
    tdm_drop(m, partial->output);
    tdm_drop(m, partial->block_output);
    tdm_drop(m, partial->block_sums);
    return output;
}

struct tdm_eager_value *tdm_sent_like(struct tdm_eager *m, const struct tdm_eager_value *like)
{
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_COMMUNICATION;
    struct tdm_eager_value *buffer =
        tdm_value_new(m, like->rows, like->columns, like->element_bytes);
    m->category = before;
    return buffer;
}

struct tdm_pair tdm_pair_take(struct tdm_pair pair)
{
    return (struct tdm_pair){tdm_take(pair.k), tdm_take(pair.v)};
}

struct tdm_pair tdm_pair_sent_like(struct tdm_eager *m, struct tdm_pair like)
{
    struct tdm_eager_value *k = tdm_sent_like(m, like.k);
    return (struct tdm_pair){k, tdm_sent_like(m, like.v)};
}

struct tdm_pair tdm_pair_new(struct tdm_eager *m, struct tdm_pair like, uint16_t element_bytes)
{
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_COMMUNICATION;
    struct tdm_eager_value *k = tdm_value_new(m, like.k->rows, like.k->columns, element_bytes);
    struct tdm_pair pair = {k, tdm_value_new(m, like.v->rows, like.v->columns, element_bytes)};
    m->category = before;
    return pair;
}

void tdm_pair_drop(struct tdm_eager *m, struct tdm_pair pair)
{
    tdm_drop(m, pair.k);
    tdm_drop(m, pair.v);
}

void tdm_pair_replace(struct tdm_eager *m, struct tdm_pair *old, struct tdm_pair pair)
{
    tdm_pair_drop(m, *old);
    *old = pair;
}
