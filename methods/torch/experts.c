/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts as transformers computes them on a GPU. A token's row is copied once for each
 * of its experts, and the rows, sorted by expert, enter grouped products. Memory does not depend on
 * which experts are chosen. Sources: transformers integrations/moe.py (grouped_mm_experts_forward),
 * modeling_olmoe.py, modeling_qwen3_moe.py, modeling_mixtral.py (routers); torch's grouped_mm,
 * index and topk, as recorded. */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

#define CUB_SORT_BYTES 16895u
#define CUB_SHORT_SCAN_BYTES 1023u
#define CUB_PUT_BYTES 6655u    /* for the sort in index_put, besides two copies of the keys */
#define GROUP_BYTES 60u        /* per expert: pointers and shapes of a grouped product */
#define GROUP_BLOCK_BYTES 512u /* per multiprocessor */

static void spread_rows(struct tdm_eager *m, struct tdm_node *node,
                        struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    uint64_t pairs = grads[0]->rows;
    struct tdm_eager_value *saved = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    struct tdm_eager_value *rest = tdm_value_new(m, pairs, 1, INT64);
    struct tdm_eager_value *scaled = tdm_value_new(m, pairs, 1, INT64);
    tdm_drop(m, rest);
    struct tdm_eager_value *scratch[] = {
        tdm_value_new(m, pairs, 1, INT64), tdm_value_new(m, pairs, 1, INT64),
        tdm_value_new(m, pairs, 1, INT64), tdm_value_new(m, 16 * pairs + CUB_PUT_BYTES, 1, 1)};
    for (unsigned i = 4; i-- > 0;)
        tdm_drop(m, scratch[i]);
    tdm_drop(m, scaled);
    tdm_drop(m, saved);
}

struct tdm_eager_value *tdm_torch_pick_rows(struct tdm_eager *m, struct tdm_eager_value *x,
                                            struct tdm_eager_value *index, uint64_t rows)
{
    static const struct tdm_eager_op op = {"IndexBackward0", false, spread_rows};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, index);
    struct tdm_eager_value *y = tdm_value_new(m, rows, x->columns, x->element_bytes);
    return tdm_node_finish(m, node, y);
}

static void unmask(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                   struct tdm_eager_value **results)
{
    struct tdm_eager_value *mask = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, mask);
}

/* masked_fill. In place, the result shares the storage of x. */
static struct tdm_eager_value *fill(struct tdm_eager *m, struct tdm_eager_value *x,
                                    struct tdm_eager_value *mask, bool in_place)
{
    static const struct tdm_eager_op op = {"MaskedFillBackward0", false, unmask};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, mask);
    struct tdm_eager_value *y = in_place ? tdm_value_view(m, x) : tdm_value_like(m, x);
    return tdm_node_finish(m, node, y);
}

static void group_scratch(struct tdm_eager *m, uint64_t experts, const struct tdm_eager_value *x)
{
    if (x->element_bytes != BF16)
        return;
    struct tdm_eager_value *groups = tdm_value_new(m, experts, GROUP_BYTES, 1);
    struct tdm_eager_value *blocks = tdm_value_new(m, m->gpu.multiprocessors, GROUP_BLOCK_BYTES, 1);
    tdm_drop(m, blocks);
    tdm_drop(m, groups);
}

static void grouped_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[3] = {0};
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    for (uint32_t i = 2; i-- > 0;) {
        const struct tdm_edge *edge = &node->edges[i];
        if (!tdm_node_needs(node, i))
            continue;
        results[i] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
        group_scratch(m, node->facts[0], grads[0]);
    }
    for (uint32_t i = 0; i < 3; i++)
        tdm_drop(m, saved[i]);
}

struct tdm_eager_value *tdm_torch_grouped_product(struct tdm_eager *m, struct tdm_eager_value *x,
                                                  struct tdm_eager_value *weight,
                                                  struct tdm_eager_value *offsets, uint64_t experts)
{
    static const struct tdm_eager_op op = {"GroupedMmBackward0", false, grouped_backward};
    struct tdm_eager_value *input = tdm_cast(m, x, weight->element_bytes);
    struct tdm_eager_value *inputs[] = {input, weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (node != NULL)
        node->facts[0] = experts;
    if (tdm_node_needs(node, 1))
        tdm_node_save(m, node, input);
    if (tdm_node_needs(node, 0))
        tdm_node_save(m, node, weight);
    tdm_node_save(m, node, offsets);
    struct tdm_eager_value *y =
        tdm_value_new(m, input->rows, weight->rows / experts, input->element_bytes);
    group_scratch(m, experts, input);
    tdm_node_finish(m, node, y);
    tdm_drop(m, input);
    return y;
}

static void topk_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *indices = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, indices);
}

