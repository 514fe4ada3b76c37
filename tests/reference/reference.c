/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference, see reference.h. It processes sequences one after the other, the last one first.
 * The forward of a sequence keeps everything, and the backward reads it. A gradient dX has the
 * shape of X. A product adds to dX or to a weight's gradient, so sums over several uses need no
 * extra code. store() is called wherever an executor stores a tensor. Where an executor stores a
 * sum over tokens part by part, the backward processes the sequence in those parts, see
 * part_begin().
 */
#include "tests/reference/reference.h"

#include "base/size.h"
#include "tests/reference/operations.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tdm_reference {
    const struct tdm_model *model;
    double **weights, **gradients; /* [unit_count][unit.elements] */
    double **first_moments, **second_moments;
    double **masters; /* NULL: weights are their own masters */
    tdm_reference_store store;
    void *store_context;
    double *inverse_frequencies; /* [head_dim / 2] */
    double attention_factor;
    double *token_losses;  /* of the last call */
    double *head_gradient; /* [embedding unit]: gradient from the head if tied, else NULL */
    tdm_reference_round round;
    void *round_context;
    const unsigned char *cuts; /* [tokens of the step] */
    tdm_reference_sees sees;
    const void *sees_context;
    struct {
        bool matrices, embeddings, norms, biases;
    } decays;
};

/* What the forward of one layer keeps for its backward; each is [tokens, ...]. */
struct layer {
    double *input;                       /* [hidden] */
    double *attention_norm, *mlp_norm;   /* [hidden] */
    double *attention_scale, *mlp_scale; /* [1]: 1 / root mean square */
    double *raw_q, *raw_k;               /* shapes of q and k: the inputs of QK-norm */
    double *q_scale, *k_scale;           /* [query_heads], [kv_heads] */
    double *q;                           /* [query_heads, head_dim], rotated */
    double *k, *v;                       /* [kv_heads, head_dim], k rotated */
    double *probability;                 /* [query_heads, tokens, tokens]: head, query, key */
    double *attention;                   /* [query_heads, head_dim] */
    double *middle;                      /* [hidden]: residual stream between attention and MLP */
    double *gate, *up, *product;         /* [intermediate] */
};

/* All activations of one sequence, and the gradients of one layer. */
struct activations {
    uint64_t tokens, first; /* first: number of its first token within the step */
    struct layer *layers;   /* [layers] */
    double *output;         /* [tokens, hidden]: output of the last layer */
    double *final_norm, *final_scale;
    double *logits;   /* [tokens, vocabulary]; the backward overwrites it with its gradient */
    double *d_hidden; /* gradient of the residual stream, updated in place layer by layer */
    double *d_raw;    /* [query_heads, head_dim]: gradient before QK-norm */
    double *d_norm, *d_q, *d_k, *d_v, *d_attention, *d_gate, *d_up, *d_product;
};

static uint64_t q_columns(const struct tdm_model *model)
{
    return (uint64_t)model->query_heads * model->head_dim;
}

static uint64_t kv_columns(const struct tdm_model *model)
{
    return (uint64_t)model->kv_heads * model->head_dim;
}

/* The next rows x columns doubles of `base`. With `base` NULL only counts, and returns NULL. */
static double *take(double *base, uint64_t *used, uint64_t rows, uint64_t columns)
{
    double *taken = base ? base + *used : NULL;

    *used = tdm_size_add(*used, tdm_size_mul(rows, columns));
    return taken;
}

/* Places the activations of a sequence of `tokens` in `base`. Returns the number of doubles. */
static uint64_t lay_out(const struct tdm_model *model, uint64_t tokens, double *base,
                        struct activations *a)
{
    uint64_t used = 0;

    a->tokens = tokens;
    for (uint32_t i = 0; i < model->layers; i++) {
        struct layer *layer = &a->layers[i];

        layer->input = take(base, &used, tokens, model->hidden);
        layer->attention_norm = take(base, &used, tokens, model->hidden);
        layer->attention_scale = take(base, &used, tokens, 1);
        layer->raw_q = take(base, &used, tokens, q_columns(model));
        layer->raw_k = take(base, &used, tokens, kv_columns(model));
        layer->q_scale = take(base, &used, tokens, model->query_heads);
        layer->k_scale = take(base, &used, tokens, model->kv_heads);
        layer->q = take(base, &used, tokens, q_columns(model));
        layer->k = take(base, &used, tokens, kv_columns(model));
        layer->v = take(base, &used, tokens, kv_columns(model));
        layer->probability = take(base, &used, tdm_size_mul(tokens, tokens), model->query_heads);
        layer->attention = take(base, &used, tokens, q_columns(model));
        layer->middle = take(base, &used, tokens, model->hidden);
        layer->mlp_norm = take(base, &used, tokens, model->hidden);
        layer->mlp_scale = take(base, &used, tokens, 1);
        layer->gate = take(base, &used, tokens, model->intermediate);
        layer->up = take(base, &used, tokens, model->intermediate);
        layer->product = take(base, &used, tokens, model->intermediate);
    }
    a->output = take(base, &used, tokens, model->hidden);
    a->final_norm = take(base, &used, tokens, model->hidden);
    a->final_scale = take(base, &used, tokens, 1);
    a->logits = take(base, &used, tokens, model->vocabulary);
    a->d_hidden = take(base, &used, tokens, model->hidden);
    a->d_norm = take(base, &used, tokens, model->hidden);
    a->d_raw = take(base, &used, tokens, q_columns(model));
    a->d_q = take(base, &used, tokens, q_columns(model));
    a->d_k = take(base, &used, tokens, kv_columns(model));
    a->d_v = take(base, &used, tokens, kv_columns(model));
    a->d_attention = take(base, &used, tokens, q_columns(model));
    a->d_gate = take(base, &used, tokens, model->intermediate);
    a->d_up = take(base, &used, tokens, model->intermediate);
    a->d_product = take(base, &used, tokens, model->intermediate);
    return used;
}

