/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt tuning and p-tuning: trained rows, in fp32, are put before the embedded tokens of each
 * sequence; those of p-tuning pass three products. Sources: peft 0.21, peft_model.py
 * (PeftModelForCausalLM.forward, get_prompt), tuners/prompt_tuning/model.py,
 * tuners/p_tuning/model.py. */
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
