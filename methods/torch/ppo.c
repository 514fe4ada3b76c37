/* SPDX-License-Identifier: Apache-2.0 */
/* A step of TRL's PPOTrainer (trl 1.4, trl/experimental/ppo/ppo_trainer.py; before 0.26 in
 * trl/trainer): a policy and a value model, both trained, are one module; a reference and a reward
 * model score what the policy generates. TRL neither frees nor tiles logits: those that were
 * generated live until the next ones are there, and an output object of a forward, with the hidden
 * states of all layers, until the step is done. Gradient checkpoints are of the policy alone. */
#include "base/size.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

static bool is_ppo(const struct tdm_torch_settings *s)
{
    return s->second.trainer == TDM_TRAINER_PPO;
}

/* Of a step: all of its micro-batches are generated before it. */
static uint64_t rollout_sequences(const struct tdm_torch_settings *s)
{
    return s->batch * (s->accumulation > 1 ? s->accumulation : 1);
}

/* ---- models ---- */

/* A model that scores, of the same settings. */
static struct tdm_torch_settings scoring(const struct tdm_model *model,
                                         const struct tdm_torch_settings *s, bool frozen)
{
    return (struct tdm_torch_settings){.tokens = s->tokens,
                                       .batch = s->batch,
                                       .attention = tdm_torch_attention_of(model, s->attention),
                                       .fp32_weights = s->fp32_weights,
                                       .autocast = frozen ? TDM_AUTOCAST_NO : s->autocast,
                                       .logits = TDM_LOGITS_SCORE,
                                       .labels = 1,
                                       .use_cache = !frozen,
                                       .release = s->release,
                                       .expert_modules = s->expert_modules,
                                       .wrapper = &tdm_no_wrapper,
                                       .ranks = 1,
                                       .frozen = frozen};
}

static enum tdm_status make_room(struct tdm_torch_model *t, uint32_t more, struct tdm_error *err)
{
    const size_t count = (size_t)t->parameter_count + more;
    struct tdm_eager_value **parameters = realloc(t->parameters, count * sizeof(*parameters));
    t->parameters = parameters != NULL ? parameters : t->parameters;
    struct torch_state *states = calloc(count, sizeof(*states));
    if (parameters == NULL || states == NULL) {
        free(states);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model");
    }
    for (uint32_t i = 0; i < t->parameter_count; i++)
        states[i] = t->states[i];
    free(t->states);
    t->states = states;
    return TDM_OK;
}

/* The optimizer steps the parameters of both. */
static enum tdm_status join_parameters(struct tdm_torch_model *t, struct tdm_error *err)
{
    const struct tdm_torch_model *value = t->value;
    const enum tdm_status status = make_room(t, value->parameter_count, err);
    for (uint32_t i = 0; i < value->parameter_count && status == TDM_OK; i++) {
        t->states[t->parameter_count].matrix = value->states[i].matrix;
        t->parameters[t->parameter_count++] = value->parameters[i];
    }
    return status;
}

enum tdm_status tdm_ppo_create_value(struct tdm_torch_model *t, struct tdm_error *err)
{
    const struct tdm_torch_settings *s = &t->settings;
    if (!is_ppo(s))
        return TDM_OK;
    enum tdm_status status = TDM_OK;
    if (s->second.reward_model != NULL)
        status = tdm_model_load(s->second.reward_model, &t->scorer, err);
    const struct tdm_model *config = t->scorer != NULL ? t->scorer : t->config;
    const struct tdm_torch_settings settings = scoring(config, s, false);
    if (status == TDM_OK)
        status = tdm_torch_model_create(t->m, config, &settings, &t->value, err);
    return status == TDM_OK ? join_parameters(t, err) : status;
}

enum tdm_status tdm_ppo_create_reward(struct tdm_torch_model *t, struct tdm_error *err)
{
    const struct tdm_torch_settings *s = &t->settings;
    if (!is_ppo(s))
        return TDM_OK;
    struct tdm_torch_settings settings = scoring(t->value->config, s, true);
    settings.ids = t->ids;
    tdm_drop(t->m, t->value->ids);
    t->value->ids = tdm_take(t->ids);
    return tdm_torch_model_create(t->m, t->value->config, &settings, &t->reward, err);
}

