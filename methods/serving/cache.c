/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of K and V. Layers that keep the same tokens are of one kind: all of them, those in a
 * window, those in a chunk. With several kinds, layers form groups of equal size, each with block
 * tables of its own out of one pool (_get_kv_cache_groups_uniform_page_size in
 * vllm/v1/core/kv_cache_utils.py). How many blocks a sequence takes in a group is
 * max_memory_usage_bytes of vllm/v1/kv_cache_interface.py.
 */
#include "methods/serving/parts.h"

#include "base/size.h"
#include "methods/key.h"

#define MOST_KINDS 4u
#define SCALE_BYTES 2u

enum keeps { ALL, WINDOW, CHUNK, STATE };

struct kind {
    enum keeps keeps;
    uint64_t tokens; /* of window or chunk */
    uint32_t layers;
    uint32_t groups, first_group;
};

struct kinds {
    struct kind kind[MOST_KINDS];
    uint32_t count, groups;
};

static struct kind kind_of(const struct tdm_model *model, const struct tdm_serving *serving,
                           uint32_t layer)
{
    uint64_t window = serving->sliding_window == TDM_AUTO ? model->layer_kinds[layer].window
                                                          : serving->sliding_window;
    bool sees_all = serving->full_every > 0 && (layer + 1) % serving->full_every == 0;
    if (serving->chunk_tokens > 0 && !sees_all)
        return (struct kind){.keeps = CHUNK, .tokens = serving->chunk_tokens};
    if (window > 0)
        return (struct kind){.keeps = WINDOW, .tokens = window};
    return (struct kind){.keeps = ALL};
}

/* The number of the kind of a layer; a kind that is new is added. A model with more kinds than
 * there is room for counts in the last one. */
static uint32_t find_kind(struct kinds *kinds, struct kind wanted)
{
    uint32_t k = 0;
    while (k < kinds->count &&
           (kinds->kind[k].keeps != wanted.keeps || kinds->kind[k].tokens != wanted.tokens))
        k++;
    if (k == kinds->count && kinds->count < MOST_KINDS)
        kinds->kind[kinds->count++] = wanted;
    return tdm_least(k, MOST_KINDS - 1);
}

/* What a layer keeps: K and V, states, both or nothing. Returns how many. */
static uint32_t kinds_of_layer(const struct tdm_model *model, const struct tdm_serving *serving,
                               uint32_t layer, struct kind kinds[2])
{
    const struct tdm_layer_kind *kind = &model->layer_kinds[layer];
    uint32_t count = 0;
    if (!kind->no_attention && !kind->delta)
        kinds[count++] = kind_of(model, serving, layer);
    if (tdm_serving_has_state(kind))
        kinds[count++] = (struct kind){.keeps = STATE};
    return count;
}

bool tdm_serving_keeps_any(const struct tdm_model *model, const struct tdm_serving *serving)
{
    struct kind kept[2];
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < model->layers; layer++)
        count += kinds_of_layer(model, serving, layer, kept);
    return count > 0;
}

static struct kinds kinds_of(const struct tdm_model *model, const struct tdm_serving *serving)
{
    struct kinds kinds = {.count = 0};
    struct kind kept[2];
    for (uint32_t layer = 0; layer < model->layers; layer++)
        for (uint32_t i = kinds_of_layer(model, serving, layer, kept); i-- > 0;)
            kinds.kind[find_kind(&kinds, kept[i])].layers++;
    bool hybrid = kinds.count > 1;
    if (kinds.count == 0 || serving->version < TDM_VLLM_0_8 || (hybrid && serving->one_group))
        kinds = (struct kinds){.kind = {{.keeps = ALL, .layers = model->layers}}, .count = 1};
    uint32_t size = model->layers;
    for (uint32_t k = 0; k < kinds.count; k++)
        size = tdm_least(size, kinds.kind[k].layers);
    for (uint32_t k = 0; k < kinds.count; k++) {
        kinds.kind[k].first_group = kinds.groups;
        kinds.kind[k].groups = tdm_size_ceil_div(kinds.kind[k].layers, size);
        kinds.groups += kinds.kind[k].groups;
    }
    return kinds;
}

uint32_t tdm_serving_groups(const struct tdm_model *model, const struct tdm_serving *serving)
{
    return kinds_of(model, serving).groups;
}

/* Bytes of some elements of K or of V that lie one after another in a head, with their scales. */
static uint64_t stored_bytes(const struct tdm_serving *serving, uint64_t elements)
{
    uint64_t group = serving->kv_group;
    switch (serving->kv_dtype) {
    case TDM_KV_FP8: /* a scale for a whole layer */
        return elements;
    case TDM_KV_INT8: /* an fp32 scale for a token and head, or for each group */
        return elements +
               sizeof(float) * tdm_size_ceil_div(elements, group == TDM_AUTO ? elements : group);
    case TDM_KV_INT4: /* KIVI, arXiv 2402.02750: a 16-bit scale and zero for each group of 32 */
        return elements / 2 +
               2 * SCALE_BYTES * tdm_size_ceil_div(elements, group == TDM_AUTO ? 32 : group);
    case TDM_KV_NVFP4: /* an 8-bit scale for each 16 */
        return elements / 2 + tdm_size_ceil_div(elements, group == TDM_AUTO ? 16 : group);
    case TDM_KV_AUTO:
    case TDM_KV_DTYPES:
        break;
    }
    return elements * 2;
}

