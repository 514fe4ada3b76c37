/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of peft's adapters, and what they have besides. */
#include "methods/torch/parts.h"

static struct tdm_eager_value *add_matrix(struct tdm_torch_model *t, uint32_t layer,
                                          uint32_t module, struct tdm_adapter_matrix shape)
{
    if (shape.rows == 0)
        return NULL;
    t->m->label = (struct tdm_label){.name = "lora", .layer = layer};
    const uint16_t bytes = t->settings.peft                    ? FP32
                           : tdm_torch_is_narrow(&t->settings) ? BF16
                                                               : t->weight_bytes;
    struct tdm_eager_value *value = tdm_torch_add_parameter(t, tdm_layer_module(layer, module),
                                                            shape.rows, shape.columns, bytes, true);
    t->states[t->parameter_count - 1].matrix = shape.rows > 1;
    return value;
}

/* What is no parameter: VeRA's two frozen matrices, of the largest sizes for all; OFT's places in a
 * triangle (OFTRotationModule: rows, cols); BOFT's permutation, a matrix in fp32 (BOFTLayer:
 * boft_P). */
static void add_buffers(struct tdm_torch_model *t, struct torch_layer *layer, unsigned p)
{
    const struct tdm_eager_value *weight = layer->weight[p];
    if (t->settings.adapter == TDM_ADAPTER_OFT)
        for (unsigned i = 0; i < 2; i++)
            tdm_value_new(t->m, layer->down[p]->columns, 1, INT64);
    if (t->settings.adapter == TDM_ADAPTER_BOFT)
        layer->permutation[p] = tdm_value_new(t->m, weight->columns, weight->columns, FP32);
}

static void add_vera(struct tdm_torch_model *t, uint64_t inputs, uint64_t outputs)
{
    const uint16_t bytes = t->settings.peft ? FP32 : t->weight_bytes;
    t->m->label = (struct tdm_label){.name = "vera", .layer = TDM_NO_LAYER};
    t->vera[0] = tdm_value_new(t->m, t->settings.lora_rank, inputs, bytes);
    t->vera[1] = tdm_value_new(t->m, outputs, t->settings.lora_rank, bytes);
}

/* A trained copy of a norm's weight or bias, which the model computes with. */
static void copy_norm(struct tdm_torch_model *t, struct tdm_eager_value **norm)
{
    if (*norm == NULL)
        return;
    struct tdm_eager_value *copy = tdm_torch_add_parameter(
        t, (*norm)->module, (*norm)->rows, (*norm)->columns, (*norm)->element_bytes, true);
    *norm = copy;
}

/* peft's LN tuning: the norms of hidden states, in the dtype of the weights. */
static void add_norm_copies(struct tdm_torch_model *t)
{
    for (uint32_t i = 0; i < t->config->layers; i++) {
        struct torch_layer *layer = &t->layers[i];
        struct tdm_eager_value **const norms[] = {
            &layer->attention_norm, &layer->attention_norm_bias, &layer->mlp_norm,
            &layer->mlp_norm_bias,  &layer->post_attention_norm, &layer->post_mlp_norm};
        t->m->label = (struct tdm_label){.name = "ln_tuning", .layer = i};
        for (unsigned n = 0; n < sizeof(norms) / sizeof(norms[0]); n++)
            copy_norm(t, norms[n]);
    }
    t->m->label = (struct tdm_label){.name = "ln_tuning", .layer = TDM_NO_LAYER};
    copy_norm(t, &t->final_norm);
    copy_norm(t, &t->final_norm_bias);
}

/* Prompts and their encoders are in fp32 (peft/peft_model.py _setup_prompt_encoder). */
static void add_prompt(struct tdm_torch_model *t)
{
    struct tdm_adapter_matrix shapes[TDM_PROMPT_WEIGHTS];
    tdm_adapter_prompt(t->config, &t->settings, shapes);
    t->m->label = (struct tdm_label){.name = "prompt_encoder", .layer = TDM_NO_LAYER};
    for (unsigned i = 0; i < TDM_PROMPT_WEIGHTS; i++)
        if (shapes[i].rows > 0)
            t->prompt[i] = tdm_torch_add_parameter(t, TDM_MODULE_EMBEDDING, shapes[i].rows,
                                                   shapes[i].columns, FP32, true);
}

/* Adapters of a layer's projections, or of those of one of its experts. `most`: the most inputs and
 * outputs so far. */
static void adapt(struct tdm_torch_model *t, uint32_t number, struct torch_layer *layer,
                  uint64_t most[2])
{
    const struct tdm_torch_settings *s = &t->settings;
    const bool litgpt = tdm_torch_is_litgpt(s);
    const uint32_t targets = litgpt ? tdm_litgpt_targets(s->lora_targets) : tdm_adapter_targets(s);
    for (unsigned p = 0; p < TDM_PROJECTIONS; p++) {
        const struct tdm_eager_value *weight = layer->weight[p];
        struct tdm_adapter_shape shape;
        if ((targets >> p & 1) == 0 || weight == NULL)
            continue;
        most[0] = weight->columns > most[0] ? weight->columns : most[0];
        most[1] = weight->rows > most[1] ? weight->rows : most[1];
        if (litgpt && p == TDM_PROJECTION_QKV)
            tdm_litgpt_joint_shape(t->config, s, weight->columns, &shape);
        else
            tdm_adapter_shape(s, (enum tdm_projection)p, weight->rows, weight->columns, &shape);
        layer->down[p] = add_matrix(t, number, TDM_MODULE_DOWN + p, shape.down);
        layer->up[p] = add_matrix(t, number, TDM_MODULE_UP + p, shape.up);
        layer->second_down[p] = add_matrix(t, number, TDM_MODULE_ADAPTED + p, shape.second_down);
        layer->second_up[p] = add_matrix(t, number, TDM_MODULE_ADAPTED + p, shape.second_up);
        layer->magnitude[p] = add_matrix(t, number, TDM_MODULE_ADAPTED + p, shape.magnitude);
        if (layer->down[p] != NULL)
            add_buffers(t, layer, p);
    }
}

void tdm_torch_add_adapters(struct tdm_torch_model *t)
{
    const struct tdm_torch_settings *s = &t->settings;
    uint64_t most[2] = {0, 0};
    if (s->adapter == TDM_ADAPTER_NORMS)
        add_norm_copies(t);
    if (tdm_adapter_is_prompt(s))
        add_prompt(t);
    for (uint32_t i = 0; i < t->config->layers; i++) {
        struct torch_layer *layer = &t->layers[i];
        adapt(t, i, layer, most);
        for (uint32_t e = 0; layer->experts != NULL && e < t->config->experts.count; e++)
            adapt(t, i, &layer->experts[e], most);
        if (layer->shared != NULL && tdm_adapter_takes_shared(s))
            adapt(t, i, layer->shared, most);
    }
    if (s->adapter == TDM_ADAPTER_VERA)
        add_vera(t, most[0], most[1]);
}
