/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of rows of bf16 in shared memory, and products of them on tensor cores: see mma.cuh. */
#ifndef TDM_EXECUTOR_CUDA_TILES_CUH
#define TDM_EXECUTOR_CUDA_TILES_CUH

#include "executor/cuda/mma.cuh"
#include "executor/cuda/pages.cuh"

/* Piece `piece` (8 elements) of a row of a tile. */
template <int D>
static __device__ __forceinline__ __nv_bfloat16 *tdm_piece(__nv_bfloat16 *tile, uint32_t row,
                                                           uint32_t piece)
{
    return tile + row * D + (piece ^ (row % 8)) * 8;
}

/* An A of rows [row, row + 16), columns [16 block, 16 block + 16) of a tile. */
template <int D>
static __device__ __forceinline__ void tdm_load_a(uint32_t (&a)[4], __nv_bfloat16 *tile,
                                                  uint32_t row, uint32_t block)
{
    const uint32_t lane = threadIdx.x % 32;
    tdm_ldmatrix(a, tdm_piece<D>(tile, row + lane % 16, 2 * block + lane / 16));
}

/* Two neighbouring Bs of the transposed tile: b[0], b[1] with its rows [row, row + 8) as columns, b[2],
 * b[3] with [row + 8, row + 16); its columns [16 block, 16 block + 16) as rows. */
template <int D>
static __device__ __forceinline__ void tdm_load_b_turned(uint32_t (&b)[4], __nv_bfloat16 *tile,
                                                         uint32_t row, uint32_t block)
{
    const uint32_t lane = threadIdx.x % 32;
    tdm_ldmatrix(b, tdm_piece<D>(tile, row + lane / 16 * 8 + lane % 8, 2 * block + lane / 8 % 2));
}

/* Two neighbouring Bs of the tile itself: its rows [row, row + 16), b[0], b[1] its columns [16 block,
 * 16 block + 8), b[2], b[3] the next 8. */
template <int D>
static __device__ __forceinline__ void tdm_load_b(uint32_t (&b)[4], __nv_bfloat16 *tile,
                                                  uint32_t row, uint32_t block)
{
    const uint32_t lane = threadIdx.x % 32;
    tdm_ldmatrix_turned(b, tdm_piece<D>(tile, row + lane % 16, 2 * block + lane / 16));
}

static __device__ __forceinline__ uint32_t tdm_pack(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* Two blocks of C as an A. */
static __device__ __forceinline__ void tdm_as_a(uint32_t (&a)[4], const float (&left)[4],
                                                const float (&right)[4])
{
    a[0] = tdm_pack(left[0], left[1]);
    a[1] = tdm_pack(left[2], left[3]);
    a[2] = tdm_pack(right[0], right[1]);
    a[3] = tdm_pack(right[2], right[3]);
}

/* Begins to copy ROWS rows: of token t0 + row for one query head, as far as there are tokens. */
template <int D, int ROWS>
static __device__ __forceinline__ void tdm_fetch_rows(__nv_bfloat16 *tile, const tdm_attend &a,
                                                      const void *data, uint64_t t0, uint32_t head)
{
    for (uint32_t i = threadIdx.x; i < ROWS * (D / 8); i += blockDim.x) {
        const uint32_t row = i / (D / 8), piece = i % (D / 8);
        const bool is_there = t0 + row < a.tokens;
        const uint64_t at = ((is_there ? t0 + row : 0) * a.query_heads + head) * D + piece * 8;
        tdm_copy_async(tdm_piece<D>(tile, row, piece), (const __nv_bfloat16 *)data + at, is_there);
    }
}

/* Begins to copy K or V (`plane` elements behind K) of the ROWS keys from `first` on, zeros from key `end`
 * on. `whole`: keys from a multiple of ROWS on lie in one page. */
template <int D, int ROWS>
static __device__ __forceinline__ void tdm_fetch_keys(__nv_bfloat16 *tile, const tdm_attend &a,
                                                      uint64_t plane, uint32_t first, uint32_t end,
                                                      uint32_t kv_head, bool whole)
{
    const __nv_bfloat16 *pages = (const __nv_bfloat16 *)a.pages.data + plane;
    const __nv_bfloat16 *base = pages + tdm_key_at(a, first, kv_head, a.slot_elements);
    for (uint32_t i = threadIdx.x; i < ROWS * (D / 8); i += blockDim.x) {
        const uint32_t row = i / (D / 8), piece = i % (D / 8);
        const bool is_there = first + row < end;
        const __nv_bfloat16 *from = base;
        if (is_there)
            from = whole ? base + (uint64_t)row * a.kv_heads * D
                         : pages + tdm_key_at(a, first + row, kv_head, a.slot_elements);
        tdm_copy_async(tdm_piece<D>(tile, row, piece), from + piece * 8, is_there);
    }
}

#endif
