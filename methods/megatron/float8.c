/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transformer Engine's modules with products of 8 bits. Megatron tells them which micro-batch is
 * the first of a step, so each keeps its weight in 8 bits beside the bf16 one; with
 * fp8_param_gather there is no bf16 one. Gradients, outputs and what norms save stay in bf16.
 * Sources: TransformerEngine 2.11 pytorch/module/{layernorm_linear,linear,base}.py
 * (get_weight_workspace, grad_output_preprocess), distributed.py (_all_gather_fp8),
 * csrc/extensions/normalization.cpp (rmsnorm_fwd); Megatron-LM d98e8a64
 * core/extensions/transformer_engine.py, transformer/attention.py (set_save_original_input).
 */
#include "methods/megatron/parts.h"

#include <stdlib.h>

#define BOTH (TDM_TE_ROWS | TDM_TE_COLUMNS)

/* ---- weights ---- */

void megatron_add_cast(struct tdm_megatron *t, struct tdm_eager_value *weight, bool keeps_input)
{
    struct megatron_cast *casts = realloc(t->casts, (t->cast_count + 1) * sizeof(*casts));
    if (casts == NULL)
        tdm_eager_no_memory(t->m);
    t->casts = casts;
    t->casts[t->cast_count++] = (struct megatron_cast){.keeps_input = keeps_input};
    weight->module = t->cast_count;
    if (!t->set.float8_weights)
        return;
    /* fp8_model_init: the parameter is made in bf16, then quantized. */
    struct megatron_cast *cast = &t->casts[weight->module - 1];
    cast->tensor = tdm_te_quantize(t->m, t->set.float8, weight, BOTH | TDM_TE_WEIGHT);
    tdm_value_set_data(t->m, weight, cast->tensor.data);
}

bool megatron_is_float8(const struct tdm_eager_value *weight)
{
    return weight->module > 0;
}

static const struct megatron_cast *cast_of(const struct tdm_megatron *t,
                                           const struct tdm_eager_value *weight)
{
    return &t->casts[weight->module - 1];
}

void megatron_gather_cast(struct tdm_megatron *t, struct tdm_eager_value *weight)
{
    struct megatron_cast *cast = &t->casts[weight->module - 1];
    tdm_drop(t->m, cast->tensor.data); /* the buffer's part is in its place */
    cast->tensor.data = NULL;
}

/* get_weight_workspace: made by the first forward, and made anew by the first that needs columns.
 */
static void cast_weight(struct tdm_megatron *t, struct tdm_eager_value *weight, bool columns)
{
    struct megatron_cast *cast = &t->casts[weight->module - 1];
    bool both_orders = tdm_te_both_orders(t->m, t->set.float8);
    if (t->set.float8_weights ||
        (cast->tensor.data != NULL && (cast->tensor.transpose != NULL || !columns || both_orders)))
        return;
    enum tdm_method_category before = t->m->category;
    t->m->category = TDM_METHOD_WEIGHTS;
    tdm_te_drop(t->m, &cast->tensor);
    cast->tensor = tdm_te_quantize(t->m, t->set.float8, weight,
                                   TDM_TE_WEIGHT | (columns ? BOTH : TDM_TE_ROWS));
    t->m->category = before;
}

/* ---- what ranks gather ---- */

/* Blockwise rows come with their scales out of order, and columns with their data: these are put in
 * order by a copy, which lives until the gather is waited for (_all_gather_fp8_blockwise). *copy:
 * that of columns, or NULL. The scales' is dropped at once. */
static struct tdm_te_tensor gather_blocks(struct tdm_megatron *t, uint64_t rows, uint64_t columns,
                                          unsigned usage, struct tdm_eager_value **copy)
{
    struct tdm_eager *m = t->m;
    const bool in_order = t->set.float8 != TDM_TE_BLOCKWISE;
    struct tdm_te_tensor all = tdm_te_blocks(m, t->set.float8, rows, columns, usage);
    struct tdm_eager_value *scale =
        in_order || all.scale == NULL ? NULL : tdm_value_like(m, all.scale);
    *copy = in_order || all.transpose == NULL ? NULL : tdm_value_like(m, all.transpose);
    tdm_drop(m, scale);
    return all;
}

