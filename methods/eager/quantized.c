/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights and their products. */
#include "methods/eager/quantized.h"

#include "base/size.h"
#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"

#include <stdlib.h>

#define NF4_BLOCK 64u    /* weights that share a scale */
#define SCALE_BLOCK 256u /* scales that share a scale, with double quantization */
#define NF4_CODES 16u    /* values of the table of nf4 */
#define SCALE_CODES 256u /* and of the table of 8 bits */
#define GPTQ_PER_WORD 8u /* weights in a word of 32 bits */
#define MOST_TENSORS 5u
#define USUAL_BITS 4u
#define BYTE_BITS 8u

struct tdm_quantized {
    enum tdm_quantization kind;
    bool keeps_inputs, half;
    uint32_t bits;   /* of a weight, but of int8 */
    uint64_t scales; /* number of the first scales */
    /* What belongs to the weight beside its own memory. */
    struct tdm_eager_value *tensors[MOST_TENSORS];
    uint32_t count;
    uint64_t bytes; /* of all, with the weight */
};

static bool is_nf4(enum tdm_quantization kind)
{
    return kind == TDM_QUANTIZATION_NF4 || kind == TDM_QUANTIZATION_NF4_DOUBLE;
}

/* ---- making ---- */

static void add_tensor(struct tdm_eager *m, struct tdm_quantized *q, uint64_t elements,
                       uint16_t bytes)
{
    q->tensors[q->count++] = tdm_value_new(m, elements, 1, bytes);
    q->bytes += tdm_size_mul(elements, bytes);
}

/* The memory of the weight itself, as a value with the shape of the original weight. */
static struct tdm_eager_value *packed(struct tdm_eager *m, struct tdm_quantized *q, uint64_t rows,
                                      uint64_t columns, uint64_t bytes)
{
    struct tdm_eager_value *leaf = tdm_value_leaf(m, bytes, 1, INT8, false);
    leaf->rows = rows;
    leaf->columns = columns;
    leaf->element_bytes = BF16; /* in which it is computed with */
    leaf->quantized = q;
    q->bytes += bytes;
    return leaf;
}

/* The scales are quantized in their turn: less their mean, which is kept. */
static void quantize_scales(struct tdm_eager *m, struct tdm_quantized *q)
{
    struct tdm_eager_value *scales = q->tensors[0];
    q->bytes -= q->scales * FP32;
    q->count = 0;
    add_tensor(m, q, 1, FP32); /* the mean */
    struct tdm_eager_value *centred = tdm_value_like(m, scales);
    add_tensor(m, q, q->scales, INT8);
    add_tensor(m, q, tdm_size_ceil_div(q->scales, SCALE_BLOCK), FP32);
    add_tensor(m, q, SCALE_CODES, FP32);
    tdm_drop(m, centred);
    tdm_drop(m, scales);
}

static bool is_gptq(enum tdm_quantization kind)
{
    return kind == TDM_QUANTIZATION_GPTQ || kind == TDM_QUANTIZATION_GPTQ_TRITON;
}

static bool is_grouped(enum tdm_quantization kind)
{
    return is_gptq(kind) || kind == TDM_QUANTIZATION_AWQ;
}

static void make_parts(struct tdm_eager *m, struct tdm_quantized *q, uint64_t rows,
                       uint64_t columns, uint64_t group)
{
    switch (q->kind) {
    case TDM_QUANTIZATION_NF4:
    case TDM_QUANTIZATION_NF4_DOUBLE:
        q->scales = tdm_size_ceil_div(tdm_size_mul(rows, columns), NF4_BLOCK);
        add_tensor(m, q, q->scales, FP32);
        if (q->kind == TDM_QUANTIZATION_NF4_DOUBLE)
            quantize_scales(m, q);
        add_tensor(m, q, NF4_CODES, FP32);
        break;
    case TDM_QUANTIZATION_INT8:
        add_tensor(m, q, rows, FP32);
        break;
    case TDM_QUANTIZATION_GPTQ:
    case TDM_QUANTIZATION_GPTQ_TRITON:
    case TDM_QUANTIZATION_AWQ:
        q->scales = tdm_size_mul(group == 0 ? 1 : tdm_size_ceil_div(columns, group), rows);
        add_tensor(m, q, q->scales * q->bits / BYTE_BITS, INT8); /* zeros */
        add_tensor(m, q, q->scales, BF16);
        if (is_gptq(q->kind))
            add_tensor(m, q, columns, INT32); /* the group of each input */
        break;
    case TDM_QUANTIZATION_NONE:
        break;
    }
}

