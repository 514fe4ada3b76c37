/* SPDX-License-Identifier: Apache-2.0 */
/* The weight tensors of a model: their shapes, their offsets in the units, and their names in
 * Hugging Face checkpoints. */
#include "models/parts.h"

#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The dimension of one side of a tensor. */
enum side {
    SIDE_ONE,
    SIDE_HIDDEN,
    SIDE_QUERY,
    SIDE_KV,
    SIDE_HEAD_DIM,
    SIDE_INTERMEDIATE,
    SIDE_VOCABULARY,
    SIDE_EXPERTS,
    SIDE_EXPERTS_GATE_UP,
    SIDE_EXPERTS_HIDDEN,
    SIDE_EXPERT_INTERMEDIATE,
    SIDE_QKV,
    SIDE_GATE_UP,
    SIDE_Q_RANK,
    SIDE_KV_RANK,
    SIDE_KV_LATENT,
    SIDE_KV_FROM_LATENT,
    SIDE_VALUES,
    SIDE_SHARED,
    SIDE_HEADS,
    SIDE_GATE_UP_OF_EXPERT,
    SIDE_POSITIONS,
    SIDE_DELTA_HEADS,
    SIDE_DELTA_QKV,
    SIDE_DELTA_KERNEL,
    SIDE_DELTA_QKVZ,
    SIDE_DELTA_BA,
    SIDE_DELTA_VALUE_DIM,
    SIDE_DELTA_VALUES,
    SIDE_Q,
    SIDE_MAMBA_HEADS,
    SIDE_MAMBA_X,
    SIDE_MAMBA_WIDTH,
    SIDE_MAMBA_KERNEL,
    SIDE_MAMBA_IN,
    SIDE_SHORT_IN,
    SIDE_SHORT_KERNEL,
};