uint64_t tdm_serving_token_bytes(const struct tdm_model *model, const struct tdm_serving *serving)
{
    if (model->latent.kv_rank > 0) /* MLAAttentionSpec: no values, one head, on every rank */
        return stored_bytes(serving, model->latent.kv_rank + model->latent.rotary_dim);
    uint64_t bytes =
        2 * tdm_serving_kv_heads(model, serving) * stored_bytes(serving, model->head_dim);
    if (serving->eviction == TDM_EVICT_H2O) /* sums of attention weights, in fp32 */
        bytes += model->query_heads / serving->tensor_ranks * sizeof(float);
    return bytes;
}

uint64_t tdm_serving_block_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                                 uint32_t stage)
{
    struct tdm_serving_layers layers = tdm_serving_stage(model, serving, stage);
    struct kinds kinds = kinds_of(model, serving);
    uint32_t met[MOST_KINDS] = {0}, most = 0;
    /* Layer i of a kind is in group i modulo the kind's groups. */
    for (uint32_t g = 0; g < kinds.groups; g++) {
        uint32_t inside = 0;
        for (uint32_t k = 0; k < kinds.count; k++)
            met[k] = 0;
        for (uint32_t layer = 0; layer < model->layers; layer++) {
            struct kind kept[2];
            for (uint32_t i = kinds_of_layer(model, serving, layer, kept); i-- > 0;) {
                uint32_t k = kinds.count == 1 ? 0 : find_kind(&kinds, kept[i]);
                const struct kind *kind = &kinds.kind[k];
                inside += kind->first_group + met[k]++ % kind->groups == g &&
                          layer >= layers.first && layer < layers.end;
            }
        }
        most = tdm_most(most, inside);
    }
    return most * tdm_serving_block_tokens(model, serving) *
           tdm_serving_token_bytes(model, serving);
}

void tdm_serving_count_blocks(const struct tdm_model *model, const struct tdm_serving *serving,
                              uint32_t stage, struct tdm_serving_rank *rank)
{
    rank->block_bytes = tdm_serving_block_bytes(model, serving, stage);
    if (rank->block_bytes > 0)
        rank->blocks = rank->cache_bytes / rank->block_bytes;
    else
        rank->blocks = rank->cache_bytes > 0 ? UINT64_MAX : 0;
}

/* Tokens of a sequence that eviction leaves. */
static uint64_t kept_tokens(const struct tdm_serving *serving, uint64_t context)
{
    uint64_t prompt = tdm_least(serving->prompt_tokens, context);
    switch (serving->eviction) {
    case TDM_EVICT_NONE:
        break;
    case TDM_EVICT_STREAMING:
        return tdm_least(context, serving->sink_tokens + serving->budget_tokens);
    case TDM_EVICT_H2O:
        return tdm_least(context, serving->budget_tokens);
    case TDM_EVICT_SNAPKV:
        return tdm_least(prompt, serving->budget_tokens) + (context - prompt);
    }
    return context;
}

/* Blocks of `size` tokens of a sequence in one group of a kind. */
static uint64_t group_blocks(const struct tdm_serving *serving, const struct kind *kind,
                             uint64_t size, uint64_t batched_tokens, uint64_t context)
{
    uint64_t tokens = kept_tokens(serving, context);
    uint64_t ranks = serving->decode_ranks * serving->prefill_ranks;
    switch (kind->keeps) {
    case ALL:
        break;
    case WINDOW: /* a window may begin within a block */
        return tdm_size_ceil_div(tdm_least(kind->tokens - 1 + batched_tokens, tokens), size) + 1;
    case STATE:
        return tdm_serving_state_pages(serving);
    case CHUNK:
        return tdm_size_ceil_div(tdm_least(kind->tokens + batched_tokens, tokens), size);
    }
    return tdm_size_ceil_div(tdm_size_ceil_div(tokens, ranks), size);
}

uint64_t tdm_serving_sequence_blocks(const struct tdm_model *model,
                                     const struct tdm_serving *serving, uint64_t batched_tokens,
                                     uint64_t context)
{
    struct kinds kinds = kinds_of(model, serving);
    const uint64_t size = tdm_serving_block_tokens(model, serving);
    uint64_t blocks = 0;
    for (uint32_t k = 0; k < kinds.count; k++)
        blocks += kinds.kind[k].groups *
                  group_blocks(serving, &kinds.kind[k], size, batched_tokens, context);
    return blocks;
}

uint64_t tdm_serving_blocks_of(const struct tdm_model *model, const struct tdm_serving *serving,
                               uint64_t batched_tokens, uint64_t context, uint64_t sequences)
{
    uint64_t each = tdm_serving_sequence_blocks(model, serving, batched_tokens, context);
    const uint64_t size = tdm_serving_block_tokens(model, serving);
    uint64_t path = 0, shared = 0, blocks = 0;
    /* Only full blocks are shared (vllm/v1/core/kv_cache_manager.py). */
    for (uint32_t level = 0; level < serving->prefix_levels; level++) {
        path += serving->prefix[level].tokens;
        uint64_t full = tdm_least(path, context) / size;
        blocks += tdm_least(serving->prefix[level].nodes, sequences) * (full - shared);
        shared = full;
    }
    return tdm_size_add(blocks, tdm_size_mul(sequences, each - shared));
}
