/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's ZeRO, stages 1 to 3, around a Hugging Face model: its settings and its wrappers.
 * The prediction is for rank 0.
 * Sources: DeepSpeed 0.19
 * runtime/zero/{stage_1_and_2,stage3,partition_parameters,partitioned_param_coordinator,
 * parameter_offload,linear}.py, runtime/comm/coalesced_collectives.py, ops/adam/fused_adam.py,
 * csrc/quantization, runtime/swap_tensor, moe.
 */
#ifndef TDM_METHODS_DEEPSPEED_DEEPSPEED_H
#define TDM_METHODS_DEEPSPEED_DEEPSPEED_H

#include <stdbool.h>
#include <stdint.h>

struct tdm_wrapper;

enum tdm_deepspeed_optimizer {
    TDM_DEEPSPEED_ADAM, /* FusedAdam; DeepSpeedCPUAdam if the optimizer is offloaded */
    TDM_DEEPSPEED_TORCH_ADAMW,
    TDM_DEEPSPEED_TORCH_ADAMW_FUSED,
    TDM_DEEPSPEED_ADAMW_8BIT, /* of bitsandbytes, on the partitions */
    TDM_DEEPSPEED_PAGED_ADAMW_8BIT,
    TDM_DEEPSPEED_PAGED_ADAMW_32BIT,
    TDM_DEEPSPEED_LION_8BIT,
    TDM_DEEPSPEED_LION_32BIT, /* the last of bitsandbytes */
    TDM_DEEPSPEED_LION,       /* FusedLion; DeepSpeedCPULion if it is offloaded */
    TDM_DEEPSPEED_SGD,        /* of torch */
    TDM_DEEPSPEED_SGD_MOMENTUM,
    TDM_DEEPSPEED_ADAFACTOR, /* of transformers */
};

/* Where optimizer states and partitions of parameters are. */
enum tdm_deepspeed_offload { TDM_OFFLOAD_NONE, TDM_OFFLOAD_CPU, TDM_OFFLOAD_NVME };

/* Keys of a DeepSpeed config, with their names there. Sizes are in elements. */
struct tdm_deepspeed_settings {
    enum tdm_deepspeed_optimizer optimizer;
    bool overlap_comm, contiguous_gradients, reduce_scatter, check_grad_overflow;
    bool fp32_communication, fp32_accumulation; /* communication_data_type, grad_accum_dtype */
    enum tdm_deepspeed_offload offload_optimizer, offload_param;
    bool pin_memory;
    bool early_buckets;              /* of stages 1 and 2: there before the backward */
    bool forgets_owners;             /* of stage 3: no module holds what its backward ran again */
    uint64_t optimizer_buffer_count; /* swap buffers of offload_optimizer=nvme */
    uint64_t param_buffer_count, param_buffer_size, max_in_cpu; /* of offload_param=nvme */
    uint64_t reduce_bucket_size, gradient_accumulation_steps;
    uint64_t prefetch_bucket_size, max_live_parameters, max_reuse_distance; /* of stage 3 */
    uint64_t param_persistence_threshold, sub_group_size;
    /* ZeRO++ on stage 3. */
    uint64_t hpz_partition_size; /* GPUs that share a second copy of the parameters; 0, 1: none */
    bool quantized_weights, quantized_gradients;
    /* deepspeed.moe on stages 1 and 2. */
    uint64_t ep_size; /* GPUs that share a copy of the experts; 0: the model's own block */
    double capacity_factor;
    uint64_t min_capacity;
    bool drop_tokens, use_residual;
};

/* The methods (method.c). */
extern const struct tdm_wrapper tdm_deepspeed_zero1_wrapper, tdm_zero2_wrapper, tdm_zero3_wrapper,
    tdm_zero3_offload_wrapper, tdm_alst_wrapper, tdm_fpdt_wrapper;

#endif
