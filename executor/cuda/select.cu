/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selects the pages that a chunk's query pages see (ops/selector.h), and computes the page means
 * that the votes score.
 *
 * Without a vote a block has a query page, and asks the rule about every page before it. With a
 * vote, rows of queries score the means. The first pass gives the LSE of each row, the second the
 * sum of the rows' probabilities for each candidate. This file has these passes on CUDA cores, for
 * any dtype and head dim; select_votes.cu has them on tensor cores. Then a block has a list. It
 * finds the vote of the last winner bit by bit, and writes the pages in order. Sums have a fixed
 * order, so lists repeat.
 */
#include "executor/cuda/select.cuh"

#define THREADS 256u
#define WARPS (THREADS / TDM_WARP)
#define PICK_THREADS 512u

/* ---- means ---- */

#define MEAN_COLUMNS 32u
#define MEAN_PARTS (THREADS / MEAN_COLUMNS)

/* A block has MEAN_COLUMNS columns of a page, with the page's tokens in MEAN_PARTS parts. */
static __global__ void __launch_bounds__(THREADS) find_means(const tdm_means m)
{
    __shared__ float sums[MEAN_PARTS][MEAN_COLUMNS];
    const uint32_t columns = m.kv_heads * m.head_dim, blocks = (columns - 1) / MEAN_COLUMNS + 1;
    const uint64_t page = blockIdx.x / blocks;
    const uint32_t lane = threadIdx.x % MEAN_COLUMNS, part = threadIdx.x / MEAN_COLUMNS;
    const uint32_t column = blockIdx.x % blocks * MEAN_COLUMNS + lane;
    const uint64_t left = m.tokens - page * m.page_tokens;
    const uint32_t tokens = (uint32_t)(left < m.page_tokens ? left : m.page_tokens);
    float sum = 0.0f;
    if (column < columns)
        for (uint32_t t = part; t < tokens; t += MEAN_PARTS)
            sum += tdm_get(m.pages, (page * 2 * m.page_tokens + t) * columns + column);
    sums[part][lane] = sum;
    __syncthreads();
    if (part != 0 || column >= columns)
        return;
    for (uint32_t i = 1; i < MEAN_PARTS; i++)
        sum += sums[i][lane];
    tdm_put(m.means, page * columns + column, sum / (float)tokens);
}

extern "C" enum tdm_status tdm_cuda_page_means(const struct tdm_means *m, cudaStream_t stream,
                                               struct tdm_error *err)
{
    const uint64_t pages = (m->tokens + m->page_tokens - 1) / m->page_tokens;
    const uint64_t columns = (uint64_t)m->kv_heads * m->head_dim;
    const uint64_t blocks = pages * ((columns - 1) / MEAN_COLUMNS + 1);
    find_means<<<(unsigned)blocks, THREADS, 0, stream>>>(*m);
    return tdm_cuda_status(cudaGetLastError(), "page means launch", err);
}

/* ---- lists ---- */

static __device__ __forceinline__ uint32_t *list_at(const tdm_select &s, uint32_t page,
                                                    uint32_t list)
{
    return s.lists.pages +
           ((uint64_t)page * s.lists.lists + list) * (1 + (uint64_t)s.lists.capacity);
}

/* Counts the threads of the block for which `is` is true: those before this thread, and all. All
 * threads must call it. */
static __device__ uint2 rank_of(bool is)
{
    __shared__ uint32_t of_warp[TDM_WARP];
    const uint32_t lane = threadIdx.x % TDM_WARP, warp = threadIdx.x / TDM_WARP;
    const uint32_t bits = __ballot_sync(TDM_FULL_WARP, is);
    uint2 rank = make_uint2((uint32_t)__popc(bits & ((1u << lane) - 1)), 0);
    __syncthreads(); /* no thread still reads the previous call's values */
    if (lane == 0)
        of_warp[warp] = (uint32_t)__popc(bits);
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / TDM_WARP; i++) {
        rank.x += i < warp ? of_warp[i] : 0;
        rank.y += of_warp[i];
    }
    return rank;
}

/* Writes entry number `at`, if the list's capacity allows it. */
static __device__ __forceinline__ void put(const tdm_select &s, uint32_t *list, uint32_t at,
                                           uint64_t page, bool whole)
{
    if (at < s.lists.capacity)
        list[1 + at] = (uint32_t)page | (whole ? TDM_PAGE_WHOLE : 0);
}

