/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FPDT_Attention: q, k and v of a chunk are projected, exchanged and attend to the chunks before.
 * Chunks and steps that do what the ones before them did are not run, but for what they leave.
 * Source: deepspeed/sequence/fpdt_layer.py (_FPDTGPUOffloadingAttentionImpl_, SequenceChunk,
 * update_out_and_lse), deepspeed/sequence/layer.py (single_all_to_all, apply_rotary_pos_emb).
 */
#include "base/size.h"
#include "methods/context/fpdt.h"
#include "methods/context/parts.h"
#include "methods/eager/tiles.h"

#include <stddef.h>

/* Of the chunks before a chunk, or behind it, so many are run: a first, those between, a last. Each
 * more would allocate and free what the second did. */
#define MOST_STEPS 3u
/* The same of chunks, whose last is run too. */
#define MOST_TURNS 4u

enum { BATCH, QUERY_HEADS, KV_HEADS, TOKENS, HEAD_DIM, HIDDEN };

/* Tensors of chunk 0 that the forward brings back for the backward, and the angles; the input, if
 * there is one chunk. */
enum { FIRST_Q, FIRST_K, FIRST_V, FIRST_OUTPUT, FIRST_SUMS, COSINE, SINE, INPUT, SAVED };

/* A chunk: a rank's tokens of it with all heads, and all its tokens with a rank's heads. */
struct chunk {
    uint64_t batch, ranks, chunks;
    uint64_t rows, hidden, query_columns, kv_columns; /* of a rank's tokens */
    uint64_t bias_count;
    struct tdm_block_shape block;
};

uint64_t tdm_fpdt_chunks(const struct tdm_context *context, uint64_t tokens)
{
    return tokens * context->ulysses_degree / context->chunk_tokens;
}

static struct chunk chunk_of(const struct tdm_context *context, const uint64_t *facts)
{
    struct chunk c = {.batch = facts[BATCH],
                      .ranks = context->ulysses_degree,
                      .chunks = tdm_fpdt_chunks(context, facts[TOKENS]),
                      .hidden = facts[HIDDEN],
                      .query_columns = facts[QUERY_HEADS] * facts[HEAD_DIM],
                      .kv_columns = facts[KV_HEADS] * facts[HEAD_DIM]};
    const uint64_t tokens = context->chunk_tokens;
    c.rows = c.batch * (tokens / c.ranks);
    c.block = (struct tdm_block_shape){.batch = c.batch,
                                       .query_heads = facts[QUERY_HEADS] / c.ranks,
                                       .kv_heads = facts[KV_HEADS] / c.ranks,
                                       .query_tokens = tokens,
                                       .key_tokens = tokens,
                                       .head_dim = facts[HEAD_DIM]};
    return c;
}

static bool is_run(const struct tdm_eager *m, const struct chunk *c, uint64_t i)
{
    return tdm_eager_runs_all(m) || i < MOST_TURNS || i + 2 >= c->chunks;
}

static uint64_t steps_of(const struct tdm_eager *m, uint64_t chunks)
{
    return tdm_eager_runs_all(m) || chunks < MOST_STEPS ? chunks : MOST_STEPS;
}

/* ---- chunks in host memory ---- */

static uint64_t pinned(uint64_t bytes)
{
    uint64_t block = 1;
    while (block < bytes && block <= UINT64_MAX / 2)
        block *= 2;
    return block;
}

static uint64_t query_elements(const struct chunk *c)
{
    return c->rows * c->query_columns;
}

static uint64_t kv_elements(const struct chunk *c)
{
    return c->rows * c->kv_columns;
}

/* Pinned bytes of a layer: input, q, k, v, output and log-sum-exps of all chunks. */
static uint64_t forward_host_bytes(const struct chunk *c)
{
    const uint64_t sums = tdm_block_query_rows(&c->block) * FP32;
    return c->chunks * (pinned(c->rows * c->hidden * BF16) + 2 * pinned(query_elements(c) * BF16) +
                        2 * pinned(kv_elements(c) * BF16) + pinned(sums));
}

/* The same of its backward: dQ of all but the first chunk, gradients of the output. */
static uint64_t backward_host_bytes(const struct chunk *c)
{
    return (c->chunks - 1) * pinned(query_elements(c) * FP32) +
           c->chunks * pinned(query_elements(c) * BF16);
}

