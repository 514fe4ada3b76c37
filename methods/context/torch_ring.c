/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's own context parallelism, as torchtitan and accelerate use it: K and V of all ranks are
 * gathered at once and kept for the call (rotate_method=allgather, the default), or passed round.
 * Zigzag. The last rank is modelled: all its queries meet half of the keys in every step. Nothing
 * is fused: outputs are joined in fp32, operation by operation. In the backward, dK and dV are
 * passed round in fp32, joined to one buffer for each message.
 * Source: torch/distributed/tensor/experimental/_context_parallel/_attention.py
 * (_templated_ring_attention, _templated_ring_attention_backward, _SDPAMerger, _partial_update).
 */
#include "methods/context/parts.h"

#include <stddef.h>

static uint64_t steps_of(const struct tdm_context *context)
{
    return context->ring_degree < TDM_RING_STEPS ? context->ring_degree : TDM_RING_STEPS;
}

/* One tensor in which K and V, or their gradients, of so many ranks lie. */
static struct tdm_eager_value *joined(struct tdm_eager *m, const struct tdm_eager_value *k,
                                      uint64_t ranks, uint16_t element_bytes)
{
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_COMMUNICATION;
    struct tdm_eager_value *both = tdm_value_new(m, 2 * ranks * k->rows, k->columns, element_bytes);
    m->category = before;
    return both;
}

static struct tdm_eager_value *wide_like(struct tdm_eager *m, const struct tdm_eager_value *like)
{
    return tdm_value_new(m, like->rows, like->columns, FP32);
}

/* What brings K and V: a gathered buffer, or the one that came last. */
struct rotater {
    const struct tdm_context *context;
    struct tdm_eager_value *buffer;
};

/* Sends what is here on, or gathers it from all ranks, once. It is joined to one tensor first,
 * which the caller drops. */
static struct tdm_eager_value *send_on(struct tdm_eager *m, struct rotater *rotater,
                                       const struct tdm_eager_value *k)
{
    bool gathers = rotater->context->gathers;
    struct tdm_eager_value *both = joined(m, k, 1, BF16);
    if (gathers && rotater->buffer == NULL)
        rotater->buffer = joined(m, k, rotater->context->ring_degree, BF16);
    if (!gathers)
        rotater->buffer = tdm_replace(m, rotater->buffer, joined(m, k, 1, BF16));
    return both;
}

/* An output in fp32 and its log-sum-exps. */
struct merger {
    struct tdm_eager_value *output, *sums;
};

/* out - sigmoid(block_lse - lse) * (out - block_out), lse - logsigmoid(lse - block_lse). */
static void merge(struct tdm_eager *m, struct merger *merger, const struct tdm_eager_value *output,
                  struct tdm_eager_value *sums)
{
    struct tdm_eager_value *wide = wide_like(m, output);
    if (merger->output == NULL) {
        merger->output = wide;
        merger->sums = tdm_take(sums);
        return;
    }
    struct tdm_eager_value *gap = tdm_value_like(m, sums), *weight = tdm_value_like(m, sums);
    tdm_drop(m, gap);
    struct tdm_eager_value *difference = wide_like(m, output), *product = wide_like(m, output);
    tdm_drop(m, difference);
    tdm_drop(m, weight);
    struct tdm_eager_value *next = wide_like(m, output);
    tdm_drop(m, product);
    gap = tdm_value_like(m, sums);
    weight = tdm_value_like(m, sums);
    tdm_drop(m, gap);
    struct tdm_eager_value *next_sums = tdm_value_like(m, sums);
    tdm_drop(m, weight);
    merger->sums = tdm_replace(m, merger->sums, next_sums);
    merger->output = tdm_replace(m, merger->output, next);
    tdm_drop(m, wide);
}

