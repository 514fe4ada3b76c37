/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts of Megatron-Core: router, dispatch by all-to-all, grouped products over this
 * rank's experts, and shared experts. Tokens are spread evenly over the experts; with
 * moe_pad_expert_input_to_capacity they are, in other runs it is an assumption. An expert's
 * capacity is its even share times moe_expert_capacity_factor, rounded up (moe_utils.py,
 * get_capacity). Sources: megatron/core/transformer/moe/{moe_layer,router,token_dispatcher,experts,
 * shared_experts,moe_utils}.py, fusions/fused_bias_swiglu.py (WeightedSwiGLUFunction);
 * transformer_engine/pytorch/{permutation,module/grouped_linear}.py, triton/permutation.py.
 */
#include "methods/megatron/parts.h"

#include "base/size.h"

#include <math.h>

static struct tdm_eager_value *made(struct tdm_megatron *t, uint64_t rows, uint64_t columns,
                                    uint16_t element_bytes)
{
    return tdm_value_new(t->m, rows, columns, element_bytes);
}

/* ---- the router ---- */

static void router_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct megatron_kept saved = {.count = 0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        megatron_keep(m, &saved, tdm_node_saved(m, node, i));
    const struct tdm_eager_value *x = saved.values[0];
    uint64_t rows = grads[0]->rows, experts = grads[0]->columns;
    struct tdm_eager_value *scores = made(t, rows, experts, FP32);
    struct tdm_eager_value *logits = made(t, rows, experts, BF16);
    struct tdm_eager_value *wide =
        t->set.wide_router ? made(t, x->rows, x->columns, FP32) : NULL; /* the input again */
    results[0] = tdm_value_like(m, x);
    results[1] = made(t, experts, x->columns, BF16);
    tdm_drop(m, wide);
    tdm_drop(m, logits);
    tdm_drop(m, scores);
    megatron_drop_all(m, &saved);
}

/* Probabilities of all experts for every token, zero for those not chosen. The dispatcher holds
 * them and the map of chosen ones as long as the graph lives. */
static struct tdm_eager_value *route(struct tdm_megatron *t, struct tdm_eager_value *x,
                                     struct tdm_eager_value *weight)
{
    static const struct tdm_eager_op op = {"TopKRouterBackward", false, router_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    uint64_t experts = weight->rows, chosen = t->config->experts.per_token;
    struct tdm_eager_value *logits = made(t, x->rows, experts, t->set.wide_router ? FP32 : BF16);
    struct tdm_eager_value *const saved[] = {
        x,
        made(t, x->rows, experts, FP32), /* scores, and those of the auxiliary loss */
        made(t, x->rows, experts, FP32),
        made(t, x->rows, chosen, INT64), /* indices */
        made(t, x->rows, experts, BOOL), /* the map of chosen experts */
    };
    megatron_product(t);
    struct tdm_eager_value *counts = made(t, x->rows, experts, INT32);
    struct tdm_eager_value *probabilities = made(t, x->rows, experts, BF16);
    tdm_drop(m, counts);
    for (unsigned i = 0; i < sizeof(saved) / sizeof(saved[0]); i++) {
        tdm_node_save(m, node, saved[i]);
        if (i > 0)
            tdm_drop(m, saved[i]);
    }
    if (t->set.pads_experts) { /* what is beyond the capacity is masked */
        struct tdm_eager_value *mask = made(t, x->rows, experts, BOOL);
        tdm_node_save(m, node, mask);
        tdm_drop(m, mask);
        tdm_node_save(m, node, probabilities);
        probabilities = tdm_replace(m, probabilities, made(t, x->rows, experts, BF16));
    }
    tdm_drop(m, logits);
    return megatron_finish(t, node, probabilities);
}

/* ---- moving tokens ---- */

static void like_edges(struct tdm_eager *m, struct tdm_node *node,
                       struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    for (uint32_t i = 0; i < node->inputs; i++)
        if (tdm_node_needs(node, i))
            results[i] = tdm_value_new(m, node->edges[i].rows, node->edges[i].columns,
                                       node->edges[i].element_bytes);
}

/* Copies of each token for all its experts, and the map of rows by which they go back. */
static struct tdm_eager_value *permute(struct tdm_megatron *t, struct tdm_eager_value *x,
                                       struct tdm_eager_value *probabilities, uint64_t rows,
                                       struct tdm_eager_value **map)
{
    static const struct tdm_eager_op op = {"_moe_permute_mask_mapBackward", false, like_edges};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {x, probabilities};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    *map = t->set.permute_fusion ? made(t, x->rows, 2 * probabilities->columns + 1, INT32)
                                 : made(t, rows, 2, INT64); /* sorted, and those of tokens */
    struct tdm_eager_value *turned = NULL, *order = NULL;
    if (!t->set.permute_fusion) { /* the map by experts, and the order of all its entries */
        turned = made(t, probabilities->columns, x->rows, BOOL);
        order = made(t, probabilities->columns, x->rows, INT64);
    }
    struct tdm_eager_value *y = made(t, rows, x->columns, BF16);
    tdm_drop(m, order);
    tdm_drop(m, turned);
    tdm_node_save(m, node, *map);
    return megatron_finish(t, node, y);
}

/* An all-to-all, or rows in another order: as many rows, or `rows` of them. */
static struct tdm_eager_value *moved(struct tdm_megatron *t, struct tdm_eager_value *x,
                                     uint64_t rows)
{
    static const struct tdm_eager_op op = {"_AllToAllBackward", false, like_edges};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    return megatron_finish(t, node, made(t, rows, x->columns, x->element_bytes));
}

/* Sums of each token's rows. */
static struct tdm_eager_value *unpermute(struct tdm_megatron *t, struct tdm_eager_value *x,
                                         struct tdm_eager_value *map, uint64_t rows)
{
    static const struct tdm_eager_op op = {"_moe_unpermute_mask_mapBackward", false, like_edges};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    tdm_node_save(t->m, node, map);
    return megatron_finish(t, node, made(t, rows, x->columns, BF16));
}

/* ---- this rank's experts ---- */

/* Weights of all experts have one shape, so one stand-in serves for all of their gradients. */
static void grouped_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0);
    (void)grads;
    results[0] = tdm_value_new(m, node->edges[0].rows, node->edges[0].columns, BF16);
    megatron_grouped_product(t);
    if (t->set.fused_gradients)
        megatron_dummy(t, node->facts[0], node->facts[1]);
    tdm_drop(m, x);
}

