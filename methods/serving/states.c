/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers with states of a fixed size: Mamba-2, gated DeltaNets, short convolutions. A sequence has
 * a page for the states of a layer, out of the pool that has pages of K and V, so both are made
 * equally large: vLLM raises block_size until a page of K and V of a layer has room for the states
 * of one, and pads those. Sources, of vLLM: model_executor/models/config.py
 * (HybridAttentionMambaModelConfig; since 0.20 platforms/interface.py),
 * model_executor/layers/mamba/mamba_utils.py (shapes and dtypes), v1/kv_cache_interface.py
 * MambaSpec (pages of a sequence). docs/serving.md has what its logs say.
 */
#include "methods/serving/parts.h"

#include "base/size.h"
#include "methods/key.h"

#include <inttypes.h>

#define BF16_BYTES UINT64_C(2)
#define ALIGNMENT 16u /* block_size is a multiple of it */

bool tdm_serving_has_state(const struct tdm_layer_kind *kind)
{
    return kind->delta || kind->mamba || kind->short_conv;
}

bool tdm_serving_has_states(const struct tdm_model *model)
{
    return tdm_model_other_mixer(model) != NULL;
}

/* Groups of B and C of a rank: one that all heads share is on every rank. */
static uint64_t groups_of_rank(const struct tdm_model *model, uint64_t ranks)
{
    return tdm_most(1, model->mamba.groups / ranks);
}

/* Columns of what is convolved: x, B and C; q, k and v; the hidden states. */
static uint64_t convolved(const struct tdm_model *model, uint64_t ranks)
{
    const struct tdm_mamba *s = &model->mamba;
    const struct tdm_delta *d = &model->delta;
    if (s->heads > 0)
        return (uint64_t)s->heads * s->head_dim / ranks +
               2 * groups_of_rank(model, ranks) * s->state;
    if (d->value_heads > 0)
        return (2 * (uint64_t)d->key_heads * d->key_dim + (uint64_t)d->value_heads * d->value_dim) /
               ranks;
    return model->hidden / ranks;
}

/* The last columns of the convolution in bf16, and the state of each head. */
static uint64_t state_bytes(const struct tdm_model *model, const struct tdm_serving *serving)
{
    const uint64_t ranks = serving->tensor_ranks;
    const struct tdm_mamba *s = &model->mamba;
    const struct tdm_delta *d = &model->delta;
    const uint64_t kernel = s->heads > 0         ? s->kernel
                            : d->value_heads > 0 ? d->kernel
                                                 : model->short_kernel;
    const uint64_t heads = s->heads > 0 ? (uint64_t)s->heads * s->head_dim * s->state
                                        : (uint64_t)d->value_heads * d->value_dim * d->key_dim;
    const bool wide = serving->state_dtype == TDM_STATES_FP32 ||
                      (serving->state_dtype == TDM_STATES_AUTO && model->wide_states);
    return convolved(model, ranks) * (kernel - 1) * BF16_BYTES +
           heads / ranks * (wide ? sizeof(float) : BF16_BYTES);
}

uint64_t tdm_serving_state_pages(const struct tdm_serving *serving)
{
    const bool caches =
        serving->prefix_caching == TDM_SERVING_YES ||
        (serving->prefix_caching == TDM_SERVING_AUTO && serving->version >= TDM_VLLM_0_21);
    return caches ? 2 : 1;
}

/* Products, and what is convolved with its result, and the output; the profile run computes no
 * states. */
uint64_t tdm_serving_mixer_bytes(const struct tdm_model *model, const struct tdm_serving *serving)
{
    const uint64_t ranks = serving->tensor_ranks, columns = convolved(model, ranks);
    const struct tdm_mamba *s = &model->mamba;
    const struct tdm_delta *d = &model->delta;
    const uint64_t out = s->heads > 0         ? (uint64_t)s->heads * s->head_dim / ranks
                         : d->value_heads > 0 ? (uint64_t)d->value_heads * d->value_dim / ranks
                                              : model->hidden / ranks;
    return BF16_BYTES * (2 * columns + 2 * out);
}

uint64_t tdm_serving_block_tokens(const struct tdm_model *model, const struct tdm_serving *serving)
{
    if (!tdm_serving_has_states(model))
        return serving->block_size;
    const uint64_t token_bytes = tdm_serving_token_bytes(model, serving);
    const uint64_t pages = tdm_size_ceil_div(state_bytes(model, serving), ALIGNMENT * token_bytes);
    return tdm_most(serving->block_size, ALIGNMENT * pages);
}

enum tdm_status tdm_serving_check_states(const struct tdm_model *model, const struct tdm_serving *s,
                                         struct tdm_error *err)
{
    const uint64_t ranks = s->tensor_ranks;
    const struct tdm_mamba *m = &model->mamba;
    if (!tdm_serving_has_states(model))
        return TDM_OK;
    const char *what = s->sglang                                ? "SGLang"
                       : s->version < TDM_VLLM_0_11             ? "versions before 0.11"
                       : s->eviction != TDM_EVICT_NONE          ? "kv_eviction"
                       : s->prefix_levels > 0                   ? "shared_prefixes"
                       : s->decode_ranks * s->prefill_ranks > 1 ? "divided contexts"
                       : s->one_group                           ? "disable_hybrid_kv_cache_manager"
                       : s->chunk_tokens > 0                    ? "attention_chunk_size"
                       : s->adapters                            ? "enable_lora"
                                                                : NULL;
    if (what != NULL)
        return tdm_fail(err, TDM_USAGE, "--mode serve: %s of %s are not modelled with %s",
                        tdm_model_other_mixer(model), model->architecture, what);
    const bool divides = m->heads > 0
                             ? m->heads % ranks == 0 && (m->groups % ranks == 0 || m->groups == 1)
                         : model->delta.value_heads > 0 ? model->delta.key_heads % ranks == 0
                                                        : model->hidden % ranks == 0;
    if (!divides)
        return tdm_fail(err, TDM_USAGE,
                        "--set tensor_parallel_size=%" PRIu64
                        ": it does not divide heads of %s of %s",
                        ranks, tdm_model_other_mixer(model), model->architecture);
    return TDM_OK;
}
