/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a DeepSpeed config, and of what `accelerate config` writes. */
#include "base/yaml.h"
#include "commands/from_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define NO_GPU "GPUs are known"

static enum tdm_status settle_deepspeed(const struct tdm_from_reading *r)
{
    r->from->deepspeed.is_read = true;
    return TDM_OK;
}

/* Optimizers that the engine makes (DeepSpeed 0.19, engine.py _configure_basic_optimizer()): its
 * own by their names in any case, others of torch.optim. "auto": as Adam by its name has it. */
static enum tdm_status read_optimizer(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    const char *name = json_is_string(value) ? json_string_value(value) : "";
    const json_t *params = tdm_from_in(r, "optimizer", "params");
    const json_t *of_torch = json_object_get(params, "torch_adam"),
                 *momentum = json_object_get(params, "momentum");
    if (of_torch != NULL && !json_is_boolean(of_torch))
        return tdm_from_bad(r, "optimizer.params.torch_adam", of_torch, "expected true or false");
    if (strcasecmp(name, "Adam") == 0 || strcasecmp(name, "AdamW") == 0)
        return tdm_from_pair(r, "optimizer", json_is_true(of_torch) ? "torch_adam" : "AdamW");
    if (strcasecmp(name, "Lion") == 0)
        return tdm_from_pair(r, "optimizer", "Lion");
    if (strcmp(name, "SGD") == 0)
        return tdm_from_pair(r, "optimizer",
                             json_number_value(momentum) > 0 ? "sgd-momentum" : "sgd");
    return tdm_from_bad(
        r, path, value,
        strcasecmp(name, "Muon") == 0
            ? "DeepSpeed's Muon, which has matrices before they are divided, is not "
              "modelled; Adam, AdamW, Lion and SGD are known"
            : "Adam, AdamW, Lion and SGD are known");
}

/* 1, the default, is off, and may be in the config of any stage. */
static enum tdm_status read_second_copy(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    char text[32];
    if (!json_is_integer(value))
        return tdm_from_bad(r, path, value, "it is a number of GPUs");
    if (json_integer_value(value) <= 1)
        return tdm_from_note(r, path, "there is no second copy of parameters");
    snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return tdm_from_pair(r, "zero_hpz_partition_size", text);
}

/* -1, the default, is off. */
static enum tdm_status read_mics(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) <= 0
               ? tdm_from_note(r, path, "MiCS is off")
               : tdm_from_bad(r, path, value, "MiCS is not known; -1 is off");
}

/* Sizes of fp16 are those of bf16, and both are looked through for infinite gradients. */
static enum tdm_status read_half(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    if (tdm_from_is_off(value) || tdm_from_is(value, "auto"))
        return tdm_from_note(r, path, "fp16 is off");
    return tdm_from_lack(r, path, "predicted as bf16, whose sizes are the same");
}

/* ZeRO-Offload++: the share of states that are in host memory. */
static enum tdm_status read_ratio(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    if (json_is_number(value) && json_number_value(value) >= 1)
        return tdm_from_note(r, path, "all states are offloaded");
    return tdm_from_lack(r, path, "predicted with all states offloaded");
}

