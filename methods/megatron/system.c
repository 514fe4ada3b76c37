/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM as a system: its layout of the GPUs, what it allocates once, and its steps. */
#include "methods/megatron/parts.h"

#include "base/size.h"
#include "methods/divisors.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- the layout ---- */

static enum tdm_status divide_gpus(const struct tdm_method_settings *settings,
                                   struct tdm_megatron_layout *l, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    uint64_t gpus = settings->torch.ranks, *open = NULL, said = s->pipeline;
    l->tensor = s->tensor;
    l->context = s->context;
    l->pipeline = s->pipeline;
    uint64_t *const sizes[] = {&l->tensor, &l->context};
    for (unsigned i = 0; i < 2; i++) {
        if (*sizes[i] == 0 && open != NULL)
            return tdm_fail(err, TDM_USAGE,
                            "--set: one of tensor_model_parallel_size and context_parallel_size "
                            "may be all");
        if (*sizes[i] == 0)
            open = sizes[i];
        else
            said *= *sizes[i];
    }
    if (gpus % said != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--gpus: %" PRIu64 " are not divided by the %" PRIu64
                 " of tensor, context and pipeline parallelism",
                 gpus, said);
        return tdm_hint(err, "--gpus %" PRIu64 ", or sizes that make less",
                        tdm_size_ceil_div(gpus, said) * said);
    }
    if (open != NULL)
        *open = gpus / said;
    l->data = gpus / (l->tensor * l->context * l->pipeline);
    return TDM_OK;
}

/* Hybrid context parallelism: a sequence has as many ranks, a power of two, as it needs for no
 * rank to have more than max_seqlen_per_dp_cp_rank tokens of it. Others are left to other
 * sequences. Source: megatron/core/pipeline_parallel/hybrid_cp_schedule.py (gpus_needed). */
static enum tdm_status divide_by_length(const struct tdm_method_settings *settings,
                                        struct tdm_megatron_layout *l, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    uint64_t ranks = l->context * l->data, needed = 1;
    if (!s->hybrid)
        return TDM_OK;
    if (s->hybrid_tokens == 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set hybrid_context_parallel: needs max_seqlen_per_dp_cp_rank=N");
    if (l->pipeline > 1)
        return tdm_fail(err, TDM_USAGE, "--set hybrid_context_parallel: not with a pipeline");
    if (settings->torch.batch > 1)
        return tdm_fail(err, TDM_USAGE,
                        "--batch: hybrid_context_parallel runs one sequence after the other");
    while (needed < tdm_size_ceil_div(settings->torch.tokens, s->hybrid_tokens))
        needed *= 2;
    if (ranks % needed != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set max_seqlen_per_dp_cp_rank: %" PRIu64 " tokens need %" PRIu64
                 " ranks, and there are %" PRIu64 " of data and context parallelism",
                 settings->torch.tokens, needed, ranks);
        return tdm_hint(err, "--set max_seqlen_per_dp_cp_rank=%" PRIu64,
                        tdm_size_ceil_div(settings->torch.tokens, ranks));
    }
    l->context = needed;
    l->data = ranks / needed;
    return TDM_OK;
}

/* The GPUs of a stage divide experts among expert, expert tensor and expert data ranks. */
static enum tdm_status divide_experts(const struct tdm_model *model,
                                      const struct tdm_method_settings *settings,
                                      struct tdm_megatron_layout *l, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    uint64_t stage = settings->torch.ranks / l->pipeline;
    l->expert = s->expert;
    l->expert_tensor = s->expert_tensor > 0 ? s->expert_tensor : l->tensor;
    if (model->experts.count == 0)
        l->expert = l->expert_tensor = 1;
    uint64_t both = tdm_size_mul(l->expert, l->expert_tensor);
    if (stage % both != 0 || (model->experts.count > 0 && model->experts.count % l->expert != 0)) {
        char divisors[TDM_DIVISORS_BYTES];
        tdm_fail(err, TDM_USAGE,
                 "--set expert_model_parallel_size: %" PRIu64 " times expert_tensor_parallel_size "
                 "%" PRIu64 " does not divide the %" PRIu64 " GPUs of a stage, or not %" PRIu32
                 " experts",
                 l->expert, l->expert_tensor, stage, model->experts.count);
        return tdm_hint(err, "sizes that do: %s",
                        tdm_divisors_format(tdm_common_divisor(model->experts.count, stage), 1,
                                            UINT64_MAX, divisors));
    }
    if (model->experts.count > 0 && (model->experts.intermediate % l->expert_tensor != 0 ||
                                     model->experts.shared % l->tensor != 0))
        return tdm_fail(err, TDM_USAGE,
                        "--set expert_tensor_parallel_size: %" PRIu64
                        " does not divide experts that are %" PRIu32 " wide",
                        l->expert_tensor, model->experts.intermediate);
    l->expert_data = stage / both;
    return TDM_OK;
}

