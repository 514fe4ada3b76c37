/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the product ops. */
#include "ops/product.h"

#include "base/size.h"
#include "ops/params.h"
#include "ops/scratch.h"

static uint64_t flops(const struct tdm_params *params, const struct tdm_work *work)
{
    uint64_t elements = work->part < TDM_PARTS ? params->product.elements[work->part] : 0;
    return tdm_size_mul(2 * work->tokens, elements);
}

/* Scratch for the column sums of a bias. */
static uint64_t bias_bytes(const struct tdm_params *params, uint64_t tokens)
{
    (void)tokens;
    return tdm_size_mul(params->product.bias_columns, TDM_BIAS_SLICES * sizeof(float));
}

const struct tdm_op_type tdm_product_type = {
    .name = "product",
    .operands = TDM_PRODUCT_OPERANDS,
    .operand =
        {
            [TDM_PRODUCT_X] = {"input", TDM_READS, false},
            [TDM_PRODUCT_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_PRODUCT_OUT] = {"output", TDM_WRITES, false},
            [TDM_PRODUCT_ADDEND] = {"addend", TDM_READS, true},
        },
    .rate = TDM_RATE_PRODUCT,
    .flops = flops,
};

const struct tdm_op_type tdm_product_grad_input_type = {
    .name = "product_grad_input",
    .operands = TDM_PRODUCT_GRAD_INPUT_OPERANDS,
    .operand =
        {
            [TDM_PRODUCT_GRAD_INPUT_DOUT] = {"output's gradient", TDM_READS, false},
            [TDM_PRODUCT_GRAD_INPUT_WEIGHTS] = {"weights", TDM_READS, false},
            [TDM_PRODUCT_GRAD_INPUT_DX] = {"input's gradient", TDM_WRITES | TDM_CHANGES, false},
        },
    .rate = TDM_RATE_PRODUCT_GRAD_INPUT,
    .flops = flops,
};

const struct tdm_op_type tdm_product_grad_weight_type = {
    .name = "product_grad_weight",
    .operands = TDM_PRODUCT_GRAD_WEIGHT_OPERANDS,
    .operand =
        {
            [TDM_PRODUCT_GRAD_WEIGHT_X] = {"input", TDM_READS, false},
            [TDM_PRODUCT_GRAD_WEIGHT_DOUT] = {"output's gradient", TDM_READS, false},
            [TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS] = {"weights' gradient", TDM_WRITES | TDM_CHANGES,
                                                  false},
        },
    .rate = TDM_RATE_PRODUCT_GRAD_WEIGHT,
    .flops = flops,
    .scratch = bias_bytes,
};
