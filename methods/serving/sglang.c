/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGLang: mem_fraction_static of the memory that was free before the weights were loaded, less what
 * loading took, is K and V (profile_max_num_token in sglang/srt/model_executor/model_runner.py).
 * There is no profile run: activations and graphs must do with the rest. Where the share is not
 * said it is what a rule leaves (server_args.py `_handle_gpu_memory_settings`, since 0.5.4).
 */
#include "methods/serving/parts.h"

#include "base/size.h"
#include "methods/method.h"
#include "methods/prediction.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, serving.name)
#define MIB (UINT64_C(1) << 20)
#define MOST_RANKS 65536u

/* What loading takes beside the weights, by eight logs: 0.03 to 0.13 GiB. */
#define LOADED_BYTES (92 * MIB)

static enum tdm_status read_share(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double share = strtod(value, &end);
    if (strcmp(value, "auto") == 0)
        share = 0;
    else if (end == value || *end != '\0' || !(share > 0 && share < 1))
        return tdm_fail(
            err, TDM_USAGE,
            "--set %s: \"%.64s\" is not a share; expected a number above 0, below 1, or "
            "auto",
            key->name, value);
    settings->serving.static_share = share;
    return TDM_OK;
}

static enum tdm_status read_chunk(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    settings->serving.batched_tokens = TDM_AUTO;
    return strcmp(value, "auto") == 0 ? TDM_OK : tdm_key_read_tokens(key, value, settings, err);
}

static enum tdm_status read_batch(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    settings->serving.sequences = TDM_AUTO;
    return strcmp(value, "auto") == 0 ? TDM_OK : tdm_key_read_count(key, value, settings, err);
}

static bool has_share(const struct tdm_key_case *c)
{
    return c->settings->serving.static_share == 0;
}

static const struct tdm_key_need needs_rule = {"with mem_fraction_static", has_share};

static const struct tdm_method_key keys[] = {
    {"mem_fraction_static", "auto|SHARE", "auto",
     "weights and cache, of the memory that was free; auto: what SGLang since 0.5.4 leaves. Before "
     "0.4.10 0.88 on one GPU, 0.87 on two, 0.85 on four, 0.81 on eight",
     .read = read_share},
    {"max_total_tokens", "N", NULL, "tokens of the cache, if there is room for them",
     tdm_key_read_tokens, FIELD(total_tokens)},
    {"chunked_prefill_size", "auto|N", "auto", "tokens of a step; auto: by the card", read_chunk,
     FIELD(batched_tokens)},
    {"cuda_graph_max_bs", "auto|N", "auto", "most sequences of a graph; auto: by the card",
     read_batch, FIELD(sequences), .least = 1, .most = MOST_RANKS, .needs = {&needs_rule}},
    {"page_size", "N", "1", "tokens of a page", tdm_key_read_count, FIELD(block_size), .least = 1,
     .most = MOST_RANKS},
    {"kv_cache_dtype", "auto|fp8", "auto", "K and V; auto: bf16", tdm_key_read_choice,
     FIELD(kv_dtype)},
    {"tp_size", "N", "1", "GPUs that divide heads and MLP", tdm_key_read_count, FIELD(tensor_ranks),
     .least = 1, .most = MOST_RANKS},
    {"pp_size", "N", "1", "GPUs that divide the layers", tdm_key_read_count, FIELD(pipeline_ranks),
     .least = 1, .most = MOST_RANKS},
    TDM_SERVING_WEIGHT_KEYS,
    {.name = NULL},
};

/* chunked_prefill_size and cuda_graph_max_bs where they are not said: by memory, and by ranks. */
static void settle(const struct tdm_machine *machine, const struct tdm_serving *serving,
                   uint64_t *chunk, uint64_t *graph)
{
    static const struct {
        uint64_t below_mib, chunk, graph, graph_of_four;
    } cards[] = {{20 * 1024, 2048, 8, 80},     {35 * 1024, 2048, 24, 80},
                 {60 * 1024, 4096, 32, 160},   {90 * 1024, 8192, 256, 512},
                 {160 * 1024, 8192, 256, 512}, {UINT64_MAX, 16384, 512, 512}};
    uint64_t mib = machine->topology.places[TDM_DEVICE].capacity_bytes / MIB;
    unsigned i = 0;
    while (mib >= cards[i].below_mib)
        i++;
    *chunk = serving->batched_tokens != TDM_AUTO ? serving->batched_tokens : cards[i].chunk;
    *graph = serving->sequences != TDM_AUTO ? serving->sequences
             : serving->tensor_ranks >= 4   ? cards[i].graph_of_four
                                            : cards[i].graph;
}

