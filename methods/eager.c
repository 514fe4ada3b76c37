/* SPDX-License-Identifier: Apache-2.0 */
/* Values, nodes and the engine. */
#include "methods/eager.h"

#include "base/size.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define POOL_ITEMS 512u

struct tdm_pool {
    struct tdm_pool *next;
    max_align_t items[];
};

static const char *const category_names[TDM_METHOD_CATEGORIES] = {
    "weights", "gradients", "optimizer", "residuals", "logits", "workspace", "communication",
};

const char *tdm_method_category_name(enum tdm_method_category category)
{
    return category_names[category];
}

/* ---- pools of equal items ---- */

static void *take_item(struct tdm_eager *m, void **spares, size_t bytes, void *nothing)
{
    if (*spares == NULL) {
        struct tdm_pool *pool = malloc(sizeof(*pool) + POOL_ITEMS * bytes);
        if (pool == NULL) {
            m->status = TDM_NO_MEMORY;
            memset(nothing, 0, bytes);
            return nothing;
        }
        pool->next = m->pools;
        m->pools = pool;
        for (unsigned i = 0; i < POOL_ITEMS; i++) {
            void **item = (void **)(void *)((char *)pool->items + i * bytes);
            *item = *spares;
            *spares = (void *)item;
        }
    }
    void *item = *spares;
    *spares = *(void **)item;
    memset(item, 0, bytes);
    return item;
}

static void give_item(void **spares, void *item)
{
    *(void **)item = *spares;
    *spares = item;
}

void tdm_eager_start(struct tdm_eager *m, struct tdm_torch_allocator *allocator,
                     const struct tdm_gpu_facts *gpu)
{
    *m = (struct tdm_eager){.allocator = allocator,
                            .gpu = *gpu,
                            .grad_enabled = true,
                            .category = TDM_METHOD_WORKSPACE};
}

void tdm_eager_end(struct tdm_eager *m)
{
    for (struct tdm_pool *pool = m->pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        free(pool);
    }
    m->pools = NULL;
}

/* ---- storages ---- */

static void note_peak(struct tdm_eager *m)
{
    uint64_t allocated = tdm_torch_current(m->allocator).allocated;
    if (allocated <= m->peak)
        return;
    m->peak = allocated;
    memcpy(m->at_peak, m->live, sizeof(m->live));
}

void tdm_eager_reset_peak(struct tdm_eager *m)
{
    tdm_torch_reset_peak(m->allocator);
    m->peak = 0;
    note_peak(m);
}

static struct tdm_storage *new_storage(struct tdm_eager *m, uint64_t bytes)
{
    struct tdm_storage *storage =
        take_item(m, &m->spare_storages, sizeof(*storage), &m->nothing[0]);
    storage->references = 1;
    storage->category = m->category;
    if (m->status != TDM_OK || m->stopped)
        return storage;
    m->status = tdm_torch_malloc(m->allocator, bytes, &storage->block);
    if (m->status != TDM_OK)
        return storage;
    m->live[storage->category] += tdm_torch_block_bytes(storage->block);
    note_peak(m);
    if (m->observe != NULL)
        m->observe(m->observer, true, bytes);
    return storage;
}

static void drop_storage(struct tdm_eager *m, struct tdm_storage *storage)
{
    if (--storage->references > 0)
        return;
    if (storage->block != NULL) {
        m->live[storage->category] -= tdm_torch_block_bytes(storage->block);
        if (m->observe != NULL)
            m->observe(m->observer, false, tdm_torch_block_requested(storage->block));
        tdm_torch_free(m->allocator, storage->block);
    }
    give_item(&m->spare_storages, storage);
}

static void set_category(struct tdm_eager *m, struct tdm_storage *storage,
                         enum tdm_method_category category)
{
    if (storage->block != NULL) {
        uint64_t bytes = tdm_torch_block_bytes(storage->block);
        m->live[storage->category] -= bytes;
        m->live[category] += bytes;
    }
    storage->category = category;
}

void tdm_value_set_category(struct tdm_eager *m, struct tdm_value *value,
                            enum tdm_method_category category)
{
    set_category(m, value->storage, category);
}

/* ---- values ---- */

static struct tdm_value *bare_value(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                    uint16_t element_bytes)
{
    struct tdm_value *value = take_item(m, &m->spare_values, sizeof(*value), &m->nothing[1]);
    value->references = 1;
    value->rows = rows;
    value->columns = columns;
    value->element_bytes = element_bytes;
    return value;
}

