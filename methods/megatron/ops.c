/* SPDX-License-Identifier: Apache-2.0 */
/* Transformer Engine's modules and Megatron's fused functions: what they save and allocate.
 * Sources: transformer_engine/pytorch/module/{layernorm_linear,linear,base}.py,
 * csrc/extensions/normalization.cpp;
 * megatron/core/fusions/{fused_bias_swiglu,fused_bias_gelu,fused_bias_dropout}.py. */
#include "methods/megatron/parts.h"

#include <stdlib.h>

#define PRODUCT_WORKSPACE_BYTES ((UINT64_C(32) << 20) + 1024) /* from Hopper on */
#define PRODUCT_WORKSPACE_BEFORE_BYTES (UINT64_C(4) << 20)

struct tdm_eager_value *megatron_keep(struct tdm_eager *m, struct megatron_kept *kept,
                                      struct tdm_eager_value *value)
{
    if (kept->count == kept->capacity) {
        uint32_t capacity = kept->capacity == 0 ? 16 : 2 * kept->capacity;
        struct tdm_eager_value **values =
            realloc(kept->values, capacity * sizeof(struct tdm_eager_value *));
        if (values == NULL)
            tdm_eager_no_memory(m);
        kept->values = values;
        kept->capacity = capacity;
    }
    kept->values[kept->count++] = value;
    return value;
}

void megatron_drop_all(struct tdm_eager *m, struct megatron_kept *kept)
{
    while (kept->count > 0)
        tdm_drop(m, kept->values[--kept->count]);
    free(kept->values);
    *kept = (struct megatron_kept){.count = 0};
}

struct tdm_eager_value *megatron_finish(struct tdm_megatron *t, struct tdm_node *node,
                                        struct tdm_eager_value *value)
{
    if (node != NULL)
        node->context = t;
    return tdm_node_finish(t->m, node, value);
}

/* The first product allocates the workspace, which all products share. */
static struct tdm_eager_value *workspace(struct tdm_megatron *t)
{
    enum tdm_method_category before = t->m->category;
    t->m->category = TDM_METHOD_WORKSPACE;
    struct tdm_eager_value *made = tdm_value_new(
        t->m, t->old_card ? PRODUCT_WORKSPACE_BEFORE_BYTES : PRODUCT_WORKSPACE_BYTES, 1, 1);
    t->m->category = before;
    return made;
}

void megatron_product(struct tdm_megatron *t)
{
    if (t->workspace == NULL)
        t->workspace = workspace(t);
}

/* cpp_extensions/gemm.py get_cublas_workspace(grouped_gemm=True). */
void megatron_grouped_product(struct tdm_megatron *t)
{
    for (unsigned i = 0;
         i < MEGATRON_STREAMS && t->grouped_workspaces[MEGATRON_STREAMS - 1] == NULL; i++)
        t->grouped_workspaces[i] = workspace(t);
}

struct tdm_eager_value *megatron_dummy(struct tdm_megatron *t, uint64_t rows, uint64_t columns)
{
    enum tdm_method_category before = t->m->category;
    for (uint32_t i = 0; i < t->dummy_count; i++)
        if (t->dummies[i]->rows == rows && t->dummies[i]->columns == columns)
            return t->dummies[i];
    t->m->category = TDM_METHOD_GRADIENTS;
    struct tdm_eager_value *dummy = tdm_value_new(t->m, rows, columns, BF16);
    t->m->category = before;
    if (t->dummy_count < MOST_DUMMIES)
        t->dummies[t->dummy_count++] = dummy;
    return dummy;
}

struct tdm_eager_value *megatron_norm_gradients(struct tdm_megatron *t, const struct tdm_node *node,
                                                const struct tdm_eager_value *x,
                                                struct tdm_eager_value **results)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *dx = tdm_value_like(m, x);
    uint32_t weights = tdm_node_needs(node, 2) ? 2 : 1;
    for (uint32_t i = 1; i <= weights; i++)
        results[i] = tdm_value_new(m, 1, x->columns, BF16);
    tdm_drop(m, tdm_value_new(m, weights * (uint64_t)m->gpu.multiprocessors, x->columns, FP32));
    return dx;
}

