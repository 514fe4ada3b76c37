/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on Hopper, backward: bf16, head dim 64 or 128.
 * One kernel computes the five products of FlashAttention-2 (arXiv 2307.08691, algorithm 2),
 * transposed so that dK and dV stay in registers:
 *
 *     S^T = K Q^T, dP^T = V dO^T [128 keys, 64 rows];  dV += P^T dO, dK += dS^T Q, dQ = dS K
 *
 * There is one block for each multiprocessor. It works on one item after the other. An item is a
 * tile of 128 keys of a KV head: the block iterates over the tiles of 64 rows that see the keys,
 * for all query heads of the item. Each of two warpgroups has 64 keys, and half of the columns of
 * dQ. They take turns. In its turn a group issues the products for dQ, dV and dK, then for the next
 * S and dP. It computes P and dS from these while the other group has its turn. Group 0 adds its dQ
 * one step late, so that two buffers of dS are enough.
 *
 * The copy engine adds dQ in fp32 to scratch. Blocks add in a fixed order, so that results repeat.
 * A tile of rows has a counter for each half. A block adds when the counter has reached the block's
 * rank: the number of earlier tiles of keys that visit these rows. Ranks rise with key position and
 * depend on nothing else. Blocks take their items by ticket. In ticket order no block waits for a
 * tile with a later ticket: key positions rise, and every block iterates over its rows from last to
 * first, so that it reaches its first tile of rows after the block before it. A block that finds
 * no more items scales dQ and rounds it, while others work on the last ones.
 *
 * At the end of an item the warpgroups stage dK and dV in shared memory that is free by then, and
 * the copy engine stores them in their pages or adds them there. The next item is taken, and its
 * first rows are copied, while the last steps of this one run; its keys when dV is on its way. bf16
 * sums, and tiles that are not whole, are stored by the warpgroups.
 *
 * If the chunk itself has few tiles, they are split by query heads (item.is_split): each head, or
 * two of them, is an item, which takes a tile of rows of both before it goes on to the tile before.
 * The items of a tile then add dK and dV one after the other. Otherwise the last tiles would leave
 * most of the card idle. Tiles before the chunk that do not fill a last round of blocks are split,
 * too. With a window all tiles are split, and so are those of keys that visit, if that leaves less
 * of the card idle. find_part (attention_grad_pages.cuh) defines the order in which these items are
 * handed out.
 *
 * After tens of items blocks are far apart, and together read all rows of the KV heads that they
 * work on. So where there are many tiles that are not split, KV heads come one after the other: the
 * rows of one are more likely to stay in the L2 cache. Over few tiles this would be slower: more
 * blocks would wait for each other's first dQ.
 *
 * Over lists of pages (LISTS) a page is a tile of keys. A page that all query pages list is one
 * item, which iterates over all of them by the page's inverse list (lists.cu), or is split into
 * items of two query heads. Any other page before the chunk gets one item for each query page that
 * lists it (find_pairs). A single item over several query pages would often wait for another block
 * that reaches the same rows after different ones. These items are handed out by place in the
 * lists, the first ones of all lists first, so that two of them rarely work on the same rows.
 * dQ's sums add the pages of all query pages first, then those of some, then the chunk's own.
 */
#include "executor/cuda/attention_grad_pages.cuh"
#include "executor/cuda/card.h"
#include "executor/cuda/gradients.cuh"
#include "executor/cuda/hopper_maps.h"
#include "executor/cuda/hopper_tiles.cuh"

#define TILE TDM_ATTEND_KEYS /* keys of a block */
#define STEP TDM_ATTEND_ROWS /* rows of a step */
#define STAGES 3u
#define CONSUMERS 2u
#define SENDERS 3u
#define THREADS ((CONSUMERS + 1) * TDM_WARPGROUP)
#define DS_BYTES (STEP * TILE * 2)
#define FACTS_BYTES (2 * STEP * 4)

/* The chunk's own tiles are split by query heads if there are fewer than eight for each
 * multiprocessor. */
#define FEW_TILES (8 * TDM_ATTEND_BLOCKS)

/* The beginning and the end of an item take about as long as this many steps. */
#define PART_STEPS 4u

/* KV heads come one after the other if tiles that are not split have at least so many steps. Tests
 * with delays, whose shapes are small, set it to less. */
#ifdef TDM_DELAYS
#define MANY_STEPS UINT64_C(1024)
#else
#define MANY_STEPS ((uint64_t)8192 * TDM_ATTEND_BLOCKS)
#endif

/* Approximate capacity of the L2 cache. */
#define CACHE_BYTES ((uint64_t)48 << 20)

template <int DIM_> struct made_for {
    static constexpr int DIM = DIM_;
    static constexpr uint32_t COLUMNS = DIM_ / 64;
    static constexpr uint32_t KEY_BYTES = TILE * DIM_ * 2, ROW_BYTES = STEP * DIM_ * 2;
    static constexpr uint32_t HALF_FLOATS = STEP * DIM_ / 2; /* half of a tile's dQ */
    static constexpr uint32_t SHARED_BYTES =
        2 * KEY_BYTES + 2 * STAGES * ROW_BYTES + 2 * DS_BYTES + 2 * HALF_FLOATS * 4;
};

struct maps {
    CUtensorMap q, d_out, keys, written, added; /* the last two: fp32 sums of dK and dV */
};

/* An item. */
struct item {
    uint32_t key0, end, kv_head, head,
        end_head;                 /* keys [key0, end); query heads [head, end_head) */
    uint32_t in_page, page, slot; /* the first key in its page, the page in its slot, the slot */
    bool by_engine;               /* the copy engine stores dK and dV, not the consumers */
    bool is_split;                /* other blocks add to the same dK, dV: */
    uint32_t part, turn;  /* how many of them add before this one, and the index of their counter */
    const uint2 *readers; /* over lists: the page's inverse list, and its row of `ranks` */
    const uint16_t *ranks;
    uint32_t reader, rank; /* for a page of some: the query page, and the rank for this pair */
};
#define ALL_READERS UINT32_MAX

/* About the most rows of the chunk that belong to the same document: as many of SAMPLES tokens. */
static __device__ __forceinline__ uint32_t document_rows(const tdm_attend &a)
{
    constexpr uint32_t SAMPLES = 16;
    uint32_t from[SAMPLES], same = 1, most = 1;
#pragma unroll
    for (uint32_t i = 0; i < SAMPLES; i++)
        from[i] = a.from[i * ((uint32_t)a.tokens / SAMPLES)];
#pragma unroll
    for (uint32_t i = 1; i < SAMPLES; i++) {
        same = from[i] == from[i - 1] ? same + 1 : 1;
        most = max(most, same);
    }
    return most * ((uint32_t)a.tokens / SAMPLES);
}

/* Tiles of keys that have tickets: [first, x.key_tiles), those from `split` on a ticket for each
 * part. Leading tiles have none if no row sees them and they need not be written. What is split
 * does not depend on them, so that written and added sums have the same bits. */
struct handed_out {
    uint32_t first, split, tickets, part_lag;
    bool one_head; /* of tiles before `split`: one KV head after the other */

    __device__ __forceinline__ void find(const tdm_attend &a, const plan &x)
    {
        const uint32_t seen = min(a.from[0] / TILE, x.key_tiles);
        first = a.written_slots > 0 ? 0 : seen;
        split = max(x.whole_tiles, first);
        const uint32_t whole = split - min(split, seen); /* that rows see */
        one_head = (uint64_t)whole * a.query_heads * x.row_tiles >= MANY_STEPS;
        part_lag = x.part_lag;
        if (x.half_lag_rows > 0 && document_rows(a) <= x.half_lag_rows)
            part_lag = (x.part_lag + 1) / 2;
        /* parts of one head take its rows in the same order as tiles that are not split */
        if (split < x.key_tiles && x.part_heads > 1 && !one_head)
            split -= last_tiles(whole, a.kv_heads);
        tickets = (split - first + (x.key_tiles - split) * x.parts) * a.kv_heads;
    }

    /* How many of `whole` tiles are split, too: the last ones, if they are too few for most blocks.
     * The other blocks would begin with parts, which take a tile of rows of all their heads before
     * they go on, and would soon wait for dQ of tiles that take all rows of a head first. */
    static __device__ __forceinline__ uint32_t last_tiles(uint32_t whole, uint32_t kv_heads)
    {
        const uint32_t last = whole * kv_heads % TDM_ATTEND_BLOCKS;
        return last <= TDM_ATTEND_BLOCKS / 2 ? (last + kv_heads - 1) / kv_heads : 0;
    }
};

