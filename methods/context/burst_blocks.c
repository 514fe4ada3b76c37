/* SPDX-License-Identifier: Apache-2.0 */
/* BMTrain's blocks. A layer's weights are one buffer, cut into shards. It is gathered before the
 * layer runs; for the backward, a buffer of gradients is allocated beside it. A layer's gradients
 * are reduced when the backward enters the layer before it. Frozen weights have a buffer of their
 * own, and no gradients. BurstEngine has no LoRA: we assume that adapters are created before the
 * layer becomes a block, as parameters of it.
 * Sources: bmtrain/block_layer.py (init_param_storage, _get_param_kw, forward, release),
 * zero_context.py, hook_func.py, parameter.py (OpAllGather). */
#include "base/size.h"
#include "methods/context/burst_parts.h"

#include <stddef.h>

#define ALIGNMENT 256u /* elements, which are 512 B */

enum { STREAM_COMPUTE, STREAM_LOAD };

static struct tdm_eager_value *new_buffer(struct burst_model *b, uint32_t stream,
                                          enum tdm_method_category category, uint64_t rows,
                                          uint64_t columns)
{
    struct tdm_eager *m = b->m;
    enum tdm_method_category before = m->category;
    struct tdm_label label = m->label;
    tdm_label(m, "block");
    m->stream = stream;
    m->category = category;
    struct tdm_eager_value *buffer = tdm_value_new(m, rows, columns, BF16);
    m->category = before;
    m->label = label;
    m->stream = STREAM_COMPUTE;
    if (stream == STREAM_LOAD) /* the compute stream uses it too */
        tdm_value_share(buffer);
    return buffer;
}

struct tdm_eager_value *burst_shard(struct burst_model *b, uint64_t elements, bool trained)
{
    b->m->label = (struct tdm_label){.name = "part of a block", .layer = TDM_NO_LAYER};
    return tdm_value_leaf(b->m, 1, tdm_size_ceil_div(elements, b->shards), BF16, trained);
}

/* A weight without memory of its own. Adds its aligned size in the buffer to *elements. */
static struct tdm_eager_value *add_weight(struct burst_model *b, uint64_t rows, uint64_t columns,
                                          bool trained, uint64_t *elements)
{
    struct tdm_eager_value *weight = tdm_value_leaf(b->m, 1, 1, BF16, trained);
    tdm_value_vacate(b->m, weight);
    weight->rows = rows;
    weight->columns = columns;
    *elements += tdm_size_align(tdm_size_mul(rows, columns), ALIGNMENT);
    return weight;
}

/* Two matrices for every adapted projection: rank x inputs, outputs x rank. */
static void add_adapters(struct burst_model *b, struct burst_block *block)
{
    static const struct {
        enum tdm_projection projection;
        unsigned weight;
    } adapted[] = {{TDM_PROJECTION_Q, BURST_Q},       {TDM_PROJECTION_K, BURST_K},
                   {TDM_PROJECTION_V, BURST_V},       {TDM_PROJECTION_O, BURST_O},
                   {TDM_PROJECTION_GATE, BURST_GATE}, {TDM_PROJECTION_UP, BURST_UP},
                   {TDM_PROJECTION_DOWN, BURST_DOWN}};
    uint64_t elements = 0;
    for (unsigned i = 0; i < sizeof(adapted) / sizeof(adapted[0]); i++) {
        unsigned w = adapted[i].weight;
        const struct tdm_eager_value *weight = block->weights[w];
        if ((b->lora_targets >> adapted[i].projection & 1) == 0)
            continue;
        block->down[w] = add_weight(b, b->lora_rank, weight->columns, true, &elements);
        block->up[w] = add_weight(b, weight->rows, b->lora_rank, true, &elements);
    }
    block->storages[BURST_ADAPTERS].shard = burst_shard(b, elements, true);
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
        block->weights[w] =
            add_weight(b, tensor->rows, tensor->columns, b->lora_rank == 0, &elements);
    }
    block->storages[BURST_BASE].shard = burst_shard(b, elements, b->lora_rank == 0);
    if (b->lora_rank > 0)
        add_adapters(b, block);
}

static void reduce(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                   struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    (void)grads;
    results[0] =
        new_buffer(node->context, STREAM_LOAD, TDM_METHOD_GRADIENTS, edge->rows, edge->columns);
    (void)m;
}

struct tdm_eager_value *burst_gather(struct burst_model *b, struct tdm_eager_value *shard,
                                     uint64_t rows, uint64_t columns)
{
    static const struct tdm_eager_op op = {"OpAllGatherBackward", false, reduce};
    struct tdm_node *node = tdm_node_new(b->m, &op, &shard, 1);
    struct tdm_eager_value *whole =
        new_buffer(b, STREAM_LOAD, TDM_METHOD_COMMUNICATION, rows, columns);
    if (node != NULL)
        node->context = b;
    return tdm_node_finish(b->m, node, whole);
}

