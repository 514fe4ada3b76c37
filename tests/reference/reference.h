/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The referee: a transformer that is obviously right, for tests to compare executors with.
 *
 * Double precision, whole sequences at once, attention probabilities materialised, plain loops; no
 * chunks (but for where sums are rounded, if a test asks for that), no groups, nothing recomputed,
 * nothing shared with the code that it judges except struct tdm_model and
 * tdm_rope_inverse_frequencies(). What it computes follows the Llama, Qwen2 and Qwen3 models of
 * Hugging Face transformers: pre-norm blocks with RMSNorm, in Qwen3 RMSNorm of every head of q and
 * k (QK-norm), RoPE by rotated halves, grouped queries, causal softmax scaled by 1/sqrt(head_dim),
 * SwiGLU or GeGLU, residuals, final norm, tied or untied head, cross entropy.
 *
 * A step has one or more sequences. Each starts at position 0, and attention never leaves it; the
 * documents that a sequence is packed from are sequences here. Token t and target t lie at the same
 * index, the sequences one after the other. The loss is the mean over the tokens of the step that
 * have a target, in nats.
 */
#ifndef TDM_TESTS_REFERENCE_REFERENCE_H
#define TDM_TESTS_REFERENCE_REFERENCE_H

#include "base/status.h"
#include "models/model.h"
#include "tests/reference/operations.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_reference;

#define TDM_REFERENCE_NO_TARGET UINT32_MAX

/* Where a real executor stores a tensor and so rounds it. Gradients have the D_ names. */
enum tdm_reference_point {
    TDM_REFERENCE_HIDDEN,    /* residual stream: embedding row, after attention, after the MLP */
    TDM_REFERENCE_NORM,      /* output of a norm; QK-norm runs into RoPE and stores nothing */
    TDM_REFERENCE_QKV,       /* output of the Q, K and V products, bias included */
    TDM_REFERENCE_ROTATED,   /* Q after RoPE */
    TDM_REFERENCE_KV,        /* K after RoPE, and V */
    TDM_REFERENCE_ATTENTION, /* attention output, before the O product */
    TDM_REFERENCE_GATE_UP,   /* output of the gate and the up product */
    TDM_REFERENCE_PRODUCT,   /* silu(gate) * up, or gelu(gate) * up */
    TDM_REFERENCE_LOGITS,
    TDM_REFERENCE_D_LOGITS,
    TDM_REFERENCE_D_HIDDEN, /* after the final norm, after an MLP, after an attention block */
    TDM_REFERENCE_D_NORM,   /* of gate and up the sum; Q's share, then K's and V's added to it */
    TDM_REFERENCE_D_PRODUCT,
    TDM_REFERENCE_D_GATE_UP,
    TDM_REFERENCE_D_ATTENTION,
    TDM_REFERENCE_D_ROTATED, /* of the rotated Q */
    TDM_REFERENCE_D_KV,      /* of the rotated K, and of V, whenever a chunk of queries was added */
    TDM_REFERENCE_D_QKV,     /* of the products' outputs: after RoPE was undone */
    TDM_REFERENCE_D_WEIGHT,  /* whenever a chunk was added, to the head's whenever a tile was */
    TDM_REFERENCE_POINTS,
};

/* Rounds `count` values that are stored at `point`, in place. */
typedef void (*tdm_reference_round)(void *context, enum tdm_reference_point point, uint64_t count,
                                    double *values);

/* What begins at a token. Sums over tokens are taken from the last token of a step to the first,
 * and stored whenever a part is complete: the tokens from such a beginning to the one after it. */
enum tdm_reference_cut {
    TDM_REFERENCE_CHUNK = 1,
    TDM_REFERENCE_TILE = 2 /* of the LM head */
};

/* A reference for `model`, which must outlive it. Weights, gradients and moments are zero. The
 * caller owns *reference (tdm_reference_free). TDM_NO_MEMORY. */
enum tdm_status tdm_reference_new(const struct tdm_model *model, struct tdm_reference **reference,
                                  struct tdm_error *err);

void tdm_reference_free(struct tdm_reference *reference);

/* Weights of a unit, [units[unit].elements], laid out as struct tdm_unit says; the caller writes
 * them. Padding between tensors is never read. NULL if there is no such unit. Tied: the embedding's
 * weights are the head's, and its gradient is the sum of both uses. */
