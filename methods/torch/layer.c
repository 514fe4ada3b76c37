/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder layer as the Python code runs it: a value is dropped where Python rebinds its name, or
 * where the name goes out of scope. */
#include "base/size.h"
#include "methods/context/fpdt.h"
#include "methods/eager/liger.h"
#include "methods/eager/ops.h"
#include "methods/eager/quantized.h"
#include "methods/eager/tiles.h"
#include "methods/torch/parts.h"

#include <stddef.h>
#include <string.h>

/* x over the root of the mean of its squares, in the dtype of x. */
static struct tdm_eager_value *over_root(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *scale = tdm_square(m, x);
    scale = tdm_replace(m, scale, tdm_row_mean(m, scale));
    scale = tdm_replace(m, scale, tdm_add_number(m, scale));
    scale = tdm_replace(m, scale, tdm_rsqrt(m, scale));
    struct tdm_eager_value *normed = tdm_mul(m, x, scale);
    tdm_drop(m, scale);
    return normed;
}

struct tdm_eager_value *tdm_torch_normed(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *wide = tdm_cast(m, x, FP32);
    struct tdm_eager_value *normed = over_root(m, wide);
    tdm_drop(m, wide);
    return normed;
}

/* Gemma's norm: it multiplies by 1 + weight in fp32. */
static struct tdm_eager_value *offset_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                           struct tdm_eager_value *weight)
{
    struct tdm_eager_value *normed = tdm_torch_normed(m, x);
    struct tdm_eager_value *factor = tdm_cast(m, weight, FP32);
    factor = tdm_replace(m, factor, tdm_add_number(m, factor));
    normed = tdm_replace(m, normed, tdm_mul(m, normed, factor));
    tdm_drop(m, factor);
    struct tdm_eager_value *y = tdm_cast(m, normed, x->element_bytes);
    tdm_drop(m, normed);
    return y;
}

/* Cohere's LayerNorm, in fp32. */
static struct tdm_eager_value *mean_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                         struct tdm_eager_value *weight)
{
    struct tdm_eager_value *wide = tdm_cast(m, x, FP32);
    struct tdm_eager_value *mean = tdm_row_mean(m, wide);
    struct tdm_eager_value *scale = tdm_sub(m, wide, mean);
    scale = tdm_replace(m, scale, tdm_square(m, scale));
    struct tdm_eager_value *variance = tdm_row_mean(m, scale);
    tdm_drop(m, scale);
    struct tdm_eager_value *centred = tdm_sub(m, wide, mean);
    scale = tdm_add_number(m, variance);
    scale = tdm_replace(m, scale, tdm_rsqrt(m, scale));
    wide = tdm_replace(m, wide, tdm_mul(m, centred, scale));
    tdm_drop(m, centred);
    tdm_drop(m, scale);
    struct tdm_eager_value *factor = tdm_cast(m, weight, FP32);
    wide = tdm_replace(m, wide, tdm_mul(m, factor, wide));
    tdm_drop(m, factor);
    struct tdm_eager_value *y = tdm_cast(m, wide, x->element_bytes);
    tdm_drop(m, wide);
    tdm_drop(m, variance);
    tdm_drop(m, mean);
    return y;
}

/* LitGPT's RMSNorm: Gemma's too multiplies by 1 + weight in the dtype of x. To 2023 nothing of it
 * was in fp32 (lit_gpt/rmsnorm.py, litgpt/model.py). */
static struct tdm_eager_value *litgpt_norm(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x,
                                           struct tdm_eager_value *weight)
{
    struct tdm_eager_value *wide =
        t->settings.code == TDM_CODE_LIT_GPT ? tdm_take(x) : tdm_cast(m, x, FP32);
    struct tdm_eager_value *normed = over_root(m, wide);
    normed = tdm_replace(m, normed, tdm_cast(m, normed, x->element_bytes));
    struct tdm_eager_value *factor =
        t->config->offset_norms ? tdm_add_number(m, weight) : tdm_take(weight);
    struct tdm_eager_value *y = tdm_mul(m, normed, factor);
    tdm_drop(m, factor);
    tdm_drop(m, normed);
    tdm_drop(m, wide);
    return y;
}

