/* SPDX-License-Identifier: Apache-2.0 */
/* BurstEngine's loss over all logits: BMTrain's kernel, whose softmax becomes the gradient of the
 * logits in place. Source: bmtrain/loss/cross_entropy.py (OpFusedCrossEntropy,
 * FusedCrossEntropy). */
#include "methods/context/burst_parts.h"
#include "methods/eager/ops.h"

#include <stddef.h>

static void softmax_in_place(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    (void)grads;
    results[0] = tdm_node_saved(m, node, 0);
}

static void weigh(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                  struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *saved = tdm_node_saved(m, node, 0);
    (void)grads;
    results[0] = tdm_value_new(m, edge->rows, edge->columns, FP32);
    tdm_drop(m, saved);
}

struct tdm_eager_value *burst_plain_loss(struct burst_model *b, struct tdm_eager_value *hidden)
{
    static const struct tdm_eager_op entropy = {"OpFusedCrossEntropyBackward", false,
                                                softmax_in_place},
                                     mean = {"DivBackward0", false, weigh};
    struct tdm_eager *m = b->m;
    struct tdm_eager_value *weight =
        burst_gather(b, b->head, b->config->vocabulary, b->config->hidden);
    m->category = TDM_METHOD_LOGITS;
    tdm_label(m, "lm_head");
    struct tdm_eager_value *logits = tdm_linear(m, hidden, weight, NULL, false);
    tdm_drop(m, weight);
    tdm_label(m, "loss");
    struct tdm_node *node = tdm_node_new(m, &entropy, &logits, 1);
    struct tdm_eager_value *softmax = tdm_value_like(m, logits);
    m->category = TDM_METHOD_WORKSPACE;
    struct tdm_eager_value *each = tdm_value_new(m, logits->rows, 1, FP32);
    tdm_node_save(m, node, softmax);
    tdm_drop(m, softmax);
    tdm_node_finish(m, node, each);
    /* The product with the tokens' weights saves them. */
    struct tdm_eager_value *counted = tdm_value_new(m, logits->rows, 1, BOOL);
    struct tdm_eager_value *weights = tdm_value_new(m, logits->rows, 1, INT32);
    tdm_drop(m, counted);
    node = tdm_node_new(m, &mean, &each, 1);
    tdm_node_save(m, node, weights);
    struct tdm_eager_value *weighed = tdm_value_like(m, each), *loss = tdm_value_new(m, 1, 1, FP32);
    tdm_node_finish(m, node, loss);
    tdm_drop(m, weighed);
    tdm_drop(m, weights);
    tdm_drop(m, each);
    tdm_drop(m, logits);
    return loss;
}
