/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of the reference's transformer: plain loops over row-major arrays of double, each
 * forward next to its backward.
 *
 * dx has the shape of x and is the gradient of the loss with respect to x. Where a comment says
 * "adds to", the caller sets the array to zero first. A sum over several uses then needs no extra
 * code.
 */
#ifndef TDM_TESTS_REFERENCE_OPERATIONS_H
#define TDM_TESTS_REFERENCE_OPERATIONS_H

#include <stdbool.h>
#include <stdint.h>

/* y[t] = weight x[t] + bias. x [tokens, inputs], weight [outputs, inputs], bias [outputs] or NULL,
 * y [tokens, outputs]. */
void tdm_reference_linear(uint64_t tokens, uint64_t inputs, uint64_t outputs, const double *x,
                          const double *weight, const double *bias, double *y);

/* Adds to dx, d_weight and, unless it is NULL, d_bias. */
void tdm_reference_linear_backward(uint64_t tokens, uint64_t inputs, uint64_t outputs,
                                   const double *x, const double *weight, const double *dy,
                                   double *dx, double *d_weight, double *d_bias);

/* y[t] = weight * x[t] * scale[t] with scale[t] = 1 / sqrt(mean(x[t]^2) + epsilon) (RMSNorm, arXiv
 * 1910.07467, equation 4, with epsilon as in Llama). x, y [tokens, columns], scale [tokens]. */
void tdm_reference_rms_norm(uint64_t tokens, uint64_t columns, double epsilon, const double *x,
                            const double *weight, double *scale, double *y);

/* Adds to dx and d_weight. */
void tdm_reference_rms_norm_backward(uint64_t tokens, uint64_t columns, const double *x,
                                     const double *weight, const double *scale, const double *dy,
                                     double *dx, double *d_weight);

/* RoPE (arXiv 2104.09864), in place, with the pairs in the order of Hugging Face: in every head of
 * x [tokens, heads, head_dim] it rotates dimensions (i, i + head_dim / 2) of token t by
 * t * inverse_frequencies[i], and multiplies by `factor`. */
void tdm_reference_rotate(uint64_t tokens, uint64_t heads, uint64_t head_dim,
                          const double *inverse_frequencies, double factor, double *x);

/* The transpose, in place: turns the gradient of the rotated array into that of its input. */
void tdm_reference_rotate_backward(uint64_t tokens, uint64_t heads, uint64_t head_dim,
                                   const double *inverse_frequencies, double factor, double *dx);

/* Does token `query` of the step read token `key`, not after it, in this layer and KV head? */
typedef bool (*tdm_reference_sees)(const void *context, uint32_t layer, uint64_t kv_head,
                                   uint64_t query, uint64_t key);

/* Shape of an attention: query head h reads KV head h / (query_heads / kv_heads). */
struct tdm_reference_heads {
    uint64_t tokens, query_heads, kv_heads, head_dim;
    uint64_t window;         /* tokens that a token reads, itself included; 0: all up to it */
    tdm_reference_sees sees; /* which of those it reads; NULL: all */
    const void *context;
    uint32_t layer;
    uint64_t first; /* number of token 0 within the step */
};

/* Causal attention: token t reads those of tokens 0 .. t that the window and `sees` allow. Scores
 * are scaled by 1 / sqrt(head_dim). q, out [tokens, query_heads, head_dim], k, v [tokens, kv_heads,
 * head_dim]; probability [query_heads, tokens, tokens] by head, query, key. Entries of probability
 * outside the window or after the query are not written; those that `sees` excludes become 0. */
void tdm_reference_attention(struct tdm_reference_heads shape, const double *q, const double *k,
                             const double *v, double *probability, double *out);

/* Backward of the queries [first, end): overwrites their dq, adds to dk and dv. The softmax's
 * backward needs the mean of d_probability weighted by probability, computed as d_out . out. */
void tdm_reference_attention_backward(struct tdm_reference_heads shape, uint64_t first,
                                      uint64_t end, const double *q, const double *k,
                                      const double *v, const double *probability, const double *out,
                                      const double *d_out, double *dq, double *dk, double *dv);

/* product = silu(gate) * up, silu(x) = x / (1 + exp(-x)) (SwiGLU, arXiv 2002.05202). */
void tdm_reference_swiglu(uint64_t count, const double *gate, const double *up, double *product);

/* product = gelu(gate) * up, with PyTorch's approximate="tanh":
 * gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
void tdm_reference_geglu(uint64_t count, const double *gate, const double *up, double *product);

/* These overwrite d_gate and d_up. */
void tdm_reference_swiglu_backward(uint64_t count, const double *gate, const double *up,
                                   const double *d_product, double *d_gate, double *d_up);
void tdm_reference_geglu_backward(uint64_t count, const double *gate, const double *up,
                                  const double *d_product, double *d_gate, double *d_up);

/* losses[t] = log(sum(exp(logits[t]))) - logits[t][targets[t]], or 0 where the target is
 * UINT32_MAX, which means no target. logits [tokens, vocabulary]. */
void tdm_reference_cross_entropy(uint64_t tokens, uint64_t vocabulary, const double *logits,
                                 const uint32_t *targets, double *losses);

/* Overwrites logits with the gradient of sum(losses) * factor. */
void tdm_reference_cross_entropy_backward(uint64_t tokens, uint64_t vocabulary,
                                          const uint32_t *targets, double factor, double *logits);

#endif
