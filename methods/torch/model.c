/* SPDX-License-Identifier: Apache-2.0 */
/* Creates a model, with its parameters in the order of modules, and frees it. */
#include "methods/torch/model.h"

#include "base/size.h"
#include "methods/torch/parts.h"

#include <stdlib.h>
#include <string.h>

static const char *const projection_names[TDM_PROJECTIONS] = {
    [TDM_PROJECTION_Q] = "q_proj",       [TDM_PROJECTION_K] = "k_proj",
    [TDM_PROJECTION_V] = "v_proj",       [TDM_PROJECTION_Q_A] = "q_a_proj",
    [TDM_PROJECTION_Q_B] = "q_b_proj",   [TDM_PROJECTION_KV_A] = "kv_a_proj_with_mqa",
    [TDM_PROJECTION_KV_B] = "kv_b_proj", [TDM_PROJECTION_O] = "o_proj",
    [TDM_PROJECTION_QKV] = "qkv_proj",   [TDM_PROJECTION_GATE] = "gate_proj",
    [TDM_PROJECTION_UP] = "up_proj",     [TDM_PROJECTION_GATE_UP] = "gate_up_proj",
    [TDM_PROJECTION_DOWN] = "down_proj",
};

const char *tdm_projection_name(enum tdm_projection projection)
{
    return projection_names[projection];
}

struct tdm_eager_value *tdm_torch_parameter(struct tdm_torch_model *t, uint64_t rows,
                                            uint64_t columns, uint16_t element_bytes, bool trained)
{
    struct tdm_eager_value *value = tdm_value_leaf(t->m, rows, columns, element_bytes, trained);
    t->parameters[t->parameter_count++] = value;
    return value;
}

struct tdm_eager_value *tdm_torch_add_parameter(struct tdm_torch_model *t, uint32_t module,
                                                uint64_t rows, uint64_t columns,
                                                uint16_t element_bytes, bool trained)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    struct tdm_eager_value *value =
        w->parameter != NULL ? w->parameter(t, module, rows, columns, element_bytes, trained)
                             : tdm_torch_parameter(t, rows, columns, element_bytes, trained);
    value->module = module;
    return value;
}

/* LongLoRA also trains all weights that have "embed" or "norm" in their names. */
static bool is_norm_or_embedding(enum tdm_role role)
{
    return role == TDM_ROLE_EMBEDDING || tdm_role_is_norm(role);
}

static bool is_of_experts(enum tdm_role role)
{
    return role == TDM_ROLE_EXPERTS_GATE_UP || role == TDM_ROLE_EXPERTS_DOWN ||
           role == TDM_ROLE_EXPERTS_GATE_UP_BIAS || role == TDM_ROLE_EXPERTS_DOWN_BIAS;
}

static const struct {
    enum tdm_role weight, bias; /* the same role twice: it has no bias */
} projection_roles[TDM_PROJECTIONS] = {
    [TDM_PROJECTION_Q] = {TDM_ROLE_Q, TDM_ROLE_Q_BIAS},
    [TDM_PROJECTION_K] = {TDM_ROLE_K, TDM_ROLE_K_BIAS},
    [TDM_PROJECTION_V] = {TDM_ROLE_V, TDM_ROLE_V_BIAS},
    [TDM_PROJECTION_Q_A] = {TDM_ROLE_Q_LATENT, TDM_ROLE_Q_LATENT},
    [TDM_PROJECTION_Q_B] = {TDM_ROLE_Q_FROM_LATENT, TDM_ROLE_Q_FROM_LATENT},
    [TDM_PROJECTION_KV_A] = {TDM_ROLE_KV_LATENT, TDM_ROLE_KV_LATENT},
    [TDM_PROJECTION_KV_B] = {TDM_ROLE_KV_FROM_LATENT, TDM_ROLE_KV_FROM_LATENT},
    [TDM_PROJECTION_O] = {TDM_ROLE_O, TDM_ROLE_O_BIAS},
    [TDM_PROJECTION_QKV] = {TDM_ROLE_QKV, TDM_ROLE_QKV_BIAS},
    [TDM_PROJECTION_GATE] = {TDM_ROLE_GATE, TDM_ROLE_GATE},
    [TDM_PROJECTION_UP] = {TDM_ROLE_UP, TDM_ROLE_UP_BIAS},
    [TDM_PROJECTION_GATE_UP] = {TDM_ROLE_GATE_UP, TDM_ROLE_GATE_UP},
    [TDM_PROJECTION_DOWN] = {TDM_ROLE_DOWN, TDM_ROLE_DOWN_BIAS},
};

enum tdm_role tdm_projection_role(enum tdm_projection projection)
{
    return projection_roles[projection].weight;
}

_Static_assert((unsigned)TDM_MODULE_ROLES + TDM_ROLES <= (unsigned)TDM_MODULE_ADAPTED,
               "every role has a module");