/* Sorts the tensors of a unit by role. Roles that it does not have get NULL. */
static void by_role(const struct tdm_model *model, double *const *units, uint32_t unit,
                    double *tensors[TDM_ROLES])
{
    const struct tdm_unit *u = &model->units[unit];

    for (int role = 0; role < TDM_ROLES; role++)
        tensors[role] = NULL;
    for (uint32_t i = u->first_tensor; i < u->first_tensor + u->tensor_count; i++)
        tensors[model->tensors[i].role] = units[unit] + model->tensors[i].offset;
}

/* The output matrix, [vocabulary, hidden]. If tied, this is the embedding matrix. */
static double *head_matrix(const struct tdm_model *model, double *const *units)
{
    double *tensors[TDM_ROLES];

    if (model->tied) {
        by_role(model, units, tdm_model_embedding_unit(model), tensors);
        return tensors[TDM_ROLE_EMBEDDING];
    }
    by_role(model, units, tdm_model_head_unit(model), tensors);
    return tensors[TDM_ROLE_HEAD];
}

static struct tdm_reference_heads heads(const struct tdm_reference *r, uint32_t layer,
                                        const struct activations *a)
{
    struct tdm_reference_heads shape = {.tokens = a->tokens,
                                        .query_heads = r->model->query_heads,
                                        .kv_heads = r->model->kv_heads,
                                        .head_dim = r->model->head_dim,
                                        .window = r->model->layer_kinds[layer].window,
                                        .sees = r->sees,
                                        .context = r->sees_context,
                                        .layer = layer,
                                        .first = a->first};
    return shape;
}

static void zero(uint64_t count, double *x)
{
    memset(x, 0, count * sizeof(*x));
}

/* y += x */
static void add(uint64_t count, const double *x, double *y)
{
    for (uint64_t i = 0; i < count; i++)
        y[i] += x[i];
}

/* Rounds a tensor that an executor would store, if the test asked for that. */
static void store(const struct tdm_reference *r, enum tdm_reference_point point, uint64_t count,
                  double *x)
{
    if (r->round)
        r->round(r->round_context, point, count, x);
}

/* Does a part of the step begin at this token of the sequence? */
static bool begins(const struct tdm_reference *r, const struct activations *a,
                   enum tdm_reference_cut cut, uint64_t token)
{
    return r->cuts ? r->cuts[a->first + token] & cut : a->first + token == 0;
}

/* First token in this sequence of the part that ends before `end`; the part may begin earlier. */
static uint64_t part_begin(const struct tdm_reference *r, const struct activations *a,
                           enum tdm_reference_cut cut, uint64_t end)
{
    uint64_t begin = end - 1;

    while (begin > 0 && !begins(r, a, cut, begin))
        begin--;
    return begin;
}

/* Stores a gradient of weights to which the tokens from `begin` on were added, if that ends a
 * part. */
static void store_sum(const struct tdm_reference *r, const struct activations *a,
                      enum tdm_reference_cut cut, uint64_t begin, uint64_t count, double *sum)
{
    if (sum && begins(r, a, cut, begin))
        store(r, TDM_REFERENCE_D_WEIGHT, count, sum);
}

/* tdm_reference_linear_backward() part by part. */
static void linear_backward(const struct tdm_reference *r, const struct activations *a,
                            enum tdm_reference_cut cut, uint64_t inputs, uint64_t outputs,
                            const double *x, const double *weight, const double *dy, double *dx,
                            double *d_weight, double *d_bias)
{
    for (uint64_t begin, end = a->tokens; end > 0; end = begin) {
        begin = part_begin(r, a, cut, end);
        tdm_reference_linear_backward(end - begin, inputs, outputs, x + begin * inputs, weight,
                                      dy + begin * outputs, dx + begin * inputs, d_weight, d_bias);
        store_sum(r, a, cut, begin, inputs * outputs, d_weight);
        store_sum(r, a, cut, begin, outputs, d_bias);
    }
}

