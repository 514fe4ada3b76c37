/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed.moe.layer.MoE in place of a model's own mixture of experts: a gate in fp32, rows put
 * into places of a fixed number for each expert (its capacity), an all-to-all to the ranks that
 * have the experts and another one back, the local experts one after the other. An expert is a
 * module with gate, up and down, as Mixtral's. Which experts are chosen decides no size.
 * Source: DeepSpeed 0.19.6 moe/{layer,experts,sharded_moe}.py (MoE, Experts, TopKGate, top1gating,
 * top2gating, topkgating, MOELayer, _sparse_encode, _sparse_decode).
 */
#include "methods/deepspeed/parts.h"

#include "base/size.h"
#include "methods/eager/ops.h"

#include <math.h>
#include <stdlib.h>

/* Weights of an MLP. */
enum { MLP_GATE, MLP_UP, MLP_DOWN, MLP_WEIGHTS };
/* Those of a residual mixture: an MLP for every token, and how much of it counts. */
enum { RESIDUAL_MLP, RESIDUAL_SHARE = MLP_WEIGHTS, RESIDUAL_BIAS, RESIDUAL_WEIGHTS };
enum { WEIGHTED_SUMS = 2 }; /* its shares: of the experts' sum and of the MLP */

/* ---- sizes ---- */

static uint64_t local_experts(const struct tdm_torch_model *t)
{
    return t->config->experts.count / t->settings.deepspeed.ep_size;
}

uint64_t tdm_moe_capacity(const struct tdm_model *model, const struct tdm_deepspeed_settings *s,
                          uint64_t rows)
{
    const struct tdm_experts *experts = &model->experts;
    double factor = s->drop_tokens ? s->capacity_factor : 1; /* not dropped: equally many tokens */
    uint64_t capacity = (uint64_t)ceil((double)rows / experts->count * factor * experts->per_token);
    return s->drop_tokens && capacity < s->min_capacity ? s->min_capacity : capacity;
}

size_t tdm_moe_most_weights(const struct tdm_model *model)
{
    size_t of_layer = (size_t)model->experts.count * MLP_WEIGHTS + RESIDUAL_WEIGHTS;
    return model->experts.count == 0 ? 0 : model->layers * of_layer;
}

static uint64_t weights_of_layer(const struct tdm_torch_model *t)
{
    return local_experts(t) * MLP_WEIGHTS + RESIDUAL_WEIGHTS;
}

static uint64_t elements(const struct tdm_model *model)
{
    return (uint64_t)MLP_WEIGHTS * model->experts.intermediate * model->hidden;
}

double tdm_moe_expert_elements(const struct tdm_model *model,
                               const struct tdm_deepspeed_settings *s)
{
    double layers = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        layers += model->layer_kinds[i].experts;
    return layers * (double)elements(model) * (double)(model->experts.count / s->ep_size);
}

double tdm_moe_dense_elements(const struct tdm_model *model, const struct tdm_deepspeed_settings *s)
{
    double all = tdm_moe_expert_elements(model, s) * (double)s->ep_size, layers = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        layers += model->layer_kinds[i].experts;
    double residual =
        s->use_residual ? (double)elements(model) + WEIGHTED_SUMS * ((double)model->hidden + 1) : 0;
    return (double)model->parameters - all + layers * residual;
}

/* ---- weights ---- */

static void add_mlp(struct tdm_torch_model *t, uint32_t module, struct tdm_eager_value **weights)
{
    uint64_t width = t->config->experts.intermediate, hidden = t->config->hidden;
    for (unsigned i = 0; i < MLP_WEIGHTS; i++)
        weights[i] = tdm_torch_add_parameter(t, module, i == MLP_DOWN ? hidden : width,
                                             i == MLP_DOWN ? width : hidden, t->weight_bytes, true);
}

static struct tdm_eager_value **layer_weights(const struct tdm_torch_model *t, uint32_t number)
{
    return tdm_zero_of(t)->moe + number * weights_of_layer(t);
}

