/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what configs say of mixtures of experts, of latent attention and of gated DeltaNets.
 * Sources: transformers 5.17, models/MODEL_TYPE/configuration_MODEL_TYPE.py and
 * modeling_MODEL_TYPE.py. */
#include "models/parts.h"

#include <inttypes.h>
#include <string.h>

static uint32_t dimension(struct tdm_json_reader *reader, const char *key)
{
    return (uint32_t)tdm_json_count(reader, key, 1, TDM_DIMENSION_LIMIT);
}

static uint32_t dimension_or_none(struct tdm_json_reader *reader, const char *key)
{
    return tdm_json_has(reader, key) ? dimension(reader, key) : 0;
}

/* ---- experts ---- */

static bool is_listed(const json_t *list, uint32_t number)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == (json_int_t)number)
            return true;
    return false;
}

/* DeepSeek's first layers are dense, then all or every n-th have experts; GLM-4.7-Flash may list
 * them. */
static void read_deepseek_layers(struct tdm_json_reader *reader, struct tdm_model *model)
{
    uint64_t dense = tdm_json_count_or(reader, "first_k_dense_replace", 0, TDM_LAYER_LIMIT, 0);
    const json_t *types =
        tdm_json_has(reader, "mlp_layer_types") ? tdm_json_array(reader, "mlp_layer_types") : NULL;
    uint64_t every = tdm_json_count_or(reader, "moe_layer_freq", 1, TDM_LAYER_LIMIT, 1);
    if (types != NULL && json_array_size(types) != model->layers)
        tdm_json_fail(reader, "mlp_layer_types",
                      "has %zu entries for %" PRIu32 " layers; give one a layer",
                      json_array_size(types), model->layers);
    for (uint32_t i = 0; i < model->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        model->layer_kinds[i].experts = types == NULL ? i >= dense && i % every == 0
                                                      : type != NULL && strcmp(type, "sparse") == 0;
    }
}

/* Qwen's dense layers are listed, or every n-th has experts. */
static void read_qwen_layers(struct tdm_json_reader *reader, struct tdm_model *model)
{
    uint64_t every = tdm_json_count_or(reader, "decoder_sparse_step", 1, TDM_LAYER_LIMIT, 1);
    const json_t *dense =
        tdm_json_has(reader, "mlp_only_layers") ? tdm_json_array(reader, "mlp_only_layers") : NULL;
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].experts = (i + 1) % every == 0 && !is_listed(dense, i);
}

/* ERNIE's are every n-th from one layer to another. */
static void read_ernie_layers(struct tdm_json_reader *reader, struct tdm_model *model)
{
    const json_t *end = json_object_get(reader->object, "moe_layer_end_index");
    const bool to_last = !json_is_integer(end) || json_integer_value(end) == -1;
    const uint64_t first =
                       tdm_json_count_or(reader, "moe_layer_start_index", 0, TDM_LAYER_LIMIT, 1),
                   last = to_last
                              ? TDM_LAYER_LIMIT
                              : tdm_json_count(reader, "moe_layer_end_index", 0, TDM_LAYER_LIMIT),
                   every = tdm_json_count_or(reader, "moe_layer_interval", 1, TDM_LAYER_LIMIT, 1);
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].experts = i >= first && i <= last && (i + 1) % every == 0;
}

/* LFM2's first layers are dense. */
static void read_lfm2_layers(struct tdm_json_reader *reader, struct tdm_model *model)
{
    const uint64_t dense = tdm_json_count_or(reader, "num_dense_layers", 0, TDM_LAYER_LIMIT, 2);
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].experts = i >= dense;
}

/* Llama 4's layers with experts are listed, or are every n-th. */
static void read_llama4_layers(struct tdm_json_reader *reader, struct tdm_model *model)
{
    uint64_t every = tdm_json_count_or(reader, "interleave_moe_layer_step", 1, TDM_LAYER_LIMIT, 1);
    const json_t *listed =
        tdm_json_has(reader, "moe_layers") ? tdm_json_array(reader, "moe_layers") : NULL;
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].experts =
            listed != NULL ? is_listed(listed, i) : (i + 1) % every == 0;
}

void tdm_experts_read_layers(struct tdm_json_reader *reader, enum tdm_family family,
                             struct tdm_model *model)
{
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].experts = model->experts.count > 0;
    if (family == TDM_FAMILY_DEEPSEEK)
        read_deepseek_layers(reader, model);
    else if (family == TDM_FAMILY_ERNIE)
        read_ernie_layers(reader, model);
    else if (family == TDM_FAMILY_LFM2)
        read_lfm2_layers(reader, model);
    else if (family == TDM_FAMILY_LLAMA4)
        read_llama4_layers(reader, model);
    else if (family == TDM_FAMILY_QWEN2_MOE || family == TDM_FAMILY_QWEN3_MOE ||
             family == TDM_FAMILY_QWEN3_NEXT)
        read_qwen_layers(reader, model);
}

/* Experts of a token. ERNIE and Hunyuan have names of their own, of which the latter's may be a
 * list with a number for each layer. */
