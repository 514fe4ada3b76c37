/* SPDX-License-Identifier: Apache-2.0 */
/* Compares attention of the cpu backend with softmax(Q K^T / sqrt(d)) V in double, forward and
 * backward, over several chunks of several sequences. */
#include "tests/support/cpu_fixture.h"

#include "ops/attention.h"
#include "schedule/layout.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One chunk's queries and the keys of the chunks that they see. */
struct problem {
    struct bench *bench;
    const struct tdm_chunk *chunk;
    /* No later chunk sees the first `written` slots: their gradients are written, not added to. */
    uint32_t first_chunk, slots, written;
    uint64_t document, window; /* tokens of each document; tokens that a token sees */
    /* index in the sequence of the first key in the first slot */
    uint64_t first_key;
    uint64_t slot_elements; /* elements of the KV pages of a slot */
    uint64_t keys, heads, kv_heads, dim;
    double *q, *d_out;       /* [tokens, heads, dim] */
    double *k, *v, *dk, *dv; /* [keys, kv_heads, dim] */
    double *out, *lse, *dq;
};

static double *zeros(uint64_t count)
{
    double *values = calloc(count + 1, sizeof(*values));
    assert_non_null(values);
    return values;
}

/* The offset of K (plane 0) or V (plane 1) of key `key` in the slots. */
static uint64_t place(const struct problem *p, uint64_t key, uint64_t plane)
{
    const struct tdm_schedule *schedule = &p->bench->schedule;
    uint64_t slot = key / schedule->chunk_tokens, t = key % schedule->chunk_tokens;
    uint64_t page = schedule->page_tokens;
    return slot * p->slot_elements +
           ((t / page * 2 + plane) * page + t % page) * p->kv_heads * p->dim;
}

/* A cell of pages with random K and V for the keys, and NaN elsewhere. */
static struct cell pages_new(struct problem *p, enum tdm_dtype dtype)
{
    struct cell cell = cell_new(p->bench, dtype, p->slots * p->slot_elements, NAN);
    for (uint64_t key = 0; key < p->keys; key++)
        for (uint64_t plane = 0; plane < 2; plane++)
            for (uint64_t i = 0; i < p->kv_heads * p->dim; i++)
                cell_set(&cell, place(p, key, plane) + i,
                         (double)(bench_next(p->bench) >> 11) * 0x1p-52 - 1.0);
    return cell;
}

static void pages_get(const struct problem *p, const struct cell *cell, double *k, double *v)
{
    for (uint64_t key = 0; key < p->keys; key++)
        for (uint64_t i = 0; i < p->kv_heads * p->dim; i++) {
            k[key * p->kv_heads * p->dim + i] = cell_get(cell, place(p, key, 0) + i);
            v[key * p->kv_heads * p->dim + i] = cell_get(cell, place(p, key, 1) + i);
        }
}

