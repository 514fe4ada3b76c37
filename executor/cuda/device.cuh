/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of all kernels: elements of both dtypes as fp32, loaded one at a time or as 16 bytes of
 * bf16, and sums over warps and blocks in a fixed order.
 */
#ifndef TDM_EXECUTOR_CUDA_DEVICE_CUH
#define TDM_EXECUTOR_CUDA_DEVICE_CUH

#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernels.h"

#include <cuda_bf16.h>
#include <type_traits>

#define TDM_WARP 32u
#define TDM_FULL_WARP 0xffffffffu

/* ---- elements ---- */

static __device__ __forceinline__ float tdm_get(const float *data, uint64_t i)
{
    return data[i];
}

static __device__ __forceinline__ float tdm_get(const __nv_bfloat16 *data, uint64_t i)
{
    return __bfloat162float(data[i]);
}

static __device__ __forceinline__ void tdm_put(float *data, uint64_t i, float value)
{
    data[i] = value;
}

static __device__ __forceinline__ void tdm_put(__nv_bfloat16 *data, uint64_t i, float value)
{
    data[i] = __float2bfloat16_rn(value);
}

struct __align__(16) tdm_bf16_vector
{
    __nv_bfloat162 pair[4];
};

/* Elements [i, i + W); with W > 1 their address is a multiple of 16 bytes. */
template <int W>
static __device__ __forceinline__ void tdm_load(const float *data, uint64_t i, float (&out)[W])
{
    static_assert(W == 1 || W % 4 == 0, "one, or whole vectors");
    if constexpr (W == 1) {
        out[0] = data[i];
    } else {
#pragma unroll
        for (int j = 0; j + 3 < W; j += 4) {
            const float4 four = *(const float4 *)(data + i + j);
            out[j] = four.x;
            out[j + 1] = four.y;
            out[j + 2] = four.z;
            out[j + 3] = four.w;
        }
    }
}

template <int W>
static __device__ __forceinline__ void tdm_load(const __nv_bfloat16 *data, uint64_t i,
                                                float (&out)[W])
{
    static_assert(W == 1 || W % 8 == 0, "one, or whole vectors");
    if constexpr (W == 1) {
        out[0] = __bfloat162float(data[i]);
    } else {
#pragma unroll
        for (int j = 0; j + 7 < W; j += 8) {
            const tdm_bf16_vector eight = *(const tdm_bf16_vector *)(data + i + j);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const float2 two = __bfloat1622float2(eight.pair[p]);
                out[j + 2 * p] = two.x;
                out[j + 2 * p + 1] = two.y;
            }
        }
    }
}

template <int W>
static __device__ __forceinline__ void tdm_store(float *data, uint64_t i, const float (&in)[W])
{
    if constexpr (W == 1) {
        data[i] = in[0];
    } else {
#pragma unroll
        for (int j = 0; j + 3 < W; j += 4)
            *(float4 *)(data + i + j) = make_float4(in[j], in[j + 1], in[j + 2], in[j + 3]);
    }
}

template <int W>
static __device__ __forceinline__ void tdm_store(__nv_bfloat16 *data, uint64_t i,
                                                 const float (&in)[W])
{
    if constexpr (W == 1) {
        data[i] = __float2bfloat16_rn(in[0]);
    } else {
#pragma unroll
        for (int j = 0; j + 7 < W; j += 8) {
            tdm_bf16_vector eight;
#pragma unroll
            for (int p = 0; p < 4; p++)
                eight.pair[p] = __floats2bfloat162_rn(in[j + 2 * p], in[j + 2 * p + 1]);
            *(tdm_bf16_vector *)(data + i + j) = eight;
        }
    }
}

/* The same for a dtype known only at run time. All threads take the same branch. */
template <int W>
static __device__ __forceinline__ void tdm_load(tdm_array array, uint64_t i, float (&out)[W])
{
    if (array.dtype == TDM_DTYPE_FP32)
        tdm_load<W>((const float *)array.data, i, out);
    else
        tdm_load<W>((const __nv_bfloat16 *)array.data, i, out);
}

template <int W>
static __device__ __forceinline__ void tdm_store(tdm_array array, uint64_t i, const float (&in)[W])
{
    if (array.dtype == TDM_DTYPE_FP32)
        tdm_store<W>((float *)array.data, i, in);
    else
        tdm_store<W>((__nv_bfloat16 *)array.data, i, in);
}

static __device__ __forceinline__ float tdm_get(tdm_array array, uint64_t i)
{
    return array.dtype == TDM_DTYPE_FP32 ? ((const float *)array.data)[i]
                                         : __bfloat162float(((const __nv_bfloat16 *)array.data)[i]);
}

static __device__ __forceinline__ void tdm_put(tdm_array array, uint64_t i, float value)
{
    if (array.dtype == TDM_DTYPE_FP32)
        ((float *)array.data)[i] = value;
    else
        ((__nv_bfloat16 *)array.data)[i] = __float2bfloat16_rn(value);
}

/* ---- sums ---- */

template <typename T> static __device__ __forceinline__ T tdm_warp_sum(T value)
{
    for (unsigned offset = TDM_WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(TDM_FULL_WARP, value, offset);
    return value;
}

/* The sum of `value` over the block, the same in every thread. blockDim.x is a multiple of 32.
 * Calls may follow each other without a barrier between them. */
template <typename T> static __device__ __forceinline__ T tdm_block_sum(T value)
{
    __shared__ T of_warp[TDM_WARP];
    value = tdm_warp_sum(value);
    __syncthreads(); /* all threads have read the result of the last call */
    if (threadIdx.x % TDM_WARP == 0)
        of_warp[threadIdx.x / TDM_WARP] = value;
    __syncthreads();
    value = threadIdx.x % TDM_WARP < blockDim.x / TDM_WARP ? of_warp[threadIdx.x % TDM_WARP] : T(0);
    return tdm_warp_sum(value);
}

/* ---- documents ---- */

/* First token of the document that holds a token. */
static __device__ __forceinline__ uint64_t tdm_start_of(tdm_documents documents, uint64_t token)
{
    uint32_t low = 0, end = documents.count; /* the index is in [low, end) */
    if (documents.starts == NULL)
        return 0;
    while (end - low > 1) {
        const uint32_t middle = low + (end - low) / 2;
        if (documents.starts[middle] <= token)
            low = middle;
        else
            end = middle;
    }
    return documents.starts[low];
}

/* ---- launching ---- */

/* Calls f with a null pointer to the type of a dtype. */
template <typename F>
static enum tdm_status tdm_with_type(enum tdm_dtype dtype, struct tdm_error *err, F f)
{
    if (dtype == TDM_DTYPE_FP32)
        f((float *)NULL);
    else if (dtype == TDM_DTYPE_BF16)
        f((__nv_bfloat16 *)NULL);
    else
        return tdm_fail(err, TDM_INTERNAL, "no kernel for elements of %s", tdm_dtype_name(dtype));
    return TDM_OK;
}

/* Can 8 elements be loaded at once in every row of `columns` elements? */
static inline bool tdm_in_eights(uint64_t columns, const void *const *pointers, int count)
{
    bool yes = columns % 8 == 0;
    for (int i = 0; i < count; i++)
        yes = yes && (uintptr_t)pointers[i] % 16 == 0;
    return yes;
}

static inline unsigned tdm_blocks(uint64_t work, uint64_t of_block, uint64_t most)
{
    const uint64_t blocks = (work + of_block - 1) / of_block;
    return (unsigned)(blocks < most ? blocks : most);
}

#endif
