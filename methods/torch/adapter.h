/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of peft 0.21: which there are, and the sizes of what they train. */
#ifndef TDM_METHODS_TORCH_ADAPTER_H
#define TDM_METHODS_TORCH_ADAPTER_H

#include "models/model.h"

#include <stdbool.h>
#include <stdint.h>

/* The projections of a layer, in the order in which modules hold them. */
enum tdm_projection {
    TDM_PROJECTION_Q,
    TDM_PROJECTION_K,
    TDM_PROJECTION_V,
    TDM_PROJECTION_Q_A, /* of latent attention, whose q may be projected at once */
    TDM_PROJECTION_Q_B,
    TDM_PROJECTION_KV_A,
    TDM_PROJECTION_KV_B,
    TDM_PROJECTION_O,
    TDM_PROJECTION_QKV, /* in place of the first three */
    TDM_PROJECTION_GATE,
    TDM_PROJECTION_UP,
    TDM_PROJECTION_GATE_UP, /* in place of these two */
    TDM_PROJECTION_DOWN,
    TDM_PROJECTIONS
};

/* In the order of peft_type's names. Those without a rank have lora_rank above 0 all the same. */
enum tdm_adapter {
    TDM_ADAPTER_LORA,
    TDM_ADAPTER_IA3,
    TDM_ADAPTER_VERA,
    TDM_ADAPTER_NORMS,
    TDM_ADAPTER_LOHA,
    TDM_ADAPTER_LOKR,
    TDM_ADAPTER_OFT,
    TDM_ADAPTER_BOFT,
    TDM_ADAPTER_PROMPT,
    TDM_ADAPTER_P_TUNING,
    TDM_ADAPTER_PREFIX,
    TDM_ADAPTERS
};

/* What peft's configs say besides a rank and targets. */
struct tdm_adapter_sizes {
    uint64_t kron_factor; /* LoKr's decompose_factor; 0: near the square root */
    bool kron_both;       /* decompose_both */
    uint64_t oft_block;   /* oft_block_size; 0: lora_rank says the number of blocks */
    bool oft_shared;      /* block_share */
    uint64_t boft_block;  /* boft_block_size */
    uint64_t virtual_tokens;
    uint64_t encoder_hidden; /* encoder_hidden_size; 0: the hidden size, of a prefix that of K */
    bool prefix_projection;
};

struct tdm_torch_settings;

enum tdm_role tdm_projection_role(enum tdm_projection projection); /* of its weight */

/* rows: 0: there is none. */
struct tdm_adapter_matrix {
    uint64_t rows, columns;
};

/* Parameters of an adapter of one projection, in the order in which peft makes them. */
struct tdm_adapter_shape {
    struct tdm_adapter_matrix down, up;               /* LoRA's A and B; of IA3, OFT and BOFT: R */
    struct tdm_adapter_matrix second_down, second_up; /* LoHa's and LoKr's second product */
    struct tdm_adapter_matrix magnitude;              /* DoRA's, or BOFT's scale */
};

/* The adapter of a projection of rows x columns. */
void tdm_adapter_shape(const struct tdm_torch_settings *s, enum tdm_projection p, uint64_t rows,
                       uint64_t columns, struct tdm_adapter_shape *shape);
/* Projections with adapters, a bit each. */
uint32_t tdm_adapter_targets(const struct tdm_torch_settings *s);

/* Is a prompt or a prefix of K and V trained, and no projection adapted? */
bool tdm_adapter_is_prompt(const struct tdm_torch_settings *s);
/* Tokens of a sequence that are a trained prompt. */
uint64_t tdm_adapter_prompt_tokens(const struct tdm_torch_settings *s);

/* Tokens before a sequence of which K and V are trained, in every layer. */
uint64_t tdm_adapter_prefix_tokens(const struct tdm_torch_settings *s);

/* Of a trained prompt: its rows, and weights and biases of three products of p-tuning's encoder, or
 * of two of a prefix's. */
enum { TDM_PROMPT_ROWS, TDM_PROMPT_ENCODER, TDM_PROMPT_WEIGHTS = 7 };
void tdm_adapter_prompt(const struct tdm_model *model, const struct tdm_torch_settings *s,
                        struct tdm_adapter_matrix shapes[TDM_PROMPT_WEIGHTS]);

struct tdm_error;
/* Refuses values of peft_type, lora_rank and oft_block_size that contradict each other, as peft
 * does. Each is what the user set, or NULL. */
enum tdm_status tdm_adapter_check_said(const char *type, const char *rank, const char *oft_block,
                                       struct tdm_error *err);
/* Refuses what is not modelled of an adapter, or what peft refuses. */
enum tdm_status tdm_adapter_check(const struct tdm_model *model, const struct tdm_torch_settings *s,
                                  struct tdm_error *err);

/* Does the expert that every token has get adapters? Not where each module gathers its weights:
 * there that is not modelled. */
bool tdm_adapter_takes_shared(const struct tdm_torch_settings *s);

/* Numbers that are trained, without modules_to_save: all if there is no adapter. */
double tdm_torch_trained_parameters(const struct tdm_model *model,
                                    const struct tdm_torch_settings *s);

/* FLOPs that the products of adapters add to a step of settings->tokens: of the forward, of `again`
 * more of them by checkpoints, and of the backward. What is by elements is not counted. */
double tdm_adapter_flops(const struct tdm_model *model, const struct tdm_torch_settings *s,
                         double again);

#endif
