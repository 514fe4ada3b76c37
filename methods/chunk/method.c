/* SPDX-License-Identifier: Apache-2.0 */
/* The methods oomb, seco and longlora: their presets, their checks, and the cost of a step. */
#include "methods/chunk/method.h"

#include "base/size.h"
#include "methods/torch/parts.h"
#include "methods/divisors.h"

#include <inttypes.h>
#include <math.h>

#define ELEMENT_BYTES 2.0
#define HEAD_DIM_MOST 128u /* of OOMB's kernels */

void tdm_oomb_preset(struct tdm_method_settings *settings)
{
    settings->torch.attention = TDM_TORCH_SDPA_FLASH; /* no cuDNN */
}

void tdm_seco_preset(struct tdm_method_settings *settings)
{
    settings->torch.attention = TDM_TORCH_SDPA_FLASH;
    settings->chunk.page_tokens = 0;
}

void tdm_longlora_preset(struct tdm_method_settings *settings)
{
    settings->torch.attention = TDM_TORCH_SDPA_FLASH;
    settings->torch.shifted = true;
}

/* OOMB and SeCO replace the layers' code with that of Llama and Qwen2. */
static enum tdm_status check_model(const struct tdm_model *model,
                                   const struct tdm_method_settings *settings,
                                   struct tdm_error *err)
{
    const char *method = settings->method->name;
    for (uint32_t l = 0; l < model->layers; l++)
        if (model->layer_kinds[l].experts)
            return tdm_fail(err, TDM_USAGE, "method %s has no code for experts", method);
    if (model->offset_norms || model->attention_softcap > 0)
        return tdm_fail(err, TDM_USAGE, "method %s has no code for models with capped scores",
                        method);
    if (model->parts != 0)
        return tdm_fail(err, TDM_USAGE, "method %s has no code for %s", method,
                        model->architecture);
    return TDM_OK;
}

enum tdm_status tdm_seco_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                               struct tdm_error *err)
{
    return check_model(model, settings, err);
}

/* Ranks divide KV heads and the MLP (train_blockwise_tp.py). peft adapts no layers of its kind. */
static enum tdm_status check_ranks(const struct tdm_model *model,
                                   const struct tdm_method_settings *settings,
                                   struct tdm_error *err)
{
    uint64_t ranks = settings->torch.ranks;
    uint64_t common = tdm_common_divisor(tdm_common_divisor(model->query_heads, model->kv_heads),
                                         model->intermediate);
    char text[TDM_DIVISORS_BYTES];
    if (settings->torch.lora_rank > 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set lora_rank: method oomb has adapters on one GPU only; on several its layers "
                 "are of a kind that peft does not adapt");
        return tdm_hint(err, "--set lora_rank=0, or --gpus 1");
    }
    if (common % ranks == 0)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "method oomb: %" PRIu64 " ranks do not divide %" PRIu32
             " KV heads and an MLP of %" PRIu32,
             ranks, model->kv_heads, model->intermediate);
    return tdm_hint(err, "--gpus %s", tdm_divisors_format(common, 1, TDM_CHUNK_RANKS, text));
}

enum tdm_status tdm_oomb_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                               struct tdm_error *err)
{
    const struct tdm_chunk_settings *s = &settings->chunk;
    uint64_t ranks = settings->torch.ranks;
    if (ranks == 1)
        settings->communicators = 0; /* it has one, that sends nothing */
    if (model->head_dim > HEAD_DIM_MOST)
        return tdm_fail(err, TDM_USAGE, "method %s: heads of %" PRIu32 " are more than its %u",
                        settings->method->name, model->head_dim, HEAD_DIM_MOST);
    if (s->tokens % s->page_tokens != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set chunk: %" PRIu64
                        " tokens are not a multiple of the page of %" PRIu64,
                        s->tokens, s->page_tokens);
    if (s->budget % s->page_tokens != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set budget: %" PRIu64
                        " tokens are not a multiple of the page of %" PRIu64,
                        s->budget, s->page_tokens);
    enum tdm_status status = check_model(model, settings, err);
    return status != TDM_OK || ranks == 1 ? status : check_ranks(model, settings, err);
}

