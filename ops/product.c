/* SPDX-License-Identifier: Apache-2.0 */
/* Records of products. */
#include "ops/product.h"

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
};
