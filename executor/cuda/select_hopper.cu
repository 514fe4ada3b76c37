/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Votes of query pages on the pages before their chunk on Hopper: bf16, head dim 128, pages of 128 tokens.
 *
 * The two passes of select_votes.cu with products of warpgroups. In either a block holds 128 rows of one factor, 64
 * of a consumer in registers, and the producer copies 128 rows of the other at a time:
 *
 *     find_lse:  holds the queries of a (query page, query head), takes its candidates' means
 *     sum_rows:  holds the means of 128 pages, takes the queries of one query page after the other
 *
 * A product has half as many FLOPs for each exponential as attention has, so that these take as long as the products:
 * consumers ask for the next scores before they raise the last. Exponentials are relative to the largest score with
 * the first means: to look for the largest of all would cost a third more. A row in which another is so much larger
 * that its sum passes what fp32 can hold is done again on CUDA cores.
 * Blocks stay, one on a multiprocessor, and have an equal share of the work.
 */
#include "executor/cuda/device.cuh"
#include "executor/cuda/hopper_tiles.cuh"
#include "executor/cuda/select.cuh"

#define TILE 128u /* rows held, and rows taken at a time */
#define STAGES 4u
#define CONSUMERS 2u
#define THREADS ((CONSUMERS + 1) * TDM_WARPGROUP)
#define TILE_BYTES TDM_HOPPER_TILE_BYTES(TILE)
#define SHARED_BYTES ((1 + STAGES) * TILE_BYTES + 1024u)
#define DIM TDM_HOPPER_DIM
#define MOST_PAGES 512u /* query pages of a chunk */

/* Of a query page: tokens that vote, 0 where nothing is voted on, and the first candidate. */
struct voters {
    uint32_t tokens, candidate;
};

struct state {
    uint64_t full_held, empty_held, full[STAGES], empty[STAGES];
    float lse[STAGES][TILE];
    voters page[MOST_PAGES];
};

/* What all threads of a block know. */
struct block {
    uint32_t held, stages; /* shared memory, as addresses */
    uint32_t pages, before, tiles;

