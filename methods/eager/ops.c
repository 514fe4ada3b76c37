/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of elementwise operations, sums, shapes and losses. A node saves before its
 * forward allocates, as in PyTorch: that is where checkpointing stops a repeated forward. */
#include "methods/eager/ops.h"

#include "base/size.h"
#include "methods/eager/dtypes.h"

#include <stddef.h>

static uint16_t wider(const struct tdm_eager_value *a, const struct tdm_eager_value *b)
{
    return a->element_bytes > b->element_bytes ? a->element_bytes : b->element_bytes;
}

/* A result with the shape and memory order of x, and the wider of both dtypes. */
static struct tdm_eager_value *result_like(struct tdm_eager *m, const struct tdm_eager_value *x,
                                           const struct tdm_eager_value *other)
{
    struct tdm_eager_value *value = tdm_value_new(m, x->rows, x->columns, wider(x, other));
    value->swapped = x->swapped;
    return value;
}

/* Gradients of logits also count as logits. */
static enum tdm_method_category follow(struct tdm_eager *m, const struct tdm_eager_value *grad)
{
    enum tdm_method_category before = m->category;
    if (grad->storage->category == TDM_METHOD_LOGITS)
        m->category = TDM_METHOD_LOGITS;
    return before;
}

static void pass(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                 struct tdm_eager_value **results)
{
    (void)m;
    for (uint32_t i = 0; i < node->inputs; i++)
        if (tdm_node_needs(node, i))
            results[i] = tdm_take(grads[0]);
}

void tdm_map_backward(struct tdm_eager *m, struct tdm_node *node,
                      struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)node;
    results[0] = tdm_value_like(m, grads[0]);
}

/* The same, with a saved tensor. */
static void map_saved(struct tdm_eager *m, struct tdm_node *node,
                      struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved = tdm_node_saved(m, node, 0);
    enum tdm_method_category before = follow(m, grads[0]);
    results[0] = tdm_value_like(m, grads[0]);
    m->category = before;
    tdm_drop(m, saved);
}

/* ---- dtypes ---- */

static void cast_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    enum tdm_method_category before = follow(m, grads[0]);
    results[0] = tdm_value_new(m, grads[0]->rows, grads[0]->columns, node->edges[0].element_bytes);
    results[0]->swapped = grads[0]->swapped;
    m->category = before;
}

struct tdm_eager_value *tdm_cast(struct tdm_eager *m, struct tdm_eager_value *x,
                                 uint16_t element_bytes)
{
    static const struct tdm_eager_op op = {"ToCopyBackward0", false, cast_backward};
    if (x->element_bytes == element_bytes)
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, x->columns, element_bytes);
    y->swapped = x->swapped;
    return tdm_node_finish(m, node, y);
}

struct tdm_eager_value *tdm_autocast(struct tdm_eager *m, struct tdm_eager_value *x)
{
    if (x == NULL || !m->autocast || x->element_bytes == BF16)
        return tdm_take(x);
    if (!x->leaf || !x->requires_grad || m->cast_count == TDM_CAST_MOST)
        return tdm_cast(m, x, BF16);
    if (x->cast == NULL) {
        /* A cached cast has a graph also where it is made without one: calls that come later use
         * it (seen in torch 2.11). */
        const bool graph = m->grad_enabled;
        m->grad_enabled = true;
        x->cast = tdm_cast(m, x, BF16);
        m->grad_enabled = graph;
        m->casts[m->cast_count++] = x;
    }
    return tdm_take(x->cast);
}

/* ---- element by element ---- */

static void mul_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[2] = {0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    uint32_t at = node->saved_count;
    for (uint32_t i = 2; i-- > 0;)
        if (tdm_node_needs(node, i))
            results[i] = result_like(m, grads[0], saved[--at]);
    tdm_drop(m, saved[0]);
    tdm_drop(m, saved[1]);
}

struct tdm_eager_value *tdm_mul(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b)
{
    static const struct tdm_eager_op op = {"MulBackward0", false, mul_backward};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (tdm_node_needs(node, 0))
        tdm_node_save(m, node, b);
    if (tdm_node_needs(node, 1))
        tdm_node_save(m, node, a);
    bool a_is_shape = tdm_value_elements(a) >= tdm_value_elements(b);
    return tdm_node_finish(m, node, result_like(m, a_is_shape ? a : b, a_is_shape ? b : a));
}

