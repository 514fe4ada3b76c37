/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OFT and BOFT: the input of a projection is rotated by blocks before the frozen weight. OFT's
 * blocks are four terms of Neumann's series of Cayley's transform. BOFT makes a matrix of inputs x
 * inputs of its blocks, and multiplies it by a permutation, for each product; without its CUDA
 * extension, which then has one butterfly factor. Sources: peft 0.21, tuners/oft/layer.py
 * (OFTRotationModule, Linear.forward), tuners/boft/layer.py (cayley_batch, Linear.forward).
 */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

/* ---- OFT ---- */

static void rotate_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[2] = {0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    tdm_cublas(m);
    if (tdm_node_needs(node, 1))
        results[1] =
            tdm_value_new(m, node->edges[1].rows, node->edges[1].columns, grads[0]->element_bytes);
    if (tdm_node_needs(node, 0)) { /* by blocks, then by tokens again */
        struct tdm_eager_value *blocks = tdm_value_like(m, grads[0]);
        results[0] = tdm_value_like(m, grads[0]);
        tdm_drop(m, blocks);
    }
    tdm_drop(m, saved[0]);
    tdm_drop(m, saved[1]);
}

/* x times blocks: einsum, whose result lies block by block, and a copy of it. *by_blocks lives as
 * long as its caller's frame. */
static struct tdm_eager_value *rotate(struct tdm_eager *m, struct tdm_eager_value *x,
                                      struct tdm_eager_value *blocks,
                                      struct tdm_eager_value **by_blocks)
{
    static const struct tdm_eager_op op = {"BmmBackward0", false, rotate_backward};
    struct tdm_eager_value *inputs[] = {tdm_autocast(m, x), tdm_autocast(m, blocks)};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (tdm_node_needs(node, 1))
        tdm_node_save(m, node, inputs[0]);
    if (tdm_node_needs(node, 0))
        tdm_node_save(m, node, inputs[1]);
    *by_blocks = tdm_value_like(m, inputs[0]);
    tdm_cublas(m);
    struct tdm_eager_value *y = tdm_value_like(m, inputs[0]);
    y = tdm_node_finish(m, node, y);
    tdm_drop(m, inputs[0]);
    tdm_drop(m, inputs[1]);
    return y;
}

static void index_put_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    results[0] =
        tdm_value_new(m, node->edges[0].rows, node->edges[0].columns, grads[0]->element_bytes);
}

/* Triangles in zeros, less their transposes. `block`: rows of each. */
static struct tdm_eager_value *skew(struct tdm_eager *m, struct tdm_eager_value *triangles,
                                    uint64_t block)
{
    static const struct tdm_eager_op op = {"IndexPutBackward0", false, index_put_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &triangles, 1);
    struct tdm_eager_value *full = tdm_node_finish(
        m, node, tdm_value_new(m, triangles->rows, block * block, triangles->element_bytes));
    return tdm_replace(m, full, tdm_sub(m, full, full));
}

static struct tdm_eager_value *block_product(struct tdm_eager *m, struct tdm_eager_value *a,
                                             struct tdm_eager_value *b)
{
    struct tdm_eager_value *left = tdm_autocast(m, a), *right = tdm_autocast(m, b);
    struct tdm_eager_value *y = tdm_bmm(m, left, right, a->rows, a->columns);
    tdm_drop(m, left);
    tdm_drop(m, right);
    return y;
}

/* 1 + 2 Q + 2 Q^2 + 2 Q^3 + Q^4 (num_cayley_neumann_terms=5). */
static struct tdm_eager_value *cayley_neumann(struct tdm_eager *m, struct tdm_eager_value *q)
{
    struct tdm_eager_value *sum = tdm_value_like(m, q), *power = tdm_take(q);
    sum = tdm_replace(m, sum, tdm_add_in_place(m, sum, q));
    for (unsigned i = 2; i <= 4; i++) {
        power = tdm_replace(m, power, block_product(m, power, q));
        sum = tdm_replace(m, sum, tdm_add_in_place(m, sum, power));
    }
    tdm_drop(m, power);
    return sum;
}

static struct tdm_eager_value *oft_input(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         struct tdm_eager_value *triangles,
                                         struct tdm_eager_value *x)
{
    uint64_t block = 1;
    while (block * (block - 1) / 2 < triangles->columns)
        block++;
    struct tdm_eager_value *wide = tdm_cast(m, x, triangles->element_bytes), *by_blocks;
    struct tdm_eager_value *q = skew(m, triangles, block);
    struct tdm_eager_value *blocks = cayley_neumann(m, q);
    tdm_drop(m, q);
    if (t->settings.adapter_sizes.oft_shared)
        blocks = tdm_replace(m, blocks, tdm_repeat(m, blocks, x->columns / block));
    struct tdm_eager_value *y = rotate(m, wide, blocks, &by_blocks);
    y = tdm_replace(m, y, tdm_cast(m, y, wide->element_bytes));
    tdm_drop(m, by_blocks);
    tdm_drop(m, blocks);
    tdm_drop(m, wide);
    return y;
}

/* ---- BOFT ---- */

#define SOLVE_SAVED 4u