static const struct {
    const char *name; /* inside "model.layers.N." for the tensors of a layer */
    enum side rows, columns;
} shapes[TDM_ROLES] = {
    [TDM_ROLE_ATTENTION_NORM] = {"input_layernorm.weight", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_Q] = {"self_attn.q_proj.weight", SIDE_Q, SIDE_HIDDEN},
    [TDM_ROLE_Q_BIAS] = {"self_attn.q_proj.bias", SIDE_ONE, SIDE_QUERY},
    [TDM_ROLE_K] = {"self_attn.k_proj.weight", SIDE_KV, SIDE_HIDDEN},
    [TDM_ROLE_V] = {"self_attn.v_proj.weight", SIDE_KV, SIDE_HIDDEN},
    [TDM_ROLE_K_BIAS] = {"self_attn.k_proj.bias", SIDE_ONE, SIDE_KV},
    [TDM_ROLE_V_BIAS] = {"self_attn.v_proj.bias", SIDE_ONE, SIDE_KV},
    [TDM_ROLE_Q_NORM] = {"self_attn.q_norm.weight", SIDE_ONE, SIDE_HEAD_DIM},
    [TDM_ROLE_K_NORM] = {"self_attn.k_norm.weight", SIDE_ONE, SIDE_HEAD_DIM},
    [TDM_ROLE_O] = {"self_attn.o_proj.weight", SIDE_HIDDEN, SIDE_VALUES},
    [TDM_ROLE_MLP_NORM] = {"post_attention_layernorm.weight", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_GATE] = {"mlp.gate_proj.weight", SIDE_INTERMEDIATE, SIDE_HIDDEN},
    [TDM_ROLE_UP] = {"mlp.up_proj.weight", SIDE_INTERMEDIATE, SIDE_HIDDEN},
    [TDM_ROLE_DOWN] = {"mlp.down_proj.weight", SIDE_HIDDEN, SIDE_INTERMEDIATE},
    [TDM_ROLE_POST_ATTENTION_NORM] = {"post_attention_layernorm.weight", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_POST_MLP_NORM] = {"post_feedforward_layernorm.weight", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_ROUTER] = {"mlp.gate.weight", SIDE_EXPERTS, SIDE_HIDDEN},
    [TDM_ROLE_EXPERTS_GATE_UP] = {"mlp.experts.gate_up_proj", SIDE_EXPERTS_GATE_UP, SIDE_HIDDEN},
    [TDM_ROLE_EXPERTS_DOWN] = {"mlp.experts.down_proj", SIDE_EXPERTS_HIDDEN,
                               SIDE_EXPERT_INTERMEDIATE},
    [TDM_ROLE_QKV] = {"self_attn.qkv_proj.weight", SIDE_QKV, SIDE_HIDDEN},
    [TDM_ROLE_GATE_UP] = {"mlp.gate_up_proj.weight", SIDE_GATE_UP, SIDE_HIDDEN},
    [TDM_ROLE_ATTENTION_NORM_BIAS] = {"input_layernorm.bias", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_MLP_NORM_BIAS] = {"post_attention_layernorm.bias", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_FINAL_NORM_BIAS] = {"model.norm.bias", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_QKV_BIAS] = {"self_attn.qkv_proj.bias", SIDE_ONE, SIDE_QKV},
    [TDM_ROLE_O_BIAS] = {"self_attn.o_proj.bias", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_UP_BIAS] = {"mlp.up_proj.bias", SIDE_ONE, SIDE_INTERMEDIATE},
    [TDM_ROLE_DOWN_BIAS] = {"mlp.down_proj.bias", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_HEAD_BIAS] = {"lm_head.bias", SIDE_ONE, SIDE_VOCABULARY},
    [TDM_ROLE_Q_LATENT] = {"self_attn.q_a_proj.weight", SIDE_Q_RANK, SIDE_HIDDEN},
    [TDM_ROLE_Q_LATENT_NORM] = {"self_attn.q_a_layernorm.weight", SIDE_ONE, SIDE_Q_RANK},
    [TDM_ROLE_Q_FROM_LATENT] = {"self_attn.q_b_proj.weight", SIDE_QUERY, SIDE_Q_RANK},
    [TDM_ROLE_KV_LATENT] = {"self_attn.kv_a_proj_with_mqa.weight", SIDE_KV_LATENT, SIDE_HIDDEN},
    [TDM_ROLE_KV_LATENT_NORM] = {"self_attn.kv_a_layernorm.weight", SIDE_ONE, SIDE_KV_RANK},
    [TDM_ROLE_KV_FROM_LATENT] = {"self_attn.kv_b_proj.weight", SIDE_KV_FROM_LATENT, SIDE_KV_RANK},
    [TDM_ROLE_SHARED_GATE] = {"mlp.shared_experts.gate_proj.weight", SIDE_SHARED, SIDE_HIDDEN},
    [TDM_ROLE_SHARED_UP] = {"mlp.shared_experts.up_proj.weight", SIDE_SHARED, SIDE_HIDDEN},
    [TDM_ROLE_SHARED_DOWN] = {"mlp.shared_experts.down_proj.weight", SIDE_HIDDEN, SIDE_SHARED},
    [TDM_ROLE_SHARED_EXPERT_GATE] = {"mlp.shared_expert_gate.weight", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_SINKS] = {"self_attn.sinks", SIDE_ONE, SIDE_HEADS},
    [TDM_ROLE_ROUTER_BIAS] = {"mlp.router.bias", SIDE_ONE, SIDE_EXPERTS},
    [TDM_ROLE_EXPERTS_GATE_UP_BIAS] = {"mlp.experts.gate_up_proj_bias", SIDE_EXPERTS,
                                       SIDE_GATE_UP_OF_EXPERT},
    [TDM_ROLE_EXPERTS_DOWN_BIAS] = {"mlp.experts.down_proj_bias", SIDE_EXPERTS, SIDE_HIDDEN},
    [TDM_ROLE_DELTA_TIME] = {"linear_attn.dt_bias", SIDE_ONE, SIDE_DELTA_HEADS},
    [TDM_ROLE_DELTA_DECAY] = {"linear_attn.A_log", SIDE_ONE, SIDE_DELTA_HEADS},
    [TDM_ROLE_DELTA_KERNEL] = {"linear_attn.conv1d.weight", SIDE_DELTA_QKV, SIDE_DELTA_KERNEL},
    [TDM_ROLE_DELTA_QKVZ] = {"linear_attn.in_proj_qkvz.weight", SIDE_DELTA_QKVZ, SIDE_HIDDEN},
    [TDM_ROLE_DELTA_BA] = {"linear_attn.in_proj_ba.weight", SIDE_DELTA_BA, SIDE_HIDDEN},
    [TDM_ROLE_DELTA_NORM] = {"linear_attn.norm.weight", SIDE_ONE, SIDE_DELTA_VALUE_DIM},
    [TDM_ROLE_DELTA_OUT] = {"linear_attn.out_proj.weight", SIDE_HIDDEN, SIDE_DELTA_VALUES},
    [TDM_ROLE_DELTA_Z] = {"linear_attn.in_proj_z.weight", SIDE_DELTA_VALUES, SIDE_HIDDEN},
    [TDM_ROLE_DELTA_A] = {"linear_attn.in_proj_a.weight", SIDE_DELTA_HEADS, SIDE_HIDDEN},
    [TDM_ROLE_MAMBA_TIME] = {"mamba.dt_bias", SIDE_ONE, SIDE_MAMBA_HEADS},
    [TDM_ROLE_MAMBA_DECAY] = {"mamba.A_log", SIDE_ONE, SIDE_MAMBA_HEADS},
    [TDM_ROLE_MAMBA_SKIP] = {"mamba.D", SIDE_ONE, SIDE_MAMBA_HEADS},
    [TDM_ROLE_MAMBA_KERNEL] = {"mamba.conv1d.weight", SIDE_MAMBA_WIDTH, SIDE_MAMBA_KERNEL},
    [TDM_ROLE_MAMBA_KERNEL_BIAS] = {"mamba.conv1d.bias", SIDE_ONE, SIDE_MAMBA_WIDTH},
    [TDM_ROLE_MAMBA_IN] = {"mamba.in_proj.weight", SIDE_MAMBA_IN, SIDE_HIDDEN},
    [TDM_ROLE_MAMBA_NORM] = {"mamba.norm.weight", SIDE_ONE, SIDE_MAMBA_X},
    [TDM_ROLE_MAMBA_OUT] = {"mamba.out_proj.weight", SIDE_HIDDEN, SIDE_MAMBA_X},
    [TDM_ROLE_SHORT_KERNEL] = {"conv.conv.weight", SIDE_HIDDEN, SIDE_SHORT_KERNEL},
    [TDM_ROLE_SHORT_IN] = {"conv.in_proj.weight", SIDE_SHORT_IN, SIDE_HIDDEN},
    [TDM_ROLE_SHORT_OUT] = {"conv.out_proj.weight", SIDE_HIDDEN, SIDE_HIDDEN},
    [TDM_ROLE_XIELU_POSITIVE] = {"mlp.act_fn.alpha_p", SIDE_ONE, SIDE_ONE},
    [TDM_ROLE_XIELU_NEGATIVE] = {"mlp.act_fn.alpha_n", SIDE_ONE, SIDE_ONE},
    [TDM_ROLE_EMBEDDING_NORM] = {"transformer.word_embeddings_layernorm.weight", SIDE_ONE,
                                 SIDE_HIDDEN},
    [TDM_ROLE_EMBEDDING_NORM_BIAS] = {"transformer.word_embeddings_layernorm.bias", SIDE_ONE,
                                      SIDE_HIDDEN},
    [TDM_ROLE_POSITIONS] = {"transformer.wpe.weight", SIDE_POSITIONS, SIDE_HIDDEN},
    [TDM_ROLE_EMBEDDING] = {"model.embed_tokens.weight", SIDE_VOCABULARY, SIDE_HIDDEN},
    [TDM_ROLE_FINAL_NORM] = {"model.norm.weight", SIDE_ONE, SIDE_HIDDEN},
    [TDM_ROLE_HEAD] = {"lm_head.weight", SIDE_VOCABULARY, SIDE_HIDDEN},
};

