/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism beneath fully_shard: what ranks gather and sum. What a rank has of a model is
 * a model with smaller matrices (tensor_plan.c). As torchtitan's apply_tp has it, ranks divide
 * heads, MLP and vocabulary, and between these the tokens: hidden states are gathered before
 * attention, MLP and head, and the sums of o_proj, down_proj and the embedding are scattered. By
 * transformers' tp_plan (tp_size) all ranks have all tokens: each product that is divided by rows
 * has a gradient of its input that is summed, and the sums of the others are. Sources, torch 2.11:
 * torch/distributed/tensor/parallel/{style,loss}.py, tensor/placement_types.py
 * (_to_replicate_tensor, _reduce_shard_tensor, _MaskPartial), _functional_collectives.py
 * (all_gather_tensor, reduce_scatter_tensor, all_reduce); torchtitan 0.2,
 * models/llama3/infra/parallelize.py (apply_tp); transformers 5.17, distributed/tensor_parallel.py,
 * base_model_tp_plan of each model.
 */
#include "methods/torch/tensor.h"

#include "base/size.h"
#include "methods/divisors.h"
#include "methods/eager/float8.h"
#include "methods/eager/liger.h"
#include "methods/eager/ops.h"
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint64_t tdm_tensor_ranks(const struct tdm_torch_settings *s)
{
    const uint64_t ranks = s->tensor.plan_ranks > 1 ? s->tensor.plan_ranks : s->tensor.ranks;
    return ranks > 0 && s->wrapper == &tdm_fsdp_wrapper ? ranks : 1;
}

bool tdm_tensor_is_planned(const struct tdm_torch_settings *s)
{
    return tdm_tensor_ranks(s) > 1 && s->tensor.plan_ranks > 1;
}

const char *tdm_tensor_key(const struct tdm_torch_settings *s)
{
    return tdm_tensor_is_planned(s) ? "tp_size" : "tensor_parallel_degree";
}

/* ---- tokens gathered and scattered ---- */

static uint64_t ranks_of(const struct tdm_torch_model *t)
{
    return tdm_tensor_ranks(&t->settings);
}

/* What comes from all ranks lies rank by rank. Of one sequence that is the order of tokens; of
 * several it is copied (_maybe_view_chunk_cat). */
static struct tdm_eager_value *gather_rows(const struct tdm_torch_model *t, uint64_t rows,
                                           uint64_t columns, uint16_t bytes)
{
    struct tdm_eager_value *y = tdm_value_new(t->m, rows, columns, bytes);
    return t->settings.batch > 1 ? tdm_replace(t->m, y, tdm_value_new(t->m, rows, columns, bytes))
                                 : y;
}

/* reduce_scatter_tensor copies its input, in the order of ranks. */
static struct tdm_eager_value *scatter_rows(const struct tdm_torch_model *t, uint64_t rows,
                                            uint64_t columns, bool kept)
{
    struct tdm_eager_value *ordered = tdm_value_new(t->m, rows, columns, BF16);
    rows /= ranks_of(t);
    struct tdm_eager_value *y = kept ? tdm_value_selected(t->m, rows, columns, BF16, false)
                                     : tdm_value_new(t->m, rows, columns, BF16);
    tdm_drop(t->m, ordered);
    return y;
}

static void gather_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    results[0] = scatter_rows(node->context, grads[0]->rows, grads[0]->columns, false);
}

static void scatter_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_torch_model *t = node->context;
    (void)m;
    results[0] = gather_rows(t, grads[0]->rows * ranks_of(t), grads[0]->columns, BF16);
}

/* all_reduce copies what it sums, in the backward of what all ranks read. */
static void sum_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)node;
    results[0] = tdm_value_new(m, grads[0]->rows, grads[0]->columns, grads[0]->element_bytes);
}

static void pass_on(struct tdm_eager *m, struct tdm_node *node,
                    struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    (void)node;
    results[0] = tdm_take(grads[0]);
}

/* Columns of all ranks, put side by side by a copy (Shard._to_replicate_tensor). */
static struct tdm_eager_value *gather_columns(struct tdm_eager *m, uint64_t rows, uint64_t columns)
{
    struct tdm_eager_value *y = tdm_value_new(m, rows, columns, BF16);
    return tdm_replace(m, y, tdm_value_new(m, rows, columns, BF16));
}

