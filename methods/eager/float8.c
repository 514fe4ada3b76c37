/* SPDX-License-Identifier: Apache-2.0 */
/* Casts to 8 bits and the products of what was cast. */
#include "methods/eager/float8.h"

#include "base/size.h"
#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"

#include <stddef.h>

#define BLOCK 128u /* elements of a row with one scale */
#define FP64 8u

/* ---- casts ---- */

/* What shares a scale. */
enum scaled { SCALED_WHOLE, SCALED_ROWS, SCALED_COLUMNS };

/* An operand: its bits and its scales. The bits may be those of a weight that is of 8 bits already,
 * which has its scale elsewhere. */
struct operand {
    struct tdm_eager_value *bits, *scale;
};

static void drop_operand(struct tdm_eager *m, struct operand o)
{
    tdm_drop(m, o.bits);
    tdm_drop(m, o.scale);
}

/* The largest absolute value of all, of each row or of each column. */
static struct tdm_eager_value *largest(struct tdm_eager *m, const struct tdm_eager_value *x,
                                       enum scaled scaled)
{
    uint64_t rows = scaled == SCALED_ROWS ? x->rows : 1;
    uint64_t columns = scaled == SCALED_COLUMNS ? x->columns : 1;
    return tdm_sum_to(m, tdm_value_new(m, x->rows, x->columns, x->element_bytes), rows, columns);
}

/* amax_to_scale: the quotient in fp64, of which the scale in fp32 is made. Rowwise scales become
 * powers of two: log2, floor, exp2. */
static struct tdm_eager_value *scale_of(struct tdm_eager *m, const struct tdm_eager_value *x,
                                        enum scaled scaled, bool power_of_two)
{
    struct tdm_eager_value *most = largest(m, x, scaled);
    uint64_t rows = most->rows, columns = most->columns;
    struct tdm_eager_value *wide = tdm_value_new(m, rows, columns, FP64);
    struct tdm_eager_value *clamped = tdm_value_new(m, rows, columns, FP64);
    struct tdm_eager_value *inverse = tdm_value_new(m, rows, columns, FP64);
    struct tdm_eager_value *quotient = tdm_value_new(m, rows, columns, FP64);
    tdm_drop(m, inverse);
    tdm_drop(m, clamped);
    struct tdm_eager_value *scale = tdm_value_new(m, rows, columns, FP32);
    tdm_drop(m, quotient);
    if (power_of_two) {
        struct tdm_eager_value *exponent = tdm_value_new(m, rows, columns, FP32);
        struct tdm_eager_value *floor = tdm_value_new(m, rows, columns, FP32);
        tdm_drop(m, exponent);
        struct tdm_eager_value *rounded = tdm_value_new(m, rows, columns, FP32);
        tdm_drop(m, floor);
        scale = tdm_replace(m, scale, rounded);
    }
    tdm_drop(m, wide);
    tdm_drop(m, most);
    return scale;
}

/* The tensor in fp32 times its scale, clamped, in 8 bits. One that was cast before is taken as it
 * is (tensor_already_casted_to_fp8). */
static struct operand cast(struct tdm_eager *m, struct tdm_eager_value *x, enum scaled scaled,
                           bool power_of_two)
{
    if (x->element_bytes == FLOAT8)
        return (struct operand){.bits = tdm_take(x)};
    if (m->fuses)
        return (struct operand){.bits = tdm_value_new(m, x->rows, x->columns, FLOAT8)};
    struct operand o = {.scale = scale_of(m, x, scaled, power_of_two)};
    struct tdm_eager_value *wide =
        x->element_bytes == FP32 ? NULL : tdm_value_new(m, x->rows, x->columns, FP32);
    struct tdm_eager_value *times = tdm_value_new(m, x->rows, x->columns, FP32);
    tdm_drop(m, wide);
    struct tdm_eager_value *clamped = tdm_value_new(m, x->rows, x->columns, FP32);
    o.bits = tdm_value_new(m, x->rows, x->columns, FLOAT8);
    tdm_drop(m, clamped);
    tdm_drop(m, times);
    return o;
}

struct tdm_eager_value *tdm_float8_cast(struct tdm_eager *m, struct tdm_eager_value *x)
{
    struct operand o = cast(m, x, SCALED_WHOLE, false);
    tdm_drop(m, o.scale);
    return o.bits;
}

