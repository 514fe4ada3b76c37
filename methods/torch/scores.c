/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log-probabilities of tokens, and divergences of two models, tile by tile: logits of 4,096 tokens
 * and 32,768 words at a time, which the backward computes again. Gradients are added up in fp32.
 * Source: trl 1.16, trl/kernels/{chunked_logprob,chunked_divergence}.py, as on a GPU, where kernels
 * fold a tile; trl/trainer/utils.py, _fused_forward.
 *
 * And Liger's loss of GRPO (liger_kernel/chunked_loss/fused_linear_ppo.py, 0.8.2): sequences one by
 * one, whose gradients are made in the forward and added up; the head's too, though it is frozen.
 */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include "base/size.h"

#define TILE_TOKENS UINT64_C(4096)
#define TILE_WORDS UINT64_C(32768)

static struct tdm_eager_value *tile(struct tdm_eager *m, uint64_t rows, uint16_t element_bytes)
{
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *made =
        tdm_value_new(m, tdm_least(rows, TILE_TOKENS), TILE_WORDS, element_bytes);
    m->category = before;
    return made;
}

/* Vectors of fp32, one element a token, which are allocated and freed together. */
#define MOST_VECTORS 12u
struct vectors {
    struct tdm_eager_value *of[MOST_VECTORS];
    uint32_t count;
};

static void add_vectors(struct tdm_eager *m, struct vectors *v, uint64_t rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        v->of[v->count++] = tdm_value_new(m, rows, 1, FP32);
}

static void drop_vectors(struct tdm_eager *m, struct vectors *v)
{
    for (uint32_t i = 0; i < v->count; i++)
        tdm_drop(m, v->of[i]);
}

/* A part of a weight in bf16, where it is in fp32. */
static struct tdm_eager_value *narrow_part(struct tdm_eager *m,
                                           const struct tdm_eager_value *weight)
{
    return weight->element_bytes == BF16
               ? NULL
               : tdm_value_new(m, tdm_least(weight->rows, TILE_WORDS), weight->columns, BF16);
}

/* A tile's gradient in bf16, which lives until there is the next tile's. */
static struct tdm_eager_value *narrow_tile(struct tdm_eager *m,
                                           const struct tdm_eager_value *hidden,
                                           const struct tdm_eager_value *weight)
{
    return tdm_value_new(m, tdm_least(hidden->rows, TILE_TOKENS),
                         tdm_least(weight->rows, TILE_WORDS), BF16);
}

/* Gradients of hidden states and of the head, each in fp32 and then in its own dtype. `tiles`: one,
 * or the student's and the teacher's. */
static void tile_gradients(struct tdm_eager *m, const struct tdm_node *node,
                           const struct tdm_eager_value *hidden,
                           const struct tdm_eager_value *weight, uint32_t tiles, uint16_t bytes,
                           struct tdm_eager_value **results)
{
    struct tdm_eager_value *wide[2] = {NULL, NULL}, *buffers[2];
    if (tdm_node_needs(node, 0))
        wide[0] = tdm_value_new(m, hidden->rows, hidden->columns, FP32);
    if (tdm_node_needs(node, 1))
        wide[1] = tdm_value_new(m, weight->rows, weight->columns, FP32);
    for (uint32_t i = 0; i < tiles; i++)
        buffers[i] = tile(m, hidden->rows, bytes);
    struct tdm_eager_value *part = narrow_part(m, weight);
    tdm_cublas(m);
    struct tdm_eager_value *copy = tiles > 1 ? narrow_tile(m, hidden, weight) : NULL;
    if (copy != NULL && (hidden->rows > TILE_TOKENS || weight->rows > TILE_WORDS))
        copy = tdm_replace(m, copy, narrow_tile(m, hidden, weight));
    tdm_drop(m, part);
    if (wide[0] != NULL)
        results[0] = tdm_cast(m, wide[0], hidden->element_bytes);
    if (wide[1] != NULL)
        results[1] = tdm_cast(m, wide[1], weight->element_bytes);
    for (uint32_t i = 0; i < tiles; i++)
        tdm_drop(m, buffers[i]);
    tdm_drop(m, copy);
    tdm_drop(m, wide[0]);
    tdm_drop(m, wide[1]);
}

/* Heads are read outside of their modules (maybe_gather_lm_head_ctx): those of the student and of
 * the teacher, or NULL. */
struct heads {
    struct tdm_torch_model *of[2];
    bool gathered[2];
};

