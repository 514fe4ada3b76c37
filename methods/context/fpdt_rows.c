/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What FPDT runs part by part of a rank's rows: FPDT_FFN, which writes the gradient of its input
 * over it, and FPDT_LogitsLoss, which keeps the hidden states in host memory. Parts that do what
 * the ones before them did are not run.
 * Source: deepspeed/sequence/fpdt_layer.py.
 */
#include "base/size.h"
#include "methods/context/fpdt.h"
#include "methods/eager/dtypes.h"
#include "methods/eager/ops.h"

#include <stddef.h>
#include <stdlib.h>

#define MOST_PARTS_RUN 3u

static uint64_t parts_run(const struct tdm_eager *m, uint64_t parts)
{
    return tdm_eager_runs_all(m) || parts < MOST_PARTS_RUN ? parts : MOST_PARTS_RUN;
}

static void scratch(struct tdm_eager *m, uint64_t rows, uint64_t columns, uint16_t bytes)
{
    tdm_drop(m, tdm_value_new(m, rows, columns, bytes));
}

/* ---- FPDT_FFN ---- */

enum { X, UP, DOWN, GATE, UP_BIAS, DOWN_BIAS };
enum { PARTS, IS_GATED, HAS_BIAS };

/* A part of the rows, and the columns inside the MLP. */
struct part {
    uint64_t rows, hidden, columns;
    bool gated, biased;
};

static struct tdm_eager_value *inner(struct tdm_eager *m, const struct part *p)
{
    return tdm_value_new(m, p->rows, p->columns, BF16);
}

/* A product, and the sum with its bias. */
static struct tdm_eager_value *product(struct tdm_eager *m, const struct part *p)
{
    struct tdm_eager_value *y = inner(m, p);
    return p->biased ? tdm_replace(m, y, inner(m, p)) : y;
}

static void forward_part(struct tdm_eager *m, const struct part *p)
{
    struct tdm_eager_value *gate = p->gated ? product(m, p) : NULL, *up = product(m, p);
    struct tdm_eager_value *active = inner(m, p); /* bias_gelu is scripted and fused */
    tdm_drop(m, gate);
    tdm_drop(m, up);
    struct tdm_eager_value *y = tdm_value_new(m, p->rows, p->hidden, BF16);
    if (p->biased)
        y = tdm_replace(m, y, tdm_value_new(m, p->rows, p->hidden, BF16));
    tdm_drop(m, y);
    tdm_drop(m, active);
}

/* A binary operation of single kernels, which drops what it takes. */
static struct tdm_eager_value *with(struct tdm_eager *m, const struct part *p,
                                    struct tdm_eager_value *a, struct tdm_eager_value *b)
{
    struct tdm_eager_value *y = inner(m, p);
    tdm_drop(m, a);
    tdm_drop(m, b);
    return y;
}

static struct tdm_eager_value *of(struct tdm_eager *m, const struct part *p,
                                  struct tdm_eager_value *a)
{
    return with(m, p, a, NULL);
}

/* tanh(0.79788456 h (1 + 0.044715 h^2)). `h` is borrowed. */
static struct tdm_eager_value *tanh_of(struct tdm_eager *m, const struct part *p)
{
    struct tdm_eager_value *scaled = inner(m, p);
    struct tdm_eager_value *factor = of(m, p, inner(m, p));
    return of(m, p, with(m, p, scaled, factor));
}

/* The derivative of GELU from h, its square and the tanh, which are borrowed. */
static struct tdm_eager_value *gelu_slope(struct tdm_eager *m, const struct part *p)
{
    struct tdm_eager_value *half = inner(m, p);
    struct tdm_eager_value *left = of(m, p, inner(m, p)); /* 1 - tanh^2 */
    struct tdm_eager_value *right = of(m, p, inner(m, p));
    half = with(m, p, half, with(m, p, left, right));
    return with(m, p, half, of(m, p, inner(m, p)));
}

/* A part's backward as it is written, with GELU: the derivative is there before the weight's
 * gradient is made. */