/* The normed input of all ranks by rows, for the product of a forward. */
static struct tdm_te_tensor gather_rows(struct tdm_megatron *t, uint64_t columns)
{
    struct tdm_eager_value *copy;
    if (tdm_te_by_blocks(t->set.float8))
        return gather_blocks(t, t->rows, columns, TDM_TE_ROWS, &copy);
    return (struct tdm_te_tensor){.data = tdm_value_new(t->m, t->rows, columns, FLOAT8)};
}

/* ---- a norm and its product ---- */

enum { X, NORM, NORM_BIAS, WEIGHT, BIAS };
enum { SAVED_X, SAVED_NORMED, SAVED_SCALE, SAVED_SIGMA, SAVED_MEAN, MOST_SAVED };

/* The gradient is quantized for both products. The normed input of this rank is gathered by rows,
 * and its transpose made behind the product that gives dgrad; by blocks it is gathered by columns.
 */
static void norm_linear_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *x = tdm_node_saved(m, node, SAVED_X), *statistics[2] = {0};
    struct tdm_te_tensor normed = tdm_te_saved(m, node, SAVED_NORMED), whole = {.data = NULL};
    for (uint32_t i = SAVED_SIGMA; i < node->saved_count; i++)
        statistics[i - SAVED_SIGMA] = tdm_node_saved(m, node, i);
    struct tdm_te_tensor gradient = tdm_te_quantize(m, t->set.float8, grads[0], BOTH);
    struct tdm_eager_value *dgrad, *scattered = NULL, *copy = NULL;
    const bool by_blocks = tdm_te_by_blocks(t->set.float8);
    if (t->sequence_parallel && by_blocks)
        whole = gather_blocks(t, grads[0]->rows, x->columns, TDM_TE_COLUMNS, &copy);
    else if (t->sequence_parallel)
        whole.data = tdm_value_new(m, grads[0]->rows, x->columns, FLOAT8);
    dgrad = tdm_value_new(m, grads[0]->rows, x->columns, BF16);
    if (t->sequence_parallel)
        scattered = tdm_value_like(m, x);
    tdm_drop(m, copy);
    if (t->sequence_parallel && !by_blocks)
        tdm_te_add_columns(m, &whole);
    if (tdm_node_needs(node, WEIGHT))
        results[WEIGHT] = tdm_value_new(m, node->facts[0], node->facts[1], BF16);
    if (tdm_node_needs(node, BIAS))
        results[BIAS] = tdm_value_new(m, 1, node->facts[0], BF16);
    megatron_product(t);
    tdm_te_clear(m, &normed);
    tdm_te_drop(m, &whole);
    results[X] = megatron_norm_gradients(t, node, x, results);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[0], node->facts[1]);
    tdm_te_drop(m, &gradient);
    tdm_drop(m, dgrad);
    tdm_drop(m, scattered);
    tdm_te_drop(m, &normed);
    for (unsigned i = 0; i < 2; i++)
        tdm_drop(m, statistics[i]);
    tdm_drop(m, x);
}

/* The norm's kernel writes 8 bits itself if it knows the scale; else its output in bf16 is there
 * until it is quantized. Rows are kept where ranks gather them again, else columns, as by blocks.
 */
struct tdm_eager_value *
megatron_float8_norm_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                            struct tdm_eager_value *norm, struct tdm_eager_value *norm_bias,
                            struct tdm_eager_value *weight, struct tdm_eager_value *bias)
{
    static const struct tdm_eager_op op = {"_LayerNormLinearBackward", false, norm_linear_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, norm, norm_bias, t->set.fused_gradients ? NULL : weight,
                                        bias};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 5);
    bool by_columns = node != NULL && (!t->sequence_parallel || tdm_te_by_blocks(t->set.float8));
    struct tdm_eager_value *mean = norm_bias != NULL ? tdm_value_new(m, x->rows, 1, FP32) : NULL;
    struct tdm_eager_value *sigma = tdm_value_new(m, x->rows, 1, FP32), *wide = NULL;
    struct tdm_te_tensor whole = {.data = NULL};
    struct tdm_te_tensor normed =
        tdm_te_quantize(m, t->set.float8, x, by_columns ? BOTH : TDM_TE_ROWS);
    if (t->set.float8 != TDM_TE_DELAYED)
        wide = tdm_value_like(m, x);
    tdm_drop(m, wide);
    uint64_t rows = t->sequence_parallel ? t->rows : x->rows;
    if (t->sequence_parallel)
        whole = gather_rows(t, x->columns);
    cast_weight(t, weight, node != NULL);
    struct tdm_eager_value *y = tdm_value_new(m, rows, weight->rows, BF16);
    megatron_product(t);
    tdm_te_drop(m, &whole);
    if (node != NULL) {
        node->facts[0] = weight->rows;
        node->facts[1] = weight->columns;
    }
    tdm_te_drop_rows(m, &normed);
    tdm_node_save(m, node, x);
    tdm_te_save(m, node, &normed);
    tdm_node_save(m, node, sigma);
    if (mean != NULL)
        tdm_node_save(m, node, mean);
    tdm_drop(m, mean);
    tdm_drop(m, sigma);
    tdm_te_drop(m, &normed);
    return megatron_finish(t, node, y);
}

