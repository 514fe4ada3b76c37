/* SPDX-License-Identifier: Apache-2.0 */
/* What a server holds: the budget, what is left of it for K and V, and how far that goes. */
#include "methods/serving/serving.h"

#include "base/size.h"
#include "methods/key.h"
#include "methods/prediction.h"
#include "methods/serving/parts.h"

#include <string.h>

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

/* What a rank takes outside torch once it has run: kernels and cuBLAS, by published logs of 0.6.6
 * to 0.8.5 (tests/data/serving_logs.csv): 0.16 GiB on a card of a data centre, 0.05 on others. Two
 * to 16 ranks over PCIe take 0.20 to 0.30 with NCCL; those over NVLink 1.27. */
#define LARGE_CARD_BYTES (164 * MIB)
#define SMALL_CARD_BYTES (51 * MIB)
#define PCIE_RANKS_BYTES (205 * MIB)
#define NVLINK_RANKS_BYTES (1137 * MIB)
#define NVLINK_CARD_BYTES (70 * GIB) /* cards of so much are taken to have it */

/* By 47 logs of 0.19 on H100s: 0.25 GiB on one, 2.07 to 2.21 GiB on each of two or four over
 * NVLink; on the last of two or four stages of a pipeline 0.2. Two logs of 0.11: 0.54 GiB on each
 * of two. */
#define LATER_LARGE_CARD_BYTES (256 * MIB)
#define LATER_NVLINK_RANKS_BYTES (1900 * MIB)
#define NVLINK_RANKS_0_11_BYTES (400 * MIB)

/* A layer in a captured graph. Of 35 graphs of 28 layers vLLM 0.8.5 said 0.64 GiB
 * (https://github.com/xming521/WeClone/issues/101). Those of 0.19 are on one line within 0.2 GiB:
 * 102 graphs, 51 of them in pieces and 51 whole, of 26 to 80 layers 0.71 to 1.85 GiB. */
#define GRAPH_LAYER_BYTES (684 * 1024)
#define LATER_GRAPH_LAYER_BYTES (206 * 1024)
#define LATER_GRAPHS_BYTES (256 * MIB)

/* The rule of _set_default_args_v1 in vllm/engine/arg_utils.py: H100s and larger ones, but no A100.
 */
static bool is_large(const struct tdm_machine *machine)
{
    const char *card = json_string_value(json_object_get(machine->description, "card"));
    return machine->topology.places[TDM_DEVICE].capacity_bytes >= 70 * GIB &&
           (card == NULL || strstr(card, "A100") == NULL);
}

static bool is_v1(const struct tdm_serving *serving)
{
    return serving->version >= TDM_VLLM_0_8;
}

/* max_num_seqs and max_num_batched_tokens of `vllm serve`, where they are not said. */
static void settle_steps(const struct tdm_machine *machine, const struct tdm_serving *serving,
                         uint64_t context, struct tdm_serving_answer *answer)
{
    bool large = is_large(machine) && is_v1(serving);
    uint64_t chunk = !is_v1(serving) ? serving->version < TDM_VLLM_0_6_5 ? 512 : 2048
                     : large         ? 8192
                                     : 2048;
    /* Before V1, prompts are cut where the context is over 32K (vllm/engine/arg_utils.py). */
    answer->chunked = serving->chunks == TDM_SERVING_YES ||
                      (serving->chunks == TDM_SERVING_AUTO && (is_v1(serving) || context > 32768));
    answer->sequences = serving->sequences != TDM_AUTO ? serving->sequences : large ? 1024 : 256;
    answer->batched_tokens = serving->batched_tokens != TDM_AUTO ? serving->batched_tokens
                             : answer->chunked                   ? chunk
                                                                 : tdm_most(context, 2048);
    if (is_v1(serving)) /* config/scheduler.py */
        answer->batched_tokens =
            tdm_least(answer->batched_tokens, tdm_size_mul(answer->sequences, context));
    if (is_v1(serving) && serving->sequences == TDM_AUTO) /* engine/arg_utils.py */
        answer->sequences = tdm_least(answer->sequences, answer->batched_tokens);
}

