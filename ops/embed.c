/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the embedding ops. */
#include "ops/embed.h"

const struct tdm_op_type tdm_embed_type = {
    .name = "embed",
    .operands = TDM_EMBED_OPERANDS,
    .operand =
        {
            [TDM_EMBED_TOKENS] = {"tokens", TDM_READS, false},
            [TDM_EMBED_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_EMBED_OUT] = {"output", TDM_WRITES, false},
        },
    .rate = TDM_RATE_EMBED,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_embed_grad_type = {
    .name = "embed_grad",
    .operands = TDM_EMBED_GRAD_OPERANDS,
    .operand =
        {
            [TDM_EMBED_GRAD_TOKENS] = {"tokens", TDM_READS, false},
            [TDM_EMBED_GRAD_ORDER] = {"token order", TDM_READS, false},
            [TDM_EMBED_GRAD_DOUT] = {"output's gradient", TDM_READS, false},
            [TDM_EMBED_GRAD_DWEIGHTS] = {"weights' gradient", TDM_CHANGES, false},
        },
    .rate = TDM_RATE_EMBED_GRAD,
    .flops = tdm_no_flops,
};
