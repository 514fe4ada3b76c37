/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Votes of query pages on the pages before their chunk, on tensor cores: bf16, head dims 64 and
 * 128.
 *
 * There are two passes over the scores q . mean, made by mma.sync. The pass by rows gives the LSE
 * of each row. The pass by candidates sums exp(score - LSE) over the rows. No [rows, candidates]
 * array is stored: the scores are computed twice, 4 * head_dim FLOPs for each (query head,
 * candidate). In both passes a warp holds its 32 rows of one factor in registers, and the other
 * factor streams through shared memory. There are as many exponentials as in attention for half the
 * products, so the exponentials are the limit.
 */
#include "executor/cuda/scores.cuh"
#include "executor/cuda/select.cuh"
#include "executor/cuda/tiles.cuh"

#define WARPS 4
#define THREADS (WARPS * 32)
#define HELD 128 /* rows of a block, in registers: 32 of each warp */
#define STEP 64  /* rows of the other factor at a time */
#define STAGES 3

/* Begins to copy `ROWS` means from page `first` on, of which `count` exist. */
template <int D, int ROWS>
static __device__ __forceinline__ void fetch_means(uint32_t tile, const tdm_select &s,
                                                   const tdm_vote &v, uint32_t first,
                                                   uint32_t count, bool even)
{
    constexpr uint32_t pieces = tdm_row_bytes<D> / 16, at_once = THREADS / pieces;
    const __nv_bfloat16 *means = (const __nv_bfloat16 *)s.means.data;
    if (even) {
        tdm_fetch<D, ROWS, THREADS>(tile, means + ((uint64_t)first * s.kv_heads + v.kv_head) * D,
                                    (uint64_t)s.kv_heads * D, count);
        return;
    }
    const uint32_t piece = threadIdx.x % pieces;
    for (uint32_t row = threadIdx.x / pieces; row < ROWS; row += at_once) {
        const bool is_there = row < count;
        const uint64_t at = is_there ? tdm_mean_at(s, first + row, v.kv_head) + piece * 8 : 0;
        tdm_copy_async(tile + row * tdm_row_bytes<D> + (piece ^ row % 8) * 16, means + at,
                       is_there);
    }
}

/* Begins to copy ROWS rows of queries from `first` on; zeros for rows that do not exist. */
template <int D, int ROWS>
static __device__ __forceinline__ void fetch_queries(uint32_t tile, const tdm_select &s,
                                                     const tdm_vote &v, uint32_t first)
{
    constexpr uint32_t pieces = tdm_row_bytes<D> / 16, at_once = THREADS / pieces;
    const uint32_t piece = threadIdx.x % pieces;
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)s.q.data;
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i += at_once) {
        const uint32_t row = threadIdx.x / pieces + i;
        const bool is_there = first + row < v.rows;
        const uint64_t at = is_there ? tdm_row_at(s, v, first + row) + piece * 8 : 0;
        tdm_copy_async(tile + row * tdm_row_bytes<D> + (piece ^ row % 8) * 16, q + at, is_there);
    }
}

/* A warp's 32 rows of the held factor. */
template <int D> struct held {
    uint32_t a[2][D / 16][4];
};

template <int D> static __device__ __forceinline__ void load_held(held<D> &of, uint32_t tile)
{
    tile += threadIdx.x / 32 * 32 * tdm_row_bytes<D> + tdm_lane_rows<D>();
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            tdm_load_a<D>(of.a[r][d], tile, 16 * r, d);
}

/* Scores of the held rows with a tile of STEP rows. */
template <int D>
static __device__ __forceinline__ void make_scores(float (&scores)[2][STEP / 8][4],
                                                   const held<D> &of, uint32_t tile)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                scores[r][n][i] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
#pragma unroll
        for (int n = 0; n < STEP / 8; n += 2) {
            uint32_t b[4];
            tdm_load_b_turned<D>(b, tile, 8 * n, d);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                tdm_mma(scores[r][n], of.a[r][d], b[0], b[1]);
                tdm_mma(scores[r][n + 1], of.a[r][d], b[2], b[3]);
            }
        }
    }
}

/* Each block of a (query page, KV head) has HELD of its rows. */
template <int D>
static __global__ void __launch_bounds__(THREADS, 2)
    find_lse(const tdm_select s, float scale, bool even, uint32_t blocks)
{
    extern __shared__ __align__(1024) unsigned char tiles[];
    constexpr uint32_t tile_bytes = STEP * tdm_row_bytes<D>;
    const uint32_t queries = tdm_shared(tiles), stages = queries + HELD * tdm_row_bytes<D>;
    const uint32_t item = blockIdx.x / blocks, row0 = blockIdx.x % blocks * HELD;
    const tdm_vote v = tdm_vote_of(s, item / s.kv_heads, item % s.kv_heads);
    if (row0 >= v.rows || v.candidates == 0)
        return;

    uint32_t next = 0, next_stage = 0; /* next to be copied */
    const auto fetch_next = [&]() {
        if (next < v.candidates)
            fetch_means<D, STEP>(stages + next_stage * tile_bytes, s, v, v.candidate + next,
                                 v.candidates - next, even);
        tdm_copy_commit();
        next += STEP;
        next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
    };
    fetch_queries<D, HELD>(queries, s, v, row0);
    tdm_copy_commit();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        fetch_next();
    tdm_copy_wait<STAGES - 1>();
    __syncthreads();
    held<D> of;
    load_held(of, queries);

    tdm_softmax<2> rows = tdm_no_sums<2>();
    uint32_t stage = 0;
    for (uint32_t first = 0; first < v.candidates; first += STEP) {
        tdm_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and no thread reads the previous one any more */
        fetch_next();
        float scores[2][STEP / 8][4], rescale[2][2];
        make_scores(scores, of, stages + stage * tile_bytes + tdm_lane_columns<D>());
        if (first + STEP > v.candidates) {
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (first + 8 * n + threadIdx.x % 4 * 2 + i % 2 >= v.candidates)
                        scores[0][n][i] = scores[1][n][i] = -INFINITY;
        }
        tdm_follow(scores, rows, scale, rescale);
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            tdm_raise(scores, k, rows, scale);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t lane = threadIdx.x % 32;
            const uint32_t row = row0 + threadIdx.x / 32 * 32 + 16 * r + 8 * h + lane / 4;
            float sum = rows.sum[r][h];
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
            if (row < v.rows && lane % 4 == 0)
                v.lse[row] = rows.shift[r][h] + log2f(sum);
        }
    }
}

