/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE (arXiv 2104.09864) in the rotate-half layout of Hugging Face: for a token at position p of
 * its document, dimensions (i, i + head_dim / 2) of every head are rotated by p * frequency[i].
 * Also writes K and V to pages, and reads their gradients from pages; K is rotated on the way.
 *
 * With QK-norm every head x is normed before it is rotated: y = w x s, s = 1 / sqrt(mean(x^2) +
 * epsilon), as in norm.c; w is the same for all heads. The gradient needs the input of the norm,
 * which is computed again for it. The gradient of w is summed by task, then over tasks in order.
 *
 * Angles are computed in double. For p = high + low, with high a multiple of TDM_ROPE_STEP, cos and
 * sin follow from those of high, computed when high changes, and those of low, from a table. That
 * takes few calls of the math library, and is exact to double's rounding.
 */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "ops/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TDM_ROPE_STEP 64u

struct rope {
    const struct tdm_executor *executor;
    const struct tdm_launch *launch;
    const struct tdm_chunk *chunk;
    uint64_t heads, head_dim; /* heads that are rotated */
    bool back;                /* backward: rotates the other way */
    /* QK-norm: */
    const struct tdm_tensor *tensor; /* its weights; NULL: there is none */
    const struct tdm_operand *weights;
    const struct tdm_operand *raw,
        *dweights;   /* backward: the norm's input, and the weights' gradient */
    double *partial; /* [tasks, head_dim] of that gradient */
};

/* Rows of a task. */
struct lines {
    float *row, *raw; /* [columns]; raw: the norm's input */
    float *weight;    /* [head_dim] */
};

/* cos and sin of a task's rows. */
struct angles {
    double *high_cos, *high_sin; /* of high_position, [head_dim / 2] */
    uint64_t high_position;
    float *cos, *sin; /* of one position, scaled by the attention factor */
};

bool tdm_rope_open(struct tdm_executor *executor, const struct tdm_rope_params *params)
{
    uint64_t half = params->head_dim / 2;
    executor->rope_bytes = (half + 2 * half * TDM_ROPE_STEP) * sizeof(double);
    executor->rope = malloc(executor->rope_bytes);
    if (executor->rope == NULL)
        return false;
    tdm_rope_inverse_frequencies(&params->positions, params->head_dim, executor->rope,
                                 &executor->rope_factor);
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

/* Rotates all heads of one row. */
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
    const struct tdm_sequence *sequence = tdm_launch_sequence(rope->launch);
    uint64_t token = rope->chunk->first_token + t;
    return token - tdm_document_start(sequence, tdm_document_of(sequence, token));
}

