/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with weights as multiplications: y = x W^T (+ bias, + addend), and the gradients of x
 * and W.
 *
 * A part is one or two matrices of a unit: with K and V, and with gate and up, a row of y is what
 * the first gives, then what the second gives.
 */
#ifndef TDM_EXECUTOR_PRODUCTS_H
#define TDM_EXECUTOR_PRODUCTS_H

#include "executor/backend.h"
#include "executor/multiplication.h"

/* What a launch of TDM_OP_PRODUCT, _GRAD_INPUT or _GRAD_WEIGHT multiplies: `count` multiplications
 * that write different memory. The gradient of a bias, a sum of columns, is not among them. */
enum tdm_status tdm_products_plan(const struct tdm_launch *launch, struct tdm_part_tensors *part,
                                  struct tdm_multiplication multiplications[2], uint32_t *count,
                                  struct tdm_error *err);

#endif
