/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head and loss of a tile: some rows of a chunk, and all or some entries of the vocabulary.
 *
 * `head` goes forward and backward at once, with the whole vocabulary. Where the vocabulary is cut,
 * `loss` goes forward and `head_grad` backward. An evaluation has `loss` alone. Rows,
 * tokens, weights and logits are the same operands of all three, and so are the weights' gradient
 * and the loss of two of them.
 */
#ifndef TDM_OPS_HEAD_H
#define TDM_OPS_HEAD_H

#include "ops/ops.h"

struct tdm_head_params {
    uint32_t hidden, vocabulary;
    uint64_t trained_tokens; /* of the step, that have a target: the loss is the mean over these */
};

enum tdm_head_operand {
    /* changed: normed rows of the tile to their gradient, of [chunk tokens, hidden] */
    TDM_HEAD_ROWS,
    TDM_HEAD_TOKENS,   /* read: int32 [chunk tokens], then the targets */
    TDM_HEAD_WEIGHTS,  /* read: the op's entries of [vocabulary, hidden] */
    TDM_HEAD_LOGITS,   /* written: [tile tokens, entries] */
    TDM_HEAD_DWEIGHTS, /* written or added to: summed over the tiles of the step */
    TDM_HEAD_LOSS,     /* written or added to: fp64 [1], summed over the chunk's tiles */
    TDM_HEAD_OPERANDS
};
extern const struct tdm_op_type tdm_head_type;

/* Forward. Of the ops of a tile's rows, the last one to run has the loss. */
enum tdm_loss_operand {
    TDM_LOSS_ROWS = TDM_HEAD_ROWS,       /* read */
    TDM_LOSS_TOKENS = TDM_HEAD_TOKENS,   /* read */
    TDM_LOSS_WEIGHTS = TDM_HEAD_WEIGHTS, /* read */
    TDM_LOSS_LOGITS = TDM_HEAD_LOGITS,   /* written */
    /* written or added to where the vocabulary is cut, else absent: fp64 [tile tokens, 3], over
     * the vocabulary so far */
    TDM_LOSS_LSE,
    TDM_LOSS_LOSS =
        TDM_HEAD_LOSS, /* written or added to by the last op of the rows, else absent: fp64 [1] */
    TDM_LOSS_OPERANDS
};
extern const struct tdm_op_type tdm_loss_type;

/* Backward. Of the ops of a tile's rows, the last one to run stores their gradient. */
enum tdm_head_grad_operand {
    /* read; changed by the last op of the rows: normed rows to their gradient */
    TDM_HEAD_GRAD_ROWS = TDM_HEAD_ROWS,
    TDM_HEAD_GRAD_TOKENS = TDM_HEAD_TOKENS,   /* read */
    TDM_HEAD_GRAD_WEIGHTS = TDM_HEAD_WEIGHTS, /* read */
    TDM_HEAD_GRAD_LOGITS = TDM_HEAD_LOGITS,   /* written */
    /* written or added to: its own entries; in the first tile of rows of the step it overwrites
     * these (tdm_head_opens) */
    TDM_HEAD_GRAD_DWEIGHTS = TDM_HEAD_DWEIGHTS,
    TDM_HEAD_GRAD_LSE, /* read: of the whole vocabulary */
    /* written or added to: fp32 [tile tokens, hidden], gradient of the rows over the vocabulary so
     * far */
    TDM_HEAD_GRAD_SUM,
    TDM_HEAD_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_head_grad_type;

#endif
