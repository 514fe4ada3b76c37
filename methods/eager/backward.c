/* SPDX-License-Identifier: Apache-2.0 */
/* Autograd's engine: it runs nodes in order, adds up their gradients, and keeps those of leaves. */
#include "methods/eager/parts.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

void tdm_leaf_accumulate(struct tdm_eager *m, struct tdm_eager_value *leaf,
                         struct tdm_eager_value *grad)
{
    if (leaf->grad == NULL) { /* later ones are added in place */
        if (grad->references > 1)
            leaf->grad = tdm_value_like(m, grad); /* shared: a copy */
        else
            leaf->grad = tdm_value_view(m, grad);
        if (leaf->storage->category == TDM_METHOD_WEIGHTS) {
            tdm_storage_set_category(m, leaf->grad->storage, TDM_METHOD_GRADIENTS);
            leaf->grad->storage->label = leaf->storage->label;
            leaf->grad->storage->label.made = TDM_MADE_GRADIENT;
        }
    }
    if (m->gradient_ready != NULL)
        m->gradient_ready(m->gradient_context, leaf);
}

static void accumulate(struct tdm_eager *m, struct tdm_node *node,
                       struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)results;
    if (node->leaf != NULL && grads[0] != NULL) /* a function may return no gradient */
        tdm_leaf_accumulate(m, node->leaf, grads[0]);
}

const struct tdm_eager_op tdm_accumulate_op = {"AccumulateGrad", false, accumulate};

/* Later nodes run first, and gradients of leaves before all others. */
static bool comes_first(const struct tdm_node *a, const struct tdm_node *b)
{
    return a->sequence > b->sequence;
}

static void heap_push(struct tdm_eager *m, struct tdm_heap *heap, struct tdm_node *node)
{
    if (heap->count == heap->capacity) {
        uint32_t capacity = heap->capacity == 0 ? 64 : 2 * heap->capacity;
        struct tdm_node **nodes = realloc(heap->nodes, capacity * sizeof(struct tdm_node *));
        if (nodes == NULL)
            tdm_eager_no_memory(m);
        heap->nodes = nodes;
        heap->capacity = capacity;
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

/* Counts how many results every node waits for. `stack` holds the nodes to visit. */
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

/* Adds `grad` to the gradient that waits for a node. Takes ownership of `grad`. */
static void add_gradient(struct tdm_eager *m, struct tdm_eager_value **sum,
                         struct tdm_eager_value *grad)
{
    struct tdm_eager_value *old = *sum;
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

/* Gives a gradient the shape and dtype that the engine expects. Takes ownership of `grad`. */
static struct tdm_eager_value *fit(struct tdm_eager *m, const struct tdm_edge *edge,
                                   struct tdm_eager_value *grad)
{
    if (tdm_value_elements(grad) != tdm_size_mul(edge->rows, edge->columns))
        grad = tdm_sum_to(m, grad, edge->rows, edge->columns);
    if (grad->element_bytes == edge->element_bytes)
        return grad;
    struct tdm_eager_value *cast = tdm_value_new(m, grad->rows, grad->columns, edge->element_bytes);
    cast->swapped = grad->swapped;
    tdm_drop(m, grad);
    return cast;
}

static void run_node(struct tdm_eager *m, struct tdm_node *node, struct tdm_heap *ready);

/* Passes results to the nodes that wait for them. `leaves`: only to those of leaves, which then run
 * at once. */
static void hand_on(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value **results,
                    bool leaves, struct tdm_heap *ready)
{
    for (uint32_t i = 0; i < node->inputs; i++) {
        const struct tdm_edge *edge = &node->edges[i];
        if (edge->node == NULL || (leaves && edge->node->op != &tdm_accumulate_op) ||
            (!leaves && node->op->between_views && edge->node->op == &tdm_accumulate_op))
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
    struct tdm_eager_value *results[TDM_MOST_INPUTS] = {0}, *grads[TDM_MOST_OUTPUTS];
    struct tdm_label label = m->label;
    m->label = node->label;
    m->label.made = TDM_MADE_BACKWARD;
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
    tdm_node_release_saved(m, node);
    if (node->op->between_views)
        hand_on(m, node, results, true, ready);
    hand_on(m, node, results, false, ready);
    m->label = label;
}

void tdm_backward(struct tdm_eager *m, struct tdm_eager_value *loss, struct tdm_eager_value *grad)
{
    struct tdm_heap heap = {0};
    struct tdm_eager_value *ones = NULL;
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