/* tdm_reference_rms_norm_backward() part by part. A token has `rows` rows. */
static void rms_norm_backward(const struct tdm_reference *r, const struct activations *a,
                              uint64_t rows, uint64_t columns, const double *x,
                              const double *weight, const double *scale, const double *dy,
                              double *dx, double *d_weight)
{
    for (uint64_t begin, end = a->tokens; end > 0; end = begin) {
        begin = part_begin(r, a, TDM_REFERENCE_CHUNK, end);
        uint64_t row = begin * rows, at = row * columns;
        tdm_reference_rms_norm_backward((end - begin) * rows, columns, x + at, weight, scale + row,
                                        dy + at, dx + at, d_weight);
        store_sum(r, a, TDM_REFERENCE_CHUNK, begin, columns, d_weight);
    }
}

/* RMSNorm of every head of q or k, in place. Its input is saved in `raw`. */
static void head_norm(const struct tdm_reference *r, uint64_t tokens, uint64_t head_count,
                      const double *weight, double *raw, double *scale, double *x)
{
    uint64_t dim = r->model->head_dim, rows = tokens * head_count;

    memcpy(raw, x, rows * dim * sizeof(*x));
    tdm_reference_rms_norm(rows, dim, r->model->norm_epsilon, raw, weight, scale, x);
}

/* Turns the gradient of the normed heads into the gradient of the norm's input, in place. */
static void head_norm_backward(const struct tdm_reference *r, const struct activations *a,
                               uint64_t head_count, const double *weight, const double *raw,
                               const double *scale, double *dx, double *d_weight)
{
    uint64_t dim = r->model->head_dim, count = a->tokens * head_count * dim;

    zero(count, a->d_raw);
    rms_norm_backward(r, a, head_count, dim, raw, weight, scale, dx, a->d_raw, d_weight);
    memcpy(dx, a->d_raw, count * sizeof(*dx));
}

/* One layer over the whole sequence, from layer->input to `output`. */
static void layer_forward(const struct tdm_reference *r, uint32_t number,
                          const struct activations *a, double *output)
{
    uint64_t tokens = a->tokens;
    const struct layer *layer = &a->layers[number];
    const struct tdm_model *model = r->model;
    uint64_t hidden = model->hidden, wide = model->intermediate;
    uint64_t q_width = q_columns(model), kv_width = kv_columns(model);
    double *w[TDM_ROLES];

    by_role(model, r->weights, number, w);
    tdm_reference_rms_norm(tokens, hidden, model->norm_epsilon, layer->input,
                           w[TDM_ROLE_ATTENTION_NORM], layer->attention_scale,
                           layer->attention_norm);
    store(r, TDM_REFERENCE_NORM, tokens * hidden, layer->attention_norm);
    tdm_reference_linear(tokens, hidden, q_width, layer->attention_norm, w[TDM_ROLE_Q],
                         w[TDM_ROLE_Q_BIAS], layer->q);
    tdm_reference_linear(tokens, hidden, kv_width, layer->attention_norm, w[TDM_ROLE_K],
                         w[TDM_ROLE_K_BIAS], layer->k);
    tdm_reference_linear(tokens, hidden, kv_width, layer->attention_norm, w[TDM_ROLE_V],
                         w[TDM_ROLE_V_BIAS], layer->v);
    store(r, TDM_REFERENCE_QKV, tokens * q_width, layer->q);
    store(r, TDM_REFERENCE_QKV, tokens * kv_width, layer->k);
    store(r, TDM_REFERENCE_QKV, tokens * kv_width, layer->v);
    if (model->layer_kinds[number].qk_norm) {
        head_norm(r, tokens, model->query_heads, w[TDM_ROLE_Q_NORM], layer->raw_q, layer->q_scale,
                  layer->q);
        head_norm(r, tokens, model->kv_heads, w[TDM_ROLE_K_NORM], layer->raw_k, layer->k_scale,
                  layer->k);
    }
    tdm_reference_rotate(tokens, model->query_heads, model->head_dim, r->inverse_frequencies,
                         r->attention_factor, layer->q);
    tdm_reference_rotate(tokens, model->kv_heads, model->head_dim, r->inverse_frequencies,
                         r->attention_factor, layer->k);
    store(r, TDM_REFERENCE_ROTATED, tokens * q_width, layer->q);
    store(r, TDM_REFERENCE_KV, tokens * kv_width, layer->k);
    store(r, TDM_REFERENCE_KV, tokens * kv_width, layer->v);
    tdm_reference_attention(heads(r, number, a), layer->q, layer->k, layer->v, layer->probability,
                            layer->attention);
    store(r, TDM_REFERENCE_ATTENTION, tokens * q_width, layer->attention);
    tdm_reference_linear(tokens, q_width, hidden, layer->attention, w[TDM_ROLE_O], NULL,
                         layer->middle);
    add(tokens * hidden, layer->input, layer->middle);
    store(r, TDM_REFERENCE_HIDDEN, tokens * hidden, layer->middle);

    tdm_reference_rms_norm(tokens, hidden, model->norm_epsilon, layer->middle, w[TDM_ROLE_MLP_NORM],
                           layer->mlp_scale, layer->mlp_norm);
    store(r, TDM_REFERENCE_NORM, tokens * hidden, layer->mlp_norm);
    tdm_reference_linear(tokens, hidden, wide, layer->mlp_norm, w[TDM_ROLE_GATE], NULL,
                         layer->gate);
    tdm_reference_linear(tokens, hidden, wide, layer->mlp_norm, w[TDM_ROLE_UP], NULL, layer->up);
    store(r, TDM_REFERENCE_GATE_UP, tokens * wide, layer->gate);
    store(r, TDM_REFERENCE_GATE_UP, tokens * wide, layer->up);
    (model->activation == TDM_ACTIVATION_GELU_TANH ? tdm_reference_geglu : tdm_reference_swiglu)(
        tokens * wide, layer->gate, layer->up, layer->product);
    store(r, TDM_REFERENCE_PRODUCT, tokens * wide, layer->product);
    tdm_reference_linear(tokens, wide, hidden, layer->product, w[TDM_ROLE_DOWN], NULL, output);
    add(tokens * hidden, layer->middle, output);
    store(r, TDM_REFERENCE_HIDDEN, tokens * hidden, output);
}

