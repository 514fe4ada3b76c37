/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the update ops. */
#include "ops/update.h"

#include "base/size.h"
#include "ops/params.h"
#include "ops/scratch.h"

/* Scratch for the sums of squares of a unit's tensors. */
static uint64_t squares_bytes(const struct tdm_params *params, uint64_t tokens)
{
    uint64_t tensors = 0;
    (void)tokens;
    for (uint32_t unit = 0; unit < params->weights.unit_count; unit++)
        if (params->weights.units[unit].tensor_count > tensors)
            tensors = params->weights.units[unit].tensor_count;
    return tdm_size_mul(tensors, TDM_SQUARE_BLOCKS * sizeof(double));
}

const struct tdm_op_type tdm_gradient_norm_type = {
    .name = "gradient_norm",
    .operands = TDM_GRADIENT_NORM_OPERANDS,
    .operand =
        {
            [TDM_GRADIENT_NORM_GRADIENT] = {"gradient", TDM_READS, false},
            [TDM_GRADIENT_NORM_NORM] = {"norm", TDM_WRITES, false},
            [TDM_GRADIENT_NORM_TIED] = {"tied gradient", TDM_READS, true},
        },
    .rate = TDM_RATE_GRADIENT_NORM,
    .flops = tdm_no_flops,
    .scratch = squares_bytes,
};

const struct tdm_op_type tdm_optimizer_type = {
    .name = "optimizer",
    .operands = TDM_OPTIMIZER_OPERANDS,
    .operand =
        {
            [TDM_OPTIMIZER_WEIGHTS] = {"weights", TDM_CHANGES, false},
            [TDM_OPTIMIZER_GRADIENT] = {"gradient", TDM_READS, true},
            [TDM_OPTIMIZER_MASTER] = {"master", TDM_CHANGES, true},
            [TDM_OPTIMIZER_MOMENT1] = {"moment 1", TDM_CHANGES, true},
            [TDM_OPTIMIZER_MOMENT2] = {"moment 2", TDM_CHANGES, true},
            [TDM_OPTIMIZER_NORMS] = {"norms", TDM_READS, true},
            [TDM_OPTIMIZER_TIED] = {"tied gradient", TDM_READS, true},
        },
    .rate = TDM_RATE_OPTIMIZER,
    .flops = tdm_no_flops,
};
