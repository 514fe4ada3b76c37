/* SPDX-License-Identifier: Apache-2.0 */
/* A gated DeltaNet in place of attention, with the kernels of flash-linear-attention and of
 * causal-conv1d, which transformers takes where they are installed. Sources: transformers 5.17,
 * models/qwen3_next/modeling_qwen3_next.py (Qwen3NextGatedDeltaNet, Qwen3NextRMSNormGated);
 * flash-linear-attention bc3b101d, fla/ops/gated_delta_rule/{chunk,chunk_fwd,wy_fast}.py,
 * ops/common/{chunk_delta_h,chunk_o}.py; causal_conv1d, causal_conv1d_interface.py
 * (CausalConv1dFn). */
#include "base/size.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

#define CHUNK 64u         /* tokens between states */
#define GRADIENT_KEYS 64u /* key dimensions that one block sums a decay's gradient over */

/* ---- convolution ---- */

static void convolution_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *weight = tdm_node_saved(m, node, 1);
    results[0] = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *wide = tdm_value_new(m, weight->rows, weight->columns, FP32);
    results[1] = tdm_cast(m, wide, weight->element_bytes);
    tdm_drop(m, wide);
    tdm_drop(m, weight);
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_torch_convolution(struct tdm_eager *m, struct tdm_eager_value *x,
                                              struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {"CausalConv1dFnBackward", false, convolution_backward};
    struct tdm_eager_value *inputs[] = {x, weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct tdm_eager_value *y = tdm_value_like(m, x);
    tdm_node_save(m, node, x);
    tdm_node_save(m, node, weight);
    return tdm_node_finish(m, node, y);
}

/* ---- the delta rule ---- */

enum { RULE_Q, RULE_K, RULE_V, RULE_DECAY, RULE_BETA, RULE_INPUTS };

/* What both directions make of a sequence: states of all chunks, and values less what the states
 * predict. */
struct states {
    struct tdm_eager_value *w, *u, *states, *values;
};

static struct tdm_eager_value *new_states(struct tdm_eager *m, const struct tdm_eager_value *k,
                                          const struct tdm_eager_value *v, uint64_t heads)
{
    uint64_t chunks = tdm_size_ceil_div(k->rows / heads, CHUNK);
    return tdm_value_new(m, chunks * heads * k->columns, v->columns, k->element_bytes);
}

static void drop_states(struct tdm_eager *m, struct states *s)
{
    tdm_drop(m, s->values);
    tdm_drop(m, s->states);
    tdm_drop(m, s->u);
    tdm_drop(m, s->w);
}

static struct states run_states(struct tdm_eager *m, const struct tdm_eager_value *k,
                                const struct tdm_eager_value *v, uint64_t heads)
{
    struct states s = {.w = tdm_value_like(m, k), .u = tdm_value_like(m, v)};
    s.states = new_states(m, k, v, heads);
    s.values = tdm_value_like(m, v);
    return s;
}

static void rule_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[8];
    for (uint32_t i = 0; i < 8; i++)
        saved[i] = tdm_node_saved(m, node, i);
    struct tdm_eager_value *q = saved[0], *k = saved[2], *v = saved[4], *decay = saved[5],
                           *beta = saved[6];
    uint64_t heads = node->facts[0];
    struct states s = run_states(m, k, v, heads);
    struct tdm_eager_value *dv = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *dh = new_states(m, k, v, heads);
    dv = tdm_replace(m, dv, tdm_value_like(m, v));
    struct tdm_eager_value *dq = tdm_value_like(m, q), *dk = tdm_value_like(m, k);
    uint64_t parts = tdm_size_ceil_div(k->columns, GRADIENT_KEYS);
    struct tdm_eager_value *dg = tdm_value_new(m, parts * decay->rows, decay->columns, FP32);
    struct tdm_eager_value *dw = tdm_value_like(m, s.w);
    dg = tdm_replace(m, dg, tdm_value_like(m, decay));
    struct tdm_eager_value *more_k = tdm_value_like(m, k), *made_v = tdm_value_like(m, v),
                           *more_g = tdm_value_like(m, decay);
    results[RULE_BETA] = tdm_value_like(m, beta);
    dv = tdm_replace(m, dv, made_v);
    dg = tdm_replace(m, dg, tdm_value_like(m, decay));
    tdm_drop(m, more_g);
    tdm_drop(m, more_k);
    tdm_drop(m, dw);
    tdm_drop(m, dh);
    drop_states(m, &s);
    results[RULE_Q] = tdm_replace(m, dq, tdm_value_like(m, q));
    results[RULE_K] = tdm_replace(m, dk, tdm_value_like(m, k));
    results[RULE_V] = dv;
    results[RULE_DECAY] = dg;
    for (uint32_t i = 0; i < 8; i++)
        tdm_drop(m, saved[i]);
}

