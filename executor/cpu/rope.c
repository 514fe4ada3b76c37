/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE (arXiv 2104.09864) in the rotate-half layout of Hugging Face: in every head of the token at
 * position p of its document dimensions (i, i + head_dim / 2) turn by p * frequency[i]; and the way of K and V into
 * pages and of their gradients out of them, which rotates K on the way.
 *
 * Angles are taken in double. cos and sin of p = high + low, high a multiple of TDM_ROPE_STEP,
 * follow from those of high, computed once a task, and of low, from a table: few calls of the
 * mathematical library, and exact to double's rounding.
 */
#include "executor/cpu/cpu.h"

#include "executor/cpu/convert.h"
#include "schedule/layout.h"

#include <math.h>
#include <stdlib.h>

#define TDM_ROPE_STEP 64u

struct rope {
    const struct tdm_executor *executor;
    const struct tdm_launch *launch;
    const struct tdm_chunk *chunk;
    uint64_t heads, head_dim; /* heads that turn */
    bool back;                /* the transpose: turns back */
};

/* cos and sin of a task's rows. */
struct angles {
    double *high_cos, *high_sin; /* of high_position, [head_dim / 2] */
    uint64_t high_position;
    float *cos, *sin; /* of one position, scaled by the attention factor */
};

bool tdm_rope_open(struct tdm_executor *executor, const struct tdm_model *model)
{
    uint64_t half = model->head_dim / 2;
    executor->rope_bytes = (half + 2 * half * TDM_ROPE_STEP) * sizeof(double);
    executor->rope = malloc(executor->rope_bytes);
    if (executor->rope == NULL)
        return false;
    tdm_rope_inverse_frequencies(model, executor->rope, &executor->rope_factor);
    double *low = executor->rope + half;
    for (uint64_t p = 0; p < TDM_ROPE_STEP; p++) {
        for (uint64_t i = 0; i < half; i++) {
            *low++ = cos((double)p * executor->rope[i]);
            *low++ = sin((double)p * executor->rope[i]);
        }
    }
    return true;
}

static struct angles angles_begin(unsigned char **scratch, uint64_t head_dim)
{
    struct angles angles = {.high_position = UINT64_MAX};
    angles.high_cos = tdm_cpu_take(scratch, head_dim / 2, sizeof(double));
    angles.high_sin = tdm_cpu_take(scratch, head_dim / 2, sizeof(double));
    angles.cos = tdm_cpu_take(scratch, head_dim / 2, sizeof(float));
    angles.sin = tdm_cpu_take(scratch, head_dim / 2, sizeof(float));
    return angles;
}

static void angles_of(const struct rope *rope, uint64_t position, struct angles *angles)
{
    const struct tdm_executor *executor = rope->executor;
    uint64_t half = rope->head_dim / 2, high = position - position % TDM_ROPE_STEP;
    const double *frequency = executor->rope;
    const double *low = frequency + half + position % TDM_ROPE_STEP * 2 * half;
    if (high != angles->high_position) {
        for (uint64_t i = 0; i < half; i++) {
            angles->high_cos[i] = cos((double)high * frequency[i]);
            angles->high_sin[i] = sin((double)high * frequency[i]);
        }
        angles->high_position = high;
    }
    double factor = executor->rope_factor, sign = rope->back ? -factor : factor;
    for (uint64_t i = 0; i < half; i++) {
        double c = low[2 * i], s = low[2 * i + 1];
        angles->cos[i] = (float)(factor * (angles->high_cos[i] * c - angles->high_sin[i] * s));
        angles->sin[i] = (float)(sign * (angles->high_sin[i] * c + angles->high_cos[i] * s));
    }
}

/* Turns all heads of one row. */
static void turn(const struct rope *rope, const struct angles *angles, float *row)
{
    uint64_t half = rope->head_dim / 2;
    const float *restrict c = angles->cos, *restrict s = angles->sin;
    for (uint64_t h = 0; h < rope->heads; h++) {
        float *restrict x = row + h * rope->head_dim, *restrict y = x + half;
        TDM_SIMD
        for (uint64_t i = 0; i < half; i++) {
            float a = x[i], b = y[i];
            x[i] = a * c[i] - b * s[i];
            y[i] = b * c[i] + a * s[i];
        }
    }
}

/* Position of a token of the chunk in its document. */
static uint64_t position_of(const struct rope *rope, uint64_t t)
{
    const struct tdm_schedule *schedule = rope->launch->program->schedule;
    const struct tdm_sequence *sequence = &schedule->sequences[rope->chunk->sequence];
    uint64_t token = rope->chunk->first_token + t;
    return token - tdm_document_start(sequence, tdm_document_of(sequence, token));
}

