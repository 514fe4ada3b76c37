/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer that torch.compile has with its checkpoint inside, as torchtitan does: one forward, and
 * one backward that first computes again what was not kept. The allocations and frees are those of
 * the code that inductor makes of both graphs, in its order (TORCH_LOGS=output_code, torch 2.11:
 * Llama 3.1 8B on an H200, all of a layer again and every second product kept; LoRA on a CPU). In
 * short:
 * - The gate's kernel of the backward reads all products of gate, up and down's input at once, and
 *   writes all that products read next: six times the MLP's width without adapters, eleven with.
 * - Gradients of weights leave the graph at its end, and those of q, k, v and o are made last.
 * - A buffer that is read for the last time is the next one of its size.
 * Left out: partial sums of a norm's gradient.
 */
#include "methods/eager/ops.h"
#include "methods/eager/parts.h"
#include "methods/torch/parts.h"

#include <stddef.h>

enum { SAVED_INPUT, SAVED_Q_PRODUCT, SAVED_Q, SAVED_K, SAVED_V, SAVED_OUTPUT, SAVED_GATE };

/* One layer, as both graphs see it. */
struct graph {
    struct tdm_eager *m;
    const struct tdm_torch_model *t;
    const struct torch_layer *layer;
    uint64_t rows;
    uint16_t bytes; /* of an element */
};

/* A projection's results: of the weight, and of A and B of an adapter, or NULL. */
struct product {
    struct tdm_eager_value *base, *low, *high;
};

static struct tdm_eager_value *new_buffer(const struct graph *g, uint64_t columns)
{
    return tdm_value_new(g->m, g->rows, columns, g->bytes);
}

/* A buffer in the memory of `old`, which it takes, if that has the size. */
static struct tdm_eager_value *reuse(const struct graph *g, struct tdm_eager_value *old,
                                     uint64_t columns)
{
    const bool fits = tdm_value_elements(old) == g->rows * columns;
    struct tdm_eager_value *buffer = fits ? tdm_value_view(g->m, old) : NULL;
    tdm_drop(g->m, old);
    if (!fits)
        return new_buffer(g, columns);
    buffer->rows = g->rows;
    buffer->columns = columns;
    return buffer;
}

static uint64_t outputs(const struct graph *g, enum tdm_projection p)
{
    return g->layer->weight[p]->rows;
}

static struct product project(const struct graph *g, enum tdm_projection p)
{
    struct product y = {.base = new_buffer(g, outputs(g, p))};
    if (g->layer->down[p] != NULL) {
        y.low = new_buffer(g, g->layer->down[p]->rows);
        y.high = new_buffer(g, outputs(g, p));
    }
    return y;
}

static void drop_product(const struct graph *g, struct product *y)
{
    tdm_drop(g->m, y->base);
    tdm_drop(g->m, y->low);
    tdm_drop(g->m, y->high);
    *y = (struct product){NULL};
}

/* The sum with the adapter's result, in place. */
static struct tdm_eager_value *joined(const struct graph *g, struct product *y)
{
    struct tdm_eager_value *sum = tdm_take(y->base);
    drop_product(g, y);
    return sum;
}

/* A buffer as heads, in memory by token. Takes it. */
static struct tdm_eager_value *as_heads(struct tdm_eager_value *buffer, uint64_t heads)
{
    buffer->rows *= heads;
    buffer->columns /= heads;
    buffer->swapped = true;
    return buffer;
}

static struct tdm_eager_value *attend(const struct graph *g, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v)
{
    struct tdm_eager_value *kept = NULL;
    return tdm_torch_attention(g->m, g->t, g->layer, q, k, v, NULL, &kept);
}

/* The output and the memory of q, k and v stay for the attention's backward, which is of its own
 * graph. */