struct state {
    handed_out tiles;
    uint64_t full_q[STAGES], full_out[STAGES], empty[STAGES], full_keys, empty_sums;
    uint64_t full_dq[SENDERS], empty_dq[CONSUMERS]; /* one per sender; one per half */
    uint64_t full_sums[CONSUMERS];
    uint64_t full_item[2], empty_item[2];
    uint32_t step[STAGES]; /* first token, with TDM_STEP_WHOLE and TDM_STEP_MASKED: some row sees
                            * less because of its window, document or list */
    item work[2];          /* this item's and the next one's, by turns */
    uint32_t count[2];     /* number of steps; NO_WORK: no work is left */
    uint32_t round[CONSUMERS][2]; /* the next tile of dQ that a group rounds, by turns */
};
#define NO_WORK UINT32_MAX

/* Addresses in shared memory; K is at its start, the others follow at these distances. */
template <class P> struct areas {
    static constexpr uint32_t V = P::KEY_BYTES, Q = 2 * P::KEY_BYTES;
    static constexpr uint32_t OUT = Q + STAGES * P::ROW_BYTES, DS = OUT + STAGES * P::ROW_BYTES;
    uint32_t k, v, q, d_out, ds, dq;

    __device__ __forceinline__ areas(const unsigned char *memory)
    {
        k = tdm_shared(memory);
        v = k + V;
        q = k + Q;
        d_out = k + OUT;
        ds = k + DS;
        dq = ds + 2 * DS_BYTES;
    }
};

/* Where group G stages its sums of an item whose last step is in stage `stage`: in memory that is
 * free by then. dV is contiguous, dK is in two halves of P::ROW_BYTES. */
template <class P> struct sums_at {
    uint32_t dv, dk, dk_high;

    __device__ __forceinline__ sums_at(const areas<P> &shared, uint32_t group, uint32_t stage)
    {
        dv = group == 0 ? shared.k : shared.v;
        dk = group == 0 ? shared.ds : shared.q + stage * P::ROW_BYTES;
        dk_high = group == 0 ? dk + P::ROW_BYTES : shared.d_out + stage * P::ROW_BYTES;
    }
};

/* Index of the facts of row `row` of a tile among STEP. The order lets a lane load four facts at
 * once. */