static uint64_t side_length(const struct tdm_model *model, enum side side)
{
    const struct tdm_delta *delta = &model->delta;
    const struct tdm_mamba *mamba = &model->mamba;
    const uint64_t inner = (uint64_t)mamba->heads * mamba->head_dim,
                   width = inner + UINT64_C(2) * mamba->groups * mamba->state;
    const uint64_t keys = (uint64_t)delta->key_heads * delta->key_dim,
                   values = (uint64_t)delta->value_heads * delta->value_dim;
    switch (side) {
    case SIDE_ONE:
        return 1;
    case SIDE_HIDDEN:
        return model->hidden;
    case SIDE_QUERY:
        return (uint64_t)model->query_heads * model->head_dim;
    case SIDE_KV:
        return tdm_model_kv_width(model);
    case SIDE_HEAD_DIM:
        return model->head_dim;
    case SIDE_INTERMEDIATE:
        return model->intermediate;
    case SIDE_VOCABULARY:
        return model->vocabulary;
    case SIDE_EXPERTS:
        return model->experts.count;
    case SIDE_EXPERTS_GATE_UP:
        return UINT64_C(2) * model->experts.count * model->experts.intermediate;
    case SIDE_EXPERTS_HIDDEN:
        return (uint64_t)model->experts.count * model->hidden;
    case SIDE_EXPERT_INTERMEDIATE:
        return model->experts.intermediate;
    case SIDE_QKV:
        return ((uint64_t)model->query_heads + 2 * (uint64_t)model->kv_heads) * model->head_dim;
    case SIDE_GATE_UP:
        return UINT64_C(2) * model->intermediate;
    case SIDE_Q_RANK:
        return model->latent.q_rank;
    case SIDE_KV_RANK:
        return model->latent.kv_rank;
    case SIDE_KV_LATENT:
        return (uint64_t)model->latent.kv_rank + model->latent.rotary_dim;
    case SIDE_KV_FROM_LATENT:
        return ((uint64_t)model->latent.plain_dim + model->latent.value_dim) * model->query_heads;
    case SIDE_VALUES:
        return (uint64_t)model->query_heads *
               (model->latent.kv_rank > 0 ? model->latent.value_dim : model->head_dim);
    case SIDE_SHARED:
        return model->experts.shared;
    case SIDE_HEADS:
        return model->query_heads;
    case SIDE_GATE_UP_OF_EXPERT:
        return UINT64_C(2) * model->experts.intermediate;
    case SIDE_POSITIONS:
        return model->max_context + model->spare_places;
    case SIDE_DELTA_HEADS:
        return delta->value_heads;
    case SIDE_DELTA_QKV:
        return 2 * keys + values;
    case SIDE_DELTA_KERNEL:
        return delta->kernel;
    case SIDE_DELTA_QKVZ:
        return 2 * keys + (delta->apart ? 1 : 2) * values;
    case SIDE_DELTA_BA:
        return (delta->apart ? UINT64_C(1) : 2) * delta->value_heads;
    case SIDE_DELTA_VALUE_DIM:
        return delta->value_dim;
    case SIDE_DELTA_VALUES:
        return values;
    case SIDE_MAMBA_HEADS:
        return mamba->heads;
    case SIDE_MAMBA_X:
        return inner;
    case SIDE_MAMBA_WIDTH:
        return width;
    case SIDE_MAMBA_KERNEL:
        return mamba->kernel;
    case SIDE_MAMBA_IN:
        return inner + width + mamba->heads;
    case SIDE_SHORT_IN:
        return UINT64_C(3) * model->hidden;
    case SIDE_SHORT_KERNEL:
        return model->short_kernel;
    case SIDE_Q:
        return (uint64_t)model->query_heads * model->head_dim *
               ((model->parts & TDM_PART_GATED_ATTENTION) != 0 ? 2 : 1);
    }
    return 0;
}

