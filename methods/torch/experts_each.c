/* SPDX-License-Identifier: Apache-2.0 */
/* Experts as transformers had them before version 5: each is an MLP of nn.Linear, which computes
 * the tokens that chose it, one expert after the other, and adds what it made to a sum. Every
 * expert is assumed to get equally many tokens. Sources: transformers 4.48.3 and 4.57.3,
 * modeling_mixtral.py, modeling_olmoe.py, modeling_qwen2_moe.py, modeling_qwen3_moe.py
 * (SparseMoeBlock.forward), modeling_deepseek_v3.py and modeling_glm4_moe.py (MoE.moe). */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

uint32_t tdm_torch_expert_modules(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    const struct tdm_experts *e = &model->experts;
    const bool family = (e->router == TDM_ROUTER_SOFTMAX || e->router == TDM_ROUTER_GROUPS) &&
                        !e->biased && !e->all_rows && !e->beside;
    const bool divided = s->deepspeed.ep_size > 0 || tdm_fsdp_expert_ranks(s) > 1 ||
                         tdm_expert_parts(s) > 1 || tdm_tensor_ranks(s) > 1 ||
                         s->wrapper->enter_module != NULL;
    return s->expert_modules && family && !divided && s->code == TDM_CODE_TRANSFORMERS &&
                   s->compile == TDM_COMPILE_NO && s->float8 == TDM_FLOAT8_NO
               ? e->count
               : 0;
}

static void index_add_backward(struct tdm_eager *m, struct tdm_node *node,
                               struct tdm_eager_value *const *grads,
                               struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[1];
    struct tdm_eager_value *index = tdm_node_saved(m, node, 0),
                           *source = tdm_node_saved(m, node, 1);
    if (tdm_node_needs(node, 0))
        results[0] = tdm_take(grads[0]);
    if (tdm_node_needs(node, 1)) /* index_select */
        results[1] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, source);
    tdm_drop(m, index);
}

/* sum.index_add_(0, index, rows): the node saves the rows too, for their shape alone
 * (derivatives.yaml index_add). Takes the sum. */
static struct tdm_eager_value *add_rows(struct tdm_eager *m, struct tdm_eager_value *sum,
                                        struct tdm_eager_value *index, struct tdm_eager_value *rows)
{
    static const struct tdm_eager_op op = {"IndexAddBackward0", false, index_add_backward};
    struct tdm_eager_value *inputs[] = {sum, rows};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    tdm_node_save(m, node, index);
    tdm_node_save(m, node, rows);
    return tdm_replace(m, sum, tdm_node_finish(m, node, tdm_value_view(m, sum)));
}

/* torch.where of an expert's part of the mask: places of tokens and of choices. */
static struct tdm_eager_value *places_of(struct tdm_eager *m, uint64_t choices, uint64_t rows)
{
    struct tdm_eager_value *copy = tdm_value_new(m, choices, 1, INT64); /* made contiguous */
    struct tdm_eager_value *places = tdm_value_new(m, rows, 2, INT64);
    tdm_drop(m, copy);
    return places;
}

struct tdm_eager_value *tdm_torch_each_expert(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              const struct torch_layer *layer,
                                              struct tdm_eager_value *x,
                                              struct tdm_eager_value *weights)
{
    const struct tdm_experts *e = &t->config->experts;
    const uint64_t pairs = x->rows * e->per_token;
    struct tdm_eager_value *column = tdm_reshape(m, weights, pairs, 1);
    struct tdm_eager_value *sum = NULL, *mask = NULL, *last[3] = {NULL};
    tdm_label(m, "mlp.experts");
    if (e->groups == 0)
        sum = tdm_value_new(m, x->rows, x->columns, x->element_bytes);
    else
        sum = tdm_value_new(m, x->rows, x->columns, weights->element_bytes);
    mask = tdm_value_new(m, pairs, e->count, INT64); /* one_hot */
    for (uint32_t i = 0; i < e->count; i++) {
        const uint64_t rows = pairs / e->count + (i < pairs % e->count);
        if (rows == 0)
            continue;
        struct tdm_eager_value *places = places_of(m, pairs, rows);
        struct tdm_eager_value *state = tdm_torch_pick_rows(m, x, places, rows);
        last[0] = tdm_replace(m, last[0], places);
        last[1] = tdm_replace(m, last[1], state);
        struct tdm_eager_value *made = tdm_torch_mlp(m, t, &layer->experts[i], state);
        tdm_label(m, "mlp.experts");
        struct tdm_eager_value *shares = tdm_torch_pick_rows(m, column, places, rows);
        struct tdm_eager_value *weighted = tdm_mul(m, made, shares);
        tdm_drop(m, shares);
        tdm_drop(m, made);
        last[2] = tdm_replace(m, last[2], weighted);
        sum = add_rows(m, sum, places, weighted);
    }
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, last[i]);
    tdm_drop(m, mask);
    tdm_drop(m, column);
    return tdm_replace(m, sum, tdm_cast(m, sum, x->element_bytes));
}