struct tdm_eager_value *tdm_torch_topk(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t k,
                                       struct tdm_eager_value **indices)
{
    static const struct tdm_eager_op op = {"TopkBackward0", false, topk_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, k, x->element_bytes);
    *indices = tdm_value_new(m, x->rows, k, INT64);
    tdm_node_save(m, node, *indices);
    return tdm_node_finish(m, node, y);
}

static void divide_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[2];
    for (uint32_t i = 0; i < 2; i++)
        saved[i] = tdm_node_saved(m, node, i);
    struct tdm_eager_value *quotients[3];
    for (unsigned i = 0; i < 3; i++)
        quotients[i] = tdm_value_like(m, grads[0]);
    results[1] = tdm_value_like(m, grads[0]);
    for (unsigned i = 3; i-- > 0;)
        tdm_drop(m, quotients[i]);
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, saved[0]);
    tdm_drop(m, saved[1]);
}

/* x /= its row sums, in place. Takes ownership of x. */
static struct tdm_eager_value *normalize(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"DivBackward0", false, divide_backward};
    struct tdm_eager_value *sum = tdm_row_sum(m, x, x->rows);
    struct tdm_eager_value *inputs[] = {x, sum};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    if (node != NULL) {
        struct tdm_eager_value *before = tdm_value_like(m, x);
        tdm_node_save(m, node, before);
        tdm_node_save(m, node, sum);
        tdm_drop(m, before);
    }
    struct tdm_eager_value *y = tdm_value_view(m, x);
    tdm_node_finish(m, node, y);
    tdm_drop(m, sum);
    tdm_drop(m, x);
    return y;
}

/* scores.gather(1, indices). */
struct tdm_eager_value *tdm_torch_gather(struct tdm_eager *m, struct tdm_eager_value *scores,
                                         struct tdm_eager_value *indices)
{
    static const struct tdm_eager_op op = {"GatherBackward0", false, topk_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &scores, 1);
    tdm_node_save(m, node, indices);
    return tdm_node_finish(
        m, node, tdm_value_new(m, indices->rows, indices->columns, scores->element_bytes));
}

/* DeepSeek V2's router in fp32: a softmax, of which the experts of other groups become 0. Takes the
 * scores. Returns the weights. */
static struct tdm_eager_value *route_greedily(struct tdm_eager *m,
                                              const struct tdm_experts *experts,
                                              struct tdm_eager_value *scores,
                                              struct tdm_eager_value **indices)
{
    struct tdm_eager_value *locals[4] = {0};
    if (experts->router == TDM_ROUTER_LIMITED_GREEDY) {
        struct tdm_eager_value *by_group = tdm_reshape(m, scores, scores->rows * experts->groups,
                                                       experts->count / experts->groups);
        locals[0] = tdm_row_max(m, by_group);
        tdm_drop(m, by_group);
        tdm_drop(m, tdm_torch_topk(m, locals[0], 1, &locals[1]));
        locals[2] = tdm_value_like(m, locals[0]);
        locals[3] = experts->groups > 1 ? tdm_value_like(m, scores) : NULL;
        struct tdm_eager_value *mask = tdm_value_new(m, scores->rows, scores->columns, BOOL);
        struct tdm_eager_value *inverse = tdm_value_like(m, mask);
        tdm_drop(m, mask);
        scores = tdm_replace(m, scores, fill(m, scores, inverse, false));
        tdm_drop(m, inverse);
    }
    struct tdm_eager_value *weights = tdm_torch_topk(m, scores, experts->per_token, indices);
    weights = tdm_replace(m, weights, tdm_mul_number(m, weights));
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    tdm_drop(m, scores);
    return weights;
}

