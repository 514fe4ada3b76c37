/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on Hopper, forward: bf16, head dim 64 or 128.
 *
 * The design follows FlashAttention-3 (arXiv 2407.08608, algorithms 1 and 2). A block has ROWS
 * tokens of one query head. Producer threads issue copies, KEYS keys at a time with rising
 * position: one thread copies K, another V, and a third Q. Two warpgroups of consumers have 64 rows
 * each. A consumer issues S(n) = Q K^T and O += P(n - 1) V, then computes P(n) from S(n) while the
 * other consumer's products run. They take turns by named barriers. The first S of an item is
 * issued with the last O of the item before, whose result is written while the other consumer has
 * its turn. The two blocks of a cluster have row tiles of the same KV head. Each copies half of the
 * columns of K and V to both.
 *
 * Exponentials are relative to a shift for each row. A step is careful if it is the first, if it
 * masks, or if the step before did. In a careful step the shift follows the largest score, with
 * slack (scores.cuh). Other steps use the shift as it is and do not compute a maximum. If a sum of
 * exponentials exceeds LARGEST_SUM or is NaN, the cluster computes that item again, with all steps
 * careful. This depends on the data alone.
 *
 * The keys of the items of the last round may be divided into parts (ops/scratch.h); a second
 * kernel joins their results.
 *
 * Steps of 176 keys need fewer turns than steps of 128. They are composed of pieces of pages. Over
 * lists of pages (LISTS) a page of 128 keys is a step. The producer reads an entry of the list one
 * step ahead, and passes the first key and whether to mask to the consumers.
 */
#include "executor/cuda/card.h"
#include "executor/cuda/hopper_maps.h"
#include "executor/cuda/hopper_tiles.cuh"
#include "executor/cuda/scores.cuh"

#define ROWS TDM_ATTEND_TILE
#define STAGES 2u
#define CONSUMERS 2u
#define GROUP_ROWS (ROWS / CONSUMERS)
#define THREADS ((CONSUMERS + 1) * TDM_WARPGROUP)
#define LARGEST_SUM 1.8446744e19f /* 2^64: its products stay far from overflow */
#define PIECE 16u /* keys of the smallest piece of a step; pieces have 16, 32, 64 or 128 keys */
#define PIECES 4u
#define QUEUES 64u          /* maximum number of launches that run at the same time */
#define MOST_ITEMS 1024u    /* maximum items of a cluster */
#define FACTS 8u            /* entries of board.facts: more than the producers can be ahead */
#define NO_ITEM 0xffffffffu /* the queue is empty */
#define NOT_YET 0xfffffffeu
#define AGAIN 0x80000000u /* flag in an item's number: a sum was too large */
#define UNDIVIDED 0xffffffffu

/* Parameters of a kernel. */
template <int DIM_, uint32_t KEYS_, uint32_t CLUSTER_, bool LISTS_> struct made_for {
    static constexpr int DIM = DIM_;
    static constexpr uint32_t KEYS = KEYS_, CLUSTER = CLUSTER_, COLUMNS = DIM_ / 64;
    static constexpr bool LISTS = LISTS_;
    static constexpr int PRODUCER = LISTS_ ? 40 : 24, CONSUMER = LISTS_ ? 232 : 240; /* registers */
    static constexpr uint32_t Q_BYTES = ROWS * DIM_ * 2, TILE_BYTES = KEYS_ * DIM_ * 2;
    static constexpr uint32_t SHARED_BYTES = Q_BYTES + 2 * STAGES * TILE_BYTES + 1024;
    static_assert(CLUSTER_ == 1 || (CLUSTER_ == 2 && COLUMNS == 2), "a block copies one column");
};

struct maps {
    CUtensorMap q, keys[PIECES]; /* boxes of 128, 64, 32, 16 keys; over lists only the first */
};

/* What the consumers of a block need to know of an item. */
struct facts {
    uint32_t number, at; /* NO_ITEM: no items are left; index in board.items */
    uint32_t t0, head, kv_head, begin, count, last_from, space;
    uint32_t first_end[CONSUMERS]; /* end of the keys that a group's first row sees */
    bool is_extra;
};

struct barriers {
    uint64_t full_q[CONSUMERS], empty_q[CONSUMERS]; /* each group's rows */
    uint64_t full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES];
};

/* What the threads of a block share. */
struct board {
    struct barriers of_pass[2];
    uint32_t step[STAGES]; /* over lists: the first key and the flags, see TDM_STEP_FIRST */
    uint32_t again;        /* some item has AGAIN */
    struct facts facts[FACTS];
    uint32_t items[MOST_ITEMS + 1]; /* the cluster's items in the order drawn, then NO_ITEM; each of
                                     * its blocks has a copy */
};

/* The next number to draw, and how many clusters have found the queue empty. The last of them
 * resets the queue for the next launch. */
struct queue {
    uint32_t next, left;
};

static __device__ struct queue queues[QUEUES];

/* The work of a block. Keys [begin, end) are those that some row of the cluster sees; those of a
 * part begin at `begin`. */
