/* SPDX-License-Identifier: Apache-2.0 */
/* Llama 4's mixture as transformers has it: every expert computes all tokens, which are weighted
 * before; weights of experts that were not chosen are 0. A shared expert has every token. Source:
 * transformers 5.17, models/llama4/modeling_llama4.py (Llama4TextMoe, Llama4Router,
 * Llama4TextExperts). */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

static void gather_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *indices = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, indices);
}

/* The scores of the chosen experts at their places, and 0 elsewhere, after a sigmoid in fp32. */
static struct tdm_eager_value *route(struct tdm_eager *m, const struct tdm_torch_model *t,
                                     struct tdm_eager_value *weight, struct tdm_eager_value *x,
                                     struct tdm_eager_value **logits)
{
    static const struct tdm_eager_op op = {"ScatterBackward0", false, gather_backward};
    struct tdm_eager_value *indices;
    *logits = tdm_linear(m, x, weight, NULL, true);
    struct tdm_eager_value *most =
        tdm_torch_topk(m, *logits, t->config->experts.per_token, &indices);
    struct tdm_node *node = tdm_node_new(m, &op, &most, 1);
    tdm_node_save(m, node, indices);
    struct tdm_eager_value *scores = tdm_node_finish(m, node, tdm_value_like(m, *logits));
    struct tdm_eager_value *wide = tdm_cast(m, scores, FP32);
    wide = tdm_replace(m, wide, tdm_sigmoid(m, wide));
    scores = tdm_replace(m, scores, tdm_cast(m, wide, scores->element_bytes));
    tdm_drop(m, wide);
    tdm_drop(m, indices);
    tdm_drop(m, most);
    return scores;
}

/* repeat(experts, 1): a copy, whose gradient is summed. */
static struct tdm_eager_value *repeat_rows(struct tdm_eager *m, struct tdm_eager_value *x,
                                           uint64_t times)
{
    struct tdm_eager_value *view = tdm_stretch(m, x, x->rows * times, x->columns);
    struct tdm_eager_value *y = tdm_clone(m, view);
    tdm_drop(m, view);
    return y;
}

/* The sum over experts. The gradient is a view of more rows, which is copied. */
static void copy_to_all(struct tdm_eager *m, struct tdm_node *node,
                        struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
}

static struct tdm_eager_value *sum_experts(struct tdm_eager *m, struct tdm_eager_value *x,
                                           uint64_t rows)
{
    static const struct tdm_eager_op op = {"SumBackward1", false, copy_to_all};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return tdm_node_finish(m, node, tdm_value_new(m, rows, x->columns, x->element_bytes));
}

static struct tdm_eager_value *run_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           const struct torch_layer *layer,
                                           struct tdm_eager_value *rows)
{
    struct tdm_eager_value *gate, *up;
    uint64_t width = t->config->experts.intermediate;
    struct tdm_eager_value *both = tdm_bmm(m, rows, layer->experts_gate_up, rows->rows, 2 * width);
    tdm_halves(m, both, &gate, &up);
    struct tdm_eager_value *active = tdm_activate(m, t->config->activation, gate);
    struct tdm_eager_value *product = tdm_mul(m, up, active);
    tdm_drop(m, active);
    struct tdm_eager_value *y = tdm_bmm(m, product, layer->experts_down, rows->rows, rows->columns);
    tdm_drop(m, product);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    tdm_drop(m, both);
    return y;
}

/* A product of the shared expert: a projection if it has an adapter. */
static struct tdm_eager_value *project(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       const struct torch_layer *shared, enum tdm_projection p,
                                       struct tdm_eager_value *x, bool flat)
{
    return shared->down[p] != NULL ? tdm_torch_project(m, t, shared, p, x)
                                   : tdm_linear(m, x, shared->weight[p], NULL, flat);
}

struct tdm_eager_value *tdm_torch_shared_expert(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                const struct torch_layer *layer,
                                                struct tdm_eager_value *x, bool flat)
{
    const struct torch_layer *shared = layer->shared;
    struct tdm_eager_value *gate = project(m, t, shared, TDM_PROJECTION_GATE, x, flat);
    gate = tdm_replace(m, gate, tdm_activate(m, t->config->activation, gate));
    struct tdm_eager_value *up = project(m, t, shared, TDM_PROJECTION_UP, x, flat);
    struct tdm_eager_value *product = tdm_mul(m, gate, up);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    struct tdm_eager_value *y = project(m, t, shared, TDM_PROJECTION_DOWN, product, flat);
    tdm_drop(m, product);
    return y;
}

struct tdm_eager_value *tdm_torch_all_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              const struct torch_layer *layer,
                                              struct tdm_eager_value *x)
{
    uint64_t experts = t->config->experts.count;
    struct tdm_eager_value *flat = tdm_reshape(m, x, x->rows, x->columns), *logits;
    struct tdm_eager_value *scores = route(m, t, layer->router, flat, &logits);
    struct tdm_eager_value *rows = repeat_rows(m, flat, experts);
    struct tdm_eager_value *turned = tdm_value_new(m, rows->rows, 1, scores->element_bytes);
    static const struct tdm_eager_op clone = {"CloneBackward0", false, copy_to_all};
    struct tdm_node *node = tdm_node_new(m, &clone, &scores, 1);
    tdm_node_finish(m, node, turned);
    struct tdm_eager_value *weighted = tdm_mul(m, rows, turned);
    tdm_drop(m, turned);
    rows = tdm_replace(m, rows, weighted);
    struct tdm_eager_value *routed = run_experts(m, t, layer, rows);
    struct tdm_eager_value *out = tdm_torch_shared_expert(m, t, layer, flat, true);
    struct tdm_eager_value *sum = sum_experts(m, routed, flat->rows);
    struct tdm_eager_value *y = tdm_add_in_place(m, out, sum);
    struct tdm_eager_value *rest[] = {sum, out, routed, rows, scores, logits, flat};
    for (unsigned i = 0; i < sizeof(rest) / sizeof(rest[0]); i++)
        tdm_drop(m, rest[i]);
    return y;
}
