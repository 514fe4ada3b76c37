/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Softmax of scores in registers. A warp's rows of scores are laid out as the tensor cores leave
 * them (mma.cuh): one C for every 16 rows and 8 keys.
 *
 * Exponentials are relative to a shift for each row. The shift is raised to the largest score only
 * when an exponential would exceed 2^TDM_SLACK. So sums are rarely rescaled. The quotient of two
 * sums does not depend on the shift.
 */
#ifndef TDM_EXECUTOR_CUDA_SCORES_CUH
#define TDM_EXECUTOR_CUDA_SCORES_CUH

#include "executor/cuda/device.cuh"
#include "executor/cuda/mma.cuh"

#define TDM_SLACK 8.0f

/* A lane's state for rows g and g + 8 of R blocks of 16: the shift, in base 2, and the sum of the
 * exponentials of its columns. */
template <int R> struct tdm_softmax {
    float shift[R][2], sum[R][2];
};

template <int R> static __device__ __forceinline__ tdm_softmax<R> tdm_no_sums(void)
{
    tdm_softmax<R> rows;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            rows.shift[r][h] = -1e30f; /* below any score, but finite: the difference of two
                                        * infinities is NaN */
            rows.sum[r][h] = 0.0f;
        }
    }
    return rows;
}

/* Masks the keys that the rows do not see. The rows are tokens from `t` on, the keys begin at
 * `first_key`. `seen`: the first key that each token sees. */
template <int R, int N>
static __device__ __forceinline__ void tdm_mask(float (&scores)[R][N][4], const tdm_attend &a,
                                                const uint32_t *seen, uint64_t t,
                                                uint32_t first_key)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t token = t + 16 * r + 8 * h + lane / 4;
            const uint32_t from = seen[token < a.tokens ? token : a.tokens - 1];
            const uint32_t position = tdm_attend_last_key(&a, token);
            /* relative to the lane's first key, so that they are compared with constants */
            const int first = (int)(from - (first_key + lane % 4 * 2));
            const int last = (int)(position - (first_key + lane % 4 * 2));
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if (8 * n + i < first || 8 * n + i > last)
                        scores[r][n][2 * h + i] = -INFINITY;
                }
            }
        }
    }
}

/* Raises the shifts where an exponential would become too large. Returns true, for the whole warp,
 * if it raised any; then the caller multiplies its earlier sums by `rescale`. rows.sum is already
 * rescaled. */
template <int R, int N>
static __device__ __forceinline__ bool tdm_follow(const float (&scores)[R][N][4],
                                                  tdm_softmax<R> &rows, float scale,
                                                  float (&rescale)[R][2])
{
    bool lags = false;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = fmaxf(scores[r][0][2 * h], scores[r][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < N; n++)
                most = fmaxf(most, fmaxf(scores[r][n][2 * h], scores[r][n][2 * h + 1]));
            rescale[r][h] = most * scale;
            lags = lags || rescale[r][h] > rows.shift[r][h] + TDM_SLACK;
        }
    }
    if (!__any_sync(TDM_FULL_WARP, lags))
        return false;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float next = rescale[r][h];
            next = fmaxf(next, __shfl_xor_sync(TDM_FULL_WARP, next, 1));
            next = fmaxf(next, __shfl_xor_sync(TDM_FULL_WARP, next, 2));
            next = fmaxf(next, rows.shift[r][h]);
            rescale[r][h] = tdm_exp2(rows.shift[r][h] - next);
            rows.shift[r][h] = next;
            rows.sum[r][h] *= rescale[r][h];
        }
    }
    return true;
}

/* Rescales the sums of rows. */
template <int R, int B>
static __device__ __forceinline__ void tdm_rescale(float (&out)[R][B][4],
                                                   const float (&rescale)[R][2])
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < B; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[r][n][i] *= rescale[r][i / 2];
}

/* Replaces the scores of keys [16 k, 16 k + 16) by exponentials, and adds these to the sums. */
template <int R, int N>
static __device__ __forceinline__ void tdm_raise(float (&scores)[R][N][4], int k,
                                                 tdm_softmax<R> &rows, float scale)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int n = 2 * k; n < 2 * k + 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[r][n][i] = tdm_exp2(scores[r][n][i] * scale - rows.shift[r][i / 2]);
                rows.sum[r][i / 2] += scores[r][n][i];
            }
        }
    }
}

/* Writes the output rows of tokens from `t` on, and their LSE. */
template <int D, int R>
static __device__ __forceinline__ void tdm_put_rows(const float (&out)[R][D / 8][4],
                                                    const tdm_softmax<R> &rows, const tdm_attend &a,
                                                    uint64_t t, uint32_t head)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t token = t + 16 * r + 8 * h + lane / 4;
            float sum = rows.sum[r][h];
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
            if (token >= a.tokens)
                continue;
            const uint64_t row = token * a.query_heads + head;
            const float share = 1.0f / sum;
            uint32_t *to = (uint32_t *)((__nv_bfloat16 *)a.out.data + row * D) + lane % 4;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                to[4 * n] = tdm_pack(out[r][n][2 * h] * share, out[r][n][2 * h + 1] * share);
            if (lane % 4 == 0)
                a.lse[row] = rows.shift[r][h] / TDM_LOG2_E + logf(sum);
        }
    }
}

#endif
