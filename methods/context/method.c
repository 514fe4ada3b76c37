/* SPDX-License-Identifier: Apache-2.0 */
/* Dividers of attention in Hugging Face's models: their keys, their checks, and their table. */
#include "base/size.h"
#include "methods/context/fpdt.h"
#include "methods/context/parts.h"
#include "methods/divisors.h"
#include "methods/method.h"

#include <inttypes.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, name)
#define MOST_RANKS 65536u
#define MOST_CHUNK (UINT64_C(1) << 30)

/* ---- keys ---- */

static const struct tdm_method_key group_keys[] = {
    {"sequence_parallel_size", "N", NULL,
     "GPUs that share a sequence (default: all); with fewer there are several sequences",
     tdm_key_read_count, FIELD(torch.context.ranks), 1, MOST_RANKS},
    {"sharding", "none|ddp|zero1|fsdp", "fsdp",
     "of weights, gradients and optimizer states, over all ranks; none: all on every rank",
     .read = tdm_key_read_wrapper},
    {"gpus_per_node", "N", "8", "GPUs that are joined by more than the network", tdm_key_read_count,
     FIELD(torch.context.gpus_per_node), 1, MOST_RANKS},
    {"attention", "flash_attention_2", "flash_attention_2", "of the flash_attn package",
     tdm_key_read_choice, FIELD(torch.attention)},
    {.name = NULL},
};

#define BALANCE_MEANING "which tokens a rank has"

static const struct tdm_method_key ring_keys[] = {
    {"balance", "zigzag|striped|contiguous", "zigzag",
     BALANCE_MEANING ": zigzag_ring_flash_attn_func, stripe_flash_attn_func, ring_flash_attn_func",
     tdm_key_read_choice, FIELD(torch.context.balance)},
    {.name = NULL},
};

static const struct tdm_method_key torch_ring_keys[] = {
    {"rotate_method", "alltoall|allgather", "allgather",
     "set_rotate_method: K and V of all ranks at once, or passed round", tdm_key_read_switch,
     FIELD(torch.context.gathers)},
    {"attention", "sdpa", "sdpa", "FlashAttention-2 or cuDNN of torch, in a ring",
     tdm_key_read_choice, FIELD(torch.attention)},
    {.name = NULL},
};

static const struct tdm_method_key usp_keys[] = {
    {"ulysses_degree", "N", NULL,
     "ranks that exchange tokens for heads (default: as many of a node as divide the KV heads)",
     tdm_key_read_count, FIELD(torch.context.ulysses_degree), 1, MOST_RANKS},
    {"ring_degree", "N", NULL, "ranks of a ring; unsaid: the others", tdm_key_read_count,
     FIELD(torch.context.ring_degree), 1, MOST_RANKS},
    {"ring_impl_type", "zigzag|strip|basic", "zigzag", BALANCE_MEANING, tdm_key_read_choice,
     FIELD(torch.context.balance)},
    {.name = NULL},
};

static const struct tdm_method_key fpdt_keys[] = {
    {"ds_sequence_parallel_fpdt_chunk_size", "N", "65536",
     "tokens of a chunk, over all GPUs of a sequence", tdm_key_read_count,
     FIELD(torch.context.chunk_tokens), 1, MOST_CHUNK},
    {.name = NULL},
};

static const struct tdm_method_key *const fpdt_tables[] = {fpdt_keys, group_keys, NULL};
static const struct tdm_method_key *const group_tables[] = {group_keys, NULL};
static const struct tdm_method_key *const ring_tables[] = {ring_keys, group_keys, NULL};
static const struct tdm_method_key *const torch_ring_tables[] = {torch_ring_keys, group_keys, NULL};
static const struct tdm_method_key *const usp_tables[] = {usp_keys, group_keys, NULL};

/* ---- checks ---- */

/* The largest number of GPUs of a node that divides all ranks and all KV heads. */
static uint64_t usual_ulysses_degree(const struct tdm_context *context,
                                     const struct tdm_model *model, uint64_t ranks)
{
    uint64_t degree = context->gpus_per_node < ranks ? context->gpus_per_node : ranks;
    while (ranks % degree != 0 || model->kv_heads % degree != 0)
        degree--;
    return degree;
}

/* 0: `degree` does not divide `ranks`. */
static uint64_t quotient(uint64_t ranks, uint64_t degree)
{
    return ranks % degree == 0 ? ranks / degree : 0;
}