static __device__ __forceinline__ uint32_t fact_at(uint32_t row)
{
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

/* ---- items ---- */

/* Item `number` of the pages of some: a KV head, a query page, and one of the pages of some in its
 * list. KV heads come one after the other, so that a head's rows and their sums stay in the L2
 * cache. False if the list has fewer such pages. */
static __device__ __forceinline__ bool find_item_of_some(const tdm_attend &a, const plan &x,
                                                         uint32_t number, uint32_t &page, item &w)
{
    const uint32_t each = x.order[ORDER_OF_SOME] / a.kv_heads; /* items of a KV head */
    w.kv_head = number / each;
    number -= w.kv_head * each;
    const uint32_t list = w.kv_head / (a.kv_heads / a.lists.lists);
    const uint2 pair = x.pairs[number * a.lists.lists + list];
    if (pair.x == NO_PAIR)
        return false;
    page = pair.x & ~PAIR_SHARED;
    w.is_split = (pair.x & PAIR_SHARED) != 0;
    w.part = pair.y >> 16;
    w.rank = pair.y & 0xffffu;
    w.reader = number % x.query_pages;
    return true;
}

/* False if the ticket stands for no work. */
template <bool LISTS>
static __device__ __forceinline__ bool find_item(const tdm_attend &a, const plan &x,
                                                 const handed_out &tiles, uint32_t ticket, item &w)
{
    const uint32_t ratio = a.query_heads / a.kv_heads;
    uint32_t tile, head = 0, end_head = ratio;
    w.end = (uint32_t)a.keys;
    w.part = 0;
    w.is_split = false;
    if constexpr (LISTS) {
        const uint32_t heads = a.kv_heads / a.lists.lists;
        const uint32_t before = x.order[ORDER_BEFORE] * heads, of_some = x.order[ORDER_OF_SOME];
        w.reader = ALL_READERS;
        if (ticket >= before && ticket - before < of_some) {
            if (!find_item_of_some(a, x, ticket - before, tile, w))
                return false;
        } else {
            ticket -= ticket < before ? 0 : of_some;
            if (ticket / heads >= x.order[ORDER_PARTS])
                return false;
            const uint32_t entry = x.order[ORDER_NUMBERS + ticket / heads];
            const uint32_t part = entry & ENTRY_PART;
            tile = (entry >> ENTRY_PART_BITS) / a.lists.lists;
            w.kv_head =
                ((entry >> ENTRY_PART_BITS) - tile * a.lists.lists) * heads + ticket % heads;
            w.is_split = part != ENTRY_WHOLE;
            w.part = w.is_split ? part : 0;
        }
        const uint32_t list = w.kv_head / heads;
        w.readers = tdm_readers_of(a, tile, list);
        w.ranks = ranks_of(a, x, tile, list);
        w.key0 = tdm_keys_of_page(a, tile).first;
    } else {
        w.kv_head = ticket % a.kv_heads;
        tile = tiles.first + ticket / a.kv_heads;
        if (tile >= tiles.split) {
            find_part(tiles.part_lag, x.parts_at_once, x.parts, x.key_tiles - tiles.split,
                      tile - tiles.split, w.part, tile);
            tile += tiles.split;
            w.is_split = true;
        } else if (tiles.one_head) {
            w.kv_head = ticket / (tiles.split - tiles.first);
            tile = tiles.first + ticket % (tiles.split - tiles.first);
        }
        w.key0 = tile * TILE;
    }
    if (w.is_split && (!LISTS || w.reader == ALL_READERS)) {
        head = w.part * x.part_heads;
        end_head = min(head + x.part_heads, ratio);
    }
    w.head = w.kv_head * ratio + head;
    w.end_head = w.kv_head * ratio + end_head;
    w.turn = tile * a.kv_heads + w.kv_head;
    return true;
}

/* A kernel parameter. The compiler loads it again where it is used, instead of keeping what it
 * computes of it in registers, of which the producer and the senders have few. */
static __device__ __forceinline__ uint32_t again(uint32_t parameter)
{
    uint32_t value;
    asm volatile("mov.u32 %0, %1;" : "=r"(value) : "r"(parameter));
    return value;
}

/* Iterator over the steps of an item; a step is a tile of rows of one query head. For a range of
 * keys: query heads one after the other, each with falling rows; if it is split, falling rows, each
 * of all its heads, so that no tile reaches the second head before tiles of more rows do. Over
 * lists: query pages by falling number, for each its query heads, each with falling rows. */
template <bool LISTS> struct step_cursor;

template <> struct step_cursor<false> {
    uint32_t row_tile, head, begin_tile, end_tile;

    __device__ __forceinline__ void begin(const tdm_attend &a, const plan &x, const item &w)
    {
        const uint32_t before = (uint32_t)(a.first_token - a.key_token), key0 = w.key0;
        uint32_t low = key0 > before ? (key0 - before) / STEP : 0, end = again(x.row_tiles);
        begin_tile = low;
        /* the first tile from there on whose first row begins after the keys */
        if (a.from[(end - 1) * STEP] < key0 + TILE)
            low = end;
        while (low < end) {
            const uint32_t middle = (low + end) / 2;
            if (a.from[middle * STEP] < key0 + TILE)
                low = middle + 1;
            else
                end = middle;
        }
        end_tile = low;
        head = w.is_split ? w.end_head - 1 : w.head;
        row_tile = end_tile;
    }

    __device__ __forceinline__ uint32_t count(const plan &, const item &w) const
    {
        return end_tile > begin_tile ? (end_tile - begin_tile) * (w.end_head - w.head) : 0;
    }

    /* Advances to the next step. There are count() steps. */
    __device__ __forceinline__ void next(const plan &, const item &w)
    {
        if (w.is_split) {
            if (++head < w.end_head)
                return;
            head = w.head;
        } else if (row_tile == begin_tile) {
            row_tile = end_tile;
            head++;
        }
        row_tile--;
    }

    __device__ __forceinline__ uint32_t step(const tdm_attend &a, const item &w) const
    {
        const uint32_t t0 = row_tile * STEP, tokens = again((uint32_t)a.tokens);
        const uint32_t last = t0 + STEP < tokens ? t0 + STEP - 1 : tokens - 1;
        return t0 + (a.from[last] > w.key0 ? TDM_STEP_MASKED : 0);
    }

    /* Number of earlier tiles of keys that visit these rows. */
    __device__ __forceinline__ uint32_t rank(const tdm_attend &a, const plan &, const item &w) const
    {
        return w.key0 / TILE - a.from[row_tile * STEP] / TILE;
    }
};

template <> struct step_cursor<true> {
    uint32_t row_tile, head, word, bits, page;

    __device__ __forceinline__ void begin(const tdm_attend &, const plan &x, const item &w)
    {
        row_tile = bits = page = 0;
        head = w.end_head - 1;
        word = x.words;
        if (w.reader != ALL_READERS) {
            word = w.reader / 32;
            bits = 1u << w.reader % 32;
        }
    }

    __device__ __forceinline__ uint32_t count(const plan &x, const item &w) const
    {
        uint32_t tiles = 0;
        if (w.reader != ALL_READERS)
            return (2 * w.reader + 1 < x.row_tiles ? 2 : 1) * (w.end_head - w.head);
        for (uint32_t i = 0; i < word; i++)
            tiles += 2 * (uint32_t)__popc(w.readers[i].x);
        /* the last query page may have only one tile of rows */
        if (x.row_tiles % 2 != 0 &&
            (w.readers[x.row_tiles / 64].x >> x.row_tiles / 2 % 32 & 1) != 0)
            tiles--;
        return tiles * (w.end_head - w.head);
    }

    __device__ __forceinline__ void next(const plan &x, const item &w)
    {
        if (row_tile > 2 * page) {
            row_tile--;
            return;
        }
        if (++head == w.end_head) {
            while (bits == 0)
                bits = w.readers[--word].x;
            const uint32_t bit = 31 - (uint32_t)__clz((int)bits);
            bits ^= 1u << bit;
            page = word * 32 + bit;
            head = w.head;
        }
        row_tile = 2 * page + (2 * page + 1 < x.row_tiles ? 1 : 0);
    }

    __device__ __forceinline__ uint32_t step(const tdm_attend &a, const item &w) const
    {
        const uint32_t t0 = row_tile * STEP;
        const uint32_t last = t0 + STEP < a.tokens ? t0 + STEP - 1 : (uint32_t)a.tokens - 1;
        const bool whole = (w.readers[page / 32].y >> page % 32 & 1) != 0;
        const bool masked = tdm_seen_from(a, whole, w.kv_head)[last] > w.key0;
        return t0 + (whole ? TDM_STEP_WHOLE : 0) + (masked ? TDM_STEP_MASKED : 0);
    }

    /* Number of pages whose dQ is added before this page's. */
    __device__ __forceinline__ uint32_t rank(const tdm_attend &, const plan &, const item &w) const
    {
        return w.reader != ALL_READERS ? w.rank : w.ranks[page];
    }
};

/* The state of a thread that copies or sends. It is in shared memory because these threads have few
 * registers. */
template <bool LISTS> struct role {
    step_cursor<LISTS> at;
    uint32_t it;     /* number of the item */
    uint32_t before; /* steps of the items before */
    uint32_t phases; /* bit i: what to wait for at stage i */
};

/* ---- the producer: one thread ---- */

/* Takes the next item of the block, number `it`. */
template <typename T, bool LISTS>
static __device__ __forceinline__ void take_item(const tdm_attend &a, const plan &x, state &s,
                                                 step_cursor<LISTS> &at, uint32_t it)
{
    item &w = s.work[it % 2];
    uint32_t count = NO_WORK, ticket;
    tdm_barrier_wait(&s.empty_item[it % 2], it / 2 + 1);
    do {
        ticket = atomicAdd(x.ticket, 1u);
        if (ticket < s.tiles.tickets && find_item<LISTS>(a, x, s.tiles, ticket, w)) {
            at.begin(a, x, w);
            count = at.count(x, w);
            w.slot = w.key0 / (uint32_t)a.chunk_tokens;
            if (count == 0 && w.slot >= a.written_slots) /* there is nothing to add */
                count = NO_WORK;
        }
    } while (count == NO_WORK && ticket < s.tiles.tickets);
    s.count[it % 2] = count;
    s.round[0][0] = ticket;
    w.in_page = w.key0 - w.slot * (uint32_t)a.chunk_tokens;
    w.page = w.in_page / (uint32_t)a.page_tokens;
    w.in_page -= w.page * (uint32_t)a.page_tokens;
    w.by_engine = sizeof(T) == sizeof(float) && count > 0 && w.key0 + TILE <= w.end;
    tdm_barrier_arrive(&s.full_item[it % 2]);
}

/* Issues the copy of V of an item, which comes first, and that of K. */
template <class P>
static __device__ __forceinline__ void copy_v(const maps &m, const areas<P> &shared, state &s,
                                              const item &w)
{
    tdm_barrier_expect(&s.full_keys, 2 * P::KEY_BYTES);
    tdm_copy_keys(shared.v, m.keys, w.in_page, w.kv_head * P::COLUMNS, 2 * w.page + 1, w.slot,
                  &s.full_keys);
}

template <class P>
static __device__ __forceinline__ void copy_k(const maps &m, const areas<P> &shared, state &s,
                                              const item &w)
{
    tdm_copy_keys(shared.k, m.keys, w.in_page, w.kv_head * P::COLUMNS, 2 * w.page, w.slot,
                  &s.full_keys);
}

template <class P, typename T, bool LISTS>
static __device__ __forceinline__ void produce(const tdm_attend &a, const maps &m, const plan &x,
                                               const areas<P> &shared, state &s, role<LISTS> &r,
                                               uint32_t facts)
{
    step_cursor<LISTS> &at = r.at;
    r.phases = ~0u;
#pragma unroll 1
    for (r.it = 0;; r.it++) {
        take_item<T, LISTS>(a, x, s, at, r.it);
        const item &w = s.work[r.it % 2];
        const uint32_t count = s.count[r.it % 2];
        if (count == NO_WORK)
            return;
        uint32_t i = 0;
#pragma unroll 1
        for (uint32_t n = 0; n < count; n++) {
            at.next(x, w);
            const uint32_t row = at.row_tile * STEP, column = at.head * P::COLUMNS;
            const uint32_t step = at.step(a, w);
            tdm_barrier_wait(&s.empty[i], r.phases >> i);
            r.phases ^= 1u << i;
            s.step[i] = step;
            tdm_barrier_expect(&s.full_q[i], P::ROW_BYTES + FACTS_BYTES);
            tdm_copy_rows(shared.q + i * P::ROW_BYTES, m.q, row, column, &s.full_q[i]);
            tdm_copy_bytes(facts + i * FACTS_BYTES,
                           x.facts + ((uint64_t)at.head * x.row_tiles + at.row_tile) * 2 * STEP,
                           FACTS_BYTES, &s.full_q[i]);
            tdm_barrier_expect(&s.full_out[i], P::ROW_BYTES);
            tdm_copy_rows(shared.d_out + i * P::ROW_BYTES, m.d_out, row, column, &s.full_out[i]);
            if (++i == STAGES)
                i = 0;
            if (r.it + n == 0) {
                copy_v<P>(m, shared, s, w);
                copy_k<P>(m, shared, s, w);
            }
        }
        if (r.it + count == 0) {
            copy_v<P>(m, shared, s, w);
            copy_k<P>(m, shared, s, w);
        }
    }
}

/* ---- sending dQ: SENDERS threads ---- */

static __device__ __forceinline__ void wait_turn(const uint32_t *turn, uint32_t rank)
{
    tdm_delay();
    uint32_t reached;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(reached) : "l"(turn) : "memory");
    } while (reached != rank);
}

/* The same where that may take long: it does not disturb those who give turns. */
static __device__ __forceinline__ void wait_long(const uint32_t *turn, uint32_t rank)
{
    tdm_delay();
    uint32_t reached;
    for (;;) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(reached) : "l"(turn) : "memory");
        if (reached == rank)
            return;
        __nanosleep(200);
    }
}

static __device__ __forceinline__ void give_turn(uint32_t *turn)
{
    tdm_delay();
    asm volatile("fence.acq_rel.gpu;\n"
                 "red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(turn)
                 : "memory");
}

/* Stores or adds the staged dK, dV of item number `it`, and issues the copies of the next item's
 * keys. dV comes first, since it lies where these keys go. The consumers need the memory of dK a
 * little later than the keys. */
