/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of tdm_serving_answer(), each in its own file. Internal to methods/serving/. */
#ifndef TDM_METHODS_SERVING_PARTS_H
#define TDM_METHODS_SERVING_PARTS_H

#include "methods/eager/eager.h"
#include "methods/key.h"
#include "methods/serving/serving.h"

/* The layers of a pipeline stage: first, and one past the last. */
struct tdm_serving_layers {
    uint32_t first, end;
};

struct tdm_serving_layers tdm_serving_stage(const struct tdm_model *model,
                                            const struct tdm_serving *serving, uint32_t stage);

/* A preset: projections are as they are stored, unless a key says how. */
void tdm_serving_preset(struct tdm_method_settings *settings);

/* For keys: what the config of the checkpoint says of its weights, and their group. */
const char *tdm_serving_settled_weights(const struct tdm_key_case *c, char *text);
const char *tdm_serving_settled_group(const struct tdm_key_case *c, char *text);
extern const struct tdm_key_need tdm_serving_needs_groups; /* weights whose groups have scales */

/* How projections are stored: rows of a table of keys, which vLLM and SGLang name alike. */
#define TDM_SERVING_WEIGHT_KEYS                                                                                                 \
    {"quantization",                                                                                                            \
     "none|fp8|int8|awq|gptq|nvfp4|bitsandbytes|mxfp4|int4-experts",                                                            \
     NULL,                                                                                                                      \
     "projections; if nothing is said as the config has them, which no value may contradict; "                                  \
     "none: bf16, of a checkpoint that is not quantized; int8: W8A8; awq and gptq: 4 bits; mxfp4, int4-experts: experts alone", \
     tdm_key_read_choice,                                                                                                       \
     .field = offsetof(struct tdm_method_settings, serving.weights),                                                            \
     .settled = tdm_serving_settled_weights},                                                                                   \
    {                                                                                                                           \
        "group_size", "N", NULL, "weights that share a scale: as the config says, else 128",                                    \
            tdm_key_read_count,                                                                                                 \
            .field = offsetof(struct tdm_method_settings, serving.weight_group), .least = 1,                                    \
            .most = 65536, .needs = {&tdm_serving_needs_groups},                                                                \
            .settled = tdm_serving_settled_group                                                                                \
    }

/* What an answer says of weights that the model's config says are quantized, and of windows whose
 * tokens are all kept. NULL: nothing. */
const char *tdm_serving_stored_note(const struct tdm_model *model, bool keeps_windows);

/* Is there a vision tower whose weights nobody counted? */
bool tdm_serving_leaves_vision(const struct tdm_model *model,
                               const struct tdm_method_settings *settings);

/* KV heads that a GPU has: no fewer than one. */
uint64_t tdm_serving_kv_heads(const struct tdm_model *model, const struct tdm_serving *serving);

/* Are experts quantized alone, and all other weights in bf16? */
bool tdm_serving_experts_alone(enum tdm_serving_weights weights);

/* Parameters of a tensor-parallel rank in a stage, as they are stored, and the tables of RoPE
 * (weights.c). */
void tdm_serving_weights(const struct tdm_model *model, const struct tdm_serving *serving,
                         uint32_t stage, struct tdm_serving_rank *rank);

/* Fills forward_bytes and sampler_bytes: the profile run of a stage (profile.c). */
void tdm_serving_profile(const struct tdm_model *model, const struct tdm_serving *serving,
                         const struct tdm_serving_answer *answer, uint64_t context, uint32_t stage,
                         const struct tdm_gpu_facts *gpu, struct tdm_serving_rank *rank);

/* What NCCL takes on each of several ranks, by vLLM's logs before 0.11. */
uint64_t tdm_serving_ranks_bytes(const struct tdm_machine *machine);

/* tdm_serving_answer() of SGLang (sglang.c). */
void tdm_serving_sglang(const struct tdm_model *model, const struct tdm_machine *machine,
                        const struct tdm_serving *serving, uint64_t context,
                        struct tdm_serving_answer *answer);

/* ---- states.c ---- */

/* Does a layer have states beside K and V, or in their place? Does any? */
bool tdm_serving_has_state(const struct tdm_layer_kind *kind);
bool tdm_serving_has_states(const struct tdm_model *model);

/* Pages of states of a sequence in each group of such layers. */
uint64_t tdm_serving_state_pages(const struct tdm_serving *serving);

/* Bytes that the mixer of such a layer makes of a token in the profile run. */
uint64_t tdm_serving_mixer_bytes(const struct tdm_model *model, const struct tdm_serving *serving);

/* TDM_USAGE: states are not modelled with a setting. */
enum tdm_status tdm_serving_check_states(const struct tdm_model *model, const struct tdm_serving *s,
                                         struct tdm_error *err);

/* ---- cache.c ---- */

/* Bytes of K and V of a token in one layer of a rank. */
uint64_t tdm_serving_token_bytes(const struct tdm_model *model, const struct tdm_serving *serving);

/* Does any layer keep something in the cache? */
bool tdm_serving_keeps_any(const struct tdm_model *model, const struct tdm_serving *serving);

/* Groups of layers whose blocks are counted alike. */
uint32_t tdm_serving_groups(const struct tdm_model *model, const struct tdm_serving *serving);

/* Bytes of a block in a stage: of as many layers as its largest group has there. 0: no layer of the
 * stage keeps anything. */
uint64_t tdm_serving_block_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                                 uint32_t stage);

/* Fills block_bytes and blocks from cache_bytes. A stage that keeps nothing has room for any number
 * of blocks, if there is room for the stage itself. */
void tdm_serving_count_blocks(const struct tdm_model *model, const struct tdm_serving *serving,
                              uint32_t stage, struct tdm_serving_rank *rank);

/* Blocks of one sequence in all groups, none of it shared. */
uint64_t tdm_serving_sequence_blocks(const struct tdm_model *model,
                                     const struct tdm_serving *serving, uint64_t batched_tokens,
                                     uint64_t context);

/* Blocks of some sequences, with the prefixes that they share. */
uint64_t tdm_serving_blocks_of(const struct tdm_model *model, const struct tdm_serving *serving,
                               uint64_t batched_tokens, uint64_t context, uint64_t sequences);

#endif
