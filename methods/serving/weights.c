/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a rank. Projections are divided among tensor-parallel ranks, as are embedding and
 * head; norms, routers and the tables of RoPE are on each. Only projections are quantized
 * (vllm/model_executor/layers/quantization/). A table of RoPE holds cosine and sine of every
 * position up to max_position_embeddings (layers/rotary_embedding.py), whatever max_model_len is.
 */
#include "methods/serving/parts.h"

#include "base/size.h"

#define BF16_BYTES 2u
#define VOCABULARY_PADDING 64u /* layers/vocab_parallel_embedding.py */

struct tdm_serving_layers tdm_serving_stage(const struct tdm_model *model,
                                            const struct tdm_serving *serving, uint32_t stage)
{
    /* vllm/distributed/utils.py, get_pp_indices: what does not divide goes to the stages before the
     * last one, from behind. */
    uint32_t stages = (uint32_t)serving->pipeline_ranks, each = model->layers / stages;
    uint32_t rest = model->layers % stages;
    struct tdm_serving_layers layers = {0, 0};
    for (uint32_t s = 0; s <= stage; s++) {
        bool longer = s + 1 < stages && s + 1 + rest >= stages;
        layers.first = layers.end;
        layers.end += each + longer;
    }
    return layers;
}

uint64_t tdm_serving_kv_heads(const struct tdm_model *model, const struct tdm_serving *serving)
{
    return tdm_most(1, model->kv_heads / serving->tensor_ranks);
}

static bool is_projection(enum tdm_role role)
{
    switch (role) {
    case TDM_ROLE_Q:
    case TDM_ROLE_K:
    case TDM_ROLE_V:
    case TDM_ROLE_O:
    case TDM_ROLE_GATE:
    case TDM_ROLE_UP:
    case TDM_ROLE_DOWN:
    case TDM_ROLE_EXPERTS_GATE_UP:
    case TDM_ROLE_EXPERTS_DOWN:
    case TDM_ROLE_QKV:
    case TDM_ROLE_GATE_UP:
    case TDM_ROLE_Q_LATENT:
    case TDM_ROLE_Q_FROM_LATENT:
    case TDM_ROLE_KV_LATENT:
    case TDM_ROLE_KV_FROM_LATENT:
    case TDM_ROLE_SHARED_GATE:
    case TDM_ROLE_SHARED_UP:
    case TDM_ROLE_SHARED_DOWN:
    case TDM_ROLE_MAMBA_IN:
    case TDM_ROLE_MAMBA_OUT:
    case TDM_ROLE_DELTA_QKVZ:
    case TDM_ROLE_DELTA_Z:
    case TDM_ROLE_DELTA_OUT:
    case TDM_ROLE_SHORT_IN:
    case TDM_ROLE_SHORT_OUT:
        return true;
    default:
        return false;
    }
}

/* Products down to latent keys and values, and queries, are on every rank (ReplicatedLinear of
 * models/deepseek_v2.py). */
static bool is_whole(enum tdm_role role)
{
    return role == TDM_ROLE_Q_LATENT || role == TDM_ROLE_KV_LATENT;
}

/* What belongs to heads of Mamba-2 and of gated DeltaNets, or to columns that are convolved. */
static bool is_of_mixer(enum tdm_role role)
{
    return (role >= TDM_ROLE_MAMBA_TIME && role <= TDM_ROLE_MAMBA_NORM) ||
           role == TDM_ROLE_DELTA_TIME || role == TDM_ROLE_DELTA_DECAY ||
           role == TDM_ROLE_DELTA_KERNEL || role == TDM_ROLE_DELTA_BA || role == TDM_ROLE_DELTA_A ||
           role == TDM_ROLE_SHORT_KERNEL;
}

static bool is_key_or_value(enum tdm_role role)
{
    return role == TDM_ROLE_K || role == TDM_ROLE_V || role == TDM_ROLE_K_BIAS ||
           role == TDM_ROLE_V_BIAS;
}

