/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families whose attention transformers has as functions of their own, with scores in memory alone:
 * GPT-J, BLOOM and MPT. Sources: transformers 5.17, models/gptj, bloom and mpt, modeling_*.py;
 * torch 2.11, tools/autograd/derivatives.yaml (baddbmm, masked_fill).
 *
 * The weights of a layer that these models hold until the next layer has returned are not counted:
 * they matter in a forward under checkpoints alone, which is below its backward.
 */
#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

/* ---- GPT-J: q and k ---- */

void tdm_torch_gptj_angles(struct tdm_torch_model *t)
{
    const struct tdm_model *c = t->config;
    tdm_label(t->m, "attn.embed_positions"); /* a buffer of each layer */
    for (uint32_t i = 0; i < c->layers && c->own_scores == TDM_SCORES_GPTJ; i++)
        tdm_value_new(t->m, c->max_context, c->rotary_dim, FP32);
}

/* The rotated dimensions are made anew, with cosines and sines spread to neighbours, and joined to
 * the others. *held: both parts, which are names of the function. Takes x, by tokens. */
static struct tdm_eager_value *turn(struct tdm_eager *m, const struct tdm_torch_model *t,
                                    struct tdm_eager_value *x, struct tdm_eager_value *angles,
                                    struct tdm_eager_value **held)
{
    struct tdm_eager_value *part = tdm_columns(m, x, t->config->rotary_dim),
                           *rest = tdm_columns(m, x, x->columns - t->config->rotary_dim);
    struct tdm_eager_value *sine = tdm_value_like(m, angles), *cosine = tdm_value_like(m, angles);
    struct tdm_eager_value *turned = tdm_torch_rotate(m, part, cosine, sine);
    tdm_drop(m, sine);
    tdm_drop(m, cosine);
    tdm_drop(m, part);
    tdm_drop(m, x);
    held[0] = turned;
    held[1] = rest;
    return tdm_cat(m, turned, rest);
}

void tdm_torch_gptj_heads(struct tdm_eager *m, const struct tdm_torch_model *t, uint32_t number,
                          struct tdm_eager_value *x, struct tdm_eager_value *qkv[3],
                          struct tdm_eager_value *held[ATTENTION_HELD])
{
    const struct tdm_model *c = t->config;
    const uint64_t rows = x->rows * c->query_heads;
    for (unsigned i = 0; i < 3; i++) {
        struct tdm_eager_value *flat = tdm_torch_project(
            m, t, &t->layers[number], (enum tdm_projection)(TDM_PROJECTION_Q + i), x);
        qkv[i] = tdm_reshape(m, flat, rows, c->head_dim);
        tdm_drop(m, flat);
    }
    tdm_label(m, "self_attn.rotary");
    held[0] = tdm_value_new(m, t->settings.batch * c->max_context, c->rotary_dim, FP32);
    held[1] = tdm_value_new(m, x->rows, c->rotary_dim, INT64);
    struct tdm_eager_value *gathered = tdm_value_new(m, x->rows, c->rotary_dim, FP32);
    held[2] = tdm_cast(m, gathered, x->element_bytes);
    tdm_drop(m, gathered);
    qkv[1] = turn(m, t, qkv[1], held[2], &held[3]);
    qkv[0] = turn(m, t, qkv[0], held[2], &held[5]);
    for (unsigned i = 0; i < 3; i++)
        qkv[i] = tdm_replace(m, qkv[i], tdm_transpose(m, qkv[i]));
}

/* ---- ALiBi ---- */

void tdm_torch_alibi(struct tdm_torch_model *t)
{
    const struct tdm_model *c = t->config;
    if (c->own_scores == TDM_SCORES_BLOOM)
        t->cosine = tdm_value_new(t->m, t->settings.batch * c->query_heads, t->settings.tokens,
                                  t->weight_bytes);
    if (c->own_scores == TDM_SCORES_MPT)
        t->cosine = tdm_value_new(t->m, c->query_heads, c->max_context, FP32);
}

/* Gradients of a scaled product are made, then scaled. */
static void baddbmm_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[2] = {tdm_node_saved(m, node, 0), tdm_node_saved(m, node, 1)};
    tdm_cublas(m);
    for (unsigned i = 0; i < 2; i++) {
        const struct tdm_edge *edge = &node->edges[i];
        struct tdm_eager_value *product =
            tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
        results[i] = tdm_value_like(m, product);
        tdm_drop(m, product);
    }
    tdm_drop(m, saved[0]);
    tdm_drop(m, saved[1]);
}

/* BLOOM: ALiBi plus the scaled product. */
static struct tdm_eager_value *biased_product(struct tdm_eager *m, struct tdm_eager_value *q,
                                              struct tdm_eager_value *k, uint64_t tokens)
{
    static const struct tdm_eager_op op = {"BaddbmmBackward0", false, baddbmm_backward};
    struct tdm_eager_value *inputs[] = {q, k};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    for (unsigned i = 0; i < 2; i++)
        tdm_node_save(m, node, inputs[i]);
    struct tdm_eager_value *y = tdm_value_new(m, q->rows, tokens, q->element_bytes);
    tdm_cublas(m);
    return tdm_node_finish(m, node, y);
}

