/* SPDX-License-Identifier: Apache-2.0 */
/* The records of ops that move data. */
#include "ops/move.h"

const struct tdm_op_type tdm_copy_type = {
    .name = "copy",
    .operands = TDM_COPY_OPERANDS,
    .operand =
        {
            [TDM_COPY_FROM] = {"source", TDM_READS, false},
            [TDM_COPY_TO] = {"destination", TDM_WRITES, false},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* on the compute lane */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_zero_type = {
    .name = "zero",
    .operands = TDM_ZERO_OPERANDS,
    .operand =
        {
            [TDM_ZERO_SLOT] = {"slot", TDM_WRITES, false},
        },
    .rate = TDM_RATE_ZERO,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_sort_tokens_type = {
    .name = "sort_tokens",
    .operands = TDM_SORT_TOKENS_OPERANDS,
    .operand =
        {
            [TDM_SORT_TOKENS_TOKENS] = {"tokens", TDM_READS, false},
            [TDM_SORT_TOKENS_ORDER] = {"token order", TDM_WRITES, false},
        },
    .rate = TDM_RATE_SORT_TOKENS,
    .flops = tdm_no_flops,
};