static struct heads gather_heads(struct tdm_torch_model *t, struct tdm_torch_model *teacher)
{
    struct heads h = {.of = {t, teacher}};
    for (unsigned i = 0; i < 2; i++)
        h.gathered[i] = h.of[i] != NULL && tdm_weight_gather(h.of[i], h.of[i]->head);
    return h;
}

static void return_heads(const struct heads *h)
{
    for (unsigned i = 0; i < 2 && h->of[i] != NULL; i++)
        tdm_weight_return(h->of[i], h->of[i]->head, h->gathered[i]);
}

static void function_backward(struct tdm_eager *m, struct tdm_node *node, uint32_t tiles,
                              uint16_t bytes, struct tdm_eager_value **results)
{
    struct tdm_torch_model *t = node->context;
    const struct heads heads = gather_heads(t, tiles > 1 ? t->second : NULL);
    struct tdm_eager_value *hidden = tdm_node_saved(m, node, 0),
                           *weight = tdm_node_saved(m, node, 1);
    bool graph = m->grad_enabled;
    m->grad_enabled = false;
    tile_gradients(m, node, hidden, weight, tiles, bytes, results);
    m->grad_enabled = graph;
    return_heads(&heads);
    tdm_drop(m, hidden);
    tdm_drop(m, weight);
}

static void scores_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    function_backward(m, node, 1, BF16, results);
}

static void divergence_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    (void)grads;
    function_backward(m, node, 2, FP32, results);
}

static void index_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *mask = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    struct tdm_eager_value *indices = tdm_value_new(m, grads[0]->rows, 2, INT64);
    tdm_drop(m, indices);
    tdm_drop(m, mask);
}

/* x[mask]: `rows` rows of x. */
static struct tdm_eager_value *masked(struct tdm_eager *m, struct tdm_eager_value *x,
                                      struct tdm_eager_value *mask, uint64_t rows)
{
    static const struct tdm_eager_op op = {"IndexBackward0", false, index_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, mask);
    struct tdm_eager_value *indices = tdm_value_new(m, rows, 2, INT64);
    struct tdm_eager_value *picked = tdm_value_new(m, rows, x->columns, x->element_bytes);
    tdm_drop(m, indices);
    return tdm_node_finish(m, node, picked);
}

static void scatter_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *mask = tdm_node_saved(m, node, 0);
    (void)grads;
    results[0] = tdm_value_new(m, node->edges[0].rows, 1, FP32);
    tdm_drop(m, mask);
}

/* zeros.masked_scatter(mask, x) */
static struct tdm_eager_value *scattered(struct tdm_eager *m, struct tdm_eager_value *x,
                                         struct tdm_eager_value *mask)
{
    static const struct tdm_eager_op op = {"MaskedScatterBackward0", false, scatter_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, mask);
    struct tdm_eager_value *zeros = tdm_value_new(m, mask->rows, 1, FP32);
    struct tdm_eager_value *made = tdm_node_finish(m, node, tdm_value_new(m, mask->rows, 1, FP32));
    tdm_drop(m, zeros);
    return made;
}

/* The log-probabilities of picked rows. The statistics of a token take seven vectors, five when
 * done. */
static struct tdm_eager_value *fold(struct tdm_torch_model *t, struct tdm_eager_value *picked,
                                    struct tdm_eager_value *targets)
{
    static const struct tdm_eager_op op = {"ChunkedLogProbFunctionBackward", false,
                                           scores_backward};
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *inputs[] = {picked, t->head};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct vectors statistics = {.count = 0};
    if (node != NULL)
        node->context = t;
    add_vectors(m, &statistics, picked->rows, 7);
    struct tdm_eager_value *buffer = tile(m, picked->rows, BF16);
    struct tdm_eager_value *part = narrow_part(m, t->head);
    tdm_cublas(m);
    tdm_drop(m, part);
    struct tdm_eager_value *log_z = tdm_value_new(m, picked->rows, 1, FP32);
    struct tdm_eager_value *scores = tdm_value_new(m, picked->rows, 1, FP32);
    tdm_node_save(m, node, picked);
    tdm_node_save(m, node, t->head);
    tdm_node_save(m, node, targets);
    tdm_node_save(m, node, log_z);
    drop_vectors(m, &statistics);
    tdm_drop(m, buffer);
    tdm_drop(m, log_z);
    return tdm_node_finish(m, node, scores);
}