/* The module that runs the embedding's weight, or the head's, beside trained copies. */
static uint32_t module_of_end(const struct tdm_torch_model *t, bool head)
{
    const uint32_t saved = t->settings.lora_rank > 0 ? t->settings.modules_to_save : 0;
    if (head)
        return (saved & TDM_SAVED_HEAD) != 0 ? TDM_MODULE_ORIGINAL : TDM_MODULE_HEAD;
    if ((saved & TDM_SAVED_EMBEDDING) == 0)
        return TDM_MODULE_EMBEDDING;
    return t->config->tied ? module_of_end(t, true) : TDM_MODULE_ORIGINAL;
}

/* The module that a tensor belongs to. */
static uint32_t module_of(const struct tdm_torch_model *t, uint32_t unit, enum tdm_role role)
{
    switch (role) {
    case TDM_ROLE_EMBEDDING:
        return module_of_end(t, false);
    case TDM_ROLE_POSITIONS:
    case TDM_ROLE_EMBEDDING_NORM:
    case TDM_ROLE_EMBEDDING_NORM_BIAS:
        return TDM_MODULE_EMBEDDING;
    case TDM_ROLE_FINAL_NORM:
        return TDM_MODULE_NORM;
    case TDM_ROLE_HEAD:
        return module_of_end(t, true);
    case TDM_ROLE_ROUTER:
    case TDM_ROLE_EXPERTS_GATE_UP:
    case TDM_ROLE_EXPERTS_DOWN:
    case TDM_ROLE_ROUTER_BIAS:
    case TDM_ROLE_EXPERTS_GATE_UP_BIAS:
    case TDM_ROLE_EXPERTS_DOWN_BIAS:
    case TDM_ROLE_SHARED_GATE:
    case TDM_ROLE_SHARED_UP:
    case TDM_ROLE_SHARED_DOWN:
    case TDM_ROLE_SHARED_EXPERT_GATE:
        return tdm_layer_module(unit, TDM_MODULE_MLP);
    case TDM_ROLE_DELTA_TIME:
    case TDM_ROLE_DELTA_DECAY:
    case TDM_ROLE_MAMBA_TIME:
    case TDM_ROLE_MAMBA_DECAY:
    case TDM_ROLE_MAMBA_SKIP:
    /* The mixer's kernels read these of modules that are not called. */
    case TDM_ROLE_DELTA_KERNEL:
    case TDM_ROLE_MAMBA_KERNEL:
    case TDM_ROLE_MAMBA_KERNEL_BIAS:
    case TDM_ROLE_MAMBA_NORM:
    case TDM_ROLE_MAMBA_OUT:
    case TDM_ROLE_SHORT_KERNEL:
        return tdm_layer_module(unit, TDM_MODULE_MIXER);
    case TDM_ROLE_FINAL_NORM_BIAS:
        return TDM_MODULE_NORM;
    case TDM_ROLE_HEAD_BIAS:
        return TDM_MODULE_HEAD;
    case TDM_ROLE_ATTENTION_NORM_BIAS:
        role = TDM_ROLE_ATTENTION_NORM;
        break;
    case TDM_ROLE_MLP_NORM_BIAS:
        role = TDM_ROLE_MLP_NORM;
        break;
    case TDM_ROLE_QKV_BIAS:
    case TDM_ROLE_O_BIAS:
    case TDM_ROLE_UP_BIAS:
    case TDM_ROLE_DOWN_BIAS:
    case TDM_ROLE_Q_BIAS:
    case TDM_ROLE_K_BIAS:
    case TDM_ROLE_V_BIAS:
        for (unsigned p = 0; p < TDM_PROJECTIONS; p++)
            if (projection_roles[p].bias == role)
                role = projection_roles[p].weight;
        break;
    default:
        break;
    }
    return tdm_layer_module(unit, TDM_MODULE_ROLES + (uint32_t)role);
}

static struct tdm_eager_value *add_weight(struct tdm_torch_model *t, uint32_t unit,
                                          enum tdm_role role)
{
    const struct tdm_tensor *tensor = tdm_model_tensor(t->config, unit, role);
    if (tensor == NULL)
        return NULL;
    t->m->label = (struct tdm_label){.name = tdm_role_name(role),
                                     .layer = unit < t->config->layers ? unit : TDM_NO_LAYER};
    bool trained =
        !t->settings.frozen &&
        (t->settings.lora_rank == 0 || (t->settings.trained_norms && is_norm_or_embedding(role)));
    const struct tdm_experts *experts = &t->config->experts;
    if (experts->router == TDM_ROUTER_ERNIE && role == TDM_ROLE_ROUTER_BIAS)
        trained = false; /* what balances experts changes it */
    const bool wide =
        experts->wide_router && (role == TDM_ROLE_ROUTER || role == TDM_ROLE_ROUTER_BIAS);
    const uint64_t parts = is_of_experts(role) ? tdm_expert_parts(&t->settings) : 1;
    struct tdm_eager_value *value =
        tdm_torch_add_parameter(t, module_of(t, unit, role), tensor->rows / parts, tensor->columns,
                                wide ? FP32 : t->weight_bytes, trained);
    t->states[t->parameter_count - 1].matrix = unit < t->config->layers && tensor->rows > 1 &&
                                               role != TDM_ROLE_EXPERTS_GATE_UP &&
                                               role != TDM_ROLE_EXPERTS_DOWN;
    return value;
}

