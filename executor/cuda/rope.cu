/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE (arXiv 2104.09864) in the rotate-half layout: in every head of the token at position p of its
 * document dimensions (i, i + head_dim / 2) turn by p * frequency[i]. With QK-norm every head is normed
 * before it turns, and on the way back after it. K and V go into pages and their gradients out of
 * them on the way.
 *
 * Memory-bound: every element read once and written once. A block takes tokens one after the other; its
 * threads compute the angles of a token in double and keep them in shared memory for all heads; a
 * warp has a head, a lane pairs (i, i + head_dim / 2). The weights' gradient of QK-norm is summed by lane
 * over the heads of its warp and the tokens of its block, and a second kernel adds these up. There
 * are SLICES blocks whatever the GPU.
 */
#include "executor/cuda/device.cuh"

#define SLICES 528u
#define THREADS 128u
#define WARPS (THREADS / TDM_WARP)
#define MOST_HEAD_DIM 512u
#define MOST_PAIRS (MOST_HEAD_DIM / 2 / TDM_WARP) /* of a lane */

/* First element of a head of a token. */
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

/* cos and sin of a token's position, times the attention factor; sin negative on the way back. */
static __device__ void find_angles(const tdm_turn &turn, uint64_t token, float *cosines,
                                   float *sines)
{
    const uint64_t absolute = turn.first_token + token;
    const double position = (double)(absolute - tdm_start_of(turn.documents, absolute));
    for (uint32_t i = threadIdx.x; i < turn.head_dim / 2; i += THREADS) {
        double s, c;
        sincos(position * turn.frequencies[i], &s, &c);
        cosines[i] = (float)(turn.factor * c);
        sines[i] = (float)((turn.back ? -turn.factor : turn.factor) * s);
    }
}

