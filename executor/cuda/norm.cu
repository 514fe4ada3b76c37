/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm forward: y[r][i] = x[r][i] * weight[i] / sqrt(mean(x[r]^2) + epsilon).
 *
 * Shapes: x, y bf16 [rows, hidden]; weight bf16 or fp32 [hidden].
 * Bytes:  4 * rows * hidden (x read once, y written once); the weight stays in the caches.
 * FLOPs:  4 * rows * hidden (square and add, two products), all fp32: memory-bound by far.
 *
 * One block for each row. The versions, with GB/s of bytes moved on an H200 (131,072 rows, bf16
 * weight; a plain copy reaches 4,280):
 *
 *   hidden                896   2048   3584   4096   5120   8192  16384
 *   scalar               1642   1622   1410   1553   1410   1368   1484
 *   vector 1             3217   3421   3231   3301   3142   2601      -
 *   vector 2             3679   3838   3706   3718   3607   3082   2425
 *   vector 4             3442   3659   3496   3617   3531   3245   2746
 *   vector 8             2778   3261   3239   3261   3118   3187   2994
 *
 *   scalar    A thread reads 2 bytes at a time, once for the sum and again to scale. For hidden
 *             sizes and addresses that 16-byte loads do not support.
 *   vector N  A thread loads N times 16 bytes and keeps them in registers during the reduction, so
 *             it reads x once. Two loads in flight hide more of the reduction's latency than one.
 *             More loads leave too few threads, until rows are so long that blocks exceed 384
 *             threads and too few fit on a multiprocessor. Chosen: the smallest N of at least 2
 *             whose block has at most 384 threads.
 */
#include "executor/cuda/norm.h"

#include "executor/cuda/cuda_error.h"

#include <cuda_bf16.h>
#include <math.h>

extern "C" void tdm_rms_norm_reference(const float *x, const float *weight, uint64_t rows,
                                       uint32_t hidden, double epsilon, double *y)
{
    for (uint64_t row = 0; row < rows; row++) {
        const float *in = x + row * hidden;
        double *out = y + row * hidden;
        double sum = 0.0;
        for (uint32_t i = 0; i < hidden; i++)
            sum += (double)in[i] * in[i];
        const double scale = 1.0 / sqrt(sum / hidden + epsilon);
        for (uint32_t i = 0; i < hidden; i++)
            out[i] = in[i] * scale * weight[i];
    }
}

/* Elements in one 16-byte load of bf16. */
#define VECTOR 8u
#define MOST_THREADS 1024u
/* Above this number a second pair of loads in each thread helps more than more threads. */
#define BEST_THREADS 384u

/* Largest number of threads in a block: with eight loads each, registers do not suffice for
 * 1024. */
static constexpr uint32_t most_threads(uint32_t per_thread)
{
    return per_thread < 8 ? MOST_THREADS : MOST_THREADS / 2;
}

struct __align__(16) vector
{
    __nv_bfloat162 pair[VECTOR / 2];
};

/* The weights that belong to vector number `i`, in fp32. */
static __device__ void load_weight(const __nv_bfloat16 *weight, uint32_t i, float2 out[VECTOR / 2])
{
    const vector loaded = ((const vector *)weight)[i];
    for (uint32_t p = 0; p < VECTOR / 2; p++)
        out[p] = __bfloat1622float2(loaded.pair[p]);
}

static __device__ void load_weight(const float *weight, uint32_t i, float2 out[VECTOR / 2])
{
    const float4 low = ((const float4 *)weight)[2 * i];
    const float4 high = ((const float4 *)weight)[2 * i + 1];
    out[0] = make_float2(low.x, low.y);
    out[1] = make_float2(low.z, low.w);
    out[2] = make_float2(high.x, high.y);
    out[3] = make_float2(high.z, high.w);
}

static __device__ float to_float(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}

static __device__ float to_float(float value)
{
    return value;
}

/* The sum of `value` over the block, the same in every thread. blockDim.x is a multiple of 32. */
static __device__ float block_sum(float value)
{
    __shared__ float of_warp[MOST_THREADS / 32];
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? of_warp[threadIdx.x % 32] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

static __device__ void put(__nv_bfloat16 *to, float value)
{
    *to = __float2bfloat16_rn(value);
}

static __device__ void put(float *to, float value)
{
    *to = value;
}

template <typename X, typename Weight>
static __global__ void rms_norm_scalar(const X *x, const Weight *weight, uint32_t hidden,
                                       float epsilon, X *y)
{
    x += (size_t)blockIdx.x * hidden;
    y += (size_t)blockIdx.x * hidden;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float value = to_float(x[i]);
        sum += value * value;
    }
    const float scale = rsqrtf(block_sum(sum) / hidden + epsilon);
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x)
        put(&y[i], to_float(x[i]) * scale * to_float(weight[i]));
}