static struct tdm_eager_value *plain_norm(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          struct tdm_eager_value *x, struct tdm_eager_value *weight)
{
    /* Liger's norms of Gemma 2 and 3 and of OLMo 2 leave the incoming gradient as it is, since the
     * residual has it too (transformers/monkey_patch.py, in_place=False). */
    bool compiled = t->settings.compile != TDM_COMPILE_NO && weight != t->final_norm;
    if ((t->settings.liger & TDM_LIGER_NORMS) != 0 || compiled)
        return tdm_liger_norm(m, x, weight,
                              t->layers[0].post_attention_norm != NULL || compiled ||
                                  t->settings.context.chunk_tokens > 0);
    if (tdm_torch_is_litgpt(&t->settings))
        return litgpt_norm(m, t, x, weight);
    if (t->config->offset_norms)
        return offset_norm(m, x, weight);
    if ((t->config->parts & TDM_PART_MEAN_NORMS) != 0)
        return mean_norm(m, x, weight);
    struct tdm_eager_value *wide = tdm_cast(m, x, FP32);
    struct tdm_eager_value *square = tdm_square(m, wide);
    struct tdm_eager_value *variance = tdm_row_mean(m, square);
    tdm_drop(m, square);
    struct tdm_eager_value *sum = tdm_add_number(m, variance);
    struct tdm_eager_value *scale = tdm_rsqrt(m, sum);
    tdm_drop(m, sum);
    struct tdm_eager_value *normed = tdm_mul(m, wide, scale);
    tdm_drop(m, scale);
    tdm_drop(m, wide);
    struct tdm_eager_value *y;
    if ((t->config->parts & TDM_PART_WIDE_NORMS) != 0) {
        struct tdm_eager_value *scaled = tdm_mul(m, weight, normed);
        y = tdm_cast(m, scaled, x->element_bytes);
        tdm_drop(m, scaled);
    } else {
        struct tdm_eager_value *narrow = tdm_cast(m, normed, x->element_bytes);
        y = tdm_mul(m, weight, narrow);
        tdm_drop(m, narrow);
    }
    tdm_drop(m, normed);
    tdm_drop(m, variance);
    return y;
}

struct tdm_eager_value *tdm_torch_norm(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       struct tdm_eager_value *x, struct tdm_eager_value *weight)
{
    struct tdm_eager_value *input = tdm_module_enter(t, weight->module, x);
    struct tdm_eager_value *y = plain_norm(m, t, input, weight);
    tdm_drop(m, input);
    return tdm_module_leave(t, weight->module, y);
}

/* OLMo 1: no weight, so no module's parameters. */
static struct tdm_eager_value *bare_norm(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *wide = tdm_cast(m, x, FP32);
    struct tdm_eager_value *normed = tdm_layer_norm(m, wide, NULL, NULL);
    tdm_drop(m, wide);
    return tdm_replace(m, normed, tdm_cast(m, normed, x->element_bytes));
}

/* Nemotron, whose norm is in the dtype of autocast, not in fp32 (modeling_nemotron.py
 * NemotronLayerNorm1P). */
static struct tdm_eager_value *offset_layer_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                                 struct tdm_eager_value *weight,
                                                 struct tdm_eager_value *bias)
{
    const bool autocast = m->autocast;
    struct tdm_eager_value *factor = tdm_add_number(m, weight), *given[] = {x, factor, bias};
    for (unsigned i = 0; i < 3; i++)
        given[i] = autocast ? tdm_cast(m, given[i], BF16) : tdm_take(given[i]);
    tdm_drop(m, factor);
    m->autocast = false;
    struct tdm_eager_value *y = tdm_layer_norm(m, given[0], given[1], given[2]);
    m->autocast = autocast;
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, given[i]);
    return y;
}

struct tdm_eager_value *tdm_torch_norm_with(struct tdm_eager *m, const struct tdm_torch_model *t,
                                            struct tdm_eager_value *x,
                                            struct tdm_eager_value *weight,
                                            struct tdm_eager_value *bias)
{
    if (t->config->bare_norms)
        return bare_norm(m, x);
    if (bias == NULL && !t->config->unbiased_norms)
        return tdm_torch_norm(m, t, x, weight);
    struct tdm_eager_value *input = tdm_module_enter(t, weight->module, x);
    struct tdm_eager_value *y = t->config->offset_norms ? offset_layer_norm(m, input, weight, bias)
                                                        : tdm_layer_norm(m, input, weight, bias);
    tdm_drop(m, input);
    return tdm_module_leave(t, weight->module, y);
}

/* nn.Linear. */
struct tdm_eager_value *tdm_torch_linear(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         struct tdm_eager_value *x, struct tdm_eager_value *weight,
                                         struct tdm_eager_value *bias, uint32_t module)
{
    struct tdm_eager_value *input = tdm_module_enter(t, module, x);
    struct tdm_eager_value *factor = module == TDM_MODULE_HEAD && t->config->normed_head &&
                                             t->settings.logits != TDM_LOGITS_SCORE
                                         ? tdm_torch_normed_head(m, weight)
                                         : tdm_take(weight);
    struct tdm_eager_value *y = tdm_linear(m, input, factor, bias, false);
    tdm_drop(m, factor);
    tdm_drop(m, input);
    return tdm_module_leave(t, module, y);
}

struct tdm_eager_value *tdm_torch_dropout(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          struct tdm_eager_value *x)
{
    return t->config->dropout > 0 ? tdm_replace(m, x, tdm_dropout(m, x)) : x;
}

/* tanh(x / cap) * cap. Takes ownership of x. */
struct tdm_eager_value *tdm_torch_softcap(struct tdm_eager *m, struct tdm_eager_value *x)
{
    x = tdm_replace(m, x, tdm_mul_number(m, x));
    x = tdm_replace(m, x, tdm_tanh(m, x));
    return tdm_replace(m, x, tdm_mul_number(m, x));
}