/* Recipes of torchtitan and accelerate convert layers both of whose dimensions cuBLAS takes in 8
 * bits. The head stays, as both leave it out; accelerate makes it one of Transformer Engine's. */
#define FLOAT8_MULTIPLE 16u
static bool takes_float8(const struct tdm_tensor *tensor)
{
    return tensor->rows % FLOAT8_MULTIPLE == 0 && tensor->columns % FLOAT8_MULTIPLE == 0;
}

static void set_float8(const struct tdm_torch_model *t, struct tdm_eager_value *weight)
{
    weight->float8 = (uint8_t)t->settings.float8;
    weight->is_float8 = weight->float8 != TDM_FLOAT8_NO && t->settings.fsdp.gathers_float8;
}

#define NF4_IN_BF16 4u /* weights of 4 bits in an element of bnb_4bit_quant_storage */

/* Frozen, of 4 bits or 8. Lightning quantizes what it has cast to fp16
 * (lightning/fabric/plugins/precision/bitsandbytes.py _Linear4bit._quantize_weight). */
static struct tdm_eager_value *add_quantized(struct tdm_torch_model *t, uint32_t module,
                                             uint64_t rows, uint64_t columns)
{
    const struct tdm_torch_settings *s = &t->settings;
    struct tdm_eager_value *leaf = tdm_quantized_leaf(
        t->m, s->quantization, rows, columns, s->bnb_keeps_inputs, tdm_torch_is_litgpt(s),
        s->quantized_group, s->quantized_bits, &t->quantized[t->quantized_count++]);
    leaf->module = module;
    return leaf;
}

/* Wrappers divide parameters. Packed weights of GPTQ and AWQ are buffers, which are whole on every
 * GPU (gptqmodel, AutoGPTQ, AutoAWQ: register_buffer). */
static bool shards_quantized(const struct tdm_torch_settings *s)
{
    if (s->quantization > TDM_QUANTIZATION_INT8 && s->quantization != TDM_QUANTIZATION_NF4_DOUBLE)
        return false;
    return s->wrapper->shards_quantized && !(s->wrapper == &tdm_fsdp_wrapper && s->fsdp.leaves_nf4);
}

/* A projection. A quantized one is no parameter that a wrapper handles, but for shards: of nf4 in
 * bf16 storage. Its scales are the module's own, and whole on every rank (bitsandbytes,
 * nn/modules.py Params4bit.quant_state). */
static struct tdm_eager_value *add_frozen(struct tdm_torch_model *t, uint32_t module, uint64_t rows,
                                          uint64_t columns)
{
    if (!shards_quantized(&t->settings))
        return add_quantized(t, module, rows, columns);
    const uint64_t elements = tdm_size_mul(rows, columns);
    tdm_torch_add_parameter(t, module, tdm_size_ceil_div(elements, NF4_IN_BF16), 1, BF16, false);
    struct tdm_eager_value *leaf = tdm_quantized_leaf_of_shard(
        t->m, t->settings.quantization, rows, columns, &t->quantized[t->quantized_count++]);
    leaf->module = module;
    return leaf;
}

static struct tdm_eager_value *add_projection(struct tdm_torch_model *t, uint32_t number,
                                              enum tdm_role role)
{
    const struct tdm_tensor *tensor = tdm_model_tensor(t->config, number, role);
    if (tensor == NULL || t->quantized == NULL) {
        struct tdm_eager_value *weight = add_weight(t, number, role);
        if (tensor != NULL && takes_float8(tensor))
            set_float8(t, weight);
        return weight;
    }
    t->m->label = (struct tdm_label){.name = tdm_role_name(role), .layer = number};
    return add_frozen(t, module_of(t, number, role), tensor->rows, tensor->columns);
}