struct tdm_value *tdm_value_new(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                uint16_t element_bytes)
{
    struct tdm_value *value = bare_value(m, rows, columns, element_bytes);
    value->storage = new_storage(m, tdm_size_mul(tdm_size_mul(rows, columns), element_bytes));
    return value;
}

struct tdm_value *tdm_value_like(struct tdm_eager *m, const struct tdm_value *like)
{
    struct tdm_value *value = tdm_value_new(m, like->rows, like->columns, like->element_bytes);
    value->swapped = like->swapped;
    return value;
}

struct tdm_value *tdm_value_view(struct tdm_eager *m, struct tdm_value *of)
{
    struct tdm_value *value = bare_value(m, of->rows, of->columns, of->element_bytes);
    value->swapped = of->swapped;
    value->view = true;
    value->storage = of->storage;
    value->storage->references++;
    return value;
}

static void accumulate(struct tdm_eager *m, struct tdm_node *node, struct tdm_value *const *grads,
                       struct tdm_value **results);

static const struct tdm_op accumulate_op = {"AccumulateGrad", false, accumulate};

static struct tdm_node *bare_node(struct tdm_eager *m, const struct tdm_op *op)
{
    struct tdm_node *node = take_item(m, &m->spare_nodes, sizeof(*node), &m->nothing[2]);
    node->op = op;
    node->references = 1;
    node->sequence = ++m->sequence;
    return node;
}

void tdm_value_require_grad(struct tdm_eager *m, struct tdm_value *value)
{
    value->leaf = true;
    value->requires_grad = true;
    value->node = bare_node(m, &accumulate_op);
    value->node->sequence = UINT64_MAX;
    value->node->leaf = value;
}

struct tdm_value *tdm_value_leaf(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                 uint16_t element_bytes, bool trained)
{
    struct tdm_value *value = tdm_value_new(m, rows, columns, element_bytes);
    value->leaf = true;
    if (trained)
        tdm_value_require_grad(m, value);
    return value;
}

struct tdm_value *tdm_take(struct tdm_value *value)
{
    if (value != NULL)
        value->references++;
    return value;
}

static void drop_node(struct tdm_eager *m, struct tdm_node *node);

void tdm_drop(struct tdm_eager *m, struct tdm_value *value)
{
    if (value == NULL || --value->references > 0)
        return;
    if (value->node != NULL)
        drop_node(m, value->node);
    tdm_drop(m, value->grad);
    tdm_drop(m, value->cast);
    drop_storage(m, value->storage);
    give_item(&m->spare_values, value);
}

uint64_t tdm_value_elements(const struct tdm_value *value)
{
    return tdm_size_mul(value->rows, value->columns);
}

/* ---- checkpointed functions ---- */

static void drop_frame(struct tdm_eager *m, struct tdm_frame *frame)
{
    if (--frame->references > 0)
        return;
    for (uint32_t i = 0; i < frame->room; i++)
        tdm_drop(m, frame->made[i]);
    free(frame->made);
    tdm_drop(m, frame->input);
    for (unsigned i = 0; i < TDM_MOST_HELD; i++)
        tdm_drop(m, frame->function.held[i]);
    free(frame);
}

/* A frame of one reference; NULL if memory ran out. */
static struct tdm_frame *new_frame(struct tdm_eager *m, const struct tdm_function *function)
{
    struct tdm_frame *frame = calloc(1, sizeof(*frame));
    if (frame == NULL) {
        m->status = TDM_NO_MEMORY;
        return NULL;
    }
    frame->references = 1;
    frame->function = *function;
    frame->autocast = m->autocast;
    for (unsigned i = 0; i < TDM_MOST_HELD; i++)
        tdm_take(function->held[i]);
    return frame;
}

/* While a function is run again: what its node number made_again saves is what was asked for. */
static void save_again(struct tdm_eager *m, struct tdm_frame *frame, struct tdm_value *value)
{
    if (m->stopped || frame->made_again >= frame->saved_count)
        return;
    frame->made[frame->made_again++] = tdm_value_view(m, value);
    if (value->storage->category == TDM_METHOD_WORKSPACE)
        set_category(m, value->storage, TDM_METHOD_RESIDUALS);
    /* Early stop: all is there, before the kernel that would use the last one runs. */
    m->stopped = frame->made_again == frame->saved_count;
}

