/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of Megatron-LM, named like its arguments. Defaults are Megatron's unless a line says
 * otherwise. */
#include "methods/method.h"

#include "base/units.h"

#include <stddef.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, megatron.name)
#define MOST_RANKS 65536u
#define MOST_MICROBATCHES 65536u
#define MOST_FACTOR 1024.0

/* A count, or the word that stands for 0. */
static enum tdm_status read_size(const struct tdm_method_key *key, const char *value,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    const char *word = strchr(key->values, '|') + 1;
    if (strcmp(value, word) != 0)
        return tdm_key_read_count(key, value, settings, err);
    *(uint64_t *)(void *)((char *)settings + key->field) = 0;
    return TDM_OK;
}

static enum tdm_status read_modules(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const char *const names[TDM_MODULES] = {"core_attn",   "mlp", "layernorm",     "moe_act",
                                                   "mla_up_proj", "moe", "shared_experts"};
    struct tdm_key_word words[TDM_MODULES];
    for (unsigned i = 0; i < TDM_MODULES; i++)
        words[i] = (struct tdm_key_word){names[i], 1u << i};
    return tdm_key_read_words(key, value, words, TDM_MODULES, &settings->megatron.modules, err);
}

static enum tdm_status read_stage_layout(const struct tdm_method_key *key, const char *value,
                                         struct tdm_method_settings *settings,
                                         struct tdm_error *err)
{
    if (*value == '\0')
        return tdm_key_bad_value(key, value, err);
    settings->megatron.stage_layout = strcmp(value, "none") == 0 ? NULL : value;
    return TDM_OK;
}

/* Modules of Megatron's layers, as bits of the projections that they join. */
static enum tdm_status read_targets(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const struct tdm_key_word modules[] = {
        {"linear_qkv", 1u << TDM_PROJECTION_Q | 1u << TDM_PROJECTION_K | 1u << TDM_PROJECTION_V},
        {"linear_proj", 1u << TDM_PROJECTION_O},
        {"linear_fc1", 1u << TDM_PROJECTION_GATE | 1u << TDM_PROJECTION_UP},
        {"linear_fc2", 1u << TDM_PROJECTION_DOWN},
        {"all", (1u << TDM_PROJECTIONS) - 1},
    };
    return tdm_key_read_words(key, value, modules, sizeof(modules) / sizeof(modules[0]),
                              &settings->torch.lora_targets, err);
}

/* A positive number, or "none". */
static enum tdm_status read_factor(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double factor = strtod(value, &end);
    if (strcmp(value, "none") == 0)
        factor = 0;
    else if (end == value || *end != '\0' || !(factor > 0) || factor > MOST_FACTOR)
        return tdm_key_bad_value(key, value, err);
    settings->megatron.capacity_factor = factor;
    return TDM_OK;
}

static enum tdm_status read_longest(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "all") != 0)
        return tdm_key_read_tokens(key, value, settings, err);
    settings->megatron.longest = 0;
    return TDM_OK;
}

/* "A,B": A ranks exchange heads, and B such groups form a ring. */
static enum tdm_status read_hierarchy(const struct tdm_method_key *key, const char *value,
                                      struct tdm_method_settings *settings, struct tdm_error *err)
{
    const char *name = "--set hierarchical_context_parallel_sizes";
    char first[32];
    size_t span = strcspn(value, ", ");
    const char *second = value + span + strspn(value + span, ", ");
    if (span >= sizeof(first) || *second == '\0')
        return tdm_key_bad_value(key, value, err);
    memcpy(first, value, span);
    first[span] = '\0';
    enum tdm_status status =
        tdm_parse_count(first, name, 1, MOST_RANKS, &settings->megatron.exchange_heads, err);
    return status == TDM_OK ? tdm_parse_count(second, name, 1, MOST_RANKS,
                                              &settings->megatron.exchange_ring, err)
                            : status;
}

static const char *settled_hierarchy(const struct tdm_key_case *c, char *text)
{
    struct tdm_megatron_layout l;
    if (tdm_megatron_layout(c->model, c->settings, &l, NULL) != TDM_OK)
        return NULL;
    snprintf(text, TDM_KEY_TEXT, "%" PRIu64 ",%" PRIu64, l.exchange_heads, l.exchange_ring);
    return text;
}

/* ---- needs ---- */

/* Settings that were checked have a layout. */
static struct tdm_megatron_layout layout(const struct tdm_key_case *c)
{
    struct tdm_megatron_layout l = {.tensor = 1};
    tdm_megatron_layout(c->model, c->settings, &l, NULL);
    return l;
}