static struct tdm_quantized *quantized_new(struct tdm_eager *m, enum tdm_quantization kind)
{
    struct tdm_quantized *q = calloc(1, sizeof(*q));
    if (q == NULL)
        tdm_eager_no_memory(m);
    q->kind = kind;
    q->bits = USUAL_BITS;
    return q;
}

struct tdm_eager_value *tdm_quantized_leaf(struct tdm_eager *m, enum tdm_quantization kind,
                                           uint64_t rows, uint64_t columns, bool keeps_inputs,
                                           bool half, uint64_t group, uint32_t bits,
                                           struct tdm_quantized **quantized)
{
    struct tdm_quantized *q = *quantized = quantized_new(m, kind);
    if (is_gptq(kind))
        q->bits = bits;
    uint64_t elements = tdm_size_mul(rows, columns);
    q->keeps_inputs = keeps_inputs;
    q->half = half;
    struct tdm_eager_value *original =
        is_grouped(kind) ? NULL : tdm_value_new(m, rows, columns, BF16);
    struct tdm_eager_value *leaf =
        packed(m, q, rows, columns,
               kind == TDM_QUANTIZATION_INT8 ? elements
                                             : tdm_size_ceil_div(elements * q->bits, BYTE_BITS));
    make_parts(m, q, rows, columns, group);
    tdm_drop(m, original);
    return leaf;
}

struct tdm_eager_value *tdm_quantized_leaf_of_shard(struct tdm_eager *m, enum tdm_quantization kind,
                                                    uint64_t rows, uint64_t columns,
                                                    struct tdm_quantized **quantized)
{
    struct tdm_quantized *q = *quantized = quantized_new(m, kind);
    struct tdm_eager_value *leaf = packed(m, q, rows, columns, 0);
    make_parts(m, q, rows, columns, 0);
    return leaf;
}

uint64_t tdm_quantized_bytes(const struct tdm_quantized *quantized)
{
    return quantized->bytes;
}

bool tdm_quantized_is_cloned(const struct tdm_quantized *quantized)
{
    return is_nf4(quantized->kind);
}

bool tdm_quantized_casts_results(const struct tdm_quantized *quantized)
{
    return !is_gptq(quantized->kind);
}

bool tdm_quantized_casts_first(const struct tdm_quantized *quantized)
{
    return quantized->kind == TDM_QUANTIZATION_AWQ;
}

/* ---- products ---- */

/* Scratch that gives nf4's weight in bf16: with double quantization its scales in fp32, in the
 * forward twice, as the mean is not added in place. The backward frees them before its product. */
struct wide_weight {
    struct tdm_eager_value *scales[2], *weight;
};

static struct wide_weight dequantize_nf4(struct tdm_eager *m, const struct tdm_quantized *q,
                                         uint64_t rows, uint64_t columns, unsigned copies)
{
    struct wide_weight wide = {0};
    for (unsigned i = 0; i < copies && q->kind == TDM_QUANTIZATION_NF4_DOUBLE; i++)
        wide.scales[i] = tdm_value_new(m, q->scales, 1, FP32);
    wide.weight = tdm_value_new(m, rows, columns, q->half ? FP16 : BF16);
    if (q->half) /* .to(A.dtype) */
        wide.weight = tdm_replace(m, wide.weight, tdm_value_new(m, rows, columns, BF16));
    return wide;
}

static void drop_scales(struct tdm_eager *m, struct wide_weight *wide)
{
    for (unsigned i = 2; i-- > 0;) {
        tdm_drop(m, wide->scales[i]);
        wide->scales[i] = NULL;
    }
}

/* A node whose weight is an attribute of its ctx: no saved tensor, so no checkpoint runs again for
 * it. */
static struct tdm_node *frozen_node(struct tdm_eager *m, const struct tdm_eager_op *op,
                                    struct tdm_eager_value *x, const struct tdm_eager_value *weight)
{
    struct tdm_node *node = tdm_node_new(m, op, &x, 1);
    if (node != NULL) {
        node->context = weight->quantized;
        node->facts[0] = weight->rows;
        node->facts[1] = weight->columns;
    }
    return node;
}

static struct tdm_eager_value *input_gradient(struct tdm_eager *m, const struct tdm_node *node,
                                              const struct tdm_eager_value *grad)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *x = tdm_value_new(m, edge->rows, edge->columns, grad->element_bytes);
    tdm_cublas(m);
    return x;
}