/* GLM-4.5's router, in fp32: sigmoids, with a bias for the choice of groups and of experts in them,
 * whose places stay for no backward (modeling_glm4_moe.py Glm4MoeTopkRouter; dots.llm1 has the
 * same).
 */
static struct tdm_eager_value *route_groups(struct tdm_eager *m, const struct tdm_experts *experts,
                                            const struct torch_layer *layer,
                                            struct tdm_eager_value *x,
                                            struct tdm_eager_value **logits,
                                            struct tdm_eager_value **indices)
{
    struct tdm_eager_value *best[2], *places[2];
    struct tdm_eager_value *wide = tdm_cast(m, x, FP32), *weight = tdm_cast(m, layer->router, FP32);
    *logits = tdm_linear(m, wide, weight, NULL, true);
    tdm_drop(m, weight);
    tdm_drop(m, wide);
    if (experts->router != TDM_ROUTER_GROUPS)
        return route_greedily(m, experts, tdm_softmax(m, *logits), indices);
    struct tdm_eager_value *scores = tdm_sigmoid(m, *logits);
    struct tdm_eager_value *biased = tdm_add_number(m, scores);
    struct tdm_eager_value *by_group =
        tdm_reshape(m, biased, x->rows * experts->groups, experts->count / experts->groups);
    best[0] = tdm_torch_topk(m, by_group, 2, &places[0]);
    struct tdm_eager_value *sums = tdm_row_sum(m, best[0], x->rows * experts->groups);
    tdm_drop(m, best[0]);
    tdm_drop(m, places[0]);
    tdm_drop(m, by_group);
    best[1] = tdm_torch_topk(m, sums, 1, &places[1]);
    tdm_drop(m, best[1]);
    struct tdm_eager_value *mask = tdm_value_like(m, sums);
    struct tdm_eager_value *spread =
        experts->groups > 1 ? tdm_value_like(m, scores) : NULL; /* of one group a view */
    struct tdm_eager_value *chosen_mask = tdm_value_new(m, scores->rows, scores->columns, BOOL);
    struct tdm_eager_value *inverse = tdm_value_like(m, chosen_mask);
    tdm_drop(m, chosen_mask);
    biased = tdm_replace(m, biased, fill(m, biased, inverse, false));
    tdm_drop(m, inverse);
    tdm_drop(m, tdm_torch_topk(m, biased, experts->per_token, indices));
    struct tdm_eager_value *weights = tdm_torch_gather(m, scores, *indices);
    if (experts->normalized)
        weights = normalize(m, weights);
    weights = tdm_replace(m, weights, tdm_mul_number(m, weights));
    struct tdm_eager_value *locals[] = {spread, mask, places[1], sums, biased, scores};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return weights;
}

/* Scores of which a bias changes the choice alone. Takes the scores. */
static struct tdm_eager_value *route_by_scores(struct tdm_eager *m,
                                               const struct tdm_experts *experts,
                                               struct tdm_eager_value *scores,
                                               struct tdm_eager_value **indices)
{
    struct tdm_eager_value *for_choice = tdm_cast(m, scores, FP32);
    for_choice = tdm_replace(m, for_choice, tdm_add_number(m, for_choice));
    struct tdm_eager_value *best = tdm_torch_topk(m, for_choice, experts->per_token, indices);
    struct tdm_eager_value *weights = tdm_torch_gather(m, scores, *indices);
    if (experts->normalized)
        weights = normalize(m, weights);
    if (experts->router == TDM_ROUTER_LFM2)
        weights = tdm_replace(m, weights, tdm_mul_number(m, weights));
    tdm_drop(m, best);
    tdm_drop(m, for_choice);
    tdm_drop(m, scores);
    return weights;
}

/* Routers with products in fp32, or with sigmoids of single experts: modeling_ernie4_5_moe.py,
 * modeling_minimax_m2.py, modeling_lfm2_moe.py. */