template <class P> struct item {
    uint32_t t0, head, kv_head, begin, end, steps;
    uint32_t parts;     /* of the item */
    uint32_t space;     /* tile for the part's results in scratch; UNDIVIDED: it has all keys */
    uint32_t last_from; /* first key that the last row sees */
    bool is_extra; /* there is no tile for the second block: it repeats the first one's and writes
                    * nothing */
    const uint32_t *list;

    /* Number of clusters of a KV head. KV heads come one after the other, so that the L2 cache
     * holds what all blocks read. */
    static __host__ __device__ __forceinline__ uint32_t clusters(const tdm_attend &a)
    {
        const uint32_t row_tiles = (uint32_t)((a.tokens + ROWS - 1) / ROWS);
        return (row_tiles * (a.query_heads / a.kv_heads) + P::CLUSTER - 1) / P::CLUSTER;
    }

    /* For each KV head its row tiles, longest first; for each row tile its query heads. Neighbours
     * form a cluster. After the undivided ones come the parts of each of the others. */
    __device__ __forceinline__ item(const tdm_attend &a, const tdm_attend_split &split,
                                    uint32_t number, uint32_t rank)
    {
        const uint32_t ratio = a.query_heads / a.kv_heads;
        const uint32_t row_tiles = (uint32_t)((a.tokens + ROWS - 1) / ROWS),
                       all = row_tiles * ratio;
        const uint32_t divided = number < split.whole ? 0 : number - split.whole;
        const uint32_t cluster =
            number < split.whole ? number : split.whole + divided / split.parts;
        kv_head = cluster / clusters(a);
        const uint32_t first = (cluster - kv_head * clusters(a)) * P::CLUSTER;
        const uint32_t last = first + P::CLUSTER - 1 < all ? first + P::CLUSTER - 1 : all - 1;
        const uint32_t tile = first + rank < all ? first + rank : last;
        const uint32_t top = (row_tiles - 1 - first / ratio) * ROWS;
        const uint32_t bottom = (row_tiles - 1 - last / ratio) * ROWS;
        is_extra = first + rank > last;
        head = kv_head * ratio + tile % ratio;
        t0 = (row_tiles - 1 - tile / ratio) * ROWS;
        end = tdm_attend_last_key(&a, last_of(a, top)) + 1;
        space = UNDIVIDED;
        parts = 1;
        last_from = a.from[last_of(a, t0)];
        if constexpr (P::LISTS) {
            begin = 0;
            list = tdm_list_of(a, t0 / ROWS, kv_head);
            steps = list[0];
        } else {
            /* rows that see no visiting keys take a step all the same, to write that */
            begin = min(a.from[bottom], end - 1) / PIECE * PIECE;
            steps = (end - begin + P::KEYS - 1) / P::KEYS;
            if (number >= split.whole)
                divide(split, divided, rank);
        }
    }

    /* Limits an item to a part of its steps. Parts that there are not have no steps. */
    __device__ __forceinline__ void divide(const tdm_attend_split &split, uint32_t divided,
                                           uint32_t rank)
    {
        const uint32_t part = divided % split.parts, most = steps / TDM_ATTEND_PART_STEPS;
        parts = most < 1 ? 1 : most < split.parts ? most : split.parts;
        if (parts > 1)
            space = divided * P::CLUSTER + rank;
        const uint32_t first = part < parts ? steps * part / parts : steps;
        steps = part < parts ? steps * (part + 1) / parts - first : 0;
        begin += first * P::KEYS;
    }

    /* The last token of the row tile that begins at `first`. */
    static __device__ __forceinline__ uint32_t last_of(const tdm_attend &a, uint32_t first)
    {
        return (first + ROWS < a.tokens ? first + ROWS : (uint32_t)a.tokens) - 1;
    }
};

/* Numbers of items and parts to draw. */
static __host__ __device__ __forceinline__ uint32_t numbers(const tdm_attend_split &split,
                                                            uint32_t items)
{
    return split.whole + (items - split.whole) * split.parts;
}

/* Waits for entry `at` of the cluster's items and returns it. In the second pass returns the next
 * one from there that must be computed again. NO_ITEM after the last. */
static __device__ __forceinline__ uint32_t item_at(const board &shared, uint32_t pass, uint32_t &at)
{
    for (;; at++) {
        uint32_t number;
        do
            number = *(const volatile uint32_t *)&shared.items[at];
        while (number == NOT_YET);
        if (number == NO_ITEM || pass == 0 || (number & AGAIN) != 0)
            return number == NO_ITEM ? number : number & ~AGAIN;
    }
}

/* Draws the cluster's item `at` from the queue, if there are more items than clusters. */
template <class P>
static __device__ __forceinline__ void draw(const tdm_attend &a, const tdm_attend_split &split,
                                            board &shared, queue &from, uint32_t at)
{
    const uint32_t clusters = gridDim.x / P::CLUSTER;
    const uint32_t items = numbers(split, item<P>::clusters(a) * a.kv_heads);
    uint32_t number = NO_ITEM;
    if (clusters < items) {
        if (at < MOST_ITEMS)
            number = clusters + atomicAdd(&from.next, 1);
        if (number >= items) {
            number = NO_ITEM;
            if (atomicAdd(&from.left, 1) == clusters - 1) {
                from.next = 0;
                from.left = 0;
            }
        }
    }
    for (uint32_t rank = 0; rank < P::CLUSTER; rank++)
        tdm_cluster_store(&shared.items[at], rank, number);
}

/* ---- the producers ---- */