/* The gradient of gathered columns: a rank's of it, copied. */
static void own_columns_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    (void)grads;
    results[0] = tdm_value_new(m, node->edges[0].rows, node->edges[0].columns, BF16);
}

static void all_columns_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    (void)grads;
    results[0] = gather_columns(m, node->edges[0].rows, node->edges[0].columns);
}

static const struct tdm_eager_op gather_op = {"RedistributeBackward", false, gather_backward},
                                 scatter_op = {"RedistributeBackward", false, scatter_backward},
                                 read_op = {"FromTorchTensorBackward", false, sum_backward},
                                 sum_op = {"RedistributeBackward", false, pass_on},
                                 columns_op = {"RedistributeBackward", false, own_columns_backward},
                                 split_op = {"RedistributeBackward", false, all_columns_backward};

static struct tdm_eager_value *finish(const struct tdm_torch_model *t, struct tdm_node *node,
                                      struct tdm_eager_value *y)
{
    if (node != NULL)
        node->context = (void *)(uintptr_t)t;
    return tdm_node_finish(t->m, node, y);
}

struct tdm_eager_value *tdm_tensor_gather(const struct tdm_torch_model *t,
                                          struct tdm_eager_value *x)
{
    if (ranks_of(t) == 1 || tdm_tensor_is_planned(&t->settings))
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(t->m, &gather_op, &x, 1);
    return finish(t, node, gather_rows(t, x->rows * ranks_of(t), x->columns, BF16));
}

/* Float8ColwiseParallel and Float8RowwiseParallel: what is cast at once stays in 8 bits for the
 * products, and so it is gathered (torchao float8/float8_tensor_parallel.py). */
static bool casts_inputs(const struct tdm_torch_model *t)
{
    return ranks_of(t) > 1 && t->settings.float8 == TDM_FLOAT8_TENSORWISE;
}

struct tdm_eager_value *tdm_tensor_gather_input(const struct tdm_torch_model *t,
                                                struct tdm_eager_value *x)
{
    if (!casts_inputs(t))
        return tdm_tensor_gather(t, x);
    struct tdm_node *node = tdm_node_new(t->m, &gather_op, &x, 1);
    struct tdm_eager_value *bits = tdm_float8_cast(t->m, x);
    struct tdm_eager_value *y = gather_rows(t, x->rows * ranks_of(t), x->columns, FLOAT8);
    tdm_drop(t->m, bits);
    return finish(t, node, y);
}

struct tdm_eager_value *tdm_tensor_scatter(const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x)
{
    if (ranks_of(t) == 1)
        return x;
    const bool planned = tdm_tensor_is_planned(&t->settings);
    struct tdm_node *node = tdm_node_new(t->m, planned ? &sum_op : &scatter_op, &x, 1);
    return tdm_replace(t->m, x,
                       finish(t, node,
                              planned ? tdm_value_new(t->m, x->rows, x->columns, x->element_bytes)
                                      : scatter_rows(t, x->rows, x->columns, true)));
}

/* ---- products ---- */

static struct tdm_eager_value *columns_of_all(const struct tdm_torch_model *t,
                                              struct tdm_eager_value *y)
{
    struct tdm_node *node = tdm_node_new(t->m, &columns_op, &y, 1);
    return tdm_replace(
        t->m, y,
        tdm_node_finish(t->m, node, gather_columns(t->m, y->rows, y->columns * ranks_of(t))));
}

/* A rank's columns of x, copied. */
static struct tdm_eager_value *own_columns(const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x)
{
    struct tdm_node *node = tdm_node_new(t->m, &split_op, &x, 1);
    return tdm_node_finish(
        t->m, node, tdm_value_new(t->m, x->rows, x->columns / ranks_of(t), x->element_bytes));
}

static enum tdm_tensor_style style_of(const struct tdm_torch_model *t, enum tdm_projection p)
{
    return ranks_of(t) == 1 ? TDM_STYLE_WHOLE : tdm_tensor_style(t->config, &t->settings, p);
}