static bool is_of_attention(enum tdm_role role)
{
    return (role >= TDM_ROLE_Q && role <= TDM_ROLE_O) || role == TDM_ROLE_Q_NORM ||
           role == TDM_ROLE_K_NORM || role == TDM_ROLE_QKV;
}

static bool is_of_mlp(enum tdm_role role)
{
    return role == TDM_ROLE_GATE || role == TDM_ROLE_UP || role == TDM_ROLE_DOWN ||
           role == TDM_ROLE_GATE_UP;
}

/* Does a unit hold a tensor of this role? */
static bool unit_has(const struct tdm_model *model, uint32_t unit, enum tdm_role role)
{
    if (model->bare_norms && (role == TDM_ROLE_ATTENTION_NORM || role == TDM_ROLE_MLP_NORM ||
                              role == TDM_ROLE_FINAL_NORM))
        return false;
    const bool norm_biases = (model->parts & TDM_PART_LAYER_NORMS) != 0 && !model->unbiased_norms;
    if (unit == tdm_model_embedding_unit(model))
        return role == TDM_ROLE_EMBEDDING ||
               ((role == TDM_ROLE_EMBEDDING_NORM || role == TDM_ROLE_EMBEDDING_NORM_BIAS) &&
                model->embedding_norm) ||
               (role == TDM_ROLE_POSITIONS && (model->parts & TDM_PART_POSITIONS) != 0);
    if (role == TDM_ROLE_POSITIONS)
        return false;
    if (role >= TDM_ROLE_DELTA_TIME && unit == tdm_model_head_unit(model))
        return false;
    if (unit == tdm_model_head_unit(model))
        return role == TDM_ROLE_FINAL_NORM || (role == TDM_ROLE_HEAD && !model->tied) ||
               (role == TDM_ROLE_FINAL_NORM_BIAS && norm_biases) ||
               (role == TDM_ROLE_HEAD_BIAS && (model->parts & TDM_PART_HEAD_BIAS) != 0 &&
                model->labels == 0);
    if (role == TDM_ROLE_XIELU_POSITIVE || role == TDM_ROLE_XIELU_NEGATIVE)
        return model->activation == TDM_ACTIVATION_XIELU;
    const struct tdm_layer_kind *kind = &model->layer_kinds[unit];
    if (role == TDM_ROLE_MAMBA_NORM || role == TDM_ROLE_MAMBA_KERNEL_BIAS)
        return kind->mamba &&
               (role == TDM_ROLE_MAMBA_NORM ? model->mamba.norm : model->mamba.kernel_bias);
    if (role >= TDM_ROLE_MAMBA_TIME && role <= TDM_ROLE_MAMBA_OUT)
        return kind->mamba;
    if (role >= TDM_ROLE_SHORT_KERNEL && role <= TDM_ROLE_SHORT_OUT)
        return kind->short_conv;
    if (kind->no_attention && is_of_attention(role))
        return false;
    if ((kind->no_mlp && is_of_mlp(role)) ||
        (role == TDM_ROLE_MLP_NORM && (model->parts & TDM_PART_ONE_MIXER) != 0))
        return false;
    if (role == TDM_ROLE_DOWN && kind->experts && model->experts.beside)
        return true;
    const bool delta = model->layer_kinds[unit].delta;
    if (role == TDM_ROLE_DELTA_Z || role == TDM_ROLE_DELTA_A)
        return delta && model->delta.apart;
    if (role >= TDM_ROLE_DELTA_TIME && role <= TDM_ROLE_DELTA_OUT)
        return delta;
    if (delta && (role == TDM_ROLE_Q || role == TDM_ROLE_K || role == TDM_ROLE_V ||
                  role == TDM_ROLE_O || role == TDM_ROLE_Q_NORM || role == TDM_ROLE_K_NORM))
        return false;
    const bool joint_qkv = (model->parts & TDM_PART_JOINT_QKV) != 0;
    if (role == TDM_ROLE_Q_BIAS || role == TDM_ROLE_K_BIAS || role == TDM_ROLE_V_BIAS)
        return kind->qkv_bias && !joint_qkv;
    if (role == TDM_ROLE_Q_NORM || role == TDM_ROLE_K_NORM)
        return model->layer_kinds[unit].qk_norm;
    const bool latent = model->latent.kv_rank > 0, experts = model->layer_kinds[unit].experts;
    if (role == TDM_ROLE_Q_LATENT || role == TDM_ROLE_Q_LATENT_NORM ||
        role == TDM_ROLE_Q_FROM_LATENT)
        return latent && model->latent.q_rank > 0;
    if (role == TDM_ROLE_KV_LATENT || role == TDM_ROLE_KV_LATENT_NORM ||
        role == TDM_ROLE_KV_FROM_LATENT)
        return latent;
    if (role == TDM_ROLE_SHARED_GATE || role == TDM_ROLE_SHARED_UP || role == TDM_ROLE_SHARED_DOWN)
        return experts && model->experts.shared > 0;
    if (role == TDM_ROLE_SHARED_EXPERT_GATE)
        return experts && model->experts.shared_gate;
    if (latent && (role == TDM_ROLE_K || role == TDM_ROLE_V))
        return false;
    if (latent && role == TDM_ROLE_Q)
        return model->latent.q_rank == 0;
    if (role == TDM_ROLE_ROUTER_BIAS || role == TDM_ROLE_EXPERTS_GATE_UP_BIAS ||
        role == TDM_ROLE_EXPERTS_DOWN_BIAS)
        return experts && (model->experts.biased || (role == TDM_ROLE_ROUTER_BIAS &&
                                                     model->experts.router == TDM_ROUTER_ERNIE));
    if (role == TDM_ROLE_SINKS || (role == TDM_ROLE_O_BIAS && (model->parts & TDM_PART_SINKS) != 0))
        return (model->parts & TDM_PART_SINKS) != 0 && unit != tdm_model_head_unit(model);
    const bool biases = (model->parts & TDM_PART_BIASES) != 0;
    const bool one_norm = (model->parts & TDM_PART_PARALLEL) != 0 && !model->two_norms;
    if (role == TDM_ROLE_FINAL_NORM_BIAS || role == TDM_ROLE_HEAD_BIAS)
        return false;
    if (role == TDM_ROLE_ATTENTION_NORM_BIAS)
        return norm_biases;
    if (role == TDM_ROLE_MLP_NORM_BIAS)
        return norm_biases && !one_norm;
    if (role == TDM_ROLE_MLP_NORM && one_norm)
        return false;
    if (role == TDM_ROLE_QKV_BIAS)
        return joint_qkv && (biases || kind->qkv_bias);
    if (role == TDM_ROLE_O_BIAS || role == TDM_ROLE_UP_BIAS || role == TDM_ROLE_DOWN_BIAS)
        return biases || (model->mlp_biases && role != TDM_ROLE_O_BIAS);
    if (role == TDM_ROLE_GATE && (model->parts & TDM_PART_PLAIN_MLP) != 0)
        return false;
    bool joint_gate_up = model->parts & TDM_PART_JOINT_GATE_UP;
    if (role == TDM_ROLE_ATTENTION_NORM || role == TDM_ROLE_MLP_NORM)
        return (model->parts & TDM_PART_NO_PRE_NORMS) == 0;
    if (role == TDM_ROLE_Q || role == TDM_ROLE_K || role == TDM_ROLE_V)
        return !joint_qkv;
    if (role == TDM_ROLE_QKV)
        return joint_qkv;
    if (role == TDM_ROLE_GATE_UP)
        return joint_gate_up;
    if (role == TDM_ROLE_POST_ATTENTION_NORM || role == TDM_ROLE_POST_MLP_NORM)
        return model->layer_kinds[unit].post_norms;
    if (role == TDM_ROLE_ROUTER || role == TDM_ROLE_EXPERTS_GATE_UP ||
        role == TDM_ROLE_EXPERTS_DOWN)
        return model->layer_kinds[unit].experts;
    if (role == TDM_ROLE_GATE || role == TDM_ROLE_UP)
        return !model->layer_kinds[unit].experts && !joint_gate_up;
    if (role == TDM_ROLE_DOWN)
        return !model->layer_kinds[unit].experts;
    return role < TDM_ROLE_EMBEDDING;
}

