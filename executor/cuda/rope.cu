/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE (arXiv 2104.09864) in the rotate-half layout. In every head of the token at position p of
 * its document, dimensions (i, i + head_dim / 2) rotate by p * frequency[i]. With QK-norm every
 * head is normed before the rotation; the backward rotates back first. The same kernels write K and
 * V to pages and read their gradients from pages.
 *
 * Memory-bound: every element is read once and written once. A block has a slice of the tokens,
 * TOKENS at a time. Its threads compute the angles in double and keep them in shared memory for all
 * heads. Then a group of lanes has a head. A lane has, P times, W neighbours of its first half and
 * the W that rotate with them. The gradient of QK-norm's weights is summed by each lane over its
 * group's heads, then over the groups of the block; a second kernel adds up the slices. The number
 * of slices, SLICES, does not depend on the GPU, so results do not either.
 */
#include "executor/cuda/device.cuh"

#define SLICES TDM_HEAD_SLICES
#define THREADS 256u
#define TOKENS 8u
#define SHARED_FLOATS (TOKENS * TDM_CUDA_MOST_HEAD_DIM)

/* The first element of a head of a token. */
static __device__ __forceinline__ uint64_t head_at(const tdm_heads &rows, uint64_t token,
                                                   uint32_t head, uint32_t heads, uint32_t dim)
{
    if (rows.page_tokens == 0)
        return token * rows.stride + (uint64_t)head * dim;
    const uint64_t plane = rows.page_tokens * heads * dim;
    const uint64_t page = token / rows.page_tokens * 2 * plane;
    const uint64_t in_plane = token % rows.page_tokens * heads * dim;
    return head < heads ? page + in_plane + (uint64_t)head * dim
                        : page + plane + in_plane + (uint64_t)(head - heads) * dim;
}

/* cos and sin of the positions of `tokens` tokens from `first` on, times the attention factor. sin
 * is negative in the backward. angles: [tokens][cos, sin][head_dim / 2]. */
static __device__ void find_angles(const tdm_turn &turn, uint64_t first, uint32_t tokens,
                                   float *angles)
{
    const uint32_t half = turn.head_dim / 2;
    for (uint32_t i = threadIdx.x; i < tokens * half; i += THREADS) {
        const uint32_t token = i / half, pair = i % half;
        const uint64_t absolute = turn.first_token + first + token;
        const double position = (double)(absolute - tdm_start_of(turn.documents, absolute));
        double s, c;
        sincos(position * turn.frequencies[pair], &s, &c);
        angles[2 * token * half + pair] = (float)(turn.factor * c);
        angles[(2 * token + 1) * half + pair] =
            (float)((turn.back ? -turn.factor : turn.factor) * s);
    }
}

/* A lane's part of a head: P times W neighbours of the first half, and of the second. */
template <int W, int P> struct pairs {
    float low[P][W], high[P][W];
};

/* The first element of a lane's p-th W elements, within its half. */
template <int W> static __device__ __forceinline__ uint32_t pair_at(int p, uint32_t lanes)
{
    return (p * lanes + threadIdx.x % lanes) * W;
}

template <int W, int P, typename Source>
static __device__ __forceinline__ void load_pairs(pairs<W, P> &to, const Source &from, uint64_t at,
                                                  uint32_t half, uint32_t lanes, bool is_there)
{
#pragma unroll
    for (int p = 0; p < P; p++) {
        const uint32_t i = pair_at<W>(p, lanes);
#pragma unroll
        for (int w = 0; w < W; w++)
            to.low[p][w] = to.high[p][w] = 0.0f;
        if (is_there && i < half) {
            tdm_load<W>(from, at + i, to.low[p]);
            tdm_load<W>(from, at + half + i, to.high[p]);
        }
    }
}

/* The sum over the lanes of a group, in all of them. */
static __device__ __forceinline__ float group_sum(float value, uint32_t lanes)
{
    for (uint32_t offset = lanes / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(TDM_FULL_WARP, value, offset);
    return value;
}

/* sum of a * b over a head */
template <int W, int P>
static __device__ __forceinline__ float dot(const pairs<W, P> &a, const pairs<W, P> &b,
                                            uint32_t lanes)
{
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int w = 0; w < W; w++)
            sum += a.low[p][w] * b.low[p][w] + a.high[p][w] * b.high[p][w];
    return group_sum(sum, lanes);
}

