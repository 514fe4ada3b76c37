/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a config of torchtune's recipes: recipes/configs and the recipes of fine-tuning of
 * torchtune bd2a0fc7. */
#include "commands/from_rules.h"

#include <stdio.h>
#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define OTHER "recipes of fine-tuning and of DPO are known"

/* "torchtune.models.llama3_1.lora_llama3_1_8b": llama3_1_8b. */
static const char *component(const json_t *value)
{
    const char *name = json_string_value(value), *dot = name != NULL ? strrchr(name, '.') : NULL;
    return dot != NULL ? dot + 1 : name != NULL ? name : "";
}

/* Builders of torchtune.models, and shipped models of their shape. */
static const char *shipped_model(const char *builder)
{
    static const struct {
        const char *builder, *model;
    } models[] = {
        {"llama2_7b", "llama-2-7b"},
        {"llama2_13b", "llama-2-13b"},
        {"llama2_70b", "llama-2-70b"},
        {"code_llama2_7b", "codellama-7b"},
        {"code_llama2_13b", "codellama-13b"},
        {"llama3_8b", "llama-3-8b"},
        {"llama3_70b", "llama-3.1-70b"},
        {"llama3_1_8b", "llama-3.1-8b"},
        {"llama3_1_70b", "llama-3.1-70b"},
        {"llama3_1_405b", "llama-3.1-405b"},
        {"llama3_2_1b", "llama-3.2-1b"},
        {"llama3_2_3b", "llama-3.2-3b"},
        {"llama3_3_70b", "llama-3.1-70b"},
        {"llama4_scout_17b_16e", "llama-4-scout"},
        {"llama4_maverick_17b_128e", "llama-4-maverick"},
        {"mistral_7b", "mistral-7b-v0.2"},
        {"phi3_mini", "phi-3-mini"},
        {"phi4_14b", "phi-4"},
        {"gemma_2b", "gemma-2b"},
        {"gemma_7b", "gemma-7b"},
        {"gemma2_2b", "gemma-2-2b"},
        {"gemma2_9b", "gemma-2-9b"},
        {"gemma2_27b", "gemma-2-27b"},
        {"qwen2_0_5b", "qwen2.5-0.5b"},
        {"qwen2_1_5b", "qwen2.5-1.5b"},
        {"qwen2_7b", "qwen2.5-7b"},
        {"qwen2_5_0_5b", "qwen2.5-0.5b"},
        {"qwen2_5_1_5b", "qwen2.5-1.5b"},
        {"qwen2_5_3b", "qwen2.5-3b"},
        {"qwen2_5_7b", "qwen2.5-7b"},
        {"qwen2_5_14b", "qwen2.5-14b"},
        {"qwen2_5_32b", "qwen2.5-32b"},
        {"qwen2_5_72b", "qwen2.5-72b"},
        {"qwen3_0_6b", "qwen3-0.6b"},
        {"qwen3_1_7b", "qwen3-1.7b"},
        {"qwen3_4b", "qwen3-4b"},
        {"qwen3_8b", "qwen3-8b"},
        {"qwen3_14b", "qwen3-14b"},
        {"qwen3_32b", "qwen3-32b"},
    };
    size_t length = strlen(builder);
    static const char *const ends[] = {"_instruct", "_base"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const char *end = strstr(builder, ends[i]);
        if (end != NULL && strcmp(end, ends[i]) == 0)
            length = (size_t)(end - builder);
    }
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        if (strlen(models[i].builder) == length && tdm_from_begins(builder, models[i].builder))
            return models[i].model;
    return NULL;
}

static enum tdm_status add_quantized(const struct tdm_from_reading *r)
{
    enum tdm_status status = tdm_from_pair(r, "load_in_4bit", "true");
    return status == TDM_OK ? tdm_from_quiet_pair(r, "double_quantization", "yes") : status;
}

static enum tdm_status read_model(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    const char *name = component(value);
    bool quantized = tdm_from_begins(name, "qlora_");
    if (strstr(name, "vision") != NULL)
        return tdm_from_bad(r, path, value, "models of text are known");
    name += quantized ? strlen("qlora_") : tdm_from_begins(name, "lora_") ? strlen("lora_") : 0;
    r->from->model = shipped_model(name);
    enum tdm_status status = quantized ? add_quantized(r) : TDM_OK;
    if (status == TDM_OK && r->from->model == NULL)
        status = tdm_from_unnamed(r, path, "names a builder that is no shipped model");
    return status;
}

static enum tdm_status read_quantized(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    bool named = tdm_from_begins(component(tdm_from_in(r, "model", "_component_")), "qlora_");
    return tdm_from_is_off(value) || named ? tdm_from_note(r, path, "as the model's name says")
                                           : add_quantized(r);
}

