/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of TRL's trainers: their losses, the order in which they run two models, and what
 * generates. */
#include "methods/torch/second.h"

#include "base/size.h"
#include "machines/machine.h"
#include "methods/eager/ops.h"
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

static bool has_pairs_alone(const struct tdm_second_settings *second)
{
    return second->trainer == TDM_TRAINER_CPO || second->trainer == TDM_TRAINER_ORPO;
}

bool tdm_second_has_loss(const struct tdm_second_settings *second)
{
    return second->trainer != TDM_TRAINER_SFT && second->trainer != TDM_TRAINER_REWARD;
}

bool tdm_second_generates(const struct tdm_second_settings *second)
{
    return second->trainer == TDM_TRAINER_GRPO || second->trainer == TDM_TRAINER_RLOO;
}

/* Micro-batches that are generated together: those of a step where nothing is said
 * (trl/trainer/grpo_config.py). */
static uint64_t generated_together(const struct tdm_torch_settings *s)
{
    const uint64_t accumulated = s->accumulation > 1 ? s->accumulation : 1;
    return s->second.steps_per_generation > 0 ? s->second.steps_per_generation : accumulated;
}

/* Weight of the KL: trl/trainer/{grpo,rloo}_config.py. */
static bool has_beta(const struct tdm_second_settings *second)
{
    return second->says_beta ? second->beta != 0 : second->trainer == TDM_TRAINER_RLOO;
}

bool tdm_second_has_reference(const struct tdm_second_settings *second)
{
    const bool scores_it = second->trainer == TDM_TRAINER_DPO || second->trainer == TDM_TRAINER_KTO;
    return (scores_it && !second->precomputes) || second->trainer == TDM_TRAINER_PPO ||
           (tdm_second_generates(second) && has_beta(second));
}

/* GRPO had other code for it then. */
bool tdm_second_has_logits(const struct tdm_second_settings *second)
{
    const bool had = second->trainer == TDM_TRAINER_DPO || second->trainer == TDM_TRAINER_KTO;
    return has_pairs_alone(second) || second->trainer == TDM_TRAINER_PPO ||
           (had && second->whole_logits);
}

/* Sequences of a step: chosen and rejected ones are joined. */
uint64_t tdm_second_batch(const struct tdm_torch_settings *s)
{
    const bool pairs = s->second.trainer == TDM_TRAINER_DPO ||
                       s->second.trainer == TDM_TRAINER_REWARD || has_pairs_alone(&s->second);
    return pairs ? 2 * s->batch : s->batch;
}

/* Is the reference a model of its own? Else it is the base under the adapters. */
static bool is_copied(const struct tdm_torch_settings *s)
{
    return tdm_second_has_reference(&s->second) && (s->lora_rank == 0 || s->second.copies);
}

/* ---- the second model ---- */

/* PPO calls the reference itself, and not a forward that accelerate wrapped. */
static enum tdm_autocast second_autocast(const struct tdm_torch_settings *s)
{
    return s->second.trainer == TDM_TRAINER_PPO ? TDM_AUTOCAST_NO : s->autocast;
}

enum tdm_status tdm_second_create(struct tdm_torch_model *t, struct tdm_error *err)
{
    const struct tdm_torch_settings *s = &t->settings;
    const struct tdm_model *config = t->config;
    bool teaches = s->second.trainer == TDM_TRAINER_DISTILLATION;
    if (!teaches && !is_copied(s))
        return TDM_OK;
    if (teaches && s->second.teacher != NULL) {
        enum tdm_status status = tdm_model_load(s->second.teacher, &t->teacher, err);
        if (status != TDM_OK)
            return status;
        config = t->teacher;
    }
    struct tdm_torch_settings settings = {.tokens = s->tokens,
                                          .batch = s->batch,
                                          .attention = tdm_torch_attention_of(config, s->attention),
                                          .fp32_weights = s->fp32_weights,
                                          .autocast = second_autocast(s),
                                          .use_cache = s->second.trainer == TDM_TRAINER_PPO,
                                          .wrapper = &tdm_no_wrapper,
                                          .ranks = 1,
                                          .frozen = true,
                                          .ids = t->ids};
    if (s->wrapper->share_second != NULL)
        s->wrapper->share_second(s, &settings);
    return tdm_torch_model_create(t->m, config, &settings, &t->second, err);
}