struct tdm_eager_value *tdm_quantized_wide(struct tdm_eager *m,
                                           const struct tdm_eager_value *weight)
{
    const struct tdm_quantized *q = weight->quantized;
    if (!is_nf4(q->kind))
        return tdm_value_new(m, weight->rows, weight->columns, FP16);
    struct tdm_eager_value *wide = tdm_value_new(m, weight->rows, weight->columns, BF16);
    struct tdm_eager_value *scales =
        q->kind == TDM_QUANTIZATION_NF4_DOUBLE ? tdm_value_new(m, q->scales, 1, FP32) : NULL;
    tdm_drop(m, scales);
    return wide;
}

static void nf4_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct wide_weight wide = dequantize_nf4(m, node->context, node->facts[0], node->facts[1], 1);
    drop_scales(m, &wide);
    results[0] = input_gradient(m, node, grads[0]);
    tdm_drop(m, wide.weight);
}

static struct tdm_eager_value *nf4_product(struct tdm_eager *m, struct tdm_eager_value *x,
                                           struct tdm_eager_value *weight, bool has_bias)
{
    static const struct tdm_eager_op op = {"MatMul4BitBackward", false, nf4_backward};
    struct tdm_eager_value *input = tdm_cast(m, x, BF16);
    struct tdm_node *node = frozen_node(m, &op, input, weight);
    struct wide_weight wide =
        dequantize_nf4(m, weight->quantized, weight->rows, weight->columns, 2);
    struct tdm_eager_value *y = tdm_value_new(m, input->rows, weight->rows, BF16);
    if (has_bias)
        tdm_cublaslt(m);
    else
        tdm_cublas(m);
    if (weight->quantized->keeps_inputs)
        tdm_node_hold(m, node, input);
    tdm_node_finish(m, node, y);
    tdm_drop(m, wide.weight);
    drop_scales(m, &wide);
    y = tdm_replace(m, y, tdm_cast(m, y, x->element_bytes));
    tdm_drop(m, input);
    return y;
}

static void int8_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *wide =
        tdm_value_new(m, node->facts[0], node->facts[1], node->edges[0].element_bytes);
    struct tdm_eager_value *scales = tdm_value_new(m, node->facts[0], 1, FP32);
    tdm_drop(m, scales);
    results[0] = input_gradient(m, node, grads[0]);
    tdm_drop(m, wide);
}

/* The input is made fp16, then 8 bits row by row, with a look for values of 6 and more. A sum of 32
 * bits becomes fp16, then the dtype of x. Columns with such values are few, so their copies are not
 * counted, but their product is added to the result, which is a new tensor. */
static struct tdm_eager_value *int8_product(struct tdm_eager *m, struct tdm_eager_value *x,
                                            struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {"MatMul8bitLtBackward", false, int8_backward};
    struct tdm_node *node = frozen_node(m, &op, x, weight);
    struct tdm_eager_value *half = tdm_value_new(m, x->rows, x->columns, FP16);
    struct tdm_eager_value *scales = tdm_value_new(m, x->rows, 1, FP32);
    struct tdm_eager_value *narrow = tdm_value_new(m, x->rows, x->columns, INT8);
    struct tdm_eager_value *sizes = tdm_value_new(m, x->rows, x->columns, FP16);
    struct tdm_eager_value *large = tdm_value_new(m, x->rows, x->columns, BOOL);
    tdm_drop(m, sizes);
    tdm_drop(m, large);
    tdm_drop(m, half);
    struct tdm_eager_value *sum = tdm_value_new(m, x->rows, weight->rows, INT32);
    half = tdm_value_new(m, x->rows, weight->rows, FP16);
    struct tdm_eager_value *first = tdm_value_new(m, x->rows, weight->rows, x->element_bytes);
    tdm_drop(m, half);
    tdm_drop(m, sum);
    struct tdm_eager_value *y = tdm_value_like(m, first);
    tdm_cublaslt(m); /* of addmm */
    tdm_drop(m, first);
    tdm_node_hold(m, node, x);
    tdm_node_finish(m, node, y);
    tdm_drop(m, narrow);
    tdm_drop(m, scales);
    return y;
}

/* Unpacked words of a quantized tensor: 32 bits an element, then 8, or 16 where it has 8. */
static struct tdm_eager_value *unpacked(struct tdm_eager *m, const struct tdm_quantized *q,
                                        uint64_t rows, uint64_t columns)
{
    struct tdm_eager_value *words = tdm_value_new(m, rows, columns, INT32);
    struct tdm_eager_value *bytes =
        tdm_value_new(m, rows, columns, q->bits == BYTE_BITS ? INT16 : INT8);
    tdm_drop(m, words);
    return bytes;
}

