/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A causal language model of Hugging Face transformers, trained by PyTorch: its parameters,
 * forward, loss, backward and optimizer step as operations of eager mode. Sources:
 * transformers/models/{llama,qwen2,qwen3,mistral}/modeling_*.py, loss/loss_utils.py,
 * integrations/sdpa_attention.py, masking_utils.py; peft/tuners/lora/layer.py;
 * torch/optim/{adam,sgd}.py.
 */
#ifndef TDM_METHODS_TORCH_MODEL_H
#define TDM_METHODS_TORCH_MODEL_H

#include "methods/context/context.h"
#include "methods/deepspeed/deepspeed.h"
#include "methods/eager/eager.h"
#include "methods/eager/float8.h"
#include "methods/eager/quantized.h"
#include "methods/torch/adapter.h"
#include "methods/torch/ddp.h"
#include "methods/torch/fsdp.h"
#include "methods/torch/second.h"
#include "methods/torch/tensor.h"
#include "models/model.h"

struct tdm_wrapper;

enum tdm_checkpointing {
    TDM_CHECKPOINTING_OFF,
    TDM_CHECKPOINTING_ON,
    TDM_CHECKPOINTING_REENTRANT,
    TDM_CHECKPOINTING_SELECTIVE, /* attention and every second product are kept */
    TDM_CHECKPOINTING_MODULES,   /* of norms, attention and MLP, each by itself */
};
/* Where layer inputs are until their backward. */
enum tdm_checkpoint_offload {
    TDM_CHECKPOINTS_HERE,
    TDM_CHECKPOINTS_AWAY_ALST, /* in plain host memory, by ArcticTraining's checkpoints: a backward
                                  inside the backward */
    TDM_CHECKPOINTS_AWAY,      /* in pinned host memory, by the system's own checkpoints */
};
enum tdm_compile { TDM_COMPILE_NO, TDM_COMPILE_LAYERS, TDM_COMPILE_ALL };
enum tdm_torch_attention {
    TDM_TORCH_SDPA,
    TDM_TORCH_SDPA_FLASH,
    TDM_TORCH_EAGER,
    TDM_TORCH_EFFICIENT,    /* the memory-efficient kernel */
    TDM_TORCH_MATERIALIZED, /* synonym of eager */
    TDM_TORCH_FLASH,        /* flash_attn: as sdpa-flash, but its kernel is given the window */
    TDM_TORCH_MATH,         /* no key: torch's operations, where no kernel takes the heads */
};
enum tdm_torch_optimizer {
    TDM_TORCH_NO_OPTIMIZER,
    TDM_TORCH_ADAMW_FUSED,
    TDM_TORCH_ADAMW_FOREACH,
    TDM_TORCH_SGD,
    TDM_TORCH_SGD_MOMENTUM,
    TDM_TORCH_ADAMW_8BIT, /* from here on bitsandbytes' */
    TDM_TORCH_PAGED_ADAMW_8BIT,
    TDM_TORCH_PAGED_ADAMW_32BIT,
    TDM_TORCH_LION_8BIT,
    TDM_TORCH_LION_32BIT,
    TDM_TORCH_ADAMW_4BIT,    /* of torchao */
    TDM_TORCH_ADAMW_FP8,     /* the same */
    TDM_TORCH_AO_ADAMW_8BIT, /* the same */
    TDM_TORCH_ADAFACTOR,     /* of transformers */
    TDM_TORCH_MUON,          /* of torch; what is no matrix of a layer has AdamW (foreach) */
    TDM_TORCH_ADAM_MINI,     /* of the package of that name */
    TDM_TORCH_GALORE,        /* GaLoreAdamW of galore_torch, for all matrices of layers */
    TDM_TORCH_GALORE_8BIT,   /* GaLoreAdamW8bit */
};
enum tdm_torch_logits {
    TDM_LOGITS_HF, /* the loss of transformers; its output object is dropped before the backward */
    TDM_LOGITS_HF_HELD, /* the output object, with the logits, is held until the next step replaces
                           it */
    TDM_LOGITS_BASE,    /* no LM head: the mean of the last hidden states */
    TDM_LOGITS_LAST,    /* the mean of the logits of each sequence's last token */
    TDM_LOGITS_BF16,    /* cross entropy of bf16 logits, without an fp32 copy */
    TDM_LOGITS_CHUNKED, /* logits and loss of some tokens at a time, recomputed in the backward
                           (TRL) */
    TDM_LOGITS_FUSED,   /* gradients computed in the forward, chunk by chunk (Liger) */
    TDM_LOGITS_SCORE,   /* a head of num_labels outputs in place of the LM head, read at each
                           sequence's last token: sequence classification, reward models */
    TDM_LOGITS_CUT,     /* cut cross-entropy: no logits in memory */
    TDM_LOGITS_PARTS, /* logits and loss of an eighth of the tokens at a time, whose log-softmax is
                         kept (torchtune) */
    TDM_LOGITS_IN_PLACE,  /* the loss of some tokens at a time, whose gradient takes the place of
                             their logits (ms-swift) */
    TDM_LOGITS_BF16_HELD, /* as TDM_LOGITS_BF16, and the logits are held until the next ones are
                             made, as in a plain loop */
    TDM_LOGITS_FP32_HELD, /* the output is fp32 and held as TDM_LOGITS_HF_HELD's is; labels are
                             shifted by the data (torchtitan to June 2024, prime-rl) */
};

