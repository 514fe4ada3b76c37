/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums in a fixed order: of columns (gradients of biases), of the slices that blocks stored, and of
 * the losses and squares of an op. Also stores fp32 sums in their final dtype.
 *
 * Column sums read x [rows, columns] once. The rows are divided into SLICES slices, independent of
 * the GPU. A thread sums a column of a slice in fp32, and a second kernel sums the slices in
 * double.
 */
#include "executor/cuda/device.cuh"

#define SLICES TDM_BIAS_SLICES
#define THREADS 256u
#define GROUPS 32u

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    sum_columns(const T *x, uint64_t rows, uint64_t stride, uint64_t columns, float *partial)
{
    const uint64_t column = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint64_t begin = rows * blockIdx.y / SLICES, end = rows * (blockIdx.y + 1) / SLICES;
    float sum = 0.0f;
    if (column >= columns)
        return;
#pragma unroll 4
    for (uint64_t row = begin; row < end; row++)
        sum += tdm_get(x, row * stride + column);
    partial[blockIdx.y * columns + column] = sum;
}

/* A block has 32 columns, and a warp has every 32nd slice of them. */
static __global__ void __launch_bounds__(GROUPS *TDM_WARP)
    sum_slices(const float *partial, uint32_t slices, uint64_t columns, bool add, tdm_array sums)
{
    __shared__ double of_group[GROUPS][TDM_WARP + 1];
    const uint32_t lane = threadIdx.x % TDM_WARP, group = threadIdx.x / TDM_WARP;
    const uint64_t column = (uint64_t)blockIdx.x * TDM_WARP + lane;
    double sum = 0.0;
    for (uint32_t slice = group; slice < slices && column < columns; slice += GROUPS)
        sum += (double)partial[slice * columns + column];
    of_group[group][lane] = sum;
    __syncthreads();
    if (group > 0 || column >= columns)
        return;
    for (uint32_t i = 1; i < GROUPS; i++)
        sum += of_group[i][lane];
    tdm_put(sums, column, (add ? tdm_get(sums, column) : 0.0f) + (float)sum);
}

/* Runs as one block. */
static __global__ void __launch_bounds__(1024)
    sum_values(const double *values, uint64_t count, double factor, bool add, double *sum)
{
    double mine = 0.0;
    for (uint64_t i = threadIdx.x; i < count; i += blockDim.x)
        mine += values[i];
    mine = tdm_block_sum(mine);
    if (threadIdx.x == 0)
        *sum = (add ? *sum : 0.0) + mine * factor;
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    store(const float *from, uint64_t count, tdm_array to)
{
    const uint64_t i = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    float value[W];
    if (i >= count)
        return;
    tdm_load<W>(from, i, value);
    tdm_store<W>(to, i, value);
}

extern "C" enum tdm_status tdm_cuda_store(const float *from, uint64_t count, struct tdm_array to,
                                          cudaStream_t stream, struct tdm_error *err)
{
    const void *const pointers[] = {from, to.data};
    if (count == 0)
        return TDM_OK;
    if (tdm_in_eights(count, pointers, 2))
        store<8>
            <<<tdm_blocks(count / 8, THREADS, INT32_MAX), THREADS, 0, stream>>>(from, count, to);
    else
        store<1><<<tdm_blocks(count, THREADS, INT32_MAX), THREADS, 0, stream>>>(from, count, to);
    return tdm_cuda_status(cudaGetLastError(), "store launch", err);
}

extern "C" enum tdm_status tdm_cuda_column_sums(struct tdm_array x, uint64_t rows, uint64_t stride,
                                                uint64_t columns, bool add, struct tdm_array sums,
                                                void *scratch, cudaStream_t stream,
                                                struct tdm_error *err)
{
    float *partial = (float *)scratch;
    if (columns == 0)
        return TDM_OK;
    const dim3 blocks(tdm_blocks(columns, THREADS, UINT32_MAX), SLICES);
    enum tdm_status status = tdm_with_type(x.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        sum_columns<T>
            <<<blocks, THREADS, 0, stream>>>((const T *)x.data, rows, stride, columns, partial);
    });
    if (status == TDM_OK)
        status = tdm_cuda_status(cudaGetLastError(), "column sums launch", err);
    if (status != TDM_OK)
        return status;
    return tdm_cuda_sum_slices(partial, SLICES, columns, add, sums, stream, err);
}

extern "C" enum tdm_status tdm_cuda_sum_slices(const float *partial, uint32_t slices,
                                               uint64_t columns, bool add, struct tdm_array sums,
                                               cudaStream_t stream, struct tdm_error *err)
{
    const unsigned blocks = tdm_blocks(columns, TDM_WARP, INT32_MAX);
    sum_slices<<<blocks, GROUPS * TDM_WARP, 0, stream>>>(partial, slices, columns, add, sums);
    return tdm_cuda_status(cudaGetLastError(), "sum of slices launch", err);
}

extern "C" enum tdm_status tdm_cuda_sum_values(const double *values, uint64_t count, double factor,
                                               bool add, double *sum, cudaStream_t stream,
                                               struct tdm_error *err)
{
    sum_values<<<1, 1024, 0, stream>>>(values, count, factor, add, sum);
    return tdm_cuda_status(cudaGetLastError(), "sum of values launch", err);
}
