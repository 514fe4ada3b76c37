/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SwiGLU or GeGLU (ops/gate.h) and their gradients, with
 *
 *     s = 1 / (1 + exp(-k)),  k = gate (linear + cubic gate^2)
 *     activated = gate s up
 *     d_up = d gate s,  d_gate = d up s (1 + gate (1 - s) (linear + 3 cubic gate^2))
 *
 * Memory-bound: for each column of a row the forward moves 3 elements, the backward 6. The backward
 * also leaves `activated` in the place of its gradient, for the gradient of the next weights. With
 * an op of its own for that, the two would move 3 and 5. A thread does 8 columns with 16-byte
 * accesses of bf16, or one if rows do not allow that.
 */
#include "executor/cuda/device.cuh"

#define THREADS 256u

#define LARGEST_EXPONENT 80.0f /* exp() of it is finite, and the sigmoid is 0 in bf16 */

/* s, and 1 - s without cancellation. */
struct sigmoid {
    float s, rest;
};

static __device__ __forceinline__ sigmoid sigmoid_of(float g, struct tdm_gate of)
{
    const float e = __expf(fminf(-g * (of.linear + of.cubic * g * g), LARGEST_EXPONENT));
    sigmoid value;
    value.s = __fdividef(1.0f, 1.0f + e);
    value.rest = e * value.s;
    return value;
}

/* The row of a thread's item. A division of 64 bits takes as long as the rest of the
 * item, so it is left for sizes that need it. */
static __device__ __forceinline__ uint64_t row_of(uint64_t item, uint64_t items, uint32_t of_row)
{
    return items <= UINT32_MAX ? (uint32_t)item / of_row : item / of_row;
}

template <typename T, int W>
static __global__ void __launch_bounds__(THREADS)
    swiglu(const T *gate_up, uint64_t items, uint32_t columns, struct tdm_gate of, T *activated)
{
    const uint64_t item = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t of_row = columns / W;
    if (item >= items)
        return;
    const uint64_t row = row_of(item, items, of_row);
    const uint32_t column = (uint32_t)(item - row * of_row) * W;
    float gate[W], up[W];
    tdm_load<W>(gate_up, row * 2 * columns + column, gate);
    tdm_load<W>(gate_up, row * 2 * columns + columns + column, up);
#pragma unroll
    for (int j = 0; j < W; j++)
        gate[j] = gate[j] * sigmoid_of(gate[j], of).s * up[j];
    tdm_store<W>(activated, row * columns + column, gate);
}

template <typename T, int W>
static __global__ void __launch_bounds__(THREADS)
    swiglu_grad(T *gate_up, T *d_activated, uint64_t items, uint32_t columns, struct tdm_gate of)
{
    const uint64_t item = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t of_row = columns / W;
    if (item >= items)
        return;
    const uint64_t row = row_of(item, items, of_row);
    const uint32_t column = (uint32_t)(item - row * of_row) * W;
    const uint64_t at = row * 2 * columns + column;
    float gate[W], up[W], d[W];
    tdm_load<W>(gate_up, at, gate);
    tdm_load<W>(gate_up, at + columns, up);
    tdm_load<W>(d_activated, row * columns + column, d);
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float g = gate[j], u = up[j], square = g * g;
        const sigmoid of_g = sigmoid_of(g, of);
        gate[j] =
            d[j] * u * of_g.s * (1.0f + g * of_g.rest * (of.linear + 3.0f * of.cubic * square));
        up[j] = d[j] * (g * of_g.s);
        d[j] = g * of_g.s * u;
    }
    tdm_store<W>(gate_up, at, gate);
    tdm_store<W>(gate_up, at + columns, up);
    tdm_store<W>(d_activated, row * columns + column, d);
}

extern "C" enum tdm_status tdm_cuda_swiglu(struct tdm_array gate_up, uint64_t rows,
                                           uint32_t columns, struct tdm_gate gate,
                                           struct tdm_array activated, cudaStream_t stream,
                                           struct tdm_error *err)
{
    const void *const pointers[] = {gate_up.data, activated.data};
    const bool eights = tdm_in_eights(columns, pointers, 2);
    const uint64_t items = rows * columns / (eights ? 8 : 1);
    const unsigned blocks = tdm_blocks(items, THREADS, INT32_MAX);
    if (items == 0)
        return TDM_OK;
    enum tdm_status status = tdm_with_type(gate_up.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T *in = (const T *)gate_up.data;
        T *out = (T *)activated.data;
        if (eights)
            swiglu<T, 8><<<blocks, THREADS, 0, stream>>>(in, items, columns, gate, out);
        else
            swiglu<T, 1><<<blocks, THREADS, 0, stream>>>(in, items, columns, gate, out);
    });
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "swiglu launch", err) : status;
}

extern "C" enum tdm_status tdm_cuda_swiglu_grad(struct tdm_array gate_up,
                                                struct tdm_array d_activated, uint64_t rows,
                                                uint32_t columns, struct tdm_gate gate,
                                                cudaStream_t stream, struct tdm_error *err)
{
    const void *const pointers[] = {gate_up.data, d_activated.data};
    const bool eights = tdm_in_eights(columns, pointers, 2);
    const uint64_t items = rows * columns / (eights ? 8 : 1);
    const unsigned blocks = tdm_blocks(items, THREADS, INT32_MAX);
    if (items == 0)
        return TDM_OK;
    enum tdm_status status = tdm_with_type(gate_up.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        T *in = (T *)gate_up.data;
        T *d = (T *)d_activated.data;
        if (eights)
            swiglu_grad<T, 8><<<blocks, THREADS, 0, stream>>>(in, d, items, columns, gate);
        else
            swiglu_grad<T, 1><<<blocks, THREADS, 0, stream>>>(in, d, items, columns, gate);
    });
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "swiglu_grad launch", err)
                            : status;
}
