/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a layer: with scores in memory, by torch's kernels, or of a sequence of which other
 * ranks have parts. Sources: transformers 5.17, integrations/sdpa_attention.py and
 * eager_attention_forward of each family. */
#include "base/size.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>
#include <string.h>

/* GPT-OSS: a column of sinks is joined to the scores, the largest of each row is subtracted, and of
 * the softmax all but that column is used, as a view. *all: the softmax. */
static struct tdm_eager_value *with_sinks(struct tdm_eager *m, const struct torch_layer *layer,
                                          struct tdm_eager_value *scores,
                                          struct tdm_eager_value **all)
{
    struct tdm_eager_value *sinks = tdm_stretch(m, layer->sinks, scores->rows, 1);
    struct tdm_eager_value *joined = tdm_cat(m, scores, sinks);
    struct tdm_eager_value *most = tdm_row_max(m, joined);
    struct tdm_eager_value *lowered = tdm_sub(m, joined, most);
    tdm_drop(m, most);
    tdm_drop(m, joined);
    *all = tdm_softmax(m, lowered);
    struct tdm_eager_value *weights = tdm_columns(m, *all, scores->columns);
    tdm_drop(m, lowered);
    tdm_drop(m, sinks);
    return weights;
}

/* repeat_kv: expand and reshape. Where there is one KV head no memory is needed, but products take
 * the heads of all sequences as one dimension, which is a copy where there are several. */
static struct tdm_eager_value *repeat_kv(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         struct tdm_eager_value *x, bool product)
{
    const uint64_t times =
        t->config->early_heads ? 1 : t->config->query_heads / t->config->kv_heads;
    if (times > 1 && t->config->kv_heads == 1 && !(product && t->settings.batch > 1))
        return tdm_expand(m, x, times);
    return tdm_repeat(m, x, times);
}

bool tdm_torch_drops_scores(const struct tdm_torch_model *t)
{
    return t->config->attention_dropout > 0 || t->settings.attention_dropout > 0;
}

/* Attention with scores in memory: softmax in fp32, between products in bf16. *kept: the weights,
 * which the layer holds until it returns. */
static struct tdm_eager_value *eager_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                               const struct torch_layer *layer,
                                               struct tdm_eager_value *q, struct tdm_eager_value *k,
                                               struct tdm_eager_value *v,
                                               struct tdm_eager_value *mask,
                                               struct tdm_eager_value **kept)
{
    const bool narrow_softmax =
        (t->config->parts & TDM_PART_COMPLEX_ROPE) != 0 ||
        ((t->config->parts & TDM_PART_POSITIONS) != 0 && !t->config->scaled_heads);
    uint64_t tokens = t->settings.tokens + tdm_adapter_prefix_tokens(&t->settings);
    struct tdm_eager_value *keys = repeat_kv(m, t, k, true), *values = repeat_kv(m, t, v, true),
                           *probabilities = NULL;
    struct tdm_eager_value *b = tdm_autocast(m, keys), *a = tdm_autocast(m, q);
    /* Heads that are stored by token cannot be merged with the batch, so they are copied. The
     * copies of autocast stay until the product is done. */
    struct tdm_eager_value *merged = t->settings.batch > 1 ? tdm_contiguous(m, a) : tdm_take(a);
    struct tdm_eager_value *product = tdm_bmm(m, merged, b, a->rows, tokens);
    tdm_drop(m, merged);
    tdm_drop(m, a);
    tdm_drop(m, b);
    struct tdm_eager_value *scaled = tdm_mul_number(m, product);
    tdm_drop(m, product);
    if (t->config->attention_softcap > 0)
        scaled = tdm_torch_softcap(m, scaled);
    struct tdm_eager_value *masked = tdm_add(m, scaled, mask);
    tdm_drop(m, scaled);
    struct tdm_eager_value *weights;
    if (layer->sinks != NULL) {
        weights = with_sinks(m, layer, masked, &probabilities);
    } else {
        struct tdm_eager_value *wide =
            narrow_softmax ? tdm_take(masked) : tdm_cast(m, masked, FP32);
        struct tdm_eager_value *soft = tdm_softmax(m, wide);
        tdm_drop(m, wide);
        weights = tdm_cast(m, soft, q->element_bytes);
        tdm_drop(m, soft);
    }
    tdm_drop(m, masked);
    if (tdm_torch_drops_scores(t))
        weights = tdm_replace(m, weights, tdm_dropout(m, weights));
    struct tdm_eager_value *c = tdm_autocast(m, values), *narrow = tdm_autocast(m, weights);
    struct tdm_eager_value *output = tdm_bmm(m, narrow, c, q->rows, v->columns);
    tdm_drop(m, narrow);
    tdm_drop(m, c);
    if (t->settings.batch > 1) /* a view, whose gradient must be stored by heads */
        output = tdm_replace(m, output, tdm_reshape(m, output, output->rows, output->columns));
    struct tdm_eager_value *turned = tdm_transpose(m, output);
    struct tdm_eager_value *y = tdm_contiguous(m, turned);
    tdm_drop(m, turned);
    tdm_drop(m, output);
    *kept = weights;
    tdm_drop(m, probabilities);
    tdm_drop(m, keys);
    tdm_drop(m, values);
    return y;
}

