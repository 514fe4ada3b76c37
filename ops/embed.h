/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding of tokens, and its gradient. */
#ifndef TDM_OPS_EMBED_H
#define TDM_OPS_EMBED_H

#include "ops/ops.h"

struct tdm_embed_params {
    uint32_t vocabulary, hidden;
};

enum tdm_embed_operand {
    TDM_EMBED_TOKENS,  /* read: int32 [tokens] */
    TDM_EMBED_WEIGHTS, /* read: the rows of the tokens, of [vocabulary, hidden] */
    TDM_EMBED_OUT,     /* written: input of layer 0, [tokens, hidden] */
    TDM_EMBED_OPERANDS
};
extern const struct tdm_op_type tdm_embed_type;

enum tdm_embed_grad_operand {
    TDM_EMBED_GRAD_TOKENS = TDM_EMBED_TOKENS, /* read: int32 [tokens] */
    TDM_EMBED_GRAD_ORDER,                     /* read: rows by rising token, of sort_tokens */
    TDM_EMBED_GRAD_DOUT,                      /* read: gradient of the output, [tokens, hidden] */
    /* added to: the rows of the tokens; TDM_OP_ZERO has made all of them zero */
    TDM_EMBED_GRAD_DWEIGHTS,
    TDM_EMBED_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_embed_grad_type;

#endif
