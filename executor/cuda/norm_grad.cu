/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of RMSNorm: with s = 1 / sqrt(mean(x^2) + epsilon) of each row,
 *
 *     dx = s w dy - x s^3 / hidden * sum(w dy x),   dw = sum over rows of dy x s
 *
 * Memory-bound: x and dy read, dx written (and read, where it is added to). A block takes a slice of the
 * rows, one after the other: it reads a row for the two sums and finds it in the L1 when it reads it
 * again for the results. Its share of dw stays in shared memory, where every column has one thread,
 * and goes out once; a second kernel adds up the slices. There are SLICES of them whatever the GPU, so
 * that results do not depend on it. dx may overwrite x or dy: nobody else reads their row.
 */
#include "executor/cuda/device.cuh"

#define SLICES 264u /* two for each multiprocessor of an H100 or H200 */
#define THREADS 256u
#define MOST_SHARED_BYTES (200u * 1024u)

template <typename X, int W>
static __global__ void __launch_bounds__(THREADS)
    rms_norm_grad(const X *x, tdm_array weight, const X *dy, uint64_t rows, uint32_t hidden,
                  float epsilon, bool add_input, X *dx, float *partial)
{
    extern __shared__ __align__(16) float dw[]; /* [hidden] */
    const uint64_t begin = rows * blockIdx.x / SLICES, end = rows * (blockIdx.x + 1) / SLICES;
    for (uint32_t i = threadIdx.x * W; i < hidden; i += THREADS * W) {
        const float zeros[W] = {};
        tdm_store<W>(dw, i, zeros);
    }
    for (uint64_t row = begin; row < end; row++) {
        const uint64_t at = row * hidden;
        float squares = 0.0f, dot = 0.0f;
        for (uint32_t i = threadIdx.x * W; i < hidden; i += THREADS * W) {
            float xs[W], dys[W], ws[W];
            tdm_load<W>(x, at + i, xs);
            tdm_load<W>(dy, at + i, dys);
            tdm_load<W>(weight, i, ws);
#pragma unroll
            for (int j = 0; j < W; j++) {
                squares += xs[j] * xs[j];
                dot += ws[j] * dys[j] * xs[j];
            }
        }
        squares = tdm_block_sum(squares);
        dot = tdm_block_sum(dot);
        const float scale = 1.0f / sqrtf(squares / (float)hidden + epsilon);
        const float slope = scale * scale * scale / (float)hidden * dot;
        for (uint32_t i = threadIdx.x * W; i < hidden; i += THREADS * W) {
            float xs[W], dys[W], ws[W], sum[W];
            tdm_load<W>(x, at + i, xs);
            tdm_load<W>(dy, at + i, dys);
            tdm_load<W>(weight, i, ws);
            tdm_load<W>(dw, i, sum);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] += dys[j] * xs[j] * scale;
            tdm_store<W>(dw, i, sum);
            if (add_input)
                tdm_load<W>(dx, at + i, sum);
#pragma unroll
            for (int j = 0; j < W; j++) {
                const float d = scale * (ws[j] * dys[j]) - slope * xs[j];
                sum[j] = add_input ? sum[j] + d : d;
            }
            tdm_store<W>(dx, at + i, sum);
        }
    }
    for (uint32_t i = threadIdx.x * W; i < hidden; i += THREADS * W) {
        float sum[W];
        tdm_load<W>(dw, i, sum);
        tdm_store<W>(partial, (uint64_t)blockIdx.x * hidden + i, sum);
    }
}

extern "C" uint64_t tdm_cuda_rms_norm_grad_scratch(uint32_t hidden)
{
    return (uint64_t)SLICES * hidden * sizeof(float);
}

extern "C" enum tdm_status tdm_cuda_rms_norm_grad(struct tdm_array x, struct tdm_array weight,
                                                  struct tdm_array dy, uint64_t rows,
                                                  uint32_t hidden, float epsilon, bool add_input,
                                                  struct tdm_array dx, bool add_weight,
                                                  struct tdm_array dw, void *scratch,
                                                  cudaStream_t stream, struct tdm_error *err)
{
    const void *const pointers[] = {x.data, weight.data, dy.data, dx.data, scratch};
    const bool eights = tdm_in_eights(hidden, pointers, 5);
    const size_t shared_bytes = hidden * sizeof(float);
    float *partial = (float *)scratch;
    cudaError_t code = cudaSuccess;
    if (dy.dtype != x.dtype || dx.dtype != x.dtype || shared_bytes > MOST_SHARED_BYTES)
        return tdm_fail(err, TDM_INTERNAL, "no gradient of RMSNorm for hidden size %u in %s, %s",
                        hidden, tdm_dtype_name(x.dtype), tdm_dtype_name(dy.dtype));
    enum tdm_status status = tdm_with_type(x.dtype, err, [&](auto *type) {
        using X = std::remove_pointer_t<decltype(type)>;
        auto *kernel = eights ? rms_norm_grad<X, 8> : rms_norm_grad<X, 1>;
        code =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)MOST_SHARED_BYTES);
        if (code == cudaSuccess)
            kernel<<<SLICES, THREADS, shared_bytes, stream>>>(
                (const X *)x.data, weight, (const X *)dy.data, rows, hidden, epsilon, add_input,
                (X *)dx.data, partial);
    });
    if (status == TDM_OK)
        status = tdm_cuda_status(code, "cudaFuncSetAttribute of rms_norm_grad", err);
    if (status == TDM_OK)
        status = tdm_cuda_status(cudaGetLastError(), "rms_norm_grad launch", err);
    if (status != TDM_OK)
        return status;
    return tdm_cuda_sum_slices(partial, SLICES, hidden, add_weight, dw, stream, err);
}
