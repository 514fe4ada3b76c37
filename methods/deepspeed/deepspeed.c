/* SPDX-License-Identifier: Apache-2.0 */
/* What ZeRO's stages share: parameters by module, the optimizer's step on a partition, copies that are taken for a
 * moment, and the hooks around modules. */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

#include <stdlib.h>

/* ---- making ---- */

struct tdm_deepspeed *tdm_deepspeed_new(struct tdm_torch_model *t, uint32_t most_parameters)
{
    struct tdm_deepspeed *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return NULL;
    d->model = t;
    d->s = t->settings.deepspeed;
    d->stage = t->settings.sharing == TDM_SHARING_ZERO3 ? 3 : 2;
    d->ranks = t->settings.ranks;
    d->module_count = tdm_layer_module(t->config->layers, 0);
    d->modules = calloc(d->module_count, sizeof(*d->modules));
    d->parameters = calloc(most_parameters, sizeof(*d->parameters));
    d->waiting = calloc(most_parameters, sizeof(*d->waiting));
    d->ahead = calloc(most_parameters, sizeof(*d->ahead));
    d->masters = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    d->firsts = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    d->seconds = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    d->group_elements = calloc(most_parameters, sizeof(*d->group_elements));
    d->trace.backward = calloc(d->module_count, sizeof(*d->trace.backward));
    if (d->modules == NULL || d->parameters == NULL || d->waiting == NULL || d->ahead == NULL ||
        d->masters == NULL || d->firsts == NULL || d->seconds == NULL ||
        d->group_elements == NULL || d->trace.backward == NULL) {
        tdm_deepspeed_free(d);
        return NULL;
    }
    d->most_parameters = most_parameters;
    if (d->stage == 2 && d->s.offload_optimizer)
        d->s.contiguous_gradients = true; /* it insists */
    return d;
}

void tdm_deepspeed_free(struct tdm_deepspeed *d)
{
    if (d == NULL)
        return;
    tdm_zero3_free_gathers(d);
    free(d->modules);
    free(d->ahead);
    free(d->parameters);
    free(d->waiting);
    free(d->masters);
    free(d->firsts);
    free(d->seconds);
    free(d->group_elements);
    free(d->trace.modules);
    free(d->trace.uses);
    free(d->trace.backward);
    free(d);
}

static uint64_t by_hidden(const struct tdm_torch_model *t, uint64_t said, double factor)
{
    return said == TDM_DEEPSPEED_AUTO ? (uint64_t)(factor * t->config->hidden) : said;
}

/* trainer_config_finalize of transformers' integrations/deepspeed.py. */
static void resolve_auto(const struct tdm_torch_model *t, struct tdm_deepspeed_settings *s)
{
    double hidden = t->config->hidden;
    s->reduce_bucket_size = by_hidden(t, s->reduce_bucket_size, hidden);
    s->prefetch_bucket_size = by_hidden(t, s->prefetch_bucket_size, 0.9 * hidden);
    s->param_persistence_threshold = by_hidden(t, s->param_persistence_threshold, 10);
}

void tdm_deepspeed_parameter(struct tdm_torch_model *t, uint32_t module)
{
    struct tdm_deepspeed *d = t->deepspeed;
    if (d == NULL)
        return;
    uint32_t number = t->parameter_count - 1;
    struct tdm_eager_value *value = t->parameters[number];
    struct zero_parameter *p = &d->parameters[number];
    struct zero_module *of = &d->modules[module];
    if (number == 0)
        resolve_auto(t, &d->s);
    value->module = module;
    of->parameters[of->count++] = number;
    p->elements = tdm_value_elements(value);
    p->trained = value->requires_grad;
    p->persists = p->elements <= d->s.param_persistence_threshold;
    p->owner = ZERO_NONE;
    if (p->trained) {
        p->offset = d->trained;
        d->trained += p->elements;
    }
    if (d->stage == 3)
        tdm_zero3_partition(t, number);
}

