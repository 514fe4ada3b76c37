/* SPDX-License-Identifier: Apache-2.0 */
/* q, k and v of a layer: their products, together or not, their norms, and their rotation. */
#include "methods/eager/liger.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

/* Splits a projection into heads: [batch, heads, tokens, head_dim]. Takes ownership of `flat`.
 * `norm` NULL: no norm. */
static struct tdm_eager_value *by_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        struct tdm_eager_value *flat, struct tdm_eager_value *norm)
{
    uint64_t head_dim = t->config->head_dim;
    struct tdm_eager_value *heads =
        tdm_reshape(m, flat, flat->rows * (flat->columns / head_dim), head_dim);
    tdm_drop(m, flat);
    if (norm != NULL) {
        struct tdm_eager_value *normed = tdm_torch_norm(m, t, heads, norm);
        tdm_drop(m, heads);
        heads = normed;
    }
    struct tdm_eager_value *y = tdm_transpose(m, heads);
    tdm_drop(m, heads);
    return y;
}

struct tdm_eager_value *tdm_torch_rotate(struct tdm_eager *m, struct tdm_eager_value *x,
                                         struct tdm_eager_value *cosine,
                                         struct tdm_eager_value *sine)
{
    struct tdm_eager_value *straight = tdm_mul(m, x, cosine);
    struct tdm_eager_value *half = tdm_rotate_half(m, x);
    struct tdm_eager_value *turned = tdm_mul(m, half, sine);
    tdm_drop(m, half);
    struct tdm_eager_value *y = tdm_add(m, straight, turned);
    tdm_drop(m, straight);
    tdm_drop(m, turned);
    return y;
}

/* ERNIE: what each product takes becomes fp32 for it. */
static struct tdm_eager_value *rotate_cast(struct tdm_eager *m, struct tdm_eager_value *x,
                                           struct tdm_eager_value *cosine,
                                           struct tdm_eager_value *sine)
{
    struct tdm_eager_value *straight = tdm_cast(m, x, FP32);
    straight = tdm_replace(m, straight, tdm_mul(m, straight, cosine));
    struct tdm_eager_value *half = tdm_rotate_half(m, x);
    half = tdm_replace(m, half, tdm_cast(m, half, FP32));
    half = tdm_replace(m, half, tdm_mul(m, half, sine));
    struct tdm_eager_value *y = tdm_add(m, straight, half);
    tdm_drop(m, straight);
    tdm_drop(m, half);
    return y;
}

/* Neighbours are rotated together: cosines of half the dimensions are spread to twice as many. */
static struct tdm_eager_value *spread(struct tdm_eager *m, const struct tdm_torch_model *t,
                                      struct tdm_eager_value *angles)
{
    return (t->config->parts & TDM_PART_INTERLEAVED_ROPE) != 0 ? tdm_value_like(m, angles)
                                                               : tdm_take(angles);
}

/* The rotated dimensions and the others are joined again, also if there are no others. Takes x. */
static struct tdm_eager_value *rotate_part(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x,
                                           struct tdm_eager_value *cosine,
                                           struct tdm_eager_value *sine)
{
    uint64_t rotated = t->config->rotary_dim, others = x->columns - rotated;
    struct tdm_eager_value *first = others > 0 ? tdm_columns(m, x, rotated) : tdm_take(x);
    struct tdm_eager_value *rest = tdm_columns(m, x, others);
    struct tdm_eager_value *turned = tdm_torch_rotate(m, first, cosine, sine);
    struct tdm_eager_value *y = tdm_cat(m, turned, rest);
    tdm_drop(m, turned);
    tdm_drop(m, rest);
    tdm_drop(m, first);
    tdm_drop(m, x);
    return y;
}

