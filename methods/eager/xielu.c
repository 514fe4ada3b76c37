/* SPDX-License-Identifier: Apache-2.0 */
/* The activation xIELU as single operations, which transformers takes without the package xielu:
 * activations.py XIELUActivation._xielu_python (5.17). Derivatives: tools/autograd/derivatives.yaml
 * of torch 2.11. */
#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"

/* where(x == bound, grad / 2, grad), and zeros above the bound. */
static void minimum_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0);
    struct tdm_eager_value *equal = tdm_value_new(m, x->rows, x->columns, BOOL);
    struct tdm_eager_value *half = tdm_value_like(m, grads[0]);
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, half);
    tdm_drop(m, equal);
    tdm_drop(m, tdm_value_new(m, x->rows, x->columns, BOOL));
    tdm_drop(m, x);
}

/* The smaller of x and a number. */
static struct tdm_eager_value *minimum(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"MinimumBackward0", false, minimum_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, x);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

/* grad * (result + 1). */
static void expm1_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *result = tdm_node_saved(m, node, 0);
    struct tdm_eager_value *more = tdm_value_like(m, result);
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, more);
    tdm_drop(m, result);
}

static struct tdm_eager_value *minus_one_exp(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"Expm1Backward0", false, expm1_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_like(m, x);
    tdm_node_save(m, node, y);
    return tdm_node_finish(m, node, y);
}

static void where_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *condition = tdm_node_saved(m, node, 0);
    for (unsigned i = 0; i < 2; i++)
        results[i] = tdm_value_like(m, grads[0]);
    tdm_drop(m, condition);
}

/* a where x is above 0, b elsewhere. */
static struct tdm_eager_value *where(struct tdm_eager *m, struct tdm_eager_value *condition,
                                     struct tdm_eager_value *a, struct tdm_eager_value *b)
{
    static const struct tdm_eager_op op = {"WhereBackward0", false, where_backward};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    tdm_node_save(m, node, condition);
    return tdm_node_finish(m, node, tdm_value_like(m, a));
}

/* a + beta x. Takes a. */
static struct tdm_eager_value *plus_line(struct tdm_eager *m, struct tdm_eager_value *a,
                                         struct tdm_eager_value *x)
{
    struct tdm_eager_value *line = tdm_mul_number(m, x);
    struct tdm_eager_value *y = tdm_add(m, a, line);
    tdm_drop(m, line);
    tdm_drop(m, a);
    return y;
}

struct tdm_eager_value *tdm_xielu(struct tdm_eager *m, struct tdm_eager_value *x,
                                  struct tdm_eager_value *const numbers[2])
{
    struct tdm_eager_value *positive = tdm_softplus(m, numbers[0]);
    struct tdm_eager_value *negative = tdm_softplus(m, numbers[1]);
    negative = tdm_replace(m, negative, tdm_add_number(m, negative));
    struct tdm_eager_value *above = tdm_value_new(m, x->rows, x->columns, BOOL);
    struct tdm_eager_value *right = tdm_mul(m, positive, x);
    right = plus_line(m, tdm_replace(m, right, tdm_mul(m, right, x)), x);
    struct tdm_eager_value *left = minimum(m, x);
    left = tdm_replace(m, left, minus_one_exp(m, left));
    left = tdm_replace(m, left, tdm_sub(m, left, x));
    left = plus_line(m, tdm_replace(m, left, tdm_mul(m, left, negative)), x);
    struct tdm_eager_value *y = where(m, above, right, left);
    struct tdm_eager_value *const locals[] = {left, right, above, negative, positive};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return y;
}