/* What torchao's CPUOffloadOptimizer has in host memory: states, or gradients too. */
enum tdm_host_optimizer { TDM_HOST_NOTHING, TDM_HOST_STATES, TDM_HOST_GRADIENTS };

/* Whose code the model is. */
enum tdm_model_code {
    TDM_CODE_TRANSFORMERS,
    TDM_CODE_LITGPT,
    TDM_CODE_LIT_GPT, /* LitGPT of 2023, whose RMSNorms are in the dtype of their input */
};

/* What the loss of transformers does with logits, by its version. */
enum tdm_torch_loss {
    TDM_LOSS_PADDED,  /* since 4.49: labels are shifted, logits are not */
    TDM_LOSS_SHIFTED, /* 4.46 to 4.48: all but the last token's logits are copied in fp32 */
    TDM_LOSS_WIDE,    /* to 4.45: the same, and the logits of the output are fp32 */
};

enum tdm_torch_grads {
    TDM_GRADS_NONE, /* freed after every step */
    TDM_GRADS_HELD,
    TDM_GRADS_UNSAID, /* default: held if there is no optimizer */
};

/* Modules of which peft trains a copy beside adapters. */
enum tdm_saved_module { TDM_SAVED_EMBEDDING = 1, TDM_SAVED_HEAD = 2 };

const char *tdm_projection_name(enum tdm_projection projection); /* "q_proj" */

/* Liger's kernels in layers. */
enum tdm_liger { TDM_LIGER_NORMS = 1, TDM_LIGER_MLP = 2, TDM_LIGER_ROPE = 4, TDM_LIGER_ALL = 7 };

/* Its versions by what they do: later ones as 0.8; 0.5.3 to 0.6.0; all before 0.5. */
enum tdm_liger_version { TDM_LIGER_NOW, TDM_LIGER_0_7_0, TDM_LIGER_0_6_0, TDM_LIGER_0_4_2 };

/* Releases of torch that keep, or make, more than today's. */
enum tdm_torch_release { TDM_RELEASE_NOW, TDM_RELEASE_2_1, TDM_RELEASE_2_0 };

/* Functions that are an adapter and its product at once. */
enum tdm_lora_kernels { TDM_LORA_KERNELS_NONE, TDM_LORA_KERNELS_UNSLOTH };

struct tdm_torch_settings {
    uint64_t tokens, batch;
    enum tdm_checkpointing checkpointing;
    uint64_t checkpoint_every; /* every so many layers, the last one is checkpointed; 0: as 1 */
    enum tdm_torch_attention attention;
    bool flash_package; /* its kernel is given windows, for which no mask is made; set by attention
                         */
    enum tdm_torch_optimizer optimizer;
    enum tdm_host_optimizer host_optimizer;
    bool steps_in_backward; /* each parameter by itself, once it has its gradient */
    enum tdm_model_code code;
    enum tdm_torch_release release;
    enum tdm_torch_logits logits;
    enum tdm_torch_loss loss; /* of TDM_LOGITS_HF and TDM_LOGITS_HF_HELD */
    bool expert_modules;      /* experts are modules of their own, as before transformers 5 */
    enum tdm_torch_grads grads;
    /* Whether the forward runs under autocast to bf16. */
    enum tdm_autocast { TDM_AUTOCAST_WEIGHTS, TDM_AUTOCAST_BF16, TDM_AUTOCAST_NO } autocast;
    bool fp32_weights; /* the forward then runs under bf16 autocast; false: all values are bf16 */
    bool drops_loss; /* nothing refers to the loss after its backward; false: until the next one */
    bool use_cache;
    uint64_t lora_rank;                /* 0: all parameters are trained */
    uint32_t lora_targets;             /* one bit for each projection */
    const struct tdm_wrapper *wrapper; /* how ranks share the work; never NULL */
    uint64_t ranks;
    uint64_t gpus_of_a_node; /* GPUs that share host memory, as --nodes says; 0: not said */
    bool empty_cache;        /* torch.cuda.empty_cache() before the first step */
    enum tdm_quantization quantization; /* of frozen projections */
    bool whole_base;                    /* that they are not quantized was said */
    bool double_quantization;           /* of nf4 */
    uint64_t quantized_group;           /* of gptq and awq */
    uint32_t quantized_bits;            /* of gptq: 2, 4 or 8 */
    enum tdm_float8 float8; /* products of projections of layers, torchao's Float8Linear */
    bool bnb_keeps_inputs;  /* of nf4 */
    bool gptq_triton;       /* its kernel keeps no weights in 16 bits */
    enum tdm_lora_kernels lora_kernels;
    double lora_dropout;      /* of the input of an adapter; 0: none */
    double attention_dropout; /* of scores in memory, beside what the model has; 0: none */
    uint32_t modules_to_save; /* bits of enum tdm_saved_module */
    bool rank_stabilised;     /* LoRA scaled by the root of its rank: the same memory */
    enum tdm_adapter adapter;
    struct tdm_adapter_sizes adapter_sizes;
    bool dora;                  /* LoRA with a magnitude for each output: use_dora of peft */
    uint64_t accumulation;      /* backwards before a step; 0: as 1, or the wrapper's own */
    bool clips;                 /* norms of gradients are clipped before a step */
    uint64_t labels;            /* of TDM_LOGITS_SCORE: num_labels */
    uint64_t galore_rank;       /* of TDM_TORCH_GALORE */
    bool narrow_adapters;       /* bf16 among weights of fp32; read by tdm_torch_is_narrow() */
    bool peft;                  /* LoRA of the peft library: fp32 adapters, dropout as a module */
    uint64_t loss_chunk_tokens; /* of TDM_LOGITS_CHUNKED */
    uint64_t image_tokens;      /* of a sequence, whose rows a vision tower makes */
    uint32_t liger;             /* bits of enum tdm_liger */
    enum tdm_liger_version liger_version;
    enum tdm_compile compile;
    bool checkpoint_wrapper;  /* checkpoints are compiled with their layers */
    bool shifted;             /* LongLoRA's attention */
    bool trained_norms;       /* with LoRA, norms and the embedding are also trained */
    uint32_t groups;          /* of LongLoRA: a sequence has 2 << groups of them */
    bool full_attention;      /* of LongLoRA: without groups */
    bool materialized_groups; /* of LongLoRA: scores of groups in memory, without FlashAttention */
    bool supervised;          /* of LongLoRA: its program for supervised fine-tuning */
    struct tdm_ddp_settings ddp;
    struct tdm_fsdp_settings fsdp;
    struct tdm_tensor_settings tensor; /* of fsdp */
    struct tdm_deepspeed_settings deepspeed;
    enum tdm_checkpoint_offload checkpoint_offload;
    uint64_t mlp_tiles, logits_tiles; /* 0: not tiled; TDM_AUTO */
    struct tdm_second_settings second;
    bool frozen;                 /* nothing is trained: a second model */
    struct tdm_eager_value *ids; /* of a second model: those of the first; NULL: its own */
    struct tdm_context
        context; /* the sequence of which `tokens` are a rank's part, and its attention */
};