struct tdm_eager_value *tdm_torch_scores(struct tdm_torch_model *t, struct tdm_eager_value *hidden,
                                         struct tdm_eager_value *mask, uint64_t scored)
{
    struct tdm_eager *m = t->m;
    tdm_label(m, "lm_head");
    struct tdm_eager_value *before = tdm_rows(m, hidden, mask->rows); /* [:, :-1] */
    const struct heads heads = gather_heads(t, NULL);
    struct tdm_eager_value *picked = masked(m, before, mask, scored);
    tdm_drop(m, before);
    struct tdm_eager_value *targets = tdm_value_new(m, scored, 1, INT64);
    struct tdm_eager_value *scores = fold(t, picked, targets);
    tdm_drop(m, targets);
    tdm_drop(m, picked);
    return_heads(&heads);
    struct tdm_eager_value *placed = scattered(m, scores, mask);
    tdm_drop(m, scores);
    return placed;
}

/* ---- of logits that are there ---- */

static void logits_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const enum tdm_method_category before = m->category;
    struct tdm_eager_value *logits = tdm_node_saved(m, node, 0);
    (void)grads;
    m->category = TDM_METHOD_LOGITS;
    results[0] = tdm_value_like(m, logits);
    m->category = before;
    tdm_drop(m, logits);
}

/* trl/kernels/logprob_entropy.py: log-probabilities, with them their entropies. */
struct tdm_eager_value *tdm_torch_logits_scores(struct tdm_torch_model *t,
                                                struct tdm_eager_value *logits,
                                                struct tdm_eager_value *mask)
{
    static const struct tdm_eager_op op = {"_LogProbEntropyFunctionBackward", false,
                                           logits_backward};
    struct tdm_eager *m = t->m;
    tdm_label(m, "loss");
    struct tdm_eager_value *labels = tdm_value_new(m, mask->rows, 1, INT64);
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    struct vectors statistics = {.count = 0};
    struct tdm_eager_value *scores = tdm_value_new(m, mask->rows, 1, FP32);
    add_vectors(m, &statistics, mask->rows, 3); /* entropy, log_z, expected_logit */
    tdm_node_save(m, node, logits);
    tdm_node_save(m, node, labels);
    tdm_node_save(m, node, statistics.of[1]);
    tdm_node_save(m, node, statistics.of[2]);
    drop_vectors(m, &statistics);
    tdm_drop(m, labels);
    return tdm_node_finish(m, node, scores);
}

struct tdm_eager_value *tdm_torch_divergence(struct tdm_torch_model *t,
                                             struct tdm_torch_model *teacher,
                                             struct tdm_eager_value *hidden,
                                             struct tdm_eager_value *other,
                                             struct tdm_eager_value *mask, uint64_t scored)
{
    static const struct tdm_eager_op op = {"ChunkedDivergenceFunctionBackward", false,
                                           divergence_backward};
    struct tdm_eager *m = t->m;
    tdm_label(m, "divergence");
    struct tdm_eager_value *picked = masked(m, hidden, mask, scored);
    struct tdm_eager_value *others = masked(m, other, mask, scored);
    const struct heads heads = gather_heads(t, teacher);
    struct tdm_eager_value *inputs[] = {picked, t->head};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct vectors statistics = {.count = 0};
    if (node != NULL)
        node->context = t;
    add_vectors(m, &statistics, scored, 9);
    struct tdm_eager_value *buffers[] = {tile(m, scored, FP32), tile(m, scored, FP32)};
    tdm_cublas(m);
    struct tdm_eager_value *log_z[] = {tdm_value_new(m, scored, 1, FP32),
                                       tdm_value_new(m, scored, 1, FP32)};
    struct tdm_eager_value *entropy = tdm_value_new(m, scored, 1, FP32);
    struct tdm_eager_value *divergence = tdm_value_new(m, scored, 1, FP32);
    struct tdm_eager_value *saved[] = {picked,   t->head,  others,    teacher->head,
                                       log_z[0], log_z[1], divergence};
    for (size_t i = 0; i < sizeof(saved) / sizeof(saved[0]); i++)
        tdm_node_save(m, node, saved[i]);
    drop_vectors(m, &statistics);
    for (unsigned i = 0; i < 2; i++) {
        tdm_drop(m, buffers[i]);
        tdm_drop(m, log_z[i]);
    }
    tdm_drop(m, entropy);
    return_heads(&heads);
    tdm_drop(m, picked);
    tdm_drop(m, others);
    return tdm_node_finish(m, node, divergence);
}