static void gather_storage(struct burst_model *b, struct burst_storage *storage, bool backward)
{
    uint64_t elements = tdm_size_mul(storage->shard->columns, b->shards);
    if (b->shards == 1)
        storage->gathered = tdm_value_view(b->m, storage->shard);
    else
        storage->gathered = new_buffer(b, STREAM_LOAD, TDM_METHOD_COMMUNICATION, 1, elements);
    if (!backward || !storage->shard->requires_grad)
        return;
    if (b->shards > 1)
        storage->gradients = new_buffer(b, STREAM_LOAD, TDM_METHOD_COMMUNICATION, 1, elements);
    else if (storage->shard->grad == NULL)
        storage->gradients = new_buffer(b, STREAM_COMPUTE, TDM_METHOD_GRADIENTS, 1, elements);
    else
        storage->gradients = tdm_value_view(b->m, storage->shard->grad);
}

static void release_storage(struct burst_model *b, struct burst_storage *storage)
{
    if (storage->gradients != NULL && storage->shard->grad == NULL) {
        if (b->shards > 1)
            storage->shard->grad =
                new_buffer(b, STREAM_COMPUTE, TDM_METHOD_GRADIENTS, 1, storage->shard->columns);
        else
            storage->shard->grad = tdm_take(storage->gradients);
    }
    tdm_drop(b->m, storage->gathered);
    tdm_drop(b->m, storage->gradients);
    storage->gathered = storage->gradients = NULL;
}

/* Makes weights accumulate their gradients in those of their storage; NULL ends that. */
static void point_gradients(struct burst_model *b, struct tdm_eager_value *const *weights,
                            struct tdm_eager_value *gradients)
{
    for (unsigned w = 0; w < BURST_WEIGHTS; w++) {
        if (weights[w] == NULL)
            continue;
        tdm_drop(b->m, weights[w]->grad);
        weights[w]->grad = gradients == NULL ? NULL : tdm_value_view(b->m, gradients);
    }
}

static void point_block(struct burst_model *b, struct burst_block *block)
{
    point_gradients(b, block->weights, block->storages[BURST_BASE].gradients);
    point_gradients(b, block->down, block->storages[BURST_ADAPTERS].gradients);
    point_gradients(b, block->up, block->storages[BURST_ADAPTERS].gradients);
}

void burst_enter(struct burst_model *b, uint32_t layer, bool backward)
{
    struct burst_block *block = &b->blocks[layer];
    if (block->storages[BURST_BASE].gathered != NULL)
        return;
    for (unsigned i = 0; i < BURST_STORAGES; i++)
        if (block->storages[i].shard != NULL)
            gather_storage(b, &block->storages[i], backward);
    point_block(b, block);
}

void burst_exit(struct burst_model *b, uint32_t layer)
{
    struct burst_block *block = &b->blocks[layer];
    if (block->storages[BURST_BASE].gathered == NULL)
        return;
    for (unsigned i = 0; i < BURST_STORAGES; i++)
        if (block->storages[i].shard != NULL)
            release_storage(b, &block->storages[i]);
    point_block(b, block);
}

/* Enters a layer for the backward and releases the layer after it. */
static void enter_backward(struct burst_model *b, uint32_t layer)
{
    burst_enter(b, layer, true);
    if (layer + 1 < b->config->layers)
        burst_exit(b, layer + 1);
}

static void post_hook_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    (void)m;
    enter_backward(node->context, (uint32_t)node->facts[0]);
    results[0] = tdm_take(grads[0]);
}

/* PreHookFunc. No layer precedes the first one and releases it, so its own hook does. */
static void pre_hook_backward(struct tdm_eager *m, struct tdm_node *node,
                              struct tdm_eager_value *const *grads,
                              struct tdm_eager_value **results)
{
    (void)m;
    if (node->facts[0] == 0)
        burst_exit(node->context, 0);
    results[0] = tdm_take(grads[0]);
}

struct tdm_eager_value *burst_mark(struct burst_model *b, uint32_t layer, struct tdm_eager_value *x,
                                   bool output)
{
    static const struct tdm_eager_op post = {"PostHookFuncBackward", false, post_hook_backward},
                                     pre = {"PreHookFuncBackward", false, pre_hook_backward};
    return tdm_mark(b->m, output ? &post : &pre, layer, b, x);
}

static void first_layer_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    struct burst_model *b = node->context;
    bool grad_enabled = m->grad_enabled;
    (void)results; /* the placeholder gets no gradient */
    enter_backward(b, 0);
    m->grad_enabled = true;
    m->label.made = TDM_MADE_FORWARD;
    struct tdm_eager_value *y = burst_layer(m, b, 0, b->first_input);
    tdm_backward(m, y, grads[0]);
    m->grad_enabled = grad_enabled;
    tdm_drop(m, y);
    burst_exit(b, 0);
}

struct tdm_eager_value *burst_first_layer(struct burst_model *b, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"OneStepNoGradFuncBackward", false,
                                           first_layer_backward};
    struct tdm_eager *m = b->m;
    struct tdm_node *node = tdm_node_new(m, &op, &b->placeholder, 1);
    bool grad_enabled = m->grad_enabled;
    if (node != NULL)
        node->context = b;
    tdm_value_set_category(m, x, TDM_METHOD_RESIDUALS);
    b->first_input = tdm_take(x);
    burst_enter(b, 0, false);
    m->grad_enabled = false;
    struct tdm_eager_value *y = burst_layer(m, b, 0, x);
    m->grad_enabled = grad_enabled;
    burst_exit(b, 0);
    tdm_node_output(m, node, 0, y);
    tdm_node_done(m, node);
    return y;
}
