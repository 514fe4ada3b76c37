/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the cpu backend. Each op is compared with a plain computation in double, at random
 * shapes with ragged chunks and pages, over all dtypes and both modes of sums. Any number of
 * threads must give the same result. Attention is in cpu_attention.c, QK-norm in cpu_qk_norm.c,
 * AdamW in unit_optimizer.c, GEMM and arenas in unit_cpu_parts.c. */
#include "tests/support/cpu_fixture.h"

#include "executor/backends.h"
#include "ops/embed.h"
#include "ops/head.h"
#include "ops/mlp.h"
#include "ops/move.h"
#include "ops/norm.h"
#include "ops/product.h"
#include "ops/rope.h"
#include "schedule/layout.h"
#include "tests/support/cases.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* The number of random shapes in a run: fewer in the short form. */
static int cases(void)
{
    return tdm_case_long() ? 40 : 8;
}

/* c[m, n] += a b in double. The other arguments are the distances between rows and columns. */
static void multiply(uint64_t m, uint64_t n, uint64_t k, const double *a, uint64_t a_row,
                     uint64_t a_column, const double *b, uint64_t b_row, uint64_t b_column,
                     double *c, uint64_t c_row)
{
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t p = 0; p < k; p++)
            for (uint64_t j = 0; j < n; j++)
                c[i * c_row + j] += a[i * a_row + p * a_column] * b[p * b_row + j * b_column];
}

static double *zeros(uint64_t count)
{
    double *values = calloc(count + 1, sizeof(*values));
    assert_non_null(values);
    return values;
}

static enum tdm_mode any_mode(struct bench *bench)
{
    return bench_next(bench) & 1 ? TDM_ACCUMULATE : TDM_WRITE;
}

static uint32_t any_chunk(struct bench *bench)
{
    return (uint32_t)bench_between(bench, 0, bench->program.chunk_count - 1);
}

static struct cell unit_cell(struct bench *bench, uint32_t unit, enum tdm_dtype dtype, double size)
{
    return cell_new(bench, dtype, bench->model->units[unit].elements, size);
}

