/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Votes of query pages on the pages before their chunk, on Hopper: bf16, head dim 128, pages of 128
 * tokens.
 *
 * The two passes of select_votes.cu, with products of warpgroups. In both a consumer holds 128 rows
 * of one factor in registers. The producer copies 128 rows of the other factor at a time, which
 * both consumers use:
 *
 *     find_lse   holds the queries of a query page and query head,
 *                takes the means of their candidates
 *     sum_rows   holds the means of 128 pages,
 *                takes the queries of one query page and head after another
 *
 * A product has half as many FLOPs for each exponential as in attention. So exponentials take as
 * long as products. Consumers take turns in issuing products, and one computes exponentials while
 * the other's products run. Exponentials are relative to the largest score with the first means;
 * finding the largest of all would cost a third more. A row is computed again on CUDA cores if
 * another score is so much larger that the sum exceeds the range of fp32. There is one block on
 * each multiprocessor, which stays and has an equal share of the work.
 *
 * Measured on an H200, 28/4 heads x 128, 4K tokens over 256K and 1M keys, whole selection: 0.60 and
 * 2.05 ms with mma.sync; 0.36 and 1.24 with 64 rows a consumer and no turns; 0.34 and 1.11 with
 * whole rows for each block, where some blocks have a fifth more rows than others; 0.34 and 1.08 as
 * here. Polynomials for 1/8 to 3/8 of the exponentials, or other orders of turns and products,
 * changed nothing or cost 3%. So these are not the limit.
 */
#include "executor/cuda/card.h"
#include "executor/cuda/device.cuh"
#include "executor/cuda/hopper_tiles.cuh"
#include "executor/cuda/select.cuh"

#define DIM 128
#define PIECES 16u /* pieces of 16 bytes in a row */
#define TILE 128u  /* rows of a consumer, and rows taken at a time */
#define STAGES 4u
#define CONSUMERS 2u
#define HELD (CONSUMERS * TILE) /* rows of a block */
#define THREADS ((CONSUMERS + 1) * TDM_WARPGROUP)
#define TILE_BYTES (TILE * DIM * 2)
#define SHARED_BYTES ((CONSUMERS + STAGES) * TILE_BYTES + 1024u)
#define MOST_PAGES 512u /* largest number of query pages in a chunk */
/* For a query page: the number of tokens that vote, 0 if there is no vote; and its first
 * candidate. */
struct voters {
    uint32_t tokens, candidate;
};

struct state {
    uint64_t full_held, empty_held, full[STAGES], empty[STAGES];
    float lse[STAGES][TILE];
    voters page[MOST_PAGES];
};

/* Values that all threads of a block know. */
struct block {
    uint32_t held, stages; /* addresses in shared memory */
    uint32_t pages, before;
    uint32_t tiles, held_tiles; /* of TILE and of HELD candidates */

    __device__ __forceinline__ block(const tdm_select &s, const unsigned char *memory)
    {
        held = (tdm_shared(memory) + 1023) / 1024 * 1024;
        stages = held + CONSUMERS * TILE_BYTES;
        pages = (uint32_t)((s.tokens + TILE - 1) / TILE);
        before = tdm_pages_before(&s);
        tiles = (before + TILE - 1) / TILE;
        held_tiles = (before + HELD - 1) / HELD;
    }

    __device__ __forceinline__ uint32_t stage(uint32_t number) const
    {
        return stages + number % STAGES * TILE_BYTES;
    }
};

static __device__ __forceinline__ void init(const tdm_select &s, const block &b, state &state)
{
    if (threadIdx.x == 0) {
        tdm_barrier_init(&state.full_held, TDM_WARPGROUP);
        tdm_barrier_init(&state.empty_held, CONSUMERS * TDM_WARPGROUP / 32);
        for (uint32_t i = 0; i < STAGES; i++) {
            tdm_barrier_init(&state.full[i], TDM_WARPGROUP);
            tdm_barrier_init(&state.empty[i], CONSUMERS * TDM_WARPGROUP / 32);
        }
    }
    for (uint32_t i = threadIdx.x; i < b.pages; i += THREADS) {
        const tdm_vote v = tdm_vote_of(s, i, 0);
        state.page[i] = voters{v.candidates > 0 ? v.rows / v.ratio : 0, v.candidate};
    }
    __syncthreads();
}

