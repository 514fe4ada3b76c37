/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor cores of sm_80 and later, used per warp: bf16 factors, fp32 sums, and the loads of
 * fragments from shared memory.
 *
 * tdm_mma computes C [16, 8] += A [16, 16] B [16, 8]. With g = lane / 4 and j = lane % 4 * 2 a lane
 * holds
 *
 *     C: c[0], c[1] at (g, j), (g, j + 1);  c[2], c[3] at (g + 8, j), (g + 8, j + 1)
 *     A: a[0] at (g, j);  a[1] at (g + 8, j);  a[2] at (g, j + 8);  a[3] at (g + 8, j + 8); pairs
 *     B: b0 at (j, g), (j + 1, g);  b1 at (j + 8, g), (j + 9, g)
 *
 * so two blocks of C, rounded and packed, form an A. PTX ISA, 9.7.14.5.8.
 *
 * Shared memory is passed as a 32-bit shared-space address (tdm_shared), not as a pointer, because
 * the load instructions take 32-bit addresses.
 */
#ifndef TDM_EXECUTOR_CUDA_MMA_CUH
#define TDM_EXECUTOR_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#define TDM_LOG2_E 1.4426950408889634f

/* ---- instructions ---- */

static __device__ __forceinline__ uint32_t tdm_shared(const void *memory)
{
    return (uint32_t)__cvta_generic_to_shared(memory);
}

/* Loads four 8 x 8 matrices. Each lane passes the address of one row: lane i that of row i % 8 of
 * matrix i / 8. */
static __device__ __forceinline__ void tdm_ldmatrix(uint32_t (&to)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

/* The same with each matrix transposed. */
static __device__ __forceinline__ void tdm_ldmatrix_turned(uint32_t (&to)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

static __device__ __forceinline__ void tdm_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

/* Transposes x among four lanes. Before, lanes 4 i to 4 i + 3 each hold two columns of each of four
 * blocks of a row of C, packed in x. After, lane 4 i + j (`j` = lane % 4) holds all eight columns
 * of block j, in order. */
static __device__ __forceinline__ void tdm_turn_four(uint32_t (&x)[4], uint32_t j)
{
    uint32_t a = (j & 1) ? x[0] : x[1], b = (j & 1) ? x[2] : x[3];
    a = __shfl_xor_sync(~0u, a, 1);
    b = __shfl_xor_sync(~0u, b, 1);
    if (j & 1) {
        x[0] = a;
        x[2] = b;
    } else {
        x[1] = a;
        x[3] = b;
    }
    a = (j & 2) ? x[0] : x[2];
    b = (j & 2) ? x[1] : x[3];
    a = __shfl_xor_sync(~0u, a, 2);
    b = __shfl_xor_sync(~0u, b, 2);
    if (j & 2) {
        x[0] = a;
        x[1] = b;
    } else {
        x[2] = a;
        x[3] = b;
    }
}

/* Copies 16 bytes to shared memory without waiting; zeros if there is nothing to copy. */
static __device__ __forceinline__ void tdm_copy_async(uint32_t to, const __nv_bfloat16 *from,
                                                      bool is_there)
{
    const uint32_t bytes = is_there ? 16u : 0u;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* The same for 8 bytes. */
static __device__ __forceinline__ void tdm_copy_async_8(uint32_t to, const void *from,
                                                        bool is_there)
{
    const uint32_t bytes = is_there ? 8u : 0u;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* The same for 4 bytes. */
static __device__ __forceinline__ void tdm_copy_async_4(uint32_t to, const void *from,
                                                        bool is_there)
{
    const uint32_t bytes = is_there ? 4u : 0u;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Ends a group of copies. */
static __device__ __forceinline__ void tdm_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of the thread's groups are in flight. */
template <int N> static __device__ __forceinline__ void tdm_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* 2^x; 0 for -infinity. */
static __device__ __forceinline__ float tdm_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