/* LitGPT's: q, k and v are one product. */
static void add_joint(struct tdm_torch_model *t, uint32_t number)
{
    const struct tdm_model *c = t->config;
    struct torch_layer *layer = &t->layers[number];
    const uint32_t module = module_of(t, number, TDM_ROLE_QKV);
    const uint64_t rows = (uint64_t)c->query_heads * c->head_dim + 2 * tdm_model_kv_width(c);
    t->m->label = (struct tdm_label){.name = tdm_role_name(TDM_ROLE_QKV), .layer = number};
    if (t->quantized != NULL) {
        layer->weight[TDM_PROJECTION_QKV] = add_quantized(t, module, rows, c->hidden);
    } else {
        layer->weight[TDM_PROJECTION_QKV] = tdm_torch_add_parameter(
            t, module, rows, c->hidden, t->weight_bytes, t->settings.lora_rank == 0);
        t->states[t->parameter_count - 1].matrix = true;
        if (rows % FLOAT8_MULTIPLE == 0 && c->hidden % FLOAT8_MULTIPLE == 0)
            set_float8(t, layer->weight[TDM_PROJECTION_QKV]);
    }
    if (tdm_model_tensor(c, number, TDM_ROLE_Q_BIAS) != NULL ||
        tdm_model_tensor(c, number, TDM_ROLE_QKV_BIAS) != NULL)
        layer->bias[TDM_PROJECTION_QKV] = tdm_torch_add_parameter(
            t, module, 1, rows, t->weight_bytes, t->settings.lora_rank == 0);
}

static bool is_joined(const struct tdm_torch_model *t, unsigned p)
{
    return tdm_torch_is_litgpt(&t->settings) && (p == TDM_PROJECTION_Q || p == TDM_PROJECTION_K ||
                                                 p == TDM_PROJECTION_V || p == TDM_PROJECTION_QKV);
}

/* LitGPT's is quantized too, and never the embedding (litgpt/model.py GPT.__init__). */
static struct tdm_eager_value *add_head(struct tdm_torch_model *t, uint32_t unit)
{
    const struct tdm_model *c = t->config;
    if (!tdm_torch_is_litgpt(&t->settings))
        return c->tied ? t->embedding : add_weight(t, unit, TDM_ROLE_HEAD);
    t->m->label = (struct tdm_label){.name = tdm_role_name(TDM_ROLE_HEAD), .layer = TDM_NO_LAYER};
    if (t->quantized != NULL)
        return add_quantized(t, TDM_MODULE_HEAD, c->vocabulary, c->hidden);
    return tdm_torch_add_parameter(t, TDM_MODULE_HEAD, c->vocabulary, c->hidden, t->weight_bytes,
                                   t->settings.lora_rank == 0);
}

/* A weight of nn.Linear that is no projection of the table: it is quantized like them. */
static struct tdm_eager_value *add_linear(struct tdm_torch_model *t, uint32_t number,
                                          enum tdm_role role)
{
    const struct tdm_tensor *tensor = tdm_model_tensor(t->config, number, role);
    if (tensor == NULL || t->quantized == NULL)
        return add_weight(t, number, role);
    t->m->label = (struct tdm_label){.name = tdm_role_name(role), .layer = number};
    return add_frozen(t, module_of(t, number, role), tensor->rows, tensor->columns);
}

static void add_shared_expert(struct tdm_torch_model *t, uint32_t number)
{
    struct torch_layer *shared = &t->shared[number];
    if (tdm_model_tensor(t->config, number, TDM_ROLE_SHARED_GATE) == NULL)
        return;
    t->layers[number].shared = shared;
    shared->is_part = tdm_tensor_ranks(&t->settings) > 1 && !tdm_tensor_is_planned(&t->settings);
    shared->weight[TDM_PROJECTION_GATE] = add_linear(t, number, TDM_ROLE_SHARED_GATE);
    shared->weight[TDM_PROJECTION_UP] = add_linear(t, number, TDM_ROLE_SHARED_UP);
    shared->weight[TDM_PROJECTION_DOWN] = add_linear(t, number, TDM_ROLE_SHARED_DOWN);
}

/* Experts that are modules of their own. */
static void add_each_expert(struct tdm_torch_model *t, uint32_t number)
{
    const struct tdm_experts *e = &t->config->experts;
    const uint32_t module = tdm_layer_module(number, TDM_MODULE_MLP);
    struct torch_layer *experts = t->experts + (size_t)number * e->count;
    t->layers[number].experts = experts;
    t->m->label = (struct tdm_label){.name = "mlp.experts", .layer = number};
    for (uint32_t i = 0; i < e->count; i++)
        for (unsigned p = TDM_PROJECTION_GATE; p <= TDM_PROJECTION_DOWN; p++) {
            const bool down = p == TDM_PROJECTION_DOWN;
            const uint64_t rows = down ? t->config->hidden : e->intermediate,
                           columns = down ? e->intermediate : t->config->hidden;
            if (p == TDM_PROJECTION_GATE_UP)
                continue;
            if (t->quantized != NULL) {
                experts[i].weight[p] = add_frozen(t, module, rows, columns);
                continue;
            }
            experts[i].weight[p] =
                tdm_torch_add_parameter(t, module, rows, columns, t->weight_bytes,
                                        t->settings.lora_rank == 0 && !t->settings.frozen);
            t->states[t->parameter_count - 1].matrix = true;
        }
}