/* Position of the next keys to copy. */
struct place {
    uint32_t slot, plane, in_page; /* plane: K or V of a page, as in hopper_maps.h */
};

static __device__ __forceinline__ place place_of(const tdm_attend &a, uint32_t key, uint32_t plane)
{
    const uint32_t chunk_tokens = (uint32_t)a.chunk_tokens, page_tokens = (uint32_t)a.page_tokens;
    place at;
    at.slot = key / chunk_tokens;
    key -= at.slot * chunk_tokens;
    at.plane = key / page_tokens;
    at.in_page = key - at.plane * page_tokens;
    at.plane = 2 * at.plane + plane;
    return at;
}

/* Issues copies of `keys` keys, a multiple of PIECE, from `at` on. Advances `at` past them. */
template <class P>
static __device__ __forceinline__ void copy_keys(const tdm_attend &a, const maps &m,
                                                 uint32_t column, uint32_t to, place &at,
                                                 uint32_t keys, uint64_t *barrier)
{
    const uint32_t page_tokens = (uint32_t)a.page_tokens;
#pragma unroll 1
    while (keys > 0) {
        uint32_t piece = keys < page_tokens - at.in_page ? keys : page_tokens - at.in_page;
        const uint32_t i = piece >= 128 ? 0 : __clz((int)piece) - 24; /* the largest box that
                                                                       * fits */
        piece = 128u >> i;
        if constexpr (P::CLUSTER == 2)
            tdm_copy_keys_to_both(to, m.keys[i], at.in_page, column, at.plane, at.slot, barrier);
        else
            tdm_copy_keys(to, m.keys[i], at.in_page, column, at.plane, at.slot, barrier);
        to += piece * 128;
        keys -= piece;
        at.in_page += piece;
        if (at.in_page == page_tokens) {
            at.in_page = 0;
            at.plane += 2;
            if (at.plane / 2 * page_tokens >= (uint32_t)a.chunk_tokens) {
                at.plane &= 1;
                at.slot++;
            }
        }
    }
}

template <class P>
static __device__ __forceinline__ void wait_empty(uint64_t *barrier, uint32_t phase)
{
    if constexpr (P::CLUSTER == 2)
        tdm_barrier_wait_cluster(barrier, phase);
    else
        tdm_barrier_wait(barrier, phase);
}

/* Over lists: the first key that all rows see, by the near rule and in whole pages, and the end of
 * the keys that all rows see. */
struct limits {
    uint32_t from, start, end;
};

/* What the consumers need to know of a step over a list. */
static __device__ __forceinline__ uint32_t step_of(uint32_t entry, uint32_t first_page,
                                                   const limits &all)
{
    const uint32_t key = ((entry & TDM_PAGE_NUMBER) - first_page) * TDM_HOPPER_PAGE;
    const bool whole = (entry & TDM_PAGE_WHOLE) != 0;
    const bool masked = key + TDM_HOPPER_PAGE > all.end || key < (whole ? all.start : all.from);
    return key + (whole ? TDM_STEP_WHOLE : 0) + (masked ? TDM_STEP_MASKED : 0);
}

/* Copies Q of all items of a pass. One block of the cluster also draws the items. */
template <class P>
static __device__ __forceinline__ void
produce_rows(const tdm_attend &a, const tdm_attend_split &split, const maps &m, uint32_t tiles,
             board &shared, queue &from, uint32_t pass)
{
    barriers &b = shared.of_pass[pass];
    uint32_t number, made = 0;
    for (uint32_t at = 0; (number = item_at(shared, pass, at)) != NO_ITEM; at++) {
        const item<P> w(a, split, number, blockIdx.x % P::CLUSTER);
        for (uint32_t group = 0; w.steps > 0 && group < CONSUMERS; group++) {
            tdm_barrier_wait(&b.empty_q[group], made + 1);
            tdm_barrier_expect(&b.full_q[group], P::Q_BYTES / CONSUMERS);
            tdm_copy_rows(tiles + group * (P::Q_BYTES / CONSUMERS), m.q, w.t0 + group * GROUP_ROWS,
                          w.head * P::COLUMNS, &b.full_q[group]);
        }
        made += w.steps > 0;
        if (pass == 0 && blockIdx.x % P::CLUSTER == 0)
            draw<P>(a, split, shared, from, at + 1);
    }
}

/* Copies K, or V (`plane` 1), for all steps of all items of a pass. Each has its own thread, so
 * that neither waits for the other's free stages. */
