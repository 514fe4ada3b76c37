/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts of rows that go around a ring of ranks with their queries: the LSE, and D = rowsum(dO *
 * O), [tokens, query heads] each. Memory-bound: 4 bytes for each element in bf16. A warp has a row,
 * as in merge.cu.
 */
#include "executor/cuda/device.cuh"

#define WARPS 8u
#define THREADS (WARPS * TDM_WARP)

template <typename T>
static __global__ void __launch_bounds__(THREADS) pack_facts(const struct tdm_pack x)
{
    const uint64_t row = (uint64_t)blockIdx.x * WARPS + threadIdx.x / TDM_WARP;
    const uint32_t lane = threadIdx.x % TDM_WARP;
    float sum = 0.0f;
    if (row >= x.rows)
        return;
    for (uint32_t i = lane; i < x.head_dim; i += TDM_WARP)
        sum += tdm_get((const T *)x.d_out.data, row * x.head_dim + i) *
               tdm_get((const T *)x.out.data, row * x.head_dim + i);
    sum = tdm_warp_sum(sum);
    if (lane == 0) {
        x.packed_lse[row] = x.lse[row];
        x.dots[row] = sum;
    }
}

extern "C" enum tdm_status tdm_cuda_pack_facts(const struct tdm_pack *pack, cudaStream_t stream,
                                               struct tdm_error *err)
{
    if (pack->rows == 0)
        return TDM_OK;
    enum tdm_status status = tdm_with_type(pack->out.dtype, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        pack_facts<T><<<tdm_blocks(pack->rows, WARPS, INT32_MAX), THREADS, 0, stream>>>(*pack);
    });
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "pack_queries launch", err)
                            : status;
}
