/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of BurstEngine's Llama.
 * Sources: cpm/layers/{blocks,attention,feedforward,layernorm,position_embedding}.py,
 * bmtrain/nn/linear.py (OpLinear). We assume that an adapter of the gate or the up projection is
 * added to its half of their joint product. */
#include "methods/context/burst_parts.h"
#include "methods/eager/ops.h"

#include <stddef.h>

/* Without gradients, the script runs as two fused kernels, one on each side of the mean. The result
 * of the first stays until the end. */
static struct tdm_eager_value *fused_norm(struct tdm_eager *m, const struct tdm_eager_value *x)
{
    struct tdm_eager_value *square = tdm_value_new(m, x->rows, x->columns, FP32);
    struct tdm_eager_value *variance = tdm_value_new(m, x->rows, 1, FP32);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, x->columns, x->element_bytes);
    tdm_drop(m, square);
    tdm_drop(m, variance);
    return y;
}

/* rms_layernorm: a script. Its operations run one by one if a gradient is needed. */
struct tdm_eager_value *burst_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                   struct tdm_eager_value *weight)
{
    if (!m->grad_enabled)
        return fused_norm(m, x);
    struct tdm_eager_value *value = tdm_cast(m, x, FP32);
    value = tdm_replace(m, value, tdm_square(m, value));
    value = tdm_replace(m, value, tdm_row_mean(m, value));
    value = tdm_replace(m, value, tdm_add_number(m, value));
    value = tdm_replace(m, value, tdm_rsqrt(m, value));
    value = tdm_replace(m, value, tdm_mul(m, x, value));
    value = tdm_replace(m, value, tdm_cast(m, value, x->element_bytes));
    return tdm_replace(m, value, tdm_mul(m, value, weight));
}

/* Rotates by the cosines and sines of the rank's own tokens, which are views of those of all. */
static struct tdm_eager_value *rotate(struct burst_model *b, struct tdm_eager_value *x)
{
    struct tdm_eager *m = b->m;
    struct tdm_eager_value *tables[2] = {tdm_value_view(m, b->cosine), tdm_value_view(m, b->sine)};
    for (unsigned i = 0; i < 2; i++)
        tables[i]->rows = b->tokens;
    struct tdm_eager_value *straight = tdm_mul(m, x, tables[0]);
    struct tdm_eager_value *half = tdm_rotate_half(m, x);
    struct tdm_eager_value *turned = tdm_mul(m, half, tables[1]);
    tdm_drop(m, half);
    struct tdm_eager_value *y = tdm_add(m, straight, turned);
    tdm_drop(m, straight);
    tdm_drop(m, turned);
    tdm_drop(m, tables[0]);
    tdm_drop(m, tables[1]);
    return y;
}

static void sum_repeats(struct tdm_eager *m, struct tdm_node *node,
                        struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    if (grads[0]->rows == edge->rows)
        results[0] = tdm_value_view(m, grads[0]);
    else
        results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
}

/* x.repeat: it copies even if `times` is 1. */
static struct tdm_eager_value *repeat(struct tdm_eager *m, struct tdm_eager_value *x,
                                      uint64_t times)
{
    static const struct tdm_eager_op op = {"RepeatBackward0", false, sum_repeats};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows * times, x->columns, x->element_bytes);
    return tdm_node_finish(m, node, y);
}

/* base + scale * B(A(x)), as peft's modules around a projection compute it. Takes ownership of
 * `base`. */
static struct tdm_eager_value *adapt(struct tdm_eager *m, const struct burst_block *block,
                                     unsigned w, struct tdm_eager_value *x,
                                     struct tdm_eager_value *base)
{
    const char *name = m->label.name;
    if (block->down[w] == NULL)
        return base;
    tdm_label(m, "lora");
    struct tdm_eager_value *y = tdm_linear(m, x, block->down[w], NULL, false);
    y = tdm_replace(m, y, tdm_linear(m, y, block->up[w], NULL, false));
    y = tdm_replace(m, y, tdm_mul_number(m, y));
    struct tdm_eager_value *sum = tdm_add(m, base, y);
    tdm_drop(m, y);
    tdm_drop(m, base);
    tdm_label(m, name);
    return sum;
}

static struct tdm_eager_value *project(struct burst_model *b, uint32_t layer, unsigned w,
                                       struct tdm_eager_value *x)
{
    const struct burst_block *block = &b->blocks[layer];
    return adapt(b->m, block, w, x, tdm_linear(b->m, x, block->weights[w], NULL, false));
}

static struct tdm_eager_value *project_heads(struct burst_model *b, uint32_t layer, unsigned w,
                                             struct tdm_eager_value *x)
{
    struct tdm_eager_value *flat = project(b, layer, w, x);
    uint64_t head_dim = b->config->head_dim;
    struct tdm_eager_value *heads =
        tdm_reshape(b->m, flat, flat->rows * (flat->columns / head_dim), head_dim);
    tdm_drop(b->m, flat);
    return heads;
}

