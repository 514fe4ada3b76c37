/* SPDX-License-Identifier: Apache-2.0 */
/* Projections of a layer, with adapters or without. Sources: peft 0.21, tuners/lora/layer.py,
 * bnb.py, variants.py (DoraLinearVariant) and dora.py (DoraLinearLayer). */
#include "methods/eager/ops.h"
#include "methods/eager/quantized.h"
#include "methods/torch/parts.h"

#include <stddef.h>

static const char *const module_names[TDM_PROJECTIONS] = {
    [TDM_PROJECTION_Q] = "self_attn.q_proj",
    [TDM_PROJECTION_K] = "self_attn.k_proj",
    [TDM_PROJECTION_V] = "self_attn.v_proj",
    [TDM_PROJECTION_Q_A] = "self_attn.q_a_proj",
    [TDM_PROJECTION_Q_B] = "self_attn.q_b_proj",
    [TDM_PROJECTION_KV_A] = "self_attn.kv_a_proj_with_mqa",
    [TDM_PROJECTION_KV_B] = "self_attn.kv_b_proj",
    [TDM_PROJECTION_O] = "self_attn.o_proj",
    [TDM_PROJECTION_QKV] = "self_attn.qkv_proj",
    [TDM_PROJECTION_GATE] = "mlp.gate_proj",
    [TDM_PROJECTION_UP] = "mlp.up_proj",
    [TDM_PROJECTION_GATE_UP] = "mlp.gate_up_proj",
    [TDM_PROJECTION_DOWN] = "mlp.down_proj",
};

/* ---- DoRA ---- */

static void divide_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *divisor = tdm_node_saved(m, node, 0);
    results[0] = tdm_value_like(m, grads[0]);
    tdm_drop(m, divisor);
}