template <typename From, typename To>
static __global__ void __launch_bounds__(THREADS) turn_heads(const tdm_turn turn, float *partial)
{
    __shared__ float cosines[MOST_HEAD_DIM / 2], sines[MOST_HEAD_DIM / 2];
    const From *from = (const From *)turn.from.array.data;
    const To *raw = (const To *)turn.raw.array.data;
    To *to = (To *)turn.to.array.data;
    const uint32_t dim = turn.head_dim, half = dim / 2;
    const uint32_t warp = threadIdx.x / TDM_WARP, lane = threadIdx.x % TDM_WARP;
    const bool normed = turn.weight.data != NULL;
    float low_sum[MOST_PAIRS] = {}, high_sum[MOST_PAIRS] = {};

    const uint64_t begin = turn.tokens * blockIdx.x / SLICES;
    const uint64_t end = turn.tokens * (blockIdx.x + 1) / SLICES;
    for (uint64_t token = begin; token < end; token++) {
        __syncthreads(); /* nobody still reads the last token's */
        find_angles(turn, token, cosines, sines);
        __syncthreads();
        for (uint32_t head = warp; head < turn.heads + turn.straight; head += WARPS) {
            const uint64_t in = head_at(turn.from, token, head, turn.heads, dim);
            const uint64_t out = head_at(turn.to, token, head, turn.heads, dim);
            if (head >= turn.heads) {
                for (uint32_t i = lane; i < dim; i += TDM_WARP)
                    tdm_put(to, out + i, tdm_get(from, in + i));
                continue;
            }
            float low[MOST_PAIRS], high[MOST_PAIRS]; /* of the head: dimensions i and i + half */
            float squares = 0.0f, dot = 0.0f, scale = 1.0f;
#pragma unroll
            for (uint32_t p = 0; p < MOST_PAIRS; p++) {
                const uint32_t i = lane + p * TDM_WARP;
                low[p] = i < half ? tdm_get(from, in + i) : 0.0f;
                high[p] = i < half ? tdm_get(from, in + i + half) : 0.0f;
            }
            if (normed && !turn.back) {
#pragma unroll
                for (uint32_t p = 0; p < MOST_PAIRS; p++)
                    squares += low[p] * low[p] + high[p] * high[p];
                squares = tdm_warp_sum(squares);
                scale = 1.0f / sqrtf(squares / (float)dim + turn.epsilon);
#pragma unroll
                for (uint32_t p = 0; p < MOST_PAIRS; p++) {
                    const uint32_t i = lane + p * TDM_WARP;
                    if (i < half) {
                        low[p] = low[p] * scale * tdm_get(turn.weight, i);
                        high[p] = high[p] * scale * tdm_get(turn.weight, i + half);
                    }
                }
            }
#pragma unroll
            for (uint32_t p = 0; p < MOST_PAIRS; p++) {
                const uint32_t i = lane + p * TDM_WARP;
                if (i < half) {
                    const float a = low[p], b = high[p];
                    low[p] = a * cosines[i] - b * sines[i];
                    high[p] = b * cosines[i] + a * sines[i];
                }
            }
            if (normed && turn.back) {
                const uint64_t at = head_at(turn.raw, token, head, turn.heads, dim);
                float low_raw[MOST_PAIRS], high_raw[MOST_PAIRS];
#pragma unroll
                for (uint32_t p = 0; p < MOST_PAIRS; p++) {
                    const uint32_t i = lane + p * TDM_WARP;
                    low_raw[p] = i < half ? tdm_get(raw, at + i) : 0.0f;
                    high_raw[p] = i < half ? tdm_get(raw, at + i + half) : 0.0f;
                    squares += low_raw[p] * low_raw[p] + high_raw[p] * high_raw[p];
                    if (i < half)
                        dot += tdm_get(turn.weight, i) * low[p] * low_raw[p] +
                               tdm_get(turn.weight, i + half) * high[p] * high_raw[p];
                }
                squares = tdm_warp_sum(squares);
                dot = tdm_warp_sum(dot);
                scale = 1.0f / sqrtf(squares / (float)dim + turn.epsilon);
                const float slope = scale * scale * scale / (float)dim * dot;
#pragma unroll
                for (uint32_t p = 0; p < MOST_PAIRS; p++) {
                    const uint32_t i = lane + p * TDM_WARP;
                    if (i < half) {
                        low_sum[p] += low[p] * low_raw[p] * scale;
                        high_sum[p] += high[p] * high_raw[p] * scale;
                        low[p] = scale * (tdm_get(turn.weight, i) * low[p]) - slope * low_raw[p];
                        high[p] = scale * (tdm_get(turn.weight, i + half) * high[p]) -
                                  slope * high_raw[p];
                    }
                }
            }
#pragma unroll
            for (uint32_t p = 0; p < MOST_PAIRS; p++) {
                const uint32_t i = lane + p * TDM_WARP;
                if (i < half) {
                    tdm_put(to, out + i, low[p]);
                    tdm_put(to, out + i + half, high[p]);
                }
            }
        }
    }
    if (partial == NULL)
        return;
    partial += ((uint64_t)blockIdx.x * WARPS + warp) * dim;
#pragma unroll
    for (uint32_t p = 0; p < MOST_PAIRS; p++) {
        const uint32_t i = lane + p * TDM_WARP;
        if (i < half) {
            partial[i] = low_sum[p];
            partial[i + half] = high_sum[p];
        }
    }
}

extern "C" uint64_t tdm_cuda_turn_scratch(uint32_t head_dim)
{
    return (uint64_t)SLICES * WARPS * head_dim * sizeof(float);
}

extern "C" enum tdm_status tdm_cuda_turn(const struct tdm_turn *turn, void *scratch,
                                         cudaStream_t stream, struct tdm_error *err)
{
    float *partial = turn->weight.data != NULL && turn->back ? (float *)scratch : NULL;
    if (turn->head_dim > MOST_HEAD_DIM || turn->head_dim % 2 != 0 ||
        (partial != NULL && turn->raw.array.dtype != turn->to.array.dtype))
        return tdm_fail(err, TDM_INPUT, "RoPE on the GPU takes an even head dim up to %u, not %u",
                        MOST_HEAD_DIM, turn->head_dim);
    enum tdm_status status = TDM_OK, inner = TDM_OK;
    status = tdm_with_type(turn->from.array.dtype, err, [&](auto *type) {
        using From = std::remove_pointer_t<decltype(type)>;
        inner = tdm_with_type(turn->to.array.dtype, err, [&](auto *other) {
            using To = std::remove_pointer_t<decltype(other)>;
            turn_heads<From, To><<<SLICES, THREADS, 0, stream>>>(*turn, partial);
        });
    });
    if (status == TDM_OK)
        status = inner;
    if (status == TDM_OK)
        status = tdm_cuda_status(cudaGetLastError(), "rope launch", err);
    if (status != TDM_OK || partial == NULL)
        return status;
    return tdm_cuda_sum_slices(partial, SLICES * WARPS, turn->head_dim, turn->add_weight, turn->dw,
                               stream, err);
}
