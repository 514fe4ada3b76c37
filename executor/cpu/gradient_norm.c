/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The squared norm of a unit's gradient: the sum of squares of its elements, in a fixed order.
 * Where the head is tied to the embedding, the gradient is the sum of both accumulators.
 */
#include "executor/convert.h"
#include "executor/cpu/cpu.h"
#include "executor/unit_blocks.h"
#include "ops/update.h"

struct gradient_norm {
    const struct tdm_launch *launch;
    const struct tdm_unit *unit;
    uint64_t begin, end, task_elements; /* of the unit */
    double *squares;                    /* [tasks] */
};

/* Elements [first, first + count) of the gradient, the sum of both parts of a tied tensor. */
static void load_gradient(const struct tdm_operand *gradient, const struct tdm_operand *second,
                          uint64_t first, uint64_t count, float *row)
{
    float other[TDM_UNIT_BLOCK];
    tdm_load_row(gradient->data, gradient->dtype, first, count, row);
    if (second->data == NULL)
        return;
    tdm_load_row(second->data, second->dtype, first, count, other);
    for (uint64_t i = 0; i < count; i++)
        row[i] += other[i];
}

static void norm_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct gradient_norm *x = context;
    const struct tdm_operand *operand = x->launch->operand;
    const struct tdm_tensor *tensors = tdm_launch_params(x->launch)->weights.tensors;
    uint64_t begin = x->begin + index * x->task_elements;
    uint64_t end = tdm_least(begin + x->task_elements, x->end);
    struct tdm_unit_block block = {0};
    float row[TDM_UNIT_BLOCK];
    double squares = 0;
    (void)thread_scratch;
    while (tdm_next_unit_block(tensors, x->unit, begin, end, &block)) {
        load_gradient(&operand[TDM_GRADIENT_NORM_GRADIENT], &operand[TDM_GRADIENT_NORM_TIED],
                      block.first, block.count, row);
        squares += tdm_sum_squares(row, block.count);
    }
    x->squares[index] = squares;
}

enum tdm_status tdm_cpu_gradient_norm(struct tdm_executor *executor,
                                      const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_unit *units = tdm_launch_params(launch)->weights.units;
    unsigned char *scratch = executor->shared_scratch;
    struct gradient_norm x = {.launch = launch, .unit = &units[launch->op->layer]};
    (void)err;
    x.end = x.unit->elements;
    if (launch->op->slices > 0) { /* of a rank's part */
        x.begin = launch->op->first_element;
        x.end = x.begin + launch->op->elements;
    }
    x.task_elements = tdm_unit_task_elements(x.end - x.begin);
    x.squares = tdm_cpu_take(&scratch, TDM_UNIT_TASKS_MOST, sizeof(double));
    uint64_t tasks = (x.end - x.begin + x.task_elements - 1) / x.task_elements;
    tdm_cpu_for(executor, tasks, norm_task, &x);
    double sum = 0;
    for (uint64_t i = 0; i < tasks; i++)
        sum += x.squares[i];
    *(double *)launch->operand[TDM_GRADIENT_NORM_NORM].data = sum;
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_gradient_norm_scratch(const struct tdm_cpu_shape *shape)
{
    (void)shape;
    return (struct tdm_cpu_scratch){.shared_bytes = TDM_UNIT_TASKS_MOST * sizeof(double)};
}
