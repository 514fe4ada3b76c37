/* SPDX-License-Identifier: Apache-2.0 */
/* vLLM as a method: its keys, in the words of `vllm serve`, and what it refuses. Keys of what vLLM
 * does not do (eviction, int4 caches) have names of their own. */
#include "methods/serving/serving.h"

#include "base/units.h"
#include "methods/method.h"
#include "methods/serving/parts.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, serving.name)
#define MOST_RANKS 65536u

/* ---- readers ---- */

static enum tdm_status read_utilization(const struct tdm_method_key *key, const char *value,
                                        struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double share = strtod(value, &end);
    if (end == value || *end != '\0' || !(share > 0 && share <= 1))
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: \"%.64s\" is not a share; expected a number above 0, up to 1",
                        key->name, value);
    settings->serving.utilization = share;
    return TDM_OK;
}

/* The version that users have, "0.10.1" or "v0.19.0rc1", counts as the last of the list that is not
 * after it. */
static enum tdm_status read_version(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const unsigned firsts[][3] = {
        [TDM_VLLM_0_6_4] = {0, 6, 4}, [TDM_VLLM_0_6_5] = {0, 6, 5}, [TDM_VLLM_0_8] = {0, 8, 0},
        [TDM_VLLM_0_9_1] = {0, 9, 1}, [TDM_VLLM_0_11] = {0, 11, 0}, [TDM_VLLM_0_17] = {0, 17, 0},
        [TDM_VLLM_0_21] = {0, 21, 0}};
    unsigned said[3] = {0};
    const char *digits = value + (value[0] == 'v');
    int found = strspn(digits, "0123456789.") < strlen("0.0") || digits[0] == '.' ||
                        strstr(digits, "..") != NULL
                    ? 0
                    : sscanf(digits, "%4u.%4u.%4u", &said[0], &said[1], &said[2]);
    size_t count = sizeof(firsts) / sizeof(firsts[0]), version = count;
    for (size_t i = 0; found >= 2 && i < count; i++) {
        unsigned part = 0;
        while (part < 2 && said[part] == firsts[i][part])
            part++;
        if (said[part] >= firsts[i][part])
            version = i;
    }
    if (found < 2)
        return tdm_key_bad_value(key, value, err);
    if (version == count) {
        tdm_fail(err, TDM_USAGE, "--set %s=%.32s: versions before 0.6.4 are not modelled",
                 key->name, value);
        return tdm_hint(err, "--set version=0.6.4 is the nearest");
    }
    settings->serving.version = (enum tdm_serving_version)version;
    return TDM_OK;
}

static enum tdm_status read_auto_tokens(const struct tdm_method_key *key, const char *value,
                                        struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "auto") != 0)
        return tdm_key_read_tokens(key, value, settings, err);
    *(uint64_t *)(void *)((char *)settings + key->field) = TDM_AUTO;
    return TDM_OK;
}

/* Tokens, "none" for 0, or "model" for TDM_AUTO. */
static enum tdm_status read_window(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "none") == 0) {
        *(uint64_t *)(void *)((char *)settings + key->field) = 0;
        return TDM_OK;
    }
    return read_auto_tokens(key, strcmp(value, "model") == 0 ? "auto" : value, settings, err);
}

static enum tdm_status read_auto_count(const struct tdm_method_key *key, const char *value,
                                       struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "auto") != 0)
        return tdm_key_read_count(key, value, settings, err);
    *(uint64_t *)(void *)((char *)settings + key->field) = TDM_AUTO;
    return TDM_OK;
}

static enum tdm_status read_size(const struct tdm_method_key *key, const char *value,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    uint64_t *bytes = (uint64_t *)(void *)((char *)settings + key->field);
    char what[64];
    if (strcmp(value, "auto") == 0) {
        *bytes = TDM_AUTO;
        return TDM_OK;
    }
    snprintf(what, sizeof(what), "--set %s", key->name);
    return tdm_parse_bytes(value, what, bytes, err);
}

