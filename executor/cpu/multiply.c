/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of stored matrices of any dtype and shape, split into tasks.
 *
 * A task computes a block of C. It loops over the depth k in panels, converts the factors that are
 * not fp32, and multiplies by single-threaded GEMM into C, or into an fp32 block if C is not fp32.
 * Every block converts its factors again: that is cheap beside the product, and no weight needs a
 * converted copy.
 */
#include "executor/cpu/multiply.h"

#include "base/size.h"
#include "executor/convert.h"
#include "executor/cpu/gemm.h"

#include <string.h>

enum {
    BLOCK_M_LEAST = 64,
    BLOCK_M_MOST = 256,
    BLOCK_N_LEAST = 128,
    BLOCK_N_MOST = 512,
    BLOCK_K = 2048
};

struct grid {
    uint64_t block_m, block_n; /* of a task */
    uint64_t rows, columns;    /* blocks of C */
};

struct work {
    const struct tdm_multiplication *multiplications;
    struct grid grid[2];
};

/* Four blocks per side, unless they would be too large or too small. */
static struct grid grid_of(const struct tdm_multiplication *x)
{
    struct grid g;
    g.block_m = tdm_size_align(tdm_size_ceil_div(x->m, 4), 16);
    g.block_m = tdm_least(tdm_most(g.block_m, BLOCK_M_LEAST), BLOCK_M_MOST);
    g.block_n = tdm_size_align(tdm_size_ceil_div(x->n, 4), 16);
    g.block_n = tdm_least(tdm_most(g.block_n, BLOCK_N_LEAST), BLOCK_N_MOST);
    g.rows = tdm_size_ceil_div(x->m, g.block_m);
    g.columns = tdm_size_ceil_div(x->n, g.block_n);
    return g;
}

static void *at(const struct tdm_matrix *x, uint64_t row, uint64_t column)
{
    return (unsigned char *)x->data + (row * x->stride + column) * tdm_dtype_bytes(x->dtype);
}

/* The block [row, row + rows) x [column, column + columns) of a factor, in place or converted. */
static struct tdm_factor block_of(const struct tdm_matrix *x, uint64_t row, uint64_t rows,
                                  uint64_t column, uint64_t columns, float *scratch)
{
    uint64_t lines = x->transposed ? columns : rows;
    uint64_t line = x->transposed ? rows : columns;
    const void *first = x->transposed ? at(x, column, row) : at(x, row, column);
    if (x->dtype == TDM_DTYPE_FP32)
        return (struct tdm_factor){first, x->stride, x->transposed};
    for (uint64_t i = 0; i < lines; i++)
        tdm_load_row(first, x->dtype, i * x->stride, line, scratch + i * line);
    return (struct tdm_factor){scratch, line, x->transposed};
}

/* Fills a block of C with what the products are added to: C, addend or bias. Returns false if that
 * is zero; C is not touched then. */
static bool start_block(const struct tdm_multiplication *x, uint64_t row, uint64_t rows,
                        uint64_t column, uint64_t columns, float *c, uint64_t stride)
{
    const struct tdm_matrix *start = x->add                   ? &x->c
                                     : x->addend.data != NULL ? &x->addend
                                                              : &x->bias;
    if (start->data == NULL)
        return false;
    for (uint64_t i = 0; i < rows; i++) {
        const float *line = at(start, start == &x->bias ? 0 : row + i, column);
        if (line != c + i * stride)
            tdm_load_row(line, start->dtype, 0, columns, c + i * stride);
    }
    return true;
}

static void multiply_block(const struct tdm_multiplication *x, struct grid g, uint64_t index,
                           unsigned char *scratch)
{
    uint64_t row = index / g.columns * g.block_m, column = index % g.columns * g.block_n;
    uint64_t rows = tdm_least(g.block_m, x->m - row);
    uint64_t columns = tdm_least(g.block_n, x->n - column);
    float *a_panel = tdm_cpu_take(&scratch, BLOCK_M_MOST * BLOCK_K, sizeof(float));
    float *b_panel = tdm_cpu_take(&scratch, BLOCK_N_MOST * BLOCK_K, sizeof(float));
    float *c = tdm_cpu_take(&scratch, BLOCK_M_MOST * BLOCK_N_MOST, sizeof(float));
    uint64_t stride = columns;
    bool direct = x->c.dtype == TDM_DTYPE_FP32;
    if (direct) {
        c = at(&x->c, row, column);
        stride = x->c.stride;
    }

    bool add = start_block(x, row, rows, column, columns, c, stride);
    for (uint32_t t = 0; t < x->terms; t++) {
        for (uint64_t p = 0; p < x->term[t].k; p += BLOCK_K) {
            uint64_t k = tdm_least(BLOCK_K, x->term[t].k - p);
            struct tdm_factor a = block_of(&x->term[t].a, row, rows, p, k, a_panel);
            struct tdm_factor b = block_of(&x->term[t].b, p, k, column, columns, b_panel);
            tdm_gemm(rows, columns, k, a, b, add, c, stride);
            add = true;
        }
    }
    if (!direct)
        for (uint64_t i = 0; i < rows; i++)
            tdm_store_row(at(&x->c, row + i, column), x->c.dtype, 0, columns, c + i * stride);
}

static void multiply_task(void *context, void *scratch, uint64_t index)
{
    const struct work *work = context;
    const struct tdm_multiplication *x = work->multiplications;
    const struct grid *g = work->grid;
    if (index >= g->rows * g->columns) {
        index -= g->rows * g->columns;
        x++;
        g++;
    }
    multiply_block(x, *g, index, scratch);
}

struct tdm_cpu_scratch tdm_cpu_multiply_scratch(const struct tdm_cpu_shape *shape)
{
    (void)shape;
    unsigned char *end = NULL;
    tdm_cpu_take(&end, BLOCK_M_MOST * BLOCK_K, sizeof(float));
    tdm_cpu_take(&end, BLOCK_N_MOST * BLOCK_K, sizeof(float));
    tdm_cpu_take(&end, BLOCK_M_MOST * BLOCK_N_MOST, sizeof(float));
    return (struct tdm_cpu_scratch){.thread_bytes = (uintptr_t)end};
}

void tdm_multiply(struct tdm_executor *executor, uint32_t count,
                  const struct tdm_multiplication *multiplications)
{
    struct work work = {.multiplications = multiplications};
    uint64_t tasks = 0;
    for (uint32_t i = 0; i < count; i++) {
        work.grid[i] = grid_of(&multiplications[i]);
        tasks += work.grid[i].rows * work.grid[i].columns;
    }
    tdm_cpu_for(executor, tasks, multiply_task, &work);
}