/* Can heads and MLP be divided among so many ranks? attention.py: of more ranks than KV heads,
 * equal numbers share one. */
static bool divides(const struct tdm_model *model, uint64_t tensor)
{
    const bool shares = model->latent.kv_rank == 0 && tensor > model->kv_heads;
    if (model->query_heads % tensor != 0 || model->intermediate % tensor != 0)
        return false;
    return shares ? tensor % model->kv_heads == 0 &&
                        model->head_dim * (model->query_heads + 2 * model->kv_heads) % tensor == 0
                  : model->kv_heads % tensor == 0;
}

static enum tdm_status refuse_heads(const struct tdm_model *model, uint64_t tensor,
                                    struct tdm_error *err)
{
    char sizes[TDM_DIVISORS_BYTES] = "1";
    size_t length = 1;
    for (uint64_t size = 2; size <= model->query_heads && length + 24 < sizeof(sizes); size++)
        if (divides(model, size))
            length += (size_t)snprintf(sizes + length, sizeof(sizes) - length, ", %" PRIu64, size);
    tdm_fail(err, TDM_USAGE,
             "--set tensor_model_parallel_size: %" PRIu64 " does not suit %" PRIu32
             " heads, %" PRIu32 " KV heads and the MLP's %" PRIu32,
             tensor, model->query_heads, model->kv_heads, model->intermediate);
    return tdm_hint(err, "sizes that do: %s", sizes);
}

static enum tdm_status divide_heads(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    struct tdm_megatron_layout *l, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    uint64_t tokens = settings->torch.tokens;
    char divisors[TDM_DIVISORS_BYTES];
    const uint64_t heads = tdm_common_divisor(model->query_heads, model->kv_heads);
    if (!divides(model, l->tensor))
        return refuse_heads(model, l->tensor, err);
    const bool shares = model->latent.kv_rank == 0 && l->tensor > model->kv_heads;
    const uint64_t kv_heads = shares ? l->tensor : model->kv_heads;
    const struct megatron_divider *divider = &megatron_dividers[s->exchange];
    bool both = divider->exchanges && divider->rings;
    l->exchange_heads = 1;
    if (both)
        l->exchange_heads = s->exchange_heads > 0 ? s->exchange_heads : (l->context + 1) / 2;
    else if (divider->exchanges)
        l->exchange_heads = l->context;
    if (l->context % l->exchange_heads != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set hierarchical_context_parallel_sizes: %" PRIu64
                        " does not divide %" PRIu64 " ranks",
                        l->exchange_heads, l->context);
    l->exchange_ring = l->context / l->exchange_heads;
    if (both && s->exchange_heads > 0 && s->exchange_ring != l->exchange_ring)
        return tdm_fail(err, TDM_USAGE,
                        "--set hierarchical_context_parallel_sizes: %" PRIu64 " times %" PRIu64
                        " is not the %" PRIu64 " ranks of context parallelism",
                        s->exchange_heads, s->exchange_ring, l->context);
    if (kv_heads / l->tensor % l->exchange_heads != 0 ||
        model->query_heads / l->tensor % l->exchange_heads != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set cp_comm_type: %" PRIu64 " ranks that exchange heads do not divide "
                 "%" PRIu64 " KV heads of a GPU",
                 l->exchange_heads, kv_heads / l->tensor);
        return tdm_hint(
            err, "numbers that do: %s; cp_comm_type=p2p takes any",
            tdm_divisors_format(shares ? 1 : heads / l->tensor, 1, UINT64_MAX, divisors));
    }
    uint64_t parts = l->context > 1 ? 2 * l->context : 1;
    l->sequence_parallel = s->sequence_parallel && l->tensor > 1;
    if (l->sequence_parallel)
        parts = parts % 2 == 0 ? parts * l->tensor / (l->tensor % 2 == 0 ? 2 : 1) : l->tensor;
    if (s->packed && !s->hybrid && s->longest % parts != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set max_seqlen_q: each packed sequence is padded to a multiple of %" PRIu64
                 " tokens",
                 parts);
        return tdm_hint(err, "--set max_seqlen_q=%" PRIu64,
                        tdm_size_ceil_div(s->longest, parts) * parts);
    }
    if (tokens % parts != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--context: %" PRIu64 " is not a multiple of the %" PRIu64
                 " parts of context and sequence parallelism",
                 tokens, parts);
        return tdm_hint(err, "--context %" PRIu64 ", padded",
                        tdm_size_ceil_div(tokens, parts) * parts);
    }
    return TDM_OK;
}