/* "8K,4x2K": a tree, level by level. */
static enum tdm_status read_prefixes(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    struct tdm_serving *serving = &settings->serving;
    serving->prefix_levels = 0;
    if (strcmp(value, "none") == 0)
        return TDM_OK;
    for (const char *at = value; *at != '\0';) {
        char level[32], *times, what[64];
        size_t span = strcspn(at, ",");
        uint64_t nodes = 1;
        if (span == 0 || span >= sizeof(level) || serving->prefix_levels == TDM_PREFIX_LEVELS)
            return tdm_key_bad_value(key, value, err);
        memcpy(level, at, span);
        level[span] = '\0';
        at += span + (at[span] == ',');
        times = strchr(level, 'x');
        snprintf(what, sizeof(what), "--set %s", key->name);
        if (times != NULL)
            *times = '\0';
        enum tdm_status status =
            times == NULL ? TDM_OK : tdm_parse_count(level, what, 1, 1u << 20, &nodes, err);
        uint32_t number = serving->prefix_levels++;
        serving->prefix[number].nodes =
            nodes * (number == 0 ? 1 : serving->prefix[number - 1].nodes);
        if (status == TDM_OK)
            status = tdm_parse_tokens(times == NULL ? level : times + 1, what,
                                      &serving->prefix[number].tokens, err);
        if (status != TDM_OK)
            return status;
        if (serving->prefix[number].nodes > 1u << 30)
            return tdm_key_bad_value(key, value, err);
    }
    return TDM_OK;
}

/* ---- needs ---- */

static bool scales_groups(const struct tdm_key_case *c)
{
    return c->settings->serving.kv_dtype >= TDM_KV_INT8;
}

