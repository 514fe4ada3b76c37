/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW (arXiv 1711.05101, algorithm 2) over the tensors of a unit, in fp32:
 *
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     w = w - rate (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon) + decay w)
 *
 * decay only for tensors with more than one row. The fp32 master is the weight itself, a tensor of
 * its own, or the bf16 weight and a remainder (remainder.h); a weight beside a master is that
 * master rounded. The sum of squares of the gradient goes out.
 */
#include "executor/cpu/cpu.h"

#include "executor/cpu/convert.h"
#include "executor/remainder.h"

#include <math.h>

enum { BLOCK = 512, TASK_LEAST = 16384, TASKS_MOST = 1024 };

struct adamw {
    const struct tdm_launch *launch;
    float beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float step_rate;                  /* rate / (1 - beta1^step) */
    float root_scale;                 /* 1 / sqrt(1 - beta2^step) */
    float epsilon;
    float rate, decay;
    uint64_t elements, task_elements; /* of the unit, padding included; of a task */
    double *squares;                  /* [tasks] */
};

/* One block of a tensor. Returns the sum of squares of its gradient. */
static double update(const struct adamw *x, uint64_t first, uint64_t count, float decay)
{
    const struct tdm_operand *w = &x->launch->operand[0], *g = &x->launch->operand[1];
    const struct tdm_operand *master = &x->launch->operand[2];
    const struct tdm_operand *m = &x->launch->operand[3], *v = &x->launch->operand[4];
    const struct tdm_operand *second = &x->launch->operand[6];
    float weight[BLOCK], gradient[BLOCK], moment1[BLOCK], moment2[BLOCK];
    bool split = master->data != NULL && master->dtype == TDM_DTYPE_REMAINDER16;
    bool whole = master->data != NULL && !split;

    if (split) {
        const uint16_t *high = (const uint16_t *)w->data + first;
        const uint16_t *low = (const uint16_t *)master->data + first;
        TDM_SIMD
        for (uint64_t i = 0; i < count; i++)
            weight[i] = tdm_master_join(high[i], low[i]);
    } else {
        const struct tdm_operand *from = whole ? master : w;
        tdm_load_row(from->data, from->dtype, first, count, weight);
    }
    tdm_load_row(g->data, g->dtype, first, count, gradient);
    if (second->data != NULL) {
        tdm_load_row(second->data, second->dtype, first, count, moment1);
        for (uint64_t i = 0; i < count; i++)
            gradient[i] += moment1[i];
    }
    tdm_load_row(m->data, m->dtype, first, count, moment1);
    tdm_load_row(v->data, v->dtype, first, count, moment2);

    double squares = tdm_sum_squares(gradient, count);
    for (uint64_t i = 0; i < count; i++) {
        float d = gradient[i];
        moment1[i] = x->beta1 * moment1[i] + x->rest1 * d;
        moment2[i] = x->beta2 * moment2[i] + x->rest2 * (d * d);
        float root = __builtin_sqrtf(moment2[i]) * x->root_scale + x->epsilon;
        weight[i] -= x->step_rate * (moment1[i] / root) + x->rate * decay * weight[i];
    }
    tdm_store_row(m->data, m->dtype, first, count, moment1);
    tdm_store_row(v->data, v->dtype, first, count, moment2);

    if (whole)
        tdm_store_row(master->data, master->dtype, first, count, weight);
    if (master->data != NULL && w->dtype == TDM_DTYPE_BF16) {
        uint16_t *high = (uint16_t *)w->data + first;
        uint16_t *low = split ? (uint16_t *)master->data + first : NULL;
        for (uint64_t i = 0; i < count; i++) {
            uint16_t remainder;
            tdm_master_split(weight[i], &high[i], &remainder);
            if (split)
                low[i] = remainder;
        }
    } else {
        tdm_store_row(w->data, w->dtype, first, count, weight);
    }
    return squares;
}

/* A range of the unit: what of its tensors lies in it. */
static void adamw_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct adamw *x = context;
    const struct tdm_model *model = x->launch->program->schedule->model;
    const struct tdm_unit *unit = &model->units[x->launch->op->layer];
    uint64_t begin = index * x->task_elements;
    uint64_t end = tdm_least(begin + x->task_elements, x->elements);
    double squares = 0;
    (void)thread_scratch;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + i];
        uint64_t first = tdm_most(begin, tensor->offset);
        uint64_t last = tdm_least(end, tensor->offset + tensor->elements);
        for (; first < last; first += BLOCK)
            squares += update(x, first, tdm_least(BLOCK, last - first),
                              tensor->rows > 1 ? x->decay : 0.0f);
    }
    x->squares[index] = squares;
}

enum tdm_status tdm_cpu_adamw(struct tdm_executor *executor, const struct tdm_launch *launch,
                              struct tdm_error *err)
{
    const struct tdm_optimizer_settings *settings = &launch->program->schedule->optimizer;
    const struct tdm_step *step = launch->step;
    uint64_t elements = launch->program->schedule->model->units[launch->op->layer].elements;
    (void)err;
    double number = (double)step->number;
    unsigned char *scratch = executor->shared_scratch;
    struct adamw x = {
        .launch = launch,
        .beta1 = (float)settings->beta1,
        .beta2 = (float)settings->beta2,
        .rest1 = (float)(1.0 - settings->beta1),
        .rest2 = (float)(1.0 - settings->beta2),
        .step_rate = (float)(step->learning_rate / (1.0 - pow(settings->beta1, number))),
        .root_scale = (float)(1.0 / sqrt(1.0 - pow(settings->beta2, number))),
        .epsilon = (float)settings->epsilon,
        .rate = (float)step->learning_rate,
        .decay = (float)settings->weight_decay,
        .elements = elements,
        .task_elements = tdm_most(TASK_LEAST, (elements + TASKS_MOST - 1) / TASKS_MOST),
        .squares = tdm_cpu_take(&scratch, TASKS_MOST, sizeof(double)),
    };
    uint64_t tasks = (elements + x.task_elements - 1) / x.task_elements;
    tdm_cpu_for(executor, tasks, adamw_task, &x);
    double sum = 0;
    for (uint64_t i = 0; i < tasks; i++)
        sum += x.squares[i];
    if (launch->operand[5].data != NULL)
        *(double *)launch->operand[5].data = sum;
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_adamw_scratch(const struct tdm_cpu_shape *shape)
{
    (void)shape;
    return (struct tdm_cpu_scratch){.shared_bytes = TASKS_MOST * sizeof(double)};
}