enum tdm_status tdm_longlora_check(const struct tdm_model *model,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    struct tdm_torch_settings *s = &settings->torch;
    uint64_t groups = 2u << s->groups;
    bool fixed = s->supervised && s->tokens % 4096 != 0 && !s->materialized_groups;
    if (s->materialized_groups) { /* replace_llama_attn asks for use_full only with FlashAttention
                                   */
        s->full_attention = false;
        s->attention = TDM_TORCH_EAGER;
    }
    if (!s->full_attention && !fixed && s->tokens % groups != 0) {
        tdm_fail(err, TDM_USAGE, "--context: %" PRIu64 " tokens are no %" PRIu64 " equal groups",
                 settings->torch.tokens, groups);
        return tdm_hint(err, "--context %" PRIu64 ", padded",
                        tdm_size_ceil_div(settings->torch.tokens, groups) * groups);
    }
    if (!settings->torch.full_attention && model->query_heads % 2 != 0)
        return tdm_fail(err, TDM_USAGE, "method longlora: %" PRIu32 " heads have no halves",
                        model->query_heads);
    return check_model(model, settings, err);
}

/* ---- the cost of a step ---- */

uint64_t tdm_chunk_window(const struct tdm_chunk_settings *s, const struct tdm_model *model,
                          uint32_t layer)
{
    return s->window == TDM_AUTO ? model->layer_kinds[layer].window : s->window;
}

/* Pairs of a query and a key in one layer and one sequence. */
static double layer_pairs(const struct tdm_method_settings *settings, uint64_t window)
{
    const struct tdm_chunk_settings *s = &settings->chunk;
    double tokens = (double)settings->torch.tokens, chunk = (double)s->tokens, pairs = 0;
    double chunks = tokens / chunk, read = (double)s->budget;
    if (window > 0 && (double)window < tokens)
        return (double)window * tokens - (double)window * ((double)window - 1) / 2;
    if (s->budget == 0)
        return tokens * (tokens + 1) / 2;
    for (double c = 0; c < chunks; c++)
        pairs += chunk * (c * chunk < read ? c * chunk : read) + chunk * (chunk + 1) / 2;
    return pairs;
}

/* The mean over layers. */
static double chunk_pairs(const struct tdm_model *model, const struct tdm_method_settings *settings)
{
    double pairs = 0;
    for (uint32_t l = 0; l < model->layers; l++)
        pairs += layer_pairs(settings, tdm_chunk_window(&settings->chunk, model, l));
    return pairs / model->layers;
}

static void chunk_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                       double pairs, double forwards, struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    double tokens = (double)s->tokens * (double)s->batch;
    double forward = 2 * (double)tdm_model_active_matmul_parameters(model) * tokens;
    double attention =
        4.0 * model->query_heads * model->head_dim * pairs * model->layers * (double)s->batch;
    *cost = (struct tdm_method_cost){
        .product_flops = forward * (forwards + (s->lora_rank > 0 ? 1 : 2)),
        .attention_flops = attention * (forwards + 2.5),
    };
}

void tdm_seco_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                   struct tdm_method_cost *cost)
{
    double tokens = (double)settings->torch.tokens;
    chunk_cost(model, settings, tokens * (tokens + 1) / 2, 2, cost);
}

/* With offload, every chunk copies K and V of all previous chunks to the GPU and back: once without
 * gradients and twice with them, and once more with them under layer checkpoints. */
void tdm_oomb_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                   struct tdm_method_cost *cost)
{
    const struct tdm_chunk_settings *s = &settings->chunk;
    double pairs = chunk_pairs(model, settings), tokens = (double)settings->torch.tokens;
    double a_token = 2.0 * (double)tdm_model_kv_width(model) * ELEMENT_BYTES * model->layers *
                     (double)settings->torch.batch;
    double with_grads = a_token * (s->bf16_grads ? 2 : 3), read = pairs / (double)s->tokens;
    double ranks = (double)settings->torch.ranks, forwards = s->checkpoint ? 3 : 2;
    double hidden = ELEMENT_BYTES * model->hidden * tokens * (double)settings->torch.batch;
    double logits =
        ELEMENT_BYTES * (double)model->vocabulary * tokens * (double)settings->torch.batch;
    chunk_cost(model, settings, pairs, forwards, cost);
    cost->product_flops /= ranks;
    cost->attention_flops /= ranks;
    /* Every forward of a layer all-reduces its attention and its MLP; the backward does not. */
    tdm_traffic_add(&cost->exposed, tdm_torch_all_ranks(&settings->torch),
                    (ranks - 1) / ranks * (2 * 2 * forwards * model->layers * hidden + 2 * logits));
    a_token /= ranks;
    with_grads /= ranks;
    if (s->offload)
        cost->host_bytes = 2 * (read + tokens) * (a_token + with_grads * (s->checkpoint ? 3 : 2));
}

void tdm_longlora_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                       struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    tdm_torch_cost(model, settings, cost);
    if (!s->full_attention)
        cost->attention_flops *= fmin(1, (double)tdm_shifted_group_tokens(s) / (double)s->tokens);
}
