/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor and sequence parallelism beneath fully_shard, as torchtitan's apply_tp has it: ranks
 * divide heads, MLP and vocabulary, and between these the tokens. What a rank has of a model is a
 * model with smaller matrices (tdm_tensor_part); hidden states are gathered before attention, MLP
 * and head, and the sums of o_proj, down_proj and the embedding are scattered. Sources, torch 2.11:
 * torch/distributed/tensor/parallel/{style,loss}.py, tensor/placement_types.py
 * (_to_replicate_tensor, _reduce_shard_tensor, _MaskPartial), _functional_collectives.py
 * (all_gather_tensor, reduce_scatter_tensor); torchtitan 0.2, models/llama3/infra/parallelize.py
 * (apply_tp).
 */
#include "methods/torch/tensor.h"

#include "base/size.h"
#include "methods/divisors.h"
#include "methods/eager/liger.h"
#include "methods/eager/ops.h"
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint64_t tdm_tensor_ranks(const struct tdm_torch_settings *s)
{
    return s->tensor.ranks > 0 && s->wrapper == &tdm_fsdp_wrapper ? s->tensor.ranks : 1;
}

/* ---- a rank's part of a model ---- */

enum cut { WHOLE, BY_ROWS, BY_COLUMNS };

static enum cut cut_of(enum tdm_role role)
{
    switch (role) {
    case TDM_ROLE_EMBEDDING:
    case TDM_ROLE_HEAD:
    case TDM_ROLE_Q:
    case TDM_ROLE_K:
    case TDM_ROLE_V:
    case TDM_ROLE_GATE:
    case TDM_ROLE_UP:
        return BY_ROWS;
    case TDM_ROLE_O:
    case TDM_ROLE_DOWN:
    case TDM_ROLE_Q_BIAS: /* one row */
    case TDM_ROLE_K_BIAS:
    case TDM_ROLE_V_BIAS:
    case TDM_ROLE_UP_BIAS:
        return BY_COLUMNS;
    default:
        return WHOLE;
    }
}

struct tdm_model *tdm_tensor_part(const struct tdm_model *model, uint64_t ranks)
{
    struct tdm_model *part = malloc(sizeof(*part));
    struct tdm_tensor *tensors = calloc(model->tensor_count, sizeof(*tensors));
    if (part == NULL || tensors == NULL) {
        free(part);
        free(tensors);
        return NULL;
    }
    *part = *model;
    part->tensors = tensors;
    part->query_heads /= (uint32_t)ranks;
    part->kv_heads /= (uint32_t)ranks;
    part->intermediate /= (uint32_t)ranks;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct tdm_tensor *tensor = &tensors[i];
        *tensor = model->tensors[i];
        if (cut_of(tensor->role) ==
            BY_ROWS) /* torch.chunk: the first rank has no less than others */
            tensor->rows = tdm_size_ceil_div(tensor->rows, ranks);
        if (cut_of(tensor->role) == BY_COLUMNS)
            tensor->columns /= ranks;
        tensor->elements = tensor->rows * tensor->columns;
    }
    return part;
}

void tdm_tensor_part_free(struct tdm_model *part)
{
    if (part != NULL)
        free(part->tensors);
    free(part);
}

/* ---- tokens gathered and scattered ---- */

static uint64_t ranks_of(const struct tdm_torch_model *t)
{
    return tdm_tensor_ranks(&t->settings);
}

/* What comes from all ranks lies rank by rank. Of one sequence that is the order of tokens; of
 * several it is copied (_maybe_view_chunk_cat). */
static struct tdm_eager_value *gather_rows(const struct tdm_torch_model *t, uint64_t rows,
                                           uint64_t columns)
{
    struct tdm_eager_value *y = tdm_value_new(t->m, rows, columns, BF16);
    return t->settings.batch > 1 ? tdm_replace(t->m, y, tdm_value_new(t->m, rows, columns, BF16))
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
    results[0] = gather_rows(t, grads[0]->rows * ranks_of(t), grads[0]->columns);
}

static const struct tdm_eager_op gather_op = {"RedistributeBackward", false, gather_backward},
                                 scatter_op = {"RedistributeBackward", false, scatter_backward};

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
    if (ranks_of(t) == 1)
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(t->m, &gather_op, &x, 1);
    return finish(t, node, gather_rows(t, x->rows * ranks_of(t), x->columns));
}

struct tdm_eager_value *tdm_tensor_scatter(const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x)
{
    if (ranks_of(t) == 1)
        return x;
    struct tdm_node *node = tdm_node_new(t->m, &scatter_op, &x, 1);
    return tdm_replace(t->m, x, finish(t, node, scatter_rows(t, x->rows, x->columns, true)));
}

/* ---- embedding ---- */

/* A rank looks up what it has; for other ids its rows are made zero (_MaskPartial). */
struct tdm_eager_value *tdm_tensor_embedding(const struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    uint64_t tokens = t->settings.batch * tdm_torch_own_tokens(t);
    if (ranks_of(t) == 1)
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

/* The gradient of gathered logits: this rank's words of it, copied. */
static void words_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    results[0] = tdm_value_new(m, node->edges[0].rows, node->edges[0].columns, BF16);
}