struct tdm_eager_value *tdm_torch_scale_logits(struct tdm_eager *m, const struct tdm_torch_model *t,
                                               struct tdm_eager_value *logits)
{
    if ((t->config->parts & (TDM_PART_MULTIPLIERS | TDM_PART_LOGIT_SCALE | TDM_PART_FALCON_H1)) !=
        0)
        logits = tdm_replace(m, logits, tdm_mul_number(m, logits));
    return t->config->logits_softcap > 0 ? tdm_torch_softcap(m, logits) : logits;
}

/* What a compiled layer with checkpoints by operation computes again from what it kept: results of
 * norms and the product of gate and up, which cost little. Without such checkpoints inductor keeps
 * what a product of the backward reads (torch/_functorch/partitioners.py,
 * ban_recompute_materialized_backward), as measured. */
static struct tdm_eager_value *fused(struct tdm_eager *m, const struct tdm_torch_model *t,
                                     struct tdm_eager_value *y, struct tdm_eager_value *value)
{
    bool again = t->settings.compile != TDM_COMPILE_NO &&
                 t->settings.checkpointing == TDM_CHECKPOINTING_SELECTIVE;
    return again ? tdm_discard(m, y, &value, 1) : y;
}

/* FPDT: modules of q, k and v run as one. */
static struct tdm_eager_value *attend_by_chunks(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                const struct torch_layer *layer,
                                                struct tdm_eager_value *x)
{
    struct tdm_fpdt_attention attention = {.context = &t->settings.context,
                                           .batch = t->settings.batch,
                                           .query_heads = t->config->query_heads,
                                           .kv_heads = t->config->kv_heads,
                                           .tokens = t->settings.tokens,
                                           .head_dim = t->config->head_dim,
                                           .cosine = t->cosine,
                                           .sine = t->sine};
    struct tdm_eager_value *input = tdm_take(x);
    for (unsigned i = 0; i < 3; i++) {
        attention.weight[i] = layer->weight[TDM_PROJECTION_Q + i];
        attention.bias[i] = layer->bias[TDM_PROJECTION_Q + i];
        input = tdm_replace(m, input, tdm_module_enter(t, attention.weight[i]->module, input));
    }
    tdm_label(m, "self_attn.attention");
    struct tdm_eager_value *heads = tdm_fpdt_attention(m, &attention, input);
    tdm_drop(m, input);
    for (unsigned i = 3; i-- > 0;)
        heads = tdm_module_leave(t, attention.weight[i]->module, heads);
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_O, heads);
    tdm_drop(m, heads);
    return y;
}

static struct tdm_eager_value *attend(struct tdm_eager *m, const struct tdm_torch_model *t,
                                      uint32_t number, struct tdm_eager_value *x,
                                      struct tdm_eager_value **kept)
{
    const struct torch_layer *layer = &t->layers[number];
    const bool latent = t->config->latent.kv_rank > 0;
    struct tdm_eager_value *qkv[3], *held[ATTENTION_HELD] = {0}, *gate = NULL;
    if (t->settings.context.chunk_tokens > 0)
        return attend_by_chunks(m, t, layer, x);
    tdm_drop(m, tdm_module_enter(t, tdm_layer_module(number, TDM_MODULE_ATTENTION), NULL));
    if (latent)
        tdm_torch_latent_heads(m, t, number, x, qkv, held);
    else if (t->config->own_scores == TDM_SCORES_GPTJ)
        tdm_torch_gptj_heads(m, t, number, x, qkv, held);
    else
        gate = tdm_torch_heads(m, t, number, x, qkv);
    struct tdm_eager_value *turned_q = qkv[0], *turned_k = qkv[1], *v = qkv[2];
    tdm_label(m, "self_attn.cache");
    if (!latent)
        tdm_torch_cache_update(t, number, &turned_k, &v);
    struct tdm_eager_value *mask =
        t->config->layer_kinds[number].window > 0 ? t->window_mask : t->mask;
    tdm_label(m, "self_attn.attention");
    struct tdm_eager_value *const operands[] = {turned_q, turned_k, v};
    struct tdm_eager_value *heads =
        t->config->own_scores != TDM_SCORES_COMMON
            ? tdm_torch_own_attention(m, t, operands, mask, kept)
            : tdm_torch_attention(m, t, layer, turned_q, turned_k, v, mask, kept);
    struct tdm_eager_value *merged =
        tdm_reshape(m, heads, x->rows, tdm_value_elements(heads) / x->rows);
    tdm_drop(m, heads);
    if (gate != NULL) {
        struct tdm_eager_value *open = tdm_sigmoid(m, gate);
        merged = tdm_replace(m, merged, tdm_mul(m, merged, open));
        tdm_drop(m, open);
    }
    if (layer->attention_norm != NULL)
        merged = fused(m, t, merged, x);
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_O, merged);
    tdm_drop(m, merged);
    y = tdm_torch_dropout(m, t, y);
    tdm_drop(m, gate);
    tdm_drop(m, turned_q);
    tdm_drop(m, turned_k);
    tdm_drop(m, v);
    for (unsigned i = 0; i < ATTENTION_HELD; i++)
        tdm_drop(m, held[i]);
    return tdm_module_leave(t, tdm_layer_module(number, TDM_MODULE_ATTENTION), y);
}