/* ---- values by the name that holds them ---- */

/* name = value, which is there before the old one goes. */
static void bind(struct tdm_eager *m, struct tdm_eager_value **name, struct tdm_eager_value *value)
{
    struct tdm_eager_value *old = *name;
    *name = value;
    tdm_drop(m, old);
}

static void unbind(struct tdm_eager *m, struct tdm_eager_value **name)
{
    bind(m, name, NULL);
}

static struct tdm_eager_value *queries(struct tdm_eager *m, const struct chunk *c, uint16_t bytes)
{
    return tdm_value_new(m, tdm_block_query_rows(&c->block), c->block.head_dim, bytes);
}

static struct tdm_eager_value *keys(struct tdm_eager *m, const struct chunk *c, uint16_t bytes)
{
    return tdm_value_new(m, c->batch * c->block.kv_heads * c->block.key_tokens, c->block.head_dim,
                         bytes);
}

static struct tdm_eager_value *row_sums(struct tdm_eager *m, const struct chunk *c)
{
    return tdm_value_new(m, tdm_block_query_rows(&c->block), 1, FP32);
}

static void scratch(struct tdm_eager *m, uint64_t rows, uint64_t columns)
{
    tdm_drop(m, tdm_value_new(m, rows, columns, BF16));
}

/* single_all_to_all from a rank's tokens to its heads: the parts for all ranks lie one behind the
 * other, what comes is in order but where there are several sequences. */
static struct tdm_eager_value *to_heads(struct tdm_eager *m, const struct chunk *c,
                                        const struct tdm_eager_value *like)
{
    struct tdm_eager_value *parts = tdm_sent_like(m, like);
    struct tdm_eager_value *received = tdm_sent_like(m, like);
    if (c->batch > 1)
        received = tdm_replace(m, received,
                               tdm_value_new(m, like->rows, like->columns, like->element_bytes));
    else
        tdm_value_set_category(m, received, TDM_METHOD_WORKSPACE);
    tdm_drop(m, parts);
    return received;
}

/* Back to a rank's tokens: of one sequence nothing is ordered before, but after. */
static struct tdm_eager_value *to_tokens(struct tdm_eager *m, const struct chunk *c,
                                         uint64_t columns)
{
    const struct tdm_eager_value like = {
        .rows = c->rows, .columns = columns, .element_bytes = BF16};
    struct tdm_eager_value *parts = c->batch > 1 ? tdm_sent_like(m, &like) : NULL;
    struct tdm_eager_value *received = tdm_sent_like(m, &like);
    struct tdm_eager_value *ordered = tdm_value_new(m, c->rows, columns, BF16);
    tdm_drop(m, received);
    tdm_drop(m, parts);
    return ordered;
}

/* apply_rotary_pos_emb and its backward: two products, a half that is negated, both halves joined.
 * Dimensions that are not rotated are joined again. Takes x; NULL angles: x as it is. */
static struct tdm_eager_value *rotated(struct tdm_eager *m, struct tdm_eager_value *x,
                                       const struct tdm_eager_value *cosine)
{
    if (cosine == NULL)
        return x;
    const uint64_t rows = x->rows, columns = cosine->columns;
    struct tdm_eager_value *direct = tdm_value_new(m, rows, columns, BF16);
    struct tdm_eager_value *negated = tdm_value_new(m, rows, columns / 2, BF16);
    struct tdm_eager_value *halves = tdm_value_new(m, rows, columns, BF16);
    tdm_drop(m, negated);
    struct tdm_eager_value *turned = tdm_value_new(m, rows, columns, BF16);
    tdm_drop(m, halves);
    struct tdm_eager_value *y = tdm_value_new(m, rows, columns, BF16);
    tdm_drop(m, turned);
    tdm_drop(m, direct);
    if (columns < x->columns)
        y = tdm_replace(m, y, tdm_value_new(m, rows, x->columns, BF16));
    tdm_drop(m, x);
    return y;
}

/* ---- forward ---- */

/* What Python's names hold while a chunk is computed. */
struct names {
    struct tdm_eager_value *qkv[3];                    /* of this chunk */
    struct tdm_eager_value *output, *sums;             /* of this chunk so far, in fp32 */
    struct tdm_eager_value *block_output, *block_sums; /* of the last step */
    struct tdm_pair here, next;                        /* earlier chunks, on their stream */
};