    __device__ __forceinline__ block(const tdm_select &s, const unsigned char *memory)
    {
        held = (tdm_shared(memory) + 1023) / 1024 * 1024;
        stages = held + TILE_BYTES;
        pages = (uint32_t)((s.tokens + TILE - 1) / TILE);
        before = tdm_pages_before(&s);
        tiles = (before + TILE - 1) / TILE;
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

/* What is held at a time, and over which query pages: of find_lse one, of sum_rows a range. */
struct run {
    uint32_t head; /* query head; KV head */
    uint32_t tile; /* of the candidates */
    uint32_t page, end_page;
};

/* The runs of a block: every gridDim.x-th of the (query page, head); or an equal share of the (KV head, tile, query
 * page), as one range. */
template <bool VOTES> struct run_walk {
    uint32_t at, end;

    __device__ __forceinline__ run_walk(const tdm_select &s, const block &b)
    {
        if constexpr (VOTES) {
            const uint64_t units = (uint64_t)s.kv_heads * b.tiles * b.pages;
            at = (uint32_t)(units * blockIdx.x / gridDim.x);
            end = (uint32_t)(units * (blockIdx.x + 1) / gridDim.x);
        } else {
            at = blockIdx.x;
            end = b.pages * s.query_heads;
        }
    }

    __device__ __forceinline__ bool next(const tdm_select &s, const block &b, run &r)
    {
        if (at >= end)
            return false;
        if constexpr (VOTES) {
            const uint32_t held = at / b.pages;
            r.page = at - held * b.pages;
            r.end_page = end - at < b.pages - r.page ? r.page + end - at : b.pages;
            r.head = held / b.tiles;
            r.tile = held - r.head * b.tiles;
            at += r.end_page - r.page;
        } else {
            r.page = at / s.query_heads;
            r.end_page = r.page + 1;
            r.head = at - r.page * s.query_heads;
            r.tile = 0;
            at += gridDim.x;
        }
        return true;
    }
};

/* Tokens of a query page that vote on a tile of pages. */
static __device__ __forceinline__ uint32_t voters_on(const state &state, uint32_t page,
                                                     uint32_t tile)
{
    const voters v = state.page[page];
    return (tile + 1) * TILE > v.candidate ? v.tokens : 0;
}

/* Tiles that are taken in a run. */
template <bool VOTES>
static __device__ __forceinline__ uint32_t steps_of(const tdm_select &s, const block &b,
                                                    const state &state, const run &r)
{
    uint32_t steps = 0;
    if constexpr (VOTES) {
        for (uint32_t page = r.page; page < r.end_page; page++)
            steps += voters_on(state, page, r.tile) > 0 ? s.query_heads / s.kv_heads : 0;
    } else if (state.page[r.page].tokens > 0) {
        steps = (b.before - state.page[r.page].candidate + TILE - 1) / TILE;
    }
    return steps;
}

/* ---- copies ---- */

static __device__ __forceinline__ void
fetch_queries(uint32_t tile, const tdm_select &s, const state &state, uint32_t page, uint32_t head)
{
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)s.q.data;
    tdm_hopper_copy<TILE>(tile, q + ((uint64_t)page * TILE * s.query_heads + head) * DIM,
                          (uint64_t)s.query_heads * DIM, state.page[page].tokens);
}

static __device__ __forceinline__ void fetch_means(uint32_t tile, const tdm_select &s,
                                                   const block &b, uint32_t first, uint32_t kv_head)
{
    const __nv_bfloat16 *means = (const __nv_bfloat16 *)s.means.data;
    tdm_hopper_copy<TILE>(tile, means + ((uint64_t)first * s.kv_heads + kv_head) * DIM,
                          (uint64_t)s.kv_heads * DIM, b.before - first);
}

static __device__ __forceinline__ float *lse_of(const tdm_select &s, uint32_t page, uint32_t head)
{
    return s.lse + head * s.tokens + page * TILE;
}

static __device__ __forceinline__ void wait_empty(state &state, tdm_producer &producer,
                                                  uint32_t number)
{
    if (number >= STAGES)
        producer.wait(&state.empty[number % STAGES], number / STAGES - 1);
}

template <bool VOTES>
static __device__ void produce(const tdm_select &s, const block &b, state &state)
{
    const uint32_t ratio = s.query_heads / s.kv_heads;
    run_walk<VOTES> walk(s, b);
    tdm_producer producer;
    uint32_t number = 0, runs = 0;
    for (run r; walk.next(s, b, r);) {
        const uint32_t steps = steps_of<VOTES>(s, b, state, r);
        if (steps == 0)
            continue;
        if (runs > 0)
            producer.wait(&state.empty_held, runs - 1);
        runs++;
        if constexpr (VOTES) {
            fetch_means(b.held, s, b, r.tile * TILE, r.head);
            producer.commit(&state.full_held);
            for (; r.page < r.end_page; r.page++) {
                const uint32_t tokens = voters_on(state, r.page, r.tile);
                for (uint32_t h = 0; tokens > 0 && h < ratio; h++, number++) {
                    const uint32_t head = r.head * ratio + h;
                    wait_empty(state, producer, number);
                    fetch_queries(b.stage(number), s, state, r.page, head);
                    float *to = &state.lse[number % STAGES][threadIdx.x];
                    if (threadIdx.x < tokens)
                        tdm_copy_async_4(tdm_shared(to), lse_of(s, r.page, head) + threadIdx.x,
                                         true);
                    else
                        *to = INFINITY; /* it does not vote */
                    producer.commit(&state.full[number % STAGES]);
                }
            }
        } else {
            fetch_queries(b.held, s, state, r.page, r.head);
            producer.commit(&state.full_held);
            for (uint32_t i = 0; i < steps; i++, number++) {
                wait_empty(state, producer, number);
                fetch_means(b.stage(number), s, b, state.page[r.page].candidate + i * TILE,
                            r.head / ratio);
                producer.commit(&state.full[number % STAGES]);
            }
        }
    }
    producer.finish();
}

/* ---- sums ---- */

typedef float scores[TILE / 8][4];
typedef uint32_t factor[DIM / 16][4];

static __device__ __forceinline__ void release(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        tdm_barrier_arrive(barrier);
}

/* Asks for the scores of the held rows with tile `number`. */
static __device__ __forceinline__ void ask(scores &s, const factor &held, const block &b,
                                           state &state, uint32_t number)
{
    const uint32_t tile = b.stage(number);
    tdm_barrier_wait(&state.full[number % STAGES], number / STAGES);
    tdm_products_hold(s);
    tdm_products_begin();
#pragma unroll
    for (uint32_t d = 0; d < DIM / 16; d++)
        tdm_wgmma<0>(s, held[d], tdm_columns_of(tile, TILE, d), d > 0);
    tdm_products_commit();
}

/* Of a lane's two rows: the shift of their exponentials, in powers of two, and the sums of these. */
struct row_sums {
    float shift[2], sum[2];
};

/* The shift becomes the largest score so far. */
static __device__ __forceinline__ void move_shift(const scores &s, row_sums &rows, float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = s[0][2 * h];
#pragma unroll
        for (uint32_t n = 0; n < TILE / 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(TDM_FULL_WARP, most, 1));
        most = fmaxf(most, __shfl_xor_sync(TDM_FULL_WARP, most, 2));
        most = fmaxf(most * scale, rows.shift[h]);
        rows.sum[h] *= tdm_exp2(rows.shift[h] - most);
        rows.shift[h] = most;
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

/* Nothing from column `count` on. */
static __device__ __forceinline__ void mask(scores &s, uint32_t count)
{
#pragma unroll
    for (uint32_t n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * n + threadIdx.x % 4 * 2 + i % 2 >= count)
                s[n][i] = -INFINITY;
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
}

static __device__ __forceinline__ float sum_of_row(float sum)
{
    sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
    return sum + __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
}

/* First of the lane's rows, of those held; the other is 8 behind it. */
static __device__ __forceinline__ uint32_t lane_row(void)
{
    return (threadIdx.x / TDM_WARPGROUP - 1) * 64 + tdm_hopper_warp_row() + threadIdx.x % 32 / 4;
}

/* Takes `steps` tiles from tile `number` on: `use` gets the scores of each, of every other one while the next are
 * made. What else there is to wait for the other consumer fills. */
template <typename F>
static __device__ __forceinline__ void take_tiles(const block &b, state &state, const factor &held,
                                                  uint32_t number, uint32_t steps, F use)
{
    scores even, odd;
    uint32_t i = 0;
    for (; i + 1 < steps; i += 2) {
        ask(even, held, b, state, number + i);
        ask(odd, held, b, state, number + i + 1);
        tdm_products_wait<1>();
        tdm_products_hold(even);
        use(even, i);
        tdm_products_wait<0>();
        tdm_products_hold(odd);
        use(odd, i + 1);
    }
    if (i < steps) {
        ask(even, held, b, state, number + i);
        tdm_products_wait<0>();
        tdm_products_hold(even);
        use(even, i);
    }
}

/* A run of find_lse, of `steps` tiles from tile `number` on. */
static __device__ __forceinline__ void sum_run(const tdm_select &s, const block &b, state &state,
                                               const run &r, const factor &held, uint32_t steps,
                                               uint32_t number, float scale)
{
    const uint32_t candidates = b.before - state.page[r.page].candidate;
    row_sums rows = {{-1e30f, -1e30f}, {0.0f, 0.0f}};
    take_tiles(b, state, held, number, steps, [&](scores &of, uint32_t i) {
        release(&state.empty[(number + i) % STAGES]);
        if (candidates - i * TILE < TILE)
            mask(of, candidates - i * TILE);
        if (i == 0)
            move_shift(of, rows, scale);
        add_row_sums(of, rows, scale);
    });
    const voters v = state.page[r.page];
    float *lse = lse_of(s, r.page, r.head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = sum_of_row(rows.sum[h]);
        const uint32_t row = lane_row() + 8 * h;
        if (row < v.tokens && threadIdx.x % 4 == 0)
            lse[row] = rows.shift[h] + log2f(sum);
        for (uint32_t lane = 0; lane < TDM_WARP; lane += 4) {
            const uint32_t other = row - threadIdx.x % TDM_WARP / 4 + lane / 4;
            if (__shfl_sync(TDM_FULL_WARP, sum, lane) < INFINITY || other >= v.tokens)
                continue;
            const uint64_t q = (((uint64_t)r.page * TILE + other) * s.query_heads + r.head) * DIM;
            const float again = tdm_lse_of_row(s, q, r.head / (s.query_heads / s.kv_heads),
                                               v.candidate, candidates, scale);
            if (threadIdx.x % TDM_WARP == lane)
                lse[other] = again;
        }
    }
}

/* A run of sum_rows. */
static __device__ __forceinline__ void vote_run(const tdm_select &s, const block &b, state &state,
                                                const run &r, const factor &held, uint32_t steps,
                                                uint32_t number, float scale)
{
    const uint32_t ratio = s.query_heads / s.kv_heads;
    uint32_t page = r.page, heads = 0; /* of the page, that have voted */
    float sum[2] = {};
    while (voters_on(state, page, r.tile) == 0)
        page++;
    take_tiles(b, state, held, number, steps, [&](scores &of, uint32_t i) {
        add_votes(of, sum, scale, state.lse[(number + i) % STAGES]);
        release(&state.empty[(number + i) % STAGES]);
        if (++heads < ratio)
            return;
        float *votes = s.votes + ((uint64_t)page * s.kv_heads + r.head) * b.before;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t candidate = r.tile * TILE + lane_row() + 8 * h;
            sum[h] = sum_of_row(sum[h]);
            if (candidate >= state.page[page].candidate && candidate < b.before &&
                threadIdx.x % 4 == 0)
                votes[candidate] = sum[h];
            sum[h] = 0.0f;
        }
        heads = 0;
        do
            page++;
        while (page < r.end_page && voters_on(state, page, r.tile) == 0);
    });
}

template <bool VOTES>
static __device__ __forceinline__ void consume(const tdm_select &s, const block &b, state &state,
                                               float scale)
{
    const uint32_t group = threadIdx.x / TDM_WARPGROUP - 1;
    run_walk<VOTES> walk(s, b);
    uint32_t number = 0, runs = 0;
    for (run r; walk.next(s, b, r);) {
        const uint32_t steps = steps_of<VOTES>(s, b, state, r);
        if (steps == 0)
            continue;
        factor held;
        tdm_barrier_wait(&state.full_held, runs++);
        tdm_hopper_load_a(held, b.held + group * 64 * 128, TILE);
        release(&state.empty_held);
        if constexpr (VOTES)
            vote_run(s, b, state, r, held, steps, number, scale);
        else
            sum_run(s, b, state, r, held, steps, number, scale);
        number += steps;
    }
}

template <bool VOTES>
static __global__ void __launch_bounds__(THREADS, 1) count(const tdm_select s, float scale)
{
    extern __shared__ unsigned char memory[];
    __shared__ state state;
    const block b(s, memory);
    init(s, b, state);
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<40>();
        produce<VOTES>(s, b, state);
    } else {
        tdm_take_registers<232>();
        consume<VOTES>(s, b, state, scale);
    }
}

