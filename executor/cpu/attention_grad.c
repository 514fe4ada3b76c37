/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over the KV pages of the chunks they see, backward.
 *
 * It follows FlashAttention-2 (arXiv 2307.08691, algorithm 2), with 10 * head_dim FLOPs per (query
 * head, key) pair:
 *
 *     P = exp(scores - LSE),  D = rowsum(dO * O),  dS = P * (dO V^T - D)
 *     dV = P^T dO,  dQ = dS K / sqrt(head_dim),  dK = dS^T Q / sqrt(head_dim)
 *
 * A task owns blocks of keys of one KV head. It sums their dK and dV over all rows of the chunk in
 * fp32 and adds them to the pages once. In chunks that no later chunk has seen it writes them.
 * The keys of a KV head are split so that there are enough tasks. Each task has its own partial dQ;
 * these are added in order at the end. A second loop over the keys would need no partial dQ, but
 * seven products instead of five.
 */
#include "executor/cpu/attention.h"

#include "executor/convert.h"
#include "executor/cpu/exp.h"
#include "ops/attention.h"

#include <string.h>

enum { TASKS_LEAST = 8 }; /* the keys are split into as many, if there are enough blocks */

struct backward {
    struct tdm_attention a;
    uint64_t rows;   /* of a KV head: tokens * ratio */
    uint64_t splits; /* of the keys of a KV head */
    uint64_t blocks; /* of keys */
    /* Shared by all tasks; ordered by KV head, then row. */
    float *q, *d_out;      /* [kv_heads, rows, head_dim]; q scaled by 1 / sqrt(head_dim) */
    float *lse, *d;        /* [kv_heads, rows] */
    float *dq;             /* [splits, kv_heads, rows, head_dim] */
    struct tdm_from *sees; /* [tokens] what each sees; the rows of a token see the same */
};

static uint64_t splits_most(uint64_t kv_heads)
{
    return (TASKS_LEAST + kv_heads - 1) / kv_heads;
}

static void take_shared(unsigned char **scratch, struct backward *x)
{
    uint64_t rows = x->a.kv_heads * x->rows, elements = rows * x->a.head_dim;
    x->q = tdm_cpu_take(scratch, elements, sizeof(float));
    x->d_out = tdm_cpu_take(scratch, elements, sizeof(float));
    x->lse = tdm_cpu_take(scratch, rows, sizeof(float));
    x->d = tdm_cpu_take(scratch, rows, sizeof(float));
    x->dq = tdm_cpu_take(scratch, x->splits * elements, sizeof(float));
    x->sees = tdm_cpu_take(scratch, x->a.tokens, sizeof(*x->sees));
}

/* Where the gradient finds its queries: in operands of their own, or packed (TDM_QUERIES), with D
 * in place of the output. */
struct queries {
    const void *q, *d_out;
    const struct tdm_operand *out; /* NULL: packed */
    const float *lse, *d;
};

static struct queries queries_of(const struct tdm_attention *a)
{
    const struct tdm_operand *q = &a->launch->operand[TDM_ATTENTION_GRAD_Q],
                             *out = &a->launch->operand[TDM_ATTENTION_GRAD_O];
    const uint64_t rows = a->tokens * a->query_heads;
    const unsigned char *packed = q->data;
    if (out->data != NULL)
        return (struct queries){q->data, a->launch->operand[TDM_ATTENTION_GRAD_DO].data, out,
                                tdm_attention_lse(a, out), NULL};
    const struct tdm_queries_at at = tdm_queries_at(rows * a->head_dim, rows, q->dtype);
    const void *lse = packed + at.lse, *d = packed + at.dots;
    return (struct queries){packed, packed + at.d_out, NULL, lse, d};
}

