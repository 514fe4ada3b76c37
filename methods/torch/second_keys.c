/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of TRL's trainers, in TRL's names. */
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, torch.second.name)
#define STEPS_MOST 65536u

static enum tdm_status read_share(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double share = strtod(value, &end);
    if (end == value || *end != '\0' || !(share >= 0 && share <= 1))
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: \"%.64s\" is not a share; expected a number from 0 to 1",
                        key->name, value);
    *(double *)(void *)((char *)settings + key->field) = share;
    return TDM_OK;
}

/* vLLM needs memory for its weights at least. */
static enum tdm_status read_utilization(const struct tdm_method_key *key, const char *value,
                                        struct tdm_method_settings *settings, struct tdm_error *err)
{
    enum tdm_status status = read_share(key, value, settings, err);
    if (status == TDM_OK && settings->torch.second.vllm_utilization <= 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: vLLM cannot start with 0 of the device; "
                        "expected a number above 0, up to 1",
                        key->name);
    return status;
}

static enum tdm_status read_weight(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double weight = strtod(value, &end);
    if (end == value || *end != '\0' || !(weight >= 0 && weight < HUGE_VAL))
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: \"%.64s\" is no weight; expected a number of 0 or more",
                        key->name, value);
    *(double *)(void *)((char *)settings + key->field) = weight;
    return TDM_OK;
}

static enum tdm_status read_beta(const struct tdm_method_key *key, const char *value,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    settings->torch.second.says_beta = true;
    return read_share(key, value, settings, err);
}

static enum tdm_status read_scored(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "auto") != 0)
        return tdm_key_read_tokens(key, value, settings, err);
    settings->torch.second.scored_tokens = TDM_AUTO;
    return TDM_OK;
}

static enum tdm_status read_generated(const struct tdm_method_key *key, const char *value,
                                      struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "accumulation") != 0)
        return tdm_key_read_count(key, value, settings, err);
    settings->torch.second.steps_per_generation = 0;
    return TDM_OK;
}

/* A model, or "same". */
static enum tdm_status read_model(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    (void)err;
    *(const char **)(void *)((char *)settings + key->field) =
        strcmp(value, "same") == 0 ? NULL : value;
    return TDM_OK;
}

/* ---- needs ---- */

static enum tdm_trainer trainer_of(const struct tdm_key_case *c)
{
    return c->settings->torch.second.trainer;
}

static bool may_precompute(const struct tdm_key_case *c)
{
    return trainer_of(c) == TDM_TRAINER_DPO || trainer_of(c) == TDM_TRAINER_KTO;
}

static bool has_cpo(const struct tdm_key_case *c)
{
    return trainer_of(c) == TDM_TRAINER_CPO;
}

/* What GRPO had before is not known. */
static bool had_logits(const struct tdm_key_case *c)
{
    return may_precompute(c) || has_cpo(c) || trainer_of(c) == TDM_TRAINER_ORPO;
}

static bool generates(const struct tdm_key_case *c)
{
    return tdm_second_generates(&c->settings->torch.second);
}

static bool has_ppo(const struct tdm_key_case *c)
{
    return trainer_of(c) == TDM_TRAINER_PPO;
}

static bool has_teacher(const struct tdm_key_case *c)
{
    return trainer_of(c) == TDM_TRAINER_DISTILLATION;
}

static bool has_scores(const struct tdm_key_case *c)
{
    const struct tdm_second_settings *second = &c->settings->torch.second;
    return has_ppo(c) || (tdm_second_has_loss(second) && !tdm_second_has_logits(second));
}

static bool has_reference(const struct tdm_key_case *c)
{
    return tdm_second_has_reference(&c->settings->torch.second);
}

static bool has_vllm(const struct tdm_key_case *c)
{
    return generates(c) && c->settings->torch.second.vllm;
}

static bool has_vllm_here(const struct tdm_key_case *c)
{
    return has_vllm(c) && !c->settings->torch.second.elsewhere;
}

static const struct tdm_key_need needs_dpo = {"without trainer=dpo or kto", may_precompute};
static const struct tdm_key_need needs_cpo = {"without trainer=cpo", has_cpo};
static const struct tdm_key_need needs_logits = {"without trainer=dpo, kto, cpo or orpo",
                                                 had_logits};
static const struct tdm_key_need needs_generation = {"without trainer=grpo or rloo", generates};
static const struct tdm_key_need needs_ppo = {"without trainer=ppo", has_ppo};
static const struct tdm_key_need needs_teacher = {"without trainer=distillation", has_teacher};
static const struct tdm_key_need needs_scores = {"without a trainer that scores some tokens alone",
                                                 has_scores};
