/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into the wrapper of a model, and the list of wrappers by name. */
#include "methods/torch/wrapper.h"

#include "methods/method.h"
#include "methods/torch/parts.h"

#include <string.h>

const struct tdm_wrapper tdm_no_wrapper = {.name = "none"};

enum tdm_status tdm_key_read_wrapper(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const struct tdm_wrapper *const wrappers[] = {&tdm_no_wrapper, &tdm_ddp_wrapper,
                                                         &tdm_zero1_wrapper, &tdm_fsdp_wrapper};
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++)
        if (strcmp(value, wrappers[i]->name) == 0) {
            settings->torch.wrapper = wrappers[i];
            return TDM_OK;
        }
    return tdm_key_bad_value(key, value, err);
}

struct tdm_eager_value *tdm_module_enter(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *x)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    return w->enter_module == NULL || t->m->stopped ? tdm_take(x) : w->enter_module(t, module, x);
}

struct tdm_eager_value *tdm_module_leave(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *y)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    return w->leave_module == NULL || t->m->stopped ? y : w->leave_module(t, module, y);
}

struct tdm_eager_value *tdm_unit_enter(struct tdm_torch_model *t, uint32_t module,
                                       struct tdm_eager_value *x)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    return w->enter_unit == NULL ? x : w->enter_unit(t, module, x);
}

struct tdm_eager_value *tdm_unit_leave(struct tdm_torch_model *t, uint32_t module,
                                       struct tdm_eager_value *y)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    return w->leave_unit == NULL ? y : w->leave_unit(t, module, y);
}

bool tdm_weight_gather(struct tdm_torch_model *t, const struct tdm_eager_value *weight)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    return w->gather_weight != NULL && w->gather_weight(t, weight);
}

void tdm_weight_return(struct tdm_torch_model *t, const struct tdm_eager_value *weight,
                       bool gathered)
{
    if (gathered)
        t->settings.wrapper->return_weight(t, weight);
}