void tdm_second_free(struct tdm_torch_model *t)
{
    tdm_torch_model_free(t->second);
    tdm_model_free(t->teacher);
    free(t->gathered);
}

/* ---- losses ---- */

static void sum_backward(struct tdm_eager *m, struct tdm_node *node,
                         struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)grads;
    results[0] = tdm_value_new(m, node->edges[0].rows, 1, FP32);
}

/* A loss of values of tokens. */
static struct tdm_eager_value *sum(struct tdm_eager *m, struct tdm_eager_value *values)
{
    static const struct tdm_eager_op op = {"SumBackward1", false, sum_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &values, 1);
    return tdm_node_finish(m, node, tdm_value_new(m, 1, 1, FP32));
}

#define MOST_INPUTS 5u

/* What a batch has beside ids: attention mask and completion mask, of KTO those and ids of other
 * completions too; labels, and which tokens are scored. */
struct batch {
    struct tdm_eager_value *inputs[MOST_INPUTS], *labels, *mask;
    uint32_t input_count;
    uint64_t scored;
};

static struct batch make_batch(struct tdm_torch_model *t)
{
    const struct tdm_torch_settings *s = &t->settings;
    struct tdm_eager *m = t->m;
    uint64_t each = tdm_least(s->second.scored_tokens, s->tokens - 1);
    struct batch b = {.input_count = s->second.trainer == TDM_TRAINER_KTO ? MOST_INPUTS : 2,
                      .scored = s->batch * each};
    tdm_label(m, "labels");
    for (uint32_t i = 0; i < b.input_count; i++)
        b.inputs[i] = tdm_value_new(m, s->batch, s->tokens, INT64);
    b.labels = tdm_value_new(m, s->batch, s->tokens, INT64);
    b.mask = tdm_value_new(m, s->batch * (s->tokens - 1), 1, BOOL);
    return b;
}

static void drop_batch(struct tdm_eager *m, struct batch *b)
{
    for (uint32_t i = 0; i < b->input_count; i++)
        tdm_drop(m, b->inputs[i]);
    tdm_drop(m, b->labels);
    tdm_drop(m, b->mask);
}

/* Under autocast accelerate makes fp32 of what a forward returns (convert_outputs_to_fp32). */
struct tdm_eager_value *tdm_torch_whole_logits(struct tdm_torch_model *t,
                                               struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = t->m;
    const enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    tdm_label(m, "lm_head");
    struct tdm_eager_value *logits =
        tdm_torch_linear(m, t, hidden, t->head, t->head_bias, TDM_MODULE_HEAD);
    logits = tdm_unit_leave(t, TDM_MODULE_HEAD, logits);
    logits = tdm_torch_scale_logits(m, t, logits);
    if (m->autocast)
        logits = tdm_replace(m, logits, tdm_cast(m, logits, FP32));
    m->category = before;
    return logits;
}

/* Cross entropy of logits. To TRL 1.10, and in ms-swift, selective_log_softmax keeps logits or
 * their log-softmax, and its backward has two gradients of them, as cross entropy has
 * (trl/trainer/utils.py). */
static struct tdm_eager_value *entropy(struct tdm_torch_model *t, struct tdm_eager_value *logits)
{
    struct tdm_eager *m = t->m;
    const enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    tdm_label(m, "loss");
    struct tdm_eager_value *labels = tdm_value_new(m, logits->rows, 1, INT64);
    struct tdm_eager_value *loss = tdm_cross_entropy(m, logits, labels);
    tdm_drop(m, labels);
    m->category = before;
    return loss;
}

static struct tdm_eager_value *whole_scores(struct tdm_torch_model *t,
                                            struct tdm_eager_value *hidden)
{
    struct tdm_eager_value *logits = tdm_torch_whole_logits(t, hidden);
    struct tdm_eager_value *scores = entropy(t, logits);
    tdm_drop(t->m, logits);
    return scores;
}

