/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of K and V and of their gradients, as OOMB's cache managers hold them
 * (chunkoptim/cache/kv_cache.py, topk_cache.py). K and V pages are views of the results of the
 * projections. A gradient page is a tensor of its own.
 *
 * With offload, a layer that is about to run and the next one are on the GPU. Each layer has its
 * own stream and thread for copies, and only the layer itself waits for them. So pages leave the
 * GPU while the next layers run. How many have left when the logits are allocated depends on the
 * race of copies and kernels. Both take time in proportion to the context, so the share that is
 * still there is the same at all contexts. No source tells it. Read from published peaks, a quarter
 * is left with gradients in fp32 (0.23 to 0.28 of a layer in five cells of the paper), and from one
 * measured peak, seven eighths with the faster kernels of bf16.
 */
#include "methods/chunk/parts.h"

#include "methods/chunk/method.h"

#include "base/size.h"
#include "methods/eager/ops.h"

#include <math.h>
#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define COMMON_SCORE 0.8 /* correlation of the scores that two pages of queries give a page */
#define NORMAL_END 8.0   /* of the integral over the common part */
#define NORMAL_STEPS 256u
#define LOADED_MOST 64u  /* blocks per layer that stand for the pages loaded from the host */
#define COPY_STREAMS 32u /* torch.cuda.Stream() returns these in turn */

static uint64_t heads_bytes(const struct tdm_chunk_run *run, uint16_t element_bytes)
{
    return tdm_model_kv_width(run->config) * element_bytes;
}

static uint16_t grad_element_bytes(const struct tdm_chunk_run *run)
{
    return run->settings->chunk.bf16_grads ? BF16 : FP32;
}

/* Bytes of one page of K, or of its gradient. */
static uint64_t page_bytes(const struct tdm_chunk_run *run, uint16_t element_bytes)
{
    return run->settings->chunk.page_tokens * run->settings->torch.batch *
           heads_bytes(run, element_bytes);
}

static uint64_t sequence_tokens(const struct tdm_chunk_run *run, uint64_t number)
{
    uint64_t chunk = run->settings->chunk.tokens,
             left = run->settings->torch.tokens - number * chunk;
    return left < chunk ? left : chunk;
}

uint64_t tdm_chunk_tokens(const struct tdm_chunk_run *run, uint64_t number)
{
    return sequence_tokens(run, number) * run->settings->torch.batch;
}

uint64_t tdm_chunk_pages(const struct tdm_chunk_run *run, uint64_t number)
{
    return tdm_size_ceil_div(sequence_tokens(run, number), run->settings->chunk.page_tokens);
}

uint64_t tdm_chunk_pages_before(const struct tdm_chunk_run *run, uint64_t number)
{
    return number *
           tdm_size_ceil_div(run->settings->chunk.tokens, run->settings->chunk.page_tokens);
}

static uint64_t layer_window(const struct tdm_chunk_run *run, uint32_t layer)
{
    return tdm_chunk_window(&run->settings->chunk, run->config, layer);
}

/* ---- lists of blocks ---- */

static enum tdm_status create_layer(struct tdm_chunk_run *run, struct chunk_layer *layer,
                                    struct tdm_eager_value **blocks, uint32_t a_chunk)
{
    layer->chunks = calloc(run->chunks, sizeof(*layer->chunks));
    layer->lists = calloc(run->chunks, sizeof(struct tdm_eager_value *));
    layer->loaded = calloc(LOADED_MOST, sizeof(struct tdm_eager_value *));
    if (layer->chunks == NULL || layer->lists == NULL || layer->loaded == NULL)
        return TDM_NO_MEMORY;
    for (uint64_t c = 0; c < run->chunks; c = tdm_chunk_next_run(run, c), blocks += a_chunk)
        layer->chunks[c].grads = blocks;
    return TDM_OK;
}

/* Gradient pages per block, which has at most 1 MiB. K and V have one block per chunk. */
static uint64_t pages_a_block(const struct tdm_chunk_run *run)
{
    uint64_t pages = MIB / page_bytes(run, grad_element_bytes(run));
    return pages == 0 ? 1 : pages;
}