struct tdm_eager_value *tdm_tensor_enter(const struct tdm_torch_model *t, enum tdm_projection p,
                                         struct tdm_eager_value *x)
{
    if (casts_inputs(t) && style_of(t, p) == TDM_STYLE_ROWS) {
        struct tdm_node *node = tdm_node_new(t->m, &sum_op, &x, 1);
        return tdm_node_finish(t->m, node, tdm_float8_cast(t->m, x));
    }
    if (!tdm_tensor_is_planned(&t->settings))
        return tdm_take(x);
    switch (style_of(t, p)) {
    case TDM_STYLE_COLUMNS:
    case TDM_STYLE_COLUMNS_GATHERED:
        return tdm_mark(t->m, &read_op, 0, NULL, x);
    case TDM_STYLE_ROWS_SPLIT:
        return own_columns(t, x);
    default:
        return tdm_take(x);
    }
}

/* A copy whose gradient is one too. */
static struct tdm_eager_value *joined(const struct tdm_torch_model *t, struct tdm_eager_value *y)
{
    struct tdm_node *node = tdm_node_new(t->m, &read_op, &y, 1);
    struct tdm_eager_value *copy = tdm_value_new(t->m, y->rows, y->columns, y->element_bytes);
    return tdm_replace(t->m, y, tdm_node_finish(t->m, node, copy));
}

struct tdm_eager_value *tdm_tensor_leave(const struct tdm_torch_model *t, enum tdm_projection p,
                                         struct tdm_eager_value *y)
{
    const bool planned = tdm_tensor_is_planned(&t->settings);
    switch (style_of(t, p)) {
    case TDM_STYLE_COLUMNS_GATHERED:
        return planned ? columns_of_all(t, y) : y;
    case TDM_STYLE_ROWS:
    case TDM_STYLE_ROWS_SPLIT:
        return tdm_tensor_scatter(t, y);
    case TDM_STYLE_JOINED:
        return planned ? joined(t, y) : y;
    default:
        return y;
    }
}

/* ---- embedding ---- */

/* A rank looks up what it has; for other ids its rows are made zero (_MaskPartial). */
struct tdm_eager_value *tdm_tensor_embedding(const struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    uint64_t tokens = t->settings.batch * tdm_torch_own_tokens(t);
    if (ranks_of(t) == 1 || (tdm_tensor_is_planned(&t->settings) && !t->config->tied))
        return tdm_embedding(m, t->embedding, t->ids, tokens);
    struct tdm_eager_value *below = tdm_value_new(m, tokens, 1, BOOL),
                           *above = tdm_value_new(m, tokens, 1, BOOL),
                           *mask = tdm_value_new(m, tokens, 1, BOOL);
    tdm_drop(m, below);
    tdm_drop(m, above);
    struct tdm_eager_value *copy = tdm_value_new(m, tokens, 1, INT64),
                           *ids = tdm_value_new(m, tokens, 1, INT64);
    tdm_drop(m, copy);
    /* DTensor is below autograd, which saves the ids that it was given. */
    struct tdm_eager_value *y = tdm_embedding(m, t->embedding, t->ids, tokens);
    tdm_drop(m, ids);
    y = tdm_tensor_scatter(t, y);
    tdm_drop(m, mask);
    return y;
}

/* ---- loss ---- */

static struct tdm_eager_value *like(struct tdm_eager *m, const struct tdm_eager_value *x)
{
    return tdm_value_new(m, x->rows, x->columns, x->element_bytes);
}

static void pass_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved = tdm_node_saved(m, node, 0);
    results[0] = tdm_take(grads[0]);
    tdm_drop(m, saved);
}

/* (grad_input + exp(x)) * grad_output, with all names of the function
 * (_nll_loss_and_log_softmax_backward). */
