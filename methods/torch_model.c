/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters in the order of modules, and the forward as the Python code runs it: a value is dropped where
 * Python's name for it is bound anew or goes out of scope. */
#include "methods/torch_model.h"

#include "base/size.h"
#include "methods/ops.h"
#include "methods/torch_parts.h"

#include <stdlib.h>

static const char *const projection_names[TDM_PROJECTIONS] = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
};

const char *tdm_projection_name(enum tdm_projection projection)
{
    return projection_names[projection];
}

/* ---- parameters ---- */

static struct tdm_value *add_parameter(struct tdm_torch_model *t, uint64_t rows, uint64_t columns,
                                       uint16_t element_bytes, bool trained)
{
    struct tdm_value *value = tdm_value_leaf(t->m, rows, columns, element_bytes, trained);
    t->parameters[t->parameter_count++] = value;
    return value;
}

static struct tdm_value *add_weight(struct tdm_torch_model *t, uint32_t unit, enum tdm_role role)
{
    const struct tdm_tensor *tensor = tdm_model_tensor(t->config, unit, role);
    if (tensor == NULL)
        return NULL;
    if (t->settings.sharing == TDM_SHARING_FSDP) {
        t->fsdp.building = unit < t->config->layers ? unit : t->config->layers;
        return tdm_fsdp_parameter(t, tensor->rows, tensor->columns);
    }
    return add_parameter(t, tensor->rows, tensor->columns, t->weight_bytes,
                         t->settings.lora_rank == 0);
}

static const struct {
    enum tdm_role weight, bias; /* the same role twice: it has no bias */
} projection_roles[TDM_PROJECTIONS] = {
    {TDM_ROLE_Q, TDM_ROLE_Q_BIAS},  {TDM_ROLE_K, TDM_ROLE_K_BIAS},  {TDM_ROLE_V, TDM_ROLE_V_BIAS},
    {TDM_ROLE_O, TDM_ROLE_O},       {TDM_ROLE_GATE, TDM_ROLE_GATE}, {TDM_ROLE_UP, TDM_ROLE_UP},
    {TDM_ROLE_DOWN, TDM_ROLE_DOWN},
};

static void add_experts(struct tdm_torch_model *t, uint32_t number)
{
    struct torch_layer *layer = &t->layers[number];
    if (t->config->experts.router_first)
        layer->router = add_weight(t, number, TDM_ROLE_ROUTER);
    layer->experts_gate_up = add_weight(t, number, TDM_ROLE_EXPERTS_GATE_UP);
    layer->experts_down = add_weight(t, number, TDM_ROLE_EXPERTS_DOWN);
    if (!t->config->experts.router_first)
        layer->router = add_weight(t, number, TDM_ROLE_ROUTER);
}

static void add_layer(struct tdm_torch_model *t, uint32_t number)
{
    struct torch_layer *layer = &t->layers[number];
    for (unsigned p = 0; p < TDM_PROJECTIONS; p++) {
        layer->weight[p] = add_weight(t, number, projection_roles[p].weight);
        if (projection_roles[p].bias != projection_roles[p].weight)
            layer->bias[p] = add_weight(t, number, projection_roles[p].bias);
        if (p == TDM_PROJECTION_O) {
            layer->q_norm = add_weight(t, number, TDM_ROLE_Q_NORM);
            layer->k_norm = add_weight(t, number, TDM_ROLE_K_NORM);
        }
    }
    if (t->config->layer_kinds[number].experts)
        add_experts(t, number);
    layer->attention_norm = add_weight(t, number, TDM_ROLE_ATTENTION_NORM);
    layer->post_attention_norm = add_weight(t, number, TDM_ROLE_POST_ATTENTION_NORM);
    layer->mlp_norm = add_weight(t, number, TDM_ROLE_MLP_NORM);
    layer->post_mlp_norm = add_weight(t, number, TDM_ROLE_POST_MLP_NORM);
}