enum tdm_status tdm_chunk_pages_create(struct tdm_chunk_run *run, struct tdm_error *err)
{
    uint32_t a_chunk = 0, a_layer = 0;
    if (run->settings->chunk.page_tokens > 0)
        a_chunk = (uint32_t)(2 * tdm_size_ceil_div(tdm_chunk_pages(run, 0), pages_a_block(run)));
    else
        a_chunk = 2;
    for (uint64_t c = 0; c < run->chunks; c = tdm_chunk_next_run(run, c))
        a_layer += a_chunk;
    run->layers = calloc(run->config->layers, sizeof(*run->layers));
    run->all_blocks =
        calloc((size_t)run->config->layers * a_layer, sizeof(struct tdm_eager_value *));
    enum tdm_status status =
        run->layers == NULL || run->all_blocks == NULL ? TDM_NO_MEMORY : TDM_OK;
    for (uint32_t l = 0; status == TDM_OK && l < run->config->layers; l++)
        status = create_layer(run, &run->layers[l], run->all_blocks + (size_t)l * a_layer, a_chunk);
    return status == TDM_OK ? TDM_OK : tdm_fail(err, status, "out of memory for chunks");
}

void tdm_chunk_pages_free(struct tdm_chunk_run *run)
{
    for (uint32_t l = 0; run->layers != NULL && l < run->config->layers; l++) {
        free(run->layers[l].chunks);
        free(run->layers[l].lists);
        free(run->layers[l].loaded);
    }
    free(run->layers);
    free(run->all_blocks);
    free(run->rows);
}

/* Makes a tensor of pages and returns it; or, if `rows` is not 0, so many that belong to a chunk
 * that is not run, and the result is NULL. */
static struct tdm_eager_value *make_pages(struct tdm_chunk_run *run,
                                          enum tdm_method_category category, uint64_t bytes,
                                          uint64_t rows)
{
    struct tdm_eager *m = run->m;
    enum tdm_method_category before = m->category;
    struct tdm_label label = m->label;
    struct tdm_eager_value *value = NULL;
    tdm_label(m, category == TDM_METHOD_KV_GRADIENTS ? "pages of dK, dV" : "pages of K, V");
    m->category = category;
    if (rows > 0)
        tdm_chunk_row_add(run, bytes, rows);
    else
        value = tdm_value_new(m, bytes, 1, 1);
    m->category = before;
    m->label = label;
    return value;
}

static struct tdm_eager_value *new_of(struct tdm_chunk_run *run, enum tdm_method_category category,
                                      uint64_t bytes)
{
    return make_pages(run, category, bytes, 0);
}

static void drop_pages(struct tdm_eager *m, struct chunk_pages *pages)
{
    for (unsigned i = 0; i < 2; i++) {
        tdm_drop(m, pages->kv[i]);
        pages->kv[i] = NULL;
    }
    for (uint32_t i = 0; i < pages->grad_count && pages->grads != NULL; i++)
        tdm_drop(m, pages->grads[i]);
    pages->grad_count = 0;
}

/* ---- host memory ---- */

static uint64_t power_of_two(uint64_t bytes)
{
    return bytes <= 1 ? 1 : UINT64_C(1) << (64 - __builtin_clzll(bytes - 1));
}

/* Pinned bytes of a chunk in one layer. torch's host allocator rounds each page up to a power of
 * two. */
static uint64_t host_bytes(const struct tdm_chunk_run *run, uint64_t number)
{
    uint64_t page = power_of_two(page_bytes(run, BF16)) +
                    power_of_two(page_bytes(run, grad_element_bytes(run)));
    return tdm_size_mul(tdm_chunk_pages(run, number), 2 * page);
}

static void drop_loaded(struct tdm_eager *m, struct chunk_layer *layer, uint32_t left)
{
    while (layer->loaded_count > left)
        tdm_drop(m, layer->loaded[--layer->loaded_count]);
}

static double normal_cdf(double x)
{
    return erfc(-x / sqrt(2)) / 2;
}