struct tdm_eager_value *tdm_tensor_logits(const struct tdm_torch_model *t,
                                          struct tdm_eager_value *logits)
{
    static const struct tdm_eager_op op = {"RedistributeBackward", false, words_backward};
    struct tdm_eager *m = t->m;
    if (ranks_of(t) == 1 || !t->settings.tensor.gathers_logits)
        return logits;
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    uint64_t words = logits->columns * ranks_of(t);
    struct tdm_eager_value *y = tdm_value_new(m, logits->rows, words, BF16);
    y = tdm_replace(m, y, tdm_value_new(m, logits->rows, words, BF16)); /* side by side */
    return tdm_replace(m, logits, tdm_node_finish(m, node, y));
}

struct tdm_eager_value *tdm_tensor_cross_entropy(const struct tdm_torch_model *t,
                                                 struct tdm_eager_value *logits,
                                                 struct tdm_eager_value *labels)
{
    bool divided = ranks_of(t) > 1 && !t->settings.tensor.gathers_logits;
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
    enum tdm_status status = tdm_key_read_count(key, value, settings, err);
    if (status == TDM_OK && settings->torch.tensor.ranks > 1 &&
        settings->torch.wrapper == &tdm_fsdp_wrapper)
        settings->communicators++;
    return status;
}

static bool is_sharded(const struct tdm_key_case *c)
{
    return c->settings->torch.wrapper == &tdm_fsdp_wrapper;
}

static bool is_divided(const struct tdm_key_case *c)
{
    return tdm_tensor_ranks(&c->settings->torch) > 1;
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
    {.name = NULL},
};

static enum tdm_status check_settings(const struct tdm_torch_settings *s, struct tdm_error *err)
{
    const struct {
        const char *key;
        bool is_set;
    } unknown[] = {
        {"lora_rank", s->lora_rank > 0},
        {"liger", s->liger != 0},
        {"model_code", s->code != TDM_CODE_TRANSFORMERS},
        {"tiled_mlp_compute", s->mlp_tiles > 0},
        {"tiled_logits", s->logits_tiles > 0},
        {"logits", s->logits != TDM_LOGITS_HF && s->logits != TDM_LOGITS_HF_HELD &&
                       s->logits != TDM_LOGITS_BF16 && s->logits != TDM_LOGITS_BF16_HELD &&
                       s->logits != TDM_LOGITS_BASE},
        {"optimizer", s->optimizer >= TDM_TORCH_ADAMW_8BIT},
    };
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        if (unknown[i].is_set)
            return tdm_fail(err, TDM_USAGE,
                            "--set tensor_parallel_degree: with %s it is not modelled",
                            unknown[i].key);
    return TDM_OK;
}

enum tdm_status tdm_tensor_check(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const uint64_t ranks = tdm_tensor_ranks(s), parts = ranks * tdm_fsdp_replicas(&s->fsdp);
    char divisors[TDM_DIVISORS_BYTES];
    if (ranks == 1)
        return TDM_OK;
    if (model->parts != 0 || model->experts.count > 0 || model->whole_qk_norm ||
        tdm_model_tensor(model, 0, TDM_ROLE_QKV) != NULL || model->latent.kv_rank > 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set tensor_parallel_degree: layers of %s are not modelled in parts",
                 model->architecture);
        return tdm_hint(err, "Llama, Mistral, Qwen2, Qwen3 and Gemma are");
    }
    uint64_t common = tdm_common_divisor(tdm_common_divisor(model->query_heads, model->kv_heads),
                                         model->intermediate);
    if (common % ranks != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set tensor_parallel_degree: %" PRIu64 " does not divide %" PRIu32
                 " heads, %" PRIu32 " KV heads and the MLP's %" PRIu32,
                 ranks, model->query_heads, model->kv_heads, model->intermediate);
        return tdm_hint(err, "degrees that do: %s",
                        tdm_divisors_format(common, 1, UINT64_MAX, divisors));
    }
    if (s->ranks % parts != 0 || s->ranks == parts) {
        tdm_fail(err, TDM_USAGE,
                 "--set tensor_parallel_degree: %" PRIu64
                 " GPUs are not two or more shards of %" PRIu64,
                 s->ranks, parts);
        return tdm_hint(err, "--gpus %" PRIu64 "; without shards it is no method here", 2 * parts);
    }
    uint64_t cuts = ranks * (s->context.divider == NULL ? 1
                             : s->context.ranks > 0     ? 2 * s->context.ranks
                                                        : 2 * s->ranks / ranks);
    if (s->tokens % cuts != 0) {
        tdm_fail(err, TDM_USAGE, "--context: %" PRIu64 " tokens are no multiple of %" PRIu64,
                 s->tokens, cuts);
        return tdm_hint(err, "--context %" PRIu64, tdm_size_ceil_div(s->tokens, cuts) * cuts);
    }
    return check_settings(s, err);
}

/* A layer gathers and scatters twice, in the backward too, where weights of the products after a
 * gather read what was gathered; recomputation gathers and scatters again. */
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
    cost->product_flops /= ranks;
    cost->attention_flops /= ranks;
    tdm_traffic_add(&cost->exposed, group,
                    4 * hidden * (2 + tdm_torch_forwards_again(model, s)) * model->layers +
                        4 * hidden);
}
