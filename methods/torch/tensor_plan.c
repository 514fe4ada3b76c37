/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tensor-parallel rank has of a model: one with smaller matrices. torchtitan divides heads,
 * MLP and vocabulary; transformers divides what each family's base_model_tp_plan says (5.17,
 * models/NAME/configuration_NAME.py), and the head. Where q, k and v are one product, or have a
 * norm over all heads, its plan gathers what was divided, so that attention is whole on every rank.
 */
#include "methods/torch/tensor.h"

#include "base/size.h"
#include "methods/divisors.h"
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- plans ---- */

enum attention { BY_HEADS, GATHERED, LATENT, UNDIVIDED, NO_PLAN };

/* Families whose plans were compared with steps (tests/data/tensor_parallel.csv), others that have
 * the same plan and the same parts, and those that torchtitan alone divides. */
static const struct family {
    const char *architecture;
    enum attention attention;
} families[] = {
    {"ApertusForCausalLM", BY_HEADS},   {"ArceeForCausalLM", BY_HEADS},
    {"CohereForCausalLM", BY_HEADS},    {"Cohere2ForCausalLM", BY_HEADS},
    {"DeepseekV2ForCausalLM", LATENT},  {"DeepseekV3ForCausalLM", UNDIVIDED},
    {"Dots1ForCausalLM", BY_HEADS},     {"Ernie4_5ForCausalLM", BY_HEADS},
    {"Exaone4ForCausalLM", BY_HEADS},   {"GemmaForCausalLM", BY_HEADS},
    {"Gemma2ForCausalLM", BY_HEADS},    {"Gemma3ForCausalLM", BY_HEADS},
    {"GlmForCausalLM", BY_HEADS},       {"Glm4ForCausalLM", BY_HEADS},
    {"Glm4MoeForCausalLM", BY_HEADS},   {"GraniteForCausalLM", BY_HEADS},
    {"LlamaForCausalLM", BY_HEADS},     {"MiniMaxM2ForCausalLM", GATHERED},
    {"MinistralForCausalLM", BY_HEADS}, {"Ministral3ForCausalLM", BY_HEADS},
    {"MistralForCausalLM", BY_HEADS},   {"MixtralForCausalLM", BY_HEADS},
    {"OlmoForCausalLM", BY_HEADS},      {"Olmo2ForCausalLM", GATHERED},
    {"Olmo3ForCausalLM", GATHERED},     {"OlmoeForCausalLM", GATHERED},
    {"PhiForCausalLM", BY_HEADS},       {"Phi3ForCausalLM", GATHERED},
    {"Qwen2ForCausalLM", BY_HEADS},     {"Qwen3ForCausalLM", BY_HEADS},
    {"Qwen3MoeForCausalLM", BY_HEADS},  {"SeedOssForCausalLM", BY_HEADS},
    {"SmolLM3ForCausalLM", BY_HEADS},   {"GptOssForCausalLM", NO_PLAN},
    {"Llama4ForCausalLM", NO_PLAN},     {"Llama4ForConditionalGeneration", NO_PLAN},
};

static const struct family *family_of(const struct tdm_model *model)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(model->architecture, families[i].architecture) == 0)
            return &families[i];
    return NULL;
}

/* torchtitan divides heads, of latent attention what makes them of the latents. */
static enum attention attention_of(const struct tdm_model *model,
                                   const struct tdm_torch_settings *s)
{
    const struct family *family = family_of(model);
    if (family == NULL || !tdm_tensor_is_planned(s))
        return model->latent.kv_rank > 0 ? LATENT : BY_HEADS;
    return family->attention;
}

