/* SPDX-License-Identifier: Apache-2.0 */
/* Self-attention of Megatron-Core on top of Transformer Engine: q, k, v from their joint product,
 * rotary embedding, and core attention by cuDNN's fused kernel or FlashAttention-2.
 * Sources: megatron/core/transformer/attention.py; transformer_engine/pytorch/attention/{rope.py,
 * dot_product_attention/{utils,backends}.py}, csrc/extensions/attention.cpp. */
#include "methods/megatron/parts.h"

#include "base/size.h"
#include "methods/eager/ops.h"

/* True: q, k and v stay where the product wrote them, and so do their gradients, without copies. */
static bool interleaved(const struct tdm_megatron *t)
{
    return !t->rotates && t->heads == t->groups && t->sharing == 1 && t->layout.context == 1 &&
           !(t->flash && t->batch > 1) && t->set.attention != TDM_BACKEND_UNFUSED;
}

static void split_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    if (!interleaved(node->context)) {
        results[0] = tdm_value_new(m, edge->rows, edge->columns, BF16);
        return;
    }
    results[0] = tdm_value_view(m, grads[0]);
    results[0]->rows = edge->rows;
    results[0]->columns = edge->columns;
}

static void split(struct tdm_megatron *t, struct tdm_eager_value *mixed,
                  struct tdm_eager_value *parts[3])
{
    static const struct tdm_eager_op op = {"SplitAlongDimBackward", false, split_backward};
    struct tdm_node *node = tdm_node_new(t->m, &op, &mixed, 1);
    const uint64_t heads[] = {t->heads * t->sharing, t->groups, t->groups};
    if (node != NULL)
        node->context = t;
    for (uint32_t i = 0; i < 3; i++) {
        parts[i] = tdm_value_view(t->m, mixed);
        parts[i]->columns = heads[i] * t->config->head_dim;
        tdm_node_output(t->m, node, i, parts[i]);
    }
    tdm_node_done(t->m, node);
    if (t->sharing > 1) /* the query heads of this rank, of those of its group */
        parts[0] = tdm_replace(t->m, parts[0],
                               tdm_columns(t->m, parts[0], t->heads * t->config->head_dim));
}

/* mappings.py _reduce_scatter_along_last_dim: the parts are put one below the other, and summed. */
static void gather_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *parts = tdm_value_like(m, grads[0]);
    results[0] = tdm_value_new(m, node->edges[0].rows, node->edges[0].columns, BF16);
    tdm_drop(m, parts);
}

struct tdm_eager_value *megatron_gather_groups(struct tdm_megatron *t,
                                               struct tdm_eager_value *mixed)
{
    static const struct tdm_eager_op op = {"_AllGatherFromTensorParallelRegionBackward", false,
                                           gather_backward};
    struct tdm_eager *m = t->m;
    const uint64_t columns = (t->heads * t->sharing + 2 * t->groups) * t->config->head_dim;
    if (t->sharing == 1)
        return mixed;
    struct tdm_node *node = tdm_node_new(m, &op, &mixed, 1);
    /* _gather_along_last_dim: ranks one below the other, then side by side. */
    struct tdm_eager_value *gathered =
        tdm_value_new(m, mixed->rows * t->layout.tensor, mixed->columns, BF16);
    struct tdm_eager_value *whole =
        tdm_value_new(m, mixed->rows, mixed->columns * t->layout.tensor, BF16);
    tdm_drop(m, gathered);
    whole = megatron_finish(t, node, whole);
    tdm_drop(m, mixed);
    return tdm_replace(m, whole, tdm_columns(m, whole, columns));
}

static void pass(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *const *grads,
                 struct tdm_eager_value **results)
{
    (void)m;
    (void)node;
    results[0] = tdm_take(grads[0]);
}

/* x.contiguous() of a part of a larger tensor. */
static struct tdm_eager_value *contiguous(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"CloneBackward0", false, pass};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    return megatron_finish(t, node, tdm_value_new(t->m, x->rows, x->columns, BF16));
}

static void rotate_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)node;
    results[0] = tdm_value_like(m, grads[0]);
}

static struct tdm_eager_value *rotate(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"FusedRoPEFuncBackward", false, rotate_backward};
    struct tdm_node *node = tdm_node_new(t->m, &op, &x, 1);
    return megatron_finish(t, node, tdm_value_new(t->m, x->rows, x->columns, BF16));
}

/* ---- the kernel ---- */

