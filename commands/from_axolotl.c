/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of an Axolotl config: src/axolotl/utils/schemas of axolotl 067b021c. */
#include "commands/from_rules.h"

#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define FULL "sequences are assumed to be full"
#define RANKS "name the method of sequence parallelism, as --method ring"

static bool has_adapter(const struct tdm_from_reading *r)
{
    return !tdm_from_is_off(json_object_get(r->root, "adapter"));
}

static enum tdm_status read_adapter(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    return tdm_from_is(value, "lora") || tdm_from_is(value, "qlora")
               ? TDM_OK
               : tdm_from_bad(r, path, value, "lora and qlora are known");
}

static const char *const kernels[] = {"lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"};
enum { KERNELS = sizeof(kernels) / sizeof(kernels[0]) };

/* Does Axolotl fuse all adapters, as Unsloth does without dropout? It switches its kernels on where
 * nothing is said of them (utils/schemas/config.py `check_auto_enable_lora_kernels`). */
static bool fuses_adapters(const struct tdm_from_reading *r)
{
    static const char *const without[] = {"rl",
                                          "load_in_8bit",
                                          "gptq",
                                          "lora_dropout",
                                          "trust_remote_code",
                                          "peft_use_dora",
                                          "torch_compile",
                                          "reward_model"};
    const json_t *config = json_object_get(r->root, "fsdp_config"),
                 *version = json_object_get(r->root, "fsdp_version");
    unsigned said = 0, on = 0;
    for (size_t i = 0; i < KERNELS; i++) {
        const json_t *value = json_object_get(r->root, kernels[i]);
        said += value != NULL && !json_is_null(value);
        on += json_is_true(value);
    }
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++)
        if (!tdm_from_is_off(json_object_get(r->root, without[i])))
            return false;
    return on == KERNELS ||
           (said == 0 && (json_object_size(config) == 0 || json_integer_value(version) == 2));
}

static enum tdm_status read_kernel(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    return fuses_adapters(r) ? tdm_from_note(r, path, "predicted as Unsloth's function")
                             : tdm_from_lack(r, path, "Axolotl's kernel of LoRA keeps less");
}

/* Keys of adapters and quantized weights have no effect without an adapter. */
static enum tdm_status read_of_adapter(const struct tdm_from_reading *r, const char *path,
                                       const json_t *value)
{
    static const struct tdm_from_rule named[] = {
        {"lora_r", SET "lora_rank"},
        {"lora_target_modules", SET "lora_targets"},
        {"lora_target_linear", ON "lora_targets=all"},
        {"lora_modules_to_save", SET "modules_to_save"},
        {"lora_dropout", SET "lora_dropout"},
        {"load_in_4bit", ON "load_in_4bit=true"},
        {"load_in_8bit", ON "load_in_8bit=true"},
        {"gptq", ON "quantization=gptq"},
        {"peft_use_dora", ON "use_dora=yes"},
        {"lora_mlp_kernel", READ(read_kernel)},
        {"lora_qkv_kernel", READ(read_kernel)},
        {"lora_o_kernel", READ(read_kernel)},
        {.key = NULL},
    };
    return has_adapter(r) ? tdm_from_apply_rules(r, named, path, value)
                          : tdm_from_note(r, path, "there is no adapter");
}

/* true and false; "offload" and "offload_disk" move inputs of layers to the host or further. */
static enum tdm_status read_checkpoints(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    if (!json_is_string(value) || tdm_from_is_off(value) || tdm_from_is(value, "true"))
        return tdm_from_read_checkpoints(r, path, value);
    r->from->checkpoints = true;
    return tdm_from_is(value, "offload")
               ? tdm_from_pair(r, "checkpoint_offload", "alst")
               : tdm_from_lack(r, path, "predicted as checkpoints that stay on the GPU");
}

/* "auto": on where PyTorch can. */
static enum tdm_status read_compile(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    return tdm_from_is(value, "auto") ? tdm_from_pair(r, "compile", "all")
                                      : tdm_from_read_compile(r, path, value);
}

static enum tdm_status read_attention(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    if (strcmp(path, "flash_attention") == 0)
        return tdm_from_pair(r, "attn_implementation", "flash_attention_2");
    return tdm_from_pair(r, "attention", strcmp(path, "sdp_attention") == 0 ? "sdpa" : "eager");
}

/* axolotl/integrations/cut_cross_entropy: on where its plugin is, unless its key says no. The keys
 * of the other plugins say what they do. */