/* Products of all local experts: of fc1 (0) or of fc2 (1). */
static struct tdm_eager_value *grouped(struct tdm_megatron *t, struct tdm_eager_value *x,
                                       const struct megatron_layer *layer, unsigned which)
{
    const struct tdm_eager_value *weight = layer->experts[which];
    if (megatron_is_float8(weight))
        return megatron_float8_grouped(t, x, layer->experts + which, layer->local_experts, 2);
    static const struct tdm_eager_op op = {"_GroupedLinearBackward", false, grouped_backward};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    if (node != NULL) {
        node->facts[0] = weight->rows;
        node->facts[1] = weight->columns;
    }
    struct tdm_eager_value *y = made(t, x->rows, weight->rows, BF16);
    megatron_grouped_product(t);
    tdm_node_save(t->m, node, x);
    return megatron_finish(t, node, y);
}

static void weighted_backward(struct tdm_eager *m, struct tdm_node *node,
                              struct tdm_eager_value *const *grads,
                              struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *weights = tdm_node_saved(m, node, 1);
    (void)grads;
    results[0] = tdm_value_like(m, x);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_like(m, weights);
    tdm_drop(m, weights);
    tdm_drop(m, x);
}

static struct tdm_eager_value *weighted(struct tdm_megatron *t, struct tdm_eager_value *x,
                                        struct tdm_eager_value *weights)
{
    static const struct tdm_eager_op op = {"WeightedSwiGLUFunctionBackward", false,
                                           weighted_backward};
    struct tdm_eager_value *inputs[] = {x, weights};
    struct tdm_node *node = tdm_node_new(t->m, &op, inputs, 2);
    tdm_node_save(t->m, node, x);
    tdm_node_save(t->m, node, weights);
    return megatron_finish(t, node, made(t, x->rows, x->columns / 2, BF16));
}

static struct tdm_eager_value *run_experts(struct tdm_megatron *t,
                                           const struct megatron_layer *layer,
                                           struct tdm_eager_value *x,
                                           struct tdm_eager_value *weights)
{
    struct tdm_eager *m = t->m;
    tdm_label(m, "mlp.experts.linear_fc1");
    struct tdm_eager_value *wide = grouped(t, x, layer, 0);
    tdm_label(m, "mlp.experts.activation");
    struct tdm_eager_value *active = weighted(t, wide, weights);
    tdm_label(m, "mlp.experts.linear_fc2");
    struct tdm_eager_value *y = grouped(t, active, layer, 1);
    if (megatron_recomputes(t, TDM_RECOMPUTED_MOE_ACT))
        y = tdm_discard(m, y, &active, 1);
    tdm_drop(m, active);
    tdm_drop(m, wide);
    return y;
}

/* ---- the layer ---- */

