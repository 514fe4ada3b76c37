/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a rank that has part of a sequence, and the number of its tokens. */
#include "base/size.h"
#include "methods/context/parts.h"

#include <stddef.h>

static uint64_t ranks(const struct tdm_context *context)
{
    return context->ring_degree * context->ulysses_degree;
}

uint64_t tdm_context_padded_tokens(const struct tdm_context *context, uint64_t tokens)
{
    uint64_t multiple = ranks(context);
    /* Every member of the ring has two slices. */
    if (context->divider->rings && context->balance == TDM_RING_ZIGZAG &&
        context->ulysses_degree % 2 != 0)
        multiple *= 2;
    if (context->chunk_tokens > 0)
        multiple = context->chunk_tokens;
    return tdm_size_mul(tdm_size_ceil_div(tokens, multiple), multiple);
}

uint64_t tdm_context_local_tokens(const struct tdm_context *context, uint64_t tokens)
{
    if (context->divider == NULL)
        return tokens;
    return tdm_context_padded_tokens(context, tokens) / ranks(context);
}

enum { RING_Q, RING_K, RING_V, RING_OUTPUT, RING_SUMS, RING_SAVED };

static struct tdm_block_shape block_of(const struct tdm_node *node)
{
    return (struct tdm_block_shape){.batch = node->facts[0],
                                    .query_heads = node->facts[1],
                                    .kv_heads = node->facts[2],
                                    .query_tokens = node->facts[3],
                                    .key_tokens = node->facts[3],
                                    .head_dim = node->facts[4]};
}

static void ring_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_context *context = node->context;
    struct tdm_block_shape shape = block_of(node);
    struct tdm_eager_value *saved[RING_SAVED];
    (void)grads;
    for (uint32_t i = 0; i < RING_SAVED; i++)
        saved[i] = tdm_node_saved(m, node, i);
    struct tdm_pair kv = {saved[RING_K], saved[RING_V]};
    context->divider->backward(m, context, &shape, saved[RING_Q], kv, results);
    for (uint32_t i = 0; i < RING_SAVED; i++)
        tdm_drop(m, saved[i]);
}

/* An autograd function in Python: it saves its tensors at the end of its forward. */
static struct tdm_eager_value *ring(struct tdm_eager *m, const struct tdm_context *context,
                                    const struct tdm_attention_shape *shape,
                                    struct tdm_eager_value *q, struct tdm_eager_value *k,
                                    struct tdm_eager_value *v)
{
    static const struct tdm_eager_op op = {"RingFlashAttnFuncBackward", false, ring_backward};
    struct tdm_eager_value *inputs[] = {q, k, v}, *sums = NULL, *output;
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    struct tdm_block_shape block = {.batch = shape->batch,
                                    .query_heads = shape->query_heads,
                                    .kv_heads = shape->kv_heads,
                                    .query_tokens = shape->tokens,
                                    .key_tokens = shape->tokens,
                                    .head_dim = shape->head_dim};
    struct tdm_pair kv = {k, v};
    output = context->divider->forward(m, context, &block, kv, &sums);
    if (node != NULL) {
        const uint64_t facts[] = {block.batch, block.query_heads, block.kv_heads,
                                  block.query_tokens, block.head_dim};
        for (unsigned i = 0; i < 5; i++)
            node->facts[i] = facts[i];
        node->context = (void *)context;
    }
    struct tdm_eager_value *const kept[RING_SAVED] = {q, k, v, output, sums};
    for (unsigned i = 0; i < RING_SAVED; i++)
        tdm_node_save(m, node, kept[i]);
    tdm_drop(m, sums);
    return tdm_node_finish(m, node, output);
}

struct tdm_eager_value *tdm_context_attention(struct tdm_eager *m,
                                              const struct tdm_context *context,
                                              const struct tdm_attention_shape *shape,
                                              struct tdm_eager_value *q, struct tdm_eager_value *k,
                                              struct tdm_eager_value *v)
{
    struct tdm_eager_value *const inputs[] = {q, k, v};
    struct tdm_eager_value *parts[3], *output;
    struct tdm_attention_shape part = *shape;
    bool exchanges = context->ulysses_degree > 1;
    part.tokens *= context->ulysses_degree;
    part.query_heads /= context->ulysses_degree;
    uint64_t copies = 1; /* of a KV head */
    if (part.kv_heads < context->ulysses_degree) {
        copies = context->ulysses_degree / part.kv_heads;
        part.kv_heads = context->ulysses_degree;
    }
    part.kv_heads /= context->ulysses_degree;
    for (unsigned i = 0; i < 3; i++) {
        struct tdm_eager_value *cast = tdm_autocast(m, inputs[i]);
        parts[i] = tdm_transpose(m, cast); /* by token, then head */
        tdm_drop(m, cast);
        if (i > 0)
            parts[i] = tdm_replace(m, parts[i], tdm_repeat(m, parts[i], copies));
        if (exchanges) {
            struct tdm_eager_value *received = tdm_all_to_all(m, parts[i], shape->batch, true);
            tdm_drop(m, parts[i]);
            parts[i] = received;
        }
    }
    for (unsigned i = 0; i < 3 && context->divider->heads_first; i++)
        parts[i] = tdm_replace(m, parts[i], tdm_clone(m, parts[i]));
    if (context->divider->forward == NULL)
        output = tdm_attention(m, parts[0], parts[1], parts[2], NULL, &part);
    else
        output = ring(m, context, &part, parts[0], parts[1], parts[2]);
    if (exchanges) {
        struct tdm_eager_value *received = tdm_all_to_all(m, output, shape->batch, false);
        tdm_drop(m, output);
        output = received;
    }
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, parts[i]);
    return output;
}
