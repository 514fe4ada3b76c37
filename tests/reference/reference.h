/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: a simple transformer that tests compare executors with.
 *
 * It uses double precision, whole sequences at once, attention probabilities stored in full, and
 * plain loops. It has no chunks (except where sums are rounded, if a test asks for that), no groups
 * and no recompute. It shares nothing with the code that it checks except struct tdm_model and
 * tdm_rope_inverse_frequencies(). It computes what the Llama, Qwen2 and Qwen3 models of Hugging
 * Face transformers compute: pre-norm blocks with RMSNorm, in Qwen3 RMSNorm of every head of q and
 * k (QK-norm), RoPE by rotated halves, grouped queries, causal softmax scaled by 1/sqrt(head_dim),
 * SwiGLU or GeGLU, residuals, final norm, tied or untied head, cross entropy.
 *
 * A step has one or more sequences. Each starts at position 0, and attention never leaves it.
 * Documents packed into one sequence count as separate sequences here. Token t and target t have
 * the same index; the sequences follow each other in the arrays. The loss is the mean over the
 * tokens of the step that have a target, in nats.
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

/* Where a real executor stores a tensor and therefore rounds it. Gradients have the D_ names. */
enum tdm_reference_point {
    TDM_REFERENCE_HIDDEN,    /* residual stream: embedding, after attention, after the MLP */
    TDM_REFERENCE_NORM,      /* output of a norm; QK-norm feeds RoPE and stores nothing */
    TDM_REFERENCE_QKV,       /* output of the Q, K and V products, bias included */
    TDM_REFERENCE_ROTATED,   /* Q after RoPE */
    TDM_REFERENCE_KV,        /* K after RoPE, and V */
    TDM_REFERENCE_ATTENTION, /* attention output, before the O product */
    TDM_REFERENCE_GATE_UP,   /* outputs of the gate product and the up product */
    TDM_REFERENCE_PRODUCT,   /* silu(gate) * up, or gelu(gate) * up */
    TDM_REFERENCE_LOGITS,
    TDM_REFERENCE_D_LOGITS,
    TDM_REFERENCE_D_HIDDEN, /* after the final norm, after an MLP, after an attention block */
    /* Gate and up: their sum. Q, K, V: Q's part, then again after K's and after V's are added. */
    TDM_REFERENCE_D_NORM,
    TDM_REFERENCE_D_PRODUCT,
    TDM_REFERENCE_D_GATE_UP,
    TDM_REFERENCE_D_ATTENTION,
    TDM_REFERENCE_D_ROTATED, /* gradient of the rotated Q */
    /* Gradients of the rotated K and of V, each time a chunk of queries was added. */
    TDM_REFERENCE_D_KV,
    TDM_REFERENCE_D_QKV,    /* gradients of the outputs of Q, K and V products, before RoPE */
    TDM_REFERENCE_D_WEIGHT, /* after each chunk that was added; for the head after each tile */
    TDM_REFERENCE_POINTS,
};

/* Rounds `count` values that are stored at `point`, in place. */
typedef void (*tdm_reference_round)(void *context, enum tdm_reference_point point, uint64_t count,
                                    double *values);

/* What begins at a token. Sums over tokens run from the last token of a step to the first, and are
 * stored each time a part is complete. A part is the tokens from one beginning to the next. */
enum tdm_reference_cut {
    TDM_REFERENCE_CHUNK = 1,
    TDM_REFERENCE_TILE = 2 /* of the LM head */
};

/* Creates a reference for `model`, which must outlive it. Weights, gradients and moments are zero.
 * The caller owns *reference (tdm_reference_free). TDM_NO_MEMORY. */
enum tdm_status tdm_reference_new(const struct tdm_model *model, struct tdm_reference **reference,
                                  struct tdm_error *err);

void tdm_reference_free(struct tdm_reference *reference);

/* Weights of a unit, [units[unit].elements], in the layout of struct tdm_unit; the caller writes
 * them. Padding between tensors is never read. NULL if there is no such unit. If tied, the head
 * uses the embedding's weights, and their gradient is the sum of both uses. */
double *tdm_reference_weights(struct tdm_reference *reference, uint32_t unit);

/* Gradients of the loss of the last step, in the same layout; padding is 0. */
const double *tdm_reference_gradients(const struct tdm_reference *reference, uint32_t unit);