/* The router before transformers 5: nn.Linear, but for DeepSeek's and GLM's. */
static void add_modules(struct tdm_torch_model *t, uint32_t number)
{
    struct torch_layer *layer = &t->layers[number];
    const bool parameter = t->config->experts.groups > 0;
    if (!parameter)
        layer->router = add_linear(t, number, TDM_ROLE_ROUTER);
    add_each_expert(t, number);
    if (parameter)
        layer->router = add_weight(t, number, TDM_ROLE_ROUTER);
    add_shared_expert(t, number);
    layer->shared_expert_gate = add_linear(t, number, TDM_ROLE_SHARED_EXPERT_GATE);
}

static void add_experts(struct tdm_torch_model *t, uint32_t number)
{
    struct torch_layer *layer = &t->layers[number];
    if (t->settings.deepspeed.ep_size > 0) {
        layer->router = add_weight(t, number, TDM_ROLE_ROUTER);
        tdm_moe_add(t, number);
        return;
    }
    if (tdm_fsdp_expert_ranks(&t->settings) > 1) {
        tdm_titan_add_experts(t, number);
        layer->router = add_weight(t, number, TDM_ROLE_ROUTER);
        layer->router_bias = add_weight(t, number, TDM_ROLE_ROUTER_BIAS);
        add_shared_expert(t, number);
        return;
    }
    if (tdm_torch_expert_modules(t->config, &t->settings) > 0) {
        add_modules(t, number);
        return;
    }
    if (t->config->experts.router_first) {
        layer->router = add_weight(t, number, TDM_ROLE_ROUTER);
        layer->router_bias = add_weight(t, number, TDM_ROLE_ROUTER_BIAS);
    }
    layer->experts_gate_up = add_weight(t, number, TDM_ROLE_EXPERTS_GATE_UP);
    layer->experts_gate_up_bias = add_weight(t, number, TDM_ROLE_EXPERTS_GATE_UP_BIAS);
    layer->experts_down = add_weight(t, number, TDM_ROLE_EXPERTS_DOWN);
    layer->experts_down_bias = add_weight(t, number, TDM_ROLE_EXPERTS_DOWN_BIAS);
    if (!t->config->experts.router_first)
        layer->router = add_weight(t, number, TDM_ROLE_ROUTER);
    add_shared_expert(t, number);
    layer->shared_expert_gate = add_linear(t, number, TDM_ROLE_SHARED_EXPERT_GATE);
}

static void add_layer(struct tdm_torch_model *t, uint32_t number)
{
    struct torch_layer *layer = &t->layers[number];
    for (unsigned i = 0; i < DELTA_WEIGHTS; i++)
        layer->delta[i] = add_weight(t, number, (enum tdm_role)(TDM_ROLE_DELTA_TIME + i));
    for (unsigned i = 0; i < MAMBA_WEIGHTS; i++)
        layer->mamba[i] = add_weight(t, number, (enum tdm_role)(TDM_ROLE_MAMBA_TIME + i));
    for (unsigned i = 0; i < SHORT_WEIGHTS; i++)
        layer->short_conv[i] = add_weight(t, number, (enum tdm_role)(TDM_ROLE_SHORT_KERNEL + i));
    if (tdm_torch_is_litgpt(&t->settings))
        add_joint(t, number);
    for (unsigned p = 0; p < TDM_PROJECTIONS; p++) {
        if (is_joined(t, p))
            continue;
        layer->weight[p] = add_projection(t, number, projection_roles[p].weight);
        if (projection_roles[p].bias != projection_roles[p].weight)
            layer->bias[p] = add_weight(t, number, projection_roles[p].bias);
        if (p == TDM_PROJECTION_Q_A)
            layer->q_latent_norm = add_weight(t, number, TDM_ROLE_Q_LATENT_NORM);
        if (p == TDM_PROJECTION_KV_A)
            layer->kv_latent_norm = add_weight(t, number, TDM_ROLE_KV_LATENT_NORM);
        if (p == TDM_PROJECTION_O) {
            layer->q_norm = add_weight(t, number, TDM_ROLE_Q_NORM);
            layer->k_norm = add_weight(t, number, TDM_ROLE_K_NORM);
            layer->sinks = add_weight(t, number, TDM_ROLE_SINKS);
        }
    }
    layer->xielu[0] = add_weight(t, number, TDM_ROLE_XIELU_POSITIVE);
    layer->xielu[1] = add_weight(t, number, TDM_ROLE_XIELU_NEGATIVE);
    if (t->config->layer_kinds[number].experts)
        add_experts(t, number);
    layer->attention_norm = add_weight(t, number, TDM_ROLE_ATTENTION_NORM);
    layer->attention_norm_bias = add_weight(t, number, TDM_ROLE_ATTENTION_NORM_BIAS);
    layer->post_attention_norm = add_weight(t, number, TDM_ROLE_POST_ATTENTION_NORM);
    layer->mlp_norm = add_weight(t, number, TDM_ROLE_MLP_NORM);
    layer->mlp_norm_bias = add_weight(t, number, TDM_ROLE_MLP_NORM_BIAS);
    layer->post_mlp_norm = add_weight(t, number, TDM_ROLE_POST_MLP_NORM);
}

