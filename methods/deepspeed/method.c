/* SPDX-License-Identifier: Apache-2.0 */
/* The methods deepspeed-zero1, zero2, zero3 and zero3-offload: keys with the names of a DeepSpeed
 * config, invalid combinations, costs, and their wrappers. Settings that a DeepSpeed config lacks
 * are keys of tdm_keys_torch. */
#include "methods/deepspeed/parts.h"
#include "methods/eager/tiles.h"
#include "base/size.h"
#include "methods/divisors.h"
#include "methods/method.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, torch.deepspeed.name)
#define MOST_ELEMENTS (UINT64_C(1) << 44)
#define MOST_ACCUMULATION 65536u
#define MOST_RANKS 65536u

/* "5e8", "500000000" or "auto". */
static enum tdm_status read_elements(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    uint64_t *field = (uint64_t *)(void *)((char *)settings + key->field);
    char *end;
    double number = strtod(value, &end);
    if (strstr(key->values, "auto") != NULL && strcmp(value, "auto") == 0) {
        *field = TDM_AUTO;
        return TDM_OK;
    }
    double most = (double)(key->most > 0 ? key->most : MOST_ELEMENTS);
    if (*value < '0' || *value > '9' || *end != '\0' || number > most || number != floor(number))
        return tdm_key_bad_value(key, value, err);
    *field = (uint64_t)number;
    return TDM_OK;
}

#define MOST_FACTOR 1e6
#define MOST_PLACES 1000000u

static enum tdm_status read_capacity(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double factor = strtod(value, &end);
    if (end == value || *end != '\0' || !(factor > 0) || factor > MOST_FACTOR)
        return tdm_key_bad_value(key, value, err);
    settings->torch.deepspeed.capacity_factor = factor;
    return TDM_OK;
}

/* ---- needs ---- */

static bool has_moe(const struct tdm_key_case *c)
{
    return c->settings->torch.deepspeed.ep_size > 0;
}

static bool drops_tokens(const struct tdm_key_case *c)
{
    return has_moe(c) && c->settings->torch.deepspeed.drop_tokens;
}

static bool may_leave_gradients(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    bool flat =
        torch->wrapper == &tdm_zero2_wrapper || torch->wrapper == &tdm_deepspeed_zero1_wrapper;
    return !flat || !torch->deepspeed.offload_optimizer;
}

static bool has_buckets(const struct tdm_key_case *c)
{
    return !may_leave_gradients(c) || c->settings->torch.deepspeed.contiguous_gradients;
}

static bool offloads(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    return torch->deepspeed.offload_optimizer || torch->deepspeed.offload_param;
}

static bool has_checkpoints(const struct tdm_key_case *c)
{
    return c->settings->torch.checkpointing != TDM_CHECKPOINTING_OFF;
}

static bool swaps_optimizer(const struct tdm_key_case *c)
{
    return c->settings->torch.deepspeed.offload_optimizer == TDM_OFFLOAD_NVME;
}

static bool swaps_param(const struct tdm_key_case *c)
{
    return c->settings->torch.deepspeed.offload_param == TDM_OFFLOAD_NVME;
}

static bool has_several(const struct tdm_key_case *c)
{
    return c->settings->torch.ranks > 1;
}

static bool has_nodes(const struct tdm_key_case *c)
{
    return c->settings->torch.ranks > c->settings->torch.context.gpus_per_node;
}

static const struct tdm_key_need needs_moe = {"without ep_size", has_moe};
static const struct tdm_key_need needs_drops = {"without ep_size, or with drop_tokens=false",
                                                drops_tokens};
static const struct tdm_key_need needs_nvme = {"without offload_optimizer=nvme", swaps_optimizer};
static const struct tdm_key_need needs_nvme_param = {"without offload_param=nvme", swaps_param};
static const struct tdm_key_need needs_several = {"on one GPU", has_several};
static const struct tdm_key_need needs_nodes = {"within one node of gpus_per_node", has_nodes};
static const struct tdm_key_need needs_alst_checkpoints = {"without checkpointing",
                                                           has_checkpoints};
static const struct tdm_key_need needs_choice = {
    "with offload_optimizer=cpu, where stages 1 and 2 insist on it", may_leave_gradients};
static const struct tdm_key_need needs_buckets = {"with contiguous_gradients=false", has_buckets};
static const struct tdm_key_need needs_offload = {"where nothing is offloaded", offloads};

/* ---- tables ---- */

