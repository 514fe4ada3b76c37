/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of scaled_dot_product_attention by each of its kernels. */
#include "methods/eager/ops.h"

#include "base/size.h"
#include "methods/eager/dtypes.h"

#include <stddef.h>

static struct tdm_attention_shape node_shape(const struct tdm_node *node)
{
    return (struct tdm_attention_shape){.kernel = (enum tdm_attention_kernel)node->facts[0],
                                        .batch = node->facts[1],
                                        .query_heads = node->facts[2],
                                        .kv_heads = node->facts[3],
                                        .tokens = node->facts[4],
                                        .head_dim = node->facts[5]};
}

#define EFFICIENT_ALIGN 32u

static void backward_scratch(struct tdm_eager *m, const struct tdm_attention_shape *shape)
{
    uint64_t heads = shape->batch * shape->query_heads;
    if (shape->kernel == TDM_ATTENTION_CUDNN) {
        tdm_drop(m, tdm_value_new(m, tdm_cudnn_backward_workspace(shape), 1, 1));
    } else if (shape->kernel == TDM_ATTENTION_EFFICIENT) {
        struct tdm_eager_value *sums = tdm_value_new(m, heads * shape->tokens, 1, FP32);
        tdm_drop(m, tdm_value_new(m, tdm_efficient_backward_workspace(shape), 1, 1));
        tdm_drop(m, sums);
    } else {
        bool wide = shape->kv_heads < shape->query_heads;
        const struct tdm_flash_scratch scratch = {
            .query_rows = heads * tdm_size_align(shape->tokens, TDM_FLASH_ROWS),
            .wide_rows = wide ? heads * shape->tokens : 0,
            .head_dim = shape->head_dim};
        tdm_flash_backward_scratch(m, &scratch);
    }
}

static void attention_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    struct tdm_attention_shape shape = node_shape(node);
    struct tdm_eager_value *saved[TDM_MOST_SAVED] = {0};
    uint32_t count = node->saved_count;
    (void)grads;
    for (uint32_t i = 0; i < count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    if (saved[2] != NULL)
        shape.value_dim = saved[2]->columns;
    for (uint32_t i = 0; i < 3; i++)
        results[i] = tdm_value_like(m, saved[i]);
    backward_scratch(m, &shape);
    for (uint32_t i = 0; i < count; i++)
        tdm_drop(m, saved[i]);
}

/* Number of log-sum-exps: one for every query of every head. The memory-efficient kernel aligns
 * those of a head. */
static uint64_t sum_rows(const struct tdm_attention_shape *shape)
{
    uint64_t tokens = shape->kernel == TDM_ATTENTION_EFFICIENT
                          ? tdm_size_align(shape->tokens, EFFICIENT_ALIGN)
                          : shape->tokens;
    return shape->batch * shape->query_heads * tokens;
}

/* Saves q, k, v, the output, two states of the random generator, log-sum-exps and the bias. */
struct tdm_eager_value *tdm_attention(struct tdm_eager *m, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v,
                                      struct tdm_eager_value *bias,
                                      const struct tdm_attention_shape *shape)
{
    static const struct tdm_eager_op op = {"ScaledDotProductAttentionBackward0", false,
                                           attention_backward};
    struct tdm_eager_value *inputs[] = {q, k, v};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    if (node != NULL) {
        const uint64_t facts[] = {shape->kernel,   shape->batch,  shape->query_heads,
                                  shape->kv_heads, shape->tokens, shape->head_dim};
        for (unsigned i = 0; i < 6; i++)
            node->facts[i] = facts[i];
    }
    for (unsigned i = 0; i < 3; i++)
        tdm_node_save(m, node, inputs[i]);
    bool cudnn = shape->kernel == TDM_ATTENTION_CUDNN, flash = shape->kernel == TDM_ATTENTION_FLASH;
    struct tdm_eager_value *made[4] = {0}, *sums = NULL, *y;
    for (unsigned i = 0; i < 2 && cudnn; i++)
        made[i] = tdm_value_new(m, 1, 1, 8);
    y = tdm_value_selected(m, q->rows, v->columns, q->element_bytes, false);
    /* That of the memory-efficient kernel is stored by tokens, as attention.cu has it. */
    y->swapped = q->swapped || shape->kernel == TDM_ATTENTION_EFFICIENT;
    if (flash || node != NULL)
        made[2] = tdm_value_selected(m, sum_rows(shape), 1, FP32, false); /* log-sum-exps */
    if (shape->kernel == TDM_ATTENTION_EFFICIENT && shape->head_dim > TDM_EFFICIENT_HEAD_DIM)
        sums = tdm_value_new(m, q->rows, v->columns, FP32);
    if (cudnn)
        tdm_drop(m, tdm_value_new(m, 256, 1, 1));
    uint64_t splits = flash ? tdm_flash_splits(&m->gpu, shape) : 1;
    struct tdm_eager_value *parts[2] = {0}; /* log-sum-exps and outputs of each split */
    for (unsigned i = 0; i < 2 && splits > 1; i++)
        parts[i] =
            tdm_value_new(m, splits * q->rows,
                          i == 0 ? 1 : tdm_size_align(shape->head_dim, TDM_FLASH_COLUMNS), FP32);
    for (unsigned i = 0; i < 2 && flash; i++)
        made[i] = tdm_value_new(m, 2 - i, 1, 8);
    tdm_drop(m, parts[0]);
    tdm_drop(m, parts[1]);
    tdm_drop(m, sums);
    made[3] = tdm_take(bias);
    tdm_node_save(m, node, y);
    for (unsigned i = 0; i < 4; i++) {
        if (made[i] != NULL)
            tdm_node_save(m, node, made[i]);
        tdm_drop(m, made[i]);
    }
    return tdm_node_finish(m, node, y);
}
