/* SPDX-License-Identifier: Apache-2.0 */
/* What ZeRO's stages share: parameters by module, the optimizer's step on a partition, and
 * short-lived copies. */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

#include <stdlib.h>

/* ---- making ---- */

/* `unset`: what DeepSpeed takes where nothing is said (runtime/zero/config.py). */
static uint64_t by_hidden(const struct tdm_torch_model *t, uint64_t said, double factor,
                          uint64_t unset)
{
    if (said != TDM_AUTO)
        return said;
    return t->settings.frozen ? unset : (uint64_t)(factor * t->config->hidden);
}

/* trainer_config_finalize of transformers' integrations/deepspeed.py. A second model is given to
 * DeepSpeed before that, which leaves out what is still "auto" (runtime/config_utils.py). */
static void resolve_auto(const struct tdm_torch_model *t, struct tdm_deepspeed_settings *s)
{
    double hidden = t->config->hidden;
    s->reduce_bucket_size = by_hidden(t, s->reduce_bucket_size, hidden, UINT64_C(500000000));
    s->prefetch_bucket_size =
        by_hidden(t, s->prefetch_bucket_size, 0.9 * hidden, UINT64_C(50000000));
    s->param_persistence_threshold = by_hidden(t, s->param_persistence_threshold, 10, 100000);
}

void *tdm_zero_create(struct tdm_torch_model *t, uint32_t most_parameters)
{
    struct tdm_deepspeed *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return NULL;
    d->model = t;
    d->s = t->settings.deepspeed;
    d->ranks = t->settings.ranks;
    d->module_count = tdm_layer_module(t->config->layers, 0);
    if (d->s.ep_size > 0)
        d->module_count += tdm_moe_modules(t);
    d->modules = calloc(d->module_count, sizeof(*d->modules));
    d->parameters = calloc(most_parameters, sizeof(*d->parameters));
    d->waiting = calloc(most_parameters, sizeof(*d->waiting));
    d->ahead = calloc(most_parameters, sizeof(*d->ahead));
    d->alike = calloc(most_parameters, sizeof(*d->alike));
    d->masters = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    d->zeros = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    d->has_states = calloc(most_parameters, sizeof(*d->has_states));
    d->group_elements = calloc(most_parameters, sizeof(*d->group_elements));
    d->flats = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    d->trace.backward = calloc(d->module_count, sizeof(*d->trace.backward));
    if (d->modules == NULL || d->parameters == NULL || d->waiting == NULL || d->ahead == NULL ||
        d->alike == NULL || d->masters == NULL || d->zeros == NULL || d->has_states == NULL ||
        d->group_elements == NULL || d->flats == NULL || d->trace.backward == NULL ||
        !tdm_moe_create(t, d)) {
        tdm_zero_free(d);
        return NULL;
    }
    d->most_parameters = most_parameters;
    d->changed = ZERO_NONE;
    resolve_auto(t, &d->s);
    return d;
}

void tdm_zero_free(void *state)
{
    struct tdm_deepspeed *d = state;
    tdm_zero3_free_gathers(d);
    free(d->modules);
    free(d->ahead);
    free(d->alike);
    free(d->parameters);
    free(d->waiting);
    free(d->masters);
    free(d->zeros);
    free(d->has_states);
    free(d->group_elements);
    free(d->flats);
    free(d->moe);
    free(d->moe_parts);
    free(d->moe_gradients);
    free(d->trace.modules);
    free(d->trace.uses);
    free(d->trace.backward);
    free(d);
}

/* Joint weights of experts have three dimensions, of which a value has the first two as its rows.
 */
static void set_shape(const struct tdm_torch_model *t, struct zero_parameter *p, uint32_t module,
                      uint64_t rows, uint64_t columns)
{
    uint32_t within =
        module < TDM_MODULE_FIRST_LAYER || module >= tdm_layer_module(t->config->layers, 0)
            ? 0
            : (module - TDM_MODULE_FIRST_LAYER) % TDM_MODULES_A_LAYER;
    bool joint = within == TDM_MODULE_ROLES + TDM_ROLE_EXPERTS_GATE_UP ||
                 within == TDM_MODULE_ROLES + TDM_ROLE_EXPERTS_DOWN;
    uint64_t experts = t->config->experts.count;
    p->shape[0] = joint ? experts : rows > 1 ? rows : columns;
    p->shape[1] = joint ? rows / experts : rows > 1 ? columns : 0;
}