/* Keys of all stages. */
static const struct tdm_method_key common_keys[] = {
    {"contiguous_gradients", "false|true", "true", "gradients are copied to buckets",
     tdm_key_read_switch, FIELD(contiguous_gradients), .needs = {&needs_choice}},
    {"reduce_bucket_size", "N|auto", "5e8",
     "elements of a bucket of gradients; auto: hidden_size squared, as transformers fills in",
     read_elements, FIELD(reduce_bucket_size)},
    {"reduce_scatter", "false|true", "true", "or all-reduce", tdm_key_read_switch,
     FIELD(reduce_scatter), .needs = {&needs_buckets}},
    {"communication_data_type", "bf16|fp32", "bf16", "of gradients that are reduced",
     tdm_key_read_switch, FIELD(fp32_communication)},
    {"pin_memory", "false|true", "true", "of what is offloaded: pinned blocks are powers of two",
     tdm_key_read_switch, FIELD(pin_memory), .needs = {&needs_offload}},
    {"gradient_accumulation_steps", "N", "1", "backwards before a step", tdm_key_read_count,
     FIELD(gradient_accumulation_steps), .least = 1, .most = MOST_ACCUMULATION},
    {"max_grad_norm", "0|1", "0", "gradient_clipping: any norm; 0: none",
     .read = tdm_key_read_clipping, .needs = {&tdm_need_own_clipping}},
    {"optimizer",
     "AdamW|torch_adam|torch_adam_fused|adamw-8bit|paged-adamw-8bit|paged-adamw-32bit|lion-8bit|"
     "lion-32bit|Lion|sgd|sgd-momentum|adafactor",
     "AdamW",
     "AdamW, Lion: FusedAdam and FusedLion, or DeepSpeedCPUAdam and -Lion with offload; "
     "torch.optim.AdamW, foreach or fused, and SGD; those with bits: of bitsandbytes; Adafactor of "
     "transformers",
     tdm_key_read_choice, FIELD(optimizer),
     .unmeasured = "paged-adamw-32bit|lion-8bit|lion-32bit|Lion|sgd|sgd-momentum|adafactor"},
    {.name = NULL},
};

/* Keys of Arctic Long Sequence Training, which is built on DeepSpeed. The first one has its name in
 * ArcticTraining. */
static const struct tdm_method_key alst_keys[] = {
    {"tiled_mlp_compute", "0|N|auto", "0",
     "tiles of TiledMLP; auto: tokens / hidden_size; 0: not tiled", read_elements,
     .field = offsetof(struct tdm_method_settings, torch.mlp_tiles), .most = TDM_MOST_TILES},
    {"tiled_logits", "0|N|auto", "0",
     "tiles of TiledFusedLogitsLoss; auto: 1 GiB of fp32 logits each; 0: not tiled", read_elements,
     .field = offsetof(struct tdm_method_settings, torch.logits_tiles), .most = TDM_MOST_TILES},
    {.name = NULL},
};

/* deepspeed.moe.layer.MoE, by the names of its arguments. */
static const struct tdm_method_key moe_keys[] = {
    {"ep_size", "0|N", "0",
     "experts by deepspeed.moe, which so many GPUs share; 0: the model's own block",
     tdm_key_read_count, FIELD(ep_size), .most = MOST_RANKS},
    {"capacity_factor", "F", "1.0", "places of experts: 1.0 for a token's each, if they are even",
     .read = read_capacity, .needs = {&needs_drops}},
    {"min_capacity", "N", "4", "places that an expert has at least", tdm_key_read_count,
     FIELD(min_capacity), .most = MOST_PLACES, .needs = {&needs_drops}},
    {"drop_tokens", "false|true", "true",
     "tokens beyond an expert's places; false: predicted with experts that get equally many",
     tdm_key_read_switch, FIELD(drop_tokens), .needs = {&needs_moe}},
    {"use_residual", "false|true", "false", "an MLP for every token beside the experts",
     tdm_key_read_switch, FIELD(use_residual), .needs = {&needs_moe}},
    {.name = NULL},
};

static const struct tdm_method_key stage3_keys[] = {
    {"stage3_prefetch_bucket_size", "N|auto", "5e7",
     "elements gathered ahead at a time; auto: 0.9 hidden_size squared", read_elements,
     FIELD(prefetch_bucket_size)},
    {"stage3_max_live_parameters", "N", "1e9", "elements up to which is gathered ahead",
     read_elements, FIELD(max_live_parameters)},
    {"stage3_max_reuse_distance", "N", "1e9", "elements within which what is used again stays",
     read_elements, FIELD(max_reuse_distance)},
    {"stage3_param_persistence_threshold", "N|auto", "1e5",
     "parameters of so few elements stay gathered; auto: 10 hidden_size", read_elements,
     FIELD(param_persistence_threshold)},
    {"sub_group_size", "N", "1e9", "elements that are stepped at a time", read_elements,
     FIELD(sub_group_size)},
    {"grad_accum_dtype", "bf16|fp32", "bf16", "of the gradients that are kept", tdm_key_read_switch,
     FIELD(fp32_accumulation)},
    {.name = NULL},
};