static void lay_out_unit(struct tdm_model *model, uint32_t number, uint32_t *next_tensor)
{
    struct tdm_unit *unit = &model->units[number];
    unit->first_tensor = *next_tensor;
    for (unsigned i = 0; i < TDM_ROLES; i++) {
        enum tdm_role role = (enum tdm_role)i;
        if (!unit_has(model, number, role))
            continue;
        struct tdm_tensor *tensor = &model->tensors[(*next_tensor)++];
        tensor->role = role;
        tensor->unit = number;
        tensor->rows = side_length(model, shapes[role].rows);
        tensor->columns = side_length(model, shapes[role].columns);
        if (model->labels > 0 && role == TDM_ROLE_HEAD)
            tensor->rows = model->labels;
        const bool wide_qk_norm = model->whole_qk_norm ||
                                  (model->parts & TDM_PART_MEAN_NORMS) != 0; /* Cohere: by heads */
        if (wide_qk_norm && (role == TDM_ROLE_Q_NORM || role == TDM_ROLE_K_NORM))
            tensor->columns = side_length(model, role == TDM_ROLE_Q_NORM ? SIDE_QUERY : SIDE_KV);
        tensor->elements = tdm_size_mul(tensor->rows, tensor->columns);
        tensor->offset = unit->elements;
        unit->elements =
            tdm_size_align(tdm_size_add(unit->elements, tensor->elements), TDM_TENSOR_ALIGN);
        unit->parameters = tdm_size_add(unit->parameters, tensor->elements);
    }
    unit->tensor_count = *next_tensor - unit->first_tensor;
}

