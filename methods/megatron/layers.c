/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of a chunk, and the parts of them that are recomputed in the backward.
 * Sources: megatron/core/transformer/{transformer_block,transformer_layer,mlp}.py,
 * tensor_parallel/random.py (CheckpointFunction). */
#include "methods/eager/ops.h"
#include "methods/megatron/parts.h"

/* MLP.forward without bias_activation_fusion. Later versions add a number, glu_linear_offset, to
 * the half that is not activated, which makes another copy. */
static struct tdm_eager_value *glu(struct tdm_megatron *t, struct tdm_eager_value *x,
                                   struct tdm_eager_value *bias)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *sum = bias != NULL ? tdm_add(m, x, bias) : tdm_take(x), *gate, *up;
    tdm_halves(m, sum, &gate, &up);
    struct tdm_eager_value *active = tdm_activate(m, t->config->activation, gate);
    if (t->set.glu == TDM_GLU_SINGLE) {
        struct tdm_eager_value *shifted = tdm_add_number(m, up);
        tdm_drop(m, up);
        up = shifted;
    }
    struct tdm_eager_value *y = tdm_mul(m, active, up);
    tdm_drop(m, sum);
    tdm_drop(m, gate);
    tdm_drop(m, up);
    tdm_drop(m, active);
    return y;
}

/* TERowParallelLinearLayerNorm of Megatron-Bridge (models/common/te_layers.py): a norm of what a
 * product made. Takes y. */
static struct tdm_eager_value *normed_output(struct tdm_megatron *t, struct tdm_eager_value *y,
                                             struct tdm_eager_value *norm)
{
    return norm == NULL ? y : tdm_replace(t->m, y, megatron_norm(t, y, norm, NULL));
}

static struct tdm_eager_value *mlp(struct tdm_megatron *t, const struct megatron_layer *layer,
                                   struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    tdm_label(m, "mlp.linear_fc1");
    /* The activation kernel adds the bias of fc1, so the product gets none. */
    struct tdm_eager_value *wide =
        megatron_norm_linear(t, x, layer->mlp_norm, layer->mlp_norm_bias, layer->fc1, NULL,
                             &layer->adapters[ADAPTED_FC1]);
    tdm_label(m, "mlp.activation");
    struct tdm_eager_value *active;
    if ((t->config->parts & TDM_PART_PLAIN_MLP) != 0 && !t->set.gelu_mlp) {
        active = tdm_activate(m, t->config->activation, wide);
    } else if (t->gated && t->set.glu != TDM_GLU_FUSED) {
        active = glu(t, wide, layer->fc1_bias);
        tdm_drop(m, wide);
        wide = NULL;
    } else {
        active = megatron_activation(t, wide, layer->fc1_bias);
    }
    tdm_label(m, "mlp.linear_fc2");
    struct tdm_eager_value *y =
        megatron_row_linear(t, active, layer->fc2, &layer->adapters[ADAPTED_FC2]);
    tdm_drop(m, wide);
    tdm_drop(m, active);
    return normed_output(t, y, layer->post_mlp_norm);
}

/* Attention of joint q, k and v, from the input of a layer to what is added to it. */
static struct tdm_eager_value *attend(struct tdm_megatron *t, const struct megatron_layer *layer,
                                      struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    struct megatron_kept kept = {.count = 0};
    tdm_label(m, "self_attention.linear_qkv");
    struct tdm_eager_value *mixed =
        megatron_norm_linear(t, x, layer->qkv_norm, layer->qkv_norm_bias, layer->qkv,
                             layer->qkv_bias, &layer->adapters[ADAPTED_QKV]);
    mixed = megatron_gather_groups(t, mixed);
    megatron_keep(m, &kept, mixed);
    tdm_label(m, "self_attention.core_attention");
    struct tdm_eager_value *heads = megatron_attention(t, layer, mixed, &kept);
    tdm_label(m, "self_attention.linear_proj");
    struct tdm_eager_value *attended =
        megatron_row_linear(t, heads, layer->projection, &layer->adapters[ADAPTED_PROJECTION]);
    tdm_drop(m, heads);
    megatron_drop_all(m, &kept);
    return normed_output(t, attended, layer->post_attention_norm);
}