/* Two matrices for every adapted projection: rank x inputs, outputs x rank. */
static void add_adapters(struct tdm_torch_model *t)
{
    const struct tdm_torch_settings *s = &t->settings;
    uint16_t bytes = s->peft ? FP32 : t->weight_bytes;
    for (uint32_t i = 0; i < t->config->layers; i++)
        for (unsigned p = 0; p < TDM_PROJECTIONS; p++) {
            const struct tdm_value *weight = t->layers[i].weight[p];
            if ((s->lora_targets >> p & 1) == 0 || weight == NULL)
                continue;
            t->layers[i].down[p] = add_parameter(t, s->lora_rank, weight->columns, bytes, true);
            t->layers[i].up[p] = add_parameter(t, weight->rows, s->lora_rank, bytes, true);
        }
}

static void add_parameters(struct tdm_torch_model *t)
{
    const struct tdm_model *config = t->config;
    uint32_t head = tdm_model_head_unit(config);
    t->m->category = TDM_METHOD_WEIGHTS;
    t->embedding = add_weight(t, tdm_model_embedding_unit(config), TDM_ROLE_EMBEDDING);
    if (config->scaled_embedding)
        t->embedding_scale = tdm_value_new(t->m, 1, 1, t->weight_bytes);
    for (uint32_t i = 0; i < config->layers; i++)
        add_layer(t, i);
    t->final_norm = add_weight(t, head, TDM_ROLE_FINAL_NORM);
    t->frequencies[0] = tdm_value_new(t->m, config->head_dim / 2, 1, FP32);
    t->frequencies[1] = tdm_value_new(t->m, config->head_dim / 2, 1, FP32);
    t->head = config->tied ? t->embedding : add_weight(t, head, TDM_ROLE_HEAD);
    if (t->settings.lora_rank > 0)
        add_adapters(t);
    t->m->category = TDM_METHOD_WORKSPACE;
    if (t->settings.sharing == TDM_SHARING_FSDP && t->settings.shards_on_gpu)
        tdm_fsdp_shard(t);
    tdm_torch_share(t);
    t->ids = tdm_value_new(t->m, t->settings.batch, t->settings.tokens, INT64);
}

enum tdm_status tdm_torch_model_create(struct tdm_eager *m, const struct tdm_model *config,
                                       const struct tdm_torch_settings *settings,
                                       struct tdm_torch_model **model, struct tdm_error *err)
{
    struct tdm_torch_model *t = calloc(1, sizeof(*t));
    size_t most = config->tensor_count + (size_t)config->layers * TDM_PROJECTIONS * 2;
    if (t != NULL) {
        t->layers = calloc(config->layers, sizeof(*t->layers));
        t->parameters = calloc(most, sizeof(struct tdm_value *));
        t->states = calloc(most, sizeof(*t->states));
        t->own_states = calloc(most, sizeof(*t->own_states));
        t->fsdp.wholes = calloc(most, sizeof(struct tdm_value *));
        t->fsdp.group_of = calloc(most, sizeof(*t->fsdp.group_of));
        t->fsdp.whole = calloc(config->layers + 1, sizeof(*t->fsdp.whole));
        t->fsdp.gathering = UINT32_MAX;
        t->buckets.parts = calloc(most, sizeof(struct tdm_value *));
        t->buckets.order = calloc(most, sizeof(struct tdm_value *));
    }
    if (t != NULL)
        t->m = m;
    if (t == NULL || t->layers == NULL || t->parameters == NULL || t->states == NULL ||
        t->own_states == NULL || t->fsdp.wholes == NULL || t->fsdp.group_of == NULL ||
        t->fsdp.whole == NULL || t->buckets.parts == NULL || t->buckets.order == NULL) {
        tdm_torch_model_free(t);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model");
    }
    t->config = config;
    t->settings = *settings;
    t->autocasts = settings->fp32_weights && settings->sharing != TDM_SHARING_FSDP;
    t->weight_bytes = t->autocasts ? FP32 : BF16;
    t->caches = settings->use_cache && settings->checkpointing == TDM_CHECKPOINTING_OFF;
    if (!tdm_torch_cache_create(t)) {
        tdm_torch_model_free(t);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model");
    }
    add_parameters(t);
    *model = t;
    return TDM_OK;
}