static struct tdm_eager_value *attend_for_backward(const struct graph *g, struct tdm_eager_value *q,
                                                   struct tdm_eager_value *k,
                                                   struct tdm_eager_value *v)
{
    const bool enabled = g->m->grad_enabled;
    tdm_value_require_grad(g->m, q);
    tdm_value_require_grad(g->m, k);
    tdm_value_require_grad(g->m, v);
    g->m->grad_enabled = true;
    struct tdm_eager_value *y = attend(g, q, k, v);
    g->m->grad_enabled = enabled;
    return y;
}

/* ---- forward ---- */

static bool selects(const struct tdm_torch_model *t)
{
    return t->settings.checkpointing == TDM_CHECKPOINTING_SELECTIVE;
}

/* Norm, q, k, v and attention. For selective checkpoints the node keeps the products of q and v,
 * the output and log-sum-exps; q and k as they were turned are made again. */
static struct tdm_eager_value *first_half(const struct graph *g, struct tdm_node *node,
                                          struct tdm_eager_value **turned)
{
    struct tdm_eager *m = g->m;
    const struct tdm_model *config = g->t->config;
    struct tdm_eager_value *normed = new_buffer(g, config->hidden);
    struct product q = project(g, TDM_PROJECTION_Q), k = project(g, TDM_PROJECTION_K),
                   v = project(g, TDM_PROJECTION_V);
    struct tdm_eager_value *values = as_heads(joined(g, &v), config->kv_heads);
    struct tdm_eager_value *queries =
        as_heads(reuse(g, normed, outputs(g, TDM_PROJECTION_Q)), config->query_heads);
    tdm_node_save(m, node, q.base);
    drop_product(g, &q);
    struct tdm_eager_value *keys =
        as_heads(new_buffer(g, outputs(g, TDM_PROJECTION_K)), config->kv_heads);
    drop_product(g, &k);
    struct tdm_eager_value *y = node != NULL ? attend_for_backward(g, queries, keys, values)
                                             : attend(g, queries, keys, values);
    if (node != NULL) {
        struct tdm_eager_value *const saved[] = {queries, keys, values, y};
        for (unsigned i = 0; i < 4; i++)
            tdm_node_save(m, node, saved[i]);
        tdm_value_vacate(m, keys);
    }
    tdm_drop(m, keys);
    tdm_drop(m, values);
    *turned = queries;
    return y;
}

static struct tdm_eager_value *run_forward(const struct graph *g, struct tdm_node *node)
{
    struct tdm_eager *m = g->m;
    const uint64_t hidden = g->t->config->hidden;
    struct tdm_eager_value *queries;
    tdm_label(m, "self_attn");
    struct tdm_eager_value *heads = first_half(g, node, &queries);
    struct product o = {NULL};
    if (node != NULL) {
        tdm_value_vacate(m, queries);
        tdm_drop(m, queries);
        o.base = new_buffer(g, hidden);
    } else {
        o.base = reuse(g, queries, hidden);
    }
    if (g->layer->down[TDM_PROJECTION_O] != NULL)
        o.high = new_buffer(g, hidden);
    tdm_label(m, "mlp");
    struct tdm_eager_value *normed = node != NULL ? new_buffer(g, hidden) : reuse(g, heads, hidden);
    if (node != NULL)
        tdm_drop(m, heads);
    struct product gate = project(g, TDM_PROJECTION_GATE), up = project(g, TDM_PROJECTION_UP);
    tdm_node_save(m, node, gate.base);
    tdm_drop(m, normed);
    struct tdm_eager_value *active = tdm_take(node != NULL ? up.base : gate.base);
    drop_product(g, &gate);
    drop_product(g, &up);
    struct product down = project(g, TDM_PROJECTION_DOWN);
    tdm_drop(m, active);
    tdm_label(m, "hidden_states");
    struct tdm_eager_value *y = joined(g, &o);
    drop_product(g, &down);
    return y;
}

/* ---- backward ---- */

/* Gradients of parameters, which leave the graph at its end. */
#define MOST_GRADIENTS 32u
struct gradients {
    struct tdm_eager_value *leaf[MOST_GRADIENTS], *made[MOST_GRADIENTS];
    unsigned count;
};