struct tdm_eager_value *tdm_add(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b)
{
    static const struct tdm_eager_op op = {"AddBackward0", false, pass};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    bool a_is_shape = tdm_value_elements(a) >= tdm_value_elements(b);
    return tdm_node_finish(m, node, result_like(m, a_is_shape ? a : b, a_is_shape ? b : a));
}

/* The gradient of what is subtracted is made before it is summed to its shape. */
static void sub_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_like(m, grads[0]);
    if (tdm_node_needs(node, 0))
        results[0] = tdm_take(grads[0]);
}

struct tdm_eager_value *tdm_sub(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b)
{
    static const struct tdm_eager_op op = {"SubBackward0", false, sub_backward};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    return tdm_node_finish(m, node, result_like(m, a, b));
}

static void max_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *indices = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, indices);
}

struct tdm_eager_value *tdm_row_max(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"MaxBackward0", false, max_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, 1, x->element_bytes);
    struct tdm_eager_value *indices = tdm_value_new(m, x->rows, 1, INT64);
    tdm_node_save(m, node, indices);
    tdm_drop(m, indices);
    return tdm_node_finish(m, node, y);
}

/* Booleans of what lies within the bounds choose the gradient. */
static void clamp_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0);
    struct tdm_eager_value *within = tdm_value_new(m, x->rows, x->columns, BOOL);
    if (node->facts[0] > 1) {
        struct tdm_eager_value *other = tdm_value_new(m, x->rows, x->columns, BOOL);
        within = tdm_replace(m, within, tdm_value_new(m, x->rows, x->columns, BOOL));
        tdm_drop(m, other);
    }
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, within);
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_clamp(struct tdm_eager *m, struct tdm_eager_value *x, uint32_t bounds)
{
    static const struct tdm_eager_op op = {"ClampBackward1", false, clamp_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    if (node != NULL)
        node->facts[0] = bounds;
    tdm_node_save(m, node, x);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

struct tdm_eager_value *tdm_mul_number(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"MulBackward0", false, tdm_map_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

struct tdm_eager_value *tdm_add_number(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"AddBackward0", false, pass};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

static void square_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0);
    struct tdm_eager_value *power = tdm_value_like(m, x), *twice = tdm_value_like(m, x);
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, twice);
    tdm_drop(m, power);
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_square(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"PowBackward0", false, square_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, x);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

/* Finishes a node that saves its own result. */
static struct tdm_eager_value *finish_saving(struct tdm_eager *m, struct tdm_node *node,
                                             struct tdm_eager_value *value)
{
    tdm_node_save(m, node, value);
    return tdm_node_finish(m, node, value);
}

struct tdm_eager_value *tdm_rsqrt(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"RsqrtBackward0", false, square_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return finish_saving(m, node, tdm_value_like(m, x));
}

static void layer_norm_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[TDM_MOST_SAVED];
    const uint32_t count = node->saved_count;
    for (uint32_t i = 0; i < count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    if (tdm_node_needs(node, 0))
        results[0] = tdm_value_like(m, grads[0]);
    for (uint32_t i = 1; i < 3; i++)
        if (tdm_node_needs(node, i))
            results[i] = tdm_value_new(m, 1, grads[0]->columns, node->edges[i].element_bytes);
    for (uint32_t i = 0; i < count; i++)
        tdm_drop(m, saved[i]);
}

static struct tdm_eager_value *layer_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                          struct tdm_eager_value *weight,
                                          struct tdm_eager_value *bias)
{
    static const struct tdm_eager_op op = {"NativeLayerNormBackward0", false, layer_norm_backward};
    struct tdm_eager_value *inputs[] = {x, weight, bias};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    struct tdm_eager_value *y = tdm_value_like(m, x);
    tdm_node_save(m, node, x);
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *facts = tdm_value_new(m, x->rows, 1, FP32);
        tdm_node_save(m, node, facts);
        tdm_drop(m, facts);
    }
    for (unsigned i = 1; i < 3; i++)
        if (inputs[i] != NULL)
            tdm_node_save(m, node, inputs[i]);
    return tdm_node_finish(m, node, y);
}