/* ZeRO-Infinity. */
static const struct tdm_method_key nvme_keys[] = {
    {"optimizer_buffer_count", "N", "4",
     "buffer_count of offload_optimizer: swap buffers of a sub-group's elements each",
     tdm_key_read_count, FIELD(optimizer_buffer_count), .least = TDM_NVME_LEAST_BUFFERS,
     .most = MOST_RANKS, .needs = {&needs_nvme}},
    {"param_buffer_count", "N", "5", "buffer_count of offload_param: swap buffers of parameters",
     tdm_key_read_count, FIELD(param_buffer_count), .least = 1, .most = MOST_RANKS,
     .needs = {&needs_nvme_param}},
    {"param_buffer_size", "N", "1e8", "buffer_size of offload_param: elements of such a buffer",
     read_elements, FIELD(param_buffer_size), .needs = {&needs_nvme_param}},
    {"max_in_cpu", "N", "1e9", "elements of trained parameters that stay in host memory",
     read_elements, FIELD(max_in_cpu), .needs = {&needs_nvme_param}},
    {.name = NULL},
};

/* ZeRO++. */
static const struct tdm_method_key zeropp_keys[] = {
    {"zero_hpz_partition_size", "N", "1",
     "hpZ: GPUs that keep a second copy of parameters among them until the step; 1: none",
     tdm_key_read_count, FIELD(hpz_partition_size), .most = MOST_RANKS},
    {"zero_quantized_weights", "false|true", "false", "qwZ: parameters are gathered in 8 bits",
     tdm_key_read_switch, FIELD(quantized_weights), .needs = {&needs_several}},
    {"zero_quantized_gradients", "false|true", "false",
     "qgZ: gradients are exchanged in 4 bits, in nodes and between them", tdm_key_read_switch,
     FIELD(quantized_gradients), .needs = {&needs_nodes}},
    {"gpus_per_node", "N", "8", "GPUs that are joined by more than the network", tdm_key_read_count,
     .field = offsetof(struct tdm_method_settings, torch.context.gpus_per_node), 1, MOST_RANKS,
     .needs = {&needs_several}},
    {.name = NULL},
};

#define PARTS_MEANING "parts of parameters in host memory, or on disk beyond max_in_cpu"
#define STATES_MEANING "states in host memory or on disk; the step is on the host"
#define OVERLAP_MEANING "gathers and reductions run beside the computation: buffers of their own"

/* Where a version stands: below, at or above another. */
static int compare_versions(const unsigned version[3], const unsigned other[3])
{
    for (unsigned i = 0; i < 3; i++)
        if (version[i] != other[i])
            return version[i] < other[i] ? -1 : 1;
    return 0;
}

/* "now", or the version of DeepSpeed. */
static enum tdm_status read_version(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const unsigned early_buckets[3] = {0, 18, 2};
    /* pull request 8148, after the release of 0.19.3 */
    static const unsigned forgets_owners[3] = {0, 19, 3};
    unsigned version[TDM_VERSION_NUMBERS] = {0};
    const bool now = strcmp(value, "now") == 0;
    const enum tdm_status status =
        now ? TDM_OK : tdm_key_read_version(key, value, "0.18.2", version, err);
    if (status != TDM_OK)
        return status;
    settings->torch.deepspeed.early_buckets = !now && compare_versions(version, early_buckets) <= 0;
    settings->torch.deepspeed.forgets_owners =
        !now && compare_versions(version, forgets_owners) <= 0;
    return TDM_OK;
}

static const struct tdm_method_key zero2_keys[] = {
    {"overlap_comm", "false|true", "false", OVERLAP_MEANING, tdm_key_read_switch,
     FIELD(overlap_comm)},
    {"offload_optimizer", "none|cpu", "none", "states, and the step, in host memory",
     tdm_key_read_choice, FIELD(offload_optimizer)},
    {"check_grad_overflow", "false|true", "true", "of bf16: gradients are looked through for inf",
     tdm_key_read_switch, FIELD(check_grad_overflow)},
    {"deepspeed", "now|0.18.2", "now",
     "any version of it: to 0.18.2 buckets of gradients are made before the backward, not at its "
     "first gradient",
     .read = read_version, .needs = {&needs_buckets}},
    {.name = NULL},
};

static const struct tdm_method_key zero3_version_keys[] = {
    {"deepspeed", "now|0.19.3", "now",
     "any version of it: to 0.19.3 frozen parameters of a layer that runs again are given back as "
     "others are, not when the module is done in whose backward that was",
     .read = read_version},
    {.name = NULL},
};

static const struct tdm_method_key zero3_keys[] = {
    {"overlap_comm", "false|true", "true", OVERLAP_MEANING, tdm_key_read_switch,
     FIELD(overlap_comm)},
    {"offload_optimizer", "none|cpu|nvme", "none", STATES_MEANING, tdm_key_read_choice,
     FIELD(offload_optimizer)},
    {"offload_param", "none|cpu|nvme", "none", PARTS_MEANING, tdm_key_read_choice,
     FIELD(offload_param)},
    {.name = NULL},
};