static void fill_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *mask = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, mask);
}

/* masked_fill. */
static struct tdm_eager_value *filled(struct tdm_eager *m, struct tdm_eager_value *x,
                                      struct tdm_eager_value *mask)
{
    static const struct tdm_eager_op op = {"MaskedFillBackward0", false, fill_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, mask);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

/* ---- attention ---- */

/* Masked scores; what the function holds until it returns goes to `held`. */
static struct tdm_eager_value *masked_scores(struct tdm_eager *m, const struct tdm_torch_model *t,
                                             struct tdm_eager_value *q, struct tdm_eager_value *k,
                                             struct tdm_eager_value *mask,
                                             struct tdm_eager_value **held)
{
    const uint64_t tokens = t->settings.tokens;
    const enum tdm_own_scores own = t->config->own_scores;
    if (own == TDM_SCORES_BLOOM) {
        held[0] = biased_product(m, q, k, tokens);
        return tdm_add(m, held[0], mask);
    }
    struct tdm_eager_value *product = tdm_bmm(m, q, k, q->rows, tokens);
    struct tdm_eager_value *scores = tdm_mul_number(m, product);
    tdm_drop(m, product);
    if (own == TDM_SCORES_GPTJ)
        return tdm_replace(m, scores, tdm_add(m, scores, mask));
    scores = tdm_replace(m, scores, tdm_cast(m, scores, FP32)); /* plus ALiBi, which is fp32 */
    return tdm_replace(m, scores, filled(m, scores, mask));
}

struct tdm_eager_value *tdm_torch_own_attention(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                struct tdm_eager_value *const qkv[3],
                                                struct tdm_eager_value *mask,
                                                struct tdm_eager_value **kept)
{
    const bool wide = t->config->own_scores == TDM_SCORES_GPTJ;
    struct tdm_eager_value *given[3], *merged[3], *held[1] = {NULL};
    for (unsigned i = 0; i < 3; i++) {
        given[i] = wide && i < 2 ? tdm_cast(m, qkv[i], FP32) : tdm_take(qkv[i]);
        struct tdm_eager_value *operand = tdm_autocast(m, given[i]);
        merged[i] = t->settings.batch > 1 ? tdm_contiguous(m, operand) : tdm_take(operand);
        tdm_drop(m, operand);
    }
    struct tdm_eager_value *masked = masked_scores(m, t, merged[0], merged[1], mask, held);
    struct tdm_eager_value *scores = tdm_cast(m, masked, FP32);
    struct tdm_eager_value *soft = tdm_softmax(m, scores);
    tdm_drop(m, scores);
    if (wide)
        tdm_drop(m, masked);
    struct tdm_eager_value *weights = tdm_cast(m, soft, merged[2]->element_bytes);
    tdm_drop(m, soft);
    if (tdm_torch_drops_scores(t))
        weights = tdm_replace(m, weights, tdm_dropout(m, weights));
    struct tdm_eager_value *output = tdm_bmm(m, weights, merged[2], qkv[0]->rows, qkv[2]->columns);
    struct tdm_eager_value *turned = tdm_transpose(m, output);
    tdm_drop(m, output);
    struct tdm_eager_value *y = tdm_contiguous(m, turned);
    tdm_drop(m, turned);
    for (unsigned i = 0; i < 3; i++) {
        tdm_drop(m, given[i]);
        tdm_drop(m, merged[i]);
    }
    if (!wide)
        tdm_drop(m, masked);
    tdm_drop(m, held[0]);
    *kept = weights;
    return y;
}

/* ---- BLOOM's GELU ---- */

/* a op b, of which both go. */
static struct tdm_eager_value *both(struct tdm_eager *m, struct tdm_eager_value *a,
                                    struct tdm_eager_value *b)
{
    struct tdm_eager_value *y = tdm_value_like(m, a);
    tdm_drop(m, a);
    tdm_drop(m, b);
    return y;
}

/* An operation on x, which goes, and a number. */
static struct tdm_eager_value *single(struct tdm_eager *m, struct tdm_eager_value *x)
{
    return both(m, x, NULL);
}

/* tanh(0.79788456 x (1 + 0.044715 x x)), without a graph. */
static struct tdm_eager_value *inner_tanh(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *scaled = tdm_value_like(m, x), *square = tdm_value_like(m, x);
    square = single(m, single(m, square));
    return single(m, both(m, scaled, square));
}

static void gelu_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *tanh = inner_tanh(m, x);
    struct tdm_eager_value *half = tdm_value_like(m, x), *factor = single(m, tdm_value_like(m, x)),
                           *slope = single(m, single(m, tdm_value_like(m, x)));
    struct tdm_eager_value *first = both(m, half, both(m, factor, slope));
    struct tdm_eager_value *sum = both(m, first, single(m, tdm_value_like(m, x)));
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, sum);
    tdm_drop(m, tanh);
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_torch_bloom_gelu(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"GeLUFunctionBackward", false, gelu_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, x);
    struct tdm_eager_value *half = tdm_value_like(m, x);
    struct tdm_eager_value *y = both(m, half, single(m, inner_tanh(m, x)));
    return tdm_node_finish(m, node, y);
}