/* GELU by tanh is one kernel in LitGPT, of single operations in transformers' gelu_new and
 * gelu_fast (litgpt/model.py GptNeoxMLP: torch.nn.functional.gelu). */
static struct tdm_eager_value *activate(const struct tdm_torch_model *t, struct tdm_eager_value *x)
{
    enum tdm_activation kind = t->config->activation;
    if (tdm_torch_is_litgpt(&t->settings) &&
        (kind == TDM_ACTIVATION_GELU_NEW || kind == TDM_ACTIVATION_GELU_FAST))
        kind = TDM_ACTIVATION_GELU_TANH;
    return kind == TDM_ACTIVATION_BLOOM ? tdm_torch_bloom_gelu(t->m, x)
                                        : tdm_activate(t->m, kind, x);
}

/* One product for gate and up, which are views of it. It stays until the function returns. */
static struct tdm_eager_value *joint_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         const struct torch_layer *layer, struct tdm_eager_value *x)
{
    struct tdm_eager_value *gate, *up;
    struct tdm_eager_value *both = tdm_torch_project(m, t, layer, TDM_PROJECTION_GATE_UP, x);
    tdm_halves(m, both, &gate, &up);
    tdm_drop(m, both);
    tdm_label(m, "mlp.activation_fn");
    struct tdm_eager_value *active = activate(t, gate);
    tdm_label(m, "mlp.activation_fn * up_states");
    struct tdm_eager_value *product = tdm_mul(m, up, active);
    tdm_drop(m, active);
    tdm_drop(m, up);
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_DOWN, product);
    tdm_drop(m, product);
    tdm_drop(m, gate);
    return y;
}

static bool fuses_mlp(const struct tdm_torch_model *t)
{
    return (t->settings.liger & TDM_LIGER_MLP) != 0 || t->settings.compile != TDM_COMPILE_NO;
}

/* Liger's MLP: gate and up are arguments alone, so its function has them to itself. */
static struct tdm_eager_value *liger_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         const struct torch_layer *layer, struct tdm_eager_value *x)
{
    struct tdm_eager_value *gate = tdm_torch_project(m, t, layer, TDM_PROJECTION_GATE, x);
    struct tdm_eager_value *up = tdm_torch_project(m, t, layer, TDM_PROJECTION_UP, x);
    tdm_label(m, "mlp.act_fn * up_proj");
    struct tdm_eager_value *product = tdm_liger_gated(m, gate, up);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    if (layer->mlp_norm != NULL)
        product = fused(m, t, product, x);
    /* A compiled layer passes this on, where torch's own selective checkpoints keep it. */
    m->passing = t->settings.compile != TDM_COMPILE_NO;
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_DOWN, product);
    m->passing = false;
    y = fused(m, t, y, product);
    tdm_drop(m, product);
    return y;
}

/* Up, activation and down. */
static struct tdm_eager_value *plain_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         const struct torch_layer *layer, struct tdm_eager_value *x)
{
    struct tdm_eager_value *up = tdm_torch_project(m, t, layer, TDM_PROJECTION_UP, x);
    tdm_label(m, "mlp.act_fn");
    up = tdm_replace(m, up,
                     layer->xielu[0] != NULL ? tdm_xielu(m, up, layer->xielu) : activate(t, up));
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_DOWN, up);
    tdm_drop(m, up);
    return tdm_torch_dropout(m, t, y);
}

/* Falcon-H1: up first, the gate and the result times numbers. */
static struct tdm_eager_value *multiplied_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              const struct torch_layer *layer,
                                              struct tdm_eager_value *x)
{
    struct tdm_eager_value *up = tdm_torch_project(m, t, layer, TDM_PROJECTION_UP, x);
    struct tdm_eager_value *gate = tdm_torch_project(m, t, layer, TDM_PROJECTION_GATE, x);
    tdm_label(m, "mlp.act_fn * up_proj");
    gate = tdm_replace(m, gate, tdm_mul_number(m, gate));
    gate = tdm_replace(m, gate, activate(t, gate));
    struct tdm_eager_value *product = tdm_mul(m, up, gate);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_DOWN, product);
    y = tdm_replace(m, y, tdm_mul_number(m, y));
    tdm_drop(m, product);
    return y;
}