template <class P, uint32_t plane>
static __device__ __forceinline__ void produce_keys(const tdm_attend &a,
                                                    const tdm_attend_split &split, const maps &m,
                                                    uint32_t tiles, board &shared, uint32_t pass)
{
    barriers &b = shared.of_pass[pass];
    const uint32_t rank = blockIdx.x % P::CLUSTER;
    const uint32_t to =
        tiles + P::Q_BYTES + plane * STAGES * P::TILE_BYTES + rank * (P::KEYS * 128);
    uint64_t *const full = plane == 0 ? b.full_k : b.full_v;
    uint64_t *const empty = plane == 0 ? b.empty_k : b.empty_v;
    uint32_t number, step = 0, made = 0;
    for (uint32_t at = 0; (number = item_at(shared, pass, at)) != NO_ITEM; at++) {
        const item<P> w(a, split, number, rank);
        const uint32_t end = step + w.steps, column = w.kv_head * P::COLUMNS + rank;
        if (w.steps == 0)
            continue;
        if (plane == 0) {
            /* consumers read it after the item's first keys have arrived, and until the next item's
             * first scores are there */
            struct facts &f = shared.facts[made++ % FACTS];
            f.number = number;
            f.at = at;
            f.t0 = w.t0;
            f.head = w.head;
            f.kv_head = w.kv_head;
            f.begin = w.begin;
            f.count = w.steps;
            f.last_from = w.last_from;
            for (uint32_t group = 0; group < CONSUMERS; group++)
                f.first_end[group] = tdm_attend_last_key(&a, w.t0 + group * GROUP_ROWS) + 1;
            f.space = w.space;
            f.is_extra = w.is_extra;
        }
        if constexpr (P::LISTS) {
            const uint32_t last = item<P>::last_of(a, w.t0);
            const limits all = {tdm_seen_from(a, false, w.kv_head)[last],
                                tdm_seen_from(a, true, w.kv_head)[last],
                                tdm_attend_last_key(&a, w.t0) + 1};
            const uint32_t first_page = tdm_first_page(a);
            const uint32_t slot_pages = (uint32_t)a.chunk_tokens / TDM_HOPPER_PAGE;
            const uint32_t *entries = w.list + 1;
            uint32_t entry = *entries; /* read one step ahead, to hide the latency */
#pragma unroll 1
            for (; step < end; step++) {
                const uint32_t stage = step % STAGES, page = (entry & TDM_PAGE_NUMBER) - first_page;
                const uint32_t slot = page / slot_pages;
                const uint32_t what = step_of(entry, first_page, all);
                if (step + 1 < end)
                    entry = *++entries;
                tdm_barrier_wait(&empty[stage], step / STAGES + 1);
                if (plane == 0)
                    shared.step[stage] = what;
                tdm_barrier_expect(&full[stage], P::TILE_BYTES);
                tdm_copy_keys(to + stage * P::TILE_BYTES, m.keys[0], 0, column,
                              2 * (page - slot * slot_pages) + plane, slot, &full[stage]);
            }
        } else {
            /* keys after the last one were never written */
            uint32_t left = ((uint32_t)a.keys - w.begin + PIECE - 1) / PIECE * PIECE;
            place from = place_of(a, w.begin, plane);
#pragma unroll 1
            for (; step < end; step++) {
                const uint32_t stage = step % STAGES, keys = left < P::KEYS ? left : P::KEYS;
                left -= keys;
                wait_empty<P>(&empty[stage], step / STAGES + 1);
                tdm_barrier_expect(&full[stage], keys * P::DIM * 2);
                copy_keys<P>(a, m, column, to + stage * P::TILE_BYTES, from, keys, &full[stage]);
            }
        }
    }
    if (plane == 0) {
        wait_empty<P>(&empty[step % STAGES], step / STAGES + 1);
        shared.facts[made % FACTS].number = NO_ITEM;
        tdm_barrier_arrive(&full[step % STAGES]);
    }
}

/* ---- the consumers ---- */

/* Issues S = Q K^T. */
template <class P>
static __device__ __forceinline__ void ask_scores(float (&s)[P::KEYS / 8][4], tdm_uniform_tile q,
                                                  tdm_uniform_tile k)
{
#pragma unroll
    for (uint32_t d = 0; d < P::DIM / 16; d++)
        tdm_wgmma<0>(s, tdm_matrix_at(q, d / 4 * (GROUP_ROWS * 128) + d % 4 * 32),
                     tdm_matrix_at(k, d / 4 * (P::KEYS * 128) + d % 4 * 32), d > 0);
    tdm_products_commit();
}

/* Issues O += P V. */
template <class P>
static __device__ __forceinline__ void
ask_values(float (&out)[P::DIM / 8][4], const uint32_t (&p)[P::KEYS / 16][4], tdm_uniform_tile v)
{
#pragma unroll
    for (uint32_t block = 0; block < P::KEYS / 16; block++)
        tdm_wgmma<1>(out, p[block], tdm_matrix_at(v, block * 2048), true);
    tdm_products_commit();
}

template <class P> static __device__ __forceinline__ void release(uint64_t *barrier)
{
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (P::CLUSTER == 2) {
        if (lane < 2)
            tdm_barrier_arrive_at(barrier, lane);
    } else {
        if (lane == 0)
            tdm_barrier_arrive(barrier);
    }
}

/* Q belongs to this block only, not to the cluster. */
static __device__ __forceinline__ void release_rows(uint64_t *barrier)
{
    if (threadIdx.x % 32 == 0)
        tdm_barrier_arrive(barrier);
}

/* Zeroes the rows [first, P::KEYS) of a tile of V, which were never written. */
template <class P> static __device__ __forceinline__ void clear_rows(uint32_t v, uint32_t first)
{
    for (uint32_t column = 0; column < P::COLUMNS; column++)
        for (uint32_t at = first * 128 + threadIdx.x % TDM_WARPGROUP * 16; at < P::KEYS * 128;
             at += TDM_WARPGROUP * 16)
            asm volatile(
                "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v + column * P::KEYS * 128 + at),
                "r"(0)
                : "memory");
    tdm_fence_shared();
    asm volatile("bar.sync %0, %1;" ::"r"(2 + threadIdx.x / TDM_WARPGROUP), "n"(TDM_WARPGROUP)
                 : "memory");
}