struct tdm_eager_value *tdm_zero_parameter(struct tdm_torch_model *t, uint32_t module,
                                           uint64_t rows, uint64_t columns, uint16_t element_bytes,
                                           bool trained)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint32_t number = t->parameter_count;
    struct tdm_eager_value *value = tdm_torch_parameter(t, rows, columns, element_bytes, trained);
    struct zero_parameter *p = &d->parameters[number];
    struct zero_module *of = &d->modules[module];
    const bool gathers = t->settings.wrapper->enter_module != NULL; /* stage 3 */
    if (gathers && of->count == ZERO_MODULE_PARAMETERS) /* a family's table has a larger module */
        tdm_eager_no_memory(t->m);
    if (gathers)
        of->parameters[of->count++] = number;
    if (of->end == 0)
        of->first = number;
    of->end = number + 1;
    if (module == TDM_MODULE_EMBEDDING && t->config->tied &&
        (t->settings.lora_rank == 0 || t->settings.modules_to_save == 0)) /* the head uses it too */
        d->modules[TDM_MODULE_HEAD] = *of;
    p->elements = tdm_value_elements(value);
    set_shape(t, p, module, rows, columns);
    p->trained = trained;
    p->expert = d->s.ep_size > 0 && tdm_moe_is_expert(t, module);
    p->persists = p->elements <= d->s.param_persistence_threshold;
    p->owner = ZERO_NONE;
    tdm_zero_changes(d, number);
    if (p->trained) {
        p->offset = d->trained;
        d->trained += p->elements;
    }
    return value;
}

bool tdm_zero_accumulates(const struct tdm_torch_model *t)
{
    return tdm_zero_of(t)->s.gradient_accumulation_steps > 1;
}

/* ---- for both stages ---- */

uint64_t tdm_zero_digest(const struct tdm_deepspeed *d)
{
    uint64_t sum = tdm_zero_mix(1, d->waiting_count);
    sum = tdm_zero_mix(sum, d->bucket_elements);
    return tdm_zero_mix(sum, d->bucket + 2 * (uint64_t)d->ready);
}

uint32_t tdm_zero_number(const struct tdm_torch_model *t, const struct tdm_eager_value *leaf)
{
    const struct tdm_deepspeed *d = t->wrapped;
    const struct zero_module *module = &d->modules[leaf->module];
    for (uint32_t i = module->first; i < module->end; i++)
        if (t->parameters[i] == leaf)
            return i;
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
    return tdm_zero_named(t, stream, category, names[category], elements, bytes);
}

struct tdm_eager_value *tdm_zero_named(struct tdm_torch_model *t, uint32_t stream,
                                       enum tdm_method_category category, const char *name,
                                       uint64_t elements, uint16_t bytes)
{
    enum tdm_method_category before = t->m->category;
    struct tdm_label label = t->m->label;
    t->m->label = (struct tdm_label){.name = name, .layer = TDM_NO_LAYER};
    t->m->stream = tdm_zero_of(t)->s.overlap_comm ? stream : ZERO_COMPUTE;
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

/* Scratch: x.float(), isnan, isinf (with abs), their or, and that as floats for the max. */
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
    uint64_t all = tdm_size_mul(elements, bytes);
    if (tdm_zero_of(t)->s.pin_memory)
        tdm_host_take_pinned(t->m, all);
    else
        tdm_host_take(t->m, all);
}

/* What an optimizer has for a flat fp32 partition: states in fp32, or those of bitsandbytes'
 * `of_bnb`. transformers gives ZeRO the optimizer of its Trainer (integrations/deepspeed.py,
 * deepspeed_optim_sched()), and ZeRO steps that on its partitions (stage_1_and_2.py and stage3.py,
 * _optimizer_step()); others are of engine.py, _configure_basic_optimizer(). */