static struct tdm_attention_shape attention_shape(const struct tdm_torch_model *t,
                                                  enum tdm_attention_kernel kernel)
{
    return (struct tdm_attention_shape){.kernel = kernel,
                                        .batch = t->settings.batch,
                                        .query_heads = t->config->query_heads,
                                        .kv_heads = t->config->kv_heads,
                                        .tokens = t->settings.tokens,
                                        .head_dim = t->config->head_dim,
                                        .value_dim = t->config->latent.value_dim};
}

/* Attention of a sequence of which other ranks have parts. */
static struct tdm_eager_value *
divided_attention(struct tdm_eager *m, const struct tdm_torch_model *t, struct tdm_eager_value *q,
                  struct tdm_eager_value *k, struct tdm_eager_value *v)
{
    const struct tdm_attention_shape shape = attention_shape(t, TDM_ATTENTION_FLASH);
    return tdm_context_attention(m, &t->settings.context, &shape, q, k, v);
}

/* To transformers 4.47, classes of these families repeat K and V before flash_attn, which needs no
 * repetition (modeling_mistral.py MistralFlashAttention2 of 4.45.2). */
static bool repeats_for_flash(const struct tdm_torch_model *t)
{
    static const char *const families[] = {"Mistral", "Mixtral",    "Qwen2", "Qwen2Moe",
                                           "Phi3",    "Starcoder2", NULL};
    if (!t->settings.flash_package || t->settings.loss != TDM_LOSS_WIDE)
        return false;
    for (const char *const *family = families; *family != NULL; family++) {
        size_t length = strlen(*family);
        if (strncmp(t->config->architecture, *family, length) == 0 &&
            strcmp(t->config->architecture + length, "ForCausalLM") == 0)
            return true;
    }
    return false;
}

/* _scaled_dot_product_attention_math (torch, transformers/attention.cpp), where no kernel takes
 * these heads (TDM_TORCH_MATH). K and V of groups in fp32 are repeated by torch; one head of
 * all queries is broadcast by the products. Of 16 bits all is done in fp32, and the weights, which
 * are returned too, are cast back. The causal mask is added in place. _safe_softmax finds rows
 * without a finite score, and copies the softmax for them. */