/* What a block holds at a time. In find_lse these are rows of the query pages [page, end_page), one
 * page for each consumer, of a query head. They take the tiles of candidates [tile, end_tile),
 * which may be part of all tiles. In sum_rows it is tile `tile` of HELD candidates for a KV head,
 * which takes the rows of the query pages. */
struct run {
    uint32_t head, tile, end_tile, page, end_page, part;
    uint32_t steps; /* number of tiles that are taken */
};

/* Tokens of a query page that vote on a tile of HELD pages. */
static __device__ __forceinline__ uint32_t voters_on(const state &state, uint32_t page,
                                                     uint32_t tile)
{
    const voters v = state.page[page];
    return (tile + 1) * HELD > v.candidate ? v.tokens : 0;
}

/* Work of find_lse is divided into at most this many shares, whatever the GPU: where a row's tiles
 * are cut in two decides how its sum is rounded. As many as an H100 or H200 has multiprocessors. */
#define MOST_SHARES TDM_ATTEND_BLOCKS

/* Loops over the runs of a block that have work. A share is a range of the (query pages, query
 * head, tile) or (KV head, tile, query page), and all are equal. In find_lse a share is at least
 * all tiles of a row, so a row's tiles are in at most two parts. A block there may have several
 * shares. In sum_rows there are as many shares as blocks, as no sum is cut. */
template <bool VOTES> struct run_cursor {
    uint32_t at, end, share;

    __device__ __forceinline__ run_cursor(const tdm_select &s, const block &b) : share(blockIdx.x)
    {
        begin_share(s, b);
    }

    /* Shares from the last on are empty. */
    __device__ __forceinline__ void begin_share(const tdm_select &s, const block &b)
    {
        uint32_t units, shares = gridDim.x;
        if constexpr (VOTES) {
            units = s.kv_heads * b.held_tiles * b.pages;
        } else {
            const uint32_t rows = (b.pages + CONSUMERS - 1) / CONSUMERS * s.query_heads;
            shares = rows < MOST_SHARES ? rows : MOST_SHARES;
            units = rows * b.tiles;
        }
        const uint32_t each = units / shares, longer = units - each * shares;
        at = each * share + (share < longer ? share : longer);
        end = share < shares ? at + each + (share < longer ? 1 : 0) : at;
    }

    /* Is there more of the block's work? */
    __device__ __forceinline__ bool more(const tdm_select &s, const block &b)
    {
        if constexpr (!VOTES) {
            if (at == end) {
                share += gridDim.x;
                begin_share(s, b);
            }
        }
        return at < end;
    }

    __device__ __forceinline__ bool next(const tdm_select &s, const block &b, const state &state,
                                         run &r)
    {
        for (r.steps = 0; r.steps == 0 && more(s, b);) {
            if constexpr (VOTES) {
                const uint32_t held = at / b.pages;
                r.page = at - held * b.pages;
                r.end_page = end - at < b.pages - r.page ? r.page + end - at : b.pages;
                r.head = held / b.held_tiles;
                r.tile = held - r.head * b.held_tiles;
                at += r.end_page - r.page;
                for (uint32_t page = r.page; page < r.end_page; page++)
                    r.steps += voters_on(state, page, r.tile) > 0 ? s.query_heads / s.kv_heads : 0;
            } else {
                const uint32_t item = at / b.tiles, begin = at - item * b.tiles;
                const uint32_t pair = item / s.query_heads;
                r.head = item - pair * s.query_heads;
                r.page = pair * CONSUMERS;
                r.end_page = r.page + CONSUMERS < b.pages ? r.page + CONSUMERS : b.pages;
                r.end_tile = end - at < b.tiles - begin ? begin + end - at : b.tiles;
                r.tile = r.end_tile;
                r.part = begin > 0 ? 1 : 0;
                at += r.end_tile - begin;
                for (uint32_t page = r.page; page < r.end_page; page++) {
                    const uint32_t first = state.page[page].candidate / TILE;
                    if (state.page[page].tokens > 0)
                        r.tile = first < r.tile ? first : r.tile;
                }
                r.tile = r.tile > begin ? r.tile : begin;
                r.steps = r.end_tile - r.tile;
            }
        }
        return r.steps > 0;
    }
};