template <int W, int P>
static __device__ __forceinline__ void multiply(pairs<W, P> &a, const pairs<W, P> &b, float scale)
{
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int w = 0; w < W; w++) {
            a.low[p][w] = a.low[p][w] * scale * b.low[p][w];
            a.high[p][w] = a.high[p][w] * scale * b.high[p][w];
        }
}

template <int W, int P>
static __device__ __forceinline__ void turn_pairs(pairs<W, P> &head, const float *angles,
                                                  uint32_t half, uint32_t lanes)
{
#pragma unroll
    for (int p = 0; p < P; p++) {
        const uint32_t i = pair_at<W>(p, lanes);
        if (i >= half)
            continue;
        float c[W], s[W];
        tdm_load<W>(angles, i, c);
        tdm_load<W>(angles, half + i, s);
#pragma unroll
        for (int w = 0; w < W; w++) {
            const float a = head.low[p][w], b = head.high[p][w];
            head.low[p][w] = a * c[w] - b * s[w];
            head.high[p][w] = b * c[w] + a * s[w];
        }
    }
}

/* The gradient through a head's norm: turns `d` into that of `raw`, and adds to `sums` the
 * weights'. */
template <int W, int P>
static __device__ __forceinline__ void norm_back(pairs<W, P> &d, const pairs<W, P> &raw,
                                                 const pairs<W, P> &weight, pairs<W, P> &sums,
                                                 const tdm_turn &turn, uint32_t lanes)
{
    const float dim = (float)turn.head_dim;
    const float scale = 1.0f / sqrtf(dot(raw, raw, lanes) / dim + turn.epsilon);
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int w = 0; w < W; w++) {
            sums.low[p][w] += d.low[p][w] * raw.low[p][w] * scale;
            sums.high[p][w] += d.high[p][w] * raw.high[p][w] * scale;
            d.low[p][w] *= weight.low[p][w];
            d.high[p][w] *= weight.high[p][w];
        }
    const float slope = scale * scale * scale / dim * dot(d, raw, lanes);
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int w = 0; w < W; w++) {
            d.low[p][w] = scale * d.low[p][w] - slope * raw.low[p][w];
            d.high[p][w] = scale * d.high[p][w] - slope * raw.high[p][w];
        }
}

