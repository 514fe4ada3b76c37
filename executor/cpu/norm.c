/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm (arXiv 1910.07467, equation 4, with epsilon inside the root as Llama has it):
 * y = w x s with s = 1 / sqrt(mean(x^2) + epsilon), and its gradients
 * dx = s w dy - x s^3 / columns * sum(w dy x) and dw = sum over rows of dy x s.
 */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "ops/norm.h"

#include <math.h>

enum { SUM_COLUMNS = 64 }; /* of a task that sums over rows */

struct norm {
    const struct tdm_launch *launch;
    uint64_t columns, rows;
    double epsilon;
    const struct tdm_tensor *tensor;
    double *scale; /* [rows]: s */
    double *slope; /* [rows]: s^3 / columns * sum(w dy x) */
};

static enum tdm_status norm_begin(const struct tdm_launch *launch, struct norm *norm,
                                  struct tdm_error *err)
{
    const struct tdm_norm_params *params = &tdm_launch_params(launch)->norm;
    const struct tdm_op *op = launch->op;
    *norm = (struct norm){.launch = launch,
                          .columns = params->hidden,
                          .rows = op->tokens,
                          .epsilon = params->epsilon,
                          .tensor = tdm_launch_tensors(launch).matrix[0]};
    if (norm->tensor == NULL)
        return tdm_fail(err, TDM_INTERNAL, "op %llu: no norm in part %d of unit %u",
                        (unsigned long long)op->number, (int)op->part, op->layer);
    return TDM_OK;
}

static uint64_t blocks_of(uint64_t count, uint64_t block)
{
    return (count + block - 1) / block;
}

/* Sum of x y z, in lanes like tdm_sum_squares(). */
static double sum_products(const float *x, const float *y, const float *z, uint64_t count)
{
    double lane[8] = {0}, sum = 0;
    uint64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (double)(x[i + j] * y[i + j]) * (double)z[i + j];
    for (; i < count; i++)
        sum += (double)(x[i] * y[i]) * (double)z[i];
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

static double scale_of(const struct norm *norm, const float *x)
{
    return 1.0 / sqrt(tdm_sum_squares(x, norm->columns) / (double)norm->columns + norm->epsilon);
}

static void norm_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct norm *norm = context;
    const struct tdm_operand *in = &norm->launch->operand[TDM_NORM_X],
                             *w = &norm->launch->operand[TDM_NORM_WEIGHTS];
    const struct tdm_operand *out = &norm->launch->operand[TDM_NORM_OUT];
    uint64_t columns = norm->columns;
    unsigned char *scratch = thread_scratch;
    float *x_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    float *w_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    float *y = tdm_cpu_take(&scratch, columns, sizeof(float));
    const float *weight = tdm_view_row(w->data, w->dtype, norm->tensor->offset, columns, w_row);
    uint64_t end = tdm_least(norm->rows, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        const float *x = tdm_view_row(in->data, in->dtype, t * columns, columns, x_row);
        float scale = (float)scale_of(norm, x);
        TDM_SIMD
        for (uint64_t j = 0; j < columns; j++)
            y[j] = x[j] * scale * weight[j];
        tdm_store_row(out->data, out->dtype, t * columns, columns, y);
    }
}

enum tdm_status tdm_cpu_norm(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    struct norm norm;
    enum tdm_status status = norm_begin(launch, &norm, err);
    if (status == TDM_OK)
        tdm_cpu_for(executor, blocks_of(norm.rows, TDM_TASK_ROWS), norm_task, &norm);
    return status;
}

/* First: scale and slope of every row. */
static void slope_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct norm *norm = context;
    const struct tdm_operand *in = &norm->launch->operand[TDM_NORM_GRAD_X],
                             *w = &norm->launch->operand[TDM_NORM_GRAD_WEIGHTS];
    const struct tdm_operand *gradient = &norm->launch->operand[TDM_NORM_GRAD_DOUT];
    uint64_t columns = norm->columns;
    unsigned char *scratch = thread_scratch;
    float *x_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    float *w_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    float *dy_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    const float *weight = tdm_view_row(w->data, w->dtype, norm->tensor->offset, columns, w_row);
    uint64_t end = tdm_least(norm->rows, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        const float *x = tdm_view_row(in->data, in->dtype, t * columns, columns, x_row);
        const float *dy =
            tdm_view_row(gradient->data, gradient->dtype, t * columns, columns, dy_row);
        double s = scale_of(norm, x);
        norm->scale[t] = s;
        norm->slope[t] = s * s * s / (double)columns * sum_products(weight, dy, x, columns);
    }
}

