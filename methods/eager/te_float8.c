/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in 8 bits as Transformer Engine has them. */
#include "methods/eager/te_float8.h"

#include "base/size.h"
#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"

#include <stddef.h>

static struct tdm_eager_value *bytes_of(struct tdm_eager *m, const struct tdm_eager_value *x)
{
    return tdm_value_new(m, x->rows, x->columns, FLOAT8);
}

enum tdm_status tdm_te_check(enum tdm_te_recipe recipe, const struct tdm_gpu_facts *gpu,
                             struct tdm_error *err)
{
    const uint32_t least = recipe == TDM_TE_NONE        ? 0
                           : recipe == TDM_TE_MXFP8     ? 100
                           : recipe == TDM_TE_BLOCKWISE ? 90
                                                        : 89;
    if (gpu->capability >= least)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "--set fp8_recipe: this recipe needs a GPU of compute capability %u.%u; the machine's "
             "has %u.%u",
             least / 10, least % 10, gpu->capability / 10, gpu->capability % 10);
    return recipe == TDM_TE_MXFP8 && gpu->capability >= 90
               ? tdm_hint(err, "--set fp8_recipe=blockwise, or tensorwise")
           : gpu->capability >= 89 ? tdm_hint(err, "--set fp8_recipe=tensorwise")
                                   : tdm_hint(err, "another --machine, or no fp8_recipe");
}

bool tdm_te_by_blocks(enum tdm_te_recipe recipe)
{
    return recipe == TDM_TE_BLOCKWISE || recipe == TDM_TE_MXFP8;
}

bool tdm_te_both_orders(const struct tdm_eager *m, enum tdm_te_recipe recipe)
{
    return !tdm_te_by_blocks(recipe) && m->gpu.capability >= 100 && m->gpu.capability < 120;
}

#define TILE UINT64_C(128) /* scales of MXFP8 are padded to tiles of 128 x 4 */
#define SCALE_ALIGN UINT64_C(4)

/* Scales of a matrix of which `summed` numbers lie along the dimension that a product sums over. */
static struct tdm_eager_value *scales_of(struct tdm_eager *m, enum tdm_te_recipe recipe,
                                         uint64_t others, uint64_t summed, bool is_weight)
{
    if (recipe == TDM_TE_MXFP8)
        return tdm_value_new(
            m, tdm_size_align(others, TILE),
            tdm_size_align(tdm_size_ceil_div(summed, TDM_TE_MXFP8_BLOCK), SCALE_ALIGN), 1);
    const uint64_t blocks = tdm_size_ceil_div(summed, TDM_TE_BLOCK);
    return is_weight ? tdm_value_new(m, tdm_size_ceil_div(others, TDM_TE_BLOCK),
                                     tdm_size_align(blocks, SCALE_ALIGN), FP32)
                     : tdm_value_new(m, blocks, tdm_size_align(others, SCALE_ALIGN), FP32);
}

struct tdm_te_tensor tdm_te_blocks(struct tdm_eager *m, enum tdm_te_recipe recipe, uint64_t rows,
                                   uint64_t columns, unsigned usage)
{
    const bool is_weight = (usage & TDM_TE_WEIGHT) != 0;
    struct tdm_te_tensor made = {.data = NULL};
    if ((usage & TDM_TE_ROWS) != 0) {
        made.data = tdm_value_new(m, rows, columns, FLOAT8);
        made.scale = scales_of(m, recipe, rows, columns, is_weight);
    }
    if ((usage & TDM_TE_COLUMNS) != 0) {
        made.transpose = tdm_value_new(m, rows, columns, FLOAT8);
        made.transpose_scale = scales_of(m, recipe, columns, rows, is_weight);
    }
    return made;
}

struct tdm_te_tensor tdm_te_quantize(struct tdm_eager *m, enum tdm_te_recipe recipe,
                                     const struct tdm_eager_value *x, unsigned usage)
{
    bool both_orders = tdm_te_both_orders(m, recipe);
    struct tdm_te_tensor made = {.data = NULL};
    if (tdm_te_by_blocks(recipe))
        return tdm_te_blocks(m, recipe, x->rows, x->columns, usage);
    if (recipe == TDM_TE_DELAYED)
        made.scale = tdm_value_new(m, 1, 1, FP32);
    if (both_orders || (usage & TDM_TE_ROWS) != 0)
        made.data = bytes_of(m, x);
    if (!both_orders && (usage & TDM_TE_COLUMNS) != 0)
        made.transpose = bytes_of(m, x);
    if (recipe != TDM_TE_DELAYED)
        made.scale = tdm_value_new(m, 1, 1, FP32);
    return made;
}

void tdm_te_add_columns(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    if (!tdm_te_both_orders(m, TDM_TE_TENSORWISE) && tensor->transpose == NULL)
        tensor->transpose = bytes_of(m, tensor->data);
}