/* hidden is a multiple of VECTOR and at most PER_THREAD * VECTOR * blockDim.x. */
template <unsigned PER_THREAD, typename Weight>
static __global__ void __launch_bounds__(most_threads(PER_THREAD))
    rms_norm_vector(const vector *x, const Weight *weight, uint32_t hidden, float epsilon,
                    vector *y)
{
    const uint32_t vectors = hidden / VECTOR;
    x += (size_t)blockIdx.x * vectors;
    y += (size_t)blockIdx.x * vectors;

    vector held[PER_THREAD];
    float sum = 0.0f;
#pragma unroll
    for (unsigned n = 0; n < PER_THREAD; n++) {
        const uint32_t i = threadIdx.x + n * blockDim.x;
        if (i < vectors) {
            held[n] = x[i];
            for (uint32_t p = 0; p < VECTOR / 2; p++) {
                const float2 value = __bfloat1622float2(held[n].pair[p]);
                sum += value.x * value.x + value.y * value.y;
            }
        }
    }

    const float scale = rsqrtf(block_sum(sum) / hidden + epsilon);

#pragma unroll
    for (unsigned n = 0; n < PER_THREAD; n++) {
        const uint32_t i = threadIdx.x + n * blockDim.x;
        if (i < vectors) {
            float2 factor[VECTOR / 2];
            load_weight(weight, i, factor);
            vector out;
            for (uint32_t p = 0; p < VECTOR / 2; p++) {
                const float2 value = __bfloat1622float2(held[n].pair[p]);
                out.pair[p] = __floats2bfloat162_rn(value.x * scale * factor[p].x,
                                                    value.y * scale * factor[p].y);
            }
            y[i] = out;
        }
    }
}

static uint32_t per_thread(enum tdm_rms_norm_version version)
{
    return version == TDM_RMS_NORM_SCALAR ? 0 : 1u << (version - TDM_RMS_NORM_VECTOR_1);
}

/* Threads of a block, not 0. More than most_threads() if the version does not support this hidden
 * size. */
static uint32_t threads_for(enum tdm_rms_norm_version version, uint32_t hidden)
{
    const uint32_t elements =
        version == TDM_RMS_NORM_SCALAR ? VECTOR : VECTOR * per_thread(version);
    const uint32_t threads = ((hidden + elements - 1) / elements + 31) / 32 * 32;
    return version == TDM_RMS_NORM_SCALAR && threads > MOST_THREADS ? MOST_THREADS : threads;
}

static bool aligned(const void *pointer)
{
    return (uintptr_t)pointer % sizeof(vector) == 0;
}

template <typename Weight>
static void launch(enum tdm_rms_norm_version version, const void *x, const void *weight,
                   uint64_t rows, uint32_t hidden, float epsilon, void *y, cudaStream_t stream)
{
    const uint32_t threads = threads_for(version, hidden);
    const unsigned blocks = (unsigned)rows;
    const vector *in = (const vector *)x;
    const Weight *w = (const Weight *)weight;
    vector *out = (vector *)y;
    switch (version) {
    case TDM_RMS_NORM_VECTOR_1:
        rms_norm_vector<1><<<blocks, threads, 0, stream>>>(in, w, hidden, epsilon, out);
        break;
    case TDM_RMS_NORM_VECTOR_2:
        rms_norm_vector<2><<<blocks, threads, 0, stream>>>(in, w, hidden, epsilon, out);
        break;
    case TDM_RMS_NORM_VECTOR_4:
        rms_norm_vector<4><<<blocks, threads, 0, stream>>>(in, w, hidden, epsilon, out);
        break;
    case TDM_RMS_NORM_VECTOR_8:
        rms_norm_vector<8><<<blocks, threads, 0, stream>>>(in, w, hidden, epsilon, out);
        break;
    default:
        rms_norm_scalar<<<blocks, threads, 0, stream>>>((const __nv_bfloat16 *)x, w, hidden,
                                                        epsilon, (__nv_bfloat16 *)y);
        break;
    }
}

extern "C" const char *tdm_rms_norm_version_name(enum tdm_rms_norm_version version)
{
    static const char *const names[] = {"scalar", "vector 1", "vector 2", "vector 4", "vector 8"};
    return (unsigned)version < TDM_RMS_NORM_VERSIONS ? names[version] : "unknown";
}