static bool divides_layers(const struct tdm_key_case *c)
{
    return layout(c).tensor > 1;
}

static bool divides_sequences(const struct tdm_key_case *c)
{
    return layout(c).context > 1;
}

static bool has_other_ranks(const struct tdm_key_case *c)
{
    return c->settings->torch.ranks > layout(c).tensor;
}

static bool has_shares(const struct tdm_key_case *c)
{
    return c->settings->megatron.distributed_optimizer && !c->settings->megatron.offloads;
}

static bool has_offload(const struct tdm_key_case *c)
{
    return c->settings->megatron.offloads;
}

static bool has_own_states(const struct tdm_key_case *c)
{
    return !has_offload(c);
}

static const struct tdm_key_need
    needs_shares = {"without use_distributed_optimizer, or with optimizer_cpu_offload", has_shares},
    needs_offload = {"without optimizer_cpu_offload", has_offload},
    needs_own_states = {"with optimizer_cpu_offload, whose moments are fp32", has_own_states};

static enum tdm_status read_offloaded(const struct tdm_method_key *key, const char *value,
                                      struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double share = strtod(value, &end);
    if (end == value || *end != '\0' || !(share >= 0 && share <= 1))
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: \"%.64s\" is not a share; expected a number from 0 to 1",
                        key->name, value);
    settings->megatron.offloaded = share;
    return TDM_OK;
}

/* Buckets of the distributed optimizer are padded, even without reductions. */
static bool has_reductions(const struct tdm_key_case *c)
{
    const struct tdm_megatron_layout l = layout(c);
    return l.data * l.context > 1 || c->settings->megatron.distributed_optimizer;
}

static bool exchanges_both(const struct tdm_key_case *c)
{
    return c->settings->megatron.exchange == TDM_CP_A2A_P2P;
}

static bool recomputes_layers(const struct tdm_key_case *c)
{
    return c->settings->megatron.recompute == TDM_RECOMPUTE_FULL;
}

static bool recomputes_modules(const struct tdm_key_case *c)
{
    return c->settings->megatron.recompute == TDM_RECOMPUTE_SELECTIVE;
}

static bool divides_tokens(const struct tdm_key_case *c)
{
    return layout(c).sequence_parallel;
}

static bool has_chunks(const struct tdm_key_case *c)
{
    return layout(c).chunks > 1;
}

static bool has_stages(const struct tdm_key_case *c)
{
    return layout(c).pipeline > 1;
}

static bool has_head(const struct tdm_key_case *c)
{
    const enum tdm_megatron_rank rank = c->settings->megatron.rank;
    return rank == TDM_RANK_HIGHEST || rank == TDM_RANK_LAST || layout(c).pipeline == 1;
}

static bool fuses_loss(const struct tdm_key_case *c)
{
    return c->settings->megatron.fused_loss;
}

static bool has_scores(const struct tdm_key_case *c)
{
    return c->settings->megatron.attention == TDM_BACKEND_UNFUSED;
}

static bool packs(const struct tdm_key_case *c)
{
    return c->settings->megatron.packed && !c->settings->megatron.hybrid;
}

static bool packs_no_sequences(const struct tdm_key_case *c)
{
    return !c->settings->megatron.packed && !c->settings->megatron.hybrid;
}

static bool is_no_hybrid(const struct tdm_key_case *c)
{
    return !c->settings->megatron.hybrid;
}

static bool is_hybrid(const struct tdm_key_case *c)
{
    return c->settings->megatron.hybrid;
}

static const struct tdm_key_need needs_chunks = {"without num_layers_per_virtual_pipeline_stage",
                                                 has_chunks};
static const struct tdm_key_need needs_pipeline = {"without pipeline_model_parallel_size",
                                                   has_stages};
static const struct tdm_key_need needs_packing = {"without qkv_format=thd", packs};
static const struct tdm_key_need needs_no_packing = {"with packed sequences", packs_no_sequences};
static const struct tdm_key_need needs_no_hybrid = {
    "with hybrid_context_parallel, whose sequences are packed", is_no_hybrid};
static const struct tdm_key_need needs_hybrid = {"without hybrid_context_parallel", is_hybrid};
static const struct tdm_key_need needs_scores = {"without attention_backend=unfused", has_scores};

static bool has_experts(const struct tdm_key_case *c)
{
    return c->model->experts.count > 0;
}

