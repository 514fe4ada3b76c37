/* SPDX-License-Identifier: Apache-2.0 */
/* FullyShardedDataParallel (FSDP 1): all parameters of a unit are views of one flat parameter, or
 * of two if some are frozen. It is padded to a multiple of the ranks, and gathered into the memory
 * that the unit computes with: no other buffer lies beside it. Its gradient is joined from those of
 * the views when all of them are there, then reduced to a shard in a stream of its own.
 * limit_all_gathers: what a unit frees is used again once the next unit was freed too, because the
 * CPU waits for one of the two last frees before it gathers. Adapters, which are units of their own
 * in peft's policy, are a flat parameter of their layer here. Sources:
 * torch/distributed/fsdp/_flat_param.py (init_flat_param_attributes, pre_unshard,
 * _use_low_precision_shard, unshard, _free_unsharded_flat_param, _get_unflat_views_unaligned),
 * _runtime_utils.py (_init_streams, _unshard, _reshard, _post_forward_reshard,
 * _post_backward_hook, _cast_grad_to_param_dtype, _post_backward_final_callback),
 * _limiter_utils.py; _init_utils.py (_init_param_handle_from_module, _move_states_to_device,
 * _sync_module_params_and_buffers), _flat_param.py (flatten_tensors, shard). */
#include "base/size.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

enum { STREAM_COMPUTE, STREAM_UNSHARD, STREAM_POST_BACKWARD, STREAM_PRE_UNSHARD };

static uint16_t shard_bytes(const struct tdm_torch_model *t, bool trained)
{
    return t->settings.fp32_weights || (trained && t->settings.peft) ? FP32 : BF16;
}

/* Of what is gathered: fp32 adapters stay so unless there is a MixedPrecision, as autocast of a
 * Trainer brings. */
static uint16_t whole_bytes(const struct tdm_torch_model *t, bool trained)
{
    return trained && t->settings.peft && !t->autocasts ? FP32 : BF16;
}

static struct tdm_eager_value *new_of(struct tdm_torch_model *t, uint32_t stream,
                                      enum tdm_method_category category, const char *name,
                                      uint64_t elements, uint16_t bytes)
{
    struct tdm_eager *m = t->m;
    struct tdm_label label = m->label;
    m->label = (struct tdm_label){.name = name, .layer = TDM_NO_LAYER};
    m->stream = stream;
    m->category = category;
    struct tdm_eager_value *value = tdm_value_new(m, elements, 1, bytes);
    m->category = TDM_METHOD_WORKSPACE;
    m->stream = STREAM_COMPUTE;
    m->label = label;
    return value;
}

/* ---- flat parameters ---- */

static struct torch_flat *flat_of(const struct tdm_torch_model *t, uint32_t number)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    return &f->flats[2 * f->group_of[number] + (t->parameters[number]->requires_grad ? 1 : 0)];
}

static uint64_t padded_elements(const struct tdm_torch_model *t, const struct torch_flat *flat)
{
    return tdm_size_mul(flat->share, tdm_fsdp_shards(&t->settings));
}

struct tdm_eager_value *tdm_fsdp1_parameter(struct tdm_torch_model *t, uint32_t group,
                                            uint64_t rows, uint64_t columns, uint16_t element_bytes,
                                            bool trained)
{
    struct torch_fsdp *f = t->wrapped;
    uint32_t number = t->parameter_count;
    tdm_fsdp_join(f, number, group);
    const uint16_t bytes = shard_bytes(t, trained);
    struct tdm_eager_value *shard = tdm_torch_parameter(t, 0, columns, bytes, trained);
    tdm_value_vacate(t->m, shard);
    struct torch_flat *flat = flat_of(t, number);
    if (flat->whole == NULL) {
        struct tdm_label label = t->m->label;
        t->m->label = (struct tdm_label){.name = "flat parameter", .layer = label.layer};
        flat->shard_bytes = bytes;
        flat->bytes = whole_bytes(t, trained);
        flat->whole = tdm_value_leaf(t->m, 0, 1, flat->bytes, false);
        t->m->label = label;
        tdm_value_vacate(t->m, flat->whole);
        flat->number = number;
    }
    flat->elements += tdm_size_mul(rows, columns);
    struct tdm_eager_value *view = tdm_value_leaf(
        t->m, 0, columns, element_bytes < flat->bytes ? element_bytes : flat->bytes, trained);
    tdm_value_vacate(t->m, view);
    tdm_value_set_data(t->m, view, flat->whole);
    view->rows = rows;
    return f->wholes[number] = view;
}

static bool is_of(const struct tdm_torch_model *t, uint32_t number, const struct torch_flat *flat)
{
    return flat_of(t, number) == flat;
}

/* sync_module_states: the parameters are moved to the GPU one by one and sent to the other ranks,
 * joined to the flat parameter, and go when the shard was copied from that. */