static void project(struct tdm_eager *m, const struct chunk *c, struct names *n,
                    const struct tdm_eager_value *cosine)
{
    const uint64_t columns[3] = {c->query_columns, c->kv_columns, c->kv_columns};
    struct tdm_eager_value *product =
        tdm_value_new(m, c->rows, c->query_columns + 2 * c->kv_columns, BF16);
    struct tdm_eager_value *qkv = tdm_value_like(m, product); /* with the bias */
    tdm_drop(m, product);
    for (unsigned i = 0; i < 3; i++) {
        bind(m, &n->qkv[i], tdm_value_new(m, c->rows, columns[i], BF16));
        if (c->batch > 1)
            bind(m, &n->qkv[i], tdm_value_new(m, c->rows, columns[i], BF16));
        bind(m, &n->qkv[i], to_heads(m, c, n->qkv[i]));
        n->qkv[i]->columns = c->block.head_dim;
        n->qkv[i]->rows = c->rows * columns[i] / c->block.head_dim;
    }
    for (unsigned i = 0; i < 2; i++)
        n->qkv[i] = rotated(m, n->qkv[i], cosine);
    tdm_drop(m, qkv);
}

/* update_out_and_lse by single operations: the first block is made fp32; of a later one both
 * outputs are scaled, which makes two more, and added. */
static void join(struct tdm_eager *m, const struct chunk *c, struct names *n)
{
    struct tdm_eager_value *output, *sums;
    tdm_flash_forward(m, &c->block, &output, &sums);
    bind(m, &n->block_output, output);
    bind(m, &n->block_sums, sums);
    struct tdm_eager_value *wide = queries(m, c, FP32);
    if (n->output == NULL) {
        n->output = wide;
        n->sums = row_sums(m, c);
        return;
    }
    struct tdm_eager_value *logarithm = row_sums(m, c), *both = row_sums(m, c);
    tdm_drop(m, logarithm);
    struct tdm_eager_value *old_factor = row_sums(m, c), *old = queries(m, c, FP32);
    tdm_drop(m, old_factor);
    struct tdm_eager_value *new_factor = row_sums(m, c), *new = queries(m, c, FP32);
    tdm_drop(m, new_factor);
    struct tdm_eager_value *sum = queries(m, c, FP32);
    tdm_drop(m, new);
    tdm_drop(m, old);
    tdm_drop(m, wide);
    bind(m, &n->output, sum);
    bind(m, &n->sums, both);
}

static struct tdm_pair load_pair(struct tdm_eager *m, const struct chunk *c, uint32_t stream)
{
    const uint32_t before = m->stream;
    m->stream = stream;
    struct tdm_eager_value *k = keys(m, c, BF16);
    struct tdm_pair pair = {k, keys(m, c, BF16)};
    m->stream = before;
    return pair;
}

/* Chunk number i attends to those before it and to itself. While it computes with one, the next is
 * on its way. K and V of chunk 0 wait for the next chunk. */
static void attend(struct tdm_eager *m, const struct chunk *c, struct names *n, uint64_t i,
                   uint32_t stream)
{
    const uint64_t steps = steps_of(m, i + 1);
    for (uint64_t step = 0; step < steps; step++) {
        const bool own = step + 1 == steps, last = own && i + 1 == c->chunks;
        join(m, c, n);
        if ((!own && step + 2 < steps) || (own && i > 0 && !last))
            n->next = load_pair(m, c, stream);
        if (!own || i > 0) {
            tdm_pair_drop(m, n->here);
            n->here = n->next;
            n->next = (struct tdm_pair){NULL, NULL};
        } else { /* chunk 0, which stays for chunk 1 */
            n->here = (struct tdm_pair){tdm_take(n->qkv[1]), tdm_take(n->qkv[2])};
        }
    }
}

/* Brings chunk 0 back to where the backward begins. */
static void load_first(struct tdm_eager *m, const struct chunk *c, uint32_t stream,
                       struct tdm_eager_value **first)
{
    const uint32_t before = m->stream;
    m->stream = stream;
    first[FIRST_Q] = queries(m, c, BF16);
    first[FIRST_K] = keys(m, c, BF16);
    first[FIRST_V] = keys(m, c, BF16);
    first[FIRST_OUTPUT] = queries(m, c, BF16);
    first[FIRST_SUMS] = row_sums(m, c);
    m->stream = before;
}