/* ---- Liger's loss of GRPO ---- */

#define LIGER_TOKENS UINT64_C(2048)
#define LIGER_WORDS UINT64_C(4096)

static void liger_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    for (uint32_t i = 0; i < 2; i++) {
        struct tdm_eager_value *grad = tdm_node_saved(m, node, i);
        grad->view = false; /* nobody else has its memory */
        if (tdm_node_needs(node, i))
            results[i] = grad;
        else
            tdm_drop(m, grad);
    }
}

/* What lives together for the time of a tile. */
static void pass(struct tdm_eager *m, struct tdm_eager_value *const *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tdm_drop(m, values[i]);
}

/* Logits of a tile in bf16 and in fp32, the difference from the largest, its exponential. */
static void liger_tile(struct tdm_eager *m, uint64_t rows, uint64_t words)
{
    struct tdm_eager_value *made[] = {
        tdm_value_new(m, rows, words, BF16), tdm_value_new(m, rows, words, FP32),
        tdm_value_new(m, rows, words, FP32), tdm_value_new(m, rows, words, FP32)};
    tdm_cublas(m);
    pass(m, made, sizeof(made) / sizeof(made[0]));
}

/* The same again, the part of the head in fp32, hidden states in fp32, and what is added. */
static void liger_tile_backward(struct tdm_eager *m, uint64_t rows, uint64_t words,
                                uint64_t columns)
{
    struct tdm_eager_value *made[] = {
        tdm_value_new(m, rows, words, FP32), tdm_value_new(m, rows, words, FP32),
        tdm_value_new(m, words, columns, FP32), tdm_value_new(m, rows, columns, FP32),
        tdm_value_new(m, words, columns, FP32)};
    tdm_cublas(m);
    pass(m, made, sizeof(made) / sizeof(made[0]));
}

/* A sequence since 0.8: tile by tile, its gradients in fp32 and then in the dtypes of what they are
 * of. */
static void liger_sequence(struct tdm_torch_model *t, uint64_t rows)
{
    struct tdm_eager *m = t->m;
    const uint64_t tokens = tdm_least(rows, LIGER_TOKENS),
                   words = tdm_least(t->head->rows, LIGER_WORDS), columns = t->head->columns;
    liger_tile(m, tokens, words);
    struct tdm_eager_value *wide[] = {tdm_value_new(m, rows, columns, FP32),
                                      tdm_value_new(m, t->head->rows, columns, FP32)};
    liger_tile_backward(m, tokens, words, columns);
    struct tdm_eager_value *narrow = tdm_value_like(m, t->head);
    pass(m, wide, 2);
    tdm_drop(m, narrow);
}

/* To 0.7 a compiled function of all its logits, which is modelled as these and their gradient. */
static void liger_old_sequence(struct tdm_torch_model *t, uint64_t rows)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *made[] = {tdm_value_new(m, rows, t->head->rows, BF16),
                                      tdm_value_new(m, rows, t->head->rows, BF16),
                                      tdm_value_like(m, t->head)};
    tdm_cublas(m);
    pass(m, made, sizeof(made) / sizeof(made[0]));
}

struct tdm_eager_value *tdm_torch_liger_grpo(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden, uint64_t scored)
{
    static const struct tdm_eager_op op = {"LigerFusedLinearGRPOFunctionBackward", false,
                                           liger_backward};
    struct tdm_eager *m = t->m;
    const enum tdm_method_category before = m->category;
    tdm_label(m, "loss");
    struct tdm_eager_value *kept = tdm_rows(m, hidden, scored); /* of completions */
    struct tdm_eager_value *inputs[] = {kept, t->head};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    const struct heads heads = gather_heads(t, NULL);
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *head_grad = tdm_value_like(m, t->head);
    struct tdm_eager_value *grad = tdm_value_like(m, kept);
    /* sequences after the first are like it */
    if (t->settings.liger_version == TDM_LIGER_NOW)
        liger_sequence(t, scored / t->settings.batch);
    else
        liger_old_sequence(t, scored / t->settings.batch);
    struct tdm_eager_value *joined = tdm_value_like(m, kept); /* torch.cat */
    m->category = before;
    return_heads(&heads);
    tdm_drop(m, grad);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, FP32);
    tdm_node_save(m, node, joined);
    tdm_node_save(m, node, head_grad);
    tdm_drop(m, joined);
    tdm_drop(m, head_grad);
    tdm_drop(m, kept);
    return tdm_node_finish(m, node, loss);
}