static enum tdm_status read_plugins(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    const json_t *said = json_object_get(r->root, "cut_cross_entropy");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (name != NULL && strstr(name, "CutCrossEntropyPlugin") != NULL && said == NULL)
            return tdm_from_pair(r, "logits", "cut");
    }
    return tdm_from_note(r, path, "the keys of plugins say it");
}

/* A head of classes in place of the LM head. */
static enum tdm_status read_labels(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    static const struct tdm_from_rule rule[] = {{"num_labels", SET "num_labels"}, {.key = NULL}};
    enum tdm_status status = tdm_from_pair(r, "logits", "score");
    return status == TDM_OK ? tdm_from_apply_rules(r, rule, path, value) : status;
}

/* TRL's RewardTrainer. */
static enum tdm_status read_reward(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    return tdm_from_is_off(value) ? tdm_from_note(r, path, "off")
                                  : tdm_from_pair(r, "trainer", "reward");
}

static enum tdm_status read_optimizer(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    const char *name = json_string_value(value);
    return name != NULL ? tdm_from_pair(r, "optim", name)
                        : tdm_from_bad(r, path, value, "expected a word");
}

/* fp16 is autocast to it, float16 the dtype of the weights: both as wide as bf16. */
static enum tdm_status read_half(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    r->from->bf16 = r->from->bf16 || tdm_from_is(value, "auto") || strcmp(path, "fp16") == 0;
    return tdm_from_lack(r, path, "predicted as bf16");
}

/* rl: the trainers of TRL that Axolotl calls. */
static enum tdm_status settle_trainer(const struct tdm_from_reading *r)
{
    const json_t *kind = json_object_get(r->root, "rl");
    if (tdm_from_is_off(kind))
        return TDM_OK;
    if (tdm_from_is(kind, "grpo") || tdm_from_is(kind, "gdpo"))
        return tdm_from_pair(r, "trainer", "grpo");
    if (tdm_from_is(kind, "simpo")) /* TRL's CPOTrainer, whose cpo_alpha is 1 where none is said */
        return tdm_from_pair(r, "trainer", "cpo");
    if (tdm_from_is(kind, "kto") || tdm_from_is(kind, "orpo"))
        return tdm_from_pair(r, "trainer", json_string_value(kind));
    return tdm_from_is(kind, "dpo") || tdm_from_is(kind, "ipo")
               ? tdm_from_pair(r, "trainer", "dpo")
               : tdm_from_bad(r, "rl", kind, "dpo, ipo, kto, orpo, simpo, grpo and gdpo are known");
}

/* axolotl/loaders/model.py: scales of 4 bits are quantized too unless bnb_config_kwargs says no. */
static enum tdm_status settle_scales(const struct tdm_from_reading *r)
{
    const json_t *kwargs = json_object_get(r->root, "bnb_config_kwargs");
    bool plain = json_is_false(json_object_get(kwargs, "bnb_4bit_use_double_quant"));
    bool quantized = json_is_true(json_object_get(r->root, "load_in_4bit")) && has_adapter(r);
    return quantized && !plain ? tdm_from_quiet_pair(r, "double_quantization", "yes") : TDM_OK;
}

/* axolotl/utils/config `normalize_config`: checkpoints are reentrant where no kwargs are given,
 * except for the trainers of `rl`. */
static void settle_checkpoints(const struct tdm_from_reading *r)
{
    const json_t *kwargs = json_object_get(r->root, "gradient_checkpointing_kwargs");
    if (tdm_from_is_off(kwargs) && tdm_from_is_off(json_object_get(r->root, "rl")))
        r->from->reentrant = true;
}

