/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.step() and zero_grad: the states, which the first step allocates, and the temporary
 * tensors of foreach. Sources: torch/optim/adam.py (_init_group, _multi_tensor_adam, _fused_adam),
 * sgd.py. */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

static void init_adam(struct tdm_torch_model *t, uint32_t i)
{
    struct torch_state *state = &t->states[i];
    if (state->first != NULL)
        return;
    if (t->settings.optimizer == TDM_TORCH_ADAMW_FUSED)
        state->step = tdm_value_new(t->m, 1, 1, FP32); /* foreach has it in host memory */
    tdm_label(t->m, "exp_avg");
    state->first = tdm_value_like(t->m, t->parameters[i]);
    tdm_label(t->m, "exp_avg_sq");
    state->second = tdm_value_like(t->m, t->parameters[i]);
}

/* Does this rank's optimizer update parameter i? */
static bool trained(const struct tdm_torch_model *t, uint32_t i)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    return t->parameters[i]->grad != NULL && (w->owns_states == NULL || w->owns_states(t, i));
}

/* The square roots of all second moments: one new tensor each, until the end of the step. */
static void foreach_roots(struct tdm_torch_model *t)
{
    struct tdm_eager_value **roots = calloc(t->parameter_count, sizeof(struct tdm_eager_value *));
    if (roots == NULL)
        tdm_eager_no_memory(t->m);
    tdm_label(t->m, "exp_avg_sq.sqrt()");
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (trained(t, i))
            roots[i] = tdm_value_like(t->m, t->states[i].second);
    for (uint32_t i = t->parameter_count; i-- > 0;)
        tdm_drop(t->m, roots[i]);
    free(roots);
}

void tdm_torch_optimizer_step(struct tdm_torch_model *t)
{
    enum tdm_torch_optimizer kind = t->settings.optimizer;
    bool adam = kind == TDM_TORCH_ADAMW_FUSED || kind == TDM_TORCH_ADAMW_FOREACH;
    t->m->category = TDM_METHOD_OPTIMIZER;
    t->m->label = (struct tdm_label){.name = "momentum_buffer", .layer = TDM_NO_LAYER};
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        if (!trained(t, i))
            continue;
        if (adam)
            init_adam(t, i);
        else if (kind == TDM_TORCH_SGD_MOMENTUM && t->states[i].first == NULL)
            t->states[i].first = tdm_value_like(t->m, t->parameters[i]);
    }
    if (kind == TDM_TORCH_ADAMW_FOREACH)
        foreach_roots(t);
    t->m->category = TDM_METHOD_WORKSPACE;
}

void tdm_torch_zero_grad(struct tdm_torch_model *t)
{
    const struct tdm_torch_settings *s = &t->settings;
    if (s->grads == TDM_GRADS_HELD ||
        (s->grads == TDM_GRADS_UNSAID && s->optimizer == TDM_TORCH_NO_OPTIMIZER))
        return;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        tdm_drop(t->m, t->parameters[i]->grad);
        t->parameters[i]->grad = NULL;
    }
}