/* ---- a column-parallel product without a norm ---- */

enum { LINEAR_ROWS, LINEAR_COLUMNS, LINEAR_GATHERS };

static void linear_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    const bool gathers = node->facts[LINEAR_GATHERS] != 0,
               by_blocks = tdm_te_by_blocks(t->set.float8);
    const uint64_t rows = grads[0]->rows, columns = node->facts[LINEAR_COLUMNS];
    struct tdm_te_tensor x = tdm_te_saved(m, node, 0), whole = {.data = NULL};
    struct tdm_te_tensor gradient = tdm_te_quantize(m, t->set.float8, grads[0], BOTH);
    struct tdm_eager_value *copy = NULL;
    if (gathers && by_blocks)
        whole = gather_blocks(t, rows, columns, TDM_TE_COLUMNS, &copy);
    else if (gathers)
        whole.data = tdm_value_new(m, rows, columns, FLOAT8);
    struct tdm_eager_value *dgrad = tdm_value_new(m, rows, columns, BF16);
    results[0] = gathers ? tdm_value_new(m, t->part_rows, columns, BF16) : tdm_take(dgrad);
    tdm_drop(m, copy);
    if (gathers && !by_blocks)
        tdm_te_add_columns(m, &whole);
    megatron_product(t);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_new(m, node->facts[LINEAR_ROWS], columns, BF16);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[LINEAR_ROWS], columns);
    tdm_te_drop(m, &whole);
    tdm_te_drop(m, &gradient);
    tdm_te_drop(m, &x);
    tdm_drop(m, dgrad);
}

/* Rows are kept where ranks gather them again, else columns, as by blocks. */
struct tdm_eager_value *megatron_float8_linear(struct tdm_megatron *t, struct tdm_eager_value *x,
                                               struct tdm_eager_value *weight, bool gathers)
{
    static const struct tdm_eager_op op = {"_LinearBackward", false, linear_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, t->set.fused_gradients ? NULL : weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    const bool by_columns = node != NULL && (!gathers || tdm_te_by_blocks(t->set.float8));
    struct tdm_te_tensor whole = {.data = NULL};
    struct tdm_te_tensor bits =
        tdm_te_quantize(m, t->set.float8, x, by_columns ? BOTH : TDM_TE_ROWS);
    if (gathers)
        whole = gather_rows(t, x->columns);
    cast_weight(t, weight, node != NULL);
    struct tdm_eager_value *y = tdm_value_new(m, gathers ? t->rows : x->rows, weight->rows, BF16);
    megatron_product(t);
    tdm_te_drop(m, &whole);
    if (node != NULL) {
        node->facts[LINEAR_ROWS] = weight->rows;
        node->facts[LINEAR_COLUMNS] = weight->columns;
        node->facts[LINEAR_GATHERS] = gathers;
    }
    tdm_te_drop_rows(m, &bits);
    tdm_te_save(m, node, &bits);
    tdm_te_drop(m, &bits);
    return megatron_finish(t, node, y);
}

/* ---- grouped products of experts (pytorch/module/grouped_linear.py, _GroupedLinear) ---- */

/* The parts of the gradient are quantized for both products. */
static void grouped_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_te_tensor x = tdm_te_saved(m, node, 0);
    struct tdm_te_tensor gradient = tdm_te_quantize(m, t->set.float8, grads[0], BOTH);
    results[0] = tdm_value_new(m, grads[0]->rows, node->facts[LINEAR_COLUMNS], BF16);
    megatron_grouped_product(t);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[LINEAR_ROWS], node->facts[LINEAR_COLUMNS]);
    tdm_te_drop(m, &gradient);
    tdm_te_drop(m, &x);
}