static enum tdm_status settle(const struct tdm_from_reading *r)
{
    enum tdm_status settled = TDM_OK;
    r->from->is_training = r->from->is_trainer = true;
    settle_checkpoints(r);
    r->from->adapters = has_adapter(r);
    if (json_object_size(json_object_get(r->root, "fsdp_config")) > 0) { /* or it is left blank */
        r->from->method = "fsdp";
        if (tdm_from_is_off(json_object_get(r->root, "fsdp")))
            settled = tdm_from_fsdp_version(r, "fsdp_config");
    }
    if (settled != TDM_OK)
        return settled;
    if (tdm_from_is(json_object_get(r->root, "adapter"), "qlora") &&
        tdm_from_is_off(json_object_get(r->root, "load_in_4bit")) &&
        tdm_from_is_off(json_object_get(r->root, "gptq")))
        return tdm_from_bad(r, "adapter", json_object_get(r->root, "adapter"),
                            "it goes with load_in_4bit: true");
    enum tdm_status status = tdm_from_liger_parts(r, r->root, "liger_", "glu_activation", false);
    if (status == TDM_OK)
        status = settle_scales(r);
    if (status == TDM_OK && has_adapter(r) && fuses_adapters(r))
        status = tdm_from_quiet_pair(r, "lora_kernels", "unsloth");
    if (status == TDM_OK) /* set_pytorch_cuda_alloc_conf, since July 2024 */
        status = tdm_from_quiet_pair(r, "allocator_conf", "expandable_segments:True");
    return status == TDM_OK ? settle_trainer(r) : status;
}