void tdm_ppo_free(struct tdm_torch_model *t)
{
    tdm_torch_model_free(t->value);
    tdm_torch_model_free(t->reward);
    tdm_model_free(t->scorer);
    free(t->hidden_states);
}

/* ---- log-probabilities: selective_log_softmax of trl/trainer/utils.py ---- */

/* Of fp32 a logsumexp of each sequence's logits, which are saved; of bf16 their log-softmax is. */
static void selected_backward(struct tdm_eager *m, struct tdm_node *node,
                              struct tdm_eager_value *const *grads,
                              struct tdm_eager_value **results)
{
    const enum tdm_method_category before = m->category;
    struct tdm_eager_value *saved = tdm_node_saved(m, node, 0);
    const uint64_t sequences = node->facts[0], rows = saved->rows / sequences;
    const bool wide = saved->element_bytes == FP32;
    (void)grads;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *others =
        sequences > 1 ? tdm_value_new(m, saved->rows - rows, saved->columns, saved->element_bytes)
                      : NULL;
    struct tdm_eager_value *one[] = {NULL, NULL, NULL};
    const unsigned temporaries = wide ? 3 : 2;
    for (unsigned i = 0; i < temporaries; i++)
        one[i] = tdm_value_new(m, rows, saved->columns, saved->element_bytes);
    for (unsigned i = 0; i + 1 < temporaries; i++)
        tdm_drop(m, one[i]);
    results[0] = tdm_value_like(m, saved); /* torch.stack */
    tdm_drop(m, others);
    tdm_drop(m, one[temporaries - 1]);
    if (wide)
        tdm_drop(m, tdm_value_like(m, saved)); /* of the values that were picked */
    tdm_drop(m, saved);
    m->category = before;
}

static struct tdm_eager_value *selected(struct tdm_torch_model *t, struct tdm_eager_value *logits,
                                        uint64_t sequences)
{
    static const struct tdm_eager_op op = {"selective_log_softmax", false, selected_backward};
    struct tdm_eager *m = t->m;
    const enum tdm_method_category before = m->category;
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    const bool wide = logits->element_bytes == FP32;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *made =
        wide || node == NULL
            ? tdm_value_new(m, logits->rows / sequences, logits->columns, logits->element_bytes)
            : tdm_value_like(m, logits);
    m->category = before;
    if (node != NULL)
        node->facts[0] = sequences;
    tdm_node_save(m, node, wide ? logits : made);
    tdm_drop(m, made);
    return tdm_node_finish(m, node, tdm_value_new(m, logits->rows, 1, logits->element_bytes));
}

/* logits[:, first : last] /= temperature. The gradient of all logits is copied, and the part's is
 * copied and divided (torch autograd, CopySlices::apply). */
static void divided_backward(struct tdm_eager *m, struct tdm_node *node,
                             struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    results[0] = tdm_value_like(m, grads[0]);
    struct tdm_eager_value *copy =
        tdm_value_new(m, node->facts[0], grads[0]->columns, grads[0]->element_bytes);
    tdm_drop(m, tdm_value_like(m, copy));
    tdm_drop(m, copy);
    m->category = before;
}

/* The logits of responses, divided in place. Takes the logits. */
static struct tdm_eager_value *divided(struct tdm_torch_model *t, struct tdm_eager_value *logits,
                                       uint64_t rows)
{
    static const struct tdm_eager_op op = {"CopySlices", false, divided_backward};
    struct tdm_eager *m = t->m;
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    if (node != NULL)
        node->facts[0] = rows;
    struct tdm_eager_value *all = tdm_node_finish(m, node, tdm_value_view(m, logits));
    struct tdm_eager_value *part = tdm_rows(m, all, rows);
    tdm_drop(m, all);
    tdm_drop(m, logits);
    return part;
}