enum tdm_status tdm_model_lay_out(struct tdm_json_reader *reader, struct tdm_model *model)
{
    model->unit_count = model->layers + 2;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        for (unsigned role = 0; role < TDM_ROLES; role++)
            model->tensor_count += unit_has(model, unit, (enum tdm_role)role);
    }
    model->units = calloc(model->unit_count, sizeof(*model->units));
    model->tensors = calloc(model->tensor_count, sizeof(*model->tensors));
    if (model->units == NULL || model->tensors == NULL) {
        reader->status =
            tdm_fail(reader->err, TDM_NO_MEMORY, "%s: no memory for %" PRIu32 " tensors",
                     reader->file, model->tensor_count);
        return reader->status;
    }

    uint32_t next_tensor = 0;
    uint64_t padded = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        lay_out_unit(model, unit, &next_tensor);
        model->parameters = tdm_size_add(model->parameters, model->units[unit].parameters);
        padded = tdm_size_add(padded, model->units[unit].elements);
    }
    if (padded > TDM_PARAMETER_LIMIT)
        return tdm_json_fail(reader, "num_hidden_layers",
                             "is %" PRIu32 ", which with the other dimensions gives more than "
                             "2^48 parameters; lower it or \"hidden_size\", \"intermediate_size\" "
                             "or \"vocab_size\"",
                             model->layers);
    return TDM_OK;
}

bool tdm_model_layers_alike(const struct tdm_model *model)
{
    const struct tdm_unit *first = &model->units[0];
    for (uint32_t layer = 1; layer < model->layers; layer++) {
        const struct tdm_unit *unit = &model->units[layer];
        if (unit->tensor_count != first->tensor_count)
            return false;
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const struct tdm_tensor *one = &model->tensors[first->first_tensor + i];
            const struct tdm_tensor *other = &model->tensors[unit->first_tensor + i];
            if (one->role != other->role || one->offset != other->offset ||
                one->elements != other->elements)
                return false;
        }
    }
    return true;
}

