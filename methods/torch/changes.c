/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LoHa and LoKr: x W + x (change of W), where the change, as large as the weight, is made for each
 * product and kept for the backward. LoHa's is (A B) * (C D); LoKr's is the Kronecker product of
 * two matrices. Sources: peft 0.21, tuners/loha/layer.py (HadaWeight, Linear), tuners/lokr/layer.py
 * (get_delta_weight, make_kron, Linear); aten/src/ATen/native/LinearAlgebra.cpp kron.
 */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

static struct tdm_eager_value *product(struct tdm_eager *m, const struct tdm_eager_value *left,
                                       const struct tdm_eager_value *right)
{
    tdm_cublas(m);
    return tdm_value_new(m, left->rows, right->columns, left->element_bytes);
}

/* grad * (A B) of the other product, and its two gradients. */
static struct tdm_eager_value *half_backward(struct tdm_eager *m, struct tdm_eager_value *grad,
                                             struct tdm_eager_value *const own[2],
                                             struct tdm_eager_value *const other[2],
                                             struct tdm_eager_value *before,
                                             struct tdm_eager_value **results)
{
    struct tdm_eager_value *made = product(m, other[0], other[1]);
    const uint16_t bytes =
        made->element_bytes > grad->element_bytes ? made->element_bytes : grad->element_bytes;
    struct tdm_eager_value *whole = tdm_value_new(m, grad->rows, grad->columns, bytes);
    tdm_drop(m, made);
    tdm_drop(m, before);
    for (unsigned i = 0; i < 2; i++)
        results[i] = tdm_value_like(m, own[i]);
    return whole;
}

static void hada_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[4];
    for (uint32_t i = 0; i < 4; i++)
        saved[i] = tdm_node_saved(m, node, i);
    struct tdm_eager_value *grad = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *whole = half_backward(m, grad, saved, saved + 2, NULL, results);
    whole = half_backward(m, grad, saved + 2, saved, whole, results + 2);
    tdm_drop(m, whole);
    tdm_drop(m, grad);
    for (uint32_t i = 0; i < 4; i++)
        tdm_drop(m, saved[i]);
}

static struct tdm_eager_value *hada_weight(struct tdm_eager *m, struct tdm_eager_value *inputs[4])
{
    static const struct tdm_eager_op op = {"HadaWeightBackward", false, hada_backward};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 4);
    for (unsigned i = 0; i < 4; i++)
        tdm_node_save(m, node, inputs[i]);
    const bool enabled = m->grad_enabled;
    struct tdm_eager_value *cast[4], *both[2];
    m->grad_enabled = false;
    for (unsigned i = 0; i < 2; i++) {
        cast[2 * i] = tdm_autocast(m, inputs[2 * i]);
        cast[2 * i + 1] = tdm_autocast(m, inputs[2 * i + 1]);
        both[i] = product(m, cast[2 * i], cast[2 * i + 1]);
    }
    struct tdm_eager_value *whole = tdm_value_like(m, both[0]);
    tdm_drop(m, both[0]);
    tdm_drop(m, both[1]);
    struct tdm_eager_value *scaled = tdm_value_like(m, whole);
    tdm_drop(m, whole);
    for (unsigned i = 0; i < 4; i++)
        tdm_drop(m, cast[i]);
    m->grad_enabled = enabled;
    return tdm_node_finish(m, node, scaled);
}

/* Both operands are broadcast: their gradients are as large as the product until they are summed.
 */
static void kron_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[2];
    for (uint32_t i = 0; i < 2; i++)
        saved[i] = tdm_node_saved(m, node, i);
    for (uint32_t i = 2; i-- > 0;)
        results[i] = tdm_value_like(m, grads[0]);
    tdm_drop(m, saved[0]);
    tdm_drop(m, saved[1]);
}

static struct tdm_eager_value *kron(struct tdm_eager *m, struct tdm_eager_value *a,
                                    struct tdm_eager_value *b)
{
    static const struct tdm_eager_op op = {"MulBackward0", false, kron_backward};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    tdm_node_save(m, node, b);
    tdm_node_save(m, node, a);
    const uint16_t bytes =
        a->element_bytes > b->element_bytes ? a->element_bytes : b->element_bytes;
    return tdm_node_finish(m, node,
                           tdm_value_new(m, a->rows * b->rows, a->columns * b->columns, bytes));
}

/* One of LoKr's matrices: trained, or the product of two. */
static struct tdm_eager_value *factor(struct tdm_eager *m, struct tdm_eager_value *left,
                                      struct tdm_eager_value *right)
{
    if (right == NULL)
        return tdm_take(left);
    struct tdm_eager_value *a = tdm_autocast(m, left), *b = tdm_autocast(m, right);
    struct tdm_eager_value *y = tdm_bmm(m, a, b, a->rows, b->columns);
    tdm_drop(m, a);
    tdm_drop(m, b);
    return y;
}

static struct tdm_eager_value *kron_weight(struct tdm_eager *m, const struct torch_layer *layer,
                                           enum tdm_projection p)
{
    struct tdm_eager_value *a = factor(m, layer->down[p], layer->up[p]),
                           *b = factor(m, layer->second_down[p], layer->second_up[p]);
    struct tdm_eager_value *whole = kron(m, a, b);
    whole = tdm_replace(m, whole, tdm_mul_number(m, whole));
    tdm_drop(m, a);
    tdm_drop(m, b);
    return whole;
}

struct tdm_eager_value *tdm_torch_changed(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer, enum tdm_projection p,
                                          struct tdm_eager_value *x)
{
    struct tdm_eager_value *weight = layer->weight[p];
    struct tdm_eager_value *base =
        tdm_torch_linear(m, t, x, weight, layer->bias[p], weight->module);
    struct tdm_eager_value *factors[] = {layer->down[p], layer->up[p], layer->second_down[p],
                                         layer->second_up[p]};
    tdm_label(m, "lora");
    struct tdm_eager_value *change = t->settings.adapter == TDM_ADAPTER_LOHA
                                         ? hada_weight(m, factors)
                                         : kron_weight(m, layer, p);
    struct tdm_eager_value *input = tdm_cast(m, x, change->element_bytes);
    struct tdm_eager_value *extra = tdm_linear(m, input, change, NULL, false);
    tdm_drop(m, input);
    tdm_drop(m, change);
    struct tdm_eager_value *sum = tdm_add(m, base, extra);
    tdm_drop(m, extra);
    tdm_drop(m, base);
    struct tdm_eager_value *y = tdm_cast(m, sum, x->element_bytes);
    tdm_drop(m, sum);
    return y;
}
