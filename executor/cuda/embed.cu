/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embedding: a row of the table for every token; the rows of a chunk sorted by token; and the
 * gradient added to the table.
 *
 * The sort is by rank. A row's place is the number of rows with a smaller token, or with the same
 * token and a smaller row number. These are rows^2 comparisons, 17 million for 4,096 rows. They
 * take tens of microseconds; a radix sort would need several launches. A row of the gradient
 * belongs to the blocks of the first sorted row with its token. They add the gradients of the other
 * rows in order, load AHEAD rows at once, and write the sum once.
 */
#include "executor/cuda/device.cuh"

#define THREADS 256u
#define SORTERS 8u /* threads that count for a row */
#define AHEAD 8

template <typename T, typename X, int W>
static __global__ void __launch_bounds__(THREADS)
    embed(const int32_t *tokens, const T *table, uint32_t vocabulary, uint32_t hidden, X *x,
          tdm_fault *fault)
{
    const uint64_t row = blockIdx.x;
    const int32_t token = tokens[row];
    const bool is_token = token >= 0 && (uint32_t)token < vocabulary;
    if (!is_token && threadIdx.x == 0) {
        fault->token = token;
        fault->row = row + 1;
    }
    for (uint32_t column = threadIdx.x * W; column < hidden; column += THREADS * W) {
        float value[W] = {};
        if (is_token)
            tdm_load<W>(table, (uint64_t)token * hidden + column, value);
        tdm_store<W>(x, row * hidden + column, value);
    }
}

static __global__ void __launch_bounds__(THREADS)
    sort_by_rank(const int32_t *tokens, uint64_t rows, int32_t *order)
{
    __shared__ int32_t others[THREADS];
    const uint64_t row = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) / SORTERS;
    const int32_t token = row < rows ? tokens[row] : 0;
    uint32_t rank = 0;
    for (uint64_t first = 0; first < rows; first += THREADS) {
        const uint32_t count = (uint32_t)(rows - first < THREADS ? rows - first : THREADS);
        __syncthreads();
        if (threadIdx.x < count)
            others[threadIdx.x] = tokens[first + threadIdx.x];
        __syncthreads();
        for (uint32_t i = threadIdx.x % SORTERS; i < count; i += SORTERS)
            rank += others[i] < token || (others[i] == token && first + i < row);
    }
    for (unsigned offset = SORTERS / 2; offset > 0; offset /= 2)
        rank += __shfl_xor_sync(TDM_FULL_WARP, rank, offset);
    if (row < rows && threadIdx.x % SORTERS == 0)
        order[rank] = (int32_t)row;
}

/* Runs blocks for each sorted row. Only the blocks of a token's first row do any work. */
template <typename T, typename X, int W>
static __global__ void __launch_bounds__(THREADS)
    embed_grad(const int32_t *tokens, const int32_t *order, const X *dx, uint64_t rows,
               uint32_t vocabulary, uint32_t hidden, T *table)
{
    const uint64_t first = blockIdx.x;
    const uint32_t column = (blockIdx.y * THREADS + threadIdx.x) * W;
    const int32_t token = tokens[order[first]];
    if (token < 0 || (uint32_t)token >= vocabulary || column >= hidden ||
        (first > 0 && tokens[order[first - 1]] == token))
        return;
    const uint64_t at = (uint64_t)token * hidden + column;
    float sum[W];
    tdm_load<W>(table, at, sum);
    bool more = true;
    for (uint64_t i = first; more; i += AHEAD) {
        float value[AHEAD][W];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const uint64_t row = i + k < rows ? (uint64_t)order[i + k] : rows;
            more = row < rows && tokens[row] == token;
#pragma unroll
            for (int j = 0; j < W; j++)
                value[k][j] = 0.0f;
            if (more)
                tdm_load<W>(dx, row * hidden + column, value[k]);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] += value[k][j];
    }
    tdm_store<W>(table, at, sum);
}

extern "C" enum tdm_status tdm_cuda_embed(const int32_t *tokens, struct tdm_array table,
                                          uint64_t rows, uint32_t vocabulary, uint32_t hidden,
                                          struct tdm_array x, struct tdm_fault *fault,
                                          cudaStream_t stream, struct tdm_error *err)
{
    const void *const pointers[] = {table.data, x.data};
    const bool eights = tdm_in_eights(hidden, pointers, 2);
    const unsigned blocks = (unsigned)rows;
    enum tdm_status status = TDM_OK, inner = TDM_OK;
    status = tdm_with_type(table.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        inner = tdm_with_type(x.dtype, err, [&](auto *other) {
            using X = std::remove_pointer_t<decltype(other)>;
            const T *from = (const T *)table.data;
            X *to = (X *)x.data;
            if (eights)
                embed<T, X, 8>
                    <<<blocks, THREADS, 0, stream>>>(tokens, from, vocabulary, hidden, to, fault);
            else
                embed<T, X, 1>
                    <<<blocks, THREADS, 0, stream>>>(tokens, from, vocabulary, hidden, to, fault);
        });
    });
    if (status != TDM_OK || inner != TDM_OK)
        return status != TDM_OK ? status : inner;
    return tdm_cuda_status(cudaGetLastError(), "embed launch", err);
}

extern "C" enum tdm_status tdm_cuda_sort_tokens(const int32_t *tokens, uint64_t rows,
                                                int32_t *order, cudaStream_t stream,
                                                struct tdm_error *err)
{
    const unsigned blocks = tdm_blocks(rows, THREADS / SORTERS, INT32_MAX);
    sort_by_rank<<<blocks, THREADS, 0, stream>>>(tokens, rows, order);
    return tdm_cuda_status(cudaGetLastError(), "sort_tokens launch", err);
}

extern "C" enum tdm_status tdm_cuda_embed_grad(const int32_t *tokens, const int32_t *order,
                                               struct tdm_array dx, uint64_t rows,
                                               uint32_t vocabulary, uint32_t hidden,
                                               struct tdm_array table, cudaStream_t stream,
                                               struct tdm_error *err)
{
    const void *const pointers[] = {table.data, dx.data};
    const bool eights = tdm_in_eights(hidden, pointers, 2);
    const uint64_t columns = THREADS * (eights ? 8u : 1u);
    const dim3 blocks((unsigned)rows, (unsigned)((hidden + columns - 1) / columns));
    enum tdm_status status = TDM_OK, inner = TDM_OK;
    status = tdm_with_type(table.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        inner = tdm_with_type(dx.dtype, err, [&](auto *other) {
            using X = std::remove_pointer_t<decltype(other)>;
            const X *from = (const X *)dx.data;
            T *to = (T *)table.data;
            if (eights)
                embed_grad<T, X, 8><<<blocks, THREADS, 0, stream>>>(tokens, order, from, rows,
                                                                    vocabulary, hidden, to);
            else
                embed_grad<T, X, 1><<<blocks, THREADS, 0, stream>>>(tokens, order, from, rows,
                                                                    vocabulary, hidden, to);
        });
    });
    if (status != TDM_OK || inner != TDM_OK)
        return status != TDM_OK ? status : inner;
    return tdm_cuda_status(cudaGetLastError(), "embed_grad launch", err);
}
