/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of Megatron-LM share. Not for use outside methods/megatron/. */
#ifndef TDM_METHODS_MEGATRON_PARTS_H
#define TDM_METHODS_MEGATRON_PARTS_H

#include "methods/eager/dtypes.h"
#include "methods/eager/eager.h"
#include "methods/eager/te_float8.h"
#include "methods/megatron/megatron.h"
#include "methods/method.h"
#include "methods/torch/mamba.h"

/* LoRA's A and B; NULL: the module has no adapter. */
struct megatron_adapter {
    struct tdm_eager_value *in, *out;
    bool regathers; /* the input's part is gathered again in the backward */
};

enum megatron_target { ADAPTED_PROJECTION, ADAPTED_QKV, ADAPTED_FC1, ADAPTED_FC2, ADAPTED_MODULES };

struct megatron_layer {
    struct tdm_eager_value *qkv_norm, *qkv_norm_bias, *qkv, *qkv_bias;
    struct tdm_eager_value *q_norm, *k_norm, *projection, *projection_bias;
    struct tdm_eager_value *post_attention_norm, *post_mlp_norm; /* of what is added, or NULL */
    struct tdm_eager_value *mlp_norm, *mlp_norm_bias, *fc1, *fc1_bias, *fc2, *fc2_bias;
    /* Latent attention, whose norms are q_norm and k_norm; without q_latent, qkv makes q alone. */
    struct tdm_eager_value *q_latent, *q_from_latent, *kv_latent, *kv_from_latent;
    /* A mixture: fc1 and fc2 of this rank's experts in turn, and of the shared ones as one. */
    struct tdm_eager_value *router, **experts, *shared_fc1, *shared_fc2;
    uint64_t local_experts;
    struct tdm_eager_value *mamba[MAMBA_WEIGHTS]; /* of Mamba-2, whose norm is qkv_norm; or NULL */
    bool float8;                                  /* its products are of 8 bits */
    struct megatron_adapter adapters[ADAPTED_MODULES];
};

/* A weight of products of 8 bits: what they read, and whether they save their input as it is. */
struct megatron_cast {
    struct tdm_te_tensor tensor;
    bool keeps_input;
};

/* Parameters that divide their GPUs in another way, or have 8 bits, have buffers of their own. */
enum megatron_buffer { BUFFER_OTHERS, BUFFER_EXPERTS, BUFFER_FLOAT8, BUFFERS };

struct megatron_parameter {
    struct tdm_eager_value **place; /* the module's pointer to it */
    uint64_t rows, columns;
    bool shared;                       /* embedding and head of one pipeline */
    enum megatron_buffer buffer;       /* that it is in */
    struct tdm_eager_value *states[3]; /* main parameter and two moments of the elements that this
                                          rank updates, or NULL */
    struct tdm_eager_value *gradient; /* in fp32, of a bf16 buffer, while a step is made; or NULL */
    uint64_t own;                     /* elements that this rank updates */
    bool on_host;                     /* there it does */
};

/* Consecutive layers, and their buffers. */
struct megatron_chunk {
    bool first, last; /* first: has the embedding; last: has the head and the loss */
    struct megatron_layer *layers;
    struct tdm_eager_value *embedding, *positions, *final_norm, *final_norm_bias, *head;
    struct megatron_parameter *parameters;   /* in module order */
    uint32_t parameter_count, first_trained; /* parameters before first_trained are frozen */
    /* Contiguous buffers by kind of parameter. Those of weights may be NULL. */
    struct tdm_eager_value *weights[BUFFERS], *gradients[BUFFERS];
    struct tdm_eager_value **inputs, **outputs; /* of micro-batches whose backward has not run */
    struct tdm_eager_value *held;               /* the last input it received, with its gradient */
};

struct megatron_action {
    bool backward;
    uint32_t chunk, microbatch;
};

#define MOST_DUMMIES 24u
#define MEGATRON_STREAMS 4u /* on which grouped products run */

