/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM's arguments, as a command line or as the MODEL_ARGS of its functional tests:
 * megatron/training/arguments.py and transformer_config.py of Megatron-LM d98e8a64. */
#include "commands/from_shape.h"

#include <stdio.h>
#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define OF_HYBRID "the layers of MODEL are predicted, which should be the hybrid"
#define OF_MODEL "the model has it"

/* MODEL_ARGS of a test, or the whole file. */
static const json_t *arguments(const struct tdm_from_reading *r)
{
    const json_t *inside = json_object_get(r->root, "MODEL_ARGS");
    return inside != NULL ? inside : r->root;
}

/* An option of Megatron-LM, or of ms-swift, by the name of its key: num_layers. */
static const json_t *argument(const struct tdm_from_reading *r, const char *option)
{
    const json_t *value = json_object_get(arguments(r), option);
    char name[64];
    if (value != NULL)
        return value;
    snprintf(name, sizeof(name), "%s", option + strspn(option, "-"));
    for (char *at = name; *at != '\0'; at++)
        if (*at == '-')
            *at = '_';
    return json_object_get(arguments(r), name);
}

static enum tdm_status read_backend(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    static const char *const known[] = {"auto", "flash", "fused", "unfused", NULL};
    for (const char *const *word = known; *word != NULL; word++)
        if (tdm_from_is(value, *word))
            return tdm_from_pair(r, "attention_backend", *word);
    return tdm_from_bad(r, path, value, "auto, flash, fused and unfused are known");
}

/* fp64 takes more than what is predicted. */
static enum tdm_status read_router_dtype(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value)
{
    return tdm_from_is(value, "fp32") ? tdm_from_pair(r, "moe_router_dtype", "fp32")
                                      : tdm_from_bad(r, path, value, "fp32 is known");
}

/* transformer_config.py: "moe" of the modules of selective recomputation, which it turns on. */
static enum tdm_status read_moe_recompute(const struct tdm_from_reading *r, const char *path,
                                          const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    if (argument(r, "--recompute-modules") != NULL)
        return tdm_from_bad(r, path, value, "say moe in recompute_modules");
    const enum tdm_status status = argument(r, "--recompute-granularity") == NULL
                                       ? tdm_from_pair(r, "recompute_granularity", "selective")
                                       : TDM_OK;
    return status == TDM_OK ? tdm_from_pair(r, "recompute_modules", "core_attn,moe") : status;
}

static enum tdm_status read_dispatcher(const struct tdm_from_reading *r, const char *path,
                                       const json_t *value)
{
    return tdm_from_is(value, "alltoall")
               ? TDM_OK
               : tdm_from_lack(r, path, "predicted as the alltoall dispatcher");
}

static enum tdm_status read_implementation(const struct tdm_from_reading *r, const char *path,
                                           const json_t *value)
{
    return tdm_from_is(value, "transformer_engine")
               ? TDM_OK
               : tdm_from_bad(r, path, value, "transformer_engine is known");
}

/* --fp8-format turns products of 8 bits on, by the recipe that --fp8-recipe names. */
static enum tdm_status read_float8(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    static const char *const known[] = {"delayed", "tensorwise", "blockwise", "mxfp8", NULL};
    const json_t *recipe = argument(r, "--fp8-recipe");
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    if (recipe == NULL)
        return tdm_from_pair(r, "fp8_recipe", "delayed");
    for (const char *const *word = known; *word != NULL; word++)
        if (tdm_from_is(recipe, *word))
            return tdm_from_pair(r, "fp8_recipe", *word);
    return tdm_from_bad(r, "fp8_recipe", recipe,
                        "delayed, tensorwise, blockwise and mxfp8 are known");
}

/* Buffers of gradients are in the dtype of the weights unless accumulate_allreduce_grads_in_fp32 is
 * said, which bf16 alone implies (megatron/training/arguments.py). The scaler works in place
 * (core/optimizer/optimizer.py _unscale_main_grads_and_check_for_nan). */