static bool has_whole_scores(const struct tdm_torch_model *t)
{
    return tdm_second_has_logits(&t->settings.second);
}

static struct tdm_eager_value *scores_of(struct tdm_torch_model *t, struct tdm_eager_value *hidden,
                                         const struct batch *b, bool whole)
{
    return whole ? whole_scores(t, hidden) : tdm_torch_scores(t, hidden, b->mask, b->scored);
}

/* A call of a model, the policy's too, without a graph and without checkpoints. Returns its last
 * hidden states, or its scores of the batch. */
static struct tdm_eager_value *call_without_graph(struct tdm_torch_model *by, const struct batch *b,
                                                  bool whole)
{
    struct tdm_eager *m = by->m;
    enum tdm_checkpointing checkpointing = by->settings.checkpointing;
    bool graph = m->grad_enabled;
    /* Checkpointed layers of the first forward, which run again, read these. */
    struct tdm_eager_value *inputs[] = {by->positions,  by->cosine,      by->sine,
                                        by->mask,       by->window_mask, by->window_cosine,
                                        by->window_sine};
    m->grad_enabled = false;
    by->settings.checkpointing = TDM_CHECKPOINTING_OFF;
    tdm_torch_begin_call(by);
    tdm_drop(m, tdm_module_enter(by, TDM_MODULE_BASE, NULL));
    struct tdm_eager_value *made = tdm_module_leave(by, TDM_MODULE_BASE, tdm_torch_base(by));
    if (b != NULL)
        made = tdm_replace(m, made, scores_of(by, made, b, whole));
    made = tdm_torch_end_call(by, made);
    by->positions = inputs[0];
    by->cosine = inputs[1];
    by->sine = inputs[2];
    by->mask = inputs[3];
    by->window_mask = inputs[4];
    by->window_cosine = inputs[5];
    by->window_sine = inputs[6];
    by->settings.checkpointing = checkpointing;
    m->grad_enabled = graph;
    return made;
}

/* The same of the second model, or of the model itself without its adapters. */
static struct tdm_eager_value *second_call(struct tdm_torch_model *t, const struct batch *b,
                                           bool whole)
{
    struct tdm_torch_model *by = t->second != NULL ? t->second : t;
    by->adapters_off = true;
    struct tdm_eager_value *made = call_without_graph(by, b, whole);
    by->adapters_off = false;
    return made;
}

/* Scores of the reference, which are kept until the loss is made. */
static struct tdm_eager_value *reference_scores(struct tdm_torch_model *t, const struct batch *b)
{
    return tdm_second_has_reference(&t->settings.second) ? second_call(t, b, has_whole_scores(t))
                                                         : NULL;
}

static struct tdm_eager_value *policy_scores(struct tdm_torch_model *t, const struct batch *b)
{
    tdm_torch_begin_call(t);
    struct tdm_eager_value *hidden = tdm_torch_hidden(t);
    struct tdm_eager_value *scores = t->settings.logits == TDM_LOGITS_FUSED
                                         ? tdm_torch_liger_grpo(t, hidden, b->scored)
                                         : scores_of(t, hidden, b, has_whole_scores(t));
    tdm_drop(t->m, hidden);
    return tdm_torch_end_call(t, scores);
}

/* KTO's estimate of the KL: sums over sequences of other completions, of which little is left
 * (kto_trainer.py _compute_kl_logps). */
static void estimate_kl(struct tdm_torch_model *t, const struct batch *b, bool by_reference)
{
    tdm_drop(t->m, by_reference ? second_call(t, b, has_whole_scores(t))
                                : call_without_graph(t, b, has_whole_scores(t)));
}

static struct tdm_eager_value *kto_scores(struct tdm_torch_model *t, const struct batch *b,
                                          struct tdm_eager_value **reference)
{
    estimate_kl(t, b, false);
    struct tdm_eager_value *values = policy_scores(t, b);
    if (tdm_second_has_reference(&t->settings.second))
        estimate_kl(t, b, true);
    *reference = reference_scores(t, b);
    return values;
}