/* chunk_gated_delta_rule: heads of q and k are normed, v is made contiguous, all of which are
 * saved. Rows are tokens times heads. */
static struct tdm_eager_value *delta_rule(struct tdm_eager *m, struct tdm_eager_value *const *x,
                                          uint64_t heads)
{
    static const struct tdm_eager_op op = {"ChunkGatedDeltaRuleFunctionBackward", false,
                                           rule_backward};
    struct tdm_node *node = tdm_node_new(m, &op, x, RULE_INPUTS);
    uint64_t rows = x[RULE_V]->rows;
    if (node != NULL)
        node->facts[0] = heads;
    struct tdm_eager_value *copies[2] = {NULL, NULL}; /* for the time of the call */
    for (unsigned i = 0; i < 2; i++)
        copies[i] = x[i]->view ? tdm_value_like(m, x[i]) : NULL;
    struct tdm_eager_value *v = tdm_value_like(m, x[RULE_V]);
    struct tdm_eager_value *q = tdm_value_like(m, x[RULE_Q]),
                           *q_scale = tdm_value_new(m, rows, 1, FP32);
    struct tdm_eager_value *k = tdm_value_like(m, x[RULE_K]),
                           *k_scale = tdm_value_new(m, rows, 1, FP32);
    struct tdm_eager_value *decay = tdm_value_like(m, x[RULE_DECAY]);
    struct tdm_eager_value *inverse = tdm_value_new(m, rows, CHUNK, k->element_bytes);
    struct states s = run_states(m, k, v, heads);
    struct tdm_eager_value *y = tdm_value_like(m, v);
    drop_states(m, &s);
    struct tdm_eager_value *saved[] = {q, q_scale, k, k_scale, v, decay, x[RULE_BETA], inverse};
    for (unsigned i = 0; i < sizeof(saved) / sizeof(saved[0]); i++)
        tdm_node_save(m, node, saved[i]);
    tdm_node_finish(m, node, y);
    for (unsigned i = 0; i < sizeof(saved) / sizeof(saved[0]); i++)
        if (saved[i] != x[RULE_BETA])
            tdm_drop(m, saved[i]);
    tdm_drop(m, copies[0]);
    tdm_drop(m, copies[1]);
    return y;
}

/* ---- the layer ---- */

/* exp saves its result, as tanh does. The minus is a node of its own. */
struct tdm_eager_value *tdm_torch_minus_exp(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *wide = tdm_cast(m, x, FP32);
    wide = tdm_replace(m, wide, tdm_tanh(m, wide));
    return tdm_replace(m, wide, tdm_mul_number(m, wide));
}

/* -exp(A) * softplus(a + bias), in fp32. */
static struct tdm_eager_value *decays(struct tdm_eager *m, const struct torch_layer *layer,
                                      struct tdm_eager_value *a)
{
    struct tdm_eager_value *rate = tdm_torch_minus_exp(m, layer->delta[DELTA_DECAY]);
    struct tdm_eager_value *wide = tdm_cast(m, a, FP32);
    wide = tdm_replace(m, wide, tdm_add(m, wide, layer->delta[DELTA_TIME]));
    struct tdm_eager_value *time = tdm_softplus(m, wide);
    tdm_drop(m, wide);
    struct tdm_eager_value *y = tdm_mul(m, rate, time);
    tdm_drop(m, time);
    tdm_drop(m, rate);
    return y;
}

