/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with weights as matrix multiplications: y = x W^T (+ bias, + addend), and the gradients
 * of x and W.
 *
 * A part has one or two matrices of a unit. With two (K and V, or gate and up) a row of y holds the
 * result of the first, followed by that of the second.
 */
#ifndef TDM_EXECUTOR_PRODUCTS_H
#define TDM_EXECUTOR_PRODUCTS_H

#include "executor/backend.h"
#include "executor/multiplication.h"

/* The `count` multiplications of a launch of TDM_OP_PRODUCT, _GRAD_INPUT or _GRAD_WEIGHT. They
 * write different memory. They do not include the gradient of a bias, which is a sum of columns. */
enum tdm_status tdm_products_plan(const struct tdm_launch *launch, struct tdm_part_tensors *part,
                                  struct tdm_multiplication multiplications[2], uint32_t *count,
                                  struct tdm_error *err);

#endif
