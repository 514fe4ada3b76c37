/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of chunk-recurrent training and of LongLoRA, with the keys of torch that apply to them. */
#include "methods/method.h"

#include "base/units.h"

#include <string.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, name)
#define RANK_MOST 65536u

static enum tdm_status read_budget(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    settings->chunk.budget = 0;
    return strcmp(value, "dense") == 0 ? TDM_OK : tdm_key_read_tokens(key, value, settings, err);
}

static enum tdm_status read_window(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    settings->chunk.window = strcmp(value, "model") == 0 ? TDM_AUTO : 0;
    if (settings->chunk.window > 0 || strcmp(value, "none") == 0)
        return TDM_OK;
    return tdm_key_read_tokens(key, value, settings, err);
}

/* Keys that all three methods have. */
#define OPTIMIZER(assumed)                                                            \
    {                                                                                 \
        "optimizer", "none|adamw-fused|adamw-foreach|sgd|sgd-momentum", assumed,      \
            "torch.optim, states in the dtype of the weights; none: no step is made", \
            tdm_key_read_choice, FIELD(torch.optimizer)                               \
    }
#define ALLOCATOR_CONF                                                                         \
    {                                                                                          \
        "allocator_conf", "default|expandable_segments:True", "default", "PYTORCH_ALLOC_CONF", \
            tdm_key_read_switch, FIELD(expandable_segments)                                    \
    }
#define GRADS                                                                                     \
    {                                                                                             \
        "grads", "none|held", NULL,                                                               \
            "gradients at the start of a step: freed after every step, or kept and added to",     \
            tdm_key_read_choice, FIELD(torch.grads), .settled = tdm_key_settled_grads, .needs = { \
                &tdm_need_later_steps                                                             \
            }                                                                                     \
    }
#define LORA_RANK(assumed)                                                                  \
    {                                                                                       \
        "lora_rank", "N", assumed, "adapters of that rank; 0: no LoRA", tdm_key_read_count, \
            FIELD(torch.lora_rank), .most = RANK_MOST                                       \
    }
#define LORA_TARGETS(assumed)                                                                   \
    {                                                                                           \
        "lora_targets", "all|q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", assumed, \
            "projections with adapters", .read = tdm_key_read_targets, .needs = {               \
                &tdm_need_lora                                                                  \
            }                                                                                   \
    }
#define LORA(assumed)                                                                \
    {                                                                                \
        "lora", "bf16|peft", assumed,                                                \
            "adapters in the dtype of the weights, or by the peft library: in fp32", \
            tdm_key_read_switch, FIELD(torch.peft), .needs = {                       \
                &tdm_need_lora                                                       \
            }                                                                        \
    }
#define STEP                                                                            \
    {                                                                                   \
        "step", "1|2|3|all", "all", "the step to predict; later steps equal the third", \
            .read = tdm_key_read_step                                                   \
    }

const struct tdm_method_key tdm_keys_oomb[] = {
    {"chunk", "N", "4K", "block_size: tokens of a chunk", tdm_key_read_tokens, FIELD(chunk.tokens)},
    {"budget", "dense|N", "dense",
     "page_budget pages, in tokens, that a page of queries reads beside its chunk", read_budget,
     FIELD(chunk.budget)},
    {"local_attention", "none|model|N", "none",
     "layers that read their latest pages only: those with a window in the model, or all, N tokens",
     read_window, FIELD(chunk.window)},
    {"layer_checkpoint", "yes|no", "yes", "grad_ckpt: of a chunk only layer inputs are kept",
     .read = tdm_key_read_refusal, FIELD(chunk.checkpoint)},
    {"kv_offload", "no|yes", "no",
     "cpu_offload: 2; pages of layers that do not run lie in pinned host memory",
     tdm_key_read_switch, FIELD(chunk.offload)},
    {"kv_grad_dtype", "fp32|bf16", "bf16", "of K and V; fp32 with Triton before 3.4",
     tdm_key_read_switch, FIELD(chunk.bf16_grads)},
    {"page", "N", "128", "page_size: tokens of a page", tdm_key_read_tokens,
     FIELD(chunk.page_tokens)},
    OPTIMIZER("adamw-fused"),
    ALLOCATOR_CONF,
    GRADS,
    LORA_RANK("0"),
    LORA_TARGETS("q_proj,v_proj,gate_proj,up_proj"),
    LORA("peft"),
    STEP,
    {.name = NULL},
};

const struct tdm_method_key tdm_keys_seco[] = {
    {"chunk", "N", "4K", "chunk-size: tokens of a chunk", tdm_key_read_tokens, FIELD(chunk.tokens)},
    OPTIMIZER("adamw-fused"),
    ALLOCATOR_CONF,
    GRADS,
    LORA_RANK("0"),
    LORA_TARGETS("q_proj,v_proj"),
    LORA("peft"),
    STEP,
    {.name = NULL},
};

static bool has_groups(const struct tdm_key_case *c)
{
    return !c->settings->torch.full_attention || c->settings->torch.materialized_groups;
}

static bool has_flash(const struct tdm_key_case *c)
{
    return !c->settings->torch.materialized_groups;
}

static const struct tdm_key_need needs_flash = {"with use_flash_attn=no", has_flash};
static const struct tdm_key_need needs_groups = {"with use_full_attn=yes", has_groups};

const struct tdm_method_key tdm_keys_longlora[] = {
    {"group_size_ratio", "1/2|1/4|1/8", "1/4", "tokens of a group, as a fraction of all",
     tdm_key_read_choice, FIELD(torch.groups), .needs = {&needs_groups}},
    {"use_flash_attn", "yes|no", "yes", "no: scores of groups in memory", tdm_key_read_switch,
     FIELD(torch.materialized_groups)},
    {"use_full_attn", "no|yes", "no", "attention to all tokens, without groups",
     tdm_key_read_switch, FIELD(torch.full_attention), .needs = {&needs_flash}},
    {"program", "fine-tune|supervised-fine-tune", "fine-tune",
     "supervised: groups of 8,192 tokens where 4,096 do not divide the context",
     tdm_key_read_switch, FIELD(torch.supervised), .needs = {&needs_groups}},
    {"trainable_params", "none|embed,norm", "embed,norm", "trained beside the adapters",
     tdm_key_read_switch, FIELD(torch.trained_norms), .needs = {&tdm_need_lora}},
    LORA_RANK("8"),
    LORA_TARGETS("q_proj,k_proj,v_proj,o_proj"),
    LORA("peft"),
    {"checkpointing", "off|on|on-reentrant", "on-reentrant",
     "gradient checkpointing of every layer; on: use_reentrant=False", tdm_key_read_choice,
     FIELD(torch.checkpointing)},
    OPTIMIZER("adamw-foreach"),
    {"logits", "hf|hf-held|base|last|bf16|chunked|fused", "hf", "loss, as for method parallel",
     tdm_key_read_choice, FIELD(torch.logits)},
    {"logits_chunk", "N", "256", "tokens of a chunk of logits=chunked", tdm_key_read_tokens,
     FIELD(torch.loss_chunk_tokens), .needs = {&tdm_need_chunked_logits}},
    ALLOCATOR_CONF,
    GRADS,
    STEP,
    {.name = NULL},
};
