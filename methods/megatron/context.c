/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention with context parallelism as in Transformer Engine: a ring of keys and values (p2p), all
 * keys and values gathered (all_gather), heads exchanged for tokens (a2a), or exchange and ring
 * (a2a+p2p).
 * Source: transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py
 * (AttnFuncWithCPAndKVP2P, AttnFuncWithCPAndKVAllGather, AttnFuncWithCPAndQKVOA2A,
 * flash_attn_a2a_communicate). Of latent attention values are narrower than keys, and so is what
 * comes out.
 */
#include "methods/megatron/parts.h"

#include "base/size.h"

#define CP_STREAM 1u /* for every other step of a ring, and to reorder heads */

enum { Q, K, V, OUT, SUMS, SLICES, VALUES = SLICES + 4 }; /* outputs and sums of two slices */
#define SAVED_SUMS 3u /* of a ring, which saves q, the last buffer, the output and the sums */

static struct tdm_eager_value *make(struct tdm_megatron *t, struct megatron_kept *kept,
                                    uint64_t rows, uint64_t columns, uint16_t bytes)
{
    return megatron_keep(t->m, kept, tdm_value_new(t->m, rows, columns, bytes));
}

/* Exchanges all heads of this rank's tokens for some heads of all exchanging ranks' tokens
 * (`before`), or back. Allocates the sent, the received and the reordered tensor, and returns the
 * last. */
static struct tdm_eager_value *exchange(struct tdm_megatron *t, struct megatron_kept *kept,
                                        const struct tdm_eager_value *x, bool before)
{
    uint64_t ranks = t->layout.exchange_heads;
    uint64_t rows = before ? x->rows * ranks : x->rows / ranks;
    uint64_t columns = before ? x->columns / ranks : x->columns * ranks;
    uint32_t stream = t->m->stream;
    make(t, kept, x->rows, x->columns, BF16);
    struct tdm_eager_value *came = tdm_value_new(t->m, x->rows, x->columns, BF16);
    t->m->stream = CP_STREAM;
    struct tdm_eager_value *ordered = tdm_value_new(t->m, rows, columns, BF16);
    t->m->stream = stream;
    tdm_drop(t->m, came);
    return ordered;
}

/* Replaces values by exchanged ones. The old ones are kept if `hold`, else dropped. */
static void exchange_all(struct tdm_megatron *t, struct megatron_kept *kept,
                         struct tdm_eager_value **values, unsigned count, bool before, bool hold)
{
    struct megatron_kept sent = {.count = 0};
    for (unsigned i = 0; i < count; i++) {
        struct tdm_eager_value *ordered = exchange(t, &sent, values[i], before);
        if (hold)
            megatron_keep(t->m, kept, values[i]);
        else
            tdm_drop(t->m, values[i]);
        values[i] = ordered;
    }
    megatron_drop_all(t->m, &sent);
}

static uint64_t heads(const struct tdm_megatron *t, bool groups)
{
    return (groups ? t->groups : t->heads) / t->layout.exchange_heads;
}

static uint64_t output_columns(const struct tdm_megatron *t)
{
    return heads(t, false) * megatron_value_dim(t->config);
}

/* ---- all tokens of some heads ---- */

static struct megatron_kernel whole_kernel(const struct tdm_megatron *t)
{
    uint64_t tokens = t->tokens * t->layout.context;
    return (struct megatron_kernel){tokens, tokens, heads(t, false), heads(t, true)};
}

static void whole_forward(struct tdm_megatron *t, struct tdm_eager_value **values)
{
    struct megatron_kernel kernel = whole_kernel(t);
    megatron_kernel_forward(t, &kernel, &values[OUT], &values[SUMS]);
}

static void whole_backward(struct tdm_megatron *t, struct tdm_eager_value *const *values,
                           struct tdm_eager_value **gradients)
{
    struct megatron_kernel kernel = whole_kernel(t);
    (void)values;
    megatron_kernel_backward(t, &kernel, gradients);
}

/* ---- ring ---- */

/* The kernel of step i of a ring. Step 0 is the diagonal. For keys of an earlier rank it has all
 * queries and half of the keys; for keys of a later rank, half of the queries and all keys. */
static struct megatron_kernel ring_kernel(const struct tdm_megatron *t, uint64_t i, uint64_t tokens)
{
    uint64_t rank = t->context_rank / t->layout.exchange_heads;
    struct megatron_kernel kernel = {tokens, tokens, heads(t, false), heads(t, true)};
    if (i > 0 && i <= rank)
        kernel.keys /= 2;
    else if (i > rank)
        kernel.queries /= 2;
    return kernel;
}

/* Tensors that the steps of a ring keep until the last one. Adjacent tensors of one stream are one
 * value. */
