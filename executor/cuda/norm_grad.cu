/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of RMSNorm: with s = 1 / sqrt(mean(x^2) + epsilon) of each row,
 *
 *     dx = s w dy - x s^3 / hidden * sum(w dy x),   dw = sum over rows of dy x s
 *
 * Memory-bound: reads x and dy, writes dx (and reads it if it is added to). A block takes a slice
 * of the rows, ROWS at a time. A thread has V times W neighbouring columns of them. It keeps them
 * in registers between reading and writing, together with the sum of their dw, which it writes
 * once. A second kernel adds up the slices. The number of slices, SLICES, does not depend on the
 * GPU, so results do not either. dx may overwrite x or dy: no other thread reads these elements.
 */
#include "executor/cuda/device.cuh"

#define SLICES TDM_NORM_SLICES
#define THREADS 512u
#define WARPS (THREADS / TDM_WARP)
#define ROWS 2

/* W elements in their stored form, which takes few registers between reading and writing a row. */
template <typename X, int W> struct packed {
    static constexpr int WORDS = W == 1 ? 1 : W * (int)sizeof(X) / 4;
    uint32_t word[WORDS];

    __device__ __forceinline__ void load(const X *from)
    {
        if constexpr (W == 1) {
            word[0] = __float_as_uint(tdm_get(from, 0));
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) {
                const uint4 four = *(const uint4 *)((const uint32_t *)from + i);
                word[i] = four.x;
                word[i + 1] = four.y;
                word[i + 2] = four.z;
                word[i + 3] = four.w;
            }
        }
    }

    __device__ __forceinline__ float get(int i) const
    {
        if constexpr (WORDS == W) /* fp32, or one element, which is stored as fp32 */
            return __uint_as_float(word[i]);
        else
            return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000u);
    }

    /* Makes the compiler forget the floats that it derived from these words. */
    __device__ __forceinline__ void forget()
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            asm volatile("" : "+r"(word[i]));
    }
};

template <typename X, int W, int V>
static __global__ void __launch_bounds__(THREADS, W *V <= 8 ? 2 : 1)
    rms_norm_grad(const X *x, tdm_array weight, const X *dy, uint64_t rows, uint32_t hidden,
                  float epsilon, bool add_input, X *dx, float *partial)
{
    using some = packed<X, W>;
    __shared__ float4 of_warp[2][WARPS];
    const uint64_t begin = rows * blockIdx.x / SLICES, end = rows * (blockIdx.x + 1) / SLICES;
    const uint32_t lane = threadIdx.x % TDM_WARP;
    float weights[V][W] = {}, dw[V][W] = {};
#pragma unroll
    for (int v = 0; v < V; v++) {
        const uint32_t i = (v * THREADS + threadIdx.x) * W;
        if (i < hidden)
            tdm_load<W>(weight, i, weights[v]);
    }
    uint32_t turn = 0;
    for (uint64_t row = begin; row < end; row += ROWS, turn ^= 1) {
        some xs[ROWS][V], dys[ROWS][V], olds[ROWS][V];
        float squares[ROWS] = {}, dot[ROWS] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                const uint32_t i = (v * THREADS + threadIdx.x) * W;
                const uint64_t at = (row + r) * hidden + i;
                const bool is_there = row + r < end && i < hidden;
                xs[r][v] = dys[r][v] = olds[r][v] = some{};
                if (is_there) {
                    xs[r][v].load(x + at);
                    dys[r][v].load(dy + at);
                }
                if (is_there && add_input)
                    olds[r][v].load(dx + at);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
#pragma unroll
                for (int w = 0; w < W; w++) {
                    const float each = xs[r][v].get(w);
                    squares[r] += each * each;
                    dot[r] += weights[v][w] * dys[r][v].get(w) * each;
                }
            }
            squares[r] = tdm_warp_sum(squares[r]);
            dot[r] = tdm_warp_sum(dot[r]);
        }
        static_assert(ROWS == 2, "two sums of two rows are a float4");
        if (lane == 0)
            of_warp[turn][threadIdx.x / TDM_WARP] =
                make_float4(squares[0], dot[0], squares[1], dot[1]);
        /* this buffer is reused two iterations later, after every warp has read it */
        __syncthreads();
        const float4 sums = lane < WARPS ? of_warp[turn][lane] : make_float4(0, 0, 0, 0);
        squares[0] = tdm_warp_sum(sums.x);
        dot[0] = tdm_warp_sum(sums.y);
        squares[1] = tdm_warp_sum(sums.z);
        dot[1] = tdm_warp_sum(sums.w);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float scale = 1.0f / sqrtf(squares[r] / (float)hidden + epsilon);
            const float slope = scale * scale * scale / (float)hidden * dot[r];
#pragma unroll
            for (int v = 0; v < V; v++) {
                const uint32_t i = (v * THREADS + threadIdx.x) * W;
                float out[W];
                xs[r][v].forget();
                dys[r][v].forget();
#pragma unroll
                for (int w = 0; w < W; w++) {
                    const float each = xs[r][v].get(w), d = dys[r][v].get(w);
                    dw[v][w] += d * each * scale;
                    out[w] = olds[r][v].get(w) + scale * (weights[v][w] * d) - slope * each;
                }
                if (row + r < end && i < hidden)
                    tdm_store<W>(dx, (row + r) * hidden + i, out);
            }
        }
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        const uint32_t i = (v * THREADS + threadIdx.x) * W;
        if (i < hidden)
            tdm_store<W>(partial, (uint64_t)blockIdx.x * hidden + i, dw[v]);
    }
}

/* The kernel whose threads cover all columns. */
template <typename X, int W, int V> static auto kernel_of(uint32_t hidden)
{
    if constexpr (W * V * THREADS < TDM_CUDA_MOST_HIDDEN)
        return hidden <= W * V * THREADS ? rms_norm_grad<X, W, V> : kernel_of<X, W, 2 * V>(hidden);
    else
        return rms_norm_grad<X, W, V>;
}

extern "C" enum tdm_status tdm_cuda_rms_norm_grad(const struct tdm_norm_grad *norm,
                                                  cudaStream_t stream, struct tdm_error *err)
{
    const struct tdm_array &x = norm->x, &dy = norm->dy, &dx = norm->dx;
    const uint32_t hidden = norm->hidden;
    const void *const pointers[] = {x.data, norm->weight.data, dy.data, dx.data, norm->partial};
    const bool eights = tdm_in_eights(hidden, pointers, 5);
    if (dy.dtype != x.dtype || dx.dtype != x.dtype || hidden > TDM_CUDA_MOST_HIDDEN)
        return tdm_fail(err, TDM_INTERNAL, "no gradient of RMSNorm for hidden size %u in %s, %s",
                        hidden, tdm_dtype_name(x.dtype), tdm_dtype_name(dy.dtype));
    enum tdm_status status = tdm_with_type(x.dtype, err, [&](auto *type) {
        using X = std::remove_pointer_t<decltype(type)>;
        auto *kernel = eights ? kernel_of<X, 8, 1>(hidden) : kernel_of<X, 1, 4>(hidden);
        kernel<<<SLICES, THREADS, 0, stream>>>((const X *)x.data, norm->weight, (const X *)dy.data,
                                               norm->rows, hidden, norm->epsilon, norm->add_input,
                                               (X *)dx.data, norm->partial);
    });
    if (status == TDM_OK)
        status = tdm_cuda_status(cudaGetLastError(), "rms_norm_grad launch", err);
    if (status != TDM_OK)
        return status;
    return tdm_cuda_sum_slices(norm->partial, SLICES, hidden, norm->add_weight, norm->dw, stream,
                               err);
}
