/* SPDX-License-Identifier: Apache-2.0 */
/* BMTrain's blocks: a layer's weights are one buffer, cut into parts; before the layer runs it is gathered, for the
 * backward with a buffer of gradients beside it; a layer's gradients are reduced when the one before it is entered.
 * Sources: bmtrain/block_layer.py (init_param_storage, release), zero_context.py, hook_func.py, parameter.py
 * (OpAllGather). */
#include "base/size.h"
#include "methods/burst_parts.h"

#include <stddef.h>

#define ALIGNMENT 256u /* elements that are 512 B */

enum { STREAM_COMPUTE, STREAM_LOAD };

static struct tdm_value *new_buffer(struct burst_model *b, uint32_t stream,
                                    enum tdm_method_category category, uint64_t rows,
                                    uint64_t columns)
{
    struct tdm_eager *m = b->m;
    enum tdm_method_category before = m->category;
    struct tdm_label label = m->label;
    tdm_label(m, "block");
    m->stream = stream;
    m->category = category;
    struct tdm_value *buffer = tdm_value_new(m, rows, columns, BF16);
    m->category = before;
    m->label = label;
    m->stream = STREAM_COMPUTE;
    if (stream == STREAM_LOAD) /* what computes uses it too */
        tdm_value_share(buffer);
    return buffer;
}

struct tdm_value *burst_shard(struct burst_model *b, uint64_t elements)
{
    b->m->label = (struct tdm_label){.name = "part of a block", .layer = TDM_NO_LAYER};
    return tdm_value_leaf(b->m, 1, tdm_size_ceil_div(elements, b->shards), BF16, true);
}

void burst_make_block(struct burst_model *b, uint32_t layer)
{
    static const enum tdm_role roles[BURST_WEIGHTS] = {
        [BURST_ATTENTION_NORM] = TDM_ROLE_ATTENTION_NORM,
        [BURST_Q] = TDM_ROLE_Q,
        [BURST_K] = TDM_ROLE_K,
        [BURST_V] = TDM_ROLE_V,
        [BURST_O] = TDM_ROLE_O,
        [BURST_MLP_NORM] = TDM_ROLE_MLP_NORM,
        [BURST_GATE] = TDM_ROLE_GATE,
        [BURST_UP] = TDM_ROLE_UP,
        [BURST_DOWN] = TDM_ROLE_DOWN,
    };
    struct burst_block *block = &b->blocks[layer];
    uint64_t elements = 0;
    for (unsigned w = 0; w < BURST_WEIGHTS; w++) {
        const struct tdm_tensor *tensor = tdm_model_tensor(b->config, layer, roles[w]);
        elements += tdm_size_align(tdm_size_mul(tensor->rows, tensor->columns), ALIGNMENT);
        block->weights[w] = tdm_value_leaf(b->m, 1, 1, BF16, true); /* never memory of its own */
        tdm_value_vacate(b->m, block->weights[w]);
        block->weights[w]->rows = tensor->rows;
        block->weights[w]->columns = tensor->columns;
    }
    block->shard = burst_shard(b, elements);
}

static void reduce(struct tdm_eager *m, struct tdm_node *node, struct tdm_value *const *grads,
                   struct tdm_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    (void)grads;
    results[0] =
        new_buffer(node->context, STREAM_LOAD, TDM_METHOD_GRADIENTS, edge->rows, edge->columns);
    (void)m;
}

struct tdm_value *burst_gather(struct burst_model *b, struct tdm_value *shard, uint64_t rows,
                               uint64_t columns)
{
    static const struct tdm_op op = {"OpAllGatherBackward", false, reduce};
    struct tdm_node *node = tdm_node_new(b->m, &op, &shard, 1);
    struct tdm_value *whole = new_buffer(b, STREAM_LOAD, TDM_METHOD_COMMUNICATION, rows, columns);
    if (node != NULL)
        node->context = b;
    return tdm_node_finish(b->m, node, whole);
}

void burst_enter(struct burst_model *b, uint32_t layer, bool backward)
{
    struct burst_block *block = &b->blocks[layer];
    uint64_t elements = tdm_size_mul(block->shard->columns, b->shards);
    if (block->gathered != NULL)
        return;
    if (b->shards == 1)
        block->gathered = tdm_value_view(b->m, block->shard);
    else
        block->gathered = new_buffer(b, STREAM_LOAD, TDM_METHOD_COMMUNICATION, 1, elements);
    if (!backward)
        return;
    if (b->shards > 1)
        block->gradients = new_buffer(b, STREAM_LOAD, TDM_METHOD_COMMUNICATION, 1, elements);
    else if (block->shard->grad == NULL)
        block->gradients = new_buffer(b, STREAM_COMPUTE, TDM_METHOD_GRADIENTS, 1, elements);
    else
        block->gradients = tdm_value_view(b->m, block->shard->grad);
    for (unsigned w = 0; w < BURST_WEIGHTS; w++)
        block->weights[w]->grad = tdm_value_view(b->m, block->gradients);
}

void burst_exit(struct burst_model *b, uint32_t layer, bool backward)
{
    struct burst_block *block = &b->blocks[layer];
    if (block->gathered == NULL)
        return;
    if (backward && block->shard->grad == NULL) {
        if (b->shards > 1)
            block->shard->grad =
                new_buffer(b, STREAM_COMPUTE, TDM_METHOD_GRADIENTS, 1, block->shard->columns);
        else
            block->shard->grad = tdm_take(block->gradients);
    }
    for (unsigned w = 0; w < BURST_WEIGHTS && backward; w++) {
        tdm_drop(b->m, block->weights[w]->grad);
        block->weights[w]->grad = NULL;
    }
    tdm_drop(b->m, block->gathered);
    tdm_drop(b->m, block->gradients);
    block->gathered = block->gradients = NULL;
}

/* PostHookFunc: the layer is entered, and the one that comes after it released. */
static void enter_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_value *const *grads, struct tdm_value **results)
{
    struct burst_model *b = node->context;
    uint32_t layer = (uint32_t)node->facts[0];
    (void)m;
    burst_enter(b, layer, true);
    if (layer + 1 < b->config->layers)
        burst_exit(b, layer + 1, true);
    results[0] = tdm_take(grads[0]);
}

/* PreHookFunc: there is none before the first layer. */
static void leave_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_value *const *grads, struct tdm_value **results)
{
    (void)m;
    if (node->facts[0] == 0)
        burst_exit(node->context, 0, true);
    results[0] = tdm_take(grads[0]);
}

struct tdm_value *burst_mark(struct burst_model *b, uint32_t layer, struct tdm_value *x,
                             bool output)
{
    static const struct tdm_op post = {"PostHookFuncBackward", false, enter_backward},
                               pre = {"PreHookFuncBackward", false, leave_backward};
    struct tdm_node *node = tdm_node_new(b->m, output ? &post : &pre, &x, 1);
    if (node != NULL) {
        node->facts[0] = layer;
        node->context = b;
    }
    struct tdm_value *y = tdm_value_view(b->m, x);
    return tdm_node_finish(b->m, node, y);
}