/* Each chunk of queries adds to dK and dV of the keys up to it, later chunks first. */
static void attention_backward(const struct tdm_reference *r, uint32_t number,
                               const struct layer *layer, const struct activations *a)
{
    uint64_t kv = a->tokens * kv_columns(r->model);

    zero(kv, a->d_k);
    zero(kv, a->d_v);
    for (uint64_t begin, end = a->tokens; end > 0; end = begin) {
        begin = part_begin(r, a, TDM_REFERENCE_CHUNK, end);
        tdm_reference_attention_backward(heads(r, number, a), begin, end, layer->q, layer->k,
                                         layer->v, layer->probability, layer->attention,
                                         a->d_attention, a->d_q, a->d_k, a->d_v);
        store(r, TDM_REFERENCE_D_KV, kv, a->d_k);
        store(r, TDM_REFERENCE_D_KV, kv, a->d_v);
    }
    store(r, TDM_REFERENCE_D_ROTATED, a->tokens * q_columns(r->model), a->d_q);
}

/* Overwrites a->d_hidden, the gradient of the layer's output, with the gradient of its input. The
 * residual path is the identity, so each block adds its own gradient to it. */
static void layer_backward(const struct tdm_reference *r, uint32_t number,
                           const struct layer *layer, struct activations *a)
{
    const enum tdm_reference_cut chunk = TDM_REFERENCE_CHUNK;
    const struct tdm_model *model = r->model;
    uint64_t tokens = a->tokens, hidden = model->hidden, wide = model->intermediate;
    uint64_t q_width = q_columns(model), kv_width = kv_columns(model);
    double *w[TDM_ROLES], *g[TDM_ROLES];

    by_role(model, r->weights, number, w);
    by_role(model, r->gradients, number, g);

    zero(tokens * wide, a->d_product);
    linear_backward(r, a, chunk, wide, hidden, layer->product, w[TDM_ROLE_DOWN], a->d_hidden,
                    a->d_product, g[TDM_ROLE_DOWN], NULL);
    store(r, TDM_REFERENCE_D_PRODUCT, tokens * wide, a->d_product);
    (model->activation == TDM_ACTIVATION_GELU_TANH ? tdm_reference_geglu_backward
                                                   : tdm_reference_swiglu_backward)(
        tokens * wide, layer->gate, layer->up, a->d_product, a->d_gate, a->d_up);
    store(r, TDM_REFERENCE_D_GATE_UP, tokens * wide, a->d_gate);
    store(r, TDM_REFERENCE_D_GATE_UP, tokens * wide, a->d_up);
    zero(tokens * hidden, a->d_norm);
    linear_backward(r, a, chunk, hidden, wide, layer->mlp_norm, w[TDM_ROLE_GATE], a->d_gate,
                    a->d_norm, g[TDM_ROLE_GATE], NULL);
    linear_backward(r, a, chunk, hidden, wide, layer->mlp_norm, w[TDM_ROLE_UP], a->d_up, a->d_norm,
                    g[TDM_ROLE_UP], NULL);
    store(r, TDM_REFERENCE_D_NORM, tokens * hidden, a->d_norm);
    rms_norm_backward(r, a, 1, hidden, layer->middle, w[TDM_ROLE_MLP_NORM], layer->mlp_scale,
                      a->d_norm, a->d_hidden, g[TDM_ROLE_MLP_NORM]);
    store(r, TDM_REFERENCE_D_HIDDEN, tokens * hidden, a->d_hidden);

    zero(tokens * q_width, a->d_attention);
    linear_backward(r, a, chunk, q_width, hidden, layer->attention, w[TDM_ROLE_O], a->d_hidden,
                    a->d_attention, g[TDM_ROLE_O], NULL);
    store(r, TDM_REFERENCE_D_ATTENTION, tokens * q_width, a->d_attention);
    attention_backward(r, number, layer, a);
    tdm_reference_rotate_backward(tokens, model->query_heads, model->head_dim,
                                  r->inverse_frequencies, r->attention_factor, a->d_q);
    tdm_reference_rotate_backward(tokens, model->kv_heads, model->head_dim, r->inverse_frequencies,
                                  r->attention_factor, a->d_k);
    if (model->layer_kinds[number].qk_norm) {
        head_norm_backward(r, a, model->query_heads, w[TDM_ROLE_Q_NORM], layer->raw_q,
                           layer->q_scale, a->d_q, g[TDM_ROLE_Q_NORM]);
        head_norm_backward(r, a, model->kv_heads, w[TDM_ROLE_K_NORM], layer->raw_k, layer->k_scale,
                           a->d_k, g[TDM_ROLE_K_NORM]);
    }
    store(r, TDM_REFERENCE_D_QKV, tokens * q_width, a->d_q);
    store(r, TDM_REFERENCE_D_QKV, tokens * kv_width, a->d_k);
    store(r, TDM_REFERENCE_D_QKV, tokens * kv_width, a->d_v);
    zero(tokens * hidden, a->d_norm);
    linear_backward(r, a, chunk, hidden, q_width, layer->attention_norm, w[TDM_ROLE_Q], a->d_q,
                    a->d_norm, g[TDM_ROLE_Q], g[TDM_ROLE_Q_BIAS]);
    store(r, TDM_REFERENCE_D_NORM, tokens * hidden, a->d_norm);
    linear_backward(r, a, chunk, hidden, kv_width, layer->attention_norm, w[TDM_ROLE_K], a->d_k,
                    a->d_norm, g[TDM_ROLE_K], g[TDM_ROLE_K_BIAS]);
    linear_backward(r, a, chunk, hidden, kv_width, layer->attention_norm, w[TDM_ROLE_V], a->d_v,
                    a->d_norm, g[TDM_ROLE_V], g[TDM_ROLE_V_BIAS]);
    store(r, TDM_REFERENCE_D_NORM, tokens * hidden, a->d_norm);
    rms_norm_backward(r, a, 1, hidden, layer->input, w[TDM_ROLE_ATTENTION_NORM],
                      layer->attention_scale, a->d_norm, a->d_hidden, g[TDM_ROLE_ATTENTION_NORM]);
    store(r, TDM_REFERENCE_D_HIDDEN, tokens * hidden, a->d_hidden);
}