enum tdm_tensor_style tdm_tensor_style(const struct tdm_model *model,
                                       const struct tdm_torch_settings *s, enum tdm_projection p)
{
    const enum attention attention = attention_of(model, s);
    switch (p) {
    case TDM_PROJECTION_Q:
    case TDM_PROJECTION_K:
    case TDM_PROJECTION_V:
    case TDM_PROJECTION_QKV:
        return attention == UNDIVIDED  ? TDM_STYLE_WHOLE
               : attention == GATHERED ? TDM_STYLE_COLUMNS_GATHERED
                                       : TDM_STYLE_COLUMNS;
    case TDM_PROJECTION_Q_B:
    case TDM_PROJECTION_KV_B:
        return attention == LATENT ? TDM_STYLE_COLUMNS : TDM_STYLE_WHOLE;
    case TDM_PROJECTION_KV_A:
        return attention == LATENT ? TDM_STYLE_JOINED : TDM_STYLE_WHOLE;
    case TDM_PROJECTION_O:
        return attention == UNDIVIDED  ? TDM_STYLE_WHOLE
               : attention == GATHERED ? TDM_STYLE_ROWS_SPLIT
                                       : TDM_STYLE_ROWS;
    case TDM_PROJECTION_GATE:
    case TDM_PROJECTION_UP:
        return TDM_STYLE_COLUMNS;
    case TDM_PROJECTION_GATE_UP:
        return TDM_STYLE_COLUMNS_GATHERED;
    case TDM_PROJECTION_DOWN:
        return (model->parts & TDM_PART_JOINT_GATE_UP) != 0 ? TDM_STYLE_ROWS_SPLIT : TDM_STYLE_ROWS;
    case TDM_PROJECTION_Q_A:
    default:
        return TDM_STYLE_WHOLE;
    }
}

/* ---- a rank's part of a model ---- */

enum cut { WHOLE, BY_ROWS, BY_COLUMNS };

static enum cut cut_of_product(const struct tdm_model *model, const struct tdm_torch_settings *s,
                               enum tdm_projection p)
{
    const enum tdm_tensor_style style = tdm_tensor_style(model, s, p);
    return style == TDM_STYLE_COLUMNS || style == TDM_STYLE_COLUMNS_GATHERED ? BY_ROWS
           : style == TDM_STYLE_ROWS || style == TDM_STYLE_ROWS_SPLIT        ? BY_COLUMNS
                                                                             : WHOLE;
}

/* Under expert parallelism tensor ranks have experts of their own, whole ones (torchtitan,
 * expert_tensor_parallel_degree=1). */
static bool divides_experts(const struct tdm_torch_settings *s)
{
    return tdm_fsdp_expert_ranks(s) == 1;
}

static enum cut cut_of(const struct tdm_model *model, const struct tdm_torch_settings *s,
                       enum tdm_role role)
{
    switch (role) {
    case TDM_ROLE_EMBEDDING: /* by a plan whole, unless it is the head too */
        return tdm_tensor_is_planned(s) && !model->tied ? WHOLE : BY_ROWS;
    case TDM_ROLE_HEAD:
    case TDM_ROLE_GATE:
    case TDM_ROLE_UP:
    case TDM_ROLE_GATE_UP:
    case TDM_ROLE_SHARED_GATE:
    case TDM_ROLE_SHARED_UP:
        return BY_ROWS;
    case TDM_ROLE_DOWN:
    case TDM_ROLE_SHARED_DOWN:
    case TDM_ROLE_UP_BIAS: /* one row */
    case TDM_ROLE_HEAD_BIAS:
    case TDM_ROLE_SINKS:
        return BY_COLUMNS;
    case TDM_ROLE_EXPERTS_GATE_UP:
        return divides_experts(s) ? BY_ROWS : WHOLE;
    case TDM_ROLE_EXPERTS_DOWN:
    case TDM_ROLE_EXPERTS_GATE_UP_BIAS:
        return divides_experts(s) ? BY_COLUMNS : WHOLE;
    case TDM_ROLE_Q:
    case TDM_ROLE_K:
    case TDM_ROLE_V:
    case TDM_ROLE_QKV:
        return cut_of_product(model, s, TDM_PROJECTION_Q);
    case TDM_ROLE_Q_BIAS:
    case TDM_ROLE_K_BIAS:
    case TDM_ROLE_V_BIAS:
    case TDM_ROLE_QKV_BIAS:
        return cut_of_product(model, s, TDM_PROJECTION_Q) == WHOLE ? WHOLE : BY_COLUMNS;
    case TDM_ROLE_Q_FROM_LATENT:
    case TDM_ROLE_KV_FROM_LATENT:
        return cut_of_product(model, s, TDM_PROJECTION_KV_B);
    case TDM_ROLE_O:
        return cut_of_product(model, s, TDM_PROJECTION_O);
    default:
        return WHOLE;
    }
}

