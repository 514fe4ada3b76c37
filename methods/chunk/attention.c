/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk to all K and V so far. OOMB's attention reads pages through a table of their
 * addresses and adds to the pages of their gradients (chunkoptim/ops/flash_paged_attn.py). SeCO's
 * joins K and V of all chunks and calls FlashAttention-2 (chunkoptim/utils.py SecoCache,
 * modifiers/train.py).
 */
#include "base/size.h"
#include "methods/chunk/parts.h"
#include "methods/eager/ops.h"

#define ADDRESSES 4u /* per page: of K, V and their gradients */

static struct tdm_chunk_run *run_of(const struct tdm_node *node)
{
    return node->context;
}

/* Row sums of the exponentiated scores, one per query and head, padded to whole pages. */
static struct tdm_eager_value *new_sums(struct tdm_chunk_run *run)
{
    uint64_t tokens = tdm_chunk_pages(run, run->number) * run->settings->chunk.page_tokens;
    return tdm_value_new(run->m, tokens * run->settings->torch.batch * run->config->query_heads, 1,
                         FP32);
}

static struct tdm_eager_value *new_table(struct tdm_chunk_run *run)
{
    uint64_t pages = tdm_chunk_pages_before(run, run->number) + tdm_chunk_pages(run, run->number);
    return tdm_value_new(run->m, pages, ADDRESSES, INT64);
}

/* Copies the chunk's own gradients out of their pages, in the dtype of K and V. */
static void own_gradients(struct tdm_chunk_run *run, struct tdm_eager_value *const *saved,
                          struct tdm_eager_value **results)
{
    struct tdm_eager *m = run->m;
    uint64_t rows = saved[0]->rows / run->config->query_heads * run->config->kv_heads;
    uint16_t bytes = run->settings->chunk.bf16_grads ? BF16 : FP32;
    struct tdm_eager_value *joined[2];
    for (unsigned i = 0; i < 2; i++)
        joined[i] = tdm_value_new(m, rows, saved[0]->columns, bytes);
    for (unsigned i = 0; i < 2; i++) {
        results[1 + i] = tdm_cast(m, joined[i], BF16);
        tdm_drop(m, joined[i]);
    }
}

