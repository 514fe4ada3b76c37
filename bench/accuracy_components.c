/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicts components of a model as their own benchmarks run them: tiny programs of the operations
 * that methods are made of. Liger's benchmarks (benchmark/scripts/utils.py _test_memory) run
 * forward and backward ten times, never clear gradients, and report the median of the peaks. This
 * is the peak of any run but the first. The benchmark of apple/ml-cross-entropy reports what a
 * forward adds to the memory already in use.
 */
#include "bench/accuracy_runs.h"

#include "methods/eager/liger.h"
#include "methods/eager/ops.h"
#include "methods/eager/tiles.h"
#include "methods/megatron/parts.h"
#include "methods/torch/parts.h" /* the loss of a model, without the rest of it */

#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define CAPACITY_BYTES (UINT64_C(1) << 40)
#define ROUNDS 3u
#define MOST_WEIGHTS 3u
#define TILES 4u /* of Liger's benchmark of tiled MLPs */

/* The sizes that a component is given. */
struct sizes {
    uint64_t rows, hidden, intermediate, vocabulary;
    uint64_t heads; /* copies of the head's weight; only the first is run */
};

struct component {
    struct tdm_eager m;
    struct sizes sizes;
    struct tdm_eager_value *x, *labels, *weights[MOST_WEIGHTS];
};

static struct tdm_eager_value *weight(struct component *c, uint64_t rows, uint64_t columns)
{
    return tdm_value_leaf(&c->m, rows, columns, BF16, true);
}

static void make_input(struct component *c, uint64_t columns, uint16_t element_bytes)
{
    c->x = tdm_value_leaf(&c->m, c->sizes.rows, columns, element_bytes, true);
}

static void make_labels(struct component *c)
{
    c->labels = tdm_value_new(&c->m, c->sizes.rows, 1, INT64);
}

static void backward_of(struct component *c, struct tdm_eager_value *loss)
{
    tdm_backward(&c->m, loss, NULL);
    tdm_drop(&c->m, loss);
}

/* ---- torch.nn.CrossEntropyLoss of fp32 logits ---- */

static void make_cross_entropy(struct component *c)
{
    make_input(c, c->sizes.vocabulary, FP32);
    make_labels(c);
}

static void cross_entropy(struct component *c)
{
    backward_of(c, tdm_cross_entropy(&c->m, c->x, c->labels));
}

/* Liger's in its place. */
static void liger_cross_entropy(struct component *c)
{
    backward_of(c, tdm_liger_cross_entropy(&c->m, c->x, c->labels));
}

/* ---- Megatron-LM's cross entropy of bf16 logits; gradients are cleared before each run ---- */

static void make_parallel_loss(struct component *c)
{
    make_input(c, c->sizes.vocabulary, BF16);
    make_labels(c);
}

/* losses.sum().backward() */
static void sum_backward_of(struct component *c, struct tdm_eager_value *losses)
{
    struct tdm_eager_value *loss = tdm_mean(&c->m, losses);
    backward_of(c, loss);
    tdm_drop(&c->m, losses);
    tdm_drop(&c->m, c->x->grad);
    c->x->grad = NULL;
}

/* Megatron-LM's own, compiled. */
static void megatron_fused_loss(struct component *c)
{
    struct tdm_megatron stage = {.m = &c->m,
                                 .rows = c->sizes.rows,
                                 .vocabulary = c->sizes.vocabulary,
                                 .set.fused_loss = true};
    sum_backward_of(c, megatron_loss(&stage, c->x));
}

static void liger_parallel_loss(struct component *c)
{
    sum_backward_of(c, tdm_liger_parallel_cross_entropy(&c->m, c->x, c->labels));
}

/* ---- the head and the loss of its unchanged logits ---- */

static void make_head(struct component *c)
{
    make_input(c, c->sizes.hidden, BF16);
    for (uint64_t i = 0; i == 0 || (i < c->sizes.heads && i < MOST_WEIGHTS); i++)
        c->weights[i] = weight(c, c->sizes.vocabulary, c->sizes.hidden);
    make_labels(c);
}

static void head_loss(struct component *c)
{
    struct tdm_eager *m = &c->m;
    struct tdm_eager_value *logits = tdm_linear(m, c->x, c->weights[0], NULL, true);
    struct tdm_eager_value *loss = tdm_cross_entropy(m, logits, c->labels);
    tdm_drop(m, logits);
    backward_of(c, loss);
}

/* The same with Liger's fused function, of the version that was measured. */
static void fused_loss(struct component *c)
{
    struct tdm_torch_model model = {
        .m = &c->m,
        .head = c->weights[0],
        .settings = {.batch = 1, .tokens = c->sizes.rows, .liger_version = TDM_LIGER_0_4_2}};
    backward_of(c, tdm_torch_fused_loss(&model, c->x));
}

/* Gemma 2's loss: capped logits, which stay in a variable, and an fp32 copy of them. Forward
 * only. */
static void capped_loss(struct component *c)
{
    struct tdm_eager *m = &c->m;
    struct tdm_eager_value *logits =
        tdm_torch_softcap(m, tdm_linear(m, c->x, c->weights[0], NULL, true));
    struct tdm_eager_value *wide = tdm_cast(m, logits, FP32);
    struct tdm_eager_value *loss = tdm_cross_entropy(m, wide, c->labels);
    tdm_drop(m, wide);
    tdm_drop(m, logits);
    tdm_drop(m, loss);
}

/* ---- transformers' LlamaMLP ---- */

