/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the MLP's gate: SwiGLU or GeGLU. */
#include "ops/mlp.h"

const struct tdm_op_type tdm_swiglu_type = {
    .name = "swiglu",
    .operands = TDM_SWIGLU_OPERANDS,
    .operand =
        {
            [TDM_SWIGLU_GATE_UP] = {"gate and up", TDM_READS, false},
            [TDM_SWIGLU_OUT] = {"output", TDM_WRITES, false},
        },
    .rate = TDM_RATE_SWIGLU,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_swiglu_grad_type = {
    .name = "swiglu_grad",
    .operands = TDM_SWIGLU_GRAD_OPERANDS,
    .operand =
        {
            [TDM_SWIGLU_GRAD_GATE_UP] = {"gate and up", TDM_CHANGES, false},
            [TDM_SWIGLU_GRAD_DOUT] = {"output's gradient", TDM_CHANGES, false},
        },
    .rate = TDM_RATE_SWIGLU_GRAD,
    .flops = tdm_no_flops,
};
