/* SPDX-License-Identifier: Apache-2.0 */
/* Turns products with weights, and their gradients, into multiplications. */
#include "executor/products.h"

#include "ops/product.h"

static struct tdm_matrix matrix_at(const struct tdm_operand *operand, uint64_t first,
                                   uint64_t stride, bool transposed)
{
    return (struct tdm_matrix){tdm_operand_at(operand, first), operand->dtype, stride, transposed};
}

/* y = x W^T: one multiplication per matrix, each into its own columns. */
static uint32_t plan_product(const struct tdm_launch *launch, const struct tdm_part_tensors *part,
                             struct tdm_multiplication multiplications[2])
{
    const struct tdm_operand *x = &launch->operand[TDM_PRODUCT_X],
                             *w = &launch->operand[TDM_PRODUCT_WEIGHTS];
    const struct tdm_operand *y = &launch->operand[TDM_PRODUCT_OUT],
                             *addend = &launch->operand[TDM_PRODUCT_ADDEND];
    uint64_t column = 0;
    for (uint32_t i = 0; i < part->count; i++) {
        const struct tdm_tensor *matrix = part->matrix[i], *bias = part->bias[i];
        struct tdm_multiplication *m = &multiplications[i];
        m->m = launch->op->tokens;
        m->n = matrix->rows;
        m->c = matrix_at(y, column, part->outputs, false);
        if (addend->data != NULL)
            m->addend = matrix_at(addend, column, part->outputs, false);
        else if (bias != NULL)
            m->bias = matrix_at(w, bias->offset, 0, false);
        m->terms = 1;
        m->term[0].k = part->inputs;
        m->term[0].a = matrix_at(x, 0, part->inputs, false);
        m->term[0].b = matrix_at(w, matrix->offset, part->inputs, true);
        column += matrix->rows;
    }
    return part->count;
}

/* dx = dy W: one multiplication, with one term per matrix. */
static uint32_t plan_grad_input(const struct tdm_launch *launch,
                                const struct tdm_part_tensors *part, struct tdm_multiplication *m)
{
    const struct tdm_operand *dy = &launch->operand[TDM_PRODUCT_GRAD_INPUT_DOUT],
                             *w = &launch->operand[TDM_PRODUCT_GRAD_INPUT_WEIGHTS];
    const struct tdm_operand *dx = &launch->operand[TDM_PRODUCT_GRAD_INPUT_DX];
    uint64_t column = 0;
    m->m = launch->op->tokens;
    m->n = part->inputs;
    m->c = matrix_at(dx, 0, part->inputs, false);
    m->add = dx->mode == TDM_ACCUMULATE;
    m->terms = part->count;
    for (uint32_t i = 0; i < part->count; i++) {
        m->term[i].k = part->matrix[i]->rows;
        m->term[i].a = matrix_at(dy, column, part->outputs, false);
        m->term[i].b = matrix_at(w, part->matrix[i]->offset, part->inputs, false);
        column += part->matrix[i]->rows;
    }
    return 1;
}

/* dW = dy^T x: one multiplication per matrix. */
static uint32_t plan_grad_weight(const struct tdm_launch *launch,
                                 const struct tdm_part_tensors *part,
                                 struct tdm_multiplication multiplications[2])
{
    const struct tdm_operand *x = &launch->operand[TDM_PRODUCT_GRAD_WEIGHT_X],
                             *dy = &launch->operand[TDM_PRODUCT_GRAD_WEIGHT_DOUT];
    const struct tdm_operand *dw = &launch->operand[TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS];
    uint64_t column = 0;
    for (uint32_t i = 0; i < part->count; i++) {
        const struct tdm_tensor *matrix = part->matrix[i];
        struct tdm_multiplication *m = &multiplications[i];
        m->m = matrix->rows;
        m->n = part->inputs;
        m->c = matrix_at(dw, matrix->offset, part->inputs, false);
        m->add = dw->mode == TDM_ACCUMULATE;
        m->terms = 1;
        m->term[0].k = launch->op->tokens;
        m->term[0].a = matrix_at(dy, column, part->outputs, true);
        m->term[0].b = matrix_at(x, 0, part->inputs, false);
        column += matrix->rows;
    }
    return part->count;
}

enum tdm_status tdm_products_plan(const struct tdm_launch *launch, struct tdm_part_tensors *part,
                                  struct tdm_multiplication multiplications[2], uint32_t *count,
                                  struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    bool is_product =
        op->part < TDM_PARTS && tdm_launch_params(launch)->product.elements[op->part] > 0;
    *part = is_product ? tdm_launch_tensors(launch) : (struct tdm_part_tensors){0};
    if (part->count == 0)
        return tdm_fail(err, TDM_INTERNAL, "op %llu: no product with part %d of unit %u",
                        (unsigned long long)op->number, (int)op->part, op->layer);
    multiplications[0] = multiplications[1] = (struct tdm_multiplication){0};
    if (op->kind == TDM_OP_PRODUCT)
        *count = plan_product(launch, part, multiplications);
    else if (op->kind == TDM_OP_PRODUCT_GRAD_INPUT)
        *count = plan_grad_input(launch, part, multiplications);
    else
        *count = plan_grad_weight(launch, part, multiplications);
    return TDM_OK;
}
