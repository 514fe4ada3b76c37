/* SPDX-License-Identifier: Apache-2.0 */
/* Attention ranges, and counts of (query, key) pairs. */
#include "schedule/attend.h"

#include "base/size.h"
#include "schedule/ranks.h"

static uint64_t start_of(const struct tdm_schedule *schedule, uint32_t sequence, uint64_t token)
{
    const struct tdm_sequence *s = &schedule->sequences[sequence];
    return tdm_document_start(s, tdm_document_of(s, token));
}

struct tdm_query_page tdm_attend_query_page(const struct tdm_page_rule *rule,
                                            const struct tdm_chunk *chunk,
                                            const struct tdm_sequence *sequence, uint64_t number)
{
    uint64_t first = chunk->first_token + number * rule->page_tokens;
    uint64_t end = first + rule->page_tokens;
    if (end > chunk->first_token + chunk->tokens)
        end = chunk->first_token + chunk->tokens;
    uint32_t document = tdm_document_of(sequence, first);
    return (struct tdm_query_page){.page = tdm_page_of(rule, first),
                                   .first = first,
                                   .last = end - 1,
                                   .start = tdm_document_start(sequence, document),
                                   .opens = tdm_document_end(sequence, document) < end};
}

uint32_t tdm_attend_first(const struct tdm_program *program, uint32_t layer, uint32_t number)
{
    const struct tdm_chunk *chunk = &program->chunks[number];
    struct tdm_page_rule rule = tdm_schedule_page_rule(program->schedule, layer);
    uint64_t start = start_of(program->schedule, chunk->sequence, chunk->first_token);
    uint64_t token = tdm_far_token(&rule, start, chunk->first_token);
    return chunk->first_chunk + (uint32_t)(token / program->schedule->chunk_tokens);
}

uint32_t tdm_attend_shared(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    const uint32_t end = chunk + 1, before = tdm_kv_sum_before(program, chunk);
    if (before > program->chunks[chunk].last_chunk)
        return end;
    const uint32_t first = tdm_attend_first(program, layer, before);
    return first < end ? first : end;
}