static uint64_t tasks_of(uint64_t tokens)
{
    return (tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS;
}

static struct rope rope_begin(const struct tdm_executor *executor, const struct tdm_launch *launch,
                              uint64_t heads, const struct tdm_operand *weights, bool back)
{
    const struct tdm_op *op = launch->op;
    struct rope rope = {.executor = executor,
                        .launch = launch,
                        .chunk = &launch->program->chunks[op->chunk],
                        .heads = heads,
                        .head_dim = tdm_launch_params(launch)->rope.head_dim,
                        .back = back,
                        .weights = weights};
    unsigned char *scratch = executor->shared_scratch;
    if (weights->data != NULL)
        rope.tensor = tdm_launch_tensors(launch).matrix[0];
    rope.partial = tdm_cpu_take(&scratch, tasks_of(op->tokens) * rope.head_dim, sizeof(double));
    return rope;
}

static struct lines take_lines(unsigned char **scratch, uint64_t columns, uint64_t head_dim)
{
    struct lines lines;
    lines.row = tdm_cpu_take(scratch, columns, sizeof(float));
    lines.raw = tdm_cpu_take(scratch, columns, sizeof(float));
    lines.weight = tdm_cpu_take(scratch, head_dim, sizeof(float));
    return lines;
}

/* ---- QK-norm ---- */

static void norm_begin(const struct rope *rope, struct lines *lines, uint64_t task)
{
    const struct tdm_operand *w = rope->weights;
    if (rope->tensor == NULL)
        return;
    tdm_load_row(w->data, w->dtype, rope->tensor->offset, rope->head_dim, lines->weight);
    if (rope->back)
        memset(rope->partial + task * rope->head_dim, 0, rope->head_dim * sizeof(double));
}

static double scale_of(const struct rope *rope, const float *head)
{
    double mean = tdm_sum_squares(head, rope->head_dim) / (double)rope->head_dim;
    return 1.0 / sqrt(mean + tdm_launch_params(rope->launch)->rope.norm_epsilon);
}

static void norm_heads(const struct rope *rope, const struct lines *lines)
{
    for (uint64_t h = 0; rope->tensor != NULL && h < rope->heads; h++) {
        float *restrict x = lines->row + h * rope->head_dim;
        const float *restrict weight = lines->weight;
        float scale = (float)scale_of(rope, x);
        TDM_SIMD
        for (uint64_t i = 0; i < rope->head_dim; i++)
            x[i] = x[i] * scale * weight[i];
    }
}

/* Replaces the gradient of the normed heads by that of the norm's input. The input is row t of
 * `raw`, whose rows have `stride` elements. */
static void norm_heads_back(const struct rope *rope, const struct lines *lines, uint64_t task,
                            uint64_t t, uint64_t stride)
{
    uint64_t dim = rope->head_dim;
    if (rope->tensor == NULL)
        return;
    const struct tdm_operand *raw = rope->raw;
    tdm_load_row(raw->data, raw->dtype, t * stride, rope->heads * dim, lines->raw);
    for (uint64_t h = 0; h < rope->heads; h++) {
        float *restrict d = lines->row + h * dim;
        const float *restrict x = lines->raw + h * dim, *restrict weight = lines->weight;
        double *restrict sum = rope->partial + task * dim;
        double scale = scale_of(rope, x), dot = 0;
        for (uint64_t i = 0; i < dim; i++)
            dot += (double)(weight[i] * d[i]) * (double)x[i];
        float s = (float)scale, slope = (float)(scale * scale * scale / (double)dim * dot);
        TDM_SIMD
        for (uint64_t i = 0; i < dim; i++) {
            sum[i] += (double)(d[i] * x[i]) * scale;
            d[i] = s * (weight[i] * d[i]) - slope * x[i];
        }
    }
}

/* Adds up the tasks' partial sums of the weights' gradient. */
static void sum_weights(const struct rope *rope)
{
    if (rope->tensor == NULL || !rope->back)
        return;
    const struct tdm_operand *dw = rope->dweights;
    uint64_t dim = rope->head_dim, tasks = tasks_of(rope->launch->op->tokens);
    for (uint64_t i = 0; i < dim; i++) {
        double sum = 0;
        float scratch, total;
        for (uint64_t task = 0; task < tasks; task++)
            sum += rope->partial[task * dim + i];
        total = (float)sum;
        if (dw->mode == TDM_ACCUMULATE)
            tdm_add_row(dw->data, dw->dtype, rope->tensor->offset + i, 1, &total, &scratch);
        else
            tdm_store_row(dw->data, dw->dtype, rope->tensor->offset + i, 1, &total);
    }
}

/* ---- the ops ---- */

static void run_rows(struct tdm_executor *executor, tdm_cpu_task task, struct rope *rope)
{
    tdm_cpu_for(executor, tasks_of(rope->launch->op->tokens), task, rope);
    sum_weights(rope);
}

static void rope_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct rope *rope = context;
    const struct tdm_operand *x =
        &rope->launch->operand[rope->back ? TDM_ROPE_GRAD_DQ : TDM_ROPE_Q];
    const struct tdm_operand *out =
        rope->tensor != NULL && !rope->back ? &rope->launch->operand[TDM_ROPE_OUT] : x;
    unsigned char *scratch = thread_scratch;
    uint64_t columns = rope->heads * rope->head_dim;
    struct angles angles = angles_begin(&scratch, rope->head_dim);
    struct lines lines = take_lines(&scratch, columns, rope->head_dim);
    uint64_t end = tdm_least(rope->launch->op->tokens, (index + 1) * TDM_TASK_ROWS);
    norm_begin(rope, &lines, index);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        angles_of(rope, position_of(rope, t), &angles);
        tdm_load_row(x->data, x->dtype, t * columns, columns, lines.row);
        if (!rope->back)
            norm_heads(rope, &lines);
        turn(rope, &angles, lines.row);
        if (rope->back)
            norm_heads_back(rope, &lines, index, t, columns);
        tdm_store_row(out->data, out->dtype, t * columns, columns, lines.row);
    }
}

