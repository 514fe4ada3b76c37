/* SPDX-License-Identifier: Apache-2.0 */
/* Shared code of the Hopper kernels of attention and of votes. Tiles are laid out as in
 * hopper_products.cuh. */
#ifndef TDM_EXECUTOR_CUDA_HOPPER_TILES_CUH
#define TDM_EXECUTOR_CUDA_HOPPER_TILES_CUH

#include "executor/cuda/hopper.cuh"
#include "executor/cuda/pages.cuh"

#define TDM_HOPPER_PAGE 128u          /* tokens of a page if there are lists of pages */
#define TDM_HOPPER_LIST_PAGES 0x7fffu /* maximum pages of a list: a rank has 15 bits */

/* First row of the warp among its warpgroup's 64. */
static __device__ __forceinline__ uint32_t tdm_hopper_warp_row(void)
{
    return threadIdx.x % TDM_WARPGROUP / 32 * 16;
}

/* What the consumers need to know of a step over lists of pages: its first key or token, a multiple
 * of 64, and two flags in the low bits: the query page sees the keys' whole page; some elements may
 * have to be masked. */
#define TDM_STEP_WHOLE 1u
#define TDM_STEP_MASKED 2u
#define TDM_STEP_FIRST 0xffffffc0u

#endif