struct tdm_eager_value *megatron_shared_experts(struct tdm_megatron *t,
                                                const struct megatron_layer *layer,
                                                struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    tdm_label(m, "mlp.shared_experts");
    struct tdm_eager_value *wide = megatron_linear(t, x, layer->shared_fc1, true);
    struct tdm_eager_value *active = megatron_activation(t, wide, NULL);
    struct tdm_eager_value *y = megatron_row_linear(t, active, layer->shared_fc2, NULL);
    tdm_drop(m, active);
    tdm_drop(m, wide);
    return y;
}

uint64_t megatron_routed_rows(const struct tdm_megatron *t)
{
    const struct tdm_experts *e = &t->config->experts;
    uint64_t rows = t->part_rows * e->per_token;
    double factor = t->set.capacity_factor;
    if (factor == 0) /* dropless, or padded to their even share */
        return t->set.pads_experts ? tdm_size_ceil_div(rows, e->count) * e->count : rows;
    uint64_t capacity = (uint64_t)ceil((double)rows / e->count * factor) * e->count;
    return t->set.pads_experts || capacity < rows ? capacity : rows;
}

/* moe_layer.py shared_experts_compute */
static struct tdm_eager_value *run_shared(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                          struct tdm_eager_value *x)
{
    return megatron_recomputes(t, TDM_RECOMPUTED_SHARED_EXPERTS)
               ? megatron_checkpoint(t, REGION_SHARED, chunk, number, 1, &x, 1)
               : megatron_shared_experts(t, &t->chunks[chunk].layers[number], x);
}

struct tdm_eager_value *megatron_mixture(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                         struct tdm_eager_value *normed)
{
    struct tdm_eager *m = t->m;
    const struct megatron_layer *layer = &t->chunks[chunk].layers[number];
    struct megatron_kept kept = {.count = 0}; /* names that live until the function returns */
    uint64_t rows = megatron_routed_rows(t), gathered = rows * t->layout.expert_tensor;
    bool several = layer->local_experts > 1;
    struct tdm_eager_value *shared =
        layer->shared_fc1 != NULL ? megatron_keep(m, &kept, run_shared(t, chunk, number, normed))
                                  : NULL;
    tdm_label(m, "mlp.router");
    struct tdm_eager_value *probabilities =
        megatron_keep(m, &kept, route(t, normed, layer->router));
    struct tdm_eager_value *map;
    tdm_label(m, "mlp.token_dispatcher");
    struct tdm_eager_value *permuted =
        megatron_keep(m, &kept, permute(t, normed, probabilities, rows, &map));
    megatron_keep(m, &kept, map);
    struct tdm_eager_value *dispatched = permuted;
    if (t->layout.expert > 1)
        dispatched = megatron_keep(m, &kept, moved(t, permuted, rows));
    struct tdm_eager_value *weights = made(t, gathered, 1, t->set.wide_router ? FP32 : BF16);
    megatron_keep(m, &kept, weights);
    if (t->layout.expert_tensor > 1)
        dispatched = megatron_keep(m, &kept, moved(t, dispatched, gathered));
    struct tdm_eager_value *sorted =
        several ? moved(t, dispatched, gathered) : tdm_take(dispatched);
    struct tdm_eager_value *y = run_experts(t, layer, sorted, weights);
    tdm_label(m, "mlp.token_dispatcher");
    struct tdm_eager_value *back = several ? moved(t, y, gathered) : tdm_take(y);
    if (t->layout.expert_tensor > 1)
        back = tdm_replace(m, back, moved(t, back, rows));
    tdm_drop(m, y);
    tdm_drop(m, sorted);
    if (t->layout.expert > 1)
        back = tdm_replace(m, back, moved(t, back, rows));
    back = tdm_replace(m, back, unpermute(t, back, map, normed->rows));
    if (shared != NULL)
        back = tdm_replace(m, back, megatron_sum(t, back, shared));
    megatron_drop_all(m, &kept);
    return back;
}

struct tdm_eager_value *megatron_experts(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                         struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    const struct megatron_layer *layer = &t->chunks[chunk].layers[number];
    tdm_label(m, "pre_mlp_layernorm");
    struct tdm_eager_value *normed = megatron_norm(t, x, layer->mlp_norm, layer->mlp_norm_bias);
    struct tdm_eager_value *y =
        megatron_recomputes(t, TDM_RECOMPUTED_MOE)
            ? megatron_checkpoint(t, REGION_MOE, chunk, number, 1, &normed, 1)
            : megatron_mixture(t, chunk, number, normed);
    if (megatron_recomputes(t, TDM_RECOMPUTED_LAYERNORM))
        y = tdm_discard(m, y, &normed, 1);
    tdm_drop(m, normed);
    return y;
}