/* Reorders the rows of Q, dO and LSE by KV head, scales Q, and computes D of each row. */
static void rows_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct backward *x = context;
    const struct tdm_attention *a = &x->a;
    const struct queries from = queries_of(a);
    const enum tdm_dtype dtype = a->launch->operand[TDM_ATTENTION_GRAD_Q].dtype;
    uint64_t dim = a->head_dim, line = a->ratio * dim;
    unsigned char *scratch = thread_scratch;
    float *out_line = tdm_cpu_take(&scratch, line, sizeof(float));
    uint64_t end = tdm_least(a->tokens, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        x->sees[t] = tdm_attention_from(a, t);
        for (uint64_t g = 0; g < a->kv_heads; g++) {
            uint64_t first = (t * a->query_heads + g * a->ratio) * dim;
            uint64_t row = g * x->rows + t * a->ratio;
            float *q_line = x->q + row * dim, *d_line = x->d_out + row * dim;
            tdm_load_row(from.q, dtype, first, line, q_line);
            tdm_load_row(from.d_out, dtype, first, line, d_line);
            const float *o_line = from.out == NULL ? NULL
                                                   : tdm_view_row(from.out->data, from.out->dtype,
                                                                  first, line, out_line);
            for (uint64_t i = 0; i < line; i++)
                q_line[i] *= a->scale;
            for (uint64_t r = 0; r < a->ratio; r++) {
                const uint64_t at = t * a->query_heads + g * a->ratio + r;
                x->d[row + r] = o_line == NULL
                                    ? from.d[at]
                                    : tdm_cpu_dot(d_line + r * dim, o_line + r * dim, dim);
                x->lse[row + r] = from.lse[at];
            }
        }
    }
}

/* Scratch of a task. */
struct tiles {
    float *p, *dp;                /* [rows, TDM_TILE_KEYS] */
    float *k, *v, *dk, *dv, *sum; /* [TDM_TILE_KEYS, head_dim] */
};

static struct tiles take_tiles(unsigned char **scratch, uint64_t rows, uint64_t dim)
{
    struct tiles x;
    x.p = tdm_cpu_take(scratch, rows * TDM_TILE_KEYS, sizeof(float));
    x.dp = tdm_cpu_take(scratch, rows * TDM_TILE_KEYS, sizeof(float));
    x.k = tdm_cpu_take(scratch, TDM_TILE_KEYS * dim, sizeof(float));
    x.v = tdm_cpu_take(scratch, TDM_TILE_KEYS * dim, sizeof(float));
    x.dk = tdm_cpu_take(scratch, TDM_TILE_KEYS * dim, sizeof(float));
    x.dv = tdm_cpu_take(scratch, TDM_TILE_KEYS * dim, sizeof(float));
    x.sum = tdm_cpu_take(scratch, dim, sizeof(float));
    return x;
}

/* Turns the scores of a row into probabilities, and dO V^T into dS. */
static void soften_back(float *p, float *dp, uint64_t padded, float lse, float d)
{
    for (uint64_t i = 0; i < padded; i += TDM_LANES_OF_ROW) {
        TDM_SIMD
        for (int j = 0; j < TDM_LANES_OF_ROW; j++) {
            float e = tdm_exp(p[i + j] - lse);
            p[i + j] = e;
            dp[i + j] = e * (dp[i + j] - d);
        }
    }
}

/* Adds what one tile of rows contributes to dK and dV of a block of keys, and to its own dQ. */
static void add_rows(const struct backward *x, const struct tdm_keys *keys, uint64_t kv_head,
                     float *dq, struct tdm_tile of, bool add, struct tdm_factor k,
                     struct tdm_factor v, struct tiles tile)
{
    const struct tdm_attention *a = &x->a;
    uint64_t dim = a->head_dim, first = of.first;
    uint64_t rows = of.tokens * a->ratio, row = kv_head * x->rows + first * a->ratio;
    struct tdm_factor q = {x->q + row * dim, dim, false};
    struct tdm_factor d_out = {x->d_out + row * dim, dim, false};
    struct tdm_factor p = {tile.p, TDM_TILE_KEYS, false}, ds = {tile.dp, TDM_TILE_KEYS, false};
    struct tdm_factor k_t = k, v_t = v, p_t = p, ds_t = ds;
    k_t.transposed = v_t.transposed = p_t.transposed = ds_t.transposed = true;

