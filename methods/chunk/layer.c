/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of a chunk as OOMB and SeCO run it (chunkoptim/modifiers/train_blockwise_tp.py,
 * train.py). Attention and MLP are their own; the rest is that of transformers. Values lie by
 * token, then head. Every layer computes cosines and sines anew.
 */
#include "methods/chunk/parts.h"
#include "methods/eager/ops.h"

/* Cosines and sines of the chunk's positions. SeCO computes them for all positions so far and keeps
 * the last ones. */
static void rotary(struct tdm_chunk_run *run, struct tdm_eager_value *turns[2])
{
    struct tdm_eager *m = run->m;
    const struct tdm_method_settings *s = run->settings;
    uint64_t own = tdm_chunk_tokens(run, run->number) / s->torch.batch;
    bool all = s->chunk.page_tokens == 0;
    uint64_t tokens = all ? run->number * s->chunk.tokens + own : own;
    uint64_t head_dim = run->config->head_dim;
    struct tdm_eager_value *positions = tdm_value_new(m, tokens, 1, INT64);
    struct tdm_eager_value *wide = tdm_value_new(m, tokens, 1, FP32);
    struct tdm_eager_value *angles = tdm_value_new(m, tokens, head_dim / 2, FP32);
    tdm_cublas(m);
    struct tdm_eager_value *both = tdm_value_new(m, tokens, head_dim, FP32), *made[2];
    for (unsigned i = 0; i < 2; i++)
        made[i] = tdm_value_new(m, tokens, head_dim, FP32);
    for (unsigned i = 0; i < 2; i++)
        turns[i] = tdm_cast(m, made[i], BF16);
    for (unsigned i = 0; i < 2; i++)
        tdm_drop(m, made[i]);
    tdm_drop(m, both);
    tdm_drop(m, angles);
    tdm_drop(m, wide);
    for (unsigned i = 0; all && i < 2; i++) {
        struct tdm_eager_value *taken = tdm_value_new(m, own, head_dim, BF16);
        tdm_drop(m, turns[i]);
        turns[i] = taken;
    }
    tdm_drop(m, positions);
}

/* A projection, split into heads, and normed if the model norms it. */
static struct tdm_eager_value *by_heads(struct tdm_chunk_run *run, const struct torch_layer *layer,
                                        enum tdm_projection p, struct tdm_eager_value *norm,
                                        struct tdm_eager_value *x)
{
    struct tdm_eager *m = run->m;
    struct tdm_eager_value *flat = tdm_torch_project(m, run->model, layer, p, x);
    uint64_t head_dim = run->config->head_dim;
    struct tdm_eager_value *heads =
        tdm_reshape(m, flat, flat->rows * (flat->columns / head_dim), head_dim);
    tdm_drop(m, flat);
    if (norm == NULL)
        return heads;
    struct tdm_eager_value *normed = tdm_torch_norm(m, run->model, heads, norm);
    tdm_drop(m, heads);
    return normed;
}

static struct tdm_eager_value *rotated(struct tdm_chunk_run *run, struct tdm_eager_value *x,
                                       struct tdm_eager_value *const turns[2])
{
    return tdm_torch_rotate(run->m, x, turns[0], turns[1]);
}

static struct tdm_eager_value *attend(struct tdm_chunk_run *run, uint32_t number,
                                      struct tdm_eager_value *x)
{
    const struct torch_layer *layer = &run->model->layers[number];
    struct tdm_eager *m = run->m;
    bool pages = run->settings->chunk.page_tokens > 0;
    struct tdm_eager_value *turns[2], *plain[2], *v;
    if (pages)
        tdm_chunk_visit(run, number, false);
    plain[0] = by_heads(run, layer, TDM_PROJECTION_Q, layer->q_norm, x);
    plain[1] = by_heads(run, layer, TDM_PROJECTION_K, layer->k_norm, x);
    v = by_heads(run, layer, TDM_PROJECTION_V, NULL, x);
    tdm_label(m, "self_attn.rotary");
    rotary(run, turns);
    struct tdm_eager_value *q = rotated(run, plain[0], turns), *k = rotated(run, plain[1], turns);
    tdm_drop(m, plain[0]);
    tdm_drop(m, plain[1]);
    if (pages && run->sweep) {
        tdm_chunk_choose(run, number, q);
        tdm_chunk_add(run, number, k, v);
    }
    tdm_label(m, "self_attn.attention");
    struct tdm_eager_value *heads = pages ? tdm_chunk_paged_attention(run, number, q, k, v)
                                          : tdm_chunk_joined_attention(run, number, q, k, v);
    struct tdm_eager_value *merged =
        tdm_reshape(m, heads, x->rows, layer->weight[TDM_PROJECTION_O]->columns);
    tdm_drop(m, heads);
    struct tdm_eager_value *y = tdm_torch_project(m, run->model, layer, TDM_PROJECTION_O, merged);
    tdm_drop(m, merged);
    tdm_drop(m, q);
    tdm_drop(m, k);
    tdm_drop(m, v);
    tdm_drop(m, turns[0]);
    tdm_drop(m, turns[1]);
    return y;
}

/* Python's names hold gate, up and the product until the function returns. */
static struct tdm_eager_value *mlp(struct tdm_chunk_run *run, const struct torch_layer *layer,
                                   struct tdm_eager_value *x)
{
    struct tdm_eager *m = run->m;
    const struct tdm_torch_model *t = run->model;
    struct tdm_eager_value *gate = tdm_torch_project(m, t, layer, TDM_PROJECTION_GATE, x);
    struct tdm_eager_value *up = tdm_torch_project(m, t, layer, TDM_PROJECTION_UP, x);
    tdm_label(m, "mlp.act_fn");
    struct tdm_eager_value *active = tdm_activate(m, run->config->activation, gate);
    struct tdm_eager_value *product = tdm_mul(m, active, up);
    tdm_drop(m, active);
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_DOWN, product);
    tdm_drop(m, product);
    tdm_drop(m, up);
    tdm_drop(m, gate);
    return y;
}

struct tdm_eager_value *tdm_chunk_layer(struct tdm_eager *m, const void *model, uint32_t number,
                                        struct tdm_eager_value *x)
{
    /* The run is not const: a layer changes pages and places, as OOMB's and SeCO's layers change
     * the cache object that they are called with. */
    struct tdm_chunk_run *run = (struct tdm_chunk_run *)(uintptr_t)model;
    const struct torch_layer *layer = &run->model->layers[number];
    struct tdm_label label = m->label;
    m->label.layer = number;
    tdm_label(m, "input_layernorm");
    struct tdm_eager_value *normed = tdm_torch_norm(m, run->model, x, layer->attention_norm);
    struct tdm_eager_value *attended = attend(run, number, normed);
    tdm_drop(m, normed);
    tdm_label(m, "residual");
    struct tdm_eager_value *middle = tdm_add(m, x, attended);
    tdm_drop(m, attended);
    tdm_label(m, "post_attention_layernorm");
    normed = tdm_torch_norm(m, run->model, middle, layer->mlp_norm);
    struct tdm_eager_value *made = mlp(run, layer, normed);
    tdm_drop(m, normed);
    tdm_label(m, "residual");
    struct tdm_eager_value *y = tdm_add(m, middle, made);
    tdm_drop(m, made);
    tdm_drop(m, middle);
    m->label = label;
    return y;
}