template <class P>
static __device__ __forceinline__ void send_sums(const tdm_attend &a, const maps &m, const plan &x,
                                                 const areas<P> &shared, state &s, uint32_t it)
{
    const item &w = s.work[it % 2], &next = s.work[(it + 1) % 2];
    const uint32_t stage = (s.count[it % 2] + STAGES - 1) % STAGES; /* of the last step */
    const bool is_written = w.slot < a.written_slots;
    const bool add = !is_written || w.part > 0;
    const uint32_t slot = is_written ? w.slot : w.slot - (uint32_t)a.written_slots;
    const CUtensorMap &map = is_written ? m.written : m.added;
    const sums_at<P> of_zero(shared, 0, stage), of_one(shared, 1, stage);
    /* two boxes of half the columns of 64 keys */
    const auto send = [&](uint32_t low, uint32_t high, uint32_t row, uint32_t plane) {
        const uint32_t column = 2 * w.kv_head * P::COLUMNS;
        tdm_send_box(map, low, w.in_page + row, column, 2 * w.page + plane, slot, add);
        tdm_send_box(map, high, w.in_page + row, column + P::COLUMNS, 2 * w.page + plane, slot,
                     add);
    };
    tdm_barrier_wait(&s.full_item[(it + 1) % 2], (it + 1) / 2);
    const bool more = s.count[(it + 1) % 2] != NO_WORK;
    /* Another sender may have had the item before. A wait for a phase is right only after the end
     * of the phase before it. */
    tdm_barrier_wait(&s.empty_sums, it - 1);
    tdm_barrier_wait(&s.full_sums[1], it);
    if (w.by_engine) {
        if (w.part > 0)
            wait_turn(x.key_turns + w.turn, w.part);
        asm volatile("fence.proxy.async.global;" ::: "memory");
        send(of_one.dv, of_one.dv + P::ROW_BYTES, 64, 1);
        tdm_out_commit();
    }
    tdm_barrier_wait(&s.full_sums[0], it);
    if (w.by_engine) {
        send(of_zero.dv, of_zero.dv + P::ROW_BYTES, 0, 1);
        tdm_out_commit();
        tdm_out_wait_read<1>();
    }
    if (more)
        copy_v<P>(m, shared, s, next);
    if (w.by_engine)
        tdm_out_wait_read<0>();
    if (more)
        copy_k<P>(m, shared, s, next);
    if (w.by_engine) {
        send(of_one.dk, of_one.dk_high, 64, 0);
        send(of_zero.dk, of_zero.dk_high, 0, 0);
        tdm_out_commit();
        tdm_out_wait_read<0>();
    }
    tdm_barrier_arrive(&s.empty_sums);
    if (s.count[it % 2] > 0)
        tdm_barrier_arrive_times(&s.empty[stage], TDM_WARPGROUP / 32);
    if (w.by_engine) {
        tdm_out_wait();
        if (w.is_split)
            give_turn(x.key_turns + w.turn);
    }
}

/* Adds the dQ of both halves to scratch, in the order in which they are staged: half 1 of step n,
 * then half 0. Waiting for the turn, adding and waiting for completion takes as long as a step. So
 * there are several senders, each of which takes every third half. Tasks and steps are counted over
 * all items of the block. */
template <class P, bool LISTS>
static __device__ __forceinline__ void send_dq(const tdm_attend &a, const maps &m, const plan &x,
                                               const areas<P> &shared, state &s, role<LISTS> &r,
                                               uint32_t sender)
{
    step_cursor<LISTS> &at = r.at;
    uint32_t task = sender; /* the next one */
    r.before = 0;
#pragma unroll 1
    for (r.it = 0;; r.it++) {
        tdm_barrier_wait(&s.full_item[r.it % 2], r.it / 2);
        const item &w = s.work[r.it % 2];
        const uint32_t count = s.count[r.it % 2];
        if (count == NO_WORK)
            return;
        uint32_t step = r.before; /* steps that the iterator has advanced */
        uint32_t to = 0, rank = 0;
        const auto find = [&](void) {
            for (; step <= task / 2; step++)
                at.next(x, w);
            to = 2 * (at.head * x.row_tiles + at.row_tile) + 1 - task % 2;
            rank = at.rank(a, x, w);
        };
        at.begin(a, x, w);
        r.before += count;
        if (task < 2 * r.before)
            find();
#pragma unroll 1
        while (task < 2 * r.before) {
            const uint32_t half = to % 2, sent = to;
            const uint32_t from = shared.dq + half * P::HALF_FLOATS * 4;
            float *sums = x.dq + (uint64_t)to * P::HALF_FLOATS;
            wait_turn(x.dq_turns + to, rank);
            asm volatile("fence.proxy.async.global;" ::: "memory");
            tdm_barrier_wait(&s.full_dq[sender], task / SENDERS);
            if (rank == 0)
                tdm_copy_out(sums, from, P::HALF_FLOATS * 4);
            else
                tdm_add_out(sums, from, P::HALF_FLOATS * 4);
            tdm_out_commit();
            task += SENDERS;
            if (task < 2 * r.before) /* while the engine works */
                find();
            tdm_out_wait_read<0>();
            tdm_barrier_arrive(&s.empty_dq[half]);
            tdm_out_wait();
            give_turn(x.dq_turns + sent);
        }
        if (task == 2 * r.before) /* the other two may still have work */
            send_sums<P>(a, m, x, shared, s, r.it);
        tdm_barrier_arrive(&s.empty_item[r.it % 2]);
    }
}

/* ---- the consumers ---- */

/* Zeroes the keys [first, TILE) of K and V, which were never written. All consumers call it. */
template <class P>
static __device__ __forceinline__ void clear_keys(const areas<P> &shared, uint32_t first)
{
    for (uint32_t piece = 0; piece < 2 * P::COLUMNS; piece++)
        for (uint32_t at = first * 128 + (threadIdx.x - TDM_WARPGROUP) * 16; at < TILE * 128;
             at += CONSUMERS * TDM_WARPGROUP * 16)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared.k +
                                                                          piece * TILE * 128 + at),
                         "r"(0)
                         : "memory");
    tdm_fence_shared();
    asm volatile("bar.sync 3, %0;" ::"n"(CONSUMERS * TDM_WARPGROUP) : "memory");
}

/* Masks scores [keys, tokens]: a warp's 16 keys from `key` on, and the tokens from `t` on. */
static __device__ __forceinline__ void mask_keys(float (&s)[STEP / 8][4], const tdm_attend &a,
                                                 const uint32_t *seen, uint32_t t, uint32_t key)
{
    t += threadIdx.x % 4 * 2;
    key += threadIdx.x % 32 / 4;
#pragma unroll
    for (uint32_t n = 0; n < STEP / 8; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t token = t + 8 * n + j;
            const uint32_t from = token < a.tokens ? seen[token] : UINT32_MAX;
            const uint32_t last = tdm_attend_last_key(&a, token);
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (key + 8 * h < from || key + 8 * h > last)
                    s[n][2 * h + j] = -INFINITY;
        }
    }
}

/* P = exp(S - LSE), rounded to bf16 for a product, and also kept in `s`. */
static __device__ __forceinline__ void make_p(float (&s)[STEP / 8][4], uint32_t (&p)[STEP / 16][4],
                                              const float *facts, float scale)
{
#pragma unroll
    for (uint32_t x = 0; x < STEP / 16; x++) {
        const float4 lse = *(const float4 *)(facts + 16 * x);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s[2 * x][2 * h] = tdm_exp2(s[2 * x][2 * h] * scale - lse.x);
            s[2 * x][2 * h + 1] = tdm_exp2(s[2 * x][2 * h + 1] * scale - lse.y);
            s[2 * x + 1][2 * h] = tdm_exp2(s[2 * x + 1][2 * h] * scale - lse.z);
            s[2 * x + 1][2 * h + 1] = tdm_exp2(s[2 * x + 1][2 * h + 1] * scale - lse.w);
        }
        tdm_as_a(p[x], s[2 * x], s[2 * x + 1]);
    }
}

/* dS = P (dP - rowsum(dO O)), rounded to bf16 for a product. Uses the rounded P. */
static __device__ __forceinline__ void make_ds(const float (&dp)[STEP / 8][4],
                                               const uint32_t (&p)[STEP / 16][4],
                                               uint32_t (&ds)[STEP / 16][4], const float *facts)
{
#pragma unroll
    for (uint32_t x = 0; x < STEP / 16; x++) {
        const float4 d = *(const float4 *)(facts + STEP + 16 * x);
        float left[4], right[4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t l = p[x][h], r = p[x][2 + h];
            left[2 * h] = __uint_as_float(l << 16) * (dp[2 * x][2 * h] - d.x);
            left[2 * h + 1] = __uint_as_float(l & 0xffff0000u) * (dp[2 * x][2 * h + 1] - d.y);
            right[2 * h] = __uint_as_float(r << 16) * (dp[2 * x + 1][2 * h] - d.z);
            right[2 * h + 1] = __uint_as_float(r & 0xffff0000u) * (dp[2 * x + 1][2 * h + 1] - d.w);
        }
        tdm_as_a(ds[x], left, right);
    }
}

