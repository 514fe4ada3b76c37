/* SPDX-License-Identifier: Apache-2.0 */
/* The quantization_config of a config.json: bases of fewer bits, which adapters are trained on, and
 * weights of 8 bits that are made bf16 to be trained. Fields: transformers
 * utils/quantization_config.py (BitsAndBytesConfig, GPTQConfig, AwqConfig). */
#include "models/parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GROUP_LIMIT 4096u
#define USUAL_GROUP 128u

/* Weights with one scale: -1 is a whole column, 0 nothing. */
static uint32_t read_group(struct tdm_json_reader *reader, double unsaid)
{
    const double group = tdm_json_number_or(reader, "group_size", -1, GROUP_LIMIT, unsaid);
    if (group == 0 || group != floor(group))
        tdm_json_fail(reader, "group_size",
                      "is %g; expected -1, for a column, or a whole number from 1", group);
    return group > 0 ? (uint32_t)group : 0;
}

/* AWQ has 4 bits. Where a config has no group_size it is transformers' 128; a null is no size. */
static void read_groups(struct tdm_json_reader *reader, struct tdm_base_weights *base)
{
    const uint32_t bits = (uint32_t)tdm_json_count_or(reader, "bits", 2, 8, 4);
    if (bits != 4 && base->kind == TDM_BASE_AWQ)
        tdm_json_fail(reader, "bits", "is %u; AWQ of 4 bits alone is modelled", (unsigned)bits);
    else if (bits > 4 && bits < 8)
        tdm_json_fail(reader, "bits", "is %u; GPTQ has 2, 3, 4 or 8", (unsigned)bits);
    base->bits = bits == 4 ? 0 : bits;
    if (json_is_null(json_object_get(reader->object, "group_size")))
        tdm_json_fail(reader, "group_size",
                      "is null; expected -1, for a column, or a whole number from 1");
    base->group = read_group(reader, USUAL_GROUP);
}

/* Do expressions of modules that are not quantized name this one? */
static bool leaves(const json_t *ignored, const char *module)
{
    for (size_t i = 0; i < json_array_size(ignored); i++) {
        const char *name = json_string_value(json_array_get(ignored, i));
        if (name != NULL && strstr(name, module) != NULL)
            return true;
    }
    return false;
}

/* All projections but those of experts that tokens choose, as in Kimi K2 Thinking. */
static bool leaves_all_but_experts(const json_t *ignored)
{
    return leaves(ignored, "attn") && leaves(ignored, "shared_experts") &&
           leaves(ignored, "mlp\\.(gate|up");
}

/* compressed-tensors: the weights of its first group of modules, of vLLM's compressed_tensors.py.
 */
static void read_compressed(struct tdm_json_reader *reader, bool experts,
                            struct tdm_base_weights *base)
{
    const json_t *groups = tdm_json_object(reader, "config_groups");
    if (tdm_json_status(reader) != TDM_OK)
        return;
    const json_t *group = json_object_iter_value(json_object_iter((json_t *)groups));
    struct tdm_json_reader inner = *reader;
    inner.object = json_object_get(group, "weights");
    if (!json_is_object(inner.object)) {
        tdm_json_fail(reader, "config_groups", "has no group with weights");
        return;
    }
    inner.prefix = "quantization_config.config_groups.weights";
    const uint32_t bits = (uint32_t)tdm_json_count_or(&inner, "num_bits", 1, 16, 8);
    const char *type = tdm_json_string_or(&inner, "type", "int");
    if (strcmp(tdm_json_string_or(&inner, "strategy", ""), "group") == 0 &&
        !tdm_json_has(&inner, "group_size"))
        tdm_json_fail(&inner, "group_size", "is missing or null, and the strategy is \"group\"");
    base->group = read_group(&inner, -1);
    reader->status = tdm_json_status(&inner);
    if (reader->status != TDM_OK)
        return;
    const bool floats = strcmp(type, "float") == 0;
    const json_t *inputs = json_object_get(group, "input_activations");
    const bool quantizes_inputs = inputs != NULL && !json_is_null(inputs);
    const json_t *ignored = json_object_get(reader->object, "ignore");
    if (experts && leaves_all_but_experts(ignored) && !floats && bits == 4) {
        base->stored = TDM_STORED_INT4_EXPERTS;
        return;
    }
    base->served_alone = !floats;
    if (leaves(ignored, "attn"))
        tdm_json_fail(reader, "ignore",
                      "names attention; modelled are all projections that are quantized alike, "
                      "and experts alone in int4");
    else if (floats && bits == 8)
        base->stored = TDM_STORED_FP8;
    else if (!floats && bits == 8 && quantizes_inputs)
        base->kind = TDM_BASE_INT8;
    else if (!floats && (bits == 4 || bits == 8))
        *base = (struct tdm_base_weights){.kind = TDM_BASE_GPTQ,
                                          .served_alone = true,
                                          .bits = bits == 4 ? 0 : bits,
                                          .group = base->group};
    else
        tdm_json_fail(reader, "config_groups",
                      "has weights of %u bits (%s); integers of 4 and 8 "
                      "and floats of 8 are modelled",
                      (unsigned)bits, floats ? "float" : "int");
}

static void read_base(struct tdm_json_reader *reader, bool experts, struct tdm_base_weights *base)
{
    const char *method = tdm_json_string_or(reader, "quant_method", "bitsandbytes");
    if (tdm_json_status(reader) != TDM_OK)
        return;
    if (strcmp(method, "bitsandbytes") == 0) {
        bool four = tdm_json_bool_or(reader, "load_in_4bit", false);
        if (four && tdm_json_bool_or(reader, "bnb_4bit_use_double_quant", false))
            base->kind = TDM_BASE_NF4_DOUBLE;
        else if (four)
            base->kind = TDM_BASE_NF4;
        else if (tdm_json_bool_or(reader, "load_in_8bit", false))
            base->kind = TDM_BASE_INT8;
        else
            tdm_json_fail(reader, "quant_method",
                          "is missing; expected bitsandbytes, gptq, awq, fp8, mxfp4 or "
                          "compressed-tensors");
    } else if (strcmp(method, "gptq") == 0 || strcmp(method, "awq") == 0) {
        base->kind = method[0] == 'g' ? TDM_BASE_GPTQ : TDM_BASE_AWQ;
        read_groups(reader, base);
    } else if (strcmp(method, "fp8") == 0) {
        base->stored = TDM_STORED_FP8;
    } else if (strcmp(method, "compressed-tensors") == 0) {
        read_compressed(reader, experts, base);
    } else if (strcmp(method, "mxfp4") == 0) {
        base->stored = TDM_STORED_MXFP4;
    } else {
        tdm_json_fail(reader, "quant_method",
                      "is \"%.40s\", which is not modelled; known are bitsandbytes, gptq, awq, "
                      "compressed-tensors, and fp8 and mxfp4, whose weights are made bf16 to train "
                      "them",
                      method);
    }
}

void tdm_base_weights_read(struct tdm_json_reader *reader, struct tdm_model *model)
{
    const char *key = "quantization_config";
    if (!tdm_json_has(reader, key))
        return;
    struct tdm_json_reader inner = *reader;
    inner.prefix = key;
    inner.object = tdm_json_object(reader, key);
    inner.status = tdm_json_status(reader);
    if (inner.status == TDM_OK)
        read_base(&inner, model->experts.count > 0, &model->base);
    reader->status = tdm_json_status(&inner);
    model->sized_only |= model->base.kind != TDM_BASE_WHOLE;
}