/* Elements of a tensor that a rank has. */
static uint64_t elements_of(const struct tdm_model *model, const struct tdm_serving *serving,
                            const struct tdm_tensor *tensor)
{
    uint64_t ranks = serving->tensor_ranks;
    if (tensor->role == TDM_ROLE_EMBEDDING || tensor->role == TDM_ROLE_HEAD)
        return tdm_size_align(tensor->rows, VOCABULARY_PADDING) * tensor->columns / ranks;
    if (is_key_or_value(tensor->role))
        return tensor->elements / model->kv_heads * tdm_serving_kv_heads(model, serving);
    if (tensor->role == TDM_ROLE_QKV) {
        uint64_t heads = model->query_heads / ranks + 2 * tdm_serving_kv_heads(model, serving);
        return heads * model->head_dim * tensor->columns;
    }
    if ((is_projection(tensor->role) && !is_whole(tensor->role)) || is_of_mixer(tensor->role) ||
        tensor->role == TDM_ROLE_Q_BIAS)
        return tensor->elements / ranks;
    return tensor->elements;
}

/* Outputs of a projection on a rank: a scale of W8A8 each. */
static uint64_t outputs_of(const struct tdm_model *model, const struct tdm_tensor *tensor,
                           uint64_t elements)
{
    if (tensor->role == TDM_ROLE_O || tensor->role == TDM_ROLE_DOWN ||
        tensor->role == TDM_ROLE_SHARED_DOWN)
        return tensor->rows; /* the inputs are divided */
    if (tensor->role == TDM_ROLE_EXPERTS_DOWN)
        return (uint64_t)model->experts.count * model->hidden;
    return elements / tensor->columns;
}

/* Experts in 4 bits with a scale of 8 bits for each 32. Kernels want the hidden size in multiples
 * of 256, and a rank's share of the width in multiples of 64, since 0.17 of 128
 * (layers/quantization/mxfp4.py). Biases are in bf16. */
static uint64_t mxfp4_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                            const struct tdm_tensor *tensor)
{
    uint64_t width = model->experts.intermediate / serving->tensor_ranks;
    uint64_t padded = tdm_size_align(width, serving->version >= TDM_VLLM_0_17 ? 128 : 64);
    uint64_t matrices = tensor->role == TDM_ROLE_EXPERTS_GATE_UP ? 2 : 1;
    uint64_t elements =
        matrices * model->experts.count * padded * tdm_size_align(model->hidden, 256);
    return elements / 2 + elements / 32;
}

/* Scales of weights whose group is settled. */
static uint64_t groups_of(const struct tdm_model *model, const struct tdm_serving *serving,
                          const struct tdm_tensor *tensor, uint64_t elements)
{
    return serving->weight_group == TDM_AUTO ? outputs_of(model, tensor, elements)
                                             : tdm_size_ceil_div(elements, serving->weight_group);
}

bool tdm_serving_experts_alone(enum tdm_serving_weights weights)
{
    return weights == TDM_SERVED_MXFP4 || weights == TDM_SERVED_INT4_EXPERTS;
}

static uint64_t stored_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                             const struct tdm_tensor *tensor)
{
    uint64_t elements = elements_of(model, serving, tensor);
    if (!is_projection(tensor->role))
        return elements * BF16_BYTES;
    if (tdm_serving_experts_alone(serving->weights) && tensor->role != TDM_ROLE_EXPERTS_GATE_UP &&
        tensor->role != TDM_ROLE_EXPERTS_DOWN)
        return elements * BF16_BYTES;
    switch (serving->weights) {
    case TDM_SERVED_MXFP4:
        return mxfp4_bytes(model, serving, tensor);
    case TDM_SERVED_INT4_EXPERTS:
        return elements / 2 + groups_of(model, serving, tensor, elements) * BF16_BYTES;
    case TDM_SERVED_BF16:
    case TDM_SERVED_AS_STORED: /* which is settled */
        return elements * BF16_BYTES;
    case TDM_SERVED_FP8:
        return elements + sizeof(float);
    case TDM_SERVED_INT8:
        return elements + outputs_of(model, tensor, elements) * sizeof(float);
    case TDM_SERVED_AWQ: /* zeros of 4 bits */
        return elements / 2 + groups_of(model, serving, tensor, elements) * BF16_BYTES +
               groups_of(model, serving, tensor, elements) / 2;
    case TDM_SERVED_GPTQ:
        return elements * (model->base.bits > 0 ? model->base.bits : 4u) / 8 +
               groups_of(model, serving, tensor, elements) * BF16_BYTES;
    case TDM_SERVED_NVFP4: /* a scale of 8 bits for each 16 */
        return elements / 2 + elements / 16 + sizeof(float);
    case TDM_SERVED_NF4: /* a scale for each 64: in fp32 since 0.9.2, which counts as 0.9.1 (pull
                          * request 19742), before, and in SGLang (srt/model_loader/loader.py), of 8
                          * bits, with a scale for each 256 of these */
        return elements / 2 + (serving->version >= TDM_VLLM_0_9_1
                                   ? elements / 64 * sizeof(float)
                                   : elements / 64 + elements / (64 * 256) * sizeof(float));
    }
    return 0;
}