uint64_t tdm_serving_ranks_bytes(const struct tdm_machine *machine)
{
    return machine->topology.places[TDM_DEVICE].capacity_bytes >= NVLINK_CARD_BYTES
               ? NVLINK_RANKS_BYTES
               : PCIE_RANKS_BYTES;
}

static uint64_t non_torch_bytes(const struct tdm_machine *machine,
                                const struct tdm_serving *serving)
{
    bool large = machine->topology.places[TDM_DEVICE].capacity_bytes >= NVLINK_CARD_BYTES;
    bool whole = serving->version == TDM_VLLM_0_6_4 || serving->version == TDM_VLLM_0_8;
    bool later = serving->version >= TDM_VLLM_0_17;
    uint64_t bytes = !large ? SMALL_CARD_BYTES : later ? LATER_LARGE_CARD_BYTES : LARGE_CARD_BYTES;
    if (serving->non_torch_bytes != TDM_AUTO)
        return serving->non_torch_bytes;
    if (serving->tensor_ranks > 1)
        bytes += later ? large ? LATER_NVLINK_RANKS_BYTES : PCIE_RANKS_BYTES
                 : serving->version >= TDM_VLLM_0_11 ? large ? NVLINK_RANKS_0_11_BYTES : 0
                                                     : tdm_serving_ranks_bytes(machine);
    return bytes + (whole ? machine->topology.places[TDM_DEVICE].runtime_bytes : 0);
}

/* Sizes for which a graph is captured, up to `most`: 1, 2, 4, and every eighth; since 0.17 every
 * 16th beyond 256. */
static uint64_t graph_sizes(const struct tdm_serving *serving, uint64_t most)
{
    if (serving->version < TDM_VLLM_0_17)
        return 3 + most / 8;
    return 3 + tdm_least(most, 256) / 8 + (most > 256 ? (most - 256) / 16 : 0);
}

static uint64_t graph_bytes(const struct tdm_serving *serving,
                            const struct tdm_serving_answer *answer, uint32_t layers)
{
    uint64_t whole = tdm_least(answer->sequences, is_v1(serving) ? 512 : 256);
    uint64_t pieces = tdm_least(2 * answer->sequences, 512);
    if (serving->eager)
        return 0;
    if (serving->version >= TDM_VLLM_0_17)
        return LATER_GRAPHS_BYTES + (graph_sizes(serving, pieces) + graph_sizes(serving, whole)) *
                                        layers * LATER_GRAPH_LAYER_BYTES;
    return graph_sizes(serving, is_v1(serving) ? pieces : whole) * layers * GRAPH_LAYER_BYTES;
}

static struct tdm_serving_rank rank_of(const struct tdm_model *model,
                                       const struct tdm_machine *machine,
                                       const struct tdm_serving *serving, uint64_t context,
                                       uint32_t stage, const struct tdm_serving_answer *answer)
{
    struct tdm_serving_rank rank = {.non_torch_bytes = non_torch_bytes(machine, serving)};
    struct tdm_serving_layers layers = tdm_serving_stage(model, serving, stage);
    tdm_serving_weights(model, serving, stage, &rank);
    tdm_serving_profile(model, serving, answer, context, stage, tdm_machine_gpu_facts(machine),
                        &rank);
    uint64_t taken = tdm_size_add(rank.weights_bytes, rank.non_torch_bytes);
    taken = tdm_size_add(taken, tdm_most(rank.forward_bytes, rank.sampler_bytes));
    rank.graph_bytes = graph_bytes(serving, answer, layers.end - layers.first);
    if (serving->version >= TDM_VLLM_0_21) /* VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS */
        taken = tdm_size_add(taken, rank.graph_bytes);
    rank.cache_bytes = serving->kv_memory_bytes > 0 ? serving->kv_memory_bytes
                                                    : tdm_size_left(answer->budget_bytes, taken);
    tdm_serving_count_blocks(model, serving, stage, &rank);
    if (serving->override_blocks > 0)
        rank.blocks = serving->override_blocks;
    return rank;
}

