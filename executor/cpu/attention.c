/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over the KV pages of the chunks they see, forward.
 *
 * As FlashAttention-2 (arXiv 2307.08691, algorithm 1): a task is a tile of queries and a KV head;
 * it walks over the pages, keeps for every row the maximum and the sum of exponentials so far, and
 * rescales what it has when the maximum rises. Scores of a tile live in scratch only. 4 * head_dim
 * FLOPs a (query head, key) pair. The log-sum-exp of every row goes out with the output, for the
 * backward.
 */
#include "executor/cpu/attention.h"

#include "executor/cpu/convert.h"
#include "executor/cpu/exp.h"
#include "schedule/layout.h"

#include <math.h>
#include <string.h>

struct tdm_attention tdm_attention_begin(const struct tdm_launch *launch)
{
    const struct tdm_model *model = launch->program->schedule->model;
    struct tdm_attention a = {
        .launch = launch,
        .tokens = launch->op->tokens,
        .first_token = launch->program->chunks[launch->op->chunk].first_token,
        .query_heads = model->query_heads,
        .kv_heads = model->kv_heads,
        .head_dim = model->head_dim,
        .ratio = model->query_heads / model->kv_heads,
        .scale = (float)(1.0 / sqrt((double)model->head_dim)),
    };
    a.tile_tokens = tdm_most(1, TDM_TILE_ROWS / a.ratio);
    return a;
}

float *tdm_attention_lse(const struct tdm_attention *attention, const struct tdm_operand *out)
{
    const struct tdm_schedule *schedule = attention->launch->program->schedule;
    unsigned char *bytes = out->data;
    void *lse = bytes + tdm_lse_offset(schedule, attention->tokens);
    return lse;
}

uint64_t tdm_tile_rows(const struct tdm_model *model)
{
    return tdm_most(TDM_TILE_ROWS, model->query_heads / model->kv_heads);
}

bool tdm_keys_next(const struct tdm_attention *attention, struct tdm_key_walk *walk,
                   struct tdm_keys *keys)
{
    const struct tdm_program *program = attention->launch->program;
    const struct tdm_access *access = &attention->launch->op->access[1];
    uint64_t page_tokens = program->schedule->page_tokens;
    while (walk->slot < access->slots) {
        const struct tdm_chunk *chunk = &program->chunks[access->before.chunk + walk->slot];
        if (walk->token < chunk->tokens) {
            uint64_t in_page = walk->token % page_tokens;
            uint64_t count = tdm_least(chunk->tokens - walk->token, page_tokens - in_page);
            keys->slot = walk->slot;
            keys->first = chunk->first_token + walk->token;
            keys->count = tdm_least(count, TDM_TILE_KEYS);
            keys->k = walk->token / page_tokens * tdm_page_elements(program->schedule) +
                      in_page * attention->kv_heads * attention->head_dim;
            keys->v = keys->k + tdm_page_plane_elements(program->schedule);
            walk->token += keys->count;
            return true;
        }
        walk->slot++;
        walk->token = 0;
    }
    return false;
}

struct tdm_factor tdm_keys_view(const struct tdm_attention *attention,
                                const struct tdm_operand *pages, const struct tdm_keys *keys,
                                uint64_t first, uint64_t kv_head, float *scratch)
{
    uint64_t dim = attention->head_dim, stride = attention->kv_heads * dim;
    const void *slot = (const unsigned char *)pages->data + keys->slot * pages->slot_bytes;
    first += kv_head * dim;
    if (pages->dtype == TDM_DTYPE_FP32)
        return (struct tdm_factor){(const float *)slot + first, stride, false};
    for (uint64_t i = 0; i < keys->count; i++)
        tdm_load_row(slot, pages->dtype, first + i * stride, dim, scratch + i * dim);
    return (struct tdm_factor){scratch, dim, false};
}

/* Turns a row of scores into exponentials relative to the maximum so far. Returns what earlier sums
 * must be multiplied by. */
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
    uint64_t *from; /* [tokens] first token of the sequence that each sees */
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
    x.from = tdm_cpu_take(scratch, rows, sizeof(uint64_t));
    return x;
}

/* Adds a block of keys to every row of the tile that begins at token `first` of the chunk. */
static void add_keys(const struct tdm_attention *a, const struct tdm_keys *keys, uint64_t kv_head,
                     uint64_t first, uint64_t rows, struct tiles x)
{
    const struct tdm_operand *pages = &a->launch->operand[1];
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
    const struct tdm_operand *q = &a->launch->operand[0], *o = &a->launch->operand[2];
    uint64_t kv_head = index % a->kv_heads, first = index / a->kv_heads * a->tile_tokens;
    uint64_t tokens = tdm_least(a->tile_tokens, a->tokens - first), rows = tokens * a->ratio;
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

    struct tdm_key_walk walk = {0};
    struct tdm_keys keys;
    while (tdm_keys_next(a, &walk, &keys) && keys.first < a->first_token + first + tokens)
        if (x.from[0] < keys.first + keys.count)
            add_keys(a, &keys, kv_head, first, rows, x);

    float *lse = tdm_attention_lse(a, o);
    for (uint64_t i = 0; i < rows; i++) {
        float scale = 1.0f / x.sum[i];
        for (uint64_t j = 0; j < dim; j++)
            x.out[i * dim + j] *= scale;
        lse[(first + i / a->ratio) * a->query_heads + kv_head * a->ratio + i % a->ratio] =
            (float)((double)x.maximum[i] + log((double)x.sum[i]));
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
    uint64_t tiles = (a.tokens + a.tile_tokens - 1) / a.tile_tokens;
    tdm_cpu_for(executor, tiles * a.kv_heads, attention_task, &a);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_attention_scratch(const struct tdm_cpu_shape *shape)
{
    unsigned char *thread = NULL;
    take_tiles(&thread, tdm_tile_rows(shape->model), shape->model->head_dim);
    return (struct tdm_cpu_scratch){.thread_bytes = (uintptr_t)thread};
}