/* Ends a list of `count` pages. */
static __device__ __forceinline__ void end_list(const tdm_select &s, uint32_t *list, uint32_t count)
{
    count = count < s.lists.capacity ? count : s.lists.capacity;
    if (threadIdx.x == 0)
        list[0] = count;
    for (uint32_t i = count + threadIdx.x; i < s.lists.capacity; i += blockDim.x)
        list[1 + i] = TDM_PAGE_NONE;
}

/* One block for each query page. Lists its pages by a rule that needs no vote. */
static __global__ void __launch_bounds__(THREADS) list_by_rule(const tdm_select s)
{
    const tdm_page_rule *rule = &s.lists.rule;
    const tdm_query_page q = tdm_query_page_of(s, blockIdx.x);
    const uint64_t near = tdm_page_of(rule, tdm_near_token(rule, q.start, q.first));
    const uint64_t first = tdm_page_of(rule, tdm_far_token(rule, q.start, q.first));
    uint32_t *list = list_at(s, blockIdx.x, 0), count = 0;
    for (uint64_t begin = first; begin <= q.page; begin += THREADS) {
        const uint64_t page = begin + threadIdx.x;
        const bool whole = page <= q.page && tdm_sees_whole(rule, &q, near, page);
        const bool seen = whole || (page >= near && page <= q.page);
        const uint2 rank = rank_of(seen);
        if (seen)
            put(s, list, count + rank.x, page, whole);
        count += rank.y;
    }
    end_list(s, list, count);
}

/* ---- votes ---- */

/* A warp has a row; a block has WARPS rows of a query page's KV head. */
static __global__ void __launch_bounds__(THREADS)
    find_lse(const tdm_select s, float scale, uint32_t blocks)
{
    const uint32_t item = blockIdx.x / blocks, lane = threadIdx.x % TDM_WARP;
    const tdm_vote v = tdm_vote_of(s, item / s.kv_heads, item % s.kv_heads);
    const uint32_t row = blockIdx.x % blocks * WARPS + threadIdx.x / TDM_WARP;
    if (row >= v.rows || v.candidates == 0)
        return;
    const float lse =
        tdm_lse_of_row(s, tdm_row_at(s, v, row), v.kv_head, v.candidate, v.candidates, scale);
    if (lane == 0)
        v.lse[row] = lse;
}

/* A warp has a candidate of a query page's KV head. */
static __global__ void __launch_bounds__(THREADS)
    sum_rows(const tdm_select s, float scale, uint32_t blocks)
{
    const uint32_t item = blockIdx.x / blocks, lane = threadIdx.x % TDM_WARP;
    const tdm_vote v = tdm_vote_of(s, item / s.kv_heads, item % s.kv_heads);
    const uint32_t i = blockIdx.x % blocks * WARPS + threadIdx.x / TDM_WARP;
    if (i >= v.candidates)
        return;
    const uint64_t mean = tdm_mean_at(s, v.candidate + i, v.kv_head);
    float sum = 0.0f;
    for (uint32_t row = lane; row < v.rows; row += TDM_WARP)
        sum += exp2f(tdm_score_of(s, tdm_row_at(s, v, row), mean) * scale - v.lse[row]);
    sum = tdm_warp_sum(sum);
    if (lane == 0)
        v.votes[v.candidate + i] = sum;
}

extern "C" enum tdm_status tdm_cuda_votes_plain(const struct tdm_select *s, cudaStream_t stream,
                                                struct tdm_error *err)
{
    const uint64_t page_tokens = s->lists.rule.page_tokens;
    const uint64_t items = (s->tokens + page_tokens - 1) / page_tokens * s->kv_heads;
    const uint64_t rows = page_tokens * (s->query_heads / s->kv_heads);
    const unsigned of_rows = tdm_blocks(rows, WARPS, INT32_MAX);
    const unsigned of_pages = tdm_blocks(tdm_pages_before(s), WARPS, INT32_MAX);
    const float scale = (float)(1.4426950408889634 / sqrt((double)s->head_dim));
    find_lse<<<(unsigned)items * of_rows, THREADS, 0, stream>>>(*s, scale, of_rows);
    sum_rows<<<(unsigned)items * of_pages, THREADS, 0, stream>>>(*s, scale, of_pages);
    return tdm_cuda_status(cudaGetLastError(), "votes launch", err);
}

/* The bits of the smallest vote that wins if `winners` of `count` votes win. Votes are not
 * negative, so their bits sort like the votes. */