static void solve_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[SOLVE_SAVED];
    for (uint32_t i = 0; i < SOLVE_SAVED; i++)
        saved[i] = tdm_node_saved(m, node, i);
    for (uint32_t i = 0; i < 2; i++)
        results[i] = tdm_value_like(m, grads[0]);
    for (uint32_t i = 0; i < SOLVE_SAVED; i++)
        tdm_drop(m, saved[i]);
}

/* Cayley's transform of small blocks by linalg.solve, which saves a side, its factors, their pivots
 * and its result. */
static struct tdm_eager_value *cayley(struct tdm_eager *m, struct tdm_eager_value *data)
{
    static const struct tdm_eager_op op = {"LinalgSolveExBackward0", false, solve_backward};
    struct tdm_eager_value *difference = tdm_sub(m, data, data);
    struct tdm_eager_value *q = tdm_mul_number(m, difference);
    tdm_drop(m, difference);
    struct tdm_eager_value *sides[] = {tdm_add_number(m, q), tdm_add_number(m, q)};
    tdm_drop(m, q);
    struct tdm_node *node = tdm_node_new(m, &op, sides, 2);
    struct tdm_eager_value *factors = tdm_value_like(m, sides[0]), *y = tdm_value_like(m, sides[0]);
    struct tdm_eager_value *pivots = tdm_value_new(m, data->rows, 1, FP32); /* int32 */
    struct tdm_eager_value *saved[] = {sides[0], factors, pivots, y};
    for (unsigned i = 0; i < SOLVE_SAVED; i++)
        tdm_node_save(m, node, saved[i]);
    tdm_drop(m, factors);
    tdm_drop(m, pivots);
    tdm_drop(m, sides[0]);
    tdm_drop(m, sides[1]);
    return tdm_node_finish(m, node, y);
}

static void blocks_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    results[0] =
        tdm_value_new(m, node->edges[0].rows, node->edges[0].columns, grads[0]->element_bytes);
}

/* torch.block_diag. */
static struct tdm_eager_value *block_diagonal(struct tdm_eager *m, struct tdm_eager_value *blocks)
{
    static const struct tdm_eager_op op = {"BlockDiagBackward0", false, blocks_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &blocks, 1);
    return tdm_node_finish(m, node,
                           tdm_value_new(m, blocks->rows, blocks->rows, blocks->element_bytes));
}

static struct tdm_eager_value *boft(struct tdm_eager *m, const struct tdm_torch_model *t,
                                    const struct torch_layer *layer, enum tdm_projection p,
                                    struct tdm_eager_value *x)
{
    struct tdm_eager_value *weight = layer->weight[p], *bias = layer->bias[p];
    const uint64_t inputs = weight->columns;
    const uint16_t bytes = x->element_bytes;
    struct tdm_eager_value *identity = tdm_value_new(m, inputs, inputs, bytes),
                           *ones = tdm_value_new(m, 1, weight->rows, bytes);
    struct tdm_eager_value *blocks = cayley(m, layer->down[p]);
    struct tdm_eager_value *diagonal = block_diagonal(m, blocks);
    struct tdm_eager_value *order = tdm_cast(m, layer->permutation[p], bytes);
    diagonal = tdm_replace(m, diagonal, tdm_cast(m, diagonal, bytes));
    struct tdm_eager_value *batch = tdm_bmm(m, diagonal, order, inputs, inputs);
    batch = tdm_replace(m, batch, tdm_bmm(m, order, batch, inputs, inputs));
    struct tdm_eager_value *rotation = tdm_bmm(m, batch, identity, inputs, inputs);
    tdm_drop(m, identity);
    struct tdm_eager_value *scale = tdm_mul(m, layer->magnitude[p], ones);
    tdm_drop(m, ones);
    struct tdm_eager_value *turned = tdm_bmm(m, x, rotation, x->rows, inputs);
    struct tdm_eager_value *y = tdm_torch_linear(m, t, turned, weight, bias, weight->module);
    if (bias != NULL)
        y = tdm_replace(m, y, tdm_sub(m, y, bias));
    y = tdm_replace(m, y, tdm_mul(m, y, scale));
    if (bias != NULL)
        y = tdm_replace(m, y, tdm_add(m, y, bias));
    y = tdm_replace(m, y, tdm_cast(m, y, bytes));
    struct tdm_eager_value *locals[] = {blocks, order, diagonal, batch, rotation, scale, turned};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return y;
}

struct tdm_eager_value *tdm_torch_rotated(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer, enum tdm_projection p,
                                          struct tdm_eager_value *x)
{
    struct tdm_eager_value *weight = layer->weight[p];
    tdm_label(m, "lora");
    if (t->settings.adapter == TDM_ADAPTER_BOFT)
        return boft(m, t, layer, p, x);
    struct tdm_eager_value *wide = oft_input(m, t, layer->down[p], x);
    struct tdm_eager_value *input = tdm_cast(m, wide, x->element_bytes);
    struct tdm_eager_value *y =
        tdm_torch_linear(m, t, input, weight, layer->bias[p], weight->module);
    tdm_drop(m, input);
    tdm_drop(m, wide);
    return y;
}
