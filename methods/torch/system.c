/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face's models as a system: a training loop that binds `loss`, calls backward, steps and
 * zeroes gradients. */
#include "methods/method.h"
#include "methods/torch/parts.h"

/* If ranks divide a sequence, the model of a rank has only its own tokens. */
static enum tdm_status create(struct tdm_eager *m, const struct tdm_model *config,
                              const struct tdm_method_settings *settings, void **state,
                              struct tdm_error *err)
{
    struct tdm_torch_settings torch = settings->torch;
    struct tdm_torch_model *model = NULL;
    torch.tokens = tdm_context_local_tokens(&torch.context, torch.tokens);
    torch.batch = tdm_second_batch(&torch);
    if (!tdm_parts_leave_shards(&torch))
        torch.wrapper = &tdm_no_wrapper;
    enum tdm_status status = tdm_torch_model_create(m, config, &torch, &model, err);
    *state = model;
    return status;
}

static void end(void *state)
{
    tdm_torch_model_free(state);
}

static void backward(void *state)
{
    tdm_torch_backward(state);
}

/* A second backward finds the gradients of the first. Later ones are like the second. */
static void forward(void *state)
{
    struct tdm_torch_model *t = state;
    const struct tdm_wrapper *w = t->settings.wrapper;
    if (t->settings.accumulation > 1 || (w->accumulates != NULL && w->accumulates(t))) {
        t->accumulating = true;
        tdm_torch_forward(t);
        tdm_torch_backward(t);
        t->accumulating = false;
    }
    tdm_torch_forward(t);
}

static void step(void *state)
{
    struct tdm_torch_model *t = state;
    bool on_host = t->settings.wrapper == &tdm_fsdp_wrapper && t->settings.fsdp.offload;
    if (t->settings.wrapper->step != NULL) { /* which clips by itself */
        t->settings.wrapper->step(t);
        return;
    }
    if (t->settings.clips && !on_host)
        tdm_torch_clip(t);
    tdm_torch_optimizer_step(t);
}

static void zero_grad(void *state)
{
    struct tdm_torch_model *t = state;
    if (t->settings.wrapper->step == NULL)
        tdm_torch_zero_grad(t);
    tdm_ppo_end_step(t);
}

static uint64_t weight_bytes(const void *state)
{
    const struct tdm_torch_model *t = state;
    const struct tdm_wrapper *w = t->settings.wrapper;
    return w->weight_bytes != NULL ? w->weight_bytes(t) : tdm_torch_weight_bytes(t);
}

const struct tdm_torch_system tdm_torch_system = {
    .create = create,
    .free = end,
    .phases = {forward, backward, step},
    .end_step = zero_grad,
    .weight_bytes = weight_bytes,
};
