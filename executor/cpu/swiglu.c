/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU or GeGLU (ops/gate.h) and their gradients, with s = 1 / (1 + exp(-k)),
 * k = gate (linear + cubic gate^2):
 *
 *     activated = gate s up
 *     d_up = d gate s,  d_gate = d up s (1 + gate (1 - s) (linear + 3 cubic gate^2))
 */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "executor/cpu/exp.h"
#include "ops/mlp.h"

enum { TASK_ROWS = 8, BLOCK = 1024 }; /* rows of a task, columns at a time */

struct swiglu {
    const struct tdm_launch *launch;
    uint64_t columns;
    struct tdm_gate gate;
};

static void swiglu_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct swiglu *x = context;
    const struct tdm_operand *in = &x->launch->operand[TDM_SWIGLU_GATE_UP],
                             *out = &x->launch->operand[TDM_SWIGLU_OUT];
    float gate_row[BLOCK], up_row[BLOCK], activated[BLOCK];
    const float linear = x->gate.linear, cubic = x->gate.cubic;
    (void)thread_scratch;
    uint64_t end = tdm_least(x->launch->op->tokens, (index + 1) * TASK_ROWS);
    for (uint64_t t = index * TASK_ROWS; t < end; t++) {
        for (uint64_t c = 0; c < x->columns; c += BLOCK) {
            uint64_t count = tdm_least(BLOCK, x->columns - c), at = t * 2 * x->columns + c;
            const float *gate = tdm_view_row(in->data, in->dtype, at, count, gate_row);
            const float *up = tdm_view_row(in->data, in->dtype, at + x->columns, count, up_row);
            TDM_SIMD
            for (uint64_t j = 0; j < count; j++)
                activated[j] = gate[j] /
                               (1.0f + tdm_exp(-gate[j] * (linear + cubic * gate[j] * gate[j]))) *
                               up[j];
            tdm_store_row(out->data, out->dtype, t * x->columns + c, count, activated);
        }
    }
}

static void swiglu_grad_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct swiglu *x = context;
    const struct tdm_operand *in = &x->launch->operand[TDM_SWIGLU_GRAD_GATE_UP],
                             *gradient = &x->launch->operand[TDM_SWIGLU_GRAD_DOUT];
    float gate[BLOCK], up[BLOCK], d[BLOCK];
    const float linear = x->gate.linear, cubic = x->gate.cubic;
    (void)thread_scratch;
    uint64_t end = tdm_least(x->launch->op->tokens, (index + 1) * TASK_ROWS);
    for (uint64_t t = index * TASK_ROWS; t < end; t++) {
        for (uint64_t c = 0; c < x->columns; c += BLOCK) {
            uint64_t count = tdm_least(BLOCK, x->columns - c), at = t * 2 * x->columns + c;
            tdm_load_row(in->data, in->dtype, at, count, gate);
            tdm_load_row(in->data, in->dtype, at + x->columns, count, up);
            tdm_load_row(gradient->data, gradient->dtype, t * x->columns + c, count, d);
            TDM_SIMD
            for (uint64_t j = 0; j < count; j++) {
                float g = gate[j], u = up[j], square = g * g;
                float e = tdm_exp(-g * (linear + cubic * square)), s = 1.0f / (1.0f + e);
                float rest = e * s; /* 1 - s would lose its digits where s is near 1 */
                gate[j] = d[j] * u * s * (1.0f + g * rest * (linear + 3.0f * cubic * square));
                up[j] = d[j] * (g * s);
                d[j] = g / (1.0f + e) * u;
            }
            tdm_store_row(in->data, in->dtype, at, count, gate);
            tdm_store_row(in->data, in->dtype, at + x->columns, count, up);
            tdm_store_row(gradient->data, gradient->dtype, t * x->columns + c, count, d);
        }
    }
}

static void run_rows(struct tdm_executor *executor, const struct tdm_launch *launch,
                     tdm_cpu_task task)
{
    const struct tdm_mlp_params *mlp = &tdm_launch_params(launch)->mlp;
    struct swiglu x = {launch, mlp->intermediate, mlp->gate};
    tdm_cpu_for(executor, (launch->op->tokens + TASK_ROWS - 1) / TASK_ROWS, task, &x);
}

enum tdm_status tdm_cpu_swiglu(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err)
{
    (void)err;
    run_rows(executor, launch, swiglu_task);
    return TDM_OK;
}

enum tdm_status tdm_cpu_swiglu_grad(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    (void)err;
    run_rows(executor, launch, swiglu_grad_task);
    return TDM_OK;
}
