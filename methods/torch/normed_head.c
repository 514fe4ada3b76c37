/* SPDX-License-Identifier: Apache-2.0 */
/* Baichuan 2's head: rows of its weight are made to have length 1 before they are multiplied
 * (baichuan-inc/Baichuan2-7B-Base, modeling_baichuan.py NormHead; torch.nn.functional.normalize:
 * norms, a bound, a division by what they are stretched to). */
#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

/* The gradient of the divisor is -grad times the quotient over it, summed by rows; that of the norm
 * is a product with the weight over it. */
static void normalize_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    struct tdm_eager_value *weight = tdm_node_saved(m, node, 0),
                           *norms = tdm_node_saved(m, node, 1);
    results[0] = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *minus = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *quotient = tdm_value_like(m, weight);
    quotient = tdm_replace(m, quotient, tdm_value_like(m, weight));
    struct tdm_eager_value *product = tdm_value_like(m, grads[0]);
    tdm_drop(m, minus);
    tdm_drop(m, quotient);
    struct tdm_eager_value *sums = tdm_value_like(m, norms);
    tdm_drop(m, product);
    quotient = tdm_value_like(m, weight);
    product = tdm_value_like(m, weight); /* which is added to the first gradient */
    tdm_drop(m, quotient);
    tdm_drop(m, product);
    tdm_drop(m, sums);
    tdm_drop(m, norms);
    tdm_drop(m, weight);
}

struct tdm_eager_value *tdm_torch_normed_head(struct tdm_eager *m, struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {"DivBackward0", false, normalize_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &weight, 1);
    struct tdm_eager_value *norms = tdm_value_new(m, weight->rows, 1, weight->element_bytes);
    tdm_node_save(m, node, weight);
    tdm_node_save(m, node, norms);
    tdm_drop(m, norms);
    return tdm_node_finish(m, node, tdm_value_like(m, weight));
}
