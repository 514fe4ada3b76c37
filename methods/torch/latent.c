/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latent attention of transformers: q, and k and v, come from products of few dimensions, each
 * normed. A head of q and k has dimensions that are not rotated beside others that are, of which k
 * has one head for all. Sources: transformers 5.17, models/deepseek_v3/modeling_deepseek_v3.py
 * (DeepseekV3Attention; glm4_moe_lite has the same), models/deepseek_v2/modeling_deepseek_v2.py;
 * torch/csrc/autograd/functions/tensor.cpp (CopySlices, CopyBackwards).
 */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

/* ---- rotation ---- */

/* Every second dimension, as a view. */
static struct tdm_eager_value *every_second(struct tdm_eager *m, struct tdm_eager_value *x)
{
    return tdm_columns(m, x, x->columns / 2);
}

/* Neighbours by cosines of half the dimensions: apply_rotary_pos_emb_interleave. q's and k's parts
 * are made before either is joined. */
static void rotate_neighbours(struct tdm_eager *m, const struct tdm_torch_model *t,
                              struct tdm_eager_value *qk[2])
{
    struct tdm_eager_value *angles[2], *part[2][2];
    for (unsigned i = 0; i < 2; i++) {
        angles[i] = tdm_value_view(m, i == 0 ? t->cosine : t->sine);
        angles[i]->columns /= 2;
    }
    for (unsigned i = 0; i < 4; i++)
        part[i / 2][i % 2] = every_second(m, qk[i / 2]);
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *turned[2];
        for (unsigned j = 0; j < 2; j++) {
            struct tdm_eager_value *straight = tdm_mul(m, part[i][j], angles[0]);
            struct tdm_eager_value *across = tdm_mul(m, part[i][1 - j], angles[1]);
            turned[j] = j == 0 ? tdm_sub(m, straight, across) : tdm_add(m, straight, across);
            tdm_drop(m, straight);
            tdm_drop(m, across);
        }
        qk[i] = tdm_replace(m, qk[i], tdm_cat(m, turned[0], turned[1]));
        tdm_drop(m, turned[0]);
        tdm_drop(m, turned[1]);
    }
    for (unsigned i = 0; i < 4; i++)
        tdm_drop(m, part[i / 2][i % 2]);
    tdm_drop(m, angles[0]);
    tdm_drop(m, angles[1]);
}

static void rotate_halves(struct tdm_eager *m, const struct tdm_torch_model *t,
                          struct tdm_eager_value *qk[2])
{
    struct tdm_eager_value *turned[2];
    for (unsigned i = 0; i < 2; i++)
        turned[i] = tdm_torch_rotate(m, qk[i], t->cosine, t->sine);
    for (unsigned i = 0; i < 2; i++)
        qk[i] = tdm_replace(m, qk[i], turned[i]);
}

/* DeepSeek V2: complex numbers of fp32; both are made before either is rotated. */
static void rotate_complex(struct tdm_eager *m, const struct tdm_torch_model *t,
                           struct tdm_eager_value *qk[2])
{
    struct tdm_eager_value *wide[2], *narrow[2];
    for (unsigned i = 0; i < 2; i++)
        wide[i] = tdm_cast(m, qk[i], FP32);
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *turned = tdm_mul(m, wide[i], t->cosine);
        narrow[i] = tdm_cast(m, turned, qk[i]->element_bytes);
        tdm_drop(m, turned);
    }
    for (unsigned i = 0; i < 2; i++) {
        tdm_drop(m, wide[i]);
        qk[i] = tdm_replace(m, qk[i], narrow[i]);
    }
}

static void rotate(struct tdm_eager *m, const struct tdm_torch_model *t,
                   struct tdm_eager_value *qk[2])
{
    tdm_label(m, "self_attn.rotary");
    switch (t->config->latent.rotation) {
    case TDM_LATENT_NEIGHBOURS:
        rotate_neighbours(m, t, qk);
        break;
    case TDM_LATENT_HALVES:
        rotate_halves(m, t, qk);
        break;
    case TDM_LATENT_COMPLEX:
        rotate_complex(m, t, qk);
        break;
    }
}

/* ---- keys ---- */

/* The gradient of the whole is copied, that of the part once more. Into the place of the part go
 * zeros if the tensor before the copy needs a gradient. */
static void copy_slices_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    const struct tdm_edge *part = &node->edges[1];
    struct tdm_eager_value *whole = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *copy =
        tdm_value_new(m, grads[0]->rows, node->facts[0], part->element_bytes);
    if (tdm_node_needs(node, 0)) {
        tdm_drop(m, tdm_value_like(m, copy));
        results[0] = whole;
    } else {
        tdm_drop(m, whole);
    }
    results[1] = copy;
}

