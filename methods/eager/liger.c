/* SPDX-License-Identifier: Apache-2.0 */
/* Liger's kernels: forward, what they save, and backward. */
#include "methods/eager/liger.h"

#include "methods/eager/dtypes.h"
#include "methods/eager/parts.h"

#include <stddef.h>

/* ---- rms_norm.py ---- */

enum { KEEPS_GRADIENT };

/* Partial sums of the weight's gradient: a row in fp32 for each multiprocessor. They are added up
 * in fp32, and cast. A frozen weight has a gradient too, which goes at once. */
static void norm_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *scale = tdm_node_saved(m, node, 1);
    const struct tdm_edge *weight = &node->edges[1];
    uint64_t columns = grads[0]->columns;
    struct tdm_eager_value *parts = tdm_value_new(m, m->gpu.multiprocessors, columns, FP32);
    results[0] = node->facts[KEEPS_GRADIENT] != 0 ? tdm_value_like(m, grads[0])
                                                  : tdm_value_view(m, grads[0]);
    struct tdm_eager_value *sum = tdm_value_new(m, 1, columns, FP32);
    struct tdm_eager_value *gradient = tdm_node_needs(node, 1) && weight->element_bytes == FP32
                                           ? tdm_take(sum)
                                           : tdm_value_new(m, 1, columns, grads[0]->element_bytes);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_take(gradient);
    tdm_drop(m, gradient);
    tdm_drop(m, sum);
    tdm_drop(m, parts);
    tdm_drop(m, scale);
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_liger_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *weight, bool keeps_gradient)
{
    static const struct tdm_eager_op op = {"LigerRMSNormFunctionBackward", false, norm_backward};
    struct tdm_eager_value *inputs[] = {x, weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (node != NULL)
        node->facts[KEEPS_GRADIENT] = keeps_gradient;
    struct tdm_eager_value *y = tdm_value_like(m, x);
    struct tdm_eager_value *scale = tdm_value_new(m, x->rows, 1, FP32);
    tdm_node_save(m, node, x);
    tdm_node_save(m, node, scale);
    tdm_drop(m, scale);
    return tdm_node_finish(m, node, y);
}

/* ---- swiglu.py, geglu.py ---- */

static void gated_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    for (uint32_t i = 0; i < 2; i++) {
        struct tdm_eager_value *saved = tdm_node_saved(m, node, i);
        if (tdm_node_needs(node, i))
            results[i] = tdm_value_view(m, saved);
        tdm_drop(m, saved);
    }
}

struct tdm_eager_value *tdm_liger_gated(struct tdm_eager *m, struct tdm_eager_value *gate,
                                        struct tdm_eager_value *up)
{
    static const struct tdm_eager_op op = {"LigerSiLUMulFunctionBackward", false, gated_backward};
    struct tdm_eager_value *inputs[] = {gate, up};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct tdm_eager_value *y = tdm_value_like(m, gate);
    tdm_node_save(m, node, gate);
    tdm_node_save(m, node, up);
    return tdm_node_finish(m, node, y);
}

/* ---- rope.py ---- */

/* The memory of x if that lies by token, then head; else a copy that does. */
static struct tdm_eager_value *by_token(struct tdm_eager *m, struct tdm_eager_value *x)
{
    if (x->swapped)
        return tdm_value_view(m, x);
    struct tdm_eager_value *copy = tdm_value_new(m, x->rows, x->columns, x->element_bytes);
    copy->swapped = true;
    return copy;
}

static void rotate_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *cosine = tdm_node_saved(m, node, 0), *sine = tdm_node_saved(m, node, 1);
    for (uint32_t i = 0; i < 2; i++)
        if (grads[i] != NULL)
            results[i] = by_token(m, grads[i]);
    tdm_drop(m, sine);
    tdm_drop(m, cosine);
}