/* DeepSpeed 0.19: runtime/config.py, zero/config.py. */
static const struct tdm_from_rule deepspeed_rules[] = {
    {"train_micro_batch_size_per_gpu", SAYS(BATCH)},
    {"train_batch_size", IGNORE "it follows from the others"},
    {"gradient_accumulation_steps", SAYS(STEPS)},
    {"zero_optimization.stage", READ(tdm_from_read_stage)},
    {"zero_optimization.offload_optimizer.device", SET "offload_optimizer"},
    {"zero_optimization.offload_optimizer.pin_memory", SET "pin_memory"},
    {"zero_optimization.offload_param.device", SET "offload_param"},
    {"zero_optimization.offload_param.pin_memory", SET "pin_memory"},
    {"zero_optimization.offload_optimizer.buffer_count", SET "optimizer_buffer_count"},
    {"zero_optimization.offload_optimizer.ratio", READ(read_ratio)},
    {"zero_optimization.offload_optimizer.pipeline*", LACK "predicted without its buffers"},
    {"zero_optimization.offload_optimizer.super_offload", LACK "predicted without it"},
    {"zero_optimization.offload_optimizer.*", IGNORE NO_MEMORY},
    {"zero_optimization.offload_param.buffer_count", SET "param_buffer_count"},
    {"zero_optimization.offload_param.buffer_size", SET "param_buffer_size"},
    {"zero_optimization.offload_param.max_in_cpu", SET "max_in_cpu"},
    {"zero_optimization.offload_param.*", IGNORE NO_MEMORY},
    {"zero_optimization.contiguous_gradients", SET "contiguous_gradients"},
    {"zero_optimization.overlap_comm", SET "overlap_comm"},
    {"zero_optimization.reduce_scatter", SET "reduce_scatter"},
    {"zero_optimization.reduce_bucket_size", SIZE "reduce_bucket_size"},
    {"zero_optimization.sub_group_size", SET "sub_group_size"},
    {"zero_optimization.stage3_prefetch_bucket_size", SIZE "stage3_prefetch_bucket_size"},
    {"zero_optimization.stage3_param_persistence_threshold",
     SIZE "stage3_param_persistence_threshold"},
    {"zero_optimization.stage3_max_live_parameters", SET "stage3_max_live_parameters"},
    {"zero_optimization.stage3_max_reuse_distance", SET "stage3_max_reuse_distance"},
    /* the same by the names of DeepSpeed's fields */
    {"zero_optimization.prefetch_bucket_size", SIZE "stage3_prefetch_bucket_size"},
    {"zero_optimization.param_persistence_threshold", SIZE "stage3_param_persistence_threshold"},
    {"zero_optimization.max_live_parameters", SET "stage3_max_live_parameters"},
    {"zero_optimization.max_reuse_distance", SET "stage3_max_reuse_distance"},
    {"zero_optimization.stage3_gather_*", IGNORE "it is for saving"},
    {"zero_optimization.gather_16bit_weights_on_model_save", IGNORE "it is for saving"},
    {"zero_optimization.allgather_*", IGNORE "parameters are gathered in place"},
    {"zero_optimization.round_robin_gradients", IGNORE NO_MEMORY},
    {"zero_optimization.ignore_unused_parameters", IGNORE NO_MEMORY},
    {"zero_optimization.cpu_offload", REFUSE "say offload_optimizer"},
    {"zero_optimization.zero_hpz_partition_size", READ(read_second_copy)},
    {"zero_optimization.zero_quantized_weights", SET "zero_quantized_weights"},
    {"zero_optimization.zero_quantized_gradients", SET "zero_quantized_gradients"},
    {"zero_optimization.zero_quantized_nontrainable_weights",
     REFUSE "of ZeRO++ zero_quantized_weights and zero_quantized_gradients are known"},
    {"zero_optimization.mics_shard_size", READ(read_mics)},
    {"zero_optimization.mics_hierarchical_params_gather", IGNORE "MiCS is off"},
    {"zero_optimization.zeropp_loco_param.*", REFUSE "of ZeRO++ LoCo is not known"},
    {"communication_data_type", SET "communication_data_type"},
    {"data_types.grad_accum_dtype", SET "grad_accum_dtype"},
    {"bf16.enabled", IGNORE "bf16 is assumed"},
    {"bf16.bf16_master_weights_and_grads", LACK "predicted with fp32 masters"},
    {"bf16.bf16_optimizer_states", LACK "predicted with moments in fp32"},
    {"bf16.*", IGNORE NO_MEMORY},
    {"bfloat16.enabled", IGNORE "bf16 is assumed"},
    {"fp16.enabled", READ(read_half)},
    {"fp16.fp16_master_weights_and_grads", LACK "predicted with fp32 masters"},
    {"fp16.*", IGNORE NO_MEMORY},
    {"amp.*", IGNORE "apex is off"},
    {"optimizer.type", READ(read_optimizer)},
    {"optimizer.params.torch_adam", IGNORE "read with optimizer.type"},
    {"optimizer.params.*", IGNORE NO_MEMORY},
    {"scheduler.*", IGNORE NO_MEMORY},
    {"gradient_clipping", SET "max_grad_norm"},
    {"prescale_gradients", IGNORE NO_MEMORY},
    {"steps_per_print", IGNORE NO_MEMORY},
    {"wall_clock_breakdown", IGNORE NO_MEMORY},
    {"dump_state", IGNORE NO_MEMORY},
    {"memory_breakdown", IGNORE NO_MEMORY},
    {"flops_profiler.*", IGNORE NO_MEMORY},
    {"comms_logger.*", IGNORE NO_MEMORY},
    {"tensorboard.*", IGNORE NO_MEMORY},
    {"wandb.*", IGNORE NO_MEMORY},
    {"aio.*", IGNORE NO_MEMORY},
    {"checkpoint.*", IGNORE "it is for saving"},
    {"zero_allow_untested_optimizer", IGNORE NO_MEMORY},
    {"zero_force_ds_cpu_optimizer", IGNORE NO_MEMORY},
    {"seq_parallel_communication_data_type", IGNORE NO_MEMORY},
    {"sequence_parallel_size", ONE "name the method, --method ulysses"},
    {"compile.*", REFUSE "DeepCompile is not known"},
    {"tensor_parallel.autotp_size", ONE "AutoTP is not known"},
    {"tensor_parallel.*", IGNORE "AutoTP is off"},
    {"expert_parallel.enabled",
     REFUSE "AutoEP is not known; deepspeed.moe is, as --set ep_size=N of zero2"},
    {"expert_parallel.*", IGNORE "AutoEP is off"},
    {"activation_checkpointing.*", IGNORE "transformers' own checkpoints are set by checkpointing"},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_deepspeed = {
    .name = "a DeepSpeed config",
    .rules = deepspeed_rules,
    .signs = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"},
    .settle = settle_deepspeed};

/* ---- accelerate ---- */

#define DIVIDED "torch-cp"

enum tdm_status tdm_from_read_context(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    uint64_t ranks;
    char digits[32];
    enum tdm_status status = tdm_from_count(r, path, value, &ranks);
    if (status != TDM_OK || ranks == 1)
        return status == TDM_OK ? tdm_from_note(r, path, "one") : status;
    r->from->method = DIVIDED;
    snprintf(digits, sizeof(digits), "%" PRIu64, ranks);
    return tdm_from_pair(r, "sequence_parallel_size", digits);
}

void tdm_from_name_fsdp(const struct tdm_from_reading *r)
{
    if (r->from->method == NULL || strcmp(r->from->method, DIVIDED) != 0)
        r->from->method = "fsdp";
}

/* accelerate and what is launched by it: int(os.environ.get("FSDP_VERSION", "1")); transformers,
 * training_args.py: int(self.fsdp_config.get("version", 1)). */
enum tdm_status tdm_from_fsdp_version(const struct tdm_from_reading *r, const char *path)
{
    const json_t *config = json_object_get(r->root, "fsdp_config");
    const json_t *const said[] = {json_object_get(config, "fsdp_version"),
                                  json_object_get(config, "version"),
                                  json_object_get(r->root, "fsdp_version")};
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++)
        if (said[i] != NULL && !json_is_null(said[i]))
            return TDM_OK;
    r->from->fsdp_1 = true;
    return tdm_from_note(r, path,
                         "without fsdp_version accelerate runs FSDP 1, which is predicted");
}

