/* SPDX-License-Identifier: Apache-2.0 */
/* The forward of a whole model (embedding, layers, head and loss), and its backward. */
#include "base/size.h"
#include "methods/context/fpdt.h"
#include "methods/eager/cut.h"
#include "methods/eager/liger.h"
#include "methods/eager/ops.h"
#include "methods/eager/tiles.h"
#include "methods/torch/parts.h"

#include <stddef.h>

/* enable_input_require_grads, with adapters and checkpoints. */
static void require_gradient(struct tdm_torch_model *t, struct tdm_eager_value *embedded)
{
    const struct tdm_torch_settings *s = &t->settings;
    if (s->lora_rank == 0 || s->checkpointing == TDM_CHECKPOINTING_OFF || embedded->requires_grad ||
        !t->m->grad_enabled)
        return;
    tdm_value_require_grad(t->m, embedded);
    t->input = tdm_take(embedded);
}

struct tdm_eager_value *tdm_torch_base(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    m->label = (struct tdm_label){.name = "model.embed_tokens", .layer = TDM_NO_LAYER};
    tdm_drop(m, tdm_module_enter(t, TDM_MODULE_EMBEDDING, NULL));
    tdm_drop(m, tdm_unit_enter(t, TDM_MODULE_EMBEDDING, NULL));
    struct tdm_eager_value *embedded = tdm_tensor_embedding(t);
    if (t->embedding_norm[0] != NULL)
        embedded = tdm_replace(
            m, embedded, tdm_layer_norm(m, embedded, t->embedding_norm[0], t->embedding_norm[1]));
    embedded = tdm_module_leave(t, TDM_MODULE_EMBEDDING, embedded);
    if (tdm_adapter_prefix_tokens(s) > 0)
        tdm_torch_prefix(t);
    if (tdm_adapter_prompt_tokens(s) > 0) {
        require_gradient(t, embedded);
        embedded = tdm_torch_prompted(t, embedded);
    }
    if (t->position_weight != NULL) {
        tdm_label(m, "position_ids");
        tdm_torch_positions(t);
        tdm_label(m, "transformer.wpe");
        struct tdm_eager_value *places =
            tdm_embedding(m, t->position_weight, t->positions, s->tokens);
        embedded = tdm_replace(m, embedded, tdm_add(m, embedded, places));
        tdm_drop(m, places);
    }
    if (t->config->embedding_dropout > 0)
        embedded = tdm_replace(m, embedded, tdm_dropout(m, embedded));
    if (t->embedding_scale != NULL)
        embedded = tdm_replace(m, embedded, tdm_mul(m, embedded, t->embedding_scale));
    require_gradient(t, embedded);
    if ((t->config->parts & (TDM_PART_MULTIPLIERS | TDM_PART_FALCON_H1)) != 0)
        embedded = tdm_replace(m, embedded, tdm_mul_number(m, embedded));
    embedded = tdm_unit_leave(t, TDM_MODULE_EMBEDDING, embedded);
    tdm_label(m, "position_ids");
    if (t->position_weight == NULL)
        tdm_torch_positions(t);
    tdm_label(m, "attention_mask");
    tdm_torch_masks(t);
    tdm_label(m, "model.rotary_emb");
    tdm_drop(m, tdm_module_enter(t, TDM_MODULE_ROTARY, NULL));
    tdm_torch_rotary(t);
    tdm_drop(m, tdm_module_leave(t, TDM_MODULE_ROTARY, NULL));
    struct tdm_eager_value *x = tdm_take(embedded);
    for (uint32_t i = 0; i < t->config->layers; i++) {
        if (t->hidden_states != NULL)
            t->hidden_states[i] = tdm_take(x);
        x = tdm_replace(m, x, tdm_torch_layer(t, i, x));
    }
    x = tdm_unit_enter(t, TDM_MODULE_HEAD, x);
    tdm_label(m, "model.norm");
    struct tdm_eager_value *normed =
        tdm_torch_norm_with(m, t, x, t->final_norm, t->final_norm_bias);
    tdm_drop(m, x);
    tdm_drop(m, embedded);
    tdm_torch_drop_inputs(t);
    return normed;
}

bool tdm_torch_has_own_loss(const struct tdm_torch_settings *s)
{
    bool own = s->logits == TDM_LOGITS_HF || s->logits == TDM_LOGITS_HF_HELD;
    return own && s->compile != TDM_COMPILE_ALL && s->logits_tiles == 0 && s->tokens > 1 &&
           tdm_tensor_ranks(s) == 1;
}