/* ---- copies ---- */

/* Copies to shared memory by the threads of one warpgroup. The producer arrives at a copy's barrier
 * after it has issued the next copies, or before it waits. */
struct copier {
    uint64_t *pending;

    __device__ __forceinline__ copier() : pending(NULL)
    {
    }

    /* Waits until consumers have released the memory that the next copies overwrite. */
    __device__ __forceinline__ void wait(uint64_t *barrier, uint32_t phase)
    {
        if (tdm_barrier_test(barrier, phase))
            return;
        finish();
        tdm_barrier_wait(barrier, phase);
    }

    /* All copies since the last commit belong to `barrier`. */
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

/* Each thread of the warpgroup copies piece `thread % 16` of every 8th row, from row `thread / 16`
 * on. */
static __device__ __forceinline__ uint32_t piece_of(uint32_t tile, uint32_t rows)
{
    const uint32_t row = threadIdx.x % TDM_WARPGROUP / PIECES;
    const uint32_t piece = threadIdx.x % PIECES;
    return tile + piece / 8 * rows * 128 + row * 128 + ((piece % 8) ^ row) * 16;
}

/* Begins to copy ROWS rows that are `stride` elements apart. Rows from `count` on become zeros. */
template <uint32_t ROWS>
static __device__ __forceinline__ void copy_rows(uint32_t tile, const __nv_bfloat16 *from,
                                                 uint64_t stride, uint32_t count)
{
    const uint32_t row = threadIdx.x % TDM_WARPGROUP / PIECES;
    const uint32_t to = piece_of(tile, ROWS);
    from += threadIdx.x % PIECES * 8;
#pragma unroll 8
    for (uint32_t i = 0; i < ROWS / 8; i++) {
        const bool is_there = row + 8 * i < count;
        tdm_copy_async(to + i * 1024, from + (is_there ? row + 8 * i : 0) * stride, is_there);
    }
}

/* Copies the rows of a query page and query head; zeros if there are none. */
static __device__ __forceinline__ void fetch_queries(uint32_t tile, const tdm_select &s,
                                                     const block &b, const state &state,
                                                     uint32_t page, uint32_t head)
{
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)s.q.data;
    const uint32_t tokens = page < b.pages ? state.page[page].tokens : 0;
    const uint64_t row = (uint64_t)(tokens > 0 ? page * TILE : 0) * s.query_heads + head;
    copy_rows<TILE>(tile, q + row * DIM, (uint64_t)s.query_heads * DIM, tokens);
}

/* Copies the means from page `first` before the chunk on; zeros if there are none. */
static __device__ __forceinline__ void fetch_means(uint32_t tile, const tdm_select &s,
                                                   const block &b, uint32_t first, uint32_t kv_head)
{
    const __nv_bfloat16 *means = (const __nv_bfloat16 *)s.means.data;
    const uint32_t count = first < b.before ? b.before - first : 0;
    const uint64_t row = (uint64_t)(count > 0 ? first : 0) * s.kv_heads + kv_head;
    copy_rows<TILE>(tile, means + row * DIM, (uint64_t)s.kv_heads * DIM, count);
}

/* The LSE of the rows of a query page and head over one part of their candidates; NaN if there is
 * no such part. */
