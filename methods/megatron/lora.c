/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LoRA as in Megatron-Bridge: all weights are frozen, and scale * (x A) B is added to a product
 * x W. Tensor parallelism divides A and B. This file has the adapters and the products with frozen
 * weights. Sources: megatron/bridge/peft/{lora,lora_layers,utils,recompute}.py;
 * megatron/core/tensor_parallel/{layers, mappings}.py;
 * transformer_engine/pytorch/module/{layernorm_linear,linear}.py.
 */
#include "methods/megatron/parts.h"

#include "methods/eager/ops.h"

/* A new tensor of the input's shape. */
static void like_input(struct tdm_eager *m, struct tdm_node *node,
                       struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    (void)grads;
    results[0] = tdm_value_new(m, edge->rows, edge->columns, BF16);
}

/* ---- the adapter ---- */

enum { INPUT, FACTOR };

/* The product is Megatron-Core's, not Transformer Engine's. With input re-gather, x is this rank's
 * part. */
static void factor_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    const struct tdm_edge *weight = &node->edges[FACTOR];
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0);
    bool gathers = node->facts[0] != 0;
    if (gathers)
        megatron_gather(t);
    struct tdm_eager_value *gradient = tdm_value_new(m, grads[0]->rows, x->columns, BF16);
    tdm_cublas(m);
    results[INPUT] = gathers ? tdm_value_like(m, x) : tdm_take(gradient);
    if (t->set.fused_gradients)
        results[FACTOR] = tdm_value_view(m, megatron_dummy(t, weight->rows, weight->columns));
    else
        results[FACTOR] = tdm_value_new(m, weight->rows, weight->columns, BF16);
    tdm_drop(m, gradient);
    tdm_drop(m, x);
}

static struct tdm_eager_value *multiply(struct tdm_megatron *t, struct tdm_eager_value *x,
                                        struct tdm_eager_value *factor, bool gathers)
{
    static const struct tdm_eager_op op = {
        "LinearWithGradAccumulationAndAsyncCommunicationBackward", false, factor_backward};
    struct tdm_eager_value *inputs[] = {x, factor};
    struct tdm_node *node = tdm_node_new(t->m, &op, inputs, 2);
    if (node != NULL)
        node->facts[0] = gathers;
    tdm_node_save(t->m, node, x);
    if (gathers)
        megatron_gather(t);
    struct tdm_eager_value *y =
        tdm_value_new(t->m, gathers ? t->rows : x->rows, factor->rows, BF16);
    tdm_cublas(t->m);
    return megatron_finish(t, node, y);
}

/* Columns of all tensor-parallel ranks: gathered by rank, then joined side by side. */
static struct tdm_eager_value *gather_columns(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_GatherFromModelParallelRegionBackward", false,
                                           like_input};
    uint64_t ranks = t->layout.tensor;
    if (ranks == 1)
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    struct tdm_eager_value *came = tdm_value_new(t->m, ranks * x->rows, x->columns, BF16);
    struct tdm_eager_value *whole = tdm_value_new(t->m, x->rows, ranks * x->columns, BF16);
    tdm_drop(t->m, came);
    return megatron_finish(t, node, whole);
}

/* This rank's rows as a view; their gradients are gathered. */
static struct tdm_eager_value *part_of_rows(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_ScatterToSequenceParallelRegionBackward", false,
                                           like_input};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    struct tdm_eager_value *part = tdm_value_view(t->m, x);
    part->rows = t->part_rows;
    return megatron_finish(t, node, part);
}

/* base + scale * (x A) B. Takes ownership of `base`. A row-parallel module's B returns parts of the
 * columns, which are gathered. */
static struct tdm_eager_value *add_adapter(struct tdm_megatron *t, struct tdm_eager_value *x,
                                           struct tdm_eager_value *base,
                                           const struct megatron_adapter *adapter, bool row)
{
    struct tdm_eager *m = t->m;
    const char *name = m->label.name;
    if (adapter->in == NULL)
        return base;
    tdm_label(m, "adapter");
    struct tdm_eager_value *y = multiply(t, x, adapter->in, adapter->regathers);
    if (!row)
        y = tdm_replace(m, y, gather_columns(t, y));
    y = tdm_replace(m, y, multiply(t, y, adapter->out, false));
    if (row)
        y = tdm_replace(m, y, gather_columns(t, y));
    if (row && t->sequence_parallel)
        y = tdm_replace(m, y, part_of_rows(t, y));
    y = tdm_replace(m, y, tdm_mul_number(m, y));
    struct tdm_eager_value *sum = tdm_add(m, base, y);
    tdm_drop(m, base);
    tdm_drop(m, y);
    tdm_label(m, name);
    return sum;
}

