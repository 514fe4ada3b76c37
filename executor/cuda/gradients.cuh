/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared code of attention's backward kernels: row facts, which tokens see a key, and how dK and dV
 * are stored in their pages.
 */
#ifndef TDM_EXECUTOR_CUDA_GRADIENTS_CUH
#define TDM_EXECUTOR_CUDA_GRADIENTS_CUH

#include "executor/cuda/device.cuh"
#include "executor/cuda/mma.cuh"
#include "executor/cuda/pages.cuh"

/* The facts of a row of scores, stored [query head, token]: its LSE in base 2, and D = rowsum(dO *
 * O). */
struct tdm_row_fact {
    float lse, d;
};

static __device__ __forceinline__ tdm_row_fact *tdm_row_facts(const tdm_attend &a, uint32_t head)
{
    return (tdm_row_fact *)a.d + head * a.tokens;
}

/* Fills the facts. One warp per row; each lane reads 8 elements at a time. 256 threads. */
static __global__ void __launch_bounds__(256) tdm_find_row_facts(const tdm_attend a)
{
    const uint64_t row = (uint64_t)blockIdx.x * 8 + threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    float sum = 0.0f;
    if (row >= a.tokens * a.query_heads)
        return;
    for (uint32_t i = lane * 8; a.dots == NULL && i < a.head_dim; i += 32 * 8) {
        float d[8], o[8];
        tdm_load<8>((const __nv_bfloat16 *)a.d_out.data, row * a.head_dim + i, d);
        tdm_load<8>((const __nv_bfloat16 *)a.out.data, row * a.head_dim + i, o);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += d[j] * o[j];
    }
    sum = a.dots == NULL ? tdm_warp_sum(sum) : a.dots[row];
    if (lane == 0)
        tdm_row_facts(a, (uint32_t)(row % a.query_heads))[row / a.query_heads] =
            tdm_row_fact{a.lse[row] * TDM_LOG2_E, sum};
}

static inline void tdm_launch_row_facts(const struct tdm_attend *a, cudaStream_t stream)
{
    const unsigned blocks = tdm_blocks(a->tokens * a->query_heads, 8, INT32_MAX);
    tdm_find_row_facts<<<blocks, 256, 0, stream>>>(*a);
}

/* Number of leading tokens, of all `end` tokens, whose first key is at or before `key`. */
static __device__ __forceinline__ uint32_t tdm_tokens_from(const tdm_attend &a, uint32_t end,
                                                           uint32_t key)
{
    uint32_t low = 0; /* the first token that begins after `key` is in [low, end] */
    if (a.from[end - 1] <= key)
        return end;
    while (low < end) {
        const uint32_t middle = low + (end - low) / 2;
        if (a.from[middle] <= key)
            low = middle + 1;
        else
            end = middle;
    }
    return low;
}

/* Tokens [begin, end) that may see at least one of the keys [first, last], and tokens [all_begin,
 * all_end) that see all of them. */
struct tdm_seeing {
    uint32_t begin, end, all_begin, all_end;
};

static __device__ __forceinline__ tdm_seeing tdm_who_sees(const tdm_attend &a, uint32_t first,
                                                          uint32_t last)
{
    const uint32_t before = (uint32_t)(a.first_token - a.key_token);
    tdm_seeing seeing;
    seeing.begin = first > before ? first - before : 0;
    seeing.end = tdm_tokens_from(a, (uint32_t)a.tokens, last);
    seeing.all_begin = last > before ? last - before : 0;
    seeing.all_end = tdm_tokens_from(a, (uint32_t)a.tokens, first);
    return seeing;
}

/* ---- over lists of pages ---- */

/* Upper bound of the (page, KV head) pairs that are read: not more than the lists have entries. */
static inline unsigned tdm_read_blocks(const struct tdm_attend *a)
{
    const uint64_t query_pages = (a->tokens + a->page_tokens - 1) / a->page_tokens;
    const uint64_t entries = query_pages * a->lists.capacity, all = tdm_attend_key_pages(a);
    return (unsigned)((entries < all ? entries : all) * a->kv_heads);
}

/* Writes zeros to pages that no query page reads, where dK and dV are written. One block per (page,
 * KV head). */