/* logits[..., :-1, :].contiguous(). Of one sequence the part is contiguous as it is. */
static struct tdm_eager_value *shifted_logits(struct tdm_torch_model *t,
                                              struct tdm_eager_value *logits)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    tdm_label(m, "shift_logits");
    struct tdm_eager_value *part = tdm_rows(m, logits, s->batch * (s->tokens - 1));
    struct tdm_eager_value *shifted = s->batch > 1 ? tdm_clone(m, part) : tdm_take(part);
    tdm_drop(m, part);
    return shifted;
}

/* The loss of transformers to 4.48 (loss/loss_utils.py ForCausalLMLoss; to 4.45 in each model's
 * file): logits in fp32 stay beside their shifted copy while the cross entropy runs. */
static struct tdm_eager_value *shifted_loss(struct tdm_torch_model *t,
                                            struct tdm_eager_value *logits)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    tdm_label(m, "logits.float()");
    struct tdm_eager_value *wide = tdm_cast(m, logits, FP32), *shifted = shifted_logits(t, wide);
    tdm_label(m, "labels");
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_WORKSPACE;
    struct tdm_eager_value *labels = tdm_value_new(m, s->batch, s->tokens - 1, INT64);
    m->category = before;
    tdm_label(m, "loss");
    struct tdm_eager_value *loss = tdm_cross_entropy(m, shifted, labels);
    tdm_drop(m, labels);
    tdm_drop(m, shifted);
    tdm_drop(m, wide);
    return loss;
}

/* Mean cross entropy of the logits, cast to fp32 unless the loss is of bf16 ones or they are, and
 * of labels shifted by one. */
static struct tdm_eager_value *causal_loss(struct tdm_torch_model *t,
                                           struct tdm_eager_value *logits)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    tdm_label(m, "logits.float()");
    const bool as_it_is = s->logits == TDM_LOGITS_BF16 || s->logits == TDM_LOGITS_BF16_HELD ||
                          s->logits == TDM_LOGITS_FP32_HELD || s->compile == TDM_COMPILE_ALL;
    struct tdm_eager_value *wide = as_it_is ? tdm_take(logits) : tdm_cast(m, logits, FP32);
    tdm_label(m, "labels");
    enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_WORKSPACE;
    struct tdm_eager_value *padded = tdm_value_new(m, s->batch, s->tokens + 1, INT64);
    /* The rows of the padded labels are not contiguous, so several rows are copied. */
    struct tdm_eager_value *labels =
        s->batch > 1 ? tdm_value_new(m, s->batch, s->tokens, INT64) : tdm_take(padded);
    m->category = before;
    tdm_label(m, "loss");
    struct tdm_eager_value *loss = tdm_tensor_cross_entropy(t, wide, labels);
    tdm_drop(m, padded);
    tdm_drop(m, labels);
    tdm_drop(m, wide);
    return loss;
}

/* The loss of a tile of hidden states. */
static struct tdm_eager_value *tile_loss(struct tdm_eager *m, const void *model, uint32_t layer,
                                         struct tdm_eager_value *x)
{
    const struct tdm_torch_model *t = model;
    (void)layer;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *logits = tdm_torch_linear(m, t, x, t->head, NULL, TDM_MODULE_HEAD);
    logits = tdm_torch_scale_logits(m, t, logits);
    struct tdm_eager_value *wide = tdm_cast(m, logits, FP32);
    struct tdm_eager_value *labels = tdm_value_view(m, t->ids); /* a part of the labels */
    labels->rows = x->rows;
    labels->columns = 1;
    struct tdm_eager_value *loss = tdm_cross_entropy(m, wide, labels);
    tdm_drop(m, labels);
    tdm_drop(m, wide);
    tdm_drop(m, logits);
    m->category = TDM_METHOD_WORKSPACE;
    return loss;
}

/* Number of tiles. TDM_AUTO: as in ALST, the fp32 logits of a tile take about 1 GiB. */
static uint64_t logits_tiles(const struct tdm_torch_model *t)
{
    const struct tdm_torch_settings *s = &t->settings;
    uint64_t bytes = tdm_size_mul(tdm_size_mul(s->batch * s->tokens, t->config->vocabulary), FP32);
    return s->logits_tiles == TDM_AUTO ? tdm_size_ceil_div(bytes, UINT64_C(1) << 30)
                                       : s->logits_tiles;
}

