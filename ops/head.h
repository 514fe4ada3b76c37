/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head and loss of a tile: some rows of a chunk, and all or some entries of the vocabulary.
 *
 * `head` does forward and backward at once, with the whole vocabulary. If the vocabulary is split
 * into tiles, `loss` does the forward and `head_grad` the backward. An evaluation has only `loss`.
 * Rows, tokens, weights and logits are the same operands in all three. The weights' gradient and
 * the loss are the same in the two that have them.
 */
#ifndef TDM_OPS_HEAD_H
#define TDM_OPS_HEAD_H

#include "ops/ops.h"

struct tdm_head_params {
    uint32_t hidden, vocabulary;
    uint64_t trained_tokens; /* tokens of the step with a target; the loss is the mean over these */
};

enum tdm_head_operand {
    /* changed: normed rows of the tile become their gradient, of [chunk tokens, hidden] */
    TDM_HEAD_ROWS,
    TDM_HEAD_TOKENS,   /* read: int32 [chunk tokens], then the targets */
    TDM_HEAD_WEIGHTS,  /* read: the op's entries of [vocabulary, hidden] */
    TDM_HEAD_LOGITS,   /* written: [tile tokens, entries] */
    TDM_HEAD_DWEIGHTS, /* written or added to: summed over the tiles of the step */
    TDM_HEAD_LOSS,     /* written or added to: fp64 [1], summed over the chunk's tiles */
    TDM_HEAD_OPERANDS
};
extern const struct tdm_op_type tdm_head_type;

/* Forward. Of the ops for a tile's rows, the last one to run writes the loss. */
enum tdm_loss_operand {
    TDM_LOSS_ROWS = TDM_HEAD_ROWS,       /* read */
    TDM_LOSS_TOKENS = TDM_HEAD_TOKENS,   /* read */
    TDM_LOSS_WEIGHTS = TDM_HEAD_WEIGHTS, /* read */
    TDM_LOSS_LOGITS = TDM_HEAD_LOGITS,   /* written */
    /* written or added to if the vocabulary is split, else absent: fp64 [tile tokens, 3], over the
     * vocabulary so far */
    TDM_LOSS_LSE,
    /* written or added to by the last op of the rows, else absent: fp64 [1] */
    TDM_LOSS_LOSS = TDM_HEAD_LOSS,
    TDM_LOSS_OPERANDS
};
extern const struct tdm_op_type tdm_loss_type;

/* Backward. Of the ops for a tile's rows, the last one to run stores their gradient. */
enum tdm_head_grad_operand {
    /* read; changed by the last op of the rows: normed rows become their gradient */
    TDM_HEAD_GRAD_ROWS = TDM_HEAD_ROWS,
    TDM_HEAD_GRAD_TOKENS = TDM_HEAD_TOKENS,   /* read */
    TDM_HEAD_GRAD_WEIGHTS = TDM_HEAD_WEIGHTS, /* read */
    TDM_HEAD_GRAD_LOGITS = TDM_HEAD_LOGITS,   /* written */
    /* written or added to: the op's own entries; the first tile of rows of the step overwrites them
     * (tdm_head_opens) */
    TDM_HEAD_GRAD_DWEIGHTS = TDM_HEAD_DWEIGHTS,
    TDM_HEAD_GRAD_LSE, /* read: of the whole vocabulary */
    /* written or added to: fp32 [tile tokens, hidden], gradient of the rows over the vocabulary so
     * far */
    TDM_HEAD_GRAD_SUM,
    TDM_HEAD_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_head_grad_type;

#endif