struct tdm_megatron {
    struct tdm_eager *m;
    const struct tdm_model *config;
    struct tdm_megatron_settings set;
    struct tdm_megatron_layout layout;
    /* Packed sequences: they are one row of the batch. `longest` is of the whole sequence. */
    bool packed;
    uint64_t longest, sequences;
    bool flash;    /* FlashAttention-2 instead of cuDNN's kernel */
    bool old_card; /* before Hopper */
    uint64_t batch, tokens;
    /* Sizes on this rank: tokens of a micro-batch, whole and divided by sequence parallelism;
     * heads, width of the MLP, rows of the embedding. */
    uint64_t rows, part_rows, heads, groups, width, vocabulary;
    uint64_t sharing; /* tensor ranks that share a KV head, 1 where each has its own */
    uint64_t context_rank, data_rank, expert_data_rank;
    uint64_t lora_rank; /* 0: all parameters are trained */
    uint32_t lora_targets;
    bool sequence_parallel, tied, tied_here; /* in this stage */
    bool rotates;                            /* q and k, by their places */
    bool gated;                              /* MLPs have two products in place of one */
    struct megatron_chunk *chunks;
    struct megatron_action *actions;
    uint32_t action_count, next_action, microbatches;
    const struct megatron_action *unsent; /* the action whose output still has memory */
    /* Made once by Transformer Engine and Megatron, and kept: the workspace of products, stand-ins
     * for weight gradients that were added to the buffer, the gather buffer of the head, and the
     * angles of the rotary embedding. */
    struct tdm_eager_value *workspace, *grouped_workspaces[MEGATRON_STREAMS],
        *dummies[MOST_DUMMIES], *gather_buffer, *angles;
    uint32_t dummy_count;
    struct tdm_eager_value *tokens_in, *labels, *mask; /* of the micro-batch that is running */
    struct tdm_eager_value *input_gradient, *output_gradient, *next_input; /* of the schedule */
    struct tdm_eager_value
        *finished_input; /* of the graph that the variable of the last output still references */
    bool states_made;
    /* Of weights with products of 8 bits, whose `module` is the number of theirs, counted from 1.
     */
    struct megatron_cast *casts;
    uint32_t cast_count;
};

/* ---- values that a function makes and drops before it returns ---- */

struct megatron_kept {
    struct tdm_eager_value **values;
    uint32_t count, capacity;
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
/* A column-parallel product without a norm. `gathers`: of all rows, which sequence parallelism
 * gathers; else every tensor-parallel rank has the whole weight and its own rows. */
struct tdm_eager_value *megatron_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                        struct tdm_eager_value *weight, bool gathers);
/* All rows of x, which sequence parallelism divides. */
struct tdm_eager_value *megatron_gathered(struct tdm_megatron *t, struct tdm_eager_value *x);
struct tdm_eager_value *megatron_sum(struct tdm_megatron *t, struct tdm_eager_value *a,
                                     struct tdm_eager_value *b);
/* Is the module named for selective recomputation? */
bool megatron_recomputes(const struct tdm_megatron *t, enum tdm_megatron_module module);
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
/* This rank's rows of x, which may be a sum over the tensor-parallel ranks. Their gradients are
 * gathered. */
struct tdm_eager_value *megatron_scatter(struct tdm_megatron *t, struct tdm_eager_value *x);
/* Swaps batch and tokens in memory. */
struct tdm_eager_value *megatron_copy(struct tdm_megatron *t, struct tdm_eager_value *x);
/* A stand-in for the gradient of a weight. */
struct tdm_eager_value *megatron_dummy(struct tdm_megatron *t, uint64_t rows, uint64_t columns);

/* Makes the value the result of the node, whose context is t. A NULL node: of none. */
struct tdm_eager_value *megatron_finish(struct tdm_megatron *t, struct tdm_node *node,
                                        struct tdm_eager_value *value);
/* Makes the workspace of products at the first product; those of grouped products, one for each
 * stream. */
void megatron_product(struct tdm_megatron *t);
void megatron_grouped_product(struct tdm_megatron *t);
/* Gradients of a norm: returns dx and sets those of its weights. Each multiprocessor has partial
 * sums. */
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

/* ---- the same with products of 8 bits (float8.c) ---- */