static struct tdm_eager_value *attend(struct burst_model *b, uint32_t layer,
                                      struct tdm_eager_value *x)
{
    struct tdm_eager *m = b->m;
    uint64_t groups = b->config->query_heads / b->config->kv_heads;
    tdm_label(m, "self_attn.qkv");
    struct tdm_eager_value *q = project_heads(b, layer, BURST_Q, x),
                           *k = project_heads(b, layer, BURST_K, x),
                           *v = project_heads(b, layer, BURST_V, x);
    struct tdm_eager_value *turned_q = rotate(b, q), *turned_k = rotate(b, k);
    q = tdm_replace(m, q, turned_q);
    k = tdm_replace(m, k, turned_k);
    k = tdm_replace(m, k, repeat(m, k, groups));
    v = tdm_replace(m, v, repeat(m, v, groups));
    tdm_label(m, "self_attn.attention");
    struct tdm_eager_value *heads = burst_attention(b, layer, q, k, v);
    struct tdm_eager_value *merged =
        tdm_reshape(m, heads, x->rows, b->blocks[layer].weights[BURST_O]->columns);
    tdm_drop(m, heads);
    tdm_label(m, "self_attn.o_proj");
    struct tdm_eager_value *y = project(b, layer, BURST_O, merged);
    tdm_drop(m, merged);
    tdm_drop(m, q);
    tdm_drop(m, k);
    tdm_drop(m, v);
    return y;
}

static void cut(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                struct tdm_eager_value **results)
{
    for (uint32_t i = 0; i < node->inputs; i++) {
        results[i] = tdm_value_view(m, grads[0]);
        results[i]->rows = node->edges[i].rows;
    }
}

/* Both weights, one below the other. They are copied in every call. */
static struct tdm_eager_value *join(struct tdm_eager *m, struct tdm_eager_value *gate,
                                    struct tdm_eager_value *up)
{
    static const struct tdm_eager_op op = {"CatBackward0", false, cut};
    struct tdm_eager_value *inputs[] = {gate, up};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct tdm_eager_value *both = tdm_value_new(m, gate->rows + up->rows, gate->columns, BF16);
    return tdm_node_finish(m, node, both);
}

static struct tdm_eager_value *mlp(struct burst_model *b, uint32_t layer, struct tdm_eager_value *x)
{
    struct tdm_eager *m = b->m;
    const struct burst_block *block = &b->blocks[layer];
    tdm_label(m, "mlp.gate_up");
    struct tdm_eager_value *weight = join(m, block->weights[BURST_GATE], block->weights[BURST_UP]);
    struct tdm_eager_value *gate, *up;
    struct tdm_eager_value *both = tdm_linear(m, x, weight, NULL, false);
    tdm_drop(m, weight);
    tdm_halves(m, both, &gate, &up);
    gate = adapt(m, block, BURST_GATE, x, gate);
    up = adapt(m, block, BURST_UP, x, up);
    tdm_label(m, "mlp.act_fn");
    struct tdm_eager_value *active = tdm_activate(m, b->config->activation, gate);
    struct tdm_eager_value *product = tdm_mul(m, active, up);
    tdm_drop(m, active);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    tdm_drop(m, both);
    tdm_label(m, "mlp.down_proj");
    struct tdm_eager_value *y = project(b, layer, BURST_DOWN, product);
    tdm_drop(m, product);
    return y;
}

struct tdm_eager_value *burst_layer(struct tdm_eager *m, const void *model, uint32_t layer,
                                    struct tdm_eager_value *x)
{
    struct burst_model *b = (struct burst_model *)model;
    struct tdm_eager_value *const *weights = b->blocks[layer].weights;
    struct tdm_label label = m->label;
    m->label.layer = layer;
    tdm_label(m, "input_layernorm");
    struct tdm_eager_value *normed = burst_norm(m, x, weights[BURST_ATTENTION_NORM]);
    struct tdm_eager_value *attended = attend(b, layer, normed);
    tdm_drop(m, normed);
    tdm_label(m, "residual");
    struct tdm_eager_value *middle = tdm_add(m, x, attended);
    tdm_drop(m, attended);
    tdm_label(m, "post_attention_layernorm");
    normed = burst_norm(m, middle, weights[BURST_MLP_NORM]);
    struct tdm_eager_value *made = mlp(b, layer, normed);
    tdm_drop(m, normed);
    struct tdm_eager_value *y = tdm_add(m, middle, made);
    tdm_drop(m, made);
    tdm_drop(m, middle);
    m->label = label;
    return y;
}