/* ---- forwards ---- */

static void drop_states(struct tdm_torch_model *t)
{
    for (uint32_t i = 0; t->hidden_states != NULL && i <= t->config->layers; i++) {
        tdm_drop(t->m, t->hidden_states[i]);
        t->hidden_states[i] = NULL;
    }
}

/* The last hidden states; those of all layers are at t->hidden_states. */
static struct tdm_eager_value *run_base(struct tdm_torch_model *t)
{
    if (t->hidden_states == NULL)
        t->hidden_states = calloc((size_t)t->config->layers + 1, sizeof(struct tdm_eager_value *));
    if (t->hidden_states == NULL)
        tdm_eager_no_memory(t->m);
    struct tdm_eager_value *hidden = tdm_torch_hidden(t);
    if (t->hidden_states != NULL)
        t->hidden_states[t->config->layers] = tdm_take(hidden);
    return hidden;
}

/* A score of each token. */
static struct tdm_eager_value *run_scorer(struct tdm_torch_model *t)
{
    struct tdm_eager_value *hidden = run_base(t);
    tdm_label(t->m, "score");
    struct tdm_eager_value *scores =
        tdm_torch_linear(t->m, t, hidden, t->head, NULL, TDM_MODULE_HEAD);
    tdm_drop(t->m, hidden);
    drop_states(t);
    tdm_torch_cache_drop(t);
    return scores;
}

/* accelerate makes fp32 of what a forward under autocast returns, hidden states too
 * (convert_outputs_to_fp32); of the value model only scores are. */
static void widen_states(struct tdm_torch_model *t)
{
    for (uint32_t i = 0; t->autocasts && t->hidden_states != NULL && i <= t->config->layers; i++)
        if (t->hidden_states[i] != NULL && t->hidden_states[i]->element_bytes != FP32)
            t->hidden_states[i] =
                tdm_replace(t->m, t->hidden_states[i], tdm_cast(t->m, t->hidden_states[i], FP32));
}

/* ---- rollouts ---- */

/* Runs one of the models on sequences that were generated: no graph, no autocast, no checkpoints.
 */
static void score_rollouts(struct tdm_torch_model *by, uint64_t sequences, bool of_logits,
                           uint64_t scored)
{
    struct tdm_eager *m = by->m;
    const struct tdm_torch_settings before = by->settings;
    struct tdm_eager_value *ids = by->ids;
    const bool caches = by->caches;
    m->grad_enabled = false;
    by->settings.batch = sequences;
    by->settings.checkpointing = TDM_CHECKPOINTING_OFF;
    by->caches = caches && of_logits;
    tdm_label(m, "query_responses");
    by->ids = tdm_value_new(m, sequences, before.tokens, INT64);
    if (of_logits) {
        struct tdm_eager_value *hidden = run_base(by);
        struct tdm_eager_value *logits = tdm_torch_whole_logits(by, hidden);
        tdm_drop(m, hidden);
        logits = divided(by, logits, sequences * scored);
        tdm_drop(m, selected(by, logits, sequences));
        tdm_drop(m, logits);
        drop_states(by);
        tdm_torch_cache_drop(by);
    } else {
        tdm_drop(m, run_scorer(by));
    }
    tdm_drop(m, by->ids);
    by->ids = ids;
    by->caches = caches;
    by->settings = before;
    m->grad_enabled = true;
}

static struct tdm_eager_value *logits_of(struct tdm_torch_model *t, uint64_t rows)
{
    return tdm_value_new(t->m, rows, t->config->vocabulary, FP32);
}

/* transformers' generate keeps scores of all tokens in fp32, which are stacked for each part of the
 * sequences and joined in the end; K and V are in the dtype of the weights. Those of the step
 * before live until then. */
