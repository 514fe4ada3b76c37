/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a LLaMA-Factory config beside those of TrainingArguments: src/llamafactory/hparams and
 * model/adapter.py of LLaMA-Factory ff6d4d12. */
#include "commands/from_rules.h"

#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define FULL "sequences are assumed to be full"
#define NOT_TRAINING "it is not for training"
#define OF_PICTURES "the language model alone is predicted"

static const json_t *said(const struct tdm_from_reading *r, const char *key)
{
    return json_object_get(r->root, key);
}

/* finetuning_type: lora if it is not said. */
static bool has_adapter(const struct tdm_from_reading *r)
{
    const json_t *type = said(r, "finetuning_type");
    return type == NULL || tdm_from_is(type, "lora");
}

static enum tdm_status read_type(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    return tdm_from_is(value, "lora") || tdm_from_is(value, "full")
               ? TDM_OK
               : tdm_from_bad(r, path, value, "lora and full are known");
}

static enum tdm_status read_stage(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    if (tdm_from_is(value, "sft") || tdm_from_is(value, "pt"))
        return TDM_OK;
    if (tdm_from_is(value, "rm")) /* a head of one output (model/loader.py) */
        return tdm_from_pair(r, "trainer", "reward");
    if (tdm_from_is(value, "ppo"))
        return tdm_from_bad(r, path, value,
                            "its PPO has a value head on the policy, which is not known");
    if (!tdm_from_is(value, "kto") && !tdm_from_is(value, "dpo"))
        return tdm_from_bad(r, path, value, "sft, pt, dpo, kto and rm are known");
    /* Its own trainers take the log-softmax of all logits, as TRL did (train/dpo/trainer.py,
     * train/kto/trainer.py). Without a reference neither ORPO nor SimPO has another loss of the
     * chosen sequences: ORPO's is of the same log-probabilities (odds_ratio_loss). */
    const json_t *loss = said(r, "pref_loss");
    const bool pairs_alone =
        tdm_from_is(value, "dpo") && (tdm_from_is(loss, "orpo") || tdm_from_is(loss, "simpo"));
    enum tdm_status status = tdm_from_quiet_pair(r, "trl", "1.9");
    if (status == TDM_OK && !pairs_alone)
        return tdm_from_pair(r, "trainer", json_string_value(value));
    if (status == TDM_OK)
        status = tdm_from_pair(r, "trainer", "cpo");
    return status == TDM_OK ? tdm_from_pair(r, "cpo_alpha", "0") : status;
}

static enum tdm_status read_bits(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    const json_t *how = said(r, "quantization_method");
    const json_int_t bits = json_integer_value(value);
    if (how != NULL && !tdm_from_is(how, "bnb") && !tdm_from_is(how, "bitsandbytes"))
        return tdm_from_bad(r, "quantization_method", how, "bnb is known");
    return bits == 4   ? tdm_from_pair(r, "load_in_4bit", "true")
           : bits == 8 ? tdm_from_pair(r, "load_in_8bit", "true")
                       : tdm_from_bad(r, path, value, "4 and 8 are known");
}

static enum tdm_status read_attention(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    if (tdm_from_is(value, "auto"))
        return tdm_from_note(r, path, "the attention of transformers");
    if (tdm_from_is(value, "fa2") || tdm_from_is(value, "fa3") || json_is_true(value) ||
        tdm_from_is(value, "y")) /* before 2024-04 it was a switch */
        return tdm_from_pair(r, "attention", "flash");
    return tdm_from_is(value, "sdpa") ? tdm_from_pair(r, "attention", "sdpa")
           : tdm_from_is(value, "disabled")
               ? tdm_from_pair(r, "attention", "eager")
               : tdm_from_bad(r, path, value, "auto, sdpa, fa2, fa3 and disabled are known");
}

/* model/model_utils/liger_kernel.py: all its parts, and the fused loss. */
static enum tdm_status read_liger(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    enum tdm_status status = tdm_from_pair(r, "logits", "fused");
    return status == TDM_OK ? tdm_from_pair(r, "liger", "all") : status;
}

/* ---- GaLore: train/trainer_utils.py _create_galore_optimizer ---- */