/* Writes a warp's 16 output rows, of tokens from `t` on, and their LSE. Four lanes share a row. Of
 * each four blocks of 8 columns every lane gets one block. */
template <class P>
static __device__ __forceinline__ void put_rows(const float (&out)[P::DIM / 8][4],
                                                const tdm_softmax<1> &rows, const tdm_attend &a,
                                                uint64_t t, uint32_t head)
{
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t token = t + 8 * h + lane / 4, row = token * a.query_heads + head;
        const bool is_there = token < a.tokens;
        float sum = rows.sum[0][h];
        sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
        const float share = 1.0f / sum;
        uint4 *to = (uint4 *)((__nv_bfloat16 *)a.out.data + row * P::DIM) + j;
#pragma unroll
        for (int g = 0; g < P::DIM / 32; g++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = tdm_pack(out[4 * g + i][2 * h] * share, out[4 * g + i][2 * h + 1] * share);
            tdm_turn_four(x, j);
            if (is_there)
                to[4 * g] = make_uint4(x[0], x[1], x[2], x[3]);
        }
        if (is_there && j == 0)
            a.lse[row] = rows.shift[0][h] / TDM_LOG2_E + logf(sum);
    }
}

/* Writes a warp's 16 rows of a part, from row `row` of its tile on, and their LSE, to scratch. */
template <class P>
static __device__ __forceinline__ void put_part(const float (&out)[P::DIM / 8][4],
                                                const tdm_softmax<1> &rows, const tdm_attend &a,
                                                const facts &w, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t of_tile = row + 8 * h + lane / 4;
        const uint64_t at = (uint64_t)w.space * ROWS + of_tile;
        float sum = rows.sum[0][h];
        sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
        const float share = sum > 0 ? 1.0f / sum : 0.0f; /* a row may see none of the part's keys */
        float2 *to = (float2 *)(a.parts + at * P::DIM) + lane % 4;
        if (w.t0 + of_tile >= a.tokens)
            continue;
#pragma unroll
        for (int g = 0; g < P::DIM / 8; g++)
            to[4 * g] = make_float2(out[g][2 * h] * share, out[g][2 * h + 1] * share);
        if (lane % 4 == 0)
            a.d[at] = rows.shift[0][h] / TDM_LOG2_E + logf(sum);
    }
}

/* True if a sum of a lane's rows is too large for its products. */
static __device__ __forceinline__ bool is_too_large(const tdm_softmax<1> &rows)
{
    return !(fmaxf(rows.sum[0][0], rows.sum[0][1]) <= LARGEST_SUM) ||
           rows.sum[0][0] != rows.sum[0][0] || rows.sum[0][1] != rows.sum[0][1];
}

/* Writes a group's rows of an item, and marks the item if it must be computed again. */
template <class P>
static __device__ __forceinline__ void
finish_item(const float (&out)[P::DIM / 8][4], const tdm_softmax<1> &rows, const tdm_attend &a,
            const facts &w, board &shared, uint32_t pass, uint32_t group)
{
    const uint32_t row = group * GROUP_ROWS + tdm_hopper_warp_row();
    if (!w.is_extra && w.space == UNDIVIDED)
        put_rows<P>(out, rows, a, w.t0 + row, w.head);
    else if (!w.is_extra)
        put_part<P>(out, rows, a, w, row);
    if (is_too_large(rows) && pass == 0) {
        for (uint32_t rank = 0; rank < P::CLUSTER; rank++) {
            tdm_cluster_store(&shared.items[w.at], rank, w.number | AGAIN);
            tdm_cluster_store(&shared.again, rank, 1);
        }
    }
    __syncwarp();
}

/* The consumers' loop over the items of a pass. The scores of an item's first step are asked for
 * with the last values of the item before, and its result is written while these are computed.
 * Values that are rarely needed are read from the facts again, to save registers. */
