/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unsloth's functions for adapters, in which products and their adapters are one node of autograd:
 * LoRA_QKV of all three heads' projections, LoRA_W of the output's, LoRA_MLP (0050c73e,
 * unsloth/kernels/fast_lora.py, utils.py). With dropout, and for GPTQ, they are those that
 * fms-acceleration made of them (876e2ed, fms_acceleration_foak/fused_ops/unsloth_lora: utils.py,
 * bnb/fast_lora.py, gptq/fast_lora.py), which add tensors where Unsloth's have addmm_. Its function
 * of the MLP cannot run: it multiplies the gradient of the output by a mask of the inner width.
 */
#include "methods/eager/ops.h"
#include "methods/eager/quantized.h"
#include "methods/torch/parts.h"

#include <stddef.h>
#include <stdint.h>

#define HEADS 3u /* projections of q, k and v, and of an MLP */

/* ---- forward: matmul_lora ---- */

/* dropout(X) inside of a Function: its mask goes at once. Without dropout X itself. */
static struct tdm_eager_value *dropped(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       struct tdm_eager_value *x)
{
    return t->settings.lora_dropout > 0 ? tdm_dropout(m, x) : tdm_take(x);
}

/* A matrix of an adapter in the dtype of x: a copy, or itself. */
static struct tdm_eager_value *narrow(struct tdm_eager *m, struct tdm_eager_value *matrix,
                                      const struct tdm_eager_value *x)
{
    return tdm_cast(m, matrix, x->element_bytes);
}

/* Are the functions those of fms-acceleration? */
static bool adds_tensors(const struct tdm_torch_model *t, const struct tdm_eager_value *weight)
{
    return t->settings.lora_dropout > 0 ||
           (weight->quantized != NULL && !tdm_quantized_is_cloned(weight->quantized));
}

/* y += (input A) (s B). `adds`: by a tensor as large as y. */
static void add_adapter(struct tdm_eager *m, const struct torch_layer *layer, enum tdm_projection p,
                        struct tdm_eager_value *input, struct tdm_eager_value *y, bool adds)
{
    struct tdm_eager_value *down = narrow(m, layer->down[p], input);
    struct tdm_eager_value *low =
        tdm_value_new(m, input->rows, layer->down[p]->rows, input->element_bytes);
    tdm_cublas(m);
    tdm_drop(m, down);
    struct tdm_eager_value *up = narrow(m, layer->up[p], input), *scaled = NULL, *high = NULL;
    if (adds) {
        scaled = tdm_value_like(m, up);
        high = tdm_value_like(m, y);
    }
    tdm_drop(m, up);
    tdm_cublas(m);
    tdm_drop(m, scaled);
    tdm_drop(m, low);
    tdm_drop(m, high);
}

/* The result of one projection; *input: what its adapter took. A quantized weight in 16 bits lives
 * for the product, unless the caller has made it. */
static struct tdm_eager_value *project(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       const struct torch_layer *layer, enum tdm_projection p,
                                       struct tdm_eager_value *x, bool made,
                                       struct tdm_eager_value **input)
{
    const struct tdm_eager_value *weight = layer->weight[p];
    struct tdm_eager_value *wide =
        weight->quantized != NULL && !made ? tdm_quantized_wide(m, weight) : NULL;
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, weight->rows, x->element_bytes);
    tdm_cublas(m);
    tdm_drop(m, wide);
    *input = dropped(m, t, x);
    add_adapter(m, layer, p, *input, y, adds_tensors(t, weight));
    return y;
}

/* ---- backward ---- */

/* d_A = X^T (dY B^T) and d_B = (A^T X^T) dY, by autocast in the dtype of dY. */
static void adapter_gradients(struct tdm_eager *m, const struct torch_layer *layer,
                              enum tdm_projection p, struct tdm_eager_value *grad,
                              struct tdm_eager_value **down_grad, struct tdm_eager_value **up_grad)
{
    struct tdm_eager_value *down = layer->down[p], *up = layer->up[p];
    const uint16_t bytes = grad->element_bytes;
    struct tdm_eager_value *cast = narrow(m, up, grad);
    struct tdm_eager_value *low = tdm_value_new(m, grad->rows, down->rows, bytes);
    tdm_cublas(m);
    tdm_drop(m, cast);
    *down_grad = tdm_value_new(m, down->rows, down->columns, bytes);
    tdm_drop(m, low);
    cast = narrow(m, down, grad);
    low = tdm_value_new(m, grad->rows, down->rows, bytes);
    tdm_drop(m, cast);
    *up_grad = tdm_value_new(m, up->rows, up->columns, bytes);
    tdm_drop(m, low);
}

/* dX += dY B^T (s A)^T. */
static void add_adapter_input(struct tdm_eager *m, const struct torch_layer *layer,
                              enum tdm_projection p, struct tdm_eager_value *grad)
{
    struct tdm_eager_value *low =
        tdm_value_new(m, grad->rows, layer->down[p]->rows, grad->element_bytes);
    tdm_cublas(m);
    tdm_drop(m, low);
}