/* The output of a chunk goes back to its tokens, and with its log-sum-exps to the host. */
static struct tdm_eager_value *end_chunk(struct tdm_eager *m, const struct chunk *c,
                                         uint32_t stream)
{
    const uint32_t before = m->stream;
    struct tdm_eager_value *narrow = queries(m, c, BF16);
    struct tdm_eager_value *y = to_tokens(m, c, c->query_columns);
    tdm_drop(m, narrow);
    m->stream = stream;
    tdm_drop(m, queries(m, c, BF16));
    tdm_drop(m, row_sums(m, c));
    m->stream = before;
    return y;
}

static struct tdm_eager_value *forward(struct tdm_eager *m, const struct chunk *c,
                                       const struct tdm_eager_value *cosine,
                                       struct tdm_eager_value **first)
{
    struct tdm_eager_value *parts[TDM_FPDT_MOST_CHUNKS];
    struct names n = {{NULL}, NULL, NULL, NULL, NULL, {NULL, NULL}, {NULL, NULL}};
    const uint32_t loads = tdm_eager_next_stream(m), stores = tdm_eager_next_stream(m);
    uint64_t count = 0, uncounted = 0;
    struct tdm_tiles t;
    tdm_tiles_start(&t, true);
    for (uint64_t i = 0; i < c->chunks; i++) {
        tdm_tiles_begin(m, &t);
        if (is_run(m, c, i)) {
            project(m, c, &n, cosine);
            unbind(m, &n.output);
            unbind(m, &n.sums);
            attend(m, c, &n, i, loads);
        }
        if (i + 1 == c->chunks)
            load_first(m, c, loads, first);
        parts[count] = end_chunk(m, c, stores);
        i = tdm_tiles_end(m, &t, i, c->chunks, parts[count++], &uncounted);
    }
    struct tdm_eager_value *y = tdm_value_new(m, c->rows * c->chunks, c->query_columns, BF16);
    while (count > 0)
        tdm_drop(m, parts[--count]);
    m->moment += uncounted;
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, n.qkv[i]);
    tdm_drop(m, n.output);
    tdm_drop(m, n.sums);
    tdm_drop(m, n.block_output);
    tdm_drop(m, n.block_sums);
    tdm_pair_drop(m, n.here);
    tdm_pair_drop(m, n.next);
    return y;
}

/* One chunk, by _FPDTGPUAttentionImpl_: everything stays. */
static struct tdm_eager_value *forward_alone(struct tdm_eager *m, const struct chunk *c,
                                             const struct tdm_eager_value *cosine,
                                             struct tdm_eager_value **first)
{
    struct names n = {{NULL}, NULL, NULL, NULL, NULL, {NULL, NULL}, {NULL, NULL}};
    project(m, c, &n, cosine);
    join(m, c, &n);
    bind(m, &n.output, queries(m, c, BF16));
    bind(m, &n.sums, row_sums(m, c));
    struct tdm_eager_value *part = to_tokens(m, c, c->query_columns);
    struct tdm_eager_value *y = tdm_value_new(m, c->rows, c->query_columns, BF16);
    tdm_drop(m, part);
    tdm_drop(m, n.block_output);
    tdm_drop(m, n.block_sums);
    for (unsigned i = 0; i < 3; i++)
        first[FIRST_Q + i] = n.qkv[i];
    first[FIRST_OUTPUT] = n.output;
    first[FIRST_SUMS] = n.sums;
    return y;
}

/* ---- backward ---- */

/* A chunk of queries on the device, with what its backward needs, and its dQ. */
struct held_queries {
    struct tdm_eager_value *q, *output, *sums, *of_output, *dq;
};

static void drop_held(struct tdm_eager *m, struct held_queries *h)
{
    unbind(m, &h->q);
    unbind(m, &h->output);
    unbind(m, &h->sums);
    unbind(m, &h->of_output);
}

/* The gradient of a chunk of the output, from tokens to heads; of several sequences the part is a
 * copy first. */
static struct tdm_eager_value *output_gradient(struct tdm_eager *m, const struct chunk *c)
{
    const struct tdm_eager_value like = {
        .rows = c->rows, .columns = c->query_columns, .element_bytes = BF16};
    struct tdm_eager_value *part =
        c->batch > 1 ? tdm_value_new(m, c->rows, c->query_columns, BF16) : NULL;
    struct tdm_eager_value *heads = to_heads(m, c, &like);
    tdm_drop(m, part);
    return heads;
}