static void make_gradient(const struct graph *g, struct gradients *all,
                          struct tdm_eager_value *leaf)
{
    if (leaf == NULL || !leaf->requires_grad || all->count == MOST_GRADIENTS)
        return;
    all->leaf[all->count] = leaf;
    all->made[all->count++] = tdm_value_new(g->m, leaf->rows, leaf->columns, leaf->element_bytes);
}

/* Gradients of a projection's weight, bias and adapter. */
static void make_gradients(const struct graph *g, struct gradients *all, enum tdm_projection p)
{
    make_gradient(g, all, g->layer->weight[p]);
    make_gradient(g, all, g->layer->bias[p]);
    make_gradient(g, all, g->layer->up[p]);
    make_gradient(g, all, g->layer->down[p]);
}

/* A result as wide as one of a projection, and that times the adapter's scale. */
static struct product result_of(const struct graph *g, enum tdm_projection p)
{
    struct product y = {.base = new_buffer(g, outputs(g, p))};
    if (g->layer->down[p] != NULL)
        y.high = new_buffer(g, outputs(g, p));
    return y;
}

struct halfway {
    struct tdm_eager_value *doubled;   /* the incoming gradient times the scale of down's adapter */
    struct tdm_eager_value *normed;    /* what gate and up read */
    struct product into_gate, into_up; /* gradients of it */
};

static void mlp_backward(const struct graph *g, struct gradients *all, struct product *gate,
                         struct halfway *half)
{
    struct tdm_eager *m = g->m;
    const struct torch_layer *layer = g->layer;
    const uint64_t hidden = g->t->config->hidden,
                   inner = layer->weight[TDM_PROJECTION_DOWN]->columns;
    const bool adapted = layer->down[TDM_PROJECTION_DOWN] != NULL;
    struct product up = project(g, TDM_PROJECTION_UP);
    struct product of_down = {NULL};
    if (adapted) {
        of_down.low = new_buffer(g, layer->down[TDM_PROJECTION_DOWN]->rows);
        of_down.high = new_buffer(g, inner);
    }
    of_down.base = new_buffer(g, inner);
    struct tdm_eager_value *active = new_buffer(g, inner);
    struct product of_up = result_of(g, TDM_PROJECTION_UP),
                   of_gate = result_of(g, TDM_PROJECTION_GATE);
    drop_product(g, gate);
    drop_product(g, &up);
    drop_product(g, &of_down);
    make_gradients(g, all, TDM_PROJECTION_DOWN);
    tdm_drop(m, active);
    make_gradients(g, all, TDM_PROJECTION_UP);
    if (of_up.high != NULL)
        half->into_up.high =
            half->doubled != NULL ? reuse(g, half->doubled, hidden) : new_buffer(g, hidden);
    else
        tdm_drop(m, half->doubled);
    half->into_up.base = new_buffer(g, hidden);
    drop_product(g, &of_up);
    make_gradients(g, all, TDM_PROJECTION_GATE);
    if (of_gate.high != NULL) {
        half->into_gate.high = reuse(g, half->normed, hidden);
        half->into_gate.base = new_buffer(g, hidden);
    } else {
        half->into_gate.base = reuse(g, half->normed, hidden);
    }
    drop_product(g, &of_gate);
}

/* q, k and v as attention reads them, and what it made of them. Where heads are normed, the
 * products of q and k are read again by the norm's backward. */
struct heads {
    struct tdm_eager_value *q, *k, *v, *y, *q_product, *k_product, *roots[2];
};

/* Attention, and the gradients of what q, k and v were made of. `back`: the gradient of the output,
 * which it takes. */