/* The ranks that vLLM has room for (vllm/config/lora.py MaxLoRARanks). */
static enum tdm_status read_rank(const struct tdm_method_key *key, const char *value,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const uint64_t ranks[] = {1, 8, 16, 32, 64, 128, 256, 320, 512};
    enum tdm_status status = tdm_key_read_count(key, value, settings, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
        if (settings->serving.adapter_rank == ranks[i])
            return TDM_OK;
    return tdm_fail(err, TDM_USAGE,
                    "--set %s: vLLM has no room for rank %.16s; expected 1, 8, 16, 32, 64, 128, "
                    "256, 320 or 512",
                    key->name, value);
}

static bool has_adapters(const struct tdm_key_case *c)
{
    return c->settings->serving.adapters;
}

static bool has_windows(const struct tdm_key_case *c)
{
    return c->settings->serving.version >= TDM_VLLM_0_8;
}

static bool has_chunks(const struct tdm_key_case *c)
{
    return has_windows(c) && c->settings->serving.chunk_tokens > 0;
}

static bool has_states(const struct tdm_key_case *c)
{
    return tdm_serving_has_states(c->model);
}

static bool has_eviction(const struct tdm_key_case *c)
{
    return c->settings->serving.eviction != TDM_EVICT_NONE;
}

static bool has_sinks(const struct tdm_key_case *c)
{
    return c->settings->serving.eviction == TDM_EVICT_STREAMING;
}

static bool has_prompt(const struct tdm_key_case *c)
{
    return c->settings->serving.eviction == TDM_EVICT_H2O ||
           c->settings->serving.eviction == TDM_EVICT_SNAPKV;
}

static bool has_prefill_ranks(const struct tdm_key_case *c)
{
    return c->settings->serving.prefill_ranks > 1;
}

#define USUAL_GROUP 128u

/* What the config of the checkpoint says of its weights. Source: vllm/config/model.py
 * _verify_quantization. */
static enum tdm_serving_weights stored_weights(const struct tdm_model *model)
{
    static const enum tdm_serving_weights of_bases[] = {
        [TDM_BASE_WHOLE] = TDM_SERVED_BF16,     [TDM_BASE_NF4] = TDM_SERVED_NF4,
        [TDM_BASE_NF4_DOUBLE] = TDM_SERVED_NF4, [TDM_BASE_INT8] = TDM_SERVED_INT8,
        [TDM_BASE_GPTQ] = TDM_SERVED_GPTQ,      [TDM_BASE_AWQ] = TDM_SERVED_AWQ};
    return model->base.stored == TDM_STORED_FP8            ? TDM_SERVED_FP8
           : model->base.stored == TDM_STORED_MXFP4        ? TDM_SERVED_MXFP4
           : model->base.stored == TDM_STORED_INT4_EXPERTS ? TDM_SERVED_INT4_EXPERTS
                                                           : of_bases[model->base.kind];
}

static const char *name_of(enum tdm_serving_weights weights)
{
    static const char *const names[] = {[TDM_SERVED_BF16] = "none",
                                        [TDM_SERVED_FP8] = "fp8",
                                        [TDM_SERVED_INT8] = "int8",
                                        [TDM_SERVED_AWQ] = "awq",
                                        [TDM_SERVED_GPTQ] = "gptq",
                                        [TDM_SERVED_NVFP4] = "nvfp4",
                                        [TDM_SERVED_NF4] = "bitsandbytes",
                                        [TDM_SERVED_MXFP4] = "mxfp4",
                                        [TDM_SERVED_INT4_EXPERTS] = "int4-experts"};
    return names[weights];
}

const char *tdm_serving_settled_weights(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return name_of(stored_weights(c->model));
}

void tdm_serving_preset(struct tdm_method_settings *settings)
{
    settings->serving.weights = TDM_SERVED_AS_STORED;
}

static bool are_grouped(enum tdm_serving_weights weights)
{
    return weights == TDM_SERVED_AWQ || weights == TDM_SERVED_GPTQ ||
           weights == TDM_SERVED_INT4_EXPERTS;
}

/* As the config says, which has 0 for a column. */
static uint64_t stored_group(const struct tdm_model *model)
{
    if (!are_grouped(stored_weights(model)))
        return USUAL_GROUP;
    return model->base.group > 0 ? model->base.group : TDM_AUTO;
}

const char *tdm_serving_settled_group(const struct tdm_key_case *c, char *text)
{
    const uint64_t group = stored_group(c->model);
    if (group == TDM_AUTO)
        return "-1";
    snprintf(text, TDM_KEY_TEXT, "%" PRIu64, group);
    return text;
}

static const char *settled_block(const struct tdm_key_case *c, char *text)
{
    snprintf(text, TDM_KEY_TEXT, "%" PRIu64,
             tdm_serving_block_tokens(c->model, &c->settings->serving));
    return text;
}

static bool has_groups(const struct tdm_key_case *c)
{
    enum tdm_serving_weights weights = c->settings->serving.weights;
    return are_grouped(weights == TDM_SERVED_AS_STORED ? stored_weights(c->model) : weights);
}

static enum tdm_status settle_weights(const struct tdm_model *model, struct tdm_serving *s,
                                      struct tdm_error *err)
{
    const enum tdm_serving_weights stored = stored_weights(model);
    const uint64_t group = stored_group(model);
    char says[TDM_KEY_TEXT] = "-1, a column";
    if (s->weights == TDM_SERVED_AS_STORED)
        s->weights = stored;
    if (s->weight_group == 0)
        s->weight_group = group;
    if (stored != TDM_SERVED_BF16 && s->weights != stored) {
        tdm_fail(err, TDM_USAGE,
                 "--set quantization: %s contradicts the config of %s, which says %s",
                 name_of(s->weights), model->name, name_of(stored));
        return tdm_hint(err, "leave it out");
    }
    if (!are_grouped(stored) || s->weight_group == group)
        return TDM_OK;
    if (group != TDM_AUTO)
        snprintf(says, sizeof(says), "%" PRIu64, group);
    tdm_fail(err, TDM_USAGE,
             "--set group_size: %" PRIu64 " contradicts the config of %s, which says %s",
             s->weight_group, model->name, says);
    return tdm_hint(err, "leave it out");
}

static const struct tdm_key_need needs_adapters = {"without enable_lora", has_adapters};
static const struct tdm_key_need needs_scales = {
    "without kv_cache_dtype=int8, int4 or nvfp4, which have scales", scales_groups};
static const struct tdm_key_need needs_windows = {
    "with version below 0.8, which kept all tokens of a window's layers", has_windows};
static const struct tdm_key_need needs_states = {
    "without layers that have states, as those of Mamba-2 and gated DeltaNets", has_states};
static const struct tdm_key_need needs_chunks = {"without attention_chunk_size", has_chunks};
static const struct tdm_key_need needs_eviction = {"without kv_eviction", has_eviction};
static const struct tdm_key_need needs_sinks = {"without kv_eviction=streaming", has_sinks};
static const struct tdm_key_need needs_prompt = {"without kv_eviction=h2o or snapkv", has_prompt};
static const struct tdm_key_need needs_prefill = {"without prefill_context_parallel_size",
                                                  has_prefill_ranks};
const struct tdm_key_need tdm_serving_needs_groups = {
    "without quantization=awq, gptq or int4-experts", has_groups};

const struct tdm_method_key tdm_keys_serving[] = {
    {"version", "0.6.4|0.6.5|0.8|0.9.1|0.11|0.17|0.21", "0.21",
     "of vLLM; any is taken, and counts as the last of these that is not after it: what is not "
     "torch's, graphs, the sampler, defaults, windows",
     .read = read_version},
    {"gpu_memory_utilization", "0.9", "0.9", "share of the device that vLLM may take",
     .read = read_utilization},
    {"kv_cache_memory_bytes", "SIZE", NULL, "bytes of the cache, in place of that share", read_size,
     FIELD(kv_memory_bytes)},
    {"num_gpu_blocks_override", "N", NULL, "blocks of the cache, whatever there is room for",
     tdm_key_read_count, FIELD(override_blocks), .least = 1, .most = UINT64_C(1) << 40},
    {"max_num_batched_tokens", "auto|N", "auto",
     "tokens of a step: a prompt is computed in chunks of so many", read_auto_tokens,
     FIELD(batched_tokens)},
    {"max_num_seqs", "auto|N", "auto", "sequences of a step", read_auto_count, FIELD(sequences),
     .least = 1, .most = MOST_RANKS},
    {"enable_chunked_prefill", "auto|no|yes", "auto",
     "auto: from V1 on; before, where the context is over 32K", tdm_key_read_choice, FIELD(chunks)},
    {"block_size", "N", "16", "tokens of a block", tdm_key_read_count, FIELD(block_size),
     .least = 1, .most = MOST_RANKS, .settled = settled_block},
    {"kv_cache_dtype", "auto|fp8|int8|int4|nvfp4", "auto",
     "K and V; auto: bf16; int8, int4 and nvfp4 with scales", tdm_key_read_choice, FIELD(kv_dtype)},
    {"kv_scale_group", "auto|N", "auto",
     "elements that share a scale; auto: a head's for int8, 32 for int4, 16 for nvfp4",
     read_auto_count, FIELD(kv_group), .least = 1, .most = 1024, .needs = {&needs_scales}},
    {"sliding_window", "model|none|N", "model", "tokens that every layer sees", read_window,
     FIELD(sliding_window), .needs = {&needs_windows}},
    {"attention_chunk_size", "none|N", "none", "chunked local attention, as in Llama 4",
     read_window, FIELD(chunk_tokens), .needs = {&needs_windows}},
    {"full_attention_every", "N", "4", "of so many layers the last one sees all; 0: none does",
     tdm_key_read_count, FIELD(full_every), .most = 1024, .needs = {&needs_chunks}},
    {"disable_hybrid_kv_cache_manager", "no|yes", "no", "yes: layers with windows keep all tokens",
     tdm_key_read_switch, FIELD(one_group), .needs = {&needs_windows}},
    {"mamba_ssm_cache_dtype", "auto|bfloat16|float32", "auto",
     "states of Mamba-2 and of gated DeltaNets; auto: as the config says, else bf16",
     tdm_key_read_choice, FIELD(state_dtype), .needs = {&needs_states}},
    {"enable_prefix_caching", "auto|no|yes", "auto",
     "yes: a sequence has two pages of states, not one; auto: yes from 0.21 on",
     tdm_key_read_choice, FIELD(prefix_caching), .needs = {&needs_states}},
    {"kv_eviction", "none|streaming|h2o|snapkv", "none",
     "tokens that are dropped: StreamingLLM, H2O, SnapKV", tdm_key_read_choice, FIELD(eviction)},
    {"kv_budget", "N", "2048", "tokens that eviction keeps of a sequence, or of its prompt",
     tdm_key_read_tokens, FIELD(budget_tokens), .needs = {&needs_eviction}},
    {"kv_sinks", "N", "4", "first tokens that are kept beside the budget", tdm_key_read_count,
     FIELD(sink_tokens), .most = MOST_RANKS, .needs = {&needs_sinks}},
    {"prompt_tokens", "auto|N", "auto", "of a sequence; auto: all", read_auto_tokens,
     FIELD(prompt_tokens), .needs = {&needs_prompt}},
    {"shared_prefixes", "none|N,NxN", "none",
     "a tree of prefixes: 8K,4x2K is one of 8K tokens, and below it four of 2K",
     .read = read_prefixes},
    {"tensor_parallel_size", "N", "1", "GPUs that divide heads and MLP", tdm_key_read_count,
     FIELD(tensor_ranks), .least = 1, .most = MOST_RANKS},
    {"pipeline_parallel_size", "N", "1", "GPUs that divide the layers", tdm_key_read_count,
     FIELD(pipeline_ranks), .least = 1, .most = MOST_RANKS},
    {"decode_context_parallel_size", "N", "1",
     "of the tensor-parallel GPUs so many divide the tokens of the cache", tdm_key_read_count,
     FIELD(decode_ranks), .least = 1, .most = MOST_RANKS},
    {"prefill_context_parallel_size", "N", "1",
     "GPUs that divide the tokens of prompts and of the cache", tdm_key_read_count,
     FIELD(prefill_ranks), .least = 1, .most = MOST_RANKS},
    {"context_parallel_pass", "kv|q", "kv", "what goes round in the prefill: K and V, or Q",
     tdm_key_read_choice, FIELD(pass), .needs = {&needs_prefill}},
    TDM_SERVING_WEIGHT_KEYS,
    {"other_weights", "SIZE", "0",
     "weights that are loaded beside the language model, as those of a vision tower", read_size,
     FIELD(other_weights_bytes)},
    {"enable_lora", "no|yes", "no", "room for adapters of all projections of layers",
     tdm_key_read_switch, FIELD(adapters)},
    {"max_loras", "N", "1", "adapters that a step may have", tdm_key_read_count,
     FIELD(adapter_slots), .least = 1, .most = 1024, .needs = {&needs_adapters}},
    {"max_lora_rank", "N", "16", "rank that adapters may have", read_rank, FIELD(adapter_rank),
     .least = 1, .most = 512, .needs = {&needs_adapters}},
    {"enforce_eager", "no|yes", "no", "yes: no CUDA graphs", tdm_key_read_switch, FIELD(eager)},
    {"sampler", "native|flashinfer", "native", "native: top-p by sorting all logits",
     tdm_key_read_switch, FIELD(flashinfer)},
    {"non_torch_memory", "auto|SIZE", "auto",
     "memory outside torch that the profile run sees; auto: by published logs", read_size,
     FIELD(non_torch_bytes)},
    {.name = NULL},
};

/* ---- what cannot be served ---- */

/* Heads that are cached: the latent keys and values of all heads are one. */
static uint64_t cached_heads(const struct tdm_model *model)
{
    return model->latent.kv_rank > 0 ? 1 : model->kv_heads;
}

static enum tdm_status check_ranks(const struct tdm_model *model,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    struct tdm_serving *s = &settings->serving;
    uint64_t others = s->pipeline_ranks * s->prefill_ranks, gpus = settings->torch.ranks;
    if (s->tensor_ranks == 1 && gpus > 1 && gpus % others == 0)
        s->tensor_ranks = gpus / others;
    const char *tensor = s->sglang ? "tp_size" : "tensor_parallel_size",
               *pipeline = s->sglang ? "pp_size" : "pipeline_parallel_size";
    if (gpus > 1 && gpus != s->tensor_ranks * others) {
        tdm_fail(err, TDM_USAGE, "--gpus %" PRIu64 " is not %s x %s%s, which is %" PRIu64, gpus,
                 tensor, pipeline, s->sglang ? "" : " x prefill_context_parallel_size",
                 s->tensor_ranks * others);
        return tdm_hint(err, "leave out --gpus, or set one of them");
    }
    if (model->query_heads % s->tensor_ranks != 0 ||
        (model->kv_heads % s->tensor_ranks != 0 && s->tensor_ranks % model->kv_heads != 0))
        return tdm_fail(err, TDM_USAGE,
                        "--set %s=%" PRIu64 ": it must divide the %" PRIu32
                        " query heads, and divide or be a multiple of the %" PRIu32 " KV heads",
                        tensor, s->tensor_ranks, model->query_heads, model->kv_heads);
    if (tdm_serving_experts_alone(s->weights) && model->experts.count == 0) {
        tdm_fail(err, TDM_USAGE, "--set quantization=%s: it is of experts, which %s has none of",
                 name_of(s->weights), model->name);
        return tdm_hint(err, "--set quantization=nvfp4 quantizes all projections to 4 bits");
    }
    if (s->pipeline_ranks > model->layers)
        return tdm_fail(err, TDM_USAGE,
                        "--set %s=%" PRIu64 ": the model has %" PRIu32 " layers; expected no more",
                        pipeline, s->pipeline_ranks, model->layers);
    const uint64_t heads = cached_heads(model);
    const uint64_t copies = s->tensor_ranks > heads ? s->tensor_ranks / heads : 1;
    if (copies % s->decode_ranks != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set decode_context_parallel_size=%" PRIu64 ": it must divide the %" PRIu64
                 " copies that tensor_parallel_size=%" PRIu64 " makes of %" PRIu64 " KV head%s",
                 s->decode_ranks, copies, s->tensor_ranks, heads, heads == 1 ? "" : "s");
        return tdm_hint(err, "--set tensor_parallel_size=%" PRIu64, heads * s->decode_ranks);
    }
    return TDM_OK;
}