struct tdm_eager_value *megatron_float8_grouped(struct tdm_megatron *t, struct tdm_eager_value *x,
                                                struct tdm_eager_value *const *weights,
                                                uint64_t count, uint64_t stride)
{
    static const struct tdm_eager_op op = {"_GroupedLinearBackward", false, grouped_backward};
    struct tdm_eager *m = t->m;
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_te_tensor bits =
        tdm_te_quantize(m, t->set.float8, x, node != NULL ? BOTH : TDM_TE_ROWS);
    for (uint64_t i = 0; i < count; i++)
        cast_weight(t, weights[i * stride], node != NULL);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, weights[0]->rows, BF16);
    megatron_grouped_product(t);
    if (node != NULL) {
        node->facts[LINEAR_ROWS] = weights[0]->rows;
        node->facts[LINEAR_COLUMNS] = weights[0]->columns;
    }
    tdm_te_drop_rows(m, &bits);
    tdm_te_save(m, node, &bits);
    tdm_te_drop(m, &bits);
    return megatron_finish(t, node, y);
}

/* ---- a row-parallel product ---- */

enum { ROW_ROWS, ROW_COLUMNS, ROW_KEEPS_INPUT };

/* What is gathered gets a transpose on any card (make_empty). */
static struct tdm_te_tensor gathered(struct tdm_megatron *t, const struct tdm_eager_value *part,
                                     uint64_t rows)
{
    const bool by_blocks = tdm_te_by_blocks(t->set.float8);
    struct tdm_te_tensor own =
        tdm_te_quantize(t->m, t->set.float8, part, by_blocks ? BOTH : TDM_TE_ROWS);
    if (by_blocks) {
        struct tdm_eager_value *copy;
        struct tdm_te_tensor blocks = gather_blocks(t, rows, part->columns, BOTH, &copy);
        tdm_drop(t->m, copy);
        tdm_te_drop(t->m, &own);
        return blocks;
    }
    struct tdm_te_tensor all = {.data = tdm_value_new(t->m, rows, part->columns, FLOAT8),
                                .transpose = tdm_value_new(t->m, rows, part->columns, FLOAT8),
                                .scale = tdm_take(own.scale)};
    tdm_te_drop(t->m, &own);
    return all;
}

static void row_linear_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *original = NULL;
    struct tdm_te_tensor x = {.data = NULL}, gradient;
    const struct tdm_eager_value *input;
    if (node->facts[ROW_KEEPS_INPUT] != 0)
        input = original = tdm_node_saved(m, node, 0);
    else
        x = tdm_te_saved(m, node, 0), input = x.data;
    gradient = t->sequence_parallel ? gathered(t, grads[0], input->rows)
                                    : tdm_te_quantize(m, t->set.float8, grads[0], BOTH);
    if (original != NULL)
        x = tdm_te_quantize(m, t->set.float8, original,
                            tdm_te_by_blocks(t->set.float8) ? TDM_TE_COLUMNS : BOTH);
    results[0] = tdm_value_new(m, input->rows, input->columns, BF16);
    megatron_product(t);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_new(m, node->facts[ROW_ROWS], node->facts[ROW_COLUMNS], BF16);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[ROW_ROWS], node->facts[ROW_COLUMNS]);
    tdm_te_drop(m, &gradient);
    tdm_te_drop(m, &x);
    tdm_drop(m, original);
}

struct tdm_eager_value *megatron_float8_row_linear(struct tdm_megatron *t,
                                                   struct tdm_eager_value *x,
                                                   struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {"_LinearBackward", false, row_linear_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, t->set.fused_gradients ? NULL : weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    bool keeps_input = cast_of(t, weight)->keeps_input;
    struct tdm_te_tensor bits =
        tdm_te_quantize(m, t->set.float8, x, node != NULL && !keeps_input ? BOTH : TDM_TE_ROWS);
    cast_weight(t, weight, true);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, weight->rows, BF16);
    megatron_product(t);
    if (t->sequence_parallel)
        y = tdm_replace(m, y, tdm_value_new(m, t->part_rows, weight->rows, BF16));
    if (node != NULL) {
        node->facts[ROW_ROWS] = weight->rows;
        node->facts[ROW_COLUMNS] = weight->columns;
        node->facts[ROW_KEEPS_INPUT] = keeps_input;
    }
    tdm_te_drop_rows(m, &bits);
    if (keeps_input)
        tdm_node_save(m, node, x);
    else
        tdm_te_save(m, node, &bits);
    tdm_te_drop(m, &bits);
    return megatron_finish(t, node, y);
}
