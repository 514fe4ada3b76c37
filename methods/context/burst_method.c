/* SPDX-License-Identifier: Apache-2.0 */
/* The method burst: its keys, its checks, and the cost of a step. */
#include "methods/context/burst.h"

#include "methods/method.h"

#define FIELD(name) .field = offsetof(struct tdm_method_settings, name)
#define MOST_RANKS 65536u
#define RANK_MOST 65536u

static bool has_nodes(const struct tdm_key_case *c)
{
    return c->settings->torch.ranks > c->settings->torch.context.gpus_per_node;
}

static bool has_optimizer(const struct tdm_key_case *c)
{
    return c->settings->torch.optimizer != TDM_TORCH_NO_OPTIMIZER;
}

static bool is_sliding(const struct tdm_key_case *c)
{
    return c->settings->burst.mask == TDM_BURST_SLIDING;
}

static bool is_blocks(const struct tdm_key_case *c)
{
    return c->settings->burst.mask == TDM_BURST_BLOCK;
}

static bool is_no_blocks(const struct tdm_key_case *c)
{
    return !is_blocks(c);
}

static const struct tdm_key_need needs_sliding = {"without attention_mask=sliding", is_sliding};
static const struct tdm_key_need needs_blocks = {"without attention_mask=block", is_blocks};
static const struct tdm_key_need needs_no_blocks = {"with attention_mask=block", is_no_blocks};
static const struct tdm_key_need needs_nodes = {"within one node of gpus_per_node", has_nodes};
static bool never(const struct tdm_key_case *c)
{
    (void)c;
    return false;
}

static const struct tdm_key_need needs_other_loop = {
    "on memory: BurstEngine's loop never drops gradients, so every backward adds to them", never};
static const struct tdm_key_need needs_optimizer = {"with optimizer=none", has_optimizer};

/* The second value of a switch sets its field. So a field may be the opposite of its key. */
const struct tdm_method_key tdm_keys_burst[] = {
    {"use_checkpoint", "on|off", "on", "of blocks: every layer is run again for the backward",
     tdm_key_read_switch, FIELD(burst.whole_layers)},
    {"grad_ckpt", "none|seq-wise|full", "none",
     "attention outputs that checkpointing keeps: none, those of the later half (burst_sl_ckpt), "
     "all (burst_whole_ckpt)",
     tdm_key_read_choice, FIELD(burst.checkpoint)},
    {"attention_mask", "causal|striped|sliding|block|full", "causal",
     "sp: causal by zigzag or by stripes, a window (sliding), blocks (sparse), or all pairs",
     tdm_key_read_choice, FIELD(burst.mask)},
    {"sliding_window", "N", "4K", "of attention_mask=sliding: tokens of a rank",
     tdm_key_read_tokens, FIELD(burst.window), .needs = {&needs_sliding}},
    {"block_percent", "N", "50", "of attention_mask=block: blocks that are computed, of all",
     tdm_key_read_count, FIELD(burst.block_percent), 1, 100, .needs = {&needs_blocks}},
    {"optimize_bwd_comm", "off|on", "on",
     "the backward sends row sums of dO * O in place of O; off: --ablation bwd_opt",
     tdm_key_read_switch, FIELD(burst.optimized), .needs = {&needs_no_blocks}},
    {"double_ring", "on|off", "on", "rings inside nodes, and one of nodes; off: --ablation double",
     tdm_key_read_switch, FIELD(burst.single_ring), .needs = {&needs_nodes}},
    {"sl_loss", "on|off", "on", "LM head and loss are fused; off: logits of all tokens",
     tdm_key_read_switch, FIELD(burst.plain_loss)},
    {"spzero", "on|off", "on", "ZeRO-3 over all ranks; off: weights are whole on every rank",
     tdm_key_read_switch, FIELD(burst.replicated)},
    {"offload", "off|on", "off", "AdamOffloadOptimizer: states in host memory", tdm_key_read_switch,
     FIELD(burst.offload), .needs = {&needs_optimizer}},
    {"optimizer", "none|adam", "adam", "bf16 weights; states and a copy of the weights in fp32",
     tdm_key_read_choice, FIELD(torch.optimizer)},
    {"gradient_accumulation_steps", "N", "1", "backwards before a step", tdm_key_read_count,
     FIELD(torch.accumulation), .least = 1, .most = MOST_RANKS, .needs = {&needs_other_loop}},
    {"lora_rank", "N", "0",
     "adapters of that rank, all else is frozen; BurstEngine has none: as peft's",
     tdm_key_read_count, FIELD(torch.lora_rank), .most = RANK_MOST},
    {"lora_targets", "all|q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "all",
     "projections with adapters", .read = tdm_key_read_targets},
    {"gpus_per_node", "N", "8", "GPUs that are joined by more than the network", tdm_key_read_count,
     FIELD(torch.context.gpus_per_node), 1, MOST_RANKS},
    {"allocator_conf", "default|expandable_segments:True", "default", "PYTORCH_CUDA_ALLOC_CONF",
     tdm_key_read_switch, FIELD(expandable_segments)},
    {"step", "1|2|3|all", "all", "the step to predict; later steps equal the third",
     .read = tdm_key_read_step},
    {.name = NULL},
};

