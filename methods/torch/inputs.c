/* SPDX-License-Identifier: Apache-2.0 */
/* What a forward allocates before its first layer: positions, masks, cosines and sines. */
#include "base/size.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#define CUB_SCAN_BYTES 1279u /* of CUB's scan over a short array */

void tdm_torch_positions(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *range = tdm_value_new(m, t->settings.tokens, 1, INT64);
    t->positions = tdm_value_new(m, t->settings.tokens, 1, INT64);
    tdm_drop(m, range);
}

/* masking_utils: _packed_sequence_indices checks whether positions restart within a row. */
static void look_for_documents(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    uint64_t rows = t->settings.batch, tokens = t->settings.tokens;
    if (t->caches)
        return;
    struct tdm_eager_value *before = tdm_value_new(m, rows, 1, INT64);
    struct tdm_eager_value *joined = tdm_value_new(m, rows, tokens + 1, INT64);
    struct tdm_eager_value *difference = tdm_value_new(m, rows, tokens, INT64);
    tdm_drop(m, joined);
    struct tdm_eager_value *unequal = tdm_value_new(m, rows, tokens, BOOL);
    struct tdm_eager_value *sums = tdm_value_new(m, rows, tokens, INT64);
    struct tdm_eager_value *wide = tdm_value_new(m, rows, tokens, INT64);
    if (rows == 1)
        tdm_drop(m, tdm_value_new(m, CUB_SCAN_BYTES, 1, 1));
    tdm_drop(m, wide);
    tdm_drop(m, unequal);
    struct tdm_eager_value *same = tdm_value_new(m, rows, 1, BOOL),
                           *all = tdm_value_new(m, 1, 1, BOOL);
    tdm_drop(m, same);
    tdm_drop(m, all);
    tdm_drop(m, before);
    tdm_drop(m, difference);
    tdm_drop(m, sums);
}

/* masking_utils: sdpa_mask. A boolean mask of tokens x tokens, and those of a trained prefix.
 * `window`: it also masks tokens before the window. */
static struct tdm_eager_value *boolean_mask(struct tdm_torch_model *t, bool window)
{
    struct tdm_eager *m = t->m;
    uint64_t tokens = t->settings.tokens;
    struct tdm_eager_value *indices[4], *mask;
    indices[0] = tdm_value_new(m, t->settings.batch, 1, INT64);
    indices[1] = tdm_value_new(m, 1, 1, INT64);
    for (unsigned i = 2; i < 4; i++) {
        struct tdm_eager_value *range = tdm_value_new(m, tokens, 1, INT64);
        indices[i] = tdm_value_new(m, tokens, 1, INT64);
        tdm_drop(m, range);
    }
    if (window) {
        struct tdm_eager_value *ones = tdm_value_new(m, 1, 1, BOOL);
        struct tdm_eager_value *border = tdm_value_new(m, tokens, 1, INT64);
        struct tdm_eager_value *near = tdm_value_new(m, tokens, tokens, BOOL);
        tdm_drop(m, border);
        struct tdm_eager_value *first = tdm_value_new(m, tokens, tokens, BOOL);
        tdm_drop(m, near);
        tdm_drop(m, ones);
        struct tdm_eager_value *causal = tdm_value_new(m, tokens, tokens, BOOL);
        mask = tdm_value_new(m, tokens, tokens, BOOL);
        tdm_drop(m, causal);
        tdm_drop(m, first);
    } else {
        mask = tdm_value_new(m, tokens, tokens + tdm_adapter_prefix_tokens(&t->settings), BOOL);
    }
    for (unsigned i = 0; i < 4; i++)
        tdm_drop(m, indices[i]);
    return mask;
}

/* masking_utils: eager_mask. Converts a mask to numbers in the dtype of the embedding. Takes
 * ownership of `mask`. */
static struct tdm_eager_value *number_mask(struct tdm_torch_model *t, struct tdm_eager_value *mask)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *zero = tdm_value_new(m, 1, 1, t->weight_bytes);
    struct tdm_eager_value *least = tdm_value_new(m, 1, 1, t->weight_bytes);
    struct tdm_eager_value *numbers =
        tdm_value_new(m, t->settings.batch * mask->rows, mask->columns, t->weight_bytes);
    tdm_drop(m, least);
    tdm_drop(m, zero);
    tdm_drop(m, mask);
    return numbers;
}

/* flash_attn, which divided sequences use too, handles the window itself (masking_utils:
 * flash_attention_mask). */
static bool needs_window_mask(const struct tdm_torch_model *t)
{
    if (t->settings.flash_package)
        return false;
    for (uint32_t i = 0; i < t->config->layers; i++) {
        uint64_t window = t->config->layer_kinds[i].window;
        if (window > 0 && t->settings.tokens >= window)
            return true;
    }
    return false;
}

static bool has_full_layer(const struct tdm_torch_model *t)
{
    for (uint32_t i = 0; i < t->config->layers; i++)
        if (t->config->layer_kinds[i].window == 0)
            return true;
    return false;
}