static uint32_t read_choice(struct tdm_json_reader *reader, enum tdm_family family)
{
    const char *own = family == TDM_FAMILY_ERNIE     ? "moe_k"
                      : family == TDM_FAMILY_HUNYUAN ? "moe_topk"
                                                     : NULL,
               *common = "num_experts_per_tok";
    if (own == NULL || !tdm_json_has(reader, own))
        return dimension(reader, common);
    const json_t *list = json_object_get(reader->object, own);
    for (size_t i = 1; i < json_array_size(list); i++)
        if (!json_equal(json_array_get(list, i), json_array_get(list, 0)))
            tdm_json_fail(reader, own, "differs between layers, which is not known");
    const json_int_t first = json_integer_value(json_array_get(list, 0));
    if (json_is_array(list) && (first < 1 || first > (json_int_t)TDM_DIMENSION_LIMIT))
        tdm_json_fail(reader, own, "must hold numbers from 1 on");
    return json_is_array(list) ? (uint32_t)first : dimension(reader, own);
}

/* Its weights are never made to add up to 1. */
static void read_deepseek_v2_router(struct tdm_json_reader *reader, struct tdm_experts *e)
{
    const char *method = tdm_json_string_or(reader, "topk_method", "greedy");
    e->normalized = false;
    e->router = TDM_ROUTER_GREEDY;
    if (strcmp(method, "group_limited_greedy") == 0)
        e->router = TDM_ROUTER_LIMITED_GREEDY;
    else if (strcmp(method, "greedy") != 0)
        tdm_json_fail(reader, "topk_method",
                      "is \"%.40s\"; expected \"greedy\" or \"group_limited_greedy\"", method);
}

/* The names of the fields depend on the family. */
void tdm_experts_read(struct tdm_json_reader *reader, enum tdm_family family,
                      struct tdm_model *model)
{
    static const struct {
        const char *count;
        bool own_intermediate, normalized, wide_weights, router_first;
        enum tdm_router router;
    } families[] = {
        [TDM_FAMILY_MIXTRAL] = {"num_local_experts", false, true, true, true},
        [TDM_FAMILY_OLMOE] = {"num_experts", false, false, false, true},
        [TDM_FAMILY_QWEN3_MOE] = {"num_experts", true, false, false, false},
        [TDM_FAMILY_QWEN2_MOE] = {"num_experts", true, false, false, true},
        [TDM_FAMILY_QWEN3_NEXT] = {"num_experts", true, false, false, true},
        [TDM_FAMILY_QWEN3_5_MOE] = {"num_experts", true, true, false, true},
        [TDM_FAMILY_DEEPSEEK] = {"n_routed_experts", true, false, true, false, TDM_ROUTER_GROUPS},
        [TDM_FAMILY_GPT_OSS] = {"num_local_experts", false, false, false, true},
        [TDM_FAMILY_LLAMA4] = {"num_local_experts", true, false, false, false},
        [TDM_FAMILY_GRANITE_HYBRID] = {"num_local_experts", false, true, false, true,
                                       TDM_ROUTER_CHOSEN},
        [TDM_FAMILY_GRANITE_MOE] = {"num_local_experts", false, true, false, true,
                                    TDM_ROUTER_CHOSEN},
        [TDM_FAMILY_ERNIE] = {"moe_num_experts", true, true, false, true, TDM_ROUTER_ERNIE},
        [TDM_FAMILY_HUNYUAN] = {"num_experts", false, true, true, true, TDM_ROUTER_HUNYUAN},
        [TDM_FAMILY_MINIMAX] = {"num_local_experts", false, true, true, true, TDM_ROUTER_MINIMAX},
        [TDM_FAMILY_LFM2] = {"num_experts", true, true, false, false, TDM_ROUTER_LFM2},
    };
    struct tdm_experts *e = &model->experts;
    if (family == TDM_FAMILY_DENSE || family == TDM_FAMILY_QWEN3_5)
        return;
    const bool granite = family == TDM_FAMILY_GRANITE_HYBRID;
    const json_t *local = json_object_get(reader->object, "num_local_experts");
    if (granite && json_is_integer(local) && json_integer_value(local) == 0)
        return;
    /* transformers 5 writes this name for all families. */
    const char *own = families[family].count, *common = "num_local_experts";
    e->count = dimension(reader,
                         !tdm_json_has(reader, own) && tdm_json_has(reader, common) ? common : own);
    e->per_token = read_choice(reader, family);
    e->router = families[family].router;
    const bool llama4 = family == TDM_FAMILY_LLAMA4;
    e->intermediate =
        families[family].own_intermediate
            ? dimension(reader, llama4 ? "intermediate_size" : "moe_intermediate_size")
        : granite ? dimension(reader, "intermediate_size")
                  : model->intermediate;
    e->normalized =
        families[family].normalized || tdm_json_bool_or(reader, "norm_topk_prob", false);
    e->wide_weights = families[family].wide_weights;
    e->router_first = families[family].router_first;
    if (family == TDM_FAMILY_DEEPSEEK)
        e->groups = (uint32_t)tdm_json_count_or(reader, "n_group", 1, TDM_DIMENSION_LIMIT, 1);
    if (family == TDM_FAMILY_DEEPSEEK)
        e->shared = e->intermediate * dimension_or_none(reader, "n_shared_experts");
    if (family == TDM_FAMILY_ERNIE || family == TDM_FAMILY_HUNYUAN) {
        e->wide_router = e->shared_first = true;
        e->shared = family == TDM_FAMILY_HUNYUAN
                        ? e->intermediate
                        : e->intermediate * (uint32_t)tdm_json_count_or(
                                                reader, "moe_num_shared_experts", 0, 1024, 2);
    }
    if (family == TDM_FAMILY_LFM2)
        e->normalized = tdm_json_bool_or(reader, "norm_topk_prob", true);
    if (strcmp(model->architecture, "DeepseekV2ForCausalLM") == 0)
        read_deepseek_v2_router(reader, e);
    e->biased = family == TDM_FAMILY_GPT_OSS;
    e->all_rows = llama4;
    e->beside = granite;
    if (llama4)
        e->shared = e->intermediate;
    if (family == TDM_FAMILY_QWEN3_NEXT) /* the default, which configs need not have */
        e->normalized = tdm_json_bool_or(reader, "norm_topk_prob", true);
    if (family == TDM_FAMILY_QWEN2_MOE || family == TDM_FAMILY_QWEN3_NEXT ||
        family == TDM_FAMILY_QWEN3_5_MOE) {
        e->shared = dimension(reader, "shared_expert_intermediate_size");
        e->shared_gate = e->shared_first = true;
    }
    if (tdm_json_status(reader) == TDM_OK && e->per_token > e->count)
        tdm_json_fail(reader, "num_experts_per_tok", "is %" PRIu32 " of %" PRIu32 " experts",
                      e->per_token, e->count);
}