/* The score that a share of all standard normal scores lies above. */
static double normal_above(double share)
{
    double low = -NORMAL_END, high = NORMAL_END;
    for (unsigned i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        *(normal_cdf(-middle) > share ? &low : &high) = middle;
    }
    return low;
}

/* Expected number of pages that the queries of the running chunk choose together. Every page of
 * queries chooses the best ones, as many as the budget allows. A model of the scores: normal, with
 * a part that all queries share. One correlation of any two pages of queries, 0.8, meets both
 * published peaks (budgets of 512 and 8,192 tokens) within 0.1%. A page with the common part z is
 * chosen by none of q queries with probability F((t - sqrt(0.8) z) / sqrt(0.2))^q, where t is the
 * score above which the budget lies. */
static uint64_t chosen_pages(const struct tdm_chunk_run *run, uint64_t before)
{
    const struct tdm_chunk_settings *s = &run->settings->chunk;
    double budget = (double)(s->budget / s->page_tokens), all = (double)before;
    if (s->budget == 0 || before * s->page_tokens <= s->budget)
        return before;
    double queries = (double)(tdm_chunk_pages(run, run->number) * run->settings->torch.batch);
    double least = normal_above(budget / all), chosen = 0, mass = 0;
    for (unsigned i = 0; i <= NORMAL_STEPS; i++) {
        double z = NORMAL_END * (2.0 * i / NORMAL_STEPS - 1), density = exp(-z * z / 2);
        double below = (least - sqrt(COMMON_SCORE) * z) / sqrt(1 - COMMON_SCORE);
        chosen += density * (1 - pow(normal_cdf(below), queries));
        mass += density;
    }
    return (uint64_t)(all * chosen / mass);
}

/* Bytes of a layer that the running chunk loads from the host. */
static uint64_t wanted_bytes(const struct tdm_chunk_run *run, uint32_t layer)
{
    uint64_t kv = 2 * page_bytes(run, BF16), grads = 2 * page_bytes(run, grad_element_bytes(run));
    uint64_t before = tdm_chunk_pages_before(run, run->number), window = layer_window(run, layer);
    /* The first token of a chunk, and of its first page, sees window - 1 tokens before it. */
    uint64_t local =
        window == 0 ? 0 : tdm_size_ceil_div(window - 1, run->settings->chunk.page_tokens);
    uint64_t pages = window == 0 ? chosen_pages(run, before) : local < before ? local : before;
    if (run->sweep) /* gradients are not read */
        return tdm_size_mul(pages, kv);
    return tdm_size_mul(pages + tdm_chunk_pages(run, run->number), kv + grads);
}

static void load(struct tdm_chunk_run *run, uint32_t number)
{
    struct chunk_layer *layer = &run->layers[number];
    struct tdm_eager *m = run->m;
    uint64_t page = 2 * (page_bytes(run, BF16) + page_bytes(run, grad_element_bytes(run)));
    uint64_t all = tdm_chunk_pages_before(run, run->chunks) * page;
    uint64_t block = tdm_chunk_pages(run, 0) * page / 2; /* half of a chunk, or more */
    /* One block in a_kv holds K and V. */
    uint32_t a_kv = run->settings->chunk.bf16_grads ? 2 : 3;
    while (block * (LOADED_MOST - 2) < all)
        block *= 2;
    m->stream = 1 + number % COPY_STREAMS;
    for (uint64_t left = wanted_bytes(run, number);
         left > 0 && layer->loaded_count < LOADED_MOST;) {
        uint64_t bytes = left < block ? left : block;
        bool kv = run->sweep || layer->loaded_count % a_kv == 0;
        layer->loaded[layer->loaded_count++] =
            new_of(run, kv ? TDM_METHOD_KV : TDM_METHOD_KV_GRADIENTS, bytes);
        left -= bytes;
    }
    m->stream = 0;
    layer->place = CHUNK_ON_GPU;
}

/* Loaded blocks of a layer that is leaving which are still there. */
static uint32_t blocks_left(const struct tdm_chunk_run *run, const struct chunk_layer *layer)
{
    return run->settings->chunk.bf16_grads ? layer->loaded_count * 7 / 8 : layer->loaded_count / 4;
}