void tdm_context_settle(const struct tdm_model *model, struct tdm_method_settings *settings)
{
    struct tdm_context *c = &settings->torch.context;
    if (c->ranks == 0)
        c->ranks = settings->torch.ranks / tdm_tensor_ranks(&settings->torch);
    if (!c->divider->exchanges || !c->divider->rings) {
        c->ring_degree = c->divider->rings ? c->ranks : 1;
        c->ulysses_degree = c->divider->rings ? 1 : c->ranks;
        return;
    }
    if (c->ulysses_degree == 0 && c->ring_degree == 0)
        c->ulysses_degree = usual_ulysses_degree(c, model, c->ranks);
    else if (c->ulysses_degree == 0)
        c->ulysses_degree = quotient(c->ranks, c->ring_degree);
    if (c->ring_degree == 0)
        c->ring_degree = quotient(c->ranks, c->ulysses_degree);
}

/* A rank gets whole heads: the degree must divide the number of query heads and of KV heads. */
static enum tdm_status refuse_heads(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    struct tdm_error *err)
{
    const struct tdm_context *c = &settings->torch.context;
    const char *name = settings->method->name;
    char text[TDM_DIVISORS_BYTES];
    uint64_t heads = tdm_common_divisor(model->query_heads, model->kv_heads);
    uint64_t of_gpus = tdm_common_divisor(heads, settings->torch.ranks);
    tdm_fail(err, TDM_USAGE,
             "method %s: %" PRIu64 " ranks do not divide %" PRIu32 " query heads and %" PRIu32
             " KV heads",
             name, c->ulysses_degree, model->query_heads, model->kv_heads);
    if (c->divider->rings)
        return tdm_hint(err, "--set ulysses_degree: %s",
                        tdm_divisors_format(of_gpus, 1, UINT64_MAX, text));
    if (of_gpus > 1)
        return tdm_hint(err, "--set sequence_parallel_size: %s; or method usp, with rings too",
                        tdm_divisors_format(of_gpus, 2, UINT64_MAX, text));
    tdm_divisors_format(heads, 2, UINT64_MAX, text);
    if (text[0] == '\0')
        return tdm_hint(err, "method ring takes any number");
    return tdm_hint(err, "--gpus %s; method ring takes any number", text);
}

/* A degree is 0 if the user did not set it and it could not be settled. */
static enum tdm_status refuse_degrees(const struct tdm_model *model,
                                      const struct tdm_method_settings *settings,
                                      struct tdm_error *err)
{
    const struct tdm_context *c = &settings->torch.context;
    const char *name = settings->method->name;
    char text[TDM_DIVISORS_BYTES];
    if (c->ulysses_degree == 0) {
        tdm_fail(err, TDM_USAGE,
                 "method %s: ring_degree=%" PRIu64 " does not divide %" PRIu64 " GPUs", name,
                 c->ring_degree, c->ranks);
        return tdm_hint(err, "--set ring_degree: %s",
                        tdm_divisors_format(c->ranks, 1, UINT64_MAX, text));
    }
    if (c->ring_degree == 0)
        tdm_fail(err, TDM_USAGE,
                 "method %s: ulysses_degree=%" PRIu64 " does not divide %" PRIu64 " GPUs", name,
                 c->ulysses_degree, c->ranks);
    else
        tdm_fail(err, TDM_USAGE,
                 "method %s: ulysses_degree %" PRIu64 " times ring_degree %" PRIu64
                 " is not %" PRIu64 " GPUs",
                 name, c->ulysses_degree, c->ring_degree, c->ranks);
    uint64_t heads = tdm_common_divisor(model->query_heads, model->kv_heads);
    return tdm_hint(err, "--set ulysses_degree: %s; the others are rings",
                    tdm_divisors_format(tdm_common_divisor(heads, c->ranks), 1, UINT64_MAX, text));
}

static enum tdm_status check_degrees(const struct tdm_model *model,
                                     const struct tdm_method_settings *settings,
                                     struct tdm_error *err)
{
    const struct tdm_context *c = &settings->torch.context;
    const char *name = settings->method->name;
    char text[TDM_DIVISORS_BYTES];
    uint64_t ranks = c->ranks, u = c->ulysses_degree;
    if (settings->torch.ranks / tdm_tensor_ranks(&settings->torch) % ranks != 0) {
        tdm_fail(err, TDM_USAGE,
                 "method %s: %" PRIu64 " GPUs are not a multiple of "
                 "sequence_parallel_size=%" PRIu64,
                 name, settings->torch.ranks, ranks);
        return tdm_hint(err, "--set sequence_parallel_size: %s",
                        tdm_divisors_format(settings->torch.ranks, 1, UINT64_MAX, text));
    }
    if (tdm_size_mul(c->ring_degree, u) != ranks)
        return refuse_degrees(model, settings, err);
    bool repeated = c->divider->repeats_kv && u % model->kv_heads == 0;
    if (model->query_heads % u != 0 || (model->kv_heads % u != 0 && !repeated))
        return refuse_heads(model, settings, err);
    if (c->divider->rings_of_nodes)
        return tdm_check_nodes(name, ranks, c->gpus_per_node, err);
    return TDM_OK;
}