static bool is_windowed(const struct tdm_model *model, const struct tdm_serving *s)
{
    uint64_t window = s->sliding_window == TDM_AUTO ? tdm_model_shortest_window(model, UINT64_MAX)
                                                    : s->sliding_window;
    return s->version >= TDM_VLLM_0_8 && (s->chunk_tokens > 0 || window > 0);
}

enum tdm_status tdm_serving_check(const struct tdm_model *model,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_serving *s = &settings->serving;
    bool windowed = is_windowed(model, s), divided = s->decode_ranks * s->prefill_ranks > 1;
    uint64_t path = 0;
    enum tdm_status status = settle_weights(model, &settings->serving, err);
    if (status != TDM_OK)
        return status;
    if (!tdm_serving_keeps_any(model, s))
        return tdm_fail(
            err, TDM_USAGE,
            "--mode serve: no layer of %s keeps K and V or states, so there is no cache "
            "to predict",
            model->name);
    if (model->latent.kv_rank > 0 &&
        (s->version < TDM_VLLM_0_8 || s->eviction != TDM_EVICT_NONE || s->prefill_ranks > 1)) {
        tdm_fail(err, TDM_USAGE,
                 "--mode serve: latent keys and values of %s are not modelled with %s",
                 model->architecture,
                 s->version < TDM_VLLM_0_8       ? "versions before 0.8"
                 : s->eviction != TDM_EVICT_NONE ? "kv_eviction"
                                                 : "prefill_context_parallel_size");
        return tdm_hint(err, "leave that setting out");
    }
    status = check_ranks(model, settings, err);
    if (status == TDM_OK)
        status = tdm_serving_check_states(model, s, err);
    if (status != TDM_OK)
        return status;
    if (windowed && (divided || s->prefix_levels > 0 || s->eviction != TDM_EVICT_NONE)) {
        tdm_fail(err, TDM_USAGE,
                 "--set %s: not with layers that have a window or a chunk, which drop tokens too",
                 divided                ? "decode_context_parallel_size"
                 : s->prefix_levels > 0 ? "shared_prefixes"
                                        : "kv_eviction");
        return tdm_hint(err, "--set sliding_window=none, where all layers shall keep all tokens");
    }
    if (s->eviction != TDM_EVICT_NONE && s->prefix_levels > 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set shared_prefixes: not with kv_eviction, by which each sequence drops "
                        "tokens of its own; leave out one of them");
    for (uint32_t level = 0; level < s->prefix_levels; level++)
        path += s->prefix[level].tokens;
    if (path > settings->torch.tokens)
        return tdm_fail(err, TDM_USAGE,
                        "--set shared_prefixes: the prefixes of a sequence have %" PRIu64
                        " tokens; expected at most the context, %" PRIu64,
                        path, settings->torch.tokens);
    if (!s->sglang && s->batched_tokens != TDM_AUTO && s->sequences != TDM_AUTO &&
        s->batched_tokens < s->sequences) {
        tdm_fail(err, TDM_USAGE,
                 "--set max_num_batched_tokens=%" PRIu64 ": it must be at least max_num_seqs, "
                 "%" PRIu64,
                 s->batched_tokens, s->sequences);
        return tdm_hint(err, "--set max_num_seqs=%" PRIu64, s->batched_tokens);
    }
    if (s->chunks == TDM_SERVING_NO && s->batched_tokens < settings->torch.tokens) {
        tdm_fail(err, TDM_USAGE,
                 "--set max_num_batched_tokens=%" PRIu64 ": without chunks it must be at least the "
                 "context, %" PRIu64,
                 s->batched_tokens, settings->torch.tokens);
        return tdm_hint(err, "--set enable_chunked_prefill=yes");
    }
    return TDM_OK;
}

