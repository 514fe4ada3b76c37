/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frozen vision tower beside the language model: its weights, the pixels of a batch, the rows
 * that it makes for image tokens, and what it keeps. What it makes while it runs, before the first
 * layer and after the last backward, is not counted: no peak of a step is there. Sources:
 * transformers 5.17, models/qwen2_5_vl/modeling_qwen2_5_vl.py (Qwen2_5_VLModel.forward),
 * modeling_utils.py (gradient_checkpointing_enable, enable_input_require_grads).
 */
#include "methods/torch/parts.h"

#include "base/size.h"
#include "methods/eager/dtypes.h"

bool tdm_torch_counts_vision(const struct tdm_torch_settings *settings,
                             const struct tdm_model *model)
{
    return model->vision.blocks > 0 && settings->quantization == TDM_QUANTIZATION_NONE &&
           settings->wrapper->parameter == NULL && settings->context.divider == NULL &&
           tdm_tensor_ranks(settings) == 1;
}

void tdm_torch_add_vision(struct tdm_torch_model *t)
{
    const struct tdm_vision *vision = &t->config->vision;
    uint64_t rows, columns;
    if (!tdm_torch_counts_vision(&t->settings, t->config))
        return;
    t->m->category = TDM_METHOD_WEIGHTS;
    t->m->label = (struct tdm_label){.name = "model.visual", .layer = TDM_NO_LAYER};
    for (uint32_t i = 0; tdm_vision_tensor(vision, i, &rows, &columns); i++)
        tdm_value_leaf(t->m, rows, columns, t->weight_bytes, false);
    t->m->category = TDM_METHOD_WORKSPACE;
}

static uint64_t image_rows(const struct tdm_torch_model *t)
{
    return tdm_torch_counts_vision(&t->settings, t->config)
               ? t->settings.batch * t->settings.image_tokens
               : 0;
}

/* The processor makes pixels in fp32. */
void tdm_torch_add_pixels(struct tdm_torch_model *t)
{
    const struct tdm_vision *vision = &t->config->vision;
    t->m->label = (struct tdm_label){.name = "pixel_values", .layer = TDM_NO_LAYER};
    if (image_rows(t) > 0)
        tdm_value_new(t->m, tdm_size_mul(image_rows(t), vision->merged), vision->patch_values,
                      FP32);
}

struct tdm_eager_value *tdm_torch_image_rows(struct tdm_torch_model *t)
{
    tdm_label(t->m, "image_embeds");
    return image_rows(t) > 0
               ? tdm_value_new(t->m, image_rows(t), t->config->vision.out, t->weight_bytes)
               : NULL;
}

/* Of a row: the norm in fp32 and bf16, and what two products and GELU save. */
#define MERGER_COPIES 5u

/* With checkpoints the embeddings of the tower too are made to require gradients. So the inputs of
 * its blocks stay, and what the merger saves, which is no checkpoint. */
void tdm_torch_keep_vision(struct tdm_torch_model *t)
{
    const struct tdm_vision *vision = &t->config->vision;
    if (image_rows(t) == 0 || t->settings.checkpointing == TDM_CHECKPOINTING_OFF)
        return;
    tdm_label(t->m, "model.visual");
    enum tdm_method_category before = t->m->category;
    t->m->category = TDM_METHOD_RESIDUALS;
    t->vision_kept =
        tdm_value_new(t->m, tdm_size_mul(image_rows(t), vision->merged),
                      vision->hidden * (vision->blocks + MERGER_COPIES), t->weight_bytes);
    t->m->category = before;
}