static void parallel_nll_backward(struct tdm_eager *m, struct tdm_node *node,
                                  struct tdm_eager_value *const *grads,
                                  struct tdm_eager_value **results)
{
    struct tdm_eager_value *logs = tdm_node_saved(m, node, 0), *labels = tdm_node_saved(m, node, 1);
    /* safe_target, masked_safe_target, arange_1d; grad_update, grad_output; the mask */
    static const uint16_t widths[] = {INT64, INT64, INT64, FP32, FP32, BOOL};
    struct tdm_eager_value *vectors[sizeof(widths) / sizeof(widths[0])];
    (void)grads;
    for (unsigned i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        vectors[i] = tdm_value_new(m, logs->rows, 1, widths[i]);
    struct tdm_eager_value *picked = like(m, logs), *power = like(m, logs), *sum = like(m, logs);
    tdm_drop(m, power);
    results[0] = like(m, logs);
    tdm_drop(m, sum);
    tdm_drop(m, picked);
    for (unsigned i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        tdm_drop(m, vectors[i]);
    tdm_drop(m, labels);
    tdm_drop(m, logs);
}

/* Logits stay divided by words: maxima and sums of their rows are reduced. */
static struct tdm_eager_value *parallel_cross_entropy(struct tdm_eager *m,
                                                      struct tdm_eager_value *logits,
                                                      struct tdm_eager_value *labels)
{
    static const struct tdm_eager_op log_softmax = {"LogSoftmaxBackward0", false, pass_backward},
                                     nll = {"NllLossBackward0", false, parallel_nll_backward};
    struct tdm_node *node = tdm_node_new(m, &log_softmax, &logits, 1);
    struct tdm_eager_value *shifted = like(m, logits), *powers = like(m, logits);
    tdm_drop(m, powers);
    struct tdm_eager_value *logs = like(m, logits);
    tdm_node_save(m, node, logs);
    tdm_drop(m, shifted);
    tdm_node_finish(m, node, logs);
    node = tdm_node_new(m, &nll, &logs, 1);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, FP32);
    tdm_node_save(m, node, logs);
    tdm_node_save(m, node, labels);
    tdm_node_finish(m, node, loss);
    tdm_drop(m, logs);
    return loss;
}

static void compiled_backward(struct tdm_eager *m, struct tdm_node *node,
                              struct tdm_eager_value *const *grads,
                              struct tdm_eager_value **results)
{
    struct tdm_eager_value *kept = tdm_node_saved(m, node, 0), *mask = tdm_node_saved(m, node, 1);
    const struct tdm_edge *edge = &node->edges[0];
    (void)grads;
    results[0] = tdm_value_new(m, edge->rows, edge->columns, edge->element_bytes);
    tdm_drop(m, mask);
    tdm_drop(m, kept);
}

/* The same, compiled (inductor's code, torch 2.11): the forward makes most of the gradient, in
 * fp32, from ones where the labels are, and keeps it in place of the logits. */
static struct tdm_eager_value *compiled_cross_entropy(struct tdm_eager *m,
                                                      struct tdm_eager_value *logits)
{
    static const struct tdm_eager_op op = {"CompiledFunctionBackward", false, compiled_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    struct tdm_eager_value *most = tdm_value_new(m, logits->rows, 1, FP32);
    struct tdm_eager_value *sum = tdm_value_new(m, logits->rows, 1, FP32);
    struct tdm_eager_value *ones = tdm_value_new(m, logits->rows, logits->columns, FP32);
    struct tdm_eager_value *own = tdm_value_new(m, logits->rows, 1, FP32);
    struct tdm_eager_value *mask = tdm_value_new(m, logits->rows, 1, BOOL);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, FP32);
    struct tdm_eager_value *kept = tdm_value_new(m, logits->rows, logits->columns, FP32);
    tdm_node_save(m, node, kept);
    tdm_node_save(m, node, mask);
    tdm_drop(m, most);
    tdm_drop(m, own);
    tdm_drop(m, ones);
    tdm_drop(m, sum);
    tdm_drop(m, kept);
    tdm_drop(m, mask);
    return tdm_node_finish(m, node, loss);
}

static bool gathers_logits(const struct tdm_torch_settings *s)
{
    return tdm_tensor_ranks(s) > 1 && (s->tensor.gathers_logits || tdm_tensor_is_planned(s));
}

struct tdm_eager_value *tdm_tensor_head(const struct tdm_torch_model *t, struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *input = tdm_tensor_is_planned(&t->settings)
                                        ? tdm_mark(m, &read_op, 0, NULL, x)
                                        : tdm_tensor_gather(t, x);
    struct tdm_eager_value *logits =
        tdm_torch_linear(m, t, input, t->head, t->head_bias, TDM_MODULE_HEAD);
    tdm_drop(m, input);
    return gathers_logits(&t->settings) ? columns_of_all(t, logits) : logits;
}

struct tdm_eager_value *tdm_tensor_cross_entropy(const struct tdm_torch_model *t,
                                                 struct tdm_eager_value *logits,
                                                 struct tdm_eager_value *labels)
{
    const bool divided = ranks_of(t) > 1 && !gathers_logits(&t->settings);
    if (t->settings.compile == TDM_COMPILE_ALL)
        return divided ? compiled_cross_entropy(t->m, logits)
                       : tdm_fused_cross_entropy(t->m, logits, labels);
    return divided ? parallel_cross_entropy(t->m, logits, labels)
                   : tdm_cross_entropy(t->m, logits, labels);
}

/* ---- keys, limits and costs ---- */

#define FIELD(name) .field = offsetof(struct tdm_method_settings, torch.tensor.name)
#define MOST_RANKS 1024u

static enum tdm_status read_ranks(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    const uint64_t before = tdm_tensor_ranks(&settings->torch);
    enum tdm_status status = tdm_key_read_count(key, value, settings, err);
    if (status == TDM_OK && before == 1 && tdm_tensor_ranks(&settings->torch) > 1)
        settings->communicators++;
    return status;
}

static bool is_sharded(const struct tdm_key_case *c)
{
    return c->settings->torch.wrapper == &tdm_fsdp_wrapper;
}

static bool is_divided(const struct tdm_key_case *c)
{
    return tdm_tensor_ranks(&c->settings->torch) > 1 && !tdm_tensor_is_planned(&c->settings->torch);
}

static const struct tdm_key_need needs_shards = {"without sharding=fsdp", is_sharded},
                                 needs_ranks = {"without tensor_parallel_degree", is_divided};

const struct tdm_method_key tdm_keys_tensor[] = {
    {"tensor_parallel_degree", "N", "1",
     "ranks that divide heads, MLP, vocabulary and, between them, tokens, as in torchtitan",
     read_ranks, FIELD(ranks), .least = 1, .most = MOST_RANKS, .needs = {&needs_shards}},
    {"disable_loss_parallel", "no|yes", "no",
     "of tensor_parallel_degree; yes: logits of all words are gathered", tdm_key_read_switch,
     FIELD(gathers_logits), .needs = {&needs_ranks}},
    {"tp_size", "N", "1",
     "ranks that divide heads, MLP and head by transformers' tp_plan, as ParallelismConfig of "
     "accelerate has them: all of them have all tokens",
     read_ranks, FIELD(plan_ranks), .least = 1, .most = MOST_RANKS, .needs = {&needs_shards}},
    {.name = NULL},
};

/* A layer gathers and scatters twice, in the backward too, where weights of the products after a
 * gather read what was gathered; recomputation gathers and scatters again. By transformers' plan
 * two results are summed, and the gradients of the inputs of q, k, v, gate and up. */
void tdm_tensor_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                     struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const double ranks = (double)tdm_tensor_ranks(s);
    if (ranks == 1)
        return;
    const struct tdm_gpu_group group = {tdm_tensor_ranks(s), 1, s->context.gpus_per_node};
    double tokens = (double)tdm_context_local_tokens(&s->context, s->tokens) * (double)s->batch;
    double hidden = tokens * model->hidden * BF16 * (ranks - 1) / ranks;
    const double forwards = 1 + tdm_torch_forwards_again(model, s);
    const double sums = tdm_tensor_is_planned(s) ? 2 * (2 * forwards + 5) : 4 * (forwards + 1);
    cost->product_flops /= ranks;
    cost->attention_flops /= ranks;
    if (s->context.divider == NULL)
        cost->sequences = (double)s->batch * (double)s->ranks / ranks;
    tdm_traffic_add(&cost->exposed, group, sums * hidden * model->layers + 4 * hidden);
}