static __device__ __forceinline__ float *lse_of(const tdm_select &s, uint32_t page, uint32_t head,
                                                uint32_t part)
{
    return s.lse + (part * (uint64_t)s.query_heads + head) * s.tokens + page * TILE;
}

/* The LSE of a row over both parts. */
static __device__ __forceinline__ float whole_lse(const tdm_select &s, uint32_t page, uint32_t head,
                                                  uint32_t row)
{
    const float one = lse_of(s, page, head, 0)[row], other = lse_of(s, page, head, 1)[row];
    const float most = fmaxf(one, other), distance = fabsf(one - other);
    return distance < INFINITY ? most + log2f(1.0f + exp2f(-distance)) : most;
}

static __device__ __forceinline__ void wait_empty(state &state, copier &producer, uint32_t number)
{
    if (number >= STAGES)
        producer.wait(&state.empty[number % STAGES], number / STAGES - 1);
}

template <bool VOTES>
static __device__ void produce(const tdm_select &s, const block &b, state &state)
{
    const uint32_t ratio = s.query_heads / s.kv_heads;
    run_cursor<VOTES> cursor(s, b);
    copier producer;
    uint32_t number = 0, runs = 0;
    for (run r; cursor.next(s, b, state, r); runs++) {
        if (runs > 0)
            producer.wait(&state.empty_held, runs - 1);
#pragma unroll 1 /* or registers are spilled */
        for (uint32_t i = 0; i < CONSUMERS; i++) {
            const uint32_t to = b.held + i * TILE_BYTES;
            if constexpr (VOTES)
                fetch_means(to, s, b, r.tile * HELD + i * TILE, r.head);
            else
                fetch_queries(to, s, b, state, r.page + i, r.head);
        }
        producer.commit(&state.full_held);
        if constexpr (VOTES) {
            for (; r.page < r.end_page; r.page++) {
                const uint32_t tokens = voters_on(state, r.page, r.tile);
                for (uint32_t h = 0; tokens > 0 && h < ratio; h++, number++) {
                    const uint32_t head = r.head * ratio + h;
                    float lse = INFINITY; /* a row that does not vote */
                    if (threadIdx.x < tokens)
                        lse = whole_lse(s, r.page, head, threadIdx.x);
                    wait_empty(state, producer, number);
                    fetch_queries(b.stage(number), s, b, state, r.page, head);
                    state.lse[number % STAGES][threadIdx.x] = lse;
                    producer.commit(&state.full[number % STAGES]);
                }
            }
        } else {
            for (; r.tile < r.end_tile; r.tile++, number++) {
                wait_empty(state, producer, number);
                fetch_means(b.stage(number), s, b, r.tile * TILE, r.head / ratio);
                producer.commit(&state.full[number % STAGES]);
            }
        }
    }
    producer.finish();
}

/* ---- sums ---- */

/* Scores of 64 rows, in the layout of the tensor cores, and the same rows as a factor. */
typedef float scores[TILE / 8][4];
typedef uint32_t factor[DIM / 16][4];

/* Loads the warpgroup's 64 rows of a tile of `rows` rows, all columns, as A in registers. */
static __device__ __forceinline__ void load_held(factor &a, uint32_t tile, uint32_t rows)
{
    const uint32_t lane = threadIdx.x % 32, row = tdm_hopper_warp_row() + lane % 16;
#pragma unroll
    for (uint32_t block = 0; block < DIM / 16; block++)
        tdm_ldmatrix(a[block], tile + block / 4 * rows * 128 + row * 128 +
                                   ((2 * (block % 4) + lane / 16) ^ (row % 8)) * 16);
}

static __device__ __forceinline__ void release(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        tdm_barrier_arrive(barrier);
}

