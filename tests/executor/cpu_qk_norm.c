/* SPDX-License-Identifier: Apache-2.0 */
/* Compares QK-norm with RoPE of the cpu backend with the same in double: q in its tensor, K into
 * pages, and the gradients of both. */
#include "tests/support/cpu_fixture.h"

#include "ops/rope.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* q or k of a chunk. */
struct heads {
    struct bench *bench;
    const struct tdm_chunk *chunk;
    uint32_t number; /* of the chunk */
    bool key;
    enum tdm_part part;
    const struct tdm_tensor *tensor;
    uint64_t count, dim;
    uint64_t stride; /* elements in a row of q, or of K and V together */
    struct cell w;   /* the layer's weights */
    const double *g; /* [dim] norm weights in it */
    struct cell raw; /* [tokens, stride] */
    double *raw_values;
};

static double *zeros(uint64_t count)
{
    double *values = calloc(count + 1, sizeof(*values));
    assert_non_null(values);
    return values;
}

/* The offset of element i of token t's row in pages. The plane of V follows that of K. */
static uint64_t in_pages(const struct heads *x, uint64_t t, uint64_t i)
{
    uint64_t page = x->bench->schedule.page_tokens, line = x->count * x->dim;
    return (t / page * 2 + i / line) * page * line + t % page * line + i % line;
}

static uint64_t page_elements(const struct heads *x)
{
    uint64_t page = x->bench->schedule.page_tokens;
    return (x->chunk->tokens + page - 1) / page * page * 2 * x->count * x->dim;
}

static double scale_of(const struct heads *x, const double *head)
{
    double squares = 0;
    for (uint64_t i = 0; i < x->dim; i++)
        squares += head[i] * head[i];
    return 1 / sqrt(squares / (double)x->dim + x->bench->model->norm_epsilon);
}

static void check_forward(const struct heads *x)
{
    uint64_t tokens = x->chunk->tokens, count = x->key ? page_elements(x) : tokens * x->stride;
    const struct tdm_dtypes *dtypes = &x->bench->schedule.dtypes;
    struct cell out = cell_new(x->bench, x->key ? dtypes->kv : dtypes->activations, count, 1);
    double *rows = cell_values(&x->raw), *want = cell_values(&out);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t h = 0; h < x->count; h++) {
            double *head = rows + t * x->stride + h * x->dim, scale = scale_of(x, head);
            for (uint64_t i = 0; i < x->dim; i++)
                head[i] *= scale * x->g[i];
        }
    bench_rotate(x->bench, x->chunk, x->count, x->stride, 1, rows);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t i = 0; i < x->stride; i++)
            want[x->key ? in_pages(x, t, i) : t * x->stride + i] = rows[t * x->stride + i];
    bench_op(x->bench, x->key ? TDM_OP_KV_WRITE : TDM_OP_ROPE, x->part, 0, x->number, tokens);
    bench_operand(x->bench, x->key ? TDM_KV_WRITE_RAW : TDM_ROPE_Q, (struct cell *)&x->raw,
                  TDM_READ);
    bench_operand(x->bench, x->key ? TDM_KV_WRITE_WEIGHTS : TDM_ROPE_WEIGHTS, (struct cell *)&x->w,
                  TDM_READ);
    bench_operand(x->bench, x->key ? TDM_KV_WRITE_PAGES : TDM_ROPE_OUT, &out, TDM_WRITE);
    bench_run(x->bench);
    bench_compare(x->bench, "QK-norm", &out, 0, count, want, 2e-6);
    cell_free(&out);
    free(rows);
    free(want);
}

/* Replaces the gradients of the normed rows, rotated back, by those of the rows before the norm.
 * Adds the weights' gradients to dg. */
static void go_back(const struct heads *x, double *rows, double *dg)
{
    for (uint64_t t = 0; t < x->chunk->tokens; t++)
        for (uint64_t h = 0; h < x->count; h++) {
            double *d = rows + t * x->stride + h * x->dim, dot = 0;
            const double *head = x->raw_values + t * x->stride + h * x->dim;
            double s = scale_of(x, head);
            for (uint64_t i = 0; i < x->dim; i++) {
                dg[i] += d[i] * head[i] * s;
                dot += d[i] * head[i] * x->g[i];
            }
            for (uint64_t i = 0; i < x->dim; i++)
                d[i] = s * x->g[i] * d[i] - head[i] * s * s * s / (double)x->dim * dot;
        }
}

