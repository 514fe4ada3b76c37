/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head and loss without logits of all tokens.
 *
 * chunked: TRL's chunked_nll (trl/trainer/sft_trainer.py _chunked_cross_entropy_loss). For some
 * tokens at a time, hidden states and the head's whole weight are cast to fp32 and multiplied, and
 * both are repeated in the backward. The weight gradients of the chunks are added up one by one.
 * fused: Liger's fused linear cross entropy (liger_kernel/ops/fused_linear_cross_entropy.py). The
 * forward computes the gradients: the logits of some tokens are overwritten by their gradient,
 * which then enters the products of the backward.
 * parts: torchtune's LinearCrossEntropyLoss (torchtune/modules/loss/cross_entropy_loss.py): eight
 * products of the head, each with its loss, one after another and without checkpoints.
 * in-place: ms-swift's over divided sequences, with CELOSS_PARALLEL_SIZE
 * (swift/sequence_parallel/utils.py ChunkedCrossEntropyLoss): all logits are there, and the
 * backward repeats the loss of some tokens at a time and writes its gradient into them.
 */
#include "methods/eager/liger.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include "base/size.h"

/* ---- chunked ---- */

/* Logits of a chunk and their loss. Accuracy and entropy are computed for the log. */
static struct tdm_eager_value *chunk_of_loss(struct tdm_eager *m, const void *model,
                                             uint32_t number, struct tdm_eager_value *hidden)
{
    const struct tdm_torch_model *t = model;
    (void)number;
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *wide = tdm_cast(m, hidden, FP32), *weight = tdm_cast(m, t->head, FP32);
    struct tdm_eager_value *logits = tdm_linear(m, wide, weight, NULL, true);
    tdm_drop(m, wide);
    tdm_drop(m, weight);
    logits = tdm_torch_scale_logits(m, t, logits);
    struct tdm_eager_value *labels = tdm_value_new(m, hidden->rows, 1, INT64);
    struct tdm_eager_value *loss = tdm_cross_entropy(m, logits, labels);
    bool graph = m->grad_enabled;
    m->grad_enabled = false;
    struct tdm_eager_value *exponents = tdm_value_like(m, logits),
                           *products = tdm_value_like(m, logits);
    m->grad_enabled = graph;
    tdm_drop(m, exponents);
    tdm_drop(m, products);
    tdm_drop(m, labels);
    tdm_drop(m, logits);
    m->category = before;
    return loss;
}

static void index_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *indices = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, indices);
}

/* hidden[order] */
static struct tdm_eager_value *ordered(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *order)
{
    static const struct tdm_eager_op op = {"IndexBackward0", false, index_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, order);
    return tdm_node_finish(m, node, tdm_value_new(m, x->rows, x->columns, x->element_bytes));
}

struct tdm_eager_value *tdm_torch_chunked_loss(struct tdm_torch_model *t,
                                               struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = t->m;
    uint64_t rows = hidden->rows, chunk = t->settings.loss_chunk_tokens;
    struct tdm_eager_value *order = tdm_value_new(m, rows, 1, INT64), *loss = NULL;
    struct tdm_eager_value *packed = ordered(m, hidden, order); /* tokens without a label go last */
    uint64_t start = 0;
    /* The first chunk runs even after a failure, so there is a loss for the backward. */
    do {
        const struct tdm_function function = {.run = chunk_of_loss, .model = t};
        uint64_t now = rows - start < chunk ? rows - start : chunk;
        struct tdm_eager_value *part = tdm_rows(m, packed, now);
        struct tdm_eager_value *own = tdm_checkpoint(m, &function, part);
        tdm_drop(m, part);
        struct tdm_eager_value *sum = loss == NULL ? tdm_take(own) : tdm_add(m, loss, own);
        tdm_drop(m, own);
        tdm_drop(m, loss);
        loss = sum;
        start += chunk;
    } while (start < rows && m->status == TDM_OK);
    tdm_drop(m, packed);
    tdm_drop(m, order);
    return loss;
}

/* ---- fused ---- */

static void fused_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    for (uint32_t i = 0; i < node->saved_count; i++) {
        results[i] = tdm_node_saved(m, node, i);
        results[i]->view =
            false; /* nobody else has its memory, so that a tied head's is added to */
    }
}

