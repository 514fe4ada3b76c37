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
           settings->context.divider == NULL && tdm_tensor_ranks(settings) == 1;
}

/* A frozen weight of the tower. Shards of the tower's blocks are gathered only while it runs, and
 * so are all of ZeRO-3. What is beside blocks is in fully_shard's unit of the whole. */
static void add_weight(struct tdm_torch_model *t, bool in_block, uint64_t rows, uint64_t columns)
{
    const struct tdm_torch_settings *s = &t->settings;
    const bool fsdp = s->wrapper == &tdm_fsdp_wrapper;
    const uint64_t elements = tdm_size_mul(rows, columns);
    const uint16_t bytes = fsdp && s->fp32_weights ? FP32 : t->weight_bytes;
    const bool on_host = fsdp ? s->fsdp.offload : s->deepspeed.offload_param != TDM_OFFLOAD_NONE;
    if (!s->wrapper->shards_quantized) { /* every GPU has all of it */
        tdm_value_leaf(t->m, rows, columns, bytes, false);
    } else if (fsdp && (!in_block || s->fsdp.one_unit)) {
        tdm_torch_add_parameter(t, TDM_MODULE_WHOLE, rows, columns, t->weight_bytes, false);
    } else {
        const uint64_t share = tdm_size_ceil_div(elements, tdm_fsdp_shards(s));
        if (on_host)
            tdm_host_take_pinned(t->m, tdm_size_mul(share, bytes));
        else
            tdm_value_leaf(t->m, 1, share, bytes, false);
    }
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
        add_weight(t, tdm_vision_in_block(vision, i), rows, columns);
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
