/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges parts of attention over disjoint keys, as executor/cpu/merge.c:
 *
 *     L'' = log(exp(L) + exp(L')),  O'' = exp(L - L'') O + exp(L' - L'') O'
 *
 * Parts of dQ are added. Memory-bound: 10 bytes for each element of a part in bf16. A row is a
 * token's query head. Some lanes of a warp have a row, with W elements at a time.
 */
#include "executor/cuda/device.cuh"

#define THREADS 256u
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

template <typename T, int W>
static __global__ void __launch_bounds__(THREADS)
    merge_rows(const struct tdm_merge x, uint32_t lanes)
{
    const uint64_t row = (uint64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    const uint32_t lane = threadIdx.x % lanes;
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
    for (uint32_t i = lane * W; i < x.head_dim; i += lanes * W) {
        const uint64_t at = row * x.head_dim + i;
        float value[W], sum[W] = {};
        tdm_load<W>((const T *)x.part.data, at, value);
        if (!x.opens)
            tdm_load<W>(x.sum, at, sum);
#pragma unroll
        for (int j = 0; j < W; j++) {
            value[j] = is_there ? take.part * value[j] : 0.0f;
            if (!x.opens)
                value[j] += take.sum * sum[j];
        }
        if (x.out.data != NULL)
            tdm_store<W>((T *)x.out.data, at, value);
        else
            tdm_store<W>(x.sum, at, value);
    }
    __syncwarp(); /* all lanes have read the LSE so far */
    if (lane == 0 && x.part_lse != NULL)
        (x.out.data != NULL ? x.out_lse : x.sum_lse)[row] = take.lse;
}

extern "C" enum tdm_status tdm_cuda_merge(const struct tdm_merge *merge, cudaStream_t stream,
                                          struct tdm_error *err)
{
    const void *const pointers[] = {merge->part.data, merge->out.data, merge->sum};
    const bool eights = tdm_in_eights(merge->head_dim, pointers, 3);
    uint32_t lanes = TDM_WARP;
    if (merge->rows == 0)
        return TDM_OK;
    while (eights && lanes / 2 * 8 >= merge->head_dim)
        lanes /= 2;
    const unsigned blocks = tdm_blocks(merge->rows, THREADS / lanes, INT32_MAX);
    enum tdm_status status = tdm_with_type(merge->part.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        if (eights)
            merge_rows<T, 8><<<blocks, THREADS, 0, stream>>>(*merge, lanes);
        else
            merge_rows<T, 1><<<blocks, THREADS, 0, stream>>>(*merge, lanes);
    });
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "merge launch", err) : status;
}