void tdm_torch_model_free(struct tdm_torch_model *t)
{
    if (t == NULL)
        return;
    tdm_drop(t->m, t->loss); /* with the frames of its checkpoints */
    tdm_torch_cache_free(t);
    free(t->layers);
    free(t->parameters);
    free(t->states);
    free(t->own_states);
    free(t->fsdp.wholes);
    free(t->fsdp.group_of);
    free(t->fsdp.whole);
    free(t->buckets.parts);
    free(t->buckets.order);
    free(t);
}

uint64_t tdm_torch_weight_bytes(const struct tdm_torch_model *t)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        bytes += tdm_value_elements(t->parameters[i]) * t->parameters[i]->element_bytes;
    return bytes;
}

/* ---- the forward ---- */

/* A name bound anew. */
static struct tdm_value *replace(struct tdm_eager *m, struct tdm_value *old,
                                 struct tdm_value *value)
{
    tdm_drop(m, old);
    return value;
}

/* Gemma's: times 1 + weight in fp32. */
static struct tdm_value *offset_norm(struct tdm_eager *m, struct tdm_value *x,
                                     struct tdm_value *weight)
{
    struct tdm_value *wide = tdm_cast(m, x, FP32);
    struct tdm_value *scale = tdm_square(m, wide);
    scale = replace(m, scale, tdm_row_mean(m, scale));
    scale = replace(m, scale, tdm_add_number(m, scale));
    scale = replace(m, scale, tdm_rsqrt(m, scale));
    struct tdm_value *normed = tdm_mul(m, wide, scale);
    tdm_drop(m, scale);
    tdm_drop(m, wide);
    struct tdm_value *factor = tdm_cast(m, weight, FP32);
    factor = replace(m, factor, tdm_add_number(m, factor));
    normed = replace(m, normed, tdm_mul(m, normed, factor));
    tdm_drop(m, factor);
    struct tdm_value *y = tdm_cast(m, normed, x->element_bytes);
    tdm_drop(m, normed);
    return y;
}

static struct tdm_value *rms_norm(struct tdm_eager *m, const struct tdm_torch_model *t,
                                  struct tdm_value *x, struct tdm_value *weight)
{
    if (t->config->offset_norms)
        return offset_norm(m, x, weight);
    struct tdm_value *wide = tdm_cast(m, x, FP32);
    struct tdm_value *square = tdm_square(m, wide);
    struct tdm_value *variance = tdm_row_mean(m, square);
    tdm_drop(m, square);
    struct tdm_value *sum = tdm_add_number(m, variance);
    struct tdm_value *scale = tdm_rsqrt(m, sum);
    tdm_drop(m, sum);
    struct tdm_value *normed = tdm_mul(m, wide, scale);
    tdm_drop(m, scale);
    tdm_drop(m, wide);
    struct tdm_value *narrow = tdm_cast(m, normed, x->element_bytes);
    struct tdm_value *y = tdm_mul(m, weight, narrow);
    tdm_drop(m, narrow);
    tdm_drop(m, normed);
    tdm_drop(m, variance);
    return y;
}

/* The adapter's part is made in its dtype: peft casts the input to it, and the sum back to that of the base's result
 * (under autocast not the input's). */
static struct tdm_value *adapted(struct tdm_eager *m, const struct tdm_torch_model *t,
                                 const struct torch_layer *layer, enum tdm_projection p,
                                 struct tdm_value *x, struct tdm_value *base)
{
    uint16_t base_bytes = base->element_bytes;
    struct tdm_value *input = t->settings.peft ? tdm_cast(m, x, FP32) : tdm_take(x);
    struct tdm_value *low = tdm_linear(m, input, layer->down[p], NULL, false);
    struct tdm_value *high = tdm_linear(m, low, layer->up[p], NULL, false);
    tdm_drop(m, low);
    struct tdm_value *scaled = tdm_mul_number(m, high);
    tdm_drop(m, high);
    struct tdm_value *sum = tdm_add(m, base, scaled);
    tdm_drop(m, scaled);
    tdm_drop(m, base);
    struct tdm_value *y = t->settings.peft ? tdm_cast(m, sum, base_bytes) : tdm_take(sum);
    tdm_drop(m, sum);
    tdm_drop(m, input);
    return y;
}