static const struct tdm_from_rule rules[] = {
    {"base_model", SAYS(MODEL)},
    {"sequence_len", SAYS(CONTEXT)},
    {"micro_batch_size", SAYS(BATCH)},
    {"gradient_accumulation_steps", SAYS(STEPS)},
    {"gradient_checkpointing", READ(read_checkpoints)},
    {"gradient_checkpointing_kwargs.use_reentrant", READ(tdm_from_read_reentrant)},
    {"optimizer", READ(read_optimizer)},
    {"bf16", READ(tdm_from_read_bf16)},
    {"bfloat16", READ(tdm_from_read_bf16)},
    {"fp16", READ(read_half)},
    {"float16", READ(read_half)},
    {"fp8*", REFUSE "only bf16 is known"},
    {"float32", REFUSE "only bf16 is known"},
    {"adapter", READ(read_adapter)},
    {"lora_r", READ(read_of_adapter)},
    {"lora_target_modules", READ(read_of_adapter)},
    {"lora_target_linear", READ(read_of_adapter)},
    {"lora_target_parameters", REFUSE "adapters of projections are known"},
    {"lora_modules_to_save", READ(read_of_adapter)},
    {"lora_dropout", READ(read_of_adapter)},
    {"lora_mlp_kernel", READ(read_of_adapter)},
    {"lora_qkv_kernel", READ(read_of_adapter)},
    {"lora_o_kernel", READ(read_of_adapter)},
    {"lora_embedding_kernel", LACK "predicted as PyTorch's operations"},
    {"lora_rank_pattern", REFUSE "one rank for all is known"},
    {"lora_alpha*", IGNORE NO_MEMORY},
    {"use_auth_token", IGNORE NO_MEMORY},
    {"flash_attn_fuse_qkv", LACK "predicted as three products"},
    {"lora_model_dir", IGNORE NO_MEMORY},
    {"lora_fan_in_fan_out", IGNORE NO_MEMORY},
    {"lora_on_cpu", IGNORE NO_MEMORY},
    {"loraplus_*", IGNORE NO_MEMORY},
    {"loftq_*", REFUSE "LoftQ is not known"},
    {"load_in_4bit", READ(read_of_adapter)},
    {"load_in_8bit", READ(read_of_adapter)},
    {"gptq", READ(read_of_adapter)},
    {"gptq_*", IGNORE "groups of 128 are assumed"},
    {"bnb_config_kwargs.bnb_4bit_use_double_quant", IGNORE "read with load_in_4bit"},
    {"bnb_config_kwargs*", LACK "nf4 with double quantization is predicted"},
    {"peft_use_dora", READ(read_of_adapter)},
    {"peft.*", LACK "the usual settings of adapters are predicted"},
    {"peft_use_rslora", IGNORE NO_MEMORY},
    {"peft_init_lora_weights", IGNORE NO_MEMORY},
    {"peft_autocast_adapter_dtype", REFUSE "adapters in fp32 are known"},
    {"peft_layer*", REFUSE "adapters in all layers are known"},
    {"peft_trainable_token_indices", REFUSE "single trained tokens are not known"},
    {"relora*", REFUSE "ReLoRA is not known"},
    {"lisa_*", REFUSE "LISA is not known"},
    {"unfrozen_parameters", REFUSE "all parameters or adapters are trained"},
    {"attn_implementation", READ(tdm_from_read_attention)},
    {"flash_attention", READ(read_attention)},
    {"sdp_attention", READ(read_attention)},
    {"eager_attention", READ(read_attention)},
    {"xformers_attention", LACK "predicted as sdpa"},
    {"flex_attention", LACK "predicted as sdpa"},
    {"flex_attn_compile_kwargs*", IGNORE NO_MEMORY},
    {"sage_attention", REFUSE "SageAttention is not known"},
    {"s2_attention", REFUSE "name the method, --method longlora"},
    {"flash_attn_cross_entropy", LACK "the loss of transformers is predicted"},
    {"flash_attn_rms_norm", LACK "predicted as transformers' norms"},
    {"flash_attn_fuse_mlp", LACK "predicted as transformers' MLP"},
    {"fused_attn_kernel", LACK "predicted as transformers' operations"},
    {"flash_optimum", REFUSE "BetterTransformer is not known"},
    {"use_kernels", LACK "predicted as transformers' operations"},
    {"liger_fused_linear_cross_entropy", ON "logits=fused"},
    {"liger_rms_norm", IGNORE "read as liger"},
    {"liger_rms_norm*", IGNORE NO_MEMORY},
    {"liger_layer_norm", IGNORE "the models have RMSNorm"},
    {"liger_glu_activation", IGNORE "read as liger"},
    {"liger_rope", IGNORE "read as liger"},
    {"liger_cross_entropy", LACK "the loss of transformers is predicted"},
    {"liger_use_token_scaling", IGNORE NO_MEMORY},
    {"cut_cross_entropy", ON "logits=cut"},
    {"chunked_cross_entropy", ON "logits=chunked"},
    {"chunked_cross_entropy_num_chunks", LACK "chunks of 256 tokens are predicted"},
    {"tiled_mlp*", LACK "the MLP is predicted whole"},
    {"plugins", READ(read_plugins)},
    {"activation_offloading", READ(tdm_from_read_offloading)},
    {"layer_offloading", REFUSE "offloaded layers are not known"},
    {"selective_checkpointing", LACK "checkpoints of whole layers are predicted"},
    {"torch_compile", READ(read_compile)},
    {"torch_compile_mode", READ(tdm_from_read_compile_mode)},
    {"torch_compile_backend", IGNORE "torch_compile says it"},
    {"deepspeed", READ(tdm_from_read_deepspeed)},
    {"deepcompile", REFUSE "DeepCompile is not known"},
    {"fsdp", READ(tdm_from_read_fsdp)},
    {"fsdp_config.*", TABLE(tdm_from_fsdp_rules), .prefix = "fsdp_"},
    {"fsdp_*", TABLE(tdm_from_fsdp_rules)},
    {"dp_replicate_size", SET "dp_replicate_size"},
    {"dp_shard_size", IGNORE "all GPUs share the shards"},
    {"context_parallel_size", ONE RANKS},
    {"sequence_parallel_degree", ONE RANKS},
    {"tensor_parallel_size", SET "tp_size"},
    {"expert_parallel_size", ONE "expert parallelism is not known"},
    {"heads_k_stride", IGNORE NO_MEMORY},
    {"ring_attn_func", IGNORE NO_MEMORY},
    {"quantize_moe_experts", REFUSE "quantized experts are not known"},
    {"experts_implementation", LACK "grouped products are predicted"},
    {"use_scattermoe", LACK "grouped products are predicted"},
    {"use_sonicmoe", LACK "grouped products are predicted"},
    {"qat*", REFUSE "training for quantized weights is not known"},
    {"model_quantization_config*", REFUSE "name the quantization, as --set quantization=nf4"},
    {"quantization*", REFUSE "name the quantization, as --set quantization=nf4"},
    {"rl", IGNORE "read as trainer"},
    {"rl_beta", IGNORE NO_MEMORY},
    {"dpo_*", IGNORE NO_MEMORY},
    {"kto_*", IGNORE NO_MEMORY},
    {"orpo_alpha", IGNORE NO_MEMORY},
    {"cpo_alpha", SET "cpo_alpha"},
    {"simpo_gamma", IGNORE NO_MEMORY},
    {"precompute_ref_log_probs", ON "precompute_ref_log_probs=yes"},
    {"trl.beta", SET "beta"},
    {"trl.max_completion_length", SET "max_completion_length"},
    {"trl.use_vllm", IGNORE "vLLM runs elsewhere, unless vllm_mode is colocate"},
    {"trl.vllm_mode", READ(tdm_from_read_vllm_mode)},
    {"trl.vllm_gpu_memory_utilization", IGNORE "vLLM runs elsewhere"},
    {"trl.*", IGNORE NO_MEMORY},
    {"reward_model", READ(read_reward)},
    {"process_reward_model", REFUSE "supervised training is known"},
    {"ebft*", REFUSE "supervised training is known"},
    {"vllm*", REFUSE "supervised training is known"},
    {"diffusion*", REFUSE "supervised training is known"},
    {"num_labels", READ(read_labels)},
    {"neftune_noise_alpha", LACK "noise of the embedding"},
    {"noisy_embedding_alpha", LACK "noise of the embedding"},
    {"optim_target_modules", LACK "GaLore is predicted with projections of all matrices of layers"},
    {"qgalore_*", REFUSE "GaLore and its like are not known"},
    {"auto_find_batch_size", LACK "the batch is as said"},
    {"torch_empty_cache_steps", LACK "cached memory is kept"},
    {"gc_steps", IGNORE NO_MEMORY},
    {"gc_collect_steps", IGNORE NO_MEMORY},
    {"resize_token_embeddings_to_32x", LACK "the vocabulary is the model's"},
    {"shrink_embeddings", LACK "the vocabulary is the model's"},
    {"embeddings_skip_upcast", IGNORE NO_MEMORY},
    {"random_init_weights", IGNORE NO_MEMORY},
    {"random_init", IGNORE NO_MEMORY}, /* in pull request 2412 */
    {"fp32_norm*", LACK "norms are predicted in the dtype of the weights"},
    {"freeze_mm_modules", LACK "the language model alone is predicted"},
    {"processor_*", IGNORE "the language model alone is predicted"},
    {"image_*", IGNORE "the language model alone is predicted"},
    {"overrides_of_model_config*", REFUSE "give the changed config.json as the model"},
    {"rope_scaling*", IGNORE NO_MEMORY},
    {"max_packed_sequence_len", IGNORE "sequence_len is the context"},
    {"batch_size", IGNORE "it follows from the others"},
    {"eval_*", IGNORE "evaluation is not predicted"},
    {"evals_*", IGNORE "evaluation is not predicted"},
    {"evaluation_strategy", IGNORE "evaluation is not predicted"},
    {"val_set_size", IGNORE "evaluation is not predicted"},
    {"do_*", IGNORE "evaluation is not predicted"},
    {"bench_*", IGNORE "evaluation is not predicted"},
    {"early_stopping_patience", IGNORE "evaluation is not predicted"},
    {"sample_packing*", IGNORE FULL},
    {"pad_to_*", IGNORE FULL},
    {"pretrain_multipack*", IGNORE FULL},
    {"pretraining_sample*", IGNORE FULL},
    {"streaming*", IGNORE NO_MEMORY},
    {"multipack_*", IGNORE FULL},
    {"batch_flattening", IGNORE FULL},
    {"curriculum_sampling", IGNORE NO_MEMORY},
    {"group_by_length", IGNORE FULL},
    {"excess_length_strategy", IGNORE FULL},
    {"min_sample_len", IGNORE FULL},
    {"max_grad_norm", SET "max_grad_norm"},
    {"datasets", IGNORE NO_MEMORY},
    {"dataset_*", IGNORE NO_MEMORY},
    {"dataloader_*", IGNORE NO_MEMORY},
    {"test_datasets", IGNORE NO_MEMORY},
    {"pretraining_dataset", IGNORE NO_MEMORY},
    {"shuffle_*", IGNORE NO_MEMORY},
    {"skip_prepare_dataset", IGNORE NO_MEMORY},
    {"push_dataset_to_hub", IGNORE NO_MEMORY},
    {"hf_use_auth_token", IGNORE NO_MEMORY},
    {"remove_unused_columns", IGNORE NO_MEMORY},
    {"train_on_inputs", IGNORE NO_MEMORY},
    {"model_type", IGNORE TDM_FROM_OF_MODEL},
    {"model_config*", IGNORE TDM_FROM_OF_MODEL},
    {"is_falcon*", IGNORE TDM_FROM_OF_MODEL},
    {"is_llama*", IGNORE TDM_FROM_OF_MODEL},
    {"is_mistral*", IGNORE TDM_FROM_OF_MODEL},
    {"is_qwen*", IGNORE TDM_FROM_OF_MODEL},
    {"base_model_*", IGNORE TDM_FROM_OF_MODEL},
    {"revision_of_model", IGNORE TDM_FROM_OF_MODEL},
    {"llama4_linearized_experts", LACK "grouped products are predicted"},
    {"trust_remote_code", IGNORE NO_MEMORY},
    {"tokenizer_*", IGNORE NO_MEMORY},
    {"special_tokens*", IGNORE NO_MEMORY},
    {"tokens", IGNORE "the vocabulary is the model's"},
    {"added_tokens_overrides*", IGNORE NO_MEMORY},
    {"chat_template*", IGNORE NO_MEMORY},
    {"eot_tokens", IGNORE NO_MEMORY},
    {"default_system_message", IGNORE NO_MEMORY},
    {"fix_untrained_tokens", IGNORE NO_MEMORY},
    {"roles_to_train", IGNORE NO_MEMORY},
    {"learning_rate", IGNORE NO_MEMORY},
    {"embedding_lr*", IGNORE NO_MEMORY},
    {"lr_*", IGNORE NO_MEMORY},
    {"eta_min", IGNORE NO_MEMORY},
    {"cosine_*", IGNORE NO_MEMORY},
    {"weight_decay", IGNORE NO_MEMORY},
    {"adam_*", IGNORE NO_MEMORY},
    {"optim_args", READ(tdm_from_read_optim_args)},
    {"warmup_*", IGNORE NO_MEMORY},
    {"num_epochs", IGNORE NO_MEMORY},
    {"max_steps", IGNORE NO_MEMORY},
    {"output_dir", IGNORE NO_MEMORY},
    {"project_name", IGNORE NO_MEMORY},
    {"hub_*", IGNORE NO_MEMORY},
    {"save_*", IGNORE NO_MEMORY},
    {"saves_per_epoch", IGNORE NO_MEMORY},
    {"load_best_model_at_end", IGNORE NO_MEMORY},
    {"metric_for_best_model", IGNORE NO_MEMORY},
    {"greater_is_better", IGNORE NO_MEMORY},
    {"resume_from_checkpoint", IGNORE NO_MEMORY},
    {"auto_resume_from_checkpoints", IGNORE NO_MEMORY},
    {"logging_*", IGNORE NO_MEMORY},
    {"loss_watchdog_*", IGNORE NO_MEMORY},
    {"include_*", IGNORE NO_MEMORY},
    {"profiler_*", IGNORE NO_MEMORY},
    {"wandb_*", IGNORE NO_MEMORY},
    {"trackio_*", IGNORE NO_MEMORY},
    {"swanlab_*", IGNORE NO_MEMORY},
    {"mlflow_*", IGNORE NO_MEMORY},
    {"comet_*", IGNORE NO_MEMORY},
    {"otel_*", IGNORE NO_MEMORY},
    {"use_wandb", IGNORE NO_MEMORY},
    {"use_mlflow", IGNORE NO_MEMORY},
    {"use_comet", IGNORE NO_MEMORY},
    {"use_swanlab", IGNORE NO_MEMORY},
    {"use_trackio", IGNORE NO_MEMORY},
    {"use_tensorboard", IGNORE NO_MEMORY},
    {"use_otel_metrics", IGNORE NO_MEMORY},
    {"seed", IGNORE NO_MEMORY},
    {"tf32", IGNORE NO_MEMORY},
    {"strict", IGNORE NO_MEMORY},
    {"total_num_tokens", IGNORE NO_MEMORY},
    {"total_supervised_tokens", IGNORE NO_MEMORY},
    {"use_ray", IGNORE NO_MEMORY},
    {"ray_*", IGNORE NO_MEMORY},
    {"resources_per_worker*", IGNORE NO_MEMORY},
    {"debug", IGNORE NO_MEMORY},
    {"ddp*", IGNORE "the keys of ddp say it"},
    {"local_rank", IGNORE NO_MEMORY},
    {"device*", IGNORE NO_MEMORY},
    {"low_cpu_mem_usage", IGNORE NO_MEMORY},
    {"torchdistx_path", IGNORE NO_MEMORY},
    {"accelerator_config*", IGNORE NO_MEMORY},
    {"experimental_skip_move_to_device", IGNORE NO_MEMORY},
    {"reinit_weights", IGNORE NO_MEMORY},
    {"unsloth_*", REFUSE "Unsloth's kernels are not known"},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_axolotl = {
    .name = "an Axolotl config",
    .rules = rules,
    .signs = {"base_model", "sequence_len", "micro_batch_size"},
    .settle = settle};