/* Which states: by optim. Rank 16 where none is said, steps in the backward where it goes by
 * layers. */
static enum tdm_status read_galore(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    const json_t *optim = said(r, "optim");
    const char *name = json_is_string(optim) ? json_string_value(optim) : "adamw_torch";
    const bool of_8_bits = strstr(name, "8bit") != NULL;
    if (!of_8_bits && strncmp(name, "adamw_torch", strlen("adamw_torch")) != 0)
        return tdm_from_bad(r, "optim", optim, "GaLore is known with adamw_torch and adamw_8bit");
    enum tdm_status status = tdm_from_pair(r, "optimizer", of_8_bits ? "galore-8bit" : "galore");
    if (status == TDM_OK && said(r, "galore_rank") == NULL)
        status = tdm_from_pair(r, "galore_rank", "16");
    return status == TDM_OK && json_is_true(said(r, "galore_layerwise"))
               ? tdm_from_pair(r, "optimizer_in_bwd", "yes")
               : status;
}

static enum tdm_status read_galore_rank(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    static const struct tdm_from_rule rank[] = {{"galore_rank", SET "galore_rank"}, {.key = NULL}};
    return json_is_true(said(r, "use_galore")) ? tdm_from_apply_rules(r, rank, path, value)
                                               : tdm_from_note(r, path, "use_galore is off");
}

static enum tdm_status read_optim(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    return json_is_true(said(r, "use_galore"))
               ? tdm_from_note(r, path, "read with use_galore")
               : tdm_from_apply_rules(r, tdm_from_training_rules, path, value);
}

/* Under adapters the base is the reference, unless one is named (train/trainer_utils.py
 * create_ref_model). */
static enum tdm_status read_reference(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    return tdm_from_is_off(value) ? tdm_from_note(r, path, "off")
                                  : tdm_from_pair(r, "ref_model", "copy");
}

static enum tdm_status settle_adapter(const struct tdm_from_reading *r)
{
    enum tdm_status status = TDM_OK;
    r->from->adapters = true;
    if (said(r, "lora_rank") == NULL)
        status = tdm_from_pair(r, "lora_rank", "8");
    if (status == TDM_OK && json_integer_value(said(r, "quantization_bit")) == 4 &&
        !json_is_false(said(r, "double_quantization")))
        status = tdm_from_quiet_pair(r, "double_quantization", "yes");
    return status;
}

/* Checkpoints are on and reentrant unless it says otherwise. Trained weights are fp32 unless it
 * says pure_bf16 (adapter.py init_adapter), or ZeRO has masters of its own. */
static enum tdm_status settle(const struct tdm_from_reading *r)
{
    r->from->is_training = r->from->is_trainer = true;
    r->from->checkpoints = !json_is_true(said(r, "disable_gradient_checkpointing"));
    r->from->reentrant = !json_is_false(said(r, "use_reentrant_gc"));
    if (r->from->asked_gpus > 1 && /* its launcher (OPTIM_TORCH), since April 2025 */
        tdm_from_quiet_pair(r, "allocator_conf", "expandable_segments:True") != TDM_OK)
        return TDM_NO_MEMORY;
    if (has_adapter(r))
        return settle_adapter(r);
    bool narrow = json_is_true(said(r, "pure_bf16")) || said(r, "deepspeed") != NULL;
    return narrow ? TDM_OK : tdm_from_pair(r, "weights_dtype", "fp32");
}