/* Makes the products of the weight ones of 8 bits. */
void megatron_add_cast(struct tdm_megatron *t, struct tdm_eager_value *weight, bool keeps_input);
bool megatron_is_float8(const struct tdm_eager_value *weight);
/* The weight, which has 8 bits, now is in a buffer. */
void megatron_gather_cast(struct tdm_megatron *t, struct tdm_eager_value *weight);
struct tdm_eager_value *
megatron_float8_norm_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                            struct tdm_eager_value *norm, struct tdm_eager_value *norm_bias,
                            struct tdm_eager_value *weight, struct tdm_eager_value *bias);
struct tdm_eager_value *megatron_float8_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                               struct tdm_eager_value *weight, bool gathers);
/* Of experts, every stride-th of `weights`. */
struct tdm_eager_value *megatron_float8_grouped(struct tdm_megatron *t, struct tdm_eager_value *x,
                                                struct tdm_eager_value *const *weights,
                                                uint64_t count, uint64_t stride);
struct tdm_eager_value *megatron_float8_row_linear(struct tdm_megatron *t,
                                                   struct tdm_eager_value *x,
                                                   struct tdm_eager_value *weight);

/* ---- attention (attention.c, context.c) ---- */

/* Of a head; of latent attention it is less than that of keys. */
static inline uint64_t megatron_value_dim(const struct tdm_model *model)
{
    return model->latent.kv_rank > 0 ? model->latent.value_dim : model->head_dim;
}

/* Where tensor ranks share KV heads: q, k and v of all of them gathered, and of these the group of
 * this rank. Takes `mixed`, and returns it where they do not. */
struct tdm_eager_value *megatron_gather_groups(struct tdm_megatron *t,
                                               struct tdm_eager_value *mixed);

/* From the joint product of q, k, v to the output of all heads. `recompute` of the settings may
 * make core attention run again. */
struct tdm_eager_value *megatron_attention(struct tdm_megatron *t,
                                           const struct megatron_layer *layer,
                                           struct tdm_eager_value *mixed,
                                           struct megatron_kept *kept);
/* Latent attention, from the input of a layer to what is added to it (latent.c). */
struct tdm_eager_value *megatron_latent_attention(struct tdm_megatron *t,
                                                  const struct megatron_layer *layer,
                                                  struct tdm_eager_value *x);
/* Mamba-2 in place of attention (mamba.c): refuses what cannot run; adds a layer's parameters, by
 * `add`, and weights of products by `add_product`; from the input of a layer to what is added to
 * it. */
enum tdm_status megatron_check_mamba(const struct tdm_model *model,
                                     const struct tdm_method_settings *settings,
                                     const struct tdm_megatron_layout *l, struct tdm_error *err);
void megatron_add_mamba(struct tdm_megatron *t, struct megatron_chunk *chunk,
                        struct megatron_layer *layer,
                        void (*add)(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                    struct tdm_eager_value **place, uint64_t rows,
                                    uint64_t columns),
                        void (*add_product)(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                            struct tdm_eager_value **place, uint64_t rows,
                                            uint64_t columns, const struct megatron_layer *layer));
struct tdm_eager_value *megatron_mamba(struct tdm_megatron *t, const struct megatron_layer *layer,
                                       struct tdm_eager_value *x);
/* The MLP of a layer with experts, with its norm (experts.c); without it; and its shared experts.
 */
struct tdm_eager_value *megatron_experts(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                         struct tdm_eager_value *x);
struct tdm_eager_value *megatron_mixture(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                         struct tdm_eager_value *normed);
struct tdm_eager_value *megatron_shared_experts(struct tdm_megatron *t,
                                                const struct megatron_layer *layer,
                                                struct tdm_eager_value *x);
/* Rows that a rank sends to experts: each token's row once for each of its experts, padded if
 * experts have a capacity. */
uint64_t megatron_routed_rows(const struct tdm_megatron *t);
/* How context ranks divide attention: one row for each value of cp_comm_type. */
struct megatron_divider {
    bool exchanges; /* ranks exchange tokens for heads and back */
    bool rings; /* keys and values are passed round; neither flag: all keys and values are gathered
                 */
    /* values: q, k and v, to which the forward adds its outputs. gradients: those of q, k and v. */
    void (*forward)(struct tdm_megatron *t, struct tdm_eager_value **values);
    void (*backward)(struct tdm_megatron *t, struct tdm_eager_value *const *values,
                     struct tdm_eager_value **gradients);
};
extern const struct megatron_divider megatron_dividers[]; /* by enum tdm_megatron_exchange */

