/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of the MLP, SwiGLU or GeGLU (gate.h), and its gradient. */
#ifndef TDM_OPS_MLP_H
#define TDM_OPS_MLP_H

#include "ops/gate.h"
#include "ops/ops.h"

struct tdm_mlp_params {
    uint32_t intermediate;
    struct tdm_gate gate;
};

enum tdm_swiglu_operand {
    TDM_SWIGLU_GATE_UP, /* read: [tokens, gate then up: 2 * intermediate] */
    TDM_SWIGLU_OUT,     /* written: [tokens, intermediate] */
    TDM_SWIGLU_OPERANDS
};
extern const struct tdm_op_type tdm_swiglu_type;

enum tdm_swiglu_grad_operand {
    /* changed: gate and up become their gradients, [tokens, 2 * intermediate] */
    TDM_SWIGLU_GRAD_GATE_UP,
    /* changed: the gradient of the output becomes the output, which the gradient of the next
     * weights reads, [tokens, intermediate] */
    TDM_SWIGLU_GRAD_DOUT,
    TDM_SWIGLU_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_swiglu_grad_type;

#endif