struct tdm_eager_value *tdm_torch_ring_forward(struct tdm_eager *m,
                                               const struct tdm_context *context,
                                               const struct tdm_block_shape *shape,
                                               struct tdm_pair kv, struct tdm_eager_value **sums)
{
    struct tdm_pair here = {tdm_value_like(m, kv.k), NULL}; /* contiguous, by head */
    struct rotater rotater = {context, NULL};
    struct merger merger = {0};
    struct tdm_eager_value *output = NULL, *block_sums = NULL;
    uint64_t steps = steps_of(context);
    here.v = tdm_value_like(m, kv.v);
    uint64_t step = 0;
    do { /* there is one at least */
        struct tdm_eager_value *made, *made_sums;
        if (step == 1) /* views of what came take their names */
            tdm_pair_replace(m, &here, (struct tdm_pair){0});
        if (step + 1 < steps)
            tdm_drop(m, send_on(m, &rotater, kv.k));
        tdm_flash_forward(m, shape, &made, &made_sums);
        output = tdm_replace(m, output, made);
        block_sums = tdm_replace(m, block_sums, made_sums);
        merge(m, &merger, output, block_sums);
    } while (++step < steps);
    struct tdm_eager_value *y = tdm_value_like(m, output);
    *sums = merger.sums;
    tdm_drop(m, merger.output);
    tdm_drop(m, output);
    tdm_drop(m, block_sums);
    tdm_drop(m, rotater.buffer);
    tdm_pair_drop(m, here);
    return y;
}

/* dK and dV in fp32 of a step: added to the first half of what came, each in a new tensor. */
static void add_half(struct tdm_eager *m, struct tdm_pair *sum, const struct tdm_pair like)
{
    tdm_pair_replace(m, sum, (struct tdm_pair){0}); /* views of what came */
    sum->k = wide_like(m, like.k);
    sum->v = wide_like(m, like.v);
}

void tdm_torch_ring_backward(struct tdm_eager *m, const struct tdm_context *context,
                             const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                             struct tdm_pair kv, struct tdm_eager_value **results)
{
    uint64_t steps = steps_of(context);
    struct rotater rotater = {context, NULL};
    struct tdm_eager_value *dq = wide_like(m, q), *block_dq = NULL;
    struct tdm_pair sum = {wide_like(m, kv.k), NULL}, here, block = {0};
    struct tdm_eager_value *next_kv = NULL, *next_grads = NULL, *going = NULL;
    sum.v = wide_like(m, kv.v);
    here.k = tdm_value_like(m, kv.k);
    here.v = tdm_value_like(m, kv.v);
    for (uint64_t step = 0; step < steps; step++) {
        struct tdm_block_shape now = *shape;
        struct tdm_pair made;
        if (step == 1)
            tdm_pair_replace(m, &here, (struct tdm_pair){0});
        if (step > 0)
            now.key_tokens /= 2;
        if (step + 1 < steps)
            next_kv = tdm_replace(m, next_kv, send_on(m, &rotater, kv.k));
        tdm_flash_backward(m, &now, false);
        struct tdm_eager_value *made_dq = tdm_value_like(m, q);
        uint64_t rows = kv.k->rows / (step > 0 ? 2 : 1);
        made.k = tdm_value_new(m, rows, kv.k->columns, BF16);
        made.v = tdm_value_new(m, rows, kv.v->columns, BF16);
        block_dq = tdm_replace(m, block_dq, made_dq);
        tdm_pair_replace(m, &block, made);
        if (step > 0) {
            next_grads = tdm_replace(m, next_grads, tdm_take(going)); /* what came */
            add_half(m, &sum, kv);
        }
        next_grads = tdm_replace(m, next_grads, joined(m, kv.k, 1, FP32));
        going = tdm_replace(m, going, joined(m, kv.k, 1, FP32));
    }
    results[0] = tdm_value_like(m, q);
    tdm_drop(m, dq);
    struct tdm_eager_value *both = joined(m, kv.k, 1, BF16); /* dK and dV are views of it */
    results[1] = tdm_value_view(m, both);
    results[1]->rows = kv.k->rows;
    results[2] = tdm_value_view(m, both);
    results[2]->rows = kv.v->rows;
    tdm_drop(m, both);
    tdm_drop(m, block_dq);
    tdm_drop(m, next_kv);
    tdm_drop(m, next_grads);
    tdm_drop(m, going);
    tdm_drop(m, rotater.buffer);
    tdm_pair_drop(m, here);
    tdm_pair_drop(m, block);
    tdm_pair_drop(m, sum);
}
