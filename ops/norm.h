/* SPDX-License-Identifier: Apache-2.0 */
/* RMS norm of rows, and its gradient. */
#ifndef TDM_OPS_NORM_H
#define TDM_OPS_NORM_H

#include "ops/ops.h"

struct tdm_norm_params {
    uint32_t hidden;
    double epsilon;
};

enum tdm_norm_operand {
    TDM_NORM_X,       /* read: input, [tokens, hidden] */
    TDM_NORM_WEIGHTS, /* read: [hidden] */
    TDM_NORM_OUT,     /* written: the normed input, [tokens, hidden] */
    TDM_NORM_OPERANDS
};
extern const struct tdm_op_type tdm_norm_type;

enum tdm_norm_grad_operand {
    TDM_NORM_GRAD_X,       /* read: input, [tokens, hidden] */
    TDM_NORM_GRAD_WEIGHTS, /* read: [hidden] */
    TDM_NORM_GRAD_DOUT,    /* read: gradient of the output, [tokens, hidden] */
    /* changed: the gradient from the residual path becomes that of the input, [tokens, hidden];
     * written if there is no residual path (final norm) */
    TDM_NORM_GRAD_DX,
    TDM_NORM_GRAD_DWEIGHTS, /* written or added to: [hidden], summed over the chunks */
    TDM_NORM_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_norm_grad_type;

#endif
