/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Means of the pages' K, and lists of the pages that query pages see (selector.h, layout.h).
 *
 * A task of the selection is a query page and one of its lists. In a vote, each token and query
 * head of the page scores the means, with 2 * head_dim FLOPs per (query head, page), and adds the
 * softmax of its scores to the pages' votes. Votes are summed by token, then head, in fp32.
 */
#include "executor/cpu/cpu.h"

#include "base/size.h"
#include "executor/convert.h"
#include "ops/select.h"
#include "schedule/attend.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- means ---- */

/* A task is a page. */
static void means_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct tdm_launch *launch = context;
    const struct tdm_pages_params *params = &tdm_launch_params(launch)->pages;
    const struct tdm_operand *pages = &launch->operand[TDM_PAGE_MEANS_PAGES],
                             *means = &launch->operand[TDM_PAGE_MEANS_OUT];
    uint64_t width = (uint64_t)params->kv_heads * params->head_dim;
    uint64_t left = launch->op->tokens - index * params->page_tokens;
    uint64_t tokens = tdm_least(left, params->page_tokens);
    unsigned char *scratch = thread_scratch;
    float *sum = tdm_cpu_take(&scratch, width, sizeof(float));
    float *row = tdm_cpu_take(&scratch, width, sizeof(float));
    memset(sum, 0, width * sizeof(float));
    for (uint64_t t = 0; t < tokens; t++) {
        uint64_t first = index * params->page_elements + t * width;
        const float *k = tdm_view_row(pages->data, pages->dtype, first, width, row);
        for (uint64_t i = 0; i < width; i++)
            sum[i] += k[i];
    }
    for (uint64_t i = 0; i < width; i++)
        sum[i] /= (float)tokens;
    tdm_store_row(means->data, means->dtype, index * width, width, sum);
}

enum tdm_status tdm_cpu_page_means(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    (void)err;
    uint64_t pages =
        tdm_size_ceil_div(launch->op->tokens, tdm_launch_params(launch)->pages.page_tokens);
    tdm_cpu_for(executor, pages, means_task, (void *)launch);
    return TDM_OK;
}

/* ---- lists ---- */

struct selection {
    const struct tdm_launch *launch;
    uint64_t query_heads, kv_heads, head_dim;
    struct tdm_page_rule rule;
    uint64_t lists, words;
    uint64_t chunk_page;     /* first page of the queries' chunk */
    uint64_t first_page;     /* of the means' first slot */
    _Atomic uint64_t *pairs; /* (query, key) pairs of all lists */
};

/* Scratch of a task. */
struct vote {
    float *q;             /* [head_dim] */
    float *means;         /* [pages, head_dim] of one KV head */
    float *score, *votes; /* [pages] */
};

static struct vote take_vote(unsigned char **scratch, uint64_t pages, uint64_t dim)
{
    struct vote x;
    x.q = tdm_cpu_take(scratch, dim, sizeof(float));
    x.means = tdm_cpu_take(scratch, pages * dim, sizeof(float));
    x.score = tdm_cpu_take(scratch, pages, sizeof(float));
    x.votes = tdm_cpu_take(scratch, pages, sizeof(float));
    return x;
}

static void load_means(const struct selection *s, uint64_t kv_head, uint64_t first, uint64_t count,
                       struct vote x)
{
    const struct tdm_operand *means = &s->launch->operand[TDM_SELECT_MEANS];
    uint64_t dim = s->head_dim, pages = tdm_pages_of_chunk(&s->rule);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = first + i - s->first_page;
        const void *slot = (const unsigned char *)means->data + at / pages * means->slot_bytes;
        tdm_load_row(slot, means->dtype, (at % pages * s->kv_heads + kv_head) * dim, dim,
                     x.means + i * dim);
    }
}

/* Adds one query's probabilities of the pages to their votes. */
static void add_vote(uint64_t dim, uint64_t count, struct vote x)
{
    float scale = (float)(1.0 / sqrt((double)dim)), most = -INFINITY, sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        float dot = 0;
        for (uint64_t j = 0; j < dim; j++)
            dot += x.q[j] * x.means[i * dim + j];
        x.score[i] = dot * scale;
        most = x.score[i] > most ? x.score[i] : most;
    }
    for (uint64_t i = 0; i < count; i++) {
        x.score[i] = expf(x.score[i] - most);
        sum += x.score[i];
    }
    for (uint64_t i = 0; i < count; i++)
        x.votes[i] += x.score[i] / sum;
}

/* Writes to `list` which of the pages [first, first + count) before the chunk win the vote of a
 * query page. A NaN score makes the votes of all pages NaN, and no comparison holds then: the first
 * page takes every seat, and only it is listed (a GPU lists as many pages as there are seats:
 * list_by_vote). */
