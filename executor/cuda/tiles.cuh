/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of bf16 rows in shared memory: how rows are copied there, and how fragments for products
 * are loaded (mma.cuh).
 *
 * A row of D elements takes tdm_row_bytes<D>, a power of two. Its 16-byte piece p is stored at
 * position p ^ (row % 8), so that the eight rows which a part of ldmatrix reads are in different
 * banks. Tiles begin at multiples of tdm_row_bytes. So the address of another piece is an exclusive
 * or, and that of another row (a multiple of 8 away) a sum with a constant. A lane's offset in a
 * tile is computed once.
 */
#ifndef TDM_EXECUTOR_CUDA_TILES_CUH
#define TDM_EXECUTOR_CUDA_TILES_CUH

#include "executor/cuda/mma.cuh"
#include "executor/cuda/pages.cuh"

template <int D> constexpr int tdm_row_bytes = D <= 64 ? 128 : D <= 128 ? 256 : 512;

/* Maximum shared memory of a block of attention; sm_86 and similar devices have 99 KiB. */
template <int D> constexpr int tdm_shared_bytes = 384 * tdm_row_bytes<D>;

/* ---- fragments: `tile` includes the lane's offset; rows are multiples of 8 ---- */

/* The lane's offset in a tile that is loaded as rows: tdm_load_a, tdm_load_b. */
template <int D> static __device__ __forceinline__ uint32_t tdm_lane_rows(void)
{
    const uint32_t lane = threadIdx.x % 32;
    return lane % 16 * tdm_row_bytes<D> + (lane / 16 ^ lane % 8) * 16;
}

/* The lane's offset in a tile whose rows become columns: tdm_load_b_turned. */
template <int D> static __device__ __forceinline__ uint32_t tdm_lane_columns(void)
{
    const uint32_t lane = threadIdx.x % 32;
    return (lane / 16 * 8 + lane % 8) * tdm_row_bytes<D> + (lane / 8 % 2 ^ lane % 8) * 16;
}

/* An A from rows [row, row + 16), columns [16 block, 16 block + 16) of a tile. */
template <int D>
static __device__ __forceinline__ void tdm_load_a(uint32_t (&a)[4], uint32_t tile, uint32_t row,
                                                  uint32_t block)
{
    tdm_ldmatrix(a, (tile ^ block * 32) + row * tdm_row_bytes<D>);
}

/* Two adjacent Bs of the transposed tile. b[0], b[1] have its rows [row, row + 8) as columns, b[2],
 * b[3] rows [row + 8, row + 16). Its columns [16 block, 16 block + 16) are the rows of B. */
template <int D>
static __device__ __forceinline__ void tdm_load_b_turned(uint32_t (&b)[4], uint32_t tile,
                                                         uint32_t row, uint32_t block)
{
    tdm_ldmatrix(b, (tile ^ block * 32) + row * tdm_row_bytes<D>);
}

/* Two adjacent Bs of the tile itself, from its rows [row, row + 16). b[0], b[1] have its columns
 * [16 block, 16 block + 8), b[2], b[3] the next 8. */
template <int D>
static __device__ __forceinline__ void tdm_load_b(uint32_t (&b)[4], uint32_t tile, uint32_t row,
                                                  uint32_t block)
{
    tdm_ldmatrix_turned(b, (tile ^ block * 32) + row * tdm_row_bytes<D>);
}

/* ---- copies ---- */

/* Begins to copy rows that are `stride` elements apart, with THREADS threads. Rows from `count` on
 * become zeros. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void tdm_fetch(uint32_t tile, const __nv_bfloat16 *from,
                                                 uint64_t stride, uint32_t count)
{
    constexpr uint32_t pieces = tdm_row_bytes<D> / 16, at_once = THREADS / pieces;
    static_assert(ROWS % at_once == 0, "all threads copy the same number of pieces");
    const uint32_t first = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    if (piece * 8 >= D)
        return;
    from += first * stride + piece * 8;
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i += at_once, from += at_once * stride) {
        const uint32_t row = first + i;
        tdm_copy_async(tile + row * tdm_row_bytes<D> + (piece ^ row % 8) * 16, from, row < count);
    }
}

/* Begins to copy ROWS rows of one query head: row r is token t0 + r. Rows after the last token
 * become zeros. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void tdm_fetch_rows(uint32_t tile, const tdm_attend &a,
                                                      const void *data, uint64_t t0, uint32_t head)
{
    const uint64_t count = t0 < a.tokens ? a.tokens - t0 : 0;
    tdm_fetch<D, ROWS, THREADS>(tile, (const __nv_bfloat16 *)data + (t0 * a.query_heads + head) * D,
                                (uint64_t)a.query_heads * D, count < ROWS ? (uint32_t)count : ROWS);
}

/* Begins to copy K and V of the ROWS keys from `first` on, which may cross pages. Keys from `end`
 * on become zeros. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void tdm_fetch_keys(uint32_t k, uint32_t v, const tdm_attend &a,
                                                      uint32_t first, uint32_t end,
                                                      uint32_t kv_head)
{
    constexpr uint32_t pieces = tdm_row_bytes<D> / 16, at_once = THREADS / pieces;
    const uint32_t piece = threadIdx.x % pieces;
    const uint64_t plane = tdm_plane_of(a);
    if (piece * 8 >= D)
        return;
    for (uint32_t row = threadIdx.x / pieces; row < ROWS; row += at_once) {
        const bool is_there = first + row < end;
        const uint64_t at =
            is_there ? tdm_key_at(a, first + row, kv_head, a.slot_elements) + piece * 8 : 0;
        const __nv_bfloat16 *from = (const __nv_bfloat16 *)a.pages.data + at;
        const uint32_t to = row * tdm_row_bytes<D> + (piece ^ row % 8) * 16;
        tdm_copy_async(k + to, from, is_there);
        tdm_copy_async(v + to, is_there ? from + plane : from, is_there);
    }
}

/* An iterator over keys, KEYS at a time. KEYS keys from a multiple of KEYS on must share a page. */
struct tdm_key_cursor {
    const __nv_bfloat16 *slot, *at; /* the slot's first K, and the next K to read */
    uint32_t in_slot, in_page;
};