static void plain_part_backward(struct tdm_eager *m, const struct part *p)
{
    struct tdm_eager_value *before = product(m, p), *square = inner(m, p);
    struct tdm_eager_value *tanh = tanh_of(m, p), *slope = gelu_slope(m, p);
    struct tdm_eager_value *half = inner(m, p);
    struct tdm_eager_value *active = with(m, p, half, inner(m, p));
    scratch(m, p->hidden, p->columns, BF16);
    tdm_drop(m, active);
    tdm_drop(m, before);
    tdm_drop(m, square);
    tdm_drop(m, tanh);
    struct tdm_eager_value *inside = with(m, p, inner(m, p), slope);
    scratch(m, p->columns, p->hidden, BF16);
    scratch(m, p->rows, p->hidden, BF16);
    tdm_drop(m, inside);
}

/* The same of SwiGLU, which DeepSpeed's function does not have. */
static void gated_part_backward(struct tdm_eager *m, const struct part *p)
{
    struct tdm_eager_value *gate = product(m, p), *up = product(m, p);
    struct tdm_eager_value *sigmoid = inner(m, p), *active = inner(m, p), *both = inner(m, p);
    scratch(m, p->hidden, p->columns, BF16);
    tdm_drop(m, both);
    struct tdm_eager_value *inside = inner(m, p), *of_up = inner(m, p);
    inside = with(m, p, inside, up);
    tdm_drop(m, active);
    struct tdm_eager_value *slope = of(m, p, of(m, p, of(m, p, of(m, p, NULL))));
    inside = with(m, p, inside, slope);
    tdm_drop(m, sigmoid);
    tdm_drop(m, gate);
    for (unsigned i = 0; i < 2; i++)
        scratch(m, p->columns, p->hidden, BF16);
    struct tdm_eager_value *first = tdm_value_new(m, p->rows, p->hidden, BF16);
    struct tdm_eager_value *second = tdm_value_new(m, p->rows, p->hidden, BF16);
    scratch(m, p->rows, p->hidden, BF16);
    tdm_drop(m, first);
    tdm_drop(m, second);
    tdm_drop(m, inside);
    tdm_drop(m, of_up);
}

static void mlp_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *wide[TDM_MOST_INPUTS] = {NULL};
    const struct part p = {x->rows / node->facts[PARTS], x->columns, node->edges[UP].rows,
                           node->facts[IS_GATED] != 0, node->facts[HAS_BIAS] != 0};
    (void)grads;
    for (uint32_t i = 1; i < node->inputs; i++)
        if (node->edges[i].rows > 0)
            wide[i] = tdm_value_new(m, node->edges[i].rows, node->edges[i].columns, FP32);
    for (uint64_t i = 0; i < parts_run(m, node->facts[PARTS]); i++) {
        if (p.gated)
            gated_part_backward(m, &p);
        else
            plain_part_backward(m, &p);
    }
    for (uint32_t i = 1; i < node->inputs; i++)
        if (wide[i] != NULL)
            results[i] = tdm_value_new(m, node->edges[i].rows, node->edges[i].columns, BF16);
    for (uint32_t i = 1; i < node->inputs; i++)
        tdm_drop(m, wide[i]);
    results[X] = x; /* the gradient lies where the input was */
}

struct tdm_eager_value *tdm_fpdt_mlp(struct tdm_eager *m, const struct tdm_fpdt_mlp *mlp,
                                     struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"FPDT_FFNBackward", false, mlp_backward};
    struct tdm_eager_value *const inputs[] = {x,         mlp->up,      mlp->down,
                                              mlp->gate, mlp->up_bias, mlp->down_bias};
    const struct part p = {x->rows / mlp->parts, x->columns, mlp->up->rows, mlp->gate != NULL,
                           mlp->up_bias != NULL};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 6);
    tdm_cublas(m);
    struct tdm_eager_value *y = tdm_value_like(m, x);
    for (uint64_t i = 0; i < parts_run(m, mlp->parts); i++)
        forward_part(m, &p);
    tdm_node_save(m, node, x);
    if (node != NULL) {
        node->facts[PARTS] = mlp->parts;
        node->facts[IS_GATED] = p.gated;
        node->facts[HAS_BIAS] = p.biased;
    }
    return tdm_node_finish(m, node, y);
}