static struct tdm_value *project(struct tdm_eager *m, const struct tdm_torch_model *t,
                                 const struct torch_layer *layer, enum tdm_projection p,
                                 struct tdm_value *x)
{
    struct tdm_value *y = tdm_linear(m, x, layer->weight[p], layer->bias[p], false);
    return layer->down[p] == NULL ? y : adapted(m, t, layer, p, x, y);
}

/* What was projected by heads: [batch, heads, tokens, head_dim]; `flat` is taken, `norm` NULL: no norm. */
static struct tdm_value *by_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                                  struct tdm_value *flat, struct tdm_value *norm)
{
    uint64_t head_dim = t->config->head_dim;
    struct tdm_value *heads =
        tdm_reshape(m, flat, flat->rows * (flat->columns / head_dim), head_dim);
    tdm_drop(m, flat);
    if (norm != NULL) {
        struct tdm_value *normed = rms_norm(m, t, heads, norm);
        tdm_drop(m, heads);
        heads = normed;
    }
    struct tdm_value *y = tdm_transpose(m, heads);
    tdm_drop(m, heads);
    return y;
}

static struct tdm_value *rotate(struct tdm_eager *m, struct tdm_value *x, struct tdm_value *cosine,
                                struct tdm_value *sine)
{
    struct tdm_value *straight = tdm_mul(m, x, cosine);
    struct tdm_value *half = tdm_rotate_half(m, x);
    struct tdm_value *turned = tdm_mul(m, half, sine);
    tdm_drop(m, half);
    struct tdm_value *y = tdm_add(m, straight, turned);
    tdm_drop(m, straight);
    tdm_drop(m, turned);
    return y;
}

/* tanh(x / cap) * cap; x is taken. */
static struct tdm_value *softcap(struct tdm_eager *m, struct tdm_value *x)
{
    x = replace(m, x, tdm_mul_number(m, x));
    x = replace(m, x, tdm_tanh(m, x));
    return replace(m, x, tdm_mul_number(m, x));
}

/* Scores in memory: softmax in fp32, between products in bf16. *kept are the weights, which the layer has until
 * it returns. */
static struct tdm_value *eager_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         struct tdm_value *q, struct tdm_value *k,
                                         struct tdm_value *v, struct tdm_value *mask,
                                         struct tdm_value **kept)
{
    uint64_t groups = t->config->query_heads / t->config->kv_heads, tokens = t->settings.tokens;
    struct tdm_value *keys = tdm_repeat(m, k, groups), *values = tdm_repeat(m, v, groups);
    struct tdm_value *b = tdm_autocast(m, keys), *a = tdm_autocast(m, q);
    /* Heads that lie by token cannot be merged with the batch; what autocast made stays until the product is done. */
    struct tdm_value *merged = t->settings.batch > 1 ? tdm_contiguous(m, a) : tdm_take(a);
    struct tdm_value *product = tdm_bmm(m, merged, b, a->rows, tokens);
    tdm_drop(m, merged);
    tdm_drop(m, a);
    tdm_drop(m, b);
    struct tdm_value *scaled = tdm_mul_number(m, product);
    tdm_drop(m, product);
    if (t->config->attention_softcap > 0)
        scaled = softcap(m, scaled);
    struct tdm_value *masked = tdm_add(m, scaled, mask);
    tdm_drop(m, scaled);
    struct tdm_value *wide = tdm_cast(m, masked, FP32);
    struct tdm_value *soft = tdm_softmax(m, wide);
    tdm_drop(m, wide);
    struct tdm_value *weights = tdm_cast(m, soft, q->element_bytes);
    tdm_drop(m, soft);
    tdm_drop(m, masked);
    struct tdm_value *c = tdm_autocast(m, values), *narrow = tdm_autocast(m, weights);
    struct tdm_value *output = tdm_bmm(m, narrow, c, q->rows, q->columns);
    tdm_drop(m, narrow);
    tdm_drop(m, c);
    if (t->settings.batch > 1) /* a view, through which the gradient must lie by heads */
        output = replace(m, output, tdm_reshape(m, output, output->rows, output->columns));
    struct tdm_value *turned = tdm_transpose(m, output);
    struct tdm_value *y = tdm_contiguous(m, turned);
    tdm_drop(m, turned);
    tdm_drop(m, output);
    *kept = weights;
    tdm_drop(m, keys);
    tdm_drop(m, values);
    return y;
}

