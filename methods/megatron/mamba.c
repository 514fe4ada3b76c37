/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers of Mamba-2 in hybrid models, as Nemotron-H: the norm is fused with the product before the
 * convolution; convolution and scan are one function of mamba_ssm, which applies the gate and saves
 * its input and output alone; then a norm of groups, and the product. Tensor ranks have whole
 * groups of heads. Sources: megatron/core/ssm/{mamba_mixer,mamba_layer}.py (_ssm_training),
 * models/mamba/ mamba_layer_specs.py; mamba_ssm ops/triton/{ssd_combined,layernorm_gated}.py.
 */
#include "methods/megatron/parts.h"

#include "methods/divisors.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <inttypes.h>

#define HYBRID_PARTS \
    (TDM_PART_PLAIN_MLP | TDM_PART_ONE_MIXER | TDM_PART_NO_ANGLES) /* of Nemotron-H */

enum tdm_status megatron_check_mamba(const struct tdm_model *model,
                                     const struct tdm_method_settings *settings,
                                     const struct tdm_megatron_layout *l, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    const char *method = settings->method->name;
    const char *what = s->packed || s->hybrid          ? "packed sequences"
                       : settings->torch.lora_rank > 0 ? "adapters"
                       : s->linear_bias                ? "biases of products"
                                                       : NULL;
    char text[TDM_DIVISORS_BYTES];
    if (model->mamba.heads == 0)
        return TDM_OK;
    if ((model->parts & ~(uint32_t)HYBRID_PARTS) != 0 || !model->mamba.kernel_bias) {
        tdm_fail(err, TDM_USAGE, "method %s: layers of Mamba-2 as %s has them are not modelled",
                 method, model->architecture);
        return tdm_hint(err, "nemotron-h-8b and others of its family; or method fsdp");
    }
    if (what != NULL)
        return tdm_fail(err, TDM_USAGE, "method %s: layers of Mamba-2 with %s are not modelled",
                        method, what);
    if (model->mamba.groups % l->tensor != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set tensor_model_parallel_size: %" PRIu64 " does not divide %" PRIu32
                 " groups of Mamba-2",
                 l->tensor, model->mamba.groups);
        return tdm_hint(err, "sizes that do: %s",
                        tdm_divisors_format(model->mamba.groups, 1, UINT64_MAX, text));
    }
    const uint64_t heads = model->mamba.heads / l->tensor, groups = model->mamba.groups / l->tensor;
    if (heads % l->context != 0 ||
        (groups < l->context ? l->context % groups != 0 : groups % l->context != 0))
        return tdm_fail(err, TDM_USAGE,
                        "--set context_parallel_size: %" PRIu64 " does not divide %" PRIu64
                        " heads and %" PRIu64 " groups of Mamba-2 on a tensor rank, or share them",
                        l->context, heads, groups);
    return TDM_OK;
}

/* On this rank, whose parameters are not divided further. */
static struct tdm_scan_shape shape_of(const struct tdm_megatron *t)
{
    const struct tdm_mamba *s = &t->config->mamba;
    return (struct tdm_scan_shape){.sequences = t->batch,
                                   .tokens = t->tokens,
                                   .heads = s->heads / t->layout.tensor,
                                   .head_dim = s->head_dim,
                                   .groups = s->groups / t->layout.tensor,
                                   .state = s->state,
                                   .chunk = s->chunk};
}

/* Of a scan: context ranks exchange tokens for heads, and share groups that are fewer than they
 * (mamba_context_parallel.py MambaContextParallel). */
static struct tdm_scan_shape scan_of(const struct tdm_megatron *t)
{
    struct tdm_scan_shape s = shape_of(t);
    const uint64_t ranks = t->layout.context;
    s.tokens *= ranks;
    s.heads /= ranks;
    s.groups = s.groups < ranks ? 1 : s.groups / ranks;
    return s;
}

/* ---- what context ranks exchange ---- */

/* The gradient in the other order, its parts, and what they make. */
static void exchange_backward(struct tdm_eager *m, struct tdm_node *node,
                              struct tdm_eager_value *const *grads,
                              struct tdm_eager_value **results)
{
    struct tdm_eager_value *ordered = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *parts = tdm_value_like(m, grads[0]);
    results[0] = tdm_value_new(m, node->edges[0].rows, node->edges[0].columns, BF16);
    tdm_drop(m, parts);
    tdm_drop(m, ordered);
}

/* pre_conv_ssm: z, x, B, C and dt by themselves, joined, and put in the order of tokens. Takes x.
 */
static struct tdm_eager_value *exchange_before(struct tdm_megatron *t, struct tdm_eager_value *x,
                                               uint64_t rows, uint64_t columns)
{
    static const struct tdm_eager_op op = {"_AllToAllBackward", false, exchange_backward};
    struct tdm_eager *m = t->m;
    if (t->layout.context == 1)
        return x;
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *parts = tdm_value_new(m, rows, columns, BF16);
    struct tdm_eager_value *joined = tdm_value_like(m, parts);
    struct tdm_eager_value *ordered = tdm_value_like(m, parts);
    tdm_drop(m, joined);
    tdm_drop(m, parts);
    tdm_drop(m, x);
    return megatron_finish(t, node, ordered);
}

