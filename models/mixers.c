/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what configs say of layers of Mamba-2 and of short convolutions. Sources:
 * transformers 5.17, models/granitemoehybrid, falcon_h1, nemotron_h and lfm2, configuration_*.py
 * and modeling_*.py. */
#include "models/parts.h"

#include <inttypes.h>
#include <string.h>

static uint32_t count_or(struct tdm_json_reader *reader, const char *key, uint32_t usual)
{
    return (uint32_t)tdm_json_count_or(reader, key, 1, TDM_DIMENSION_LIMIT, usual);
}

/* ---- Mamba-2 ---- */

static void refuse_bias(struct tdm_json_reader *reader, const char *key)
{
    if (tdm_json_bool_or(reader, key, false))
        tdm_json_fail(reader, key, "is true, which is not known");
}

/* Granite and Falcon-H1. The width is that of mamba_d_ssm, or mamba_expand times the hidden size.
 */
static void read_common(struct tdm_json_reader *reader, struct tdm_model *model, bool falcon)
{
    struct tdm_mamba *s = &model->mamba;
    const bool null_width = json_is_null(json_object_get(reader->object, "mamba_d_ssm"));
    const uint64_t wide = (uint64_t)count_or(reader, "mamba_expand", 2) * model->hidden;
    uint32_t inner = wide <= TDM_DIMENSION_LIMIT ? (uint32_t)wide : 0;
    if (inner == 0)
        tdm_json_fail(reader, "mamba_expand", "times hidden_size is more than %" PRIu64,
                      (uint64_t)TDM_DIMENSION_LIMIT);
    if (falcon && !null_width)
        inner = count_or(reader, "mamba_d_ssm", 1024);
    s->heads = count_or(reader, "mamba_n_heads", 128);
    s->head_dim = inner / s->heads;
    if (json_is_integer(json_object_get(reader->object, "mamba_d_head"))) /* else "auto" */
        s->head_dim = count_or(reader, "mamba_d_head", 1);
    s->groups = count_or(reader, "mamba_n_groups", 1);
    s->state = count_or(reader, "mamba_d_state", 256);
    s->kernel = count_or(reader, "mamba_d_conv", 4);
    s->chunk = count_or(reader, "mamba_chunk_size", 256);
    s->kernel_bias = tdm_json_bool_or(reader, "mamba_conv_bias", true);
    s->norm = !falcon || tdm_json_bool_or(reader, "mamba_rms_norm", false);
    refuse_bias(reader, "mamba_proj_bias");
    if (falcon)
        refuse_bias(reader, "projectors_bias");
    if (tdm_json_status(reader) == TDM_OK && (uint64_t)s->heads * s->head_dim != inner)
        tdm_json_fail(reader, "mamba_n_heads",
                      "is %" PRIu32 ", which with heads of %" PRIu32
                      " does not make the width of %" PRIu32,
                      s->heads, s->head_dim, inner);
}

static void read_nemotron(struct tdm_json_reader *reader, struct tdm_model *model)
{
    struct tdm_mamba *s = &model->mamba;
    s->heads = count_or(reader, "mamba_num_heads", 128);
    s->head_dim = count_or(reader, "mamba_head_dim", 64);
    s->groups = count_or(reader, "n_groups", 8);
    s->state = count_or(reader, "ssm_state_size", 128);
    s->kernel = count_or(reader, "conv_kernel", 4);
    s->chunk = count_or(reader, "chunk_size", 128);
    s->kernel_bias = tdm_json_bool_or(reader, "use_conv_bias", true);
    s->norm = true;
    refuse_bias(reader, "use_bias");
    refuse_bias(reader, "mamba_proj_bias");
}

void tdm_mamba_read(struct tdm_json_reader *reader, enum tdm_mixers mixers, struct tdm_model *model)
{
    if (mixers == TDM_MIXERS_NEMOTRON)
        read_nemotron(reader, model);
    else
        read_common(reader, model, mixers == TDM_MIXERS_FALCON);
    const struct tdm_mamba *s = &model->mamba;
    if (tdm_json_status(reader) == TDM_OK && s->heads % s->groups != 0)
        tdm_json_fail(reader, "n_groups", "is %" PRIu32 ", which does not divide %" PRIu32 " heads",
                      s->groups, s->heads);
}

/* What a layer is, by either name; *known is false if it is none of them. */
static struct tdm_layer_kind kind_of(const char *type, bool *known)
{
    static const struct {
        const char *name;
        struct tdm_layer_kind kind;
    } types[] = {{"mamba", {.mamba = true, .no_attention = true}},
                 {"linear_attention", {.mamba = true, .no_attention = true}},
                 {"M", {.mamba = true, .no_attention = true}},
                 {"attention", {0}},
                 {"full_attention", {0}},
                 {"*", {0}},
                 {"conv", {.short_conv = true, .no_attention = true}},
                 {"mlp", {.no_attention = true}},
                 {"-", {.no_attention = true}}};
    *known = true;
    for (size_t i = 0; type != NULL && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].name, type) == 0)
            return types[i].kind;
    *known = false;
    return (struct tdm_layer_kind){0};
}