void tdm_torch_masks(struct tdm_torch_model *t)
{
    bool eager = t->settings.attention == TDM_TORCH_EAGER;
    t->mask = t->window_mask = NULL;
    if (has_full_layer(t)) {
        look_for_documents(t);
        const bool longer =
            tdm_adapter_prefix_tokens(&t->settings) > 0 && !t->settings.flash_package;
        if (eager)
            t->mask = number_mask(t, boolean_mask(t, false));
        if (t->config->own_scores == TDM_SCORES_MPT)
            t->mask = tdm_replace(t->m, t->mask,
                                  tdm_value_new(t->m, t->mask->rows, t->mask->columns, BOOL));
        else if (longer) /* keys are more than queries: no kernel masks that */
            t->mask = boolean_mask(t, false);
    }
    bool windows = false;
    for (uint32_t i = 0; i < t->config->layers; i++)
        windows |= t->config->layer_kinds[i].window > 0;
    if (!windows)
        return;
    look_for_documents(t);
    if (needs_window_mask(t) || eager)
        t->window_mask = boolean_mask(t, true);
    if (eager)
        t->window_mask = number_mask(t, t->window_mask);
}

/* Cosines and sines of one kind of layers. */
static void angles(struct tdm_torch_model *t, struct tdm_eager_value **cosine,
                   struct tdm_eager_value **sine)
{
    struct tdm_eager *m = t->m;
    uint64_t tokens = t->settings.tokens, dim = t->config->rotary_dim;
    if (t->settings.context.chunk_tokens > 0) /* FPDT rotates what came from all ranks */
        tokens *= t->settings.context.ulysses_degree;
    struct tdm_eager_value *positions = tdm_value_new(m, tokens, 1, FP32);
    struct tdm_eager_value *half = tdm_value_new(m, tokens, dim / 2, FP32);
    tdm_cublas(m);
    if ((t->config->parts & TDM_PART_SINKS) != 0)
        dim /= 2;
    struct tdm_eager_value *both = (t->config->parts & TDM_PART_SINKS) != 0
                                       ? tdm_take(half)
                                       : tdm_value_new(m, tokens, dim, FP32),
                           *scaled[2];
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *plain = tdm_value_new(m, tokens, dim, FP32);
        scaled[i] = tdm_value_new(m, tokens, dim, FP32);
        tdm_drop(m, plain);
    }
    const bool wide =
        (t->config->parts & TDM_PART_WIDE_ROPE) != 0 || tdm_torch_is_litgpt(&t->settings);
    uint16_t bytes = wide ? FP32 : t->weight_bytes;
    *cosine = tdm_cast(m, scaled[0], bytes);
    *sine = tdm_cast(m, scaled[1], bytes);
    tdm_drop(m, positions);
    tdm_drop(m, half);
    tdm_drop(m, both);
    tdm_drop(m, scaled[0]);
    tdm_drop(m, scaled[1]);
}

/* Llama 4: unit complex numbers, of two times four bytes. */
static void complex_angles(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    uint64_t tokens = t->settings.tokens, dim = t->config->rotary_dim;
    struct tdm_eager_value *positions = tdm_value_new(m, tokens, 1, FP32);
    struct tdm_eager_value *half = tdm_value_new(m, tokens, dim / 2, FP32);
    tdm_cublas(m);
    struct tdm_eager_value *ones = tdm_value_like(m, half);
    struct tdm_eager_value *plain = tdm_value_new(m, tokens, dim, FP32);
    tdm_drop(m, ones);
    t->cosine = tdm_value_new(m, tokens, dim, FP32);
    tdm_drop(m, plain);
    tdm_drop(m, half);
    tdm_drop(m, positions);
}

void tdm_torch_rotary(struct tdm_torch_model *t)
{
    t->cosine = t->sine = t->window_cosine = t->window_sine = NULL;
    tdm_torch_alibi(t);
    if (t->config->own_scores == TDM_SCORES_GPTJ) /* by each layer */
        return;
    if ((t->config->parts & (TDM_PART_POSITIONS | TDM_PART_NO_ANGLES)) != 0)
        return;
    if ((t->config->parts & TDM_PART_COMPLEX_ROPE) != 0 ||
        (t->config->latent.kv_rank > 0 && t->config->latent.rotation == TDM_LATENT_COMPLEX)) {
        complex_angles(t);
        return;
    }
    angles(t, &t->cosine, &t->sine);
    t->window_cosine = t->window_sine = NULL;
    if ((t->config->parts & TDM_PART_TWO_ROPES) != 0)
        angles(t, &t->window_cosine, &t->window_sine);
}

void tdm_torch_drop_inputs(struct tdm_torch_model *t)
{
    tdm_drop(t->m, t->positions);
    tdm_drop(t->m, t->cosine);
    tdm_drop(t->m, t->sine);
    tdm_drop(t->m, t->window_cosine);
    tdm_drop(t->m, t->window_sine);
    tdm_drop(t->m, t->mask);
    tdm_drop(t->m, t->window_mask);
}