enum tdm_status tdm_cpu_rope(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    (void)err;
    uint64_t heads = tdm_launch_params(launch)->rope.query_heads;
    struct rope rope =
        rope_begin(executor, launch, heads, &launch->operand[TDM_ROPE_WEIGHTS], false);
    run_rows(executor, rope_task, &rope);
    return TDM_OK;
}

enum tdm_status tdm_cpu_rope_grad(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    (void)err;
    uint64_t heads = tdm_launch_params(launch)->rope.query_heads;
    struct rope rope =
        rope_begin(executor, launch, heads, &launch->operand[TDM_ROPE_GRAD_WEIGHTS], true);
    rope.raw = &launch->operand[TDM_ROPE_GRAD_RAW];
    rope.dweights = &launch->operand[TDM_ROPE_GRAD_DWEIGHTS];
    run_rows(executor, rope_task, &rope);
    return TDM_OK;
}

/* First element of token t's K in a slot of pages of all heads. Its V is one plane further. */
static uint64_t page_element(const struct rope *rope, uint64_t t)
{
    const uint64_t page_tokens = tdm_launch_params(rope->launch)->pages.page_tokens;
    return (2 * (t / page_tokens) * page_tokens + t % page_tokens) * rope->heads * rope->head_dim;
}

static void kv_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct rope *rope = context;
    const struct tdm_operand *pages =
        &rope->launch->operand[rope->back ? TDM_KV_GRAD_READ_DPAGES : TDM_KV_WRITE_PAGES];
    const struct tdm_operand *raw =
        &rope->launch->operand[rope->back ? TDM_KV_GRAD_READ_DRAW : TDM_KV_WRITE_RAW];
    unsigned char *scratch = thread_scratch;
    uint64_t columns = rope->heads * rope->head_dim;
    uint64_t plane = tdm_launch_params(rope->launch)->pages.page_tokens * columns;
    struct angles angles = angles_begin(&scratch, rope->head_dim);
    struct lines lines = take_lines(&scratch, 2 * columns, rope->head_dim);
    float *row = lines.row; /* K, then V */
    uint64_t end = tdm_least(rope->launch->op->tokens, (index + 1) * TDM_TASK_ROWS);
    norm_begin(rope, &lines, index);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        uint64_t k = page_element(rope, t), v = k + plane, at = t * 2 * columns;
        angles_of(rope, position_of(rope, t), &angles);
        if (rope->back) {
            tdm_load_row(pages->data, pages->dtype, k, columns, row);
            tdm_load_row(pages->data, pages->dtype, v, columns, row + columns);
            turn(rope, &angles, row);
            norm_heads_back(rope, &lines, index, t, 2 * columns);
            tdm_store_row(raw->data, raw->dtype, at, 2 * columns, row);
        } else {
            tdm_load_row(raw->data, raw->dtype, at, 2 * columns, row);
            norm_heads(rope, &lines);
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
    uint64_t heads = tdm_launch_params(launch)->rope.kv_heads;
    struct rope rope =
        rope_begin(executor, launch, heads, &launch->operand[TDM_KV_WRITE_WEIGHTS], false);
    run_rows(executor, kv_task, &rope);
    return TDM_OK;
}

enum tdm_status tdm_cpu_kv_grad_read(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     struct tdm_error *err)
{
    (void)err;
    uint64_t heads = tdm_launch_params(launch)->rope.kv_heads;
    struct rope rope =
        rope_begin(executor, launch, heads, &launch->operand[TDM_KV_GRAD_READ_WEIGHTS], true);
    rope.raw = &launch->operand[TDM_KV_GRAD_READ_RAW];
    rope.dweights = &launch->operand[TDM_KV_GRAD_READ_DWEIGHTS];
    run_rows(executor, kv_task, &rope);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_rope_scratch(const struct tdm_cpu_shape *shape)
{
    const struct tdm_rope_params *params = &shape->params->rope;
    unsigned char *thread = NULL, *shared = NULL;
    uint64_t heads = tdm_most(params->query_heads, 2 * (uint64_t)params->kv_heads);
    angles_begin(&thread, params->head_dim);
    take_lines(&thread, heads * params->head_dim, params->head_dim);
    tdm_cpu_take(&shared, tasks_of(shape->chunk_tokens) * params->head_dim, sizeof(double));
    return (struct tdm_cpu_scratch){(uintptr_t)thread, (uintptr_t)shared};
}