/* partial[dimension] = the sum over the block's groups of their lanes' sums, in order. */
template <int W, int P>
static __device__ void store_sums(const pairs<W, P> &sums, float *shared, uint32_t dim,
                                  uint32_t lanes, float *partial)
{
    const uint32_t half = dim / 2, groups = THREADS / lanes;
    float *mine = shared + threadIdx.x / lanes * dim;
    __syncthreads(); /* no thread still reads the angles */
#pragma unroll
    for (int p = 0; p < P; p++) {
        const uint32_t i = pair_at<W>(p, lanes);
        if (i < half) {
            tdm_store<W>(mine, i, sums.low[p]);
            tdm_store<W>(mine, half + i, sums.high[p]);
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        float sum = 0.0f;
        for (uint32_t group = 0; group < groups; group++)
            sum += shared[group * dim + i];
        partial[i] = sum;
    }
}

/* `lanes`, a power of two, times W * P covers half a head. */
template <typename From, typename To, int W, int P, bool NORMED>
static __global__ void __launch_bounds__(THREADS, NORMED ? 2 : 4)
    turn_heads(const tdm_turn turn, uint32_t lanes, float *partial)
{
    __shared__ __align__(16) float shared[SHARED_FLOATS];
    const From *from = (const From *)turn.from.array.data;
    const To *raw_rows = (const To *)turn.raw.array.data;
    To *to = (To *)turn.to.array.data;
    const uint32_t dim = turn.head_dim, half = dim / 2, heads = turn.heads + turn.straight;
    const uint32_t group = threadIdx.x / lanes, groups = THREADS / lanes;
    pairs<W, P> weight, sums = {};
    if (NORMED)
        load_pairs(weight, turn.weight, 0, half, lanes, true);

    const uint64_t begin = turn.tokens * blockIdx.x / SLICES;
    const uint64_t end = turn.tokens * (blockIdx.x + 1) / SLICES;
    for (uint64_t first = begin; first < end; first += TOKENS) {
        const uint32_t tokens = (uint32_t)(end - first < TOKENS ? end - first : TOKENS);
        __syncthreads(); /* no thread still reads the previous angles */
        find_angles(turn, first, tokens, shared);
        __syncthreads();
        for (uint32_t of_first = 0; of_first < tokens * heads; of_first += groups) {
            /* lanes without a head take part because of the sums */
            const uint32_t item = of_first + group;
            const bool is_there = item < tokens * heads;
            const uint32_t in_batch = is_there ? item / heads : 0;
            const uint32_t head = is_there ? item % heads : 0;
            const bool turns = head < turn.heads;
            const uint64_t token = first + in_batch;
            const uint64_t at = head_at(turn.to, token, head, turn.heads, dim);
            const float *angles = shared + 2 * in_batch * half;
            pairs<W, P> own;
            load_pairs(own, from, head_at(turn.from, token, head, turn.heads, dim), half, lanes,
                       is_there);
            if (NORMED && !turn.back) {
                const float scale = 1.0f / sqrtf(dot(own, own, lanes) / (float)dim + turn.epsilon);
                if (turns)
                    multiply(own, weight, scale);
            }
            if (turns)
                turn_pairs(own, angles, half, lanes);
            if (NORMED && turn.back) {
                pairs<W, P> raw, straight = own;
                load_pairs(raw, raw_rows, head_at(turn.raw, token, head, turn.heads, dim), half,
                           lanes, is_there && turns);
                norm_back(own, raw, weight, sums, turn, lanes);
                if (!turns)
                    own = straight;
            }
#pragma unroll
            for (int p = 0; p < P; p++) {
                const uint32_t i = pair_at<W>(p, lanes);
                if (is_there && i < half) {
                    tdm_store<W>(to, at + i, own.low[p]);
                    tdm_store<W>(to, at + half + i, own.high[p]);
                }
            }
        }
    }
    if (NORMED && turn.back)
        store_sums(sums, shared, dim, lanes, partial + (uint64_t)blockIdx.x * dim);
}

template <typename From, typename To>
static void launch(const struct tdm_turn *turn, float *partial, cudaStream_t stream)
{
    const void *const pointers[] = {turn->from.array.data, turn->to.array.data,
                                    turn->raw.array.data, turn->weight.data};
    const uint32_t half = turn->head_dim / 2;
    const bool normed = turn->weight.data != NULL;
    if (!tdm_in_eights(half, pointers, 4)) {
        auto *kernel = normed
                           ? turn_heads<From, To, 1, TDM_CUDA_MOST_HEAD_DIM / 2 / TDM_WARP, true>
                           : turn_heads<From, To, 1, TDM_CUDA_MOST_HEAD_DIM / 2 / TDM_WARP, false>;
        kernel<<<SLICES, THREADS, 0, stream>>>(*turn, TDM_WARP, partial);
        return;
    }
    uint32_t lanes = 1;
    while (lanes * 8 < half)
        lanes *= 2;
    auto *kernel = normed ? turn_heads<From, To, 8, 1, true> : turn_heads<From, To, 8, 1, false>;
    kernel<<<SLICES, THREADS, 0, stream>>>(*turn, lanes, partial);
}

extern "C" enum tdm_status tdm_cuda_turn(const struct tdm_turn *turn, void *scratch,
                                         cudaStream_t stream, struct tdm_error *err)
{
    float *partial = turn->weight.data != NULL && turn->back ? (float *)scratch : NULL;
    if (turn->head_dim > TDM_CUDA_MOST_HEAD_DIM || turn->head_dim % 2 != 0)
        return tdm_fail(err, TDM_INPUT, "RoPE on the GPU takes an even head dim up to %u, not %u",
                        TDM_CUDA_MOST_HEAD_DIM, turn->head_dim);
    if (partial != NULL && turn->raw.array.dtype != turn->to.array.dtype)
        return tdm_fail(err, TDM_INTERNAL, "no gradient of QK-norm of %s in %s",
                        tdm_dtype_name(turn->raw.array.dtype),
                        tdm_dtype_name(turn->to.array.dtype));
    enum tdm_status status = TDM_OK, inner = TDM_OK;
    status = tdm_with_type(turn->from.array.dtype, err, [&](auto *type) {
        using From = std::remove_pointer_t<decltype(type)>;
        inner = tdm_with_type(turn->to.array.dtype, err, [&](auto *other) {
            using To = std::remove_pointer_t<decltype(other)>;
            launch<From, To>(turn, partial, stream);
        });
    });
    if (status == TDM_OK)
        status = inner;
    if (status == TDM_OK)
        status = tdm_cuda_status(cudaGetLastError(), "rope launch", err);
    if (status != TDM_OK || partial == NULL)
        return status;
    return tdm_cuda_sum_slices(partial, SLICES, turn->head_dim, turn->add_weight, turn->dw, stream,
                               err);
}
