/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights, and the gradients of their factors and biases. */
#include "executor/cpu/multiply.h"
#include "executor/products.h"

#include "executor/convert.h"
#include "ops/product.h"

/* Sums of the columns of a matrix: the gradients of biases. */
struct column_sums {
    const struct tdm_launch *launch;
    const struct tdm_part_tensors *part;
};

enum { SUM_COLUMNS = 64 }; /* of a task */

static void column_sums_task(void *context, void *scratch, uint64_t index)
{
    const struct column_sums *sums = context;
    const struct tdm_operand *dy = &sums->launch->operand[TDM_PRODUCT_GRAD_WEIGHT_DOUT],
                             *dw = &sums->launch->operand[TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS];
    const struct tdm_part_tensors *part = sums->part;
    (void)scratch;
    uint64_t column = 0, i = 0;
    for (; i < part->count; i++) { /* which bias, and which of its blocks */
        uint64_t blocks = (part->matrix[i]->rows + SUM_COLUMNS - 1) / SUM_COLUMNS;
        if (index < blocks)
            break;
        index -= blocks;
        column += part->matrix[i]->rows;
    }
    if (part->bias[i] == NULL)
        return;
    uint64_t first = index * SUM_COLUMNS;
    uint64_t columns = tdm_least(SUM_COLUMNS, part->matrix[i]->rows - first);
    double sum[SUM_COLUMNS] = {0};
    float row[SUM_COLUMNS];
    for (uint64_t t = 0; t < sums->launch->op->tokens; t++) {
        const float *line =
            tdm_view_row(dy->data, dy->dtype, t * part->outputs + column + first, columns, row);
        TDM_SIMD
        for (uint64_t j = 0; j < columns; j++)
            sum[j] += (double)line[j];
    }
    float total[SUM_COLUMNS];
    for (uint64_t j = 0; j < columns; j++)
        total[j] = (float)sum[j];
    if (dw->mode == TDM_ACCUMULATE)
        tdm_add_row(dw->data, dw->dtype, part->bias[i]->offset + first, columns, total, row);
    else
        tdm_store_row(dw->data, dw->dtype, part->bias[i]->offset + first, columns, total);
}

enum tdm_status tdm_cpu_product(struct tdm_executor *executor, const struct tdm_launch *launch,
                                struct tdm_error *err)
{
    struct tdm_part_tensors part;
    struct tdm_multiplication multiplications[2];
    uint32_t count;
    enum tdm_status status = tdm_products_plan(launch, &part, multiplications, &count, err);
    if (status == TDM_OK)
        tdm_multiply(executor, count, multiplications);
    return status;
}

enum tdm_status tdm_cpu_product_grad_weight(struct tdm_executor *executor,
                                            const struct tdm_launch *launch, struct tdm_error *err)
{
    struct tdm_part_tensors part;
    struct tdm_multiplication multiplications[2];
    uint32_t count;
    enum tdm_status status = tdm_products_plan(launch, &part, multiplications, &count, err);
    if (status != TDM_OK)
        return status;
    tdm_multiply(executor, count, multiplications);
    uint64_t bias_tasks = 0;
    for (uint32_t i = 0; i < part.count; i++)
        bias_tasks += (part.matrix[i]->rows + SUM_COLUMNS - 1) / SUM_COLUMNS;
    if (part.bias[0] != NULL || part.bias[1] != NULL) {
        struct column_sums sums = {launch, &part};
        tdm_cpu_for(executor, bias_tasks, column_sums_task, &sums);
    }
    return TDM_OK;
}
