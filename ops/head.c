/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the LM head's ops. */
#include "ops/head.h"

#include "base/size.h"
#include "ops/params.h"

static uint64_t logits_flops(const struct tdm_params *params, const struct tdm_work *work)
{
    return tdm_size_mul(2 * work->tokens, (uint64_t)params->head.hidden * work->entries);
}

/* Logits, then both gradients. */
static uint64_t all_flops(const struct tdm_params *params, const struct tdm_work *work)
{
    return tdm_size_mul(6 * work->tokens, (uint64_t)params->head.hidden * work->entries);
}

/* The loss of each row. */
static uint64_t loss_bytes(const struct tdm_params *params, uint64_t tokens)
{
    (void)params;
    return tdm_size_mul(tokens, sizeof(double));
}

const struct tdm_op_type tdm_head_type = {
    .name = "head",
    .operands = TDM_HEAD_OPERANDS,
    .operand =
        {
            [TDM_HEAD_ROWS] = {"normed rows", TDM_CHANGES, false},
            [TDM_HEAD_TOKENS] = {"tokens", TDM_READS, false},
            [TDM_HEAD_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_HEAD_LOGITS] = {"logits tile", TDM_WRITES, false},
            [TDM_HEAD_DWEIGHTS] = {"weights' gradient", TDM_WRITES | TDM_CHANGES, false},
            [TDM_HEAD_LOSS] = {"loss", TDM_WRITES | TDM_CHANGES, false},
        },
    .rate = TDM_RATE_HEAD,
    .flops = all_flops,
    .scratch = loss_bytes,
};

const struct tdm_op_type tdm_loss_type = {
    .name = "loss",
    .operands = TDM_LOSS_OPERANDS,
    .operand =
        {
            [TDM_LOSS_ROWS] = {"normed rows", TDM_READS, false},
            [TDM_LOSS_TOKENS] = {"tokens", TDM_READS, false},
            [TDM_LOSS_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_LOSS_LOGITS] = {"logits tile", TDM_WRITES, false},
            [TDM_LOSS_LSE] = {"logits' LSE", TDM_WRITES | TDM_CHANGES, true},
            [TDM_LOSS_LOSS] = {"loss", TDM_WRITES | TDM_CHANGES, true},
        },
    .rate = TDM_RATE_HEAD,
    .flops = logits_flops,
    .scratch = loss_bytes,
};

const struct tdm_op_type tdm_head_grad_type = {
    .name = "head_grad",
    .operands = TDM_HEAD_GRAD_OPERANDS,
    .operand =
        {
            [TDM_HEAD_GRAD_ROWS] = {"normed rows", TDM_READS | TDM_CHANGES, false},
            [TDM_HEAD_GRAD_TOKENS] = {"tokens", TDM_READS, false},
            [TDM_HEAD_GRAD_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_HEAD_GRAD_LOGITS] = {"logits tile", TDM_WRITES, false},
            [TDM_HEAD_GRAD_DWEIGHTS] = {"weights' gradient", TDM_WRITES | TDM_CHANGES, false},
            [TDM_HEAD_GRAD_LSE] = {"logits' LSE", TDM_READS, false},
            [TDM_HEAD_GRAD_SUM] = {"sum of the rows' gradient", TDM_WRITES | TDM_CHANGES, false},
        },
    .rate = TDM_RATE_HEAD,
    .flops = all_flops,
    .scratch = loss_bytes,
};