static __device__ __forceinline__ void store_turned(uint32_t to, const uint32_t (&a)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
}

/* Where a consumer is in the queues of a block. Each item begins with stage 0: so the compiler sees
 * that all threads of a warp are at the same stage. */
struct place {
    uint32_t phases; /* bit i: what to wait for at stage i; above: number of the item */
    uint32_t before; /* steps of the items before */

    __device__ __forceinline__ uint32_t item_number() const
    {
        return phases >> STAGES;
    }
};

/* Computes the products of group G for all `count` steps of an item. Leaves dK and dV unscaled. */
template <class P, uint32_t G>
static __device__ __forceinline__ void
sum_keys(const tdm_attend &a, const areas<P> &shared, state &s, uint32_t count, place &at,
         const float *facts, float scale, float (&dk)[P::DIM / 8][4], float (&dv)[P::DIM / 8][4])
{
    constexpr uint32_t late = G ^ 1; /* group 0 adds its dQ a step late */
    constexpr int DQ = P::DIM / 16;  /* blocks of 8 columns in half a dQ */
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % TDM_WARPGROUP / 32;
    const uint32_t row = lane % 8 + lane / 16 * 8, piece = warp * 2 + lane / 8 % 2;
    const uint32_t ds_to = shared.ds + G * STEP * 128 + row * 128 + (piece ^ (row % 8)) * 16;
    const uint32_t dq_to = shared.dq + G * P::HALF_FLOATS * 4 + threadIdx.x % TDM_WARPGROUP * 16;
    constexpr uint32_t own = G * 64 * 128; /* the group's keys in K and V */
    constexpr uint32_t k_half = P::COLUMNS == 2 ? G * TILE * 128 : G * 64;
    const tdm_uniform_tile start = tdm_uniform(shared.k, 0);
    const auto tile = [&](uint32_t distance, uint32_t leading_bytes) {
        return tdm_uniform_tile{start.low + (distance >> 4) + (leading_bytes >> 4 << 16)};
    };
    const uint32_t key = s.work[at.item_number() % 2].key0 + G * 64;
    uint32_t p[STEP / 16][4], ds[STEP / 16][4];
    uint32_t i = 0, phases = at.phases;

    const auto ask_scores = [&](float(&c)[STEP / 8][4], uint32_t keys, uint32_t rows) {
        const tdm_uniform_tile keys_at = tile(keys, 16), rows_at = tile(rows, 16);
        tdm_products_hold(c);
        tdm_products_begin();
#pragma unroll
        for (uint32_t d = 0; d < P::DIM / 16; d++)
            tdm_wgmma<0>(c, tdm_matrix_at(keys_at, d / 4 * (TILE * 128) + d % 4 * 32),
                         tdm_matrix_at(rows_at, d / 4 * (STEP * 128) + d % 4 * 32), d > 0);
        tdm_products_commit();
    };
    const auto ask_dq = [&](float(&dq)[DQ][4], uint32_t buffer) {
        const tdm_uniform_tile ds_at = tile(areas<P>::DS + buffer * DS_BYTES, 16);
        const tdm_uniform_tile k_at = tile(k_half, TILE * 128);
        tdm_products_hold(dq);
        tdm_products_begin();
#pragma unroll
        for (uint32_t x = 0; x < TILE / 16; x++)
            tdm_wgmma<1>(dq, tdm_matrix_at(ds_at, x / 4 * (STEP * 128) + x % 4 * 32),
                         tdm_matrix_at(k_at, x * 2048), x > 0);
        tdm_products_commit();
    };
    /* Stages dQ of step n. */
    const auto stage_dq = [&](const float(&dq)[DQ][4], uint32_t n) {
        tdm_barrier_wait(&s.empty_dq[G], at.before + n + 1);
#pragma unroll
        for (int x = 0; x < DQ; x++)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(dq_to + x * 2048),
                         "f"(dq[x][0]), "f"(dq[x][1]), "f"(dq[x][2]), "f"(dq[x][3])
                         : "memory");
    };
    const auto dq_staged = [&](uint32_t n) {
        tdm_fence_shared();
        __syncwarp();
        if (lane == 0)
            tdm_barrier_arrive(&s.full_dq[(2 * (at.before + n) + 1 - G) % SENDERS]);
    };
    const auto mask = [&](float(&c)[STEP / 8][4], uint32_t stage) {
        const uint32_t step = s.step[stage], t0 = step & TDM_STEP_FIRST;
        if ((step & TDM_STEP_MASKED) != 0 || key + 63 > tdm_attend_last_key(&a, t0))
            mask_keys(
                c, a,
                tdm_seen_from(a, step & TDM_STEP_WHOLE, s.work[(phases >> STAGES) % 2].kv_head), t0,
                key + warp * 16);
    };

    {
        float c[STEP / 8][4], dp[STEP / 8][4];
        const float *fact = facts + lane % 4 * 4;
        tdm_barrier_wait(&s.full_q[0], phases);
        ask_scores(c, own, areas<P>::Q);
        tdm_barrier_wait(&s.full_out[0], phases);
        phases ^= 1;
        ask_scores(dp, areas<P>::V + own, areas<P>::OUT);
        tdm_products_wait<0>();
        tdm_products_hold(c);
        tdm_products_hold(dp);
        mask(c, 0);
        make_p(c, p, fact, scale);
        make_ds(dp, p, ds, fact);
        tdm_barrier_wait(&s.empty_sums, at.item_number() - 1);
#pragma unroll
        for (int x = 0; x < (int)STEP / 16; x++)
            store_turned(ds_to + x * 2048, ds[x]);
        tdm_fence_shared();
    }
    if (G == 1)
        tdm_turn_give(1);
#pragma unroll 1
    for (uint32_t n = 0; n < count; n++) {
        float c[STEP / 8][4], dp[STEP / 8][4];
        const bool more = n + 1 < count;
        const uint32_t j = i + 1 == STAGES ? 0 : i + 1;
        tdm_turn_wait(1 + G);
        {
            float dq[DQ][4];
            const tdm_uniform_tile out_at = tile(areas<P>::OUT + i * P::ROW_BYTES, STEP * 128);
            const tdm_uniform_tile q_at = tile(areas<P>::Q + i * P::ROW_BYTES, STEP * 128);
            ask_dq(dq, (n + late) & 1);
            tdm_products_hold(dk);
            tdm_products_hold(dv);
            tdm_products_begin();
#pragma unroll
            for (int x = 0; x < (int)STEP / 16; x++)
                tdm_wgmma<1>(dv, p[x], tdm_matrix_at(out_at, x * 2048), x > 0 || n > 0);
#pragma unroll
            for (int x = 0; x < (int)STEP / 16; x++)
                tdm_wgmma<1>(dk, ds[x], tdm_matrix_at(q_at, x * 2048), x > 0 || n > 0);
            tdm_products_commit();
            if (more)
                tdm_barrier_wait(&s.full_q[j], phases >> j);
            tdm_products_wait<1>();
            tdm_products_hold(dq);
            if (late == 0 || n > 0)
                stage_dq(dq, n - late);
        }
        tdm_products_wait<0>();
        tdm_products_hold(dk);
        tdm_products_hold(dv);
        if (!more) {
            if (G == 0 && lane == 0) /* send_sums releases it for group 1 */
                tdm_barrier_arrive(&s.empty[i]);
            tdm_turn_give(2 - G);
            if (late == 0 || n > 0)
                dq_staged(n - late);
            break;
        }
        ask_scores(c, own, areas<P>::Q + j * P::ROW_BYTES);
        tdm_barrier_wait(&s.full_out[j], phases >> j);
        phases ^= 1u << j;
        if (lane == 0)
            tdm_barrier_arrive(&s.empty[i]);
        ask_scores(dp, areas<P>::V + own, areas<P>::OUT + j * P::ROW_BYTES);
        tdm_turn_give(2 - G);
        if (late == 0 || n > 0)
            dq_staged(n - late);
        const float *fact = facts + j * 2 * STEP + lane % 4 * 4;
        tdm_products_wait<1>();
        tdm_products_hold(c);
        mask(c, j);
        make_p(c, p, fact, scale);
        tdm_products_wait<0>();
        tdm_products_hold(dp);
        make_ds(dp, p, ds, fact);
#pragma unroll
        for (int x = 0; x < (int)STEP / 16; x++)
            store_turned(ds_to + ((n + 1) & 1) * DS_BYTES + x * 2048, ds[x]);
        tdm_fence_shared();
        i = j;
    }
    if (G == 0) { /* the dQ of the last step */
        float dq[DQ][4];
        tdm_turn_wait(1);
        ask_dq(dq, (count - 1) & 1);
        tdm_products_wait<0>();
        tdm_products_hold(dq);
        stage_dq(dq, count - 1);
        dq_staged(count - 1);
    }
    at = {phases, at.before + count};
}

