/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LitGPT's own model, where it differs from that of transformers: one product for q, k and v with
 * one adapter for those of them that have any, a rotation in fp32 after which heads are joined
 * again, K and V repeated for every query head, and a loss of 128 tokens at a time. Sources: LitGPT
 * 0.4 (April 2024), litgpt/model.py (CausalSelfAttention, apply_rope), litgpt/lora.py
 * (LoRAQKVLinear, GPT.forward with lm_head_chunk_size), litgpt/utils.py (chunked_cross_entropy),
 * litgpt/finetune/{lora,full}.py.
 */
#include "base/size.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

#define LOSS_TOKENS 128u

/* ---- adapters ---- */

#define HEADS (1u << TDM_PROJECTION_Q | 1u << TDM_PROJECTION_K | 1u << TDM_PROJECTION_V)

uint32_t tdm_litgpt_targets(uint32_t targets)
{
    if ((targets >> TDM_PROJECTION_QKV & 1) != 0)
        targets |= HEADS;
    return (targets & HEADS) != 0 ? targets | 1u << TDM_PROJECTION_QKV : targets;
}

void tdm_litgpt_joint_shape(const struct tdm_model *model, const struct tdm_torch_settings *s,
                            uint64_t columns, struct tdm_adapter_shape *shape)
{
    const uint64_t widths[] = {(uint64_t)model->query_heads * model->head_dim,
                               tdm_model_kv_width(model), tdm_model_kv_width(model)};
    const uint32_t targets = tdm_litgpt_targets(s->lora_targets);
    *shape = (struct tdm_adapter_shape){.down = {0, columns}, .up = {0, s->lora_rank}};
    for (unsigned i = 0; i < 3; i++)
        if ((targets >> (TDM_PROJECTION_Q + i) & 1) != 0) {
            shape->down.rows += s->lora_rank;
            shape->up.rows += widths[i];
        }
}

static void convolution_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_eager_value *const *grads,
                                 struct tdm_eager_value **results)
{
    struct tdm_eager_value *low = tdm_node_saved(m, node, 0), *up = tdm_node_saved(m, node, 1);
    if (tdm_node_needs(node, 0))
        results[0] = tdm_value_like(m, low);
    if (tdm_node_needs(node, 1))
        results[1] = tdm_value_like(m, up);
    (void)grads;
    tdm_drop(m, low);
    tdm_drop(m, up);
}

/* conv1d in groups: each part of `low` times its rows of `up`. */
static struct tdm_eager_value *convolved(struct tdm_eager *m, struct tdm_eager_value *low,
                                         struct tdm_eager_value *up)
{
    static const struct tdm_eager_op op = {"ConvolutionBackward0", false, convolution_backward};
    struct tdm_eager_value *inputs[] = {low, up};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    tdm_node_save(m, node, low);
    tdm_node_save(m, node, up);
    return tdm_node_finish(m, node, tdm_value_new(m, low->rows, up->rows, low->element_bytes));
}

static void copy_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *source = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_like(m, source);
    (void)grads;
    tdm_drop(m, source);
}

/* zero_pad: index_copy of a copy of x into zeros of all columns, which is a new tensor too. Its
 * backward asks the source for its shape, so that copy stays (tools/autograd/derivatives.yaml).
 * Takes x. */
static struct tdm_eager_value *padded(struct tdm_eager *m, struct tdm_eager_value *x,
                                      uint64_t columns)
{
    static const struct tdm_eager_op op = {"IndexCopyBackward0", false, copy_backward};
    if (x->columns == columns)
        return x;
    struct tdm_eager_value *zeros = tdm_value_new(m, x->rows, columns, x->element_bytes);
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *plain = tdm_value_like(m, x);
    tdm_node_save(m, node, plain);
    struct tdm_eager_value *y = tdm_node_finish(m, node, tdm_value_like(m, zeros));
    tdm_drop(m, plain);
    tdm_drop(m, zeros);
    tdm_drop(m, x);
    return y;
}

struct tdm_eager_value *tdm_litgpt_joint(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         const struct torch_layer *layer, struct tdm_eager_value *x,
                                         struct tdm_eager_value *base)
{
    struct tdm_eager_value *down = layer->down[TDM_PROJECTION_QKV],
                           *up = layer->up[TDM_PROJECTION_QKV];
    struct tdm_eager_value *dropped =
        t->settings.lora_dropout > 0 ? tdm_dropout(m, x) : tdm_take(x);
    struct tdm_eager_value *low = tdm_torch_linear(m, t, dropped, down, NULL, down->module);
    tdm_drop(m, dropped);
    struct tdm_eager_value *high = convolved(m, low, up);
    tdm_drop(m, low);
    high = padded(m, high, base->columns);
    high = tdm_replace(m, high, tdm_mul_number(m, high));
    struct tdm_eager_value *y = tdm_add(m, base, high);
    tdm_drop(m, high);
    tdm_drop(m, base);
    return y;
}

/* ---- heads ---- */

/* apply_rope with cosines in fp32, and cat with what is not rotated, also where that is nothing.
 * Takes x. */
static struct tdm_eager_value *rotated(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       struct tdm_eager_value *x)
{
    const uint64_t dim = t->config->rotary_dim;
    struct tdm_eager_value *first = tdm_columns(m, x, dim);
    struct tdm_eager_value *turned = tdm_torch_rotate(m, first, t->cosine, t->sine);
    turned = tdm_replace(m, turned, tdm_cast(m, turned, x->element_bytes));
    struct tdm_eager_value *rest = tdm_columns(m, x, x->columns - dim);
    struct tdm_eager_value *y = tdm_cat(m, turned, rest);
    tdm_drop(m, rest);
    tdm_drop(m, turned);
    tdm_drop(m, first);
    tdm_drop(m, x);
    return y;
}