static void divide_unit(struct tdm_torch_model *t, uint32_t group, const struct torch_flat *flat)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    const struct tdm_fsdp_span span = f->spans[group];
    struct tdm_broadcast sent = {.count = 0};
    struct tdm_eager_value **moved =
        calloc(span.end - span.first + 1, sizeof(struct tdm_eager_value *));
    if (moved == NULL)
        tdm_eager_no_memory(t->m);
    for (uint32_t i = span.first; i < span.end; i++)
        if (is_of(t, i, flat))
            moved[i - span.first] = new_of(t, STREAM_COMPUTE, TDM_METHOD_WORKSPACE, "whole unit",
                                           tdm_value_elements(f->wholes[i]), flat->shard_bytes);
    for (uint32_t i = span.first; i < span.end; i++)
        if (is_of(t, i, flat)) {
            tdm_broadcast_join(&sent, moved[i - span.first]);
            tdm_broadcast_send(t, &sent, false);
        }
    tdm_broadcast_send(t, &sent, true);
    struct tdm_eager_value *joined = new_of(t, STREAM_COMPUTE, TDM_METHOD_WORKSPACE, "whole unit",
                                            flat->elements, flat->shard_bytes);
    struct tdm_eager_value *shard = t->parameters[flat->number];
    tdm_value_occupy(t->m, shard);
    tdm_drop(t->m, joined);
    if (t->settings.fsdp.offload) /* flat_param_to(cpu) */
        tdm_value_vacate(t->m, shard);
    for (uint32_t i = span.first; i < span.end; i++)
        tdm_drop(t->m, moved[i - span.first]);
    free(moved);
}

/* Layers first, in each its adapters, which are units of their own; then the root. */
static void divide_units(struct tdm_torch_model *t)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    for (uint32_t group = 0; 2 * group < f->flat_count; group++)
        for (unsigned trained = 2; trained-- > 0;)
            if (f->flats[2 * group + trained].whole != NULL)
                divide_unit(t, group, &f->flats[2 * group + trained]);
}

/* The shards: of each flat parameter, that of its first one stands for all. With CPUOffload the
 * gradients of all have pinned memory too, also those of frozen ones. */
void tdm_fsdp1_start(struct tdm_torch_model *t)
{
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        struct torch_flat *flat = flat_of(t, i);
        if (flat->number != i) {
            t->parameters[i]->requires_grad = false; /* the optimizer has flat parameters alone */
            continue;
        }
        flat->share = tdm_size_ceil_div(flat->elements, tdm_fsdp_shards(&t->settings));
        flat->whole->rows = padded_elements(t, flat);
        t->parameters[i]->rows = 1;
        t->parameters[i]->columns = flat->share;
        uint64_t bytes = tdm_size_mul(flat->share, flat->shard_bytes);
        if (t->settings.fsdp.offload) {
            tdm_host_take_pinned(t->m, bytes);
            tdm_host_take_pinned(t->m, bytes);
        } else if (!t->settings.fsdp.moves_units) {
            tdm_value_occupy(t->m, t->parameters[i]);
        }
    }
    if (t->settings.fsdp.moves_units)
        divide_units(t);
}

/* Before the first forward all buffers are made once, and freed. */
void tdm_fsdp1_init(struct tdm_torch_model *t)
{
    struct torch_fsdp *f = t->wrapped;
    for (uint32_t i = 0; i < f->flat_count && !f->initialized; i++) {
        const struct torch_flat *flat = &f->flats[i];
        if (flat->whole == NULL)
            continue;
        const bool casts = flat->shard_bytes != flat->bytes;
        if (casts)
            tdm_drop(t->m, new_of(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION, "flat parameter",
                                  flat->share, BF16));
        tdm_drop(t->m, new_of(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION, "flat parameter",
                              padded_elements(t, flat), flat->bytes));
        if (casts)
            tdm_drop(t->m, new_of(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION, "flat parameter",
                                  padded_elements(t, flat), FP32));
    }
    f->initialized = true;
}

/* ---- gathers ---- */

static void unshard(struct tdm_torch_model *t, struct torch_flat *flat)
{
    struct tdm_eager_value *brought = NULL, *low = NULL;
    if (flat->shard_bytes != flat->bytes)
        low = new_of(t, STREAM_PRE_UNSHARD, TDM_METHOD_COMMUNICATION, "shard in bf16", flat->share,
                     BF16);
    if (t->settings.fsdp.offload)
        brought = new_of(t, STREAM_PRE_UNSHARD, TDM_METHOD_COMMUNICATION, "shard from the host",
                         flat->share, flat->shard_bytes);
    if (low != NULL)
        tdm_drop(t->m, brought); /* it was cast to `low` */
    t->m->stream = STREAM_UNSHARD;
    tdm_value_occupy(t->m, flat->whole);
    t->m->stream = STREAM_COMPUTE;
    struct tdm_eager_value *sent = low != NULL ? low : brought;
    if (sent != NULL)
        tdm_value_share(sent);
    tdm_drop(t->m, sent);
}

