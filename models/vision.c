/* SPDX-License-Identifier: Apache-2.0 */
/* The vision tower of Qwen2.5-VL: its sizes, from "vision_config", and its tensors. Source:
 * transformers 5.17, models/qwen2_5_vl/modeling_qwen2_5_vl.py
 * (Qwen2_5_VisionTransformerPretrainedModel), configuration_qwen2_5_vl.py. */
#include "models/parts.h"

void tdm_vision_read(struct tdm_json_reader *reader, struct tdm_vision *vision)
{
    if (!tdm_json_has(reader, "vision_config"))
        return;
    struct tdm_json_reader inner = *reader;
    inner.prefix = "vision_config";
    inner.object = tdm_json_object(reader, "vision_config");
    inner.status = tdm_json_status(reader);
    if (inner.status != TDM_OK)
        return;
    const uint64_t most = TDM_DIMENSION_LIMIT;
    const char *channels = tdm_json_has(&inner, "in_chans") ? "in_chans" : "in_channels";
    uint64_t patch = tdm_json_count_or(&inner, "patch_size", 1, 1024, 14);
    uint64_t merge = tdm_json_count_or(&inner, "spatial_merge_size", 1, 64, 2);
    vision->blocks = (uint32_t)tdm_json_count_or(&inner, "depth", 1, TDM_LAYER_LIMIT, 32);
    vision->hidden = (uint32_t)tdm_json_count_or(&inner, "hidden_size", 1, most, 3584);
    vision->intermediate = (uint32_t)tdm_json_count_or(&inner, "intermediate_size", 1, most, 3420);
    vision->out = (uint32_t)tdm_json_count_or(&inner, "out_hidden_size", 1, most, 3584);
    vision->merged = merge * merge;
    vision->patch_values = tdm_json_count_or(&inner, channels, 1, 1024, 3) *
                           tdm_json_count_or(&inner, "temporal_patch_size", 1, 1024, 2) * patch *
                           patch;
    reader->status = tdm_json_status(&inner);
}

bool tdm_vision_in_block(const struct tdm_vision *v, uint32_t number)
{
    return number > 0 && number <= v->blocks * TDM_VISION_BLOCK_TENSORS;
}

/* Norms and biases have one row. */
bool tdm_vision_tensor(const struct tdm_vision *v, uint32_t number, uint64_t *rows,
                       uint64_t *columns)
{
    const uint64_t h = v->hidden, wide = v->intermediate, joined = h * v->merged;
    const uint64_t block[TDM_VISION_BLOCK_TENSORS][2] = {
        {1, h},    {1, h},    {3 * h, h}, {1, 3 * h}, {h, h},    {1, h},
        {wide, h}, {1, wide}, {wide, h},  {1, wide},  {h, wide}, {1, h}};
    const uint64_t ends[][2] = {{h, v->patch_values}, {1, h},           {joined, joined},
                                {1, joined},          {v->out, joined}, {1, v->out}};
    const uint32_t in_blocks = v->blocks * TDM_VISION_BLOCK_TENSORS;
    if (v->blocks == 0 || number >= in_blocks + sizeof(ends) / sizeof(ends[0]))
        return false;
    const uint64_t *size = number == 0           ? ends[0]
                           : number <= in_blocks ? block[(number - 1) % TDM_VISION_BLOCK_TENSORS]
                                                 : ends[number - in_blocks];
    *rows = size[0];
    *columns = size[1];
    return true;
}