static enum tdm_status refuse_model(const struct tdm_model *model, struct tdm_error *err)
{
    tdm_fail(err, TDM_USAGE, "method burst: its model is Llama, with a head of its own; %s is not",
             model->name);
    return tdm_hint(err, "ring and usp take other models");
}

enum tdm_status tdm_burst_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                                struct tdm_error *err)
{
    struct tdm_burst *burst = &settings->burst;
    struct tdm_context *c = &settings->torch.context;
    tdm_context_settle(model, settings);
    settings->torch.attention = TDM_TORCH_SDPA_FLASH;
    settings->torch.checkpointing =
        burst->whole_layers ? TDM_CHECKPOINTING_OFF : TDM_CHECKPOINTING_REENTRANT;
    settings->torch.wrapper = burst->replicated ? &tdm_no_wrapper : &tdm_fsdp_wrapper;
    settings->torch.fsdp.reshard = TDM_RESHARD_YES;
    if (burst->whole_layers && burst->checkpoint != TDM_BURST_NOTHING)
        return tdm_fail(err, TDM_USAGE,
                        "--set grad_ckpt: there is nothing to keep without use_checkpoint=on");
    if (burst->mask == TDM_BURST_BLOCK)
        burst->optimized = false; /* O goes round */
    if (burst->checkpoint == TDM_BURST_LATTER_HALF &&
        (burst->mask == TDM_BURST_BLOCK || burst->mask == TDM_BURST_FULL)) {
        tdm_fail(err, TDM_USAGE,
                 "--set grad_ckpt: seq-wise is for causal masks and windows, which lie in stripes");
        return tdm_hint(err, "--set grad_ckpt=full, or none");
    }
    if (settings->torch.ranks == 1)
        settings->communicators = settings->peers = 0;
    if (model->tied || model->parts != 0 || model->offset_norms || model->whole_qk_norm ||
        model->experts.count > 0 || model->latent.kv_rank > 0 ||
        tdm_model_tensor(model, 0, TDM_ROLE_Q_NORM) != NULL ||
        tdm_model_tensor(model, 0, TDM_ROLE_Q_BIAS) != NULL)
        return refuse_model(model, err);
    if (tdm_model_shortest_window(model, settings->torch.tokens) > 0)
        return tdm_context_refuse_window(model, settings, err);
    if (!burst->single_ring &&
        tdm_check_nodes("burst", settings->torch.ranks, c->gpus_per_node, err) != TDM_OK)
        return tdm_hint(err, "--set double_ring=off takes any number");
    return TDM_OK;
}

