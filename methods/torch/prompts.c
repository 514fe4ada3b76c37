/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt tuning and p-tuning: trained rows, in fp32, are put before the embedded tokens of each
 * sequence; those of p-tuning pass three products. Prefix tuning: trained K and V of every layer
 * are in the cache before the forward, to which layers join theirs. Sources: peft 0.21,
 * peft_model.py (PeftModelForCausalLM.forward, get_prompt),
 * tuners/{prompt,p,prefix}_tuning/model.py; transformers cache_utils.py (DynamicCache,
 * DynamicLayer.update). */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

static void cat_rows_backward(struct tdm_eager *m, struct tdm_node *node,
                              struct tdm_eager_value *const *grads,
                              struct tdm_eager_value **results)
{
    for (uint32_t i = 0; i < node->inputs; i++) {
        if (!tdm_node_needs(node, i))
            continue;
        results[i] = tdm_value_view(m, grads[0]);
        results[i]->rows = node->edges[i].rows;
    }
}

static struct tdm_eager_value *cat_rows(struct tdm_eager *m, struct tdm_eager_value *a,
                                        struct tdm_eager_value *b)
{
    static const struct tdm_eager_op op = {"CatBackward0", false, cat_rows_backward};
    struct tdm_eager_value *inputs[] = {a, b};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    return tdm_node_finish(m, node,
                           tdm_value_new(m, a->rows + b->rows, b->columns, b->element_bytes));
}

/* Three products, with a ReLU after the first two. */
static struct tdm_eager_value *encoded(struct tdm_torch_model *t, struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    for (unsigned i = TDM_PROMPT_ENCODER; i + 1 < TDM_PROMPT_WEIGHTS; i += 2) {
        x = tdm_replace(m, x, tdm_linear(m, x, t->prompt[i], t->prompt[i + 1], false));
        if (i + 3 < TDM_PROMPT_WEIGHTS)
            x = tdm_replace(m, x, tdm_relu(m, x));
    }
    return x;
}

struct tdm_eager_value *tdm_torch_prompted(struct tdm_torch_model *t,
                                           struct tdm_eager_value *embedded)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    const uint64_t rows = tdm_adapter_prompt_tokens(s);
    tdm_label(m, "prompt_encoder");
    if (s->logits != TDM_LOGITS_BASE && s->logits != TDM_LOGITS_LAST &&
        s->logits != TDM_LOGITS_SCORE)
        t->prompt_labels = tdm_value_new(m, s->batch, s->tokens, INT64);
    struct tdm_eager_value *ids = tdm_value_new(m, rows, 1, INT64);
    struct tdm_eager_value *prompt = tdm_embedding(m, t->prompt[TDM_PROMPT_ROWS], ids, rows);
    if (s->adapter == TDM_ADAPTER_P_TUNING)
        prompt = encoded(t, prompt);
    prompt = tdm_replace(m, prompt,
                         s->batch == 1 ? tdm_clone(m, prompt) : tdm_repeat(m, prompt, s->batch));
    prompt = tdm_replace(m, prompt, tdm_cast(m, prompt, embedded->element_bytes));
    struct tdm_eager_value *both = cat_rows(m, prompt, embedded);
    tdm_drop(m, prompt);
    tdm_drop(m, ids);
    return tdm_replace(m, embedded, both);
}

/* ---- prefix tuning ---- */

/* Gradients of the parts, which are there, are joined to one of all. */
static void parts_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *parts =
        tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, parts);
}

/* permute().split(): views of K and V of each layer. */
static struct tdm_eager_value *split_parts(struct tdm_eager *m, struct tdm_eager_value *all)
{
    static const struct tdm_eager_op op = {"SplitBackward0", false, parts_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &all, 1);
    return tdm_node_finish(m, node, tdm_value_view(m, all));
}

static void part_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)node;
    results[0] = tdm_value_like(m, grads[0]);
}

/* An empty layer of the cache joins nothing and a part: a copy. */
static struct tdm_eager_value *cached_part(struct tdm_eager *m, struct tdm_eager_value *parts,
                                           uint64_t rows, uint64_t columns)
{
    static const struct tdm_eager_op op = {"SelectBackward0", false, part_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &parts, 1);
    return tdm_node_finish(m, node, tdm_value_new(m, rows, columns, parts->element_bytes));
}

void tdm_torch_prefix(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    const uint64_t rows = s->batch * tdm_adapter_prefix_tokens(s);
    tdm_label(m, "prompt_encoder");
    struct tdm_eager_value *ids = tdm_value_new(m, rows, 1, INT64);
    struct tdm_eager_value *all = tdm_embedding(m, t->prompt[TDM_PROMPT_ROWS], ids, rows);
    if (s->adapter_sizes.prefix_projection) {
        struct tdm_eager_value *const *encoder = &t->prompt[TDM_PROMPT_ENCODER];
        all = tdm_replace(m, all, tdm_linear(m, all, encoder[0], encoder[1], false));
        all = tdm_replace(m, all, tdm_tanh(m, all));
        all = tdm_replace(m, all, tdm_linear(m, all, encoder[2], encoder[3], false));
    }
    tdm_drop(m, ids);
    all = tdm_replace(m, all, tdm_cast(m, all, t->weight_bytes));
    struct tdm_eager_value *parts = split_parts(m, all);
    tdm_drop(m, all);
    for (uint32_t i = 0; i < t->config->layers; i++)
        for (unsigned part = 0; part < 2; part++)
            *tdm_torch_cache_slot(t, i, part) =
                cached_part(m, parts, rows * t->config->kv_heads, t->config->head_dim);
    tdm_drop(m, parts);
}

void tdm_torch_prefix_join(const struct tdm_torch_model *t, struct tdm_eager_value **slot,
                           struct tdm_eager_value **tokens)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *joined = cat_rows(m, *slot, *tokens);
    tdm_drop(m, *slot);
    tdm_drop(m, *tokens);
    *slot = joined;
    *tokens = tdm_take(joined);
}