/* Modules of attention, to which apply_lora_to_mlp adds those of the MLP. */
static enum tdm_status read_targets(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    bool mlp = json_is_true(tdm_from_in(r, "model", "apply_lora_to_mlp"));
    char text[256] = "";
    size_t used = 0, i;
    json_t *module;
    if (!json_is_array(value))
        return tdm_from_bad(r, path, value, "expected a list of projections");
    json_array_foreach((json_t *)(uintptr_t)value, i, module)
    {
        const char *name =
            tdm_from_is(module, "output_proj") ? "o_proj" : json_string_value(module);
        if (name == NULL || strlen(name) > 16 || i > 7)
            return tdm_from_bad(r, path, value, "expected a list of projections");
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i > 0 ? "," : "", name);
    }
    if (mlp)
        snprintf(text + used, sizeof(text) - used, "%sgate_proj,up_proj,down_proj",
                 used > 0 ? "," : "");
    return text[0] != '\0'
               ? tdm_from_pair(r, "lora_targets", text)
               : tdm_from_bad(r, path, value, "adapters of no projection are not known");
}

/* torchao's, around torch.optim.AdamW unless it says otherwise. */
static enum tdm_status read_offload(const struct tdm_from_reading *r)
{
    const bool gradients = json_is_true(tdm_from_in(r, "optimizer", "offload_gradients"));
    enum tdm_status status = tdm_from_pair(r, "optimizer", "adamw-fused");
    return status == TDM_OK
               ? tdm_from_pair(r, "cpu_offload_optimizer", gradients ? "gradients" : "states")
               : status;
}

static enum tdm_status read_optimizer(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    const char *name = component(value);
    bool fused = json_is_true(tdm_from_in(r, "optimizer", "fused"));
    return strcmp(name, "AdamW") == 0 || strcmp(name, "Adam") == 0
               ? tdm_from_pair(r, "optimizer", fused ? "adamw-fused" : "adamw-foreach")
           : strcmp(name, "PagedAdamW") == 0 || strcmp(name, "PagedAdamW32bit") == 0
               ? tdm_from_pair(r, "optimizer", "paged-adamw-32bit")
           : strcmp(name, "PagedAdamW8bit") == 0 ? tdm_from_pair(r, "optimizer", "paged-adamw-8bit")
           : strcmp(name, "AdamW8bit") == 0      ? tdm_from_pair(r, "optimizer", "adamw-8bit")
           : strcmp(name, "AdamW4bit") == 0      ? tdm_from_pair(r, "optimizer", "adamw-4bit")
           : strcmp(name, "AdamWFp8") == 0       ? tdm_from_pair(r, "optimizer", "adamw-fp8")
           : strcmp(name, "CPUOffloadOptimizer") == 0 ? read_offload(r)
           : strcmp(name, "SGD") == 0
               ? tdm_from_pair(r, "optimizer", "sgd")
               : tdm_from_bad(r, path, value,
                              "AdamW, AdamW8bit, AdamW4bit, AdamWFp8, PagedAdamW, PagedAdamW8bit, "
                              "CPUOffloadOptimizer and SGD are known");
}

static enum tdm_status read_loss(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    const char *name = component(value);
    if (strcmp(name, "LinearCrossEntropyLoss") == 0)
        return tdm_from_pair(r, "logits", "parts");
    if (strcmp(name, "LigerLinearCrossEntropyLoss") == 0)
        return tdm_from_pair(r, "logits", "fused");
    enum tdm_status status;
    if (strcmp(name, "CEWithChunkedOutputLoss") == 0) {
        status = tdm_from_lack(r, path, "predicted as LinearCrossEntropyLoss");
        return status == TDM_OK ? tdm_from_pair(r, "logits", "parts") : status;
    }
    if (strcmp(name, "CrossEntropyLoss") == 0) /* of logits in fp32, as transformers' is */
        return tdm_from_lack(r, path, "predicted as transformers' loss");
    if (strcmp(name, "DPOLoss") != 0)
        return tdm_from_bad(r, path, value, OTHER);
    status = tdm_from_lack(r, path, "predicted as TRL's DPO");
    return status == TDM_OK ? tdm_from_pair(r, "trainer", "dpo") : status;
}

static enum tdm_status read_dtype(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    return tdm_from_is(value, "bf16") ? tdm_from_quiet_pair(r, "weights_dtype", "bf16")
                                      : tdm_from_bad(r, path, value, "bf16 is known");
}

/* Layers are groups, and these modules. */
static enum tdm_status read_groups(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (tdm_from_is(json_array_get(value, i), "output"))
            return tdm_from_pair(r, "units", "layers+ends");
    return tdm_from_lack(r, path, "predicted as a part of the outermost group");
}

static enum tdm_status settle(const struct tdm_from_reading *r)
{
    const char *name = component(tdm_from_in(r, "model", "_component_"));
    bool adapted = tdm_from_begins(name, "lora_") || tdm_from_begins(name, "qlora_");
    enum tdm_status status = TDM_OK;
    if (json_object_get(r->root, "optimizer") == NULL)
        return tdm_fail(r->err, TDM_INPUT, "%s: \"optimizer\" is missing; " OTHER, r->file);
    r->from->is_training = true;
    r->from->spread = "fsdp";
    if (adapted && tdm_from_in(r, "model", "lora_rank") == NULL)
        status = tdm_from_pair(r, "lora_rank", "8");
    if (status == TDM_OK) /* torchtune/__init__.py, since June 2025 */
        status = tdm_from_quiet_pair(r, "allocator_conf", "expandable_segments:True");
    if (status == TDM_OK)
        status = tdm_from_lack(r, "model", "predicted as transformers' model of the same shape");
    return status;
}