static const struct tdm_key_need needs_reference = {
    "without a reference, which trainer=dpo, kto and ppo have, and grpo and rloo with beta",
    has_reference};
static const struct tdm_key_need needs_vllm = {"without trainer=grpo or rloo, and use_vllm",
                                               has_vllm};
static const struct tdm_key_need needs_vllm_here = {
    "without trainer=grpo or rloo and use_vllm, or with vllm_mode=server", has_vllm_here};

#define LAST_WHOLE_MINOR 10u /* of TRL 1 */

/* A version, by its first two numbers, or "now". */
static enum tdm_status read_trl(const struct tdm_method_key *key, const char *value,
                                struct tdm_method_settings *settings, struct tdm_error *err)
{
    unsigned version[TDM_VERSION_NUMBERS];
    settings->torch.second.whole_logits = false;
    if (strcmp(value, "now") == 0)
        return TDM_OK;
    const enum tdm_status status = tdm_key_read_version(key, value, "1.9.0", version, err);
    if (status != TDM_OK)
        return status;
    settings->torch.second.whole_logits =
        version[0] < 1 || (version[0] == 1 && version[1] <= LAST_WHOLE_MINOR);
    return TDM_OK;
}

static const char *settled_beta(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return trainer_of(c) == TDM_TRAINER_RLOO ? "0.05" : "0";
}

const struct tdm_method_key tdm_keys_second[] = {
    {"trainer", "sft|dpo|grpo|distillation|kto|cpo|orpo|reward|rloo|ppo", "sft",
     "TRL's: with a reference, what generates or a teacher; of dpo, cpo, orpo and reward --batch "
     "counts pairs",
     tdm_key_read_choice, FIELD(trainer), .unmeasured = "ppo"},
    {"ref_model", "auto|copy", "auto",
     "reference of DPO, KTO, GRPO, RLOO and PPO; auto: the base under LoRA, else a copy",
     tdm_key_read_switch, FIELD(copies), .needs = {&needs_reference, &tdm_need_lora}},
    {"precompute_ref_log_probs", "no|yes", "no", "yes: steps have no reference",
     tdm_key_read_switch, FIELD(precomputes), .needs = {&needs_dpo}},
    {"trl", "now|1.9", "now",
     "any version of it: to 1.10, and in ms-swift, tokens are scored by a log-softmax of all logits",
     .read = read_trl, .needs = {&needs_logits}},
    {"cpo_alpha", "1|0", "1", "of CPO: 0: no cross entropy of chosen sequences, as SimPO has none",
     read_weight, FIELD(cpo_alpha), .needs = {&needs_cpo}},
    {"beta", "0|0.05", NULL,
     "weight of the KL of GRPO and RLOO; 0: no reference, as TRL assumes of GRPO", read_beta,
     FIELD(beta), .needs = {&needs_generation}, .settled = settled_beta},
    {"teacher_model", "MODEL", "same", "teacher of the distillation; same: as the student",
     read_model, FIELD(teacher), .needs = {&needs_teacher}},
    {"max_completion_length", "auto|N", "auto",
     "tokens of a sequence that are scored, the last ones; auto: all", read_scored,
     FIELD(scored_tokens), .needs = {&needs_scores}},
    {"use_vllm", "no|yes", "no", "GRPO and RLOO generate with vLLM", tdm_key_read_switch,
     FIELD(vllm), .needs = {&needs_generation}},
    {"vllm_mode", "colocate|server", "colocate",
     "vLLM on the same GPU, or on others, which are not counted", tdm_key_read_switch,
     FIELD(elsewhere), .needs = {&needs_vllm}},
    {"vllm_gpu_memory_utilization", "0.3", "0.3", "share of the device that vLLM may take",
     read_utilization, FIELD(vllm_utilization), .needs = {&needs_vllm_here}},
    {"vllm_enable_sleep_mode", "no|yes", "no",
     "yes: vLLM gives its memory back between generations", tdm_key_read_switch, FIELD(sleeps),
     .needs = {&needs_vllm_here}},
    {"fast_inference", "no|yes", "no",
     "Unsloth's: vLLM generates with the base's weights of the training, which stay while it sleeps",
     tdm_key_read_switch, FIELD(shares_weights), .needs = {&needs_vllm_here, &tdm_need_lora},
     .unmeasured = "yes"},
    {"steps_per_generation", "N|accumulation", "accumulation",
     "micro-batches whose sequences are generated together; accumulation: those of a step",
     read_generated, FIELD(steps_per_generation), .least = 1, .most = STEPS_MOST,
     .needs = {&needs_generation}},
    {.name = NULL},
};