uint32_t tdm_attend_last(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    uint32_t low = chunk, high = program->chunks[chunk].last_chunk;
    while (low < high) { /* tdm_attend_first() never decreases */
        uint32_t middle = high - (high - low) / 2;
        if (tdm_attend_first(program, layer, middle) <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void tdm_attend_seen(const struct tdm_program *program, uint32_t layer, uint32_t *before)
{
    before[0] = 0;
    for (uint32_t i = 0; i < program->chunk_count; i++)
        before[i + 1] = before[i] + (tdm_attend_shared(program, layer, i) <= i);
}

/* ---- pairs ---- */

/* 1 + 2 + ... + n. */
static uint64_t rising(uint64_t n)
{
    return tdm_size_mul(n, tdm_size_add(n, 1)) / 2;
}

/* Pairs of the queries at positions [first, first + tokens) of a document. Each query sees the last
 * `window` tokens. */
static uint64_t window_pairs(uint64_t first, uint64_t tokens, uint64_t window)
{
    uint64_t growing = first >= window ? 0 : window - first; /* queries that see all before them */
    if (growing > tokens)
        growing = tokens;
    uint64_t pairs = tdm_size_add(tdm_size_mul(growing, first), rising(growing));
    return tdm_size_add(pairs, tdm_size_mul(tokens - growing, window));
}

/* Pairs of the first `tokens` tokens of a range that is cut into blocks. Each token sees its own
 * block, up to itself. */
static uint64_t block_pairs(uint64_t tokens, uint64_t block)
{
    return tdm_size_add(tdm_size_mul(tokens / block, rising(block)), rising(tokens % block));
}

/* Near pairs of the tokens [token, end) of a chunk, if a token sees the part of its own page that
 * belongs to its document. All tokens are of the document that begins at `start`. */
static uint64_t own_page_pairs(const struct tdm_page_rule *rule, uint64_t start, uint64_t token,
                               uint64_t end)
{
    uint64_t page = tdm_page_token(rule, tdm_page_of(rule, token));
    uint64_t from = page > start ? page : start, stop = page + rule->page_tokens;
    uint64_t before = rising(token - from);
    if (stop >= end)
        return rising(end - from) - before;
    return tdm_size_add(rising(stop - from) - before, block_pairs(end - stop, rule->page_tokens));
}

/* Near pairs of tokens [token, end) of a chunk, all in the document that begins at `start`. */
static uint64_t near_pairs(const struct tdm_page_rule *rule, uint64_t start, uint64_t token,
                           uint64_t end)
{
    const struct tdm_selector *s = &rule->selector;
    uint64_t chunk = token - token % rule->chunk_tokens;
    switch (s->kind) {
    case TDM_SELECT_WINDOW:
    case TDM_SELECT_LONGFORMER:
    case TDM_SELECT_BIGBIRD:
        return window_pairs(token - start, end - token, s->window);
    case TDM_SELECT_BLOCK:
        return block_pairs(end - start, s->block) - block_pairs(token - start, s->block);
    case TDM_SELECT_DILATED:
        return own_page_pairs(rule, start, token, end);
    case TDM_SELECT_TOP_K:
        start = chunk > start ? chunk : start;
        break;
    default:
        break;
    }
    return window_pairs(token - start, end - token, TDM_SIZE_MAX);
}

/* Far tokens that a token of a query page sees. `far`: tokens before its near ones. */
static uint64_t far_seen(const struct tdm_page_rule *rule, uint64_t far)
{
    const struct tdm_selector *s = &rule->selector;
    uint64_t most = s->budget;
    if (s->kind == TDM_SELECT_DILATED) {
        uint64_t reach = far / tdm_size_mul(s->dilation, rule->page_tokens);
        uint64_t pages = s->window / rule->page_tokens;
        most = (reach < pages ? reach : pages) * rule->page_tokens;
    } else if (s->kind != TDM_SELECT_TOP_K) {
        uint64_t pages = tdm_size_ceil_div(s->global, rule->page_tokens) + s->random;
        most = tdm_size_mul(pages, rule->page_tokens);
    }
    return far < most ? far : most;
}

/* Sum of min(i / step, most) over i below n. */
static uint64_t steps_sum(uint64_t n, uint64_t step, uint64_t most)
{
    uint64_t rises = tdm_size_mul(step, most), rest = n > rises ? n - rises : 0;
    uint64_t whole = (n - rest) / step, left = (n - rest) % step;
    uint64_t sum = whole == 0 ? 0 : tdm_size_mul(step, rising(whole - 1));
    return tdm_size_add(tdm_size_add(sum, tdm_size_mul(left, whole)), tdm_size_mul(rest, most));
}

/* Sum of far_seen() over `pages` whole pages, beginning with the page at `token`. From page to page
 * the far tokens grow by a page, or with top-k not at all. */
static uint64_t far_sum(const struct tdm_page_rule *rule, uint64_t start, uint64_t token,
                        uint64_t pages)
{
    uint64_t size = rule->page_tokens, low = tdm_near_token(rule, start, token) - start;
    const struct tdm_selector *s = &rule->selector;
    if (s->kind == TDM_SELECT_TOP_K)
        return tdm_size_mul(pages, far_seen(rule, low));
    if (s->kind == TDM_SELECT_DILATED) { /* the reach is far pages / dilation */
        uint64_t first = low / size, most = s->window / size;
        uint64_t steps =
            steps_sum(first + pages, s->dilation, most) - steps_sum(first, s->dilation, most);
        return tdm_size_mul(steps, size);
    }
    uint64_t sum = 0;
    if (low == 0) { /* skip the pages without far tokens */
        uint64_t near = start + s->window > token ? start + s->window - token : 0;
        uint64_t none = tdm_size_ceil_div(near, size);
        if (none >= pages)
            return 0;
        token += none * size;
        pages -= none;
        low = tdm_near_token(rule, start, token) - start;
    }
    uint64_t most = far_seen(rule, TDM_SIZE_MAX);
    uint64_t grow = most > low ? tdm_size_ceil_div(most - low, size) : 0; /* pages with fewer */
    if (grow > pages)
        grow = pages;
    if (grow > 0)
        sum = tdm_size_add(tdm_size_mul(grow, low), tdm_size_mul(size, rising(grow - 1)));
    return tdm_size_add(sum, tdm_size_mul(pages - grow, most));
}

/* Pairs of the tokens [token, end) of a chunk. All are of the document that begins at `start`.
 * Exact, unless a listed page has tokens that are near or of another document. */
static uint64_t part_pairs(const struct tdm_page_rule *rule, uint64_t start, uint64_t token,
                           uint64_t end)
{
    uint64_t pairs = near_pairs(rule, start, token, end), size = rule->page_tokens;
    if (!tdm_selector_lists(rule->selector.kind) || token >= end)
        return pairs;
    /* the first page (a document may begin inside it), whole pages, the rest */
    uint64_t stop = tdm_page_token(rule, tdm_page_of(rule, token)) + size;
    stop = stop < end ? stop : end;
    uint64_t far = tdm_near_token(rule, start, token) - start;
    pairs = tdm_size_add(pairs, tdm_size_mul(stop - token, far_seen(rule, far)));
    uint64_t pages = (end - stop) / size, last = stop + pages * size;
    if (pages > 0)
        pairs = tdm_size_add(pairs, tdm_size_mul(size, far_sum(rule, start, stop, pages)));
    if (last < end) {
        far = tdm_near_token(rule, start, last) - start;
        pairs = tdm_size_add(pairs, tdm_size_mul(end - last, far_seen(rule, far)));
    }
    return pairs;
}

/* Sums `part` over the documents among the tokens [token, end) of a chunk. */
static uint64_t sum_parts(const struct tdm_schedule *schedule, uint32_t layer, uint32_t sequence,
                          uint64_t token, uint64_t end,
                          uint64_t (*part)(const struct tdm_page_rule *, uint64_t, uint64_t,
                                           uint64_t))
{
    const struct tdm_sequence *s = &schedule->sequences[sequence];
    struct tdm_page_rule rule = tdm_schedule_page_rule(schedule, layer);
    uint64_t sum = 0;
    for (uint32_t document = tdm_document_of(s, token); token < end; document++) {
        uint64_t stop = tdm_document_end(s, document);
        stop = stop < end ? stop : end;
        sum = tdm_size_add(sum, part(&rule, tdm_document_start(s, document), token, stop));
        token = stop;
    }
    return sum;
}

uint64_t tdm_attend_pairs(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    const struct tdm_chunk *c = &program->chunks[chunk];
    return sum_parts(program->schedule, layer, c->sequence, c->first_token,
                     c->first_token + c->tokens, part_pairs);
}

/* The sum of n, n - 1, ..., of `count` numbers; 0 stands for those below. */
static uint64_t falling(uint64_t n, uint64_t count)
{
    return rising(n) - (count < n ? rising(n - count) : 0);
}

/* Pairs of tokens [token, end), all in the document that begins at `start`, with keys before `key`,
 * which is not after `token`. */
static uint64_t pairs_before(const struct tdm_page_rule *rule, uint64_t start, uint64_t token,
                             uint64_t end, uint64_t key)
{
    const uint64_t near = tdm_near_token(rule, start, token);
    if (near >= key)
        return 0;
    switch (rule->selector.kind) {
    case TDM_SELECT_WINDOW: {
        /* tokens that see all before them, and then one key less for each token */
        uint64_t whole = start + rule->selector.window, all = 0;
        whole = whole < token ? token : whole < end ? whole : end;
        all = tdm_size_mul(whole - token, key - start);
        if (whole == end)
            return all;
        const uint64_t next = tdm_near_token(rule, start, whole);
        return next >= key ? all : tdm_size_add(all, falling(key - next, end - whole));
    }
    case TDM_SELECT_BLOCK: { /* later blocks begin after the key */
        const uint64_t stop = near + rule->selector.block;
        return tdm_size_mul((stop < end ? stop : end) - token, key - near);
    }
    default:
        return tdm_size_mul(end - token, key - near);
    }
}

uint64_t tdm_attend_pairs_with(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                               uint32_t key)
{
    const struct tdm_chunk *c = &program->chunks[chunk], *k = &program->chunks[key];
    const struct tdm_sequence *s = &program->schedule->sequences[c->sequence];
    const struct tdm_page_rule rule = tdm_schedule_page_rule(program->schedule, layer);
    const uint64_t end = c->first_token + c->tokens, key_end = k->first_token + k->tokens;
    uint64_t token = c->first_token, pairs = 0;
    for (uint32_t document = tdm_document_of(s, token); token < end; document++) {
        const uint64_t start = tdm_document_start(s, document);
        uint64_t stop = tdm_document_end(s, document);
        stop = stop < end ? stop : end;
        if (chunk == key && start <= k->first_token)
            pairs += part_pairs(&rule, start, token, stop) -
                     pairs_before(&rule, start, token, stop, k->first_token);
        else if (chunk == key)
            pairs += part_pairs(&rule, start, token, stop);
        else if (start < key_end)
            pairs +=
                pairs_before(&rule, start, token, stop, key_end) -
                (start < k->first_token ? pairs_before(&rule, start, token, stop, k->first_token)
                                        : 0);
        token = stop;
    }
    return pairs;
}

/* Pairs of a token and a page before the chunk whose mean it scores. */
static uint64_t part_scores(const struct tdm_page_rule *rule, uint64_t start, uint64_t token,
                            uint64_t end)
{
    uint64_t chunk = token - token % rule->chunk_tokens;
    if (rule->selector.kind != TDM_SELECT_TOP_K || start >= chunk)
        return 0;
    uint64_t pages = tdm_page_of(rule, chunk) - tdm_page_of(rule, start);
    return pages <= rule->selector.budget / rule->page_tokens ? 0
                                                              : tdm_size_mul(end - token, pages);
}

uint64_t tdm_attend_scores(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    const struct tdm_chunk *c = &program->chunks[chunk];
    return sum_parts(program->schedule, layer, c->sequence, c->first_token,
                     c->first_token + c->tokens, part_scores);
}

/* Pairs of all sequences in a layer. */
static double layer_pairs(const struct tdm_schedule *schedule, uint32_t layer)
{
    double pairs = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        uint64_t tokens = schedule->sequences[s].tokens;
        for (uint64_t token = 0; token < tokens; token += schedule->chunk_tokens) {
            uint64_t left = tokens - token;
            uint64_t here = left < schedule->chunk_tokens ? left : schedule->chunk_tokens;
            pairs += (double)sum_parts(schedule, layer, s, token, token + here, part_pairs);
        }
    }
    return pairs;
}

double tdm_attend_step_pairs(const struct tdm_schedule *schedule)
{
    const struct tdm_layer_kind *kinds = schedule->model->layer_kinds;
    double pairs = 0, last = 0;
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++) {
        if (layer == 0 || kinds[layer].window != kinds[layer - 1].window)
            last = layer_pairs(schedule, layer);
        pairs += last;
    }
    return pairs;
}