void tdm_liger_rotate(struct tdm_eager *m, struct tdm_eager_value **q, struct tdm_eager_value **k,
                      struct tdm_eager_value *cosine, struct tdm_eager_value *sine)
{
    static const struct tdm_eager_op op = {"LigerRopeFunctionBackward", false, rotate_backward};
    struct tdm_eager_value *inputs[] = {*q, *k}, *made[2];
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    tdm_node_save(m, node, cosine);
    tdm_node_save(m, node, sine);
    for (uint32_t i = 0; i < 2; i++) {
        made[i] = by_token(m, inputs[i]);
        tdm_node_output(m, node, i, made[i]);
    }
    tdm_node_done(m, node);
    *q = tdm_replace(m, *q, made[0]);
    *k = tdm_replace(m, *k, made[1]);
}

/* ---- cross_entropy.py ---- */

static void loss_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    struct tdm_eager_value *logits = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_view(m, logits);
    tdm_drop(m, logits);
}

struct tdm_eager_value *tdm_liger_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *logits,
                                                struct tdm_eager_value *labels)
{
    static const struct tdm_eager_op op = {"LigerCrossEntropyFunctionBackward", false,
                                           loss_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    struct tdm_eager_value *losses = tdm_value_new(m, logits->rows, 1, logits->element_bytes);
    struct tdm_eager_value *mask = tdm_value_new(m, logits->rows, 1, BOOL);
    struct tdm_eager_value *masked = tdm_value_new(m, logits->rows, 1, labels->element_bytes);
    struct tdm_eager_value *most = tdm_value_new(m, 1, 1, labels->element_bytes);
    tdm_drop(m, most);
    tdm_drop(m, masked);
    tdm_drop(m, mask);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, logits->element_bytes);
    tdm_node_save(m, node, logits);
    tdm_drop(m, losses);
    return tdm_node_finish(m, node, loss);
}

static void fused_loss_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    (void)grads;
    struct tdm_eager_value *logits = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_like(m, logits);
    tdm_drop(m, logits);
}

struct tdm_eager_value *tdm_fused_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *logits,
                                                struct tdm_eager_value *labels)
{
    static const struct tdm_eager_op op = {"CompiledFunctionBackward", false, fused_loss_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    struct tdm_eager_value *sums = tdm_value_new(m, logits->rows, 2, FP32);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, FP32);
    tdm_node_save(m, node, logits);
    tdm_node_save(m, node, sums);
    tdm_node_save(m, node, labels);
    tdm_drop(m, sums);
    return tdm_node_finish(m, node, loss);
}

/* ---- vocab_parallel_cross_entropy.py ---- */

static void parallel_loss_backward(struct tdm_eager *m, struct tdm_node *node,
                                   struct tdm_eager_value *const *grads,
                                   struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[3];
    const struct tdm_edge *edge = &node->edges[0];
    for (uint32_t i = 0; i < 3; i++)
        saved[i] = tdm_node_saved(m, node, i);
    struct tdm_eager_value *wide = tdm_value_like(m, grads[0]); /* an expanded one is copied */
    results[0] = tdm_value_new(m, edge->rows, edge->columns, edge->element_bytes);
    tdm_drop(m, wide);
    for (uint32_t i = 0; i < 3; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *tdm_liger_parallel_cross_entropy(struct tdm_eager *m,
                                                         struct tdm_eager_value *logits,
                                                         struct tdm_eager_value *labels)
{
    static const struct tdm_eager_op op = {"LigerVocabParallelCEFunctionBackward", false,
                                           parallel_loss_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    struct tdm_eager_value *most = tdm_value_new(m, logits->rows, 1, FP32);
    struct tdm_eager_value *exponents = tdm_value_new(m, logits->rows, logits->columns, FP32);
    struct tdm_eager_value *own = tdm_value_new(m, logits->rows, 1, FP32);
    struct tdm_eager_value *sums = tdm_value_new(m, logits->rows, 1, FP32);
    struct tdm_eager_value *logarithms = tdm_value_new(m, logits->rows, 1, FP32);
    struct tdm_eager_value *losses = tdm_value_new(m, logits->rows, 1, FP32);
    tdm_node_save(m, node, exponents);
    tdm_node_save(m, node, sums);
    tdm_node_save(m, node, labels);
    struct tdm_eager_value *const all[] = {logarithms, sums, own, exponents, most};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        tdm_drop(m, all[i]);
    return tdm_node_finish(m, node, losses);
}
