/* SPDX-License-Identifier: Apache-2.0 */
/* The methods deepspeed-zero1, zero2, zero3 and zero3-offload: keys with the names of a DeepSpeed
 * config, invalid combinations, costs, and their wrappers. Settings that a DeepSpeed config lacks
 * are keys of tdm_keys_torch. */
#include "methods/deepspeed/parts.h"
#include "methods/eager/tiles.h"
#include "methods/method.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, torch.deepspeed.name)
#define MOST_ELEMENTS (UINT64_C(1) << 44)
#define MOST_ACCUMULATION 65536u

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

/* ---- needs ---- */

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
    {"optimizer", "AdamW|torch_adam|torch_adam_fused", "AdamW",
     "AdamW: FusedAdam, or DeepSpeedCPUAdam with offload; torch.optim.AdamW, foreach or fused",
     tdm_key_read_choice, FIELD(optimizer)},
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

#define OVERLAP_MEANING "gathers and reductions run beside the computation: buffers of their own"

static const struct tdm_method_key zero2_keys[] = {
    {"overlap_comm", "false|true", "false", OVERLAP_MEANING, tdm_key_read_switch,
     FIELD(overlap_comm)},
    {"offload_optimizer", "none|cpu", "none", "states, and the step, in host memory",
     tdm_key_read_switch, FIELD(offload_optimizer)},
    {"check_grad_overflow", "false|true", "true", "of bf16: gradients are looked through for inf",
     tdm_key_read_switch, FIELD(check_grad_overflow)},
    {.name = NULL},
};

static const struct tdm_method_key zero3_keys[] = {
    {"overlap_comm", "false|true", "true", OVERLAP_MEANING, tdm_key_read_switch,
     FIELD(overlap_comm)},
    {"offload_optimizer", "none|cpu", "none", "states, and the step, in host memory",
     tdm_key_read_switch, FIELD(offload_optimizer)},
    {"offload_param", "none|cpu", "none", "parts of parameters in host memory", tdm_key_read_switch,
     FIELD(offload_param)},
    {.name = NULL},
};

static const struct tdm_method_key zero3_offload_keys[] = {
    {"overlap_comm", "false|true", "true", OVERLAP_MEANING, tdm_key_read_switch,
     FIELD(overlap_comm)},
    {"offload_optimizer", "none|cpu", "cpu", "states, and the step, in host memory",
     tdm_key_read_switch, FIELD(offload_optimizer)},
    {"offload_param", "none|cpu", "cpu", "parts of parameters in host memory", tdm_key_read_switch,
     FIELD(offload_param)},
    {.name = NULL},
};

/* What ALST's recipes switch on: ArcticTraining's projects/sequence-parallelism, and the tutorial
 * of DeepSpeed's Ulysses sequence parallelism. */
