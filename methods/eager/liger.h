/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Liger's kernels as operations of autograd: norms, SwiGLU, rotary embedding and cross entropy that
 * save little and write gradients over what they saved. Inputs are borrowed. Results are new
 * references.
 * Source: linkedin/Liger-Kernel, src/liger_kernel/ops.
 */
#ifndef TDM_METHODS_EAGER_LIGER_H
#define TDM_METHODS_EAGER_LIGER_H

#include "methods/eager/eager.h"

/* LigerRMSNormFunction: saves x and an fp32 scale a row. Its gradient overwrites the incoming one,
 * unless `keeps_gradient`: others read that too. */
struct tdm_eager_value *tdm_liger_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *weight, bool keeps_gradient);

/* LigerSiLUMulFunction, LigerGELUMulFunction: activation(gate) * up. Saves both, and writes their
 * gradients over them. */
struct tdm_eager_value *tdm_liger_gated(struct tdm_eager *m, struct tdm_eager_value *gate,
                                        struct tdm_eager_value *up);

/* LigerRopeFunction: rotates q and k where they are, if they lie by token, then head; so does its
 * backward. Both become the rotated ones. */
void tdm_liger_rotate(struct tdm_eager *m, struct tdm_eager_value **q, struct tdm_eager_value **k,
                      struct tdm_eager_value *cosine, struct tdm_eager_value *sine);

/* LigerCrossEntropyFunction: the gradient overwrites the logits. */
struct tdm_eager_value *tdm_liger_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *logits,
                                                struct tdm_eager_value *labels);

/* A compiled cross entropy: it saves the logits and a sum for each row, and makes their gradient
 * beside them. A model of what inductor fuses. */
struct tdm_eager_value *tdm_fused_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *logits,
                                                struct tdm_eager_value *labels);

/* LigerVocabParallelCEFunction on one rank: keeps fp32 exponentials, over which the gradient is
 * written, and casts that to the dtype of the logits. Returns a loss a row. */
struct tdm_eager_value *tdm_liger_parallel_cross_entropy(struct tdm_eager *m,
                                                         struct tdm_eager_value *logits,
                                                         struct tdm_eager_value *labels);

#endif