/* post_conv_ssm: in the order of attention, then exchanged. Takes y. */
static struct tdm_eager_value *exchange_after(struct tdm_megatron *t, struct tdm_eager_value *y,
                                              uint64_t rows, uint64_t columns)
{
    static const struct tdm_eager_op op = {"_AllToAllBackward", false, exchange_backward};
    struct tdm_eager *m = t->m;
    if (t->layout.context == 1)
        return y;
    struct tdm_node *node = tdm_node_new(m, &op, &y, 1);
    struct tdm_eager_value *ordered = tdm_value_like(m, y), *parts = tdm_value_like(m, y);
    struct tdm_eager_value *made = tdm_value_new(m, rows, columns, BF16);
    tdm_drop(m, parts);
    tdm_drop(m, ordered);
    tdm_drop(m, y);
    return megatron_finish(t, node, made);
}

void megatron_add_mamba(struct tdm_megatron *t, struct megatron_chunk *chunk,
                        struct megatron_layer *layer,
                        void (*add)(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                    struct tdm_eager_value **place, uint64_t rows,
                                    uint64_t columns),
                        void (*add_product)(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                            struct tdm_eager_value **place, uint64_t rows,
                                            uint64_t columns, const struct megatron_layer *layer))
{
    const struct tdm_scan_shape s = shape_of(t);
    const uint64_t hidden = t->config->hidden, inner = s.heads * s.head_dim;
    const uint64_t width = inner + 2 * s.groups * s.state;
    add(t, chunk, &layer->mamba[MAMBA_KERNEL], width, t->config->mamba.kernel);
    add(t, chunk, &layer->mamba[MAMBA_KERNEL_BIAS], 1, width);
    add(t, chunk, &layer->mamba[MAMBA_TIME], 1, s.heads);
    add(t, chunk, &layer->mamba[MAMBA_DECAY], 1, s.heads);
    add(t, chunk, &layer->mamba[MAMBA_SKIP], 1, s.heads);
    add(t, chunk, &layer->qkv_norm, 1, hidden);
    if (t->set.layer_norm)
        add(t, chunk, &layer->qkv_norm_bias, 1, hidden);
    add_product(t, chunk, &layer->mamba[MAMBA_IN], inner + width + s.heads, hidden, layer);
    add(t, chunk, &layer->mamba[MAMBA_NORM], 1, inner);
    add_product(t, chunk, &layer->mamba[MAMBA_OUT], hidden, inner, layer);
}

/* From tokens, then sequences, to sequences, then tokens, or back. Takes x. */
static struct tdm_eager_value *rearranged(struct tdm_megatron *t, struct tdm_eager_value *x)
{
    return t->batch > 1 ? tdm_replace(t->m, x, megatron_copy(t, x)) : x;
}

struct tdm_eager_value *megatron_mamba(struct tdm_megatron *t, const struct megatron_layer *layer,
                                       struct tdm_eager_value *x)
{
    struct tdm_eager *m = t->m;
    const struct tdm_scan_shape shape = scan_of(t), own = shape_of(t);
    const uint64_t inner = shape.heads * shape.head_dim,
                   scanned = 2 * inner + 2 * shape.groups * shape.state + shape.heads;
    struct megatron_kept kept = {.count = 0};
    tdm_label(m, "mixer.in_proj");
    struct tdm_eager_value *all =
        megatron_norm_linear(t, x, layer->qkv_norm, layer->qkv_norm_bias, layer->mamba[MAMBA_IN],
                             NULL, &layer->adapters[ADAPTED_QKV]);
    tdm_label(m, "mixer");
    all = exchange_before(t, all, shape.sequences * shape.tokens, scanned);
    all = megatron_keep(m, &kept, rearranged(t, all));
    struct tdm_eager_value *decay =
        megatron_keep(m, &kept, tdm_torch_minus_exp(m, layer->mamba[MAMBA_DECAY]));
    /* get_conv1d_weight: rows of a context rank */
    struct tdm_eager_value *kernel = tdm_take(layer->mamba[MAMBA_KERNEL]);
    if (t->layout.context > 1)
        kernel =
            tdm_replace(m, kernel, tdm_rows(m, kernel, inner + 2 * shape.groups * shape.state));
    megatron_keep(m, &kept, kernel);
    struct tdm_eager_value *time = tdm_cast(m, layer->mamba[MAMBA_TIME], FP32);
    const struct tdm_scan_inputs inputs = {.all = all,
                                           .kernel = kernel,
                                           .kernel_bias = layer->mamba[MAMBA_KERNEL_BIAS],
                                           .time = time,
                                           .decay = decay,
                                           .skip = layer->mamba[MAMBA_SKIP]};
    struct tdm_eager_value *y = tdm_mamba_scan(m, &shape, &inputs);
    tdm_drop(m, time);
    megatron_drop_all(m, &kept);
    y = rearranged(t, y);
    y = exchange_after(t, y, t->rows, own.heads * own.head_dim);
    tdm_label(m, "mixer.norm");
    y = tdm_replace(m, y, tdm_mamba_norm(m, y, layer->mamba[MAMBA_NORM], own.groups));
    tdm_label(m, "mixer.out_proj");
    struct tdm_eager_value *made =
        megatron_row_linear(t, y, layer->mamba[MAMBA_OUT], &layer->adapters[ADAPTED_PROJECTION]);
    tdm_drop(m, y);
    return made;
}