/* The weight, which fully_shard may have gathered in 8 bits. */
static struct operand cast_weight(struct tdm_eager *m, struct tdm_eager_value *weight,
                                  enum scaled scaled, bool power_of_two)
{
    if (weight->is_float8)
        return (struct operand){.bits = tdm_take(weight)};
    return cast(m, weight, scaled, power_of_two);
}

/* A copy in the other order of dimensions, as cuBLAS takes one operand by rows and one by columns.
 */
static struct tdm_eager_value *turned(struct tdm_eager *m, const struct operand *o)
{
    return tdm_value_new(m, o->bits->rows, o->bits->columns, FLOAT8);
}

/* ---- products ---- */

enum { LINEAR_X, LINEAR_WEIGHT };

static bool is_rowwise(const struct tdm_eager_value *weight)
{
    return weight->float8 != TDM_FLOAT8_TENSORWISE;
}

/* A product of operands whose scales are inverted. With a scale a row and a column, and without
 * fast accumulation, which only the forward has, it is multiplied in place by all products of both
 * scales in fp32 (addmm_float8_unwrapped). */
static struct tdm_eager_value *product(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                       bool rowwise, bool fast)
{
    struct tdm_eager_value *left = tdm_value_new(m, rowwise ? rows : 1, 1, FP32);
    struct tdm_eager_value *right = tdm_value_new(m, 1, rowwise ? columns : 1, FP32);
    struct tdm_eager_value *both = NULL;
    if (rowwise && !fast) {
        both = tdm_value_new(m, rows, columns, FP32);
        left = tdm_replace(m, left, tdm_value_new(m, 1, 1, FP32)); /* ones */
        right = tdm_replace(m, right, tdm_value_new(m, 1, 1, FP32));
    }
    struct tdm_eager_value *y = fast ? tdm_value_selected(m, rows, columns, BF16, true)
                                     : tdm_value_new(m, rows, columns, BF16);
    tdm_cublaslt(m);
    tdm_drop(m, both);
    tdm_drop(m, right);
    tdm_drop(m, left);
    return y;
}

/* dY W, of dY with a scale a row and of W with one a column, or one of all, which is then repeated.
 */
static struct tdm_eager_value *input_gradient(struct tdm_eager *m, const struct tdm_node *node,
                                              struct operand weight, bool rowwise, bool repeats)
{
    struct tdm_eager_value *copy = turned(m, &weight);
    struct tdm_eager_value *scales =
        repeats ? tdm_value_new(m, 1, weight.bits->columns, FP32) : NULL;
    struct tdm_eager_value *x =
        product(m, node->edges[LINEAR_X].rows, node->edges[LINEAR_X].columns, rowwise, false);
    tdm_drop(m, scales);
    tdm_drop(m, copy);
    return x;
}

/* dY^T X. Both are copied, as both are by rows of tokens. */
static struct tdm_eager_value *weight_gradient(struct tdm_eager *m, const struct tdm_node *node,
                                               struct operand grad, struct operand x, bool rowwise)
{
    const struct tdm_edge *edge = &node->edges[LINEAR_WEIGHT];
    struct tdm_eager_value *left = turned(m, &grad), *right = turned(m, &x);
    struct tdm_eager_value *weight = product(m, edge->rows, edge->columns, rowwise, false);
    tdm_drop(m, right);
    tdm_drop(m, left);
    return weight;
}

/* All casts live until both products are done. Gradients are made for frozen operands too. */
static void float8_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, LINEAR_X),
                           *weight = tdm_node_saved(m, node, LINEAR_WEIGHT);
    bool rowwise = is_rowwise(weight);
    bool wide = weight->float8 == TDM_FLOAT8_ROWWISE_WITH_GW_HP;
    struct operand first = cast(m, grads[0], rowwise ? SCALED_ROWS : SCALED_WHOLE, rowwise);
    struct operand w =
        cast_weight(m, weight, rowwise && !wide ? SCALED_COLUMNS : SCALED_WHOLE, rowwise);
    struct operand second = {.bits = NULL}, input = {.bits = NULL};
    results[LINEAR_X] = input_gradient(m, node, w, rowwise, wide);
    if (wide) {
        results[LINEAR_WEIGHT] = tdm_value_new(m, weight->rows, weight->columns, BF16);
        tdm_cublas(m);
    } else {
        second = cast(m, grads[0], rowwise ? SCALED_COLUMNS : SCALED_WHOLE, rowwise);
        input = cast(m, x, rowwise ? SCALED_COLUMNS : SCALED_WHOLE, rowwise);
        results[LINEAR_WEIGHT] = weight_gradient(m, node, second, input, rowwise);
    }
    drop_operand(m, first);
    drop_operand(m, w);
    drop_operand(m, second);
    drop_operand(m, input);
    for (uint32_t i = 0; i < 2; i++) {
        if (tdm_node_needs(node, i)) {
            results[i]->view = true;
            continue;
        }
        tdm_drop(m, results[i]);
        results[i] = NULL;
    }
    tdm_drop(m, weight);
    tdm_drop(m, x);
}