const struct tdm_tensor *tdm_model_tensor(const struct tdm_model *model, uint32_t unit,
                                          enum tdm_role role)
{
    if (unit >= model->unit_count)
        return NULL;
    const struct tdm_tensor *tensor = &model->tensors[model->units[unit].first_tensor];
    for (uint32_t i = 0; i < model->units[unit].tensor_count; i++) {
        if (tensor[i].role == role)
            return &tensor[i];
    }
    return NULL;
}

bool tdm_role_is_vector(enum tdm_role role)
{
    return shapes[role].rows == SIDE_ONE && role != TDM_ROLE_SHARED_EXPERT_GATE;
}

enum tdm_tensor_kind tdm_role_kind(enum tdm_role role)
{
    if (tdm_role_is_norm(role))
        return TDM_KIND_NORMS;
    if (role == TDM_ROLE_EMBEDDING)
        return TDM_KIND_EMBEDDINGS;
    return tdm_role_is_vector(role) ? TDM_KIND_BIASES : TDM_KIND_MATRICES;
}

const char *tdm_tensor_kind_name(enum tdm_tensor_kind kind)
{
    static const char *const names[TDM_TENSOR_KINDS] = {
        [TDM_KIND_MATRICES] = "matrices",
        [TDM_KIND_EMBEDDINGS] = "embeddings",
        [TDM_KIND_NORMS] = "norms",
        [TDM_KIND_BIASES] = "biases",
    };
    return names[kind];
}

float tdm_model_vector_start(const struct tdm_model *model, enum tdm_role role)
{
    return tdm_role_is_norm(role) && !model->offset_norms ? 1 : 0;
}

static bool has_layer_without_rope(const struct tdm_model *model)
{
    for (uint32_t i = 0; i < model->layers; i++)
        if (model->layer_kinds[i].no_rope)
            return true;
    return false;
}

const char *tdm_model_unknown(const struct tdm_model *model, char out[TDM_MODEL_UNKNOWN])
{
    const struct {
        bool has;
        const char *what;
    } parts[] = {{model->text_alone, "the language model of one of pictures and text"},
                 {model->layer_kinds[0].post_norms, "norms behind attention and MLP"},
                 {model->offset_norms, "norms that multiply by 1 + weight"},
                 {model->bare_norms, "norms without weights"},
                 {model->scaled_embedding, "embeddings times the root of hidden_size"},
                 {model->attention_softcap > 0, "capped attention scores"},
                 {model->logits_softcap > 0, "capped logits"},
                 {model->whole_qk_norm, "norms over all heads of q and k at once"},
                 {model->experts.count > 0, "mixtures of experts"},
                 {model->latent.kv_rank > 0, "latent attention"},
                 {model->parts & TDM_PART_LAYER_NORMS, "LayerNorm"},
                 {model->parts & TDM_PART_PLAIN_MLP, "an MLP without a gate"},
                 {model->parts & TDM_PART_NO_PRE_NORMS, "no norms before attention and MLP"},
                 {model->parts & (TDM_PART_JOINT_QKV | TDM_PART_JOINT_GATE_UP), "joint products"},
                 {model->parts & (TDM_PART_CUT_ROPE | TDM_PART_TWO_ROPES), "other rotations"},
                 {model->parts & TDM_PART_MULTIPLIERS, "multipliers"},
                 {model->parts & TDM_PART_MEAN_NORMS, "LayerNorm without a bias"},
                 {model->parts & TDM_PART_POSITIONS, "learned positions"},
                 {model->own_scores > TDM_SCORES_GPTJ, "ALiBi"},
                 {model->base.kind != TDM_BASE_WHOLE, "quantized weights"},
                 {model->parts & TDM_PART_SINKS, "sinks of attention"},
                 {tdm_model_other_mixer(model) != NULL, tdm_model_other_mixer(model)},
                 {model->parts & TDM_PART_GATED_ATTENTION, "gated attention"},
                 {model->parts & TDM_PART_COMPLEX_ROPE, "rotation of complex numbers"},
                 {model->parts & (TDM_PART_TURNED_NORM | TDM_PART_CAST_ROPE | TDM_PART_PLACE_SCALE),
                  "rotation of other kinds"},
                 {model->dropout + model->attention_dropout + model->embedding_dropout > 0,
                  "dropout (which the config may set to 0)"},
                 {model->own_code, "code that is its repository's own"},
                 {model->normed_head, "a head with normed weights"},
                 {model->labels > 0, "heads that score whole sequences"},
                 {has_layer_without_rope(model), "layers without rotation"}};
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i].has && used < TDM_MODEL_UNKNOWN)
            used += (size_t)snprintf(out + used, TDM_MODEL_UNKNOWN - used, "%s%s",
                                     used == 0 ? "" : ", ", parts[i].what);
    return out;
}

