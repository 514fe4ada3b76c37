/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights, and the gradients of their factors and biases. */
#include "executor/products.h"

#include "executor/cuda/cuda.h"
#include "ops/product.h"

enum tdm_status tdm_cuda_run_product(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     struct tdm_error *err)
{
    struct tdm_part_tensors part;
    struct tdm_multiplication multiplications[2];
    uint32_t count;
    enum tdm_status status = tdm_products_plan(launch, &part, multiplications, &count, err);
    if (status != TDM_OK)
        return status;
    return tdm_cuda_multiply(executor->matmul, count, multiplications, tdm_cuda_compute(executor),
                             err);
}

enum tdm_status tdm_cuda_run_product_grad_weight(struct tdm_executor *executor,
                                                 const struct tdm_launch *launch,
                                                 struct tdm_error *err)
{
    const struct tdm_operand *dy = &launch->operand[TDM_PRODUCT_GRAD_WEIGHT_DOUT],
                             *dw = &launch->operand[TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS];
    struct tdm_part_tensors part;
    struct tdm_multiplication multiplications[2];
    uint32_t count;
    enum tdm_status status = tdm_products_plan(launch, &part, multiplications, &count, err);
    if (status == TDM_OK)
        status = tdm_cuda_multiply(executor->matmul, count, multiplications,
                                   tdm_cuda_compute(executor), err);
    uint64_t column = 0;
    for (uint32_t i = 0; status == TDM_OK && i < part.count; i++) {
        uint64_t columns = part.matrix[i]->rows;
        if (part.bias[i] != NULL)
            status = tdm_cuda_column_sums(tdm_array_at(dy, column), launch->op->tokens,
                                          part.outputs, columns, dw->mode == TDM_ACCUMULATE,
                                          tdm_array_at(dw, part.bias[i]->offset), executor->scratch,
                                          tdm_cuda_compute(executor), err);
        column += columns;
    }
    return status;
}