/* GPT-OSS: cosines of half the dimensions, products of both halves of a head. Takes x. */
static struct tdm_eager_value *rotate_halves(struct tdm_eager *m, struct tdm_eager_value *x,
                                             struct tdm_eager_value *cosine,
                                             struct tdm_eager_value *sine)
{
    struct tdm_eager_value *half[2], *turned[2];
    tdm_halves(m, x, &half[0], &half[1]);
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *straight = tdm_mul(m, half[i], cosine);
        struct tdm_eager_value *across = tdm_mul(m, half[1 - i], sine);
        turned[i] = i == 0 ? tdm_sub(m, straight, across) : tdm_add(m, straight, across);
        tdm_drop(m, straight);
        tdm_drop(m, across);
    }
    struct tdm_eager_value *y = tdm_cat(m, turned[0], turned[1]);
    for (unsigned i = 0; i < 2; i++) {
        tdm_drop(m, half[i]);
        tdm_drop(m, turned[i]);
    }
    tdm_drop(m, x);
    return y;
}

/* Qwen 1: one kernel of FlashAttention's (layers/rotary.py) on heads in fp32, which saves the
 * angles alone. Takes x. */
static struct tdm_eager_value *rotate_flash(struct tdm_eager *m, struct tdm_eager_value *x,
                                            struct tdm_eager_value *cosine,
                                            struct tdm_eager_value *sine)
{
    static const struct tdm_eager_op op = {"ApplyRotaryEmbBackward", false, tdm_map_backward};
    const uint16_t bytes = x->element_bytes;
    x = tdm_replace(m, x, tdm_cast(m, x, FP32));
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, cosine);
    tdm_node_save(m, node, sine);
    x = tdm_replace(m, x, tdm_node_finish(m, node, tdm_value_like(m, x)));
    return tdm_replace(m, x, tdm_cast(m, x, bytes));
}

/* Llama 4's norm of a head: no weight. Takes x. */
static struct tdm_eager_value *head_norm(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *normed = tdm_torch_normed(m, x);
    struct tdm_eager_value *y = tdm_cast(m, normed, x->element_bytes);
    tdm_drop(m, normed);
    tdm_drop(m, x);
    return y;
}

/* Llama 4: q and k as complex numbers in fp32, both before either is narrow again; then norms. Or,
 * without rotation, q times a number for each position, in fp32. */
