/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torchtitan's mixture of experts under expert parallelism. Each rank has some experts of a layer.
 * A token's row is copied once for each of its experts, rows are sent to the ranks that have them
 * (all-to-all), put in order there with room for each expert's rows to be padded, multiplied, put
 * back and sent back. All ranks are assumed to get equally many rows. Tensor ranks have the same
 * tokens, and each sends its part of the rows. Weights are those of
 * torchtitan: gate, down and up by themselves. Source: torchtitan of 2026-02, the last one with
 * TOML files (commit before 9810191b): models/moe/moe.py (TokenChoiceTopKRouter, TokenReorderer,
 * MoE, GroupedExperts), models/moe/utils.py (_permute, _unpermute), distributed/expert_parallel.py
 * (ExpertParallel), models/gpt_oss/model/moe.py; which results selective checkpoints keep,
 * models/NAME/infra/parallelize.py.
 */
#include "methods/eager/ops.h"
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <stddef.h>

#define ALIGNED_ROWS 8u /* TOKEN_GROUP_ALIGN_SIZE_M, of each expert */

static uint64_t local_experts(const struct tdm_torch_model *t)
{
    return t->config->experts.count / tdm_fsdp_expert_ranks(&t->settings);
}

/* ---- weights ---- */

void tdm_titan_add_experts(struct tdm_torch_model *t, uint32_t number)
{
    const uint64_t width = t->config->experts.intermediate, hidden = t->config->hidden,
                   local = local_experts(t);
    const bool joint = t->config->experts.biased;
    const uint32_t module = tdm_layer_module(number, TDM_MODULE_EXPERTS);
    struct torch_layer *layer = &t->layers[number];
    t->m->label = (struct tdm_label){.name = "mlp.experts", .layer = number};
    for (unsigned i = 0; i < TITAN_WEIGHTS; i++) {
        if (i == TITAN_UP && joint)
            continue;
        const uint64_t rows = i == TITAN_DOWN ? hidden : joint ? 2 * width : width;
        layer->local_experts[i] = tdm_torch_add_parameter(
            t, module, local * rows, i == TITAN_DOWN ? width : hidden, t->weight_bytes, true);
        if (joint)
            layer->local_biases[i] =
                tdm_torch_add_parameter(t, module, local, rows, t->weight_bytes, true);
    }
}

/* ---- operations ---- */

static void scatter_back(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *index = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, index);
}

/* made[index] = x, of a new tensor of `rows` rows. Takes x. */
static struct tdm_eager_value *put_rows(struct tdm_eager *m, struct tdm_eager_value *x,
                                        struct tdm_eager_value *index, uint64_t rows)
{
    static const struct tdm_eager_op op = {"IndexPutBackward0", false, scatter_back};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, index);
    struct tdm_eager_value *y = tdm_value_new(m, rows, x->columns, x->element_bytes);
    tdm_node_finish(m, node, y);
    tdm_drop(m, x);
    return y;
}

/* torch.vstack((x, zeros)): one row more, for what is padded. */
static struct tdm_eager_value *add_row(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"CatBackward0", false, tdm_cat_backward};
    struct tdm_eager_value *zeros = tdm_value_new(m, 1, x->columns, x->element_bytes);
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows + 1, x->columns, x->element_bytes);
    tdm_node_finish(m, node, y);
    tdm_drop(m, zeros);
    return y;
}

/* all_to_all_single_autograd. Selective checkpoints keep its result, but not those of Qwen3. */
static struct tdm_eager_value *exchange(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"_AllToAllSingleBackward", false, tdm_map_backward};
    const bool kept = !t->config->layer_kinds[0].qk_norm;
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    return tdm_node_finish(m, node,
                           kept
                               ? tdm_value_selected(m, x->rows, x->columns, x->element_bytes, false)
                               : tdm_value_like(m, x));
}

/* ---- the router ---- */

/* What tokens are sent to: of each token its experts, and the shares of these in fp32. */
struct routes {
    struct tdm_eager_value *shares, *indices;
};

/* Scores are in fp32. Their bias for the balance of loads, and groups of experts, decide which are
 * chosen alone. */