#define BIAS_ALIGN 8u /* columns of the memory-efficient kernel's bias */

/* torch's scaled_dot_product_attention; with a mask K and V are repeated first, and the mask becomes a bias. */
static struct tdm_value *sdpa_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        struct tdm_value *q, struct tdm_value *k,
                                        struct tdm_value *v, struct tdm_value *mask)
{
    struct tdm_attention_shape shape = {.kernel = t->settings.attention == TDM_TORCH_SDPA
                                                      ? TDM_ATTENTION_CUDNN
                                                  : mask != NULL ? TDM_ATTENTION_EFFICIENT
                                                                 : TDM_ATTENTION_FLASH,
                                        .batch = t->settings.batch,
                                        .query_heads = t->config->query_heads,
                                        .kv_heads = t->config->kv_heads,
                                        .tokens = t->settings.tokens,
                                        .head_dim = t->config->head_dim};
    struct tdm_value *keys = tdm_take(k), *values = tdm_take(v), *bias = NULL;
    if (mask != NULL) {
        uint64_t groups = shape.query_heads / shape.kv_heads;
        tdm_drop(m, keys);
        tdm_drop(m, values);
        keys = tdm_repeat(m, k, groups);
        values = tdm_repeat(m, v, groups);
        shape.kv_heads = shape.query_heads;
    }
    struct tdm_value *c = tdm_autocast(m, values), *b = tdm_autocast(m, keys),
                     *a = tdm_autocast(m, q);
    if (mask != NULL) {
        struct tdm_value *zero = tdm_value_new(m, 1, 1, BF16),
                         *least = tdm_value_new(m, 1, 1, BF16);
        bias = tdm_value_new(m, shape.batch * mask->rows, mask->columns, BF16);
        tdm_drop(m, zero);
        tdm_drop(m, least);
        if (shape.kernel == TDM_ATTENTION_EFFICIENT && mask->columns % BIAS_ALIGN != 0)
            bias = replace(m, bias,
                           tdm_value_new(m, shape.batch * mask->rows,
                                         tdm_size_align(mask->columns, BIAS_ALIGN), BF16));
    }
    struct tdm_value *output = tdm_attention(m, a, b, c, bias, &shape);
    tdm_drop(m, a);
    tdm_drop(m, b);
    tdm_drop(m, c);
    tdm_drop(m, bias);
    struct tdm_value *turned = tdm_transpose(m, output);
    tdm_drop(m, output);
    struct tdm_value *y = tdm_contiguous(m, turned);
    tdm_drop(m, turned);
    tdm_drop(m, keys);
    tdm_drop(m, values);
    return y;
}

/* q, k and v by heads. Where norms run over all heads, all three are projected before they are divided. */
static void project_qkv(struct tdm_eager *m, const struct tdm_torch_model *t,
                        const struct torch_layer *layer, struct tdm_value *x,
                        struct tdm_value *qkv[3])
{
    struct tdm_value *norms[3] = {layer->q_norm, layer->k_norm, NULL};
    bool whole = t->config->whole_qk_norm;
    for (unsigned i = 0; i < 3; i++) {
        qkv[i] = project(m, t, layer, (enum tdm_projection)(TDM_PROJECTION_Q + i), x);
        if (!whole)
            qkv[i] = by_heads(m, t, qkv[i], norms[i]);
        else if (norms[i] != NULL)
            qkv[i] = replace(m, qkv[i], rms_norm(m, t, qkv[i], norms[i]));
    }
    for (unsigned i = 0; i < 3 && whole; i++)
        qkv[i] = by_heads(m, t, qkv[i], NULL);
}