/* The score of each sequence's last token, found by the ids (transformers,
 * modeling_layers.py GenericForSequenceClassification). */
static struct tdm_eager_value *score_and_loss(struct tdm_torch_model *t,
                                              struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    tdm_label(m, "score");
    struct tdm_eager_value *scores = tdm_torch_linear(m, t, hidden, t->head, NULL, TDM_MODULE_HEAD);
    scores = tdm_unit_leave(t, TDM_MODULE_HEAD, scores);
    struct tdm_eager_value *mask = tdm_value_new(m, s->batch, s->tokens, BOOL);
    mask = tdm_replace(m, mask, tdm_value_new(m, s->batch, s->tokens, FP32)); /* int32 */
    struct tdm_eager_value *places = tdm_value_new(m, s->batch, s->tokens, FP32);
    tdm_drop(m, places);
    tdm_drop(m, mask);
    struct tdm_eager_value *last = tdm_rows(m, scores, s->batch);
    struct tdm_eager_value *loss = tdm_mean(m, last);
    tdm_drop(m, last);
    tdm_drop(m, scores);
    return loss;
}

/* The loss without logits of all tokens. */
static struct tdm_eager_value *loss_by_parts(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden)
{
    if (t->settings.logits == TDM_LOGITS_CUT) {
        tdm_label(t->m, "loss");
        return tdm_cut_cross_entropy(t->m, hidden, t->head);
    }
    if (t->settings.logits == TDM_LOGITS_PARTS)
        return tdm_torch_parts_loss(t, hidden);
    return t->settings.logits == TDM_LOGITS_FUSED ? tdm_torch_fused_loss(t, hidden)
                                                  : tdm_torch_chunked_loss(t, hidden);
}

/* FPDT: losses of all ranks' tokens, and their mean. */
static struct tdm_eager_value *losses_by_chunks(struct tdm_torch_model *t,
                                                struct tdm_eager_value *hidden)
{
    const struct tdm_context *c = &t->settings.context;
    const uint64_t parts = tdm_fpdt_chunks(c, t->settings.tokens) * TDM_FPDT_LOSS_PARTS;
    struct tdm_eager_value *input = tdm_module_enter(t, TDM_MODULE_HEAD, hidden);
    tdm_label(t->m, "lm_head");
    struct tdm_eager_value *losses =
        tdm_fpdt_losses(t->m, input, t->head, parts, c->ulysses_degree);
    tdm_drop(t->m, input);
    losses = tdm_module_leave(t, TDM_MODULE_HEAD, losses);
    struct tdm_eager_value *loss = tdm_mean(t->m, losses);
    tdm_drop(t->m, losses);
    return loss;
}

/* Until the next forward has made its own. */
static bool holds_logits(const struct tdm_torch_settings *s)
{
    return s->logits == TDM_LOGITS_HF_HELD || s->logits == TDM_LOGITS_BF16_HELD ||
           s->logits == TDM_LOGITS_FP32_HELD;
}

