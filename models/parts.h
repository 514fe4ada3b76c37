/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of tdm_model_from_config, each in its own file. Internal to models/. */
#ifndef TDM_MODELS_PARTS_H
#define TDM_MODELS_PARTS_H

#include "base/json.h"
#include "models/model.h"

/* As TDM_DIMENSION_LIMIT: products of two dimensions and a few layers stay far below 64 bits. */
#define TDM_LAYER_LIMIT (UINT64_C(1) << 10)
#define TDM_PARAMETER_LIMIT (UINT64_C(1) << 48)

/* Activations (models/config.c): the name in a config.json, what an MLP with it is called, and the
 * word of it in a digest. */
struct tdm_activation_type {
    const char *name, *mlp, *digest;
};
extern const struct tdm_activation_type tdm_activation_types[TDM_ACTIVATIONS];

/* How mixtures of experts differ. */
enum tdm_family {
    TDM_FAMILY_DENSE,
    TDM_FAMILY_MIXTRAL,
    TDM_FAMILY_OLMOE,
    TDM_FAMILY_QWEN3_MOE,
    TDM_FAMILY_QWEN2_MOE,
    TDM_FAMILY_QWEN3_NEXT,
    TDM_FAMILY_QWEN3_5, /* its layers without experts */
    TDM_FAMILY_QWEN3_5_MOE,
    TDM_FAMILY_DEEPSEEK,
    TDM_FAMILY_GPT_OSS,
    TDM_FAMILY_LLAMA4,
    TDM_FAMILY_GRANITE_HYBRID,
    TDM_FAMILY_GRANITE_MOE,
    TDM_FAMILY_ERNIE,
    TDM_FAMILY_HUNYUAN,
    TDM_FAMILY_MINIMAX,
    TDM_FAMILY_LFM2,
};

/* Fill model->experts, and after layer_kinds exist which of them have experts; model->latent,
 * head_dim and rotary_dim (models/experts.c). Failures are the reader's. */
void tdm_experts_read(struct tdm_json_reader *reader, enum tdm_family family,
                      struct tdm_model *model);
void tdm_experts_read_layers(struct tdm_json_reader *reader, enum tdm_family family,
                             struct tdm_model *model);
/* Gated DeltaNets: model->delta, and after layer_kinds exist which layers have one. */
void tdm_delta_read(struct tdm_json_reader *reader, struct tdm_model *model);
/* What layers have in place of attention, or beside it, and how configs say it. */
enum tdm_mixers {
    TDM_MIXERS_ATTENTION,
    TDM_MIXERS_GRANITE,  /* Mamba-2 or attention */
    TDM_MIXERS_FALCON,   /* both in every layer */
    TDM_MIXERS_NEMOTRON, /* Mamba-2, attention or an MLP */
    TDM_MIXERS_SHORT,    /* a short convolution or attention */
};
/* model->mamba; short_kernel and the MLP's width; after layer_kinds exist what each layer is
 * (models/mixers.c). tdm_mixers_count: how many layers Nemotron-H's config lists. */
void tdm_mamba_read(struct tdm_json_reader *reader, enum tdm_mixers mixers,
                    struct tdm_model *model);
void tdm_short_conv_read(struct tdm_json_reader *reader, struct tdm_model *model);
void tdm_mixers_read_layers(struct tdm_json_reader *reader, enum tdm_mixers mixers,
                            struct tdm_model *model);
uint32_t tdm_mixers_count(const struct tdm_json_reader *reader);
/* Reads "vision_config", if it is there. */
void tdm_vision_read(struct tdm_json_reader *reader, struct tdm_vision *vision);
void tdm_delta_read_layers(struct tdm_json_reader *reader, struct tdm_model *model);
void tdm_latent_read(struct tdm_json_reader *reader, struct tdm_model *model);

/* Writes the name of the shipped model that another name means, such as Qwen/Qwen2.5-7B-Instruct.
 * If the name says how the weights are quantized ("-bnb-4bit"), that is written to *weights, which
 * else stays as it is. TDM_INPUT: no model is meant, or it has quantized weights of which the name
 * does not say enough (models/names.c). */
enum tdm_status tdm_model_find_meant(const char *name, char *out, size_t out_bytes,
                                     struct tdm_base_weights *weights, struct tdm_error *err);

/* Fills architecture, dimensions, options, rope and layer_kinds (models/config.c). */
enum tdm_status tdm_config_read(struct tdm_json_reader *reader, struct tdm_model *model);

/* Fills model->rope. Needs head_dim and max_context (models/rope.c). */
enum tdm_status tdm_rope_read(struct tdm_json_reader *reader, struct tdm_model *model);

/* Fills model->base from quantization_config (models/quantization.c). Failures are the reader's. */
void tdm_base_weights_read(struct tdm_json_reader *reader, struct tdm_model *model);

/* Fills tensors, units and parameters from the dimensions (models/tensors.c). */
enum tdm_status tdm_model_lay_out(struct tdm_json_reader *reader, struct tdm_model *model);

/* The name of a model whose page on the Hub is given, in `out`; any other text as it is. */
const char *tdm_model_of_page(const char *text, char *out, size_t out_bytes);

#endif