static void heads_backward(const struct graph *g, struct heads *a, struct tdm_eager_value *back,
                           struct tdm_eager_value *into[3], struct tdm_eager_value *turned[3])
{
    struct tdm_eager *m = g->m;
    const uint64_t hidden = g->t->config->hidden;
    const bool norms = g->layer->q_norm != NULL;
    void (*ready)(void *, struct tdm_eager_value *) = m->gradient_ready;
    struct tdm_eager_value *heads[3] = {a->q, a->k, a->v}, *made[3];
    m->gradient_ready = NULL; /* these leaves are no parameters */
    tdm_backward(m, a->y, back);
    m->gradient_ready = ready;
    for (unsigned i = 0; i < 3; i++) {
        made[i] = heads[i]->grad;
        heads[i]->grad = NULL;
    }
    turned[2] = made[2];
    into[2] = norms ? new_buffer(g, hidden) : reuse(g, a->q, hidden);
    turned[1] = reuse(g, a->k, outputs(g, TDM_PROJECTION_K));
    tdm_drop(m, made[1]);
    into[1] = norms ? new_buffer(g, hidden) : reuse(g, back, hidden);
    turned[0] = norms ? reuse(g, a->q, outputs(g, TDM_PROJECTION_Q))
                      : new_buffer(g, outputs(g, TDM_PROJECTION_Q));
    if (norms) {
        tdm_drop(m, made[0]);
        into[0] = new_buffer(g, hidden);
        tdm_drop(m, back);
    } else {
        into[0] = made[0] != NULL ? reuse(g, made[0], hidden) : NULL;
    }
    tdm_drop(m, a->v);
}

/* Roots of the means of a norm's rows, in fp32; NULL: there is no norm. */
static struct tdm_eager_value *roots(const struct graph *g, const struct tdm_eager_value *norm,
                                     uint64_t heads)
{
    return norm != NULL ? tdm_value_new(g->m, g->rows * heads, 1, FP32) : NULL;
}

static void root_heads(const struct graph *g, struct heads *a)
{
    a->roots[0] = roots(g, g->layer->q_norm, g->t->config->query_heads);
    a->roots[1] = roots(g, g->layer->k_norm, g->t->config->kv_heads);
}

/* The heads again. */
static struct heads heads_again(const struct graph *g)
{
    const struct tdm_model *config = g->t->config;
    struct heads a;
    struct product q = project(g, TDM_PROJECTION_Q), k = project(g, TDM_PROJECTION_K),
                   v = project(g, TDM_PROJECTION_V);
    root_heads(g, &a);
    a.v = as_heads(joined(g, &v), config->kv_heads);
    a.q = as_heads(new_buffer(g, outputs(g, TDM_PROJECTION_Q)), config->query_heads);
    a.k = as_heads(new_buffer(g, outputs(g, TDM_PROJECTION_K)), config->kv_heads);
    a.k_product = g->layer->k_norm != NULL ? tdm_take(k.base) : NULL;
    drop_product(g, &k);
    a.y = attend_for_backward(g, a.q, a.k, a.v);
    a.q_product = joined(g, &q);
    return a;
}

/* What the forward kept of them. */
static struct heads kept_heads(struct tdm_eager *m, struct tdm_node *node)
{
    return (struct heads){.q = tdm_node_release(m, node, SAVED_Q),
                          .k = tdm_node_release(m, node, SAVED_K),
                          .v = tdm_node_release(m, node, SAVED_V),
                          .y = tdm_node_release(m, node, SAVED_OUTPUT),
                          .q_product = tdm_node_release(m, node, SAVED_Q_PRODUCT)};
}

/* q and k as attention reads them, of kept heads. */
static void turn_again(const struct graph *g, struct heads *a)
{
    struct tdm_eager *m = g->m;
    const bool norms = g->layer->q_norm != NULL;
    root_heads(g, a);
    tdm_value_occupy(m, a->q);
    if (!norms) {
        tdm_drop(m, a->q_product);
        a->q_product = NULL;
    }
    struct product k = project(g, TDM_PROJECTION_K);
    tdm_value_occupy(m, a->k);
    a->k_product = norms ? tdm_take(k.base) : NULL;
    drop_product(g, &k);
}