/* whole[..., part] = part. Takes `whole`. */
static struct tdm_eager_value *copy_part(struct tdm_eager *m, struct tdm_eager_value *whole,
                                         struct tdm_eager_value *part)
{
    static const struct tdm_eager_op op = {"CopySlices", false, copy_slices_backward};
    struct tdm_eager_value *inputs[] = {whole, part};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (node != NULL)
        node->facts[0] = part->columns;
    return tdm_replace(m, whole, tdm_node_finish(m, node, tdm_value_view(m, whole)));
}

/* expand_kv: v is a view of the product, k a tensor of its own. */
static void expand(struct tdm_eager *m, const struct tdm_torch_model *t,
                   const struct torch_layer *layer, struct tdm_eager_value *latent,
                   struct tdm_eager_value *rotated, struct tdm_eager_value *kv[2])
{
    const struct tdm_latent *l = &t->config->latent;
    const uint64_t rows = latent->rows * t->config->query_heads,
                   widths[2] = {l->plain_dim, l->value_dim};
    struct tdm_eager_value *both = tdm_torch_project(m, t, layer, TDM_PROJECTION_KV_B, latent),
                           *parts[2];
    both = tdm_replace(m, both, tdm_reshape(m, both, rows, widths[0] + widths[1]));
    both = tdm_replace(m, both, tdm_transpose(m, both));
    tdm_split(m, both, widths, 2, parts);
    tdm_label(m, "self_attn.key_states");
    struct tdm_eager_value *turned = tdm_stretch(m, rotated, rows, rotated->columns);
    struct tdm_eager_value *keys = tdm_value_new(m, rows, t->config->head_dim, both->element_bytes);
    keys = copy_part(m, keys, parts[0]);
    keys = copy_part(m, keys, turned);
    tdm_drop(m, turned);
    tdm_drop(m, parts[0]);
    tdm_drop(m, both);
    kv[0] = keys;
    kv[1] = parts[1];
}

/* q by heads, before its parts are. */
static struct tdm_eager_value *project_q(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         const struct torch_layer *layer, struct tdm_eager_value *x)
{
    struct tdm_eager_value *q;
    if (layer->q_latent_norm == NULL) {
        q = tdm_torch_project(m, t, layer, TDM_PROJECTION_Q, x);
    } else {
        q = tdm_torch_project(m, t, layer, TDM_PROJECTION_Q_A, x);
        tdm_label(m, "self_attn.q_a_layernorm");
        q = tdm_replace(m, q, tdm_torch_norm(m, t, q, layer->q_latent_norm));
        q = tdm_replace(m, q, tdm_torch_project(m, t, layer, TDM_PROJECTION_Q_B, q));
    }
    q = tdm_replace(m, q, tdm_reshape(m, q, x->rows * t->config->query_heads, t->config->head_dim));
    return tdm_replace(m, q, tdm_transpose(m, q));
}

void tdm_torch_latent_heads(struct tdm_eager *m, const struct tdm_torch_model *t, uint32_t number,
                            struct tdm_eager_value *x, struct tdm_eager_value *qkv[3],
                            struct tdm_eager_value *held[ATTENTION_HELD])
{
    const struct torch_layer *layer = &t->layers[number];
    const struct tdm_latent *l = &t->config->latent;
    const uint64_t q_widths[2] = {l->plain_dim, l->rotary_dim},
                   kv_widths[2] = {l->kv_rank, l->rotary_dim};
    struct tdm_eager_value *q_parts[2], *latent[2], *rotated[2];
    struct tdm_eager_value *q = project_q(m, t, layer, x);
    tdm_split(m, q, q_widths, 2, q_parts);
    struct tdm_eager_value *joint = tdm_torch_project(m, t, layer, TDM_PROJECTION_KV_A, x);
    tdm_split(m, joint, kv_widths, 2, latent);
    tdm_label(m, "self_attn.kv_a_layernorm");
    latent[0] = tdm_replace(m, latent[0], tdm_torch_norm(m, t, latent[0], layer->kv_latent_norm));
    rotated[0] = q_parts[1];
    rotated[1] = latent[1];
    rotate(m, t, rotated);
    tdm_label(m, "self_attn.cache");
    tdm_torch_cache_update(t, number, &latent[0], &rotated[1]);
    tdm_label(m, "self_attn.query_states");
    qkv[0] = tdm_cat(m, q_parts[0], rotated[0]);
    expand(m, t, layer, latent[0], rotated[1], &qkv[1]);
    struct tdm_eager_value *const locals[] = {q,         q_parts[0], joint,
                                              latent[0], rotated[0], rotated[1]};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        held[i] = locals[i];
}