static enum tdm_status read_fp16(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    const json_t *wide = argument(r, "--accumulate-allreduce-grads-in-fp32"),
                 *said = argument(r, "--grad-reduce-in-bf16");
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    const bool adds = (wide == NULL || tdm_from_is_off(wide)) && said == NULL;
    const enum tdm_status status = adds ? tdm_from_pair(r, "grad_reduce_in_bf16", "yes") : TDM_OK;
    return status == TDM_OK ? tdm_from_lack(r, path, "predicted as bf16, whose sizes are the same")
                            : status;
}

/* Gradients and moments of the precision-aware optimizer; fp16 takes as much as bf16. */
static enum tdm_status read_state_dtype(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    if (tdm_from_is(value, "fp32"))
        return tdm_from_pair(r, path, "fp32");
    if (tdm_from_is(value, "bf16") || tdm_from_is(value, "fp16"))
        return tdm_from_pair(r, path, "bf16");
    return tdm_from_bad(r, path, value, "fp32, bf16 and fp16 are known");
}

static enum tdm_status read_main_dtype(const struct tdm_from_reading *r, const char *path,
                                       const json_t *value)
{
    return tdm_from_is(value, "fp32")
               ? tdm_from_note(r, path, "as it is")
               : tdm_from_bad(r, path, value, "main parameters in fp32 are known");
}

static enum tdm_status read_optimizer(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    if (tdm_from_is(value, "adam"))
        return TDM_OK;
    if (!tdm_from_is(value, "muon") && !tdm_from_is(value, "dist_muon"))
        return tdm_from_bad(r, path, value, "adam, muon and dist_muon are known");
    /* dist_muon: layer_wise_optimizer.py, where ranks of one sequence set share the parameters */
    enum tdm_status status = tdm_from_pair(r, "optimizer", "muon");
    return status == TDM_OK && tdm_from_is(value, "dist_muon")
               ? tdm_from_lack(r, path, "data-parallel ranks are predicted with all states")
               : status;
}

static enum tdm_status read_positions(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    if (tdm_from_is(value, "rope") || tdm_from_is(value, "learned_absolute") ||
        tdm_from_is(value, "none"))
        return tdm_from_pair(r, "position_embedding_type", json_string_value(value));
    return tdm_from_bad(r, path, value, "rope, learned_absolute and none are known");
}

/* Scores in memory have masks of their own, unless attention_dropout is 0; it is 0.1 where nothing
 * is said of it (transformer_config.py). */
static enum tdm_status settle_attention_dropout(const struct tdm_from_reading *r)
{
    static const struct tdm_from_rule rule[] = {{"attention_dropout", SET "attention_dropout"},
                                                {.key = NULL}};
    const json_t *backend = argument(r, "--attention-backend"),
                 *dropout = argument(r, "--attention-dropout");
    if (backend == NULL || !tdm_from_is(backend, "unfused"))
        return TDM_OK;
    if (dropout == NULL)
        return tdm_from_pair(r, "attention_dropout", "0.1");
    r->from->key = "attention_dropout";
    const enum tdm_status status = tdm_from_apply_rules(r, rule, "attention_dropout", dropout);
    r->from->key = NULL;
    return status;
}

/* A value of an option, or what Megatron-LM takes where it is not said. */
struct unsaid {
    const char *option, *key, *value;
};

/* Ranks are never those that the method assumes. Where the file describes a model, the parts that
 * it does not name are Megatron-LM's. */
static enum tdm_status settle(const struct tdm_from_reading *r)
{
    static const struct unsaid ranks[] = {
        {"--tensor-model-parallel-size", "tensor_model_parallel_size", "1"},
        {"--context-parallel-size", "context_parallel_size", "1"},
        {NULL, NULL, NULL},
    };
    static const struct unsaid parts[] = {
        {"--normalization", "normalization", "LayerNorm"},
        {"--swiglu", "swiglu", "no"},
        {"--disable-bias-linear", "disable_bias_linear", "no"},
        {"--position-embedding-type", "position_embedding_type", "learned_absolute"},
        {"--hidden-dropout", "hidden_dropout", "0.1"},
        {NULL, NULL, NULL},
    };
    enum tdm_status status = TDM_OK;
    r->from->method = "megatron-cp";
    for (const struct unsaid *u = ranks; u->option != NULL && status == TDM_OK; u++)
        if (argument(r, u->option) == NULL)
            status = tdm_from_pair(r, u->key, u->value);
    if (status == TDM_OK)
        status = settle_attention_dropout(r);
    if (status == TDM_OK)
        status = tdm_from_read_shape(r, arguments(r));
    if (argument(r, "--num-layers") == NULL)
        return status;
    for (const struct unsaid *u = parts; u->option != NULL && status == TDM_OK; u++)
        if (argument(r, u->option) == NULL)
            status = tdm_from_pair(r, u->key, u->value);
    return status;
}