/* ---- scales of blocks: torchao 36027d82, prototype/blockwise_fp8_training/linear.py
 * (fp8_blockwise_mm) and kernels.py, whose Triton kernels scale and cast at once ---- */

/* `of`: elements that share a scale. */
static struct operand cast_blocks(struct tdm_eager *m, const struct tdm_eager_value *x, uint64_t of)
{
    struct operand o = {.bits = tdm_value_new(m, x->rows, x->columns, FLOAT8)};
    o.scale = tdm_value_new(m, tdm_size_ceil_div(tdm_value_elements(x), of), 1, FP32);
    return o;
}

static struct tdm_eager_value *block_product(struct tdm_eager *m, uint64_t rows, uint64_t columns)
{
    struct tdm_eager_value *y = tdm_value_new(m, rows, columns, BF16);
    tdm_cublaslt(m);
    return y;
}

static void blockwise_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, LINEAR_X),
                           *weight = tdm_node_saved(m, node, LINEAR_WEIGHT);
    struct operand made[4];
    made[0] = cast_blocks(m, grads[0], BLOCK);
    made[1] = cast_blocks(m, weight, (uint64_t)BLOCK * BLOCK);
    results[LINEAR_X] = block_product(m, x->rows, x->columns);
    made[2] = cast_blocks(m, grads[0], BLOCK);
    made[3] = cast_blocks(m, x, BLOCK);
    results[LINEAR_WEIGHT] = block_product(m, weight->rows, weight->columns);
    for (unsigned i = 0; i < 4; i++)
        drop_operand(m, made[i]);
    for (uint32_t i = 0; i < 2; i++)
        if (!tdm_node_needs(node, i)) {
            tdm_drop(m, results[i]);
            results[i] = NULL;
        }
    tdm_drop(m, weight);
    tdm_drop(m, x);
}

static struct tdm_eager_value *blockwise_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                                struct tdm_eager_value *weight,
                                                struct tdm_eager_value *bias)
{
    static const struct tdm_eager_op op = {"fp8_blockwise_mmBackward", false, blockwise_backward};
    struct tdm_eager_value *inputs[] = {x, weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct operand a = cast_blocks(m, x, BLOCK),
                   b = cast_blocks(m, weight, (uint64_t)BLOCK * BLOCK);
    struct tdm_eager_value *y = block_product(m, x->rows, weight->rows);
    drop_operand(m, a);
    drop_operand(m, b);
    tdm_node_save(m, node, x);
    tdm_node_save(m, node, weight);
    tdm_node_finish(m, node, y);
    return bias == NULL ? y : tdm_replace(m, y, tdm_add(m, y, bias));
}

struct tdm_eager_value *tdm_float8_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                          struct tdm_eager_value *weight,
                                          struct tdm_eager_value *bias)
{
    static const struct tdm_eager_op op = {"matmul_with_hp_or_float8_argsBackward", false,
                                           float8_backward};
    if (weight->float8 == TDM_FLOAT8_BLOCKWISE)
        return blockwise_linear(m, x, weight, bias);
    bool rowwise = is_rowwise(weight);
    struct tdm_eager_value *input = m->autocast ? tdm_cast(m, x, BF16) : tdm_take(x);
    struct tdm_eager_value *inputs[] = {input, weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    enum scaled rows = rowwise ? SCALED_ROWS : SCALED_WHOLE;
    struct operand a = cast(m, input, rows, rowwise), b = cast_weight(m, weight, rows, rowwise);
    struct tdm_eager_value *y = product(m, input->rows, weight->rows, rowwise, true);
    y->view = true;
    drop_operand(m, a);
    drop_operand(m, b);
    tdm_node_save(m, node, input);
    tdm_node_save(m, node, weight);
    tdm_node_finish(m, node, y);
    tdm_drop(m, input);
    if (bias == NULL)
        return y;
    struct tdm_eager_value *shift = tdm_cast(m, bias, BF16);
    y = tdm_replace(m, y, tdm_add(m, y, shift));
    tdm_drop(m, shift);
    return y;
}