/* dX += (X != 0) * (dY B^T (s A)^T), by tensors. */
static void add_masked_input(struct tdm_eager *m, const struct torch_layer *layer,
                             enum tdm_projection p, struct tdm_eager_value *grad,
                             const struct tdm_eager_value *sum)
{
    struct tdm_eager_value *mask = tdm_value_new(m, sum->rows, sum->columns, BOOL);
    struct tdm_eager_value *up = narrow(m, layer->up[p], grad);
    struct tdm_eager_value *low =
        tdm_value_new(m, grad->rows, layer->down[p]->rows, grad->element_bytes);
    tdm_drop(m, up);
    struct tdm_eager_value *scaled = tdm_value_like(m, layer->down[p]),
                           *down = narrow(m, scaled, grad);
    struct tdm_eager_value *part = tdm_value_like(m, sum);
    tdm_drop(m, down);
    tdm_drop(m, scaled);
    tdm_drop(m, low);
    struct tdm_eager_value *masked = tdm_value_like(m, sum);
    tdm_drop(m, part);
    tdm_drop(m, mask);
    tdm_drop(m, masked);
}

static struct tdm_eager_value *wide_weight(struct tdm_eager *m,
                                           const struct tdm_eager_value *weight)
{
    return weight->quantized != NULL ? tdm_quantized_wide(m, weight) : NULL;
}

/* Sets the results of x, and of A and B of each projection, which are the inputs of the node. That
 * of bitsandbytes writes dX of three heads over the X that it saved. */
static void fused_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct torch_layer *layer = node->context;
    const uint32_t count = node->inputs / 2;
    const enum tdm_projection first = count == HEADS ? TDM_PROJECTION_Q : TDM_PROJECTION_O;
    struct tdm_eager_value *saved[HEADS + 1] = {NULL};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    for (uint32_t i = 0; i < count; i++)
        adapter_gradients(m, layer, first + i, grads[i], &results[1 + 2 * i], &results[2 + 2 * i]);
    const struct tdm_quantized *quantized = layer->weight[first]->quantized;
    const bool over = count == HEADS && (quantized == NULL || tdm_quantized_is_cloned(quantized));
    const bool adds = node->facts[0] != 0;
    struct tdm_eager_value *sum = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct tdm_eager_value *wide = wide_weight(m, layer->weight[first + i]);
        struct tdm_eager_value *part = i == 0 && over   ? tdm_value_view(m, saved[0])
                                       : i == 0 || adds ? tdm_value_like(m, saved[0])
                                                        : NULL;
        tdm_cublas(m);
        if (i > 0) /* dX += dY W^T, whose weight goes after it */
            tdm_drop(m, part);
        else
            sum = part;
        tdm_drop(m, wide);
        if (adds)
            add_masked_input(m, layer, first + i, grads[i], sum);
        else
            add_adapter_input(m, layer, first + i, grads[i]);
    }
    for (uint32_t i = 0; i < node->saved_count; i++)
        tdm_drop(m, saved[i]);
    results[0] = sum;
}

/* dY goes through the down projection to h, which the kernel of the activation overwrites, as it
 * does what was saved of gate and up; then the gradient of x overwrites the saved x. */
static void mlp_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    static const enum tdm_projection order[] = {TDM_PROJECTION_DOWN, TDM_PROJECTION_UP,
                                                TDM_PROJECTION_GATE};
    const struct torch_layer *layer = node->context;
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *gate = tdm_node_saved(m, node, 1),
                           *up = tdm_node_saved(m, node, 2);
    struct tdm_eager_value *wide = wide_weight(m, layer->weight[TDM_PROJECTION_DOWN]);
    struct tdm_eager_value *h = tdm_value_like(m, gate);
    tdm_cublas(m);
    tdm_drop(m, wide);
    add_adapter_input(m, layer, TDM_PROJECTION_DOWN, grads[0]);
    struct tdm_eager_value *const of[] = {grads[0], up, gate};
    for (unsigned i = 0; i < HEADS; i++) /* of gate, up and down are inputs 1, 3 and 5 */
        adapter_gradients(m, layer, order[i], of[i], &results[5 - 2 * i], &results[6 - 2 * i]);
    for (unsigned i = 1; i < HEADS; i++) {
        wide = wide_weight(m, layer->weight[order[i]]);
        tdm_cublas(m);
        tdm_drop(m, wide);
        add_adapter_input(m, layer, order[i], of[i]);
    }
    results[0] = tdm_value_view(m, x);
    tdm_drop(m, h);
    tdm_drop(m, up);
    tdm_drop(m, gate);
    tdm_drop(m, x);
}