enum tdm_status tdm_check_nodes(const char *method, uint64_t ranks, uint64_t gpus_per_node,
                                struct tdm_error *err)
{
    char text[TDM_DIVISORS_BYTES];
    if (ranks <= gpus_per_node || ranks % gpus_per_node == 0)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "method %s: %" PRIu64 " GPUs do not fill nodes of gpus_per_node=%" PRIu64, method,
             ranks, gpus_per_node);
    return tdm_hint(err, "--gpus %" PRIu64 " or %" PRIu64 ", or --set gpus_per_node: %s",
                    ranks / gpus_per_node * gpus_per_node,
                    (ranks / gpus_per_node + 1) * gpus_per_node,
                    tdm_divisors_format(ranks, 1, gpus_per_node, text));
}

enum tdm_status tdm_context_refuse_window(const struct tdm_model *model,
                                          const struct tdm_method_settings *settings,
                                          struct tdm_error *err)
{
    uint64_t window = tdm_model_shortest_window(model, settings->torch.tokens);
    if (window == 0)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "method %s: \"sliding_window\" of %s is %" PRIu64
             " tokens, and kernels of a ring see one block of keys at a time",
             settings->method->name, model->name, window);
    return tdm_hint(err,
                    "ulysses, and megatron-cp with cp_comm_type=a2a or all_gather, take "
                    "windows; up to %" PRIu64 " tokens it makes no difference",
                    window);
}

/* The kernels of a ring support no window of the whole sequence, and only yunchang's support a cap
 * on scores. */
static enum tdm_status check_scores(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    struct tdm_error *err)
{
    const struct tdm_context *c = &settings->torch.context;
    if (c->ring_degree == 1)
        return TDM_OK;
    if (model->attention_softcap > 0 && !c->divider->caps_scores) {
        tdm_fail(err, TDM_USAGE,
                 "method %s: its kernels take no \"attn_logit_softcapping\", which %s has",
                 settings->method->name, model->name);
        return tdm_hint(err, "ulysses takes it, and usp up to the length of a window");
    }
    return tdm_context_refuse_window(model, settings, err);
}

static enum tdm_status check(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err)
{
    settings->torch.attention = TDM_TORCH_SDPA_FLASH;
    tdm_context_settle(model, settings);
    enum tdm_status status = check_degrees(model, settings, err);
    const struct tdm_context *c = &settings->torch.context;
    uint64_t exchanging =
        c->ulysses_degree < c->gpus_per_node ? c->ulysses_degree : c->gpus_per_node;
    if (c->divider->exchanges && exchanging > 2)
        settings->peers = exchanging - 1;
    return status == TDM_OK ? check_scores(model, settings, err) : status;
}

/* The parts of models that FPDT_Attention and FPDT_FFN know; a gate of the MLP is ours. */
#define FPDT_PARTS (TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_BIASES)

static bool is_fpdt_model(const struct tdm_model *model)
{
    for (uint32_t i = 0; i < model->layers; i++) {
        const struct tdm_layer_kind *kind = &model->layer_kinds[i];
        if (kind->window > 0 || kind->qk_norm || kind->post_norms || kind->experts || kind->no_rope)
            return false;
    }
    return (model->parts & ~(uint32_t)FPDT_PARTS) == 0 && model->attention_softcap <= 0 &&
           model->logits_softcap <= 0 && !model->offset_norms && model->latent.kv_rank == 0 &&
           tdm_model_other_mixer(model) == NULL;
}

