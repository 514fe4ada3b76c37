/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cross entropy of rows of logits, and their gradients in their place:
 * (softmax - one at the target) * per_token.
 *
 * A block has a row [vocabulary]: it reads it once for the maximum and the sum of exponentials, which
 * every thread keeps for its own columns and rescales when its maximum rises, and once more, mostly
 * from the L2, to write the gradient. Without `backward` it reads the row once.
 */
#include "executor/cuda/device.cuh"

#define THREADS 512u

/* A maximum, and the sum of exponentials relative to it. */
struct softmax {
    float most;
    float sum;
};

static __device__ __forceinline__ softmax together(softmax a, softmax b)
{
    softmax both;
    both.most = fmaxf(a.most, b.most);
    if (both.most == -INFINITY)
        return a;
    both.sum = a.sum * expf(a.most - both.most) + b.sum * expf(b.most - both.most);
    return both;
}

/* The block's, the same in every thread. */
static __device__ softmax block_softmax(softmax mine)
{
    __shared__ softmax of_warp[THREADS / TDM_WARP];
    for (unsigned offset = TDM_WARP / 2; offset > 0; offset /= 2) {
        softmax other;
        other.most = __shfl_xor_sync(TDM_FULL_WARP, mine.most, offset);
        other.sum = __shfl_xor_sync(TDM_FULL_WARP, mine.sum, offset);
        /* both partners in the same order, so that they agree to the last bit */
        mine = threadIdx.x & offset ? together(other, mine) : together(mine, other);
    }
    if (threadIdx.x % TDM_WARP == 0)
        of_warp[threadIdx.x / TDM_WARP] = mine;
    __syncthreads();
    softmax all = of_warp[0];
    for (unsigned i = 1; i < THREADS / TDM_WARP; i++)
        all = together(all, of_warp[i]);
    return all;
}

template <typename T, int W>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy(T *logits, const int32_t *targets, uint32_t vocabulary, double per_token,
                  bool backward, double *losses, tdm_fault *fault)
{
    const uint64_t row = blockIdx.x;
    const int32_t target = targets[row];
    T *line = logits + row * vocabulary;
    if (target < 0 || (uint32_t)target >= vocabulary) {
        if (threadIdx.x == 0) {
            losses[row] = 0.0;
            if (target >= 0) {
                fault->token = target;
                fault->row = row + 1;
            }
        }
        const float zeros[W] = {};
        for (uint32_t column = threadIdx.x * W; column < vocabulary && backward;
             column += THREADS * W)
            tdm_store<W>(line, column, zeros);
        return;
    }

    softmax mine = {-INFINITY, 0.0f};
    for (uint32_t column = threadIdx.x * W; column < vocabulary; column += THREADS * W) {
        float value[W];
        tdm_load<W>(line, column, value);
        float most = mine.most;
#pragma unroll
        for (int j = 0; j < W; j++)
            most = fmaxf(most, value[j]);
        if (most > mine.most) {
            mine.sum *= expf(mine.most - most);
            mine.most = most;
        }
#pragma unroll
        for (int j = 0; j < W; j++)
            mine.sum += __expf(value[j] - mine.most);
    }
    const softmax all = block_softmax(mine);
    const float at_target = tdm_get(line, (uint32_t)target);
    const double lse = (double)all.most + log((double)all.sum);
    if (threadIdx.x == 0)
        losses[row] = lse - (double)at_target;
    if (!backward)
        return;

    const float scale = (float)(per_token / (double)all.sum);
    __syncthreads(); /* everybody has read the target's logit */
    for (uint32_t column = threadIdx.x * W; column < vocabulary; column += THREADS * W) {
        float value[W];
        tdm_load<W>(line, column, value);
#pragma unroll
        for (int j = 0; j < W; j++) {
            value[j] = __expf(value[j] - all.most) * scale;
            if (column + j == (uint32_t)target) /* p - 1 without cancellation near p = 1 */
                value[j] = (float)(expm1((double)at_target - lse) * per_token);
        }
        tdm_store<W>(line, column, value);
    }
}

extern "C" enum tdm_status tdm_cuda_cross_entropy(struct tdm_array logits, const int32_t *targets,
                                                  uint64_t rows, uint32_t vocabulary,
                                                  double per_token, bool backward, double *losses,
                                                  struct tdm_fault *fault, cudaStream_t stream,
                                                  struct tdm_error *err)
{
    const void *const pointers[] = {logits.data};
    const bool eights = tdm_in_eights(vocabulary, pointers, 1);
    const unsigned blocks = (unsigned)rows;
    enum tdm_status status = tdm_with_type(logits.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        T *x = (T *)logits.data;
        if (eights)
            cross_entropy<T, 8><<<blocks, THREADS, 0, stream>>>(x, targets, vocabulary, per_token,
                                                                backward, losses, fault);
        else
            cross_entropy<T, 1><<<blocks, THREADS, 0, stream>>>(x, targets, vocabulary, per_token,
                                                                backward, losses, fault);
    });
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "cross_entropy launch", err)
                            : status;
}