static void run_again(struct tdm_eager *m, struct tdm_frame *frame)
{
    frame->has_run_again = true;
    frame->room = frame->saved_count;
    frame->made = calloc(frame->room, sizeof(struct tdm_value *));
    if (frame->made == NULL) {
        frame->room = 0;
        m->status = TDM_NO_MEMORY;
        return;
    }
    struct tdm_frame *repeating = m->repeating;
    bool grad_enabled = m->grad_enabled, autocast = m->autocast;
    m->repeating = frame;
    m->grad_enabled = true;
    m->autocast = frame->autocast;
    tdm_drop(m, frame->function.run(m, frame->function.model, frame->function.layer, frame->input));
    m->repeating = repeating;
    m->grad_enabled = grad_enabled;
    m->autocast = autocast;
    m->stopped = false;
    if (frame->autocast)
        tdm_autocast_clear(m);
}

struct tdm_value *tdm_checkpoint(struct tdm_eager *m, const struct tdm_function *function,
                                 struct tdm_value *input)
{
    struct tdm_frame *frame = new_frame(m, function);
    if (frame == NULL)
        return tdm_take(input);
    frame->input = tdm_take(input);
    if (input->storage->category == TDM_METHOD_WORKSPACE)
        set_category(m, input->storage, TDM_METHOD_RESIDUALS);
    m->saving = frame;
    struct tdm_value *output = function->run(m, function->model, function->layer, input);
    m->saving = NULL;
    drop_frame(m, frame);
    return output;
}

static void checkpoint_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_value *const *grads, struct tdm_value **results)
{
    const struct tdm_frame *frame = node->function;
    struct tdm_value *saved = tdm_node_saved(m, node, 0);
    struct tdm_value *input = tdm_value_view(m, saved);
    tdm_value_require_grad(m, input);
    bool grad_enabled = m->grad_enabled, autocast = m->autocast;
    m->grad_enabled = true;
    m->autocast = frame->autocast;
    struct tdm_value *output =
        frame->function.run(m, frame->function.model, frame->function.layer, input);
    m->autocast = autocast;
    if (frame->autocast)
        tdm_autocast_clear(m);
    tdm_backward(m, output, grads[0]);
    m->grad_enabled = grad_enabled;
    results[0] = tdm_take(input->grad);
    tdm_drop(m, output);
    tdm_drop(m, input);
    tdm_drop(m, saved);
}

static const struct tdm_op checkpoint_op = {"CheckpointFunctionBackward", false,
                                            checkpoint_backward};

struct tdm_value *tdm_checkpoint_reentrant(struct tdm_eager *m, const struct tdm_function *function,
                                           struct tdm_value *input)
{
    struct tdm_value *inputs[] = {input};
    struct tdm_node *node = tdm_node_new(m, &checkpoint_op, inputs, 1);
    if (node != NULL) {
        node->function = new_frame(m, function);
        if (node->function == NULL)
            node->op = &accumulate_op;
        tdm_node_save(m, node, input);
    }
    bool grad_enabled = m->grad_enabled;
    m->grad_enabled = false;
    struct tdm_value *output = function->run(m, function->model, function->layer, input);
    m->grad_enabled = grad_enabled;
    tdm_node_output(m, node, 0, output);
    tdm_node_done(m, node);
    return output;
}

/* ---- nodes ---- */

static void release_saved(struct tdm_eager *m, struct tdm_node *node)
{
    for (uint32_t i = 0; i < node->saved_count; i++) {
        struct tdm_saved *saved = &node->saved[i];
        tdm_drop(m, saved->value);
        if (saved->frame != NULL)
            drop_frame(m, saved->frame);
    }
    node->saved_count = 0;
}

static void drop_node(struct tdm_eager *m, struct tdm_node *node)
{
    if (--node->references > 0)
        return;
    release_saved(m, node);
    for (uint32_t i = 0; i < node->inputs; i++)
        if (node->edges[i].node != NULL)
            drop_node(m, node->edges[i].node);
    for (uint32_t i = 0; i < TDM_MOST_OUTPUTS; i++)
        tdm_drop(m, node->grads[i]);
    if (node->function != NULL)
        drop_frame(m, node->function);
    give_item(&m->spare_nodes, node);
}

struct tdm_node *tdm_node_new(struct tdm_eager *m, const struct tdm_op *op,
                              struct tdm_value *const *inputs, uint32_t count)
{
    bool wanted = false;
    for (uint32_t i = 0; i < count; i++)
        wanted |= inputs[i] != NULL && inputs[i]->requires_grad;
    if (!wanted || !m->grad_enabled)
        return NULL;
    struct tdm_node *node = bare_node(m, op);
    node->inputs = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct tdm_value *input = inputs[i];
        if (input == NULL || !input->requires_grad)
            continue;
        node->edges[i] = (struct tdm_edge){.node = input->node,
                                           .output = input->output,
                                           .element_bytes = input->element_bytes,
                                           .rows = input->rows,
                                           .columns = input->columns};
        if (input->node != NULL)
            input->node->references++;
    }
    return node;
}