static double share_of(const struct tdm_machine *machine, const struct tdm_serving *serving,
                       uint64_t chunk, uint64_t graph)
{
    double mib = (double)machine->topology.places[TDM_DEVICE].capacity_bytes / MIB;
    double reserved = 512 + 1.5 * (double)tdm_most(chunk, 2048) + 2 * (double)graph +
                      (double)(serving->tensor_ranks * serving->pipeline_ranks) / 8 * 1024;
    if (mib > 60 * 1024)
        reserved = fmax(reserved, 10 * 1024);
    return serving->static_share > 0 ? serving->static_share
                                     : fmax(0, round((mib - reserved) / mib * 1000) / 1000);
}

void tdm_serving_sglang(const struct tdm_model *model, const struct tdm_machine *machine,
                        const struct tdm_serving *serving, uint64_t context,
                        struct tdm_serving_answer *answer)
{
    const struct tdm_place_row *device = &machine->topology.places[TDM_DEVICE];
    uint64_t chunk, graph, taken = device->runtime_bytes;
    settle(machine, serving, &chunk, &graph);
    *answer = (struct tdm_serving_answer){
        .batched_tokens = chunk, .sequences = graph, .chunked = true, .groups = 1};
    if (serving->tensor_ranks * serving->pipeline_ranks > 1)
        taken += tdm_serving_ranks_bytes(machine); /* which is there before */
    answer->free_bytes = tdm_size_left(device->capacity_bytes, taken);
    answer->share = share_of(machine, serving, chunk, graph);
    answer->budget_bytes = (uint64_t)((double)answer->free_bytes * answer->share);
    for (uint32_t stage = 0; stage < serving->pipeline_ranks; stage++) {
        struct tdm_serving_rank rank = {.non_torch_bytes = LOADED_BYTES};
        tdm_serving_weights(model, serving, stage, &rank);
        tdm_serving_profile(model, serving, answer, context, stage, tdm_machine_gpu_facts(machine),
                            &rank);
        rank.sampler_bytes = 0;
        rank.cache_bytes = tdm_size_left(answer->budget_bytes, rank.weights_bytes + LOADED_BYTES);
        tdm_serving_count_blocks(model, serving, stage, &rank);
        if (stage > 0 && rank.blocks >= answer->rank.blocks)
            continue;
        answer->rank = rank;
        answer->stage = stage;
    }
    const uint64_t page = tdm_serving_block_tokens(model, serving);
    answer->blocks = answer->rank.blocks;
    if (serving->total_tokens > 0)
        answer->blocks = tdm_least(answer->blocks, serving->total_tokens / page);
    answer->cache_tokens = answer->blocks * page;
    answer->blocks_of_a_sequence = tdm_size_ceil_div(context, page);
    answer->concurrency = (double)answer->cache_tokens / (double)context;
    answer->held_sequences = answer->blocks / answer->blocks_of_a_sequence;
}

/* What SGLang has no key for is as vLLM before V1 has it, which keeps all tokens of windows. */
static enum tdm_status check(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err)
{
    struct tdm_serving *s = &settings->serving;
    s->sglang = true;
    s->version = model->latent.kv_rank > 0 ? TDM_VLLM_0_8 : TDM_VLLM_0_6_4;
    s->kv_group = s->non_torch_bytes = s->sliding_window = TDM_AUTO;
    s->decode_ranks = s->prefill_ranks = 1;
    return tdm_serving_check(model, settings, err);
}

static const char *assumption(const struct tdm_model *model,
                              const struct tdm_method_settings *settings)
{
    if (tdm_serving_leaves_vision(model, settings))
        return model->text_alone
                   ? "SGLang loads towers of pictures or sound too, which are not counted: "
                     "--set other_weights=SIZE"
                   : "SGLang loads the vision tower of this model too, about 0.8 GiB that are not "
                     "counted; layers with windows keep all tokens, as with "
                     "disable_hybrid_swa_memory";
    return tdm_serving_stored_note(model, tdm_model_shortest_window(model, UINT64_MAX) > 0);
}

static const struct tdm_method_key *const all_keys[] = {keys, NULL};

const struct tdm_method tdm_sglang_method = {
    .name = "sglang",
    .summary = "SGLang: weights, and a cache of K and V in a share of the device (--mode serve)",
    .serves = true,
    .least_gpus = 1,
    .most_gpus = MOST_RANKS,
    .keys = all_keys,
    .preset = tdm_serving_preset,
    .check = check,
    .assumption = assumption};

const struct tdm_method *tdm_serving_find(const char *name)
{
    const struct tdm_method *const servers[] = {&tdm_serving_method, &tdm_sglang_method};
    for (size_t i = 0; i < sizeof(servers) / sizeof(servers[0]); i++)
        if (strcmp(servers[i]->name, name) == 0)
            return servers[i];
    return NULL;
}
