/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face's models as a system: a training loop that binds loss, calls backward, steps and zeroes gradients. */
#include "methods/method.h"

/* A rank of several that divide a sequence has the model of its own tokens. */
enum tdm_status tdm_torch_system_create(struct tdm_eager *m, const struct tdm_model *config,
                                        const struct tdm_method_settings *settings, void **state,
                                        struct tdm_error *err)
{
    struct tdm_torch_settings torch = settings->torch;
    struct tdm_torch_model *model = NULL;
    if (torch.context.kind != TDM_CONTEXT_NONE)
        torch.tokens = tdm_context_local_tokens(&torch.context, torch.tokens);
    enum tdm_status status = tdm_torch_model_create(m, config, &torch, &model, err);
    *state = model;
    return status;
}

void tdm_torch_system_free(void *state)
{
    tdm_torch_model_free(state);
}

void tdm_torch_system_backward(void *state)
{
    tdm_torch_backward(state);
}

static void forward(void *state)
{
    tdm_torch_forward(state);
}

static void step(void *state)
{
    tdm_torch_optimizer_step(state);
}

static void zero_grad(void *state)
{
    tdm_torch_zero_grad(state);
}

static uint64_t weight_bytes(const void *state)
{
    return tdm_torch_weight_bytes(state);
}

const struct tdm_torch_system tdm_torch_system = {
    .create = tdm_torch_system_create,
    .free = tdm_torch_system_free,
    .phases = {forward, tdm_torch_system_backward, step},
    .end_step = zero_grad,
    .weight_bytes = weight_bytes,
};