static const struct tdm_method_key zero3_offload_keys[] = {
    {"overlap_comm", "false|true", "true", OVERLAP_MEANING, tdm_key_read_switch,
     FIELD(overlap_comm)},
    {"offload_optimizer", "none|cpu|nvme", "cpu", STATES_MEANING, tdm_key_read_choice,
     FIELD(offload_optimizer)},
    {"offload_param", "none|cpu|nvme", "cpu", PARTS_MEANING, tdm_key_read_choice,
     FIELD(offload_param)},
    {.name = NULL},
};

/* What ALST's recipes switch on: ArcticTraining's projects/sequence-parallelism, and the tutorial
 * of DeepSpeed's Ulysses sequence parallelism. */
static const struct tdm_method_key alst_assumed_keys[] = {
    {"offload_optimizer", "none|cpu|nvme", "cpu", STATES_MEANING, tdm_key_read_choice,
     FIELD(offload_optimizer)},
    {"offload_param", "none|cpu|nvme", "none", PARTS_MEANING, tdm_key_read_choice,
     FIELD(offload_param)},
    {"checkpointing", "off|on|on-reentrant", "on", "gradient checkpointing of every layer",
     tdm_key_read_choice, .field = offsetof(struct tdm_method_settings, torch.checkpointing)},
    {"checkpoint_offload", "no|alst", "alst",
     "activation_checkpoint_cpu_offload: inputs of checkpointed layers in host memory",
     tdm_key_read_choice, .field = offsetof(struct tdm_method_settings, torch.checkpoint_offload),
     .needs = {&needs_alst_checkpoints}},
    {"tiled_mlp_compute", "0|N|auto", "auto",
     "tiles of TiledMLP; auto: tokens / hidden_size; 0: not tiled", read_elements,
     .field = offsetof(struct tdm_method_settings, torch.mlp_tiles), .most = TDM_MOST_TILES},
    {"tiled_logits", "0|N|auto", "auto",
     "tiles of TiledFusedLogitsLoss; auto: 1 GiB of fp32 logits each; 0: not tiled", read_elements,
     .field = offsetof(struct tdm_method_settings, torch.logits_tiles), .most = TDM_MOST_TILES},
    {"liger", "none|all|rms_norm,swiglu,rope", "rms_norm,rope",
     "Liger's kernels in layers, as the recipes' model type has them; the MLP is TiledMLP's",
     .read = tdm_key_read_liger},
    {"allocator_conf", "default|expandable_segments:True", "expandable_segments:True",
     "PYTORCH_ALLOC_CONF", tdm_key_read_switch,
     .field = offsetof(struct tdm_method_settings, expandable_segments)},
    {.name = NULL},
};

/* DeepSpeed's own checkpoints are reentrant. */
static enum tdm_status read_reentrant(const struct tdm_method_key *key, const char *value,
                                      struct tdm_method_settings *settings, struct tdm_error *err)
{
    const enum tdm_status status = tdm_key_read_choice(key, value, settings, err);
    if (status == TDM_OK && settings->torch.checkpointing == TDM_CHECKPOINTING_ON)
        settings->torch.checkpointing = TDM_CHECKPOINTING_REENTRANT;
    return status;
}

/* What Megatron-DeepSpeed's script of FPDT switches on (ds_pretrain_gpt_6.7B_fpdt_32k.sh). */
static const struct tdm_method_key fpdt_assumed_keys[] = {
    {"checkpointing", "off|on", "on", "--deepspeed-activation-checkpointing, of every layer",
     read_reentrant, .field = offsetof(struct tdm_method_settings, torch.checkpointing)},
    {"checkpoint_offload", "no|yes", "yes",
     "--checkpoint-in-cpu: inputs of checkpointed layers in host memory", tdm_key_read_choice,
     .field = offsetof(struct tdm_method_settings, torch.checkpoint_offload),
     .needs = {&needs_alst_checkpoints}},
    {.name = NULL},
};

static const struct tdm_method_key *const zero2_tables[] = {zero2_keys, common_keys, moe_keys,
                                                            alst_keys, NULL};
static const struct tdm_method_key *const zero3_tables[] = {
    zero3_keys,  zero3_version_keys, stage3_keys, nvme_keys,
    zeropp_keys, common_keys,        alst_keys,   NULL};
static const struct tdm_method_key *const zero3_offload_tables[] = {
    zero3_offload_keys, zero3_version_keys, stage3_keys, nvme_keys,
    zeropp_keys,        common_keys,        alst_keys,   NULL};