static const struct tdm_from_rule rules[] = {
    {"model._component_", READ(read_model)},
    {"model.lora_rank", SET "lora_rank"},
    {"model.lora_attn_modules", READ(read_targets)},
    {"model.apply_lora_to_mlp", IGNORE "read with lora_attn_modules"},
    {"model.apply_lora_to_output", LACK "the head is predicted without an adapter"},
    {"model.lora_dropout", SET "lora_dropout"},
    {"model.use_dora", ON "use_dora=yes"},
    {"model.quantize_base", READ(read_quantized)},
    {"model.lora_alpha", IGNORE NO_MEMORY},
    {"model.*", IGNORE TDM_FROM_OF_MODEL},
    {"tokenizer.max_seq_len", SAYS(CONTEXT)},
    {"tokenizer.*", IGNORE NO_MEMORY},
    {"batch_size", SAYS(BATCH)},
    {"gradient_accumulation_steps", SAYS(STEPS)},
    {"optimizer._component_", READ(read_optimizer)},
    {"optimizer.*", IGNORE NO_MEMORY},
    {"optimizer_in_bwd", ON "optimizer_in_bwd=yes"},
    {"loss._component_", READ(read_loss)},
    {"loss.*", IGNORE NO_MEMORY},
    {"kd_loss.*", REFUSE OTHER},
    {"teacher_model.*", REFUSE OTHER},
    {"clip_grad_norm", SET "max_grad_norm"},
    {"dtype", READ(read_dtype)},
    {"compile", ON "compile=all"},
    {"enable_activation_checkpointing", READ(tdm_from_read_checkpoints)},
    {"enable_activation_offloading", READ(tdm_from_read_offloading)},
    {"ac_mode", REFUSE "checkpoints of every layer are known, enable_activation_checkpointing"},
    {"ac_option", IGNORE "read with ac_mode"},
    {"fsdp_cpu_offload", ON "offload_policy=cpu"},
    {"fsdp.cpu_offload", ON "offload_policy=cpu"},
    {"fsdp_reshard_after_forward", SET "reshard_after_forward"},
    {"memory_efficient_fsdp_wrap", ON "units=layers+ends"},
    {"custom_sharded_layers", READ(read_groups)},
    {"data_parallel_replicate_dim", SET "dp_replicate_size"},
    {"data_parallel_shard_dim", IGNORE "all GPUs share the shards"},
    {"tensor_parallel_dim", ONE "tensor parallelism is not known with its loss"},
    {"tensor_parallel_plan.*", IGNORE "read as tensor_parallel_dim"},
    {"context_parallel_dim", ONE "context parallelism of torchtune is not known"},
    {"expert_parallel_dim", ONE "expert parallelism is not known"},
    {"quantizer*", REFUSE "quantizers are not known; 4 bits are, by builders qlora_..."},
    {"enable_fp8_training", REFUSE "only bf16 is known"},
    {"dataset.packed", IGNORE "sequences are assumed to be full"},
    {"dataset*", IGNORE NO_MEMORY},
    {"dataloader.*", IGNORE NO_MEMORY},
    {"collate_fn", IGNORE NO_MEMORY},
    {"shuffle", IGNORE NO_MEMORY},
    {"run_val_every_n_steps", IGNORE "evaluation is not predicted"},
    {"batch_size_val", IGNORE "evaluation is not predicted"},
    {"checkpointer.*", IGNORE "it is for loading and saving"},
    {"ref_checkpointer.*", IGNORE "it is for loading"},
    {"resume_from_checkpoint", IGNORE NO_MEMORY},
    {"save_*", IGNORE "it is for saving"},
    {"enable_async_checkpointing", IGNORE "it is for saving"},
    {"use_distributed_state_dict", IGNORE "it is for loading"},
    {"keep_last_n_checkpoints", IGNORE "it is for saving"},
    {"low_cpu_ram", IGNORE "it is for loading"},
    {"lr_scheduler.*", IGNORE NO_MEMORY},
    {"metric_logger.*", IGNORE NO_MEMORY},
    {"profiler.*", IGNORE NO_MEMORY},
    {"log_*", IGNORE NO_MEMORY},
    {"name", IGNORE NO_MEMORY},
    {"base_model_path", IGNORE NO_MEMORY},
    {"output_dir", IGNORE NO_MEMORY},
    {"seed", IGNORE NO_MEMORY},
    {"device", IGNORE NO_MEMORY},
    {"epochs", IGNORE NO_MEMORY},
    {"max_steps_per_epoch", IGNORE NO_MEMORY},
    {"use_flex", IGNORE "attention without a mask is predicted"},
    {"tasks", REFUSE OTHER},
    {"prompt*", REFUSE OTHER},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_torchtune = {
    .name = "a config of torchtune",
    .rules = rules,
    .signs = {"checkpointer", "metric_logger", "enable_activation_checkpointing"},
    .settle = settle};
