/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the rotation ops. */
#include "ops/rope.h"

#include "base/size.h"
#include "ops/params.h"
#include "ops/scratch.h"

/* Scratch for the sums of the gradient of QK-norm's weights. */
static uint64_t weight_bytes(const struct tdm_params *params, uint64_t tokens)
{
    (void)tokens;
    return tdm_size_mul(params->rope.head_dim, TDM_HEAD_SLICES * sizeof(float));
}

const struct tdm_op_type tdm_rope_type = {
    .name = "rope",
    .operands = TDM_ROPE_OPERANDS,
    .operand =
        {
            [TDM_ROPE_Q] = {"q", TDM_READS | TDM_CHANGES, false},
            [TDM_ROPE_WEIGHTS] = {"weights", TDM_READS, true},
            [TDM_ROPE_OUT] = {"output", TDM_WRITES, true},
        },
    .rate = TDM_RATE_ROPE,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_rope_grad_type = {
    .name = "rope_grad",
    .operands = TDM_ROPE_GRAD_OPERANDS,
    .operand =
        {
            [TDM_ROPE_GRAD_DQ] = {"gradient of q", TDM_CHANGES, false},
            [TDM_ROPE_GRAD_RAW] = {"raw q", TDM_READS, true},
            [TDM_ROPE_GRAD_WEIGHTS] = {"weights", TDM_READS, true},
            [TDM_ROPE_GRAD_DWEIGHTS] = {"weights' gradient", TDM_WRITES | TDM_CHANGES, true},
        },
    .rate = TDM_RATE_ROPE_GRAD,
    .flops = tdm_no_flops,
    .scratch = weight_bytes,
};

const struct tdm_op_type tdm_kv_write_type = {
    .name = "kv_write",
    .operands = TDM_KV_WRITE_OPERANDS,
    .operand =
        {
            [TDM_KV_WRITE_RAW] = {"raw k, v", TDM_READS, false},
            [TDM_KV_WRITE_PAGES] = {"k, v pages", TDM_WRITES, false},
            [TDM_KV_WRITE_WEIGHTS] = {"weights", TDM_READS, true},
        },
    .rate = TDM_RATE_KV_WRITE,
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_kv_grad_read_type = {
    .name = "kv_grad_read",
    .operands = TDM_KV_GRAD_READ_OPERANDS,
    .operand =
        {
            [TDM_KV_GRAD_READ_DPAGES] = {"gradient of the k, v pages", TDM_READS, false},
            [TDM_KV_GRAD_READ_DRAW] = {"gradient of the raw k, v", TDM_WRITES, false},
            [TDM_KV_GRAD_READ_RAW] = {"raw k, v", TDM_READS, true},
            [TDM_KV_GRAD_READ_WEIGHTS] = {"weights", TDM_READS, true},
            [TDM_KV_GRAD_READ_DWEIGHTS] = {"weights' gradient", TDM_WRITES | TDM_CHANGES, true},
        },
    .rate = TDM_RATE_KV_GRAD_READ,
    .flops = tdm_no_flops,
    .scratch = weight_bytes,
};