static bool has_float8(const struct tdm_key_case *c)
{
    return c->settings->megatron.float8 != TDM_TE_NONE;
}

static bool has_wide_ends(const struct tdm_key_case *c)
{
    return c->settings->megatron.wide_ends;
}

static bool has_glu(const struct tdm_key_case *c)
{
    return !c->settings->megatron.gelu_mlp && (c->model->parts & TDM_PART_PLAIN_MLP) == 0;
}

/* As the model has it, and the user may have said. */
static struct tdm_megatron_settings of_model(const struct tdm_key_case *c)
{
    struct tdm_megatron_settings s = c->settings->megatron;
    tdm_megatron_of_model(c->model, &s);
    return s;
}

static const char *settled_norm(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return of_model(c).layer_norm ? "LayerNorm" : "RMSNorm";
}

static const char *settled_swiglu(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return of_model(c).gelu_mlp || (c->model->parts & TDM_PART_PLAIN_MLP) != 0 ? "no" : "yes";
}

static const char *settled_fusion(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return of_model(c).glu == TDM_GLU_FUSED ? "yes" : "no";
}

static const char *settled_bias(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return of_model(c).linear_bias ? "no" : "yes";
}

static const char *settled_positions(const struct tdm_key_case *c, char *text)
{
    static const char *const names[] = {[TDM_POSITIONS_ROPE] = "rope",
                                        [TDM_POSITIONS_LEARNED] = "learned_absolute",
                                        [TDM_POSITIONS_NONE] = "none"};
    (void)text;
    return names[of_model(c).positions];
}

static const struct tdm_key_need needs_glu = {"without SwiGLU", has_glu};
static const struct tdm_key_need needs_float8 = {"without fp8_recipe", has_float8};
static const struct tdm_key_need needs_wide_ends = {"without first_last_layers_bf16=yes",
                                                    has_wide_ends};
static const struct tdm_key_need needs_experts = {"without experts", has_experts};
static const struct tdm_key_need needs_tensor = {"without tensor parallelism", divides_layers};
static const struct tdm_key_need needs_context = {"without context parallelism", divides_sequences};
static const struct tdm_key_need needs_ranks = {"where tensor parallelism takes all GPUs",
                                                has_other_ranks};
static const struct tdm_key_need needs_reductions = {"without data or context parallelism",
                                                     has_reductions};
static const struct tdm_key_need needs_both = {"without cp_comm_type=a2a+p2p", exchanges_both};
static const struct tdm_key_need needs_full = {"without recompute_granularity=full",
                                               recomputes_layers};
static const struct tdm_key_need needs_selective = {"without recompute_granularity=selective",
                                                    recomputes_modules};
static const struct tdm_key_need needs_tokens = {"without sequence_parallel=yes", divides_tokens};
static const struct tdm_key_need needs_head = {"on a stage that has no loss", has_head};
static const struct tdm_key_need needs_fusion = {"without cross_entropy_loss_fusion=yes",
                                                 fuses_loss};

/* ---- tables ---- */

#define TENSOR_KEY(size)                                             \
    {                                                                \
        "tensor_model_parallel_size", "N|all", size,                 \
            "GPUs that divide every layer; all: those "              \
            "that nothing else divides",                             \
            read_size, FIELD(tensor), .least = 1, .most = MOST_RANKS \
    }
#define CONTEXT_KEY(size)                                                                     \
    {                                                                                         \
        "context_parallel_size", "N|all", size, "GPUs that divide every sequence", read_size, \
            FIELD(context), .least = 1, .most = MOST_RANKS                                    \
    }

const struct tdm_method_key tdm_keys_tensor_parallel[] = {
    TENSOR_KEY("all"), CONTEXT_KEY("1"), {.name = NULL}};
const struct tdm_method_key tdm_keys_megatron_cp[] = {
    TENSOR_KEY("1"), CONTEXT_KEY("all"), {.name = NULL}};