static struct tdm_eager_value *math_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              struct tdm_eager_value *q, struct tdm_eager_value *k,
                                              struct tdm_eager_value *v)
{
    const uint64_t tokens = t->settings.tokens;
    uint16_t bytes = FP32;
    const bool one = t->config->kv_heads == 1;
    struct tdm_eager_value *given[] = {q, k, v}, *wide[3];
    for (unsigned i = 0; i < 3; i++) {
        struct tdm_eager_value *narrow = tdm_autocast(m, given[i]);
        bytes = narrow->element_bytes;
        wide[i] = tdm_cast(m, narrow, FP32);
        tdm_drop(m, narrow);
    }
    struct tdm_eager_value *scaled = tdm_mul_number(m, wide[0]);
    struct tdm_eager_value *whole = tdm_value_new(m, tokens, tokens, BOOL);
    whole = tdm_replace(m, whole, tdm_value_new(m, tokens, tokens, BOOL));
    struct tdm_eager_value *mask = tdm_value_new(m, tokens, tokens, FP32);
    tdm_drop(m, whole);
    struct tdm_eager_value *keys = one ? tdm_take(wide[1]) : repeat_kv(m, t, wide[1], false),
                           *values = repeat_kv(m, t, wide[2], one);
    struct tdm_eager_value *scaled_keys = tdm_mul_number(m, keys);
    if (one)
        scaled_keys = tdm_replace(m, scaled_keys, repeat_kv(m, t, scaled_keys, true));
    struct tdm_eager_value *scores = tdm_bmm(m, scaled, scaled_keys, q->rows, tokens);
    tdm_drop(m, scaled_keys);
    tdm_drop(m, scaled);
    struct tdm_eager_value *soft = tdm_value_like(m, scores),
                           *finite = tdm_value_new(m, scores->rows, scores->columns, BOOL);
    tdm_drop(m, finite);
    struct tdm_eager_value *weights = tdm_softmax(m, scores); /* the copy */
    tdm_drop(m, soft);
    tdm_drop(m, scores);
    struct tdm_eager_value *product = tdm_bmm(m, weights, values, q->rows, q->columns);
    struct tdm_eager_value *output = tdm_cast(m, product, bytes);
    tdm_drop(m, product);
    if (bytes != FP32)
        tdm_drop(m, tdm_value_new(m, weights->rows, weights->columns, bytes));
    tdm_drop(m, weights);
    tdm_drop(m, values);
    tdm_drop(m, keys);
    tdm_drop(m, mask);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, wide[i]);
    struct tdm_eager_value *turned = tdm_transpose(m, output);
    tdm_drop(m, output);
    struct tdm_eager_value *y = tdm_contiguous(m, turned);
    tdm_drop(m, turned);
    return y;
}

#define BIAS_ALIGN 8u /* columns of the memory-efficient kernel's bias */

/* torch's scaled_dot_product_attention, or flash_attn. With a mask or the memory-efficient kernel,
 * K and V are repeated first. A mask becomes a bias. FlashAttention's heads of V must be as wide as
 * those of K: torch takes the memory-efficient kernel in its place (sdp_utils.cpp), transformers
 * pads V and crops the output (integrations/flash_attention.py). */
