/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over the KV pages of the chunks they see, forward.
 *
 * It follows FlashAttention-2 (arXiv 2307.08691, algorithm 1). A task is a tile of queries and a KV
 * head. It loops over the pages and keeps the maximum and the sum of exponentials so far for every
 * row. When the maximum rises, it rescales the row's sums. Scores of a tile are only in scratch.
 * A (query head, key) pair takes 4 * head_dim FLOPs. The log-sum-exp of every row is stored with
 * the output, for the backward.
 */
#include "executor/cpu/attention.h"

#include "executor/convert.h"
#include "executor/cpu/exp.h"
#include "ops/attention.h"

#include <math.h>
#include <string.h>

struct tdm_attention tdm_attention_begin(const struct tdm_launch *launch)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_pages_params *pages = &program->params.pages;
    const struct tdm_op *op = launch->op;
    const struct tdm_chunk *first = &program->chunks[op->access[TDM_ATTENTION_KV].before.chunk];
    struct tdm_attention a = {
        .launch = launch,
        .pages = pages,
        .tokens = op->tokens,
        .first_token = program->chunks[op->chunk].first_token,
        .query_heads = program->params.attention.query_heads,
        .kv_heads = pages->kv_heads,
        .head_dim = pages->head_dim,
        .ratio = program->params.attention.query_heads / pages->kv_heads,
        .scale = (float)(1.0 / sqrt((double)pages->head_dim)),
        .rule = tdm_page_rule_of(pages, op->layer),
        .list_count = pages->lists,
        .list_words = 1 + (uint64_t)pages->list_capacity,
    };
    const struct tdm_operand *lists =
        &launch->operand[op->kind == TDM_OP_ATTENTION ? TDM_ATTENTION_LISTS
                                                      : TDM_ATTENTION_GRAD_LISTS];
    a.lists = tdm_selector_lists(a.rule.selector.kind) ? lists : NULL;
    a.first_page = tdm_page_of(&a.rule, first->first_token);
    a.gathered = tdm_gather_begin(launch);
    /* as few tiles per page as possible, of about equal size */
    a.tile_tokens = tdm_most(1, TDM_TILE_ROWS / a.ratio);
    a.page_tiles = (a.rule.page_tokens + a.tile_tokens - 1) / a.tile_tokens;
    a.tile_tokens = (a.rule.page_tokens + a.page_tiles - 1) / a.page_tiles;
    a.page_tiles = (a.rule.page_tokens + a.tile_tokens - 1) / a.tile_tokens;
    return a;
}

uint64_t tdm_attention_tiles(const struct tdm_attention *a)
{
    uint64_t page = a->rule.page_tokens, last = a->tokens % page;
    return a->tokens / page * a->page_tiles + (last + a->tile_tokens - 1) / a->tile_tokens;
}

struct tdm_tile tdm_attention_tile(const struct tdm_attention *a, uint64_t number)
{
    struct tdm_tile tile = {.page = number / a->page_tiles};
    uint64_t page = tile.page * a->rule.page_tokens;
    tile.first = page + number % a->page_tiles * a->tile_tokens;
    uint64_t end =
        tdm_least(tdm_least(page + a->rule.page_tokens, a->tokens), tile.first + a->tile_tokens);
    tile.tokens = end - tile.first;
    return tile;
}

const uint32_t *tdm_attention_list(const struct tdm_attention *a, uint64_t page, uint64_t kv_head)
{
    const void *lists = a->lists->data;
    uint64_t list = page * a->list_count + (a->list_count > 1 ? kv_head : 0);
    return (const uint32_t *)lists + list * a->list_words;
}

