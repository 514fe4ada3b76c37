/* SPDX-License-Identifier: Apache-2.0 */
/* Shared code of the Hopper kernels of attention and of votes. Tiles are laid out as in
 * hopper_products.cuh. The copies and loads by threads here are for head dim 128. */
#ifndef TDM_EXECUTOR_CUDA_HOPPER_TILES_CUH
#define TDM_EXECUTOR_CUDA_HOPPER_TILES_CUH

#include "executor/cuda/hopper.cuh"
#include "executor/cuda/pages.cuh"

#define TDM_HOPPER_DIM 128
#define TDM_HOPPER_TILE_BYTES(rows) ((rows)*256u)
#define TDM_HOPPER_PIECES 16u         /* pieces of 16 bytes in a row */
#define TDM_HOPPER_PAGE 128u          /* tokens of a page if there are lists of pages */
#define TDM_HOPPER_LIST_PAGES 0x7fffu /* maximum pages of a list: a rank has 15 bits */

/* First row of the warp among its warpgroup's 64. */
static __device__ __forceinline__ uint32_t tdm_hopper_warp_row(void)
{
    return threadIdx.x % TDM_WARPGROUP / 32 * 16;
}

/* Copies to shared memory by the threads of one warpgroup. The producer arrives at a copy's barrier
 * after it has issued the next copies, or before it waits. */
struct tdm_producer {
    uint64_t *pending;

    __device__ __forceinline__ tdm_producer() : pending(NULL)
    {
    }

    /* Waits until consumers have released the memory that the next copies overwrite. */
    __device__ __forceinline__ void wait(uint64_t *barrier, uint32_t phase)
    {
        if (tdm_barrier_test(barrier, phase))
            return;
        finish();
        tdm_barrier_wait(barrier, phase);
    }

    /* All copies since the last commit belong to `barrier`. */
    __device__ __forceinline__ void commit(uint64_t *barrier)
    {
        tdm_copy_commit();
        if (pending != NULL) {
            tdm_copy_wait<1>();
            tdm_fence_shared();
            tdm_barrier_arrive(pending);
        }
        pending = barrier;
    }

    __device__ __forceinline__ void finish()
    {
        if (pending == NULL)
            return;
        tdm_copy_wait<0>();
        tdm_fence_shared();
        tdm_barrier_arrive(pending);
        pending = NULL;
    }
};

/* Each thread of the warpgroup copies piece `thread % 16` of every 8th row, from row `thread / 16`
 * on. */
static __device__ __forceinline__ uint32_t tdm_hopper_piece(uint32_t tile, uint32_t rows)
{
    const uint32_t row = threadIdx.x % TDM_WARPGROUP / TDM_HOPPER_PIECES;
    const uint32_t piece = threadIdx.x % TDM_HOPPER_PIECES;
    return tile + piece / 8 * rows * 128 + row * 128 + ((piece % 8) ^ row) * 16;
}

/* Begins to copy ROWS rows that are `stride` elements apart. Rows from `count` on become zeros. */
template <uint32_t ROWS>
static __device__ __forceinline__ void tdm_hopper_copy(uint32_t tile, const __nv_bfloat16 *from,
                                                       uint64_t stride, uint32_t count)
{
    const uint32_t row = threadIdx.x % TDM_WARPGROUP / TDM_HOPPER_PIECES;
    const uint32_t to = tdm_hopper_piece(tile, ROWS);
    from += threadIdx.x % TDM_HOPPER_PIECES * 8;
#pragma unroll 8
    for (uint32_t i = 0; i < ROWS / 8; i++) {
        const bool is_there = row + 8 * i < count;
        tdm_copy_async(to + i * 1024, from + (is_there ? row + 8 * i : 0) * stride, is_there);
    }
}

/* What the consumers need to know of a step over lists of pages: its first key or token, a multiple
 * of 64, and two flags in the low bits: the query page sees the keys' whole page; some elements may
 * have to be masked. */
#define TDM_STEP_WHOLE 1u
#define TDM_STEP_MASKED 2u
#define TDM_STEP_FIRST 0xffffffc0u

/* Loads the warpgroup's 64 rows of a tile of `rows` rows, all columns, as A in registers. */
static __device__ __forceinline__ void tdm_hopper_load_a(uint32_t (&a)[TDM_HOPPER_DIM / 16][4],
                                                         uint32_t tile, uint32_t rows)
{
    const uint32_t lane = threadIdx.x % 32, row = tdm_hopper_warp_row() + lane % 16;
#pragma unroll
    for (uint32_t block = 0; block < TDM_HOPPER_DIM / 16; block++)
        tdm_ldmatrix(a[block], tile + block / 4 * rows * 128 + row * 128 +
                                   ((2 * (block % 4) + lane / 16) ^ (row % 8)) * 16);
}

#endif
