/* SPDX-License-Identifier: Apache-2.0 */
/* Records of updates. */
#include "ops/update.h"

const struct tdm_op_type tdm_gradient_norm_type = {
    .name = "gradient_norm",
    .operands = TDM_GRADIENT_NORM_OPERANDS,
    .operand =
        {
            [TDM_GRADIENT_NORM_GRADIENT] = {"gradient", TDM_READS, false},
            [TDM_GRADIENT_NORM_NORM] = {"norm", TDM_WRITES, false},
            [TDM_GRADIENT_NORM_TIED] = {"tied gradient", TDM_READS, true},
        },
};

const struct tdm_op_type tdm_optimizer_type = {
    .name = "optimizer",
    .operands = TDM_OPTIMIZER_OPERANDS,
    .operand =
        {
            [TDM_OPTIMIZER_WEIGHTS] = {"weights", TDM_CHANGES, false},
            [TDM_OPTIMIZER_GRADIENT] = {"gradient", TDM_READS, false},
            [TDM_OPTIMIZER_MASTER] = {"master", TDM_CHANGES, true},
            [TDM_OPTIMIZER_MOMENT1] = {"moment 1", TDM_CHANGES, true},
            [TDM_OPTIMIZER_MOMENT2] = {"moment 2", TDM_CHANGES, true},
            [TDM_OPTIMIZER_NORMS] = {"norms", TDM_READS, true},
            [TDM_OPTIMIZER_TIED] = {"tied gradient", TDM_READS, true},
        },
};