/* ---- launching ---- */

extern "C" bool tdm_cuda_votes_hopper_suit(const struct tdm_select *s)
{
    const struct tdm_page_rule *rule = &s->lists.rule;
    return tdm_is_hopper() && s->q.dtype == TDM_DTYPE_BF16 && s->means.dtype == TDM_DTYPE_BF16 &&
           s->head_dim == DIM && rule->page_tokens == TILE && s->tokens <= TILE * MOST_PAGES &&
           s->slot_elements == tdm_pages_of_chunk(rule) * s->kv_heads * DIM;
}

/* Multiprocessors of the device. */
static unsigned processors(void)
{
    static int count = 0; /* asked for once: a process has one device */
    int device;
    if (count == 0 &&
        (cudaGetDevice(&device) != cudaSuccess ||
         cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess))
        count = 1;
    return (unsigned)count;
}

template <bool VOTES>
static enum tdm_status launch(const struct tdm_select *s, uint64_t work, cudaStream_t stream,
                              struct tdm_error *err)
{
    const float scale = (float)((double)TDM_LOG2_E / sqrt((double)DIM));
    enum tdm_status status = TDM_CUDA(
        cudaFuncSetAttribute((const void *)count<VOTES>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES),
        err);
    if (status != TDM_OK)
        return status;
    count<VOTES><<<tdm_blocks(work, 1, processors()), THREADS, SHARED_BYTES, stream>>>(*s, scale);
    return tdm_cuda_status(cudaGetLastError(), "votes launch", err);
}

extern "C" enum tdm_status tdm_cuda_votes_hopper(const struct tdm_select *s, cudaStream_t stream,
                                                 struct tdm_error *err)
{
    const uint64_t pages = (s->tokens + TILE - 1) / TILE;
    const uint64_t tiles = (tdm_pages_before(s) + TILE - 1) / TILE;
    enum tdm_status status = launch<false>(s, pages * s->query_heads, stream, err);
    return status == TDM_OK ? launch<true>(s, pages * tiles * s->kv_heads, stream, err) : status;
}