static bool divides_heads(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    return tdm_tensor_style(model, s, TDM_PROJECTION_O) == TDM_STYLE_ROWS;
}

struct tdm_model *tdm_tensor_part(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    const uint64_t ranks = tdm_tensor_ranks(s);
    struct tdm_model *part = malloc(sizeof(*part));
    struct tdm_tensor *tensors = calloc(model->tensor_count, sizeof(*tensors));
    if (part == NULL || tensors == NULL) {
        free(part);
        free(tensors);
        return NULL;
    }
    *part = *model;
    part->tensors = tensors;
    if (divides_heads(model, s)) {
        part->query_heads /= (uint32_t)ranks;
        part->kv_heads /= (uint32_t)ranks;
    }
    part->intermediate /= (uint32_t)ranks;
    if (divides_experts(s))
        part->experts.intermediate /= (uint32_t)ranks;
    part->experts.shared /= (uint32_t)ranks;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct tdm_tensor *tensor = &tensors[i];
        *tensor = model->tensors[i];
        const enum cut cut = cut_of(model, s, tensor->role);
        if (cut == BY_ROWS) /* torch.chunk: the first rank has no less than others */
            tensor->rows = tdm_size_ceil_div(tensor->rows, ranks);
        if (cut == BY_COLUMNS)
            tensor->columns = tdm_size_ceil_div(tensor->columns, ranks);
        tensor->elements = tensor->rows * tensor->columns;
    }
    return part;
}

void tdm_tensor_part_free(struct tdm_model *part)
{
    if (part != NULL)
        free(part->tensors);
    free(part);
}

/* ---- limits ---- */

static enum tdm_status check_settings(const struct tdm_model *model,
                                      const struct tdm_torch_settings *s, struct tdm_error *err)
{
    const bool planned = tdm_tensor_is_planned(s), adapts = s->lora_rank > 0;
    const struct {
        const char *key, *why;
        bool is_set;
    } unknown[] = {
        {"lora_rank", NULL,
         adapts && (s->adapter != TDM_ADAPTER_LORA || s->dora || s->modules_to_save != 0 ||
                    tdm_tensor_style(model, s, TDM_PROJECTION_O) != TDM_STYLE_ROWS ||
                    tdm_tensor_style(model, s, TDM_PROJECTION_DOWN) != TDM_STYLE_ROWS)},
        {"quantization", NULL, s->quantization != TDM_QUANTIZATION_NONE},
        {"float8_recipe", NULL,
         s->float8 != TDM_FLOAT8_NO &&
             (planned || s->float8 == TDM_FLOAT8_TE || s->float8 == TDM_FLOAT8_BLOCKWISE ||
              (s->float8 == TDM_FLOAT8_TENSORWISE &&
               (model->experts.count > 0 || model->latent.kv_rank > 0 || adapts)))},
        {"liger", NULL, !planned && s->liger != 0},
        {"logits=fused", "Liger's loss is given a weight of which a rank has a part",
         s->logits == TDM_LOGITS_FUSED},
        {"model_code", NULL, s->code != TDM_CODE_TRANSFORMERS},
        {"tiled_mlp_compute", NULL, s->mlp_tiles > 0},
        {"tiled_logits", NULL, s->logits_tiles > 0},
        {"logits", NULL,
         s->logits != TDM_LOGITS_HF && s->logits != TDM_LOGITS_HF_HELD &&
             s->logits != TDM_LOGITS_BF16 && s->logits != TDM_LOGITS_BF16_HELD &&
             s->logits != TDM_LOGITS_BASE},
        {"compile", NULL, planned && s->compile != TDM_COMPILE_NO},
        {"optimizer", NULL,
         s->optimizer >= TDM_TORCH_ADAMW_8BIT && s->optimizer != TDM_TORCH_ADAMW_4BIT &&
             s->optimizer != TDM_TORCH_ADAMW_FP8 && s->optimizer != TDM_TORCH_AO_ADAMW_8BIT},
        {"expert_parallel_degree", NULL, planned && tdm_fsdp_expert_ranks(s) > 1},
    };
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        if (unknown[i].is_set)
            return tdm_fail(err, TDM_USAGE, "--set %s: with %s it %s%s", tdm_tensor_key(s),
                            unknown[i].key,
                            unknown[i].why == NULL ? "is not modelled" : "does not run: ",
                            unknown[i].why == NULL ? "" : unknown[i].why);
    return TDM_OK;
}

