/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the norm ops. */
#include "ops/norm.h"

#include "base/size.h"
#include "ops/params.h"
#include "ops/scratch.h"

/* Scratch for the sums of the weights' gradient. */
static uint64_t weight_bytes(const struct tdm_params *params, uint64_t tokens)
{
    (void)tokens;
    return tdm_size_mul(params->norm.hidden, TDM_NORM_SLICES * sizeof(float));
}

const struct tdm_op_type tdm_norm_type = {
    .name = "norm",
    .operands = TDM_NORM_OPERANDS,
    .operand =
        {
            [TDM_NORM_X] = {"input", TDM_READS, false},
            [TDM_NORM_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_NORM_OUT] = {"output", TDM_WRITES, false},
        },
    .rate = TDM_RATE_NORM,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_norm_grad_type = {
    .name = "norm_grad",
    .operands = TDM_NORM_GRAD_OPERANDS,
    .operand =
        {
            [TDM_NORM_GRAD_X] = {"input", TDM_READS, false},
            [TDM_NORM_GRAD_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_NORM_GRAD_DOUT] = {"output's gradient", TDM_READS, false},
            [TDM_NORM_GRAD_DX] = {"input's gradient", TDM_WRITES | TDM_CHANGES, false},
            [TDM_NORM_GRAD_DWEIGHTS] = {"weights' gradient", TDM_WRITES | TDM_CHANGES, false},
        },
    .rate = TDM_RATE_NORM_GRAD,
    .flops = tdm_no_flops,
    .scratch = weight_bytes,
};