/* Issues the products for the scores of 64 held rows with a tile. */
static __device__ __forceinline__ void ask(scores &s, const factor &held, uint32_t tile)
{
    tdm_products_hold(s);
    tdm_products_begin();
#pragma unroll
    for (uint32_t d = 0; d < DIM / 16; d++)
        tdm_wgmma<0>(s, held[d], tdm_columns_of(tile, TILE, d), d > 0);
    tdm_products_commit();
}

/* Takes tile `number`. Calls `use` with the scores of each half of the consumer's rows. */
template <typename F>
static __device__ __forceinline__ void take(const block &b, state &state, const factor (&held)[2],
                                            uint32_t number, F use)
{
    const uint32_t group = threadIdx.x / TDM_WARPGROUP - 1, tile = b.stage(number);
    scores low, high;
    tdm_barrier_wait(&state.full[number % STAGES], number / STAGES);
    tdm_turn_wait(1 + group);
    ask(low, held[0], tile);
    ask(high, held[1], tile);
    tdm_turn_give(1 + (group ^ 1));
    tdm_products_wait<1>();
    tdm_products_hold(low);
    use(low, 0);
    tdm_products_wait<0>();
    tdm_products_hold(high);
    use(high, 1);
}

/* Keeps the sums before the wait for the next products. The assembler moves sums across waits, but
 * not across a branch that depends on them. The branch is never taken. */
static __device__ __forceinline__ void hold(const float (&sum)[2])
{
    if (sum[0] + sum[1] < 0.0f)
        asm volatile("nanosleep.u32 0;");
}

/* For a lane's two rows of a half: the shift of their exponentials, in powers of two, and the sums
 * of the exponentials. */
struct row_sums {
    float shift[2], sum[2];
};

/* Sets the shift to the largest score. */
static __device__ __forceinline__ void find_shift(const scores &s, row_sums &rows, float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = s[0][2 * h];
#pragma unroll
        for (uint32_t n = 0; n < TILE / 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(TDM_FULL_WARP, most, 1));
        most = fmaxf(most, __shfl_xor_sync(TDM_FULL_WARP, most, 2));
        rows.shift[h] = most * scale;
    }
}

/* Adds the exponentials of a tile to the sums of rows. */
static __device__ __forceinline__ void add_row_sums(const scores &s, row_sums &rows, float scale)
{
    float parts[2][2] = {};
#pragma unroll
    for (uint32_t n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            parts[i / 2][i % 2] += tdm_exp2(s[n][i] * scale - rows.shift[i / 2]);
    rows.sum[0] += parts[0][0] + parts[0][1];
    rows.sum[1] += parts[1][0] + parts[1][1];
}

/* Sets all columns outside [begin, end) to -infinity. */
static __device__ __forceinline__ void mask(scores &s, uint32_t begin, uint32_t end)
{
#pragma unroll
    for (uint32_t n = 0; n < TILE / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t column = 8 * n + threadIdx.x % 4 * 2 + i % 2;
            if (column < begin || column >= end)
                s[n][i] = -INFINITY;
        }
    }
}

/* Adds the probabilities of a tile's rows to the sums of candidates. */
static __device__ __forceinline__ void add_votes(const scores &s, float (&sum)[2], float scale,
                                                 const float *lse)
{
    float parts[2][2] = {};
    lse += threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t n = 0; n < TILE / 8; n++) {
        const float2 two = *(const float2 *)(lse + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++)
            parts[i / 2][i % 2] += tdm_exp2(s[n][i] * scale - (i % 2 ? two.y : two.x));
    }
    sum[0] += parts[0][0] + parts[0][1];
    sum[1] += parts[1][0] + parts[1][1];
    hold(sum);
}

static __device__ __forceinline__ float sum_of_row(float sum)
{
    sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
    return sum + __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
}

/* The first of the lane's rows in a half of the consumer's; the other is 8 rows later. */
static __device__ __forceinline__ uint32_t lane_row(uint32_t half)
{
    return half * 64 + tdm_hopper_warp_row() + threadIdx.x % 32 / 4;
}