static const struct {
    enum tdm_part part;
    enum tdm_role role[2], bias[2];
} product_parts[] = {
    {TDM_PART_Q, {TDM_ROLE_Q, TDM_ROLES}, {TDM_ROLE_Q_BIAS, TDM_ROLES}},
    {TDM_PART_KV, {TDM_ROLE_K, TDM_ROLE_V}, {TDM_ROLE_K_BIAS, TDM_ROLE_V_BIAS}},
    {TDM_PART_O, {TDM_ROLE_O, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
    {TDM_PART_GATE_UP, {TDM_ROLE_GATE, TDM_ROLE_UP}, {TDM_ROLES, TDM_ROLES}},
    {TDM_PART_DOWN, {TDM_ROLE_DOWN, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
};

/* Checks a product, the gradient of its input and that of its weights. */
static void check_product(struct bench *bench, int which)
{
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    enum tdm_part part = product_parts[which].part;
    const enum tdm_role *roles = product_parts[which].role, *biases = product_parts[which].bias;
    uint32_t unit = 1, chunk = any_chunk(bench);
    uint64_t tokens = bench->chunks[chunk].tokens, outputs = 0;
    uint64_t inputs = bench_tensor(bench, unit, roles[0])->columns;
    const struct tdm_tensor *tensor[2] = {0}, *bias[2] = {0};
    for (int i = 0; i < 2 && roles[i] != TDM_ROLES; i++) {
        tensor[i] = bench_tensor(bench, unit, roles[i]);
        outputs += tensor[i]->rows;
        if (biases[i] != TDM_ROLES)
            bias[i] = bench_tensor(bench, unit, biases[i]);
    }
    struct cell w = unit_cell(bench, unit, dtypes->weights, 1);
    struct cell dw = unit_cell(bench, unit, dtypes->gradients, 1);
    struct cell x = cell_new(bench, dtypes->activations, tokens * inputs, 1);
    struct cell dx = cell_new(bench, dtypes->activations, tokens * inputs, 1);
    struct cell y = cell_new(bench, dtypes->activations, tokens * outputs, NAN);
    struct cell dy = cell_new(bench, dtypes->activations, tokens * outputs, 1);
    struct cell addend = cell_new(bench, dtypes->activations, tokens * outputs, 1);
    bool add = bias[0] == NULL && bench_next(bench) % 4 != 0;
    double *vw = cell_values(&w), *vx = cell_values(&x), *vdy = cell_values(&dy);
    double *vdw = cell_values(&dw), *before = cell_values(&dw), *vdx = cell_values(&dx);
    double *want = add ? cell_values(&addend) : zeros(tokens * outputs);
    enum tdm_mode dx_mode = any_mode(bench), dw_mode = any_mode(bench);
    if (dx_mode == TDM_WRITE)
        memset(vdx, 0, tokens * inputs * sizeof(double));

    uint64_t column = 0;
    for (int i = 0; i < 2 && tensor[i] != NULL; i++) {
        uint64_t rows = tensor[i]->rows, at = tensor[i]->offset;
        for (uint64_t j = 0; bias[i] != NULL && j < rows; j++) {
            double *sum = &vdw[bias[i]->offset + j];
            *sum = dw_mode == TDM_WRITE ? 0 : *sum;
            for (uint64_t t = 0; t < tokens; t++) {
                want[t * outputs + column + j] += vw[bias[i]->offset + j];
                *sum += vdy[t * outputs + column + j];
            }
        }
        if (dw_mode == TDM_WRITE)
            memset(vdw + at, 0, rows * inputs * sizeof(double));
        multiply(tokens, rows, inputs, vx, inputs, 1, vw + at, 1, inputs, want + column, outputs);
        multiply(tokens, inputs, rows, vdy + column, outputs, 1, vw + at, inputs, 1, vdx, inputs);
        multiply(rows, inputs, tokens, vdy + column, 1, outputs, vx, inputs, 1, vdw + at, inputs);
        column += rows;
    }

    bench_op(bench, TDM_OP_PRODUCT, part, unit, chunk, tokens);
    bench_operand(bench, TDM_PRODUCT_X, &x, TDM_READ);
    bench_operand(bench, TDM_PRODUCT_WEIGHTS, &w, TDM_READ);
    bench_operand(bench, TDM_PRODUCT_OUT, &y, TDM_WRITE);
    if (add)
        bench_operand(bench, TDM_PRODUCT_ADDEND, &addend, TDM_READ);
    bench_run(bench);
    bench_compare(bench, "product", &y, 0, tokens * outputs, want, 1e-5);

    bench_op(bench, TDM_OP_PRODUCT_GRAD_INPUT, part, unit, chunk, tokens);
    bench_operand(bench, TDM_PRODUCT_GRAD_INPUT_DOUT, &dy, TDM_READ);
    bench_operand(bench, TDM_PRODUCT_GRAD_INPUT_WEIGHTS, &w, TDM_READ);
    bench_operand(bench, TDM_PRODUCT_GRAD_INPUT_DX, &dx, dx_mode);
    bench_run(bench);
    bench_compare(bench, "product's input gradient", &dx, 0, tokens * inputs, vdx, 1e-5);

    bench_op(bench, TDM_OP_PRODUCT_GRAD_WEIGHT, part, unit, chunk, tokens);
    bench_operand(bench, TDM_PRODUCT_GRAD_WEIGHT_X, &x, TDM_READ);
    bench_operand(bench, TDM_PRODUCT_GRAD_WEIGHT_DOUT, &dy, TDM_READ);
    bench_operand(bench, TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS, &dw, dw_mode);
    bench_run(bench);
    for (int i = 0; i < 2 && tensor[i] != NULL; i++) {
        bench_compare(bench, "product's weight gradient", &dw, tensor[i]->offset,
                      tensor[i]->elements, vdw + tensor[i]->offset, 1e-5);
        if (bias[i] != NULL)
            bench_compare(bench, "bias gradient", &dw, bias[i]->offset, bias[i]->elements,
                          vdw + bias[i]->offset, 1e-5);
    }
    bench_untouched(bench, &dw, before, unit, part);

    struct cell *cells[] = {&w, &dw, &x, &dx, &y, &dy, &addend};
    for (int i = 0; i < 7; i++)
        cell_free(cells[i]);
    double *values[] = {vw, vx, vdy, vdw, before, vdx, want};
    for (int i = 0; i < 7; i++)
        free(values[i]);
}

static void check_products(struct bench *bench)
{
    for (int i = 0; i < 5; i++)
        check_product(bench, i);
}

static void check_norm(struct bench *bench)
{
    static const struct {
        enum tdm_part part;
        enum tdm_role role;
    } norms[] = {{TDM_PART_ATTENTION_NORM, TDM_ROLE_ATTENTION_NORM},
                 {TDM_PART_MLP_NORM, TDM_ROLE_MLP_NORM},
                 {TDM_PART_FINAL_NORM, TDM_ROLE_FINAL_NORM}};
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    for (int k = 0; k < 3; k++) {
        enum tdm_part part = norms[k].part;
        uint32_t unit = part == TDM_PART_FINAL_NORM ? tdm_model_head_unit(bench->model) : 0;
        const struct tdm_tensor *tensor = bench_tensor(bench, unit, norms[k].role);
        uint32_t chunk = any_chunk(bench);
        uint64_t tokens = bench->chunks[chunk].tokens, columns = bench->model->hidden;
        struct cell w = unit_cell(bench, unit, dtypes->weights, 1);
        struct cell dw = unit_cell(bench, unit, dtypes->gradients, 1);
        struct cell x = cell_new(bench, dtypes->activations, tokens * columns, 2);
        struct cell y = cell_new(bench, dtypes->activations, tokens * columns, NAN);
        struct cell dy = cell_new(bench, dtypes->activations, tokens * columns, 1);
        struct cell dx = cell_new(bench, dtypes->activations, tokens * columns, 1);
        enum tdm_mode dx_mode = any_mode(bench), dw_mode = any_mode(bench);
        bool in_place = dx_mode == TDM_WRITE && bench_next(bench) % 2 == 0;
        double *vw = cell_values(&w), *vx = cell_values(&x), *vdy = cell_values(&dy);
        double *vdx = cell_values(&dx), *vdw = cell_values(&dw), *before = cell_values(&dw);
        double *want = zeros(tokens * columns);
        const double *g = vw + tensor->offset;
        double *dg = vdw + tensor->offset;
        if (dw_mode == TDM_WRITE)
            memset(dg, 0, columns * sizeof(double));
        for (uint64_t t = 0; t < tokens; t++) {
            const double *row = vx + t * columns, *d = vdy + t * columns;
            double square = 0, dot = 0;
            for (uint64_t j = 0; j < columns; j++)
                square += row[j] * row[j];
            double s = 1 / sqrt(square / (double)columns + bench->model->norm_epsilon);
            for (uint64_t j = 0; j < columns; j++) {
                want[t * columns + j] = g[j] * row[j] * s;
                dg[j] += d[j] * row[j] * s;
                dot += g[j] * d[j] * row[j];
            }
            for (uint64_t j = 0; j < columns; j++) {
                double gradient = s * g[j] * d[j] - row[j] * s * s * s / (double)columns * dot;
                vdx[t * columns + j] =
                    gradient + (dx_mode == TDM_ACCUMULATE ? vdx[t * columns + j] : 0);
            }
        }

        /* The layer number of the final norm's op is `layers`: its input is X of that number. */
        uint32_t layer = part == TDM_PART_FINAL_NORM ? bench->model->layers : unit;
        bench_op(bench, TDM_OP_NORM, part, layer, chunk, tokens);
        bench_operand(bench, TDM_NORM_X, &x, TDM_READ);
        bench_operand(bench, TDM_NORM_WEIGHTS, &w, TDM_READ);
        bench_operand(bench, TDM_NORM_OUT, &y, TDM_WRITE);
        bench_run(bench);
        bench_compare(bench, "norm", &y, 0, tokens * columns, want, 1e-6);

        bench_op(bench, TDM_OP_NORM_GRAD, part, layer, chunk, tokens);
        bench_operand(bench, TDM_NORM_GRAD_X, &x, TDM_READ);
        bench_operand(bench, TDM_NORM_GRAD_WEIGHTS, &w, TDM_READ);
        bench_operand(bench, TDM_NORM_GRAD_DOUT, &dy, TDM_READ);
        bench_operand(bench, TDM_NORM_GRAD_DX, in_place ? &x : &dx, dx_mode);
        bench_operand(bench, TDM_NORM_GRAD_DWEIGHTS, &dw, dw_mode);
        bench_run(bench);
        bench_compare(bench, "norm's input gradient", in_place ? &x : &dx, 0, tokens * columns, vdx,
                      2e-6);
        bench_compare(bench, "norm's weight gradient", &dw, tensor->offset, columns, dg, 2e-6);
        bench_untouched(bench, &dw, before, unit, part);

        struct cell *cells[] = {&w, &dw, &x, &y, &dy, &dx};
        for (int i = 0; i < 6; i++)
            cell_free(cells[i]);
        double *values[] = {vw, vx, vdy, vdx, vdw, before, want};
        for (int i = 0; i < 7; i++)
            free(values[i]);
    }
}

static void check_rope(struct bench *bench)
{
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    const struct tdm_model *model = bench->model;
    uint32_t chunk = any_chunk(bench);
    const struct tdm_chunk *where = &bench->chunks[chunk];
    uint64_t tokens = where->tokens;
    uint64_t width = (uint64_t)model->query_heads * model->head_dim;
    for (int back = 0; back < 2; back++) {
        struct cell q = cell_new(bench, dtypes->activations, tokens * width, 1);
        double *want = cell_values(&q);
        bench_rotate(bench, where, model->query_heads, width, back ? -1 : 1, want);
        bench_op(bench, back ? TDM_OP_ROPE_GRAD : TDM_OP_ROPE, 0, 0, chunk, tokens);
        bench_operand(bench, back ? TDM_ROPE_GRAD_DQ : TDM_ROPE_Q, &q, TDM_ACCUMULATE);
        bench_run(bench);
        bench_compare(bench, "rope", &q, 0, tokens * width, want, 1e-6);
        free(want);
        cell_free(&q);
    }

    uint64_t line = (uint64_t)model->kv_heads * model->head_dim;
    uint64_t page = bench->schedule.page_tokens, plane = page * line;
    uint64_t pages = (tokens + page - 1) / page;
    for (int back = 0; back < 2; back++) {
        struct cell raw = cell_new(bench, dtypes->activations, tokens * 2 * line, 1);
        struct cell paged =
            cell_new(bench, back ? dtypes->kv_gradients : dtypes->kv, pages * 2 * plane, 1);
        double *values = cell_values(back ? &paged : &raw), *rows = zeros(tokens * 2 * line);
        double *want = back ? zeros(tokens * 2 * line) : cell_values(&paged);
        for (uint64_t t = 0; t < tokens; t++)
            for (uint64_t j = 0; j < 2 * line; j++) {
                uint64_t in_page = t / page * 2 * plane + j / line * plane + t % page * line;
                rows[t * 2 * line + j] = values[back ? in_page + j % line : t * 2 * line + j];
            }
        bench_rotate(bench, where, model->kv_heads, 2 * line, back ? -1 : 1, rows);
        for (uint64_t t = 0; t < tokens; t++)
            for (uint64_t j = 0; j < 2 * line; j++) {
                uint64_t in_page = t / page * 2 * plane + j / line * plane + t % page * line;
                want[back ? t * 2 * line + j : in_page + j % line] = rows[t * 2 * line + j];
            }
        bench_op(bench, back ? TDM_OP_KV_GRAD_READ : TDM_OP_KV_WRITE, 0, 0, chunk, tokens);
        bench_operand(bench, back ? TDM_KV_GRAD_READ_DPAGES : TDM_KV_WRITE_RAW,
                      back ? &paged : &raw, TDM_READ);
        bench_operand(bench, back ? TDM_KV_GRAD_READ_DRAW : TDM_KV_WRITE_PAGES,
                      back ? &raw : &paged, TDM_WRITE);
        bench_run(bench);
        struct cell *out = back ? &raw : &paged;
        bench_compare(bench, "kv", out, 0, out->count, want, 1e-6);
        free(values);
        free(rows);
        free(want);
        cell_free(&raw);
        cell_free(&paged);
    }
}

static void check_swiglu(struct bench *bench)
{
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    uint32_t chunk = any_chunk(bench);
    uint64_t tokens = bench->chunks[chunk].tokens, columns = bench->model->intermediate;
    struct cell in = cell_new(bench, dtypes->activations, tokens * 2 * columns, 6);
    struct cell out = cell_new(bench, dtypes->activations, tokens * columns, NAN);
    struct cell d = cell_new(bench, dtypes->activations, tokens * columns, 1);
    cell_set(&in, 0, 200); /* far beyond the range of exp() */
    cell_set(&in, tokens * 2 * columns - columns - 1, -200);
    double *v = cell_values(&in), *vd = cell_values(&d), *want = zeros(tokens * columns);
    double *want_d = zeros(tokens * 2 * columns);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t j = 0; j < columns; j++) {
            double g = v[t * 2 * columns + j], u = v[t * 2 * columns + columns + j];
            bool gelu = bench->model->activation == TDM_ACTIVATION_GELU_TANH;
            double inner = sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g);
            double slope = gelu ? sqrt(8 / acos(-1)) * (1 + 3 * 0.044715 * g * g) : 1;
            double s = gelu ? 0.5 * (1 + tanh(inner)) : 1 / (1 + exp(-g));
            double gradient = vd[t * columns + j];
            want[t * columns + j] = g * s * u;
            want_d[t * 2 * columns + j] = gradient * u * s * (1 + g * (1 - s) * slope);
            want_d[t * 2 * columns + columns + j] = gradient * g * s;
        }
    bench_op(bench, TDM_OP_SWIGLU, 0, 0, chunk, tokens);
    bench_operand(bench, TDM_SWIGLU_GATE_UP, &in, TDM_READ);
    bench_operand(bench, TDM_SWIGLU_OUT, &out, TDM_WRITE);
    bench_run(bench);
    bench_compare(bench, "swiglu", &out, 0, tokens * columns, want, 1e-6);
    bench_op(bench, TDM_OP_SWIGLU_GRAD, 0, 0, chunk, tokens);
    bench_operand(bench, TDM_SWIGLU_GRAD_GATE_UP, &in, TDM_ACCUMULATE);
    bench_operand(bench, TDM_SWIGLU_GRAD_DOUT, &d, TDM_ACCUMULATE);
    bench_run(bench);
    bench_compare(bench, "swiglu's gradient", &in, 0, tokens * 2 * columns, want_d, 5e-7);
    bench_compare(bench, "swiglu in the place of its gradient", &d, 0, tokens * columns, want,
                  1e-6);
    cell_free(&in);
    cell_free(&out);
    cell_free(&d);
    free(v);
    free(vd);
    free(want);
    free(want_d);
}

/* Does a token of a chunk end a document inside its sequence? */
static bool ends_document(const struct bench *bench, const struct tdm_chunk *chunk, uint64_t t)
{
    uint64_t next = chunk->first_token + t + 1;
    return next < bench->sequences[chunk->sequence].tokens &&
           next % bench_document_tokens(bench, chunk) == 0;
}

/* Inputs and targets of a chunk. */
static struct cell token_cell(struct bench *bench, const struct tdm_chunk *chunk)
{
    uint64_t tokens = chunk->tokens;
    struct cell cell = cell_new(bench, TDM_DTYPE_INT32, 2 * tokens, 0);
    for (uint64_t t = 0; t < 2 * tokens; t++)
        cell_set(&cell, t, (double)bench_between(bench, 0, bench->model->vocabulary - 1));
    for (uint64_t t = 0; t < tokens; t++)
        if (ends_document(bench, chunk, t))
            cell_set(&cell, tokens + t, -1);
    return cell;
}

static void check_embed(struct bench *bench)
{
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    uint32_t chunk = any_chunk(bench), unit = tdm_model_embedding_unit(bench->model);
    uint64_t tokens = bench->chunks[chunk].tokens, columns = bench->model->hidden;
    uint64_t rows = bench->model->vocabulary;
    struct cell ids = token_cell(bench, &bench->chunks[chunk]),
                w = unit_cell(bench, unit, dtypes->weights, 1);
    struct cell x = cell_new(bench, dtypes->activations, tokens * columns, NAN);
    struct cell dx = cell_new(bench, dtypes->activations, tokens * columns, 1);
    struct cell dw = unit_cell(bench, unit, dtypes->gradients, 1);
    struct cell order = cell_new(bench, TDM_DTYPE_INT32, 2 * tokens, 0);
    double *vw = cell_values(&w), *vdx = cell_values(&dx), *vdw = cell_values(&dw);
    double *before = cell_values(&dw), *want = zeros(tokens * columns);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t j = 0; j < columns; j++) {
            uint64_t id = (uint64_t)cell_get(&ids, t);
            want[t * columns + j] = vw[id * columns + j];
            vdw[id * columns + j] += vdx[t * columns + j];
        }
    bench_op(bench, TDM_OP_EMBED, TDM_PART_EMBEDDING, 0, chunk, tokens);
    bench_operand(bench, TDM_EMBED_TOKENS, &ids, TDM_READ);
    bench_operand(bench, TDM_EMBED_WEIGHTS, &w, TDM_READ);
    bench_operand(bench, TDM_EMBED_OUT, &x, TDM_WRITE);
    bench_run(bench);
    bench_compare(bench, "embed", &x, 0, tokens * columns, want, 0);
    bench_op(bench, TDM_OP_SORT_TOKENS, TDM_PART_EMBEDDING, unit, chunk, tokens);
    bench_operand(bench, TDM_SORT_TOKENS_TOKENS, &ids, TDM_READ);
    bench_operand(bench, TDM_SORT_TOKENS_ORDER, &order, TDM_WRITE);
    bench_run(bench);
    for (uint64_t i = 1; i < tokens; i++) { /* rows are sorted by token, then by row */
        double last = cell_get(&order, i - 1), row = cell_get(&order, i);
        double last_id = cell_get(&ids, (uint64_t)last), id = cell_get(&ids, (uint64_t)row);
        assert_true(last_id < id || (last_id == id && last < row));
    }
    bench_op(bench, TDM_OP_EMBED_GRAD, TDM_PART_EMBEDDING, unit, chunk, tokens);
    bench_operand(bench, TDM_EMBED_GRAD_TOKENS, &ids, TDM_READ);
    bench_operand(bench, TDM_EMBED_GRAD_ORDER, &order, TDM_READ);
    bench_operand(bench, TDM_EMBED_GRAD_DOUT, &dx, TDM_READ);
    bench_operand(bench, TDM_EMBED_GRAD_DWEIGHTS, &dw, TDM_ACCUMULATE);
    bench_run(bench);
    /* a bf16 row is rounded once per chunk */
    bench_compare(bench, "embedding's gradient", &dw, 0, rows * columns, vdw,
                  dtypes->gradients == TDM_DTYPE_BF16 ? 0x1p-8 : 1e-5);
    bench_untouched(bench, &dw, before, unit, TDM_PART_EMBEDDING);

    /* a token outside the vocabulary is reported, not read */
    struct tdm_error err = {0};
    cell_set(&ids, tokens - 1, (double)rows);
    bench_op(bench, TDM_OP_SORT_TOKENS, TDM_PART_EMBEDDING, unit, chunk, tokens);
    bench_operand(bench, TDM_SORT_TOKENS_TOKENS, &ids, TDM_READ);
    bench_operand(bench, TDM_SORT_TOKENS_ORDER, &order, TDM_WRITE);
    assert_int_equal(
        TDM_INPUT, tdm_cpu_backend.run[TDM_OP_SORT_TOKENS](bench->executor, &bench->launch, &err));
    assert_non_null(strstr(err.message, "vocabulary"));

    struct cell *cells[] = {&ids, &w, &x, &dx, &dw, &order};
    for (int i = 0; i < 6; i++)
        cell_free(cells[i]);
    double *values[] = {vw, vdx, vdw, before, want};
    for (int i = 0; i < 5; i++)
        free(values[i]);
}

struct head_cells {
    struct cell *x, *ids, *w, *logits, *dw, *lse, *sum, *loss;
};

/* Begins an op of the LM head, with the operands that all its ops have. */
static void head_op(struct bench *bench, enum tdm_op_kind kind, const struct head_cells *c,
                    uint32_t chunk, uint64_t first, uint64_t rows, uint64_t first_entry,
                    uint64_t entries)
{
    bench_op(bench, kind, TDM_PART_HEAD, bench->model->layers, chunk, rows);
    bench->op.first_row = first;
    bench->op.first_entry = (uint32_t)first_entry;
    bench->op.entries = (uint32_t)entries;
    bench_operand(bench, TDM_HEAD_GRAD_ROWS, c->x, TDM_READ);
    bench_operand(bench, TDM_HEAD_GRAD_TOKENS, c->ids, TDM_READ);
    bench_operand(bench, TDM_HEAD_GRAD_WEIGHTS, c->w, TDM_READ);
    bench_operand(bench, TDM_HEAD_GRAD_LOGITS, c->logits, TDM_WRITE);
}

/* Runs the LM head with the vocabulary in tiles of `width`: first the sums of the rows, then the
 * gradients. */
static void run_head_tiles(struct bench *bench, const struct head_cells *c, uint32_t chunk,
                           uint64_t first, uint64_t rows, uint64_t width, enum tdm_mode loss_mode)
{
    uint64_t vocabulary = bench->model->vocabulary, top = (vocabulary - 1) / width * width;
    for (int backward = 0; backward < 2; backward++)
        for (uint64_t at = top + width; at >= width; at -= width) {
            uint64_t entry = at - width;
            enum tdm_mode mode = entry == top ? TDM_WRITE : TDM_ACCUMULATE;
            head_op(bench, backward ? TDM_OP_HEAD_GRAD : TDM_OP_LOSS, c, chunk, first, rows, entry,
                    entry == top ? vocabulary - top : width);
            bench_operand(bench, backward ? TDM_HEAD_GRAD_LSE : TDM_LOSS_LSE, c->lse,
                          backward ? TDM_READ : mode);
            if (backward) {
                bench_operand(bench, TDM_HEAD_GRAD_DWEIGHTS, c->dw, TDM_ACCUMULATE);
                bench_operand(bench, TDM_HEAD_GRAD_SUM, c->sum, mode);
            }
            if (backward && entry == 0)
                bench_operand(bench, TDM_HEAD_GRAD_ROWS, c->x, TDM_ACCUMULATE);
            if (!backward && entry == 0)
                bench_operand(bench, TDM_HEAD_LOSS, c->loss, loss_mode);
            bench_run(bench);
        }
}

/* Checks the LM head on one tile of a chunk. */
static void check_head(struct bench *bench)
{
    const struct tdm_dtypes *dtypes = &bench->schedule.dtypes;
    const struct tdm_model *model = bench->model;
    uint32_t unit = model->tied ? tdm_model_embedding_unit(model) : tdm_model_head_unit(model);
    const struct tdm_tensor *tensor =
        bench_tensor(bench, unit, model->tied ? TDM_ROLE_EMBEDDING : TDM_ROLE_HEAD);
    uint32_t chunk = any_chunk(bench);
    uint64_t tokens = bench->chunks[chunk].tokens, hidden = model->hidden;
    uint64_t vocabulary = model->vocabulary, first = bench_between(bench, 0, tokens - 1);
    uint64_t rows = bench_between(bench, 1, tokens - first);
    uint64_t trained = 0;
    for (uint32_t c = 0; c < bench->program.chunk_count; c++)
        for (uint64_t t = 0; t < bench->chunks[c].tokens; t++)
            trained += !ends_document(bench, &bench->chunks[c], t);
    double per_token = 1 / (double)trained;
    struct cell ids = token_cell(bench, &bench->chunks[chunk]),
                w = unit_cell(bench, unit, dtypes->weights, 1);
    struct cell x = cell_new(bench, dtypes->activations, tokens * hidden, 1);
    struct cell logits = cell_new(bench, dtypes->logits, rows * vocabulary, NAN);
    struct cell dw = unit_cell(bench, unit, dtypes->gradients, 1e-4);
    struct cell loss = cell_new(bench, TDM_DTYPE_FP64, 1, 1);
    enum tdm_mode dw_mode = any_mode(bench), loss_mode = any_mode(bench);
    double *vw = cell_values(&w), *vx = cell_values(&x), *vdw = cell_values(&dw);
    double *before = cell_values(&dw), *want = cell_values(&x), *tile = zeros(rows * vocabulary);
    double total = loss_mode == TDM_ACCUMULATE ? cell_get(&loss, 0) : 0;
    uint64_t width = bench_between(bench, 0, 1) ? vocabulary : bench_between(bench, 1, vocabulary);
    if (width < vocabulary) /* then the op derives the mode from its rows */
        dw_mode = chunk + 1 == bench->program.chunk_count && first + rows == tokens
                      ? TDM_WRITE
                      : TDM_ACCUMULATE;
    if (dw_mode == TDM_WRITE)
        memset(vdw + tensor->offset, 0, tensor->elements * sizeof(double));
    multiply(rows, vocabulary, hidden, vx + first * hidden, hidden, 1, vw + tensor->offset, 1,
             hidden, tile, vocabulary);
    for (uint64_t t = 0; t < rows; t++) {
        double *row = tile + t * vocabulary, most = -INFINITY, sum = 0;
        uint64_t target = (uint64_t)cell_get(&ids, tokens + first + t);
        if (ends_document(bench, &bench->chunks[chunk], first + t)) {
            memset(row, 0, vocabulary * sizeof(double));
            continue;
        }
        for (uint64_t j = 0; j < vocabulary; j++)
            most = fmax(most, row[j]);
        for (uint64_t j = 0; j < vocabulary; j++)
            sum += exp(row[j] - most);
        total += (most - row[target] + log(fmax(sum, 1))) * per_token;
        for (uint64_t j = 0; j < vocabulary; j++)
            row[j] = (exp(row[j] - most) / sum - (j == target)) * per_token;
    }
    memset(want + first * hidden, 0, rows * hidden * sizeof(double));
    multiply(rows, hidden, vocabulary, tile, vocabulary, 1, vw + tensor->offset, hidden, 1,
             want + first * hidden, hidden);
    multiply(vocabulary, hidden, rows, tile, 1, vocabulary, vx + first * hidden, hidden, 1,
             vdw + tensor->offset, hidden);

    struct cell lse = cell_new(bench, TDM_DTYPE_FP64, 3 * rows, NAN);
    struct cell sum = cell_new(bench, TDM_DTYPE_FP32, rows * hidden, NAN);
    struct head_cells cells_of = {&x, &ids, &w, &logits, &dw, &lse, &sum, &loss};
    if (width == vocabulary) {
        head_op(bench, TDM_OP_HEAD, &cells_of, chunk, first, rows, 0, vocabulary);
        bench_operand(bench, TDM_HEAD_ROWS, &x, TDM_ACCUMULATE);
        bench_operand(bench, TDM_HEAD_DWEIGHTS, &dw, dw_mode);
        bench_operand(bench, TDM_HEAD_LOSS, &loss, loss_mode);
        bench_run(bench);
    } else {
        run_head_tiles(bench, &cells_of, chunk, first, rows, width, loss_mode);
    }
    double coarse = dtypes->logits == TDM_DTYPE_BF16   ? 0x1p-5
                    : dtypes->logits == TDM_DTYPE_FP16 ? 0x1p-8
                                                       : 0;
    bench->least_scale = 1; /* the value before may nearly cancel it */
    bench_compare(bench, "loss", &loss, 0, 1, &total, fmax(coarse, 1e-6));
    bench->least_scale = 0;
    if (width == vocabulary)
        bench_compare(bench, "logits' gradient", &logits, 0, rows * vocabulary, tile,
                      fmax(coarse, 1e-5));
    bench_compare(bench, "head's input gradient", &x, first * hidden, rows * hidden,
                  want + first * hidden, fmax(coarse, 1e-5));
    bench_compare(bench, "head's weight gradient", &dw, tensor->offset, tensor->elements,
                  vdw + tensor->offset, fmax(coarse, 1e-5));
    bench_untouched(bench, &dw, before, unit, model->tied ? TDM_PART_EMBEDDING : TDM_PART_HEAD);
    for (uint64_t i = 0; i < tokens * hidden; i++)
        if (i < first * hidden || i >= (first + rows) * hidden)
            assert_true(cell_get(&x, i) == vx[i]);

    /* A target at the end of a document and a missing target elsewhere are both reported. */
    struct tdm_error err = {0};
    bool none = cell_get(&ids, tokens + first) < 0;
    cell_set(&ids, tokens + first, none ? 0 : -1);
    assert_int_equal(TDM_INPUT,
                     tdm_cpu_backend.run[TDM_OP_HEAD](bench->executor, &bench->launch, &err));
    assert_non_null(strstr(err.message, none ? "ends a document" : "vocabulary"));

    struct cell *cells[] = {&ids, &w, &x, &logits, &dw, &loss, &lse, &sum};
    for (int i = 0; i < 8; i++)
        cell_free(cells[i]);
    double *values[] = {vw, vx, vdw, before, want, tile};
    for (int i = 0; i < 6; i++)
        free(values[i]);
}

static void check_moves(struct bench *bench)
{
    uint32_t unit = (uint32_t)bench_between(bench, 0, bench->model->unit_count - 1);
    struct cell from = unit_cell(bench, unit, bench->schedule.dtypes.gradients, 1);
    struct cell to = unit_cell(bench, unit, bench->schedule.dtypes.gradients, 1);
    double *values = cell_values(&from);
    bench_op(bench, TDM_OP_COPY, 0, unit, TDM_NONE, 0);
    bench_operand(bench, TDM_COPY_FROM, &from, TDM_READ);
    bench_operand(bench, TDM_COPY_TO, &to, TDM_WRITE);
    bench_run(bench);
    bench_compare(bench, "copy", &to, 0, to.count, values, 0);

    const struct tdm_unit *layout = &bench->model->units[unit];
    const struct tdm_tensor *tensor =
        &bench->model
             ->tensors[layout->first_tensor + bench_between(bench, 0, layout->tensor_count - 1)];
    bench_op(bench, TDM_OP_ZERO, tdm_part_of(tensor->role), unit, TDM_NONE, 0);
    bench_operand(bench, TDM_ZERO_SLOT, &to, TDM_WRITE);
    bench->op.access[TDM_ZERO_SLOT].after.content = TDM_UNIT_GRADIENT;
    bench_run(bench);
    for (uint64_t i = 0; i < tensor->elements; i++)
        assert_true(cell_get(&to, tensor->offset + i) == 0);
    bench_untouched(bench, &to, values, unit, tdm_part_of(tensor->role));

    bench_op(bench, TDM_OP_ZERO, 0, unit, TDM_NONE, 0);
    bench_operand(bench, TDM_ZERO_SLOT, &to, TDM_WRITE);
    bench->op.access[TDM_ZERO_SLOT].after.content = TDM_TIED_GRADIENT;
    bench_run(bench);
    for (uint64_t i = 0; i < to.count; i++)
        assert_true(cell_get(&to, i) == 0);
    free(values);
    cell_free(&from);
    cell_free(&to);
}

static void (*const checks[])(struct bench *) = {check_products, check_norm,   check_rope,
                                                 check_qk_norm,  check_swiglu, check_embed,
                                                 check_head,     check_moves,  check_attention};

enum { CHECKS = sizeof(checks) / sizeof(checks[0]) };

static uint64_t run_checks(const struct shape *shape, uint64_t seed, double *worst)
{
    struct bench bench;
    bench_open(&bench, shape, seed);
    for (int i = 0; i < CHECKS; i++)
        checks[i](&bench);
    uint64_t digest = bench.digest;
    *worst = fmax(*worst, bench.worst);
    bench_close(&bench);
    return digest;
}

static void test_random_shapes(void **unused)
{
    (void)unused;
    struct bench source = {.random = bench_seed()};
    double worst = 0;
    for (int i = 0; i < cases(); i++) {
        struct shape shape = bench_shape(&source);
        run_checks(&shape, bench_next(&source), &worst);
    }
    print_message("# %d shapes, largest error of an fp32 result %.2g\n", cases(), worst);
}

/* Shapes with several blocks of tasks in every dimension, and more query heads than a tile has
 * rows. */
static struct shape large_shape(enum tdm_dtype dtype, uint32_t intermediate)
{
    return (struct shape){
        .hidden = 140,
        .intermediate = intermediate,
        .query_heads = 129,
        .kv_heads = 1,
        .head_dim = 4,
        .vocabulary = 520,
        .bias = true,
        .page_tokens = 128,
        .chunk_tokens = 270,
        .tile_tokens = 100,
        .sequences = 1,
        .sequence_tokens = {330},
        .dtypes = {.weights = dtype,
                   .activations = dtype,
                   .kv = dtype,
                   .kv_gradients = dtype,
                   .gradients = TDM_DTYPE_FP32,
                   .moments = TDM_DTYPE_FP32,
                   .logits = TDM_DTYPE_FP32},
    };
}

static void test_large_shapes(void **unused)
{
    (void)unused;
    double worst = 0;
    struct shape shape = large_shape(TDM_DTYPE_FP32, 2100);
    run_checks(&shape, 1, &worst);
    shape = large_shape(TDM_DTYPE_BF16, 2100);
    run_checks(&shape, 2, &worst);
}

/* The results have the same bits with any number of threads and at other addresses. */
static void test_threads(void **unused)
{
    (void)unused;
#ifndef _OPENMP
    skip();
#else
    int threads = omp_get_max_threads();
    double worst = 0;
    struct bench source = {.random = bench_seed()};
    for (int i = 0; i < 4; i++) {
        struct shape shape = bench_shape(&source);
        if (i == 0)
            shape = large_shape(TDM_DTYPE_BF16, 300);
        uint64_t seed = bench_next(&source), digest = 0;
        static const int counts[] = {1, 3, 2};
        for (int k = 0; k < 3; k++) {
            omp_set_num_threads(counts[k]);
            uint64_t found = run_checks(&shape, seed, &worst);
            digest = k == 0 ? found : digest;
            assert_true(found == digest);
        }
    }
    omp_set_num_threads(threads);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_large_shapes),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