static struct tdm_value *attend(struct tdm_eager *m, const struct tdm_torch_model *t,
                                uint32_t number, struct tdm_value *x, struct tdm_value **kept)
{
    const struct torch_layer *layer = &t->layers[number];
    struct tdm_value *qkv[3];
    project_qkv(m, t, layer, x, qkv);
    struct tdm_value *v = qkv[2];
    struct tdm_value *turned_q = rotate(m, qkv[0], t->cosine, t->sine);
    struct tdm_value *turned_k = rotate(m, qkv[1], t->cosine, t->sine);
    tdm_drop(m, qkv[0]);
    tdm_drop(m, qkv[1]);
    tdm_torch_cache_update(t, number, &turned_k, &v);
    struct tdm_value *mask = t->config->layer_kinds[number].window > 0 ? t->window_mask : t->mask;
    struct tdm_value *heads = t->settings.attention == TDM_TORCH_EAGER
                                  ? eager_attention(m, t, turned_q, turned_k, v, mask, kept)
                                  : sdpa_attention(m, t, turned_q, turned_k, v, mask);
    struct tdm_value *merged =
        tdm_reshape(m, heads, x->rows, layer->weight[TDM_PROJECTION_O]->columns);
    tdm_drop(m, heads);
    struct tdm_value *y = project(m, t, layer, TDM_PROJECTION_O, merged);
    tdm_drop(m, merged);
    tdm_drop(m, turned_q);
    tdm_drop(m, turned_k);
    tdm_drop(m, v);
    return y;
}

static struct tdm_value *mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                             const struct torch_layer *layer, struct tdm_value *x)
{
    struct tdm_value *gate = project(m, t, layer, TDM_PROJECTION_GATE, x);
    struct tdm_value *active = t->config->gelu ? tdm_gelu(m, gate) : tdm_silu(m, gate);
    tdm_drop(m, gate);
    struct tdm_value *up = project(m, t, layer, TDM_PROJECTION_UP, x);
    struct tdm_value *product = tdm_mul(m, active, up);
    tdm_drop(m, active);
    tdm_drop(m, up);
    struct tdm_value *y = project(m, t, layer, TDM_PROJECTION_DOWN, product);
    tdm_drop(m, product);
    return y;
}

static struct tdm_value *run_layer(struct tdm_eager *m, const void *model, uint32_t number,
                                   struct tdm_value *x)
{
    const struct tdm_torch_model *t = model;
    const struct torch_layer *layer = &t->layers[number];
    struct tdm_value *normed = rms_norm(m, t, x, layer->attention_norm);
    struct tdm_value *kept = NULL, *attended = attend(m, t, number, normed, &kept);
    tdm_drop(m, normed);
    if (layer->post_attention_norm != NULL)
        attended = replace(m, attended, rms_norm(m, t, attended, layer->post_attention_norm));
    struct tdm_value *middle = tdm_add(m, x, attended);
    tdm_drop(m, attended);
    normed = rms_norm(m, t, middle, layer->mlp_norm);
    struct tdm_value *made =
        layer->router != NULL ? tdm_torch_experts(m, t, layer, normed) : mlp(m, t, layer, normed);
    tdm_drop(m, normed);
    if (layer->post_mlp_norm != NULL)
        made = replace(m, made, rms_norm(m, t, made, layer->post_mlp_norm));
    struct tdm_value *y = tdm_add(m, middle, made);
    tdm_drop(m, made);
    tdm_drop(m, middle);
    tdm_drop(m, kept);
    return y;
}

static struct tdm_value *call_layer(struct tdm_torch_model *t, uint32_t number, struct tdm_value *x)
{
    const struct tdm_function function = {
        .run = run_layer,
        .model = t,
        .layer = number,
        .held = {t->cosine, t->sine, t->mask, t->window_mask, t->positions}};
    switch (t->settings.checkpointing) {
    case TDM_CHECKPOINTING_ON:
        return tdm_checkpoint(t->m, &function, x);
    case TDM_CHECKPOINTING_REENTRANT:
        return tdm_checkpoint_reentrant(t->m, &function, x);
    case TDM_CHECKPOINTING_OFF:
        break;
    }
    return run_layer(t->m, t, number, x);
}