/* The next chunk of queries comes from the host. In the first turn, the gradient of its output is
 * exchanged; *newest names it. */
static struct held_queries load_queries(struct tdm_eager *m, const struct chunk *c, bool first_turn,
                                        uint32_t stream, struct tdm_eager_value **newest)
{
    struct held_queries h;
    const uint32_t before = m->stream;
    m->stream = stream;
    h.dq = queries(m, c, FP32);
    h.q = queries(m, c, BF16);
    h.output = queries(m, c, BF16);
    h.sums = row_sums(m, c);
    if (first_turn) {
        bind(m, newest, output_gradient(m, c));
        h.of_output = tdm_take(*newest);
    } else {
        h.of_output = queries(m, c, BF16);
    }
    m->stream = before;
    return h;
}

struct backward {
    struct held_queries here;
    struct tdm_eager_value *turn_dq;  /* of the chunk whose turn it is */
    struct tdm_eager_value *last_dq;  /* of the step before */
    struct tdm_eager_value *newest;   /* gradient of an output that was exchanged last */
    struct tdm_eager_value *block[3]; /* dQ, dK, dV of a step */
    struct tdm_pair kv, sums;         /* K and V of the turn; their gradients in fp32 */
    /* The chunk of the layer's input; that of the last turn, which a name holds. */
    struct tdm_eager_value *input, *named_input;
    uint32_t loads, others; /* streams */
};

/* Keys of chunk number i meet the queries of that chunk and of those behind it. */
static void turn(struct tdm_eager *m, const struct chunk *c, struct backward *b, uint64_t i)
{
    const uint64_t left = c->chunks - i, steps = steps_of(m, left);
    for (uint64_t step = 0; step < steps; step++) {
        bind(m, &b->block[0], queries(m, c, BF16));
        bind(m, &b->block[1], keys(m, c, BF16));
        bind(m, &b->block[2], keys(m, c, BF16));
        tdm_flash_backward(m, &c->block, false);
        /* Behind the last queries come those of the next turn, but they are here already where
         * there is one chunk more. */
        const bool stays = step + 1 == steps && left <= 2;
        if (!stays) {
            unbind(m, &b->last_dq);
            struct held_queries next =
                load_queries(m, c, i == 0 && step + 1 < steps, b->loads, &b->newest);
            drop_held(m, &b->here);
            if (step == 0)
                b->turn_dq = b->here.dq; /* it is sent out in the end, so it stays */
            else
                b->last_dq = b->here.dq;
            b->here = next;
        } else if (step == 0) {
            b->turn_dq = b->here.dq;
            b->here.dq = NULL;
        }
    }
}

/* A gradient of weights: a product in bf16 is added to fp32. And of the input's chunk. */
static void add_products(struct tdm_eager *m, const struct chunk *c)
{
    const uint64_t columns[3] = {c->query_columns, c->kv_columns, c->kv_columns};
    for (unsigned i = 0; i < 3; i++)
        scratch(m, columns[i], c->hidden);
    for (unsigned i = 0; i < 3; i++)
        scratch(m, c->rows, c->hidden);
}

/* Gradients of the turn's chunk are rotated back, exchanged, and multiplied. */
static void end_turn(struct tdm_eager *m, const struct chunk *c, struct backward *b,
                     const struct tdm_eager_value *cosine, bool last)
{
    struct tdm_eager_value *dq = rotated(m, queries(m, c, BF16), cosine);
    struct tdm_eager_value *dk = rotated(m, keys(m, c, BF16), cosine);
    unbind(m, &b->sums.k);
    struct tdm_eager_value *dv = keys(m, c, BF16);
    unbind(m, &b->sums.v);
    dq = tdm_replace(m, dq, to_tokens(m, c, c->query_columns));
    dk = tdm_replace(m, dk, to_tokens(m, c, c->kv_columns));
    dv = tdm_replace(m, dv, to_tokens(m, c, c->kv_columns));
    bind(m, &b->named_input, tdm_take(b->input));
    add_products(m, c);
    tdm_drop(m, dq);
    tdm_drop(m, dk);
    tdm_drop(m, dv);
    b->sums.k = keys(m, c, FP32);
    b->sums.v = keys(m, c, FP32);
    unbind(m, &b->turn_dq);
    if (last) {
        unbind(m, &b->kv.k);
        unbind(m, &b->kv.v);
        return;
    }
    struct tdm_pair next = load_pair(m, c, b->loads);
    const uint32_t before = m->stream;
    m->stream = b->others;
    bind(m, &b->input, tdm_value_new(m, c->rows, c->hidden, BF16));
    m->stream = before;
    tdm_pair_replace(m, &b->kv, next);
}