static enum tdm_status check_recompute(const struct tdm_megatron_settings *s,
                                       const struct tdm_megatron_layout *l, struct tdm_error *err)
{
    if (s->recompute == TDM_RECOMPUTE_FULL && s->method == TDM_RECOMPUTE_UNIFORM &&
        s->recompute_layers == 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set recompute_num_layers: 0 is for recompute_method=block");
    if (!s->distribute_saved)
        return TDM_OK;
    if (s->recompute != TDM_RECOMPUTE_FULL)
        return tdm_fail(err, TDM_USAGE,
                        "--set distribute_saved_activations: only with recompute_granularity=full");
    if (l->tensor == 1)
        return tdm_fail(err, TDM_USAGE,
                        "--set distribute_saved_activations: only with tensor parallelism");
    if (l->sequence_parallel)
        return tdm_fail(err, TDM_USAGE,
                        "--set distribute_saved_activations: not with sequence_parallel, which "
                        "divides them already");
    return TDM_OK;
}

static enum tdm_status check_lora(const struct tdm_model *model,
                                  const struct tdm_method_settings *settings,
                                  const struct tdm_megatron_layout *l, struct tdm_error *err)
{
    uint64_t rank = settings->torch.lora_rank;
    if (rank == 0 && settings->megatron.regather)
        return tdm_fail(err, TDM_USAGE,
                        "--set sequence_parallel_input_regather: only with lora_rank");
    if (rank % l->tensor != 0 || (rank > 0 && model->hidden % l->tensor != 0))
        return tdm_fail(err, TDM_USAGE,
                        "--set lora_rank: %" PRIu64 " tensor-parallel ranks do not divide rank "
                        "%" PRIu64 " and the hidden size of %" PRIu32,
                        l->tensor, rank, model->hidden);
    return TDM_OK;
}

/* What transformers does in an order or by operations of its own, where Megatron-Core has joint
 * products and kernels: fused rotations turn heads whole, in part or in pairs alike. Norms, biases
 * and positions are settings. */
#define OF_TRANSFORMERS                                                                          \
    (TDM_PART_WIDE_NORMS | TDM_PART_LATE_QK_NORM | TDM_PART_JOINT_QKV | TDM_PART_JOINT_GATE_UP | \
     TDM_PART_CUT_ROPE | TDM_PART_INTERLEAVED_ROPE | TDM_PART_TWO_ROPES | TDM_PART_GLM_NORMS |   \
     TDM_PART_WIDE_ROPE | TDM_PART_CAST_ROPE | TDM_PART_FLASH_ROPE)
#define OF_SETTINGS                                                                     \
    (TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_BIASES | TDM_PART_POSITIONS | \
     TDM_PART_DROPOUT)

static bool has_gelu(const struct tdm_model *model)
{
    return model->activation == TDM_ACTIVATION_GELU ||
           model->activation == TDM_ACTIVATION_GELU_TANH ||
           model->activation == TDM_ACTIVATION_GELU_NEW ||
           model->activation == TDM_ACTIVATION_GELU_FAST;
}

/* A GELU in place of SwiGLU is not fused with its gate: Megatron-Bridge's is a function of its own
 * (models/gemma/gemma_provider.py, fast_gelu), which also asks for FlashAttention. */
void tdm_megatron_of_model(const struct tdm_model *model, struct tdm_megatron_settings *s)
{
    const uint32_t parts = model->parts;
    s->layer_norm |= (parts & TDM_PART_LAYER_NORMS) != 0;
    s->linear_bias |= (parts & TDM_PART_BIASES) != 0;
    if ((parts & TDM_PART_POSITIONS) != 0)
        s->positions = TDM_POSITIONS_LEARNED;
    else if ((parts & TDM_PART_NO_ANGLES) != 0 && s->positions == TDM_POSITIONS_ROPE)
        s->positions = TDM_POSITIONS_NONE;
    if ((parts & TDM_PART_PLAIN_MLP) != 0)
        s->gelu_mlp = has_gelu(model);
    if (!s->gelu_mlp && has_gelu(model) && s->glu == TDM_GLU_FUSED)
        s->glu = TDM_GLU_SINGLE;
    if (model->scaled_embedding && s->attention == TDM_BACKEND_AUTO)
        s->attention = TDM_BACKEND_FLASH;
}

static enum tdm_status check_model(const struct tdm_model *model,
                                   const struct tdm_method_settings *settings,
                                   struct tdm_error *err)
{
    const char *method = settings->method->name;
    const struct tdm_megatron_settings *s = &settings->megatron;
    bool latent = model->latent.kv_rank > 0;
    if ((latent || model->experts.count > 0) && settings->torch.lora_rank > 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set lora_rank: adapters of %s are not modelled in Megatron-LM",
                        latent ? "latent attention" : "mixtures of experts");
    if (model->experts.count > 0 && (s->gelu_mlp || s->linear_bias || s->glu != TDM_GLU_FUSED))
        return tdm_fail(err, TDM_USAGE, "--set %s: experts with it are not modelled",
                        s->gelu_mlp             ? "swiglu=no"
                        : s->linear_bias        ? "disable_bias_linear=no"
                        : s->glu == TDM_GLU_OLD ? "bias_swiglu_fusion=old"
                                                : "bias_swiglu_fusion=no");
    if (model->experts.shared_gate)
        return tdm_fail(err, TDM_USAGE, "method %s: the gate of %s's shared expert is not modelled",
                        method, model->name);
    if (s->attention == TDM_BACKEND_UNFUSED && s->context != 1) {
        tdm_fail(err, TDM_USAGE,
                 "--set attention_backend=unfused: with context parallelism it is not known");
        return tdm_hint(err, "--set context_parallel_size=1");
    }
    if (latent && s->linear_bias) {
        tdm_fail(err, TDM_USAGE, "method %s: latent attention with biases is not modelled", method);
        return tdm_hint(err, "disable_bias_linear=yes");
    }
    const bool posts = model->layer_kinds[0].post_norms &&
                       (latent || settings->torch.lora_rank > 0 || model->experts.count > 0);
    /* Norms have weights, and an activation that is not fused has no bias. */
    const bool bare =
        model->mamba.heads == 0 && tdm_model_tensor(model, 0, TDM_ROLE_ATTENTION_NORM) == NULL;
    const bool biased = (model->parts & TDM_PART_PLAIN_MLP) != 0 && !s->gelu_mlp && s->linear_bias;
    if (bare || biased ||
        ((model->parts & ~(uint32_t)(OF_TRANSFORMERS | OF_SETTINGS)) != 0 &&
         model->mamba.heads == 0) ||
        posts || model->attention_softcap > 0 || model->logits_softcap > 0 ||
        model->whole_qk_norm) {
        tdm_fail(
            err, TDM_USAGE,
            "method %s: %s is a %s, whose norms, positions or capped scores are not modelled in "
            "Megatron-LM",
            method, model->name, model->architecture);
        return tdm_hint(err, tdm_model_rare_part(model) != NULL ? "--mode serve takes it"
                             : model->own_scores != TDM_SCORES_COMMON
                                 ? "fsdp and zero3 take it"
                                 : "fsdp, zero3 and ulysses take it");
    }
    return TDM_OK;
}

/* validate_args: the hybrid optimizer is one of those that are aware of precision, which have
 * shares.
 */
static enum tdm_status check_offload(const struct tdm_megatron_settings *s, struct tdm_error *err)
{
    if (!s->offloads)
        return TDM_OK;
    if (!s->distributed_optimizer) {
        tdm_fail(err, TDM_USAGE,
                 "--set optimizer_cpu_offload: Megatron-LM asks for the distributed optimizer");
        return tdm_hint(err, "--set use_distributed_optimizer=yes");
    }
    if (s->float8_weights && s->float8 != TDM_TE_NONE && s->float8 != TDM_TE_DELAYED)
        return tdm_fail(err, TDM_USAGE,
                        "--set optimizer_cpu_offload: with fp8_param_gather Megatron-LM asks for "
                        "fp8_recipe=delayed");
    return s->muon ? tdm_fail(err, TDM_USAGE, "--set optimizer_cpu_offload: it is of Adam alone")
                   : TDM_OK;
}

/* Muon's states are of whole matrices, which no other rank has a part of. */
static enum tdm_status check_muon(const struct tdm_megatron_settings *s, struct tdm_error *err)
{
    if (!s->muon || !s->distributed_optimizer)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "--set optimizer: Muon with use_distributed_optimizer is not modelled");
    return tdm_hint(err, "without it every rank has the states of all that it has");
}