bool tdm_serving_leaves_vision(const struct tdm_model *model,
                               const struct tdm_method_settings *settings)
{
    /* Gemma 3 without a tower has 26 layers or less. */
    return (model->text_alone ||
            (strcmp(model->architecture, "Gemma3ForCausalLM") == 0 && model->layers > 26)) &&
           settings->serving.other_weights_bytes == 0;
}

/* A note, and the same where layers have windows, of whose tokens SGLang keeps all. */
#define WINDOWS "layers with windows keep all tokens, as with disable_hybrid_swa_memory"
#define STORED(name)                                                                         \
    {                                                                                        \
        "weights in " name ", as the model's config says that they are stored",              \
            "weights in " name ", as the model's config says that they are stored; " WINDOWS \
    }

const char *tdm_serving_stored_note(const struct tdm_model *model, bool keeps_windows)
{
    static const char *const notes[][2] = {[TDM_SERVED_BF16] = {NULL, WINDOWS},
                                           [TDM_SERVED_FP8] = STORED("fp8"),
                                           [TDM_SERVED_INT8] = STORED("int8"),
                                           [TDM_SERVED_AWQ] = STORED("awq"),
                                           [TDM_SERVED_GPTQ] = STORED("gptq"),
                                           [TDM_SERVED_NVFP4] = STORED("nvfp4"),
                                           [TDM_SERVED_NF4] = STORED("bitsandbytes"),
                                           [TDM_SERVED_MXFP4] = STORED("mxfp4"),
                                           [TDM_SERVED_INT4_EXPERTS] = STORED("int4-experts")};
    return notes[stored_weights(model)][keeps_windows];
}