/* The MLP, which may run again in the backward. */
static struct tdm_eager_value *run_mlp(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                       struct tdm_eager_value *x)
{
    return megatron_recomputes(t, TDM_RECOMPUTED_MLP)
               ? megatron_checkpoint(t, REGION_MLP, chunk, number, 1, &x, 1)
               : mlp(t, &t->chunks[chunk].layers[number], x);
}

/* A layer of a hybrid model: Mamba-2, attention or an MLP (ssm/mamba_layer.py,
 * transformer/transformer_layer.py, mlp_layer.py). */
static struct tdm_eager_value *run_single(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                          struct tdm_eager_value *x)
{
    const struct megatron_layer *layer = &t->chunks[chunk].layers[number];
    const bool scans = layer->mamba[MAMBA_IN] != NULL, attends = layer->qkv != NULL;
    struct tdm_eager_value *made = scans     ? megatron_mamba(t, layer, x)
                                   : attends ? attend(t, layer, x)
                                             : run_mlp(t, chunk, number, x);
    tdm_label(t->m, "bias_dropout_add");
    struct tdm_eager_value *y = megatron_add(t, made, NULL, x);
    tdm_drop(t->m, made);
    return y;
}

static struct tdm_eager_value *run_layer(struct tdm_megatron *t, uint32_t chunk, uint32_t number,
                                         struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    const struct megatron_layer *layer = &t->chunks[chunk].layers[number];
    struct tdm_label label = m->label;
    m->label.layer = number; /* in this stage */
    for (uint32_t c = 0; c < chunk; c++)
        m->label.layer += t->layout.layers[c];
    if ((t->config->parts & TDM_PART_ONE_MIXER) != 0) {
        struct tdm_eager_value *only = run_single(t, chunk, number, x);
        m->label = label;
        return only;
    }
    struct tdm_eager_value *attended =
        layer->kv_latent != NULL ? megatron_latent_attention(t, layer, x) : attend(t, layer, x);
    tdm_label(m, "bias_dropout_add");
    struct tdm_eager_value *middle = megatron_add(t, attended, layer->projection_bias, x), *made;
    tdm_drop(m, attended);
    made = layer->router != NULL ? megatron_experts(t, chunk, number, middle)
                                 : run_mlp(t, chunk, number, middle);
    tdm_label(m, "bias_dropout_add");
    struct tdm_eager_value *y = megatron_add(t, made, layer->fc2_bias, middle);
    tdm_drop(m, made);
    tdm_drop(m, middle);
    m->label = label;
    return y;
}

struct tdm_eager_value *megatron_run_region(struct tdm_megatron *t, enum megatron_region region,
                                            uint32_t chunk, uint32_t first, uint32_t count,
                                            struct tdm_eager_value *const *inputs)
{
    if (region == REGION_CORE)
        return megatron_core(t, inputs[0], inputs[1], inputs[2]);
    if (region == REGION_MLP)
        return mlp(t, &t->chunks[chunk].layers[first], inputs[0]);
    if (region == REGION_MOE)
        return megatron_mixture(t, chunk, first, inputs[0]);
    if (region == REGION_SHARED)
        return megatron_shared_experts(t, &t->chunks[chunk].layers[first], inputs[0]);
    struct tdm_eager_value *x = tdm_take(inputs[0]);
    for (uint32_t i = first; i < first + count; i++) {
        struct tdm_eager_value *y = run_layer(t, chunk, i, x);
        tdm_drop(t->m, x);
        x = y;
    }
    return x;
}

/* ---- regions that are recomputed ---- */

enum { REGION, CHUNK, FIRST, COUNT };