    tdm_gemm(rows, keys->count, dim, q, k_t, false, tile.p, TDM_TILE_KEYS);
    tdm_gemm(rows, keys->count, dim, d_out, v_t, false, tile.dp, TDM_TILE_KEYS);
    for (uint64_t i = 0; i < rows; i++) {
        float *p_row = tile.p + i * TDM_TILE_KEYS, *dp_row = tile.dp + i * TDM_TILE_KEYS;
        uint64_t t = first + i / a->ratio;
        struct tdm_seen seen = tdm_keys_seen(keys, x->sees[t], a->first_token + t);
        uint64_t padded = tdm_row_pad(p_row, seen, keys->count);
        for (uint64_t j = 0; j < seen.low; j++)
            dp_row[j] = 0.0f;
        for (uint64_t j = seen.high; j < tdm_most(padded, keys->count); j++)
            dp_row[j] = 0.0f;
        soften_back(p_row, dp_row, padded, x->lse[row + i], x->d[row + i]);
    }
    tdm_gemm(keys->count, dim, rows, p_t, d_out, add, tile.dv, dim);
    tdm_gemm(keys->count, dim, rows, ds_t, q, add, tile.dk, dim);
    tdm_gemm(rows, dim, keys->count, ds, k, true, dq + first * a->ratio * dim, dim);
}

/* The operand that holds a slot of the gradients' pages; *slot becomes the slot's number in it. The
 * slots that are written come first, then those that are added to. */
static const struct tdm_operand *gradient_pages(const struct backward *x, uint32_t *slot)
{
    const struct tdm_operand *written = &x->a.launch->operand[TDM_ATTENTION_GRAD_DKV_OPENED];
    if (*slot < written->slots)
        return written;
    *slot -= written->slots;
    return &x->a.launch->operand[TDM_ATTENTION_GRAD_DKV_ADDED];
}

/* Adds a block's dK or dV to the pages, or overwrites them. */
static void put_keys(const struct backward *x, const struct tdm_keys *keys, uint64_t first,
                     uint64_t kv_head, const float *gradient, float *scratch)
{
    uint32_t number = keys->slot;
    const struct tdm_operand *pages = gradient_pages(x, &number);
    uint64_t dim = x->a.head_dim, stride = x->a.kv_heads * dim;
    void *slot = (unsigned char *)pages->data + number * pages->slot_bytes;
    uint64_t place, page = x->a.pages->page_elements;
    bool add = pages->mode == TDM_ACCUMULATE || x->a.gathered.buffer_pages > 0;
    if (tdm_gathered_page(&x->a, keys->page, kv_head, &place)) {
        slot = x->a.gathered.dkv;
        first = first % page + place * page;
    }
    for (uint64_t i = 0; i < keys->count; i++) {
        uint64_t at = first + kv_head * dim + i * stride;
        if (add)
            tdm_add_row(slot, pages->dtype, at, dim, gradient + i * dim, scratch);
        else
            tdm_store_row(slot, pages->dtype, at, dim, gradient + i * dim);
    }
}

/* Does a tile of rows read a block of keys? Sets keys->whole from the tile's list. */
static bool reads(const struct backward *x, struct tdm_tile tile, uint64_t kv_head,
                  struct tdm_keys *keys)
{
    const struct tdm_attention *a = &x->a;
    if (keys->first >= a->first_token + tile.first + tile.tokens || tile.page < a->begin_page ||
        tile.page >= a->end_page)
        return false;
    if (a->lists != NULL) {
        const uint32_t *entry =
            tdm_list_find(tdm_attention_list(a, tile.page, kv_head), keys->page);
        if (entry == NULL)
            return false;
        keys->whole = (*entry & TDM_PAGE_WHOLE) != 0;
    }
    struct tdm_from sees = x->sees[tile.first];
    return (keys->whole ? sees.start : sees.near) < keys->first + keys->count;
}