static void run_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_torch_model *t = node->context;
    const struct torch_layer *layer = &t->layers[node->facts[0]];
    const struct graph graph = {m, t, layer, grads[0]->rows, grads[0]->element_bytes}, *g = &graph;
    const uint64_t hidden = t->config->hidden;
    const bool again = !selects(t), adapted = layer->down[TDM_PROJECTION_O] != NULL;
    struct gradients all = {.count = 0};
    struct halfway half = {NULL};
    struct tdm_eager_value *x = tdm_node_release(m, node, SAVED_INPUT), *normed = NULL;
    struct heads a;
    struct product o = {NULL}, gate;
    struct tdm_eager_value *scale = NULL, *middle_scale; /* of both norms */
    if (layer->down[TDM_PROJECTION_DOWN] != NULL)
        half.doubled = new_buffer(g, hidden);
    if (again) {
        scale = roots(g, layer->attention_norm, 1);
        normed = new_buffer(g, hidden);
        a = heads_again(g);
    } else {
        a = kept_heads(m, node);
    }
    if (again && layer->q_norm == NULL) {
        o.base = reuse(g, a.q_product, hidden);
        a.q_product = NULL;
    } else {
        o.base = new_buffer(g, hidden);
    }
    if (adapted) {
        o.low = new_buffer(g, layer->down[TDM_PROJECTION_O]->rows);
        o.high = new_buffer(g, hidden);
    }
    middle_scale = roots(g, layer->mlp_norm, 1);
    half.normed = new_buffer(g, hidden);
    if (again)
        gate = project(g, TDM_PROJECTION_GATE);
    else
        gate = (struct product){.base = tdm_node_release(m, node, SAVED_GATE)};
    mlp_backward(g, &all, &gate, &half);
    /* What is added in the middle, whose gradient the norm's kernel makes of both halves'. */
    const bool trains_norm = layer->mlp_norm->requires_grad;
    struct tdm_eager_value *middle = new_buffer(g, hidden);
    if (!again) {
        scale = roots(g, layer->attention_norm, 1);
        normed = new_buffer(g, hidden);
    }
    if (!trains_norm) {
        drop_product(g, &half.into_up);
        drop_product(g, &half.into_gate);
        drop_product(g, &o);
    }
    struct tdm_eager_value *back = new_buffer(g, outputs(g, TDM_PROJECTION_Q));
    make_gradient(g, &all, layer->down[TDM_PROJECTION_O]);
    make_gradient(g, &all, layer->up[TDM_PROJECTION_O]);
    if (!again)
        turn_again(g, &a);
    struct tdm_eager_value *into[3], *turned[3];
    back = as_heads(back, t->config->query_heads);
    heads_backward(g, &a, back, into, turned);
    make_gradient(g, &all, layer->mlp_norm);
    drop_product(g, &half.into_up);
    drop_product(g, &half.into_gate);
    drop_product(g, &o);
    make_gradient(g, &all, layer->weight[TDM_PROJECTION_O]);
    make_gradient(g, &all, layer->bias[TDM_PROJECTION_O]);
    tdm_drop(m, a.y);
    for (unsigned i = 3; i-- > 0;) {
        make_gradients(g, &all, TDM_PROJECTION_Q + i);
        tdm_drop(m, turned[i]);
    }
    tdm_drop(m, normed);
    make_gradient(g, &all, layer->q_norm);
    make_gradient(g, &all, layer->k_norm);
    tdm_drop(m, a.q_product);
    tdm_drop(m, a.k_product);
    tdm_drop(m, a.roots[0]);
    tdm_drop(m, a.roots[1]);
    make_gradient(g, &all, layer->attention_norm);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, into[i]);
    tdm_drop(m, scale);
    tdm_drop(m, middle_scale);
    tdm_drop(m, x);
    tdm_frame_drop(m, node->function);
    node->function = NULL;
    results[0] = middle;
    for (unsigned i = 0; i < all.count; i++) {
        tdm_leaf_accumulate(m, all.leaf[i], all.made[i]);
        tdm_drop(m, all.made[i]);
    }
}