static const struct tdm_method_key *const alst_tables[] = {
    alst_assumed_keys, zero3_keys,  zero3_version_keys, stage3_keys, nvme_keys,
    zeropp_keys,       common_keys, alst_keys,          NULL};

static const struct tdm_method_key *const fpdt_tables[] = {
    fpdt_assumed_keys, zero3_keys, stage3_keys, nvme_keys, zeropp_keys, common_keys, NULL};

/* bf16 is enabled, which also makes adapters bf16; gradients are freed in every step. */
static const char *const without2[] = {"weights_dtype", "grads", "lora", "autocast", NULL};
static const char *const without3[] = {"weights_dtype",    "checkpoint_wrapper", "grads", "lora",
                                       "bnb_keeps_inputs", "autocast",           NULL};

/* The model is Megatron-DeepSpeed's: what is transformers' or peft's has no effect. */
static const char *const without_fpdt[] = {"weights_dtype",
                                           "checkpoint_wrapper",
                                           "grads",
                                           "lora",
                                           "quantization",
                                           "double_quantization",
                                           "bnb_keeps_inputs",
                                           "modules_to_save",
                                           "lora_dropout",
                                           "autocast",
                                           "logits",
                                           "logits_chunk",
                                           "transformers",
                                           "loss_held",
                                           "num_labels",
                                           "compile",
                                           "lora_rank",
                                           "lora_targets",
                                           "use_rslora",
                                           "use_cache",
                                           "liger",
                                           "liger_version",
                                           NULL};

static bool is_odd(uint64_t elements, uint64_t ranks)
{
    return tdm_size_ceil_div(elements, ranks) % TDM_ZEROPP_MULTIPLE != 0;
}

/* The first tensor of which a rank's part, or that of its adapters, cannot be quantized; NULL:
 * none.
 */
static const struct tdm_tensor *unquantizable(const struct tdm_model *model,
                                              const struct tdm_torch_settings *torch)
{
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct tdm_tensor *w = &model->tensors[i];
        uint64_t rank = w->unit < model->layers && w->rows > 1 ? torch->lora_rank : 0;
        if (is_odd(w->elements, torch->ranks) || is_odd(rank * w->rows, torch->ranks) ||
            is_odd(rank * w->columns, torch->ranks))
            return w;
    }
    return NULL;
}

static enum tdm_status check_zeropp(const struct tdm_model *model,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const struct tdm_deepspeed_settings *s = &torch->deepspeed;
    uint64_t nodes_of = torch->context.gpus_per_node, ranks = torch->ranks;
    char text[TDM_DIVISORS_BYTES];
    if (tdm_zeropp_has_second(s) && ranks % tdm_zeropp_second_ranks(s, ranks) != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set zero_hpz_partition_size: groups of %" PRIu64 " do not divide %" PRIu64
                 " GPUs",
                 s->hpz_partition_size, ranks);
        return tdm_hint(err, "--set zero_hpz_partition_size: %s",
                        tdm_divisors_format(ranks, 1, ranks, text));
    }
    const struct tdm_tensor *odd =
        s->quantized_weights && ranks > 1 ? unquantizable(model, torch) : NULL;
    if (odd != NULL)
        return tdm_fail(err, TDM_USAGE,
                        "--set zero_quantized_weights: DeepSpeed quantizes multiples of 8 "
                        "elements, which a GPU's part of %s, or of its adapters, is not",
                        tdm_role_name(odd->role));
    if (s->quantized_gradients && (!s->reduce_scatter || s->fp32_communication))
        return tdm_fail(err, TDM_USAGE,
                        "--set zero_quantized_gradients: it goes with reduce_scatter=true and "
                        "communication_data_type=bf16 alone");
    if (s->quantized_gradients &&
        tdm_check_nodes(settings->method->name, ranks, nodes_of, err) != TDM_OK)
        return TDM_USAGE;
    if (ranks > 1 && tdm_zeropp_has_second(s))
        settings->communicators++; /* of the group */
    if (tdm_zeropp_exchanges(s, ranks, nodes_of))
        settings->communicators += 2; /* in a node, and between nodes */
    return TDM_OK;
}

static const char *assumption3(const struct tdm_method_settings *settings)
{
    const struct tdm_deepspeed_settings *s = &settings->torch.deepspeed;
    if (s->offload_optimizer == TDM_OFFLOAD_NVME || s->offload_param == TDM_OFFLOAD_NVME)
        return TDM_NOT_MEASURED "swapping to NVMe as read in DeepSpeed 0.19";
    return tdm_zeropp_has_second(s) || s->quantized_weights || s->quantized_gradients
               ? TDM_NOT_MEASURED "ZeRO++ as read in DeepSpeed 0.19"
               : NULL;
}

