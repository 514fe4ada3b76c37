/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's ZeRO, stages 2 and 3, around a model of Hugging Face: its settings, and what a model calls while it
 * is made and runs. Rank 0 is the one that is predicted.
 * Sources: DeepSpeed 0.19 runtime/zero/{stage_1_and_2,stage3,partition_parameters,partitioned_param_coordinator,
 * parameter_offload,linear}.py, runtime/comm/coalesced_collectives.py, ops/adam/fused_adam.py.
 */
#ifndef TDM_METHODS_DEEPSPEED_DEEPSPEED_H
#define TDM_METHODS_DEEPSPEED_DEEPSPEED_H

#include "methods/eager/eager.h"

#define TDM_DEEPSPEED_AUTO UINT64_MAX /* "auto": what transformers fills in by the hidden size */

enum tdm_deepspeed_optimizer {
    TDM_DEEPSPEED_ADAM, /* FusedAdam, or DeepSpeedCPUAdam where the optimizer is offloaded */
    TDM_DEEPSPEED_TORCH_ADAMW,
    TDM_DEEPSPEED_TORCH_ADAMW_FUSED,
};

/* Keys of a DeepSpeed config, by their names there. Sizes are in elements. */
struct tdm_deepspeed_settings {
    enum tdm_deepspeed_optimizer optimizer;
    bool overlap_comm, contiguous_gradients, reduce_scatter, check_grad_overflow;
    bool fp32_communication, fp32_accumulation; /* communication_data_type, grad_accum_dtype */
    bool offload_optimizer, offload_param, pin_memory;
    uint64_t reduce_bucket_size, gradient_accumulation_steps;
    uint64_t prefetch_bucket_size, max_live_parameters, max_reuse_distance; /* of stage 3 */
    uint64_t param_persistence_threshold, sub_group_size;
};

/* Modules of a model, which ZeRO-3 hooks: these, and TDM_MODULES_A_LAYER for each layer. */
enum tdm_module {
    TDM_MODULE_WHOLE, /* ...ForCausalLM */
    TDM_MODULE_BASE,  /* its model */
    TDM_MODULE_EMBEDDING,
    TDM_MODULE_ROTARY,
    TDM_MODULE_NORM,
    TDM_MODULE_HEAD,
    TDM_MODULE_FIRST_LAYER = 8,
};
enum tdm_layer_module {
    TDM_MODULE_LAYER,
    TDM_MODULE_ATTENTION,
    TDM_MODULE_MLP,
    TDM_MODULE_ACTIVATION,
    TDM_MODULE_ROLES,        /* that of each role's weight */
    TDM_MODULE_ADAPTED = 32, /* a projection with adapters: the module around all three */
    TDM_MODULE_DOWN = 40,    /* A of each projection */
    TDM_MODULE_UP = 48,      /* B */
    TDM_MODULES_A_LAYER = 64,
};

static inline uint32_t tdm_layer_module(uint32_t layer, uint32_t module)
{
    return TDM_MODULE_FIRST_LAYER + layer * TDM_MODULES_A_LAYER + module;
}

struct tdm_torch_model;
struct tdm_deepspeed;

/* Before the parameters are made; NULL if memory ran out. */
struct tdm_deepspeed *tdm_deepspeed_new(struct tdm_torch_model *t, uint32_t most_parameters);
void tdm_deepspeed_free(struct tdm_deepspeed *d);
/* The newest parameter belongs to that module. */
void tdm_deepspeed_parameter(struct tdm_torch_model *t, uint32_t module);
/* deepspeed.initialize, once all parameters are there. */
void tdm_deepspeed_start(struct tdm_torch_model *t);
/* Are there several backwards before a step? */
bool tdm_deepspeed_accumulates(const struct tdm_torch_model *t);
/* Of the parameters on this rank. */
uint64_t tdm_deepspeed_weight_bytes(const struct tdm_torch_model *t);
/* The optimizer's step, with what goes before and after it. */
void tdm_deepspeed_step(struct tdm_torch_model *t);
void tdm_deepspeed_before_forward(struct tdm_torch_model *t);
/* engine.backward: what follows the backward. */
void tdm_deepspeed_after_backward(struct tdm_torch_model *t);

/* Around a module's forward (ZeRO-3's hooks; otherwise nothing). `x` is its input, or NULL if it has none by position;
 * enter gives a new reference to what the module sees; leave takes `y` and gives what its caller sees. */
struct tdm_eager_value *tdm_module_enter(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *x);
struct tdm_eager_value *tdm_module_leave(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *y);

#endif