static struct routes route(struct tdm_eager *m, const struct tdm_torch_model *t,
                           const struct torch_layer *layer, struct tdm_eager_value *x)
{
    const struct tdm_experts *experts = &t->config->experts;
    struct routes r;
    struct tdm_eager_value *scores = tdm_linear(m, x, layer->router, layer->router_bias, true);
    scores = tdm_replace(m, scores, tdm_cast(m, scores, FP32));
    scores = tdm_replace(m, scores,
                         experts->all_rows || experts->groups > 0 ? tdm_sigmoid(m, scores)
                                                                  : tdm_softmax(m, scores));
    struct tdm_eager_value *biased = tdm_add_number(m, scores);
    tdm_drop(m, tdm_torch_topk(m, biased, experts->per_token, &r.indices));
    r.shares = tdm_torch_gather(m, scores, r.indices);
    if (experts->normalized || experts->biased) {
        struct tdm_eager_value *sum = tdm_row_sum(m, r.shares, r.shares->rows);
        sum = tdm_replace(m, sum, tdm_add_number(m, sum));
        r.shares = tdm_replace(m, r.shares, tdm_mul(m, r.shares, sum)); /* a quotient saves both */
        tdm_drop(m, sum);
    }
    r.shares = tdm_replace(m, r.shares, tdm_mul_number(m, r.shares));
    tdm_drop(m, biased);
    tdm_drop(m, scores);
    return r;
}

/* ---- experts ---- */

/* A bias for each row, and zeros behind them: two tensors, of which the first goes. */
static struct tdm_eager_value *add_bias(struct tdm_eager *m, struct tdm_eager_value *x,
                                        struct tdm_eager_value *bias, struct tdm_eager_value *index)
{
    struct tdm_eager_value *rows = tdm_torch_pick_rows(m, bias, index, x->rows - 1);
    rows = tdm_replace(m, rows, add_row(m, rows)); /* repeat_interleave, cat */
    struct tdm_eager_value *y = tdm_add(m, x, rows);
    tdm_drop(m, rows);
    tdm_drop(m, x);
    return y;
}

/* Products of rows in the order of experts. Takes x. */
static struct tdm_eager_value *multiply(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        const struct torch_layer *layer, struct tdm_eager_value *x)
{
    const uint64_t local = local_experts(t);
    struct tdm_eager_value *const *w = layer->local_experts;
    struct tdm_eager_value *offsets = tdm_value_new(m, local, 1, INT32), *index = NULL;
    struct tdm_eager_value *gate = tdm_torch_grouped_product(m, x, w[TITAN_GATE], offsets, local);
    if (layer->local_biases[TITAN_GATE] != NULL) {
        index = tdm_value_new(m, x->rows, 1, INT64);
        gate = add_bias(m, gate, layer->local_biases[TITAN_GATE], index);
        gate = tdm_replace(m, gate, tdm_torch_clamped_gate(m, gate));
    } else {
        gate = tdm_replace(m, gate, tdm_activate(m, t->config->activation, gate));
        struct tdm_eager_value *up = tdm_torch_grouped_product(m, x, w[TITAN_UP], offsets, local);
        gate = tdm_replace(m, gate, tdm_mul(m, gate, up));
        tdm_drop(m, up);
    }
    struct tdm_eager_value *y = tdm_torch_grouped_product(m, gate, w[TITAN_DOWN], offsets, local);
    if (index != NULL)
        y = add_bias(m, y, layer->local_biases[TITAN_DOWN], index);
    tdm_drop(m, gate);
    tdm_drop(m, index);
    tdm_drop(m, offsets);
    tdm_drop(m, x);
    return y;
}

/* What the experts of all ranks make of rows, which the caller holds. */
static struct tdm_eager_value *run_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                           uint32_t number, struct tdm_eager_value *rows)
{
    const uint32_t module = tdm_layer_module(number, TDM_MODULE_EXPERTS);
    struct tdm_torch_model *whole = (void *)(uintptr_t)t;
    struct tdm_eager_value *input = tdm_unit_enter(whole, module, tdm_take(rows));
    const uint64_t received = input->rows;
    const uint64_t room = (received + local_experts(t) * ALIGNED_ROWS + ALIGNED_ROWS - 1) /
                          ALIGNED_ROWS * ALIGNED_ROWS;
    struct tdm_eager_value *got = exchange(m, t, input);
    struct tdm_eager_value *places = tdm_value_new(m, room, 1, INT64);
    struct tdm_eager_value *x = add_row(m, got);
    x = tdm_replace(m, x, tdm_torch_pick_rows(m, x, places, room));
    tdm_drop(m, got); /* the caller's name for it, until it is in order */
    struct tdm_eager_value *made = multiply(m, t, &t->layers[number], x);
    made = put_rows(m, made, places, received + 1);
    struct tdm_eager_value *back = tdm_rows(m, made, received);
    struct tdm_eager_value *y = exchange(m, t, back);
    tdm_drop(m, back);
    tdm_drop(m, made);
    tdm_drop(m, places);
    tdm_drop(m, input);
    return tdm_unit_leave(whole, module, y);
}

/* Rows times their shares, in fp32, before the experts: Llama 4's. Takes rows. */
static struct tdm_eager_value *weigh(struct tdm_eager *m, struct tdm_eager_value *rows,
                                     struct tdm_eager_value *shares)
{
    const uint16_t bytes = rows->element_bytes;
    rows = tdm_replace(m, rows, tdm_cast(m, rows, FP32));
    rows = tdm_replace(m, rows, tdm_mul(m, rows, shares));
    return tdm_replace(m, rows, tdm_cast(m, rows, bytes));
}