const struct tdm_method_key tdm_keys_ppo[] = {
    {"reward_model", "MODEL", "same",
     "what PPO's reward and value models are; same: as the policy, with a head of one score",
     read_model, FIELD(reward_model), .needs = {&needs_ppo}},
    {"local_rollout_forward_batch_size", "N", "64",
     "sequences that PPO generates and scores together, of those of a step", tdm_key_read_count,
     FIELD(rollout_batch), .least = 1, .most = STEPS_MOST, .needs = {&needs_ppo}},
    {.name = NULL},
};

enum tdm_status tdm_second_check(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    enum tdm_status status = TDM_OK;
    if (torch->second.trainer == TDM_TRAINER_REWARD && torch->logits != TDM_LOGITS_SCORE)
        return tdm_fail(err, TDM_USAGE,
                        "--set logits: trainer=reward has the head of logits=score; leave it out");
    if (!tdm_second_has_loss(&torch->second))
        return TDM_OK;
    if (torch->tokens < 2)
        return tdm_fail(err, TDM_USAGE,
                        "--set trainer: a sequence of one token has none to score; expected "
                        "--context 2 or more");
    const char *what = torch->logits_tiles > 0               ? "tiled_logits"
                       : tdm_tensor_ranks(torch) > 1         ? "tensor_parallel_degree"
                       : torch->wrapper != &tdm_fsdp_wrapper ? NULL
                       : torch->fsdp.expert_ranks > 1        ? "expert_parallel_degree"
                       : tdm_expert_parts(torch) > 1         ? "ep_size"
                                                             : NULL;
    if (torch->deepspeed.ep_size > 0)
        what = "ep_size";
    if (torch->deepspeed.offload_param == TDM_OFFLOAD_NVME)
        what = "offload_param=nvme";
    if (what != NULL)
        return tdm_fail(err, TDM_USAGE,
                        "--set trainer: steps of two models with %s are not modelled", what);
    if (torch->second.trainer == TDM_TRAINER_DISTILLATION && torch->wrapper == &tdm_fsdp_wrapper) {
        tdm_fail(err, TDM_USAGE,
                 "--set trainer=distillation: under FSDP accelerate leaves the teacher on the CPU, "
                 "which TRL's loss refuses");
        return tdm_hint(err, "zero3 shards the teacher; ddp and zero2 have all of it on each GPU");
    }
    if (torch->second.trainer == TDM_TRAINER_PPO) {
        what = torch->compile != TDM_COMPILE_NO ? "compile"
               : torch->steps_in_backward       ? "optimizer_in_bwd"
               : torch->wrapper == &tdm_no_wrapper || torch->wrapper == &tdm_ddp_wrapper ||
                       torch->wrapper == &tdm_zero1_wrapper
                   ? NULL
                   : "shards";
        if (what != NULL) {
            tdm_fail(err, TDM_USAGE,
                     "--set trainer=ppo: PPO's four models with %s are not modelled", what);
            return tdm_hint(err, "parallel, ddp and zero1 have all of them whole on each GPU");
        }
        struct tdm_model *reward = NULL;
        if (torch->second.reward_model != NULL) {
            status = tdm_model_load(torch->second.reward_model, &reward, err);
            if (status == TDM_OK)
                status = tdm_torch_check_second(reward, settings, err);
            tdm_model_free(reward);
            if (status != TDM_OK)
                return status;
        }
    }
    const bool liger =
        torch->logits == TDM_LOGITS_FUSED && torch->second.trainer == TDM_TRAINER_GRPO;
    if ((torch->logits != TDM_LOGITS_HF && !liger) || torch->use_cache)
        return tdm_fail(err, TDM_USAGE,
                        "--set trainer: TRL's trainers have a head and a loss of their own; leave "
                        "out use_cache, and logits but for logits=fused of trainer=grpo");
    if (torch->second.trainer != TDM_TRAINER_DISTILLATION || torch->second.teacher == NULL)
        return TDM_OK;
    struct tdm_model *teacher = NULL;
    status = tdm_model_load(torch->second.teacher, &teacher, err);
    if (status == TDM_OK)
        status = tdm_torch_check_second(teacher, settings, err);
    if (status == TDM_OK && teacher->vocabulary != model->vocabulary)
        status =
            tdm_fail(err, TDM_USAGE,
                     "--set teacher_model: \"%.64s\" has %u words, the student %u; expected as "
                     "many",
                     torch->second.teacher, teacher->vocabulary, model->vocabulary);
    tdm_model_free(teacher);
    return status;
}