extern "C" enum tdm_rms_norm_version tdm_rms_norm_choose(const void *x, const void *weight,
                                                         const void *y, uint32_t hidden)
{
    if (hidden % VECTOR != 0 || !aligned(x) || !aligned(weight) || !aligned(y))
        return TDM_RMS_NORM_SCALAR;
    for (int v = TDM_RMS_NORM_VECTOR_2; v < TDM_RMS_NORM_VERSIONS; v++) {
        const enum tdm_rms_norm_version version = (enum tdm_rms_norm_version)v;
        if (threads_for(version, hidden) <= BEST_THREADS)
            return version;
    }
    return threads_for(TDM_RMS_NORM_VECTOR_8, hidden) <= most_threads(8) ? TDM_RMS_NORM_VECTOR_8
                                                                         : TDM_RMS_NORM_SCALAR;
}

static enum tdm_status check(enum tdm_dtype weight_dtype, uint64_t rows, struct tdm_error *err)
{
    if (weight_dtype != TDM_DTYPE_BF16 && weight_dtype != TDM_DTYPE_FP32)
        return tdm_fail(err, TDM_USAGE, "RMSNorm on the GPU takes bf16 or fp32 weights, not %s",
                        tdm_dtype_name(weight_dtype));
    if (rows > INT32_MAX)
        return tdm_fail(err, TDM_USAGE, "RMSNorm on the GPU takes at most %d rows at once",
                        INT32_MAX);
    return TDM_OK;
}

extern "C" enum tdm_status tdm_cuda_rms_norm_version(enum tdm_rms_norm_version version,
                                                     const void *x, const void *weight,
                                                     enum tdm_dtype weight_dtype, uint64_t rows,
                                                     uint32_t hidden, float epsilon, void *y,
                                                     cudaStream_t stream, struct tdm_error *err)
{
    enum tdm_status status = check(weight_dtype, rows, err);
    if (status != TDM_OK)
        return status;
    if ((unsigned)version >= TDM_RMS_NORM_VERSIONS)
        return tdm_fail(err, TDM_USAGE, "there is no version %d of RMSNorm", (int)version);
    if (version != TDM_RMS_NORM_SCALAR &&
        (hidden % VECTOR != 0 || !aligned(x) || !aligned(weight) || !aligned(y) ||
         threads_for(version, hidden) > most_threads(per_thread(version))))
        return tdm_fail(err, TDM_USAGE, "version \"%s\" of RMSNorm cannot do hidden size %u there",
                        tdm_rms_norm_version_name(version), hidden);
    if (rows == 0 || hidden == 0)
        return TDM_OK;
    if (weight_dtype == TDM_DTYPE_BF16)
        launch<__nv_bfloat16>(version, x, weight, rows, hidden, epsilon, y, stream);
    else
        launch<float>(version, x, weight, rows, hidden, epsilon, y, stream);
    return tdm_cuda_status(cudaGetLastError(), "rms_norm launch", err);
}

/* fp32 is only for comparisons, so one version is enough. */
template <typename Weight>
static void launch_fp32(const void *x, const void *weight, uint64_t rows, uint32_t hidden,
                        float epsilon, void *y, cudaStream_t stream)
{
    rms_norm_scalar<<<(unsigned)rows, threads_for(TDM_RMS_NORM_SCALAR, hidden), 0, stream>>>(
        (const float *)x, (const Weight *)weight, hidden, epsilon, (float *)y);
}

extern "C" enum tdm_status tdm_cuda_rms_norm_fp32(const void *x, const void *weight,
                                                  enum tdm_dtype weight_dtype, uint64_t rows,
                                                  uint32_t hidden, float epsilon, void *y,
                                                  cudaStream_t stream, struct tdm_error *err)
{
    enum tdm_status status = check(weight_dtype, rows, err);
    if (status != TDM_OK || rows == 0 || hidden == 0)
        return status;
    if (weight_dtype == TDM_DTYPE_BF16)
        launch_fp32<__nv_bfloat16>(x, weight, rows, hidden, epsilon, y, stream);
    else
        launch_fp32<float>(x, weight, rows, hidden, epsilon, y, stream);
    return tdm_cuda_status(cudaGetLastError(), "rms_norm launch", err);
}

extern "C" enum tdm_status tdm_cuda_rms_norm(const void *x, const void *weight,
                                             enum tdm_dtype weight_dtype, uint64_t rows,
                                             uint32_t hidden, float epsilon, void *y,
                                             cudaStream_t stream, struct tdm_error *err)
{
    return tdm_cuda_rms_norm_version(tdm_rms_norm_choose(x, weight, y, hidden), x, weight,
                                     weight_dtype, rows, hidden, epsilon, y, stream, err);
}
