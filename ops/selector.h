/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selectors: which pages of keys the queries of a page see. Attention does not know which selector
 * made a list.
 *
 * Within its document a token sees itself, the tokens before it from its first `near` one on, and
 * the tokens of the pages that its query page sees whole (far or near):
 *
 *     selector     near tokens                  whole pages
 *     dense        the document                 -
 *     window       the last `window`            -
 *     block        its block of `block` tokens  -
 *     longformer   the last `window`            those with the document's first `global` tokens
 *     bigbird      the last `window`            as longformer; `random` of those before the window
 *     dilated      its own page                 window / page_tokens pages, `dilation` apart
 *     top-k        its chunk                    the budget / page_tokens earlier pages that won
 *
 * The first three see a range of tokens; the others need lists. Blocks are counted from the start
 * of a document. A query page is `page_tokens` tokens of a chunk. Pages are numbered over the
 * sequence, and each chunk begins a new one. The first token of a query page decides which pages it
 * sees whole. A page in which a document begins sees itself whole, because that document's first
 * tokens are there. Random pages are drawn by layer and query page; repeats are dropped. If at most
 * as many pages lie before a chunk as the budget has, top-k is dense.
 *
 * Sources: window, global tokens and dilation: arXiv 2004.05150. Random blocks: arXiv 2007.14062.
 * Page means and votes: OOMB ("Out of the memory barrier", 2026). There each query of the page
 * scores the means of the keys of the pages before its chunk. The votes are a softmax over these
 * scores, summed over the page's queries and the query heads of a KV head.
 *
 * All counts are tokens and pages of one sequence. This file compiles as C and as CUDA C.
 */
#ifndef TDM_OPS_SELECTOR_H
#define TDM_OPS_SELECTOR_H

#include "base/anywhere.h"

#include <stdbool.h>
#include <stdint.h>

enum tdm_selector_kind {
    TDM_SELECT_DENSE,
    TDM_SELECT_WINDOW,
    TDM_SELECT_BLOCK,
    TDM_SELECT_LONGFORMER,
    TDM_SELECT_BIGBIRD,
    TDM_SELECT_DILATED,
    TDM_SELECT_TOP_K,
    TDM_SELECTORS
};

/* A schedule's choice of attention. Fields that the kind does not have are 0. */
struct tdm_selector {
    enum tdm_selector_kind kind;
    uint64_t window, block, global, budget; /* tokens */
    uint64_t random, dilation;              /* pages */
    uint64_t seed;
};

/* A selector in a layer, and the sizes of chunks and pages. */
struct tdm_page_rule {
    struct tdm_selector selector;
    uint64_t chunk_tokens, page_tokens;
    uint32_t layer;
};

/* An entry of a list: a page's number, and whether it is seen whole. */
#define TDM_PAGE_WHOLE 0x80000000u
#define TDM_PAGE_NUMBER 0x7fffffffu
#define TDM_PAGE_NONE 0xffffffffu /* fills a list after its last entry, up to the capacity */

TDM_ANYWHERE uint64_t tdm_pages_of_chunk(const struct tdm_page_rule *rule)
{
    return (rule->chunk_tokens + rule->page_tokens - 1) / rule->page_tokens;
}

/* The page of a token, and the first token of a page. */
TDM_ANYWHERE uint64_t tdm_page_of(const struct tdm_page_rule *rule, uint64_t token)
{
    return token / rule->chunk_tokens * tdm_pages_of_chunk(rule) +
           token % rule->chunk_tokens / rule->page_tokens;
}

TDM_ANYWHERE uint64_t tdm_page_token(const struct tdm_page_rule *rule, uint64_t page)
{
    uint64_t pages = tdm_pages_of_chunk(rule);
    return page / pages * rule->chunk_tokens + page % pages * rule->page_tokens;
}

/* Does the selector make lists? Otherwise it sees a range. */
TDM_ANYWHERE bool tdm_selector_lists(enum tdm_selector_kind kind)
{
    return kind >= TDM_SELECT_LONGFORMER;
}

/* The first of the near tokens of a token whose document begins at `start`. */
TDM_ANYWHERE uint64_t tdm_near_token(const struct tdm_page_rule *rule, uint64_t start,
                                     uint64_t token)
{
    const struct tdm_selector *s = &rule->selector;
    uint64_t near = start;
    switch (s->kind) {
    case TDM_SELECT_WINDOW:
    case TDM_SELECT_LONGFORMER:
    case TDM_SELECT_BIGBIRD:
        near = token < s->window ? 0 : token - s->window + 1;
        break;
    case TDM_SELECT_BLOCK:
        near = token - (token - start) % s->block;
        break;
    case TDM_SELECT_DILATED:
        near = tdm_page_token(rule, tdm_page_of(rule, token));
        break;
    case TDM_SELECT_TOP_K:
        near = token - token % rule->chunk_tokens;
        break;
    default:
        break;
    }
    return near > start ? near : start;
}

/* The first token that a token whose document begins at `start` can see, near or far. It never
 * falls as `token` rises. */
TDM_ANYWHERE uint64_t tdm_far_token(const struct tdm_page_rule *rule, uint64_t start,
                                    uint64_t token)
{
    const struct tdm_selector *s = &rule->selector;
    if (s->kind == TDM_SELECT_DILATED) {
        uint64_t page = tdm_page_of(rule, token);
        uint64_t reach = s->window / rule->page_tokens * s->dilation;
        uint64_t first = page > reach ? tdm_page_token(rule, page - reach) : 0;
        return first > start ? first : start;
    }
    return tdm_selector_lists(s->kind) ? start : tdm_near_token(rule, start, token);
}

/* A counter-based random number (splitmix64's finalizer, Steele et al. 2014). */
TDM_ANYWHERE uint64_t tdm_selector_random(uint64_t counter)
{
    uint64_t x = counter * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* A query page: its number, its first and last token, the start of the first one's document, and
 * whether a document begins among the tokens after the first. */
struct tdm_query_page {
    uint64_t page, first, last, start;
    bool opens;
};

/* Random page number `i` of a query page, out of the pages [low, high). */
TDM_ANYWHERE uint64_t tdm_random_page(const struct tdm_page_rule *rule, uint64_t page, uint64_t i,
                                      uint64_t low, uint64_t high)
{
    uint64_t counter = tdm_selector_random(rule->selector.seed) + rule->layer;
    counter = tdm_selector_random(counter) + page;
    counter = tdm_selector_random(counter) + i;
    return low + tdm_selector_random(counter) % (high - low);
}

/* Does a query page see a page whole, by a selector that needs no vote? `near`: the page of the
 * first token's near token. */
TDM_ANYWHERE bool tdm_sees_whole(const struct tdm_page_rule *rule, const struct tdm_query_page *q,
                                 uint64_t near, uint64_t page)
{
    const struct tdm_selector *s = &rule->selector;
    uint64_t first = tdm_page_of(rule, q->start);
    if (page < first || page > q->page)
        return false;
    if (page == q->page && q->opens)
        return true;
    if (s->kind == TDM_SELECT_DILATED)
        return page < q->page && (q->page - page) % s->dilation == 0 &&
               (q->page - page) / s->dilation <= s->window / rule->page_tokens;
    if (s->global > 0 && page <= tdm_page_of(rule, q->start + s->global - 1))
        return true;
    for (uint64_t i = 0; s->kind == TDM_SELECT_BIGBIRD && first < near && i < s->random; i++)
        if (tdm_random_page(rule, q->page, i, first, near) == page)
            return true;
    return false;
}

#endif