void megatron_kernel_seed(struct tdm_megatron *t)
{
    if (!t->flash)
        tdm_drop(t->m, tdm_value_new(t->m, 256, 1, 1));
}

void megatron_kernel_forward(struct tdm_megatron *t, const struct megatron_kernel *kernel,
                             struct tdm_eager_value **output, struct tdm_eager_value **sums)
{
    struct tdm_eager *m = t->m;
    uint64_t rows = t->batch * kernel->queries;
    *output = tdm_value_new(m, rows, kernel->heads * megatron_value_dim(t->config), BF16);
    *sums = tdm_value_new(m, rows * kernel->heads, 1, FP32);
    megatron_kernel_seed(t);
}

/* Scratch of cuDNN: dQ in fp32, dK and dV of every query head if heads share groups, and the row
 * sums of dO * O. Scratch of FlashAttention-2: the same, but dQ and the sums have padded tokens. */
void megatron_kernel_backward(struct tdm_megatron *t, const struct megatron_kernel *kernel,
                              struct tdm_eager_value *grads[3])
{
    struct tdm_eager *m = t->m;
    bool shared = kernel->groups < kernel->heads;
    uint64_t dim = t->config->head_dim, keys = tdm_size_mul(t->batch * kernel->keys, kernel->heads);
    for (unsigned i = 0; i < 3; i++)
        if (grads[i] == NULL)
            grads[i] = tdm_value_new(m, t->batch * (i == 0 ? kernel->queries : kernel->keys),
                                     (i == 0 ? kernel->heads : kernel->groups) *
                                         (i == 2 ? megatron_value_dim(t->config) : dim),
                                     BF16);
    if (t->flash) {
        /* mha_varlen_bwd pads every sequence. */
        uint64_t padded = t->packed ? kernel->queries + t->sequences * TDM_FLASH_ROWS
                                    : tdm_size_align(kernel->queries, TDM_FLASH_ROWS);
        const struct tdm_flash_scratch scratch = {
            .query_rows = tdm_size_mul(t->batch * kernel->heads, padded),
            .wide_rows = shared ? keys : 0,
            .head_dim = dim};
        tdm_flash_backward_scratch(m, &scratch);
        return;
    }
    uint64_t sums =
        tdm_size_mul(tdm_size_mul(t->batch * kernel->queries, kernel->heads), (dim + 1) * FP32);
    uint64_t spread = shared ? tdm_size_mul(keys, 2 * dim * BF16) : 0;
    tdm_drop(m, tdm_value_new(m, tdm_size_add(tdm_size_add(sums, spread), 256), 1, 1));
}

static struct megatron_kernel whole_kernel(const struct tdm_megatron *t)
{
    return (struct megatron_kernel){
        .queries = t->tokens, .keys = t->tokens, .heads = t->heads, .groups = t->groups};
}

static void kernel_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct megatron_kernel kernel = whole_kernel(t);
    struct megatron_kept saved = {.count = 0};
    (void)grads;
    for (uint32_t i = 0; i < node->saved_count; i++)
        megatron_keep(m, &saved, tdm_node_saved(m, node, i));
    if (interleaved(t)) { /* one buffer for all three gradients */
        struct tdm_eager_value *all = tdm_value_new(m, t->rows, 3 * saved.values[0]->columns, BF16);
        for (unsigned i = 0; i < 3; i++) {
            results[i] = tdm_value_view(m, all);
            results[i]->columns = saved.values[0]->columns;
        }
        tdm_drop(m, all);
    }
    megatron_kernel_backward(t, &kernel, results);
    megatron_drop_all(m, &saved);
}

/* ---- scores in memory ---- */

/* Gradients of dropped weights, of weights and of scores, then those of q, k and v. */
static void scores_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct megatron_kept saved = {.count = 0};
    (void)grads;
    for (uint32_t i = 0; i < node->saved_count; i++)
        megatron_keep(m, &saved, tdm_node_saved(m, node, i));
    results[2] = tdm_value_like(m, saved.values[2]);
    struct tdm_eager_value *weights = tdm_value_like(m, saved.values[3]);
    struct tdm_eager_value *scores = tdm_value_like(m, saved.values[3]);
    tdm_drop(m, weights);
    for (unsigned i = 0; i < 2; i++)
        results[i] = tdm_value_like(m, saved.values[i]);
    tdm_drop(m, scores);
    megatron_drop_all(m, &saved);
}

/* DotProductAttention without Transformer Engine: the softmax is one kernel. With dropout its
 * result, masks of a byte and what is left are kept. Sources:
 * megatron/core/transformer/dot_product_attention.py, fusions/fused_softmax.py. */