static uint32_t elect(const struct selection *s, const struct tdm_query_page *page,
                      uint64_t kv_head, uint64_t first, uint64_t count, uint32_t *list,
                      struct vote x)
{
    const struct tdm_operand *q = &s->launch->operand[TDM_SELECT_Q];
    const struct tdm_chunk *chunk = &s->launch->program->chunks[s->launch->op->chunk];
    const struct tdm_sequence *sequence = tdm_launch_sequence(s->launch);
    uint64_t dim = s->head_dim, ratio = s->query_heads / s->kv_heads;
    uint64_t seats = s->rule.selector.budget / s->rule.page_tokens;
    uint32_t chosen = 0;
    if (count > seats) {
        load_means(s, kv_head, first, count, x);
        memset(x.votes, 0, count * sizeof(float));
        for (uint64_t token = page->first; token <= page->last; token++) {
            /* a document that begins inside the query page sees nothing before it */
            if (tdm_document_of(sequence, token) != tdm_document_of(sequence, page->first))
                break;
            for (uint64_t h = 0; h < ratio; h++) {
                uint64_t row = (token - chunk->first_token) * s->query_heads + kv_head * ratio + h;
                tdm_load_row(q->data, q->dtype, row * dim, dim, x.q);
                add_vote(dim, count, x);
            }
        }
        /* each seat goes to the page with the most votes; -1 marks a seated page */
        for (uint64_t seat = 0; seat < seats; seat++) {
            uint64_t best = 0;
            for (uint64_t i = 1; i < count; i++)
                if (x.votes[i] > x.votes[best])
                    best = i;
            x.votes[best] = -1;
        }
    }
    for (uint64_t i = 0; i < count; i++)
        if (count <= seats || x.votes[i] < 0)
            list[chosen++] = (uint32_t)(first + i) | TDM_PAGE_WHOLE;
    return chosen;
}

/* Counts the (query, key) pairs of a query page's queries and the keys they see in a list. */
static uint64_t listed_pairs(const struct selection *s, const struct tdm_query_page *page,
                             const uint32_t *list)
{
    const struct tdm_sequence *sequence = tdm_launch_sequence(s->launch);
    uint64_t pairs = 0;
    for (uint32_t i = 1; i <= list[0]; i++) {
        uint64_t first = tdm_page_token(&s->rule, list[i] & TDM_PAGE_NUMBER);
        uint64_t end = tdm_page_token(&s->rule, (list[i] & TDM_PAGE_NUMBER) + 1);
        bool whole = (list[i] & TDM_PAGE_WHOLE) != 0;
        if (whole && !page->opens && first >= page->start && end <= page->first) {
            pairs += (page->last + 1 - page->first) * (end - first);
            continue;
        }
        for (uint64_t token = page->first; token <= page->last; token++) {
            uint64_t start = page->opens
                                 ? tdm_document_start(sequence, tdm_document_of(sequence, token))
                                 : page->start;
            uint64_t low = tdm_most(first, whole ? start : tdm_near_token(&s->rule, start, token));
            uint64_t high = tdm_least(end, token + 1);
            pairs += low < high ? high - low : 0;
        }
    }
    return pairs;
}

static void select_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct selection *s = context;
    const struct tdm_op *op = s->launch->op;
    struct tdm_query_page page =
        tdm_attend_query_page(&s->rule, &s->launch->program->chunks[op->chunk],
                              tdm_launch_sequence(s->launch), index / s->lists);
    uint64_t near = tdm_page_of(&s->rule, tdm_near_token(&s->rule, page.start, page.first));
    uint64_t far = tdm_page_of(&s->rule, tdm_far_token(&s->rule, page.start, page.first));
    unsigned char *scratch = thread_scratch;
    uint32_t *list = (uint32_t *)s->launch->operand[TDM_SELECT_LISTS].data + index * s->words,
             count = 0;
    if (s->rule.selector.kind == TDM_SELECT_TOP_K && far < s->chunk_page) {
        uint64_t before = s->chunk_page - far;
        struct vote x = take_vote(&scratch, before, s->head_dim);
        count = elect(s, &page, index % s->lists, far, before, list + 1, x);
        far = s->chunk_page;
    }
    for (uint64_t i = far; i <= page.page; i++) {
        bool whole = tdm_sees_whole(&s->rule, &page, near, i);
        if (whole || i >= near)
            list[1 + count++] = (uint32_t)i | (whole ? TDM_PAGE_WHOLE : 0);
    }
    list[0] = count;
    atomic_fetch_add_explicit(s->pairs, listed_pairs(s, &page, list), memory_order_relaxed);
    while (++count < s->words)
        list[count] = TDM_PAGE_NONE;
}

enum tdm_status tdm_cpu_select(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err)
{
    (void)err;
    const struct tdm_program *program = launch->program;
    const struct tdm_pages_params *params = &program->params.pages;
    const struct tdm_op *op = launch->op;
    _Atomic uint64_t pairs = 0;
    struct selection s = {.launch = launch,
                          .pairs = &pairs,
                          .query_heads = tdm_launch_params(launch)->attention.query_heads,
                          .kv_heads = params->kv_heads,
                          .head_dim = params->head_dim,
                          .rule = tdm_page_rule_of(params, op->layer),
                          .lists = params->lists,
                          .words = 1 + (uint64_t)params->list_capacity};
    s.chunk_page = tdm_page_of(&s.rule, program->chunks[op->chunk].first_token);
    if (op->access[TDM_SELECT_MEANS].buffer != TDM_NONE)
        s.first_page = tdm_page_of(
            &s.rule, program->chunks[op->access[TDM_SELECT_MEANS].before.chunk].first_token);
    uint64_t pages = tdm_size_ceil_div(op->tokens, params->page_tokens);
    tdm_cpu_for(executor, pages * s.lists, select_task, &s);
    executor->counts.pairs = pairs / s.lists; /* per query head */
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_select_scratch(const struct tdm_cpu_shape *shape)
{
    const struct tdm_pages_params *pages = &shape->params->pages;
    unsigned char *vote = NULL, *means = NULL;
    take_vote(&vote, pages->voted_pages, pages->head_dim);
    for (int i = 0; i < 2; i++)
        tdm_cpu_take(&means, (uint64_t)pages->kv_heads * pages->head_dim, sizeof(float));
    return (struct tdm_cpu_scratch){.thread_bytes = tdm_most((uintptr_t)vote, (uintptr_t)means)};
}