/* Writes the LSE of the rows of half a query page. */
static __device__ __forceinline__ void put_lse(const tdm_select &s, const block &b, const run &r,
                                               voters v, uint32_t page, uint32_t half,
                                               const row_sums &rows, float scale)
{
    float *lse = lse_of(s, page, r.head, r.part);
    const uint32_t first = r.tile * TILE > v.candidate ? r.tile * TILE : v.candidate;
    const uint32_t end = r.end_tile * TILE < b.before ? r.end_tile * TILE : b.before;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = sum_of_row(rows.sum[h]);
        const uint32_t row = lane_row(half) + 8 * h;
        if (row < v.tokens && threadIdx.x % 4 == 0)
            lse[row] = rows.shift[h] + log2f(sum);
        for (uint32_t lane = 0; lane < TDM_WARP; lane += 4) {
            const uint32_t other = row - threadIdx.x % TDM_WARP / 4 + lane / 4;
            if (__shfl_sync(TDM_FULL_WARP, sum, lane) < INFINITY || other >= v.tokens)
                continue;
            const uint64_t q = (((uint64_t)page * TILE + other) * s.query_heads + r.head) * DIM;
            const float again = tdm_lse_of_row(s, q, r.head / (s.query_heads / s.kv_heads), first,
                                               end - first, scale);
            if (threadIdx.x % TDM_WARP == lane)
                lse[other] = again;
        }
    }
}

/* Processes a run of find_lse, from tile `number` on. */
static __device__ __forceinline__ void sum_run(const tdm_select &s, const block &b, state &state,
                                               const run &r, const factor (&held)[2],
                                               uint32_t number, float scale)
{
    const uint32_t page = r.page + threadIdx.x / TDM_WARPGROUP - 1;
    voters v = {0, b.tiles * TILE}; /* no candidates */
    row_sums low = {}, high = {};
    if (page < r.end_page && state.page[page].tokens > 0)
        v = state.page[page];
    for (uint32_t tile = r.tile; tile < r.end_tile; tile++, number++) {
        const uint32_t first = tile * TILE;
        take(b, state, held, number, [&](scores &of, int half) {
            row_sums &rows = half == 0 ? low : high;
            if (half == 1)
                release(&state.empty[number % STAGES]);
            if (first + TILE <= v.candidate)
                return;
            if (first < v.candidate || first + TILE > b.before)
                mask(of, first < v.candidate ? v.candidate - first : 0, b.before - first);
            if (first <= v.candidate || tile == r.tile)
                find_shift(of, rows, scale);
            add_row_sums(of, rows, scale);
        });
    }
    put_lse(s, b, r, v, page, 0, low, scale);
    put_lse(s, b, r, v, page, 1, high, scale);
}

/* Processes a run of sum_rows. */
static __device__ __forceinline__ void vote_run(const tdm_select &s, const block &b, state &state,
                                                const run &r, const factor (&held)[2],
                                                uint32_t number, float scale)
{
    const uint32_t ratio = s.query_heads / s.kv_heads, group = threadIdx.x / TDM_WARPGROUP - 1;
    const uint32_t candidate = r.tile * HELD + group * TILE;
    for (uint32_t page = r.page; page < r.end_page; page++) {
        if (voters_on(state, page, r.tile) == 0)
            continue;
        float low[2] = {}, high[2] = {};
        for (uint32_t h = 0; h < ratio; h++, number++) {
            const float *lse = state.lse[number % STAGES];
            take(b, state, held, number,
                 [&](scores &of, int half) { add_votes(of, half == 0 ? low : high, scale, lse); });
            release(&state.empty[number % STAGES]);
        }
        float *votes = s.votes + ((uint64_t)page * s.kv_heads + r.head) * b.before;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = candidate + lane_row(i / 2) + i % 2 * 8;
            const float all = sum_of_row(i / 2 == 0 ? low[i % 2] : high[i % 2]);
            if (at >= state.page[page].candidate && at < b.before && threadIdx.x % 4 == 0)
                votes[at] = all;
        }
    }
}

