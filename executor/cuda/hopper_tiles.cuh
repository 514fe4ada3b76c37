/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on Hopper: what forward and backward share. Tiles as hopper.cuh has them; head dim 128. */
#ifndef TDM_EXECUTOR_CUDA_HOPPER_TILES_CUH
#define TDM_EXECUTOR_CUDA_HOPPER_TILES_CUH

#include "executor/cuda/hopper.cuh"
#include "executor/cuda/pages.cuh"

#define TDM_HOPPER_DIM 128
#define TDM_HOPPER_TILE_BYTES(rows) ((rows)*256u)
#define TDM_HOPPER_PIECES 16u /* of 16 bytes, of a row */
#define TDM_HOPPER_PAGE 128u  /* tokens of a page, with lists of pages */

/* Has the device what is here? Compute capability 9.0. */
static inline bool tdm_is_hopper(void)
{
    static int is_hopper = -1; /* asked for once: a process has one device */
    int device, major = 0, minor = 0;
    if (is_hopper < 0) {
        if (cudaGetDevice(&device) == cudaSuccess) {
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        }
        is_hopper = major == 9 && minor == 0;
    }
    return is_hopper;
}

/* First row of a warp, of its warpgroup's 64. */
static __device__ __forceinline__ uint32_t tdm_hopper_warp_row(void)
{
    return threadIdx.x % TDM_WARPGROUP / 32 * 16;
}

/* Copies to shared memory by the threads of one warpgroup. A barrier is told of them when the next ones are
 * on their way, or before the producer waits. */
struct tdm_producer {
    uint64_t *pending;

    __device__ __forceinline__ tdm_producer() : pending(NULL)
    {
    }

    /* Waits until consumers have left what the next copies overwrite. */
    __device__ __forceinline__ void wait(uint64_t *barrier, uint32_t phase)
    {
        if (tdm_barrier_test(barrier, phase))
            return;
        finish();
        tdm_barrier_wait(barrier, phase);
    }