static struct tdm_eager_value *
route_by_choice(struct tdm_eager *m, const struct tdm_experts *experts,
                const struct torch_layer *layer, struct tdm_eager_value *x,
                struct tdm_eager_value **logits, struct tdm_eager_value **indices)
{
    const bool softmax = experts->router == TDM_ROUTER_ERNIE;
    struct tdm_eager_value *input = tdm_cast(m, x, layer->router->element_bytes);
    *logits = tdm_linear(m, input, layer->router, NULL, true);
    tdm_drop(m, input);
    struct tdm_eager_value *wide =
        experts->router == TDM_ROUTER_LFM2 ? tdm_take(*logits) : tdm_cast(m, *logits, FP32);
    struct tdm_eager_value *scores = softmax ? tdm_softmax(m, wide) : tdm_sigmoid(m, wide);
    tdm_drop(m, wide);
    struct tdm_eager_value *weights = route_by_scores(m, experts, scores, indices);
    return softmax ? tdm_replace(m, weights, tdm_cast(m, weights, x->element_bytes)) : weights;
}

/* Weights of the chosen experts, in the dtype of the logits or fp32 (`wide`: where the family has
 * them so). */
static struct tdm_eager_value *route(struct tdm_eager *m, const struct tdm_experts *experts,
                                     const struct torch_layer *layer, struct tdm_eager_value *x,
                                     bool wide_weights, struct tdm_eager_value **logits,
                                     struct tdm_eager_value **indices)
{
    if (experts->groups > 0)
        return route_groups(m, experts, layer, x, logits, indices);
    if (experts->router >= TDM_ROUTER_ERNIE && experts->router != TDM_ROUTER_HUNYUAN)
        return route_by_choice(m, experts, layer, x, logits, indices);
    struct tdm_eager_value *input =
        experts->wide_router ? tdm_cast(m, x, layer->router->element_bytes) : tdm_take(x);
    *logits = tdm_linear(m, input, layer->router, layer->router_bias, true);
    tdm_drop(m, input);
    if (experts->biased) { /* GPT-OSS: the softmax is of what is chosen */
        struct tdm_eager_value *most = tdm_torch_topk(m, *logits, experts->per_token, indices);
        struct tdm_eager_value *chosen = tdm_softmax(m, most);
        tdm_drop(m, most);
        return chosen;
    }
    struct tdm_eager_value *wide = tdm_cast(m, *logits, FP32);
    if (experts->router == TDM_ROUTER_CHOSEN) { /* Granite: the same in fp32 */
        *logits = tdm_replace(m, *logits, wide);
        struct tdm_eager_value *most = tdm_torch_topk(m, wide, experts->per_token, indices);
        struct tdm_eager_value *soft = tdm_softmax(m, most);
        tdm_drop(m, most);
        struct tdm_eager_value *chosen = tdm_cast(m, soft, x->element_bytes);
        tdm_drop(m, soft);
        return chosen;
    }
    struct tdm_eager_value *shares = tdm_softmax(m, wide);
    tdm_drop(m, wide);
    struct tdm_eager_value *chosen = tdm_torch_topk(m, shares, experts->per_token, indices);
    if (experts->normalized)
        chosen = normalize(m, chosen);
    struct tdm_eager_value *weights = tdm_cast(
        m, chosen, wide_weights && experts->wide_weights ? FP32 : (*logits)->element_bytes);
    tdm_drop(m, chosen);
    tdm_drop(m, shares);
    return weights;
}

struct tdm_eager_value *tdm_torch_sort(struct tdm_eager *m, uint64_t count,
                                       struct tdm_eager_value **sorted)
{
    *sorted = tdm_value_new(m, count, 1, INT64);
    struct tdm_eager_value *order = tdm_value_new(m, count, 1, INT64);
    struct tdm_eager_value *range = tdm_value_new(m, count, 1, INT64);
    struct tdm_eager_value *cub = tdm_value_new(m, 16 * count + count / 4 + CUB_SORT_BYTES, 1, 1);
    tdm_drop(m, cub);
    tdm_drop(m, range);
    return order;
}

/* The order of rows by expert, and where the rows of each expert begin. */
struct grouping {
    struct tdm_eager_value *sorted, *order, *tokens, *counts, *offsets, *narrow, *mask;
};

static struct grouping group(struct tdm_eager *m, uint64_t pairs)
{
    struct grouping g = {0};
    g.order = tdm_torch_sort(m, pairs, &g.sorted);
    g.tokens = tdm_value_new(m, pairs, 1, INT64);
    return g;
}