/* Room for adapters of a projection, in bf16: all ranks have all of those that lead down to the
 * rank where outputs are divided, and all of those that lead up from it where inputs are
 * (vllm/lora/layers/base_linear.py create_lora_weights). Each of joint projections has both. */
static uint64_t adapter_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                              const struct tdm_tensor *tensor)
{
    const uint64_t elements = elements_of(model, serving, tensor);
    const bool divides_inputs = tensor->role == TDM_ROLE_O || tensor->role == TDM_ROLE_DOWN;
    uint64_t joint = 1;
    if (!is_projection(tensor->role) || tensor->role == TDM_ROLE_EXPERTS_GATE_UP ||
        tensor->role == TDM_ROLE_EXPERTS_DOWN)
        return 0; /* experts have none here */
    if (tensor->role == TDM_ROLE_QKV)
        joint = 3;
    if (tensor->role == TDM_ROLE_GATE_UP)
        joint = 2;
    const uint64_t inputs = divides_inputs ? elements / tensor->rows : tensor->columns,
                   outputs = divides_inputs ? tensor->rows : elements / tensor->columns;
    return (joint * inputs + outputs) * serving->adapter_rank * serving->adapter_slots * BF16_BYTES;
}

static uint64_t unit_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                           uint32_t unit)
{
    const struct tdm_unit *u = &model->units[unit];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < u->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[u->first_tensor + i];
        bytes += stored_bytes(model, serving, tensor);
        if (serving->adapters)
            bytes += adapter_bytes(model, serving, tensor);
        /* What is absorbed into queries and outputs: views of the weight, or bf16 copies of a
         * quantized one (v1/attention/backends/mla/common.py process_weights_after_loading). */
        if (tensor->role == TDM_ROLE_KV_FROM_LATENT && serving->weights != TDM_SERVED_BF16 &&
            !tdm_serving_experts_alone(serving->weights))
            bytes += elements_of(model, serving, tensor) * BF16_BYTES;
    }
    return bytes;
}

/* Where positions are scaled by a factor, the table has as many times the positions
 * (LinearScalingRotaryEmbedding); one of layers with windows does not. */
static uint64_t rope_bytes(const struct tdm_model *model)
{
    uint64_t table = model->max_context * model->rotary_dim * BF16_BYTES;
    if ((model->parts & (TDM_PART_POSITIONS | TDM_PART_NO_ANGLES)) != 0)
        return 0;
    uint64_t factor = model->rope.kind == TDM_ROPE_LINEAR ? (uint64_t)model->rope.factor : 1;
    return table * factor + ((model->parts & TDM_PART_TWO_ROPES) ? table : 0);
}

void tdm_serving_weights(const struct tdm_model *model, const struct tdm_serving *serving,
                         uint32_t stage, struct tdm_serving_rank *rank)
{
    struct tdm_serving_layers layers = tdm_serving_stage(model, serving, stage);
    bool first = stage == 0, last = stage + 1 == serving->pipeline_ranks;
    uint64_t bytes = 0;
    for (uint32_t layer = layers.first; layer < layers.end; layer++)
        bytes += unit_bytes(model, serving, layer);
    /* A tied embedding is on both ends. */
    if (first || (last && model->tied))
        bytes += unit_bytes(model, serving, tdm_model_embedding_unit(model));
    if (last)
        bytes += unit_bytes(model, serving, tdm_model_head_unit(model));
    rank->rope_bytes = rope_bytes(model);
    rank->weights_bytes = tdm_size_add(bytes + rank->rope_bytes, serving->other_weights_bytes);
}