/* Second: the weights' gradient, a block of columns over all rows. */
static void weight_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct norm *norm = context;
    const struct tdm_operand *in = &norm->launch->operand[TDM_NORM_GRAD_X];
    const struct tdm_operand *gradient = &norm->launch->operand[TDM_NORM_GRAD_DOUT],
                             *dw = &norm->launch->operand[TDM_NORM_GRAD_DWEIGHTS];
    (void)thread_scratch;
    uint64_t first = index * SUM_COLUMNS, count = tdm_least(SUM_COLUMNS, norm->columns - first);
    double sum[SUM_COLUMNS] = {0};
    float x_row[SUM_COLUMNS], dy_row[SUM_COLUMNS], total[SUM_COLUMNS];
    for (uint64_t t = 0; t < norm->rows; t++) {
        uint64_t at = t * norm->columns + first;
        const float *x = tdm_view_row(in->data, in->dtype, at, count, x_row);
        const float *dy = tdm_view_row(gradient->data, gradient->dtype, at, count, dy_row);
        double s = norm->scale[t];
        TDM_SIMD
        for (uint64_t j = 0; j < count; j++)
            sum[j] += (double)(dy[j] * x[j]) * s;
    }
    for (uint64_t j = 0; j < count; j++)
        total[j] = (float)sum[j];
    if (dw->mode == TDM_ACCUMULATE)
        tdm_add_row(dw->data, dw->dtype, norm->tensor->offset + first, count, total, x_row);
    else
        tdm_store_row(dw->data, dw->dtype, norm->tensor->offset + first, count, total);
}

/* Third: the input's gradient. It comes last because it may overwrite the input. */
static void input_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct norm *norm = context;
    const struct tdm_operand *in = &norm->launch->operand[TDM_NORM_GRAD_X],
                             *w = &norm->launch->operand[TDM_NORM_GRAD_WEIGHTS];
    const struct tdm_operand *gradient = &norm->launch->operand[TDM_NORM_GRAD_DOUT],
                             *dx = &norm->launch->operand[TDM_NORM_GRAD_DX];
    uint64_t columns = norm->columns;
    unsigned char *scratch = thread_scratch;
    float *x_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    float *w_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    float *dy_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    float *dx_row = tdm_cpu_take(&scratch, columns, sizeof(float));
    const float *weight = tdm_view_row(w->data, w->dtype, norm->tensor->offset, columns, w_row);
    uint64_t end = tdm_least(norm->rows, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        uint64_t at = t * columns;
        const float *x = tdm_view_row(in->data, in->dtype, at, columns, x_row);
        const float *dy = tdm_view_row(gradient->data, gradient->dtype, at, columns, dy_row);
        float scale = (float)norm->scale[t], slope = (float)norm->slope[t];
        TDM_SIMD
        for (uint64_t j = 0; j < columns; j++)
            dx_row[j] = scale * (weight[j] * dy[j]) - slope * x[j];
        if (dx->mode == TDM_ACCUMULATE)
            tdm_add_row(dx->data, dx->dtype, at, columns, dx_row, x_row);
        else
            tdm_store_row(dx->data, dx->dtype, at, columns, dx_row);
    }
}

enum tdm_status tdm_cpu_norm_grad(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    struct norm norm;
    enum tdm_status status = norm_begin(launch, &norm, err);
    if (status != TDM_OK)
        return status;
    unsigned char *scratch = executor->shared_scratch;
    norm.scale = tdm_cpu_take(&scratch, norm.rows, sizeof(double));
    norm.slope = tdm_cpu_take(&scratch, norm.rows, sizeof(double));
    tdm_cpu_for(executor, blocks_of(norm.rows, TDM_TASK_ROWS), slope_task, &norm);
    tdm_cpu_for(executor, blocks_of(norm.columns, SUM_COLUMNS), weight_task, &norm);
    tdm_cpu_for(executor, blocks_of(norm.rows, TDM_TASK_ROWS), input_task, &norm);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_norm_scratch(const struct tdm_cpu_shape *shape)
{
    unsigned char *thread = NULL, *shared = NULL;
    for (int i = 0; i < 4; i++)
        tdm_cpu_take(&thread, shape->params->norm.hidden, sizeof(float));
    for (int i = 0; i < 2; i++)
        tdm_cpu_take(&shared, shape->chunk_tokens, sizeof(double));
    return (struct tdm_cpu_scratch){(uintptr_t)thread, (uintptr_t)shared};
}