static struct rope rope_begin(const struct tdm_executor *executor, const struct tdm_launch *launch,
                              uint64_t heads, bool back)
{
    return (struct rope){.executor = executor,
                         .launch = launch,
                         .chunk = &launch->program->chunks[launch->op->chunk],
                         .heads = heads,
                         .head_dim = launch->program->schedule->model->head_dim,
                         .back = back};
}

static void run_rows(struct tdm_executor *executor, tdm_cpu_task task, struct rope *rope)
{
    uint64_t tasks = (rope->launch->op->tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS;
    tdm_cpu_for(executor, tasks, task, rope);
}

static void rope_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct rope *rope = context;
    const struct tdm_operand *x = &rope->launch->operand[0];
    unsigned char *scratch = thread_scratch;
    uint64_t columns = rope->heads * rope->head_dim;
    struct angles angles = angles_begin(&scratch, rope->head_dim);
    float *row = tdm_cpu_take(&scratch, columns, sizeof(float));
    uint64_t end = tdm_least(rope->launch->op->tokens, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        angles_of(rope, position_of(rope, t), &angles);
        tdm_load_row(x->data, x->dtype, t * columns, columns, row);
        turn(rope, &angles, row);
        tdm_store_row(x->data, x->dtype, t * columns, columns, row);
    }
}

enum tdm_status tdm_cpu_rope(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    (void)err;
    uint64_t heads = launch->program->schedule->model->query_heads;
    struct rope rope = rope_begin(executor, launch, heads, false);
    run_rows(executor, rope_task, &rope);
    return TDM_OK;
}

enum tdm_status tdm_cpu_rope_grad(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    (void)err;
    uint64_t heads = launch->program->schedule->model->query_heads;
    struct rope rope = rope_begin(executor, launch, heads, true);
    run_rows(executor, rope_task, &rope);
    return TDM_OK;
}

/* First element of token t's K in a slot of pages; its V is a plane further. */
static uint64_t page_element(const struct rope *rope, uint64_t t)
{
    const struct tdm_schedule *schedule = rope->launch->program->schedule;
    return t / schedule->page_tokens * tdm_page_elements(schedule) +
           t % schedule->page_tokens * rope->heads * rope->head_dim;
}

static void kv_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct rope *rope = context;
    const struct tdm_operand *pages = &rope->launch->operand[rope->back ? 0 : 1];
    const struct tdm_operand *raw = &rope->launch->operand[rope->back ? 1 : 0];
    unsigned char *scratch = thread_scratch;
    uint64_t columns = rope->heads * rope->head_dim;
    uint64_t plane = tdm_page_plane_elements(rope->launch->program->schedule);
    struct angles angles = angles_begin(&scratch, rope->head_dim);
    float *row = tdm_cpu_take(&scratch, 2 * columns, sizeof(float));
    uint64_t end = tdm_least(rope->launch->op->tokens, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        uint64_t k = page_element(rope, t), v = k + plane, at = t * 2 * columns;
        angles_of(rope, position_of(rope, t), &angles);
        if (rope->back) {
            tdm_load_row(pages->data, pages->dtype, k, columns, row);
            tdm_load_row(pages->data, pages->dtype, v, columns, row + columns);
            turn(rope, &angles, row);
            tdm_store_row(raw->data, raw->dtype, at, 2 * columns, row);
        } else {
            tdm_load_row(raw->data, raw->dtype, at, 2 * columns, row);
            turn(rope, &angles, row);
            tdm_store_row(pages->data, pages->dtype, k, columns, row);
            tdm_store_row(pages->data, pages->dtype, v, columns, row + columns);
        }
    }
}

enum tdm_status tdm_cpu_kv_write(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 struct tdm_error *err)
{
    (void)err;
    uint64_t heads = launch->program->schedule->model->kv_heads;
    struct rope rope = rope_begin(executor, launch, heads, false);
    run_rows(executor, kv_task, &rope);
    return TDM_OK;
}

enum tdm_status tdm_cpu_kv_grad_read(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     struct tdm_error *err)
{
    (void)err;
    uint64_t heads = launch->program->schedule->model->kv_heads;
    struct rope rope = rope_begin(executor, launch, heads, true);
    run_rows(executor, kv_task, &rope);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_rope_scratch(const struct tdm_cpu_shape *shape)
{
    const struct tdm_model *model = shape->model;
    unsigned char *thread = NULL;
    uint64_t heads = tdm_most(model->query_heads, 2 * (uint64_t)model->kv_heads);
    angles_begin(&thread, model->head_dim);
    tdm_cpu_take(&thread, heads * model->head_dim, sizeof(float));
    return (struct tdm_cpu_scratch){.thread_bytes = (uintptr_t)thread};
}