static uint64_t power_of_two(uint64_t n)
{
    uint64_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Tokens of a chunk, whose logits take about as much memory as all hidden states. */
static uint64_t fused_chunk(uint64_t rows, const struct tdm_eager_value *weight)
{
    uint64_t parts = tdm_size_ceil_div(weight->rows, weight->columns);
    uint64_t chunk = power_of_two(tdm_size_ceil_div(rows, parts));
    return chunk < rows ? chunk : rows;
}

static struct tdm_eager_value *fused_logits(const struct tdm_torch_model *t, uint64_t rows,
                                            uint16_t element_bytes)
{
    struct tdm_eager *m = t->m;
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *logits = tdm_value_new(m, rows, t->head->rows, element_bytes);
    m->category = before;
    tdm_cublas(m);
    return logits;
}

/* A chunk under autocast. The head's transpose is cast anew for each chunk, the head itself once.
 */
static void fused_cast_chunk(const struct tdm_torch_model *t, const struct tdm_eager_value *hidden,
                             uint64_t rows, bool has_weight_grad)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *transposed = tdm_value_new(m, t->head->rows, t->head->columns, BF16);
    struct tdm_eager_value *narrow = tdm_value_new(m, rows, hidden->columns, BF16);
    struct tdm_eager_value *logits = fused_logits(t, rows, BF16);
    tdm_drop(m, narrow);
    tdm_drop(m, transposed);
    struct tdm_eager_value *weight = tdm_autocast(m, t->head);
    struct tdm_eager_value *grad = tdm_value_new(m, rows, hidden->columns, BF16);
    tdm_drop(m, grad);
    tdm_drop(m, weight);
    if (has_weight_grad) {
        narrow = tdm_value_new(m, rows, hidden->columns, BF16);
        tdm_drop(m, narrow);
    }
    tdm_drop(m, logits);
}

/* What Python's names refer to when the next chunk begins. */
struct fused_names {
    struct tdm_eager_value *logits, *grad; /* grad NULL: another name of the logits */
};

/* To 0.6.0 each chunk has logits of its own. To 0.4.2 they become fp32 for the kernel, narrow
 * again, and are multiplied by the chunk's share of the labels. */
static void fused_old_chunk(const struct tdm_torch_model *t, const struct tdm_eager_value *hidden,
                            uint64_t rows, struct fused_names *names)
{
    struct tdm_eager *m = t->m;
    const uint16_t bytes = hidden->element_bytes;
    names->logits = tdm_replace(m, names->logits, fused_logits(t, rows, bytes));
    if (t->settings.liger_version == TDM_LIGER_0_4_2) {
        if (bytes != FP32) {
            names->logits = tdm_replace(m, names->logits, fused_logits(t, rows, FP32));
            names->logits = tdm_replace(m, names->logits, fused_logits(t, rows, bytes));
        }
        names->grad = tdm_replace(m, names->grad, fused_logits(t, rows, bytes));
    }
    tdm_drop(m, tdm_value_new(m, rows, hidden->columns, bytes));
}

/* Logits of all chunks have one buffer, unless autocast has a part in the products. Chunks after
 * the second are like it. */
static void fused_chunks(const struct tdm_torch_model *t, const struct tdm_eager_value *hidden,
                         bool has_weight_grad)
{
    const bool casts = t->m->autocast && t->head->element_bytes != BF16;
    uint64_t chunk = fused_chunk(hidden->rows, t->head);
    struct fused_names names = {.logits = NULL};
    if (!casts && t->settings.liger_version < TDM_LIGER_0_6_0) {
        tdm_drop(t->m, fused_logits(t, chunk, hidden->element_bytes));
        return;
    }
    for (uint64_t i = 0; i < 2 && i * chunk < hidden->rows; i++)
        if (casts)
            fused_cast_chunk(t, hidden, chunk, has_weight_grad);
        else
            fused_old_chunk(t, hidden, chunk, &names);
    tdm_drop(t->m, names.logits);
    tdm_drop(t->m, names.grad);
}

struct tdm_eager_value *tdm_torch_fused_loss(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden)
{
    static const struct tdm_eager_op op = {"LigerFusedLinearCrossEntropyFunctionBackward", false,
                                           fused_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {hidden, t->head};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct tdm_eager_value *labels =
        tdm_value_new(m, t->settings.batch, t->settings.tokens + 1, INT64);
    struct tdm_eager_value *weight_grad = NULL, *hidden_grad = tdm_value_like(m, hidden);
    if (t->head->requires_grad)
        weight_grad = tdm_value_like(m, t->head);
    struct tdm_eager_value *losses = tdm_value_new(m, hidden->rows, 1, FP32);
    struct tdm_eager_value *mask = tdm_value_new(m, hidden->rows, 1, BOOL);
    fused_chunks(t, hidden, weight_grad != NULL);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, FP32);
    tdm_drop(m, mask);
    tdm_drop(m, losses);
    tdm_drop(m, labels);
    tdm_node_save(m, node, hidden_grad);
    if (weight_grad != NULL) {
        tdm_node_save(m, node, weight_grad);
        tdm_value_set_category(m, weight_grad, TDM_METHOD_GRADIENTS);
    }
    tdm_drop(m, hidden_grad);
    tdm_drop(m, weight_grad);
    return tdm_node_finish(m, node, loss);
}