/* peft's ModulesToSaveWrapper: trained copies, with which the model computes from now on. */
static void add_copies(struct tdm_torch_model *t)
{
    static const struct {
        enum tdm_saved_module module;
        const char *name;
        uint32_t number;
    } copies[] = {{TDM_SAVED_EMBEDDING, "model.embed_tokens.modules_to_save", TDM_MODULE_EMBEDDING},
                  {TDM_SAVED_HEAD, "lm_head.modules_to_save", TDM_MODULE_HEAD}};
    struct tdm_eager_value **places[] = {&t->embedding, &t->head};
    for (unsigned i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
        if ((t->settings.modules_to_save & copies[i].module) == 0)
            continue;
        t->m->label = (struct tdm_label){.name = copies[i].name, .layer = TDM_NO_LAYER};
        *places[i] = tdm_torch_add_parameter(
            t, copies[i].number, (*places[i])->rows, (*places[i])->columns,
            tdm_torch_is_narrow(&t->settings) ? BF16 : t->weight_bytes, true);
    }
}

/* The head of ForSequenceClassification. */
static struct tdm_eager_value *add_score(struct tdm_torch_model *t, bool trained)
{
    t->m->label = (struct tdm_label){.name = "score.weight", .layer = TDM_NO_LAYER};
    return tdm_torch_add_parameter(t, TDM_MODULE_HEAD, t->settings.labels, t->config->hidden,
                                   t->weight_bytes, trained && !t->settings.frozen);
}

static void add_parameters(struct tdm_torch_model *t)
{
    const struct tdm_model *config = t->config;
    uint32_t head = tdm_model_head_unit(config);
    tdm_torch_add_vision(t);
    t->m->category = TDM_METHOD_WEIGHTS;
    t->embedding = add_weight(t, tdm_model_embedding_unit(config), TDM_ROLE_EMBEDDING);
    t->position_weight = add_weight(t, tdm_model_embedding_unit(config), TDM_ROLE_POSITIONS);
    for (unsigned i = 0; i < 2; i++)
        t->embedding_norm[i] = add_weight(t, tdm_model_embedding_unit(config),
                                          (enum tdm_role)(TDM_ROLE_EMBEDDING_NORM + i));
    if (config->scaled_embedding)
        t->embedding_scale = tdm_value_new(t->m, 1, 1, t->weight_bytes);
    for (uint32_t i = 0; i < config->layers; i++)
        add_layer(t, i);
    t->final_norm = add_weight(t, head, TDM_ROLE_FINAL_NORM);
    t->final_norm_bias = add_weight(t, head, TDM_ROLE_FINAL_NORM_BIAS);
    if (t->settings.logits != TDM_LOGITS_SCORE)
        t->head_bias = add_weight(t, head, TDM_ROLE_HEAD_BIAS);
    tdm_label(t->m, "model.rotary_emb.inv_freq");
    const bool rotates = (config->parts & (TDM_PART_POSITIONS | TDM_PART_NO_ANGLES)) == 0;
    tdm_torch_gptj_angles(t);
    for (unsigned i = 0; i < 2 && rotates && config->own_scores != TDM_SCORES_GPTJ; i++)
        t->frequencies[i] = tdm_value_new(t->m, config->rotary_dim / 2, 1, FP32);
    if (t->settings.logits == TDM_LOGITS_SCORE)
        t->head = add_score(t, t->settings.lora_rank == 0);
    else
        t->head = add_head(t, head);
    if (t->settings.float8 == TDM_FLOAT8_TE && t->settings.logits != TDM_LOGITS_SCORE &&
        takes_float8(tdm_model_tensor(config, head, TDM_ROLE_HEAD)))
        t->head->float8 = TDM_FLOAT8_TE;
    if (t->settings.lora_rank > 0) {
        tdm_torch_add_adapters(t);
        add_copies(t);
        if (t->settings.logits == TDM_LOGITS_SCORE) /* peft trains a copy of it with SEQ_CLS */
            t->head = add_score(t, true);
    }
    t->m->category = TDM_METHOD_WORKSPACE;
}