static struct tdm_eager_value *sdpa_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              struct tdm_eager_value *q, struct tdm_eager_value *k,
                                              struct tdm_eager_value *v,
                                              struct tdm_eager_value *mask)
{
    const bool narrow = v->columns != q->columns, pads = narrow && t->settings.flash_package;
    bool efficient = t->settings.attention == TDM_TORCH_EFFICIENT ||
                     t->settings.attention == TDM_TORCH_MATH || /* with a mask */
                     (narrow && !pads && t->settings.attention == TDM_TORCH_SDPA_FLASH);
    struct tdm_attention_shape shape =
        attention_shape(t, t->settings.attention == TDM_TORCH_SDPA ? TDM_ATTENTION_CUDNN
                           : mask != NULL || efficient             ? TDM_ATTENTION_EFFICIENT
                                                                   : TDM_ATTENTION_FLASH);
    struct tdm_eager_value *keys = tdm_take(k),
                           *values = pads ? tdm_pad(m, v, q->columns) : tdm_take(v), *bias = NULL;
    if (mask != NULL || efficient || repeats_for_flash(t)) {
        tdm_drop(m, keys);
        tdm_drop(m, values);
        keys = repeat_kv(m, t, k, false);
        values = repeat_kv(m, t, v, false);
        shape.kv_heads = shape.query_heads;
    }
    if (tdm_torch_is_litgpt(&t->settings) || t->config->early_heads) /* repeated already */
        shape.kv_heads = shape.query_heads;
    struct tdm_eager_value *c = tdm_autocast(m, values), *b = tdm_autocast(m, keys),
                           *a = tdm_autocast(m, q);
    if (mask != NULL) {
        struct tdm_eager_value *zero = tdm_value_new(m, 1, 1, BF16),
                               *least = tdm_value_new(m, 1, 1, BF16);
        bias = tdm_value_new(m, shape.batch * mask->rows, mask->columns, BF16);
        tdm_drop(m, zero);
        tdm_drop(m, least);
        if (shape.kernel == TDM_ATTENTION_EFFICIENT && mask->columns % BIAS_ALIGN != 0)
            bias = tdm_replace(m, bias,
                               tdm_value_new(m, shape.batch * mask->rows,
                                             tdm_size_align(mask->columns, BIAS_ALIGN), BF16));
    }
    struct tdm_eager_value *output = tdm_attention(m, a, b, c, bias, &shape);
    tdm_drop(m, a);
    tdm_drop(m, b);
    tdm_drop(m, c);
    tdm_drop(m, bias);
    if (pads)
        output = tdm_replace(m, output, tdm_columns(m, output, v->columns));
    struct tdm_eager_value *turned = tdm_transpose(m, output);
    tdm_drop(m, output);
    struct tdm_eager_value *y = tdm_contiguous(m, turned);
    tdm_drop(m, turned);
    tdm_drop(m, keys);
    tdm_drop(m, values);
    return y;
}

/* LongLoRA without FlashAttention: groups are sequences, with a copy of the mask's corner each. */
static struct tdm_eager_value *
grouped_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                  const struct torch_layer *layer, struct tdm_eager_value *q,
                  struct tdm_eager_value *k, struct tdm_eager_value *v,
                  struct tdm_eager_value **kept)
{
    uint64_t tokens = tdm_shifted_group_tokens(&t->settings);
    struct tdm_torch_model grouped = *t;
    struct tdm_eager_value *const given[] = {q, k, v};
    struct tdm_eager_value *parts[3];
    grouped.settings.batch *= t->settings.tokens / tokens;
    grouped.settings.tokens = tokens;
    for (unsigned i = 0; i < 3; i++)
        parts[i] = tdm_shift_heads(m, tdm_take(given[i]));
    struct tdm_eager_value *mask =
        tdm_value_new(m, grouped.settings.batch * tokens, tokens, q->element_bytes);
    struct tdm_eager_value *y =
        eager_attention(m, &grouped, layer, parts[0], parts[1], parts[2], mask, kept);
    y = tdm_shift_heads(m, y);
    tdm_drop(m, mask);
    for (unsigned i = 0; i < 3; i++)
        tdm_drop(m, parts[i]);
    return y;
}

struct tdm_eager_value *tdm_torch_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                            const struct torch_layer *layer,
                                            struct tdm_eager_value *q, struct tdm_eager_value *k,
                                            struct tdm_eager_value *v, struct tdm_eager_value *mask,
                                            struct tdm_eager_value **kept)
{
    if (t->settings.materialized_groups)
        return grouped_attention(m, t, layer, q, k, v, kept);
    if (t->settings.shifted)
        return tdm_shifted_attention(m, t, q, k, v);
    if (t->settings.context.divider != NULL)
        return divided_attention(m, t, q, k, v);
    if (t->settings.attention == TDM_TORCH_MATH && mask == NULL)
        return math_attention(m, t, q, k, v);
    return t->settings.attention == TDM_TORCH_EAGER
               ? eager_attention(m, t, layer, q, k, v, mask, kept)
               : sdpa_attention(m, t, q, k, v, mask);
}