static void finish_leaving(struct tdm_chunk_run *run, struct chunk_layer *layer)
{
    drop_loaded(run->m, layer, 0);
    for (uint64_t c = 0; c < run->held; c = tdm_chunk_next_run(run, c))
        drop_pages(run->m, &layer->chunks[c]);
    layer->place = CHUNK_IN_HOST;
}

void tdm_chunk_visit(struct tdm_chunk_run *run, uint32_t layer, bool reverse)
{
    uint32_t layers = run->config->layers, next = (layer + (reverse ? layers - 1 : 1)) % layers;
    bool chooses = run->settings->chunk.budget > 0 && layer_window(run, next) == 0;
    if (!run->settings->chunk.offload)
        return;
    for (uint32_t l = 0; l < layers; l++) {
        struct chunk_layer *other = &run->layers[l];
        if (other->place == CHUNK_LEAVING) {
            finish_leaving(run, other);
        } else if (other->place == CHUNK_ON_GPU && l != layer && l != next) {
            other->place = CHUNK_LEAVING;
            drop_loaded(run->m, other, blocks_left(run, other));
        }
    }
    if (run->layers[layer].place == CHUNK_IN_HOST)
        load(run, layer);
    /* In the forward, a layer's own queries choose its pages, so they are not known earlier. */
    if (run->layers[next].place == CHUNK_IN_HOST && (!chooses || reverse))
        load(run, next);
}

/* ---- chunks ---- */

uint64_t tdm_chunk_kv_bytes(const struct tdm_chunk_run *run, uint64_t number)
{
    return run->settings->chunk.page_tokens == 0
               ? tdm_chunk_tokens(run, number) * heads_bytes(run, BF16)
               : tdm_chunk_pages(run, number) * page_bytes(run, BF16);
}

/* x as whole pages: a view if it fills them, else a padded copy. */
static struct tdm_eager_value *whole_pages(struct tdm_chunk_run *run, struct tdm_eager_value *x)
{
    uint64_t bytes = tdm_chunk_kv_bytes(run, run->number);
    if (tdm_size_mul(tdm_value_elements(x), BF16) == bytes) {
        struct tdm_eager_value *view = tdm_value_view(run->m, x);
        tdm_value_set_category(run->m, view, TDM_METHOD_KV);
        return view;
    }
    return new_of(run, TDM_METHOD_KV, bytes);
}