/* Adds rows of dK or dV that are `there` to fp32 sums, without reading these. Two lanes of a row
 * exchange halves, so that each adds four adjacent elements: an even lane those of block n, an odd
 * one those of block n + 1. The whole warp calls it. */
template <int B>
static __device__ __forceinline__ void add_row(float *to, const float (&c)[B][4], int h,
                                               float scale, bool there)
{
    const bool odd = threadIdx.x % 2 != 0;
    to += threadIdx.x % 4 / 2 * 4 + (odd ? 8 : 0);
#pragma unroll
    for (int n = 0; n < B; n += 2) {
        const float even_x = c[n][2 * h] * scale, even_y = c[n][2 * h + 1] * scale;
        const float odd_x = c[n + 1][2 * h] * scale, odd_y = c[n + 1][2 * h + 1] * scale;
        const float x = __shfl_xor_sync(TDM_FULL_WARP, odd ? even_x : odd_x, 1);
        const float y = __shfl_xor_sync(TDM_FULL_WARP, odd ? even_y : odd_y, 1);
        if (there)
            asm volatile(
                "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + 8 * n),
                "f"(odd ? x : even_x), "f"(odd ? y : even_y), "f"(odd ? odd_x : x),
                "f"(odd ? odd_y : y)
                : "memory");
    }
}

static __device__ __forceinline__ void store_two(uint32_t to, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

/* Stages half the columns of dK or dV of a warp's 16 keys: pieces of 32 columns, each of 64 rows of
 * 128 bytes, whose parts of 16 bytes are swizzled. A lane of an odd row writes the two halves of 64
 * bytes in the other order, so that the rows of a warp write to different banks. */
template <int DIM>
static __device__ __forceinline__ void stage_half(uint32_t to, const float (&c)[DIM / 8][4],
                                                  int half, float scale)
{
    const uint32_t lane = threadIdx.x % TDM_WARP, row = lane / 4;
    const bool odd = row % 2 != 0;
    to += (tdm_hopper_warp_row() + row) * 128 + lane % 2 * 8;
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
        if (n % 4 >= 2)
            continue;
        const uint32_t at = ((2 * (n % 4) + (odd ? 4 : 0) + lane % 4 / 2) ^ row) * 16;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *low = &c[half * (DIM / 16) + n][2 * h];
            const float *high = &c[half * (DIM / 16) + n + 2][2 * h];
            const uint32_t there = to + n / 4 * 8192 + h * 1024 + at;
            store_two(there, (odd ? high[0] : low[0]) * scale, (odd ? high[1] : low[1]) * scale);
            store_two(there ^ 64, (odd ? low[0] : high[0]) * scale,
                      (odd ? low[1] : high[1]) * scale);
        }
    }
}

/* Stores dK and dV of a warp's 16 keys from `key` on in their pages. `ours`: adds to what other
 * parts of the same sum left there. */
template <typename T, int B>
static __device__ __forceinline__ void put_keys(const tdm_attend &a, uint32_t key, uint32_t end,
                                                uint32_t kv_head, const float (&dk)[B][4],
                                                const float (&dv)[B][4], float scale, bool ours)
{
    if (key >= end)
        return;
    key += threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool there = key + 8 * h < end;
        const tdm_gradient_key to = tdm_gradient_at(a, there ? key + 8 * h : end - 1, kv_head);
        T *k = (T *)to.data + to.element, *v = k + tdm_plane_of(a);
        if constexpr (sizeof(T) == sizeof(float)) {
            /* this is the same for all keys of a page */
            if (__any_sync(TDM_FULL_WARP, to.add || ours)) {
                add_row(k, dk, h, scale, there);
                add_row(v, dv, h, 1.0f, there);
                continue;
            }
        }
        if (there) {
            tdm_put_row<T>(k, dk, h, to.add, scale);
            tdm_put_row<T>(v, dv, h, to.add, 1.0f);
        }
    }
}

/* Number of tiles of keys that add to the dQ of a tile of rows. */
template <bool LISTS>
static __device__ __forceinline__ uint32_t visitors(const tdm_attend &a, uint32_t row_tile,
                                                    uint32_t kv_head)
{
    if constexpr (LISTS)
        return tdm_list_of(a, row_tile / 2, kv_head)[0];
    const uint32_t first = a.from[row_tile * STEP] / TILE;
    const uint32_t end = tdm_attend_last_key(&a, row_tile * STEP + STEP - 1) / TILE + 1;
    return end > first ? end - first : 0; /* rows may see no visiting keys */
}

/* Scales and rounds dQ. Each group takes halves of tiles of rows, by the tickets that follow those
 * of the items, and waits until all tiles of keys have added to them. So a block that finds no more
 * items rounds while others work on the last ones. Heads of a KV head come one after the other, as
 * in the items of split tiles. */
template <class P, bool LISTS, uint32_t G>
static __device__ __forceinline__ void round_dq(const tdm_attend &a, const plan &x, state &s,
                                                float scale)
{
    const uint32_t thread = threadIdx.x % TDM_WARPGROUP, j = thread % 4;
    const uint32_t row = thread / 32 * 16 + thread % 32 / 4, ratio = a.query_heads / a.kv_heads;
#pragma unroll 1
    for (uint32_t n = 0;; n++) {
        /* group 0 begins with the ticket for which there was no item */
        if (thread == 0 && (G == 1 || n > 0))
            s.round[G][n % 2] = atomicAdd(x.ticket, 1u);
        asm volatile("bar.sync %0, %1;" ::"n"(4 + G), "n"(TDM_WARPGROUP) : "memory");
        const uint32_t number = s.round[G][n % 2] - s.tiles.tickets, tile_of_head = number / 2;
        const uint32_t half = number % 2, kv_head = tile_of_head % a.kv_heads;
        const uint32_t tile = tile_of_head / a.kv_heads % x.row_tiles;
        const uint32_t of_kv_head = tile_of_head / a.kv_heads / x.row_tiles;
        if (of_kv_head >= ratio)
            return;
        const uint32_t head = kv_head * ratio + of_kv_head;
        const uint32_t to_wait = visitors<LISTS>(a, tile, kv_head);
        const uint64_t at = 2 * ((uint64_t)head * x.row_tiles + tile) + half;
        const float4 *from = (const float4 *)(x.dq + at * P::HALF_FLOATS) + thread;
        const uint64_t token = (uint64_t)tile * STEP + row;
        if (LISTS && to_wait == 0)
            continue;
        if (thread % TDM_WARP == 0)
            wait_long(x.dq_turns + at, to_wait);
        __syncwarp();
#pragma unroll
        for (int g = 0; g < P::DIM / 64; g++) {
            float4 sums[4];
            uint32_t top[4], bottom[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[i] = to_wait > 0 ? __ldcg(from + (4 * g + i) * TDM_WARPGROUP) : float4{};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                top[i] = tdm_pack(sums[i].x * scale, sums[i].y * scale);
                bottom[i] = tdm_pack(sums[i].z * scale, sums[i].w * scale);
            }
            tdm_turn_four(top, j);
            tdm_turn_four(bottom, j);
            __nv_bfloat16 *to = (__nv_bfloat16 *)a.dq.data +
                                (token * a.query_heads + head) * P::DIM + half * (P::DIM / 2) +
                                32 * g + 8 * j;
            if (token < a.tokens)
                *(uint4 *)to = make_uint4(top[0], top[1], top[2], top[3]);
            if (token + 8 < a.tokens)
                *(uint4 *)(to + (uint64_t)8 * a.query_heads * P::DIM) =
                    make_uint4(bottom[0], bottom[1], bottom[2], bottom[3]);
        }
    }
}

/* Computes the products of a group for all items of the block, stores dK, dV in their pages, and
 * rounds dQ. */