const char *tdm_burst_assumption(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings)
{
    static const char *const masks[] = {
        [TDM_BURST_CAUSAL] = NULL,
        [TDM_BURST_STRIPED] =
            TDM_NOT_MEASURED "causal stripes: ranks have the same pairs but for one "
                             "a query",
        [TDM_BURST_SLIDING] = TDM_NOT_MEASURED "a window in stripes: all ranks have the same pairs",
        [TDM_BURST_BLOCK] =
            TDM_NOT_MEASURED "blocks by flex_attention, compiled; all ranks have the "
                             "same pairs; without the mask of all pairs that it is "
                             "made from",
        [TDM_BURST_FULL] = NULL,
    };
    (void)model;
    if (settings->torch.lora_rank == 0)
        return masks[settings->burst.mask];
    return "LoRA as peft would add it, in bf16; BurstEngine's sources have none";
}

/* ---- cost ---- */

/* Pairs of a rank's queries with the keys of another, in tokens of a rank. */
static double block_pairs(const struct tdm_burst *burst, double tokens)
{
    double window = (double)burst->window;
    if (burst->mask == TDM_BURST_FULL)
        return tokens * tokens;
    if (burst->mask == TDM_BURST_BLOCK)
        return tokens * tokens * (double)burst->block_percent / 100;
    if (burst->mask != TDM_BURST_SLIDING || window > tokens)
        window = tokens;
    return window * tokens - window * window / 2;
}

/* Recomputed attention, as a share of a forward: of causal pairs, those of the first half are a
 * quarter. */
static double forwards_again(const struct tdm_burst *burst, double tokens)
{
    if (burst->whole_layers || burst->checkpoint == TDM_BURST_ALL)
        return 0;
    return burst->checkpoint == TDM_BURST_LATTER_HALF
               ? block_pairs(burst, tokens / 2) / block_pairs(burst, tokens)
               : 1;
}

static void add_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                     struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const struct tdm_burst *burst = &settings->burst;
    double part = (double)tdm_context_local_tokens(&s->context, s->tokens);
    double tokens = part * (double)s->batch, whole = part * (double)s->context.ranks;
    double row = (double)model->query_heads * (double)model->head_dim; /* K and V are repeated */
    double block = tokens * row * 2, sums = tokens * (double)model->query_heads * 4;
    double again = forwards_again(burst, part), shipped = again > 0 && again < 1 ? 0.5 : again;
    /* The 4.5 forwards include one full recomputation, which only happens if nothing is kept. */
    if (!burst->whole_layers)
        cost->attention_flops *= (3.5 + again) / 4.5;
    if (burst->mask != TDM_BURST_CAUSAL && burst->mask != TDM_BURST_STRIPED)
        cost->attention_flops *= block_pairs(burst, part) * (double)s->context.ranks *
                                 (double)s->context.ranks / (whole * whole / 2);
    cost->ring = tdm_ring_of(tdm_torch_all_ranks(s));
    cost->ring.double_ring = !burst->single_ring;
    /* Forward: K and V. Backward: Q, dO, dQ, log-sum-exps, and O or the row sums of dO * O. */
    cost->ring.forward_bytes = 2 * block;
    cost->ring.backward_bytes = 3 * block + sums + (burst->optimized ? sums : block);
    cost->ring_forwards = model->layers * (1 + shipped);
    cost->ring_backwards = model->layers;
    if (burst->offload && s->optimizer != TDM_TORCH_NO_OPTIMIZER)
        cost->host_bytes += 2 * 2 * tdm_torch_trained_parameters(model, s) /
                            (burst->replicated ? 1 : (double)s->ranks);
}

/* Attention itself is part of BurstEngine's model (burst_attention.c). NCCL has communicators for
 * all ranks, for ZeRO, inside a node, between nodes, and for the context. */
const struct tdm_divider tdm_burst_divider = {.communicators = 4, .rings = true, .cost = add_cost};
