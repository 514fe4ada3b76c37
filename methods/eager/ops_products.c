/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of matrix products, with cuBLAS's workspaces, and of embedding look-ups. */
#include "methods/eager/float8.h"
#include "methods/eager/te_float8.h"
#include "methods/eager/ops.h"
#include "methods/eager/quantized.h"

#include <stddef.h>

/* ---- products ---- */

static struct tdm_eager_value *kept_workspace(struct tdm_eager *m, uint64_t bytes)
{
    enum tdm_method_category before = m->category;
    struct tdm_label label = m->label;
    m->category = TDM_METHOD_WORKSPACE;
    m->label = (struct tdm_label){.name = "cuBLAS workspace", .layer = TDM_NO_LAYER};
    struct tdm_eager_value *workspace = tdm_value_new(m, bytes, 1, 1);
    m->category = before;
    m->label = label;
    return workspace;
}

void tdm_cublas(struct tdm_eager *m)
{
    if (m->cublas[m->in_backward] == NULL && !m->stopped)
        m->cublas[m->in_backward] = kept_workspace(m, m->gpu.cublas_workspace_bytes);
}

void tdm_cublaslt(struct tdm_eager *m)
{
    tdm_cublas(m); /* its handle is cuBLAS's */
    if (m->cublaslt[m->in_backward] == NULL && !m->stopped)
        m->cublaslt[m->in_backward] = kept_workspace(m, m->gpu.cublaslt_workspace_bytes);
}

enum { LINEAR_X, LINEAR_WEIGHT, LINEAR_BIAS };

static struct tdm_eager_value *weight_gradient(struct tdm_eager *m, const struct tdm_node *node,
                                               const struct tdm_eager_value *grad)
{
    const struct tdm_edge *edge = &node->edges[LINEAR_WEIGHT];
    struct tdm_eager_value *weight =
        tdm_value_new(m, edge->rows, edge->columns, grad->element_bytes);
    weight->view = !m->linear_function; /* transposed twice */
    tdm_cublas(m);
    return weight;
}

static struct tdm_eager_value *input_gradient(struct tdm_eager *m, const struct tdm_node *node,
                                              const struct tdm_eager_value *grad)
{
    const struct tdm_edge *edge = &node->edges[LINEAR_X];
    struct tdm_eager_value *x = tdm_value_new(m, edge->rows, edge->columns, grad->element_bytes);
    x->view = node->facts[0] == 0 && !m->linear_function;
    tdm_cublas(m);
    return x;
}

static void linear_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    bool has_bias = node->inputs == 3, input_first = has_bias || m->linear_function;
    struct tdm_eager_value *saved[2] = {0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    if (input_first && tdm_node_needs(node, LINEAR_X))
        results[LINEAR_X] = input_gradient(m, node, grads[0]);
    if (tdm_node_needs(node, LINEAR_WEIGHT))
        results[LINEAR_WEIGHT] = weight_gradient(m, node, grads[0]);
    if (!input_first && tdm_node_needs(node, LINEAR_X))
        results[LINEAR_X] = input_gradient(m, node, grads[0]);
    if (has_bias && tdm_node_needs(node, LINEAR_BIAS))
        results[LINEAR_BIAS] = tdm_take(grads[0]);
    tdm_drop(m, saved[0]);
    tdm_drop(m, saved[1]);
}

struct tdm_eager_value *tdm_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                   struct tdm_eager_value *weight, struct tdm_eager_value *bias,
                                   bool flat)
{
    static const struct tdm_eager_op mm = {"MmBackward0", false, linear_backward},
                                     addmm = {"AddmmBackward0", true, linear_backward},
                                     own = {"LinearFunctionForZeroStage3Backward", false,
                                            linear_backward};
    if (weight->quantized != NULL)
        return tdm_quantized_linear(m, x, weight, bias);
    if (weight->float8 == TDM_FLOAT8_TE)
        return tdm_te_linear(m, x, weight, bias);
    if (weight->float8 != TDM_FLOAT8_NO)
        return tdm_float8_linear(m, x, weight, bias);
    struct tdm_eager_value *b = tdm_autocast(m, bias), *w = tdm_autocast(m, weight),
                           *a = tdm_autocast(m, x);
    struct tdm_eager_value *inputs[] = {a, w, b};
    bool function = m->linear_function;
    struct tdm_node *node = tdm_node_new(m,
                                         function    ? &own
                                         : b != NULL ? &addmm
                                                     : &mm,
                                         inputs, b != NULL ? 3 : 2);
    if (node != NULL)
        node->facts[0] = flat;
    if (function || tdm_node_needs(node, LINEAR_WEIGHT))
        tdm_node_save(m, node, a);
    if (function || tdm_node_needs(node, LINEAR_X))
        tdm_node_save(m, node, w);
    struct tdm_eager_value *y =
        tdm_value_selected(m, a->rows, w->rows, a->element_bytes, b == NULL);
    y->view = !flat;
    if (b != NULL && !function) /* the Function adds the bias in place */
        tdm_cublaslt(m);
    else
        tdm_cublas(m);
    tdm_node_finish(m, node, y);
    tdm_drop(m, a);
    tdm_drop(m, w);
    tdm_drop(m, b);
    return y;
}

static void bmm_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[2] = {0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    for (uint32_t i = 2; i-- > 0;) {
        if (!tdm_node_needs(node, i))
            continue;
        const struct tdm_edge *edge = &node->edges[i];
        results[i] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
        results[i]->view = true;
        tdm_cublas(m);
    }
    tdm_drop(m, saved[0]);
    tdm_drop(m, saved[1]);
}

struct tdm_eager_value *tdm_bmm(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b, uint64_t rows, uint64_t columns)
{
    static const struct tdm_eager_op op = {"BmmBackward0", false, bmm_backward};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (tdm_node_needs(node, 1))
        tdm_node_save(m, node, a);
    if (tdm_node_needs(node, 0))
        tdm_node_save(m, node, b);
    struct tdm_eager_value *y = tdm_value_new(m, rows, columns, a->element_bytes);
    tdm_cublas(m);
    return tdm_node_finish(m, node, y);
}

/* ---- look-up ---- */

static void embedding_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    struct tdm_eager_value *ids = tdm_node_saved(m, node, 0);
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_embedding_gradient(m, edge->rows, edge->columns, grads[0]->element_bytes,
                                        node->facts[0]);
    tdm_drop(m, ids);
}

struct tdm_eager_value *tdm_embedding(struct tdm_eager *m, struct tdm_eager_value *weight,
                                      struct tdm_eager_value *ids, uint64_t tokens)
{
    static const struct tdm_eager_op op = {"EmbeddingBackward0", false, embedding_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &weight, 1);
    if (node != NULL)
        node->facts[0] = tokens;
    tdm_node_save(m, node, ids);
    return tdm_node_finish(m, node,
                           tdm_value_new(m, tokens, weight->columns, weight->element_bytes));
}
