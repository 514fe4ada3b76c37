/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latent attention of Megatron-Core: q, and k and v, are made from few dimensions, each normed
 * inside of the product that follows. Of k, one head of rotated dimensions serves all heads.
 * Sources: megatron/core/transformer/multi_latent_attention.py,
 * fusions/fused_mla_yarn_rope_apply.py, models/gpt/gpt_layer_specs.py.
 */
#include "methods/megatron/parts.h"

/* ---- the latent of k and v beside its rotated head ---- */

static void split_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    (void)grads;
    results[0] = tdm_value_new(m, edge->rows, edge->columns, BF16);
}

static void split(struct tdm_megatron *t, struct tdm_eager_value *x, uint64_t first,
                  struct tdm_eager_value *parts[2])
{
    static const struct tdm_eager_op op = {"SplitWithSizesBackward0", false, split_backward};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    for (uint32_t i = 0; i < 2; i++) {
        parts[i] = tdm_value_view(t->m, x);
        parts[i]->columns = i == 0 ? first : x->columns - first;
        tdm_node_output(t->m, node, i, parts[i]);
    }
    tdm_node_done(t->m, node);
}

/* ---- rotation ---- */

static void in_place(struct tdm_eager *m, struct tdm_node *node,
                     struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)node;
    results[0] = tdm_value_view(m, grads[0]);
}

static struct tdm_eager_value *rotate_q(struct tdm_megatron *t, struct tdm_eager_value *q)
{
    static const struct tdm_eager_op op = {"ApplyMLARotaryEmbQBackward", false, in_place};
    struct tdm_node *node = tdm_node_new(t->m, &op, &q, 1);
    return megatron_finish(t, node, tdm_value_view(t->m, q));
}

static void rotate_kv_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    (void)grads;
    for (uint32_t i = 0; i < 2; i++)
        results[i] = tdm_value_new(m, node->edges[i].rows, node->edges[i].columns, BF16);
}

static void rotate_kv(struct tdm_megatron *t, struct tdm_eager_value *kv,
                      struct tdm_eager_value *rotated, struct tdm_eager_value *made[2])
{
    static const struct tdm_eager_op op = {"ApplyMLARotaryEmbKVBackward", false,
                                           rotate_kv_backward};
    const struct tdm_latent *l = &t->config->latent;
    struct tdm_eager_value *inputs[] = {kv, rotated};
    struct tdm_node *node = tdm_node_new(t->m, &op, inputs, 2);
    for (uint32_t i = 0; i < 2; i++) {
        made[i] = tdm_value_new(t->m, kv->rows,
                                t->heads * (i == 0 ? t->config->head_dim : l->value_dim), BF16);
        tdm_node_output(t->m, node, i, made[i]);
    }
    tdm_node_done(t->m, node);
}

/* ---- attention ---- */

struct tdm_eager_value *megatron_latent_attention(struct tdm_megatron *t,
                                                  const struct megatron_layer *layer,
                                                  struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    struct megatron_kept kept = {.count = 0}; /* names that live until the function returns */
    struct tdm_eager_value *parts[2], *qkv[3];
    tdm_label(m, "input_layernorm");
    struct tdm_eager_value *normed =
        megatron_keep(m, &kept, megatron_norm(t, x, layer->qkv_norm, layer->qkv_norm_bias));
    tdm_label(m, "self_attention.linear_kv_down_proj");
    struct tdm_eager_value *q_latent =
        layer->q_latent != NULL
            ? megatron_keep(m, &kept, megatron_linear(t, normed, layer->q_latent, false))
            : NULL;
    struct tdm_eager_value *latent =
        megatron_keep(m, &kept, megatron_linear(t, normed, layer->kv_latent, false));
    split(t, latent, t->config->latent.kv_rank, parts);
    megatron_keep(m, &kept, parts[0]);
    megatron_keep(m, &kept, parts[1]);
    if (t->sequence_parallel)
        parts[1] = megatron_keep(m, &kept, megatron_gathered(t, parts[1]));
    tdm_label(m, "self_attention.linear_q_up_proj");
    struct tdm_eager_value *q = q_latent != NULL
                                    ? megatron_norm_linear(t, q_latent, layer->q_norm, NULL,
                                                           layer->q_from_latent, NULL, NULL)
                                    : megatron_linear(t, normed, layer->qkv, true);
    megatron_keep(m, &kept, q);
    tdm_label(m, "self_attention.linear_kv_up_proj");
    struct tdm_eager_value *kv =
        megatron_norm_linear(t, parts[0], layer->k_norm, NULL, layer->kv_from_latent, NULL, NULL);
    tdm_label(m, "self_attention.rotary");
    qkv[0] = megatron_keep(m, &kept, rotate_q(t, q));
    rotate_kv(t, kv, parts[1], &qkv[1]);
    tdm_drop(m, kv);
    tdm_label(m, "self_attention.core_attention");
    struct tdm_eager_value *heads = megatron_recomputes(t, TDM_RECOMPUTED_CORE_ATTN)
                                        ? megatron_checkpoint(t, REGION_CORE, 0, 0, 0, qkv, 3)
                                        : megatron_core(t, qkv[0], qkv[1], qkv[2]);
    if (megatron_recomputes(t, TDM_RECOMPUTED_MLA_UP_PROJ))
        heads = tdm_discard(m, heads, qkv, 3);
    tdm_label(m, "self_attention.linear_proj");
    struct tdm_eager_value *y = megatron_row_linear(t, heads, layer->projection, NULL);
    if (megatron_recomputes(t, TDM_RECOMPUTED_LAYERNORM))
        y = tdm_discard(m, y, &normed, 1);
    tdm_drop(m, heads);
    tdm_drop(m, qkv[1]);
    tdm_drop(m, qkv[2]);
    megatron_drop_all(m, &kept);
    return y;
}
