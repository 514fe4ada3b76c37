/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of Megatron-LM share. Not for use outside methods/megatron/. */
#ifndef TDM_METHODS_MEGATRON_PARTS_H
#define TDM_METHODS_MEGATRON_PARTS_H

#include "methods/eager/dtypes.h"
#include "methods/eager/eager.h"
#include "methods/megatron/megatron.h"
#include "methods/method.h"

/* LoRA's: A and B; NULL: none. */
struct megatron_adapter {
    struct tdm_eager_value *in, *out;
    bool regathers; /* its part of the input is gathered again in the backward */
};

enum megatron_target { ADAPTED_PROJECTION, ADAPTED_QKV, ADAPTED_FC1, ADAPTED_FC2, ADAPTED_MODULES };

struct megatron_layer {
    struct tdm_eager_value *qkv_norm, *qkv_norm_bias, *qkv, *qkv_bias;
    struct tdm_eager_value *q_norm, *k_norm, *projection, *projection_bias;
    struct tdm_eager_value *mlp_norm, *mlp_norm_bias, *fc1, *fc1_bias, *fc2, *fc2_bias;
    struct megatron_adapter adapters[ADAPTED_MODULES];
};

struct megatron_parameter {
    struct tdm_eager_value **place; /* where the module has it */
    uint64_t rows, columns;
    bool shared; /* embedding and head of one pipeline */
    struct tdm_eager_value
        *states[3]; /* main parameter and two moments of what this rank steps, or NULL */
    uint64_t own;   /* elements that this rank steps */
};

/* Layers that are run one after the other, and their buffers. */
struct megatron_chunk {
    bool first, last; /* it has the embedding; the head and the loss */
    struct megatron_layer *layers;
    struct tdm_eager_value *embedding, *positions, *final_norm, *final_norm_bias, *head;
    struct megatron_parameter *parameters;       /* in the order of modules */
    uint32_t parameter_count, first_trained;     /* those before it are frozen */
    struct tdm_eager_value *weights, *gradients; /* contiguous buffers; weights: or NULL */
    struct tdm_eager_value **inputs, **outputs;  /* of micro-batches that await their backward */
    struct tdm_eager_value *held; /* the last input it was given, with its gradient */
};

struct megatron_action {
    bool backward;
    uint32_t chunk, microbatch;
};

#define MOST_DUMMIES 8u

struct tdm_megatron {
    struct tdm_eager *m;
    const struct tdm_model *config;
    struct tdm_megatron_settings set;
    struct tdm_megatron_layout layout;
    bool flash;    /* FlashAttention-2 in place of cuDNN's kernel */
    bool old_card; /* before Hopper */
    uint64_t batch, tokens;
    /* Of this rank: tokens of a micro-batch where they are whole and where sequence parallelism
     * divides them; heads, width of the MLP, rows of the embedding. */
    uint64_t rows, part_rows, heads, groups, width, vocabulary;
    uint64_t context_rank, data_rank;
    uint64_t lora_rank; /* 0: all is trained */
    uint32_t lora_targets;
    bool sequence_parallel, tied, tied_here; /* in this stage */
    struct megatron_chunk *chunks;
    struct megatron_action *actions;
    uint32_t action_count, next_action, microbatches;
    const struct megatron_action *unsent; /* whose output still has its memory */
    /* Of Transformer Engine and Megatron, made once and kept: workspace of products, stand-ins for
     * weight gradients that went to the buffer, what the head gathers, angles of the rotary
     * embedding. */
    struct tdm_eager_value *workspace, *dummies[MOST_DUMMIES], *gather_buffer, *angles;
    uint32_t dummy_count;
    struct tdm_eager_value *tokens_in, *labels, *mask; /* of the micro-batch that runs */
    struct tdm_eager_value *input_gradient, *output_gradient, *next_input; /* of the schedule */
    struct tdm_eager_value
        *finished_input; /* of the graph that the variable of the last output still refers to */
    bool states_made;
};

/* ---- values that a function makes and drops at its end ---- */

struct megatron_kept {
    struct tdm_eager_value **values;
    uint32_t count, room;
};

struct tdm_eager_value *megatron_keep(struct tdm_eager *m, struct megatron_kept *kept,
                                      struct tdm_eager_value *value);
void megatron_drop_all(struct tdm_eager *m, struct megatron_kept *kept);

/* ---- operations (ops.c); inputs are borrowed, results new references ---- */

struct tdm_eager_value *megatron_norm_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                             struct tdm_eager_value *norm,
                                             struct tdm_eager_value *norm_bias,
                                             struct tdm_eager_value *weight,
                                             struct tdm_eager_value *bias,
                                             const struct megatron_adapter *adapter);
struct tdm_eager_value *megatron_row_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                            struct tdm_eager_value *weight,
                                            const struct megatron_adapter *adapter);
struct tdm_eager_value *megatron_norm(struct tdm_megatron *t, struct tdm_eager_value *x,
                                      struct tdm_eager_value *norm,
                                      struct tdm_eager_value *norm_bias);
/* SwiGLU of both halves, or GELU with the bias of the product before; one kernel. */
struct tdm_eager_value *megatron_activation(struct tdm_megatron *t, struct tdm_eager_value *x,
                                            struct tdm_eager_value *bias);
/* residual + dropout(x + bias); one kernel. */
struct tdm_eager_value *megatron_add(struct tdm_megatron *t, struct tdm_eager_value *x,
                                     struct tdm_eager_value *bias,
                                     struct tdm_eager_value *residual);
struct tdm_eager_value *megatron_dropout(struct tdm_megatron *t, struct tdm_eager_value *x);
/* This rank's rows, of a sum over the tensor-parallel ranks or not; their gradients are
 * gathered. */
