/* SPDX-License-Identifier: Apache-2.0 */
/* Products of rows with the matrices of a part, and the gradients of both factors. A part has one
 * or two matrices. With K and V, and with gate and up, the columns of the second come after those
 * of the first. */
#ifndef TDM_OPS_PRODUCT_H
#define TDM_OPS_PRODUCT_H

#include "ops/ops.h"

struct tdm_product_params {
    uint64_t elements[TDM_PARTS]; /* of the matrices of a part; 0: no product uses it */
    uint64_t bias_columns;        /* largest number of columns of all biases of a layer */
};

/* output = input * weights^T (+ bias) (+ addend). */
enum tdm_product_operand {
    TDM_PRODUCT_X,       /* read: input, [tokens, inputs] */
    TDM_PRODUCT_WEIGHTS, /* read: matrices [outputs, inputs], with their biases */
    TDM_PRODUCT_OUT,     /* written: [tokens, outputs] */
    TDM_PRODUCT_ADDEND,  /* read, or absent: [tokens, outputs] */
    TDM_PRODUCT_OPERANDS
};
extern const struct tdm_op_type tdm_product_type;

/* input's gradient (+)= output's gradient * weights. */
enum tdm_product_grad_input_operand {
    TDM_PRODUCT_GRAD_INPUT_DOUT,    /* read: gradient of the output, [tokens, outputs] */
    TDM_PRODUCT_GRAD_INPUT_WEIGHTS, /* read: matrices [outputs, inputs] */
    /* written or added to: gradient of the input, [tokens, inputs]; K and V add to what q wrote */
    TDM_PRODUCT_GRAD_INPUT_DX,
    TDM_PRODUCT_GRAD_INPUT_OPERANDS
};
extern const struct tdm_op_type tdm_product_grad_input_type;

/* weights' gradient (+)= output's gradient^T * input; for a bias, the sum of the rows. */
enum tdm_product_grad_weight_operand {
    TDM_PRODUCT_GRAD_WEIGHT_X,    /* read: input, [tokens, inputs] */
    TDM_PRODUCT_GRAD_WEIGHT_DOUT, /* read: gradient of the output, [tokens, outputs] */
    /* written or added to: [outputs, inputs], summed over the chunks */
    TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS,
    TDM_PRODUCT_GRAD_WEIGHT_OPERANDS
};
extern const struct tdm_op_type tdm_product_grad_weight_type;

#endif