/* A module of which a product's input is made again (set_save_original_input of fc2). */
static bool makes_again(const struct tdm_megatron_settings *s)
{
    const uint32_t modules = 1u << TDM_RECOMPUTED_MOE_ACT | 1u << TDM_RECOMPUTED_LAYERNORM;
    return s->recompute == TDM_RECOMPUTE_SELECTIVE && (s->modules & modules) != 0;
}

/* Products of 8 bits need dimensions that 16 divides (assert_dim_for_fp8_exec: rows of inputs by
 * 8). Weights of 8 bits alone are those of the distributed optimizer. */
static enum tdm_status check_float8(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_megatron_layout *l, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    const bool latent = model->latent.kv_rank > 0;
    const char *what = settings->torch.lora_rank > 0          ? "adapters"
                       : model->experts.count == 0 && !latent ? NULL
                       : s->float8_weights                    ? "fp8_param_gather"
                       : makes_again(s) ? "recompute_modules=moe_act or layernorm"
                                        : NULL;
    if (s->float8 == TDM_TE_NONE)
        return TDM_OK;
    if (what != NULL)
        return tdm_fail(err, TDM_USAGE,
                        "--set fp8_recipe: products of 8 bits with %s are not "
                        "modelled%s",
                        what, latent || model->experts.count > 0 ? " for this model" : "");
    if (s->wide_ends && s->float8 == TDM_TE_DELAYED) {
        tdm_fail(err, TDM_USAGE, "--set first_last_layers_bf16: not with fp8_recipe=delayed");
        return tdm_hint(err, "--set fp8_recipe=tensorwise");
    }
    if (s->float8_weights && !s->distributed_optimizer) {
        tdm_fail(err, TDM_USAGE, "--set fp8_param_gather: needs the distributed optimizer");
        return tdm_hint(err, "--set use_distributed_optimizer=yes");
    }
    if (s->float8_weights && tdm_te_by_blocks(s->float8)) {
        tdm_fail(err, TDM_USAGE,
                 "--set fp8_recipe: scales of blocks with fp8_param_gather are not modelled");
        return tdm_hint(err, "--set fp8_recipe=tensorwise, or fp8_param_gather=no");
    }
    uint64_t rows = settings->torch.batch * (settings->torch.tokens / l->context);
    uint64_t heads = model->query_heads / l->tensor, width = model->intermediate / l->tensor;
    if (model->experts.count > 0) /* experts, and shared ones of several times their width */
        width = model->experts.intermediate / l->expert_tensor;
    const bool gathers = s->sequence_parallel && l->tensor > 1;
    /* MXFP8Quantizer::create_tensor; Float8BlockQuantizer.is_quantizable: of what is gathered */
    const uint64_t block = s->float8 == TDM_TE_MXFP8                  ? TDM_TE_MXFP8_BLOCK
                           : s->float8 == TDM_TE_BLOCKWISE && gathers ? TDM_TE_BLOCK
                                                                      : 1;
    if (rows % (gathers ? block * l->tensor : block) != 0 || model->hidden % block != 0 ||
        heads * model->head_dim % block != 0 || width % block != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set fp8_recipe: scales of blocks need tokens of a GPU and sizes of "
                        "layers that %" PRIu64 " divides",
                        block);
    if (latent && (heads * model->latent.value_dim % block != 0 ||
                   (model->latent.kv_rank + model->latent.rotary_dim) % block != 0 ||
                   model->latent.q_rank % block != 0))
        return tdm_fail(
            err, TDM_USAGE,
            "--set fp8_recipe: scales of blocks need latent sizes that %" PRIu64 " divides", block);
    if (rows % 8 != 0 || model->hidden % 16 != 0 || heads * model->head_dim % 16 != 0 ||
        width % 16 != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set fp8_recipe: products of 8 bits need tokens of a GPU that 8 divides, "
                        "and sizes of layers that 16 divides");
    return TDM_OK;
}