static void keys_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct backward *x = context;
    const struct tdm_attention *a = &x->a;
    uint64_t split = index / a->kv_heads, kv_head = index % a->kv_heads, dim = a->head_dim;
    uint64_t begin = x->blocks * split / x->splits, end = x->blocks * (split + 1) / x->splits;
    float *dq = x->dq + index * x->rows * dim;
    uint64_t tiles = tdm_attention_tiles(a);
    unsigned char *scratch = thread_scratch;
    struct tiles tile = take_tiles(&scratch, a->tile_tokens * a->ratio, dim);
    if (a->begin_page == 0)
        memset(dq, 0, x->rows * dim * sizeof(float));

    struct tdm_key_cursor cursor = {0};
    struct tdm_keys keys;
    for (uint64_t block = 0; block < end && tdm_keys_next(a, &cursor, &keys); block++) {
        uint64_t place;
        if (block < begin)
            continue;
        if (a->gathered.buffer_pages > 0 && keys.page < a->gathered.chunk_page &&
            !tdm_gathered_page(a, keys.page, kv_head, &place))
            continue;
        const struct tdm_operand *pages = &a->launch->operand[TDM_ATTENTION_GRAD_KV];
        struct tdm_factor k = tdm_keys_view(a, pages, &keys, keys.k, kv_head, tile.k);
        struct tdm_factor v = tdm_keys_view(a, pages, &keys, keys.v, kv_head, tile.v);
        bool add = false;
        for (uint64_t i = 0; i < tiles; i++) {
            struct tdm_tile rows = tdm_attention_tile(a, i);
            if (!reads(x, rows, kv_head, &keys))
                continue;
            add_rows(x, &keys, kv_head, dq, rows, add, k, v, tile);
            add = true;
        }
        if (!add) { /* no query of the chunk sees these */
            memset(tile.dk, 0, keys.count * dim * sizeof(float));
            memset(tile.dv, 0, keys.count * dim * sizeof(float));
        }
        put_keys(x, &keys, keys.k, kv_head, tile.dk, tile.sum);
        put_keys(x, &keys, keys.v, kv_head, tile.dv, tile.sum);
    }
}

/* Adds up the partial sums of dQ. */
static void sum_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct backward *x = context;
    const struct tdm_attention *a = &x->a;
    const struct tdm_operand *dq = &a->launch->operand[TDM_ATTENTION_GRAD_DQ];
    uint64_t line = a->ratio * a->head_dim, split_elements = a->kv_heads * x->rows * a->head_dim;
    unsigned char *scratch = thread_scratch;
    float *restrict sum = tdm_cpu_take(&scratch, line, sizeof(float));
    uint64_t end = tdm_least(a->tokens, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        for (uint64_t g = 0; g < a->kv_heads; g++) {
            const float *restrict own = x->dq + g * x->rows * a->head_dim + t * line;
            memcpy(sum, own, line * sizeof(float));
            for (uint64_t s = 1; s < x->splits; s++) {
                TDM_SIMD
                for (uint64_t i = 0; i < line; i++)
                    sum[i] += own[s * split_elements + i];
            }
            for (uint64_t i = 0; i < line; i++)
                sum[i] *= a->scale;
            tdm_store_row(dq->data, dq->dtype, (t * a->kv_heads + g) * line, line, sum);
        }
    }
}

enum tdm_status tdm_cpu_attention_grad(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err)
{
    (void)err;
    struct backward x = {.a = tdm_attention_begin(launch)};
    struct tdm_key_cursor cursor = {0};
    struct tdm_keys keys;
    while (tdm_keys_next(&x.a, &cursor, &keys))
        x.blocks++;
    x.rows = x.a.tokens * x.a.ratio;
    x.splits = tdm_most(1, tdm_least(x.blocks, splits_most(x.a.kv_heads)));
    unsigned char *scratch = executor->shared_scratch;
    take_shared(&scratch, &x);

    uint64_t row_tasks = (x.a.tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS;
    tdm_cpu_for(executor, row_tasks, rows_task, &x);
    tdm_gather_open_sums(executor, &x.a);
    while (tdm_attention_next(executor, &x.a)) {
        tdm_gather_sums(executor, &x.a);
        tdm_cpu_for(executor, x.splits * x.a.kv_heads, keys_task, &x);
        tdm_send_sums(executor, &x.a);
    }
    tdm_cpu_for(executor, row_tasks, sum_task, &x);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_attention_grad_scratch(const struct tdm_cpu_shape *shape)
{
    const struct tdm_pages_params *pages = &shape->params->pages;
    uint64_t query_heads = shape->params->attention.query_heads;
    struct backward x = {.a = {.tokens = shape->chunk_tokens,
                               .kv_heads = pages->kv_heads,
                               .head_dim = pages->head_dim}};
    x.rows = x.a.tokens * (query_heads / pages->kv_heads);
    x.splits = splits_most(pages->kv_heads);
    unsigned char *thread = NULL, *shared = NULL;
    take_tiles(&thread, tdm_tile_rows(shape->params), pages->head_dim);
    take_shared(&shared, &x);
    uint64_t line = query_heads * pages->head_dim * sizeof(float);
    return (struct tdm_cpu_scratch){tdm_most((uintptr_t)thread, line), (uintptr_t)shared};
}