static struct tdm_eager_value *generated(struct tdm_torch_model *t, uint64_t sequences,
                                         uint64_t part, uint64_t scored)
{
    struct tdm_eager *m = t->m;
    const uint64_t tokens = t->settings.tokens;
    struct tdm_eager_value *earlier =
        sequences > part ? logits_of(t, (sequences - part) * scored) : NULL;
    m->category = TDM_METHOD_KV;
    struct tdm_eager_value *cache = tdm_value_new(
        m, part * tokens, 2 * t->config->layers * tdm_model_kv_width(t->config), t->weight_bytes);
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *scores = logits_of(t, part * scored);
    struct tdm_eager_value *stacked = logits_of(t, part * scored);
    tdm_drop(m, scores);
    tdm_drop(m, cache);
    struct tdm_eager_value *joined = logits_of(t, sequences * scored);
    tdm_drop(m, stacked);
    tdm_drop(m, earlier);
    return joined;
}

void tdm_ppo_roll_out(struct tdm_torch_model *t)
{
    const struct tdm_torch_settings *s = &t->settings;
    if (!is_ppo(s) || (s->accumulation > 1 && !t->accumulating))
        return;
    struct tdm_eager *m = t->m;
    const uint64_t sequences = rollout_sequences(s),
                   part = tdm_least(s->second.rollout_batch, sequences),
                   scored = tdm_least(s->second.scored_tokens, s->tokens - 1);
    const enum tdm_method_category before = m->category;
    tdm_label(m, "generate");
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *logits = generated(t, sequences, part, scored);
    tdm_drop(m, t->rollout_logits);
    t->rollout_logits = logits;
    m->category = before;
    tdm_torch_empty_cache(m->allocator);
    struct tdm_torch_model *reference = t->second != NULL ? t->second : t;
    reference->adapters_off = true;
    score_rollouts(reference, part, true, scored);
    reference->adapters_off = false;
    tdm_torch_empty_cache(m->allocator);
    score_rollouts(t->value, part, false, scored);
    score_rollouts(t->reward, part, false, scored);
    tdm_torch_empty_cache(m->allocator);
}

/* ---- the loss ---- */

struct tdm_eager_value *tdm_ppo_loss(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    const struct tdm_torch_settings *s = &t->settings;
    const uint64_t scored = tdm_least(s->second.scored_tokens, s->tokens - 1);
    /* The output object of the forward before lives until this one is there. */
    struct tdm_eager_value **held = t->hidden_states;
    t->hidden_states = NULL;
    tdm_torch_begin_call(t);
    struct tdm_eager_value *values = run_scorer(t->value);
    struct tdm_eager_value *hidden = run_base(t);
    struct tdm_eager_value *logits = tdm_torch_end_call(t, tdm_torch_whole_logits(t, hidden));
    tdm_drop(m, hidden);
    widen_states(t);
    if (values->element_bytes != FP32 && t->autocasts)
        values = tdm_replace(m, values, tdm_cast(m, values, FP32));
    for (uint32_t i = 0; held != NULL && i <= t->config->layers; i++)
        tdm_drop(m, held[i]);
    free(held);
    tdm_torch_cache_hold(t);
    logits = divided(t, logits, s->batch * scored);
    tdm_drop(m, t->held_logits);
    t->held_logits = tdm_take(logits);
    struct tdm_eager_value *probabilities = selected(t, logits, s->batch);
    tdm_drop(m, logits);
    struct tdm_eager_value *loss = tdm_mean(m, probabilities), *of_values = tdm_mean(m, values);
    tdm_drop(m, probabilities);
    tdm_drop(m, values);
    loss = tdm_replace(m, loss, tdm_add(m, loss, of_values));
    tdm_drop(m, of_values);
    return loss;
}

void tdm_ppo_end_step(struct tdm_torch_model *t)
{
    if (!is_ppo(&t->settings))
        return;
    drop_states(t);
    tdm_torch_cache_hold(t); /* nothing, in place of the cache of the output object */
    tdm_drop(t->m, t->held_logits);
    tdm_drop(t->m, t->loss);
    tdm_drop(t->m, t->held_input);
    t->held_logits = t->loss = t->held_input = NULL;
    tdm_torch_empty_cache(t->m->allocator);
}