static enum tdm_status check(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err)
{
    const struct tdm_deepspeed_settings *s = &settings->torch.deepspeed;
    if (settings->torch.ranks == 1)
        settings->communicators = 0;
    if (settings->torch.mlp_tiles > 0 && model->experts.count > 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set tiled_mlp_compute: of a mixture of experts it is not known");
    if (settings->torch.logits_tiles > 0 && settings->torch.logits != TDM_LOGITS_HF)
        return tdm_fail(err, TDM_USAGE, "--set tiled_logits: it goes with logits=hf alone");
    const bool is_lion =
        s->optimizer == TDM_DEEPSPEED_LION && s->offload_optimizer == TDM_OFFLOAD_CPU;
    if (s->offload_optimizer && s->optimizer != TDM_DEEPSPEED_ADAM && !is_lion)
        return tdm_fail(
            err, TDM_USAGE,
            "--set optimizer: with offload_optimizer only AdamW is known, and Lion with "
            "offload_optimizer=cpu");
    return TDM_OK;
}

/* What MoE and the engine insist on, and what is not modelled. */
static enum tdm_status check_moe(const struct tdm_model *model,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const struct tdm_deepspeed_settings *s = &torch->deepspeed;
    const struct tdm_experts *experts = &model->experts;
    char text[TDM_DIVISORS_BYTES];
    if (s->ep_size == 0)
        return TDM_OK;
    if (experts->count == 0)
        return tdm_fail(err, TDM_USAGE, "--set ep_size: %s has no experts", model->name);
    if (experts->biased || experts->beside || experts->all_rows || experts->shared_gate)
        return tdm_fail(err, TDM_USAGE,
                        "--set ep_size: experts of %s are no MLPs with gate, up and down alone",
                        model->architecture);
    if (torch->ranks % s->ep_size != 0 || experts->count % s->ep_size != 0) {
        uint64_t a = torch->ranks, b = experts->count;
        for (uint64_t rest; b != 0; b = rest) {
            rest = a % b;
            a = b;
        }
        tdm_fail(err, TDM_USAGE,
                 "--set ep_size: %" PRIu64 " does not divide %" PRIu64 " GPUs and %" PRIu32
                 " experts",
                 s->ep_size, torch->ranks, experts->count);
        return tdm_hint(err, "--set ep_size: %s", tdm_divisors_format(a, 1, a, text));
    }
    if (torch->lora_rank > 0)
        return tdm_fail(err, TDM_USAGE, "--set ep_size: with adapters it is not known");
    if (!s->reduce_scatter || !s->contiguous_gradients)
        return tdm_fail(err, TDM_USAGE,
                        "--set ep_size: DeepSpeed asks for reduce_scatter=true and "
                        "contiguous_gradients=true with it");
    settings->communicators += (s->ep_size > 1) + (s->ep_size < torch->ranks && s->ep_size > 1);
    return TDM_OK;
}

static enum tdm_status check2(const struct tdm_model *model, struct tdm_method_settings *settings,
                              struct tdm_error *err)
{
    enum tdm_status status = check(model, settings, err);
    return status == TDM_OK ? check_moe(model, settings, err) : status;
}

static const char *assumption2(const struct tdm_method_settings *settings)
{
    const struct tdm_deepspeed_settings *s = &settings->torch.deepspeed;
    return s->ep_size == 0  ? NULL
           : s->drop_tokens ? TDM_NOT_MEASURED
               "experts by deepspeed.moe as read in DeepSpeed 0.19.6"
                            : TDM_NOT_MEASURED "experts by deepspeed.moe as read in DeepSpeed "
                                               "0.19.6, which get equally many tokens";
}

static enum tdm_status check_nvme(const struct tdm_model *model,
                                  const struct tdm_torch_settings *torch, struct tdm_error *err)
{
    const struct tdm_deepspeed_settings *s = &torch->deepspeed;
    if (s->offload_param != TDM_OFFLOAD_NVME)
        return TDM_OK;
    if (s->offload_optimizer == TDM_OFFLOAD_NONE || tdm_zeropp_has_second(s))
        return tdm_fail(err, TDM_USAGE,
                        "--set offload_param=nvme: it is known with offload_optimizer=cpu or nvme, "
                        "and without zero_hpz_partition_size");
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct tdm_tensor *w = &model->tensors[i];
        uint64_t part = tdm_size_ceil_div(w->elements, torch->ranks);
        if (!tdm_nvme_writes_part(s, part) || part <= s->param_buffer_size)
            continue;
        tdm_fail(err, TDM_USAGE,
                 "--set param_buffer_size: a GPU's part of %s has %" PRIu64 " elements",
                 tdm_role_name(w->role), part);
        return tdm_hint(err, "--set param_buffer_size=%" PRIu64, part);
    }
    return TDM_OK;
}

