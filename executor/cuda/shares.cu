/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of the shares of several ranks, in the order of the ranks in fp32.
 *
 * The shares are in the memory of other GPUs, so each element is read once and a thread has several
 * loads under way. The sum may replace one of the shares.
 */
#include "executor/cuda/device.cuh"

#define THREADS 256u
#define MOST_BLOCKS 1056u /* enough to fill 132 multiprocessors */

template <typename T, int W>
static __global__ void __launch_bounds__(THREADS)
    sum_shares(const tdm_cuda_shares shares, uint64_t first, uint64_t vectors, T *sum)
{
    const uint64_t step = (uint64_t)gridDim.x * THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        float total[W], share[W];
        tdm_load<W>((const T *)shares.of[0], first + i * W, total);
        for (uint32_t rank = 1; rank < shares.count; rank++) {
            tdm_load<W>((const T *)shares.of[rank], first + i * W, share);
#pragma unroll
            for (int j = 0; j < W; j++)
                total[j] += share[j];
        }
        tdm_store<W>(sum, first + i * W, total);
    }
}

template <typename T, int W>
static void launch(const tdm_cuda_shares *shares, uint64_t first, uint64_t count, T *sum,
                   cudaStream_t stream)
{
    const uint64_t vectors = count / W, blocks = (vectors + THREADS - 1) / THREADS;
    if (vectors > 0)
        sum_shares<T, W>
            <<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, stream>>>(
                *shares, first, vectors, sum);
}

static bool aligned(const tdm_cuda_shares *shares, const void *sum)
{
    uintptr_t all = (uintptr_t)sum;
    for (uint32_t rank = 0; rank < shares->count; rank++)
        all |= (uintptr_t)shares->of[rank];
    return all % 16 == 0;
}

template <typename T>
static void sum_all(const tdm_cuda_shares *shares, uint64_t count, T *sum, cudaStream_t stream)
{
    constexpr int W = 16 / sizeof(T);
    const uint64_t whole = aligned(shares, sum) ? count / W * W : 0;
    launch<T, W>(shares, 0, whole, sum, stream);
    launch<T, 1>(shares, whole, count - whole, sum, stream);
}

extern "C" enum tdm_status tdm_cuda_sum_shares(const struct tdm_cuda_shares *shares, uint64_t count,
                                               struct tdm_array sum, cudaStream_t stream,
                                               struct tdm_error *err)
{
    if (sum.dtype == TDM_DTYPE_BF16)
        sum_all(shares, count, (__nv_bfloat16 *)sum.data, stream);
    else
        sum_all(shares, count, (float *)sum.data, stream);
    return tdm_cuda_status(cudaGetLastError(), "sum of shares launch", err);
}
