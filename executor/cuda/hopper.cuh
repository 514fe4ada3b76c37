/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Hopper (sm_90a) has beyond mma.sync: products of a warpgroup that read shared memory (wgmma),
 * barriers in shared memory, registers that move between warpgroups. PTX ISA, 9.7.13.15 and 9.7.15.
 *
 * A tile has rows of 128 bf16 in two halves of 64 columns, one behind the other; in a half a row has 128
 * bytes, and its 16-byte pieces lie in the order piece ^ (row % 8): the 128-byte swizzle of the
 * instructions. A tile begins at a multiple of 1024 bytes.
 *
 * Products are C [64, N] (+)= A [64, 16] B [16, N] in fp32. Of C a warp has 16 rows, and a lane of it what it
 * has of tdm_mma's blocks of 8 columns (mma.cuh); of an A in registers likewise.
 */
#ifndef TDM_EXECUTOR_CUDA_HOPPER_CUH
#define TDM_EXECUTOR_CUDA_HOPPER_CUH

#include "executor/cuda/mma.cuh"

/* Threads of a warpgroup. */
#define TDM_WARPGROUP 128u

/* ---- barriers ---- */

static __device__ __forceinline__ void tdm_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(tdm_shared(barrier)), "r"(arrivals)
                 : "memory");
}

static __device__ __forceinline__ void tdm_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(tdm_shared(barrier)) : "memory");
}

/* Waits for the end of the barrier's phase number `phase`, counted from 0: all have arrived. */
static __device__ __forceinline__ void tdm_barrier_wait(uint64_t *barrier, uint32_t phase)
{
    const uint32_t address = tdm_shared(barrier);
    uint32_t ended;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ended)
                     : "r"(address), "r"(phase & 1)
                     : "memory");
    } while (!ended);
}

/* Has that phase ended? */
static __device__ __forceinline__ bool tdm_barrier_test(uint64_t *barrier, uint32_t phase)
{
    uint32_t ended;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended)
                 : "r"(tdm_shared(barrier)), "r"(phase & 1)
                 : "memory");
    return ended != 0;
}

/* Makes what this thread wrote to shared memory visible to products. */
static __device__ __forceinline__ void tdm_fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Lets warpgroups take turns: one waits for turn `number` (from 1) until another gives it. */
static __device__ __forceinline__ void tdm_turn_wait(uint32_t number)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(2 * TDM_WARPGROUP) : "memory");
}

static __device__ __forceinline__ void tdm_turn_give(uint32_t number)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(2 * TDM_WARPGROUP) : "memory");
}

/* ---- registers ---- */

template <int COUNT> static __device__ __forceinline__ void tdm_take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void tdm_give_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- products ---- */

/* Before the first product that reads registers which others wrote. */
static __device__ __forceinline__ void tdm_products_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void tdm_products_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N of the committed groups are under way. */
template <int N> static __device__ __forceinline__ void tdm_products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving reads and writes of a C over what stands here. */
template <int N> static __device__ __forceinline__ void tdm_products_hold(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(c[n][i])::"memory");
}

/* An operand in shared memory; `leading_bytes`: from 64 of its columns to the next, where it is turned. */
static __device__ __forceinline__ uint64_t tdm_matrix(uint32_t address, uint32_t leading_bytes)
{
    const uint64_t of_eight_rows = 1024 >> 4, swizzled = 1;
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading_bytes >> 4) << 16 |
           of_eight_rows << 32 | swizzled << 62;
}

/* A or B^T of columns [16 block, 16 block + 16) of a tile of `rows` rows: its rows are rows of A, or
 * columns of B. */
static __device__ __forceinline__ uint64_t tdm_columns_of(uint32_t tile, uint32_t rows,
                                                          uint32_t block)
{
    return tdm_matrix(tile + block / 4 * rows * 128 + block % 4 * 32, 16);
}

/* B of rows [16 block, 16 block + 16) of a tile of `rows` rows: turned. */
static __device__ __forceinline__ uint64_t tdm_rows_of(uint32_t tile, uint32_t rows, uint32_t block)
{
    return tdm_matrix(tile + block * 16 * 128, rows * 128);
}

/* C (+)= A B, N columns, A and B in shared memory; and A in registers. B_TURNED: B comes from
 * tdm_rows_of. */
template <int B_TURNED>
static __device__ __forceinline__ void tdm_wgmma(float (&c)[8][4], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, %35;\n}"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]),
                   "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]),
                   "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]),
                   "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
                   "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]),
                   "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
                   "+f"(c[7][2]), "+f"(c[7][3])
                 : "l"(a), "l"(b), "r"((int)add), "n"(B_TURNED));
}

template <int B_TURNED>
static __device__ __forceinline__ void tdm_wgmma(float (&c)[16][4], const uint32_t *a, uint64_t b,
                                                 bool add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
          "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
          "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
          "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
          "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]),
          "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]),
          "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]),
          "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
          "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),
          "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(B_TURNED));
}

#endif