struct kept_rows {
    struct megatron_kept all;
    struct tdm_eager_value *ends[2][2]; /* by stream; small and large ones are never adjacent */
};

static void keep_row(struct tdm_megatron *t, struct kept_rows *rows, uint64_t bytes)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value **ends = rows->ends[m->stream == CP_STREAM];
    for (unsigned i = 0; i < 2; i++)
        if (ends[i] != NULL && tdm_value_extend(m, ends[i], ends[i]->storage->block, bytes))
            return;
    ends[1] = ends[0];
    ends[0] = megatron_keep(m, &rows->all, tdm_value_new(m, bytes, 1, 1));
}

/* A step that is neither the first nor the last. */
static void middle_forward(struct tdm_megatron *t, struct kept_rows *rows,
                           const struct megatron_kernel *kernel)
{
    uint64_t output = t->batch * kernel->queries * kernel->heads;
    keep_row(t, rows, output * megatron_value_dim(t->config) * BF16);
    keep_row(t, rows, output * FP32);
    megatron_kernel_seed(t);
}

/* Halves of packed sequences, which lie apart, are copied (thd_read_half_tensor); those of others
 * are views. A step's copies are there until the next step has its own. */
struct halves {
    struct tdm_eager_value *values[5];
};

static void drop_halves(struct tdm_megatron *t, struct halves *old)
{
    for (unsigned i = 0; i < 5; i++)
        tdm_drop(t->m, old->values[i]);
    *old = (struct halves){{NULL}};
}

/* Of a step with half of the queries, `query_parts` tensors like q; of one with half of the keys,
 * K and V, which have `width` columns together. */
static void read_halves(struct tdm_megatron *t, struct halves *old,
                        const struct megatron_kernel *kernel, const struct tdm_eager_value *q,
                        unsigned query_parts, uint64_t width)
{
    struct halves made = {{NULL}};
    bool queries = kernel->queries < q->rows;
    unsigned count = queries ? query_parts : kernel->keys < q->rows ? 2 : 0;
    for (unsigned i = 0; i < count && t->packed; i++)
        made.values[i] = tdm_value_new(t->m, q->rows / 2, queries ? q->columns : width / 2, BF16);
    drop_halves(t, old);
    *old = made;
}

/* cuDNN's sums of packed sequences are by tokens, and are copied to be by heads, or back. */
static struct tdm_eager_value *turned_sums(struct tdm_megatron *t, struct tdm_eager_value *sums)
{
    return t->packed && !t->flash ? tdm_replace(t->m, sums, tdm_value_like(t->m, sums)) : sums;
}

/* Sets values[OUT] and values[SUMS]. values[K] becomes the last buffer of keys and values, and
 * values[V] NULL. */
static void ring_forward(struct tdm_megatron *t, struct tdm_eager_value **values)
{
    struct tdm_eager *m = t->m;
    struct kept_rows rows = {.all = {.count = 0}};
    struct megatron_kept *kept = &rows.all;
    struct halves step = {{NULL}};
    struct tdm_eager_value *inputs[2] = {NULL, NULL}; /* halves of q in the last two steps */
    uint64_t steps = t->layout.exchange_ring, tokens = values[Q]->rows / t->batch;
    const uint64_t columns = values[K]->columns + values[V]->columns;
    struct tdm_eager_value *buffer = tdm_value_new(m, values[K]->rows, columns, BF16);
    for (uint64_t i = 0; i < steps; i++) {
        struct megatron_kernel kernel = ring_kernel(t, i, tokens);
        struct tdm_eager_value *output, *sums;
        bool middle = i > 0 && i + 1 < steps;
        m->stream = i % 2 == 0 ? 0 : CP_STREAM;
        if (middle && m->status != TDM_OK)
            continue;
        if (middle) {
            keep_row(t, &rows, values[K]->rows * columns * BF16);
        } else if (i > 0) {
            megatron_keep(m, kept, buffer);
            buffer = tdm_value_new(m, values[K]->rows, columns, BF16);
        }
        read_halves(t, &step, &kernel, values[Q], 1, columns);
        tdm_drop(m, inputs[i % 2]);
        inputs[i % 2] = kernel.queries < tokens && t->packed ? tdm_take(step.values[0]) : NULL;
        if (middle) {
            middle_forward(t, &rows, &kernel);
            continue;
        }
        megatron_kernel_forward(t, &kernel, &output, &sums);
        sums = turned_sums(t, sums);
        megatron_keep(m, kept, output);
        megatron_keep(m, kept, sums);
        if (i == 0)
            values[SUMS] = tdm_value_new(m, sums->rows, 1, FP32);
    }
    m->stream = 0;
    values[OUT] = tdm_value_new(m, values[Q]->rows, output_columns(t), BF16);
    tdm_drop(m, values[K]);
    tdm_drop(m, values[V]);
    values[K] = buffer;
    values[V] = NULL;
    drop_halves(t, &step);
    tdm_drop(m, inputs[0]);
    tdm_drop(m, inputs[1]);
    megatron_drop_all(m, kept);
}