const char *tdm_role_name(enum tdm_role role)
{
    return shapes[role].name;
}

void tdm_tensor_name(const struct tdm_model *model, const struct tdm_tensor *tensor, char *out,
                     uint32_t out_bytes)
{
    const char *name = shapes[tensor->role].name;
    if (model->labels > 0 && tensor->role == TDM_ROLE_HEAD)
        name = "score.weight";
    if (model->delta.apart && tensor->role == TDM_ROLE_DELTA_QKVZ)
        name = "linear_attn.in_proj_qkv.weight";
    if (model->delta.apart && tensor->role == TDM_ROLE_DELTA_BA)
        name = "linear_attn.in_proj_b.weight";
    if (model->parts & TDM_PART_TURNED_NORM) {
        if (tensor->role == TDM_ROLE_Q_NORM)
            name = "self_attn.query_layernorm.weight";
        if (tensor->role == TDM_ROLE_K_NORM)
            name = "self_attn.key_layernorm.weight";
    }
    if (model->activation == TDM_ACTIVATION_XIELU) {
        if (tensor->role == TDM_ROLE_ATTENTION_NORM)
            name = "attention_layernorm.weight";
        if (tensor->role == TDM_ROLE_MLP_NORM)
            name = "feedforward_layernorm.weight";
    }
    if (model->parts & TDM_PART_GLM_NORMS) {
        if (tensor->role == TDM_ROLE_POST_ATTENTION_NORM)
            name = "post_self_attn_layernorm.weight";
        if (tensor->role == TDM_ROLE_POST_MLP_NORM)
            name = "post_mlp_layernorm.weight";
    } else if (tensor->role == TDM_ROLE_MLP_NORM && model->layer_kinds[tensor->unit].post_norms) {
        name = "pre_feedforward_layernorm.weight";
    }
    if (tensor->unit < model->layers)
        snprintf(out, out_bytes, "model.layers.%" PRIu32 ".%s", tensor->unit, name);
    else
        snprintf(out, out_bytes, "%s", name);
}

static uint64_t matmul_parameters(const struct tdm_model *model, bool active)
{
    uint64_t parameters = (uint64_t)model->vocabulary * model->hidden; /* the head, tied or not */
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[i];
        uint64_t elements = tensor->elements;
        if (tensor->unit >= model->layers || shapes[tensor->role].rows == SIDE_ONE ||
            tensor->role == TDM_ROLE_EXPERTS_GATE_UP_BIAS ||
            tensor->role == TDM_ROLE_EXPERTS_DOWN_BIAS)
            continue;
        if (active && (tensor->role == TDM_ROLE_EXPERTS_GATE_UP ||
                       tensor->role == TDM_ROLE_EXPERTS_DOWN)) /* all experts have the same size */
            elements = elements / model->experts.count * model->experts.per_token;
        parameters = tdm_size_add(parameters, elements);
    }
    return parameters;
}

const char *tdm_model_rare_part(const struct tdm_model *model)
{
    return model->latent.kv_rank > 0 ? "latent keys and values"
           : model->experts.router > TDM_ROUTER_CHOSEN
               ? model->experts.shared > 0 ? "shared experts" : "this router of experts"
               : NULL;
}

uint64_t tdm_model_position_limit(const struct tdm_model *model)
{
    return (model->parts & TDM_PART_POSITIONS) != 0 ? model->max_context : 0;
}

const char *tdm_model_other_mixer(const struct tdm_model *model)
{
    return model->delta.value_heads > 0 ? "gated DeltaNets"
           : model->mamba.heads > 0     ? "layers of Mamba-2"
           : model->short_kernel > 0    ? "short convolutions"
                                        : NULL;
}

uint64_t tdm_model_shortest_window(const struct tdm_model *model, uint64_t tokens)
{
    uint64_t shortest = 0;
    for (uint32_t i = 0; i < model->layers; i++) {
        uint64_t window = model->layer_kinds[i].window;
        if (window > 0 && window < tokens && (shortest == 0 || window < shortest))
            shortest = window;
    }
    return shortest;
}

uint64_t tdm_model_matmul_parameters(const struct tdm_model *model)
{
    return matmul_parameters(model, false);
}

uint64_t tdm_model_active_matmul_parameters(const struct tdm_model *model)
{
    return matmul_parameters(model, true);
}