static const struct tdm_method_key alst_assumed_keys[] = {
    {"offload_optimizer", "none|cpu", "cpu", "states, and the step, in host memory",
     tdm_key_read_switch, FIELD(offload_optimizer)},
    {"offload_param", "none|cpu", "none", "parts of parameters in host memory", tdm_key_read_switch,
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

static const struct tdm_method_key *const zero2_tables[] = {zero2_keys, common_keys, alst_keys,
                                                            NULL};
static const struct tdm_method_key *const zero3_tables[] = {zero3_keys, stage3_keys, common_keys,
                                                            alst_keys, NULL};
static const struct tdm_method_key *const zero3_offload_tables[] = {zero3_offload_keys, stage3_keys,
                                                                    common_keys, alst_keys, NULL};

static const struct tdm_method_key *const alst_tables[] = {
    alst_assumed_keys, zero3_keys, stage3_keys, common_keys, alst_keys, NULL};

/* bf16 is enabled, which also makes adapters bf16; gradients are freed in every step. */
static const char *const without2[] = {"weights_dtype",   "grads",    "lora",
                                       "modules_to_save", "autocast", NULL};
static const char *const without3[] = {
    "weights_dtype",    "grads",           "lora",         "quantization", "double_quantization",
    "bnb_keeps_inputs", "modules_to_save", "lora_dropout", "autocast",     NULL};

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
    if (s->offload_optimizer && s->optimizer != TDM_DEEPSPEED_ADAM)
        return tdm_fail(err, TDM_USAGE,
                        "--set optimizer: with offload_optimizer=cpu only AdamW is known");
    return TDM_OK;
}

/* Stage 2 reduces gradients to their owners (stage 1 once a step), and gathers parameters after the
 * step. Stage 3 gathers parameters for the forward and for the backward. With checkpointing it
 * gathers them for the recomputed forward too, unless parameters used again soon stay. */
static void add_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                     struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const struct tdm_deepspeed_settings *s = &torch->deepspeed;
    double share = (double)(torch->ranks - 1) / (double)torch->ranks;
    double all = (double)model->parameters, steps = (double)s->gradient_accumulation_steps;
    double trained = tdm_torch_trained_parameters(model, torch);
    double gradient = s->fp32_communication ? sizeof(float) : 2.0;
    bool one = torch->wrapper == &tdm_deepspeed_zero1_wrapper;
    bool two = one || torch->wrapper == &tdm_zero2_wrapper;
    cost->product_flops *= steps;
    cost->attention_flops *= steps;
    /* Stage 2's buckets are all-reduced: use_multi_rank_bucket_allreduce. */
    double reduced = (two ? 2 : 1) * trained * gradient * share * (one ? 1 : steps);
    double gathered = 2.0 * (two ? trained : 2 * all * steps) * share;
    double sent = s->overlap_comm ? reduced + (two ? 0 : gathered) : 0;
    tdm_traffic_add(&cost->sent, tdm_torch_all_ranks(torch), sent);
    tdm_traffic_add(&cost->exposed, tdm_torch_all_ranks(torch), reduced + gathered - sent);
    if (s->offload_optimizer) /* fp32 gradients down, bf16 parameters up */
        cost->host_bytes +=
            (sizeof(float) + (s->offload_param ? 0 : 2.0)) * trained / (double)torch->ranks;
    if (s->offload_param)
        cost->host_bytes += 2.0 * 2 * all / (double)torch->ranks * steps;
    double tokens = (double)torch->tokens * (double)torch->batch * steps;
    cost->host_bytes += tdm_torch_offloaded_bytes(model, torch) * (steps - 1);
    if (torch->mlp_tiles > 0) /* the backward of each tile repeats its forward */
        cost->product_flops +=
            2.0 * 3 * model->hidden * model->intermediate * model->layers * tokens;
}

#define ZERO2                                                                          \
    .keys = zero2_tables, .without = without2, .check = check, .cost = add_cost,       \
    .create = tdm_zero_create, .free = tdm_zero_free, .parameter = tdm_zero_parameter, \
    .start = tdm_zero2_start, .after_backward = tdm_zero2_after_backward,              \
    .gradient = tdm_zero2_gradient, .accumulates = tdm_zero_accumulates, .step = tdm_zero2_step

const struct tdm_wrapper tdm_deepspeed_zero1_wrapper = {.name = "deepspeed-zero1", ZERO2};
const struct tdm_wrapper tdm_zero2_wrapper = {.name = "zero2", ZERO2};

/* The second communicator is for barriers. */
#define ZERO3                                                                           \
    .without = without3, .communicators = 1, .check = check, .cost = add_cost,          \
    .create = tdm_zero_create, .free = tdm_zero_free, .parameter = tdm_zero3_parameter, \
    .start = tdm_zero3_start, .before_forward = tdm_zero3_begin_trace,                  \
    .after_backward = tdm_zero3_after_backward, .enter_module = tdm_zero3_enter,        \
    .leave_module = tdm_zero3_leave, .gradient = tdm_zero3_gradient,                    \
    .accumulates = tdm_zero_accumulates, .step = tdm_zero3_step,                        \
    .weight_bytes = tdm_zero3_weight_bytes

const struct tdm_wrapper tdm_zero3_wrapper = {.name = "zero3", .keys = zero3_tables, ZERO3};
const struct tdm_wrapper tdm_zero3_offload_wrapper = {
    .name = "zero3-offload", .keys = zero3_offload_tables, ZERO3};
const struct tdm_wrapper tdm_alst_wrapper = {.name = "alst", .keys = alst_tables, ZERO3};