template <class P>
static __device__ __forceinline__ void consume_all(const tdm_attend &a, uint32_t tiles,
                                                   board &shared, uint32_t pass, float scale)
{
    const uint32_t group = __shfl_sync(TDM_FULL_WARP, threadIdx.x / TDM_WARPGROUP, 0) - 1;
    const uint32_t k = tiles + P::Q_BYTES, v = k + STAGES * P::TILE_BYTES;
    const tdm_uniform_tile q = tdm_uniform(tiles + group * (P::Q_BYTES / CONSUMERS), 16);
    barriers &b = shared.of_pass[pass];
    uint32_t number = 0, made = 0; /* steps and items of the pass so far */
    uint32_t step, left;           /* the step's first key; steps of the item that are left */
    uint32_t all_from, all_end;    /* a step within these keys is not masked */
    bool was_masked;
    tdm_softmax<1> rows;
    float scores[1][P::KEYS / 8][4], out[1][P::DIM / 8][4];
    uint32_t p[P::KEYS / 16][4];
    float rescale[1][2];

    const auto w_of = [&](uint32_t item) -> const facts & { return shared.facts[item % FACTS]; };
    const auto begin_item = [&](void) {
        const facts &w = w_of(made);
        left = w.count;
        all_from = w.last_from;
        all_end = w.first_end[group];
        was_masked = true;
        rows = tdm_no_sums<1>();
        step = P::LISTS ? shared.step[number % STAGES] : w.begin; /* before the stage is released */
    };
    /* Masks S of a step, and raises the shift to its largest scores if the step is careful. True if
     * earlier sums must be rescaled. */
    const auto prepare = [&](uint32_t step) {
        const bool masked =
            P::LISTS ? (step & TDM_STEP_MASKED) != 0 : step + P::KEYS > all_end || step < all_from;
        const bool careful = masked || was_masked || pass > 0;
        was_masked = masked;
        if (masked)
            tdm_mask(scores, a,
                     tdm_seen_from(a, P::LISTS && (step & TDM_STEP_WHOLE), w_of(made).kv_head),
                     w_of(made).t0 + group * GROUP_ROWS + tdm_hopper_warp_row(),
                     P::LISTS ? step & TDM_STEP_FIRST : step);
        return careful && tdm_follow(scores, rows, scale, rescale);
    };
    const auto k_of = [&](uint32_t number) {
        return tdm_uniform(k + number % STAGES * P::TILE_BYTES, 16);
    };
    const auto v_of = [&](uint32_t number) {
        return tdm_uniform(v + number % STAGES * P::TILE_BYTES, P::KEYS * 128);
    };
    const auto raise = [&](void) {
#pragma unroll
        for (int block = 0; block < (int)P::KEYS / 16; block++)
            tdm_raise(scores, block, rows, scale);
    };
    const auto round = [&](void) {
#pragma unroll
        for (int block = 0; block < (int)P::KEYS / 16; block++)
            tdm_as_a(p[block], scores[0][2 * block], scores[0][2 * block + 1]);
    };
    /* Waits for the keys of a step that is not the last. Being a loop between the exponentials and
     * the wait for O, it also keeps the compiler from moving the exponentials after that wait. */
    const auto wait_keys = [&](uint32_t number) {
        if (left > 1)
            tdm_barrier_wait(&b.full_k[number % STAGES], number / STAGES);
    };
    /* Waits for V of an item's last step. */
    const auto wait_last_values = [&](uint32_t number, uint32_t step) {
        tdm_barrier_wait(&b.full_v[number % STAGES], number / STAGES);
        const uint32_t key = P::LISTS ? step & TDM_STEP_FIRST : step;
        if (key + P::KEYS > (uint32_t)a.keys) /* the last keys are always in such a step */
            clear_rows<P>(v + number % STAGES * P::TILE_BYTES, (uint32_t)a.keys - key);
    };

    if (group == 1)
        tdm_turn_give(1);
    tdm_barrier_wait(&b.full_k[0], 0);
    if (w_of(0).number == NO_ITEM) {
        if (group == 0)
            tdm_turn_wait(1);
        return;
    }
    begin_item();
    tdm_barrier_wait(&b.full_q[group], 0);
    tdm_products_hold(scores[0]);
    tdm_products_begin();
    ask_scores<P>(scores[0], q, k_of(0));
    tdm_products_wait<0>();
    tdm_products_hold(scores[0]);
    release<P>(&b.empty_k[0]);
    if (left == 1)
        release_rows(&b.empty_q[group]);
    prepare(step);
    raise();
    wait_keys(1);
    round();
#pragma unroll 1
    for (;;) {
#pragma unroll
        for (int n = 0; n < P::DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[0][n][i] = 0.0f;
#pragma unroll 1
        while (--left > 0) {
            const tdm_uniform_tile value_tile = v_of(number++), key_tile = k_of(number);
            step = P::LISTS ? shared.step[number % STAGES] : step + P::KEYS;
            tdm_turn_wait(1 + group);
            tdm_products_hold(scores[0]);
            tdm_products_hold(out[0]);
            tdm_products_begin();
            ask_scores<P>(scores[0], q, key_tile);
            tdm_barrier_wait(&b.full_v[(number - 1) % STAGES], (number - 1) / STAGES);
            tdm_products_begin();
            ask_values<P>(out[0], p, value_tile);
            tdm_turn_give(2 - group);
            tdm_products_wait<1>();
            tdm_products_hold(scores[0]);
            release<P>(&b.empty_k[number % STAGES]);
            if (left == 1)
                release_rows(&b.empty_q[group]);
            const bool lags = prepare(step);
            raise();
            tdm_products_hold(scores[0]);
            wait_keys(number + 1);
            tdm_products_wait<0>();
            tdm_products_hold(out[0]);
            release<P>(&b.empty_v[(number - 1) % STAGES]);
            round();
            if (lags)
                tdm_rescale(out, rescale);
        }
        /* the last values, and the first scores of the next item */
        const uint32_t last = step;
        const tdm_uniform_tile value_tile = v_of(number++), key_tile = k_of(number);
        const tdm_softmax<1> old = rows;
        tdm_barrier_wait(&b.full_k[number % STAGES], number / STAGES);
        if (w_of(++made).number == NO_ITEM) {
            tdm_turn_wait(1 + group);
            wait_last_values(number - 1, last);
            tdm_products_hold(out[0]);
            tdm_products_begin();
            ask_values<P>(out[0], p, value_tile);
            tdm_turn_give(2 - group);
            tdm_products_wait<0>();
            tdm_products_hold(out[0]);
            release<P>(&b.empty_v[(number - 1) % STAGES]);
            finish_item<P>(out[0], old, a, w_of(made - 1), shared, pass, group);
            break;
        }
        begin_item();
        tdm_barrier_wait(&b.full_q[group], made);
        tdm_turn_wait(1 + group);
        tdm_products_hold(scores[0]);
        tdm_products_hold(out[0]);
        tdm_products_begin();
        ask_scores<P>(scores[0], q, key_tile);
        wait_last_values(number - 1, last);
        tdm_products_begin();
        ask_values<P>(out[0], p, value_tile);
        tdm_turn_give(2 - group);
        tdm_products_wait<1>();
        tdm_products_hold(scores[0]);
        release<P>(&b.empty_k[number % STAGES]);
        if (left == 1)
            release_rows(&b.empty_q[group]);
        prepare(step);
        raise();
        tdm_products_hold(scores[0]);
        wait_keys(number + 1);
        tdm_products_wait<0>();
        tdm_products_hold(out[0]);
        release<P>(&b.empty_v[(number - 1) % STAGES]);
        round();
        finish_item<P>(out[0], old, a, w_of(made - 1), shared, pass, group);
    }
    if (group == 0)
        tdm_turn_wait(1);
}

/* Barrier for all threads of the cluster. No block exits before the others have read what it
 * shared. */
template <class P> static __device__ __forceinline__ void end_pass(void)
{
    if constexpr (P::CLUSTER == 2)
        tdm_cluster_sync();
    else
        __syncthreads();
}

template <class P> static __device__ __forceinline__ void init(barriers &b)
{
    for (uint32_t group = 0; group < CONSUMERS; group++) {
        tdm_barrier_init(&b.full_q[group], 1);
        tdm_barrier_init(&b.empty_q[group], TDM_WARPGROUP / 32);
    }
    for (uint32_t i = 0; i < STAGES; i++) {
        tdm_barrier_init(&b.full_k[i], 1);
        tdm_barrier_init(&b.full_v[i], 1);
        tdm_barrier_init(&b.empty_k[i], P::CLUSTER * CONSUMERS * TDM_WARPGROUP / 32);
        tdm_barrier_init(&b.empty_v[i], P::CLUSTER * CONSUMERS * TDM_WARPGROUP / 32);
    }
}

template <class P>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_hopper(const __grid_constant__ tdm_attend a, const __grid_constant__ maps m,
                  const __grid_constant__ tdm_attend_split split, uint32_t queue_number,
                  float scale)
{
    extern __shared__ unsigned char memory[];
    __shared__ board shared;
    const uint32_t tiles = (tdm_shared(memory) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        tdm_fetch_map(m.q);
        tdm_fetch_map(m.keys[0]);
    }
    for (uint32_t i = threadIdx.x; i <= MOST_ITEMS; i += THREADS)
        shared.items[i] = i == 0 ? blockIdx.x / P::CLUSTER : NOT_YET;
    if (threadIdx.x == 0) {
        shared.again = 0;
        init<P>(shared.of_pass[0]);
        init<P>(shared.of_pass[1]);
        tdm_barriers_ready();
    }
    end_pass<P>();
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<P::PRODUCER>();
#pragma unroll 1
        for (uint32_t pass = 0; pass == 0 || (shared.again != 0 && pass < 2); pass++) {
            if (threadIdx.x == 0)
                produce_keys<P, 0>(a, split, m, tiles, shared, pass);
            else if (threadIdx.x == 32)
                produce_keys<P, 1>(a, split, m, tiles, shared, pass);
            else if (threadIdx.x == 64)
                produce_rows<P>(a, split, m, tiles, shared, queues[queue_number], pass);
            __syncwarp();
            end_pass<P>();
        }
    } else {
        tdm_take_registers<P::CONSUMER>();
#pragma unroll 1
        for (uint32_t pass = 0; pass == 0 || (shared.again != 0 && pass < 2); pass++) {
            consume_all<P>(a, tiles, shared, pass, scale);
            end_pass<P>();
        }
    }
}

