/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selection by vote (ops/selector.h, top-k): voters and candidates.
 *
 * The candidates of a query page are the pages before its chunk, from the page where the document
 * of its first token begins. Its voters are rows: the tokens of that document, with all query heads
 * of a KV head. Tokens of later documents do not vote, because they see nothing before the chunk.
 */
#ifndef TDM_EXECUTOR_CUDA_SELECT_CUH
#define TDM_EXECUTOR_CUDA_SELECT_CUH

#include "executor/cuda/device.cuh"

static __device__ __forceinline__ tdm_query_page tdm_query_page_of(const tdm_select &s,
                                                                   uint32_t number)
{
    const uint64_t page_tokens = s.lists.rule.page_tokens, end = s.first_token + s.tokens;
    tdm_query_page q;
    q.first = s.first_token + number * page_tokens;
    q.last = (q.first + page_tokens < end ? q.first + page_tokens : end) - 1;
    q.page = tdm_page_of(&s.lists.rule, q.first);
    q.start = tdm_start_of(s.documents, q.first);
    q.opens = tdm_start_of(s.documents, q.last) != q.start;
    return q;
}

/* Number of pages of the sequence from first_page up to the chunk. */
TDM_ANYWHERE uint32_t tdm_pages_before(const struct tdm_select *s)
{
    return (uint32_t)(tdm_page_of(&s->lists.rule, s->first_token) - s->first_page);
}

/* Maximum number of winning pages. */
TDM_ANYWHERE uint32_t tdm_winners(const struct tdm_select *s)
{
    return (uint32_t)(s->lists.rule.selector.budget / s->lists.rule.page_tokens);
}

/* First candidate, counted from first_page. The last candidate is the last page before the chunk.
 * */
static __device__ __forceinline__ uint32_t tdm_first_candidate(const tdm_select &s,
                                                               const tdm_query_page &q)
{
    const uint64_t page = tdm_page_of(&s.lists.rule, q.start), before = tdm_pages_before(&s);
    const uint64_t first = page > s.first_page ? page - s.first_page : 0;
    return (uint32_t)(first < before ? first : before);
}

/* The vote of a query page and a KV head. Its rows are [voter, query head of the KV head]. */
struct tdm_vote {
    uint32_t page, kv_head, ratio;
    uint32_t candidate, candidates; /* the first candidate, and how many; 0: no vote is needed */
    uint32_t rows;
    uint64_t token; /* first voter, counted in the chunk */
    float *lse;     /* LSE of each row, in base 2 */
    float *votes;   /* votes for the pages before the chunk */
};

static __device__ __forceinline__ tdm_vote tdm_vote_of(const tdm_select &s, uint32_t page,
                                                       uint32_t kv_head)
{
    const tdm_query_page q = tdm_query_page_of(s, page);
    const uint32_t before = tdm_pages_before(&s);
    uint64_t low = q.first,
             end = q.last + 1; /* the first token of another document is in (low, end] */
    tdm_vote v;
    v.page = page;
    v.kv_head = kv_head;
    v.ratio = s.query_heads / s.kv_heads;
    v.candidate = tdm_first_candidate(s, q);
    v.candidates = before - v.candidate > tdm_winners(&s) ? before - v.candidate : 0;
    while (q.opens && end - low > 1) {
        const uint64_t middle = low + (end - low) / 2;
        if (tdm_start_of(s.documents, middle) == q.start)
            low = middle;
        else
            end = middle;
    }
    v.rows = (uint32_t)(end - q.first) * v.ratio;
    v.token = q.first - s.first_token;
    v.lse = s.lse + v.token * s.query_heads + (q.last + 1 - q.first) * v.ratio * kv_head;
    v.votes = s.votes + ((uint64_t)page * s.kv_heads + kv_head) * before;
    return v;
}

/* First element in q of a row of a vote. */
static __device__ __forceinline__ uint64_t tdm_row_at(const tdm_select &s, const tdm_vote &v,
                                                      uint32_t row)
{
    const uint32_t token = row / v.ratio, head = row - token * v.ratio;
    return ((v.token + token) * s.query_heads + v.kv_head * v.ratio + head) * s.head_dim;
}

/* First element of the mean of a page before the chunk. */
static __device__ __forceinline__ uint64_t tdm_mean_at(const tdm_select &s, uint32_t page,
                                                       uint32_t kv_head)
{
    const uint32_t pages = (uint32_t)tdm_pages_of_chunk(&s.lists.rule), slot = page / pages;
    return slot * s.slot_elements +
           ((uint64_t)(page - slot * pages) * s.kv_heads + kv_head) * s.head_dim;
}

/* ---- scores on CUDA cores ---- */

static __device__ __forceinline__ float tdm_score_of(const tdm_select &s, uint64_t q, uint64_t mean)
{
    float score = 0.0f;
    for (uint32_t i = 0; i < s.head_dim; i++)
        score += tdm_get(s.q, q + i) * tdm_get(s.means, mean + i);
    return score;
}

/* LSE of a row, computed by a warp, in base 2. `scale` converts scores to base 2. */
static __device__ __forceinline__ float tdm_lse_of_row(const tdm_select &s, uint64_t q,
                                                       uint32_t kv_head, uint32_t candidate,
                                                       uint32_t candidates, float scale)
{
    float most = -1e30f, sum = 0.0f;
    for (uint32_t i = threadIdx.x % TDM_WARP; i < candidates; i += TDM_WARP) {
        const float score = tdm_score_of(s, q, tdm_mean_at(s, candidate + i, kv_head)) * scale;
        const float next = fmaxf(most, score);
        sum = sum * exp2f(most - next) + exp2f(score - next);
        most = next;
    }
    float next = most;
    for (unsigned offset = TDM_WARP / 2; offset > 0; offset /= 2)
        next = fmaxf(next, __shfl_xor_sync(TDM_FULL_WARP, next, offset));
    return next + log2f(tdm_warp_sum(sum * exp2f(most - next)));
}

#endif