static struct tdm_node *fused_node(struct tdm_eager *m, const struct tdm_eager_op *op,
                                   const struct torch_layer *layer, const enum tdm_projection *of,
                                   uint32_t count, struct tdm_eager_value *x)
{
    struct tdm_eager_value *inputs[1 + 2 * HEADS] = {x};
    for (uint32_t i = 0; i < count; i++) {
        inputs[1 + 2 * i] = layer->down[of[i]];
        inputs[2 + 2 * i] = layer->up[of[i]];
    }
    struct tdm_node *node = tdm_node_new(m, op, inputs, 1 + 2 * count);
    if (node != NULL)
        node->context = (void *)(uintptr_t)layer;
    return node;
}

/* ---- the functions ---- */

static const enum tdm_projection heads[HEADS] = {TDM_PROJECTION_Q, TDM_PROJECTION_K,
                                                 TDM_PROJECTION_V},
                                 output[] = {TDM_PROJECTION_O},
                                 inner[HEADS] = {TDM_PROJECTION_GATE, TDM_PROJECTION_UP,
                                                 TDM_PROJECTION_DOWN};

bool tdm_lora_kernels_take(const struct tdm_torch_model *t, const struct torch_layer *layer,
                           enum tdm_projection p)
{
    const enum tdm_projection *of = p == TDM_PROJECTION_O  ? output
                                    : p < TDM_PROJECTION_O ? heads
                                                           : inner;
    bool all = t->settings.lora_kernels != TDM_LORA_KERNELS_NONE && !t->adapters_off;
    for (uint32_t i = 0; i < (of == output ? 1 : HEADS) && all; i++)
        all = layer->down[of[i]] != NULL;
    return all;
}

/* Runs a function of one input: what it makes has no graph of its own. For GPTQ all weights are
 * made before the products, and live until it returns. */
static void run(struct tdm_eager *m, const struct tdm_torch_model *t,
                const struct torch_layer *layer, const enum tdm_projection *of, uint32_t count,
                const struct tdm_eager_op *op, struct tdm_eager_value *x,
                struct tdm_eager_value **y)
{
    struct tdm_node *node = fused_node(m, op, layer, of, count, x);
    struct tdm_eager_value *inputs[HEADS] = {NULL}, *wide[HEADS] = {NULL};
    const struct tdm_quantized *quantized = layer->weight[of[0]]->quantized;
    const bool before = quantized != NULL && !tdm_quantized_is_cloned(quantized);
    const bool enabled = m->grad_enabled;
    if (node != NULL)
        node->facts[0] = adds_tensors(t, layer->weight[of[0]]);
    m->grad_enabled = false;
    for (uint32_t i = 0; i < count && before; i++)
        wide[i] = tdm_quantized_wide(m, layer->weight[of[i]]);
    for (uint32_t i = 0; i < count; i++)
        y[i] = project(m, t, layer, of[i], x, before, &inputs[i]);
    m->grad_enabled = enabled;
    tdm_node_save(m, node, x);
    for (uint32_t i = 0; i < count; i++) {
        tdm_node_save(m, node, inputs[i]);
        tdm_node_output(m, node, i, y[i]);
        tdm_drop(m, inputs[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        tdm_drop(m, wide[i]);
    tdm_node_done(m, node);
}

void tdm_lora_kernels_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                            const struct torch_layer *layer, struct tdm_eager_value *x,
                            struct tdm_eager_value *qkv[3])
{
    static const struct tdm_eager_op op = {"LoRA_QKVBackward", false, fused_backward};
    tdm_label(m, "lora");
    run(m, t, layer, heads, HEADS, &op, x, qkv);
}

struct tdm_eager_value *tdm_lora_kernels_output(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                const struct torch_layer *layer,
                                                struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"LoRA_WBackward", false, fused_backward};
    struct tdm_eager_value *y;
    tdm_label(m, "lora");
    run(m, t, layer, output, 1, &op, x, &y);
    return y;
}

struct tdm_eager_value *tdm_lora_kernels_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                             const struct torch_layer *layer,
                                             struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"LoRA_MLPBackward", false, mlp_backward};
    struct tdm_eager_value *results[HEADS], *input;
    tdm_label(m, "mlp.lora");
    struct tdm_node *node = fused_node(m, &op, layer, inner, HEADS, x);
    const bool enabled = m->grad_enabled;
    m->grad_enabled = false;
    for (uint32_t i = 0; i < 2; i++) {
        results[i] = project(m, t, layer, inner[i], x, false, &input);
        tdm_drop(m, input);
    }
    struct tdm_eager_value *h = tdm_value_like(m, results[0]);
    results[2] = project(m, t, layer, TDM_PROJECTION_DOWN, h, false, &input);
    tdm_drop(m, input);
    m->grad_enabled = enabled;
    tdm_node_save(m, node, x);
    for (uint32_t i = 0; i < 2; i++) {
        tdm_node_save(m, node, results[i]);
        tdm_drop(m, results[i]);
    }
    tdm_node_finish(m, node, results[2]);
    tdm_drop(m, h);
    return results[2];
}