/* Each block of a (query page, KV head) has HELD of its candidates. */
template <int D>
static __global__ void __launch_bounds__(THREADS, 2)
    sum_rows(const tdm_select s, float scale, bool even, uint32_t blocks)
{
    extern __shared__ __align__(1024) unsigned char tiles[];
    __shared__ float lse[STAGES][STEP];
    constexpr uint32_t tile_bytes = STEP * tdm_row_bytes<D>;
    const uint32_t means = tdm_shared(tiles), stages = means + HELD * tdm_row_bytes<D>;
    const uint32_t item = blockIdx.x / blocks, first = blockIdx.x % blocks * HELD;
    const uint32_t lane = threadIdx.x % 32;
    const tdm_vote v = tdm_vote_of(s, item / s.kv_heads, item % s.kv_heads);
    if (first >= v.candidates)
        return;

    uint32_t next = 0, next_stage = 0; /* next to be copied */
    const auto fetch_next = [&]() {
        if (next < v.rows) {
            fetch_queries<D, STEP>(stages + next_stage * tile_bytes, s, v, next);
            if (threadIdx.x < STEP) {
                const bool is_there = next + threadIdx.x < v.rows;
                tdm_copy_async_4(tdm_shared(&lse[next_stage][threadIdx.x]),
                                 v.lse + (is_there ? next + threadIdx.x : 0), is_there);
            }
        }
        tdm_copy_commit();
        next += STEP;
        next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
    };
    fetch_means<D, HELD>(means, s, v, v.candidate + first, v.candidates - first, even);
    tdm_copy_commit();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        fetch_next();
    tdm_copy_wait<STAGES - 1>();
    __syncthreads();
    held<D> of;
    load_held(of, means);

    float sums[2][2] = {};
    uint32_t stage = 0;
    for (uint32_t row = 0; row < v.rows; row += STEP) {
        tdm_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and no thread reads the previous one any more */
        fetch_next();
        float scores[2][STEP / 8][4];
        make_scores(scores, of, stages + stage * tile_bytes + tdm_lane_columns<D>());
        const uint32_t left = v.rows - row;
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) {
            const uint32_t column = 8 * n + lane % 4 * 2;
            const float2 two = *(const float2 *)&lse[stage][column];
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float p = tdm_exp2(scores[r][n][i] * scale - (i % 2 ? two.y : two.x));
                    sums[r][i / 2] += left >= STEP || column + i % 2 < left ? p : 0.0f;
                }
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t i = first + threadIdx.x / 32 * 32 + 16 * r + 8 * h + lane / 4;
            float sum = sums[r][h];
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
            if (i < v.candidates && lane % 4 == 0)
                v.votes[v.candidate + i] = sum;
        }
    }
}

template <int D>
static enum tdm_status launch(const struct tdm_select *s, cudaStream_t stream,
                              struct tdm_error *err)
{
    constexpr int shared_bytes = (HELD + STAGES * STEP) * tdm_row_bytes<D>;
    static_assert(shared_bytes <= tdm_shared_bytes<D>, "as said");
    const uint64_t page_tokens = s->lists.rule.page_tokens;
    const uint64_t items = (s->tokens + page_tokens - 1) / page_tokens * s->kv_heads;
    const unsigned of_rows =
        tdm_blocks(page_tokens * (s->query_heads / s->kv_heads), HELD, INT32_MAX);
    const unsigned of_pages = tdm_blocks(tdm_pages_before(s), HELD, INT32_MAX);
    const float scale = (float)((double)TDM_LOG2_E / sqrt((double)D));
    const bool even =
        s->slot_elements == tdm_pages_of_chunk(&s->lists.rule) * s->kv_heads * s->head_dim;
    enum tdm_status status =
        TDM_CUDA(cudaFuncSetAttribute((const void *)find_lse<D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                 err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaFuncSetAttribute((const void *)sum_rows<D>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               shared_bytes),
                          err);
    if (status != TDM_OK)
        return status;
    find_lse<D>
        <<<(unsigned)items * of_rows, THREADS, shared_bytes, stream>>>(*s, scale, even, of_rows);
    sum_rows<D>
        <<<(unsigned)items * of_pages, THREADS, shared_bytes, stream>>>(*s, scale, even, of_pages);
    return tdm_cuda_status(cudaGetLastError(), "votes launch", err);
}

extern "C" bool tdm_cuda_votes_suit(const struct tdm_select *s)
{
    return s->q.dtype == TDM_DTYPE_BF16 && s->means.dtype == TDM_DTYPE_BF16 &&
           (s->head_dim == 64 || s->head_dim == 128) && s->slot_elements % 8 == 0;
}

extern "C" enum tdm_status tdm_cuda_votes(const struct tdm_select *s, cudaStream_t stream,
                                          struct tdm_error *err)
{
    return s->head_dim == 64 ? launch<64>(s, stream, err) : launch<128>(s, stream, err);
}