static enum tdm_status read_distributed(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    if (tdm_from_is(value, "NO") || json_is_false(value)) /* without quotes, in YAML */
        r->from->method = r->from->method == NULL ? "parallel" : r->from->method;
    else if (tdm_from_is(value, "MULTI_GPU"))
        r->from->method = r->from->method == NULL ? "ddp" : r->from->method;
    else if (tdm_from_is(value, "FSDP"))
        tdm_from_name_fsdp(r);
    else if (!tdm_from_is(value, "DEEPSPEED"))
        return tdm_from_bad(r, path, value, "NO, MULTI_GPU, FSDP and DEEPSPEED are known");
    return tdm_from_is(value, "FSDP") ? tdm_from_fsdp_version(r, path) : TDM_OK;
}

/* Under autocast, but DeepSpeed's has masters of its own. */
static enum tdm_status read_autocast(const struct tdm_from_reading *r, const char *path)
{
    r->from->bf16 = true;
    r->from->scales = !tdm_from_is(json_object_get(r->root, "distributed_type"), "DEEPSPEED");
    return tdm_from_lack(r, path, "predicted as bf16, whose sizes are the same");
}

/* What mixed_precision was called before; where both are said, accelerate drops it
 * (commands/config/config_args.py load_config_from_file). */
static enum tdm_status read_old_precision(const struct tdm_from_reading *r, const char *path,
                                          const json_t *value)
{
    if (json_object_get(r->root, "mixed_precision") != NULL)
        return tdm_from_note(r, path, "mixed_precision is said");
    return tdm_from_is_off(value) ? tdm_from_note(r, path, "fp16 is off") : read_autocast(r, path);
}

