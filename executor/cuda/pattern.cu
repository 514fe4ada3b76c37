/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arenas' pattern on the device: writes it, and counts the words that no longer hold it. A word
 * has 8 bytes, each moved once. Counts are integers, so atomic additions of them repeat.
 */
#include "executor/pattern.h"

#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernels.h"

#define THREADS 256u
#define MOST_BLOCKS 4096u

static __global__ void fill(uint64_t *words, uint64_t first, uint64_t end)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = first + (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step)
        words[i] = tdm_pattern_word(i);
}

static __global__ void scan(const uint64_t *words, uint64_t count, unsigned long long *found)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    unsigned long long touched = 0, end = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (words[i] != tdm_pattern_word(i)) {
            touched++;
            end = i + 1;
        }
    }
    if (touched > 0) {
        atomicAdd(&found[0], touched);
        atomicMax(&found[1], end);
    }
}

static unsigned blocks_for(uint64_t count)
{
    const uint64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

extern "C" enum tdm_status tdm_cuda_pattern_fill(uint64_t *words, uint64_t first, uint64_t end,
                                                 cudaStream_t stream, struct tdm_error *err)
{
    if (first == end)
        return TDM_OK;
    fill<<<blocks_for(end - first), THREADS, 0, stream>>>(words, first, end);
    return tdm_cuda_status(cudaGetLastError(), "pattern fill launch", err);
}

extern "C" enum tdm_status tdm_cuda_pattern_scan(const uint64_t *words, uint64_t count,
                                                 uint64_t found[2], cudaStream_t stream,
                                                 struct tdm_error *err)
{
    enum tdm_status status = TDM_CUDA(cudaMemsetAsync(found, 0, 2 * sizeof(found[0]), stream), err);
    if (status != TDM_OK || count == 0)
        return status;
    scan<<<blocks_for(count), THREADS, 0, stream>>>(words, count, (unsigned long long *)found);
    return tdm_cuda_status(cudaGetLastError(), "pattern scan launch", err);
}