    /* All that was copied since the last one belongs to `barrier`. */
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

/* A thread of the warpgroup has piece `thread % 16` of every 8th row from row `thread / 16` on. */
static __device__ __forceinline__ uint32_t tdm_hopper_piece(uint32_t tile, uint32_t rows)
{
    const uint32_t row = threadIdx.x % TDM_WARPGROUP / TDM_HOPPER_PIECES;
    const uint32_t piece = threadIdx.x % TDM_HOPPER_PIECES;
    return tile + piece / 8 * rows * 128 + row * 128 + ((piece % 8) ^ row) * 16;
}

/* Begins to copy ROWS rows, `stride` elements apart; zeros from row `count` on. */
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

/* Begins to copy ROWS rows: of token t0 + row for one query head, zeros where there are no tokens. */
template <uint32_t ROWS>
static __device__ __forceinline__ void tdm_hopper_rows(uint32_t tile, const tdm_attend &a,
                                                       const void *data, uint64_t t0, uint32_t head)
{
    const uint32_t row = threadIdx.x % TDM_WARPGROUP / TDM_HOPPER_PIECES;
    const uint32_t column = threadIdx.x % TDM_HOPPER_PIECES * 8;
    const uint32_t to = tdm_hopper_piece(tile, ROWS);
    const uint64_t stride = (uint64_t)a.query_heads * TDM_HOPPER_DIM;
    const __nv_bfloat16 *from =
        (const __nv_bfloat16 *)data + (uint64_t)head * TDM_HOPPER_DIM + column;
#pragma unroll 8
    for (uint32_t i = 0; i < ROWS / 8; i++) {
        const uint64_t t = t0 + row + 8 * i;
        const bool is_there = t < a.tokens;
        tdm_copy_async(to + i * 1024, from + (is_there ? t : 0) * stride, is_there);
    }
}

/* Begins to copy K or V (`plane` elements behind K) of the ROWS keys from `first` on, zeros from key `end`
 * on. `whole`: keys from a multiple of ROWS on lie in one page. */
template <uint32_t ROWS>
static __device__ __forceinline__ void tdm_hopper_keys(uint32_t tile, const tdm_attend &a,
                                                       uint64_t plane, uint32_t first, uint32_t end,
                                                       uint32_t kv_head, bool whole)
{
    const uint32_t row = threadIdx.x % TDM_WARPGROUP / TDM_HOPPER_PIECES;
    const uint32_t column = threadIdx.x % TDM_HOPPER_PIECES * 8;
    const uint32_t to = tdm_hopper_piece(tile, ROWS);
    const uint64_t stride = (uint64_t)a.kv_heads * TDM_HOPPER_DIM;
    const __nv_bfloat16 *pages = (const __nv_bfloat16 *)a.pages.data + plane + column;
    const __nv_bfloat16 *base = pages + tdm_key_at(a, first, kv_head, a.slot_elements);
    if (whole) {
#pragma unroll 8
        for (uint32_t i = 0; i < ROWS / 8; i++) {
            const bool is_there = first + row + 8 * i < end;
            tdm_copy_async(to + i * 1024, base + (is_there ? row + 8 * i : 0) * stride, is_there);
        }
        return;
    }
    for (uint32_t i = 0; i < ROWS / 8; i++) {
        const uint32_t key = first + row + 8 * i;
        const bool is_there = key < end;
        const __nv_bfloat16 *from =
            is_there ? pages + tdm_key_at(a, key, kv_head, a.slot_elements) : base;
        tdm_copy_async(to + i * 1024, from, is_there);
    }
}

/* What the consumers must know of a step over lists of pages: its first key or token, a multiple of 64, and in
 * the bits below whether the query page sees the keys' page whole, and whether something may be masked. */
#define TDM_STEP_WHOLE 1u
#define TDM_STEP_MASKED 2u
#define TDM_STEP_FIRST 0xffffffc0u

/* The keys that a tile of rows sees, STEP at a time: a range that ends at `end`, or the pages of its list. */
template <bool LISTS, uint32_t STEP> struct tdm_key_steps {
    const uint32_t *entries;
    uint32_t begin, count, first_page;
    uint32_t all_from, all_start, all_end; /* what all rows see, near and whole */

    __device__ __forceinline__ void find(const tdm_attend &a, uint64_t t0, uint32_t kv_head)
    {
        if constexpr (LISTS) {
            const uint64_t last =
                (t0 + TDM_HOPPER_PAGE < a.tokens ? t0 + TDM_HOPPER_PAGE : a.tokens) - 1;
            all_from = tdm_seen_from(a, false, kv_head)[last];
            all_start = tdm_seen_from(a, true, kv_head)[last];
            all_end = (uint32_t)(a.first_token - a.key_token + t0) + 1;
            const uint32_t *list = tdm_list_of(a, t0 / TDM_HOPPER_PAGE, kv_head);
            entries = list + 1;
            count = list[0] * (TDM_HOPPER_PAGE / STEP);
            first_page = tdm_first_page(a);
            begin = 0;
        } else {
            begin = a.from[t0] / STEP * STEP;
        }
    }

    /* Is there a step `number`? `key`: its first, of a range. */
    __device__ __forceinline__ bool has(uint32_t number, uint32_t key, uint32_t end) const
    {
        return LISTS ? number < count : key < end;
    }

    /* The producer reads an entry a step early, so that it need not wait for memory. */
    __device__ __forceinline__ uint32_t entry(uint32_t number) const
    {
        return LISTS && number < count ? entries[number / (TDM_HOPPER_PAGE / STEP)] : 0;
    }

    __device__ __forceinline__ uint32_t step(uint32_t number, uint32_t entry) const
    {
        const uint32_t key = ((entry & TDM_PAGE_NUMBER) - first_page) * TDM_HOPPER_PAGE +
                             number % (TDM_HOPPER_PAGE / STEP) * STEP;
        const bool whole = (entry & TDM_PAGE_WHOLE) != 0;
        const bool masked = key + STEP > all_end || key < (whole ? all_start : all_from);
        return key + (whole ? TDM_STEP_WHOLE : 0) + (masked ? TDM_STEP_MASKED : 0);
    }
};

/* A of the warpgroup's 64 rows of a tile of `rows` rows, all columns, in registers. */
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
