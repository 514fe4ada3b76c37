/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a warpgroup on Hopper (wgmma, sm_90a): C [64, N] (+)= A [64, 16] B [16, N], bf16
 * factors, fp32 sums. PTX ISA, 9.7.15.
 *
 * A tile in shared memory has rows of 64 or 128 bf16. It is stored as consecutive pieces of 64
 * columns. In a piece a row has 128 bytes, and its 16-byte part number `part` is stored at position
 * part ^ (row % 8): the 128-byte swizzle of the instructions. A piece begins at a multiple of 1024
 * bytes.
 *
 * Each warp holds 16 rows of C. A lane holds the same elements as of tdm_mma's blocks of 8 columns
 * (mma.cuh). The same is true of an A in registers.
 */
#ifndef TDM_EXECUTOR_CUDA_HOPPER_PRODUCTS_CUH
#define TDM_EXECUTOR_CUDA_HOPPER_PRODUCTS_CUH

#include "executor/cuda/mma.cuh"

/* Call it before the first product that reads registers which other instructions wrote. */
static __device__ __forceinline__ void tdm_products_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void tdm_products_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N of the committed groups are in flight. */
template <int N> static __device__ __forceinline__ void tdm_products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving reads and writes of a C across this point. */
template <int N> static __device__ __forceinline__ void tdm_products_hold(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(c[n][i])::"memory");
}

/* Descriptor of an operand in shared memory. `leading_bytes`: distance between pieces of 64
 * columns, for a transposed operand. */
static __device__ __forceinline__ uint64_t tdm_matrix(uint32_t address, uint32_t leading_bytes)
{
    const uint64_t of_eight_rows = 1024 >> 4, swizzled = 1;
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading_bytes >> 4) << 16 |
           of_eight_rows << 32 | swizzled << 62;
}

/* A or B^T of columns [16 block, 16 block + 16) of a tile of `rows` rows. The tile's rows are rows
 * of A, or columns of B. */
static __device__ __forceinline__ uint64_t tdm_columns_of(uint32_t tile, uint32_t rows,
                                                          uint32_t block)
{
    return tdm_matrix(tile + block / 4 * rows * 128 + block % 4 * 32, 16);
}

/* The same two for a tile address that is uniform over a warp, so that the address arithmetic is
 * done once per warp. */
struct tdm_uniform_tile {
    uint32_t low; /* lower half of the descriptor of the tile's start */
};

static __device__ __forceinline__ tdm_uniform_tile tdm_uniform(uint32_t tile,
                                                               uint32_t leading_bytes)
{
    return {__shfl_sync(~0u, ((tile & 0x3ffff) >> 4) | (leading_bytes >> 4) << 16, 0)};
}

static __device__ __forceinline__ uint64_t tdm_matrix_at(tdm_uniform_tile tile, uint32_t bytes)
{
    return (uint64_t)(tile.low + (bytes >> 4)) | (uint64_t)(64u | 1u << 30) << 32;
}

/* ---- instructions ----
 *
 * tdm_wgmma<B_TURNED>(c, a, b, add): C (+)= A B, with as many columns as `c` has blocks of 8. A is
 * in shared memory or in registers, B in shared memory. B_TURNED: the tile's rows are rows of B,
 * that is, they run along the summed dimension. */

/* clang-format off */
#define TDM_C4(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define TDM_C16(c, i) TDM_C4(c, i), TDM_C4(c, i + 1), TDM_C4(c, i + 2), TDM_C4(c, i + 3)
#define TDM_R16 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TDM_R32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TDM_R64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TDM_R88 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, " \
    "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
    "%87"

#define TDM_WGMMA(BLOCKS, COLUMNS, R, N0, N1, N2, N3, N4, N5, N6, ...) \
    template <int B_TURNED> \
    static __device__ __forceinline__ void tdm_wgmma(float (&c)[BLOCKS][4], uint64_t a, uint64_t b, bool add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " N2 ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" R "}, " \
                     N0 ", " N1 ", p, 1, 1, 0, " N3 ";\n}" \
                     : __VA_ARGS__ \
                     : "l"(a), "l"(b), "r"((int)add), "n"(B_TURNED)); \
    } \
    template <int B_TURNED> \
    static __device__ __forceinline__ void tdm_wgmma(float (&c)[BLOCKS][4], const uint32_t *a, uint64_t b, bool add) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " N5 ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" R "}, " \
                     "{" N0 ", " N1 ", " N2 ", " N3 "}, " N4 ", p, 1, 1, " N6 ";\n}" \
                     : __VA_ARGS__ \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(B_TURNED)); \
    }

TDM_WGMMA(4, "32", TDM_R16, "%16", "%17", "%18", "%19", "%20", "%21", "%22",
          TDM_C16(c, 0))
TDM_WGMMA(8, "64", TDM_R32, "%32", "%33", "%34", "%35", "%36", "%37", "%38",
          TDM_C16(c, 0), TDM_C16(c, 4))
TDM_WGMMA(16, "128", TDM_R64, "%64", "%65", "%66", "%67", "%68", "%69", "%70",
          TDM_C16(c, 0), TDM_C16(c, 4), TDM_C16(c, 8), TDM_C16(c, 12))
TDM_WGMMA(22, "176", TDM_R88, "%88", "%89", "%90", "%91", "%92", "%93", "%94",
          TDM_C16(c, 0), TDM_C16(c, 4), TDM_C16(c, 8), TDM_C16(c, 12), TDM_C16(c, 16), TDM_C4(c, 20),
          TDM_C4(c, 21))

#undef TDM_WGMMA
#undef TDM_R16
#undef TDM_R32
#undef TDM_R64
#undef TDM_R88
#undef TDM_C16
#undef TDM_C4
/* clang-format on */

#endif