void tdm_deepspeed_start(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->deepspeed;
    if (d == NULL)
        return;
    if (t->config->tied) { /* the head's module has the embedding's parameter */
        struct zero_module *head = &d->modules[TDM_MODULE_HEAD];
        *head = d->modules[TDM_MODULE_EMBEDDING];
    }
    t->m->gradient_context = t;
    t->m->gradient_ready = d->stage == 3 ? tdm_zero3_gradient : tdm_zero2_gradient;
    if (d->stage == 3)
        tdm_zero3_start(t);
    else
        tdm_zero2_start(t);
}

void tdm_deepspeed_before_forward(struct tdm_torch_model *t)
{
    if (t->deepspeed != NULL && t->deepspeed->stage == 3)
        tdm_zero3_begin_trace(t);
}

void tdm_deepspeed_after_backward(struct tdm_torch_model *t)
{
    if (t->deepspeed == NULL)
        return;
    if (t->deepspeed->stage == 3)
        tdm_zero3_after_backward(t);
    else
        tdm_zero2_after_backward(t);
}

void tdm_deepspeed_step(struct tdm_torch_model *t)
{
    if (t->deepspeed->stage == 3)
        tdm_zero3_step(t);
    else
        tdm_zero2_step(t);
}

bool tdm_deepspeed_accumulates(const struct tdm_torch_model *t)
{
    return t->deepspeed->s.gradient_accumulation_steps > 1;
}

uint64_t tdm_deepspeed_weight_bytes(const struct tdm_torch_model *t)
{
    const struct tdm_deepspeed *d = t->deepspeed;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        elements += d->stage == 3 ? tdm_zero3_share(d, i) : d->parameters[i].elements;
    return elements * BF16;
}

/* ---- for both stages ---- */

uint32_t tdm_zero_number(const struct tdm_torch_model *t, const struct tdm_eager_value *leaf)
{
    const struct tdm_deepspeed *d = t->deepspeed;
    const struct zero_module *module = &d->modules[leaf->module];
    for (uint32_t i = 0; i < module->count; i++)
        if (t->parameters[module->parameters[i]] == leaf)
            return module->parameters[i];
    return ZERO_NONE;
}

struct tdm_eager_value *tdm_zero_new(struct tdm_torch_model *t, uint32_t stream,
                                     enum tdm_method_category category, uint64_t elements,
                                     uint16_t bytes)
{
    static const char *const names[TDM_METHOD_CATEGORIES] = {
        [TDM_METHOD_WEIGHTS] = "partition of parameters",
        [TDM_METHOD_GRADIENTS] = "partition of gradients",
        [TDM_METHOD_OPTIMIZER] = "masters and moments",
        [TDM_METHOD_COMMUNICATION] = "bucket",
        [TDM_METHOD_WORKSPACE] = "scratch of the step",
    };
    enum tdm_method_category before = t->m->category;
    struct tdm_label label = t->m->label;
    t->m->label = (struct tdm_label){.name = names[category], .layer = TDM_NO_LAYER};
    t->m->stream = t->deepspeed->s.overlap_comm ? stream : ZERO_COMPUTE;
    t->m->category = category;
    struct tdm_eager_value *value = tdm_value_new(t->m, elements, 1, bytes);
    t->m->category = before;
    t->m->label = label;
    t->m->stream = ZERO_COMPUTE;
    return value;
}

void tdm_zero_norm(struct tdm_torch_model *t, uint32_t stream, uint64_t elements)
{
    tdm_drop(t->m, tdm_zero_new(t, stream, TDM_METHOD_WORKSPACE, elements, sizeof(double)));
}

/* x.float(), isnan, isinf (by abs), their or, as floats for the max. */
void tdm_zero_overflow(struct tdm_torch_model *t, uint32_t stream, uint64_t elements)
{
    struct tdm_eager_value *wide = tdm_zero_new(t, stream, TDM_METHOD_WORKSPACE, elements, FP32);
    struct tdm_eager_value *nan = tdm_zero_new(t, stream, TDM_METHOD_WORKSPACE, elements, BOOL);
    struct tdm_eager_value *positive =
        tdm_zero_new(t, stream, TDM_METHOD_WORKSPACE, elements, FP32);
    struct tdm_eager_value *inf = tdm_zero_new(t, stream, TDM_METHOD_WORKSPACE, elements, BOOL);
    tdm_drop(t->m, positive);
    struct tdm_eager_value *either = tdm_zero_new(t, stream, TDM_METHOD_WORKSPACE, elements, BOOL);
    struct tdm_eager_value *number = tdm_zero_new(t, stream, TDM_METHOD_WORKSPACE, elements, FP32);
    tdm_drop(t->m, number);
    tdm_drop(t->m, either);
    tdm_drop(t->m, inf);
    tdm_drop(t->m, nan);
    tdm_drop(t->m, wide);
}