static struct tdm_value *base_model(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    struct tdm_value *embedded = tdm_embedding(m, t->embedding, t->ids, s->batch * s->tokens);
    if (t->embedding_scale != NULL)
        embedded = replace(m, embedded, tdm_mul(m, embedded, t->embedding_scale));
    if (s->lora_rank > 0 && s->checkpointing != TDM_CHECKPOINTING_OFF) {
        tdm_value_require_grad(m, embedded); /* enable_input_require_grads */
        t->input = tdm_take(embedded);
    }
    tdm_torch_positions(t);
    tdm_torch_masks(t);
    tdm_torch_rotary(t);
    struct tdm_value *x = tdm_take(embedded);
    for (uint32_t i = 0; i < t->config->layers; i++) {
        tdm_fsdp_before_forward(t, i);
        struct tdm_value *input = tdm_fsdp_mark(t, i, x, false);
        struct tdm_value *output = call_layer(t, i, input);
        tdm_drop(m, input);
        tdm_fsdp_after_forward(t, i);
        x = replace(m, x, tdm_fsdp_mark(t, i, output, true));
        tdm_drop(m, output);
    }
    struct tdm_value *normed = rms_norm(m, t, x, t->final_norm);
    tdm_drop(m, x);
    tdm_drop(m, embedded);
    tdm_torch_drop_inputs(t);
    return normed;
}

/* Upcast logits, labels moved by one, mean cross entropy. */
static struct tdm_value *causal_loss(struct tdm_torch_model *t, struct tdm_value *logits)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    struct tdm_value *wide = tdm_cast(m, logits, FP32);
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_WORKSPACE;
    struct tdm_value *padded = tdm_value_new(m, s->batch, s->tokens + 1, INT64);
    struct tdm_value *labels = /* rows of the padded labels do not lie one after the other */
        s->batch > 1 ? tdm_value_new(m, s->batch, s->tokens, INT64) : tdm_take(padded);
    m->category = before;
    struct tdm_value *loss = tdm_cross_entropy(m, wide, labels);
    tdm_drop(m, padded);
    tdm_drop(m, labels);
    tdm_drop(m, wide);
    return loss;
}

static struct tdm_value *head_and_loss(struct tdm_torch_model *t, struct tdm_value *hidden)
{
    struct tdm_eager *m = t->m;
    bool last = t->settings.logits == TDM_LOGITS_LAST;
    struct tdm_value *rows = last ? tdm_rows(m, hidden, t->settings.batch) : tdm_take(hidden);
    m->category = TDM_METHOD_LOGITS;
    struct tdm_value *logits = tdm_linear(m, rows, t->head, NULL, false), *loss;
    tdm_drop(m, rows);
    if (t->config->logits_softcap > 0)
        logits = softcap(m, logits);
    if (last) {
        tdm_torch_cache_drop(t); /* the output object goes, once its logits are taken */
        struct tdm_value *wide = tdm_cast(m, logits, FP32);
        loss = tdm_mean(m, wide);
        tdm_drop(m, wide);
    } else {
        loss = causal_loss(t, logits);
    }
    m->category = TDM_METHOD_WORKSPACE;
    if (t->settings.logits == TDM_LOGITS_HF_HELD) {
        tdm_drop(m, t->held_logits);
        t->held_logits = tdm_take(logits);
        tdm_torch_cache_hold(t);
    }
    tdm_drop(m, logits);
    return loss;
}

void tdm_torch_forward(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    tdm_ddp_before_forward(t);
    m->autocast = t->autocasts;
    tdm_fsdp_before_forward(t, t->config->layers);
    struct tdm_value *hidden = base_model(t), *loss;
    if (t->settings.logits == TDM_LOGITS_BASE) {
        tdm_torch_cache_drop(t);
        loss = tdm_mean(m, hidden);
    } else {
        loss = head_and_loss(t, hidden);
    }
    tdm_torch_cache_drop(t);
    tdm_drop(m, hidden);
    m->autocast = false;
    tdm_autocast_clear(m);
    tdm_fsdp_after_forward(t, t->config->layers);
    tdm_drop(m, t->loss); /* the graph of the step before goes now */
    tdm_drop(m, t->held_input);
    t->loss = loss;
    t->held_input = t->input;
    t->input = NULL;
}

void tdm_torch_backward(struct tdm_torch_model *t)
{
    tdm_fsdp_before_backward(t, t->config->layers);
    tdm_backward(t->m, t->loss, NULL);
    tdm_fsdp_after_backward(t, t->config->layers);
}
