/* SPDX-License-Identifier: Apache-2.0 */
/* Records of attention. */
#include "ops/attention.h"

/* Backends go by number from the chunks that they open to the others. */
_Static_assert(TDM_ATTENTION_GRAD_DKV_ADDED == TDM_ATTENTION_GRAD_DKV_OPENED + 1, "order");

const struct tdm_op_type tdm_attention_type = {
    .name = "attention",
    .operands = TDM_ATTENTION_OPERANDS,
    .operand =
        {
            [TDM_ATTENTION_Q] = {"q", TDM_READS, false},
            [TDM_ATTENTION_KV] = {"k, v pages", TDM_READS, false},
            [TDM_ATTENTION_O] = {"output", TDM_WRITES, false},
            [TDM_ATTENTION_LISTS] = {"page lists", TDM_READS, true},
        },
};

const struct tdm_op_type tdm_attention_grad_type = {
    .name = "attention_grad",
    .operands = TDM_ATTENTION_GRAD_OPERANDS,
    .operand =
        {
            [TDM_ATTENTION_GRAD_Q] = {"q", TDM_READS, false},
            [TDM_ATTENTION_GRAD_KV] = {"k, v pages", TDM_READS, false},
            [TDM_ATTENTION_GRAD_O] = {"output", TDM_READS, false},
            [TDM_ATTENTION_GRAD_DO] = {"output's gradient", TDM_READS, false},
            [TDM_ATTENTION_GRAD_DQ] = {"gradient of q", TDM_WRITES, false},
            [TDM_ATTENTION_GRAD_DKV_OPENED] =
                {"gradient of the k, v pages that no later chunk sees", TDM_WRITES, true},
            [TDM_ATTENTION_GRAD_DKV_ADDED] = {"gradient of the k, v pages that a later chunk sees",
                                              TDM_CHANGES, true},
            [TDM_ATTENTION_GRAD_LISTS] = {"page lists", TDM_READS, true},
        },
};