/* Chunks are divided into parts for the loss. */
static enum tdm_status check_chunks(const struct tdm_method_settings *settings,
                                    struct tdm_error *err)
{
    const struct tdm_context *c = &settings->torch.context;
    const uint64_t multiple = c->ulysses_degree * TDM_FPDT_LOSS_PARTS;
    const uint64_t tokens = settings->torch.tokens, padded = tdm_context_padded_tokens(c, tokens);
    if (c->chunk_tokens % multiple != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set ds_sequence_parallel_fpdt_chunk_size: %" PRIu64
                 " tokens are no multiple of %" PRIu64 ", %u parts of %" PRIu64 " ranks",
                 c->chunk_tokens, multiple, TDM_FPDT_LOSS_PARTS, c->ulysses_degree);
        return tdm_hint(err, "--set ds_sequence_parallel_fpdt_chunk_size=%" PRIu64,
                        tdm_size_align(c->chunk_tokens, multiple));
    }
    if (padded / c->chunk_tokens > TDM_FPDT_MOST_CHUNKS) {
        tdm_fail(err, TDM_USAGE, "method %s: more than %u chunks of %" PRIu64 " tokens",
                 settings->method->name, TDM_FPDT_MOST_CHUNKS, c->chunk_tokens);
        return tdm_hint(err, "--set ds_sequence_parallel_fpdt_chunk_size=%" PRIu64,
                        tdm_size_align(tdm_size_ceil_div(tokens, TDM_FPDT_MOST_CHUNKS), multiple));
    }
    return TDM_OK;
}

static enum tdm_status check_fpdt(const struct tdm_model *model,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    const enum tdm_status status = check(model, settings, err);
    if (status != TDM_OK)
        return status;
    if (!is_fpdt_model(model)) {
        tdm_fail(err, TDM_USAGE, "method %s: FPDT's attention and MLP do not know all parts of %s",
                 settings->method->name, model->architecture);
        return tdm_hint(err, "models as llama-3.1-8b or qwen2.5-7b; or method alst");
    }
    return check_chunks(settings, err);
}

static const char *fpdt_assumption(const struct tdm_model *model,
                                   const struct tdm_method_settings *settings)
{
    (void)settings;
    return (model->parts & TDM_PART_PLAIN_MLP) != 0
               ? TDM_NOT_MEASURED "Ulysses-Offload as read in DeepSpeed 0.19"
               : TDM_NOT_MEASURED "Ulysses-Offload as read in DeepSpeed 0.19, whose FPDT_FFN has "
                                  "GELU alone; SwiGLU is counted in the same way";
}

void tdm_fpdt_preset(struct tdm_method_settings *settings)
{
    settings->torch.liger = TDM_LIGER_NORMS; /* apex's MixedFusedRMSNorm saves the same */
}

static const char *assumption(const struct tdm_model *model,
                              const struct tdm_method_settings *settings)
{
    if (tdm_model_shortest_window(model, settings->torch.tokens) > 0)
        return "flash_attn gets the windows of layers; it stores as much with them as without";
    return NULL;
}

/* ---- the dividers ---- */

#define COMMON .check = check, .assumption = assumption, .cost = tdm_context_cost

const struct tdm_divider tdm_ring_divider = {
    COMMON,
    .keys = ring_tables,
    .rings = true,
    .forward = tdm_ring_forward,
    .backward = tdm_ring_backward,
};

const struct tdm_divider tdm_torch_ring_divider = {
    COMMON,        .keys = torch_ring_tables,         .communicators = 1,
    .rings = true, .forward = tdm_torch_ring_forward, .backward = tdm_torch_ring_backward,
};

const struct tdm_divider tdm_double_ring_divider = {
    COMMON,
    .keys = group_tables,
    .communicators = 4, /* inside and between nodes, for keys and for their gradients */
    .rings = true,
    .rings_of_nodes = true,
    .forward = tdm_double_ring_forward,
    .backward = tdm_double_ring_backward,
};

const struct tdm_divider tdm_ulysses_divider = {COMMON, .keys = group_tables, .exchanges = true};

/* DeepSpeed's own (runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF). */
const struct tdm_divider tdm_alst_divider = {COMMON, .keys = group_tables, .exchanges = true,
                                             .repeats_kv = true, .heads_first = true};

/* Ulysses-Offload. */
const struct tdm_divider tdm_fpdt_divider = {.keys = fpdt_tables,
                                             .exchanges = true,
                                             .check = check_fpdt,
                                             .assumption = fpdt_assumption,
                                             .cost = tdm_fpdt_cost};

const struct tdm_divider tdm_usp_divider = {
    COMMON,
    .keys = usp_tables,
    .communicators = 2, /* for exchanges, and for rings */
    .exchanges = true,
    .rings = true,
    .caps_scores = true,
    .forward = tdm_ring_forward,
    .backward = tdm_ring_backward,
};