static const char *assumption(const struct tdm_model *model,
                              const struct tdm_method_settings *settings)
{
    const struct tdm_serving *s = &settings->serving;
    if (s->kv_dtype > TDM_KV_FP8)
        return "the cache in int8, int4 or nvfp4 is a model of its scales, and not compared with vLLM";
    if (s->eviction != TDM_EVICT_NONE || s->prefill_ranks > 1)
        return s->eviction != TDM_EVICT_NONE
                   ? "kv_eviction is a paper's, which vLLM does not have"
                   : "prefill_context_parallel_size is a paper's, which vLLM does not have";
    if (tdm_serving_leaves_vision(model, settings))
        return model->text_alone
                   ? "vLLM loads towers of pictures or sound too, which are not counted: "
                     "--set other_weights=SIZE"
                   : "vLLM loads the vision tower of this model too, about 0.8 GiB that are not "
                     "counted: --set other_weights=0.8G";
    if (tdm_serving_has_states(model))
        return "states beside K and V, whose pages are as vLLM's sources have them; block sizes of "
               "published logs are met";
    if (model->latent.kv_rank > 0)
        return "latent keys and values as vLLM's sources have them; compared with one log, of "
               "DeepSeek V2 Lite";
    return tdm_serving_stored_note(model, false);
}

static const struct tdm_method_key *const serving_keys[] = {tdm_keys_serving, NULL};

const struct tdm_method tdm_serving_method = {
    .name = "vllm",
    .summary = "vLLM: weights, a profile run, and a cache of K and V in blocks (--mode serve)",
    .serves = true,
    .least_gpus = 1,
    .most_gpus = MOST_RANKS,
    .keys = serving_keys,
    .preset = tdm_serving_preset,
    .check = tdm_serving_check,
    .assumption = assumption};