/* x / divisor, which needs no gradient. */
static struct tdm_eager_value *divide(struct tdm_eager *m, struct tdm_eager_value *x,
                                      struct tdm_eager_value *divisor)
{
    static const struct tdm_eager_op op = {"DivBackward0", false, divide_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_node_save(m, node, divisor);
    return tdm_node_finish(m, node, tdm_value_like(m, x));
}

/* The change of a weight, B A, which peft makes as the product of an identity. Its graph is not run
 * backward, as the change is detached, but lives with it: of the identity as the product took it,
 * and of what lies between A and B. */
struct change {
    struct tdm_eager_value *identity, *low, *whole;
};

static struct change weight_change(struct tdm_eager *m, const struct tdm_eager_value *x,
                                   struct tdm_eager_value *down, struct tdm_eager_value *up)
{
    struct tdm_eager_value *a = tdm_autocast(m, down), *b = tdm_autocast(m, up);
    bool enabled = m->grad_enabled;
    m->grad_enabled = false;
    struct tdm_eager_value *identity =
        tdm_value_new(m, down->columns, down->columns, down->element_bytes);
    struct change c = {.identity = tdm_autocast(m, identity)};
    c.low = tdm_linear(m, c.identity, a, NULL, true);
    c.whole = tdm_linear(m, c.low, b, NULL, true);
    tdm_drop(m, identity);
    c.whole = tdm_replace(m, c.whole, tdm_cast(m, c.whole, x->element_bytes));
    m->grad_enabled = enabled;
    tdm_drop(m, a);
    tdm_drop(m, b);
    return c;
}

/* The base's weight in the dtype of x, dequantized if it must be. */
static struct tdm_eager_value *whole_weight(struct tdm_eager *m, const struct tdm_eager_value *x,
                                            struct tdm_eager_value *weight)
{
    if (weight->quantized == NULL)
        return tdm_cast(m, weight, x->element_bytes);
    struct tdm_eager_value *made = tdm_value_new(m, weight->rows, weight->columns, BF16);
    return tdm_replace(m, made, tdm_cast(m, made, x->element_bytes));
}

/* magnitude / |W + s B A|, by rows. */
static struct tdm_eager_value *magnitude_scale(struct tdm_eager *m,
                                               const struct tdm_eager_value *weight,
                                               struct tdm_eager_value *magnitude)
{
    struct tdm_eager_value *scaled = tdm_value_like(m, weight), *sum = tdm_value_like(m, weight);
    tdm_drop(m, scaled);
    struct tdm_eager_value *norm = tdm_value_new(m, 1, weight->rows, weight->element_bytes);
    tdm_drop(m, sum);
    struct tdm_eager_value *scale = divide(m, magnitude, norm);
    tdm_drop(m, norm);
    return scale;
}

/* base + (scale - 1) base + scale * s B(A(x)). `x` has passed the dropout, if there is one; then
 * the base is computed of it again. Takes `base`. */
static struct tdm_eager_value *add_dora(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        const struct torch_layer *layer, enum tdm_projection p,
                                        struct tdm_eager_value *x, struct tdm_eager_value *base)
{
    struct change change = weight_change(m, x, layer->down[p], layer->up[p]);
    struct tdm_eager_value *weight = whole_weight(m, x, layer->weight[p]);
    struct tdm_eager_value *scale = magnitude_scale(m, weight, layer->magnitude[p]);
    struct tdm_eager_value *low =
        tdm_torch_linear(m, t, x, layer->down[p], NULL, layer->down[p]->module);
    struct tdm_eager_value *high =
        tdm_torch_linear(m, t, low, layer->up[p], NULL, layer->up[p]->module);
    tdm_drop(m, low);
    struct tdm_eager_value *plain = t->settings.lora_dropout > 0
                                        ? tdm_linear(m, x, weight, NULL, false)
                                    : layer->bias[p] != NULL ? tdm_add(m, base, layer->bias[p])
                                                             : tdm_take(base);
    struct tdm_eager_value *less = tdm_add_number(m, scale);
    struct tdm_eager_value *first = tdm_mul(m, less, plain);
    tdm_drop(m, less);
    struct tdm_eager_value *second = tdm_mul(m, scale, high);
    second = tdm_replace(m, second, tdm_mul_number(m, second));
    struct tdm_eager_value *extra = tdm_add(m, first, second);
    tdm_drop(m, first);
    tdm_drop(m, second);
    struct tdm_eager_value *locals[] = {change.identity, change.low, change.whole, weight,
                                        scale,           high,       plain};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    struct tdm_eager_value *sum = tdm_add(m, base, extra);
    tdm_drop(m, extra);
    tdm_drop(m, base);
    return sum;
}

/* ---- LoRA ---- */

/* Adds the adapter to `base`, which it takes over. peft casts the input to the adapter's dtype, and
 * the sum back to the dtype of `base`, which under autocast is not that of the input. Its layers
 * for bitsandbytes copy `base` first if it is of 4 bits, and cast the adapter's result in place of
 * the sum, under autocast nothing (peft/tuners/lora/bnb.py); so does that for AWQ, before it scales
 * (awq.py). */
static struct tdm_eager_value *adapted(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       const struct torch_layer *layer, enum tdm_projection p,
                                       struct tdm_eager_value *x, struct tdm_eager_value *base)
{
    const struct tdm_quantized *quantized = layer->weight[p]->quantized;
    bool bnb = quantized != NULL && tdm_quantized_casts_results(quantized);
    bool first = bnb && tdm_quantized_casts_first(quantized);
    bool casts = t->settings.peft && !(bnb && m->autocast);
    uint16_t base_bytes = base->element_bytes;
    tdm_label(m, "lora");
    if (quantized != NULL && tdm_quantized_is_cloned(quantized) &&
        !tdm_torch_is_litgpt(&t->settings))
        base = tdm_replace(m, base, tdm_clone(m, base));
    struct tdm_eager_value *input = casts ? tdm_cast(m, x, FP32) : tdm_take(x);
    struct tdm_eager_value *dropped =
        t->settings.lora_dropout > 0 ? tdm_dropout(m, input) : tdm_take(input);
    if (layer->magnitude[p] != NULL) {
        struct tdm_eager_value *sum = add_dora(m, t, layer, p, dropped, base);
        struct tdm_eager_value *y = casts ? tdm_cast(m, sum, base_bytes) : tdm_take(sum);
        tdm_drop(m, sum);
        tdm_drop(m, dropped);
        tdm_drop(m, input);
        return y;
    }
    struct tdm_eager_value *low =
        tdm_torch_linear(m, t, dropped, layer->down[p], NULL, layer->down[p]->module);
    tdm_drop(m, dropped);
    struct tdm_eager_value *high =
        tdm_torch_linear(m, t, low, layer->up[p], NULL, layer->up[p]->module);
    tdm_drop(m, low);
    if (first && casts)
        high = tdm_replace(m, high, tdm_cast(m, high, base_bytes));
    struct tdm_eager_value *scaled = tdm_mul_number(m, high);
    tdm_drop(m, high);
    if (bnb && casts)
        scaled = tdm_replace(m, scaled, tdm_cast(m, scaled, base_bytes));
    struct tdm_eager_value *sum = tdm_add(m, base, scaled);
    tdm_drop(m, scaled);
    tdm_drop(m, base);
    struct tdm_eager_value *y = casts && !bnb ? tdm_cast(m, sum, base_bytes) : tdm_take(sum);
    tdm_drop(m, sum);
    tdm_drop(m, input);
    return y;
}

/* ---- IA3, VeRA ---- */

/* A projection times numbers in the dtype of the adapter; of the MLP's last one the input is
 * (peft/tuners/ia3/layer.py Linear.forward). */
static struct tdm_eager_value *scaled_projection(struct tdm_eager *m,
                                                 const struct tdm_torch_model *t,
                                                 const struct torch_layer *layer,
                                                 enum tdm_projection p, struct tdm_eager_value *x)
{
    struct tdm_eager_value *weight = layer->weight[p], *bias = layer->bias[p];
    struct tdm_eager_value *numbers = tdm_mul_number(m, layer->down[p]), *y;
    if (p == TDM_PROJECTION_DOWN) {
        struct tdm_eager_value *wide = tdm_cast(m, x, numbers->element_bytes);
        struct tdm_eager_value *scaled = tdm_mul(m, wide, numbers);
        scaled = tdm_replace(m, scaled, tdm_cast(m, scaled, x->element_bytes));
        y = tdm_torch_linear(m, t, scaled, weight, bias, weight->module);
        tdm_drop(m, scaled);
        tdm_drop(m, wide);
    } else {
        struct tdm_eager_value *base = tdm_torch_linear(m, t, x, weight, bias, weight->module);
        struct tdm_eager_value *scaled = tdm_mul(m, base, numbers);
        y = tdm_cast(m, scaled, base->element_bytes);
        tdm_drop(m, scaled);
        tdm_drop(m, base);
    }
    tdm_drop(m, numbers);
    return y;
}

/* A part of one of VeRA's matrices. */
static struct tdm_eager_value *vera_part(struct tdm_eager *m, struct tdm_eager_value *whole,
                                         uint64_t rows, uint64_t columns)
{
    struct tdm_eager_value *part = tdm_value_view(m, whole);
    part->rows = rows;
    part->columns = columns;
    return part;
}

/* base + b * B(d * A(x)) (peft/tuners/vera/layer.py Linear.forward). Takes `base`. */
static struct tdm_eager_value *add_vera(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        const struct torch_layer *layer, enum tdm_projection p,
                                        struct tdm_eager_value *x, struct tdm_eager_value *base)
{
    const uint16_t bytes = base->element_bytes;
    struct tdm_eager_value *a = vera_part(m, t->vera[0], t->vera[0]->rows, x->columns),
                           *b = vera_part(m, t->vera[1], base->columns, t->vera[1]->columns);
    struct tdm_eager_value *input = tdm_cast(m, x, layer->down[p]->element_bytes);
    struct tdm_eager_value *dropped =
        t->settings.lora_dropout > 0 ? tdm_dropout(m, input) : tdm_take(input);
    struct tdm_eager_value *low = tdm_linear(m, dropped, a, NULL, false);
    tdm_drop(m, dropped);
    low = tdm_replace(m, low, tdm_mul(m, layer->down[p], low));
    struct tdm_eager_value *high = tdm_linear(m, low, b, NULL, false);
    tdm_drop(m, low);
    high = tdm_replace(m, high, tdm_mul(m, layer->up[p], high));
    struct tdm_eager_value *sum = tdm_add(m, base, high);
    tdm_drop(m, high);
    tdm_drop(m, base);
    struct tdm_eager_value *y = tdm_cast(m, sum, bytes);
    tdm_drop(m, sum);
    tdm_drop(m, input);
    tdm_drop(m, b);
    tdm_drop(m, a);
    return y;
}

static struct tdm_eager_value *project(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       const struct torch_layer *layer, enum tdm_projection p,
                                       struct tdm_eager_value *x)
{
    struct tdm_eager_value *weight = layer->weight[p], *bias = layer->bias[p];
    if (layer->down[p] == NULL || t->adapters_off)
        return tdm_torch_linear(m, t, x, weight, bias, weight->module);
    if (p == TDM_PROJECTION_O && tdm_lora_kernels_take(t, layer, p))
        return tdm_lora_kernels_output(m, t, layer, x);
    if (t->settings.adapter == TDM_ADAPTER_IA3)
        return scaled_projection(m, t, layer, p, x);
    if (t->settings.adapter == TDM_ADAPTER_LOHA || t->settings.adapter == TDM_ADAPTER_LOKR)
        return tdm_torch_changed(m, t, layer, p, x);
    if (t->settings.adapter == TDM_ADAPTER_OFT || t->settings.adapter == TDM_ADAPTER_BOFT)
        return tdm_torch_rotated(m, t, layer, p, x);
    uint32_t both = layer->down[p]->module - TDM_MODULE_DOWN + TDM_MODULE_ADAPTED;
    struct tdm_eager_value *input = tdm_module_enter(t, both, x);
    struct tdm_eager_value *base = tdm_torch_linear(m, t, input, weight, bias, weight->module);
    struct tdm_eager_value *y = t->settings.adapter == TDM_ADAPTER_VERA
                                    ? add_vera(m, t, layer, p, input, base)
                                : tdm_torch_is_litgpt(&t->settings) && p == TDM_PROJECTION_QKV
                                    ? tdm_litgpt_joint(m, t, layer, input, base)
                                    : adapted(m, t, layer, p, input, base);
    tdm_drop(m, input);
    return tdm_module_leave(t, both, y);
}

struct tdm_eager_value *tdm_torch_project(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer, enum tdm_projection p,
                                          struct tdm_eager_value *x)
{
    tdm_label(m, module_names[p]);
    struct tdm_eager_value *input = tdm_tensor_enter(t, p, x);
    struct tdm_eager_value *y = project(m, t, layer, p, input);
    tdm_drop(m, input);
    return layer->is_part ? y : tdm_tensor_leave(t, p, y);
}
