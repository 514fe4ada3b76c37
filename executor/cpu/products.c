/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with weights: y = x W^T (+ bias, + addend), and the gradients of x, W and bias.
 *
 * A part is one or two matrices of a unit: with K and V, and with gate and up, a row of y is what
 * the first gives, then what the second gives.
 */
#include "executor/cpu/multiply.h"

#include "executor/cpu/convert.h"

#include <string.h>

/* The matrices of a part and their biases (NULL: none). */
struct part {
    uint32_t count;
    const struct tdm_tensor *matrix[2];
    const struct tdm_tensor *bias[2];
    uint64_t inputs;  /* columns of each */
    uint64_t outputs; /* rows of both */
};

static enum tdm_status part_find(const struct tdm_launch *launch, struct part *part,
                                 struct tdm_error *err)
{
    static const struct {
        enum tdm_role matrix[2], bias[2]; /* TDM_ROLES: none */
    } roles[TDM_PARTS] = {
        [TDM_PART_Q] = {{TDM_ROLE_Q, TDM_ROLES}, {TDM_ROLE_Q_BIAS, TDM_ROLES}},
        [TDM_PART_KV] = {{TDM_ROLE_K, TDM_ROLE_V}, {TDM_ROLE_K_BIAS, TDM_ROLE_V_BIAS}},
        [TDM_PART_O] = {{TDM_ROLE_O, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
        [TDM_PART_GATE_UP] = {{TDM_ROLE_GATE, TDM_ROLE_UP}, {TDM_ROLES, TDM_ROLES}},
        [TDM_PART_DOWN] = {{TDM_ROLE_DOWN, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
    };
    const struct tdm_model *model = launch->program->schedule->model;
    const struct tdm_op *op = launch->op;
    *part = (struct part){0};
    if (op->part == TDM_PART_Q || op->part == TDM_PART_KV || op->part == TDM_PART_O ||
        op->part == TDM_PART_GATE_UP || op->part == TDM_PART_DOWN) {
        for (int i = 0; i < 2 && roles[op->part].matrix[i] != TDM_ROLES; i++) {
            const struct tdm_tensor *w =
                tdm_model_tensor(model, op->layer, roles[op->part].matrix[i]);
            if (w == NULL)
                break;
            part->matrix[i] = w;
            if (roles[op->part].bias[i] != TDM_ROLES)
                part->bias[i] = tdm_model_tensor(model, op->layer, roles[op->part].bias[i]);
            part->inputs = w->columns;
            part->outputs += w->rows;
            part->count++;
        }
    }
    if (part->count == 0)
        return tdm_fail(err, TDM_INTERNAL, "op %llu: no product with part %d of unit %u",
                        (unsigned long long)op->number, (int)op->part, op->layer);
    return TDM_OK;
}

static struct tdm_matrix matrix_at(const struct tdm_operand *operand, uint64_t first,
                                   uint64_t stride, bool transposed)
{
    return (struct tdm_matrix){tdm_operand_at(operand, first), operand->dtype, stride, transposed};
}

enum tdm_status tdm_cpu_product(struct tdm_executor *executor, const struct tdm_launch *launch,
                                struct tdm_error *err)
{
    const struct tdm_operand *x = &launch->operand[0], *w = &launch->operand[1];
    const struct tdm_operand *y = &launch->operand[2], *addend = &launch->operand[3];
    struct part part;
    enum tdm_status status = part_find(launch, &part, err);
    if (status != TDM_OK)
        return status;

    struct tdm_multiplication multiplications[2] = {0};
    uint64_t column = 0;
    for (uint32_t i = 0; i < part.count; i++) {
        const struct tdm_tensor *matrix = part.matrix[i], *bias = part.bias[i];
        struct tdm_multiplication *m = &multiplications[i];
        m->m = launch->op->tokens;
        m->n = matrix->rows;
        m->c = matrix_at(y, column, part.outputs, false);
        if (addend->data != NULL)
            m->addend = matrix_at(addend, column, part.outputs, false);
        else if (bias != NULL)
            m->bias = matrix_at(w, bias->offset, 0, false);
        m->terms = 1;
        m->term[0].k = part.inputs;
        m->term[0].a = matrix_at(x, 0, part.inputs, false);
        m->term[0].b = matrix_at(w, matrix->offset, part.inputs, true);
        column += matrix->rows;
    }
    tdm_multiply(executor, part.count, multiplications);
    return TDM_OK;
}

enum tdm_status tdm_cpu_product_grad_input(struct tdm_executor *executor,
                                           const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_operand *dy = &launch->operand[0], *w = &launch->operand[1];
    const struct tdm_operand *dx = &launch->operand[2];
    struct part part;
    enum tdm_status status = part_find(launch, &part, err);
    if (status != TDM_OK)
        return status;

    struct tdm_multiplication m = {.m = launch->op->tokens, .n = part.inputs};
    m.c = matrix_at(dx, 0, part.inputs, false);
    m.add = dx->mode == TDM_ACCUMULATE;
    m.terms = part.count;
    uint64_t column = 0;
    for (uint32_t i = 0; i < part.count; i++) {
        m.term[i].k = part.matrix[i]->rows;
        m.term[i].a = matrix_at(dy, column, part.outputs, false);
        m.term[i].b = matrix_at(w, part.matrix[i]->offset, part.inputs, false);
        column += part.matrix[i]->rows;
    }
    tdm_multiply(executor, 1, &m);
    return TDM_OK;
}

/* Sums of the columns of a matrix, for biases. */
struct column_sums {
    const struct tdm_launch *launch;
    const struct part *part;
};

enum { SUM_COLUMNS = 64 }; /* of a task */

static void column_sums_task(void *context, void *scratch, uint64_t index)
{
    const struct column_sums *sums = context;
    const struct tdm_operand *dy = &sums->launch->operand[1], *dw = &sums->launch->operand[2];
    const struct part *part = sums->part;
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

enum tdm_status tdm_cpu_product_grad_weight(struct tdm_executor *executor,
                                            const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_operand *x = &launch->operand[0], *dy = &launch->operand[1];
    const struct tdm_operand *dw = &launch->operand[2];
    struct part part;
    enum tdm_status status = part_find(launch, &part, err);
    if (status != TDM_OK)
        return status;

    struct tdm_multiplication multiplications[2] = {0};
    uint64_t column = 0, bias_tasks = 0;
    bool biased = false;
    for (uint32_t i = 0; i < part.count; i++) {
        const struct tdm_tensor *matrix = part.matrix[i];
        struct tdm_multiplication *m = &multiplications[i];
        m->m = matrix->rows;
        m->n = part.inputs;
        m->c = matrix_at(dw, matrix->offset, part.inputs, false);
        m->add = dw->mode == TDM_ACCUMULATE;
        m->terms = 1;
        m->term[0].k = launch->op->tokens;
        m->term[0].a = matrix_at(dy, column, part.outputs, true);
        m->term[0].b = matrix_at(x, 0, part.inputs, false);
        column += matrix->rows;
        bias_tasks += (matrix->rows + SUM_COLUMNS - 1) / SUM_COLUMNS;
        biased = biased || part.bias[i] != NULL;
    }
    tdm_multiply(executor, part.count, multiplications);
    if (biased) {
        struct column_sums sums = {launch, &part};
        tdm_cpu_for(executor, bias_tasks, column_sums_task, &sums);
    }
    return TDM_OK;
}
