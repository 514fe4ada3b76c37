/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW and SGD over a tensor, in fp32, with the same operations in the same order as
 * executor/cpu/optimizer.c. It is compiled without fused multiply-adds, so that the same gradients
 * give the same bits on both.
 *
 * Memory-bound: adamw moves 2 + 2 bytes of weight and remainder and 4 + 4 of moments, each twice,
 * and 4 of the gradient: 28 bytes a parameter. A thread takes 8 neighbours at a time with 16-byte
 * accesses, or 1 if a tensor's size does not allow that (tensors begin at 256 bytes, see
 * TDM_TENSOR_ALIGN).
 */
#include "executor/random.h"
#include "executor/remainder.h"
#include "executor/stochastic.h"

#include "executor/cuda/device.cuh"

#define THREADS 256u
#define VECTOR 8

template <int W> struct halves {
    uint16_t of[W];
};

template <int W>
static __device__ __forceinline__ halves<W> load_halves(const tdm_array &array, uint64_t i)
{
    halves<W> loaded;
    if constexpr (W == 1)
        loaded.of[0] = ((const uint16_t *)array.data)[i];
    else
        *(uint4 *)&loaded = *(const uint4 *)((const uint16_t *)array.data + i);
    return loaded;
}

template <int W>
static __device__ __forceinline__ void store_halves(const tdm_array &array, uint64_t i,
                                                    const halves<W> &stored)
{
    if constexpr (W == 1)
        ((uint16_t *)array.data)[i] = stored.of[0];
    else
        *(uint4 *)((uint16_t *)array.data + i) = *(const uint4 *)&stored;
}

/* Stores values that have no wider copy. bf16 is rounded stochastically. */
template <int W>
static __device__ __forceinline__ void store_alone(const tdm_array &array, uint64_t i,
                                                   const float (&value)[W],
                                                   const uint64_t (&random)[W], unsigned share)
{
    if (array.dtype != TDM_DTYPE_BF16) {
        tdm_store<W>((float *)array.data, i, value);
        return;
    }
    __align__(16) halves<W> out;
#pragma unroll
    for (int j = 0; j < W; j++)
        out.of[j] = tdm_bf16_stochastic(value[j], (uint32_t)(random[j] >> share));
    store_halves<W>(array, i, out);
}

template <int W>
static __device__ __forceinline__ void load_weights(const tdm_update &x, uint64_t i,
                                                    float (&weight)[W])
{
    if (x.master.data == NULL) {
        tdm_load<W>(x.weights, i, weight);
    } else if (x.master.dtype != TDM_DTYPE_REMAINDER16) {
        tdm_load<W>(x.master, i, weight);
    } else {
        __align__(16) const halves<W> high = load_halves<W>(x.weights, i);
        __align__(16) const halves<W> low = load_halves<W>(x.master, i);
#pragma unroll
        for (int j = 0; j < W; j++)
            weight[j] = tdm_master_join(high.of[j], low.of[j]);
    }
}

template <int W>
static __device__ __forceinline__ void store_weights(const tdm_update &x, uint64_t i,
                                                     const float (&weight)[W],
                                                     const uint64_t (&random)[W])
{
    if (x.master.data == NULL) {
        store_alone<W>(x.weights, i, weight, random, TDM_RANDOM_OF_WEIGHT);
        return;
    }
    const bool split = x.master.dtype == TDM_DTYPE_REMAINDER16;
    if (!split)
        tdm_store<W>(x.master, i, weight);
    if (x.weights.dtype != TDM_DTYPE_BF16) {
        tdm_store<W>(x.weights, i, weight);
        return;
    }
    __align__(16) halves<W> high, low;
#pragma unroll
    for (int j = 0; j < W; j++)
        tdm_master_split(weight[j], &high.of[j], &low.of[j]);
    store_halves<W>(x.weights, i, high);
    if (split)
        store_halves<W>(x.master, i, low);
}

/* The factor of the gradient. A norm of NaN does not clip, so that it stays visible. */
static __device__ float clip_scale(const tdm_update &x)
{
    __shared__ float scale;
    if (x.norm_count == 0)
        return 1.0f;
    if (threadIdx.x == 0) {
        double squares = 0.0;
        for (uint32_t i = 0; i < x.norm_count; i++)
            squares += x.norms[i * x.norm_stride];
        const double norm = sqrt(squares);
        scale = norm > x.clip_norm ? (float)(x.clip_norm / norm) : 1.0f;
    }
    __syncthreads();
    return scale;
}