static void paged_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_chunk_run *run = run_of(node);
    struct tdm_eager_value *saved[3];
    (void)grads;
    for (uint32_t i = 0; i < 3; i++)
        saved[i] = tdm_node_saved(m, node, i);
    results[0] = tdm_value_like(m, saved[0]);
    struct tdm_eager_value *table = new_table(run), *products = new_sums(run);
    tdm_drop(m, products);
    tdm_drop(m, table);
    tdm_chunk_visit(run, (uint32_t)node->facts[0], true);
    own_gradients(run, saved, results);
    for (uint32_t i = 0; i < 3; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *tdm_chunk_paged_attention(struct tdm_chunk_run *run, uint32_t layer,
                                                  struct tdm_eager_value *q,
                                                  struct tdm_eager_value *k,
                                                  struct tdm_eager_value *v)
{
    static const struct tdm_eager_op op = {"FlashPagedAttnBackward", false, paged_backward};
    struct tdm_eager *m = run->m;
    struct tdm_eager_value *inputs[] = {q, k, v};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    struct tdm_eager_value *table = new_table(run), *sums = new_sums(run),
                           *y = tdm_value_like(m, q);
    tdm_drop(m, table);
    tdm_node_save(m, node, q);
    tdm_node_save(m, node, y);
    tdm_node_save(m, node, sums);
    tdm_drop(m, sums);
    if (node != NULL) {
        node->facts[0] = layer;
        node->context = run;
    }
    return tdm_node_finish(m, node, y);
}

/* The first gradients of K and V of the previous chunks are copied out of those of all chunks.
 * Later ones are added in place. */
static void leave_gradients(struct tdm_chunk_run *run, struct chunk_layer *layer)
{
    struct tdm_eager *m = run->m;
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_KV_GRADIENTS;
    for (uint64_t c = 0; c < run->number;) {
        struct chunk_pages *chunk = &layer->chunks[c];
        uint64_t count = 0;
        if (tdm_chunk_is_run(run, c)) {
            for (c++; chunk->grad_count < 2; chunk->grad_count++)
                chunk->grads[chunk->grad_count] = tdm_value_like(m, chunk->kv[chunk->grad_count]);
            continue;
        }
        const uint64_t bytes = tdm_chunk_kv_bytes(run, c); /* of all that are not run */
        for (; c < run->number && !tdm_chunk_is_run(run, c); c++) {
            count += 2 - layer->chunks[c].grad_count;
            layer->chunks[c].grad_count = 2;
        }
        tdm_chunk_row_add(run, bytes, count);
    }
    m->category = before;
}

static void joined_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_chunk_run *run = run_of(node);
    struct chunk_layer *layer = &run->layers[node->facts[0]];
    struct tdm_eager_value *saved[5], *all[2];
    uint64_t heads = run->config->query_heads;
    (void)grads;
    for (uint32_t i = 0; i < 5; i++)
        saved[i] = tdm_node_saved(m, node, i);
    uint64_t tokens = saved[0]->rows / heads, joined = saved[1]->rows / run->config->kv_heads;
    results[0] = tdm_value_like(m, saved[0]);
    for (unsigned i = 0; i < 2; i++)
        all[i] = tdm_value_like(m, saved[1]);
    const struct tdm_flash_scratch scratch = {
        .query_rows = heads * tdm_size_align(tokens, TDM_FLASH_ROWS),
        .wide_rows = run->config->kv_heads < heads ? heads * joined : 0,
        .head_dim = saved[0]->columns};
    tdm_flash_backward_scratch(m, &scratch);
    leave_gradients(run, layer);
    uint64_t rows = tokens * run->config->kv_heads;
    for (unsigned i = 0; i < 2; i++) { /* the hook adds what later chunks left in grads */
        results[1 + i] = tdm_value_new(m, rows, saved[0]->columns, BF16);
        tdm_drop(m, all[i]);
    }
    for (uint32_t i = 0; i < 5; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *tdm_chunk_joined_attention(struct tdm_chunk_run *run, uint32_t number,
                                                   struct tdm_eager_value *q,
                                                   struct tdm_eager_value *k,
                                                   struct tdm_eager_value *v)
{
    static const struct tdm_eager_op op = {"FlashAttnFuncBackward", false, joined_backward};
    struct tdm_eager *m = run->m;
    struct tdm_eager_value *inputs[] = {q, k, v}, *joined[2];
    uint64_t before = run->number * run->settings->chunk.tokens * run->settings->torch.batch;
    uint64_t rows = k->rows + before * run->config->kv_heads;
    struct chunk_pages *own = &run->layers[number].chunks[run->number];
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    for (unsigned i = 0; i < 2; i++)
        joined[i] = tdm_value_new(m, rows, k->columns, BF16);
    /* The cache object of a chunk's second run holds its K and V too. */
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value **kept = run->sweep ? own->kv : run->layers[number].second;
        kept[i] = tdm_value_view(m, inputs[1 + i]);
        tdm_value_set_category(m, kept[i], TDM_METHOD_KV);
    }
    struct tdm_eager_value *y = tdm_value_like(m, q), *sums = tdm_value_new(m, q->rows, 1, FP32);
    struct tdm_eager_value *saved[] = {q, joined[0], joined[1], y, sums};
    for (unsigned i = 0; i < 5; i++)
        tdm_node_save(m, node, saved[i]);
    for (unsigned i = 0; i < 2; i++)
        tdm_drop(m, joined[i]);
    tdm_drop(m, sums);
    if (node != NULL) {
        node->facts[0] = number;
        node->context = run;
    }
    return tdm_node_finish(m, node, y);
}