enum { X, NORM, NORM_BIAS, WEIGHT, BIAS };
enum { SAVED_X, SAVED_NORMED, SAVED_SCALE, SAVED_MEAN };

static void norm_linear_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *saved[4] = {0}, *whole = NULL, *scattered = NULL;
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    const struct tdm_eager_value *x = saved[SAVED_X];
    if (t->sequence_parallel)
        whole = tdm_value_new(m, grads[0]->rows, x->columns, BF16);
    struct tdm_eager_value *gradient = tdm_value_new(m, grads[0]->rows, x->columns, BF16);
    if (t->sequence_parallel)
        scattered = tdm_value_like(m, x);
    if (tdm_node_needs(node, WEIGHT))
        results[WEIGHT] = tdm_value_new(m, node->facts[0], node->facts[1], BF16);
    if (tdm_node_needs(node, BIAS))
        results[BIAS] = tdm_value_new(m, 1, node->facts[0], BF16);
    megatron_product(t);
    tdm_value_vacate(m, saved[SAVED_NORMED]);
    tdm_drop(m, whole);
    results[X] = megatron_norm_gradients(t, node, x, results);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[0], node->facts[1]);
    tdm_drop(m, gradient);
    tdm_drop(m, scattered);
    for (uint32_t i = 0; i < 4; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *megatron_norm_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                             struct tdm_eager_value *norm,
                                             struct tdm_eager_value *norm_bias,
                                             struct tdm_eager_value *weight,
                                             struct tdm_eager_value *bias,
                                             const struct megatron_adapter *adapter)
{
    if (t->lora_rank > 0)
        return megatron_frozen_norm_linear(t, x, norm, norm_bias, weight, bias, adapter);
    if (megatron_is_float8(weight))
        return megatron_float8_norm_linear(t, x, norm, norm_bias, weight, bias);
    static const struct tdm_eager_op op = {"_LayerNormLinearBackward", false, norm_linear_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, norm, norm_bias, t->set.fused_gradients ? NULL : weight,
                                        bias};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 5);
    struct tdm_eager_value *normed = tdm_value_like(m, x), *whole = NULL;
    struct tdm_eager_value *mean = norm_bias != NULL ? tdm_value_new(m, x->rows, 1, FP32) : NULL;
    struct tdm_eager_value *scale = tdm_value_new(m, x->rows, 1, FP32);
    uint64_t rows = t->sequence_parallel ? t->rows : x->rows;
    if (t->sequence_parallel)
        whole = tdm_value_new(m, rows, x->columns, BF16);
    struct tdm_eager_value *y = tdm_value_new(m, rows, weight->rows, BF16);
    megatron_product(t);
    tdm_drop(m, whole);
    if (node != NULL) {
        node->facts[0] = weight->rows;
        node->facts[1] = weight->columns;
    }
    tdm_node_save(m, node, x);
    tdm_node_save(m, node, normed);
    tdm_node_save(m, node, scale);
    if (mean != NULL)
        tdm_node_save(m, node, mean);
    tdm_drop(m, mean);
    tdm_drop(m, scale);
    tdm_drop(m, normed);
    return megatron_finish(t, node, y);
}

static void row_linear_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *whole = NULL;
    if (t->sequence_parallel)
        whole = tdm_value_new(m, x->rows, grads[0]->columns, BF16);
    results[0] = tdm_value_like(m, x);
    megatron_product(t);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_new(m, node->facts[0], node->facts[1], BF16);
    tdm_drop(m, whole);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[0], node->facts[1]);
    tdm_drop(m, x);
}