#define LIKE_STEPS 4u /* of steps with equal allocations, only these are run */

/* Sums of the later half of the queries, where a step has these alone, and of all, if they are by
 * heads. */
static void ring_sums(struct tdm_megatron *t, struct megatron_kept *kept,
                      const struct tdm_eager_value *sums)
{
    uint64_t ring_rank = t->context_rank / t->layout.exchange_heads;
    if (ring_rank + 1 < t->layout.exchange_ring)
        megatron_keep(t->m, kept, turned_sums(t, tdm_value_new(t->m, sums->rows / 2, 1, FP32)));
    if (t->packed && !t->flash)
        make(t, kept, sums->rows, 1, FP32);
}

/* Sets gradients[Q, K, V] from values[Q] and values[K], the last buffer. */
static void ring_backward(struct tdm_megatron *t, struct tdm_eager_value *const *values,
                          struct tdm_eager_value **gradients)
{
    struct tdm_eager *m = t->m;
    uint64_t tokens = values[Q]->rows / t->batch, like = 0;
    struct megatron_kernel before = {0};
    struct megatron_kept sums = {.count = 0};
    struct halves halves = {{NULL}};
    ring_sums(t, &sums, values[SAVED_SUMS]);
    gradients[Q] = tdm_value_like(m, values[Q]);
    struct tdm_eager_value *buffers[2];
    for (unsigned i = 0; i < 2; i++)
        buffers[i] = tdm_value_new(m, 2 * values[K]->rows, values[K]->columns, BF16);
    for (uint64_t i = t->layout.exchange_ring; i-- > 0 && m->status == TDM_OK;) {
        struct megatron_kernel kernel = ring_kernel(t, i, tokens);
        struct tdm_eager_value *step[3] = {0};
        like = kernel.queries == before.queries && kernel.keys == before.keys ? like + 1 : 0;
        before = kernel;
        if (like >= LIKE_STEPS)
            continue;
        read_halves(t, &halves, &kernel, values[Q], 3, values[K]->columns); /* q, out, dout */
        megatron_kernel_backward(t, &kernel, step);
        for (unsigned g = 0; g < 3; g++)
            tdm_drop(m, step[g]);
    }
    drop_halves(t, &halves);
    megatron_drop_all(m, &sums);
    for (unsigned g = K; g <= V; g++) {
        uint64_t width = heads(t, true) * megatron_value_dim(t->config);
        gradients[g] = tdm_value_view(m, buffers[0]);
        gradients[g]->rows = values[K]->rows;
        gradients[g]->columns = g == V ? width : values[K]->columns - width;
    }
    tdm_drop(m, buffers[0]);
    tdm_drop(m, buffers[1]);
}

/* ---- gathered keys and values ---- */

/* Gathers keys and values of all ranks, then copies them to the order of tokens. */
static void gather(struct tdm_megatron *t, struct megatron_kept *kept,
                   struct tdm_eager_value *const kv[2])
{
    struct tdm_eager_value *came[2];
    for (unsigned i = 0; i < 2; i++)
        came[i] = tdm_value_new(t->m, kv[i]->rows * t->layout.context, kv[i]->columns, BF16);
    for (unsigned i = 0; i < 2; i++) {
        make(t, kept, kv[i]->rows * t->layout.context, kv[i]->columns, BF16);
        tdm_drop(t->m, came[i]);
    }
}

/* The kernel of one of the rank's two slices of a sequence, with all keys up to its end. */
static struct megatron_kernel slice_kernel(const struct tdm_megatron *t, unsigned slice)
{
    uint64_t last = 2 * t->layout.context - 1, length = t->tokens / 2;
    uint64_t number = slice == 0 ? t->context_rank : last - t->context_rank;
    return (struct megatron_kernel){length, (number + 1) * length, t->heads, t->groups};
}

static void gathered_forward(struct tdm_megatron *t, struct tdm_eager_value **values)
{
    struct tdm_eager *m = t->m;
    struct megatron_kept kept = {.count = 0};
    gather(t, &kept, &values[K]);
    values[OUT] = tdm_value_new(m, values[Q]->rows, output_columns(t), BF16);
    for (unsigned i = 0; i < 2; i++) {
        struct megatron_kernel kernel = slice_kernel(t, i);
        m->stream = i;
        megatron_kernel_forward(t, &kernel, &values[SLICES + 2 * i], &values[SLICES + 2 * i + 1]);
    }
    m->stream = 0;
    megatron_drop_all(m, &kept);
}