/* Packed sequences: Transformer Engine 2.11 refuses them with all_gather and a2a+p2p
 * (attn_forward_func_with_cp, AttnFuncWithCPAndKVAllGather), scores in memory have no lengths, and
 * latent attention is not known. */
static enum tdm_status check_packed(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_megatron_layout *l, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    const char *key = s->hybrid ? "hybrid_context_parallel" : "qkv_format";
    if (!s->packed && !s->hybrid)
        return TDM_OK;
    if (model->latent.kv_rank > 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: packed sequences with latent attention are not modelled", key);
    if (s->attention == TDM_BACKEND_UNFUSED)
        return tdm_fail(err, TDM_USAGE, "--set %s: not with attention_backend=unfused", key);
    if (s->longest > tdm_size_mul(settings->torch.batch, settings->torch.tokens))
        return tdm_fail(err, TDM_USAGE, "--set max_seqlen_q: longer than all tokens");
    if (l->context == 1 || s->exchange == TDM_CP_P2P || s->exchange == TDM_CP_A2A)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "--set cp_comm_type: Transformer Engine's %s takes no packed sequences",
             s->exchange == TDM_CP_ALL_GATHER ? "all_gather" : "a2a+p2p");
    return tdm_hint(err, "cp_comm_type=p2p and a2a take them");
}