/* ---- the layer ---- */

/* Norm, attention, norm and gated MLP, all of them plain. */
static bool is_plain(const struct tdm_torch_model *t, const struct torch_layer *layer)
{
    static const enum tdm_projection apart[] = {
        TDM_PROJECTION_Q,    TDM_PROJECTION_K,  TDM_PROJECTION_V,   TDM_PROJECTION_O,
        TDM_PROJECTION_GATE, TDM_PROJECTION_UP, TDM_PROJECTION_DOWN};
    const struct tdm_model *config = t->config;
    for (unsigned i = 0; i < sizeof(apart) / sizeof(apart[0]); i++) {
        const struct tdm_eager_value *weight = layer->weight[apart[i]];
        if (weight == NULL || weight->quantized != NULL || weight->float8 != 0 ||
            layer->magnitude[apart[i]] != NULL || layer->second_down[apart[i]] != NULL)
            return false;
    }
    return (config->parts & ~(uint32_t)(TDM_PART_LOGIT_SCALE | TDM_PART_HEAD_BIAS)) == 0 &&
           layer->attention_norm != NULL && layer->mlp_norm != NULL &&
           layer->attention_norm_bias == NULL && layer->post_attention_norm == NULL &&
           layer->post_mlp_norm == NULL && layer->router == NULL &&
           layer->delta[DELTA_OUT] == NULL && layer->mamba[MAMBA_OUT] == NULL &&
           layer->short_conv[SHORT_OUT] == NULL && layer->sinks == NULL && !config->offset_norms &&
           !config->whole_qk_norm && config->dropout <= 0;
}

bool tdm_torch_compiles_checkpoint(const struct tdm_torch_model *t, uint32_t number)
{
    const struct tdm_torch_settings *s = &t->settings;
    const struct torch_layer *layer = &t->layers[number];
    const bool inside = s->checkpointing == TDM_CHECKPOINTING_SELECTIVE ||
                        (s->checkpointing == TDM_CHECKPOINTING_ON && s->checkpoint_wrapper);
    const bool adapts = s->adapter == TDM_ADAPTER_LORA && s->lora_rank > 0;
    return inside && s->compile != TDM_COMPILE_NO && is_plain(t, layer) &&
           !(t->autocasts && s->fp32_weights) && !t->caches && t->mask == NULL &&
           t->window_mask == NULL &&
           (s->attention == TDM_TORCH_SDPA || s->attention == TDM_TORCH_SDPA_FLASH) &&
           s->context.divider == NULL && tdm_tensor_ranks(s) == 1 && s->mlp_tiles == 0 &&
           s->liger == 0 && !(s->peft && s->lora_rank > 0) && (!adapts || s->lora_dropout <= 0) &&
           s->checkpoint_offload == TDM_CHECKPOINTS_HERE && s->wrapper->enter_module == NULL &&
           !s->shifted && !s->materialized_groups &&
           (layer->down[TDM_PROJECTION_Q] == NULL || (adapts && !selects(t)));
}

struct tdm_eager_value *tdm_torch_compiled_layer(struct tdm_torch_model *t,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"CompiledFunctionBackward", false, run_backward};
    struct tdm_eager *m = t->m;
    const struct graph graph = {m, t, &t->layers[function->layer], x->rows, x->element_bytes};
    struct tdm_label label = m->label;
    m->label.layer = function->layer;
    tdm_label(m, "input_layernorm");
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    if (node != NULL) {
        node->facts[0] = function->layer;
        node->context = t;
        node->function = tdm_frame_new(m, function); /* holds cosines and sines */
        tdm_node_save(m, node, x);
    }
    const bool enabled = m->grad_enabled;
    m->grad_enabled = false;
    struct tdm_eager_value *y = run_forward(&graph, selects(t) ? node : NULL);
    m->grad_enabled = enabled;
    y = tdm_node_finish(m, node, y);
    m->label = label;
    return y;
}