struct tdm_eager_value *tdm_torch_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                      const struct torch_layer *layer, struct tdm_eager_value *x)
{
    if (layer->weight[TDM_PROJECTION_GATE_UP] != NULL)
        return joint_mlp(m, t, layer, x);
    if (layer->weight[TDM_PROJECTION_GATE] == NULL)
        return plain_mlp(m, t, layer, x);
    if ((t->config->parts & TDM_PART_FALCON_H1) != 0)
        return multiplied_mlp(m, t, layer, x);
    if (tdm_lora_kernels_take(t, layer, TDM_PROJECTION_GATE))
        return tdm_torch_dropout(m, t, tdm_lora_kernels_mlp(m, t, layer, x));
    if (fuses_mlp(t))
        return tdm_torch_dropout(m, t, liger_mlp(m, t, layer, x));
    const uint32_t number = tdm_module_layer(layer->weight[TDM_PROJECTION_GATE]->module),
                   module = tdm_layer_module(number, TDM_MODULE_ACTIVATION);
    struct tdm_eager_value *gate = tdm_torch_project(m, t, layer, TDM_PROJECTION_GATE, x);
    tdm_label(m, "mlp.act_fn");
    gate = tdm_replace(m, gate, tdm_module_enter(t, module, gate));
    struct tdm_eager_value *active = activate(t, gate);
    active = tdm_module_leave(t, module, active);
    tdm_drop(m, gate);
    struct tdm_eager_value *up = tdm_torch_project(m, t, layer, TDM_PROJECTION_UP, x);
    tdm_label(m, "mlp.act_fn * up_proj");
    struct tdm_eager_value *product = tdm_mul(m, active, up);
    tdm_drop(m, active);
    tdm_drop(m, up);
    struct tdm_eager_value *y = tdm_torch_project(m, t, layer, TDM_PROJECTION_DOWN, product);
    tdm_drop(m, product);
    return tdm_torch_dropout(m, t, y);
}

/* FPDT: modules of the MLP run as one. */
static struct tdm_eager_value *mlp_by_chunks(struct tdm_eager *m, const struct tdm_torch_model *t,
                                             const struct torch_layer *layer,
                                             struct tdm_eager_value *x)
{
    const struct tdm_context *c = &t->settings.context;
    const struct tdm_fpdt_mlp weights = {.parts = tdm_fpdt_chunks(c, t->settings.tokens) *
                                                  TDM_FPDT_MLP_PARTS,
                                         .gate = layer->weight[TDM_PROJECTION_GATE],
                                         .up = layer->weight[TDM_PROJECTION_UP],
                                         .down = layer->weight[TDM_PROJECTION_DOWN],
                                         .up_bias = layer->bias[TDM_PROJECTION_UP],
                                         .down_bias = layer->bias[TDM_PROJECTION_DOWN]};
    struct tdm_eager_value *const modules[] = {weights.gate, weights.up, weights.down};
    struct tdm_eager_value *input = tdm_take(x);
    for (unsigned i = 0; i < 3; i++)
        if (modules[i] != NULL)
            input = tdm_replace(m, input, tdm_module_enter(t, modules[i]->module, input));
    tdm_label(m, "mlp");
    struct tdm_eager_value *y = tdm_fpdt_mlp(m, &weights, input);
    tdm_drop(m, input);
    for (unsigned i = 3; i-- > 0;)
        if (modules[i] != NULL)
            y = tdm_module_leave(t, modules[i]->module, y);
    return y;
}

static struct tdm_eager_value *run_mlp(struct tdm_eager *m, const void *model, uint32_t number,
                                       struct tdm_eager_value *x)
{
    const struct tdm_torch_model *t = model;
    return tdm_torch_mlp(m, t, &t->layers[number], x);
}

/* Number of tiles. TDM_AUTO: as in ALST, a tile has about as many tokens as the hidden size. */
static uint64_t mlp_tiles(const struct tdm_torch_model *t)
{
    uint64_t tiles = t->settings.mlp_tiles;
    if (tiles == TDM_AUTO)
        tiles = tdm_size_ceil_div(t->settings.tokens, t->config->hidden);
    return tiles < TDM_MOST_TILES ? tiles : TDM_MOST_TILES;
}

/* A norm in front of a module; x itself in families without. */
static struct tdm_eager_value *norm_before(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x,
                                           struct tdm_eager_value *weight,
                                           struct tdm_eager_value *bias)
{
    return weight != NULL || t->config->bare_norms ? tdm_torch_norm_with(m, t, x, weight, bias)
                                                   : tdm_take(x);
}

/* residual + made, or + made * residual_multiplier. Takes `made`. */
static struct tdm_eager_value *add_scaled(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          struct tdm_eager_value *residual,
                                          struct tdm_eager_value *made)
{
    struct tdm_eager_value *scaled =
        (t->config->parts & TDM_PART_MULTIPLIERS) != 0 ? tdm_mul_number(m, made) : tdm_take(made);
    struct tdm_eager_value *y = tdm_add(m, residual, scaled);
    tdm_drop(m, scaled);
    tdm_drop(m, made);
    return y;
}