/* Qwen3NextRMSNormGated: a norm times silu(gate), in fp32. */
static struct tdm_eager_value *gated_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                          struct tdm_eager_value *gate,
                                          struct tdm_eager_value *weight)
{
    struct tdm_eager_value *wide = tdm_cast(m, x, FP32);
    struct tdm_eager_value *square = tdm_square(m, wide);
    struct tdm_eager_value *variance = tdm_row_mean(m, square);
    tdm_drop(m, square);
    struct tdm_eager_value *scale = tdm_add_number(m, variance);
    scale = tdm_replace(m, scale, tdm_rsqrt(m, scale));
    wide = tdm_replace(m, wide, tdm_mul(m, wide, scale));
    tdm_drop(m, scale);
    struct tdm_eager_value *narrow = tdm_cast(m, wide, x->element_bytes);
    struct tdm_eager_value *normed = tdm_mul(m, weight, narrow);
    tdm_drop(m, narrow);
    tdm_drop(m, wide);
    struct tdm_eager_value *open = tdm_cast(m, gate, FP32);
    open = tdm_replace(m, open, tdm_activate(m, TDM_ACTIVATION_SILU, open));
    normed = tdm_replace(m, normed, tdm_mul(m, normed, open));
    tdm_drop(m, open);
    struct tdm_eager_value *y = tdm_cast(m, normed, x->element_bytes);
    tdm_drop(m, normed);
    tdm_drop(m, variance);
    return y;
}

/* A view whose parts are not next to each other, in a shape that it cannot have without a copy. */
static struct tdm_eager_value *copied(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows,
                                      uint64_t columns)
{
    struct tdm_eager_value *copy = tdm_clone(m, x);
    struct tdm_eager_value *y = tdm_reshape(m, copy, rows, columns);
    tdm_drop(m, copy);
    tdm_drop(m, x);
    return y;
}

/* What a layer makes of its input: q, k and v for the convolution, the gate, and both numbers of
 * each head. `held` lives until the layer returns. */
struct inputs {
    struct tdm_eager_value *qkv, *gate, *b, *a, *held[2];
};

static struct tdm_eager_value *project(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       struct tdm_eager_value *weight, struct tdm_eager_value *x)
{
    return tdm_torch_linear(m, t, x, weight, NULL, weight->module);
}

/* Two products whose parts lie group by group: copies of all of them. */
static struct inputs joint_inputs(struct tdm_eager *m, const struct tdm_torch_model *t,
                                  const struct torch_layer *layer, struct tdm_eager_value *x)
{
    const struct tdm_delta *d = &t->config->delta;
    const uint64_t tokens = x->rows, groups = d->value_heads / d->key_heads;
    const uint64_t keys = (uint64_t)d->key_heads * d->key_dim,
                   values = (uint64_t)d->value_heads * d->value_dim;
    const uint64_t widths[] = {d->key_dim, d->key_dim, groups * d->value_dim,
                               groups * d->value_dim},
                   halves[] = {groups, groups};
    struct tdm_eager_value *parts[4], *gates[2], *old[3];
    struct inputs in;
    tdm_label(m, "linear_attn.in_proj_qkvz");
    in.held[0] = project(m, t, layer->delta[DELTA_QKVZ], x);
    tdm_label(m, "linear_attn.in_proj_ba");
    in.held[1] = project(m, t, layer->delta[DELTA_BA], x);
    tdm_label(m, "linear_attn");
    struct tdm_eager_value *by_group =
        tdm_reshape(m, in.held[0], tokens * d->key_heads, in.held[0]->columns / d->key_heads);
    struct tdm_eager_value *gates_by_group =
        tdm_reshape(m, in.held[1], tokens * d->key_heads, 2 * groups);
    tdm_split(m, by_group, widths, 4, parts);
    tdm_split(m, gates_by_group, halves, 2, gates);
    tdm_drop(m, by_group);
    tdm_drop(m, gates_by_group);
    old[2] = copied(m, parts[2], tokens, values);
    in.gate = copied(m, parts[3], tokens * d->value_heads, d->value_dim);
    in.b = copied(m, gates[0], tokens, d->value_heads);
    in.a = copied(m, gates[1], tokens, d->value_heads);
    for (unsigned i = 0; i < 2; i++)
        old[i] = copied(m, parts[i], tokens, keys);
    tdm_label(m, "linear_attn.conv1d");
    in.qkv = tdm_cat_many(m, old, 3);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, old[i]);
    return in;
}