static void count(struct tdm_eager *m, uint64_t pairs, uint64_t experts, struct grouping *g)
{
    g->narrow = tdm_value_new(m, pairs, 1, INT32);
    g->counts = tdm_value_new(m, experts, 1, INT32);
    g->offsets = tdm_value_new(m, experts, 1, INT32);
    tdm_drop(m, tdm_value_new(m, CUB_SHORT_SCAN_BYTES, 1, 1));
    g->mask = tdm_value_new(m, pairs, 1, BOOL);
}

static void ungroup(struct tdm_eager *m, struct grouping *g)
{
    struct tdm_eager_value *values[] = {g->sorted,  g->order,  g->counts,
                                        g->offsets, g->narrow, g->mask};
    for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        tdm_drop(m, values[i]);
}

struct tdm_eager_value *tdm_torch_clamped_gate(struct tdm_eager *m, struct tdm_eager_value *both)
{
    struct tdm_eager_value *gate = tdm_columns(m, both, both->columns / 2),
                           *up = tdm_columns(m, both, both->columns / 2);
    gate = tdm_replace(m, gate, tdm_clamp(m, gate, 1));
    up = tdm_replace(m, up, tdm_clamp(m, up, 2));
    struct tdm_eager_value *sigmoid = tdm_mul_number(m, gate);
    sigmoid = tdm_replace(m, sigmoid, tdm_sigmoid(m, sigmoid));
    struct tdm_eager_value *active = tdm_mul(m, gate, sigmoid);
    tdm_drop(m, sigmoid);
    struct tdm_eager_value *more = tdm_add_number(m, up);
    struct tdm_eager_value *y = tdm_mul(m, more, active);
    tdm_drop(m, more);
    tdm_drop(m, active);
    tdm_drop(m, up);
    tdm_drop(m, gate);
    return y;
}

static struct tdm_eager_value *plain_gate(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          struct tdm_eager_value *both)
{
    struct tdm_eager_value *gate, *up;
    tdm_halves(m, both, &gate, &up);
    struct tdm_eager_value *active = tdm_activate(m, t->config->activation, gate);
    struct tdm_eager_value *y = tdm_mul(m, active, up);
    tdm_drop(m, active);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    return y;
}

/* A bias for each row, by its expert; NULL if experts have none. */
static struct tdm_eager_value *pick_bias(struct tdm_eager *m, struct tdm_eager_value *bias,
                                         const struct grouping *g, uint64_t pairs)
{
    return bias == NULL ? NULL : tdm_torch_pick_rows(m, bias, g->sorted, pairs);
}

/* sigmoid(gate(x)) * shared, added to what the chosen experts made: Qwen2-MoE's and Qwen3-Next's
 * block. Takes both results. */
static struct tdm_eager_value *add_shared(struct tdm_eager *m, const struct torch_layer *layer,
                                          struct tdm_eager_value *x, struct tdm_eager_value *made,
                                          struct tdm_eager_value *shared)
{
    struct tdm_eager_value *open = tdm_linear(m, x, layer->shared_expert_gate, NULL, true);
    open = tdm_replace(m, open, tdm_sigmoid(m, open));
    shared = tdm_replace(m, shared, tdm_mul(m, open, shared));
    tdm_drop(m, open);
    struct tdm_eager_value *y = tdm_add(m, made, shared);
    tdm_drop(m, made);
    tdm_drop(m, shared);
    return y;
}

/* hidden_states + shared_experts(residuals), an MLP: GLM-4.5. Takes `made`. */
static struct tdm_eager_value *add_plain_shared(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                const struct torch_layer *layer,
                                                struct tdm_eager_value *x,
                                                struct tdm_eager_value *made)
{
    struct tdm_eager_value *shared = tdm_torch_shared_expert(m, t, layer, x, false);
    struct tdm_eager_value *y = tdm_add(m, made, shared);
    tdm_drop(m, shared);
    tdm_drop(m, made);
    return y;
}

