/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of TRL's trainers (trl 1.16,
 * trl/trainer/{dpo,kto,grpo,rloo,distillation,reward}_trainer.py, trl/experimental/{cpo,orpo}),
 * most of which have a second model. DPO, KTO, GRPO and RLOO score tokens by a reference, which is
 * the base under the adapters or a copy; distillation compares with a teacher; GRPO and RLOO
 * generate with vLLM on the same GPU or on others, or with transformers. The wrapper of the student
 * shards the second model as TRL does (trl/models/utils.py, prepare_fsdp and prepare_deepspeed).
 * CPO, with it SimPO, and ORPO make all logits of pairs and have no reference. Rewards of pairs are
 * scores of logits=score.
 */
#ifndef TDM_METHODS_TORCH_SECOND_H
#define TDM_METHODS_TORCH_SECOND_H

#include <stdbool.h>
#include <stdint.h>

enum tdm_trainer {
    TDM_TRAINER_SFT, /* one model: the loss of "logits" */
    TDM_TRAINER_DPO,
    TDM_TRAINER_GRPO,
    TDM_TRAINER_DISTILLATION,
    TDM_TRAINER_KTO,
    TDM_TRAINER_CPO, /* and SimPO: cpo_alpha=0 */
    TDM_TRAINER_ORPO,
    TDM_TRAINER_REWARD,
    TDM_TRAINER_RLOO,
    TDM_TRAINER_PPO,
};

struct tdm_second_settings {
    enum tdm_trainer trainer;
    bool copies;              /* ref_model=copy: also under adapters */
    bool precomputes;         /* precompute_ref_log_probs: no reference in the steps */
    bool whole_logits;        /* to TRL 1.10: log-softmax of all logits at once */
    double cpo_alpha;         /* of CPO: weight of the cross entropy of chosen sequences */
    double beta;              /* of GRPO and RLOO; 0: no reference */
    bool says_beta;           /* else it is TRL's own: 0 of GRPO, 0.05 of RLOO */
    const char *reward_model; /* of PPO: what its value model is too, borrowed; NULL: the same */
    uint64_t rollout_batch;   /* of PPO: sequences that are generated and scored together */
    const char *teacher;      /* a model, borrowed; NULL: the same as the student */
    uint64_t scored_tokens;   /* the last so many of a sequence; TDM_AUTO: all */
    bool vllm;                /* generates with vLLM, else with transformers */
    bool elsewhere;           /* vllm_mode=server: on other GPUs */
    bool sleeps;              /* vllm_enable_sleep_mode */
    bool shares_weights;      /* fast_inference of Unsloth: vLLM has those that are trained on */
    double vllm_utilization;
    uint64_t steps_per_generation; /* 0: as many as a step accumulates */
    /* Of vLLM on this GPU, settled from the machine by tdm_second_settle(). */
    uint64_t vllm_weights_bytes, vllm_cache_bytes, vllm_graph_bytes;
};

struct tdm_machine;
struct tdm_method_settings;
struct tdm_model;

/* Has the trainer a loss of its own? Else the loss is that of "logits". */
bool tdm_second_has_loss(const struct tdm_second_settings *second);
/* Does it generate the sequences that it trains with? */
bool tdm_second_generates(const struct tdm_second_settings *second);
/* Does it score by a reference, be it a copy or the base under adapters? */
bool tdm_second_has_reference(const struct tdm_second_settings *second);
/* Does its loss take all logits of its sequences? Else log-probabilities are made tile by tile. */
bool tdm_second_has_logits(const struct tdm_second_settings *second);

/* Fills what vLLM takes on the machine. */
void tdm_second_settle(const struct tdm_model *model, const struct tdm_machine *machine,
                       struct tdm_method_settings *settings);

#endif