void tdm_moe_add(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_eager_value **weights = layer_weights(t, number);
    uint64_t local = local_experts(t);
    uint32_t module = tdm_layer_module(t->config->layers, 0) + (uint32_t)(number * (local + 1));
    tdm_label(t->m, "deepspeed_moe.experts");
    for (uint64_t i = 0; i < local; i++)
        add_mlp(t, module + (uint32_t)i, weights + i * MLP_WEIGHTS);
    if (!t->settings.deepspeed.use_residual)
        return;
    weights += local * MLP_WEIGHTS;
    module += (uint32_t)local;
    tdm_label(t->m, "mlp");
    add_mlp(t, module, weights);
    tdm_label(t->m, "coefficient");
    weights[RESIDUAL_SHARE] =
        tdm_torch_add_parameter(t, module, WEIGHTED_SUMS, t->config->hidden, t->weight_bytes, true);
    weights[RESIDUAL_BIAS] =
        tdm_torch_add_parameter(t, module, WEIGHTED_SUMS, 1, t->weight_bytes, true);
}

bool tdm_moe_is_expert(const struct tdm_torch_model *t, uint32_t module)
{
    uint32_t first = tdm_layer_module(t->config->layers, 0);
    return module >= first && (module - first) % (local_experts(t) + 1) < local_experts(t);
}

uint32_t tdm_moe_modules(const struct tdm_torch_model *t)
{
    return t->config->layers * (uint32_t)(local_experts(t) + 1);
}

bool tdm_moe_create(const struct tdm_torch_model *t, struct tdm_deepspeed *d)
{
    if (d->s.ep_size == 0)
        return true;
    size_t local = (size_t)local_experts(t);
    d->moe =
        calloc(t->config->layers * (size_t)weights_of_layer(t), sizeof(struct tdm_eager_value *));
    d->moe_parts = calloc(local, sizeof(struct tdm_eager_value *));
    d->moe_gradients = calloc(local, sizeof(struct tdm_eager_value *));
    return d->moe != NULL && d->moe_parts != NULL && d->moe_gradients != NULL;
}

/* ---- the gate ---- */

/* Scratch of so many elements, which is freed at once. */
static void scratch(struct tdm_eager *m, uint64_t rows, uint64_t columns, uint16_t bytes)
{
    tdm_drop(m, tdm_value_new(m, rows, columns, bytes));
}

/* A mask by experts, [tokens, experts] in int64: one_hot of a column of indices. */
static struct tdm_eager_value *one_hot(struct tdm_eager *m, const struct tdm_eager_value *gates)
{
    return tdm_value_new(m, gates->rows, gates->columns, INT64);
}

/* cumsum(mask) - 1. */
static struct tdm_eager_value *places(struct tdm_eager *m, const struct tdm_eager_value *mask)
{
    struct tdm_eager_value *sum = tdm_value_new(m, mask->rows, mask->columns, INT64);
    struct tdm_eager_value *y = tdm_value_like(m, mask);
    tdm_drop(m, sum);
    return y;
}

/* (gates * mask).sum(dim=1), of a mask in fp32 that the product saves; `fused`: one batched product
 * of the two, einsum("se,se->s"). Takes the mask. */
static struct tdm_eager_value *pick_gates(struct tdm_eager *m, struct tdm_eager_value *gates,
                                          struct tdm_eager_value *mask, bool fused)
{
    struct tdm_eager_value *y;
    if (fused) {
        y = tdm_bmm(m, gates, mask, gates->rows, 1);
    } else {
        struct tdm_eager_value *picked = tdm_mul(m, gates, mask);
        y = tdm_row_sum(m, picked, picked->rows);
        tdm_drop(m, picked);
    }
    tdm_drop(m, mask);
    return y;
}

/* What a token's chosen experts and places are, [k, tokens] each in int32, and its gates. */
struct routes {
    struct tdm_eager_value *indices, *locations, *gates;
};