static const struct rule {
    uint32_t states;
    enum tdm_torch_optimizer of_bnb;
} rules[] = {
    [TDM_DEEPSPEED_ADAM] = {2, TDM_TORCH_NO_OPTIMIZER},
    [TDM_DEEPSPEED_TORCH_ADAMW] = {2, TDM_TORCH_NO_OPTIMIZER},
    [TDM_DEEPSPEED_TORCH_ADAMW_FUSED] = {2, TDM_TORCH_NO_OPTIMIZER},
    [TDM_DEEPSPEED_ADAMW_8BIT] = {0, TDM_TORCH_ADAMW_8BIT},
    [TDM_DEEPSPEED_PAGED_ADAMW_8BIT] = {0, TDM_TORCH_PAGED_ADAMW_8BIT},
    [TDM_DEEPSPEED_PAGED_ADAMW_32BIT] = {0, TDM_TORCH_PAGED_ADAMW_32BIT},
    [TDM_DEEPSPEED_LION_8BIT] = {0, TDM_TORCH_LION_8BIT},
    [TDM_DEEPSPEED_LION_32BIT] = {0, TDM_TORCH_LION_32BIT},
    [TDM_DEEPSPEED_LION] = {1, TDM_TORCH_NO_OPTIMIZER},
    [TDM_DEEPSPEED_SGD] = {0, TDM_TORCH_NO_OPTIMIZER},
    [TDM_DEEPSPEED_SGD_MOMENTUM] = {1, TDM_TORCH_NO_OPTIMIZER},
    [TDM_DEEPSPEED_ADAFACTOR] = {1, TDM_TORCH_NO_OPTIMIZER}, /* a vector's squares */
};

static void init_bnb(struct tdm_torch_model *t, enum tdm_torch_optimizer optimizer,
                     uint64_t elements)
{
    const enum tdm_method_category category = t->m->category;
    const struct tdm_label label = t->m->label;
    struct torch_state state = {0};
    t->m->category = TDM_METHOD_OPTIMIZER;
    tdm_torch_init_bnb(t, optimizer, elements, &state);
    t->m->category = category;
    t->m->label = label;
}

static struct tdm_eager_value *state_new(struct tdm_torch_model *t, uint64_t elements)
{
    return tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_OPTIMIZER, elements, FP32);
}

/* Adafactor's temporaries, as of a vector in fp32: squares, and them with eps; their roots; the
 * update with a minus. */
static void step_adafactor(struct tdm_torch_model *t, uint64_t elements)
{
    struct tdm_eager_value *squares = state_new(t, elements), *update = state_new(t, elements);
    tdm_drop(t->m, squares);
    update = tdm_replace(t->m, update, state_new(t, elements));
    tdm_drop(t->m, state_new(t, elements));
    tdm_drop(t->m, update);
}

void tdm_zero_update(struct tdm_torch_model *t, uint32_t group)
{
    struct tdm_deepspeed *d = t->wrapped;
    const struct rule *rule = &rules[d->s.optimizer];
    uint64_t elements = d->group_elements[group];
    if (d->s.offload_optimizer) {
        if (d->states_made)
            return;
        tdm_host_take(t->m, tdm_size_mul(elements, rule->states * sizeof(float)));
        return;
    }
    if (!d->has_states[group] && rule->of_bnb != TDM_TORCH_NO_OPTIMIZER)
        init_bnb(t, rule->of_bnb, elements);
    for (uint32_t s = 0; s < rule->states && !d->has_states[group]; s++)
        (void)state_new(t, elements);
    d->has_states[group] = true;
    if (d->s.optimizer ==
        TDM_DEEPSPEED_TORCH_ADAMW) /* foreach: the square roots of the second moments */
        tdm_drop(t->m, state_new(t, elements));
    else if (d->s.optimizer == TDM_DEEPSPEED_ADAFACTOR)
        step_adafactor(t, elements);
}