/* Qwen3.5: a product each. */
static struct inputs separate_inputs(struct tdm_eager *m, const struct tdm_torch_model *t,
                                     const struct torch_layer *layer, struct tdm_eager_value *x)
{
    const struct tdm_delta *d = &t->config->delta;
    struct inputs in = {.held = {NULL, NULL}};
    tdm_label(m, "linear_attn.in_proj_qkv");
    in.qkv = project(m, t, layer->delta[DELTA_QKVZ], x);
    tdm_label(m, "linear_attn.in_proj_z");
    in.gate = project(m, t, layer->delta[DELTA_Z], x);
    in.gate =
        tdm_replace(m, in.gate, tdm_reshape(m, in.gate, x->rows * d->value_heads, d->value_dim));
    tdm_label(m, "linear_attn.in_proj_b");
    in.b = project(m, t, layer->delta[DELTA_BA], x);
    tdm_label(m, "linear_attn.in_proj_a");
    in.a = project(m, t, layer->delta[DELTA_A], x);
    tdm_label(m, "linear_attn.conv1d");
    return in;
}

struct tdm_eager_value *tdm_torch_delta(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        const struct torch_layer *layer, struct tdm_eager_value *x)
{
    const struct tdm_delta *d = &t->config->delta;
    const uint64_t tokens = x->rows, groups = d->value_heads / d->key_heads;
    const uint64_t keys = (uint64_t)d->key_heads * d->key_dim,
                   values = (uint64_t)d->value_heads * d->value_dim;
    const uint64_t flat_widths[] = {keys, keys, values};
    struct tdm_eager_value *rule[RULE_INPUTS];
    struct inputs in = d->apart ? separate_inputs(m, t, layer, x) : joint_inputs(m, t, layer, x);
    struct tdm_eager_value *mixed = tdm_torch_convolution(m, in.qkv, layer->delta[DELTA_KERNEL]);
    tdm_drop(m, in.qkv);
    tdm_split(m, mixed, flat_widths, 3, rule);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t width = i < 2 ? d->key_dim : d->value_dim;
        rule[i] = tdm_replace(
            m, rule[i],
            tdm_reshape(m, rule[i], tokens * (i < 2 ? d->key_heads : d->value_heads), width));
    }
    tdm_label(m, "linear_attn.gates");
    rule[RULE_BETA] = tdm_sigmoid(m, in.b);
    rule[RULE_DECAY] = decays(m, layer, in.a);
    tdm_label(m, "linear_attn.chunk_gated_delta_rule");
    for (unsigned i = 0; i < 2; i++)
        rule[i] = tdm_replace(m, rule[i], tdm_repeat(m, rule[i], groups));
    struct tdm_eager_value *made = delta_rule(m, rule, d->value_heads);
    tdm_label(m, "linear_attn.norm");
    const uint32_t norm = layer->delta[DELTA_NORM]->module;
    made = tdm_replace(m, made, tdm_module_enter(t, norm, made));
    made = tdm_replace(m, made, gated_norm(m, made, in.gate, layer->delta[DELTA_NORM]));
    made = tdm_module_leave(t, norm, made);
    struct tdm_eager_value *merged = tdm_reshape(m, made, tokens, values);
    tdm_drop(m, made);
    tdm_label(m, "linear_attn.out_proj");
    struct tdm_eager_value *y = project(m, t, layer->delta[DELTA_OUT], merged);
    tdm_drop(m, merged);
    for (unsigned i = 0; i < RULE_INPUTS; i++)
        tdm_drop(m, rule[i]);
    struct tdm_eager_value *rest[] = {mixed, in.a, in.b, in.gate, in.held[1], in.held[0]};
    for (unsigned i = 0; i < sizeof(rest) / sizeof(rest[0]); i++)
        tdm_drop(m, rest[i]);
    return y;
}
