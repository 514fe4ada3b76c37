/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products on CUDA cores, for those that cuBLASLt does not support: factors of different dtypes,
 * bf16 results of fp32 factors, two terms that are not adjacent in memory.
 *
 * C [m, n] = start + sum over terms of A [m, k] B [k, n]; 2 m n k FLOPs in fp32. A block has 64 x
 * 64 elements of C, a thread 4 x 4. A block loops over k in panels of 16 through shared memory.
 * This is not optimized: fast schedules store the factors of a product in one dtype.
 */
#include "executor/cuda/device.cuh"
#include "executor/cuda/matmul.h"

#define TILE 64u
#define PANEL 16u
#define THREADS 256u
#define OF_THREAD 4u

struct matrix {
    tdm_array array;
    uint64_t stride;
    bool transposed;
};

struct product {
    uint64_t m, n;
    matrix c, start; /* start: NULL if there is none */
    bool start_is_row;
    uint32_t terms;
    struct {
        uint64_t k;
        matrix a, b;
    } term[2];
};

static __device__ float element(const matrix &x, uint64_t row, uint64_t column)
{
    return tdm_get(x.array, x.transposed ? column * x.stride + row : row * x.stride + column);
}

static __global__ void __launch_bounds__(THREADS) multiply(const product p)
{
    __shared__ float a_panel[PANEL][TILE + 1], b_panel[PANEL][TILE + 1];
    const uint64_t row = (uint64_t)blockIdx.y * TILE, column = (uint64_t)blockIdx.x * TILE;
    const unsigned my_row = threadIdx.x / (TILE / OF_THREAD) * OF_THREAD;
    const unsigned my_column = threadIdx.x % (TILE / OF_THREAD) * OF_THREAD;
    float sum[OF_THREAD][OF_THREAD];
    for (unsigned i = 0; i < OF_THREAD; i++) {
        for (unsigned j = 0; j < OF_THREAD; j++) {
            const uint64_t r = row + my_row + i, c = column + my_column + j;
            sum[i][j] = p.start.array.data != NULL && r < p.m && c < p.n
                            ? element(p.start, p.start_is_row ? 0 : r, c)
                            : 0.0f;
        }
    }
    for (unsigned t = 0; t < p.terms; t++) {
        const matrix &a = p.term[t].a, &b = p.term[t].b;
        const uint64_t depth = p.term[t].k;
        for (uint64_t k = 0; k < depth; k += PANEL) {
            for (unsigned i = threadIdx.x; i < PANEL * TILE; i += THREADS) {
                /* neighbouring threads read neighbouring elements */
                const unsigned ak = a.transposed ? i / TILE : i % PANEL;
                const unsigned am = a.transposed ? i % TILE : i / PANEL;
                const unsigned bk = b.transposed ? i % PANEL : i / TILE;
                const unsigned bn = b.transposed ? i / PANEL : i % TILE;
                a_panel[ak][am] =
                    row + am < p.m && k + ak < depth ? element(a, row + am, k + ak) : 0.0f;
                b_panel[bk][bn] =
                    column + bn < p.n && k + bk < depth ? element(b, k + bk, column + bn) : 0.0f;
            }
            __syncthreads();
            for (unsigned l = 0; l < PANEL; l++)
                for (unsigned i = 0; i < OF_THREAD; i++)
                    for (unsigned j = 0; j < OF_THREAD; j++)
                        sum[i][j] += a_panel[l][my_row + i] * b_panel[l][my_column + j];
            __syncthreads();
        }
    }
    for (unsigned i = 0; i < OF_THREAD; i++) {
        for (unsigned j = 0; j < OF_THREAD; j++) {
            const uint64_t r = row + my_row + i, c = column + my_column + j;
            if (r < p.m && c < p.n)
                tdm_put(p.c.array, r * p.c.stride + c, sum[i][j]);
        }
    }
}

static matrix matrix_of(const struct tdm_matrix *from)
{
    return matrix{tdm_array{from->data, from->dtype}, from->stride, from->transposed};
}

extern "C" enum tdm_status tdm_cuda_gemm(const struct tdm_multiplication *x, cudaStream_t stream,
                                         struct tdm_error *err)
{
    product p = {};
    p.m = x->m;
    p.n = x->n;
    p.c = matrix_of(&x->c);
    p.start = matrix_of(x->add ? &x->c : x->addend.data != NULL ? &x->addend : &x->bias);
    p.start_is_row = !x->add && x->addend.data == NULL;
    p.terms = x->terms;
    for (uint32_t t = 0; t < x->terms; t++) {
        p.term[t].k = x->term[t].k;
        p.term[t].a = matrix_of(&x->term[t].a);
        p.term[t].b = matrix_of(&x->term[t].b);
    }
    const uint64_t rows = (x->m + TILE - 1) / TILE, columns = (x->n + TILE - 1) / TILE;
    if (rows == 0 || columns == 0)
        return TDM_OK;
    if (rows > 65535 || columns > INT32_MAX)
        return tdm_fail(err, TDM_INPUT,
                        "a product of %llu x %llu in these dtypes is too large for the GPU",
                        (unsigned long long)x->m, (unsigned long long)x->n);
    const dim3 blocks((unsigned)columns, (unsigned)rows);
    multiply<<<blocks, THREADS, 0, stream>>>(p);
    return tdm_cuda_status(cudaGetLastError(), "gemm launch", err);
}