bool tdm_node_needs(const struct tdm_node *node, uint32_t input)
{
    return node != NULL && node->edges[input].node != NULL;
}

void tdm_node_save(struct tdm_eager *m, struct tdm_node *node, struct tdm_value *value)
{
    if (node == NULL || node->saved_count == TDM_MOST_SAVED)
        return;
    struct tdm_saved *saved = &node->saved[node->saved_count++];
    *saved = (struct tdm_saved){0};
    if (m->saving != NULL) {
        saved->frame = m->saving;
        saved->frame->references++;
        saved->index = saved->frame->saved_count++;
        return;
    }
    if (m->repeating != NULL)
        save_again(m, m->repeating, value);
    saved->value = tdm_value_view(m, value);
    if (value->storage->category == TDM_METHOD_WORKSPACE)
        set_category(m, value->storage, TDM_METHOD_RESIDUALS);
}

void tdm_node_output(struct tdm_eager *m, struct tdm_node *node, uint32_t output,
                     struct tdm_value *value)
{
    (void)m;
    if (node == NULL)
        return;
    value->requires_grad = true;
    value->node = node;
    value->output = output;
    node->references++;
}

void tdm_node_done(struct tdm_eager *m, struct tdm_node *node)
{
    if (node != NULL)
        drop_node(m, node);
}

struct tdm_value *tdm_node_saved(struct tdm_eager *m, struct tdm_node *node, uint32_t i)
{
    struct tdm_saved *saved = &node->saved[i];
    if (saved->frame == NULL)
        return tdm_take(saved->value);
    struct tdm_frame *frame = saved->frame;
    if (!frame->has_run_again)
        run_again(m, frame);
    struct tdm_value *value = saved->index < frame->room ? frame->made[saved->index] : NULL;
    if (value == NULL) /* after a failure */
        return tdm_value_new(m, 1, 1, 1);
    frame->made[saved->index] = NULL;
    return value;
}

/* ---- the engine ---- */

/* Later nodes first; gradients of leaves before all. */
static bool comes_first(const struct tdm_node *a, const struct tdm_node *b)
{
    return a->sequence > b->sequence;
}