static __device__ uint32_t find_threshold(const float *votes, uint32_t count, uint32_t winners)
{
    uint32_t threshold = 0;
    for (uint32_t bit = 1u << 30; bit > 0; bit >>= 1) {
        uint32_t above = 0;
        for (uint32_t i = threadIdx.x; i < count; i += PICK_THREADS)
            above += __float_as_uint(votes[i]) >= (threshold | bit);
        if (tdm_block_sum(above) >= winners)
            threshold |= bit;
    }
    return threshold;
}

/* One block for each list. A NaN score makes its row's LSE NaN, and so the votes of all candidates.
 * If that LSE is merged from two parts (select_hopper.cu) and the other part is a number, only the
 * candidates with NaN scores are affected. The NaN of this GPU's arithmetic (0x7fffffff) has larger
 * bits than any vote. So these candidates win, the earliest first, and the list has its usual
 * number of pages. The cpu backend then lists only the first candidate. */
static __global__ void __launch_bounds__(PICK_THREADS) list_by_vote(const tdm_select s)
{
    const tdm_page_rule *rule = &s.lists.rule;
    const uint32_t page = blockIdx.x / s.lists.lists, kv_head = blockIdx.x % s.lists.lists;
    const tdm_query_page q = tdm_query_page_of(s, page);
    const uint32_t before = tdm_pages_before(&s), winners = tdm_winners(&s);
    const uint32_t first = tdm_first_candidate(s, q), candidates = before - first;
    uint32_t *list = list_at(s, page, kv_head), count = 0;
    if (candidates <= winners) {
        for (uint32_t i = threadIdx.x; i < candidates; i += PICK_THREADS)
            put(s, list, i, s.first_page + first + i, true);
        count = candidates;
    } else if (winners > 0) {
        const float *votes = s.votes + ((uint64_t)page * s.kv_heads + kv_head) * before + first;
        const uint32_t threshold = find_threshold(votes, candidates, winners);
        uint32_t above = 0;
        for (uint32_t i = threadIdx.x; i < candidates; i += PICK_THREADS)
            above += __float_as_uint(votes[i]) > threshold;
        uint32_t equal = winners - tdm_block_sum(above); /* still to be taken */
        for (uint32_t begin = 0; begin < candidates; begin += PICK_THREADS) {
            const uint32_t i = begin + threadIdx.x;
            const uint32_t bits = i < candidates ? __float_as_uint(votes[i]) : 0;
            const bool same = i < candidates && bits == threshold;
            const uint2 of_same = rank_of(same);
            const bool wins = (i < candidates && bits > threshold) || (same && of_same.x < equal);
            const uint2 rank = rank_of(wins);
            if (wins)
                put(s, list, count + rank.x, s.first_page + first + i, true);
            equal -= of_same.y < equal ? of_same.y : equal;
            count += rank.y;
        }
    }
    const uint64_t near = tdm_page_of(rule, tdm_near_token(rule, q.start, q.first));
    for (uint64_t i = near + threadIdx.x; i <= q.page; i += PICK_THREADS)
        put(s, list, count + (uint32_t)(i - near), i, tdm_sees_whole(rule, &q, near, i));
    end_list(s, list, count + (uint32_t)(q.page - near) + 1);
}

extern "C" enum tdm_status tdm_cuda_select(const struct tdm_select *s, cudaStream_t stream,
                                           struct tdm_error *err)
{
    const struct tdm_page_rule *rule = &s->lists.rule;
    const unsigned pages = (unsigned)((s->tokens + rule->page_tokens - 1) / rule->page_tokens);
    enum tdm_status status = TDM_OK;
    if (rule->selector.kind != TDM_SELECT_TOP_K) {
        list_by_rule<<<pages, THREADS, 0, stream>>>(*s);
        return tdm_cuda_status(cudaGetLastError(), "page lists launch", err);
    }
    if (tdm_pages_before(s) > tdm_winners(s)) {
        const struct tdm_votes_kind *kind = tdm_cuda_votes_kinds;
        while (kind->suits != NULL && !kind->suits(s))
            kind++;
        status = kind->count(s, stream, err);
    }
    if (status != TDM_OK)
        return status;
    list_by_vote<<<pages * s->lists.lists, PICK_THREADS, 0, stream>>>(*s);
    return tdm_cuda_status(cudaGetLastError(), "page lists launch", err);
}