static void add_grads(struct tdm_chunk_run *run, struct chunk_pages *pages, bool row)
{
    const uint64_t count = tdm_chunk_pages(run, run->number), block = pages_a_block(run);
    const uint64_t page = page_bytes(run, grad_element_bytes(run));
    if (row && count % block == 0) { /* those of K, then those of V, all alike */
        make_pages(run, TDM_METHOD_KV_GRADIENTS, block * page, 2 * (count / block));
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        for (uint64_t done = 0, now, times; done < count; done += now * times) {
            now = count - done < block ? count - done : block;
            times = row ? (count - done) / now : 1;
            struct tdm_eager_value *made =
                make_pages(run, TDM_METHOD_KV_GRADIENTS, now * page, row ? times : 0);
            if (!row)
                pages->grads[pages->grad_count++] = made;
        }
}

/* Appends the mean keys of the chunk's pages to those of previous chunks. */
static void add_means(struct tdm_chunk_run *run, struct chunk_layer *layer)
{
    struct tdm_eager *m = run->m;
    uint64_t page = heads_bytes(run, BF16) * run->settings->torch.batch;
    uint64_t before = tdm_chunk_pages_before(run, run->number);
    uint64_t added = tdm_chunk_pages(run, run->number);
    struct tdm_eager_value *means = new_of(run, TDM_METHOD_KV, added * page), *joined = means;
    if (layer->means != NULL)
        joined = new_of(run, TDM_METHOD_KV, (before + added) * page);
    if (joined != means)
        tdm_drop(m, means);
    tdm_drop(m, layer->means);
    layer->means = joined;
}

void tdm_chunk_add(struct tdm_chunk_run *run, uint32_t number, struct tdm_eager_value *k,
                   struct tdm_eager_value *v)
{
    struct chunk_layer *layer = &run->layers[number];
    struct chunk_pages *pages = &layer->chunks[run->number];
    bool offload = run->settings->chunk.offload;
    if (run->settings->chunk.budget > 0 && layer_window(run, number) == 0)
        add_means(run, layer);
    if (offload)
        tdm_host_take(run->m, host_bytes(run, run->number));
    if (offload && k == NULL) /* it was moved to the host long ago */
        return;
    if (k == NULL) {
        make_pages(run, TDM_METHOD_KV, tdm_chunk_kv_bytes(run, run->number), 2);
    } else {
        pages->kv[0] = whole_pages(run, k);
        pages->kv[1] = whole_pages(run, v);
    }
    if (run->settings->chunk.page_tokens > 0)
        add_grads(run, pages, k == NULL);
}

void tdm_chunk_choose(struct tdm_chunk_run *run, uint32_t number, struct tdm_eager_value *queries)
{
    const struct tdm_chunk_settings *s = &run->settings->chunk;
    struct chunk_layer *layer = &run->layers[number];
    struct tdm_eager *m = run->m;
    uint64_t before = tdm_chunk_pages_before(run, run->number), budget = s->budget / s->page_tokens;
    if (!run->sweep || s->budget == 0 || before <= budget || layer_window(run, number) > 0)
        return;
    uint64_t pages = tdm_chunk_pages(run, run->number) * run->settings->torch.batch;
    if (queries != NULL) {
        uint64_t rows = pages * s->page_tokens * run->config->kv_heads;
        struct tdm_eager_value *by_head = tdm_value_like(m, queries);
        struct tdm_eager_value *sums = tdm_value_new(m, rows, run->config->head_dim, BF16);
        tdm_drop(m, by_head);
        struct tdm_eager_value *scores = tdm_value_new(m, rows, before, BF16);
        tdm_cublas(m);
        struct tdm_eager_value *soft = tdm_value_new(m, rows, before, BF16);
        tdm_drop(m, scores);
        struct tdm_eager_value *votes = tdm_value_new(m, pages, before, BF16);
        tdm_drop(m, soft);
        struct tdm_eager_value *values = tdm_value_new(m, pages, budget, BF16);
        struct tdm_eager_value *wide = tdm_value_new(m, pages, budget, INT64);
        layer->lists[run->number] = new_of(run, TDM_METHOD_KV, pages * budget * sizeof(int32_t));
        tdm_drop(m, values);
        tdm_drop(m, wide);
        tdm_drop(m, votes);
        tdm_drop(m, sums);
        return;
    }
    layer->lists[run->number] = new_of(run, TDM_METHOD_KV, pages * budget * sizeof(int32_t));
}

void tdm_chunk_remove(struct tdm_chunk_run *run)
{
    uint64_t last = run->held - 1;
    bool was_run = tdm_chunk_is_run(run, last);
    /* SeCO's gradients of K and V are those of all chunks. */
    bool has_pages = was_run || run->settings->chunk.page_tokens == 0;
    if (run->settings->chunk.offload)
        tdm_host_give(run->m, tdm_size_mul(run->config->layers, host_bytes(run, last)));
    if (!was_run) /* none of them is read any more */
        tdm_chunk_rows_drop(run);
    if (!has_pages && run->settings->chunk.budget == 0 && !run->settings->chunk.offload) {
        run->held = last;
        return;
    }
    for (uint32_t l = 0; l < run->config->layers; l++) {
        struct chunk_layer *layer = &run->layers[l];
        if (layer->place == CHUNK_LEAVING)
            finish_leaving(run, layer);
        if (has_pages)
            drop_pages(run->m, &layer->chunks[last]);
        tdm_drop(run->m, layer->lists[last]);
        layer->lists[last] = NULL;
        if (last > 0)
            continue;
        drop_loaded(run->m, layer, 0);
        tdm_drop(run->m, layer->means);
        layer->means = NULL;
        layer->place = CHUNK_ON_GPU;
    }
    run->held = last;
}
