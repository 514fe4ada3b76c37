/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cut cross-entropy: head and loss in one function, which allocates nothing larger than the hidden
 * states or the weight. Sources: apple/ml-cross-entropy 25.1.1, cut_cross_entropy/cce.py
 * (LinearCrossEntropyFunction), cce_lse_forward.py, indexed_dot.py, cce_backward.py
 * (cce_backward_kernel). The indices of tokens that have a label, 4 B each, are not counted.
 */
#include "methods/eager/cut.h"

#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"

#include <stddef.h>

#define LOCK_ROWS 128u
#define LOCK_COLUMNS 64u

static void cut_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[4], *locks[2] = {NULL};
    (void)grads;
    for (uint32_t i = 0; i < 4; i++)
        saved[i] = tdm_node_saved(m, node, i);
    struct tdm_eager_value *order = tdm_value_new(m, saved[1]->rows, 1, INT32);
    for (uint32_t i = 0; i < 2; i++) /* a frozen head has no gradient */
        if (tdm_node_needs(node, i))
            results[i] = tdm_value_like(m, saved[i]);
    for (uint32_t i = 0; i < 2; i++)
        if (tdm_node_needs(node, i))
            locks[i] = tdm_value_new(m, saved[i]->rows / LOCK_ROWS + 1,
                                     saved[i]->columns / LOCK_COLUMNS + 1, INT32);
    tdm_drop(m, locks[0]);
    tdm_drop(m, locks[1]);
    tdm_drop(m, order);
    for (uint32_t i = 0; i < 4; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *tdm_cut_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *hidden,
                                              struct tdm_eager_value *head)
{
    static const struct tdm_eager_op op = {"LinearCrossEntropyFunctionBackward", false,
                                           cut_backward};
    struct tdm_eager_value *inputs[] = {hidden, head};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct tdm_eager_value *sums = tdm_value_new(m, hidden->rows, 1, FP32);
    struct tdm_eager_value *means = tdm_value_new(m, head->rows, 1, FP32);
    struct tdm_eager_value *each = tdm_value_new(m, hidden->rows, 1, FP32);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, FP32);
    tdm_drop(m, each);
    struct tdm_eager_value *const kept[] = {hidden, head, sums, means};
    for (unsigned i = 0; i < 4; i++)
        tdm_node_save(m, node, kept[i]);
    tdm_drop(m, means);
    tdm_drop(m, sums);
    return tdm_node_finish(m, node, loss);
}