/* Transformer Engine's attention, with context parallelism of the kind that is set. */
struct tdm_eager_value *megatron_context_attention(struct tdm_megatron *t,
                                                   struct tdm_eager_value *q,
                                                   struct tdm_eager_value *k,
                                                   struct tdm_eager_value *v);
/* One call of the kernel, with the number of query and key tokens of each sequence, and the number
 * of heads. The forward returns output and log-sum-exps; the backward returns dQ, dK, dV. */
struct megatron_kernel {
    uint64_t queries, keys, heads, groups;
};
void megatron_kernel_forward(struct tdm_megatron *t, const struct megatron_kernel *kernel,
                             struct tdm_eager_value **output, struct tdm_eager_value **sums);
void megatron_kernel_backward(struct tdm_megatron *t, const struct megatron_kernel *kernel,
                              struct tdm_eager_value *grads[3]);
/* A short-lived allocation of cuDNN's forward, after its results. */
void megatron_kernel_seed(struct tdm_megatron *t);

/* ---- head and loss (loss.c) ---- */

/* The buffer that receives rows gathered from tensor-parallel ranks; made once. */
void megatron_gather(struct tdm_megatron *t);
/* A loss for each row of bf16 logits. */
struct tdm_eager_value *megatron_loss(struct tdm_megatron *t, struct tdm_eager_value *logits);
struct tdm_eager_value *megatron_head_loss(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                           struct tdm_eager_value *hidden);

/* ---- layers (layers.c) ---- */

enum megatron_region { REGION_LAYERS, REGION_MLP, REGION_CORE, REGION_MOE, REGION_SHARED };

/* Recomputes a region in the backward: layers first .. first + count - 1 of a chunk, the MLP, the
 * mixture or the shared experts of one layer, or core attention (inputs q, k, v). */
struct tdm_eager_value *megatron_checkpoint(struct tdm_megatron *t, enum megatron_region region,
                                            uint32_t chunk, uint32_t first, uint32_t count,
                                            struct tdm_eager_value *const *inputs,
                                            uint32_t input_count);
struct tdm_eager_value *megatron_run_region(struct tdm_megatron *t, enum megatron_region region,
                                            uint32_t chunk, uint32_t first, uint32_t count,
                                            struct tdm_eager_value *const *inputs);
struct tdm_eager_value *megatron_core(struct tdm_megatron *t, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v);
/* Runs the layers of a chunk. `x` is taken. */
struct tdm_eager_value *megatron_run_chunk(struct tdm_megatron *t, uint32_t chunk,
                                           struct tdm_eager_value *x);

/* ---- parameters, buffers, optimizer (buffers.c) ---- */

enum tdm_status megatron_make_chunk(struct tdm_megatron *t, uint32_t number, struct tdm_error *err);
void megatron_make_buffers(struct tdm_megatron *t, struct megatron_chunk *chunk);
void megatron_make_main_parameters(struct tdm_megatron *t, struct megatron_chunk *chunk);
void megatron_optimizer_step(struct tdm_megatron *t);
/* Drops the fp32 copies of gradients that a step has made. */
void megatron_drop_gradients(struct tdm_megatron *t);

/* ---- layers of a stage (stages.c) ---- */

/* Sets what of the layout is of layers and micro-batches, once its pipeline is. */
enum tdm_status megatron_divide_layers(const struct tdm_model *model,
                                       const struct tdm_megatron_settings *s,
                                       struct tdm_megatron_layout *l, struct tdm_error *err);

/* ---- micro-batches (schedule.c) ---- */

enum tdm_status megatron_make_schedule(struct tdm_megatron *t, struct tdm_error *err);
/* warm_up runs a step up to its first backward; finish_step runs the rest. */
void megatron_warm_up(struct tdm_megatron *t);
void megatron_finish_step(struct tdm_megatron *t);

#endif