static void make_mlp(struct component *c)
{
    make_input(c, c->sizes.hidden, BF16);
    c->weights[0] = weight(c, c->sizes.intermediate, c->sizes.hidden);
    c->weights[1] = weight(c, c->sizes.intermediate, c->sizes.hidden);
    c->weights[2] = weight(c, c->sizes.hidden, c->sizes.intermediate);
}

/* Liger's MLP of a tile. */
static struct tdm_eager_value *liger_mlp(struct tdm_eager *m, const void *of, uint32_t layer,
                                         struct tdm_eager_value *x)
{
    const struct component *c = of;
    (void)layer;
    struct tdm_eager_value *gate = tdm_linear(m, x, c->weights[0], NULL, false);
    struct tdm_eager_value *up = tdm_linear(m, x, c->weights[1], NULL, false);
    struct tdm_eager_value *product = tdm_liger_gated(m, gate, up);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    struct tdm_eager_value *y = tdm_linear(m, product, c->weights[2], NULL, false);
    tdm_drop(m, product);
    return y;
}

static void liger_tiled_mlp(struct component *c)
{
    struct tdm_eager *m = &c->m;
    const struct tdm_function tile = {.run = liger_mlp, .model = c};
    struct tdm_eager_value *y = tdm_tiled(m, &tile, c->x, TILES);
    struct tdm_eager_value *grad = tdm_value_like(m, y);
    tdm_backward(m, y, grad);
    tdm_drop(m, grad);
    tdm_drop(m, y);
}

/* y.backward(randn_like(y), retain_graph=True): the saved tensors outlive the backward. */
static void mlp(struct component *c)
{
    struct tdm_eager *m = &c->m;
    struct tdm_eager_value *gate = tdm_linear(m, c->x, c->weights[0], NULL, false);
    struct tdm_eager_value *active = tdm_activate(m, TDM_ACTIVATION_SILU, gate);
    struct tdm_eager_value *up = tdm_linear(m, c->x, c->weights[1], NULL, false);
    struct tdm_eager_value *product = tdm_mul(m, active, up);
    struct tdm_eager_value *y = tdm_linear(m, product, c->weights[2], NULL, false);
    struct tdm_eager_value *grad = tdm_value_like(m, y);
    tdm_backward(m, y, grad);
    struct tdm_eager_value *const all[] = {grad, y, product, up, active, gate};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        tdm_drop(m, all[i]);
}

/* ---- */

static const struct kind {
    const char *name;
    void (*make)(struct component *c);
    void (*run)(struct component *c);
    bool above; /* memory in use before the run does not count */
} kinds[] = {
    {"cross-entropy", make_cross_entropy, cross_entropy, false},
    {"head-loss", make_head, head_loss, false},
    {"fused-loss", make_head, fused_loss, false},
    {"liger-cross-entropy", make_cross_entropy, liger_cross_entropy, false},
    {"liger-parallel-loss", make_parallel_loss, liger_parallel_loss, false},
    {"megatron-fused-loss", make_parallel_loss, megatron_fused_loss, false},
    {"liger-tiled-mlp", make_mlp, liger_tiled_mlp, false},
    {"capped-loss", make_head, capped_loss, true},
    {"mlp", make_mlp, mlp, false},
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static bool read_sizes(const char *const *pairs, size_t count, struct sizes *sizes)
{
    const struct {
        const char *name;
        uint64_t *size;
    } names[] = {{"rows=", &sizes->rows},
                 {"hidden=", &sizes->hidden},
                 {"intermediate=", &sizes->intermediate},
                 {"vocabulary=", &sizes->vocabulary},
                 {"heads=", &sizes->heads}};
    const size_t known = sizeof(names) / sizeof(names[0]);
    for (size_t i = 0; i < count; i++) {
        size_t n = 0;
        while (n < known && strncmp(pairs[i], names[n].name, strlen(names[n].name)) != 0)
            n++;
        if (n == known)
            return false;
        *names[n].size = strtoull(pairs[i] + strlen(names[n].name), NULL, 10);
    }
    return true;
}

static uint64_t run(struct component *c, const struct kind *kind)
{
    uint64_t before = 0;
    kind->make(c);
    for (unsigned i = 0; i < ROUNDS; i++) {
        tdm_eager_reset_peak(&c->m);
        before = tdm_torch_current(c->m.allocator).allocated;
        kind->run(c);
    }
    return tdm_torch_peak(c->m.allocator).allocated - (kind->above ? before : 0);
}

enum tdm_status predict_component(const char *name, const char *const *pairs, size_t count,
                                  uint64_t *peak_bytes, struct tdm_error *err)
{
    static const struct tdm_gpu_facts a100 = {108, 2048, 8519680, MIB, 80};
    struct component c = {.x = NULL};
    struct tdm_torch_allocator *allocator = NULL;
    size_t k = 0;
    while (k < KINDS && strcmp(kinds[k].name, name) != 0)
        k++;
    if (k == KINDS || !read_sizes(pairs, count, &c.sizes))
        return tdm_fail(err, TDM_USAGE, "component \"%s\" or its sizes are not known", name);
    enum tdm_status status = tdm_torch_allocator_create(CAPACITY_BYTES, false, &allocator, err);
    if (status != TDM_OK)
        return status;
    tdm_eager_start(&c.m, allocator, &a100);
    c.m.grad_enabled = true;
    *peak_bytes = run(&c, &kinds[k]);
    status = c.m.status;
    tdm_eager_end(&c.m);
    tdm_torch_allocator_free(allocator);
    return status == TDM_OK ? TDM_OK : tdm_fail(err, status, "component \"%s\" failed", name);
}