void tdm_zero_host(struct tdm_torch_model *t, uint64_t elements, uint64_t bytes)
{
    uint64_t all = tdm_size_mul(elements, bytes), block = 1;
    if (t->deepspeed->s.pin_memory) { /* torch's caching host allocator: powers of two */
        while (block < all && block <= UINT64_MAX / 2)
            block *= 2;
        all = block;
    }
    tdm_host_take(t->m, all);
}

void tdm_zero_adam(struct tdm_torch_model *t, uint32_t group)
{
    struct tdm_deepspeed *d = t->deepspeed;
    uint64_t elements = d->group_elements[group];
    if (d->s.offload_optimizer) {
        if (d->states_made)
            return;
        tdm_host_take(t->m, tdm_size_mul(elements, 2 * sizeof(float)));
        return;
    }
    if (d->firsts[group] == NULL) {
        d->firsts[group] = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_OPTIMIZER, elements, FP32);
        d->seconds[group] = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_OPTIMIZER, elements, FP32);
    }
    if (d->s.optimizer == TDM_DEEPSPEED_TORCH_ADAMW) /* foreach: the roots of the second moments */
        tdm_drop(t->m, tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_OPTIMIZER, elements, FP32));
}

/* ---- the hooks of modules ---- */

static void before_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    tdm_zero3_fetch(node->context, (uint32_t)node->facts[0], false);
    results[0] = tdm_take(grads[0]);
}

static void after_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_torch_model *t = node->context;
    uint32_t module = (uint32_t)node->facts[0];
    (void)m;
    if (--t->deepspeed->modules[module].inputs_waiting == 0)
        tdm_zero3_release(t, module, false);
    results[0] = tdm_take(grads[0]);
}

/* The same value, with a node of its own; `x` stays the caller's. */
static struct tdm_eager_value *mark(struct tdm_torch_model *t, uint32_t module,
                                    struct tdm_eager_value *x, bool output)
{
    static const struct tdm_eager_op before = {"PreBackwardFunctionForModuleBackward", false,
                                               before_backward},
                                     after = {"PostBackwardFunctionModuleBackward", false,
                                              after_backward};
    struct tdm_node *node = tdm_node_new(t->m, output ? &before : &after, &x, 1);
    if (node == NULL)
        return tdm_take(x);
    node->facts[0] = module;
    node->context = t;
    struct tdm_eager_value *y = tdm_value_view(t->m, x);
    y->view = x->view;
    tdm_node_finish(t->m, node, y);
    if (!output)
        t->deepspeed->modules[module].inputs_waiting++;
    return y;
}

static bool hooked(const struct tdm_torch_model *t)
{
    return t->deepspeed != NULL && t->deepspeed->stage == 3 && !t->m->stopped;
}

struct tdm_eager_value *tdm_module_enter(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *x)
{
    if (!hooked(t))
        return tdm_take(x);
    struct tdm_torch_model *model = t->deepspeed->model;
    tdm_zero3_fetch(model, module, true);
    t->deepspeed->modules[module].inputs_waiting = 0;
    return x == NULL ? NULL : mark(model, module, x, false);
}

struct tdm_eager_value *tdm_module_leave(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *y)
{
    if (!hooked(t))
        return y;
    struct tdm_torch_model *model = t->deepspeed->model;
    tdm_zero3_release(model, module, true);
    if (y == NULL)
        return NULL;
    struct tdm_eager_value *marked = mark(model, module, y, true);
    tdm_drop(t->m, y);
    return marked;
}