static enum tdm_status read_precision(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    const json_t *backend = tdm_from_in(r, "fp8_config", "backend");
    bool float8 = tdm_from_is(value, "fp8");
    if (tdm_from_is(value, "fp16"))
        return read_autocast(r, path);
    if (!float8 && !tdm_from_is(value, "bf16"))
        return tdm_from_is_off(value)
                   ? TDM_OK
                   : tdm_from_bad(r, path, value, "bf16, fp16, fp8 and no are known");
    r->from->bf16 = true; /* what is not of 8 bits runs under autocast */
    if (!float8)
        return TDM_OK;
    if (tdm_from_is(backend, "TE"))
        return tdm_from_pair(r, "float8_recipe", "te");
    if (tdm_from_is(backend, "AO"))
        return tdm_from_pair(r, "float8_recipe", "tensorwise");
    if (backend == NULL)
        return tdm_from_bad(r, path, value, "say with it which of TE and AO fp8_config.backend is");
    return tdm_from_bad(r, "fp8_config.backend", backend, "TE and AO are known");
}

/* accelerate, utils/fsdp_utils.py fsdp2_prepare_model and accelerator.py: what is trained becomes
 * fp32 where mixed precision is on. With --set weights_dtype=fp32 parameters are gathered in bf16.
 */
static enum tdm_status settle_accelerate(const struct tdm_from_reading *r)
{
    bool sharded = tdm_from_is(json_object_get(r->root, "distributed_type"), "FSDP");
    r->from->is_training = r->from->accelerate.is_read = true;
    if (tdm_from_is_off(json_object_get(r->root, "distributed_type")) &&
        json_object_get(r->root, "distributed_type") != NULL)
        r->from->gpus = 1; /* whatever num_processes says */
    if (sharded && r->from->whole) {
        r->from->method = "ddp";
        r->from->fsdp_1 = false;
    }
    r->from->widens_by = sharded && r->from->bf16 ? r->file : r->from->widens_by;
    return TDM_OK;
}

/* Keys of DeepSpeed and of FSDP, which the other kinds of training leave unread. */
static const struct tdm_from_rule part_rules[] = {
    {"deepspeed_config.zero_stage", READ(tdm_from_read_stage)},
    {"deepspeed_config.deepspeed_config_file", READ(tdm_from_read_deepspeed)},
    {"deepspeed_config.gradient_accumulation_steps", SAYS(STEPS)},
    {"deepspeed_config.offload_optimizer_device", SET "offload_optimizer"},
    {"deepspeed_config.offload_param_device", SET "offload_param"},
    {"deepspeed_config.offload_optimizer_nvme_path", IGNORE NO_MEMORY},
    {"deepspeed_config.offload_param_nvme_path", IGNORE NO_MEMORY},
    {"deepspeed_config.gradient_clipping", SET "max_grad_norm"},
    {"deepspeed_config.zero3_init_flag", IGNORE "shards are assumed to be loaded one by one"},
    {"deepspeed_config.zero3_save_16bit_model", IGNORE "it is for saving"},
    {"deepspeed_config.deepspeed_*", IGNORE NO_MEMORY},
    {"deepspeed_config.seq_parallel_communication_data_type", IGNORE NO_MEMORY},
    {"deepspeed_config.*", IGNORE "accelerate reads no such key there"},
    {"fsdp_config.*", TABLE(tdm_from_fsdp_rules), .prefix = "fsdp_"},
    {.key = NULL},
};