/* Experts that are joined, by grouped products. */
static struct tdm_eager_value *run_grouped(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           const struct torch_layer *layer,
                                           struct tdm_eager_value *flat,
                                           struct tdm_eager_value *weights)
{
    const struct tdm_experts *experts = &t->config->experts;
    const uint64_t pairs = flat->rows * experts->per_token;
    struct tdm_eager_value *column = tdm_reshape(m, weights, pairs, 1);
    struct grouping g = group(m, pairs);
    struct tdm_eager_value *rows = tdm_torch_pick_rows(m, flat, g.tokens, pairs);
    tdm_drop(m, g.tokens);
    struct tdm_eager_value *shares = tdm_torch_pick_rows(m, column, g.order, pairs);
    count(m, pairs, experts->count, &g);
    struct tdm_eager_value *bias = pick_bias(m, layer->experts_gate_up_bias, &g, pairs);
    struct tdm_eager_value *input = fill(m, rows, g.mask, true);
    tdm_drop(m, rows);
    struct tdm_eager_value *made =
        tdm_torch_grouped_product(m, input, layer->experts_gate_up, g.offsets, experts->count);
    if (bias != NULL)
        made = tdm_replace(m, made, tdm_add_in_place(m, made, bias));
    struct tdm_eager_value *both = fill(m, made, g.mask, false);
    tdm_drop(m, made);
    struct tdm_eager_value *product =
        experts->biased ? tdm_torch_clamped_gate(m, both) : plain_gate(m, t, both);
    tdm_drop(m, both);
    if (bias != NULL)
        bias = tdm_replace(m, bias, pick_bias(m, layer->experts_down_bias, &g, pairs));
    made = tdm_torch_grouped_product(m, product, layer->experts_down, g.offsets, experts->count);
    if (bias != NULL)
        made = tdm_replace(m, made, tdm_add_in_place(m, made, bias));
    tdm_drop(m, product);
    struct tdm_eager_value *output = fill(m, made, g.mask, false);
    tdm_drop(m, made);
    struct tdm_eager_value *weighted = tdm_mul(m, output, shares);
    struct tdm_eager_value *inverse = tdm_value_new(m, pairs, 1, INT64);
    tdm_drop(m, tdm_value_new(m, pairs, 1, INT64));
    struct tdm_eager_value *restored = tdm_torch_pick_rows(m, weighted, inverse, pairs);
    tdm_drop(m, weighted);
    struct tdm_eager_value *sum = tdm_row_sum(m, restored, flat->rows);
    struct tdm_eager_value *y = tdm_cast(m, sum, flat->element_bytes);
    tdm_drop(m, sum);
    tdm_drop(m, restored);
    struct tdm_eager_value *locals[] = {inverse, output, input, shares, column, bias};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    ungroup(m, &g);
    if (tdm_expert_parts(&t->settings) >
        1) /* what all ranks made, summed: a functional all-reduce */
        y = tdm_replace(m, y, tdm_clone(m, y));
    return y;
}

struct tdm_eager_value *tdm_torch_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer,
                                          struct tdm_eager_value *x)
{
    const struct tdm_experts *experts = &t->config->experts;
    struct tdm_eager_value *logits, *indices, *shared = NULL;
    const bool hunyuan = experts->router == TDM_ROUTER_HUNYUAN,
               has_shared = experts->shared_first && experts->shared > 0;
    struct tdm_eager_value *flat = tdm_reshape(m, x, x->rows, x->columns);
    if (has_shared && layer->experts == NULL)
        shared = tdm_torch_shared_expert(m, t, layer, hunyuan ? x : flat, !hunyuan);
    struct tdm_eager_value *weights =
        route(m, experts, layer, flat, layer->experts == NULL, &logits, &indices);
    struct tdm_eager_value *y = layer->experts != NULL
                                    ? tdm_torch_each_expert(m, t, layer, flat, weights)
                                    : run_grouped(m, t, layer, flat, weights);
    if (has_shared && layer->experts != NULL)
        shared = tdm_torch_shared_expert(m, t, layer, flat, true);
    if (shared != NULL && layer->shared_expert_gate != NULL) {
        y = add_shared(m, layer, flat, y, shared);
    } else if (shared != NULL) {
        y = tdm_replace(m, y, tdm_add(m, y, shared));
        tdm_drop(m, shared);
    } else if (experts->groups > 0 && layer->shared != NULL) {
        y = add_plain_shared(m, t, layer, x, y);
    }
    struct tdm_eager_value *rest[] = {weights, logits, indices, flat};
    for (unsigned i = 0; i < sizeof(rest) / sizeof(rest[0]); i++)
        tdm_drop(m, rest[i]);
    return y;
}