/* Elements [i, i + W) of the gradient; for a tied tensor, the sum of both parts. */
template <int W>
static __device__ __forceinline__ void
load_gradient(const tdm_array &gradient, const tdm_array &second, uint64_t i, float (&sum)[W])
{
    tdm_load<W>(gradient, i, sum);
    if (second.data != NULL) {
        float other[W];
        tdm_load<W>(second, i, other);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] += other[j];
    }
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    sum_squares(tdm_array gradient, tdm_array second, uint64_t elements, double *squares)
{
    const uint64_t step = (uint64_t)gridDim.x * THREADS * W;
    double sum = 0.0;
    for (uint64_t i = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * W; i < elements; i += step) {
        float value[W];
        load_gradient<W>(gradient, second, i, value);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum += (double)value[j] * (double)value[j];
    }
    sum = tdm_block_sum(sum);
    if (threadIdx.x == 0)
        squares[blockIdx.x] = sum;
}

template <int W>
static __global__ void __launch_bounds__(THREADS) update(const tdm_update x, bool random_due)
{
    const uint64_t step = (uint64_t)gridDim.x * THREADS * W;
    const float scale = clip_scale(x);
    for (uint64_t i = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * W; i < x.elements;
         i += step) {
        float weight[W], gradient[W], first[W], second[W];
        uint64_t random[W] = {};
        if (random_due) {
#pragma unroll
            for (int j = 0; j < W; j++)
                random[j] = tdm_random_draw(x.random_stream, x.first + i + j);
        }
        load_weights<W>(x, i, weight);
        load_gradient<W>(x.gradient, x.second_gradient, i, gradient);
#pragma unroll
        for (int j = 0; j < W; j++)
            gradient[j] *= scale;
        if (x.adamw) {
            tdm_load<W>(x.moment1, i, first);
            tdm_load<W>(x.moment2, i, second);
#pragma unroll
            for (int j = 0; j < W; j++) {
                const float d = gradient[j];
                first[j] = x.beta1 * first[j] + x.rest1 * d;
                second[j] = x.beta2 * second[j] + x.rest2 * (d * d);
                const float root = sqrtf(second[j]) * x.root_scale + x.epsilon;
                weight[j] -= x.step_rate * (first[j] / root) + x.rate * x.decay * weight[j];
            }
            store_alone<W>(x.moment1, i, first, random, TDM_RANDOM_OF_MOMENT1);
            store_alone<W>(x.moment2, i, second, random, TDM_RANDOM_OF_MOMENT2);
        } else {
#pragma unroll
            for (int j = 0; j < W; j++)
                weight[j] -= x.rate * gradient[j] + x.rate * x.decay * weight[j];
        }
        store_weights<W>(x, i, weight, random);
    }
}

static uint32_t blocks_for(uint64_t elements)
{
    return tdm_blocks(elements, (uint64_t)THREADS * VECTOR, TDM_SQUARE_BLOCKS);
}

extern "C" enum tdm_status tdm_cuda_update(const struct tdm_update *x, cudaStream_t stream,
                                           struct tdm_error *err)
{
    const void *const pointers[] = {x->weights.data, x->gradient.data, x->second_gradient.data,
                                    x->master.data,  x->moment1.data,  x->moment2.data};
    const uint32_t blocks = blocks_for(x->elements);
    const bool random_due = (x->weights.dtype == TDM_DTYPE_BF16 && x->master.data == NULL) ||
                            (x->moment1.data != NULL && x->moment1.dtype == TDM_DTYPE_BF16);
    if (blocks == 0)
        return TDM_OK;
    if (tdm_in_eights(x->elements, pointers, 6))
        update<VECTOR><<<blocks, THREADS, 0, stream>>>(*x, random_due);
    else
        update<1><<<blocks, THREADS, 0, stream>>>(*x, random_due);
    return tdm_cuda_status(cudaGetLastError(), "optimizer launch", err);
}

extern "C" uint32_t tdm_cuda_square_blocks(uint64_t elements)
{
    return blocks_for(elements);
}

extern "C" enum tdm_status tdm_cuda_squares(struct tdm_array gradient,
                                            struct tdm_array second_gradient, uint64_t elements,
                                            double *squares, cudaStream_t stream,
                                            struct tdm_error *err)
{
    const void *const pointers[] = {gradient.data, second_gradient.data};
    const uint32_t blocks = blocks_for(elements);
    if (blocks == 0)
        return TDM_OK;
    if (tdm_in_eights(elements, pointers, 2))
        sum_squares<VECTOR>
            <<<blocks, THREADS, 0, stream>>>(gradient, second_gradient, elements, squares);
    else
        sum_squares<1>
            <<<blocks, THREADS, 0, stream>>>(gradient, second_gradient, elements, squares);
    return tdm_cuda_status(cudaGetLastError(), "gradient norm launch", err);
}
