/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of nodes around rings of GPUs. While K and V are passed round inside a node, those of the
 * previous node are in flight. dK and dV are passed round a node in fp32 the first time, and in
 * bf16 after that. Source: InternEvo
 * internlm/model/ops/ring_flash_attn/zigzag_ring_flash_attn_with_sliding_window.py. */
#include "methods/context/parts.h"

#include <stddef.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t inner_steps(const struct tdm_context *context)
{
    return least(least(context->ring_degree, context->gpus_per_node), TDM_RING_STEPS);
}

static uint64_t turns(const struct tdm_context *context)
{
    uint64_t inner = least(context->ring_degree, context->gpus_per_node);
    return least(context->ring_degree / inner, TDM_RING_STEPS);
}

static struct tdm_block_shape step_shape(const struct tdm_block_shape *shape, bool own)
{
    struct tdm_block_shape block = *shape;
    if (!own)
        block.key_tokens /= 2;
    return block;
}

static void turn_forward(struct tdm_eager *m, const struct tdm_context *context,
                         const struct tdm_block_shape *shape, struct tdm_pair kv, bool first,
                         struct tdm_partial *partial)
{
    struct tdm_pair here = tdm_pair_take(kv), next = {0};
    uint64_t steps = inner_steps(context);
    for (uint64_t step = 0; step < steps; step++) {
        struct tdm_block_shape block = step_shape(shape, first && step == 0);
        if (step + 1 != steps)
            tdm_pair_replace(m, &next, tdm_pair_sent_like(m, here));
        tdm_partial_add(m, &block, partial);
        if (step + 1 != steps)
            tdm_pair_replace(m, &here, tdm_pair_take(next));
    }
    tdm_pair_drop(m, here);
    tdm_pair_drop(m, next);
}

/* Begins a turn: K and V of the previous node have arrived; allocates buffers for the next. */
static void begin_turn(struct tdm_eager *m, uint64_t turn, uint64_t count, struct tdm_pair *here,
                       struct tdm_pair *next)
{
    if (turn > 0)
        tdm_pair_replace(m, here, tdm_pair_take(*next));
    if (turn + 1 != count)
        tdm_pair_replace(m, next, tdm_pair_sent_like(m, *here));
}

struct tdm_eager_value *tdm_double_ring_forward(struct tdm_eager *m,
                                                const struct tdm_context *context,
                                                const struct tdm_block_shape *shape,
                                                struct tdm_pair kv, struct tdm_eager_value **sums)
{
    struct tdm_partial partial = {0};
    struct tdm_pair here = tdm_pair_take(kv), next = {0};
    uint64_t count = turns(context);
    for (uint64_t turn = 0; turn < count; turn++) {
        begin_turn(m, turn, count, &here, &next);
        turn_forward(m, context, shape, here, turn == 0, &partial);
    }
    struct tdm_eager_value *output = tdm_partial_end(m, &partial, sums);
    tdm_pair_drop(m, here);
    tdm_pair_drop(m, next);
    return output;
}

/* Gradients of one turn. Takes ownership of *sum and sets it to the sum that comes back. */
static void turn_backward(struct tdm_eager *m, const struct tdm_context *context,
                          const struct tdm_block_shape *shape, struct tdm_pair kv,
                          struct tdm_eager_value **dq, struct tdm_pair *sum)
{
    struct tdm_pair here = tdm_pair_take(kv), next = {0}, coming = {0};
    uint64_t steps = inner_steps(context);
    bool first = *dq == NULL;
    for (uint64_t step = 0; step < steps; step++) {
        struct tdm_block_shape block = step_shape(shape, first && step == 0);
        if (step + 1 != steps)
            tdm_pair_replace(m, &next, tdm_pair_sent_like(m, here));
        struct tdm_eager_value *sums = tdm_value_new(m, tdm_block_query_rows(shape), 1, FP32);
        tdm_flash_backward(m, &block, false);
        tdm_drop(m, sums);
        if (step == 0 && first) {
            *dq = tdm_value_new(m, tdm_block_query_rows(shape), shape->head_dim, FP32);
            *sum = tdm_pair_new(m, kv, FP32);
        }
        struct tdm_pair spare = {0};
        if (step > 0) {
            spare = *sum;
            *sum = coming;
        }
        if (step + 1 != steps)
            tdm_pair_replace(m, &here, tdm_pair_take(next));
        coming = step == 0 ? tdm_pair_sent_like(m, *sum) : spare;
    }
    if (first) { /* cast to the dtype of q */
        struct tdm_eager_value *narrow = tdm_value_new(m, (*dq)->rows, (*dq)->columns, BF16);
        struct tdm_pair gradients = tdm_pair_new(m, kv, BF16);
        tdm_drop(m, *dq);
        *dq = narrow;
        tdm_pair_drop(m, coming);
        coming = gradients;
    }
    tdm_pair_replace(m, sum, coming);
    tdm_pair_drop(m, here);
    tdm_pair_drop(m, next);
}

void tdm_double_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                              const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                              struct tdm_pair kv, struct tdm_eager_value **results)
{
    struct tdm_eager_value *block_dq = tdm_value_like(m, q), *dq = NULL;
    struct tdm_pair block = {tdm_value_like(m, kv.k), NULL};
    block.v = tdm_value_like(m, kv.v);
    struct tdm_pair here = tdm_pair_take(kv), next = {0}, sum = {0}, coming = {0};
    uint64_t count = turns(context);
    for (uint64_t turn = 0; turn < count; turn++) {
        begin_turn(m, turn, count, &here, &next);
        if (turn > 0)
            tdm_pair_replace(m, &sum, tdm_pair_take(coming));
        turn_backward(m, context, shape, here, &dq, &sum);
        tdm_pair_replace(m, &coming, tdm_pair_sent_like(m, sum));
    }
    results[0] = dq;
    results[1] = coming.k;
    results[2] = coming.v;
    tdm_drop(m, block_dq);
    tdm_pair_drop(m, block);
    tdm_pair_drop(m, here);
    tdm_pair_drop(m, next);
    tdm_pair_drop(m, sum);
}