static struct routes routes_of(struct tdm_eager *m, uint64_t tokens, uint64_t k,
                               struct tdm_eager_value *gates)
{
    struct routes r = {.gates = gates};
    struct tdm_eager_value *wide = tdm_value_new(m, k * tokens, 1, INT64);
    r.indices = tdm_value_new(m, k * tokens, 1, INT32);
    tdm_drop(m, wide);
    wide = tdm_value_new(m, k * tokens, 1, INT64);
    r.locations = tdm_value_new(m, k * tokens, 1, INT32);
    tdm_drop(m, wide);
    return r;
}

/* top1gating, with random token selection (use_rts). */
static struct routes route_one(struct tdm_eager *m, struct tdm_eager_value *gates)
{
    uint64_t tokens = gates->rows, experts = gates->columns;
    struct tdm_eager_value *index = tdm_value_new(m, tokens, 1, INT64), *mask = one_hot(m, gates);
    scratch(m, tokens, experts, FP32); /* mask1.float() of the loss */
    struct tdm_eager_value *uniform = tdm_value_new(m, tokens, experts, FP32);
    struct tdm_eager_value *random = tdm_value_like(m, gates); /* mask1 * uniform(...) */
    tdm_drop(m, uniform);
    struct tdm_eager_value *zeros = one_hot(m, gates), *kept = one_hot(m, gates);
    tdm_drop(m, zeros);
    tdm_drop(m, mask);
    struct tdm_eager_value *location = places(m, kept);
    struct tdm_eager_value *wide = tdm_value_new(m, tokens, experts, FP32); /* as a factor */
    struct tdm_eager_value *chosen = pick_gates(m, gates, wide, false);
    scratch(m, tokens, experts, INT64); /* locations1 * mask1 */
    struct routes r = routes_of(m, tokens, 1, chosen);
    struct tdm_eager_value *locals[] = {location, kept, random, index};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return r;
}

/* top2gating. The second expert is chosen with Gumbel noise. */
static struct routes route_two(struct tdm_eager *m, struct tdm_eager_value *logits,
                               struct tdm_eager_value *gates)
{
    uint64_t tokens = gates->rows, experts = gates->columns;
    struct tdm_eager_value *first = one_hot(m, gates);
    struct tdm_eager_value *noise = tdm_value_like(m, gates); /* rand, then its transforms */
    scratch(m, tokens, experts, FP32);
    tdm_drop(m, noise);
    struct tdm_eager_value *except = tdm_value_like(m, logits); /* masked_fill(logits, mask1) */
    struct tdm_eager_value *second = one_hot(m, gates);
    struct tdm_eager_value *place[2] = {places(m, first), places(m, second)};
    scratch(m, tokens, experts, FP32);  /* mask1.float() of the loss */
    scratch(m, tokens, experts, INT64); /* mask1 + mask2 of the counts */
    scratch(m, tokens, experts, BOOL);  /* torch.lt(locations, capacity) */
    scratch(m, tokens, experts, INT64); /* locations * mask */
    struct tdm_eager_value *wide[2] = {tdm_value_like(m, gates), tdm_value_like(m, gates)};
    struct tdm_eager_value *chosen = pick_gates(m, gates, wide[0], true),
                           *other = pick_gates(m, gates, wide[1], true);
    struct tdm_eager_value *sum = tdm_add(m, chosen, other);
    sum = tdm_replace(m, sum, tdm_clamp(m, sum, 1));
    struct tdm_eager_value *both[] = {chosen, other};
    struct tdm_eager_value *joined = tdm_cat_many(m, both, 2); /* torch.stack */
    struct tdm_eager_value *column = tdm_reshape(m, joined, 2 * tokens, 1);
    struct routes r = routes_of(m, tokens, 2, column);
    struct tdm_eager_value *locals[] = {joined,   sum,    other,  chosen, place[0],
                                        place[1], second, except, first};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return r;
}