#define JOIN_THREADS 256u

/* Joins the parts of divided items: a block has some rows of a tile, a thread 8 columns. */
template <class P>
static __global__ void __launch_bounds__(JOIN_THREADS)
    join_parts(const __grid_constant__ tdm_attend a, const __grid_constant__ tdm_attend_split split)
{
    constexpr uint32_t of_row = P::DIM / 8, rows = JOIN_THREADS / of_row;
    const uint32_t tile = blockIdx.x / (ROWS / rows), rank = tile % P::CLUSTER;
    const uint32_t divided = tile / P::CLUSTER * split.parts;
    const uint32_t row = blockIdx.x % (ROWS / rows) * rows + threadIdx.x / of_row;
    const uint32_t columns = threadIdx.x % of_row * 8;
    const item<P> w(a, split, split.whole + divided, rank);
    const uint64_t token = w.t0 + row, to = token * a.query_heads + w.head;
    float most = -INFINITY, sum = 0, out[8] = {};
    if (w.parts == 1 || w.is_extra || token >= a.tokens)
        return;
    const auto at = [&](uint32_t part) {
        return (uint64_t)((divided + part) * P::CLUSTER + rank) * ROWS + row;
    };
    for (uint32_t part = 0; part < w.parts; part++)
        most = fmaxf(most, a.d[at(part)]);
    for (uint32_t part = 0; part < w.parts; part++) {
        const float lse = a.d[at(part)], share = lse > -INFINITY ? expf(lse - most) : 0.0f;
        const float4 *from = (const float4 *)(a.parts + at(part) * P::DIM + columns);
        const float4 low = from[0], high = from[1];
        sum += share;
        out[0] += share * low.x;
        out[1] += share * low.y;
        out[2] += share * low.z;
        out[3] += share * low.w;
        out[4] += share * high.x;
        out[5] += share * high.y;
        out[6] += share * high.z;
        out[7] += share * high.w;
    }
    const float by = sum > 0.0f ? 1.0f / sum : 0.0f; /* a row may see no visiting keys */
    *(uint4 *)((__nv_bfloat16 *)a.out.data + to * P::DIM + columns) =
        make_uint4(tdm_pack(out[0] * by, out[1] * by), tdm_pack(out[2] * by, out[3] * by),
                   tdm_pack(out[4] * by, out[5] * by), tdm_pack(out[6] * by, out[7] * by));
    if (columns == 0)
        a.lse[to] = most + logf(sum);
}

