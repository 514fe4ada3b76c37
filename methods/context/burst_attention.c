/* SPDX-License-Identifier: Apache-2.0 */
/* BurstAttention. In the forward, K and V are passed round the ring. In the backward, K and V stay:
 * Q, dO, log-sum-exps and O (or the row sums of dO * O) are passed round, and dQ after them. Of two
 * rings, the outer one has buffers and copies of its own. The first rank is modelled: it needs most
 * memory in the backward, where all its queries meet half of the keys in every step. Sources:
 * burst_attn/burst_attn_interface.py (OpBurstAttn, OpBurstAttnStrip), comm.py (Ring),
 * burst_utils.py. */
#include "methods/context/burst_parts.h"

#include <stddef.h>

#define GOING 4u /* tensors that the backward passes round */

struct burst_set {
    struct tdm_eager_value *values[GOING];
};

/* A buffer of the ring. The ring has a stream of its own. */
static struct tdm_eager_value *sent_like(struct tdm_eager *m, const struct tdm_eager_value *like)
{
    struct tdm_eager_value *buffer = tdm_sent_like(m, like);
    tdm_value_share(buffer);
    return buffer;
}

static struct tdm_pair pair_like(struct tdm_eager *m, struct tdm_pair like)
{
    struct tdm_eager_value *k = sent_like(m, like.k);
    return (struct tdm_pair){k, sent_like(m, like.v)};
}

static struct burst_set set_like(struct tdm_eager *m, const struct burst_set *like)
{
    struct burst_set set;
    for (unsigned i = 0; i < GOING; i++)
        set.values[i] = sent_like(m, like->values[i]);
    return set;
}