static struct tdm_eager_value *head_and_loss(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden)
{
    if (t->settings.context.chunk_tokens > 0)
        return losses_by_chunks(t, hidden);
    if (t->settings.logits == TDM_LOGITS_SCORE)
        return score_and_loss(t, hidden);
    if (tdm_torch_is_litgpt(&t->settings) && t->settings.logits == TDM_LOGITS_HF)
        return tdm_litgpt_loss(t, hidden);
    const struct tdm_function tile = {.run = tile_loss, .model = t};
    if (t->settings.logits_tiles > 0)
        return tdm_tiled_loss(t->m, &tile, hidden, logits_tiles(t));
    struct tdm_eager *m = t->m;
    bool last = t->settings.logits == TDM_LOGITS_LAST;
    if (t->settings.logits == TDM_LOGITS_CHUNKED || t->settings.logits == TDM_LOGITS_FUSED ||
        t->settings.logits == TDM_LOGITS_CUT || t->settings.logits == TDM_LOGITS_PARTS) {
        struct tdm_eager_value *input = tdm_module_enter(t, TDM_MODULE_HEAD, hidden);
        struct tdm_eager_value *mean = loss_by_parts(t, input);
        tdm_drop(m, input);
        return tdm_module_leave(t, TDM_MODULE_HEAD, mean);
    }
    struct tdm_eager_value *rows = last ? tdm_rows(m, hidden, t->settings.batch) : tdm_take(hidden);
    tdm_label(m, "lm_head");
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *logits = tdm_tensor_head(t, rows), *loss;
    logits = tdm_unit_leave(t, TDM_MODULE_HEAD, logits);
    tdm_drop(m, rows);
    logits = tdm_torch_scale_logits(m, t, logits);
    bool shifts = tdm_torch_has_own_loss(&t->settings) && t->settings.loss != TDM_LOSS_PADDED;
    if ((shifts && t->settings.loss == TDM_LOSS_WIDE) ||
        t->settings.logits == TDM_LOGITS_FP32_HELD) {
        tdm_label(m, "logits.float()");
        logits = tdm_replace(m, logits, tdm_cast(m, logits, FP32));
    }
    if (last) {
        tdm_torch_cache_drop(t); /* the output object is freed once its logits are read */
        struct tdm_eager_value *wide = tdm_cast(m, logits, FP32);
        loss = tdm_mean(m, wide);
        tdm_drop(m, wide);
    } else {
        loss = t->settings.logits == TDM_LOGITS_IN_PLACE ? tdm_torch_loss_in_place(t, logits)
               : shifts                                  ? shifted_loss(t, logits)
                                                         : causal_loss(t, logits);
    }
    m->category = TDM_METHOD_WORKSPACE;
    if (holds_logits(&t->settings)) {
        tdm_drop(m, t->held_logits);
        t->held_logits = tdm_take(logits);
        tdm_torch_cache_hold(t);
    }
    tdm_drop(m, logits);
    return loss;
}

struct tdm_eager_value *tdm_torch_hidden(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    tdm_drop(m, tdm_module_enter(t, TDM_MODULE_BASE, NULL));
    tdm_torch_keep_vision(t);
    struct tdm_eager_value *images = tdm_torch_image_rows(t);
    struct tdm_eager_value *hidden = tdm_module_leave(t, TDM_MODULE_BASE, tdm_torch_base(t));
    tdm_drop(m, images);
    return hidden;
}

static struct tdm_eager_value *base_and_loss(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *hidden = tdm_torch_hidden(t), *loss;
    if (t->settings.logits == TDM_LOGITS_BASE) {
        tdm_torch_cache_drop(t);
        loss = tdm_mean(m, hidden);
    } else {
        loss = head_and_loss(t, hidden);
    }
    tdm_torch_cache_drop(t);
    tdm_drop(m, hidden);
    return loss;
}

static void call(struct tdm_torch_model *t, void (*hook)(struct tdm_torch_model *t))
{
    if (hook != NULL)
        hook(t);
}

void tdm_torch_begin_call(struct tdm_torch_model *t)
{
    call(t, t->settings.wrapper->before_forward);
    tdm_drop(t->m, tdm_module_enter(t, TDM_MODULE_WHOLE, NULL));
}

struct tdm_eager_value *tdm_torch_end_call(struct tdm_torch_model *t, struct tdm_eager_value *y)
{
    y = tdm_module_leave(t, TDM_MODULE_WHOLE, y);
    call(t, t->settings.wrapper->after_forward);
    return y;
}

void tdm_torch_forward(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *loss;
    tdm_second_generate(t);
    tdm_ppo_roll_out(t);
    m->autocast = t->autocasts;
    if (tdm_second_has_loss(&t->settings.second)) {
        loss = tdm_second_loss(t);
    } else {
        tdm_torch_begin_call(t);
        loss = tdm_torch_end_call(t, base_and_loss(t));
    }
    tdm_drop(m, t->prompt_labels);
    t->prompt_labels = NULL;
    m->autocast = false;
    tdm_autocast_clear(m);
    tdm_drop(m, t->loss); /* frees the graph of the previous step */
    tdm_drop(m, t->held_input);
    t->loss = loss;
    t->held_input = t->input;
    t->input = NULL;
}

void tdm_torch_backward(struct tdm_torch_model *t)
{
    call(t, t->settings.wrapper->before_backward);
    tdm_backward(t->m, t->loss, NULL);
    tdm_drop(t->m, t->vision_kept);
    t->vision_kept = NULL;
    if (t->settings.drops_loss && t->held_input != NULL) {
        tdm_drop(t->m, t->loss);
        tdm_drop(t->m, t->held_input);
        t->loss = t->held_input = NULL;
    }
    call(t, t->settings.wrapper->after_backward);
}