/* RLOO scores by the policy as it is, whose sums of sequences stay, then by the reference
 * (rloo_trainer.py _generate_and_score_completions). */
static struct tdm_eager_value *rloo_scores(struct tdm_torch_model *t, const struct batch *b)
{
    struct tdm_eager_value *old = call_without_graph(t, b, false);
    struct tdm_eager_value *reference = reference_scores(t, b);
    tdm_drop(t->m, old);
    tdm_drop(t->m, reference);
    return policy_scores(t, b);
}

/* The mean cross entropy of chosen sequences, without their last tokens: of a copy, but of one
 * sequence, which is contiguous so (concatenated_forward's cross_entropy_loss). */
static struct tdm_eager_value *chosen_loss(struct tdm_torch_model *t,
                                           struct tdm_eager_value *logits)
{
    struct tdm_eager *m = t->m;
    const uint64_t sequences = t->settings.batch / 2;
    const enum tdm_method_category before = m->category;
    m->category = TDM_METHOD_LOGITS;
    struct tdm_eager_value *chosen = tdm_rows(m, logits, sequences * t->settings.tokens);
    struct tdm_eager_value *shifted = tdm_rows(m, chosen, sequences * (t->settings.tokens - 1));
    if (sequences > 1)
        shifted = tdm_replace(m, shifted, tdm_clone(m, shifted));
    m->category = before;
    tdm_drop(m, chosen);
    struct tdm_eager_value *loss = entropy(t, shifted);
    tdm_drop(m, shifted);
    return loss;
}

/* CPO and ORPO: the loss of pairs, of all logits (trl/experimental/{cpo,orpo}, their
 * concatenated_forward), which live until it is made. */
static struct tdm_eager_value *pair_loss(struct tdm_torch_model *t, const struct batch *b)
{
    struct tdm_eager *m = t->m;
    const struct tdm_second_settings *second = &t->settings.second;
    const bool has_chosen = second->trainer == TDM_TRAINER_ORPO || second->cpo_alpha != 0;
    tdm_torch_begin_call(t);
    struct tdm_eager_value *hidden = tdm_torch_hidden(t);
    struct tdm_eager_value *logits = tdm_torch_end_call(t, tdm_torch_whole_logits(t, hidden));
    tdm_drop(m, hidden);
    struct tdm_eager_value *chosen = has_chosen ? chosen_loss(t, logits) : NULL;
    struct tdm_eager_value *shifted = tdm_rows(m, logits, b->mask->rows);
    struct tdm_eager_value *scores =
        second->whole_logits ? entropy(t, shifted) : tdm_torch_logits_scores(t, shifted, b->mask);
    tdm_drop(m, shifted);
    struct tdm_eager_value *loss = sum(m, scores);
    tdm_drop(m, scores);
    if (chosen != NULL)
        loss = tdm_replace(m, loss, tdm_add(m, loss, chosen));
    tdm_drop(m, chosen);
    tdm_drop(m, logits);
    return loss;
}

static struct tdm_eager_value *distilled(struct tdm_torch_model *t, const struct batch *b)
{
    struct tdm_eager *m = t->m;
    tdm_torch_begin_call(t);
    struct tdm_eager_value *hidden = tdm_torch_hidden(t);
    struct tdm_eager_value *student = tdm_rows(m, hidden, b->mask->rows);
    tdm_drop(m, hidden);
    struct tdm_eager_value *whole = second_call(t, NULL, false);
    struct tdm_eager_value *teacher = tdm_rows(m, whole, b->mask->rows);
    tdm_drop(m, whole);
    struct tdm_eager_value *divergence =
        tdm_torch_divergence(t, t->second, student, teacher, b->mask, b->scored);
    tdm_drop(m, student);
    tdm_drop(m, teacher);
    return tdm_torch_end_call(t, divergence);
}