static void set_kind(struct tdm_layer_kind *layer, struct tdm_layer_kind kind)
{
    layer->mamba = kind.mamba;
    layer->short_conv = kind.short_conv;
    layer->no_attention = kind.no_attention;
    layer->qk_norm &= !kind.no_attention;
}

/* The layers of a pattern of letters, or of a list of names, either of which is `key`. */
static void read_types(struct tdm_json_reader *reader, const char *key, struct tdm_model *model)
{
    const json_t *value = json_object_get(reader->object, key);
    const char *letters = json_string_value(value);
    size_t count = letters != NULL ? strlen(letters) : json_array_size(value);
    if (count != model->layers) {
        tdm_json_fail(reader, key, "has %zu entries for %" PRIu32 " layers; give one a layer",
                      count, model->layers);
        return;
    }
    for (uint32_t i = 0; i < model->layers; i++) {
        const char letter[] = {letters != NULL ? letters[i] : '\0', '\0'};
        const char *type = letters != NULL ? letter : json_string_value(json_array_get(value, i));
        bool known;
        struct tdm_layer_kind kind = kind_of(type, &known);
        if (!known) {
            tdm_json_fail(reader, key, "has \"%.24s\" for layer %" PRIu32 ", which is not known",
                          type == NULL ? "" : type, i);
            return;
        }
        set_kind(&model->layer_kinds[i], kind);
    }
}

uint32_t tdm_mixers_count(const struct tdm_json_reader *reader)
{
    const json_t *letters = json_object_get(reader->object, "hybrid_override_pattern"),
                 *names = json_object_get(reader->object, "layers_block_type");
    return (uint32_t)(json_is_string(letters) ? json_string_length(letters)
                                              : json_array_size(names));
}

void tdm_mixers_read_layers(struct tdm_json_reader *reader, enum tdm_mixers mixers,
                            struct tdm_model *model)
{
    static const char *const keys[] = {"hybrid_override_pattern", "layers_block_type",
                                       "layer_types"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && mixers != TDM_MIXERS_FALCON; i++)
        if (json_is_string(json_object_get(reader->object, keys[i])) ||
            json_is_array(json_object_get(reader->object, keys[i]))) {
            read_types(reader, keys[i], model);
            break;
        } else if (i + 1 == sizeof(keys) / sizeof(keys[0]) && mixers != TDM_MIXERS_SHORT) {
            tdm_json_fail(reader, keys[mixers == TDM_MIXERS_NEMOTRON ? 0 : i],
                          "is missing; give the kind of every layer");
        }
    const json_t *full = json_object_get(reader->object, "full_attn_idxs");
    for (uint32_t i = 0; i < model->layers; i++) {
        struct tdm_layer_kind *layer = &model->layer_kinds[i];
        if (mixers == TDM_MIXERS_FALCON)
            layer->mamba = true;
        if (mixers == TDM_MIXERS_NEMOTRON)
            layer->no_mlp = layer->mamba || !layer->no_attention;
        layer->no_rope |= (model->parts & TDM_PART_NO_ANGLES) != 0;
    }
    bool any = false;
    for (uint32_t i = 0; i < model->layers; i++)
        any |= model->layer_kinds[i].mamba;
    if (!any) /* Granite 4.0 Micro */
        model->mamba = (struct tdm_mamba){0};
    if (mixers != TDM_MIXERS_SHORT || tdm_json_has(reader, "layer_types") || full == NULL)
        return;
    for (uint32_t i = 0; i < model->layers; i++)
        set_kind(&model->layer_kinds[i],
                 (struct tdm_layer_kind){.short_conv = true, .no_attention = true});
    for (size_t i = 0; i < json_array_size(full); i++) {
        json_int_t number = json_integer_value(json_array_get(full, i));
        if (number >= 0 && number < (json_int_t)model->layers) {
            set_kind(&model->layer_kinds[number], (struct tdm_layer_kind){0});
            model->layer_kinds[number].qk_norm = true;
        }
    }
}

/* ---- LFM2 ---- */

void tdm_short_conv_read(struct tdm_json_reader *reader, struct tdm_model *model)
{
    model->short_kernel = count_or(reader, "conv_L_cache", 3);
    refuse_bias(reader, "conv_bias");
    model->tied = tdm_json_bool_or(reader, "tie_embedding", model->tied);
    model->intermediate = count_or(reader, "block_ff_dim", model->intermediate);
    const bool dense = strcmp(model->architecture, "Lfm2ForCausalLM") == 0;
    if (!tdm_json_bool_or(reader, "block_auto_adjust_ff_dim", dense))
        return;
    double factor = tdm_json_number_or(reader, "block_ffn_dim_multiplier", 0, 1e3, 1);
    uint32_t multiple = count_or(reader, "block_multiple_of", 256);
    uint64_t width = (uint64_t)(factor * (double)(2 * (uint64_t)model->intermediate / 3));
    width = (width + multiple - 1) / multiple * multiple;
    if (tdm_json_status(reader) == TDM_OK && (width == 0 || width > TDM_DIMENSION_LIMIT))
        tdm_json_fail(reader, "block_ffn_dim_multiplier", "makes the MLP %s",
                      width == 0 ? "empty" : "too wide");
    model->intermediate = width <= TDM_DIMENSION_LIMIT ? (uint32_t)width : 0;
}