/* Attention and MLP of the same input, which are added to it at once: Phi, Falcon, GPT-NeoX. */
static struct tdm_eager_value *run_parallel_layer(struct tdm_eager *m, const void *model,
                                                  uint32_t number, struct tdm_eager_value *input)
{
    const struct tdm_torch_model *t = model;
    const struct torch_layer *layer = &t->layers[number];
    uint32_t whole = tdm_layer_module(number, TDM_MODULE_LAYER);
    struct tdm_label label = m->label;
    m->label.layer = number;
    tdm_label(m, "input_layernorm");
    struct tdm_eager_value *x = tdm_module_enter(t, whole, input), *kept = NULL;
    struct tdm_eager_value *normed =
        norm_before(m, t, x, layer->attention_norm, layer->attention_norm_bias);
    struct tdm_eager_value *attended = attend(m, t, number, normed, &kept);
    tdm_label(m, "post_attention_layernorm");
    if (layer->mlp_norm != NULL)
        normed =
            tdm_replace(m, normed, norm_before(m, t, x, layer->mlp_norm, layer->mlp_norm_bias));
    struct tdm_eager_value *made = tdm_torch_mlp(m, t, layer, normed);
    tdm_label(m, "hidden_states");
    struct tdm_eager_value *both = tdm_add(m, attended, made);
    struct tdm_eager_value *y = tdm_add(m, both, x);
    tdm_drop(m, both);
    tdm_drop(m, made);
    tdm_drop(m, attended);
    tdm_drop(m, normed);
    tdm_drop(m, kept);
    tdm_drop(m, x);
    y = tdm_module_leave(t, whole, y);
    m->label = label;
    return y;
}

/* What a layer has in place of attention or beside it. Nemotron-H alone gives it the hidden states
 * as a positional argument. */
static struct tdm_eager_value *run_mixer(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         uint32_t number, struct tdm_eager_value *x)
{
    const struct torch_layer *layer = &t->layers[number];
    const uint32_t module = tdm_layer_module(number, TDM_MODULE_MIXER);
    const bool positional = (t->config->parts & TDM_PART_ONE_MIXER) != 0;
    struct tdm_eager_value *given = tdm_module_enter(t, module, positional ? x : NULL),
                           *input = positional ? given : tdm_take(x);
    struct tdm_eager_value *y =
        layer->delta[DELTA_OUT] != NULL        ? tdm_torch_delta(m, t, layer, input)
        : layer->short_conv[SHORT_OUT] != NULL ? tdm_torch_short_conv(m, t, layer, input)
                                               : tdm_torch_mamba(m, t, layer, input);
    tdm_drop(m, input);
    return tdm_module_leave(t, module, y);
}

/* Attention, or what the layer has in its place or beside it. */
static struct tdm_eager_value *mix(struct tdm_eager *m, const struct tdm_torch_model *t,
                                   uint32_t number, struct tdm_eager_value *x,
                                   struct tdm_eager_value **kept)
{
    const struct torch_layer *layer = &t->layers[number];
    if (layer->delta[DELTA_OUT] == NULL && layer->short_conv[SHORT_OUT] == NULL &&
        layer->mamba[MAMBA_OUT] == NULL)
        return attend(m, t, number, x, kept);
    struct tdm_eager_value *scanned = run_mixer(m, t, number, x);
    if ((t->config->parts & TDM_PART_FALCON_H1) == 0)
        return scanned;
    scanned = tdm_replace(m, scanned, tdm_mul_number(m, scanned));
    struct tdm_eager_value *input = tdm_mul_number(m, x);
    struct tdm_eager_value *attended = attend(m, t, number, input, kept);
    tdm_drop(m, input);
    attended = tdm_replace(m, attended, tdm_mul_number(m, attended));
    struct tdm_eager_value *y = tdm_add(m, scanned, attended);
    tdm_drop(m, attended);
    tdm_drop(m, scanned);
    return y;
}

/* Nemotron-H: one norm and one module. */
static struct tdm_eager_value *run_single_layer(struct tdm_eager *m, const void *model,
                                                uint32_t number, struct tdm_eager_value *input)
{
    const struct tdm_torch_model *t = model;
    const struct torch_layer *layer = &t->layers[number];
    const struct tdm_layer_kind *kind = &t->config->layer_kinds[number];
    uint32_t whole = tdm_layer_module(number, TDM_MODULE_LAYER);
    struct tdm_label label = m->label;
    m->label.layer = number;
    tdm_label(m, "norm");
    struct tdm_eager_value *x = tdm_module_enter(t, whole, input), *kept = NULL;
    struct tdm_eager_value *normed = tdm_torch_norm(m, t, x, layer->attention_norm);
    struct tdm_eager_value *made =
        kind->no_mlp ? mix(m, t, number, normed, &kept) : tdm_torch_mlp(m, t, layer, normed);
    tdm_label(m, "hidden_states");
    struct tdm_eager_value *y = tdm_add(m, x, made);
    tdm_drop(m, made);
    tdm_drop(m, normed);
    tdm_drop(m, kept);
    tdm_drop(m, x);
    y = tdm_module_leave(t, whole, y);
    m->label = label;
    return y;
}