/* Transformer Engine (attn_forward_func_with_cp) asserts that attention with a ring of K and V has
 * no window. */
static enum tdm_status check_window(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_megatron_layout *l, struct tdm_error *err)
{
    uint64_t window = tdm_model_shortest_window(model, settings->torch.tokens);
    bool rings = megatron_dividers[settings->megatron.exchange].rings && l->exchange_ring > 1;
    if (window == 0 || !rings)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "--set cp_comm_type: Transformer Engine's p2p takes no window, and \"sliding_window\" "
             "of %s is %" PRIu64 " tokens",
             model->name, window);
    return tdm_hint(err, "cp_comm_type=a2a and all_gather take it");
}

enum tdm_status tdm_megatron_layout(const struct tdm_model *model,
                                    const struct tdm_method_settings *said,
                                    struct tdm_megatron_layout *layout, struct tdm_error *err)
{
    struct tdm_megatron_layout l = {.tensor = 1};
    struct tdm_method_settings of_model = *said;
    const struct tdm_method_settings *settings = &of_model;
    tdm_megatron_of_model(model, &of_model.megatron);
    enum tdm_status status = check_model(model, settings, err);
    if (status == TDM_OK)
        status = divide_gpus(settings, &l, err);
    if (status == TDM_OK)
        status = divide_by_length(settings, &l, err);
    if (status == TDM_OK)
        status = divide_experts(model, settings, &l, err);
    if (status == TDM_OK)
        status = megatron_divide_layers(model, &settings->megatron, &l, err);
    if (status == TDM_OK)
        status = divide_heads(model, settings, &l, err);
    if (status == TDM_OK)
        status = megatron_check_mamba(model, settings, &l, err);
    if (status == TDM_OK)
        status = check_packed(model, settings, &l, err);
    if (status == TDM_OK)
        status = check_window(model, settings, &l, err);
    if (status == TDM_OK)
        status = check_recompute(&settings->megatron, &l, err);
    if (status == TDM_OK)
        status = check_lora(model, settings, &l, err);
    if (status == TDM_OK)
        status = check_muon(&settings->megatron, err);
    if (status == TDM_OK)
        status = check_offload(&settings->megatron, err);
    if (status == TDM_OK)
        status = check_float8(model, settings, &l, err);
    if (status == TDM_OK)
        *layout = l;
    return status;
}

enum tdm_status tdm_megatron_check(const struct tdm_model *model,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    struct tdm_megatron_layout layout;
    enum tdm_status status = tdm_megatron_layout(model, settings, &layout, err);
    if (status != TDM_OK)
        return status;
    settings->communicators = (layout.tensor > 1) + (layout.context > 1) + (layout.pipeline > 1) +
                              (layout.data * layout.context > 1);
    return TDM_OK;
}