static struct tdm_eager_value *attend_by_scores(struct tdm_megatron *t, struct tdm_eager_value *q,
                                                struct tdm_eager_value *k,
                                                struct tdm_eager_value *v)
{
    static const struct tdm_eager_op op = {"DotProductAttentionBackward", false, scores_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {q, k, v}, *mask = NULL, *left;
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 3);
    uint64_t rows = t->batch * t->heads * t->tokens;
    struct tdm_eager_value *scores = tdm_value_new(m, rows, t->tokens, BF16);
    struct tdm_eager_value *weights = tdm_value_new(m, rows, t->tokens, BF16);
    tdm_drop(m, scores);
    left = tdm_take(weights);
    if (t->set.attention_dropout > 0) {
        mask = tdm_value_new(m, rows, t->tokens, BOOL);
        left = tdm_replace(m, left, tdm_value_new(m, rows, t->tokens, BF16));
    }
    struct tdm_eager_value *output =
        tdm_value_new(m, q->rows, t->heads * megatron_value_dim(t->config), BF16);
    for (unsigned i = 0; i < 3; i++)
        tdm_node_save(m, node, inputs[i]);
    tdm_node_save(m, node, weights);
    tdm_node_save(m, node, left);
    if (mask != NULL)
        tdm_node_save(m, node, mask);
    tdm_drop(m, mask);
    tdm_drop(m, left);
    tdm_drop(m, weights);
    return megatron_finish(t, node, output);
}

static struct tdm_eager_value *attend(struct tdm_megatron *t, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v)
{
    static const struct tdm_eager_op op = {"FusedAttnFuncBackward", false, kernel_backward};
    struct tdm_eager_value *inputs[] = {q, k, v}, *output, *sums;
    if (t->set.attention == TDM_BACKEND_UNFUSED)
        return attend_by_scores(t, q, k, v);
    struct tdm_node *node = tdm_node_new(t->m, &op, inputs, 3);
    struct megatron_kernel kernel = whole_kernel(t);
    megatron_kernel_forward(t, &kernel, &output, &sums);
    for (unsigned i = 0; i < 3; i++)
        tdm_node_save(t->m, node, inputs[i]);
    tdm_node_save(t->m, node, output);
    tdm_node_save(t->m, node, sums);
    tdm_drop(t->m, sums);
    return megatron_finish(t, node, output);
}

struct tdm_eager_value *megatron_core(struct tdm_megatron *t, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *whole[] = {q, k, v};
    /* FlashAttention-2 needs the batch first. With one sequence both orders are the same. */
    bool turned = t->flash && t->batch > 1;
    for (unsigned i = 0; i < 3; i++)
        whole[i] = turned || (whole[i]->view && !interleaved(t)) ? contiguous(t, whole[i])
                                                                 : tdm_take(whole[i]);
    struct tdm_eager_value *y = t->layout.context > 1
                                    ? megatron_context_attention(t, whole[0], whole[1], whole[2])
                                    : attend(t, whole[0], whole[1], whole[2]);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, whole[i]);
    if (turned) {
        struct tdm_eager_value *back = contiguous(t, y);
        tdm_drop(m, y);
        y = back;
    }
    return y;
}

struct tdm_eager_value *megatron_attention(struct tdm_megatron *t,
                                           const struct megatron_layer *layer,
                                           struct tdm_eager_value *mixed,
                                           struct megatron_kept *kept)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *parts[3];
    split(t, mixed, parts);
    if (!interleaved(t) && t->groups > 1 && t->groups < t->heads) { /* query heads are reshaped */
        struct tdm_eager_value *q = contiguous(t, parts[0]);
        tdm_drop(m, parts[0]);
        parts[0] = q;
    }
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *norm = i == 0 ? layer->q_norm : layer->k_norm, *y;
        if (norm != NULL) {
            y = megatron_norm(t, parts[i], norm, NULL);
            tdm_drop(m, parts[i]);
            parts[i] = y;
        }
        if (!t->rotates)
            continue;
        y = rotate(t, parts[i]);
        tdm_drop(m, parts[i]);
        parts[i] = y;
    }
    for (unsigned i = 0; i < 3; i++)
        megatron_keep(m, kept, parts[i]);
    if (megatron_recomputes(t, TDM_RECOMPUTED_CORE_ATTN))
        return megatron_checkpoint(t, REGION_CORE, 0, 0, 0, parts, 3);
    return megatron_core(t, parts[0], parts[1], parts[2]);
}