static double dot(const double *a, const double *b, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static void axpy(double factor, const double *x, uint64_t count, double *y)
{
    for (uint64_t i = 0; i < count; i++)
        y[i] += factor * x[i];
}

/* The first token of the sequence that `token` sees. */
static uint64_t first_seen(const struct problem *p, uint64_t token)
{
    uint64_t before = token % p->document;
    return token - (before < p->window ? before : p->window - 1);
}

/* Computes the expected results. The backward reads the output as it was stored, rounded. */
static void reference(struct problem *p, bool backward)
{
    double scale = 1 / sqrt((double)p->dim), *s = zeros(p->keys);
    for (uint64_t row = 0; row < p->chunk->tokens * p->heads; row++) {
        uint64_t t = row / p->heads, g = row % p->heads / (p->heads / p->kv_heads);
        uint64_t token = p->chunk->first_token + t, step = p->kv_heads * p->dim;
        uint64_t start = first_seen(p, token);
        uint64_t seen = start > p->first_key ? start - p->first_key : 0;
        uint64_t visible = token + 1 - p->first_key;
        const double *q = p->q + row * p->dim, *d_out = p->d_out + row * p->dim;
        const double *k = p->k + g * p->dim, *v = p->v + g * p->dim;
        double most = -INFINITY, sum = 0;
        for (uint64_t j = seen; j < visible; j++) {
            s[j] = scale * dot(q, k + j * step, p->dim);
            most = fmax(most, s[j]);
        }
        for (uint64_t j = seen; j < visible; j++)
            sum += exp(s[j] - most);
        p->lse[row] = most + log(fmax(sum, 1));
        if (!backward) {
            for (uint64_t j = seen; j < visible; j++)
                axpy(exp(s[j] - p->lse[row]), v + j * step, p->dim, p->out + row * p->dim);
            continue;
        }
        double d = dot(d_out, p->out + row * p->dim, p->dim);
        for (uint64_t j = seen; j < visible; j++) {
            double weight = exp(s[j] - p->lse[row]);
            double ds = weight * (dot(d_out, v + j * step, p->dim) - d) * scale;
            axpy(ds, k + j * step, p->dim, p->dq + row * p->dim);
            axpy(ds, q, p->dim, p->dk + g * p->dim + j * step);
            axpy(weight, d_out, p->dim, p->dv + g * p->dim + j * step);
        }
    }
    free(s);
}

/* Passes the pages' gradients as two operands: slots to write, and slots to add to. */
static void give_gradient_pages(const struct problem *p, const struct cell *pages)
{
    uint64_t bytes = p->slot_elements * tdm_dtype_bytes(pages->dtype);
    struct cell written = *pages, added = *pages;
    added.data = (unsigned char *)pages->data + p->written * bytes;
    if (p->written > 0) {
        bench_operand(p->bench, TDM_ATTENTION_GRAD_DKV_OPENED, &written, TDM_WRITE);
        bench_slots(p->bench, TDM_ATTENTION_GRAD_DKV_OPENED, p->first_chunk, p->written, bytes);
    }
    if (p->written < p->slots) {
        bench_operand(p->bench, TDM_ATTENTION_GRAD_DKV_ADDED, &added, TDM_ACCUMULATE);
        bench_slots(p->bench, TDM_ATTENTION_GRAD_DKV_ADDED, p->first_chunk + p->written,
                    p->slots - p->written, bytes);
    }
}

static void check_chunk(struct bench *bench, uint32_t chunk)
{
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    const struct tdm_model *model = bench->model;
    const struct tdm_chunk *c = &bench->chunks[chunk];
    uint64_t page = bench->schedule.page_tokens;
    struct problem p = {.bench = bench, .chunk = c, .document = bench_document_tokens(bench, c)};
    uint64_t window = model->layer_kinds[0].window;
    p.window = window > 0 ? window : UINT64_MAX;
    uint64_t size = bench->schedule.chunk_tokens;
    uint64_t start = first_seen(&p, c->first_token);
    p.first_chunk = c->first_chunk + (uint32_t)(start / size);
    p.first_key = start / size * size;
    p.slots = chunk - p.first_chunk + 1;
    p.written = (uint32_t)bench_between(bench, 0, p.slots);
    p.heads = model->query_heads;
    p.kv_heads = model->kv_heads;
    p.dim = model->head_dim;
    p.keys = c->first_token + c->tokens - p.first_key;
    p.slot_elements = ((size + page - 1) / page * page * 2 * p.kv_heads * p.dim + 127) / 128 * 128;
    uint64_t elements = c->tokens * p.heads * p.dim, rows = c->tokens * p.heads;
    uint64_t kv_elements = p.keys * p.kv_heads * p.dim;
    uint64_t lse_at = tdm_lse_offset(&bench->schedule, TDM_ATTENTION_OUT, c->tokens);
    uint64_t element_bytes = tdm_dtype_bytes(dtypes->activations);

    struct cell q = cell_new(bench, dtypes->activations, elements, 2);
    struct cell d_out = cell_new(bench, dtypes->activations, elements, 1);
    struct cell dq = cell_new(bench, dtypes->activations, elements, NAN);
    struct cell out =
        cell_new(bench, dtypes->activations, (lse_at + 4 * rows) / element_bytes, NAN);
    struct cell pages = pages_new(&p, dtypes->kv), d_pages = pages_new(&p, dtypes->kv_gradients);
    struct cell lse = {(unsigned char *)out.data + lse_at, TDM_DTYPE_FP32, rows, NULL};
    p.q = cell_values(&q);
    p.d_out = cell_values(&d_out);
    p.k = zeros(kv_elements);
    p.v = zeros(kv_elements);
    p.dk = zeros(kv_elements);
    p.dv = zeros(kv_elements);
    p.out = zeros(elements);
    p.lse = zeros(rows);
    p.dq = zeros(elements);
    pages_get(&p, &pages, p.k, p.v);
    pages_get(&p, &d_pages, p.dk, p.dv);
    uint64_t overwritten = p.written * size < p.keys ? p.written * size : p.keys;
    memset(p.dk, 0, overwritten * p.kv_heads * p.dim * sizeof(double));
    memset(p.dv, 0, overwritten * p.kv_heads * p.dim * sizeof(double));

    reference(&p, false);
    bench_op(bench, TDM_OP_ATTENTION, 0, 0, chunk, c->tokens);
    bench_operand(bench, TDM_ATTENTION_Q, &q, TDM_READ);
    bench_operand(bench, TDM_ATTENTION_KV, &pages, TDM_READ);
    bench_slots(bench, TDM_ATTENTION_KV, p.first_chunk, p.slots,
                p.slot_elements * tdm_dtype_bytes(dtypes->kv));
    bench_operand(bench, TDM_ATTENTION_O, &out, TDM_WRITE);
    bench_run(bench);
    bench_compare(bench, "attention", &out, 0, elements, p.out, 2e-6);
    bench_compare(bench, "attention's LSE", &lse, 0, rows, p.lse, 2e-6);

    for (uint64_t i = 0; i < elements; i++)
        p.out[i] = cell_get(&out, i);
    reference(&p, true);
    bench_op(bench, TDM_OP_ATTENTION_GRAD, 0, 0, chunk, c->tokens);
    bench_operand(bench, TDM_ATTENTION_GRAD_Q, &q, TDM_READ);
    bench_operand(bench, TDM_ATTENTION_GRAD_KV, &pages, TDM_READ);
    bench_slots(bench, TDM_ATTENTION_GRAD_KV, p.first_chunk, p.slots,
                p.slot_elements * tdm_dtype_bytes(dtypes->kv));
    bench_operand(bench, TDM_ATTENTION_GRAD_O, &out, TDM_READ);
    bench_operand(bench, TDM_ATTENTION_GRAD_DO, &d_out, TDM_READ);
    bench_operand(bench, TDM_ATTENTION_GRAD_DQ, &dq, TDM_WRITE);
    give_gradient_pages(&p, &d_pages);
    bench_run(bench);
    bench_compare(bench, "attention's dQ", &dq, 0, elements, p.dq, 1e-5);
    struct cell dk = cell_new(bench, dtypes->kv_gradients, kv_elements, 0);
    struct cell dv = cell_new(bench, dtypes->kv_gradients, kv_elements, 0);
    for (uint64_t key = 0; key < p.keys; key++)
        for (uint64_t i = 0; i < p.kv_heads * p.dim; i++) {
            cell_set(&dk, key * p.kv_heads * p.dim + i, cell_get(&d_pages, place(&p, key, 0) + i));
            cell_set(&dv, key * p.kv_heads * p.dim + i, cell_get(&d_pages, place(&p, key, 1) + i));
        }
    bench_compare(bench, "attention's dK", &dk, 0, kv_elements, p.dk, 1e-5);
    bench_compare(bench, "attention's dV", &dv, 0, kv_elements, p.dv, 1e-5);

    struct cell *cells[] = {&q, &d_out, &dq, &out, &pages, &d_pages, &dk, &dv};
    for (int i = 0; i < 8; i++)
        cell_free(cells[i]);
    double *values[] = {p.q, p.d_out, p.k, p.v, p.dk, p.dv, p.out, p.lse, p.dq};
    for (int i = 0; i < 9; i++)
        free(values[i]);
}

void check_attention(struct bench *bench)
{
    /* The first chunk of a sequence, its last, and any chunk of it. */
    bench->least_scale = 0.1; /* with one key, dQ and dK are 0 except for rounding */
    uint32_t any = (uint32_t)bench_between(bench, 0, bench->program.chunk_count - 1);
    check_chunk(bench, bench->chunks[any].first_chunk);
    check_chunk(bench, bench->chunks[any].last_chunk);
    check_chunk(bench, any);
    bench->least_scale = 0;
}