/* The sum of a token's rows, times their shares in fp32 unless these are in already. */
static struct tdm_eager_value *sum_rows(struct tdm_eager *m, struct tdm_eager_value *made,
                                        struct tdm_eager_value *shares, uint64_t tokens)
{
    if (shares == NULL)
        return tdm_row_sum(m, made, tokens);
    struct tdm_eager_value *wide = tdm_cast(m, made, FP32);
    struct tdm_eager_value *sum = tdm_bmm(m, shares, wide, tokens, made->columns);
    tdm_drop(m, wide);
    return tdm_replace(m, sum, tdm_cast(m, sum, made->element_bytes));
}

struct tdm_eager_value *tdm_titan_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          uint32_t number, struct tdm_eager_value *x)
{
    const struct tdm_experts *experts = &t->config->experts;
    const struct torch_layer *layer = &t->layers[number];
    const uint64_t pairs = x->rows * experts->per_token,
                   own = pairs / tdm_tensor_ranks(&t->settings); /* ReordererSequenceParallel */
    const bool before = experts->all_rows;                       /* score_before_experts */
    struct tdm_eager_value *flat = tdm_reshape(m, x, x->rows, x->columns), *sorted;
    struct routes r = route(m, t, layer, flat);
    struct tdm_eager_value *order = tdm_torch_sort(m, own, &sorted);
    tdm_drop(m, sorted);
    struct tdm_eager_value *column = tdm_reshape(m, r.shares, pairs, 1);
    struct tdm_eager_value *shares = tdm_torch_pick_rows(m, column, order, own);
    struct tdm_eager_value *tokens = tdm_value_new(m, own, 1, INT64);
    struct tdm_eager_value *rows = tdm_torch_pick_rows(m, flat, tokens, own);
    tdm_drop(m, tokens);
    if (before)
        rows = weigh(m, rows, shares);
    struct tdm_eager_value *routed = run_experts(m, t, number, rows);
    struct tdm_eager_value *shared =
        layer->shared != NULL ? tdm_torch_shared_expert(m, t, layer, flat, true) : NULL;
    struct tdm_eager_value *restored = put_rows(m, tdm_take(routed), order, pairs);
    struct tdm_eager_value *y = sum_rows(m, restored, before ? NULL : column, x->rows);
    if (shared != NULL)
        y = tdm_replace(m, y, tdm_add(m, shared, y));
    struct tdm_eager_value *locals[] = {shared, restored, routed,   rows,      shares,
                                        column, order,    r.shares, r.indices, flat};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return y;
}

/* ---- costs ---- */

double tdm_titan_elements(const struct tdm_model *model)
{
    static const enum tdm_role roles[] = {TDM_ROLE_EXPERTS_GATE_UP, TDM_ROLE_EXPERTS_DOWN,
                                          TDM_ROLE_EXPERTS_GATE_UP_BIAS,
                                          TDM_ROLE_EXPERTS_DOWN_BIAS};
    double elements = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        for (unsigned r = 0; r < sizeof(roles) / sizeof(roles[0]); r++) {
            const struct tdm_tensor *tensor = tdm_model_tensor(model, i, roles[r]);
            elements += tensor == NULL ? 0 : (double)tensor->rows * (double)tensor->columns;
        }
    return elements;
}

/* Ranks with the same experts are as far apart as there are ranks with others (parallel_dims.py,
 * sparse_mesh). Rows go to experts and back in each forward, and once more in the backward. */
void tdm_titan_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const uint64_t degree = tdm_fsdp_expert_ranks(s), ranks = tdm_fsdp_expert_shards(s) / degree;
    const struct tdm_gpu_group copies = {ranks, degree, s->context.gpus_per_node},
                               experts = {degree, 1, s->context.gpus_per_node};
    const double local = tdm_titan_elements(model) / (double)degree,
                 share = (double)(ranks - 1) / (double)ranks,
                 gathers = s->fsdp.reshard == TDM_RESHARD_NO ? 1 : 2;
    double layers = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        layers += model->layer_kinds[i].experts;
    const double rows = (double)tdm_context_local_tokens(&s->context, s->tokens) *
                        (double)s->batch * model->experts.per_token / (double)tdm_tensor_ranks(s);
    tdm_traffic_add(&cost->sent, copies,
                    share * local * (gathers * BF16 + (s->fp32_weights ? FP32 : BF16)));
    tdm_traffic_add_exchange(&cost->exposed, experts,
                             2 * (2 + tdm_torch_forwards_again(model, s)) * layers * rows *
                                 model->hidden * BF16 * (double)(degree - 1) / (double)degree);
}