const struct tdm_method_key tdm_keys_megatron[] = {
    {"pipeline_model_parallel_size", "N", "1", "stages of a pipeline", tdm_key_read_count,
     FIELD(pipeline), .least = 1, .most = MOST_RANKS},
    {"decoder_first_pipeline_num_layers", "N|even", "even", "layers of the first stage", read_size,
     FIELD(first_layers), .least = 1, .most = MOST_RANKS, .needs = {&needs_pipeline}},
    {"decoder_last_pipeline_num_layers", "N|even", "even", "layers of the last stage", read_size,
     FIELD(last_layers), .least = 1, .most = MOST_RANKS, .needs = {&needs_pipeline}},
    {"num_layers_per_virtual_pipeline_stage", "N|none", "none",
     "layers of a virtual stage; none: one a stage", read_size, FIELD(virtual_layers), .least = 1,
     .most = MOST_RANKS},
    {"num_virtual_stages_per_pipeline_rank", "N|none", "none",
     "virtual stages of a stage, also of uneven ones", read_size, FIELD(virtual_stages), .least = 1,
     .most = TDM_MEGATRON_CHUNKS},
    {"account_for_embedding_in_pipeline_split", "no|yes", "no",
     "the embedding counts as a layer of the first stage", tdm_key_read_switch,
     FIELD(counts_embedding), .needs = {&needs_pipeline}},
    {"account_for_loss_in_pipeline_split", "no|yes", "no",
     "the loss counts as a layer of the last stage", tdm_key_read_switch, FIELD(counts_loss),
     .needs = {&needs_pipeline}},
    {"pipeline_model_parallel_layout", "none|LAYOUT", "none",
     "layers of every stage, as \"Et*3|(tt|)*2tL\": E the embedding, t a layer, L the loss; of "
     "more stages than ranks they are virtual ones",
     .read = read_stage_layout, .needs = {&needs_pipeline}},
    {"microbatch_group_size_per_vp_stage", "N|stages", "stages",
     "micro-batches that a virtual stage takes in a row; stages: one for each stage", read_size,
     FIELD(group), .least = 1, .most = MOST_MICROBATCHES, .needs = {&needs_chunks}},
    {"num_microbatches", "N|full", "full",
     "of a step; full: 1, or twice as many as the pipeline has stages", read_size,
     FIELD(microbatches), .least = 1, .most = MOST_MICROBATCHES},
    {"sequence_parallel", "no|yes", "no", "norms and residuals are divided by tensor parallelism",
     tdm_key_read_switch, FIELD(sequence_parallel), .needs = {&needs_tensor}},
    {"cp_comm_type", "p2p|all_gather|a2a|a2a+p2p", "p2p", "how context parallelism exchanges",
     tdm_key_read_choice, FIELD(exchange), .needs = {&needs_context}},
    {"hierarchical_context_parallel_sizes", "A,B", NULL,
     "for a2a+p2p: A ranks exchange heads, and B groups of them form a ring (default: half)",
     .read = read_hierarchy, .settled = settled_hierarchy, .needs = {&needs_context, &needs_both}},
    {"recompute_granularity", "none|selective|full", "none", "what is run again in the backward",
     tdm_key_read_choice, FIELD(recompute), .compared = "full"},
    {"recompute_method", "uniform|block", "uniform",
     "of full: every recompute_num_layers layers, or that many first layers of a stage",
     tdm_key_read_choice, FIELD(method), .needs = {&needs_full}},
    {"recompute_num_layers", "N", "1", "of full", tdm_key_read_count, FIELD(recompute_layers),
     .least = 0, .most = MOST_RANKS, .needs = {&needs_full}},
    {"recompute_modules", "core_attn,mlp,layernorm,moe_act,mla_up_proj,moe,shared_experts",
     "core_attn", "of selective", .read = read_modules, .needs = {&needs_selective}},
    {"distribute_saved_activations", "no|yes", "no",
     "of full: tensor-parallel ranks divide the inputs that are stored", tdm_key_read_switch,
     FIELD(distribute_saved)},
    {"optimizer", "adam|muon", "adam",
     "muon: a momentum for each matrix of the layers, Adam for all else; every rank has all of its own",
     tdm_key_read_switch, FIELD(muon), .unmeasured = "muon"},
    {"use_distributed_optimizer", "no|yes", "no",
     "main parameters and moments are divided by data parallelism", tdm_key_read_switch,
     FIELD(distributed_optimizer), .compared = "yes"},
    {"overlap_grad_reduce", "no|yes", "no", "gradients are reduced in buckets", tdm_key_read_switch,
     FIELD(overlap_reduce), .needs = {&needs_reductions}},
    {"main_grads_dtype", "fp32|bf16", "fp32",
     "of the gradient buffer (--use-precision-aware-optimizer)", tdm_key_read_switch,
     FIELD(narrow_gradients)},
    {"grad_reduce_in_bf16", "no|yes", "no",
     "the gradient buffer is bf16, and the optimizer makes fp32 copies of what it updates, unless it "
     "is the precision-aware one",
     tdm_key_read_switch, FIELD(reduces_narrow)},
    {"exp_avg_dtype", "fp32|bf16", "fp32", "of first moments (--use-precision-aware-optimizer)",
     tdm_key_read_switch, FIELD(narrow_first), .needs = {&needs_own_states}},
    {"exp_avg_sq_dtype", "fp32|bf16", "fp32", "of second moments", tdm_key_read_switch,
     FIELD(narrow_second), .needs = {&needs_own_states}},
    {"use_precision_aware_optimizer", "no|yes", "no",
     "Transformer Engine's, from 2.1 on: of main parameters what bf16 lacks, 16 bits",
     tdm_key_read_switch, FIELD(precise), .unmeasured = "yes", .needs = {&needs_shares}},
    {"optimizer_cpu_offload", "no|yes", "no",
     "main parameters, gradients and moments of a share of the parameters are stepped on the host",
     tdm_key_read_switch, FIELD(offloads)},
    {"optimizer_offload_fraction", "F", "0", "that share", read_offloaded,
     .needs = {&needs_offload}},
    {"clip_grad", "0|1", "1", "any norm to which gradients are clipped; 0: none",
     .read = tdm_key_read_clipping, .needs = {&tdm_need_own_clipping}},
    {"gradient_accumulation_fusion", "no|yes", "yes",
     "products add weight gradients to the fp32 buffer themselves", tdm_key_read_switch,
     FIELD(fused_gradients)},
    {"fp8_recipe", "none|delayed|tensorwise|blockwise|mxfp8", "none",
     "of --fp8-format: products of the layers in 8 bits; tensorwise: current scaling; blockwise, "
     "mxfp8: scales of blocks",
     tdm_key_read_choice, FIELD(float8)},
    {"fp8_param_gather", "no|yes", "no", "weights of these products have no bf16 copy",
     tdm_key_read_switch, FIELD(float8_weights), .needs = {&needs_float8}},
    {"first_last_layers_bf16", "no|yes", "no", "of fp8_recipe: layers at both ends are in bf16",
     tdm_key_read_switch, FIELD(wide_ends), .needs = {&needs_float8}},
    {"num_layers_at_start_in_bf16", "N", "1", "of first_last_layers_bf16", tdm_key_read_count,
     FIELD(wide_at_start), .most = MOST_RANKS, .needs = {&needs_float8, &needs_wide_ends}},
    {"num_layers_at_end_in_bf16", "N", "1", "of first_last_layers_bf16", tdm_key_read_count,
     FIELD(wide_at_end), .most = MOST_RANKS, .needs = {&needs_float8, &needs_wide_ends}},
    {"lora_rank", "N", "0", "adapters of that rank, as Megatron-Bridge's; all else is frozen",
     tdm_key_read_count, .field = offsetof(struct tdm_method_settings, torch.lora_rank),
     .most = MOST_RANKS},
    {"lora_targets", "all|linear_qkv,linear_proj,linear_fc1,linear_fc2", "all",
     "modules with adapters", .read = read_targets, .needs = {&tdm_need_lora}},
    {"sequence_parallel_input_regather", "no|yes", "no",
     "of LoRA: adapters keep their part of an input and gather it again in the backward",
     tdm_key_read_switch, FIELD(regather), .needs = {&tdm_need_lora, &needs_tokens}},
    {"cross_entropy_loss_fusion", "no|yes", "no", "by a compiled kernel", tdm_key_read_switch,
     FIELD(fused_loss), .needs = {&needs_head}},
    {"cross_entropy_fusion_impl", "native|te", "native", "whose kernel", tdm_key_read_choice,
     FIELD(loss), .needs = {&needs_head, &needs_fusion}},
    {"expert_model_parallel_size", "N", "1", "GPUs that divide the experts of a layer",
     tdm_key_read_count, FIELD(expert), .least = 1, .most = MOST_RANKS, .needs = {&needs_experts}},
    {"expert_tensor_parallel_size", "N|tensor", "tensor",
     "GPUs that divide every expert; tensor: as all else", read_size, FIELD(expert_tensor),
     .least = 1, .most = MOST_RANKS, .needs = {&needs_experts}},
    {"moe_pad_expert_input_to_capacity", "no|yes", "no",
     "with moe_expert_capacity_factor, which is 1 if unsaid; no: experts get equally many tokens",
     tdm_key_read_switch, FIELD(pads_experts), .needs = {&needs_experts}},
    {"moe_expert_capacity_factor", "F|none", "none",
     "most tokens of an expert, as a multiple of its even share; none: dropless", read_factor,
     .needs = {&needs_experts}},
    {"moe_permute_fusion", "no|yes", "no", "tokens are put in order by one kernel",
     tdm_key_read_switch, FIELD(permute_fusion), .needs = {&needs_experts}},
    {"moe_router_dtype", "bf16|fp32", "bf16", "of the router's logits and of probabilities",
     tdm_key_read_switch, FIELD(wide_router), .needs = {&needs_experts}},
    {"normalization", "RMSNorm|LayerNorm", "RMSNorm", "as the model has it", tdm_key_read_switch,
     FIELD(layer_norm), .settled = settled_norm},
    {"swiglu", "yes|no", "yes", "no: GELU, and one product in place of two", tdm_key_read_switch,
     FIELD(gelu_mlp), .settled = settled_swiglu},
    {"bias_swiglu_fusion", "yes|no|old", "yes",
     "no: SwiGLU is single operations; old: as before Megatron-Core 0.14, which adds to one half",
     tdm_key_read_choice, FIELD(glu), .needs = {&needs_glu}, .settled = settled_fusion},
    {"disable_bias_linear", "yes|no", "yes", "no: all products have biases", tdm_key_read_switch,
     FIELD(linear_bias), .settled = settled_bias},
    {"position_embedding_type", "rope|learned_absolute|none", "rope",
     "learned_absolute: one vector a position", tdm_key_read_choice, FIELD(positions),
     .settled = settled_positions},
    {"hidden_dropout", "0|0.1", "0", "any share below 1: above 0 masks are kept",
     .read = tdm_key_read_dropout, FIELD(dropout)},
    {"make_vocab_size_divisible_by", "N", "128", "rows of the embedding of a tensor-parallel rank",
     tdm_key_read_count, FIELD(vocabulary_multiple), .least = 1, .most = TDM_DIMENSION_LIMIT},
    {"create_attention_mask_in_dataloader", "no|yes", "no",
     "a mask of all pairs comes with every micro-batch", tdm_key_read_switch, FIELD(mask_in_loader),
     .needs = {&needs_no_packing}},
    {"qkv_format", "sbhd|thd", "sbhd",
     "thd: packed sequences (--sft, --dataloader-inter-document-masking), --context is all of them",
     tdm_key_read_switch, FIELD(packed), .needs = {&needs_no_hybrid}},
    {"max_seqlen_q", "N|all", "all", "of thd: tokens of the longest sequence, padded", read_longest,
     FIELD(longest), .needs = {&needs_packing}},
    {"hybrid_context_parallel", "no|yes", "no",
     "a sequence has as many data and context ranks as its length asks for", tdm_key_read_switch,
     FIELD(hybrid)},
    {"max_seqlen_per_dp_cp_rank", "N", NULL, "of hybrid_context_parallel: most tokens of a rank",
     tdm_key_read_tokens, FIELD(hybrid_tokens), .needs = {&needs_hybrid}},
    {"attention_backend", "auto|flash|fused|unfused", "auto",
     "auto: cuDNN's fused kernel from Hopper on, else FlashAttention-2; unfused: scores in memory",
     tdm_key_read_choice, FIELD(attention)},
    {"attention_dropout", "0|0.1", "0", "any share below 1: above 0 masks of scores are kept",
     .read = tdm_key_read_dropout, FIELD(attention_dropout), .needs = {&needs_scores}},
    {"CUBLAS_WORKSPACE_CONFIG", "default|:4096:8|:4096:2:16:8|:16:8", "default",
     "of the environment; deterministic runs set it", tdm_key_read_choice, FIELD(cublas)},
    {"rank", "highest|first|last|between", "highest",
     "the GPU that is predicted: of the first or of the last stage of a pipeline, or of the fullest "
     "between; highest: the one of these that needs more",
     tdm_key_read_choice, FIELD(rank), .needs = {&needs_ranks}},
    {"allocator_conf", "default|expandable_segments:True", "default", "PYTORCH_ALLOC_CONF",
     tdm_key_read_switch, .field = offsetof(struct tdm_method_settings, expandable_segments)},
    {"step", "1|2|3|all", "all", "the step to predict; later steps equal the third",
     .read = tdm_key_read_step},
    {.name = NULL},
};