/* ---- parts ---- */

enum { PARTS = 8 }; /* num_output_chunks */

static struct tdm_eager_value *part_loss(struct tdm_torch_model *t, struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = t->m;
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    tdm_label(m, "lm_head");
    struct tdm_eager_value *logits =
        tdm_torch_linear(m, t, hidden, t->head, t->head_bias, TDM_MODULE_HEAD);
    logits = tdm_torch_scale_logits(m, t, logits);
    struct tdm_eager_value *labels = tdm_value_view(m, t->ids), *loss;
    labels->rows = hidden->rows;
    labels->columns = 1;
    tdm_label(m, "loss");
    if (t->settings.compile == TDM_COMPILE_ALL) {
        loss = tdm_fused_cross_entropy(m, logits, labels);
    } else {
        logits = tdm_replace(m, logits, tdm_cast(m, logits, FP32));
        loss = tdm_cross_entropy(m, logits, labels);
    }
    tdm_drop(m, labels);
    tdm_drop(m, logits);
    m->category = before;
    return loss;
}

/* All parts are cut before the first product, so that the backward joins them at its end. */
struct tdm_eager_value *tdm_torch_parts_loss(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = t->m;
    uint64_t rows = hidden->rows;
    struct tdm_eager_value *parts[PARTS], *loss = NULL;
    struct tdm_eager_value *order = tdm_value_new(m, rows, 1, INT64);
    struct tdm_eager_value *kept = ordered(m, hidden, order); /* all have a label */
    unsigned count = rows < PARTS ? (unsigned)rows : PARTS;
    for (unsigned i = 0; i < count; i++)
        parts[i] = tdm_rows(m, kept, rows / PARTS + (i < rows % PARTS));
    for (unsigned i = 0; i < count; i++) {
        struct tdm_eager_value *own = part_loss(t, parts[i]);
        struct tdm_eager_value *sum = loss == NULL ? tdm_take(own) : tdm_add(m, loss, own);
        tdm_drop(m, own);
        tdm_drop(m, loss);
        loss = sum;
    }
    for (unsigned i = 0; i < count; i++)
        tdm_drop(m, parts[i]);
    tdm_drop(m, kept);
    tdm_drop(m, order);
    return loss;
}

/* ---- in-place ---- */

/* The loss of a chunk; in the backward also its gradients by log-softmax and by logits. */
static void run_chunk(struct tdm_eager *m, uint64_t rows, const struct tdm_eager_value *logits,
                      bool backward)
{
    struct tdm_eager_value *values[3];
    const unsigned count = backward ? 3 : 1;
    for (unsigned i = 0; i < count; i++)
        values[i] = tdm_value_new(m, rows, logits->columns, logits->element_bytes);
    for (unsigned i = 0; i < count; i++)
        tdm_drop(m, values[i]);
}

static void in_place_backward(struct tdm_eager *m, struct tdm_node *node,
                              struct tdm_eager_value *const *grads,
                              struct tdm_eager_value **results)
{
    (void)grads;
    results[0] = tdm_node_saved(m, node, 0);
    struct tdm_eager_value *chunk = tdm_node_saved(m, node, 1);
    const enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    run_chunk(m, chunk->rows, results[0], true);
    m->category = before;
    tdm_drop(m, chunk);
}

struct tdm_eager_value *tdm_torch_loss_in_place(struct tdm_torch_model *t,
                                                struct tdm_eager_value *logits)
{
    static const struct tdm_eager_op op = {"ChunkedCrossEntropyLossBackward", false,
                                           in_place_backward};
    struct tdm_eager *m = t->m;
    /* accelerate makes what a forward under autocast returns fp32 */
    struct tdm_eager_value *wide = m->autocast ? tdm_cast(m, logits, FP32) : tdm_take(logits);
    const uint64_t chunk =
        t->settings.loss_chunk_tokens < wide->rows ? t->settings.loss_chunk_tokens : wide->rows;
    tdm_label(m, "loss");
    struct tdm_node *node = tdm_node_new(m, &op, &wide, 1);
    struct tdm_eager_value *labels = tdm_value_new(m, chunk, 1, INT64), *losses;
    tdm_node_save(m, node, wide);
    tdm_node_save(m, node, labels);
    run_chunk(m, chunk, wide, false);
    losses = tdm_node_finish(m, node, tdm_value_new(m, wide->rows, 1, wide->element_bytes));
    tdm_drop(m, labels);
    tdm_drop(m, wide);
    struct tdm_eager_value *loss = tdm_mean(m, losses);
    tdm_drop(m, losses);
    return loss;
}