static __device__ __forceinline__ tdm_key_cursor tdm_key_cursor_at(const tdm_attend &a,
                                                                   uint32_t key, uint32_t kv_head)
{
    const uint32_t slot = key / (uint32_t)a.chunk_tokens;
    const __nv_bfloat16 *pages = (const __nv_bfloat16 *)a.pages.data;
    tdm_key_cursor cursor;
    cursor.slot = pages + slot * a.slot_elements + (uint64_t)kv_head * a.head_dim;
    cursor.at = pages + tdm_key_at(a, key, kv_head, a.slot_elements);
    cursor.in_slot = key - slot * (uint32_t)a.chunk_tokens;
    cursor.in_page = cursor.in_slot % (uint32_t)a.page_tokens;
    return cursor;
}

/* Advances to the next KEYS keys. */
template <int KEYS>
static __device__ __forceinline__ void tdm_key_cursor_advance(tdm_key_cursor &cursor,
                                                              const tdm_attend &a)
{
    cursor.at += KEYS * a.kv_heads * a.head_dim;
    cursor.in_slot += KEYS;
    cursor.in_page += KEYS;
    if (cursor.in_slot >= (uint32_t)a.chunk_tokens) {
        cursor.slot += a.slot_elements;
        cursor.at = cursor.slot;
        cursor.in_slot = cursor.in_page = 0;
    } else if (cursor.in_page >= (uint32_t)a.page_tokens) {
        cursor.at += tdm_plane_of(a);
        cursor.in_page = 0;
    }
}

/* Begins to copy K and V of the next KEYS keys of a cursor, of which `count` exist. */
template <int D, int KEYS, int THREADS>
static __device__ __forceinline__ void tdm_fetch_at_cursor(uint32_t k, uint32_t v,
                                                           const tdm_key_cursor &cursor,
                                                           const tdm_attend &a, uint32_t count)
{
    const uint32_t stride = a.kv_heads * D;
    tdm_fetch<D, KEYS, THREADS>(k, cursor.at, stride, count);
    tdm_fetch<D, KEYS, THREADS>(v, cursor.at + tdm_plane_of(a), stride, count);
}

/* An iterator over the pages that a tile of rows of one query page sees, KEYS keys at a time. A
 * page is a multiple of KEYS. */
template <int KEYS> struct tdm_list_cursor {
    uint32_t key, left, in_page; /* first key of this step; steps left, this one included; offset of
                                  * `key` in its page */
    bool whole;                  /* whether the page is seen whole */
    const uint32_t *entry;
    uint32_t first_page;

    __device__ __forceinline__ void begin(const tdm_attend &a, uint64_t t0, uint32_t kv_head)
    {
        const uint32_t *list = tdm_list_of(a, (uint32_t)t0 / (uint32_t)a.page_tokens, kv_head);
        left = list[0] * ((uint32_t)a.page_tokens / KEYS);
        in_page = 0;
        entry = list + 1;
        first_page = tdm_first_page(a);
        if (left > 0)
            turn_page(a);
    }

    __device__ __forceinline__ void turn_page(const tdm_attend &a)
    {
        key = tdm_keys_of_page(a, (*entry & TDM_PAGE_NUMBER) - first_page).first;
        whole = (*entry & TDM_PAGE_WHOLE) != 0;
    }

    __device__ __forceinline__ void next(const tdm_attend &a)
    {
        key += KEYS;
        in_page += KEYS;
        if (--left > 0 && in_page == (uint32_t)a.page_tokens) {
            entry++;
            in_page = 0;
            turn_page(a);
        }
    }
};

/* The keys that a warp's rows see: some rows from `some` on, all rows from `all` on; the same for a
 * page that is seen whole. */
template <bool LISTS> struct tdm_sight {
    uint32_t some, all, some_whole, all_whole;

    __device__ __forceinline__ tdm_sight(const tdm_attend &a, uint32_t kv_head, uint64_t first,
                                         uint64_t last, bool is_there)
    {
        const uint32_t *near = LISTS ? tdm_seen_from(a, false, kv_head) : a.from;
        some = is_there ? near[first] : UINT32_MAX;
        all = is_there ? near[last] : UINT32_MAX;
        if constexpr (LISTS) {
            const uint32_t *start = tdm_seen_from(a, true, kv_head);
            some_whole = is_there ? start[first] : UINT32_MAX;
            all_whole = is_there ? start[last] : UINT32_MAX;
        }
    }

    __device__ __forceinline__ uint32_t some_from(bool whole) const
    {
        return LISTS && whole ? some_whole : some;
    }

    __device__ __forceinline__ uint32_t all_from(bool whole) const
    {
        return LISTS && whole ? all_whole : all;
    }
};

/* Do tiles of attention fit the pages of lists? */
static inline bool tdm_tiles_fit(const struct tdm_attend *a)
{
    return a->lists.pages == NULL ||
           (a->page_tokens % 128 == 0 && a->chunk_tokens % a->page_tokens == 0);
}

#endif