template <class P, typename T, bool LISTS, uint32_t G>
static __device__ __forceinline__ void consume(const tdm_attend &a, const plan &x,
                                               const areas<P> &shared, state &s, const float *facts,
                                               float scale)
{
    place at = {0, 0};
#pragma unroll 1
    for (;; at.phases += 1u << STAGES) {
        float dk[P::DIM / 8][4] = {}, dv[P::DIM / 8][4] = {};
        uint32_t it = at.item_number();
        tdm_barrier_wait(&s.full_item[it % 2], it / 2);
        const uint32_t count = __shfl_sync(TDM_FULL_WARP, s.count[it % 2], 0);
        if (count == NO_WORK)
            break;
        {
            const item &w = s.work[it % 2];
            tdm_barrier_wait(&s.full_keys, it);
            if (w.key0 + TILE > w.end)
                clear_keys<P>(shared, w.end - w.key0);
            if (count > 0)
                sum_keys<P, G>(a, shared, s, count, at, facts, scale * TDM_LOG2_E, dk, dv);
            else
                tdm_barrier_wait(&s.empty_sums, it - 1);
        }
        it = again(at.phases) >> STAGES;
        const item w = s.work[it % 2];
        if (w.by_engine) {
            const sums_at<P> to(shared, G, (count + STAGES - 1) % STAGES);
            stage_half<P::DIM>(to.dv, dv, 0, 1.0f);
            stage_half<P::DIM>(to.dv + P::ROW_BYTES, dv, 1, 1.0f);
            stage_half<P::DIM>(to.dk, dk, 0, scale);
            stage_half<P::DIM>(to.dk_high, dk, 1, scale);
            tdm_fence_shared();
        }
        __syncwarp();
        if (threadIdx.x % TDM_WARP == 0) {
            tdm_barrier_arrive(&s.full_sums[G]);
            tdm_barrier_arrive(&s.empty_item[it % 2]);
        }
        if (w.by_engine)
            continue;
        if (w.is_split && w.part > 0) {
            if (threadIdx.x == TDM_WARPGROUP)
                wait_turn(x.key_turns + w.turn, w.part);
            asm volatile("bar.sync 3, %0;" ::"n"(CONSUMERS * TDM_WARPGROUP) : "memory");
        }
        put_keys<T>(a, w.key0 + G * 64 + tdm_hopper_warp_row(), w.end, w.kv_head, dk, dv, scale,
                    w.part > 0);
        if (w.is_split) {
            __threadfence();
            asm volatile("bar.sync 3, %0;" ::"n"(CONSUMERS * TDM_WARPGROUP) : "memory");
            if (threadIdx.x == TDM_WARPGROUP)
                give_turn(x.key_turns + w.turn);
        }
    }
    round_dq<P, LISTS, G>(a, x, s, scale);
}

template <class P, typename T, bool LISTS>
static __global__ void __launch_bounds__(THREADS, 1)
    grad_hopper(const __grid_constant__ tdm_attend a, const __grid_constant__ maps m,
                const __grid_constant__ plan x, float scale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ state s;
    __shared__ role<LISTS> roles[1 + SENDERS];
    __shared__ __align__(128) float facts[STAGES * 2 * STEP];
    const areas<P> shared(memory);
    if (threadIdx.x == 0) {
        s.tiles.find(a, x);
        if (LISTS)
            s.tiles.tickets = x.tickets;
        tdm_barrier_init(&s.full_keys, 1);
        tdm_barrier_init(&s.empty_sums, 1);
        for (uint32_t i = 0; i < 2; i++) {
            tdm_barrier_init(&s.full_item[i], 1);
            tdm_barrier_init(&s.empty_item[i], SENDERS + CONSUMERS * TDM_WARPGROUP / 32);
        }
        for (uint32_t i = 0; i < STAGES; i++) {
            tdm_barrier_init(&s.full_q[i], 1);
            tdm_barrier_init(&s.full_out[i], 1);
            tdm_barrier_init(&s.empty[i], CONSUMERS * TDM_WARPGROUP / 32);
        }
        for (uint32_t i = 0; i < SENDERS; i++)
            tdm_barrier_init(&s.full_dq[i], TDM_WARPGROUP / 32);
        for (uint32_t i = 0; i < CONSUMERS; i++) {
            tdm_barrier_init(&s.empty_dq[i], 1);
            tdm_barrier_init(&s.full_sums[i], TDM_WARPGROUP / 32);
        }
        tdm_barriers_ready();
    }
    __syncthreads();
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<LISTS ? 40 : 24>();
        if (threadIdx.x == 0)
            produce<P, T, LISTS>(a, m, x, shared, s, roles[0], tdm_shared(facts));
        else if (threadIdx.x % 32 == 0)
            send_dq<P, LISTS>(a, m, x, shared, s, roles[threadIdx.x / 32], threadIdx.x / 32 - 1);
    } else {
        tdm_take_registers<LISTS ? 232 : 240>();
        if (threadIdx.x < 2 * TDM_WARPGROUP)
            consume<P, T, LISTS, 0>(a, x, shared, s, facts, scale);
        else
            consume<P, T, LISTS, 1>(a, x, shared, s, facts, scale);
    }
}

/* ---- before and after ---- */

/* Computes the facts of all rows. For rows after the last token they make all results zero. Also
 * resets the turn counters. A block has FACT_ROWS consecutive rows of [token, query head]; a lane
 * reads 8 elements of a row at a time. */