/* The most sequences that fit: blocks rise with their number. */
static uint64_t held(const struct tdm_model *model, const struct tdm_serving *serving,
                     uint64_t context, const struct tdm_serving_answer *answer)
{
    uint64_t low = 0, high = answer->blocks + 1;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        bool fits = tdm_serving_blocks_of(model, serving, answer->batched_tokens, context,
                                          middle) <= answer->blocks;
        low = fits ? middle : low;
        high = fits ? high : middle;
    }
    return low;
}

void tdm_serving_answer(const struct tdm_model *model, const struct tdm_machine *machine,
                        const struct tdm_serving *serving, uint64_t context,
                        struct tdm_serving_answer *answer)
{
    if (serving->sglang) {
        tdm_serving_sglang(model, machine, serving, context, answer);
        return;
    }
    *answer = (struct tdm_serving_answer){
        .budget_bytes = (uint64_t)((double)machine->topology.places[TDM_DEVICE].capacity_bytes *
                                   serving->utilization),
        .groups = tdm_serving_groups(model, serving)};
    settle_steps(machine, serving, context, answer);
    for (uint32_t stage = 0; stage < serving->pipeline_ranks; stage++) {
        struct tdm_serving_rank rank = rank_of(model, machine, serving, context, stage, answer);
        if (stage > 0 && rank.blocks >= answer->rank.blocks)
            continue;
        answer->rank = rank;
        answer->stage = stage;
    }
    answer->blocks = answer->rank.blocks;
    answer->cache_tokens = answer->blocks / answer->groups *
                           tdm_serving_block_tokens(model, serving) * serving->decode_ranks *
                           serving->prefill_ranks;
    answer->blocks_of_a_sequence =
        tdm_serving_sequence_blocks(model, serving, answer->batched_tokens, context);
    /* V0 divides tokens by tokens, V1 blocks by blocks. */
    answer->concurrency = is_v1(serving)
                              ? (double)answer->blocks / (double)answer->blocks_of_a_sequence
                              : (double)answer->cache_tokens / (double)context;
    answer->held_sequences = held(model, serving, context, answer);
}

uint64_t tdm_serving_needed_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                                  const struct tdm_serving_answer *answer, uint64_t context,
                                  uint64_t sequences)
{
    return tdm_size_mul(
        tdm_serving_blocks_of(model, serving, answer->batched_tokens, context, sequences),
        answer->rank.block_bytes);
}

static bool holds(const struct tdm_model *model, const struct tdm_machine *machine,
                  const struct tdm_serving *serving, uint64_t sequences, uint64_t context)
{
    struct tdm_serving_answer answer;
    tdm_serving_answer(model, machine, serving, context, &answer);
    return tdm_serving_blocks_of(model, serving, answer.batched_tokens, context, sequences) <=
           answer.blocks;
}

/* The longest in [low, high], where less holds if more does; 0: none. */
static uint64_t longest_within(const struct tdm_model *model, const struct tdm_machine *machine,
                               const struct tdm_serving *serving, uint64_t sequences, uint64_t low,
                               uint64_t high)
{
    if (low > high || !holds(model, machine, serving, sequences, low))
        return 0;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (holds(model, machine, serving, sequences, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

uint64_t tdm_serving_longest(const struct tdm_model *model, const struct tdm_machine *machine,
                             const struct tdm_serving *serving, uint64_t sequences, uint64_t most)
{
    /* Before V1 a context over 32K takes less for the profile run: prompts are then cut. */
    uint64_t cut = 32768,
             longest = longest_within(model, machine, serving, sequences, cut + 1, most);
    return longest > 0
               ? longest
               : longest_within(model, machine, serving, sequences, 1, tdm_least(cut, most));
}