const char *tdm_megatron_assumption(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings)
{
    struct tdm_megatron_layout l;
    if (model->mamba.heads > 0)
        return TDM_NOT_MEASURED "Mamba-2 as read in Megatron-Core and mamba_ssm";
    if (model->latent.kv_rank == 0 && tdm_megatron_layout(model, settings, &l, NULL) == TDM_OK &&
        l.tensor > model->kv_heads)
        return TDM_NOT_MEASURED "tensor ranks that share a KV head, as read in Megatron-Core";
    if (settings->megatron.hybrid)
        return "the step is that of a sequence of all tokens; a shorter one may leave a rank as many "
               "as max_seqlen_per_dp_cp_rank";
    if (model->latent.kv_rank > 0 && settings->megatron.context != 1)
        return TDM_NOT_MEASURED "latent attention on several context ranks as read in Transformer "
                                "Engine";
    if (model->layer_kinds[0].post_norms || model->scaled_embedding)
        return TDM_NOT_MEASURED "norms of outputs and scaled embeddings as read in Megatron-Bridge";
    if (settings->megatron.float8 != TDM_TE_NONE && model->latent.kv_rank > 0)
        return TDM_NOT_MEASURED "latent attention with products of 8 bits, as read in Transformer "
                                "Engine";
    if (settings->megatron.float8 != TDM_TE_NONE && model->experts.count > 0)
        return TDM_NOT_MEASURED "experts with products of 8 bits, as read in Transformer Engine; "
                                "rows of each expert are not padded";
    if (tdm_te_by_blocks(settings->megatron.float8))
        return TDM_NOT_MEASURED "scales of blocks, as read in Transformer Engine";
    if (tdm_model_shortest_window(model, settings->torch.tokens) > 0)
        return "--window-size is that of the model; kernels store as much with it as without";
    return NULL;
}

/* ---- the system ---- */

/* CUBLAS_WORKSPACE_CONFIG gives sizes in KiB, and how many of each. */
static const uint64_t cublas_bytes[] = {[TDM_CUBLAS_4096_8] = 4096 * 8 * 1024,
                                        [TDM_CUBLAS_4096_2] = 4096 * 2 * 1024 + 16 * 8 * 1024,
                                        [TDM_CUBLAS_16_8] = 16 * 8 * 1024};

/* Bits of enum megatron_target, from those of projections. One projection of a joint product stands
 * for all of them. */
static uint32_t adapted_modules(uint32_t projections)
{
    static const unsigned first[ADAPTED_MODULES] = {TDM_PROJECTION_O, TDM_PROJECTION_Q,
                                                    TDM_PROJECTION_GATE, TDM_PROJECTION_DOWN};
    uint32_t modules = 0;
    for (unsigned i = 0; i < ADAPTED_MODULES; i++)
        modules |= (projections >> first[i] & 1) << i;
    return modules;
}

static void settle(struct tdm_megatron *t, const struct tdm_method_settings *settings)
{
    const struct tdm_megatron_layout *l = &t->layout;
    const struct tdm_model *config = t->config;
    t->set = settings->megatron;
    tdm_megatron_of_model(config, &t->set);
    t->batch = settings->torch.batch;
    t->tokens = settings->torch.tokens / l->context;
    t->rows = t->batch * t->tokens;
    t->packed = t->set.packed || t->set.hybrid;
    if (t->packed) { /* flatten_batch_for_packed_sequences: one row of all sequences */
        t->longest = t->set.packed && !t->set.hybrid && t->set.longest > 0 ? t->set.longest
                                                                           : settings->torch.tokens;
        t->sequences = tdm_size_ceil_div(t->rows * l->context, t->longest);
        t->tokens = t->rows;
        t->batch = 1;
    }
    t->sequence_parallel = l->sequence_parallel;
    t->rotates = t->set.positions == TDM_POSITIONS_ROPE;
    t->gated = !t->set.gelu_mlp && (config->parts & TDM_PART_PLAIN_MLP) == 0;
    t->part_rows = t->sequence_parallel ? t->rows / l->tensor : t->rows;
    t->heads = config->query_heads / l->tensor;
    t->sharing = l->tensor > config->kv_heads ? l->tensor / config->kv_heads : 1;
    t->groups = config->kv_heads * t->sharing / l->tensor;
    t->width = config->intermediate / l->tensor;
    uint64_t multiple = t->set.vocabulary_multiple * l->tensor;
    t->vocabulary = tdm_size_ceil_div(config->vocabulary, multiple) * t->set.vocabulary_multiple;
    t->old_card = settings->torch.attention != TDM_TORCH_SDPA;
    t->flash = t->set.attention == TDM_BACKEND_FLASH ||
               (t->set.attention == TDM_BACKEND_AUTO && t->old_card);
    t->lora_rank = settings->torch.lora_rank;
    t->lora_targets = adapted_modules(settings->torch.lora_targets);
    t->tied = config->tied;
    t->tied_here = config->tied && l->pipeline == 1;
    const bool last = t->set.run == TDM_RUN_LAST;
    t->context_rank = last ? l->context - 1 : 0;
    t->data_rank = last ? l->data * l->context - 1 : 0;
    t->expert_data_rank = last ? l->expert_data - 1 : 0;
}