void tdm_fsdp1_gather(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    for (unsigned i = 0; i < 2 && !f->whole[group]; i++)
        if (f->flats[2 * group + i].whole != NULL)
            unshard(t, &f->flats[2 * group + i]);
    f->whole[group] = true;
}

void tdm_fsdp1_reshard(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    if (!f->whole[group])
        return;
    tdm_torch_settle(t->m->allocator);
    for (unsigned i = 0; i < 2; i++) {
        const struct torch_flat *flat = &f->flats[2 * group + i];
        if (flat->whole == NULL)
            continue;
        tdm_value_share(flat->whole);
        tdm_value_vacate(t->m, flat->whole);
    }
    f->whole[group] = false;
}

/* ---- gradients ---- */

static uint16_t reduced_bytes(const struct tdm_torch_model *t, const struct torch_flat *flat)
{
    switch (t->settings.fsdp.reduce_dtype) {
    case TDM_REDUCE_FP32:
        return FP32;
    case TDM_REDUCE_BF16:
        return BF16;
    default: /* MixedPrecision: reduce_dtype is that of param_dtype where it is not said */
        return flat->bytes;
    }
}

bool tdm_fsdp1_is_reduced(const struct tdm_torch_model *t, uint32_t group)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group && f->wholes[i]->grad != NULL)
            return true;
    return false;
}

/* SplitWithSizesBackward has joined them. */
static void drop_gradients(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++) {
        if (f->group_of[i] != group || f->wholes[i]->grad == NULL)
            continue;
        tdm_drop(t->m, f->wholes[i]->grad);
        f->wholes[i]->grad = NULL;
    }
}

static struct tdm_eager_value *later(struct tdm_torch_model *t, struct tdm_eager_value *old,
                                     struct tdm_eager_value *made)
{
    tdm_value_share(old);
    return tdm_replace(t->m, old, made);
}

void tdm_fsdp1_post_backward(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    const struct torch_flat *flat = &f->flats[2 * group + 1];
    struct tdm_eager_value *grad = NULL;
    bool some = tdm_fsdp1_is_reduced(t, group);
    if (some)
        grad = new_of(t, STREAM_COMPUTE, TDM_METHOD_GRADIENTS, "gradient of the flat parameter",
                      flat->elements, flat->bytes);
    drop_gradients(t, group);
    tdm_fsdp1_reshard(t, group);
    if (!some)
        return;
    const uint16_t bytes = reduced_bytes(t, flat);
    const uint64_t padded = padded_elements(t, flat);
    if (bytes != flat->bytes)
        grad = later(t, grad,
                     new_of(t, STREAM_POST_BACKWARD, TDM_METHOD_GRADIENTS, "gradient to be reduced",
                            flat->elements, bytes));
    if (padded > flat->elements)
        grad = later(t, grad,
                     new_of(t, STREAM_POST_BACKWARD, TDM_METHOD_GRADIENTS, "gradient to be reduced",
                            padded, bytes));
    struct tdm_eager_value *reduced = new_of(t, STREAM_POST_BACKWARD, TDM_METHOD_GRADIENTS,
                                             "reduced gradients", flat->share, bytes);
    if (bytes != flat->shard_bytes)
        reduced = tdm_replace(t->m, reduced,
                              new_of(t, STREAM_POST_BACKWARD, TDM_METHOD_GRADIENTS,
                                     "reduced gradients", flat->share, flat->shard_bytes));
    struct tdm_eager_value *shard = t->parameters[flat->number];
    if (!t->settings.fsdp.offload && shard->grad == NULL)
        shard->grad = tdm_value_view(t->m, reduced);
    if (t->settings.fsdp.offload) /* its copy to the host is in that stream too */
        tdm_value_share(reduced);
    tdm_drop(t->m, reduced);
    tdm_value_share(grad);
    tdm_drop(t->m, grad);
}

void tdm_fsdp1_hold_input(struct tdm_torch_model *t, uint32_t group, struct tdm_eager_value *x)
{
    struct torch_fsdp *f = t->wrapped;
    if (f->flats[2 * group].whole != NULL && f->inputs[group] == NULL)
        f->inputs[group] = tdm_take(x);
}

void tdm_fsdp1_finish(struct tdm_torch_model *t, uint32_t groups)
{
    struct torch_fsdp *f = t->wrapped;
    for (uint32_t i = 0; i < groups; i++) {
        tdm_drop(t->m, f->inputs[i]);
        f->inputs[i] = NULL;
    }
    tdm_torch_settle(t->m->allocator);
}