static enum tdm_status check3(const struct tdm_model *model, struct tdm_method_settings *settings,
                              struct tdm_error *err)
{
    enum tdm_status status = check(model, settings, err);
    if (status == TDM_OK && settings->torch.lora_rank > 0 && settings->torch.dora) {
        tdm_fail(err, TDM_USAGE,
                 "--set use_dora: peft reads a weight when its module has run, and ZeRO-3 has "
                 "given it back then");
        return tdm_hint(err, "zero2 and fsdp take it");
    }
    if (status == TDM_OK && settings->torch.quantization == TDM_QUANTIZATION_INT8) {
        tdm_fail(err, TDM_USAGE,
                 "--set quantization: partitions of bitsandbytes' int8 weights, of which products "
                 "read attributes, are not modelled");
        return tdm_hint(err, "nf4, gptq and awq go with ZeRO-3, int8 with zero1 and zero2");
    }
    if (status == TDM_OK)
        status = check_nvme(model, &settings->torch, err);
    return status == TDM_OK ? check_zeropp(model, settings, err) : status;
}

/* Of `bytes` that all ranks of a group share, each sends all but its own. */
static void add_shared(struct tdm_traffic *traffic, struct tdm_gpu_group group, double bytes)
{
    if (group.ranks > 1)
        tdm_traffic_add(traffic, group, bytes * (double)(group.ranks - 1) / (double)group.ranks);
}

/* Gradients of `trained` elements in 4 bits: in a node, then a node's part of them between nodes.
 */
static void add_exchanges(struct tdm_traffic *traffic, const struct tdm_torch_settings *torch,
                          double trained)
{
    uint64_t in_node = torch->context.gpus_per_node;
    const struct tdm_gpu_group inside = {in_node, 1, in_node},
                               between = {torch->ranks / in_node, in_node, in_node};
    add_shared(traffic, inside, trained / 2);
    add_shared(traffic, between, trained / 2 / (double)in_node);
}

/* Stage 3: parameters are gathered for the forward and for the backward, with hpZ in a group where
 * there is a second copy, which of frozen parameters there always is. */
static void add_cost3(const struct tdm_model *model, const struct tdm_torch_settings *torch,
                      double trained, struct tdm_traffic *traffic)
{
    const struct tdm_deepspeed_settings *s = &torch->deepspeed;
    const struct tdm_gpu_group all = tdm_torch_all_ranks(torch);
    struct tdm_gpu_group second = all;
    double steps = (double)s->gradient_accumulation_steps;
    double weights =
        tdm_torch_gathered_elements(model, torch) * (s->quantized_weights ? 1 : 2) * steps;
    if (tdm_zeropp_has_second(s))
        second.ranks = tdm_zeropp_second_ranks(s, torch->ranks);
    add_shared(traffic, torch->lora_rank > 0 ? second : all, weights);
    add_shared(traffic, second, weights);
    if (tdm_zeropp_exchanges(s, torch->ranks, torch->context.gpus_per_node))
        add_exchanges(traffic, torch, trained * steps);
    else
        add_shared(traffic, all, trained * steps * (s->fp32_communication ? FP32 : BF16));
}

/* deepspeed.moe: the rows of an expert's places are computed, and go to its GPU and back, in the
 * forward, in the backward and where a checkpoint repeats the forward. */
static void add_moe(const struct tdm_model *model, const struct tdm_torch_settings *torch,
                    struct tdm_method_cost *cost)
{
    const struct tdm_deepspeed_settings *s = &torch->deepspeed;
    const struct tdm_gpu_group group = {s->ep_size, 1, torch->context.gpus_per_node};
    uint64_t rows = torch->tokens * torch->batch;
    double steps = (double)s->gradient_accumulation_steps, layers = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        layers += model->layer_kinds[i].experts;
    double places = (double)model->experts.count * (double)tdm_moe_capacity(model, s, rows);
    double again = tdm_torch_forwards_again(model, torch);
    double row_flops = 2.0 * 3 * model->hidden * model->experts.intermediate;
    double more = places - (double)rows * model->experts.per_token;
    if (s->use_residual)
        more += (double)rows;
    cost->product_flops += steps * layers * (3 + again) * row_flops * more;
    double leaving = (double)(s->ep_size - 1) / (double)s->ep_size;
    tdm_traffic_add_exchange(&cost->exposed, group,
                             steps * layers * 2 * (2 + again) * places * model->hidden * BF16 *
                                 leaving);
}

/* Stage 2 reduces gradients to their owners (stage 1 once a step), and gathers parameters after the
 * step. */