static void end(void *state)
{
    struct tdm_megatron *t = state;
    if (t == NULL)
        return;
    for (uint64_t c = 0; c < t->layout.chunks && t->chunks != NULL; c++) {
        for (uint64_t i = 0; i < t->layout.layers[c] && t->chunks[c].layers != NULL; i++)
            free(t->chunks[c].layers[i].experts);
        free(t->chunks[c].layers);
        free(t->chunks[c].parameters);
        free(t->chunks[c].inputs);
        free(t->chunks[c].outputs);
    }
    free(t->chunks);
    free(t->actions);
    free(t->casts);
    free(t);
}

/* Drops a gradient, which was added to its buffer. */
static void note_gradient(void *context, struct tdm_eager_value *leaf)
{
    struct tdm_megatron *t = context;
    if (leaf->storage->category != TDM_METHOD_WEIGHTS)
        return;
    tdm_drop(t->m, leaf->grad);
    leaf->grad = NULL;
}

static enum tdm_status create(struct tdm_eager *m, const struct tdm_model *config,
                              const struct tdm_method_settings *settings, void **state,
                              struct tdm_error *err)
{
    struct tdm_megatron *t = calloc(1, sizeof(*t));
    *state = t;
    if (t == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model of Megatron-LM");
    t->m = m;
    t->config = config;
    enum tdm_status status = tdm_megatron_layout(config, settings, &t->layout, err);
    if (status != TDM_OK)
        return status;
    settle(t, settings);
    t->chunks = calloc(t->layout.chunks, sizeof(*t->chunks));
    if (t->chunks == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a stage of a pipeline");
    t->chunks[0].first = t->layout.stage == 0;
    t->chunks[t->layout.chunks - 1].last = t->layout.stage + 1 == t->layout.pipeline;
    for (uint32_t c = 0; c < t->layout.chunks && status == TDM_OK; c++)
        status = megatron_make_chunk(t, c, err);
    if (status == TDM_OK)
        status = megatron_make_schedule(t, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t c = 0; c < t->layout.chunks; c++)
        megatron_make_buffers(t, &t->chunks[c]);
    for (uint32_t c = 0; c < t->layout.chunks; c++)
        megatron_make_main_parameters(t, &t->chunks[c]);
    if (t->set.cublas != TDM_CUBLAS_DEFAULT)
        m->gpu.cublas_workspace_bytes = cublas_bytes[t->set.cublas];
    m->gradient_ready = note_gradient;
    m->gradient_context = t;
    return TDM_OK;
}

static void warm_up(void *state)
{
    megatron_warm_up(state);
}

static void finish_step(void *state)
{
    megatron_finish_step(state);
}

static void step(void *state)
{
    megatron_optimizer_step(state);
}

static void end_step(void *state)
{
    megatron_drop_gradients(state); /* those of the model stay in their buffer */
}

static uint64_t weight_bytes(const void *state)
{
    const struct tdm_megatron *t = state;
    uint64_t bytes = 0;
    for (uint64_t c = 0; c < t->layout.chunks; c++)
        for (uint32_t i = 0; i < t->chunks[c].parameter_count; i++) {
            const struct megatron_parameter *p = &t->chunks[c].parameters[i];
            bytes += p->rows * p->columns * (p->buffer == BUFFER_FLOAT8 ? FLOAT8 : BF16);
        }
    return bytes;
}

const struct tdm_torch_system tdm_megatron_system = {
    .create = create,
    .free = end,
    .phases = {warm_up, finish_step, step},
    .end_step = end_step,
    .weight_bytes = weight_bytes,
};