void tdm_te_drop_rows(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    if (tensor->transpose == NULL)
        return;
    tdm_drop(m, tensor->data);
    tensor->data = NULL;
    if (tensor->transpose_scale == NULL)
        return;
    tdm_drop(m, tensor->scale);
    tensor->scale = NULL;
}

void tdm_te_clear(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    if (tensor->data != NULL)
        tdm_value_vacate(m, tensor->data);
    if (tensor->transpose != NULL)
        tdm_value_vacate(m, tensor->transpose);
}

void tdm_te_drop(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    tdm_drop(m, tensor->data);
    tdm_drop(m, tensor->transpose);
    tdm_drop(m, tensor->scale);
    tdm_drop(m, tensor->transpose_scale);
    *tensor = (struct tdm_te_tensor){.data = NULL};
}

void tdm_te_save(struct tdm_eager *m, struct tdm_node *node, const struct tdm_te_tensor *tensor)
{
    tdm_node_save(m, node, tensor->data != NULL ? tensor->data : tensor->transpose);
    tdm_node_save(m, node, tensor->scale != NULL ? tensor->scale : tensor->transpose_scale);
}

struct tdm_te_tensor tdm_te_saved(struct tdm_eager *m, struct tdm_node *node, uint32_t first)
{
    return (struct tdm_te_tensor){.data = tdm_node_saved(m, node, first),
                                  .scale = tdm_node_saved(m, node, first + 1)};
}

/* ---- te.Linear ---- */

#define HOPPER 90u
#define WORKSPACE_BYTES ((UINT64_C(32) << 20) + 1024) /* cpp_extensions/gemm.py, from Hopper on */
#define WORKSPACE_BEFORE_BYTES (UINT64_C(4) << 20)
#define BOTH (TDM_TE_ROWS | TDM_TE_COLUMNS)

enum { LINEAR_X, LINEAR_WEIGHT, LINEAR_BIAS };

/* The first product makes the workspace of all. */
static void product(struct tdm_eager *m)
{
    if (m->te_workspace != NULL || m->stopped)
        return;
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_WORKSPACE;
    m->te_workspace = tdm_value_new(
        m, m->gpu.capability < HOPPER ? WORKSPACE_BEFORE_BYTES : WORKSPACE_BYTES, 1, 1);
    m->category = before;
}

/* Gradients are in bf16, whatever the input's and the weight's dtype. */
static void linear_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    bool weight_needs = tdm_node_needs(node, LINEAR_WEIGHT);
    struct tdm_eager_value *saved[TDM_MOST_SAVED] = {0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    struct tdm_te_tensor gradient =
        tdm_te_quantize(m, TDM_TE_DELAYED, grads[0],
                        weight_needs || tdm_node_needs(node, LINEAR_BIAS) ? BOTH : TDM_TE_ROWS);
    if (tdm_node_needs(node, LINEAR_BIAS))
        results[LINEAR_BIAS] = tdm_value_new(m, 1, grads[0]->columns, BF16);
    const struct tdm_edge *edges = node->edges;
    if (tdm_node_needs(node, LINEAR_X)) {
        results[LINEAR_X] = tdm_value_new(m, edges[LINEAR_X].rows, edges[LINEAR_X].columns, BF16);
        results[LINEAR_X]->view = true;
        product(m);
    }
    if (weight_needs) {
        results[LINEAR_WEIGHT] =
            tdm_value_new(m, edges[LINEAR_WEIGHT].rows, edges[LINEAR_WEIGHT].columns, BF16);
        product(m);
    }
    tdm_te_drop(m, &gradient);
    for (uint32_t i = 0; i < node->saved_count; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *tdm_te_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                      struct tdm_eager_value *weight, struct tdm_eager_value *bias)
{
    static const struct tdm_eager_op op = {"_LinearBackward", false, linear_backward};
    struct tdm_eager_value *inputs[] = {x, weight, bias};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, bias != NULL ? 3 : 2);
    bool input_needs = node != NULL && tdm_node_needs(node, LINEAR_X);
    bool weight_needs = node != NULL && tdm_node_needs(node, LINEAR_WEIGHT);
    struct tdm_te_tensor a =
        tdm_te_quantize(m, TDM_TE_DELAYED, x, weight_needs ? BOTH : TDM_TE_ROWS);
    struct tdm_te_tensor b =
        tdm_te_quantize(m, TDM_TE_DELAYED, weight, input_needs ? BOTH : TDM_TE_ROWS);
    struct tdm_eager_value *shift = bias != NULL ? tdm_cast(m, bias, BF16) : NULL;
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, weight->rows, BF16);
    product(m);
    y->view = true;
    tdm_te_drop_rows(m, &a);
    if (weight_needs)
        tdm_te_save(m, node, &a);
    tdm_node_save(m, node, b.data);
    if (b.transpose != NULL)
        tdm_node_save(m, node, b.transpose);
    tdm_node_save(m, node, b.scale);
    tdm_drop(m, shift);
    tdm_te_drop(m, &a);
    tdm_te_drop(m, &b);
    return tdm_node_finish(m, node, y);
}
