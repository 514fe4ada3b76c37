/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single-threaded fp32 matrix product: OpenBLAS where this build has it, else own loops.
 *
 * The own loops follow Goto and van de Geijn (ACM TOMS 34, 2008). Blocks of A and B, transposed or
 * not, are packed into panels that stay in cache. A small tile of C is kept in registers over the
 * whole depth of a panel. The sum over k runs in one fixed order for all sizes.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/cpu/gemm.h"

#include "executor/simd.h"

#include <string.h>
#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

enum {
    TILE_M = 4, /* of C, in registers */
    TILE_N = 8,
    BLOCK_M = 64, /* of packed panels */
    BLOCK_N = 128,
    BLOCK_K = 128
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static float element(struct tdm_factor f, uint64_t row, uint64_t column)
{
    return f.transposed ? f.data[column * f.stride + row] : f.data[row * f.stride + column];
}

/* Packs rows [row, row + rows) of A as strips of TILE_M rows, each [k][TILE_M], zeros beyond. */
static void pack_a(struct tdm_factor a, uint64_t row, uint64_t rows, uint64_t column, uint64_t k,
                   float *panel)
{
    for (uint64_t strip = 0; strip < rows; strip += TILE_M)
        for (uint64_t p = 0; p < k; p++)
            for (uint64_t i = strip; i < strip + TILE_M; i++)
                *panel++ = i < rows ? element(a, row + i, column + p) : 0.0f;
}

/* Packs columns of B as strips of TILE_N columns, each [k][TILE_N], zeros beyond. */
static void pack_b(struct tdm_factor b, uint64_t row, uint64_t k, uint64_t column, uint64_t columns,
                   float *panel)
{
    for (uint64_t strip = 0; strip < columns; strip += TILE_N)
        for (uint64_t p = 0; p < k; p++)
            for (uint64_t j = strip; j < strip + TILE_N; j++)
                *panel++ = j < columns ? element(b, row + p, column + j) : 0.0f;
}

/* Adds the product of a strip of A and a strip of B to a tile of C with m x n elements. */
static void multiply_tile(uint64_t k, const float *restrict a, const float *restrict b, uint64_t m,
                          uint64_t n, float *restrict c, uint64_t stride)
{
    float sum[TILE_M][TILE_N] = {{0}};
    for (uint64_t p = 0; p < k; p++) {
        for (int i = 0; i < TILE_M; i++) {
            TDM_SIMD
            for (int j = 0; j < TILE_N; j++)
                sum[i][j] += a[i] * b[j];
        }
        a += TILE_M;
        b += TILE_N;
    }
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++)
            c[i * stride + j] += sum[i][j];
}

void tdm_gemm_plain(uint64_t m, uint64_t n, uint64_t k, struct tdm_factor a, struct tdm_factor b,
                    bool add, float *c, uint64_t stride)
{
    float a_panel[BLOCK_M * BLOCK_K], b_panel[BLOCK_K * BLOCK_N];
    if (!add)
        for (uint64_t i = 0; i < m; i++)
            memset(c + i * stride, 0, n * sizeof(float));
    for (uint64_t p = 0; p < k; p += BLOCK_K) {
        uint64_t depth = least(BLOCK_K, k - p);
        for (uint64_t j = 0; j < n; j += BLOCK_N) {
            uint64_t columns = least(BLOCK_N, n - j);
            pack_b(b, p, depth, j, columns, b_panel);
            for (uint64_t i = 0; i < m; i += BLOCK_M) {
                uint64_t rows = least(BLOCK_M, m - i);
                pack_a(a, i, rows, p, depth, a_panel);
                for (uint64_t jj = 0; jj < columns; jj += TILE_N)
                    for (uint64_t ii = 0; ii < rows; ii += TILE_M)
                        multiply_tile(depth, a_panel + ii * depth, b_panel + jj * depth,
                                      least(TILE_M, rows - ii), least(TILE_N, columns - jj),
                                      c + (i + ii) * stride + j + jj, stride);
            }
        }
    }
}

#ifdef HAVE_OPENBLAS

void tdm_gemm(uint64_t m, uint64_t n, uint64_t k, struct tdm_factor a, struct tdm_factor b,
              bool add, float *c, uint64_t stride)
{
    if (m == 0 || n == 0 || k == 0) {
        tdm_gemm_plain(m, n, k, a, b, add, c, stride);
        return;
    }
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
                b.transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a.data,
                (int)a.stride, b.data, (int)b.stride, add ? 1.0f : 0.0f, c, (int)stride);
}

/* The largest BUFFER_SIZE of OpenBLAS on x86-64: common_x86_64.h, 32 << 22. */
uint64_t tdm_gemm_mapped_bytes(void)
{
    return UINT64_C(32) << 22;
}

void tdm_gemm_warm_up(void)
{
    enum { SIZE = 192 };
    static const float factor[SIZE * SIZE];
    float product[SIZE * SIZE];
    openblas_set_num_threads(1);
    struct tdm_factor f = {factor, SIZE, false};
    tdm_gemm(SIZE, SIZE, SIZE, f, f, false, product, SIZE);
}

const char *tdm_gemm_name(void)
{
    return "OpenBLAS";
}

#else

void tdm_gemm(uint64_t m, uint64_t n, uint64_t k, struct tdm_factor a, struct tdm_factor b,
              bool add, float *c, uint64_t stride)
{
    tdm_gemm_plain(m, n, k, a, b, add, c, stride);
}

uint64_t tdm_gemm_mapped_bytes(void)
{
    return 0;
}

void tdm_gemm_warm_up(void)
{
}

const char *tdm_gemm_name(void)
{
    return "own loops";
}

#endif