const struct tdm_from_rule tdm_from_megatron_rules[] = {
    {"micro_batch_size", SAYS(BATCH)},
    {"seq_length", SAYS(CONTEXT)},
    {"global_batch_size", IGNORE "as many micro-batches as fill the pipeline are predicted"},
    {"num_microbatches", SET "num_microbatches"},
    /* ranks */
    {"tensor_model_parallel_size", SET "tensor_model_parallel_size"},
    {"context_parallel_size", SET "context_parallel_size"},
    {"hybrid_context_parallel", SET "hybrid_context_parallel"},
    {"max_seqlen_per_dp_cp_rank", SET "max_seqlen_per_dp_cp_rank"},
    {"pipeline_model_parallel_size", SET "pipeline_model_parallel_size"},
    {"num_layers_per_virtual_pipeline_stage", SET "num_layers_per_virtual_pipeline_stage"},
    {"num_virtual_stages_per_pipeline_rank", SET "num_virtual_stages_per_pipeline_rank"},
    {"pipeline_model_parallel_layout", SET "pipeline_model_parallel_layout"},
    {"decoder_first_pipeline_num_layers", SET "decoder_first_pipeline_num_layers"},
    {"decoder_last_pipeline_num_layers", SET "decoder_last_pipeline_num_layers"},
    {"account_for_embedding_in_pipeline_split", SET "account_for_embedding_in_pipeline_split"},
    {"account_for_loss_in_pipeline_split", SET "account_for_loss_in_pipeline_split"},
    {"expert_model_parallel_size", SET "expert_model_parallel_size"},
    {"expert_tensor_parallel_size", SET "expert_tensor_parallel_size"},
    {"num_distributed_optimizer_instances", ONE "one instance is known"},
    {"sequence_parallel", SET "sequence_parallel"},
    {"cp_comm_type", SET "cp_comm_type"},
    {"hierarchical_context_parallel_sizes", SET "hierarchical_context_parallel_sizes"},
    {"use_tp_pp_dp_mapping", IGNORE NO_MEMORY},
    {"use_ring_exchange_p2p", IGNORE NO_MEMORY},
    {"overlap_p2p_communication*", IGNORE "as it is by default"},
    {"microbatch_group_size_per_virtual_pipeline_stage", SET "microbatch_group_size_per_vp_stage"},
    {"microbatch_group_size_per_vp_stage", SET "microbatch_group_size_per_vp_stage"},
    /* recomputation */
    {"recompute_granularity", SET "recompute_granularity"},
    {"recompute_method", SET "recompute_method"},
    {"recompute_num_layers", SET "recompute_num_layers"},
    {"recompute_modules", SET "recompute_modules"},
    {"recompute_activations", ON "recompute_granularity=selective"},
    {"distribute_saved_activations", SET "distribute_saved_activations"},
    {"cpu_offloading*", REFUSE "offloaded activations are not known"},
    {"fine_grained_activation_offloading", REFUSE "offloaded activations are not known"},
    /* optimizer and gradients */
    {"optimizer", READ(read_optimizer)},
    {"use_distributed_optimizer", SET "use_distributed_optimizer"},
    {"overlap_grad_reduce", SET "overlap_grad_reduce"},
    {"overlap_param_gather*", IGNORE NO_MEMORY},
    {"no_gradient_accumulation_fusion", ON "gradient_accumulation_fusion=no"},
    {"gradient_accumulation_fusion", SET "gradient_accumulation_fusion"},
    {"accumulate_allreduce_grads_in_fp32", IGNORE "as it is with bf16; read with fp16"},
    {"grad_reduce_in_bf16", SET "grad_reduce_in_bf16"},
    {"optimizer_cpu_offload", SET "optimizer_cpu_offload"},
    {"optimizer_offload_fraction", SET "optimizer_offload_fraction"},
    {"overlap_cpu_optimizer_d2h_h2d", IGNORE NO_MEMORY},
    {"use_torch_optimizer_for_cpu_offload", IGNORE NO_MEMORY},
    {"no_pin_cpu_grads", LACK "pinned memory is rounded up more"},
    {"no_pin_cpu_params", LACK "pinned memory is rounded up more"},
    {"use_precision_aware_optimizer", SET "use_precision_aware_optimizer"},
    {"main_grads_dtype", READ(read_state_dtype)},
    {"main_params_dtype", READ(read_main_dtype)},
    {"exp_avg_dtype", READ(read_state_dtype)},
    {"exp_avg_sq_dtype", READ(read_state_dtype)},
    {"use_megatron_fsdp", REFUSE "Megatron-FSDP is not known"},
    {"use_torch_fsdp2", REFUSE "name the method, --method fsdp"},
    {"data_parallel_sharding_strategy", REFUSE "Megatron-FSDP is not known"},
    {"ddp_bucket_size", LACK "buckets of the usual size are predicted"},
    {"ddp_*", IGNORE NO_MEMORY},
    {"defer_embedding_wgrad_compute", REFUSE "deferred gradients are not known"},
    {"wgrad_deferral_limit", IGNORE NO_MEMORY},
    {"delay_wgrad_compute", REFUSE "deferred gradients are not known"},
    {"muon_*", IGNORE NO_MEMORY},
    {"decoupled_*", IGNORE NO_MEMORY},
    /* dtypes */
    {"bf16", IGNORE "bf16 is assumed"},
    {"fp16", READ(read_fp16)},
    {"fp16_lm_cross_entropy", IGNORE "Megatron-Core's models do not read it"},
    {"fp8_format", READ(read_float8)},
    {"fp8_recipe", IGNORE "read with fp8_format"},
    {"fp8_param_gather", SET "fp8_param_gather"},
    {"fp8_margin", IGNORE NO_MEMORY},
    {"fp8_interval", IGNORE NO_MEMORY},
    {"fp8_amax_*", IGNORE NO_MEMORY},
    {"fp8*", REFUSE "products of layers in 8 bits are known"},
    {"fp4*", REFUSE "bf16 and products of 8 bits are known"},
    {"first_last_layers_bf16", SET "first_last_layers_bf16"},
    {"num_layers_at_start_in_bf16", SET "num_layers_at_start_in_bf16"},
    {"num_layers_at_end_in_bf16", SET "num_layers_at_end_in_bf16"},
    {"attention_softmax_in_fp32", IGNORE "the kernel's softmax is in fp32"},
    {"apply_query_key_layer_scaling", IGNORE NO_MEMORY},
    /* kernels */
    {"transformer_impl", READ(read_implementation)},
    {"attention_backend", READ(read_backend)},
    {"use_flash_attn", ON "attention_backend=flash"},
    {"use_mcore_models", IGNORE "Megatron-Core is predicted"},
    {"use_legacy_models", REFUSE "Megatron-Core is known"},
    {"cross_entropy_loss_fusion", SET "cross_entropy_loss_fusion"},
    {"cross_entropy_fusion_impl", SET "cross_entropy_fusion_impl"},
    {"no_masked_softmax_fusion", IGNORE "the kernel of attention has its own"},
    {"no_bias_gelu_fusion", LACK "predicted as one kernel"},
    {"no_bias_swiglu_fusion", ON "bias_swiglu_fusion=no"},
    {"no_bias_dropout_fusion", LACK "predicted as one kernel"},
    {"no_rope_fusion", LACK "predicted as one kernel"},
    {"no_persist_layer_norm", IGNORE NO_MEMORY},
    {"enable_cuda_graph", REFUSE "CUDA graphs are not known"},
    {"external_cuda_graph", REFUSE "CUDA graphs are not known"},
    {"cuda_graph_*", REFUSE "CUDA graphs are not known"},
    {"tp_comm_overlap", LACK "its buffers, of some hidden states of a rank, are not counted"},
    {"tp_comm_overlap_*", IGNORE "read with tp_comm_overlap"},
    {"te_rng_tracker", IGNORE NO_MEMORY},
    {"deterministic_mode", IGNORE "CUBLAS_WORKSPACE_CONFIG says what it changes"},
    {"batch_invariant_mode", REFUSE "its kernels are not known"},
    /* the model */
    {"normalization", SET "normalization"},
    {"swiglu", SET "swiglu"},
    {"squared_relu", LACK "the activation of MODEL is predicted"},
    {"disable_bias_linear", SET "disable_bias_linear"},
    {"position_embedding_type", READ(read_positions)},
    {"no_position_embedding", IGNORE "position_embedding_type says it"},
    {"use_rotary_position_embeddings", ON "position_embedding_type=rope"},
    {"hidden_dropout", SET "hidden_dropout"},
    {"attention_dropout", IGNORE "read with attention_backend; fused kernels make its mask again"},
    {"make_vocab_size_divisible_by", SET "make_vocab_size_divisible_by"},
    {"num_experts", IGNORE OF_MODEL},
    {"moe_pad_expert_input_to_capacity", SET "moe_pad_expert_input_to_capacity"},
    {"moe_permute_fusion", SET "moe_permute_fusion"},
    {"moe_router_dtype", READ(read_router_dtype)},
    {"moe_grouped_gemm", IGNORE "experts are in grouped products"},
    {"moe_use_legacy_grouped_gemm", IGNORE "experts are in grouped products"},
    {"moe_token_dispatcher_type", READ(read_dispatcher)},
    {"moe_expert_capacity_factor", SET "moe_expert_capacity_factor"},
    {"moe_layer_freq", IGNORE OF_MODEL},
    {"moe_ffn_hidden_size", IGNORE OF_MODEL},
    {"moe_shared_expert_intermediate_size", IGNORE OF_MODEL},
    {"moe_shared_expert_overlap", LACK "shared experts are predicted before the others"},
    {"moe_layer_recompute", READ(read_moe_recompute)},
    {"moe_extended_tp", REFUSE "say expert_tensor_parallel_size"},
    {"moe_upcycling_*", IGNORE NO_MEMORY},
    {"moe_use_upcycling", IGNORE NO_MEMORY},
    {"moe_router_*", IGNORE NO_MEMORY},
    {"moe_aux_loss_coeff", IGNORE NO_MEMORY},
    {"moe_z_loss_coeff", IGNORE NO_MEMORY},
    {"moe_token_drop_policy", IGNORE "experts get equally many tokens"},
    {"moe_input_jitter_eps", IGNORE NO_MEMORY},
    {"moe_per_layer_logging", IGNORE NO_MEMORY},
    {"moe_*", LACK "it is not known"},
    {"multi_latent_attention", IGNORE OF_MODEL},
    {"q_lora_rank", IGNORE OF_MODEL},
    {"kv_lora_rank", IGNORE OF_MODEL},
    {"qk_head_dim", IGNORE OF_MODEL},
    {"qk_pos_emb_head_dim", IGNORE OF_MODEL},
    {"v_head_dim", IGNORE OF_MODEL},
    {"mtp_num_layers", REFUSE "heads of later tokens are not known"},
    {"mtp_*", IGNORE NO_MEMORY},
    {"experimental_attention_variant", REFUSE "full attention is known"},
    {"attention_output_gate", REFUSE "it is not known"},
    {"window_size", REFUSE "full attention is known"},
    {"hybrid_*", LACK OF_HYBRID},
    {"is_hybrid_model", LACK OF_HYBRID},
    {"mamba_*", IGNORE OF_MODEL},
    {"spec", LACK "the layers of MODEL are predicted"},
    {"num_layers", IGNORE OF_MODEL},
    {"hidden_size", IGNORE OF_MODEL},
    {"ffn_hidden_size", IGNORE OF_MODEL},
    {"num_attention_heads", IGNORE OF_MODEL},
    {"group_query_attention", IGNORE OF_MODEL},
    {"num_query_groups", IGNORE OF_MODEL},
    {"kv_channels", IGNORE OF_MODEL},
    {"max_position_embeddings", IGNORE OF_MODEL},
    {"untie_embeddings_and_output_weights", IGNORE OF_MODEL},
    {"qk_layernorm", IGNORE OF_MODEL},
    {"qk_l2_norm", REFUSE "it is not known"},
    {"add_qkv_bias", IGNORE OF_MODEL},
    {"vocab_size", IGNORE OF_MODEL},
    {"padded_vocab_size", IGNORE OF_MODEL},
    {"vocab_file", IGNORE OF_MODEL},
    {"merge_file", IGNORE OF_MODEL},
    {"tokenizer_*", IGNORE OF_MODEL},
    {"tiktoken_*", IGNORE OF_MODEL},
    {"rotary_*", IGNORE OF_MODEL},
    {"rope_*", IGNORE OF_MODEL},
    {"use_rope_scaling", IGNORE OF_MODEL},
    {"mscale*", IGNORE OF_MODEL},
    {"norm_epsilon", IGNORE OF_MODEL},
    {"apply_layernorm_1p", IGNORE NO_MEMORY},
    {"apply_wd_to_qk_layernorm", IGNORE NO_MEMORY},
    {"init_method*", IGNORE NO_MEMORY},
    {"embedding_init_method_std", IGNORE NO_MEMORY},
    {"openai_gelu", IGNORE NO_MEMORY},
    /* data, logs, checkpoints and learning */
    {"create_attention_mask_in_dataloader", SET "create_attention_mask_in_dataloader"},
    {"no_create_attention_mask_in_dataloader", ON "create_attention_mask_in_dataloader=no"},
    {"reset_*", LACK "documents are not told apart"},
    {"calculate_per_token_loss", IGNORE NO_MEMORY},
    {"empty_unused_memory_level", LACK "cached memory is kept"},
    {"perform_rl_step", REFUSE "pretraining is known"},
    {"rl_*", REFUSE "pretraining is known"},
    {"inference_*", IGNORE "generation is not predicted"},
    {"max_tokens_to_oom", REFUSE "it is of an inference server, and training is known"},
    {"temperature", REFUSE "it is of generation, and training is known"},
    {"flash_decode", REFUSE "it is of generation, and training is known"},
    {"ckpt_*", IGNORE "it is for saving"},
    {"no_ckpt_*", IGNORE "it is for saving"},
    {"dist_ckpt_*", IGNORE "it is for saving"},
    {"use_dist_ckpt*", IGNORE "it is for saving"},
    {"auto_detect_ckpt_format", IGNORE "it is for saving"},
    {"save*", IGNORE "it is for saving"},
    {"load*", IGNORE "it is for saving"},
    {"no_load_*", IGNORE "it is for saving"},
    {"no_save_*", IGNORE "it is for saving"},
    {"async_*", IGNORE "it is for saving"},
    {"non_persistent_*", IGNORE "it is for saving"},
    {"use_checkpoint_*", IGNORE "it is for saving"},
    {"override_opt_param_scheduler", IGNORE NO_MEMORY},
    {"use_persistent_ckpt_worker", IGNORE "it is for saving"},
    {"no_use_tokenizer_model_from_checkpoint_args", IGNORE "it is for saving"},
    {"finetune", IGNORE NO_MEMORY},
    {"exit_*", IGNORE NO_MEMORY},
    {"error_injection_*", IGNORE NO_MEMORY},
    {"rerun_mode", IGNORE NO_MEMORY},
    {"log_*", IGNORE NO_MEMORY},
    {"logging_*", IGNORE NO_MEMORY},
    {"timing_*", IGNORE NO_MEMORY},
    {"tensorboard_*", IGNORE NO_MEMORY},
    {"wandb_*", IGNORE NO_MEMORY},
    {"profile*", IGNORE NO_MEMORY},
    {"use_pytorch_profiler", IGNORE NO_MEMORY},
    {"record_memory_history", IGNORE NO_MEMORY},
    {"memory_snapshot_path", IGNORE NO_MEMORY},
    {"straggler_*", IGNORE NO_MEMORY},
    {"verify_integrity", IGNORE NO_MEMORY},
    {"check_*", IGNORE NO_MEMORY},
    {"no_check_*", IGNORE NO_MEMORY},
    {"manual_gc*", IGNORE NO_MEMORY},
    {"distributed_*", IGNORE NO_MEMORY},
    {"high_priority_stream_groups", IGNORE NO_MEMORY},
    {"nccl_*", IGNORE NO_MEMORY},
    {"disable_gloo_process_groups", IGNORE NO_MEMORY},
    {"export_te_mcore_model", IGNORE "it is for saving"},
    {"seed", IGNORE NO_MEMORY},
    {"split", IGNORE NO_MEMORY},
    {"data_*", IGNORE NO_MEMORY},
    {"dataloader_type", IGNORE NO_MEMORY},
    {"train_data_path", IGNORE NO_MEMORY},
    {"valid_data_path", IGNORE NO_MEMORY},
    {"test_data_path", IGNORE NO_MEMORY},
    {"per_split_data_args_path", IGNORE NO_MEMORY},
    {"mock_data", IGNORE NO_MEMORY},
    {"no_mmap_bin_files", IGNORE NO_MEMORY},
    {"num_workers", IGNORE NO_MEMORY},
    {"num_dataset_builder_threads", IGNORE NO_MEMORY},
    {"eod_mask_loss", IGNORE NO_MEMORY},
    {"train_*", IGNORE NO_MEMORY},
    {"rampup_batch_size", IGNORE NO_MEMORY},
    {"step_batch_size_schedule", IGNORE NO_MEMORY},
    {"eval_*", IGNORE "evaluation is not predicted"},
    {"test_mode", IGNORE NO_MEMORY},
    {"lr*", IGNORE NO_MEMORY},
    {"min_lr", IGNORE NO_MEMORY},
    {"adam_*", IGNORE NO_MEMORY},
    {"weight_decay*", IGNORE NO_MEMORY},
    {"start_weight_decay", IGNORE NO_MEMORY},
    {"end_weight_decay", IGNORE NO_MEMORY},
    {"clip_grad", IGNORE "clipping is in place"},
    {"loss_scale*", IGNORE NO_MEMORY},
    {"initial_loss_scale", IGNORE NO_MEMORY},
    {"min_loss_scale", IGNORE NO_MEMORY},
    {"hysteresis", IGNORE NO_MEMORY},
    {"disable_straggler_on_startup", IGNORE NO_MEMORY},
    {"enable_experimental", IGNORE NO_MEMORY},
    {.key = NULL},
};

static const struct tdm_from_rule rules[] = {
    {"ENV_VARS.CUBLAS_WORKSPACE_CONFIG", SET "CUBLAS_WORKSPACE_CONFIG"},
    {"ENV_VARS.PYTORCH_CUDA_ALLOC_CONF", SET "PYTORCH_CUDA_ALLOC_CONF"},
    {"ENV_VARS.*", IGNORE NO_MEMORY},
    {"MODEL_ARGS.*", TABLE(tdm_from_megatron_rules)},
    {"TEST_TYPE", IGNORE "of the test"},
    {"METRICS", IGNORE "of the test"},
    {"LAUNCHER", IGNORE "of the test"},
    {"MODE", IGNORE "of the test"},
    {"BEFORE_SCRIPT", IGNORE "of the test"},
    {"AFTER_SCRIPT", IGNORE "of the test"},
    {"*", TABLE(tdm_from_megatron_rules)},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_megatron = {.name = "Megatron-LM's arguments",
                                                .rules = rules,
                                                .signs = {"MODEL_ARGS"},
                                                .options = true,
                                                .settle = settle};