const uint32_t *tdm_list_find(const uint32_t *list, uint64_t page)
{
    const uint32_t *entries = list + 1;
    uint32_t low = 0, end = list[0];
    while (low < end) {
        uint32_t middle = low + (end - low) / 2, found = entries[middle] & TDM_PAGE_NUMBER;
        if (found == page)
            return &entries[middle];
        if (found < page)
            low = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

struct tdm_from tdm_attention_from(const struct tdm_attention *a, uint64_t t)
{
    const struct tdm_sequence *sequence = tdm_launch_sequence(a->launch);
    uint64_t token = a->first_token + t;
    uint64_t start = tdm_document_start(sequence, tdm_document_of(sequence, token));
    return (struct tdm_from){tdm_near_token(&a->rule, start, token), start};
}

float *tdm_attention_lse(const struct tdm_attention *attention, const struct tdm_operand *out)
{
    uint64_t elements = attention->tokens * attention->query_heads * attention->head_dim;
    void *lse = (unsigned char *)out->data + tdm_lse_bytes_at(elements, out->dtype);
    return lse;
}

uint64_t tdm_tile_rows(const struct tdm_params *params)
{
    return tdm_most(TDM_TILE_ROWS, params->attention.query_heads / params->pages.kv_heads);
}

/* The block of keys that begins at a token of a slot. It ends with its page at the latest. */
static struct tdm_keys block_at(const struct tdm_attention *a, uint32_t slot, uint64_t token)
{
    const struct tdm_program *program = a->launch->program;
    const struct tdm_chunk *chunk =
        &program->chunks[a->launch->op->access[TDM_ATTENTION_KV].before.chunk + slot];
    uint64_t page = token / a->rule.page_tokens, in_page = token % a->rule.page_tokens;
    uint64_t count = tdm_least(chunk->tokens - token, a->rule.page_tokens - in_page);
    struct tdm_keys keys = {.slot = slot,
                            .first = chunk->first_token + token,
                            .count = tdm_least(count, TDM_TILE_KEYS),
                            .page = tdm_page_of(&a->rule, chunk->first_token) + page};
    keys.k = page * a->pages->page_elements + in_page * a->kv_heads * a->head_dim;
    keys.v = keys.k + a->pages->plane_elements;
    return keys;
}

static bool next_of_list(const struct tdm_attention *a, struct tdm_key_cursor *cursor,
                         struct tdm_keys *keys)
{
    if (cursor->entry == cursor->list[0])
        return false;
    uint32_t entry = cursor->list[1 + cursor->entry];
    uint64_t page = (entry & TDM_PAGE_NUMBER) - a->first_page, pages = tdm_pages_of_chunk(&a->rule);
    const struct tdm_op *op = a->launch->op;
    uint32_t slot = (uint32_t)(page / pages);
    uint64_t token = page % pages * a->rule.page_tokens;
    uint64_t tokens =
        a->launch->program->chunks[op->access[TDM_ATTENTION_KV].before.chunk + slot].tokens;
    uint64_t end = tdm_least(tokens - token, a->rule.page_tokens);
    *keys = block_at(a, slot, token + cursor->token);
    keys->whole = (entry & TDM_PAGE_WHOLE) != 0;
    cursor->token += keys->count;
    if (cursor->token == end) {
        cursor->entry++;
        cursor->token = 0;
    }
    return true;
}

bool tdm_keys_next(const struct tdm_attention *a, struct tdm_key_cursor *cursor,
                   struct tdm_keys *keys)
{
    const struct tdm_program *program = a->launch->program;
    const struct tdm_access *access = &a->launch->op->access[TDM_ATTENTION_KV];
    if (cursor->list != NULL)
        return next_of_list(a, cursor, keys);
    if (cursor->slot < access->slots &&
        cursor->token == program->chunks[access->before.chunk + cursor->slot].tokens) {
        cursor->slot++;
        cursor->token = 0;
    }
    if (cursor->slot == access->slots)
        return false;
    *keys = block_at(a, cursor->slot, cursor->token);
    cursor->token += keys->count;
    return true;
}

struct tdm_factor tdm_keys_view(const struct tdm_attention *attention,
                                const struct tdm_operand *pages, const struct tdm_keys *keys,
                                uint64_t first, uint64_t kv_head, float *scratch)
{
    uint64_t dim = attention->head_dim, stride = attention->kv_heads * dim;
    const void *slot = (const unsigned char *)pages->data + keys->slot * pages->slot_bytes;
    uint64_t place, page = attention->pages->page_elements;
    if (tdm_gathered_page(attention, keys->page, kv_head, &place)) {
        slot = attention->gathered.kv;
        first = first % page + place * page;
    }
    first += kv_head * dim;
    if (pages->dtype == TDM_DTYPE_FP32)
        return (struct tdm_factor){(const float *)slot + first, stride, false};
    for (uint64_t i = 0; i < keys->count; i++)
        tdm_load_row(slot, pages->dtype, first + i * stride, dim, scratch + i * dim);
    return (struct tdm_factor){scratch, dim, false};
}

/* Turns a row of scores into exponentials relative to the maximum so far. Returns the factor by
 * which earlier sums must be multiplied. */
static float soften(float *row, uint64_t padded, float *maximum, float *sum)
{
    float lane[TDM_LANES_OF_ROW], most = *maximum;
    for (int j = 0; j < TDM_LANES_OF_ROW; j++)
        lane[j] = row[j];
    for (uint64_t i = TDM_LANES_OF_ROW; i < padded; i += TDM_LANES_OF_ROW) {
        TDM_SIMD
        for (int j = 0; j < TDM_LANES_OF_ROW; j++)
            lane[j] = tdm_choose(row[i + j] > lane[j], row[i + j], lane[j]);
    }
    for (int j = 0; j < TDM_LANES_OF_ROW; j++)
        most = lane[j] > most ? lane[j] : most;
    memset(lane, 0, sizeof(lane));
    for (uint64_t i = 0; i < padded; i += TDM_LANES_OF_ROW) {
        TDM_SIMD
        for (int j = 0; j < TDM_LANES_OF_ROW; j++) {
            float e = tdm_exp(row[i + j] - most);
            row[i + j] = e;
            lane[j] += e;
        }
    }
    float rescale = tdm_exp(*maximum - most), total = *sum * rescale;
    for (int j = 0; j < TDM_LANES_OF_ROW; j++)
        total += lane[j];
    *maximum = most;
    *sum = total;
    return rescale;
}

/* Scratch of a task. */
struct tiles {
    float *q, *out; /* [rows, head_dim] */
    float *scores;  /* [rows, TDM_TILE_KEYS] */
    float *k, *v;   /* [TDM_TILE_KEYS, head_dim] */
    float *maximum; /* [rows] */
    float *sum;
    struct tdm_from *from; /* [tokens] what each sees */
};

static struct tiles take_tiles(unsigned char **scratch, uint64_t rows, uint64_t dim)
{
    struct tiles x;
    x.q = tdm_cpu_take(scratch, rows * dim, sizeof(float));
    x.out = tdm_cpu_take(scratch, rows * dim, sizeof(float));
    x.scores = tdm_cpu_take(scratch, rows * TDM_TILE_KEYS, sizeof(float));
    x.k = tdm_cpu_take(scratch, TDM_TILE_KEYS * dim, sizeof(float));
    x.v = tdm_cpu_take(scratch, TDM_TILE_KEYS * dim, sizeof(float));
    x.maximum = tdm_cpu_take(scratch, rows, sizeof(float));
    x.sum = tdm_cpu_take(scratch, rows, sizeof(float));
    x.from = tdm_cpu_take(scratch, rows, sizeof(*x.from));
    return x;
}

/* Adds a block of keys to every row of the tile that begins at token `first` of the chunk. */
static void add_keys(const struct tdm_attention *a, const struct tdm_keys *keys, uint64_t kv_head,
                     uint64_t first, uint64_t rows, struct tiles x)
{
    const struct tdm_operand *pages = &a->launch->operand[TDM_ATTENTION_KV];
    uint64_t dim = a->head_dim;
    struct tdm_factor q = {x.q, dim, false};
    struct tdm_factor k = tdm_keys_view(a, pages, keys, keys->k, kv_head, x.k);
    struct tdm_factor v = tdm_keys_view(a, pages, keys, keys->v, kv_head, x.v);
    struct tdm_factor p = {x.scores, TDM_TILE_KEYS, false};
    k.transposed = true;
    tdm_gemm(rows, keys->count, dim, q, k, false, x.scores, TDM_TILE_KEYS);
    for (uint64_t i = 0; i < rows; i++) {
        float *row = x.scores + i * TDM_TILE_KEYS, *out = x.out + i * dim;
        uint64_t t = i / a->ratio;
        struct tdm_seen seen = tdm_keys_seen(keys, x.from[t], a->first_token + first + t);
        uint64_t padded = tdm_row_pad(row, seen, keys->count);
        if (padded == 0)
            continue;
        float rescale = soften(row, padded, &x.maximum[i], &x.sum[i]);
        if (rescale != 1.0f)
            for (uint64_t j = 0; j < dim; j++)
                out[j] *= rescale;
    }
    tdm_gemm(rows, dim, keys->count, p, v, true, x.out, dim);
}

static void attention_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct tdm_attention *a = context;
    const struct tdm_operand *q = &a->launch->operand[TDM_ATTENTION_Q],
                             *o = &a->launch->operand[TDM_ATTENTION_O];
    struct tdm_tile tile = tdm_attention_tile(a, index / a->kv_heads);
    uint64_t kv_head = index % a->kv_heads, first = tile.first;
    if (tile.page < a->begin_page || tile.page >= a->end_page)
        return;
    uint64_t tokens = tile.tokens, rows = tokens * a->ratio;
    uint64_t dim = a->head_dim, width = a->query_heads * dim, line = a->ratio * dim;
    unsigned char *scratch = thread_scratch;
    struct tiles x = take_tiles(&scratch, a->tile_tokens * a->ratio, dim);

    for (uint64_t t = 0; t < tokens; t++)
        tdm_load_row(q->data, q->dtype, (first + t) * width + kv_head * line, line, x.q + t * line);
    for (uint64_t t = 0; t < tokens; t++)
        x.from[t] = tdm_attention_from(a, first + t);
    for (uint64_t i = 0; i < rows * dim; i++)
        x.q[i] *= a->scale;
    memset(x.out, 0, rows * dim * sizeof(float));
    for (uint64_t i = 0; i < rows; i++) {
        x.maximum[i] = -INFINITY;
        x.sum[i] = 0.0f;
    }

    struct tdm_key_cursor cursor = {
        .list = a->lists == NULL ? NULL : tdm_attention_list(a, tile.page, kv_head)};
    struct tdm_keys keys;
    while (tdm_keys_next(a, &cursor, &keys) && keys.first < a->first_token + first + tokens)
        if ((keys.whole ? x.from[0].start : x.from[0].near) < keys.first + keys.count)
            add_keys(a, &keys, kv_head, first, rows, x);

    float *lse = tdm_attention_lse(a, o);
    for (uint64_t i = 0; i < rows; i++) {
        const bool none = x.sum[i] == 0.0f; /* of the keys of one chunk, as in a ring */
        float scale = none ? 0.0f : 1.0f / x.sum[i];
        for (uint64_t j = 0; j < dim; j++)
            x.out[i * dim + j] *= scale;
        lse[(first + i / a->ratio) * a->query_heads + kv_head * a->ratio + i % a->ratio] =
            none ? TDM_LSE_OF_NONE : (float)((double)x.maximum[i] + log((double)x.sum[i]));
    }
    for (uint64_t t = 0; t < tokens; t++)
        tdm_store_row(o->data, o->dtype, (first + t) * width + kv_head * line, line,
                      x.out + t * line);
}

enum tdm_status tdm_cpu_attention(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    (void)err;
    struct tdm_attention a = tdm_attention_begin(launch);
    while (tdm_attention_next(executor, &a))
        tdm_cpu_for(executor, tdm_attention_tiles(&a) * a.kv_heads, attention_task, &a);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_attention_scratch(const struct tdm_cpu_shape *shape)
{
    unsigned char *thread = NULL;
    take_tiles(&thread, tdm_tile_rows(shape->params), shape->params->pages.head_dim);
    return (struct tdm_cpu_scratch){.thread_bytes = (uintptr_t)thread};
}