static struct tdm_eager_value *loss_of(struct tdm_torch_model *t, const struct batch *b)
{
    struct tdm_eager_value *values = NULL, *reference = NULL;
    switch (t->settings.second.trainer) {
    case TDM_TRAINER_CPO:
    case TDM_TRAINER_ORPO:
        return pair_loss(t, b);
    case TDM_TRAINER_DISTILLATION:
        values = distilled(t, b);
        break;
    case TDM_TRAINER_GRPO: /* scores by the reference when it has generated */
        reference = reference_scores(t, b);
        values = policy_scores(t, b);
        break;
    case TDM_TRAINER_RLOO:
        values = rloo_scores(t, b);
        break;
    case TDM_TRAINER_KTO:
        values = kto_scores(t, b, &reference);
        break;
    case TDM_TRAINER_DPO:
    case TDM_TRAINER_SFT:
    case TDM_TRAINER_REWARD:
    case TDM_TRAINER_PPO:
        values = policy_scores(t, b);
        reference = reference_scores(t, b);
        break;
    }
    struct tdm_eager_value *loss = sum(t->m, values);
    tdm_drop(t->m, values);
    tdm_drop(t->m, reference);
    return loss;
}

struct tdm_eager_value *tdm_second_loss(struct tdm_torch_model *t)
{
    if (t->settings.second.trainer == TDM_TRAINER_PPO)
        return tdm_ppo_loss(t);
    struct batch b = make_batch(t);
    struct tdm_eager_value *loss = loss_of(t, &b);
    drop_batch(t->m, &b);
    return loss;
}

/* ---- what generates ---- */

#define NF4_SCALE_WEIGHTS 64.0
#define NF4_DOUBLE_SCALES 256.0

/* What the cache has more of where vLLM has the base's weights of 4 bits, not bf16. */
static uint64_t narrower_bytes(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    const double scale = s->double_quantization ? 1 + FP32 / NF4_DOUBLE_SCALES : FP32;
    const double narrow = 0.5 + scale / NF4_SCALE_WEIGHTS;
    return s->quantization == TDM_QUANTIZATION_NF4
               ? (uint64_t)((BF16 - narrow) * tdm_torch_projection_elements(model, s))
               : 0;
}

/* Unsloth: vLLM loads the base, and the training reads it there (unsloth_zoo 2026.10, vllm_utils.py
 * get_vllm_state_dict, load_vllm). */
static void share_weights(const struct tdm_model *model, const struct tdm_torch_settings *s,
                          struct tdm_second_settings *second)
{
    const uint64_t more = narrower_bytes(model, s);
    second->vllm_weights_bytes = 0;
    if (second->vllm_cache_bytes > 0)
        second->vllm_cache_bytes = tdm_size_add(second->vllm_cache_bytes, more);
}

void tdm_second_settle(const struct tdm_model *model, const struct tdm_machine *machine,
                       struct tdm_method_settings *settings)
{
    struct tdm_second_settings *second = &settings->torch.second;
    struct tdm_method_settings served = {.torch = {.tokens = settings->torch.tokens, .ranks = 1}};
    struct tdm_method_choices choices = {.other_count = 0};
    struct tdm_serving_answer answer;
    struct tdm_error err;
    if (!tdm_second_generates(second) || !second->vllm || second->elsewhere ||
        tdm_method_settle(&tdm_serving_method, &choices, &served, &err) != TDM_OK)
        return;
    served.serving.weights = TDM_SERVED_BF16; /* of what is trained */
    served.serving.utilization = second->vllm_utilization;
    /* trl/generation/vllm_generation.py: as many sequences as a generation has. */
    served.serving.sequences = settings->torch.batch * generated_together(&settings->torch);
    tdm_serving_answer(model, machine, &served.serving, settings->torch.tokens, &answer);
    second->vllm_weights_bytes = answer.rank.weights_bytes;
    second->vllm_cache_bytes = answer.blocks * answer.rank.block_bytes;
    second->vllm_graph_bytes = answer.rank.graph_bytes;
    if (second->shares_weights && settings->torch.lora_rank > 0)
        share_weights(model, &settings->torch, second);
}

static struct tdm_eager_value *bytes_of(struct tdm_eager *m, enum tdm_method_category category,
                                        const char *name, uint64_t bytes)
{
    enum tdm_method_category before = m->category;
    m->category = category;
    tdm_label(m, name);
    struct tdm_eager_value *value = bytes > 0 ? tdm_value_new(m, bytes, 1, 1) : NULL;
    m->category = before;
    return value;
}