static void add_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                     struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const struct tdm_deepspeed_settings *s = &torch->deepspeed;
    double steps = (double)s->gradient_accumulation_steps;
    double trained = tdm_torch_trained_parameters(model, torch);
    bool one = torch->wrapper == &tdm_deepspeed_zero1_wrapper;
    bool two = one || torch->wrapper == &tdm_zero2_wrapper;
    cost->product_flops *= steps;
    cost->attention_flops *= steps;
    struct tdm_traffic *traffic = s->overlap_comm ? &cost->sent : &cost->exposed;
    if (two) {
        /* Buckets are all-reduced: use_multi_rank_bucket_allreduce. */
        double dense = s->ep_size > 0 ? tdm_moe_dense_elements(model, s) : trained;
        double of_experts = s->ep_size > 0 ? tdm_moe_expert_elements(model, s) : 0;
        double reduced = 2.0 * (s->fp32_communication ? FP32 : BF16) * (one ? 1 : steps);
        struct tdm_gpu_group group = tdm_torch_all_ranks(torch);
        add_shared(traffic, group, reduced * dense);
        add_shared(&cost->exposed, group, BF16 * dense);
        if (s->ep_size > 0) {
            group.ranks /= s->ep_size;
            group.stride = s->ep_size;
            add_shared(traffic, group, reduced * of_experts);
            add_shared(&cost->exposed, group, BF16 * of_experts);
            add_moe(model, torch, cost);
            trained = dense + of_experts * (double)s->ep_size;
        }
    } else {
        add_cost3(model, torch, trained, traffic);
    }
    if (s->offload_optimizer) /* fp32 gradients down, bf16 parameters up */
        cost->host_bytes +=
            (sizeof(float) + (s->offload_param ? 0 : 2.0)) * trained / (double)torch->ranks;
    if (s->offload_param)
        cost->host_bytes +=
            2.0 * 2 * tdm_torch_gathered_elements(model, torch) / (double)torch->ranks * steps;
    double tokens = (double)torch->tokens * (double)torch->batch * steps;
    cost->host_bytes += tdm_torch_offloaded_bytes(model, torch) * (steps - 1);
    if (torch->mlp_tiles > 0) /* the backward of each tile repeats its forward */
        cost->product_flops +=
            2.0 * 3 * model->hidden * model->intermediate * model->layers * tokens;
}

#define ZERO2                                                                                 \
    .keys = zero2_tables, .without = without2, .check = check2, .cost = add_cost,             \
    .assumption = assumption2, .create = tdm_zero_create, .free = tdm_zero_free,              \
    .parameter = tdm_zero_parameter, .start = tdm_zero2_start,                                \
    .before_backward = tdm_zero2_before_backward, .after_backward = tdm_zero2_after_backward, \
    .gradient = tdm_zero2_gradient, .accumulates = tdm_zero_accumulates, .step = tdm_zero2_step

const struct tdm_wrapper tdm_deepspeed_zero1_wrapper = {.name = "deepspeed-zero1", ZERO2};
const struct tdm_wrapper tdm_zero2_wrapper = {.name = "zero2", ZERO2};

/* TRL's prepare_deepspeed (trl/models/utils.py): stage 3 shards a second model too, without an
 * optimizer. Of the other stages it makes stage 0, whose ranks have all of it. */
static void share_second(const struct tdm_torch_settings *first, struct tdm_torch_settings *second)
{
    second->wrapper = first->wrapper;
    second->ranks = first->ranks;
    second->deepspeed = first->deepspeed;
    second->deepspeed.offload_optimizer = TDM_OFFLOAD_NONE;
    second->context.gpus_per_node = first->context.gpus_per_node;
}

/* The second communicator is for barriers. */
#define ZERO3                                                                            \
    .communicators = 1, .shards_quantized = true, .check = check3, .cost = add_cost,     \
    .assumption = assumption3, .create = tdm_zero_create, .free = tdm_zero_free,         \
    .parameter = tdm_zero3_parameter, .start = tdm_zero3_start,                          \
    .before_forward = tdm_zero3_begin_trace, .after_backward = tdm_zero3_after_backward, \
    .enter_module = tdm_zero3_enter, .leave_module = tdm_zero3_leave,                    \
    .gather_weight = tdm_zero3_gather_weight, .return_weight = tdm_zero3_return_weight,  \
    .share_second = share_second, .gradient = tdm_zero3_gradient,                        \
    .accumulates = tdm_zero_accumulates, .step = tdm_zero3_step,                         \
    .weight_bytes = tdm_zero3_weight_bytes

const struct tdm_wrapper tdm_zero3_wrapper = {
    .name = "zero3", .keys = zero3_tables, .without = without3, ZERO3};
const struct tdm_wrapper tdm_zero3_offload_wrapper = {
    .name = "zero3-offload", .keys = zero3_offload_tables, .without = without3, ZERO3};
const struct tdm_wrapper tdm_alst_wrapper = {
    .name = "alst", .keys = alst_tables, .without = without3, ZERO3};
const struct tdm_wrapper tdm_fpdt_wrapper = {
    .name = "fpdt", .keys = fpdt_tables, .without = without_fpdt, ZERO3};
