/* SPDX-License-Identifier: Apache-2.0 */
/* Units of fully_shard (FSDP2), and when each is gathered, given back and reduced: every layer is one; so is the whole,
 * of all that is in no other, or (units=layers+ends, as torchtitan has it) embed_tokens and [norm, lm_head], which are
 * one unit if their weights are tied, and the whole has nothing of its own.
 * Sources: torch/distributed/fsdp/_fully_shard/_fsdp_state.py (_lazy_init, _pre_forward, _post_forward,
 * _register_group_forward_hooks, _root_post_backward_final_callback), _fsdp_param_group.py (_backward_prefetch,
 * finalize_backward); torchtitan/distributed/fsdp.py (apply_fsdp_to_decoder). */
#include "methods/torch/parts.h"

#include <stdlib.h>

static bool is_on(const struct tdm_torch_model *t)
{
    return t->settings.sharing == TDM_SHARING_FSDP;
}

/* The unit after the layers: the whole, or what has the head. */
static uint32_t last_group(const struct tdm_torch_model *t)
{
    return t->config->layers;
}

static bool has_embedding_group(const struct tdm_torch_model *t)
{
    return t->settings.units_of_ends && !t->config->tied;
}

/* Of which the embedding is. */
static uint32_t embedding_group(const struct tdm_torch_model *t)
{
    return last_group(t) + (has_embedding_group(t) ? 1 : 0);
}

struct tdm_eager_value *tdm_fsdp_parameter(struct tdm_torch_model *t, uint32_t unit,
                                           enum tdm_role role, uint64_t rows, uint64_t columns,
                                           bool trained)
{
    uint32_t group = unit < t->config->layers     ? unit
                     : role == TDM_ROLE_EMBEDDING ? embedding_group(t)
                                                  : last_group(t);
    return tdm_fsdp_shard_new(t, group, rows, columns, trained);
}

/* A model that is on the GPU: all parameters are there, then unit by unit they become shards. */
void tdm_fsdp_shard(struct tdm_torch_model *t)
{
    struct tdm_eager_value **whole = calloc(t->parameter_count, sizeof(struct tdm_eager_value *));
    if (whole == NULL) {
        t->m->status = TDM_NO_MEMORY;
        return;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++)
        whole[i] = tdm_value_new(t->m, t->fsdp.wholes[i]->rows, t->fsdp.wholes[i]->columns,
                                 t->parameters[i]->element_bytes);
    if (has_embedding_group(t))
        tdm_fsdp_move(t, embedding_group(t), whole);
    if (t->settings.units_of_ends)
        tdm_fsdp_move(t, last_group(t), whole);
    for (uint32_t group = 0; group < t->config->layers; group++)
        tdm_fsdp_move(t, group, whole);
    if (!t->settings.units_of_ends)
        tdm_fsdp_move(t, last_group(t), whole);
    free(whole);
    if (t->settings.empty_cache)
        tdm_torch_empty_cache(t->m->allocator);
}

/* ---- forward ---- */

static void post_forward(struct tdm_torch_model *t, uint32_t group)
{
    if (t->settings.reshard == TDM_RESHARD_YES ||
        (t->settings.reshard == TDM_RESHARD_DEFAULT && group != last_group(t)))
        tdm_fsdp_reshard(t, group);
}

/* ---- backward ---- */

/* Which ran before it in the forward. */
static uint32_t previous_group(const struct tdm_torch_model *t, uint32_t group)
{
    if (group > last_group(t))
        return TDM_FSDP_NO_GROUP;
    if (group > 0)
        return group - 1;
    return has_embedding_group(t) ? embedding_group(t) : TDM_FSDP_NO_GROUP;
}

static void pre_backward(struct tdm_torch_model *t, uint32_t group)
{
    tdm_fsdp_unshard(t, group, false);
    uint32_t next = previous_group(t, group);
    if (next != TDM_FSDP_NO_GROUP)
        tdm_fsdp_gather(t, next); /* ahead */
}

static void output_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    pre_backward(node->context, (uint32_t)node->facts[0]);
    results[0] = tdm_take(grads[0]);
}

static void input_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    tdm_fsdp_post_backward(node->context, (uint32_t)node->facts[0]);
    results[0] = tdm_take(grads[0]);
}