/* Losses of the single tokens of the last tdm_reference_step() or tdm_reference_loss(), [sum of
 * lengths], 0 without a target. Valid until the next call. */
const double *tdm_reference_token_losses(const struct tdm_reference *reference);

/* Rounds every tensor stored from now on with `round`; NULL (the default) keeps doubles. `cuts`,
 * [tokens of a step], borrowed, has bits of enum tdm_reference_cut, both at the first token. NULL:
 * only the first token has them. */
void tdm_reference_set_rounding(struct tdm_reference *reference, tdm_reference_round round,
                                void *context, const unsigned char *cuts);

/* From now on tokens read only tokens of the layer's window that `sees` allows; NULL (the default):
 * all. `sees` counts tokens over the step; `context` is borrowed. The selection has no gradient. */
void tdm_reference_set_sees(struct tdm_reference *reference, tdm_reference_sees sees,
                            const void *context);

/* Forward and backward over `sequence_count` sequences of `lengths` tokens each; `tokens` and
 * `targets` are [sum of lengths]. Overwrites gradients. *loss is the mean over all tokens that have
 * a target; TDM_REFERENCE_NO_TARGET marks a token without one. TDM_INPUT: no targets, or a token or
 * target outside the vocabulary. TDM_NO_MEMORY. A failure leaves the gradients unchanged. */
enum tdm_status tdm_reference_step(struct tdm_reference *reference, uint32_t sequence_count,
                                   const uint64_t *lengths, const uint32_t *tokens,
                                   const uint32_t *targets, double *loss, struct tdm_error *err);

/* Only the forward of tdm_reference_step(); gradients are not changed. */
enum tdm_status tdm_reference_loss(struct tdm_reference *reference, uint32_t sequence_count,
                                   const uint64_t *lengths, const uint32_t *tokens,
                                   const uint32_t *targets, double *loss, struct tdm_error *err);

/* Norm of the gradients of units [first, first + count). Tied uses are summed first. */
double tdm_reference_gradient_norm(const struct tdm_reference *reference, uint32_t first,
                                   uint32_t count);

/* Scales the gradients of these units so that their norm is at most `most`. */
void tdm_reference_clip(struct tdm_reference *reference, uint32_t first, uint32_t count,
                        double most);

/* What an optimizer stores for an element. */
enum tdm_reference_state {
    TDM_REFERENCE_WEIGHT,
    TDM_REFERENCE_MASTER,
    TDM_REFERENCE_MOMENT1,
    TDM_REFERENCE_MOMENT2
};

/* Returns what is left of `value` after it is stored as `state` of element `element` of
 * model->tensors[tensor]. */
typedef double (*tdm_reference_store)(void *context, enum tdm_reference_state state,
                                      uint32_t tensor, uint64_t element, double value);

/* From now on the optimizers below pass what they store through `store`; by default doubles are
 * kept. With `masters` they update a master of each weight, which starts with the current weight.
 * The weight is the stored master, stored again as a weight. TDM_NO_MEMORY. */
enum tdm_status tdm_reference_set_storing(struct tdm_reference *reference, bool masters,
                                          tdm_reference_store store, void *context,
                                          struct tdm_error *err);

/* Masters and moments, in the layout of the weights. If there are no masters, they are the weights.
 * The caller may write moments, to continue from another state. */
const double *tdm_reference_masters(const struct tdm_reference *reference, uint32_t unit);
double *tdm_reference_moments(struct tdm_reference *reference, uint32_t unit, bool second);

/* What decays: matrices (with a head of its own), embeddings, norms, biases. At first the first two
 * do. */
void tdm_reference_set_decayed(struct tdm_reference *reference, bool matrices, bool embeddings,
                               bool norms, bool biases);

/* AdamW (arXiv 1711.05101, algorithm 2) on all weights with the current gradients; `step` counts
 * from 1. The decay is decoupled and scaled by the learning rate, as in PyTorch. The reference
 * keeps the moments, and updates weights with their values before they are stored. */
void tdm_reference_adamw(struct tdm_reference *reference, uint64_t step, double learning_rate,
                         double beta1, double beta2, double epsilon, double weight_decay);

/* Gradient descent without momentum; decay as in AdamW. */
void tdm_reference_sgd(struct tdm_reference *reference, double learning_rate, double weight_decay);

#endif
