/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cross entropy of rows of logits, and their gradients, which replace the logits:
 *
 *     (softmax - one at the target) * per_token
 *
 * A block has a row [entries]. It reads the row once for the maximum and the sum of exponentials.
 * Each thread keeps these for its own columns, and rescales the sum when its maximum rises. The
 * block reads the row again, mostly from the L2, to write the gradient. If a row has only a part of
 * the vocabulary, its sums are added to those of the earlier parts. Gradients then have their own
 * pass, when the sums are complete.
 *
 * The sums exclude the target. If its probability p is nearly 1, log(1 / p) and 1 - p follow from
 * the others without cancellation (as in executor/cpu/head.c).
 */
#include "executor/cuda/device.cuh"

#define THREADS 512u

/* A maximum, and the sum of exponentials relative to it, without the target's. */
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
        /* both partners use the same order, so they agree to the last bit */
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

static __device__ __forceinline__ tdm_row_sums join(tdm_row_sums a, tdm_row_sums b)
{
    tdm_row_sums both;
    both.most = fmax(a.most, b.most);
    both.others = a.others * exp(a.most - both.most) + b.others * exp(b.most - both.most);
    both.target = a.target + b.target;
    return both;
}

/* The sum of exp(logit - most) over the vocabulary. */
static __device__ __forceinline__ double total_of(tdm_row_sums row)
{
    return row.others + exp(row.target - row.most);
}

/* log(1 / p) of the target, as a sum of non-negative terms. */
static __device__ __forceinline__ double loss_of(tdm_row_sums row)
{
    return row.target >= row.most ? log1p(row.others) : row.most - row.target + log(total_of(row));
}

/* Sums of the block's row, the same in every thread. `target` is the target's column, or a number
 * beyond the row. */
template <typename T, int W>
static __device__ tdm_row_sums sum_row(const T *line, uint32_t entries, uint32_t target)
{
    softmax mine = {-INFINITY, 0.0f};
    for (uint32_t column = threadIdx.x * W; column < entries; column += THREADS * W) {
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
            mine.sum += column + j == target ? 0.0f : __expf(value[j] - mine.most);
    }
    const softmax all = block_softmax(mine);
    tdm_row_sums row;
    row.most = (double)all.most;
    row.others = (double)all.sum;
    row.target = target < entries ? (double)tdm_get(line, target) : 0.0;
    return row;
}

template <typename T, int W>
static __global__ void __launch_bounds__(THREADS) cross_entropy(const tdm_cross_entropy x)
{
    const uint64_t row = blockIdx.x;
    const int32_t target = x.targets[row];
    T *line = (T *)x.logits.data + row * x.entries;
    if (target < 0 || (uint32_t)target >= x.vocabulary) {
        if (threadIdx.x == 0) {
            const tdm_row_sums none = {};
            x.losses[row] = 0.0;
            if (x.sums != NULL)
                x.sums[row] = none;
            if (target >= 0) {
                x.fault->token = target;
                x.fault->row = row + 1;
            }
        }
        const float zeros[W] = {};
        for (uint32_t column = threadIdx.x * W; column < x.entries && x.backward;
             column += THREADS * W)
            tdm_store<W>(line, column, zeros);
        return;
    }

    /* beyond the row if the target is among other entries, on either side */
    const uint32_t at = (uint32_t)target - x.first_entry;
    tdm_row_sums sums;
    if (x.sums_are_there) {
        sums = x.sums[row];
    } else {
        sums = sum_row<T, W>(line, x.entries, at);
        if (x.adds)
            sums = join(x.sums[row], sums);
    }
    __syncthreads(); /* all threads have read the target's logit and the sums so far */
    if (threadIdx.x == 0) {
        x.losses[row] = loss_of(sums);
        if (x.sums != NULL)
            x.sums[row] = sums;
    }
    if (!x.backward)
        return;

    const double total = total_of(sums);
    const float most = (float)sums.most, scale = (float)(x.per_token / total);
    const float d_target = (float)(-sums.others / total * x.per_token); /* p - 1 */
    for (uint32_t column = threadIdx.x * W; column < x.entries; column += THREADS * W) {
        float value[W];
        tdm_load<W>(line, column, value);
#pragma unroll
        for (int j = 0; j < W; j++) {
            value[j] = column + j == at ? d_target : __expf(value[j] - most) * scale;
        }
        tdm_store<W>(line, column, value);
    }
}

extern "C" enum tdm_status tdm_cuda_cross_entropy(const struct tdm_cross_entropy *x,
                                                  cudaStream_t stream, struct tdm_error *err)
{
    const void *const pointers[] = {x->logits.data};
    const bool eights = tdm_in_eights(x->entries, pointers, 1);
    const unsigned blocks = (unsigned)x->rows;
    enum tdm_status status = tdm_with_type(x->logits.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        if (eights)
            cross_entropy<T, 8><<<blocks, THREADS, 0, stream>>>(*x);
        else
            cross_entropy<T, 1><<<blocks, THREADS, 0, stream>>>(*x);
    });
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "cross_entropy launch", err)
                            : status;
}