template <typename T>
static __global__ void __launch_bounds__(256) tdm_write_unread(const tdm_attend a)
{
    const uint32_t page = blockIdx.x / a.kv_heads, kv_head = blockIdx.x % a.kv_heads;
    const uint2 *readers = tdm_readers_of(a, page, kv_head / (a.kv_heads / a.lists.lists));
    const uint32_t end = (uint32_t)(a.first_token + a.tokens - a.key_token);
    tdm_keys keys = tdm_keys_of_page(a, page);
    for (uint64_t i = 0; i < tdm_attend_words(&a); i++)
        if (readers[i].x != 0)
            return;
    keys.end = keys.end < end ? keys.end : end;
    for (uint32_t i = threadIdx.x; i < (keys.end - keys.first) * a.head_dim; i += 256) {
        const tdm_gradient_key to = tdm_gradient_at(a, keys.first + i / a.head_dim, kv_head);
        tdm_put((T *)to.data, to.element + i % a.head_dim, 0.0f);
        tdm_put((T *)to.data, to.element + tdm_plane_of(a) + i % a.head_dim, 0.0f);
    }
}

template <typename T>
static inline void tdm_launch_unread(const struct tdm_attend *a, cudaStream_t stream)
{
    const uint64_t all = tdm_attend_key_pages(a);
    uint64_t pages = a->written_slots * tdm_pages_of_chunk(&a->lists.rule);
    pages = pages < all ? pages : all;
    if (pages > 0)
        tdm_write_unread<T><<<(unsigned)(pages * a->kv_heads), 256, 0, stream>>>(*a);
}

/* ---- sums to memory ---- */

static __device__ __forceinline__ float2 tdm_get_two(const float *data)
{
    return *(const float2 *)data;
}

static __device__ __forceinline__ float2 tdm_get_two(const __nv_bfloat16 *data)
{
    return __bfloat1622float2(*(const __nv_bfloat162 *)data);
}

static __device__ __forceinline__ void tdm_put_two(float *data, float2 two)
{
    *(float2 *)data = two;
}

static __device__ __forceinline__ void tdm_put_two(__nv_bfloat16 *data, float2 two)
{
    *(__nv_bfloat162 *)data = __floats2bfloat162_rn(two.x, two.y);
}

/* Adds row g (h = 0) or g + 8 of a warp's C to `to`, or overwrites `to`. */
template <typename T, int B>
static __device__ __forceinline__ void tdm_put_row(T *to, const float (&c)[B][4], int h, bool add,
                                                   float scale)
{
    float2 sum[B]; /* all loads are issued before the first store, so that they overlap */
    to += threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < B; n++)
        sum[n] = add ? tdm_get_two(to + 8 * n) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int n = 0; n < B; n++)
        tdm_put_two(to + 8 * n, make_float2(sum[n].x + c[n][2 * h] * scale,
                                            sum[n].y + c[n][2 * h + 1] * scale));
}

/* Adds dK and dV of a warp's 16 keys from `key` on to their pages, or overwrites them there. */
template <typename T, int B>
static __device__ __forceinline__ void tdm_put_keys(const tdm_attend &a, uint32_t key, uint32_t end,
                                                    uint32_t kv_head, const float (&dk)[B][4],
                                                    const float (&dv)[B][4], float scale)
{
    key += threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (key + 8 * h >= end)
            break;
        const tdm_gradient_key to = tdm_gradient_at(a, key + 8 * h, kv_head);
        tdm_put_row<T>((T *)to.data + to.element, dk, h, to.add, scale);
        tdm_put_row<T>((T *)to.data + to.element + tdm_plane_of(a), dv, h, to.add, 1.0f);
    }
}

/* Writes dQ of a warp's 16 rows, which are tokens from `t` on. */
template <int B>
static __device__ __forceinline__ void tdm_put_dq(const tdm_attend &a, uint64_t t, uint32_t head,
                                                  const float (&dq)[B][4], float scale)
{
    t += threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (t + 8 * h < a.tokens)
            tdm_put_row<__nv_bfloat16>((__nv_bfloat16 *)a.dq.data +
                                           ((t + 8 * h) * a.query_heads + head) * B * 8,
                                       dq, h, false, scale);
}

#endif