/* torchtitan's way goes with layers whose products are those of Llama or DeepSeek. */
static bool is_known(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    const struct family *family = family_of(model);
    if (family == NULL || tdm_tensor_is_planned(s))
        return family != NULL && family->attention != NO_PLAN;
    return family->attention != GATHERED && !model->experts.beside &&
           (model->parts & (TDM_PART_PARALLEL | TDM_PART_JOINT_GATE_UP)) == 0;
}

static enum tdm_status check_model(const struct tdm_model *model,
                                   const struct tdm_torch_settings *s, struct tdm_error *err)
{
    const char *key = tdm_tensor_key(s);
    char divisors[TDM_DIVISORS_BYTES];
    if (!is_known(model, s)) {
        tdm_fail(err, TDM_USAGE, "--set %s: layers of %s are not modelled in parts", key,
                 model->architecture);
        return tdm_hint(err, "%s",
                        tdm_tensor_is_planned(s)
                            ? "of what has a tp_plan in transformers Llama, Mistral, Qwen2, Qwen3, "
                              "Gemma, Phi, OLMo, GLM-4, Mixtral and more are"
                            : "Llama, Mistral, Qwen, Gemma, DeepSeek, GPT-OSS and more are; by "
                              "--set tp_size also Phi, OLMo 2 and GLM-4");
    }
    const struct tdm_experts *e = &model->experts;
    uint64_t common = divides_heads(model, s)
                          ? tdm_common_divisor(model->query_heads, model->kv_heads)
                      : tdm_tensor_style(model, s, TDM_PROJECTION_O) == TDM_STYLE_ROWS_SPLIT
                          ? (uint64_t)model->kv_heads * model->head_dim
                          : model->intermediate;
    common = tdm_common_divisor(common, model->intermediate);
    if (e->count > 0 && divides_experts(s))
        common = tdm_common_divisor(common, e->intermediate);
    if (common % tdm_tensor_ranks(s) == 0)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "--set %s: %" PRIu64 " does not divide %" PRIu32 " heads, %" PRIu32
             " KV heads and the MLP's %" PRIu32,
             key, tdm_tensor_ranks(s), model->query_heads, model->kv_heads,
             e->count > 0 ? e->intermediate : model->intermediate);
    return tdm_hint(err, "degrees that do: %s",
                    tdm_divisors_format(common, 1, UINT64_MAX, divisors));
}

enum tdm_status tdm_tensor_check(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const uint64_t ranks = tdm_tensor_ranks(s), parts = ranks * tdm_fsdp_replicas(&s->fsdp);
    if (ranks == 1)
        return TDM_OK;
    if (s->tensor.ranks > 1 && s->tensor.plan_ranks > 1)
        return tdm_fail(err, TDM_USAGE,
                        "--set tp_size: it is another way than tensor_parallel_degree; give one");
    enum tdm_status status = check_model(model, s, err);
    if (status != TDM_OK)
        return status;
    if (s->ranks % parts != 0 || s->ranks == parts) {
        tdm_fail(err, TDM_USAGE,
                 "--set %s: %" PRIu64 " GPUs are not two or more shards of %" PRIu64,
                 tdm_tensor_key(s), s->ranks, parts);
        return tdm_hint(err, "--gpus %" PRIu64 "; without shards it is no method here", 2 * parts);
    }
    const uint64_t chunks = s->context.divider == NULL ? 1
                            : s->context.ranks > 0     ? 2 * s->context.ranks
                                                       : 2 * s->ranks / ranks,
                   cuts = chunks * (tdm_tensor_is_planned(s) ? 1 : ranks);
    if (s->tokens % cuts != 0) {
        tdm_fail(err, TDM_USAGE, "--context: %" PRIu64 " tokens are no multiple of %" PRIu64,
                 s->tokens, cuts);
        return tdm_hint(err, "--context %" PRIu64, tdm_size_ceil_div(s->tokens, cuts) * cuts);
    }
    return check_settings(model, s, err);
}