/* What a layer is given beside the hidden states. */
static void hold_arguments(const struct tdm_torch_model *t, uint32_t number,
                           struct tdm_function *function)
{
    const bool local = t->window_cosine != NULL && t->config->layer_kinds[number].window > 0;
    struct tdm_eager_value *const held[] = {local ? t->window_cosine : t->cosine,
                                            local ? t->window_sine : t->sine, t->mask,
                                            t->window_mask, t->positions};
    memcpy(function->held, held, sizeof(held));
}

/* The MLP or the experts. */
static struct tdm_eager_value *run_second(struct tdm_eager *m, const void *model, uint32_t number,
                                          struct tdm_eager_value *tokens)
{
    const struct tdm_torch_model *t = model;
    const struct torch_layer *layer = &t->layers[number];
    const struct tdm_function tile = {.run = run_mlp, .model = t, .layer = number};
    struct tdm_eager_value *made =
        layer->router != NULL && t->settings.deepspeed.ep_size > 0
            ? tdm_moe_forward(m, t, number, tokens)
        : layer->local_experts[TITAN_GATE] != NULL ? tdm_titan_experts(m, t, number, tokens)
        : t->config->experts.all_rows && layer->router != NULL
            ? tdm_torch_all_experts(m, t, layer, tokens)
        : layer->router != NULL                ? tdm_torch_experts(m, t, layer, tokens)
        : t->settings.context.chunk_tokens > 0 ? mlp_by_chunks(m, t, layer, tokens)
        : mlp_tiles(t) > 0                     ? tdm_tiled(m, &tile, tokens, mlp_tiles(t))
                                               : tdm_torch_mlp(m, t, layer, tokens);
    if (layer->router != NULL && t->config->experts.beside) {
        struct tdm_eager_value *shared = tdm_torch_mlp(m, t, layer, tokens);
        made = tdm_replace(m, made, tdm_add(m, made, shared));
        tdm_drop(m, shared);
    }
    /* By transformers' plan experts' results are summed in place. */
    return layer->router != NULL && !tdm_tensor_is_planned(&t->settings)
               ? tdm_tensor_scatter(t, made)
               : made;
}

static struct tdm_eager_value *run_first(struct tdm_eager *m, const void *model, uint32_t number,
                                         struct tdm_eager_value *tokens)
{
    struct tdm_eager_value *kept = NULL, *y = mix(m, model, number, tokens, &kept);
    tdm_drop(m, kept);
    return y;
}

static struct tdm_eager_value *run_first_norm(struct tdm_eager *m, const void *model,
                                              uint32_t number, struct tdm_eager_value *x)
{
    const struct tdm_torch_model *t = model;
    const struct torch_layer *layer = &t->layers[number];
    return norm_before(m, t, x, layer->attention_norm, layer->attention_norm_bias);
}

static struct tdm_eager_value *run_second_norm(struct tdm_eager *m, const void *model,
                                               uint32_t number, struct tdm_eager_value *x)
{
    const struct tdm_torch_model *t = model;
    const struct torch_layer *layer = &t->layers[number];
    return norm_before(m, t, x, layer->mlp_norm, layer->mlp_norm_bias);
}

/* A module of a layer with a checkpoint of its own, if they have one. `held`: cosines, sines and
 * masks are its arguments too. */
static struct tdm_eager_value *
run_module(const struct tdm_torch_model *t, uint32_t number, struct tdm_eager_value *x, bool held,
           struct tdm_eager_value *(*run)(struct tdm_eager *m, const void *model, uint32_t number,
                                          struct tdm_eager_value *x))
{
    struct tdm_function function = {.run = run, .model = t, .layer = number};
    if (held)
        hold_arguments(t, number, &function);
    if (t->settings.checkpointing != TDM_CHECKPOINTING_MODULES ||
        (number + 1) % t->settings.checkpoint_every != 0)
        return run(t->m, t, number, x);
    return tdm_checkpoint(t->m, &function, x);
}