static void gathered_backward(struct tdm_megatron *t, struct tdm_eager_value *const *values,
                              struct tdm_eager_value **gradients)
{
    struct tdm_eager *m = t->m;
    struct megatron_kept kept = {.count = 0};
    struct tdm_eager_value *whole[2];
    uint64_t rows = values[K]->rows * t->layout.context;
    gradients[Q] = tdm_value_like(m, values[Q]);
    for (unsigned i = 0; i < 2; i++)
        whole[i] = tdm_value_new(m, rows, values[K + i]->columns, BF16);
    gather(t, &kept, &values[K]);
    for (unsigned i = 0; i < 2; i++) {
        struct megatron_kernel kernel = slice_kernel(t, i);
        struct tdm_eager_value *step[3] = {0};
        m->stream = i;
        megatron_kernel_backward(t, &kernel, step);
        for (unsigned g = 0; g < 3; g++)
            megatron_keep(m, &kept, step[g]);
    }
    m->stream = 0;
    for (unsigned i = 0; i < 2; i++) { /* back to the order of ranks, then reduced */
        struct tdm_eager_value *ordered = tdm_value_new(m, rows, values[K + i]->columns, BF16);
        tdm_drop(m, whole[i]);
        whole[i] = ordered;
    }
    for (unsigned i = 0; i < 2; i++) {
        gradients[K + i] = tdm_value_like(m, values[K + i]);
        tdm_drop(m, whole[i]);
    }
    megatron_drop_all(m, &kept);
}

/* ---- the function ---- */

const struct megatron_divider megatron_dividers[] = {
    [TDM_CP_P2P] = {.rings = true, .forward = ring_forward, .backward = ring_backward},
    [TDM_CP_ALL_GATHER] = {.forward = gathered_forward, .backward = gathered_backward},
    [TDM_CP_A2A] = {.exchanges = true, .forward = whole_forward, .backward = whole_backward},
    [TDM_CP_A2A_P2P] = {true, true, ring_forward, ring_backward},
};

static void context_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct megatron_kept saved = {.count = 0}, kept = {.count = 0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        megatron_keep(m, &saved, tdm_node_saved(m, node, i));
    const struct megatron_divider *divider = &megatron_dividers[t->set.exchange];
    struct tdm_eager_value *gradient = tdm_take(grads[0]), *output = NULL;
    if (divider->exchanges && divider->rings) {
        output = tdm_take(saved.values[2]);
        exchange_all(t, &kept, &output, 1, true, false);
    }
    if (divider->exchanges)
        exchange_all(t, &kept, &gradient, 1, true, false);
    divider->backward(t, saved.values, results);
    if (divider->exchanges)
        exchange_all(t, &kept, results, 3, false, true);
    tdm_drop(m, output);
    tdm_drop(m, gradient);
    megatron_drop_all(m, &kept);
    megatron_drop_all(m, &saved);
}

static void save_all(struct tdm_megatron *t, struct tdm_node *node,
                     struct tdm_eager_value *const *values, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (values[i] != NULL)
            tdm_node_save(t->m, node, values[i]);
}

struct tdm_eager_value *megatron_context_attention(struct tdm_megatron *t,
                                                   struct tdm_eager_value *q,
                                                   struct tdm_eager_value *k,
                                                   struct tdm_eager_value *v)
{
    static const struct tdm_eager_op op = {"AttnFuncWithCPBackward", false, context_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {q, k, v}, *values[VALUES] = {0}, *output;
    struct megatron_kept kept = {.count = 0};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    const struct megatron_divider *divider = &megatron_dividers[t->set.exchange];
    bool whole = divider->exchanges && !divider->rings;
    for (unsigned i = 0; i < 3; i++)
        values[i] = tdm_take(inputs[i]);
    if (divider->exchanges)
        exchange_all(t, &kept, values, 3, true, false);
    divider->forward(t, values);
    if (whole) /* saves the input of the exchange; its output is the result */
        save_all(t, node, values, 5);
    output = tdm_take(values[OUT]);
    if (divider->exchanges)
        exchange_all(t, &kept, &output, 1, false, false);
    if (divider->rings) {
        save_all(t, node, values, 2);
        tdm_node_save(m, node, output);
        tdm_node_save(m, node, values[SUMS]);
    } else if (!whole) {
        save_all(t, node, values, 3);
        save_all(t, node, values + SLICES, VALUES - SLICES);
    }
    for (unsigned i = 0; i < VALUES; i++)
        tdm_drop(m, values[i]);
    megatron_drop_all(m, &kept);
    return megatron_finish(t, node, output);
}