static void backward(struct tdm_eager *m, const struct chunk *c, struct tdm_eager_value **saved,
                     struct tdm_eager_value **results)
{
    struct tdm_eager_value *inputs[TDM_FPDT_MOST_CHUNKS];
    const uint64_t widths[3] = {c->query_columns, c->kv_columns, c->kv_columns};
    const uint64_t all = c->query_columns + 2 * c->kv_columns;
    struct backward b = {.loads = tdm_eager_next_stream(m), .others = tdm_eager_next_stream(m)};
    const uint32_t before = m->stream;
    for (uint64_t i = 0; i < c->chunks; i++)
        inputs[i] = tdm_value_new(m, c->rows, c->hidden, BF16);
    m->stream = b.others;
    b.input = tdm_value_new(m, c->rows, c->hidden, BF16);
    struct tdm_eager_value *weights = tdm_value_new(m, all, c->hidden, FP32);
    struct tdm_eager_value *biases = tdm_value_new(m, 1, all, FP32);
    m->stream = before;
    b.newest = output_gradient(m, c);
    m->stream = b.loads;
    b.here = (struct held_queries){saved[FIRST_Q], saved[FIRST_OUTPUT], saved[FIRST_SUMS],
                                   tdm_take(b.newest), queries(m, c, FP32)};
    b.kv = (struct tdm_pair){saved[FIRST_K], saved[FIRST_V]};
    b.sums.k = keys(m, c, FP32);
    b.sums.v = keys(m, c, FP32);
    m->stream = before;
    for (uint64_t i = 0; i < c->chunks; i++) {
        if (!is_run(m, c, i))
            continue;
        turn(m, c, &b, i);
        end_turn(m, c, &b, saved[COSINE], i + 1 == c->chunks);
    }
    results[0] = tdm_value_new(m, c->rows * c->chunks, c->hidden, BF16);
    for (unsigned i = 0; i < 3; i++)
        results[1 + i] = tdm_value_new(m, widths[i], c->hidden, BF16);
    for (unsigned i = 0; i < c->bias_count; i++)
        results[4 + i] = tdm_value_new(m, 1, widths[i], BF16);
    for (uint64_t i = 0; i < c->chunks; i++)
        tdm_drop(m, inputs[i]);
    tdm_drop(m, weights);
    tdm_drop(m, biases);
    drop_held(m, &b.here);
    tdm_drop(m, b.here.dq);
    tdm_drop(m, b.last_dq);
    tdm_drop(m, b.newest);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, b.block[i]);
    tdm_pair_drop(m, b.sums);
    tdm_drop(m, b.input);
    tdm_drop(m, b.named_input);
}

/* Gradients of q, k or v of a chunk alone: to bf16 and rotated, exchanged, multiplied. */
static void end_alone(struct tdm_eager *m, const struct chunk *c, struct tdm_eager_value **wide,
                      uint64_t columns, const struct tdm_eager_value *cosine)
{
    struct tdm_eager_value *narrow =
        rotated(m, tdm_value_new(m, (*wide)->rows, (*wide)->columns, BF16), cosine);
    unbind(m, wide);
    narrow = tdm_replace(m, narrow, to_tokens(m, c, columns));
    scratch(m, columns, c->hidden);
    scratch(m, c->rows, c->hidden);
    tdm_drop(m, narrow);
}

/* Sums of dK and dV have the shape of k here; DeepSpeed's have that of q, which is the same where
 * there are as many KV heads, and fails otherwise. */