/* Adds the rows of the input's gradient to the embedding gradient's rows of their tokens. */
static void embedding_backward(const struct tdm_reference *r, const uint32_t *tokens,
                               const struct activations *a)
{
    const struct tdm_model *model = r->model;
    uint64_t hidden = model->hidden;
    double *g[TDM_ROLES];

    by_role(model, r->gradients, tdm_model_embedding_unit(model), g);
    for (uint64_t t = a->tokens; t-- > 0;) {
        add(hidden, a->d_hidden + t * hidden, g[TDM_ROLE_EMBEDDING] + tokens[t] * hidden);
        store_sum(r, a, TDM_REFERENCE_CHUNK, t, hidden * model->vocabulary, g[TDM_ROLE_EMBEDDING]);
    }
}

/* Where the gradient of the output matrix is summed. A tied matrix has a separate sum, which is
 * added to the embedding's when both are complete. */
static double *head_sum(const struct tdm_reference *r)
{
    const struct tdm_model *model = r->model;
    uint32_t unit = tdm_model_embedding_unit(model);

    if (!model->tied)
        return head_matrix(model, r->gradients);
    return r->head_gradient + (head_matrix(model, r->gradients) - r->gradients[unit]);
}

static void sequence_forward(const struct tdm_reference *r, const uint32_t *tokens,
                             const uint32_t *targets, struct activations *a, double *losses)
{
    const struct tdm_model *model = r->model;
    uint64_t hidden = model->hidden, vocabulary = model->vocabulary;
    double *embedding[TDM_ROLES], *head[TDM_ROLES];

    by_role(model, r->weights, tdm_model_embedding_unit(model), embedding);
    by_role(model, r->weights, tdm_model_head_unit(model), head);
    for (uint64_t t = 0; t < a->tokens; t++)
        memcpy(a->layers[0].input + t * hidden, embedding[TDM_ROLE_EMBEDDING] + tokens[t] * hidden,
               hidden * sizeof(double));
    store(r, TDM_REFERENCE_HIDDEN, a->tokens * hidden, a->layers[0].input);
    for (uint32_t i = 0; i < model->layers; i++)
        layer_forward(r, i, a, i + 1 < model->layers ? a->layers[i + 1].input : a->output);
    tdm_reference_rms_norm(a->tokens, hidden, model->norm_epsilon, a->output,
                           head[TDM_ROLE_FINAL_NORM], a->final_scale, a->final_norm);
    store(r, TDM_REFERENCE_NORM, a->tokens * hidden, a->final_norm);
    tdm_reference_linear(a->tokens, hidden, vocabulary, a->final_norm,
                         head_matrix(model, r->weights), NULL, a->logits);
    store(r, TDM_REFERENCE_LOGITS, a->tokens * vocabulary, a->logits);
    tdm_reference_cross_entropy(a->tokens, vocabulary, a->logits, targets, losses);
}