#define FACT_ROWS 64u
template <class P>
static __global__ void __launch_bounds__(256)
    find_facts(const tdm_attend a, const plan x, uint64_t turns)
{
    constexpr uint32_t lanes = P::DIM / 8, at_once = 256 / lanes, each = FACT_ROWS / at_once;
    const uint64_t first = (uint64_t)blockIdx.x * FACT_ROWS + threadIdx.x / lanes;
    const uint32_t lane = threadIdx.x % lanes;
    /* if the dot products are given, the others are not used */
    const __nv_bfloat16 *out = (const __nv_bfloat16 *)(a.dots == NULL ? a.out.data : a.d_out.data);
    float d[each][8], o[each][8], sum[each];
    for (uint64_t i = (uint64_t)blockIdx.x * 256 + threadIdx.x; i < turns;
         i += (uint64_t)gridDim.x * 256)
        x.dq_turns[i] = 0;
#pragma unroll
    for (uint32_t i = 0; i < each; i++) {
        const uint64_t row = first + i * at_once;
        const uint64_t from = row < a.tokens * a.query_heads ? row : 0;
        tdm_load<8>((const __nv_bfloat16 *)a.d_out.data, from * P::DIM + lane * 8, d[i]);
        tdm_load<8>(out, from * P::DIM + lane * 8, o[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < each; i++) {
        const uint64_t row = first + i * at_once, token = row / a.query_heads;
        const uint32_t head = (uint32_t)(row - token * a.query_heads);
        const bool is_there = token < a.tokens;
        sum[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[i] += d[i][j] * o[i][j];
#pragma unroll
        for (uint32_t offset = lanes / 2; offset > 0; offset /= 2)
            sum[i] += __shfl_xor_sync(TDM_FULL_WARP, sum[i], offset);
        if (lane == 0 && token < (uint64_t)x.row_tiles * STEP) {
            float *to = (float *)x.facts +
                        (head * (uint64_t)x.row_tiles + token / STEP) * 2 * STEP +
                        fact_at((uint32_t)(token % STEP));
            to[0] = is_there ? a.lse[row] * TDM_LOG2_E : INFINITY;
            to[STEP] = !is_there ? 0.0f : a.dots == NULL ? sum[i] : a.dots[row];
        }
    }
}

/* Maximum number of pages before the chunk in a query page's list. */
static uint64_t entries_before(const tdm_attend &a, const plan &x)
{
    const struct tdm_page_rule *rule = &a.lists.rule;
    uint64_t most = tdm_attend_key_pages(&a) - x.query_pages;
    if (most > a.lists.capacity)
        most = a.lists.capacity;
    /* if these are only part of a chunk's queries, lists also have earlier pages of the chunk,
     * beside those of the budget */
    if (rule->selector.kind == TDM_SELECT_TOP_K && x.query_pages == tdm_pages_of_chunk(rule) &&
        most > rule->selector.budget / rule->page_tokens)
        most = rule->selector.budget / rule->page_tokens;
    return most * x.query_pages;
}

template <class P, typename T, bool LISTS>
static enum tdm_status launch(const struct tdm_attend *attend, const maps &m, const plan &planned,
                              uint64_t turns, cudaStream_t stream, struct tdm_error *err)
{
    struct tdm_attend a = *attend;
    const float scale = (float)(1.0 / sqrt((double)P::DIM));
    const uint64_t rows = (uint64_t)planned.row_tiles * STEP * a.query_heads;
    enum tdm_status status = TDM_CUDA(
        cudaFuncSetAttribute((const void *)grad_hopper<P, T, LISTS>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)P::SHARED_BYTES),
        err);
    if (status != TDM_OK)
        return status;
    plan x = planned;
    x.tickets = x.key_tiles * (x.whole_tiles < x.key_tiles ? x.parts : 1) * a.kv_heads;
    if (LISTS) {
        const uint64_t pages = tdm_attend_key_pages(&a);
        const bool separate =
            sizeof(T) == sizeof(float); /* only fp32 sums may be added to in several steps */
        const uint32_t split = separate && x.parts < ENTRY_WHOLE ? x.parts : 1;
        /* all query pages list a page of all */
        const uint64_t entries = (uint64_t)x.query_pages * a.lists.capacity;
        const uint64_t read = separate ? (uint64_t)a.lists.capacity + x.query_pages : entries;
        uint64_t items =
            tdm_attend_parts(pages < read ? pages : read, x.query_pages, a.lists.lists, split);
        if (separate)
            items += entries_before(a, x) * a.lists.lists;
        x.tickets = (uint32_t)(items * (a.kv_heads / a.lists.lists));
        tdm_launch_unread<T>(&a, stream);
        find_ranks<<<x.query_pages * a.lists.lists, 128, 0, stream>>>(a, x, separate);
        order_pages<<<1, ORDER_THREADS, 0, stream>>>(a, x, (uint32_t)(pages * a.lists.lists), split,
                                                     separate);
        if (separate)
            find_pairs<<<x.query_pages * a.lists.lists, 128, 0, stream>>>(a, x);
    }
    if (a.keys <= a.chunk_tokens) /* a single slot; round it up to whole pages */
        a.chunk_tokens = (a.chunk_tokens + a.page_tokens - 1) / a.page_tokens * a.page_tokens;
    find_facts<P><<<(unsigned)((rows + FACT_ROWS - 1) / FACT_ROWS), 256, 0, stream>>>(a, x, turns);
    const unsigned most = tdm_cuda_multiprocessors(), blocks = x.tickets < most ? x.tickets : most;
    grad_hopper<P, T, LISTS><<<blocks, THREADS, P::SHARED_BYTES, stream>>>(a, m, x, scale);
    return tdm_cuda_status(cudaGetLastError(), "attention_grad launch", err);
}

/* Visiting keys (tdm_attend_visits) are tiles that all rows see. Would they be done earlier if all
 * tiles were split by query heads? Counts steps on a card of TDM_ATTEND_BLOCKS multiprocessors. */
static bool parts_are_faster(const struct tdm_attend *a, const plan &x)
{
    const uint64_t tiles = (uint64_t)x.key_tiles * a->kv_heads;
    const uint64_t steps = (uint64_t)(a->query_heads / a->kv_heads) * x.row_tiles;
    const uint64_t of_part = (uint64_t)x.part_heads * x.row_tiles + PART_STEPS;
    const auto rounds = [](uint64_t items) {
        return (items + TDM_ATTEND_BLOCKS - 1) / TDM_ATTEND_BLOCKS;
    };
    return rounds(tiles * x.parts) * of_part < rounds(tiles) * steps;
}

template <class P>
static enum tdm_status run(const struct tdm_attend *a, cudaStream_t stream, struct tdm_error *err)
{
    const bool visits = tdm_attend_visits(a);
    const bool lists = a->lists.pages != NULL;
    const enum tdm_dtype gradients = a->written.data != NULL ? a->written.dtype : a->added.dtype;
    plan x = {};
    maps m;
    x.row_tiles = (uint32_t)((a->tokens + STEP - 1) / STEP);
    x.key_tiles = (uint32_t)((a->keys + TILE - 1) / TILE);
    x.facts = a->d;
    x.dq = a->dq_sums;
    x.dq_turns = a->turns;
    x.key_turns = x.dq_turns + 2 * (uint64_t)a->query_heads * x.row_tiles;
    x.ticket = x.key_turns + (uint64_t)x.key_tiles * a->kv_heads;
    const uint32_t ratio = a->query_heads / a->kv_heads;
    const uint32_t tiles_before =
        visits ? x.key_tiles : (uint32_t)((a->first_token - a->key_token) / TILE);
    const uint32_t own_tiles = x.key_tiles - tiles_before;
    const struct tdm_selector *selector = &a->lists.rule.selector;
    const bool is_window =
        selector->kind == TDM_SELECT_WINDOW && selector->window < a->first_token + a->tokens;
    /* A part has a fixed cost of a few steps. So parts have two heads, but for heads of 64 and
     * windows, where that was slower, and visiting keys (parts_are_faster). */
    const bool in_pairs = lists || (P::DIM == 128 && !is_window && !visits);
    x.part_heads = in_pairs && ratio > 3 ? 2 : 1;
    x.parts = (ratio + x.part_heads - 1) / x.part_heads;
    /* A lag of all tiles runs the parts one after the other. A smaller lag starts the long tiles
     * earlier, and spreads blocks that add to the same dQ over time; so do two parts that begin
     * together. But then the rows of some heads of each KV head, with their gradients and sums of
     * dQ, must stay in the L2 cache: those of three heads are counted. */
    const uint64_t row_bytes = (uint64_t)P::DIM * (2 + 2 + 4) * a->kv_heads;
    const bool fits = 3 * a->tokens * row_bytes <= CACHE_BYTES;
    x.part_lag = visits ? x.key_tiles : fits ? (3 * own_tiles + 7) / 8 : own_tiles;
    x.parts_at_once = fits ? x.part_heads : 1;
    /* Documents have fewer rows. Their tiles are short, so that blocks that add to the same dQ
     * follow each other too closely if parts come one after the other. */
    if (!fits && a->documents.count > 1)
        x.half_lag_rows = (uint32_t)(CACHE_BYTES / (2 * x.part_heads * row_bytes));
    x.whole_tiles = x.key_tiles;
    /* Where a window ends before the chunk does, tiles have rising numbers of rows. Blocks with all
     * query heads of such tiles would soon be at different heads, and the rows of all heads do not
     * fit in the L2 cache. So all tiles are split. A part lags by the tiles before the chunk that
     * are seen: its rising tiles then run beside the falling ones of the part before. */
    const uint64_t window_tiles = (selector->window + TILE - 1) / TILE;
    if (is_window && tiles_before > 0) {
        x.half_lag_rows = 0;
        x.part_lag = window_tiles < tiles_before ? (uint32_t)window_tiles : tiles_before;
    }
    if (lists) {
        x.query_pages = (uint32_t)((a->tokens + a->page_tokens - 1) / a->page_tokens);
        x.words = (uint32_t)tdm_attend_words(a);
        x.pairs = (uint2 *)a->order;
        x.order = a->order + 2 * tdm_attend_items_of_some(tdm_attend_key_pages(a), x.query_pages,
                                                          a->lists.lists, a->lists.capacity);
        x.list_pages = (uint16_t *)(x.order + ORDER_NUMBERS +
                                    tdm_attend_parts(tdm_attend_key_pages(a), x.query_pages,
                                                     a->lists.lists, ratio));
        x.ranks = x.list_pages + 2 * x.query_pages * a->lists.lists;
    }
    if (gradients == TDM_DTYPE_FP32 && x.parts > 1) {
        if (is_window || (visits && parts_are_faster(a, x)))
            x.whole_tiles = 0;
        else if (!visits && own_tiles * a->kv_heads < FEW_TILES)
            x.whole_tiles = tiles_before;
    }
    const uint64_t turns = (uint64_t)(x.ticket + 1 - x.dq_turns);
    enum tdm_status status = tdm_cuda_map_pages(a, TILE, P::COLUMNS, &m.keys, err);
    if (status == TDM_OK)
        status = tdm_cuda_map_rows(a->q.data, a->tokens, a->query_heads, P::DIM, STEP, &m.q, err);
    if (status == TDM_OK)
        status = tdm_cuda_map_rows(a->d_out.data, a->tokens, a->query_heads, P::DIM, STEP, &m.d_out,
                                   err);
    if (status == TDM_OK && gradients == TDM_DTYPE_FP32 && a->written_slots > 0)
        status = tdm_cuda_map_sums(a, a->written.data, STEP, P::COLUMNS, &m.written, err);
    if (status == TDM_OK && gradients == TDM_DTYPE_FP32 && a->added.data != NULL)
        status = tdm_cuda_map_sums(a, a->added.data, STEP, P::COLUMNS, &m.added, err);
    if (status != TDM_OK)
        return status;
    if (gradients == TDM_DTYPE_FP32)
        return lists ? launch<P, float, true>(a, m, x, turns, stream, err)
                     : launch<P, float, false>(a, m, x, turns, stream, err);
    return lists ? launch<P, __nv_bfloat16, true>(a, m, x, turns, stream, err)
                 : launch<P, __nv_bfloat16, false>(a, m, x, turns, stream, err);
}

extern "C" enum tdm_status tdm_cuda_attention_grad_hopper(const struct tdm_attend *a,
                                                          cudaStream_t stream,
                                                          struct tdm_error *err)
{
    return a->head_dim == 64 ? run<made_for<64>>(a, stream, err)
                             : run<made_for<128>>(a, stream, err);
}