/* topkgating: tokens are dropped by their probabilities. */
static struct routes route_many(struct tdm_eager *m, const struct tdm_torch_model *t,
                                struct tdm_eager_value *gates)
{
    uint64_t tokens = gates->rows, experts = gates->columns, k = t->config->experts.per_token;
    struct tdm_eager_value *top, *index;
    top = tdm_torch_topk(m, gates, k, &index);
    struct tdm_eager_value *mask = tdm_value_new(m, tokens, experts, BOOL);
    scratch(m, tokens, experts, FP32); /* mask.float() of the loss */
    struct tdm_eager_value *masked = NULL;
    if (t->settings.deepspeed.drop_tokens) {
        masked = tdm_value_like(m, gates);
        scratch(m, tokens, experts, BOOL);
    }
    struct tdm_eager_value *place = tdm_value_new(m, tokens, experts, INT64);
    scratch(m, tokens, experts, INT64);
    struct tdm_eager_value *kept = tdm_mul(m, gates, mask); /* gates_masked */
    struct tdm_eager_value *sum = tdm_row_sum(m, kept, tokens);
    sum = tdm_replace(m, sum, tdm_clamp(m, sum, 1));
    struct tdm_eager_value *shares = tdm_mul(m, kept, sum); /* a quotient saves both, as this */
    struct tdm_eager_value *columns = tdm_columns(m, shares, k); /* gather(1, top_idx) */
    struct tdm_eager_value *ordered = tdm_clone(m, columns);     /* t().contiguous() */
    struct tdm_eager_value *column = tdm_reshape(m, ordered, tokens * k, 1);
    struct routes r = routes_of(m, tokens, k, column);
    struct tdm_eager_value *locals[] = {ordered, columns, shares, sum,   kept,
                                        place,   masked,  mask,   index, top};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return r;
}

/* TopKGate.forward: everything is in fp32. */
static struct routes route(struct tdm_eager *m, const struct tdm_torch_model *t,
                           struct tdm_eager_value *router, struct tdm_eager_value *x)
{
    struct tdm_eager_value *input = tdm_cast(m, x, FP32), *weight = tdm_cast(m, router, FP32);
    struct tdm_eager_value *logits = tdm_linear(m, input, weight, NULL, true);
    tdm_drop(m, weight);
    struct tdm_eager_value *gates = tdm_softmax(m, logits);
    uint32_t k = t->config->experts.per_token;
    struct routes r = k == 1   ? route_one(m, gates)
                      : k == 2 ? route_two(m, logits, gates)
                               : route_many(m, t, gates);
    tdm_drop(m, gates);
    tdm_drop(m, logits);
    tdm_drop(m, input);
    return r;
}

/* ---- rows to experts and back ---- */

/* torch.cat of the rows of several values: a value of `rows` rows, of which those that no part has
 * are constant. A node has few inputs, so that of many parts is a chain of nodes. */
static struct tdm_eager_value *join_rows(struct tdm_eager *m, struct tdm_eager_value *const *parts,
                                         uint64_t count, uint64_t rows)
{
    static const struct tdm_eager_op op = {"CatBackward0", false, tdm_cat_backward};
    struct tdm_eager_value *y = tdm_value_new(m, rows, parts[0]->columns, parts[0]->element_bytes);
    struct tdm_eager_value *joined = NULL;
    uint64_t i = 0;
    do {
        struct tdm_eager_value *inputs[TDM_MOST_INPUTS];
        uint32_t taken = 0;
        if (joined != NULL)
            inputs[taken++] = joined;
        while (taken < TDM_MOST_INPUTS && i < count)
            inputs[taken++] = parts[i++];
        struct tdm_node *node = tdm_node_new(m, &op, inputs, taken);
        struct tdm_eager_value *next = tdm_node_finish(m, node, tdm_value_view(m, y));
        joined = tdm_replace(m, joined, next);
    } while (i < count);
    tdm_drop(m, y);
    joined->view = false;
    return joined;
}

static void add_rows(struct tdm_eager *m, struct tdm_node *node,
                     struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *index = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, index);
}