template <bool VOTES>
static __device__ __forceinline__ void consume(const tdm_select &s, const block &b, state &state,
                                               float scale)
{
    const uint32_t group = threadIdx.x / TDM_WARPGROUP - 1;
    run_cursor<VOTES> cursor(s, b);
    uint32_t number = 0, runs = 0;
    if (group == 1) /* consumers take turns in issuing products: group i waits for turn i + 1 */
        tdm_turn_give(1);
    for (run r; cursor.next(s, b, state, r); runs++) {
        factor held[2];
        tdm_barrier_wait(&state.full_held, runs);
        load_held(held[0], b.held + group * TILE_BYTES, TILE);
        load_held(held[1], b.held + group * TILE_BYTES + 64 * 128, TILE);
        release(&state.empty_held);
        if constexpr (VOTES)
            vote_run(s, b, state, r, held, number, scale);
        else
            sum_run(s, b, state, r, held, number, scale);
        number += r.steps;
    }
    if (group == 0) /* the last turn is taken, so that no barrier is left half full */
        tdm_turn_wait(1);
}

template <bool VOTES>
static __global__ void __launch_bounds__(THREADS, 1) count(const tdm_select s, float scale)
{
    extern __shared__ unsigned char memory[];
    __shared__ state state;
    const block b(s, memory);
    init(s, b, state);
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<VOTES ? 56 : 40>();
        produce<VOTES>(s, b, state);
    } else {
        tdm_take_registers<VOTES ? 224 : 232>();
        consume<VOTES>(s, b, state, scale);
    }
}

/* ---- launching ---- */

extern "C" bool tdm_cuda_votes_hopper_suit(const struct tdm_select *s)
{
    const struct tdm_page_rule *rule = &s->lists.rule;
    return tdm_cuda_is_hopper() && s->q.dtype == TDM_DTYPE_BF16 &&
           s->means.dtype == TDM_DTYPE_BF16 && s->head_dim == DIM && rule->page_tokens == TILE &&
           s->tokens <= TILE * MOST_PAGES &&
           s->slot_elements == tdm_pages_of_chunk(rule) * s->kv_heads * DIM;
}

template <bool VOTES>
static enum tdm_status launch(const struct tdm_select *s, uint64_t work, cudaStream_t stream,
                              struct tdm_error *err)
{
    const float scale = (float)((double)TDM_LOG2_E / sqrt((double)DIM));
    const unsigned most = tdm_cuda_multiprocessors();
    const unsigned blocks = VOTES || most < MOST_SHARES ? most : MOST_SHARES;
    enum tdm_status status = TDM_CUDA(
        cudaFuncSetAttribute((const void *)count<VOTES>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES),
        err);
    if (status != TDM_OK)
        return status;
    count<VOTES><<<tdm_blocks(work, 1, blocks), THREADS, SHARED_BYTES, stream>>>(*s, scale);
    return tdm_cuda_status(cudaGetLastError(), "votes launch", err);
}

extern "C" enum tdm_status tdm_cuda_votes_hopper(const struct tdm_select *s, cudaStream_t stream,
                                                 struct tdm_error *err)
{
    const uint64_t pages = (s->tokens + TILE - 1) / TILE;
    const uint64_t tiles = (tdm_pages_before(s) + HELD - 1) / HELD;
    const uint64_t lse_bytes = 2 * s->tokens * s->query_heads * sizeof(*s->lse);
    enum tdm_status status = TDM_CUDA(cudaMemsetAsync(s->lse, 0xff, lse_bytes, stream), err);
    if (status == TDM_OK)
        status =
            launch<false>(s, (pages + CONSUMERS - 1) / CONSUMERS * s->query_heads, stream, err);
    return status == TDM_OK ? launch<true>(s, pages * tiles * s->kv_heads, stream, err) : status;
}