struct tdm_eager_value *megatron_row_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                            struct tdm_eager_value *weight,
                                            const struct megatron_adapter *adapter)
{
    if (t->lora_rank > 0)
        return megatron_frozen_row_linear(t, x, weight, adapter);
    if (megatron_is_float8(weight))
        return megatron_float8_row_linear(t, x, weight);
    static const struct tdm_eager_op op = {"_LinearBackward", false, row_linear_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, t->set.fused_gradients ? NULL : weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (node != NULL) {
        node->facts[0] = weight->rows;
        node->facts[1] = weight->columns;
    }
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, weight->rows, BF16);
    megatron_product(t);
    if (t->sequence_parallel) {
        struct tdm_eager_value *part = tdm_value_new(m, t->part_rows, weight->rows, BF16);
        tdm_drop(m, y);
        y = part;
    }
    tdm_node_save(m, node, x);
    return megatron_finish(t, node, y);
}

enum { LINEAR_ROWS, LINEAR_COLUMNS, LINEAR_GATHERS };

/* As row_linear_backward, but the gradient of the whole input is made, then reduced to a part. */
static void linear_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *whole = NULL;
    bool gathers = node->facts[LINEAR_GATHERS] != 0;
    if (gathers)
        whole = tdm_value_new(m, grads[0]->rows, x->columns, BF16);
    struct tdm_eager_value *gradient = tdm_value_new(m, grads[0]->rows, x->columns, BF16);
    results[0] = gathers ? tdm_value_like(m, x) : tdm_take(gradient);
    megatron_product(t);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_new(m, node->facts[LINEAR_ROWS], node->facts[LINEAR_COLUMNS], BF16);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[LINEAR_ROWS], node->facts[LINEAR_COLUMNS]);
    tdm_drop(m, gradient);
    tdm_drop(m, whole);
    tdm_drop(m, x);
}

struct tdm_eager_value *megatron_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                        struct tdm_eager_value *weight, bool gathers)
{
    static const struct tdm_eager_op op = {"_LinearBackward", false, linear_backward};
    gathers = gathers && t->sequence_parallel;
    if (megatron_is_float8(weight))
        return megatron_float8_linear(t, x, weight, gathers);
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, t->set.fused_gradients ? NULL : weight}, *whole = NULL;
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (node != NULL) {
        node->facts[LINEAR_ROWS] = weight->rows;
        node->facts[LINEAR_COLUMNS] = weight->columns;
        node->facts[LINEAR_GATHERS] = gathers;
    }
    if (gathers)
        whole = tdm_value_new(m, t->rows, x->columns, BF16);
    struct tdm_eager_value *y = tdm_value_new(m, gathers ? t->rows : x->rows, weight->rows, BF16);
    megatron_product(t);
    tdm_drop(m, whole);
    tdm_node_save(m, node, x);
    return megatron_finish(t, node, y);
}

static void norm_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[3] = {0};
    (void)grads;
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    results[X] = megatron_norm_gradients(node->context, node, saved[0], results);
    for (uint32_t i = 0; i < 3; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *megatron_norm(struct tdm_megatron *t, struct tdm_eager_value *x,
                                      struct tdm_eager_value *norm,
                                      struct tdm_eager_value *norm_bias)
{
    static const struct tdm_eager_op op = {"NormBackward", false, norm_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, norm, norm_bias};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    struct tdm_eager_value *y = tdm_value_like(m, x);
    tdm_node_save(m, node, x);
    for (unsigned i = 0; i < (norm_bias != NULL ? 2 : 1); i++) {
        struct tdm_eager_value *facts = tdm_value_new(m, x->rows, 1, FP32);
        tdm_node_save(m, node, facts);
        tdm_drop(m, facts);
    }
    return megatron_finish(t, node, y);
}

static void activation_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0);
    (void)grads;
    results[0] = tdm_value_like(m, x);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_take(results[0]); /* the engine sums it over the rows */
    tdm_drop(m, x);
}