/* The weight is unpacked by operations of PyTorch, and the product saves it. */
static struct tdm_eager_value *gptq_product(struct tdm_eager *m, struct tdm_eager_value *x,
                                            struct tdm_eager_value *weight)
{
    const struct tdm_quantized *q = weight->quantized;
    struct tdm_eager_value *narrow_x = tdm_cast(m, x, BF16);
    struct tdm_eager_value *below = unpacked(m, q, q->scales, 1);
    struct tdm_eager_value *zeros = tdm_value_like(m, below); /* plus 1 */
    tdm_drop(m, below);
    struct tdm_eager_value *bytes = unpacked(m, q, weight->rows, weight->columns);
    struct tdm_eager_value *centred = tdm_value_like(m, bytes);
    struct tdm_eager_value *wide = tdm_value_new(m, weight->rows, weight->columns, BF16);
    tdm_drop(m, centred);
    tdm_drop(m, bytes);
    struct tdm_eager_value *y = tdm_linear(m, narrow_x, wide, NULL, false);
    tdm_drop(m, wide);
    tdm_drop(m, zeros);
    tdm_drop(m, narrow_x);
    return y;
}

/* The weights in 16 bits, for the time of a product. */
static void grouped_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *weight = tdm_node_saved(m, node, 0);
    struct tdm_eager_value *wide = tdm_value_new(m, node->facts[0], node->facts[1], BF16);
    wide = tdm_replace(m, wide, tdm_cast(m, wide, grads[0]->element_bytes));
    results[0] = input_gradient(m, node, grads[0]);
    tdm_drop(m, wide);
    tdm_drop(m, weight);
}

/* The weight is made in fp16 for the time of a product; packed, it is a saved tensor. */
static struct tdm_eager_value *triton_product(struct tdm_eager *m, struct tdm_eager_value *x,
                                              struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {"QuantLinearFunctionBackward", false, grouped_backward};
    struct tdm_eager_value *input = tdm_cast(m, x, FP16);
    struct tdm_node *node = frozen_node(m, &op, input, weight);
    struct tdm_eager_value *wide = tdm_value_new(m, weight->rows, weight->columns, FP16);
    struct tdm_eager_value *y = tdm_value_new(m, input->rows, weight->rows, FP16);
    tdm_cublas(m);
    tdm_drop(m, wide);
    tdm_node_save(m, node, weight);
    tdm_node_finish(m, node, y);
    tdm_drop(m, input);
    return y;
}

#define AWQ_ROWS 1024u /* up to so many, the kernel multiplies packed weights */
#define AWQ_SPLITS 8u  /* sums of a result then, in fp32 */

static struct tdm_eager_value *awq_product(struct tdm_eager *m, struct tdm_eager_value *x,
                                           struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {"AwqGemmFnBackward", false, grouped_backward};
    struct tdm_eager_value *input = tdm_cast(m, x, FP16), *scratch;
    struct tdm_node *node = frozen_node(m, &op, input, weight);
    if (input->rows > AWQ_ROWS) {
        scratch = tdm_value_new(m, weight->rows, weight->columns, FP16);
        tdm_cublas(m);
    } else {
        scratch = tdm_value_new(m, AWQ_SPLITS * input->rows, weight->rows, FP32);
    }
    struct tdm_eager_value *y = tdm_value_new(m, input->rows, weight->rows, FP16);
    tdm_drop(m, scratch);
    tdm_node_save(m, node, weight); /* qweight, qzeros and scales: checkpoints run again for them */
    tdm_node_finish(m, node, y);
    y = tdm_replace(m, y, tdm_cast(m, y, x->element_bytes));
    tdm_drop(m, input);
    return y;
}

/* y + b, where the product has no bias of its own. */
static struct tdm_eager_value *with_bias(struct tdm_eager *m, struct tdm_eager_value *y,
                                         struct tdm_eager_value *bias)
{
    return bias == NULL ? y : tdm_replace(m, y, tdm_add(m, y, bias));
}

struct tdm_eager_value *tdm_quantized_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                             struct tdm_eager_value *weight,
                                             struct tdm_eager_value *bias)
{
    switch (weight->quantized->kind) {
    case TDM_QUANTIZATION_NF4:
    case TDM_QUANTIZATION_NF4_DOUBLE:
        return nf4_product(m, x, weight, bias != NULL);
    case TDM_QUANTIZATION_INT8:
        return int8_product(m, x, weight);
    case TDM_QUANTIZATION_AWQ:
        return with_bias(m, awq_product(m, x, weight), bias);
    case TDM_QUANTIZATION_GPTQ_TRITON:
        return with_bias(m, triton_product(m, x, weight), bias);
    case TDM_QUANTIZATION_GPTQ:
    case TDM_QUANTIZATION_NONE:
        break;
    }
    return with_bias(m, gptq_product(m, x, weight), bias);
}