static void rotate_complex(struct tdm_eager *m, const struct tdm_torch_model *t, uint32_t number,
                           struct tdm_eager_value *qk[2])
{
    uint16_t bytes = qk[0]->element_bytes;
    struct tdm_eager_value *wide[2], *turned[2];
    if (t->config->layer_kinds[number].no_rope) {
        if (!t->config->scaled_queries)
            return;
        struct tdm_eager_value *scales = tdm_value_new(m, t->settings.tokens, 1, FP32);
        struct tdm_eager_value *scaled = tdm_mul(m, qk[0], scales);
        qk[0] = tdm_replace(m, qk[0], tdm_cast(m, scaled, bytes));
        tdm_drop(m, scaled);
        tdm_drop(m, scales);
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        wide[i] = tdm_cast(m, qk[i], FP32);
    for (unsigned i = 0; i < 2; i++)
        turned[i] = tdm_mul(m, wide[i], t->cosine);
    struct tdm_eager_value *narrow[2];
    for (unsigned i = 0; i < 2; i++)
        narrow[i] = tdm_cast(m, turned[i], bytes);
    for (unsigned i = 0; i < 2; i++) {
        tdm_drop(m, wide[i]);
        tdm_drop(m, turned[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        qk[i] = tdm_replace(m, qk[i], narrow[i]);
    for (unsigned i = 0; i < 2 && t->config->head_norms; i++)
        qk[i] = head_norm(m, qk[i]);
}

/* Ministral 3: q times a number for each position. Takes q. */
static struct tdm_eager_value *scaled_by_place(struct tdm_eager *m, const struct tdm_torch_model *t,
                                               struct tdm_eager_value *q)
{
    struct tdm_eager_value *scales = tdm_value_new(m, t->settings.tokens, 1, FP32);
    scales = tdm_replace(m, scales, tdm_cast(m, scales, q->element_bytes));
    q = tdm_replace(m, q, tdm_mul(m, q, scales));
    tdm_drop(m, scales);
    return q;
}

bool tdm_torch_has_liger_rope(const struct tdm_model *config)
{
    return config->latent.kv_rank == 0 &&
           (config->parts & (TDM_PART_CUT_ROPE | TDM_PART_INTERLEAVED_ROPE | TDM_PART_WIDE_ROPE |
                             TDM_PART_WIDE_HEADS | TDM_PART_SINKS | TDM_PART_COMPLEX_ROPE |
                             TDM_PART_POSITIONS | TDM_PART_CAST_ROPE)) == 0;
}

uint64_t tdm_liger_most_tokens(const struct tdm_model *config,
                               const struct tdm_torch_settings *settings)
{
    const uint64_t head = config->head_dim, heads = config->query_heads * head;
    const bool rotates =
                   (settings->liger & TDM_LIGER_ROPE) != 0 && tdm_torch_has_liger_rope(config),
               norms = (settings->liger & TDM_LIGER_NORMS) != 0;
    bool head_rows = false; /* a row of a norm is a head */
    for (uint32_t i = 0; i < config->layers && norms && !config->whole_qk_norm; i++)
        head_rows |= config->layer_kinds[i].qk_norm;
    const bool head_tensors = rotates || (norms && config->whole_qk_norm);
    const uint64_t of_hidden = norms ? INT32_MAX / config->hidden + 1 : UINT64_MAX,
                   of_heads = head_tensors ? INT32_MAX / heads + 1 : UINT64_MAX,
                   of_head = head_rows ? (INT32_MAX / head + 1) / config->query_heads : UINT64_MAX;
    uint64_t most = of_hidden < of_heads ? of_hidden : of_heads;
    most = of_head < most ? of_head : most;
    return settings->liger_version >= TDM_LIGER_0_6_0 ? most : UINT64_MAX;
}

static void rotate_heads(struct tdm_eager *m, const struct tdm_torch_model *t, uint32_t number,
                         struct tdm_eager_value *qkv[3])
{
    bool local = t->window_cosine != NULL && t->config->layer_kinds[number].window > 0;
    bool part = (t->config->parts & TDM_PART_CUT_ROPE) != 0,
         halves = (t->config->parts & TDM_PART_SINKS) != 0;
    if (t->config->layer_kinds[number].no_rope || (t->config->parts & TDM_PART_POSITIONS) != 0)
        return;
    tdm_label(m, "self_attn.rotary");
    bool fused = (t->settings.liger & TDM_LIGER_ROPE) != 0 || t->settings.compile != TDM_COMPILE_NO;
    if (tdm_torch_has_liger_rope(t->config) && fused) {
        tdm_liger_rotate(m, &qkv[0], &qkv[1], local ? t->window_cosine : t->cosine,
                         local ? t->window_sine : t->sine);
        return;
    }
    if ((t->config->parts & TDM_PART_FLASH_ROPE) != 0) {
        for (unsigned i = 0; i < 2; i++)
            qkv[i] = rotate_flash(m, qkv[i], t->cosine, t->sine);
        return;
    }
    struct tdm_eager_value *cosine = spread(m, t, local ? t->window_cosine : t->cosine);
    struct tdm_eager_value *sine = spread(m, t, local ? t->window_sine : t->sine);
    bool wide_heads = (t->config->parts & TDM_PART_WIDE_HEADS) != 0,
         casts = (t->config->parts & TDM_PART_CAST_ROPE) != 0;
    struct tdm_eager_value *turned[2], *heads[2];
    for (unsigned i = 0; i < 2; i++)
        heads[i] = wide_heads ? tdm_cast(m, qkv[i], FP32) : tdm_take(qkv[i]);
    for (unsigned i = 0; i < 2; i++)
        turned[i] = casts    ? rotate_cast(m, heads[i], cosine, sine)
                    : part   ? rotate_part(m, t, tdm_take(heads[i]), cosine, sine)
                    : halves ? rotate_halves(m, tdm_take(heads[i]), cosine, sine)
                             : tdm_torch_rotate(m, heads[i], cosine, sine);
    for (unsigned i = 0; i < 2; i++)
        tdm_drop(m, heads[i]);
    for (unsigned i = 0; i < 2; i++) {
        if (wide_heads || (t->config->parts & TDM_PART_WIDE_ROPE) != 0)
            turned[i] = tdm_replace(m, turned[i], tdm_cast(m, turned[i], qkv[i]->element_bytes));
        qkv[i] = tdm_replace(m, qkv[i], turned[i]);
    }
    tdm_drop(m, cosine);
    tdm_drop(m, sine);
}

/* Falcon 40B: q is a copy; K and V are picked, and copied for each query head of their group.
 * Stored by tokens. */
static void spread_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                         struct tdm_eager_value *all, const uint64_t widths[3],
                         struct tdm_eager_value *qkv[3])
{
    struct tdm_eager_value *picked[3];
    for (unsigned i = 0; i < 3; i++) {
        picked[i] = tdm_columns(m, all, widths[i]);
        if (i > 0) { /* by a list of one number: a copy */
            picked[i] = tdm_replace(m, picked[i], tdm_clone(m, picked[i]));
            picked[i] = tdm_replace(m, picked[i], tdm_stretch(m, picked[i], all->rows, widths[0]));
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        qkv[i] = by_heads(m, t, tdm_clone(m, picked[i]), NULL);
        tdm_drop(m, picked[i]);
    }
}

/* One product, of which q, k and v are views. */
static void project_together(struct tdm_eager *m, const struct tdm_torch_model *t,
                             const struct torch_layer *layer, struct tdm_eager_value *x,
                             struct tdm_eager_value *qkv[3])
{
    struct tdm_eager_value *all = tdm_torch_project(m, t, layer, TDM_PROJECTION_QKV, x);
    uint64_t heads[3] = {t->config->query_heads, t->config->kv_heads, t->config->kv_heads};
    const uint64_t widths[3] = {heads[0] * t->config->head_dim, heads[1] * t->config->head_dim,
                                heads[2] * t->config->head_dim};
    if (t->config->early_heads) {
        spread_heads(m, t, all, widths, qkv);
        tdm_drop(m, all);
        return;
    }
    if ((t->config->parts & TDM_PART_POSITIONS) != 0) /* GPT-2 splits it at once */
        tdm_split(m, all, widths, 3, qkv);
    for (unsigned i = 0; i < 3 && qkv[i] == NULL; i++)
        qkv[i] = tdm_columns(m, all, widths[i]);
    for (unsigned i = 0; i < 3; i++)
        qkv[i] = by_heads(m, t, qkv[i], NULL);
    tdm_drop(m, all);
}

/* q and the gate of each head, which are views of one product. The gate becomes a copy, by tokens.
 * Returns q's heads. */
static struct tdm_eager_value *gated_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           const struct torch_layer *layer,
                                           struct tdm_eager_value *x, struct tdm_eager_value **gate)
{
    const uint64_t heads = t->config->query_heads, head_dim = t->config->head_dim;
    struct tdm_eager_value *both = tdm_torch_project(m, t, layer, TDM_PROJECTION_Q, x), *q, *open;
    both = tdm_replace(m, both, tdm_reshape(m, both, x->rows * heads, 2 * head_dim));
    tdm_halves(m, both, &q, &open);
    tdm_drop(m, both);
    struct tdm_eager_value *copy = tdm_clone(m, open);
    tdm_drop(m, open);
    *gate = tdm_reshape(m, copy, x->rows, heads * head_dim);
    tdm_drop(m, copy);
    tdm_label(m, "self_attn.q_norm");
    return by_heads(m, t, q, layer->q_norm);
}

static const char *const qk_norms[] = {"self_attn.q_norm", "self_attn.k_norm"};

/* Norms of q and k, as heads. */
static void norm_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                       const struct torch_layer *layer, struct tdm_eager_value *qkv[3])
{
    struct tdm_eager_value *norms[] = {layer->q_norm, layer->k_norm};
    for (unsigned i = 0; i < 2; i++) {
        tdm_label(m, qk_norms[i]);
        qkv[i] = tdm_replace(m, qkv[i], tdm_torch_norm(m, t, qkv[i], norms[i]));
    }
}

/* q, k and v, split into heads. If norms cover all heads, all three are projected before they are
 * split; if norms are late, before they are normed. */
static void project_qkv(struct tdm_eager *m, const struct tdm_torch_model *t,
                        const struct torch_layer *layer, struct tdm_eager_value *x,
                        struct tdm_eager_value *qkv[3], struct tdm_eager_value **gate)
{
    struct tdm_eager_value *norms[3] = {layer->q_norm, layer->k_norm, NULL};
    bool whole = t->config->whole_qk_norm, late = (t->config->parts & TDM_PART_LATE_QK_NORM) != 0,
         later = late || (t->config->parts & TDM_PART_TURNED_NORM) != 0;
    const bool gated = (t->config->parts & TDM_PART_GATED_ATTENTION) != 0;
    if (gated)
        qkv[0] = gated_heads(m, t, layer, x, gate);
    const bool together = !gated && tdm_lora_kernels_take(t, layer, TDM_PROJECTION_Q);
    if (together)
        tdm_lora_kernels_heads(m, t, layer, x, qkv);
    for (unsigned i = gated ? 1 : 0; i < 3; i++) {
        if (!together)
            qkv[i] = tdm_torch_project(m, t, layer, (enum tdm_projection)(TDM_PROJECTION_Q + i), x);
        if (i == 0 && t->config->scaled_heads)
            qkv[i] = tdm_replace(m, qkv[i], tdm_mul_number(m, qkv[i]));
        if (norms[i] != NULL && !later)
            tdm_label(m, qk_norms[i]);
        if (!whole)
            qkv[i] = by_heads(m, t, qkv[i], later ? NULL : norms[i]);
        else if (norms[i] != NULL)
            qkv[i] = tdm_replace(m, qkv[i], tdm_torch_norm(m, t, qkv[i], norms[i]));
    }
    for (unsigned i = 0; i < 3 && whole; i++)
        qkv[i] = by_heads(m, t, qkv[i], NULL);
    if (late)
        norm_heads(m, t, layer, qkv);
}

struct tdm_eager_value *tdm_torch_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        uint32_t number, struct tdm_eager_value *x,
                                        struct tdm_eager_value *qkv[3])
{
    struct tdm_eager_value *gate = NULL;
    const struct torch_layer *layer = &t->layers[number];
    const bool complex = (t->config->parts & TDM_PART_COMPLEX_ROPE) != 0;
    for (unsigned i = 0; i < 3; i++)
        qkv[i] = NULL;
    if (tdm_torch_is_litgpt(&t->settings)) {
        tdm_litgpt_heads(m, t, layer, x, qkv);
        return NULL;
    }
    if (layer->weight[TDM_PROJECTION_QKV] != NULL)
        project_together(m, t, layer, x, qkv);
    else
        project_qkv(m, t, layer, x, qkv, &gate);
    if ((t->config->parts & TDM_PART_FALCON_H1) != 0)
        qkv[1] = tdm_replace(m, qkv[1], tdm_mul_number(m, qkv[1]));
    if (complex)
        rotate_complex(m, t, number, qkv);
    else
        rotate_heads(m, t, number, qkv);
    if ((t->config->parts & TDM_PART_PLACE_SCALE) != 0)
        qkv[0] = scaled_by_place(m, t, qkv[0]);
    if ((t->config->parts & TDM_PART_TURNED_NORM) != 0)
        norm_heads(m, t, layer, qkv);
    return gate;
}