/* Adds the gradients of (sum of the sequence's token losses) / trained_tokens. */
static void sequence_backward(const struct tdm_reference *r, const uint32_t *tokens,
                              const uint32_t *targets, uint64_t trained_tokens,
                              struct activations *a)
{
    const struct tdm_model *model = r->model;
    uint64_t hidden = model->hidden, vocabulary = model->vocabulary;
    double *head[TDM_ROLES], *d_head[TDM_ROLES];

    by_role(model, r->weights, tdm_model_head_unit(model), head);
    by_role(model, r->gradients, tdm_model_head_unit(model), d_head);
    tdm_reference_cross_entropy_backward(a->tokens, vocabulary, targets, 1 / (double)trained_tokens,
                                         a->logits);
    store(r, TDM_REFERENCE_D_LOGITS, a->tokens * vocabulary, a->logits);
    zero(a->tokens * hidden, a->d_norm);
    linear_backward(r, a, TDM_REFERENCE_TILE, hidden, vocabulary, a->final_norm,
                    head_matrix(model, r->weights), a->logits, a->d_norm, head_sum(r), NULL);
    store(r, TDM_REFERENCE_D_NORM, a->tokens * hidden, a->d_norm);
    zero(a->tokens * hidden, a->d_hidden);
    rms_norm_backward(r, a, 1, hidden, a->output, head[TDM_ROLE_FINAL_NORM], a->final_scale,
                      a->d_norm, a->d_hidden, d_head[TDM_ROLE_FINAL_NORM]);
    store(r, TDM_REFERENCE_D_HIDDEN, a->tokens * hidden, a->d_hidden);
    for (uint32_t i = model->layers; i-- > 0;)
        layer_backward(r, i, &a->layers[i], a);
    embedding_backward(r, tokens, a);
}

static enum tdm_status check_tokens(const struct tdm_model *model, uint64_t total_tokens,
                                    const uint32_t *tokens, const uint32_t *targets,
                                    uint64_t *trained_tokens, struct tdm_error *err)
{
    *trained_tokens = total_tokens;
    for (uint64_t t = 0; t < total_tokens; t++)
        if (tokens[t] < model->vocabulary && targets[t] == TDM_REFERENCE_NO_TARGET)
            --*trained_tokens;
        else if (tokens[t] >= model->vocabulary || targets[t] >= model->vocabulary)
            return tdm_fail(err, TDM_INPUT,
                            "reference: token %" PRIu32 " or target %" PRIu32 " at %" PRIu64
                            " is outside the vocabulary of %" PRIu32,
                            tokens[t], targets[t], t, model->vocabulary);
    if (*trained_tokens == 0)
        return tdm_fail(err, TDM_INPUT, "reference: the step has no targets");
    return TDM_OK;
}

/* Elements of the unit that embedding and head share. */
static uint64_t tied_elements(const struct tdm_model *model)
{
    return model->units[tdm_model_embedding_unit(model)].elements;
}

