/* SPDX-License-Identifier: Apache-2.0 */
/* fully_shard (FSDP2), on every layer and on the whole: parameters are shards, gathered for a group of them before
 * it runs, and gone after it; gradients are reduced to shards when a group's backward is done.
 * Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (unshard, wait_for_unshard, pre_backward,
 * post_backward, _backward_prefetch), _fsdp_collectives.py (foreach_all_gather, foreach_reduce),
 * _fsdp_state.py (_pre_forward, _post_forward, _root_post_backward_final_callback). */
#include "base/size.h"
#include "methods/torch_parts.h"

#include <stddef.h>
#include <stdlib.h>

#define NO_GROUP UINT32_MAX

static uint64_t shard_rows(const struct tdm_torch_model *t, uint64_t rows)
{
    return tdm_size_ceil_div(rows, t->settings.ranks);
}

struct tdm_value *tdm_fsdp_parameter(struct tdm_torch_model *t, uint64_t rows, uint64_t columns,
                                     bool trained)
{
    struct torch_fsdp *f = &t->fsdp;
    uint16_t bytes = t->settings.fp32_weights ? FP32 : BF16;
    bool vector = rows == 1; /* sharded by its elements */
    uint64_t part_rows = vector ? 1 : shard_rows(t, rows);
    struct tdm_value *shard =
        tdm_value_leaf(t->m, t->settings.shards_on_gpu ? 0 : part_rows,
                       vector ? shard_rows(t, columns) : columns, bytes, trained);
    if (t->settings.shards_on_gpu) {
        tdm_value_vacate(t->m, shard);
        shard->rows = part_rows;
    }
    struct tdm_value *whole = tdm_value_leaf(t->m, 0, columns, BF16, trained);
    tdm_value_vacate(t->m, whole); /* it gets memory when it is gathered */
    whole->rows = rows;
    f->group_of[t->parameter_count] = f->building;
    f->wholes[t->parameter_count] = whole;
    t->parameters[t->parameter_count++] = shard;
    return whole;
}

/* A model that is on the GPU: all parameters are there, then group by group the shards, after which the group's
 * parameters go. */
void tdm_fsdp_shard(struct tdm_torch_model *t)
{
    struct torch_fsdp *f = &t->fsdp;
    struct tdm_value **whole = calloc(t->parameter_count, sizeof(struct tdm_value *));
    if (whole == NULL) {
        t->m->status = TDM_NO_MEMORY;
        return;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++)
        whole[i] = tdm_value_new(t->m, f->wholes[i]->rows, f->wholes[i]->columns,
                                 t->parameters[i]->element_bytes);
    for (uint32_t group = 0; group <= t->config->layers; group++) {
        for (uint32_t i = 0; i < t->parameter_count; i++)
            if (f->group_of[i] == group)
                tdm_value_occupy(t->m, t->parameters[i]);
        for (uint32_t i = 0; i < t->parameter_count; i++)
            if (f->group_of[i] == group)
                tdm_drop(t->m, whole[i]);
    }
    free(whole);
    if (t->settings.empty_cache)
        tdm_torch_empty_cache(t->m->allocator);
}

/* Of all its parameters, or of those that have a gradient: frozen ones are gathered, but not reduced. */
static uint64_t group_elements(const struct tdm_torch_model *t, uint32_t group, bool reduced)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (t->fsdp.group_of[i] == group && (!reduced || t->fsdp.wholes[i]->grad != NULL))
            elements += tdm_value_elements(t->parameters[i]) * t->settings.ranks;
    return elements;
}

/* Gathers have a stream of their own, and so have the results of reductions. */
enum { STREAM_COMPUTE, STREAM_GATHER, STREAM_REDUCE };

static struct tdm_value *new_buffer(struct tdm_torch_model *t, uint32_t stream,
                                    enum tdm_method_category category, uint64_t elements,
                                    uint16_t bytes)
{
    t->m->stream = stream;
    t->m->category = category;
    struct tdm_label label = t->m->label;
    t->m->label = (struct tdm_label){.name = stream == STREAM_GATHER   ? "all-gather buffer"
                                             : stream == STREAM_REDUCE ? "reduced gradients"
                                                                       : "reduce-scatter buffer",
                                     .layer = TDM_NO_LAYER};
    struct tdm_value *buffer = tdm_value_new(t->m, elements, 1, bytes);
    t->m->label = label;
    t->m->category = TDM_METHOD_WORKSPACE;
    t->m->stream = STREAM_COMPUTE;
    return buffer;
}

/* Starts the all-gather of a group: shards in bf16, side by side, and the result. */
static void gather(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = &t->fsdp;
    if (f->whole[group] || f->gathering == group)
        return;
    uint64_t elements = group_elements(t, group, false);
    struct tdm_value *input = NULL;
    if (t->settings.fp32_weights)
        input = new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION, elements / t->settings.ranks,
                           BF16);
    f->gathered = new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION, elements, BF16);
    f->gathering = group;
    tdm_drop(t->m, input);
}