static void set_drop(struct tdm_eager *m, struct burst_set *set)
{
    for (unsigned i = 0; i < GOING; i++) {
        tdm_drop(m, set->values[i]);
        set->values[i] = NULL;
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool has_two_rings(const struct burst_model *b)
{
    return !b->settings.single_ring && b->ranks > b->gpus_per_node;
}

/* Steps of a turn, and turns, without later ones that only repeat the allocations. */
static uint64_t step_count(const struct burst_model *b)
{
    return least(has_two_rings(b) ? b->gpus_per_node : b->ranks, TDM_RING_STEPS);
}

static uint64_t turn_count(const struct burst_model *b)
{
    return has_two_rings(b) ? least(b->ranks / b->gpus_per_node, TDM_RING_STEPS) : 1;
}

static struct tdm_block_shape shape_of(const struct burst_model *b, uint64_t tokens)
{
    return (struct tdm_block_shape){.batch = b->batch,
                                    .query_heads = b->config->query_heads,
                                    .kv_heads = b->config->query_heads, /* repeated */
                                    .query_tokens = tokens,
                                    .key_tokens = tokens,
                                    .head_dim = b->config->head_dim};
}

static bool keeps_half(const struct burst_model *b)
{
    return b->settings.checkpoint == TDM_BURST_LATTER_HALF;
}

/* burst_attn_func_striped, which copies no K and V before it begins. */
static bool is_striped(const struct burst_model *b)
{
    return keeps_half(b) || b->settings.mask == TDM_BURST_STRIPED ||
           b->settings.mask == TDM_BURST_SLIDING;
}

/* Causal blocks by zigzag: half of the queries, or of the keys, of all blocks but the first. */
static bool halves_blocks(const struct burst_model *b)
{
    return !is_striped(b) && b->settings.mask == TDM_BURST_CAUSAL;
}

/* With every message, the host waits for all earlier computation and for the messages of the
 * previous turn. Copies for the next node stay in flight until this turn ends. */
static void wait_for_ring(struct tdm_eager *m)
{
    tdm_torch_settle(m->allocator);
}

/* ---- forward ---- */

/* Adds one block. The first one allocates the output in fp32. Later ones allocate results of their
 * own, which are added to part of the output in place. Later blocks use half of this rank's queries
 * with zigzag, all but one with stripes, and all if the mask is not causal. */
static void add_block(struct burst_model *b, struct tdm_block_shape shape, bool first,
                      struct tdm_partial *partial)
{
    struct tdm_eager *m = b->m;
    struct tdm_eager_value *output, *sums;
    if (!first && halves_blocks(b))
        shape.query_tokens /= 2;
    tdm_flash_forward(m, &shape, &output, &sums);
    struct tdm_eager_value *wide = tdm_value_new(m, output->rows, output->columns, FP32);
    struct tdm_eager_value *joined = tdm_value_like(m, sums);
    if (first) {
        partial->output = tdm_take(wide);
        partial->sums = tdm_take(joined);
    }
    tdm_drop(m, wide);
    tdm_drop(m, joined);
    tdm_drop(m, output);
    tdm_drop(m, sums);
}

/* Results of a forward: the output, its log-sum-exps and the copy of the output that is saved. */
struct burst_output {
    struct tdm_eager_value *output, *sums, *copy;
};

static struct burst_output ring_forward(struct burst_model *b, uint64_t tokens, struct tdm_pair kv)
{
    struct tdm_eager *m = b->m;
    struct tdm_block_shape shape = shape_of(b, tokens);
    tdm_value_share(kv.k);
    tdm_value_share(kv.v);
    struct tdm_pair coming = pair_like(m, kv), outer = {0};
    struct tdm_partial partial = {0};
    for (uint64_t turn = 0; turn < turn_count(b); turn++) {
        struct tdm_pair copies = {0};
        if (turn + 1 < turn_count(b)) {
            if (outer.k == NULL)
                outer = pair_like(m, kv);
            copies = pair_like(m, kv);
        }
        wait_for_ring(m);
        tdm_pair_drop(m, copies);
        for (uint64_t step = 0; step < step_count(b); step++)
            add_block(b, shape, turn == 0 && step == 0, &partial);
    }
    struct burst_output made = {.output = NULL};
    made.output = tdm_partial_end(m, &partial, &partial.sums);
    made.sums = tdm_value_like(m, partial.sums);
    tdm_drop(m, partial.sums);
    made.copy = tdm_value_like(m, made.output); /* before the buffers are freed */
    tdm_pair_drop(m, coming);
    tdm_pair_drop(m, outer);
    return made;
}

static struct tdm_eager_value *part_of(struct tdm_eager *m, const struct tdm_eager_value *x,
                                       uint64_t parts)
{
    return tdm_value_new(m, x->rows / parts, x->columns, x->element_bytes);
}

/* Counts a tensor that is kept among the residuals. */
static struct tdm_eager_value *keep(struct tdm_eager *m, struct tdm_eager_value *x)
{
    tdm_value_set_category(m, x, TDM_METHOD_RESIDUALS);
    return x;
}

static void keep_outputs(struct burst_model *b, struct burst_block *block,
                         const struct burst_output *made)
{
    if (b->settings.checkpoint == TDM_BURST_NOTHING)
        return;
    if (keeps_half(b)) {
        block->kept_output = keep(b->m, part_of(b->m, made->output, 2));
        block->kept_sums = keep(b->m, part_of(b->m, made->sums, 2));
        return;
    }
    block->kept_output = keep(b->m, tdm_take(made->output));
    block->kept_sums = keep(b->m, tdm_take(made->sums));
}

/* Recomputes only the first half of the tokens, from copied halves of q, k and v, and joins it to
 * the half that was kept. */
static struct burst_output first_half_again(struct burst_model *b, struct burst_block *block,
                                            const struct tdm_eager_value *q, struct tdm_pair kv)
{
    struct tdm_eager *m = b->m;
    struct tdm_eager_value *half_q = part_of(m, q, 2), *again[2];
    struct tdm_pair half = {part_of(m, kv.k, 2), part_of(m, kv.v, 2)};
    struct burst_output first = ring_forward(b, b->tokens / 2, half), made;
    again[0] = part_of(m, first.output, 2);
    again[1] = part_of(m, first.sums, 2);
    made.output = tdm_value_like(m, q);
    made.sums = tdm_value_new(m, q->rows, 1, FP32);
    struct tdm_eager_value *const gone[] = {again[0],           again[1],        first.output,
                                            first.sums,         first.copy,      half_q,
                                            block->kept_output, block->kept_sums};
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        tdm_drop(m, gone[i]);
    tdm_pair_drop(m, half);
    block->kept_output = block->kept_sums = NULL;
    made.copy = tdm_value_like(m, made.output);
    return made;
}

/* Output and log-sum-exps of a layer: kept ones, or those of a ring. *own: K and V to save, copied
 * if they are passed round. */
static struct burst_output attend(struct burst_model *b, uint32_t layer,
                                  const struct tdm_eager_value *q, struct tdm_pair kv,
                                  struct tdm_pair *own)
{
    struct tdm_eager *m = b->m;
    struct burst_block *block = &b->blocks[layer];
    bool again = block->kept_output != NULL;
    if (again && !keeps_half(b)) {
        struct burst_output made = {block->kept_output, block->kept_sums, NULL};
        block->kept_output = block->kept_sums = NULL;
        *own = tdm_pair_take(kv);
        made.copy = tdm_value_like(m, made.output);
        return made;
    }
    own->k = tdm_value_like(m, kv.k);
    own->v = tdm_value_like(m, kv.v);
    if (again)
        return first_half_again(b, block, q, kv);
    struct burst_output made = ring_forward(b, b->tokens, kv);
    keep_outputs(b, block, &made);
    return made;
}

/* ---- backward ---- */

enum { SAVED_Q, SAVED_K, SAVED_V, SAVED_SUMS, SAVED_OUTPUT, SAVED };

/* O itself, or the row sums of dO * O. */
static struct tdm_eager_value *make_delta(struct burst_model *b,
                                          struct tdm_eager_value *const *saved)
{
    struct tdm_eager *m = b->m;
    const struct tdm_eager_value *output = saved[SAVED_OUTPUT];
    if (!b->settings.optimized)
        return tdm_take(saved[SAVED_OUTPUT]);
    struct tdm_eager_value *product = tdm_value_like(m, output);
    struct tdm_eager_value *wide = tdm_value_new(m, output->rows, output->columns, FP32);
    tdm_drop(m, product);
    struct tdm_eager_value *sums = tdm_value_like(m, saved[SAVED_SUMS]);
    tdm_drop(m, wide);
    struct tdm_eager_value *delta = tdm_value_like(m, sums);
    tdm_drop(m, sums);
    return delta;
}

/* inter_flex_bwd of sparse_utils.py: scaled log-sum-exps, zeros for their gradients and the row
 * sums of the kernel; then gradients of their own, which are added to the block's. */
static void flex_backward(struct burst_model *b, const struct tdm_eager_value *q)
{
    struct tdm_eager *m = b->m;
    struct tdm_eager_value *made[6];
    for (unsigned i = 0; i < 6; i++)
        made[i] = i < 3 ? tdm_value_new(m, q->rows, 1, FP32) : tdm_value_like(m, q);
    for (unsigned i = 0; i < 6; i++)
        tdm_drop(m, made[i]);
}

static void block_backward(struct burst_model *b, bool first, const struct tdm_eager_value *q,
                           const struct tdm_eager_value *k)
{
    struct tdm_eager *m = b->m;
    struct tdm_block_shape shape = shape_of(b, b->tokens);
    struct tdm_eager_value *parts[2] = {0}, *unused = NULL;
    if (!first && halves_blocks(b)) {
        shape.key_tokens /= 2;
        parts[0] = part_of(m, k, 2);
        parts[1] = part_of(m, k, 2);
    }
    if (b->settings.optimized) /* flash_attn takes an output; this one has no values */
        unused = tdm_value_like(m, q);
    if (b->settings.mask == TDM_BURST_BLOCK)
        flex_backward(b, q);
    else
        tdm_flash_backward(m, &shape, b->settings.optimized);
    tdm_drop(m, unused);
    tdm_drop(m, parts[0]);
    tdm_drop(m, parts[1]);
}

/* The turns of the backward: `going` is passed round, and dQ with it. */
static void turns_backward(struct burst_model *b, const struct burst_set *going,
                           const struct tdm_eager_value *q, const struct tdm_eager_value *k)
{
    struct tdm_eager *m = b->m;
    struct burst_set outer = {0};
    struct tdm_eager_value *outer_dq = NULL;
    for (uint64_t turn = 0; turn < turn_count(b); turn++) {
        struct burst_set copies = {0};
        struct tdm_eager_value *copied_dq = NULL;
        if (turn + 1 < turn_count(b)) {
            if (outer.values[0] == NULL)
                outer = set_like(m, going);
            copies = set_like(m, going);
        }
        if (turn > 0) { /* dQ follows a turn later */
            if (outer_dq == NULL)
                outer_dq = sent_like(m, q);
            copied_dq = sent_like(m, q);
        }
        wait_for_ring(m);
        set_drop(m, &copies);
        tdm_drop(m, copied_dq);
        for (uint64_t step = 0; step < step_count(b); step++)
            block_backward(b, turn == 0 && step == 0, q, k);
    }
    wait_for_ring(m);
    if (outer_dq != NULL)
        tdm_drop(m, sent_like(m, q)); /* the final dQ returns to its rank */
    set_drop(m, &outer);
    tdm_drop(m, outer_dq);
}

static void burst_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct burst_model *b = node->context;
    struct tdm_eager_value *saved[SAVED], *dq, *blocks[3], *delta;
    for (uint32_t i = 0; i < SAVED; i++)
        saved[i] = tdm_node_saved(m, node, i);
    dq = tdm_value_like(m, saved[SAVED_Q]);
    results[1] = tdm_value_like(m, saved[SAVED_K]);
    results[2] = tdm_value_like(m, saved[SAVED_V]);
    delta = make_delta(b, saved);
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = tdm_value_like(m, saved[i]);
    struct burst_set going = {{delta, grads[0], saved[SAVED_Q], saved[SAVED_SUMS]}};
    struct burst_set coming = set_like(m, &going);
    for (unsigned i = 0; i < GOING; i++)
        tdm_value_share(going.values[i]);
    results[0] = sent_like(m, dq);
    tdm_value_share(dq);
    turns_backward(b, &going, saved[SAVED_Q], saved[SAVED_K]);
    tdm_value_set_category(m, results[0], TDM_METHOD_WORKSPACE);
    set_drop(m, &coming);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, blocks[i]);
    tdm_drop(m, delta);
    tdm_drop(m, dq);
    for (unsigned i = 0; i < SAVED; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *burst_attention(struct burst_model *b, uint32_t layer,
                                        struct tdm_eager_value *q, struct tdm_eager_value *k,
                                        struct tdm_eager_value *v)
{
    static const struct tdm_eager_op op = {"OpBurstAttnBackward", false, burst_backward};
    struct tdm_eager *m = b->m;
    struct tdm_eager_value *inputs[] = {q, k, v};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    struct tdm_pair kv = {tdm_take(k), tdm_take(v)}, own;
    if (!is_striped(b)) { /* burst_attn_func copies them first */
        tdm_pair_replace(m, &kv, (struct tdm_pair){tdm_value_like(m, k), NULL});
        kv.v = tdm_value_like(m, v);
    }
    struct burst_output made = attend(b, layer, q, kv, &own);
    struct tdm_eager_value *const kept[SAVED] = {q, own.k, own.v, made.sums, made.copy};
    for (unsigned i = 0; i < SAVED; i++)
        tdm_node_save(m, node, kept[i]);
    if (node != NULL)
        node->context = b;
    tdm_drop(m, made.copy);
    tdm_drop(m, made.sums);
    tdm_pair_drop(m, own);
    tdm_pair_drop(m, kv);
    return tdm_node_finish(m, node, made.output);
}
