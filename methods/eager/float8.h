/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of 8 bits of torchao: operands are scaled and cast for each of the three products of a
 * linear layer, in the forward and again in the backward. A weight with a recipe is a leaf that
 * tdm_linear() recognises. Source: torchao 0.18 float8/float8_linear.py
 * (matmul_with_hp_or_float8_args), float8_utils.py (tensor_to_scale, to_fp8_saturated),
 * float8_training_tensor.py (_ToFloat8ConstrFunc), float8_ops.py (preprocess_addmm), config.py.
 */
#ifndef TDM_METHODS_EAGER_FLOAT8_H
#define TDM_METHODS_EAGER_FLOAT8_H

#include "methods/eager/eager.h"

enum tdm_float8 {
    TDM_FLOAT8_NO,
    TDM_FLOAT8_TENSORWISE,         /* one scale a tensor */
    TDM_FLOAT8_ROWWISE,            /* one a row, or a column, of an operand */
    TDM_FLOAT8_ROWWISE_WITH_GW_HP, /* the same; the weight's gradient is a product of bf16 */
    TDM_FLOAT8_TE,                 /* Transformer Engine's module, with delayed scaling */
    TDM_FLOAT8_BLOCKWISE, /* a scale for 128 elements of a row, for 128 x 128 of a weight */
};

/* x.to(fp8), with one scale of all elements, which is freed: a value of a byte an element. */
struct tdm_eager_value *tdm_float8_cast(struct tdm_eager *m, struct tdm_eager_value *x);

/* x W^T + b, of weight->float8. */
struct tdm_eager_value *tdm_float8_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                          struct tdm_eager_value *weight,
                                          struct tdm_eager_value *bias);

#endif
