/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of GPUs that passes K and V round, and in the backward also dK and dV in fp32. The last
 * rank is modelled. Its queries see the keys of every step, so no other rank needs more memory.
 * Sources: ring_flash_attn/{ring_flash_attn,zigzag_ring_flash_attn,stripe_flash_attn}.py. */
#include "methods/context/parts.h"

#include <stddef.h>

static uint64_t steps_of(uint64_t ranks)
{
    return ranks < TDM_RING_STEPS ? ranks : TDM_RING_STEPS;
}

/* With zigzag, queries see the first half of the keys of another rank. */
static struct tdm_block_shape step_shape(const struct tdm_context *context,
                                         const struct tdm_block_shape *shape, uint64_t step)
{
    struct tdm_block_shape block = *shape;
    if (step > 0 && context->balance == TDM_RING_ZIGZAG)
        block.key_tokens /= 2;
    return block;
}

struct tdm_eager_value *tdm_ring_forward(struct tdm_eager *m, const struct tdm_context *context,
                                         const struct tdm_block_shape *shape, struct tdm_pair kv,
                                         struct tdm_eager_value **sums)
{
    struct tdm_partial partial = {0};
    struct tdm_pair here = tdm_pair_take(kv), next = {0};
    uint64_t steps = steps_of(context->ring_degree);
    for (uint64_t step = 0; step < steps; step++) {
        struct tdm_block_shape block = step_shape(context, shape, step);
        if (step + 1 != steps)
            tdm_pair_replace(m, &next, tdm_pair_sent_like(m, here));
        tdm_partial_add(m, &block, &partial);
        if (step + 1 != steps)
            tdm_pair_replace(m, &here, tdm_pair_take(next));
    }
    struct tdm_eager_value *output = tdm_partial_end(m, &partial, sums);
    tdm_pair_drop(m, here);
    tdm_pair_drop(m, next);
    return output;
}

/* dK and dV: the sum so far, and the buffers that receive the next one. */
struct going_round {
    struct tdm_pair sum, next;
};

/* Adds the gradients of a later step: to the received sum in place (zigzag), or into a new one. */
static void add_gradients(struct tdm_eager *m, enum tdm_ring_balance balance,
                          struct going_round *round)
{
    struct tdm_pair spare = {0};
    if (balance == TDM_RING_CONTIGUOUS) {
        tdm_pair_replace(m, &round->sum, tdm_pair_new(m, round->sum, FP32));
        tdm_pair_replace(m, &round->next, tdm_pair_sent_like(m, round->sum));
        return;
    }
    spare = round->sum;
    if (balance == TDM_RING_STRIPED) {
        round->sum = tdm_pair_new(m, round->next, FP32);
        tdm_pair_drop(m, round->next);
    } else {
        round->sum = round->next;
    }
    round->next = spare; /* the buffer that was sent receives the next sum */
}

void tdm_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                       const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                       struct tdm_pair kv, struct tdm_eager_value **results)
{
    uint64_t steps = steps_of(context->ring_degree);
    struct tdm_eager_value *half_sums = NULL, *block_dq, *dq = NULL;
    struct tdm_pair block, here = tdm_pair_take(kv), next = {0};
    struct going_round round = {0};
    if (context->balance == TDM_RING_ZIGZAG)
        half_sums = tdm_value_new(m, tdm_block_query_rows(shape) / 2, 1, FP32);
    block_dq = tdm_value_like(m, q);
    block.k = tdm_value_like(m, kv.k);
    block.v = tdm_value_like(m, kv.v);
    for (uint64_t step = 0; step < steps; step++) {
        struct tdm_block_shape now = step_shape(context, shape, step);
        if (step + 1 != steps)
            tdm_pair_replace(m, &next, tdm_pair_sent_like(m, here));
        tdm_flash_backward(m, &now, false);
        if (step == 0) {
            dq = tdm_value_new(m, q->rows, q->columns, FP32);
            round.sum = tdm_pair_new(m, kv, FP32);
        } else {
            add_gradients(m, context->balance, &round);
        }
        if (step + 1 != steps)
            tdm_pair_replace(m, &here, tdm_pair_take(next));
        if (step == 0)
            round.next = tdm_pair_sent_like(m, round.sum);
    }
    results[0] = tdm_value_like(m, q);
    results[1] = tdm_value_like(m, kv.k);
    results[2] = tdm_value_like(m, kv.v);
    tdm_drop(m, half_sums);
    tdm_drop(m, block_dq);
    tdm_drop(m, dq);
    tdm_pair_drop(m, block);
    tdm_pair_drop(m, here);
    tdm_pair_drop(m, next);
    tdm_pair_drop(m, round.sum);
    tdm_pair_drop(m, round.next);
}