static void heap_push(struct tdm_eager *m, struct tdm_heap *heap, struct tdm_node *node)
{
    if (heap->count == heap->room) {
        uint32_t room = heap->room == 0 ? 64 : 2 * heap->room;
        struct tdm_node **nodes = realloc(heap->nodes, room * sizeof(struct tdm_node *));
        if (nodes == NULL) {
            m->status = TDM_NO_MEMORY;
            return;
        }
        heap->nodes = nodes;
        heap->room = room;
    }
    uint32_t at = heap->count++;
    while (at > 0 && comes_first(node, heap->nodes[(at - 1) / 2])) {
        heap->nodes[at] = heap->nodes[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->nodes[at] = node;
}

static struct tdm_node *heap_pop(struct tdm_heap *heap)
{
    struct tdm_node *first = heap->nodes[0], *last = heap->nodes[--heap->count];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && comes_first(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!comes_first(heap->nodes[child], last))
            break;
        heap->nodes[at] = heap->nodes[child];
    }
    heap->nodes[at] = last;
    return first;
}

/* Counts how many results every node waits for. `heap` serves as the stack of nodes to visit. */
static void count_dependencies(struct tdm_eager *m, struct tdm_node *root, struct tdm_heap *stack)
{
    uint32_t task = ++m->task;
    root->task = task;
    root->dependencies = 0;
    heap_push(m, stack, root);
    while (stack->count > 0) {
        struct tdm_node *node = stack->nodes[--stack->count];
        for (uint32_t i = 0; i < node->inputs; i++) {
            struct tdm_node *next = node->edges[i].node;
            if (next == NULL)
                continue;
            if (next->task != task) {
                next->task = task;
                next->dependencies = 0;
                heap_push(m, stack, next);
            }
            next->dependencies++;
        }
    }
}

static void accumulate(struct tdm_eager *m, struct tdm_node *node, struct tdm_value *const *grads,
                       struct tdm_value **results)
{
    (void)results;
    struct tdm_value *leaf = node->leaf;
    if (leaf == NULL)
        return;
    if (leaf->grad == NULL) { /* later ones are added in place */
        if (grads[0]->references > 1)
            leaf->grad = tdm_value_like(m, grads[0]); /* somebody else has it: a copy */
        else
            leaf->grad = tdm_value_view(m, grads[0]);
        if (leaf->storage->category == TDM_METHOD_WEIGHTS)
            set_category(m, leaf->grad->storage, TDM_METHOD_GRADIENTS);
    }
    if (m->gradient_ready != NULL)
        m->gradient_ready(m->gradient_context, leaf);
}

/* Adds to the gradient that waits for a node; `grad` is taken. */
static void add_gradient(struct tdm_eager *m, struct tdm_value **sum, struct tdm_value *grad)
{
    struct tdm_value *old = *sum;
    if (old == NULL) {
        *sum = grad;
        return;
    }
    if (old->references > 1 || old->storage->references > 1 || old->view) {
        *sum = tdm_value_like(m, old);
        tdm_drop(m, old);
    }
    tdm_drop(m, grad);
}

/* Shape and dtype that the engine expects of a gradient; `grad` is taken. */
static struct tdm_value *fit(struct tdm_eager *m, const struct tdm_edge *edge,
                             struct tdm_value *grad)
{
    if (tdm_value_elements(grad) != tdm_size_mul(edge->rows, edge->columns))
        grad = tdm_sum_to(m, grad, edge->rows, edge->columns);
    if (grad->element_bytes == edge->element_bytes)
        return grad;
    struct tdm_value *cast = tdm_value_new(m, grad->rows, grad->columns, edge->element_bytes);
    cast->swapped = grad->swapped;
    tdm_drop(m, grad);
    return cast;
}

static void run_node(struct tdm_eager *m, struct tdm_node *node, struct tdm_heap *ready);

/* Hands results on to the nodes that wait for them; `leaves`: only those of leaves, which are run at once. */
static void hand_on(struct tdm_eager *m, struct tdm_node *node, struct tdm_value **results,
                    bool leaves, struct tdm_heap *ready)
{
    for (uint32_t i = 0; i < node->inputs; i++) {
        const struct tdm_edge *edge = &node->edges[i];
        if (edge->node == NULL || (leaves && edge->node->op != &accumulate_op) ||
            (!leaves && node->op->between_views && edge->node->op == &accumulate_op))
            continue;
        if (results[i] != NULL)
            add_gradient(m, &edge->node->grads[edge->output], results[i]);
        if (--edge->node->dependencies > 0)
            continue;
        if (leaves)
            run_node(m, edge->node, ready);
        else
            heap_push(m, ready, edge->node);
    }
}

static void run_node(struct tdm_eager *m, struct tdm_node *node, struct tdm_heap *ready)
{
    struct tdm_value *results[TDM_MOST_INPUTS] = {0}, *grads[TDM_MOST_OUTPUTS];
    memcpy(grads, node->grads, sizeof(grads));
    memset(node->grads, 0, sizeof(node->grads));
    node->op->backward(m, node, grads, results);
    for (uint32_t i = 0; i < node->inputs; i++) {
        if (results[i] == NULL)
            continue;
        if (node->edges[i].node == NULL) {
            tdm_drop(m, results[i]);
            results[i] = NULL;
        } else {
            results[i] = fit(m, &node->edges[i], results[i]);
        }
    }
    for (uint32_t i = 0; i < TDM_MOST_OUTPUTS; i++)
        tdm_drop(m, grads[i]);
    release_saved(m, node);
    if (node->op->between_views)
        hand_on(m, node, results, true, ready);
    hand_on(m, node, results, false, ready);
}

void tdm_backward(struct tdm_eager *m, struct tdm_value *loss, struct tdm_value *grad)
{
    struct tdm_heap heap = {0};
    struct tdm_value *ones = NULL;
    bool in_backward = m->in_backward, grad_enabled = m->grad_enabled;
    if (loss->node == NULL)
        return;
    if (grad == NULL)
        grad = ones = tdm_value_like(m, loss);
    m->in_backward = true;
    m->grad_enabled = false;
    count_dependencies(m, loss->node, &heap);
    loss->node->grads[loss->output] = tdm_take(grad);
    heap_push(m, &heap, loss->node);
    while (heap.count > 0)
        run_node(m, heap_pop(&heap), &heap);
    m->in_backward = in_backward;
    m->grad_enabled = grad_enabled;
    tdm_drop(m, ones);
    free(heap.nodes);
}

void tdm_autocast_clear(struct tdm_eager *m)
{
    for (uint32_t i = 0; i < m->cast_count; i++) {
        tdm_drop(m, m->casts[i]->cast);
        m->casts[i]->cast = NULL;
    }
    m->cast_count = 0;
}
