/* SPDX-License-Identifier: Apache-2.0 */
/* The final norm, the head and the cross entropy. Tensor-parallel ranks divide the vocabulary.
 * Sources: megatron/core/tensor_parallel/{layers,cross_entropy}.py,
 * fusions/fused_cross_entropy.py;
 * transformer_engine/pytorch/{cross_entropy,triton/cross_entropy}.py. */
#include "methods/megatron/parts.h"

#include "methods/eager/ops.h"

void megatron_gather(struct tdm_megatron *t)
{
    if (!t->sequence_parallel || t->gather_buffer != NULL)
        return;
    t->m->category = TDM_METHOD_COMMUNICATION;
    t->gather_buffer = tdm_value_new(t->m, t->rows, t->config->hidden, BF16);
    t->m->category = TDM_METHOD_WORKSPACE;
}

enum { HIDDEN, WEIGHT };

static void head_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0);
    (void)grads;
    megatron_gather(t);
    struct tdm_eager_value *gradient = tdm_value_new(m, t->rows, x->columns, BF16);
    tdm_cublas(m);
    results[HIDDEN] = t->sequence_parallel ? tdm_value_like(m, x) : tdm_take(gradient);
    if (!t->set.fused_gradients) {
        results[WEIGHT] = tdm_value_new(m, t->vocabulary, x->columns, BF16);
    } else {
        struct tdm_eager_value *dummy = megatron_dummy(t, t->vocabulary, x->columns);
        if (tdm_node_needs(node, WEIGHT)) /* tied to the embedding: both are added up */
            results[WEIGHT] = tdm_value_view(m, dummy);
    }
    tdm_drop(m, gradient);
    tdm_drop(m, x);
}

static struct tdm_eager_value *head(struct tdm_megatron *t, struct tdm_eager_value *x,
                                    struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {
        "LinearWithGradAccumulationAndAsyncCommunicationBackward", false, head_backward};
    struct tdm_eager *m = t->m;
    if (t->lora_rank > 0)
        return megatron_frozen_head(t, x);
    bool wanted = !t->set.fused_gradients || t->tied_here;
    struct tdm_eager_value *inputs[] = {x, wanted ? weight : NULL};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    tdm_node_save(m, node, x);
    megatron_gather(t);
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *logits = tdm_value_new(m, t->rows, t->vocabulary, BF16);
    m->category = TDM_METHOD_WORKSPACE;
    tdm_cublas(m);
    return megatron_finish(t, node, logits);
}

/* Transformer Engine's loss: the gradient overwrites the logits. */
static void loss_in_place_backward(struct tdm_eager *m, struct tdm_node *node,
                                   struct tdm_eager_value *const *grads,
                                   struct tdm_eager_value **results)
{
    struct tdm_eager_value *logits = tdm_node_saved(m, node, 0);
    (void)grads;
    results[0] = tdm_value_view(m, logits);
    tdm_drop(m, logits);
}

static struct tdm_eager_value *loss_in_place(struct tdm_megatron *t, struct tdm_eager_value *logits)
{
    static const struct tdm_eager_op op = {"CrossEntropyFunctionBackward", false,
                                           loss_in_place_backward};
    struct tdm_eager *m = t->m;
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    struct tdm_eager_value *loss = tdm_value_new(m, t->rows, 1, FP32);
    struct tdm_eager_value *sums = tdm_value_new(m, t->rows, 3, FP32), *gathered = NULL;
    if (t->layout.tensor > 1)
        gathered = tdm_value_new(m, t->rows, 3 * t->layout.tensor, FP32);
    tdm_drop(m, gathered);
    tdm_drop(m, sums);
    tdm_node_save(m, node, logits);
    return megatron_finish(t, node, loss);
}

/* The gradient overwrites the fp32 softmax, and autograd casts it to bf16. torch.compile, which
 * megatron/core/jit.py takes for the fused loss, leaves the softmax as it is: it makes the gradient
 * in fp32 beside it, and casts that. A published peak of the loss alone has both
 * (tests/data/published_runs.csv). */
static void loss_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct megatron_kept saved = {.count = 0};
    (void)grads;
    for (uint32_t i = 0; i < node->saved_count; i++)
        megatron_keep(m, &saved, tdm_node_saved(m, node, i));
    m->category = TDM_METHOD_LOGITS;
    if (t->set.fused_loss) {
        struct tdm_eager_value *wide = tdm_value_like(m, saved.values[0]);
        results[0] = tdm_value_new(m, t->rows, t->vocabulary, BF16);
        tdm_drop(m, wide);
    } else {
        results[0] = tdm_value_view(m, saved.values[0]);
    }
    m->category = TDM_METHOD_WORKSPACE;
    megatron_drop_all(m, &saved);
}

struct tdm_eager_value *megatron_loss(struct tdm_megatron *t, struct tdm_eager_value *logits)
{
    static const struct tdm_eager_op op = {"_VocabParallelCrossEntropyBackward", false,
                                           loss_backward};
    struct tdm_eager *m = t->m;
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *wide = tdm_value_new(m, t->rows, t->vocabulary, FP32);
    m->category = TDM_METHOD_WORKSPACE;
    struct tdm_eager_value *most = tdm_value_new(m, t->rows, 1, FP32);
    struct tdm_eager_value *absent = tdm_value_new(m, t->rows, 1, BOOL);
    struct tdm_eager_value *targets = tdm_value_new(m, t->rows, 1, INT64);
    struct tdm_eager_value *loss = tdm_value_new(m, t->rows, 1, FP32);
    struct tdm_eager_value *const saved[] = {wide, absent, targets};
    for (unsigned i = 0; i < 3; i++) {
        tdm_node_save(m, node, saved[i]);
        tdm_drop(m, saved[i]);
    }
    tdm_drop(m, most);
    return megatron_finish(t, node, loss);
}

struct tdm_eager_value *megatron_head_loss(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                           struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = t->m;
    m->label = (struct tdm_label){.name = "decoder.final_layernorm", .layer = TDM_NO_LAYER};
    struct tdm_eager_value *normed =
        megatron_norm(t, hidden, chunk->final_norm, chunk->final_norm_bias);
    tdm_label(m, "output_layer");
    struct tdm_eager_value *weight = t->tied_here ? chunk->embedding : chunk->head;
    struct tdm_eager_value *logits = head(t, normed, weight);
    tdm_drop(m, normed);
    tdm_label(m, "loss");
    struct tdm_eager_value *losses = t->set.fused_loss && t->set.loss == TDM_LOSS_TE
                                         ? loss_in_place(t, logits)
                                         : megatron_loss(t, logits);
    tdm_drop(m, logits);
    struct tdm_eager_value *loss = tdm_mean(m, losses);
    tdm_drop(m, losses);
    return loss;
}