/* Is the loss that of transformers, over logits of all tokens at once? */
bool tdm_torch_has_own_loss(const struct tdm_torch_settings *settings);

/* The most tokens of a GPU's step on which Liger's norms and rotations run. To 0.6.0 the place of a
 * row is its number times its elements in 32 bits (ops/rms_norm.py, ops/rope.py; 64 bits since
 * b27b4c5f). UINT64_MAX: they have no limit, or are not used. */
uint64_t tdm_liger_most_tokens(const struct tdm_model *config,
                               const struct tdm_torch_settings *settings);

struct tdm_torch_model;

/* Makes the model on the GPU as from_config(...).to("cuda") does, and the token ids. Borrows all
 * three inputs; the caller owns *model. */
enum tdm_status tdm_torch_model_create(struct tdm_eager *m, const struct tdm_model *config,
                                       const struct tdm_torch_settings *settings,
                                       struct tdm_torch_model **model, struct tdm_error *err);
void tdm_torch_model_free(struct tdm_torch_model *model);

/* Forward and loss; backward. The model keeps the loss until the next forward is done, as a
 * training loop does that rebinds its name `loss`. */
void tdm_torch_forward(struct tdm_torch_model *model);
void tdm_torch_backward(struct tdm_torch_model *model);
/* clip_grad_norm_ of all gradients. */
void tdm_torch_clip(struct tdm_torch_model *model);
/* optimizer.step(), then zero_grad(set_to_none=True) unless gradients are held. */
void tdm_torch_optimizer_step(struct tdm_torch_model *model);
/* For gradient_ready of an engine: steps the parameter and frees its gradient. `model` is a struct
 * tdm_torch_model. */
void tdm_torch_step_ready(void *model, struct tdm_eager_value *leaf);
void tdm_torch_zero_grad(struct tdm_torch_model *model);

/* Experts of a layer that are modules of their own, without the shared one (experts_each.c). 0:
 * they are joined, or it is not modelled. */
uint32_t tdm_torch_expert_modules(const struct tdm_model *model,
                                  const struct tdm_torch_settings *s);

/* Weights of all projections and experts that are modules, which quantization is of. */
double tdm_torch_projection_elements(const struct tdm_model *model,
                                     const struct tdm_torch_settings *s);
/* Parameters that are gathered from shards, in elements of bf16: four quantized weights are one. */
double tdm_torch_gathered_elements(const struct tdm_model *model,
                                   const struct tdm_torch_settings *s);

/* Bytes of all parameters, without rounding. */
uint64_t tdm_torch_weight_bytes(const struct tdm_torch_model *model);

/* Are the weights of a vision tower counted? They are where each GPU has the whole model in bf16 or
 * fp32. */
bool tdm_torch_counts_vision(const struct tdm_torch_settings *settings,
                             const struct tdm_model *model);

#endif