struct tdm_eager_value *megatron_activation(struct tdm_megatron *t, struct tdm_eager_value *x,
                                            struct tdm_eager_value *bias)
{
    static const struct tdm_eager_op op = {"BiasActivationBackward", false, activation_backward};
    struct tdm_eager_value *inputs[] = {x, bias};
    struct tdm_node *node = tdm_node_new(t->m, &op, inputs, 2);
    uint64_t columns = t->set.gelu_mlp ? x->columns : x->columns / 2;
    tdm_node_save(t->m, node, x);
    return megatron_finish(t, node, tdm_value_new(t->m, x->rows, columns, BF16));
}

/* Gradients of x, its bias and the residual. */
static void add_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *mask = node->saved_count > 0 ? tdm_node_saved(m, node, 0) : NULL;
    results[0] = mask != NULL ? tdm_value_like(m, grads[0]) : tdm_take(grads[0]);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_new(m, 1, grads[0]->columns, BF16);
    if (tdm_node_needs(node, 2))
        results[2] = tdm_take(grads[0]);
    tdm_drop(m, mask);
}

static void save_mask(struct tdm_megatron *t, struct tdm_node *node,
                      const struct tdm_eager_value *x)
{
    if (t->set.dropout == 0)
        return;
    struct tdm_eager_value *mask = tdm_value_new(t->m, x->rows, x->columns, BOOL);
    tdm_node_save(t->m, node, mask);
    tdm_drop(t->m, mask);
}

struct tdm_eager_value *megatron_add(struct tdm_megatron *t, struct tdm_eager_value *x,
                                     struct tdm_eager_value *bias, struct tdm_eager_value *residual)
{
    static const struct tdm_eager_op op = {"BiasDropoutAddBackward", false, add_backward};
    struct tdm_eager_value *inputs[] = {x, bias, residual};
    struct tdm_node *node = tdm_node_new(t->m, &op, inputs, 3);
    struct tdm_eager_value *y = tdm_value_like(t->m, x);
    save_mask(t, node, x);
    return megatron_finish(t, node, y);
}

struct tdm_eager_value *megatron_dropout(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"NativeDropoutBackward0", false, add_backward};
    if (t->set.dropout == 0)
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_like(t->m, x);
    save_mask(t, node, x);
    return megatron_finish(t, node, y);
}

static void like_edge(struct tdm_eager *m, struct tdm_node *node,
                      struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    (void)grads;
    results[0] = tdm_value_new(m, edge->rows, edge->columns, BF16);
}

struct tdm_eager_value *megatron_scatter(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_ReduceScatterToSequenceParallelRegionBackward", false,
                                           like_edge};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    return megatron_finish(t, node, tdm_value_new(t->m, t->part_rows, x->columns, BF16));
}

struct tdm_eager_value *megatron_gathered(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_GatherFromSequenceParallelRegionBackward", false,
                                           like_edge};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    return megatron_finish(t, node, tdm_value_new(t->m, t->rows, x->columns, BF16));
}

static void both(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                 struct tdm_eager_value **results)
{
    (void)m;
    for (uint32_t i = 0; i < 2; i++)
        if (tdm_node_needs(node, i))
            results[i] = tdm_take(grads[0]);
}

struct tdm_eager_value *megatron_sum(struct tdm_megatron *t, struct tdm_eager_value *a,
                                     struct tdm_eager_value *b)
{
    static const struct tdm_eager_op op = {"AddBackward0", false, both};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(t->m, &op, inputs, 2);
    return megatron_finish(t, node, tdm_value_like(t->m, a));
}

/* ---- values that are made again ---- */

bool megatron_recomputes(const struct tdm_megatron *t, enum tdm_megatron_module module)
{
    return t->set.recompute == TDM_RECOMPUTE_SELECTIVE && (t->set.modules >> module & 1) != 0;
}

struct tdm_eager_value *megatron_copy(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"CloneBackward0", false, like_edge};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    return megatron_finish(t, node, tdm_value_new(t->m, x->rows, x->columns, BF16));
}