/* What follows once all parameters are there: hooks of gradients, the wrapper's start, ids. */
static void start(struct tdm_torch_model *t)
{
    if (!t->settings.frozen) {
        t->m->gradient_ready = t->settings.steps_in_backward ? tdm_torch_step_ready
                               : t->settings.host_optimizer == TDM_HOST_GRADIENTS
                                   ? tdm_torch_send_ready
                                   : t->settings.wrapper->gradient;
        t->m->gradient_context = t;
    }
    if (t->settings.wrapper->start != NULL)
        t->settings.wrapper->start(t);
    t->m->label = (struct tdm_label){.name = "input_ids", .layer = TDM_NO_LAYER};
    t->ids = t->settings.ids != NULL
                 ? tdm_take(t->settings.ids)
                 : tdm_value_new(t->m, t->settings.batch, tdm_torch_own_tokens(t), INT64);
    tdm_torch_add_pixels(t);
}

#define SDPA_GROUPS_HEAD_DIM 256u /* of sdpa_attention.py use_gqa_in_sdpa */

/* Layers of Falcon 7B give torch one head of K and V for all queries, which no kernel takes
 * (transformers 5.17, modeling_falcon.py; sdp_utils.cpp check_batch_size_and_num_heads_dense).
 * LitGPT repeats them. */
static bool broadcasts_heads(const struct tdm_model *config,
                             const struct tdm_torch_settings *settings)
{
    return config->kv_heads == 1 && config->query_heads > 1 && !tdm_torch_is_litgpt(settings) &&
           strcmp(config->architecture, "FalconForCausalLM") == 0;
}

enum tdm_status tdm_torch_model_create(struct tdm_eager *m, const struct tdm_model *config,
                                       const struct tdm_torch_settings *settings,
                                       struct tdm_torch_model **model, struct tdm_error *err)
{
    const struct tdm_wrapper *w = settings->wrapper;
    struct tdm_torch_model *t = calloc(1, sizeof(*t));
    uint64_t tensor_ranks = tdm_tensor_ranks(settings);
    struct tdm_model *part = tensor_ranks > 1 ? tdm_tensor_part(config, settings) : NULL;
    const size_t mixtures = (size_t)config->layers * tdm_torch_expert_modules(config, settings);
    /* and a shared expert with its gate, and a router */
    size_t projections = (size_t)config->layers * (TDM_PROJECTIONS + 5) + 3 * mixtures;
    size_t most =
        config->tensor_count + projections * 5 + 16; /* with adapters, prompts and copies */
    most +=
        (size_t)config->vision.blocks *
        TDM_VISION_BLOCK_TENSORS; /* with adapters, prompts, copies and ends of a vision tower */
    if (settings->deepspeed.ep_size > 0)
        most += tdm_moe_most_weights(config);
    bool quantizes = settings->lora_rank > 0 && settings->quantization != TDM_QUANTIZATION_NONE;
    if (t != NULL) {
        t->m = m;
        t->part = part;
        t->config = part != NULL ? part : config;
        t->settings = *settings;
        t->settings.tokens += tdm_adapter_prompt_tokens(settings);
        t->layers = calloc(config->layers, sizeof(*t->layers));
        t->shared = calloc(config->layers, sizeof(*t->shared));
        t->experts = mixtures > 0 ? calloc(mixtures, sizeof(*t->experts)) : NULL;
        t->parameters = calloc(most, sizeof(struct tdm_eager_value *));
        t->states = calloc(most, sizeof(*t->states));
        t->quantized = quantizes ? calloc(projections + 1, sizeof(struct tdm_quantized *)) : NULL;
        t->wrapped = w->create == NULL ? NULL : w->create(t, (uint32_t)most);
    }
    if (t == NULL)
        tdm_tensor_part_free(part);
    if (t == NULL || (tensor_ranks > 1 && part == NULL) || t->layers == NULL || t->shared == NULL ||
        (mixtures > 0 && t->experts == NULL) || t->parameters == NULL || t->states == NULL ||
        (w->create != NULL && t->wrapped == NULL) || (quantizes && t->quantized == NULL)) {
        tdm_torch_model_free(t);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model");
    }
    const bool widens = tdm_fsdp_widens_adapters(settings);
    t->wide_adapters = settings->lora_rank > 0 && settings->peft;
    t->settings.narrow_adapters = tdm_torch_is_narrow(settings);
    if (w->mixes_precision && !widens) /* it casts adapters too */
        t->settings.peft = false;
    if (settings->quantization == TDM_QUANTIZATION_NF4 && settings->double_quantization)
        t->settings.quantization = TDM_QUANTIZATION_NF4_DOUBLE;
    if (settings->quantization == TDM_QUANTIZATION_GPTQ && settings->gptq_triton)
        t->settings.quantization = TDM_QUANTIZATION_GPTQ_TRITON;
    if (settings->attention == TDM_TORCH_MATERIALIZED)
        t->settings.attention = TDM_TORCH_EAGER;
    t->settings.flash_package =
        settings->attention == TDM_TORCH_FLASH || settings->context.divider != NULL;
    if (settings->attention == TDM_TORCH_FLASH)
        t->settings.attention = TDM_TORCH_SDPA_FLASH;
    m->fuses = settings->compile != TDM_COMPILE_NO;
    t->weight_bytes = settings->fp32_weights && !w->mixes_precision ? FP32 : BF16;
    t->autocasts = settings->autocast != TDM_AUTOCAST_NO &&
                   (settings->fp32_weights || settings->autocast == TDM_AUTOCAST_BF16) &&
                   (!w->mixes_precision || widens);
    /* cuDNN's kernel and FlashAttention take 16 bits alone (torch sdp_utils.cpp). */
    if (!t->autocasts && t->weight_bytes == FP32 &&
        (t->settings.attention == TDM_TORCH_SDPA || settings->attention == TDM_TORCH_SDPA_FLASH))
        t->settings.attention = settings->attention == TDM_TORCH_SDPA &&
                                        config->kv_heads < config->query_heads &&
                                        config->head_dim <= SDPA_GROUPS_HEAD_DIM
                                    ? TDM_TORCH_MATH
                                    : TDM_TORCH_EFFICIENT;
    if (broadcasts_heads(config, settings) &&
        (t->settings.attention == TDM_TORCH_SDPA || t->settings.attention == TDM_TORCH_SDPA_FLASH ||
         t->settings.attention == TDM_TORCH_EFFICIENT))
        t->settings.attention = TDM_TORCH_MATH;
    t->caches = (settings->use_cache || settings->second.trainer == TDM_TRAINER_PPO ||
                 tdm_adapter_prefix_tokens(settings) > 0) &&
                settings->checkpointing == TDM_CHECKPOINTING_OFF;
    if (!tdm_torch_cache_create(t)) {
        tdm_torch_model_free(t);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model");
    }
    add_parameters(t);
    enum tdm_status status = tdm_ppo_create_value(t, err);
    if (status == TDM_OK) {
        start(t);
        status = tdm_second_create(t, err);
    }
    if (status == TDM_OK)
        status = tdm_ppo_create_reward(t, err);
    if (status != TDM_OK) {
        tdm_torch_model_free(t);
        return status;
    }
    tdm_second_start(t);
    *model = t;
    return TDM_OK;
}