double *tdm_reference_weights(struct tdm_reference *reference, uint32_t unit);

/* Gradients of the loss of the last step, same layout; padding is 0. */
const double *tdm_reference_gradients(const struct tdm_reference *reference, uint32_t unit);

/* Losses of the single tokens of the last step or loss, [sum of lengths], 0 where there is no
 * target; valid until the next. */
const double *tdm_reference_token_losses(const struct tdm_reference *reference);

/* Rounds every tensor stored from now on through `round`; NULL (the default) keeps doubles. `cuts`,
 * [tokens of a step], borrowed, has the bits of enum tdm_reference_cut; both at the first token,
 * and NULL is there alone. */
void tdm_reference_set_rounding(struct tdm_reference *reference, tdm_reference_round round,
                                void *context, const unsigned char *cuts);

/* From now on tokens read only what `sees` says of those before them that the layer's window has;
 * NULL (the default): all. Its tokens are counted over the step; `context` is borrowed. What is
 * read is held fixed. */
void tdm_reference_set_sees(struct tdm_reference *reference, tdm_reference_sees sees,
                            const void *context);

/* Forward and backward over `sequence_count` sequences of `lengths` tokens each; `tokens` and
 * `targets` are [sum of lengths]. Overwrites gradients. *loss is the mean over all tokens that have
 * a target: TDM_REFERENCE_NO_TARGET is none. TDM_INPUT: no targets, or a token or target outside
 * the vocabulary. TDM_NO_MEMORY. After a failure gradients are what they were. */
enum tdm_status tdm_reference_step(struct tdm_reference *reference, uint32_t sequence_count,
                                   const uint64_t *lengths, const uint32_t *tokens,
                                   const uint32_t *targets, double *loss, struct tdm_error *err);

/* The forward of tdm_reference_step() alone; gradients stay. */
enum tdm_status tdm_reference_loss(struct tdm_reference *reference, uint32_t sequence_count,
                                   const uint64_t *lengths, const uint32_t *tokens,
                                   const uint32_t *targets, double *loss, struct tdm_error *err);

/* Norm of the gradients of units [first, first + count), tied uses summed. */
double tdm_reference_gradient_norm(const struct tdm_reference *reference, uint32_t first,
                                   uint32_t count);

/* Scales these gradients so that this norm is at most `most`. */
void tdm_reference_clip(struct tdm_reference *reference, uint32_t first, uint32_t count,
                        double most);

/* What an optimizer stores of an element. */
enum tdm_reference_state {
    TDM_REFERENCE_WEIGHT,
    TDM_REFERENCE_MASTER,
    TDM_REFERENCE_MOMENT1,
    TDM_REFERENCE_MOMENT2
};

/* Returns what is left of `value` when it is stored: element `element` of
 * model->tensors[tensor]. */
typedef double (*tdm_reference_store)(void *context, enum tdm_reference_state state,
                                      uint32_t tensor, uint64_t element, double value);

/* From now on the optimizers below pass what they store through `store`; by default doubles stay.
 * With `masters` they update a master of each weight, which begins as the weight is now; the weight
 * is the stored master, stored again as a weight. TDM_NO_MEMORY. */
enum tdm_status tdm_reference_set_storing(struct tdm_reference *reference, bool masters,
                                          tdm_reference_store store, void *context,
                                          struct tdm_error *err);

/* Masters and moments, laid out as the weights; masters are the weights where there are none. The
 * caller may write moments, to go on from another state. */
const double *tdm_reference_masters(const struct tdm_reference *reference, uint32_t unit);
double *tdm_reference_moments(struct tdm_reference *reference, uint32_t unit, bool second);

/* AdamW (arXiv 1711.05101, algorithm 2) on all weights with the current gradients; `step` counts
 * from 1. The decay is decoupled, scaled by the learning rate as in PyTorch, and applied to
 * matrices (rows > 1; the embedding is one) but not to norms and biases. Moments are kept in here;
 * the weight is updated by what they are before they are stored. */
void tdm_reference_adamw(struct tdm_reference *reference, uint64_t step, double learning_rate,
                         double beta1, double beta2, double epsilon, double weight_decay);

/* Gradient descent without momentum; decay as in AdamW. */
void tdm_reference_sgd(struct tdm_reference *reference, double learning_rate, double weight_decay);

#endif