/* ---- products with frozen weights ---- */

enum { X, NORM, NORM_BIAS };
enum { Y, NORMED };

static void norm_linear_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *saved[4] = {0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    const struct tdm_eager_value *x = saved[0];
    struct tdm_eager_value *product = tdm_value_new(m, grads[Y]->rows, x->columns, BF16);
    struct tdm_eager_value *gradient =
        t->sequence_parallel ? tdm_value_like(m, x) : tdm_take(product);
    megatron_product(t);
    /* Adds the gradient of the normed input itself. That of a gathered input is not added here. */
    if (grads[NORMED] != NULL && grads[NORMED]->rows == x->rows)
        gradient = tdm_replace(m, gradient, tdm_value_like(m, x));
    results[X] = megatron_norm_gradients(t, node, x, results);
    tdm_drop(m, gradient);
    tdm_drop(m, product);
    for (uint32_t i = 0; i < 4; i++)
        tdm_drop(m, saved[i]);
}

/* The function saves the normed input although its weight is frozen, if an adapter uses it too. */
struct tdm_eager_value *
megatron_frozen_norm_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                            struct tdm_eager_value *norm, struct tdm_eager_value *norm_bias,
                            struct tdm_eager_value *weight, struct tdm_eager_value *bias,
                            const struct megatron_adapter *adapter)
{
    static const struct tdm_eager_op op = {"_LayerNormLinearBackward", false, norm_linear_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, norm, norm_bias, weight, bias};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 5);
    bool adapted = adapter->in != NULL;
    struct tdm_eager_value *normed = tdm_value_like(m, x), *whole = NULL, *handed = NULL;
    struct tdm_eager_value *mean = norm_bias != NULL ? tdm_value_new(m, x->rows, 1, FP32) : NULL;
    struct tdm_eager_value *scale = tdm_value_new(m, x->rows, 1, FP32);
    if (t->sequence_parallel)
        whole = tdm_value_new(m, t->rows, x->columns, BF16);
    struct tdm_eager_value *y =
        tdm_value_new(m, whole != NULL ? t->rows : x->rows, weight->rows, BF16);
    megatron_product(t);
    if (adapted)
        handed = whole != NULL && !adapter->regathers ? tdm_take(whole) : tdm_value_view(m, normed);
    tdm_drop(m, whole);
    tdm_node_save(m, node, x);
    tdm_node_save(m, node, scale);
    if (mean != NULL)
        tdm_node_save(m, node, mean);
    if (adapted)
        tdm_node_save(m, node, normed);
    tdm_drop(m, mean);
    tdm_drop(m, scale);
    tdm_drop(m, normed);
    if (adapted)
        tdm_node_output(m, node, NORMED, handed);
    megatron_finish(t, node, y);
    y = add_adapter(t, handed, y, adapter, false);
    tdm_drop(m, handed);
    return y;
}

static void row_linear_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *whole = NULL;
    if (t->sequence_parallel)
        whole = tdm_value_new(m, edge->rows, grads[0]->columns, BF16);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, BF16);
    megatron_product(t);
    tdm_drop(m, whole);
}

struct tdm_eager_value *megatron_frozen_row_linear(struct tdm_megatron *t,
                                                   struct tdm_eager_value *x,
                                                   struct tdm_eager_value *weight,
                                                   const struct megatron_adapter *adapter)
{
    static const struct tdm_eager_op op = {"_LinearBackward", false, row_linear_backward};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_new(t->m, x->rows, weight->rows, BF16);
    megatron_product(t);
    if (t->sequence_parallel)
        y = tdm_replace(t->m, y, tdm_value_new(t->m, t->part_rows, weight->rows, BF16));
    return add_adapter(t, x, megatron_finish(t, node, y), adapter, true);
}

/* ---- the head ---- */

static struct tdm_eager_value *gather_rows(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_GatherFromSequenceParallelRegionBackward", false,
                                           like_input};
    if (!t->sequence_parallel)
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    return megatron_finish(t, node, tdm_value_new(t->m, t->rows, x->columns, BF16));
}

static void head_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    like_input(m, node, grads, results);
    tdm_cublas(m);
}

/* It saves only its weight, and gathers into a temporary buffer. */
struct tdm_eager_value *megatron_frozen_head(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"LinearWithFrozenWeightBackward", false, head_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *whole = gather_rows(t, x);
    struct tdm_node *node = tdm_node_new(m, &op, &whole, 1);
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *logits = tdm_value_new(m, t->rows, t->vocabulary, BF16);
    m->category = TDM_METHOD_WORKSPACE;
    tdm_cublas(m);
    megatron_finish(t, node, logits);
    tdm_drop(m, whole);
    return logits;
}