/* Weights and cache of vLLM: for as long as it is awake. */
static void wake(struct tdm_torch_model *t)
{
    const struct tdm_second_settings *second = &t->settings.second;
    t->served[0] = bytes_of(t->m, TDM_METHOD_WEIGHTS, "vllm", second->vllm_weights_bytes);
    t->served[1] = bytes_of(t->m, TDM_METHOD_KV, "vllm", second->vllm_cache_bytes);
}

/* Sleeping gives the memory back to the driver. */
static void put_to_sleep(struct tdm_torch_model *t)
{
    for (unsigned i = 0; i < 2; i++) {
        tdm_drop(t->m, t->served[i]);
        t->served[i] = NULL;
    }
    tdm_torch_empty_cache(t->m->allocator);
}

/* Gathers all parameters that are shards, and gives them back (models/utils.py,
 * unwrap_model_for_generation; generation/vllm_generation.py with adapters, which are merged). */
static void gather_all(struct tdm_torch_model *t)
{
    for (uint32_t i = 0; i < t->parameter_count; i++)
        t->gathered[i] = tdm_weight_gather(t, t->parameters[i]);
}

static void return_all(struct tdm_torch_model *t)
{
    for (uint32_t i = 0; i < t->parameter_count; i++)
        tdm_weight_return(t, t->parameters[i], t->gathered[i]);
}

/* Sends the weights to vLLM: parameter by parameter (_iter_named_params). */
static void send_weights(struct tdm_torch_model *t)
{
    if (t->settings.lora_rank > 0) {
        gather_all(t);
        return_all(t);
        return;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++)
        tdm_weight_return(t, t->parameters[i], tdm_weight_gather(t, t->parameters[i]));
}

/* transformers' generate: the prompt without a graph, then K and V of whole sequences. One layer's
 * K is there twice while a token is joined to it (cache_utils.py, DynamicLayer.update). */
static void generate(struct tdm_torch_model *t)
{
    gather_all(t);
    const struct tdm_torch_settings *s = &t->settings;
    uint64_t sequences = s->batch * generated_together(s);
    uint64_t one = sequences * s->tokens * tdm_model_kv_width(t->config) * BF16;
    struct tdm_eager_value *cache =
        bytes_of(t->m, TDM_METHOD_KV, "generate", 2 * one * t->config->layers);
    struct tdm_eager_value *joined = bytes_of(t->m, TDM_METHOD_KV, "generate", one);
    struct tdm_eager_value *logits = bytes_of(t->m, TDM_METHOD_LOGITS, "generate",
                                              sequences * t->config->vocabulary * (BF16 + FP32));
    tdm_drop(t->m, logits);
    tdm_drop(t->m, joined);
    tdm_drop(t->m, cache);
    return_all(t);
}

void tdm_second_start(struct tdm_torch_model *t)
{
    const struct tdm_second_settings *second = &t->settings.second;
    if (!tdm_second_generates(second) || !second->vllm || second->elsewhere)
        return;
    t->served[2] =
        bytes_of(t->m, TDM_METHOD_WORKSPACE, "vllm's CUDA graphs", second->vllm_graph_bytes);
    wake(t);
    if (second->sleeps)
        put_to_sleep(t);
}

void tdm_second_generate(struct tdm_torch_model *t)
{
    const struct tdm_second_settings *second = &t->settings.second;
    if (!tdm_second_generates(second))
        return;
    /* The last micro-batch of a step was generated with the first ones. */
    if (t->settings.accumulation > 1 && !t->accumulating &&
        generated_together(&t->settings) >= t->settings.accumulation)
        return;
    if (t->gathered == NULL)
        t->gathered = calloc(t->parameter_count + 1, sizeof(*t->gathered));
    if (t->gathered == NULL)
        tdm_eager_no_memory(t->m);
    const bool sleeps = second->vllm && second->sleeps && !second->elsewhere;
    if (sleeps)
        wake(t);
    if (second->vllm)
        send_weights(t);
    else
        generate(t);
    if (sleeps)
        put_to_sleep(t);
}