/* Joins a row of zeros to x, and selects `rows` rows of the two by an index. */
static struct tdm_eager_value *select_rows(struct tdm_eager *m, struct tdm_eager_value *x,
                                           struct tdm_eager_value *index, uint64_t rows)
{
    static const struct tdm_eager_op op = {"IndexSelectBackward0", false, add_rows};
    struct tdm_eager_value *zeros = tdm_value_new(m, 1, x->columns, x->element_bytes);
    struct tdm_eager_value *padded = join_rows(m, &x, 1, x->rows + 1);
    tdm_drop(m, zeros);
    struct tdm_node *node = tdm_node_new(m, &op, &padded, 1);
    tdm_node_save(m, node, index);
    struct tdm_eager_value *y = tdm_value_new(m, rows, x->columns, x->element_bytes);
    tdm_node_finish(m, node, y);
    tdm_drop(m, padded);
    return y;
}

/* _AllToAll among the ranks that share a copy of the experts. Takes x. */
static struct tdm_eager_value *exchange(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_AllToAllBackward", false, tdm_map_backward};
    if (t->settings.deepspeed.ep_size == 1)
        return x;
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return tdm_replace(m, x, tdm_node_finish(m, node, tdm_value_like(m, x)));
}

/* Gradients of chunks wait for each other: the first chunk's node is the last to run, and joins
 * them. */
static void chunk_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_torch_model *t = node->context;
    struct tdm_eager_value **waiting = tdm_zero_of(t)->moe_gradients;
    const struct tdm_edge *edge = &node->edges[0];
    if (node->facts[0] > 0) {
        waiting[node->facts[0]] = tdm_take(grads[0]);
        return;
    }
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    for (uint64_t i = 1; i < local_experts(t); i++) {
        tdm_drop(m, waiting[i]);
        waiting[i] = NULL;
    }
}

/* Chunk number i of the rows: a view. */
static struct tdm_eager_value *chunk(struct tdm_eager *m, const struct tdm_torch_model *t,
                                     struct tdm_eager_value *x, uint64_t i)
{
    static const struct tdm_eager_op op = {"SplitBackward0", false, chunk_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    if (node != NULL) {
        node->facts[0] = i;
        node->context = (void *)t;
    }
    struct tdm_eager_value *y = tdm_value_view(m, x);
    y->rows = x->rows / local_experts(t);
    return tdm_node_finish(m, node, y);
}

static void copy_gradient(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)node;
    results[0] = tdm_value_like(m, grads[0]);
}

/* A product of a chunk. `apart`: the chunk has rows of several ranks, which lie between those of
 * other experts, so that matmul copies them. */
static struct tdm_eager_value *product(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *weight, bool apart)
{
    struct tdm_eager_value *input = apart ? tdm_clone(m, x) : tdm_take(x);
    struct tdm_eager_value *y = tdm_linear(m, input, weight, NULL, false);
    tdm_drop(m, input);
    return y;
}

/* An MLP: down(act(gate(x)) * up(x)). The gradient of what is apart is copied too. */
static struct tdm_eager_value *run_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       struct tdm_eager_value *const *weights,
                                       struct tdm_eager_value *x, bool apart)
{
    static const struct tdm_eager_op op = {"UnsafeViewBackward0", false, copy_gradient};
    struct tdm_eager_value *gate = product(m, x, weights[MLP_GATE], apart);
    gate = tdm_replace(m, gate, tdm_activate(m, t->config->activation, gate));
    struct tdm_eager_value *up = product(m, x, weights[MLP_UP], apart);
    struct tdm_eager_value *both = tdm_mul(m, gate, up);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    struct tdm_eager_value *y = tdm_linear(m, both, weights[MLP_DOWN], NULL, false);
    tdm_drop(m, both);
    if (!apart)
        return y;
    struct tdm_node *node = tdm_node_new(m, &op, &y, 1);
    return tdm_replace(m, y, tdm_node_finish(m, node, tdm_value_view(m, y)));
}

/* Experts.forward: chunks of what all ranks sent, one expert after the other; their outputs are
 * joined. */