struct tdm_eager_value *megatron_scatter(struct tdm_megatron *t, struct tdm_eager_value *x);
/* Batch and tokens change places in memory. */
struct tdm_eager_value *megatron_copy(struct tdm_megatron *t, struct tdm_eager_value *x);
/* The stand-in for the gradient of a weight. */
struct tdm_eager_value *megatron_dummy(struct tdm_megatron *t, uint64_t rows, uint64_t columns);

/* The value is the result of the node (NULL: of none), whose context is t. */
struct tdm_eager_value *megatron_finish(struct tdm_megatron *t, struct tdm_node *node,
                                        struct tdm_eager_value *value);
/* The workspace of products, made by the first. */
void megatron_product(struct tdm_megatron *t);
/* Gradients of a norm: dx, which is returned, and of its weights; partial sums of every
 * multiprocessor. */
struct tdm_eager_value *megatron_norm_gradients(struct tdm_megatron *t, const struct tdm_node *node,
                                                const struct tdm_eager_value *x,
                                                struct tdm_eager_value **results);

/* ---- the same with frozen weights, and an adapter or none (lora.c) ---- */

struct tdm_eager_value *
megatron_frozen_norm_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                            struct tdm_eager_value *norm, struct tdm_eager_value *norm_bias,
                            struct tdm_eager_value *weight, struct tdm_eager_value *bias,
                            const struct megatron_adapter *adapter);
struct tdm_eager_value *megatron_frozen_row_linear(struct tdm_megatron *t,
                                                   struct tdm_eager_value *x,
                                                   struct tdm_eager_value *weight,
                                                   const struct megatron_adapter *adapter);
struct tdm_eager_value *megatron_frozen_head(struct tdm_megatron *t, struct tdm_eager_value *x);

/* ---- attention (attention.c, context.c) ---- */

/* From the joint product of q, k, v to the output of all heads; `recompute`: core attention is run
 * again. */
struct tdm_eager_value *megatron_attention(struct tdm_megatron *t,
                                           const struct megatron_layer *layer,
                                           struct tdm_eager_value *mixed,
                                           struct megatron_kept *kept);
/* How context ranks divide attention: a row for each value of cp_comm_type. */
struct megatron_divider {
    bool exchanges; /* ranks change tokens for heads and back */
    bool rings;     /* keys and values go round; neither: all of them are gathered */
    /* values are q, k and v, then what is made of them; gradients are theirs. */
    void (*forward)(struct tdm_megatron *t, struct tdm_eager_value **values);
    void (*backward)(struct tdm_megatron *t, struct tdm_eager_value *const *values,
                     struct tdm_eager_value **gradients);
};
extern const struct megatron_divider megatron_dividers[]; /* by enum tdm_megatron_exchange */

/* Transformer Engine's attention with context parallelism of the settings' kind. */
struct tdm_eager_value *megatron_context_attention(struct tdm_megatron *t,
                                                   struct tdm_eager_value *q,
                                                   struct tdm_eager_value *k,
                                                   struct tdm_eager_value *v);
/* One call of the kernel: so many tokens of queries and of keys of each sequence, so many heads.
 * The forward gives output and log-sum-exps; the backward dQ, dK, dV. */
struct megatron_kernel {
    uint64_t queries, keys, heads, groups;
};
void megatron_kernel_forward(struct tdm_megatron *t, const struct megatron_kernel *kernel,
                             struct tdm_eager_value **output, struct tdm_eager_value **sums);
void megatron_kernel_backward(struct tdm_megatron *t, const struct megatron_kernel *kernel,
                              struct tdm_eager_value *grads[3]);
/* What cuDNN's forward takes for a moment after its results. */
void megatron_kernel_seed(struct tdm_megatron *t);

/* ---- head and loss (loss.c) ---- */

/* The buffer into which rows of tensor-parallel ranks are gathered, made once. */
void megatron_gather(struct tdm_megatron *t);
struct tdm_eager_value *megatron_head_loss(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                           struct tdm_eager_value *hidden);

/* ---- layers (layers.c) ---- */

enum megatron_region { REGION_LAYERS, REGION_MLP, REGION_CORE };

/* Runs a region again in the backward: layers first .. first + count - 1 of a chunk, the MLP of
 * one, or core attention (inputs q, k, v). */
struct tdm_eager_value *megatron_checkpoint(struct tdm_megatron *t, enum megatron_region region,
                                            uint32_t chunk, uint32_t first, uint32_t count,
                                            struct tdm_eager_value *const *inputs,
                                            uint32_t input_count);
struct tdm_eager_value *megatron_run_region(struct tdm_megatron *t, enum megatron_region region,
                                            uint32_t chunk, uint32_t first, uint32_t count,
                                            struct tdm_eager_value *const *inputs);
struct tdm_eager_value *megatron_core(struct tdm_megatron *t, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v);
/* Through the layers of a chunk; `x` is taken. */
struct tdm_eager_value *megatron_run_chunk(struct tdm_megatron *t, uint32_t chunk,
                                           struct tdm_eager_value *x);

/* ---- parameters, buffers, optimizer (buffers.c) ---- */

enum tdm_status megatron_make_chunk(struct tdm_megatron *t, uint32_t number, struct tdm_error *err);
void megatron_make_buffers(struct tdm_megatron *t, struct megatron_chunk *chunk);
void megatron_make_main_parameters(struct tdm_megatron *t, struct megatron_chunk *chunk);
void megatron_optimizer_step(struct tdm_megatron *t);

/* ---- micro-batches (schedule.c) ---- */

enum tdm_status megatron_make_schedule(struct tdm_megatron *t, struct tdm_error *err);
/* Up to the first backward; the rest of a step. */
void megatron_warm_up(struct tdm_megatron *t);
void megatron_finish_step(struct tdm_megatron *t);

#endif