static enum tdm_status read_part(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    const json_t *type = json_object_get(r->root, "distributed_type");
    const bool deepspeed = tdm_from_begins(path, "deepspeed_config");
    if (type != NULL && !tdm_from_is(type, deepspeed ? "DEEPSPEED" : "FSDP"))
        return tdm_from_note(r, path,
                             deepspeed ? "distributed_type is not DEEPSPEED"
                                       : "distributed_type is not FSDP");
    return tdm_from_apply_rules(r, part_rules, path, value);
}

/* accelerate 1.15, commands/config/config_args.py ClusterConfig; utils/dataclasses.py. */
static const struct tdm_from_rule accelerate_rules[] = {
    {"distributed_type", READ(read_distributed)},
    {"num_processes", SAYS(GPUS)},
    {"num_machines", SAYS(NODES)},
    {"mixed_precision", READ(read_precision)},
    {"deepspeed_config.*", READ(read_part)},
    {"fsdp_config.*", READ(read_part)},
    {"parallelism_config.parallelism_config_dp_shard_size", IGNORE "all GPUs share the shards"},
    {"parallelism_config.parallelism_config_dp_replicate_size", SET "dp_replicate_size"},
    {"parallelism_config.parallelism_config_tp_size", SET "tp_size"},
    {"parallelism_config.parallelism_config_cp_size", READ(tdm_from_read_context)},
    {"parallelism_config.parallelism_config_cp_comm_strategy", SET "rotate_method"},
    {"parallelism_config.parallelism_config_sp_size", ONE "name the method, as --method ulysses"},
    {"parallelism_config.*", IGNORE NO_MEMORY},
    {"dynamo_config.dynamo_backend", READ(tdm_from_read_compile)},
    {"dynamo_config.dynamo_mode", READ(tdm_from_read_compile_mode)},
    {"dynamo_config.dynamo_use_regional_compilation", IGNORE "read with dynamo_backend"},
    {"dynamo_config.*", IGNORE NO_MEMORY},
    {"dynamo_backend", READ(tdm_from_read_compile)},
    {"fp8_config.backend", IGNORE "read with mixed_precision"},
    {"fp8_config.use_mxfp8_block_scaling", REFUSE "one scale a tensor is known"},
    {"fp8_config.enable_fsdp_float8_all_gather", SET "enable_fsdp_float8_all_gather"},
    {"fp8_config.override_linear_precision", IGNORE "all products are taken to be of 8 bits"},
    {"fp8_config.*", IGNORE NO_MEMORY},
    {"fp16", READ(read_old_precision)},
    {"megatron_lm_config.*", REFUSE "give Megatron-LM's arguments to --from"},
    {"use_cpu", REFUSE NO_GPU},
    {"tpu_use_*", REFUSE NO_GPU},
    {"tpu_*", IGNORE "GPUs are used"},
    {"downcast_bf16", IGNORE "GPUs are used"},
    {"compute_environment", IGNORE NO_MEMORY},
    {"debug", IGNORE NO_MEMORY},
    {"enable_cpu_affinity", IGNORE NO_MEMORY},
    {"machine_rank", IGNORE NO_MEMORY},
    {"main_*", IGNORE NO_MEMORY},
    {"rdzv_*", IGNORE NO_MEMORY},
    {"same_network", IGNORE NO_MEMORY},
    {"gpu_ids", IGNORE NO_MEMORY},
    {"mpirun_config.*", IGNORE NO_MEMORY},
    {"command*", IGNORE NO_MEMORY},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_accelerate = {
    .name = "an accelerate config",
    .rules = accelerate_rules,
    .signs = {"distributed_type", "compute_environment", "num_processes"},
    .settle = settle_accelerate};

/* ---- the launcher of a script ---- */

/* torchrun's --nproc_per_node may be "gpu" or "auto", and what a script assigns is not known where
 * it asks the machine for it: as --gpus and --nodes have it. */
static enum tdm_status read_if_number(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    if (json_is_array(value)) /* words of "$(nvidia-smi -L | wc -l)" */
        return tdm_from_note(r, path, "--gpus and --nodes say it");
    if (text == NULL)
        return tdm_from_count(r, path, value, out);
    if (*text == '\0' || text[strspn(text, "0123456789")] != '\0')
        return tdm_from_note(r, path, "--gpus and --nodes say it");
    json_t *number = tdm_yaml_scalar(text, strlen(text));
    enum tdm_status status = tdm_from_count(r, path, number, out);
    json_decref(number);
    return status;
}

static enum tdm_status read_gpus_of_node(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value)
{
    return read_if_number(r, path, value, &r->from->gpus_of_node);
}

/* ms-swift's over divided sequences (trainers/utils.py per_token_loss_func_sp). */
static enum tdm_status read_loss_tokens(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    return read_if_number(r, path, value, &r->from->loss_tokens);
}

static enum tdm_status read_nodes(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    return read_if_number(r, path, value, &r->from->nodes);
}

static enum tdm_status read_config(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    if (!json_is_string(value))
        return tdm_from_bad(r, path, value, "expected the name of an accelerate config");
    r->from->accelerate.by = r->file;
    r->from->accelerate.name = tdm_from_keep(r, json_string_value(value));
    return r->from->accelerate.name != NULL
               ? TDM_OK
               : tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its settings", r->file);
}

static enum tdm_status read_allocator(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    if (strstr(json_string_value(value) != NULL ? json_string_value(value) : "",
               "expandable_segments:True") != NULL)
        return tdm_from_pair(r, "allocator_conf", "expandable_segments:True");
    return tdm_from_lack(r, path, "predicted as the allocator is by default");
}

static enum tdm_status read_use_fsdp(const struct tdm_from_reading *r, const char *path,
                                     const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    tdm_from_name_fsdp(r);
    return TDM_OK;
}

static enum tdm_status read_program(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    r->from->program = tdm_from_keep(r, json_string_value(value));
    return tdm_from_note(r, path, NO_MEMORY);
}

/* torchrun, accelerate launch and deepspeed (torch/distributed/run.py, accelerate
 * commands/launch.py, deepspeed launcher/runner.py); what a script assigns, of which ms-swift reads
 * NPROC_PER_NODE and NNODES (swift/cli/main.py). "program": commands/from_file.c. */
static const struct tdm_from_rule launcher_rules[] = {
    {"launcher.program", READ(read_program)},
    {"launcher.nproc_per_node", READ(read_gpus_of_node)},
    {"launcher.num_gpus", READ(read_gpus_of_node)},
    {"launcher.num_processes", SAYS(GPUS)},
    {"launcher.num_machines", SAYS(NODES)},
    {"launcher.num_nodes", SAYS(NODES)},
    {"launcher.nnodes", READ(read_nodes)},
    {"launcher.config_file", READ(read_config)},
    {"launcher.mixed_precision", READ(read_precision)},
    {"launcher.use_fsdp", READ(read_use_fsdp)},
    {"launcher.fsdp_*", TABLE(tdm_from_fsdp_rules)},
    {"launcher.deepspeed_config_file", READ(tdm_from_read_deepspeed)},
    {"launcher.zero_stage", READ(tdm_from_read_stage)},
    {"launcher.offload_optimizer_device", SET "offload_optimizer"},
    {"launcher.offload_param_device", SET "offload_param"},
    {"launcher.dynamo_backend", READ(tdm_from_read_compile)},
    {"launcher.*", IGNORE NO_MEMORY},
    {"env.PYTORCH_CUDA_ALLOC_CONF", READ(read_allocator)},
    {"env.PYTORCH_ALLOC_CONF", READ(read_allocator)},
    {"env.NPROC_PER_NODE", READ(read_gpus_of_node)},
    {"env.NNODES", READ(read_nodes)},
    {"env.CELOSS_PARALLEL_SIZE", READ(read_loss_tokens)},
    {"env.*", IGNORE "the arguments say it"},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_launcher = {
    .name = "a launcher", .rules = launcher_rules, .signs = {NULL}};