struct tdm_eager_value *tdm_layer_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *weight, struct tdm_eager_value *bias)
{
    if (!m->autocast)
        return layer_norm(m, x, weight, bias);
    struct tdm_eager_value *given[] = {x, weight, bias}, *wide[3];
    for (unsigned i = 0; i < 3; i++)
        wide[i] = given[i] == NULL ? NULL : tdm_cast(m, given[i], FP32);
    struct tdm_eager_value *y = layer_norm(m, wide[0], wide[1], wide[2]);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, wide[i]);
    return y;
}

/* 0.5 x (1 + tanh(c (x + 0.044715 x^3))), operation by operation: NewGELUActivation of
 * transformers' activations.py. */
static struct tdm_eager_value *gelu_new(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *half = tdm_mul_number(m, x);
    struct tdm_eager_value *cube = tdm_square(m, x);
    cube = tdm_replace(m, cube, tdm_mul_number(m, cube));
    cube = tdm_replace(m, cube, tdm_add(m, x, cube));
    cube = tdm_replace(m, cube, tdm_mul_number(m, cube));
    cube = tdm_replace(m, cube, tdm_tanh(m, cube));
    cube = tdm_replace(m, cube, tdm_add_number(m, cube));
    struct tdm_eager_value *y = tdm_mul(m, half, cube);
    tdm_drop(m, cube);
    tdm_drop(m, half);
    return y;
}

/* 0.5 x (1 + tanh(c x (1 + 0.044715 x x))), operation by operation: FastGELUActivation. */
static struct tdm_eager_value *gelu_fast(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *half = tdm_mul_number(m, x), *scaled = tdm_mul_number(m, x);
    struct tdm_eager_value *y = tdm_mul_number(m, x);
    y = tdm_replace(m, y, tdm_mul(m, y, x));
    y = tdm_replace(m, y, tdm_add_number(m, y));
    y = tdm_replace(m, y, tdm_mul(m, scaled, y));
    tdm_drop(m, scaled);
    y = tdm_replace(m, y, tdm_tanh(m, y));
    y = tdm_replace(m, y, tdm_add_number(m, y));
    y = tdm_replace(m, y, tdm_mul(m, half, y));
    tdm_drop(m, half);
    return y;
}

/* It saves its result. */
struct tdm_eager_value *tdm_relu(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"ReluBackward0", false, map_saved};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return finish_saving(m, node, tdm_value_like(m, x));
}

/* relu and the square of that: ReLUSquaredActivation. */
static struct tdm_eager_value *squared_relu(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_eager_value *positive = tdm_relu(m, x);
    struct tdm_eager_value *y = tdm_square(m, positive);
    tdm_drop(m, positive);
    return y;
}

struct tdm_eager_value *tdm_softplus(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"SoftplusBackward0", false, map_saved};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, x);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

struct tdm_eager_value *tdm_activate(struct tdm_eager *m, enum tdm_activation activation,
                                     struct tdm_eager_value *x)
{
    if (activation == TDM_ACTIVATION_GELU_NEW)
        return gelu_new(m, x);
    if (activation == TDM_ACTIVATION_GELU_FAST)
        return gelu_fast(m, x);
    if (activation == TDM_ACTIVATION_RELU)
        return tdm_relu(m, x);
    if (activation == TDM_ACTIVATION_RELU2)
        return squared_relu(m, x);
    static const struct tdm_eager_op ops[TDM_ACTIVATIONS] = {
        [TDM_ACTIVATION_SILU] = {"SiluBackward0", false, map_saved},
        [TDM_ACTIVATION_GELU_TANH] = {"GeluBackward0", false, map_saved},
        [TDM_ACTIVATION_GELU] = {"GeluBackward0", false, map_saved},
    };
    struct tdm_node *node = tdm_node_new(m, &ops[activation], &x, 1);
    tdm_node_save(m, node, x);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

struct tdm_eager_value *tdm_tanh(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"TanhBackward0", false, map_saved};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return finish_saving(m, node, tdm_value_like(m, x));
}