static const struct tdm_from_rule rules[] = {
    {"cutoff_len", SAYS(CONTEXT)},
    {"finetuning_type", READ(read_type)},
    {"stage", READ(read_stage)},
    {"lora_rank", SET "lora_rank"},
    {"lora_target", SET "lora_targets"},
    {"lora_dropout", SET "lora_dropout"},
    {"additional_target", SET "modules_to_save"},
    {"quantization_bit", READ(read_bits)},
    {"quantization_method", IGNORE "read with quantization_bit"},
    {"quantization_type", IGNORE "nf4 and fp4 take the same"},
    {"double_quantization", IGNORE "read with quantization_bit"},
    {"flash_attn", READ(read_attention)},
    {"enable_liger_kernel", READ(read_liger)},
    {"pure_bf16", IGNORE "read as weights_dtype"},
    {"disable_gradient_checkpointing", IGNORE "read as checkpointing"},
    {"use_reentrant_gc", IGNORE "read as checkpointing"},
    {"use_unsloth*", LACK "predicted without Unsloth's kernels"},
    {"upcast_layernorm", LACK "norms are predicted in the dtype of the weights"},
    {"upcast_lmhead_output", LACK "logits are predicted as transformers has them"},
    {"fp8*", REFUSE "only bf16 is known"},
    {"adapter_name_or_path", IGNORE NO_MEMORY},
    {"shift_attn", REFUSE "name the method, --method longlora"},
    {"optim", READ(read_optim)},
    {"use_galore", READ(read_galore)},
    {"galore_rank", READ(read_galore_rank)},
    {"galore_*", IGNORE "matrices of all projections of layers are projected"},
    {"use_apollo", REFUSE "APOLLO is not known"},
    {"use_badam", REFUSE "BAdam is not known"},
    {"use_llama_pro", REFUSE "LLaMA Pro is not known"},
    {"apollo_*", IGNORE "use_apollo says it"},
    {"badam_*", IGNORE "use_badam says it"},
    {"use_mca", REFUSE "name Megatron-LM's settings, --method tensor-parallel"},
    {"use_megatron_bridge", REFUSE "name Megatron-LM's settings, --method tensor-parallel"},
    {"megatron_bridge_args*", IGNORE "use_megatron_bridge says it"},
    {"use_hyper_parallel", REFUSE "HyperParallel is not known"},
    {"hyper_parallel_*", IGNORE "use_hyper_parallel says it"},
    {"use_kt", REFUSE "KTransformers is not known"},
    {"kt_*", IGNORE "use_kt says it"},
    {"use_v1_kernels", LACK "predicted with the kernels of transformers"},
    {"use_muon", ON "optimizer=muon"},
    {"use_adam_mini", ON "optimizer=adam-mini"},
    {"mixture_of_depths", REFUSE "mixture of depths is not known"},
    {"freeze_*", IGNORE OF_PICTURES},
    {"lora_alpha", IGNORE NO_MEMORY},
    {"loraplus_*", IGNORE NO_MEMORY},
    {"pissa_*", IGNORE NO_MEMORY},
    {"pref_loss", IGNORE "read with stage"},
    {"pref_*", IGNORE NO_MEMORY},
    {"dpo_*", IGNORE NO_MEMORY},
    {"kto_*", IGNORE NO_MEMORY},
    {"simpo_*", IGNORE NO_MEMORY},
    {"ppo_*", IGNORE NO_MEMORY},
    {"ld_alpha", IGNORE NO_MEMORY},
    {"ref_model", READ(read_reference)},
    {"ref_model_adapters", REFUSE "a reference of adapters is not known"},
    {"ref_model_quantization_bit", LACK "the reference is predicted in bf16"},
    {"use_dft_loss", LACK "the loss of transformers is predicted"},
    {"use_asft_loss", REFUSE "a loss with a reference is not known"},
    {"use_eaft_loss", LACK "the loss of transformers is predicted"},
    {"asft_alpha", IGNORE NO_MEMORY},
    {"eaft_alpha", IGNORE NO_MEMORY},
    {"moe_aux_loss_coef", LACK "the loss of routers is not predicted"},
    {"packing", IGNORE FULL},
    {"neat_packing", IGNORE FULL},
    {"image_*", IGNORE OF_PICTURES},
    {"video_*", IGNORE OF_PICTURES},
    {"dataset*", IGNORE NO_MEMORY},
    {"media_dir", IGNORE NO_MEMORY},
    {"template", IGNORE NO_MEMORY},
    {"enable_thinking", IGNORE NO_MEMORY},
    {"max_samples", IGNORE NO_MEMORY},
    {"val_size", IGNORE NO_MEMORY},
    {"overwrite_*", IGNORE NO_MEMORY},
    {"preprocessing_*", IGNORE NO_MEMORY},
    {"tokenized_path", IGNORE NO_MEMORY},
    {"plot_loss", IGNORE NO_MEMORY},
    {"include_num_input_tokens_seen", IGNORE NO_MEMORY},
    {"use_swanlab", IGNORE NO_MEMORY},
    {"swanlab_*", IGNORE NO_MEMORY},
    {"ray_*", IGNORE NO_MEMORY},
    {"resources_per_worker*", IGNORE NO_MEMORY},
    {"rope_scaling", IGNORE NO_MEMORY},
    {"resize_vocab", IGNORE NO_MEMORY},
    {"train_from_scratch", IGNORE NO_MEMORY},
    {"device_map", IGNORE NO_MEMORY},
    {"compute_dtype", IGNORE NO_MEMORY},
    {"block_diag_attn", IGNORE NO_MEMORY},
    {"low_cpu_mem_usage", IGNORE NO_MEMORY},
    {"print_param_status", IGNORE NO_MEMORY},
    {"cache_dir", IGNORE NO_MEMORY},
    {"adapter_folder", IGNORE NO_MEMORY},
    {"create_new_adapter", IGNORE NO_MEMORY},
    {"use_fast_tokenizer", IGNORE NO_MEMORY},
    {"split_special_tokens", IGNORE NO_MEMORY},
    {"add_tokens", IGNORE NO_MEMORY},
    {"add_special_tokens", IGNORE NO_MEMORY},
    {"new_special_tokens_config*", IGNORE NO_MEMORY},
    {"init_special_tokens", IGNORE NO_MEMORY},
    {"hf_hub_token", IGNORE NO_MEMORY},
    {"ms_hub_token", IGNORE NO_MEMORY},
    {"om_hub_token", IGNORE NO_MEMORY},
    /* data_args.py */
    {"train_on_prompt", IGNORE NO_MEMORY},
    {"mask_history", IGNORE NO_MEMORY},
    {"streaming", IGNORE NO_MEMORY},
    {"buffer_size", IGNORE NO_MEMORY},
    {"mix_strategy", IGNORE NO_MEMORY},
    {"interleave_probs", IGNORE NO_MEMORY},
    {"ignore_pad_token_for_loss", IGNORE NO_MEMORY},
    {"tool_format", IGNORE NO_MEMORY},
    {"default_system", IGNORE NO_MEMORY},
    {"preserve_thinking", IGNORE NO_MEMORY},
    {"data_shared_file_system", IGNORE NO_MEMORY},
    {"crop_to_patches", IGNORE OF_PICTURES},
    {"use_audio_in_video", IGNORE OF_PICTURES},
    {"audio_*", IGNORE OF_PICTURES},
    {"disable_shuffling", IGNORE NO_MEMORY},
    {"early_stopping_steps", IGNORE NO_MEMORY},
    {"compute_accuracy", IGNORE "evaluation is not predicted"},
    /* generating_args.py, and what serves and exports */
    {"num_beams", IGNORE NOT_TRAINING},
    {"max_new_tokens", IGNORE NOT_TRAINING},
    {"repetition_penalty", IGNORE NOT_TRAINING},
    {"length_penalty", IGNORE NOT_TRAINING},
    {"skip_special_tokens", IGNORE NOT_TRAINING},
    {"use_kv_cache", IGNORE NOT_TRAINING},
    {"infer_*", IGNORE NOT_TRAINING},
    {"offload_folder", IGNORE NOT_TRAINING},
    {"export_*", IGNORE NOT_TRAINING},
    {"sglang_*", IGNORE NOT_TRAINING},
    /* training_args.py */
    {"master_*", IGNORE NO_MEMORY},
    {"enable_torch_profiler", IGNORE NO_MEMORY},
    {"profiler_*", IGNORE NO_MEMORY},
    {"profile_modules", IGNORE NO_MEMORY},
    {"predict_with_generate", IGNORE "evaluation is not predicted"},
    {"*", TABLE(tdm_from_training_rules)},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_llamafactory = {.name = "a LLaMA-Factory config",
                                                    .rules = rules,
                                                    .signs = {"finetuning_type", "cutoff_len"},
                                                    .settle = settle};