static bool divides_saved(const struct tdm_megatron *t, enum megatron_region region)
{
    return region == REGION_LAYERS && t->set.distribute_saved && t->layout.tensor > 1;
}

static void checkpoint_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    struct tdm_megatron *t = node->context;
    struct tdm_eager_value *saved[3] = {0}, *inputs[3] = {0};
    uint32_t count = node->saved_count;
    enum megatron_region region = (enum megatron_region)node->facts[REGION];
    for (uint32_t i = 0; i < count; i++) {
        saved[i] = tdm_node_saved(m, node, i);
        if (divides_saved(t, region)) { /* gathers the whole input */
            struct tdm_eager_value *whole = tdm_value_new(m, t->part_rows, t->config->hidden, BF16);
            tdm_drop(m, saved[i]);
            saved[i] = whole;
        }
        inputs[i] = tdm_value_view(m, saved[i]);
        inputs[i]->view = saved[i]->view;
        tdm_value_require_grad(m, inputs[i]);
    }
    bool grad_enabled = m->grad_enabled;
    m->grad_enabled = true;
    struct tdm_eager_value *output =
        megatron_run_region(t, region, (uint32_t)node->facts[CHUNK], (uint32_t)node->facts[FIRST],
                            (uint32_t)node->facts[COUNT], inputs);
    tdm_backward(m, output, grads[0]);
    m->grad_enabled = grad_enabled;
    tdm_drop(m, output);
    for (uint32_t i = 0; i < count; i++) {
        results[i] = tdm_take(inputs[i]->grad);
        tdm_drop(m, inputs[i]);
        tdm_drop(m, saved[i]);
    }
}

struct tdm_eager_value *megatron_checkpoint(struct tdm_megatron *t, enum megatron_region region,
                                            uint32_t chunk, uint32_t first, uint32_t count,
                                            struct tdm_eager_value *const *inputs,
                                            uint32_t input_count)
{
    static const struct tdm_eager_op op = {"CheckpointFunctionBackward", false,
                                           checkpoint_backward};
    struct tdm_eager *m = t->m;
    struct tdm_node *node = tdm_node_new(m, &op, inputs, input_count);
    bool grad_enabled = m->grad_enabled;
    m->grad_enabled = false;
    struct tdm_eager_value *output = megatron_run_region(t, region, chunk, first, count, inputs);
    m->grad_enabled = grad_enabled;
    for (uint32_t i = 0; i < input_count; i++) {
        if (divides_saved(t, region)) {
            struct tdm_eager_value *part =
                tdm_value_new(m, 1, t->part_rows * t->config->hidden / t->layout.tensor, BF16);
            tdm_node_save(m, node, part);
            tdm_drop(m, part);
        } else {
            tdm_node_save(m, node, inputs[i]);
            if (node != NULL)
                node->saved[i].value->view = inputs[i]->view;
        }
    }
    if (node != NULL) {
        const uint64_t facts[] = {region, chunk, first, count};
        for (unsigned i = 0; i < 4; i++)
            node->facts[i] = facts[i];
    }
    return megatron_finish(t, node, output);
}

struct tdm_eager_value *megatron_run_chunk(struct tdm_megatron *t, uint32_t chunk,
                                           struct tdm_eager_value *x)
{
    uint32_t layers = t->layout.layers[chunk];
    for (uint32_t i = 0, count; i < layers; i += count) {
        bool full = t->set.recompute == TDM_RECOMPUTE_FULL, again = full;
        count = 1;
        if (full && t->set.method == TDM_RECOMPUTE_UNIFORM)
            count = (uint32_t)t->set.recompute_layers;
        else if (full)
            again = i < t->set.recompute_layers;
        if (i + count > layers)
            count = layers - i;
        struct tdm_eager_value *y =
            again ? megatron_checkpoint(t, REGION_LAYERS, chunk, i, count, &x, 1)
                  : megatron_run_region(t, REGION_LAYERS, chunk, i, count, &x);
        tdm_drop(t->m, x);
        x = y;
    }
    return x;
}