static enum tdm_status run(struct tdm_reference *r, bool backward, uint32_t sequence_count,
                           const uint64_t *lengths, const uint32_t *tokens, const uint32_t *targets,
                           double *loss, struct tdm_error *err)
{
    const struct tdm_model *model = r->model;
    struct activations a = {0};
    uint64_t total_tokens = 0, trained_tokens, longest = 0;
    double *memory = NULL, *losses = NULL, sum = 0;
    enum tdm_status status;

    for (uint32_t i = 0; i < sequence_count; i++) {
        total_tokens = tdm_size_add(total_tokens, lengths[i]);
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    status = check_tokens(model, total_tokens, tokens, targets, &trained_tokens, err);
    if (status != TDM_OK)
        return status;
    a.layers = calloc(model->layers, sizeof(*a.layers));
    losses = calloc(total_tokens, sizeof(*losses));
    if (a.layers)
        memory = calloc(lay_out(model, longest, NULL, &a), sizeof(*memory));
    if (!memory || !losses) {
        status = tdm_fail(err, TDM_NO_MEMORY, "reference: no memory for %" PRIu64 " tokens",
                          total_tokens);
        free(losses);
        goto free_activations;
    }
    for (uint32_t u = 0; backward && u < model->unit_count; u++)
        zero(model->units[u].elements, r->gradients[u]);
    if (backward && model->tied)
        zero(tied_elements(model), r->head_gradient);
    a.first = total_tokens;
    for (uint32_t i = sequence_count; i-- > 0;) {
        a.first -= lengths[i];
        lay_out(model, lengths[i], memory, &a);
        sequence_forward(r, tokens + a.first, targets + a.first, &a, losses + a.first);
        if (backward)
            sequence_backward(r, tokens + a.first, targets + a.first, trained_tokens, &a);
    }
    if (backward && model->tied)
        add(tied_elements(model), r->head_gradient, r->gradients[tdm_model_embedding_unit(model)]);
    for (uint64_t t = 0; t < total_tokens; t++)
        sum += losses[t];
    free(r->token_losses);
    r->token_losses = losses;
    *loss = sum / (double)trained_tokens;

free_activations:
    free(memory);
    free(a.layers);
    return status;
}

enum tdm_status tdm_reference_step(struct tdm_reference *reference, uint32_t sequence_count,
                                   const uint64_t *lengths, const uint32_t *tokens,
                                   const uint32_t *targets, double *loss, struct tdm_error *err)
{
    return run(reference, true, sequence_count, lengths, tokens, targets, loss, err);
}

enum tdm_status tdm_reference_loss(struct tdm_reference *reference, uint32_t sequence_count,
                                   const uint64_t *lengths, const uint32_t *tokens,
                                   const uint32_t *targets, double *loss, struct tdm_error *err)
{
    return run(reference, false, sequence_count, lengths, tokens, targets, loss, err);
}

double tdm_reference_gradient_norm(const struct tdm_reference *r, uint32_t first, uint32_t count)
{
    double squares = 0;

    for (uint32_t u = first; u < first + count; u++)
        for (uint64_t i = 0; i < r->model->units[u].elements; i++)
            squares += r->gradients[u][i] * r->gradients[u][i];
    return sqrt(squares);
}

void tdm_reference_clip(struct tdm_reference *r, uint32_t first, uint32_t count, double most)
{
    double norm = tdm_reference_gradient_norm(r, first, count);

    for (uint32_t u = first; u < first + count && norm > most; u++)
        for (uint64_t i = 0; i < r->model->units[u].elements; i++)
            r->gradients[u][i] *= most / norm;
}

static double stored(const struct tdm_reference *r, enum tdm_reference_state state, uint32_t tensor,
                     uint64_t element, double value)
{
    return r->store ? r->store(r->store_context, state, tensor, element, value) : value;
}

void tdm_reference_set_decayed(struct tdm_reference *r, bool matrices, bool embeddings, bool norms,
                               bool biases)
{
    r->decays.matrices = matrices;
    r->decays.embeddings = embeddings;
    r->decays.norms = norms;
    r->decays.biases = biases;
}

static bool decays(const struct tdm_reference *r, const struct tdm_tensor *tensor)
{
    const char *name = tdm_role_name(tensor->role);
    if (strstr(name, "norm") != NULL)
        return r->decays.norms;
    if (strstr(name, "bias") != NULL)
        return r->decays.biases;
    return strstr(name, "embed") != NULL ? r->decays.embeddings : r->decays.matrices;
}

/* Subtracts `change` and the decay, times the learning rate, from a master; sets its weight. */
static void update(struct tdm_reference *r, uint32_t number, uint64_t element, double change,
                   double learning_rate, double weight_decay)
{
    const struct tdm_tensor *tensor = &r->model->tensors[number];
    uint64_t at = tensor->offset + element;
    double *weight = &r->weights[tensor->unit][at];
    double *master = r->masters ? &r->masters[tensor->unit][at] : weight;
    double decay = decays(r, tensor) ? weight_decay : 0;

    *master -= learning_rate * (change + decay * *master);
    if (r->masters)
        *master = stored(r, TDM_REFERENCE_MASTER, number, element, *master);
    *weight = stored(r, TDM_REFERENCE_WEIGHT, number, element, *master);
}

void tdm_reference_adamw(struct tdm_reference *r, uint64_t step, double learning_rate, double beta1,
                         double beta2, double epsilon, double weight_decay)
{
    double correction1 = 1 - pow(beta1, (double)step), correction2 = 1 - pow(beta2, (double)step);

    for (uint32_t n = 0; n < r->model->tensor_count; n++) {
        const struct tdm_tensor *tensor = &r->model->tensors[n];
        double *first = r->first_moments[tensor->unit] + tensor->offset;
        double *second = r->second_moments[tensor->unit] + tensor->offset;
        const double *gradient = r->gradients[tensor->unit] + tensor->offset;

        for (uint64_t i = 0; i < tensor->elements; i++) {
            first[i] = beta1 * first[i] + (1 - beta1) * gradient[i];
            second[i] = beta2 * second[i] + (1 - beta2) * gradient[i] * gradient[i];
            update(r, n, i, first[i] / correction1 / (sqrt(second[i] / correction2) + epsilon),
                   learning_rate, weight_decay);
            first[i] = stored(r, TDM_REFERENCE_MOMENT1, n, i, first[i]);
            second[i] = stored(r, TDM_REFERENCE_MOMENT2, n, i, second[i]);
        }
    }
}

void tdm_reference_sgd(struct tdm_reference *r, double learning_rate, double weight_decay)
{
    for (uint32_t n = 0; n < r->model->tensor_count; n++) {
        const struct tdm_tensor *tensor = &r->model->tensors[n];
        const double *gradient = r->gradients[tensor->unit] + tensor->offset;

        for (uint64_t i = 0; i < tensor->elements; i++)
            update(r, n, i, gradient[i], learning_rate, weight_decay);
    }
}

double *tdm_reference_weights(struct tdm_reference *reference, uint32_t unit)
{
    return unit < reference->model->unit_count ? reference->weights[unit] : NULL;
}

const double *tdm_reference_gradients(const struct tdm_reference *reference, uint32_t unit)
{
    return unit < reference->model->unit_count ? reference->gradients[unit] : NULL;
}

const double *tdm_reference_token_losses(const struct tdm_reference *reference)
{
    return reference->token_losses;
}

void tdm_reference_set_rounding(struct tdm_reference *reference, tdm_reference_round round,
                                void *context, const unsigned char *cuts)
{
    reference->round = round;
    reference->round_context = context;
    reference->cuts = cuts;
}

void tdm_reference_set_sees(struct tdm_reference *reference, tdm_reference_sees sees,
                            const void *context)
{
    reference->sees = sees;
    reference->sees_context = context;
}

static void free_units(const struct tdm_model *model, double **units)
{
    if (!units)
        return;
    for (uint32_t u = 0; u < model->unit_count; u++)
        free(units[u]);
    free(units);
}

/* One zeroed array of elements for each unit; NULL if memory runs out. */
static double **new_units(const struct tdm_model *model)
{
    double **units = calloc(model->unit_count, sizeof(*units));

    if (!units)
        return NULL;
    for (uint32_t u = 0; u < model->unit_count; u++) {
        units[u] = calloc(model->units[u].elements, sizeof(**units));
        if (!units[u]) {
            free_units(model, units);
            return NULL;
        }
    }
    return units;
}

enum tdm_status tdm_reference_set_storing(struct tdm_reference *r, bool masters,
                                          tdm_reference_store store, void *context,
                                          struct tdm_error *err)
{
    free_units(r->model, r->masters);
    r->masters = masters ? new_units(r->model) : NULL;
    if (masters && !r->masters)
        return tdm_fail(err, TDM_NO_MEMORY, "reference: no memory for masters");
    r->store = store;
    r->store_context = context;
    for (uint32_t n = 0; masters && n < r->model->tensor_count; n++) {
        const struct tdm_tensor *tensor = &r->model->tensors[n];
        double *weights = r->weights[tensor->unit] + tensor->offset;
        double *master = r->masters[tensor->unit] + tensor->offset;

        for (uint64_t i = 0; i < tensor->elements; i++) {
            master[i] = weights[i];
            weights[i] = stored(r, TDM_REFERENCE_WEIGHT, n, i, weights[i]);
        }
    }
    return TDM_OK;
}

const double *tdm_reference_masters(const struct tdm_reference *reference, uint32_t unit)
{
    return reference->masters ? reference->masters[unit] : reference->weights[unit];
}

double *tdm_reference_moments(struct tdm_reference *reference, uint32_t unit, bool second)
{
    return second ? reference->second_moments[unit] : reference->first_moments[unit];
}

void tdm_reference_free(struct tdm_reference *reference)
{
    if (!reference)
        return;
    free_units(reference->model, reference->weights);
    free_units(reference->model, reference->gradients);
    free_units(reference->model, reference->first_moments);
    free_units(reference->model, reference->second_moments);
    free_units(reference->model, reference->masters);
    free(reference->head_gradient);
    free(reference->inverse_frequencies);
    free(reference->token_losses);
    free(reference);
}

enum tdm_status tdm_reference_new(const struct tdm_model *model, struct tdm_reference **reference,
                                  struct tdm_error *err)
{
    struct tdm_reference *r = calloc(1, sizeof(*r));

    if (!r)
        return tdm_fail(err, TDM_NO_MEMORY, "reference: no memory");
    r->model = model;
    tdm_reference_set_decayed(r, true, true, false, false);
    r->weights = new_units(model);
    r->gradients = new_units(model);
    r->first_moments = new_units(model);
    r->second_moments = new_units(model);
    r->inverse_frequencies = calloc(model->head_dim / 2, sizeof(*r->inverse_frequencies));
    if (model->tied)
        r->head_gradient = calloc(tied_elements(model), sizeof(*r->head_gradient));
    if (!r->weights || !r->gradients || !r->first_moments || !r->second_moments ||
        !r->inverse_frequencies || (model->tied && !r->head_gradient)) {
        tdm_reference_free(r);
        return tdm_fail(err, TDM_NO_MEMORY, "reference: no memory for %" PRIu64 " parameters",
                        model->parameters);
    }
    tdm_rope_inverse_frequencies(&model->rope, model->head_dim, r->inverse_frequencies,
                                 &r->attention_factor);
    *reference = r;
    return TDM_OK;
}