/* Copies what was gathered to the parameters. */
static void make_whole(struct tdm_torch_model *t, uint32_t group, bool forward)
{
    struct torch_fsdp *f = &t->fsdp;
    if (f->whole[group])
        return;
    gather(t, group);
    if (forward) {
        tdm_drop(t->m, f->kept);
        f->kept = NULL;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (f->group_of[i] == group)
            tdm_value_occupy(t->m, f->wholes[i]);
    if (forward) /* until the next group is there */
        f->kept = f->gathered;
    else
        tdm_drop(t->m, f->gathered);
    f->gathered = NULL;
    f->gathering = NO_GROUP;
    f->whole[group] = true;
}

static void shard_again(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = &t->fsdp;
    for (uint32_t i = 0; i < t->parameter_count && f->whole[group]; i++)
        if (f->group_of[i] == group)
            tdm_value_vacate(t->m, f->wholes[i]);
    f->whole[group] = false;
}

static bool is_on(const struct tdm_torch_model *t)
{
    return t->settings.sharing == TDM_SHARING_FSDP;
}

void tdm_fsdp_before_forward(struct tdm_torch_model *t, uint32_t group)
{
    if (is_on(t))
        make_whole(t, group, true);
}

void tdm_fsdp_after_forward(struct tdm_torch_model *t, uint32_t group)
{
    if (!is_on(t))
        return;
    if (t->settings.reshard)
        shard_again(t, group);
    if (group == t->config->layers) {
        tdm_drop(t->m, t->fsdp.kept);
        t->fsdp.kept = NULL;
    }
}

void tdm_fsdp_before_backward(struct tdm_torch_model *t, uint32_t group)
{
    if (!is_on(t))
        return;
    make_whole(t, group, false);
    if (group > 0)
        gather(t, group - 1); /* of the one that comes next, ahead */
}

/* Gradients of a group, reduced to shards. The last one lives until the reduction is on its way. */
static void reduce(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = &t->fsdp;
    uint16_t bytes = t->settings.fp32_weights ? FP32 : BF16;
    uint64_t elements = group_elements(t, group, true);
    struct tdm_value *last = NULL;
    if (elements == 0)
        return;
    tdm_drop(t->m, f->reducing);
    f->reducing = new_buffer(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION, elements, bytes);
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        if (f->group_of[i] != group || f->wholes[i]->grad == NULL)
            continue;
        tdm_drop(t->m, last);
        last = f->wholes[i]->grad;
        f->wholes[i]->grad = NULL;
    }
    struct tdm_value *shards =
        new_buffer(t, STREAM_REDUCE, TDM_METHOD_GRADIENTS, elements / t->settings.ranks, bytes);
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (f->group_of[i] == group && t->parameters[i]->requires_grad &&
            t->parameters[i]->grad == NULL)
            t->parameters[i]->grad = tdm_value_view(t->m, shards);
    tdm_drop(t->m, shards);
    tdm_drop(t->m, last);
}

void tdm_fsdp_after_backward(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = &t->fsdp;
    if (!is_on(t))
        return;
    if (group == t->config->layers) /* a layer whose input needs no gradient has not been told */
        for (uint32_t i = 0; i < group; i++)
            if (f->whole[i] || group_elements(t, i, true) > 0)
                tdm_fsdp_after_backward(t, i);
    shard_again(t, group);
    reduce(t, group);
    if (group == t->config->layers) {
        tdm_drop(t->m, f->reducing);
        f->reducing = NULL;
    }
}

static struct tdm_torch_model *model_of(const struct tdm_node *node)
{
    return node->context;
}

static void before_layer_backward(struct tdm_eager *m, struct tdm_node *node,
                                  struct tdm_value *const *grads, struct tdm_value **results)
{
    (void)m;
    tdm_fsdp_before_backward(model_of(node), (uint32_t)node->facts[0]);
    results[0] = tdm_take(grads[0]);
}

static void after_layer_backward(struct tdm_eager *m, struct tdm_node *node,
                                 struct tdm_value *const *grads, struct tdm_value **results)
{
    (void)m;
    tdm_fsdp_after_backward(model_of(node), (uint32_t)node->facts[0]);
    results[0] = tdm_take(grads[0]);
}

struct tdm_value *tdm_fsdp_mark(struct tdm_torch_model *t, uint32_t layer, struct tdm_value *x,
                                bool output)
{
    static const struct tdm_op before = {"FsdpPreBackward", false, before_layer_backward},
                               after = {"RegisterPostBackwardFunctionBackward", false,
                                        after_layer_backward};
    if (!is_on(t))
        return tdm_take(x);
    struct tdm_node *node = tdm_node_new(t->m, output ? &before : &after, &x, 1);
    if (node != NULL) {
        node->facts[0] = layer;
        node->context = t;
    }
    struct tdm_value *y = tdm_value_view(t->m, x);
    tdm_node_output(t->m, node, 0, y);
    tdm_node_done(t->m, node);
    return y;
}
