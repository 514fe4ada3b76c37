/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges parts of attention over disjoint keys, as executor/cpu/merge.c:
 *
 *     L'' = log(exp(L) + exp(L')),  O'' = exp(L - L'') O + exp(L' - L'') O'
 *
 * Parts of dQ are added. Memory-bound: 10 bytes for each element of a part in bf16. A warp has a
 * row, which is a token's query head.
 */
#include "executor/cuda/device.cuh"

#define WARPS 8u
#define THREADS (WARPS * TDM_WARP)
#define LEAST_LSE (-1e29f)

/* What a row takes of the sum and of the part, and its LSE. */
struct shares {
    float sum, part, lse;
};

static __device__ __forceinline__ shares shares_of(float lse, float part)
{
    const float most = fmaxf(lse, part), a = expf(lse - most), b = expf(part - most);
    return {a / (a + b), b / (a + b), most + logf(a + b)};
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) merge_rows(const struct tdm_merge x)
{
    const uint64_t row = (uint64_t)blockIdx.x * WARPS + threadIdx.x / TDM_WARP;
    const uint32_t lane = threadIdx.x % TDM_WARP;
    shares take = {1.0f, 1.0f, 0.0f};
    bool is_there = true;
    if (row >= x.rows)
        return;
    if (x.part_lse != NULL) {
        const float part = x.part_lse[row];
        is_there = part > LEAST_LSE; /* false if it is not a number */
        take.lse = is_there ? part : 10 * LEAST_LSE;
        if (!x.opens)
            take = shares_of(x.sum_lse[row], take.lse);
    }
    for (uint32_t i = lane; i < x.head_dim; i += TDM_WARP) {
        const uint64_t at = row * x.head_dim + i;
        float value = is_there ? take.part * tdm_get((const T *)x.part.data, at) : 0.0f;
        if (!x.opens)
            value += take.sum * x.sum[at];
        if (x.out.data != NULL)
            tdm_put((T *)x.out.data, at, value);
        else
            x.sum[at] = value;
    }
    __syncwarp(); /* all lanes have read the LSE so far */
    if (lane == 0 && x.part_lse != NULL)
        (x.out.data != NULL ? x.out_lse : x.sum_lse)[row] = take.lse;
}

extern "C" enum tdm_status tdm_cuda_merge(const struct tdm_merge *merge, cudaStream_t stream,
                                          struct tdm_error *err)
{
    if (merge->rows == 0)
        return TDM_OK;
    enum tdm_status status = tdm_with_type(merge->part.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        merge_rows<T><<<tdm_blocks(merge->rows, WARPS, INT32_MAX), THREADS, 0, stream>>>(*merge);
    });
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "merge launch", err) : status;
}