static struct tdm_eager_value *run_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           struct tdm_eager_value *const *weights,
                                           struct tdm_eager_value *x)
{
    uint64_t local = local_experts(t);
    bool apart = local > 1 && t->settings.deepspeed.ep_size > 1;
    struct tdm_eager_value **parts = tdm_zero_of(t)->moe_parts;
    for (uint64_t i = 0; i < local; i++)
        parts[i] = chunk(m, t, x, i);
    for (uint64_t i = 0; i < local; i++)
        parts[i] =
            tdm_replace(m, parts[i], run_mlp(m, t, weights + i * MLP_WEIGHTS, parts[i], apart));
    struct tdm_eager_value *y = join_rows(m, parts, local, x->rows);
    for (uint64_t i = 0; i < local; i++)
        tdm_drop(m, parts[i]);
    return y;
}

/* _sparse_decode: the rows of a token's experts times their gates, in fp32, summed. */
static struct tdm_eager_value *decode(struct tdm_eager *m, struct tdm_eager_value *made,
                                      struct tdm_eager_value *slots, struct tdm_eager_value *gates,
                                      uint64_t tokens)
{
    struct tdm_eager_value *routed = select_rows(m, made, slots, slots->rows);
    struct tdm_eager_value *weighted = tdm_mul(m, routed, gates);
    struct tdm_eager_value *sum = tdm_row_sum(m, weighted, tokens);
    tdm_drop(m, weighted);
    struct tdm_eager_value *y = tdm_cast(m, sum, made->element_bytes);
    tdm_drop(m, sum);
    tdm_drop(m, routed);
    return y;
}

/* output * coef[..., 0:1] + mlp(x) * coef[..., 1:]. Takes the output. */
static struct tdm_eager_value *add_residual(struct tdm_eager *m, const struct tdm_torch_model *t,
                                            struct tdm_eager_value *const *weights,
                                            struct tdm_eager_value *x,
                                            struct tdm_eager_value *output)
{
    struct tdm_eager_value *mlp = run_mlp(m, t, weights + RESIDUAL_MLP, x, false);
    struct tdm_eager_value *share =
        tdm_linear(m, x, weights[RESIDUAL_SHARE], weights[RESIDUAL_BIAS], false);
    share = tdm_replace(m, share, tdm_softmax(m, share));
    struct tdm_eager_value *of[2] = {tdm_columns(m, share, 1), tdm_columns(m, share, 1)};
    struct tdm_eager_value *first = tdm_mul(m, output, of[0]), *second = tdm_mul(m, mlp, of[1]);
    struct tdm_eager_value *y = tdm_add(m, first, second);
    struct tdm_eager_value *locals[] = {first, second, of[0], of[1], share, mlp, output};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return y;
}

struct tdm_eager_value *tdm_moe_forward(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        uint32_t number, struct tdm_eager_value *x)
{
    const struct tdm_deepspeed_settings *s = &t->settings.deepspeed;
    struct tdm_eager_value **weights = layer_weights(t, number);
    uint64_t tokens = x->rows, k = t->config->experts.per_token;
    uint64_t slots_of_all =
        tdm_size_mul(t->config->experts.count, tdm_moe_capacity(t->config, s, tokens));
    struct tdm_eager_value *flat = tdm_reshape(m, x, tokens, x->columns);
    struct routes r = route(m, t, t->layers[number].router, flat);
    struct tdm_eager_value *slots = tdm_value_new(m, k * tokens, 1, INT64);
    scratch(m, k * tokens, 1, INT64); /* _route_slots: full_like */
    struct tdm_eager_value *source = tdm_value_new(m, slots_of_all + 1, 1, INT64);
    struct tdm_eager_value *sent = select_rows(m, flat, source, slots_of_all);
    tdm_drop(m, source);
    sent = exchange(m, t, sent);
    struct tdm_eager_value *made = exchange(m, t, run_experts(m, t, weights, sent));
    struct tdm_eager_value *y = decode(m, made, slots, r.gates, tokens);
    struct tdm_eager_value *locals[] = {made, sent, slots, r.gates, r.indices, r.locations, flat};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    if (s->use_residual)
        y = add_residual(m, t, weights + local_experts(t) * MLP_WEIGHTS, x, y);
    return y;
}