static void backward_alone(struct tdm_eager *m, const struct chunk *c,
                           struct tdm_eager_value *const *saved, struct tdm_eager_value **results)
{
    const uint64_t widths[3] = {c->query_columns, c->kv_columns, c->kv_columns};
    const uint64_t all = c->query_columns + 2 * c->kv_columns;
    struct tdm_eager_value *input = tdm_value_new(m, c->rows, c->hidden, BF16);
    struct tdm_eager_value *of_output = output_gradient(m, c), *wide[3], *block[3];
    for (unsigned i = 0; i < 3; i++)
        wide[i] = i == 0 ? queries(m, c, FP32) : keys(m, c, FP32);
    struct tdm_eager_value *weights = tdm_value_new(m, all, c->hidden, FP32);
    struct tdm_eager_value *biases = tdm_value_new(m, 1, all, FP32);
    for (unsigned i = 0; i < 3; i++)
        block[i] = i == 0 ? queries(m, c, BF16) : keys(m, c, BF16);
    tdm_flash_backward(m, &c->block, false);
    for (unsigned i = 0; i < 3; i++) /* made fp32 and added */
        tdm_drop(m, i == 0 ? queries(m, c, FP32) : keys(m, c, FP32));
    end_alone(m, c, &wide[1], c->kv_columns, saved[COSINE]);
    end_alone(m, c, &wide[2], c->kv_columns, NULL);
    end_alone(m, c, &wide[0], c->query_columns, saved[COSINE]);
    results[0] = tdm_value_new(m, c->rows, c->hidden, BF16);
    for (unsigned i = 0; i < 3; i++)
        results[1 + i] = tdm_value_new(m, widths[i], c->hidden, BF16);
    for (unsigned i = 0; i < c->bias_count; i++)
        results[4 + i] = tdm_value_new(m, 1, widths[i], BF16);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, block[i]);
    tdm_drop(m, biases);
    tdm_drop(m, weights);
    tdm_drop(m, of_output);
    tdm_drop(m, input);
    for (unsigned i = 0; i <= FIRST_SUMS; i++)
        tdm_drop(m, saved[i]);
    tdm_drop(m, saved[INPUT]);
}

static void fpdt_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct chunk c = chunk_of(node->context, node->facts);
    struct tdm_eager_value *saved[SAVED] = {NULL};
    (void)grads;
    c.bias_count = node->inputs > 4 ? 3 : 0;
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_release(m, node, i);
    if (c.chunks == 1) {
        backward_alone(m, &c, saved, results);
    } else {
        tdm_host_take(m, backward_host_bytes(&c));
        backward(m, &c, saved, results);
        tdm_host_give(m, backward_host_bytes(&c) + forward_host_bytes(&c));
    }
    tdm_drop(m, saved[COSINE]);
    tdm_drop(m, saved[SINE]);
}

struct tdm_eager_value *tdm_fpdt_attention(struct tdm_eager *m, const struct tdm_fpdt_attention *a,
                                           struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_FPDTGPUOffloadingAttentionImpl_Backward", false,
                                           fpdt_backward};
    struct tdm_eager_value *const inputs[] = {x,          a->weight[0], a->weight[1], a->weight[2],
                                              a->bias[0], a->bias[1],   a->bias[2]};
    struct tdm_eager_value *first[SAVED] = {NULL};
    const uint64_t facts[] = {a->batch,  a->query_heads, a->kv_heads,
                              a->tokens, a->head_dim,    x->columns};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, a->bias[0] == NULL ? 4 : 7);
    const struct chunk c = chunk_of(a->context, facts);
    tdm_cublas(m);
    const uint64_t host_bytes = c.chunks == 1 ? 0 : forward_host_bytes(&c);
    tdm_host_take(m, host_bytes);
    struct tdm_eager_value *y =
        c.chunks == 1 ? forward_alone(m, &c, a->cosine, first) : forward(m, &c, a->cosine, first);
    first[COSINE] = tdm_take(a->cosine);
    first[SINE] = tdm_take(a->sine);
    if (c.chunks == 1)
        first[INPUT] = tdm_take(x);
    if (node == NULL)
        tdm_host_give(m, host_bytes);
    for (unsigned i = 0; i < SAVED; i++) {
        if (node != NULL && first[i] != NULL)
            tdm_node_save(m, node, first[i]);
        tdm_drop(m, first[i]);
    }
    if (node != NULL) {
        for (unsigned i = 0; i < 6; i++)
            node->facts[i] = facts[i];
        node->context = (void *)a->context;
    }
    return tdm_node_finish(m, node, y);
}