struct tdm_eager_value *tdm_sigmoid(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"SigmoidBackward0", false, map_saved};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return finish_saving(m, node, tdm_value_like(m, x));
}

static void softmax_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *result = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *product = tdm_value_like(m, grads[0]);
    tdm_drop(m, product);
    tdm_drop(m, result);
}

struct tdm_eager_value *tdm_softmax(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"SoftmaxBackward0", false, softmax_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return finish_saving(m, node, tdm_value_like(m, x));
}

/* ---- sums ---- */

struct tdm_eager_value *tdm_sum_to(struct tdm_eager *m, struct tdm_eager_value *value,
                                   uint64_t rows, uint64_t columns)
{
    struct tdm_eager_value *sum = tdm_value_new(m, rows, columns, value->element_bytes);
    uint64_t semaphores = 0, scratch = 0, outputs = tdm_value_elements(sum);
    uint64_t inputs = tdm_value_elements(value) / (outputs == 0 ? 1 : outputs);
    if (outputs == 1)
        scratch = tdm_total_sum_scratch(&m->gpu, inputs, &semaphores);
    else if (columns == value->columns)
        scratch = tdm_column_sum_scratch(&m->gpu, inputs, outputs, &semaphores);
    if (scratch > 0) {
        struct tdm_eager_value *staging = tdm_value_new(m, scratch, 1, 1);
        struct tdm_eager_value *flags = tdm_value_new(m, semaphores, 1, 1);
        tdm_drop(m, flags);
        tdm_drop(m, staging);
    }
    tdm_drop(m, value);
    return sum;
}

/* The gradient of a mean is spread over all elements that it covers. */
static void spread(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                   struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    results[0]->swapped = node->facts[0] != 0;
}

struct tdm_eager_value *tdm_row_mean(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"MeanBackward1", false, spread};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    if (node != NULL)
        node->facts[0] = x->swapped;
    if (m->means_save)
        tdm_node_save(m, node, x);
    return tdm_node_finish(m, node, tdm_value_new(m, x->rows, 1, x->element_bytes));
}

struct tdm_eager_value *tdm_mean(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"MeanBackward0", false, spread};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    if (m->means_save)
        tdm_node_save(m, node, x);
    return tdm_node_finish(m, node, tdm_sum_to(m, tdm_take(x), 1, 1));
}

/* The gradient of a sum is the same for all its elements: a view, or a copy if rows were summed. */
static void copy_rows(struct tdm_eager *m, struct tdm_node *node,
                      struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    if (edge->columns == grads[0]->columns)
        results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    else
        results[0] = tdm_value_view(m, grads[0]);
    results[0]->rows = edge->rows;
    results[0]->columns = edge->columns;
}

struct tdm_eager_value *tdm_row_sum(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows)
{
    static const struct tdm_eager_op op = {"SumBackward1", false, copy_rows};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    uint64_t columns = rows == x->rows ? 1 : x->columns;
    return tdm_node_finish(m, node, tdm_value_new(m, rows, columns, x->element_bytes));
}

/* ---- shapes ---- */

static struct tdm_eager_value *copy_plain(struct tdm_eager *m, const struct tdm_eager_value *x,
                                          uint64_t rows, uint64_t columns)
{
    return tdm_value_new(m, rows, columns, x->element_bytes);
}

static void reshape_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    if (grads[0]->swapped) {
        results[0] = copy_plain(m, grads[0], edge->rows, edge->columns);
        return;
    }
    results[0] = tdm_value_view(m, grads[0]);
    results[0]->rows = edge->rows;
    results[0]->columns = edge->columns;
}

struct tdm_eager_value *tdm_reshape(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows,
                                    uint64_t columns)
{
    static const struct tdm_eager_op op = {"ViewBackward0", false, reshape_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = x->swapped ? copy_plain(m, x, rows, columns) : tdm_value_view(m, x);
    y->rows = rows;
    y->columns = columns;
    return tdm_node_finish(m, node, y);
}

static void transpose_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    (void)node;
    results[0] = tdm_value_view(m, grads[0]);
    results[0]->swapped = !grads[0]->swapped;
}

struct tdm_eager_value *tdm_transpose(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"TransposeBackward0", false, transpose_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_view(m, x);
    y->swapped = !x->swapped;
    return tdm_node_finish(m, node, y);
}

