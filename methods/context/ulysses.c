/* SPDX-License-Identifier: Apache-2.0 */
/* The all-to-all of tokens and heads, as an operation with a backward.
 * Source: yunchang/comm/all_to_all.py (all_to_all_4D, SeqAllToAll4D). */
#include "methods/context/parts.h"

#include <stddef.h>

enum { TO_HEADS, BATCH };

/* Allocates the parts for every rank side by side, the received parts, and a reordered copy of
 * them. Python's names hold the first two until the end. Towards heads, the copy exists only for
 * more than one sequence. */
static struct tdm_eager_value *exchange(struct tdm_eager *m, const struct tdm_eager_value *x,
                                        uint64_t batch, bool to_heads)
{
    struct tdm_eager_value *parts = tdm_sent_like(m, x), *received = tdm_sent_like(m, x);
    if (to_heads && batch == 1) {
        tdm_drop(m, parts);
        tdm_value_set_category(m, received, TDM_METHOD_WORKSPACE);
        return received;
    }
    struct tdm_eager_value *ordered = tdm_value_new(m, x->rows, x->columns, x->element_bytes);
    tdm_drop(m, received);
    tdm_drop(m, parts);
    return ordered;
}

static void all_to_all_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    results[0] = exchange(m, grads[0], node->facts[BATCH], node->facts[TO_HEADS] == 0);
}

struct tdm_eager_value *tdm_all_to_all(struct tdm_eager *m, struct tdm_eager_value *x,
                                       uint64_t batch, bool to_heads)
{
    static const struct tdm_eager_op op = {"SeqAllToAll4DBackward", false, all_to_all_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    if (node != NULL) {
        node->facts[TO_HEADS] = to_heads;
        node->facts[BATCH] = batch;
    }
    struct tdm_eager_value *y = exchange(m, x, batch, to_heads);
    return tdm_node_finish(m, node, y);
}