/* ---- FPDT_LogitsLoss ---- */

/* Replaces what a name holds by a new tensor, which is there before the old one goes. */
static void rebind(struct tdm_eager *m, struct tdm_eager_value **name, uint64_t rows,
                   uint64_t columns, uint16_t bytes)
{
    *name = tdm_replace(m, *name, tdm_value_new(m, rows, columns, bytes));
}

/* Logits in bf16, made fp32. */
static void make_logits(struct tdm_eager *m, struct tdm_eager_value **name, uint64_t rows,
                        uint64_t vocabulary)
{
    struct tdm_eager_value *narrow = tdm_value_new(m, rows, vocabulary, BF16);
    rebind(m, name, rows, vocabulary, FP32);
    tdm_drop(m, narrow);
}

enum { HEAD_PARTS, ROWS, VOCABULARY };

static void losses_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const uint64_t parts = node->facts[HEAD_PARTS], rows = node->facts[ROWS] / parts;
    const uint64_t vocabulary = node->facts[VOCABULARY], hidden = node->edges[0].columns;
    struct tdm_eager_value *logits = NULL, *softmax = NULL, *narrow = NULL, *input = NULL;
    struct tdm_eager_value **made = calloc(parts, sizeof(struct tdm_eager_value *));
    if (made == NULL)
        tdm_eager_no_memory(m);
    (void)grads;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *weight = tdm_value_new(m, vocabulary, hidden, FP32);
    for (uint64_t i = 0; i < parts; i++) {
        if (i < parts_run(m, parts)) {
            rebind(m, &input, rows, hidden, BF16); /* from the host */
            make_logits(m, &logits, rows, vocabulary);
            rebind(m, &softmax, rows, vocabulary, FP32);
            rebind(m, &narrow, rows, vocabulary, BF16);
        }
        made[i] = tdm_value_new(m, rows, hidden, BF16);
        scratch(m, vocabulary, hidden, BF16);
    }
    results[0] = tdm_value_new(m, node->facts[ROWS], hidden, BF16);
    results[1] = tdm_value_new(m, vocabulary, hidden, BF16);
    for (uint64_t i = 0; i < parts; i++)
        tdm_drop(m, made[i]);
    free(made);
    tdm_drop(m, weight);
    tdm_drop(m, narrow);
    tdm_drop(m, softmax);
    tdm_drop(m, logits);
    tdm_drop(m, input);
    m->category = TDM_METHOD_WORKSPACE;
    tdm_host_give(m, node->facts[ROWS] * hidden * BF16);
}

struct tdm_eager_value *tdm_fpdt_losses(struct tdm_eager *m, struct tdm_eager_value *hidden,
                                        struct tdm_eager_value *head, uint64_t parts,
                                        uint64_t ranks)
{
    static const struct tdm_eager_op op = {"FPDT_LogitsLossBackward", false, losses_backward};
    struct tdm_eager_value *const inputs[] = {hidden, head};
    struct tdm_eager_value *logits = NULL, *softmax = NULL;
    const uint64_t rows = hidden->rows / parts, vocabulary = head->rows;
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct tdm_eager_value *own = tdm_value_new(m, hidden->rows, 1, FP32);
    m->category = TDM_METHOD_LOGITS;
    for (uint64_t i = 0; i < parts_run(m, parts); i++) {
        make_logits(m, &logits, rows, vocabulary);
        rebind(m, &softmax, rows, vocabulary, FP32);
        scratch(m, rows, vocabulary, FP32); /* its logarithm */
        tdm_drop(m, logits);
        logits = NULL;
    }
    m->category = TDM_METHOD_WORKSPACE;
    tdm_drop(m, softmax);
    struct tdm_eager_value *all = tdm_value_new(m, hidden->rows * ranks, 1, FP32);
    tdm_drop(m, own);
    if (node != NULL) {
        node->facts[HEAD_PARTS] = parts;
        node->facts[ROWS] = hidden->rows;
        node->facts[VOCABULARY] = vocabulary;
        tdm_host_take(m, tdm_size_mul(tdm_value_elements(hidden), BF16));
    }
    return tdm_node_finish(m, node, all);
}