void tdm_litgpt_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                      const struct torch_layer *layer, struct tdm_eager_value *x,
                      struct tdm_eager_value *qkv[3])
{
    const struct tdm_model *c = t->config;
    const uint64_t heads[] = {c->query_heads, c->kv_heads, c->kv_heads},
                   times = c->query_heads / c->kv_heads;
    uint64_t widths[3];
    for (unsigned i = 0; i < 3; i++)
        widths[i] = heads[i] * c->head_dim;
    struct tdm_eager_value *all = tdm_torch_project(m, t, layer, TDM_PROJECTION_QKV, x);
    tdm_split(m, all, widths, 3, qkv);
    tdm_drop(m, all);
    tdm_label(m, "attn.apply_rope");
    for (unsigned i = 0; i < 3; i++) {
        qkv[i] = tdm_replace(m, qkv[i], tdm_reshape(m, qkv[i], x->rows * heads[i], c->head_dim));
        qkv[i] = tdm_replace(m, qkv[i], tdm_transpose(m, qkv[i]));
        /* Of groups of queries all three are copies; with one group they are views. */
        if (times > 1 && c->kv_heads > 1)
            qkv[i] = tdm_replace(m, qkv[i],
                                 i == 0 ? tdm_clone(m, qkv[i]) : tdm_repeat(m, qkv[i], times));
        else if (i > 0)
            qkv[i] = tdm_replace(m, qkv[i], tdm_expand(m, qkv[i], times));
    }
    for (unsigned i = 0; i < 2; i++)
        qkv[i] = rotated(m, t, qkv[i]);
}

/* ---- loss ---- */

static void view_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    (void)node;
    results[0] = tdm_take(grads[0]);
}

/* Logits that the loop's name `logits` holds until the next forward has replaced it, which is when
 * the graph of their loss goes too. Takes them. */
static struct tdm_eager_value *held(struct tdm_eager *m, struct tdm_eager_value *logits)
{
    static const struct tdm_eager_op op = {"ViewBackward0", false, view_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    tdm_node_hold(m, node, logits);
    struct tdm_eager_value *y = tdm_node_finish(m, node, tdm_value_view(m, logits));
    tdm_drop(m, logits);
    return y;
}

static struct tdm_eager_value *logits_of(struct tdm_torch_model *t, struct tdm_eager_value *hidden)
{
    tdm_label(t->m, "lm_head");
    return tdm_torch_linear(t->m, t, hidden, t->head, t->head_bias, TDM_MODULE_HEAD);
}

/* Fabric makes what the model returns fp32 (lightning/fabric, plugins/precision/half.py
 * convert_output). All of it is there until the last part is cast. */
static void convert_outputs(struct tdm_torch_model *t, struct tdm_eager_value **parts,
                            uint64_t count)
{
    struct tdm_eager_value **narrow = calloc(count, sizeof(struct tdm_eager_value *));
    if (narrow == NULL)
        tdm_eager_no_memory(t->m);
    tdm_label(t->m, "logits.float()");
    for (uint64_t i = 0; i < count; i++) {
        narrow[i] = parts[i];
        parts[i] = held(t->m, tdm_cast(t->m, narrow[i], FP32));
    }
    for (uint64_t i = 0; i < count; i++)
        tdm_drop(t->m, narrow[i]);
    free(narrow);
}

static struct tdm_eager_value *loss_of(struct tdm_torch_model *t, struct tdm_eager_value *logits)
{
    struct tdm_eager_value *labels = tdm_value_view(t->m, t->ids); /* a part of the labels */
    labels->rows = logits->rows;
    labels->columns = 1;
    tdm_label(t->m, "loss");
    struct tdm_eager_value *loss = tdm_cross_entropy(t->m, logits, labels);
    tdm_drop(t->m, labels);
    return loss;
}

struct tdm_eager_value *tdm_litgpt_loss(struct tdm_torch_model *t, struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = t->m;
    const uint64_t tokens = t->settings.tokens, batch = t->settings.batch;
    const bool chunks = t->settings.lora_rank > 0; /* also of the head's products */
    enum tdm_method_category before = m->category;
    const uint64_t count = tdm_size_ceil_div(tokens, LOSS_TOKENS);
    struct tdm_eager_value *loss = NULL, *all = NULL;
    struct tdm_eager_value **parts = calloc(count, sizeof(struct tdm_eager_value *));
    if (parts == NULL)
        tdm_eager_no_memory(m);
    m->category = TDM_METHOD_LOGITS;
    if (!chunks) { /* without the last token, which of several sequences is a copy */
        struct tdm_eager_value *whole = logits_of(t, hidden);
        convert_outputs(t, &whole, 1);
        all = tdm_rows(m, whole, batch * (tokens > 1 ? tokens - 1 : 1));
        tdm_drop(m, whole);
        if (batch > 1)
            all = tdm_replace(m, all, tdm_clone(m, all));
    }
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t left = tokens - i * LOSS_TOKENS;
        parts[i] =
            tdm_rows(m, chunks ? hidden : all, batch * (left < LOSS_TOKENS ? left : LOSS_TOKENS));
        if (chunks)
            parts[i] = tdm_replace(m, parts[i], logits_of(t, parts[i]));
    }
    if (chunks)
        convert_outputs(t, parts, count);
    for (uint64_t i = 0; i < count; i++) {
        struct tdm_eager_value *own = loss_of(t, parts[i]);
        if (loss != NULL)
            own = tdm_replace(m, own, tdm_add(m, loss, own));
        tdm_drop(m, loss);
        loss = own;
    }
    for (uint64_t i = 0; i < count; i++)
        tdm_drop(m, parts[i]);
    free(parts);
    tdm_drop(m, all);
    m->category = before;
    return loss;
}