/* The same value, taken, whose backward calls the op's. */
static struct tdm_eager_value *mark(struct tdm_torch_model *t, uint32_t group,
                                    struct tdm_eager_value *x, const struct tdm_eager_op *op)
{
    struct tdm_node *node = tdm_node_new(t->m, op, &x, 1);
    if (node != NULL) {
        node->facts[0] = group;
        node->context = t;
    }
    struct tdm_eager_value *y = tdm_value_view(t->m, x);
    tdm_node_finish(t->m, node, y);
    tdm_drop(t->m, x);
    return y;
}

static struct tdm_eager_value *mark_output(struct tdm_torch_model *t, uint32_t group,
                                           struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"FsdpPreBackward", false, output_backward};
    return mark(t, group, x, &op);
}

static struct tdm_eager_value *mark_input(struct tdm_torch_model *t, uint32_t group,
                                          struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"RegisterPostBackwardFunctionBackward", false,
                                           input_backward};
    return mark(t, group, x, &op);
}

/* ---- hooks ---- */

void tdm_fsdp_before_forward(struct tdm_torch_model *t)
{
    if (is_on(t) && !t->settings.units_of_ends)
        tdm_fsdp_unshard(t, last_group(t), true);
}

void tdm_fsdp_before_embedding(struct tdm_torch_model *t)
{
    if (is_on(t) && t->settings.units_of_ends)
        tdm_fsdp_unshard(t, embedding_group(t), true);
}

struct tdm_eager_value *tdm_fsdp_after_embedding(struct tdm_torch_model *t,
                                                 struct tdm_eager_value *embedded)
{
    if (!is_on(t) || !has_embedding_group(t))
        return embedded;
    post_forward(t, embedding_group(t));
    return mark_output(t, embedding_group(t), embedded);
}

struct tdm_eager_value *tdm_fsdp_before_layer(struct tdm_torch_model *t, uint32_t layer,
                                              struct tdm_eager_value *input)
{
    if (!is_on(t))
        return input;
    tdm_fsdp_unshard(t, layer, true);
    return mark_input(t, layer, input);
}

struct tdm_eager_value *tdm_fsdp_after_layer(struct tdm_torch_model *t, uint32_t layer,
                                             struct tdm_eager_value *output)
{
    if (!is_on(t))
        return output;
    post_forward(t, layer);
    return mark_output(t, layer, output);
}

/* A unit with the embedding began there, with ids, which need no gradient. */
struct tdm_eager_value *tdm_fsdp_before_norm(struct tdm_torch_model *t,
                                             struct tdm_eager_value *input)
{
    if (!is_on(t) || !has_embedding_group(t))
        return input;
    tdm_fsdp_unshard(t, last_group(t), true);
    return mark_input(t, last_group(t), input);
}

/* Not called where a loss reads the head's weight without running the module: then the unit is not told of the
 * forward's end, and keeps its parameters. */
struct tdm_eager_value *tdm_fsdp_after_head(struct tdm_torch_model *t,
                                            struct tdm_eager_value *logits)
{
    if (!is_on(t) || !t->settings.units_of_ends)
        return logits;
    post_forward(t, last_group(t));
    return mark_output(t, last_group(t), logits);
}

void tdm_fsdp_after_forward(struct tdm_torch_model *t)
{
    if (!is_on(t))
        return;
    if (!t->settings.units_of_ends)
        post_forward(t, last_group(t));
    tdm_drop(t->m, t->fsdp.kept);
    t->fsdp.kept = NULL;
}

void tdm_fsdp_before_backward(struct tdm_torch_model *t)
{
    if (is_on(t) && !t->settings.units_of_ends)
        pre_backward(t, last_group(t));
}

/* Units whose input needs no gradient have not been told of their backward: in the order of modules. */
void tdm_fsdp_after_backward(struct tdm_torch_model *t)
{
    struct torch_fsdp *f = &t->fsdp;
    if (!is_on(t))
        return;
    tdm_fsdp_post_backward(t, embedding_group(t));
    tdm_drop(t->m, f->gathered); /* ahead, of a unit that had no backward */
    f->gathered = NULL;
    f->gathering = TDM_FSDP_NO_GROUP;
    for (uint32_t group = 0; group <= last_group(t); group++)
        if (tdm_fsdp_is_pending(t, group))
            tdm_fsdp_post_backward(t, group);
    tdm_drop(t->m, f->reducing);
    f->reducing = NULL;
}