/* ---- latent attention ---- */

void tdm_latent_read(struct tdm_json_reader *reader, struct tdm_model *model)
{
    struct tdm_latent *l = &model->latent;
    l->q_rank = dimension_or_none(reader, "q_lora_rank");
    l->kv_rank = dimension(reader, "kv_lora_rank");
    l->plain_dim = dimension(reader, "qk_nope_head_dim");
    l->rotary_dim = dimension(reader, "qk_rope_head_dim");
    l->value_dim = dimension(reader, "v_head_dim");
    model->head_dim = l->plain_dim + l->rotary_dim;
    model->rotary_dim = l->rotary_dim;
    l->rotation = strcmp(model->architecture, "DeepseekV2ForCausalLM") == 0 ? TDM_LATENT_COMPLEX
                  : tdm_json_bool_or(reader, "rope_interleave", true)       ? TDM_LATENT_NEIGHBOURS
                                                                            : TDM_LATENT_HALVES;
    if (tdm_json_status(reader) == TDM_OK && l->rotary_dim % 2 != 0)
        tdm_json_fail(reader, "qk_rope_head_dim",
                      "is %" PRIu32 "; rotary position embedding needs an even one", l->rotary_dim);
}

/* ---- gated DeltaNets ---- */

#define DELTA_INTERVAL 4u /* full_attention_interval */

void tdm_delta_read(struct tdm_json_reader *reader, struct tdm_model *model)
{
    struct tdm_delta *d = &model->delta;
    d->key_heads = dimension(reader, "linear_num_key_heads");
    d->value_heads = dimension(reader, "linear_num_value_heads");
    d->key_dim = dimension(reader, "linear_key_head_dim");
    d->value_dim = dimension(reader, "linear_value_head_dim");
    d->kernel = dimension(reader, "linear_conv_kernel_dim");
    d->apart = strncmp(model->architecture, "Qwen3_5", strlen("Qwen3_5")) == 0;
    if (tdm_json_status(reader) == TDM_OK && d->value_heads % d->key_heads != 0)
        tdm_json_fail(reader, "linear_num_value_heads",
                      "is %" PRIu32 ", which %" PRIu32 " key heads do not divide", d->value_heads,
                      d->key_heads);
}

void tdm_delta_read_layers(struct tdm_json_reader *reader, struct tdm_model *model)
{
    const json_t *types =
        tdm_json_has(reader, "layer_types") ? tdm_json_array(reader, "layer_types") : NULL;
    uint64_t every =
        tdm_json_count_or(reader, "full_attention_interval", 1, TDM_LAYER_LIMIT, DELTA_INTERVAL);
    if (types != NULL && json_array_size(types) != model->layers)
        tdm_json_fail(reader, "layer_types",
                      "has %zu entries for %" PRIu32 " layers; give one a layer",
                      json_array_size(types), model->layers);
    for (uint32_t i = 0; i < model->layers && tdm_json_status(reader) == TDM_OK; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool linear = type != NULL && strcmp(type, "linear_attention") == 0;
        if (types != NULL && !linear && (type == NULL || strcmp(type, "full_attention") != 0))
            tdm_json_fail(reader, "layer_types",
                          "must be \"full_attention\" or \"linear_attention\" for layer %" PRIu32,
                          i);
        model->layer_kinds[i].delta = types != NULL ? linear : (i + 1) % every != 0;
        model->layer_kinds[i].qk_norm &= !model->layer_kinds[i].delta;
    }
}