void tdm_torch_model_free(struct tdm_torch_model *t)
{
    if (t == NULL)
        return;
    tdm_drop(t->m, t->loss); /* with the frames of its checkpoints */
    tdm_drop(t->m, t->held_logits);
    tdm_drop(t->m, t->held_input);
    tdm_torch_cache_free(t);
    tdm_second_free(t);
    tdm_ppo_free(t);
    if (t->wrapped != NULL)
        t->settings.wrapper->free(t->wrapped);
    for (uint32_t i = 0; i < t->quantized_count; i++)
        free(t->quantized[i]);
    free(t->quantized);
    tdm_tensor_part_free(t->part);
    free(t->layers);
    free(t->shared);
    free(t->experts);
    free(t->parameters);
    free(t->states);
    free(t);
}

double tdm_torch_projection_elements(const struct tdm_model *model,
                                     const struct tdm_torch_settings *s)
{
    const struct tdm_experts *e = &model->experts;
    const double expert = 3.0 * model->hidden;
    double elements = 0;
    for (uint32_t i = 0; i < model->layers; i++) {
        if (model->layer_kinds[i].experts)
            elements +=
                expert * (e->shared + (double)tdm_torch_expert_modules(model, s) * e->intermediate);
        for (unsigned p = 0; p < TDM_PROJECTIONS; p++) {
            const struct tdm_tensor *tensor =
                tdm_model_tensor(model, i, projection_roles[p].weight);
            elements += tensor == NULL ? 0 : (double)tensor->rows * (double)tensor->columns;
        }
    }
    return elements;
}

double tdm_torch_gathered_elements(const struct tdm_model *model,
                                   const struct tdm_torch_settings *s)
{
    double elements = (double)model->parameters;
    if (s->quantization != TDM_QUANTIZATION_NONE)
        elements -= (shards_quantized(s) ? 0.75 : 1) * tdm_torch_projection_elements(model, s);
    return elements;
}

uint64_t tdm_torch_weight_bytes(const struct tdm_torch_model *t)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        bytes += tdm_value_elements(t->parameters[i]) * t->parameters[i]->element_bytes;
    for (uint32_t i = 0; i < t->quantized_count; i++)
        bytes += tdm_quantized_bytes(t->quantized[i]);
    return bytes;
}