static void check_backward(const struct heads *x)
{
    const struct tdm_dtypes *dtypes = &x->bench->schedule.dtypes;
    uint64_t tokens = x->chunk->tokens, count = tokens * x->stride;
    enum tdm_mode mode = bench_next(x->bench) & 1 ? TDM_ACCUMULATE : TDM_WRITE;
    struct cell d = cell_new(x->bench, x->key ? dtypes->kv_gradients : dtypes->activations,
                             x->key ? page_elements(x) : count, 1);
    struct cell out = cell_new(x->bench, dtypes->activations, count, NAN);
    struct cell dw = cell_new(x->bench, dtypes->gradients, x->bench->model->units[0].elements, 1);
    double *values = cell_values(&d), *rows = zeros(count), *before = cell_values(&dw);
    double *dg = zeros(x->dim);
    for (uint64_t i = 0; i < x->dim && mode == TDM_ACCUMULATE; i++)
        dg[i] = before[x->tensor->offset + i];
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t i = 0; i < x->stride; i++)
            rows[t * x->stride + i] = values[x->key ? in_pages(x, t, i) : t * x->stride + i];
    bench_rotate(x->bench, x->chunk, x->count, x->stride, -1, rows);
    go_back(x, rows, dg);

    bench_op(x->bench, x->key ? TDM_OP_KV_GRAD_READ : TDM_OP_ROPE_GRAD, x->part, 0, x->number,
             tokens);
    bench_operand(x->bench, x->key ? TDM_KV_GRAD_READ_DPAGES : TDM_ROPE_GRAD_DQ, &d,
                  x->key ? TDM_READ : TDM_ACCUMULATE);
    if (x->key)
        bench_operand(x->bench, TDM_KV_GRAD_READ_DRAW, &out, TDM_WRITE);
    bench_operand(x->bench, x->key ? TDM_KV_GRAD_READ_RAW : TDM_ROPE_GRAD_RAW,
                  (struct cell *)&x->raw, TDM_READ);
    bench_operand(x->bench, x->key ? TDM_KV_GRAD_READ_WEIGHTS : TDM_ROPE_GRAD_WEIGHTS,
                  (struct cell *)&x->w, TDM_READ);
    bench_operand(x->bench, x->key ? TDM_KV_GRAD_READ_DWEIGHTS : TDM_ROPE_GRAD_DWEIGHTS, &dw, mode);
    bench_run(x->bench);
    bench_compare(x->bench, "QK-norm's gradient", x->key ? &out : &d, 0, count, rows, 4e-6);
    bench_compare(x->bench, "QK-norm's weight gradient", &dw, x->tensor->offset, x->dim, dg, 4e-6);
    bench_untouched(x->bench, &dw, before, 0, x->part);
    cell_free(&d);
    cell_free(&out);
    cell_free(&dw);
    double *all[] = {values, rows, before, dg};
    for (int i = 0; i < 4; i++)
        free(all[i]);
}

void check_qk_norm(struct bench *bench)
{
    const struct tdm_model *model = bench->model;
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    for (int key = 0; key < 2 && model->layer_kinds[0].qk_norm; key++) {
        uint32_t number = (uint32_t)bench_between(bench, 0, bench->program.chunk_count - 1);
        struct heads x = {.bench = bench,
                          .chunk = &bench->chunks[number],
                          .number = number,
                          .key = key == 1,
                          .part = key ? TDM_PART_K_NORM : TDM_PART_Q_NORM,
                          .tensor = bench_tensor(bench, 0, key ? TDM_ROLE_K_NORM : TDM_ROLE_Q_NORM),
                          .count = key ? model->kv_heads : model->query_heads,
                          .dim = model->head_dim};
        x.stride = (key ? 2 : 1) * x.count * x.dim;
        x.w = cell_new(bench, dtypes->weights, model->units[0].elements, 1);
        x.raw = cell_new(bench, dtypes->activations, x.chunk->tokens * x.stride, 2);
        double *weights = cell_values(&x.w);
        x.g = weights + x.tensor->offset;
        x.raw_values = cell_values(&x.raw);
        check_forward(&x);
        check_backward(&x);
        cell_free(&x.w);
        cell_free(&x.raw);
        free(weights);
        free(x.raw_values);
    }
}