static const struct tdm_eager_op clone_op = {"CloneBackward0", false, pass};

struct tdm_eager_value *tdm_clone(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct tdm_node *node = tdm_node_new(m, &clone_op, &x, 1);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

/* native_dropout: the mask is made before the result. */
struct tdm_eager_value *tdm_dropout(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"NativeDropoutBackward0", false, map_saved};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *mask = tdm_value_new(m, x->rows, x->columns, BOOL);
    struct tdm_eager_value *y = tdm_value_like(m, x);
    tdm_node_save(m, node, mask);
    tdm_drop(m, mask);
    return tdm_node_finish(m, node, y);
}

struct tdm_eager_value *tdm_contiguous(struct tdm_eager *m, struct tdm_eager_value *x)
{
    if (!x->swapped)
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(m, &clone_op, &x, 1);
    return tdm_node_finish(m, node, copy_plain(m, x, x->rows, x->columns));
}

/* Zeros of the whole shape, into which the gradient of the part is copied. */
static void slice_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
}

static struct tdm_eager_value *slice(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows,
                                     uint64_t columns)
{
    static const struct tdm_eager_op op = {"SliceBackward0", false, slice_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_view(m, x);
    y->rows = rows;
    y->columns = columns;
    return tdm_node_finish(m, node, y);
}

struct tdm_eager_value *tdm_rows(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows)
{
    return slice(m, x, rows, x->columns);
}

struct tdm_eager_value *tdm_columns(struct tdm_eager *m, struct tdm_eager_value *x,
                                    uint64_t columns)
{
    return slice(m, x, x->rows, columns);
}

/* The gradient is cropped, which is a copy (FunctionsManual.cpp constant_pad_nd_backward). */
struct tdm_eager_value *tdm_pad(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t columns)
{
    static const struct tdm_eager_op op = {"ConstantPadNdBackward0", false, slice_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return tdm_node_finish(m, node, tdm_value_new(m, x->rows, columns, x->element_bytes));
}

void tdm_cat_backward(struct tdm_eager *m, struct tdm_node *node,
                      struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    for (uint32_t i = 0; i < node->inputs; i++) {
        if (!tdm_node_needs(node, i))
            continue;
        results[i] = tdm_value_view(m, grads[0]);
        results[i]->rows = node->edges[i].rows;
        results[i]->columns = node->edges[i].columns;
    }
}

struct tdm_eager_value *tdm_cat_alone(struct tdm_eager *m, struct tdm_eager_value *x,
                                      uint16_t element_bytes)
{
    static const struct tdm_eager_op op = {"CatBackward0", false, tdm_cat_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return tdm_node_finish(m, node, tdm_value_new(m, x->rows, x->columns, element_bytes));
}

struct tdm_eager_value *tdm_cat_many(struct tdm_eager *m, struct tdm_eager_value *const *x,
                                     uint32_t count)
{
    static const struct tdm_eager_op op = {"CatBackward0", false, tdm_cat_backward};
    uint64_t columns = 0;
    for (uint32_t i = 0; i < count; i++)
        columns += x[i]->columns;
    struct tdm_node *node = tdm_node_new(m, &op, x, count);
    return tdm_node_finish(m, node, tdm_value_new(m, x[0]->rows, columns, x[0]->element_bytes));
}

struct tdm_eager_value *tdm_cat(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b)
{
    struct tdm_eager_value *both[] = {a, b};
    return tdm_cat_many(m, both, 2);
}

struct tdm_eager_value *tdm_rotate_half(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op negative = {"NegBackward0", false, tdm_map_backward},
                                     cat = {"CatBackward0", false, tdm_cat_backward};
    struct tdm_eager_value *first = slice(m, x, x->rows, x->columns / 2);
    struct tdm_eager_value *second = slice(m, x, x->rows, x->columns / 2);
    struct tdm_node *node = tdm_node_new(m, &negative, &second, 1);
    struct tdm_eager_value *negated = tdm_node_finish(m, node, tdm_value_like(m, second));
    struct tdm_eager_value *parts[] = {negated, first};
    node = tdm_node_new(m, &cat, parts, 2);
    struct tdm_eager_value *y =
        tdm_node_finish(m, node, tdm_value_new(m, x->rows, x->columns, x->element_bytes));
    tdm_drop(m, negated);
    tdm_drop(m, first);
    tdm_drop(m, second);
    return y;
}

static void split_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
}

void tdm_halves(struct tdm_eager *m, struct tdm_eager_value *x, struct tdm_eager_value **first,
                struct tdm_eager_value **second)
{
    static const struct tdm_eager_op op = {"SplitBackward0", false, split_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value **halves[] = {first, second};
    for (uint32_t i = 0; i < 2; i++) {
        *halves[i] = tdm_value_view(m, x);
        (*halves[i])->columns = x->columns / 2;
        tdm_node_output(m, node, i, *halves[i]);
    }
    tdm_node_done(m, node);
}

/* split of a product in parts: the gradients of all are joined. */
void tdm_split(struct tdm_eager *m, struct tdm_eager_value *x, const uint64_t *columns,
               uint32_t count, struct tdm_eager_value **parts)
{
    static const struct tdm_eager_op op = {"SplitBackward0", false, split_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    for (uint32_t i = 0; i < count; i++) {
        parts[i] = tdm_value_view(m, x);
        parts[i]->columns = columns[i];
        tdm_node_output(m, node, i, parts[i]);
    }
    tdm_node_done(m, node);
}

static void stretch_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
}

struct tdm_eager_value *tdm_stretch(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows,
                                    uint64_t columns)
{
    static const struct tdm_eager_op op = {"ExpandBackward0", false, stretch_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_view(m, x);
    y->rows = rows;
    y->columns = columns;
    return tdm_node_finish(m, node, y);
}

struct tdm_eager_value *tdm_add_in_place(struct tdm_eager *m, struct tdm_eager_value *x,
                                         struct tdm_eager_value *y)
{
    static const struct tdm_eager_op op = {"AddBackward0", false, pass};
    struct tdm_eager_value *inputs[] = {x, y};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    return tdm_node_finish(m, node, tdm_value_view(m, x));
}

static void repeat_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
}

static const struct tdm_eager_op expand_op = {"ExpandBackward0", false, repeat_backward};

struct tdm_eager_value *tdm_expand(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t times)
{
    struct tdm_node *node = tdm_node_new(m, &expand_op, &x, 1);
    struct tdm_eager_value *view = tdm_value_view(m, x);
    view->rows = tdm_size_mul(x->rows, times);
    return tdm_node_finish(m, node, view);
}

struct tdm_eager_value *tdm_repeat(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t times)
{
    if (times == 1)
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(m, &expand_op, &x, 1);
    return tdm_node_finish(
        m, node, tdm_value_new(m, tdm_size_mul(x->rows, times), x->columns, x->element_bytes));
}

/* ---- losses ---- */

enum { NLL_LOGITS, NLL_LABELS, NLL_WEIGHT };

static void nll_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[3];
    enum tdm_method_category before = m->category;
    (void)grads;
    for (uint32_t i = 0; i < 3; i++)
        saved[i] = tdm_node_saved(m, node, i);
    m->category = TDM_METHOD_LOGITS;
    results[0] = tdm_value_like(m, saved[NLL_LOGITS]);
    m->category = before;
    for (uint32_t i = 0; i < 3; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *tdm_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *logits,
                                          struct tdm_eager_value *labels)
{
    static const struct tdm_eager_op log_softmax = {"LogSoftmaxBackward0", false, map_saved},
                                     nll = {"NllLossBackward0", false, nll_backward};
    struct tdm_node *node = tdm_node_new(m, &log_softmax, &logits, 1);
    struct tdm_eager_value *logs = finish_saving(m, node, tdm_value_like(m, logits));
    node = tdm_node_new(m, &nll, &logs, 1);
    tdm_node_save(m, node, logs);
    tdm_node_save(m, node, labels);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, FP32),
                           *weight = tdm_value_new(m, 1, 1, FP32);
    tdm_node_save(m, node, weight);
    tdm_node_finish(m, node, loss);
    tdm_drop(m, weight);
    tdm_drop(m, logs);
    return loss;
}