static struct tdm_eager_value *run_layer(struct tdm_eager *m, const void *model, uint32_t number,
                                         struct tdm_eager_value *input)
{
    const struct tdm_torch_model *t = model;
    const struct torch_layer *layer = &t->layers[number];
    uint32_t whole = tdm_layer_module(number, TDM_MODULE_LAYER),
             second = tdm_layer_module(number, TDM_MODULE_MLP);
    struct tdm_label label = m->label;
    m->label.layer = number;
    tdm_label(m, "input_layernorm");
    struct tdm_eager_value *x = tdm_module_enter(t, whole, input);
    struct tdm_eager_value *normed = run_module(t, number, x, false, run_first_norm);
    struct tdm_eager_value *tokens = tdm_tensor_gather_input(t, normed);
    struct tdm_eager_value *kept = NULL,
                           *attended = t->settings.checkpointing == TDM_CHECKPOINTING_MODULES
                                           ? run_module(t, number, tokens, true, run_first)
                                           : mix(m, t, number, tokens, &kept);
    tdm_drop(m, tokens);
    tdm_drop(m, normed);
    tdm_label(m, "post_attention_layernorm");
    if (layer->post_attention_norm != NULL)
        attended =
            tdm_replace(m, attended, tdm_torch_norm(m, t, attended, layer->post_attention_norm));
    tdm_label(m, "hidden_states");
    struct tdm_eager_value *middle = add_scaled(m, t, x, attended);
    tdm_label(m, layer->post_mlp_norm == NULL ? "post_attention_layernorm"
                                              : "pre_feedforward_layernorm");
    normed = run_module(t, number, middle, false, run_second_norm);
    tdm_label(m, "mlp.experts");
    normed = tdm_replace(m, normed, tdm_module_enter(t, second, normed));
    tokens = tdm_tensor_gather_input(t, normed);
    struct tdm_eager_value *made = run_module(t, number, tokens, false, run_second);
    made = tdm_module_leave(t, second, made);
    tdm_drop(m, tokens);
    tdm_drop(m, normed);
    tdm_label(m, "post_feedforward_layernorm");
    if (layer->post_mlp_norm != NULL)
        made = tdm_replace(m, made, tdm_torch_norm(m, t, made, layer->post_mlp_norm));
    tdm_label(m, "hidden_states");
    struct tdm_eager_value *y = add_scaled(m, t, middle, made);
    tdm_drop(m, middle);
    tdm_drop(m, kept);
    tdm_drop(m, x);
    y = tdm_module_leave(t, whole, y);
    m->label = label;
    return y;
}

/* The layer itself, without unit and checkpoint. */
static struct tdm_eager_value *run_alone(struct tdm_eager *m, const void *model, uint32_t number,
                                         struct tdm_eager_value *x)
{
    const struct tdm_torch_model *t = model;
    if ((t->config->parts & TDM_PART_PARALLEL) != 0)
        return run_parallel_layer(m, model, number, x);
    return (t->config->parts & TDM_PART_ONE_MIXER) != 0 ? run_single_layer(m, model, number, x)
                                                        : run_layer(m, model, number, x);
}

static struct tdm_eager_value *
run_with_checkpoint(struct tdm_torch_model *t, uint32_t number, struct tdm_eager_value *x,
                    struct tdm_eager_value *(*run)(struct tdm_eager *m, const void *model,
                                                   uint32_t number, struct tdm_eager_value *x))
{
    struct tdm_function function = {.run = run, .model = t, .layer = number};
    hold_arguments(t, number, &function);
    if (t->settings.checkpoint_every > 1 && (number + 1) % t->settings.checkpoint_every != 0)
        return function.run(t->m, t, number, x);
    if (run == run_alone && tdm_torch_compiles_checkpoint(t, number))
        return tdm_torch_compiled_layer(t, &function, x);
    t->m->selective = t->settings.checkpointing == TDM_CHECKPOINTING_SELECTIVE;
    switch (t->settings.checkpointing) {
    case TDM_CHECKPOINTING_SELECTIVE:
    case TDM_CHECKPOINTING_ON:
        if (t->settings.checkpoint_offload == TDM_CHECKPOINTS_AWAY_ALST)
            return tdm_checkpoint_offloaded(t->m, &function, x);
        if (t->settings.checkpoint_offload == TDM_CHECKPOINTS_AWAY)
            return tdm_checkpoint_away(t->m, &function, x);
        return tdm_checkpoint(t->m, &function, x);
    case TDM_CHECKPOINTING_REENTRANT:
        if (t->settings.checkpoint_offload != TDM_CHECKPOINTS_HERE)
            return tdm_checkpoint_offloaded(t->m, &function, x);
        return tdm_checkpoint_reentrant(t->m, &function, x);
    case TDM_CHECKPOINTING_MODULES: /* of its modules: run_module() */
    case TDM_CHECKPOINTING_OFF:
        break;
    }
    return function.run(t->m, t, number, x);
}

/* The layer as its wrapper's unit, which has the checkpoint inside or has none. */
static struct tdm_eager_value *in_unit(struct tdm_torch_model *t, uint32_t number,
                                       struct tdm_eager_value *x, bool checkpoints)
{
    const uint32_t unit = tdm_layer_module(number, TDM_MODULE_LAYER);
    struct tdm_eager_value *input = tdm_unit_enter(t, unit, tdm_take(x));
    struct tdm_eager_value *output = checkpoints ? run_with_checkpoint(t, number, input, run_alone)
                                                 : run_alone(t->m, t, number, input);
    tdm_drop(t->m, input);
    return tdm_unit_leave(t, unit, output);
}

static struct tdm_eager_value *run_unit(struct tdm_eager *m, const void *model, uint32_t number,
                                        struct tdm_eager_value *x)
{
    (void)m;
    return in_unit((void *)(uintptr_t)model, number, x, false);
}

struct tdm_eager_value *tdm_torch_layer(struct tdm_torch_model *t, uint32_t number,
                                        struct tdm_eager_value *x)
{
    return tdm_fsdp_checkpoints_units(&t->settings) ? run_with_checkpoint(t, number, x, run_unit)
                                                    : in_unit(t, number, x, true);
}