extern "C" bool tdm_cuda_attention_hopper_suits(const struct tdm_attend *a)
{
    const uint64_t end = a->first_token + a->tokens - a->key_token;
    const bool whole = a->keys <= a->chunk_tokens || a->chunk_tokens % a->page_tokens == 0;
    return tdm_cuda_is_hopper() && a->q.dtype == TDM_DTYPE_BF16 &&
           a->pages.dtype == TDM_DTYPE_BF16 && (a->head_dim == 64 || a->head_dim == 128) &&
           end <= INT32_MAX && whole && a->page_tokens % TDM_HOPPER_PAGE == 0 &&
           (a->lists.pages == NULL || (!tdm_attend_visits(a) && a->page_tokens == TDM_HOPPER_PAGE &&
                                       a->lists.capacity <= TDM_HOPPER_LIST_PAGES));
}

template <class P>
static enum tdm_status launch(const struct tdm_attend *attend, cudaStream_t stream,
                              struct tdm_error *err)
{
    struct tdm_attend a = *attend;
    const uint64_t all = (uint64_t)item<P>::clusters(a) * a.kv_heads;
    const tdm_selector &selector = a.lists.rule.selector;
    const uint64_t window = selector.kind == TDM_SELECT_WINDOW ? selector.window : 0;
    const tdm_attend_split split = tdm_attend_split_of(
        all, P::CLUSTER, tdm_attend_most_keys(a.keys, window, P::CLUSTER) / P::KEYS,
        P::LISTS || a.parts == NULL ? 0 : tdm_attend_part_tiles(a.tokens, a.query_heads));
    const uint32_t items = numbers(split, (uint32_t)all);
    static uint32_t launches; /* shared by all host threads */
    const uint32_t queue_number = __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED) % QUEUES;
    const float scale = (float)(1.0 / sqrt((double)P::DIM)) * TDM_LOG2_E;
    maps m;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < PIECES && status == TDM_OK; i++)
        status = tdm_cuda_map_pages(&a, 128u >> i, P::COLUMNS / P::CLUSTER, &m.keys[i], err);
    if (status == TDM_OK)
        status =
            tdm_cuda_map_rows(a.q.data, a.tokens, a.query_heads, P::DIM, GROUP_ROWS, &m.q, err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaFuncSetAttribute((const void *)attend_hopper<P>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)P::SHARED_BYTES),
                          err);
    if (status != TDM_OK)
        return status;
    uint32_t clusters = tdm_cuda_multiprocessors() / P::CLUSTER;
    if (clusters < (items + MOST_ITEMS - 1) / MOST_ITEMS)
        clusters = (items + MOST_ITEMS - 1) / MOST_ITEMS;
    if (clusters > items)
        clusters = items;
    if (a.keys <= a.chunk_tokens) /* one slot, whose last page is whole */
        a.chunk_tokens = (a.chunk_tokens + a.page_tokens - 1) / a.page_tokens * a.page_tokens;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {P::CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(clusters * P::CLUSTER);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = P::SHARED_BYTES;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    status = tdm_cuda_status(
        cudaLaunchKernelEx(&config, attend_hopper<P>, a, m, split, queue_number, scale),
        "attention launch", err);
    if constexpr (!P::LISTS) {
        const uint32_t tiles = (uint32_t)(all - split.whole) * P::CLUSTER;
        if (status == TDM_OK && tiles > 0) {
            join_parts<P>
                <<<tiles *(ROWS * P::DIM / 8 / JOIN_THREADS), JOIN_THREADS, 0, stream>>>(a, split);
            status = tdm_cuda_status(cudaGetLastError(), "attention launch", err);
        }
    }
    return status;
}

extern "C" enum tdm_status tdm_cuda_attention_hopper(const struct tdm_attend *a,
                                                     cudaStream_t stream, struct tdm_error *err)
{
    const bool lists = a->lists.pages != NULL;
    if (a->head_dim == 64)
        return lists ? launch<made_for<64, 128, 1, true>>(a, stream, err)
                     : launch<made_for<64, 176, 1, false>>(a, stream, err);
    return lists ? launch<made_for<128, 128, 1, true>>(a, stream, err)
                 : launch<made_for<128, 176, 2, false>>(a, stream, err);
}
