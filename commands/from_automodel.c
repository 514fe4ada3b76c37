/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a YAML file of NeMo Automodel's recipes for language models: examples/ and
 * nemo_automodel/recipes/llm/train_ft.py, components/distributed/config.py,
 * components/loss, components/_peft/lora.py of Automodel 36044ad3. */
#include "commands/from_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define OTHER "recipes of fine-tuning and pretraining of language models are known"
#define TARGETS_BYTES 256u
#define TARGET_MOST 16u /* letters of a projection's name */

/* "torch.optim.AdamW": AdamW. */
static const char *last_part(const json_t *value)
{
    const char *name = json_string_value(value), *dot = name != NULL ? strrchr(name, '.') : NULL;
    return dot != NULL ? dot + 1 : name != NULL ? name : "";
}

static enum tdm_status read_recipe(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    const char *name = last_part(value);
    return strstr(name, "NextTokenPrediction") != NULL || strstr(name, "Benchmarking") != NULL
               ? tdm_from_note(r, path, "one step of training is predicted")
               : tdm_from_bad(r, path, value, OTHER);
}

static enum tdm_status read_class(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    const char *name = json_string_value(value);
    return name != NULL && strstr(name, "AutoModelForCausalLM") != NULL
               ? tdm_from_lack(r, path, "predicted as transformers' model of the same shape")
               : tdm_from_bad(r, path, value, "NeMoAutoModelForCausalLM is known");
}

/* A name, or a config that is made of one. */
static enum tdm_status read_config(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    if (json_is_string(value))
        return tdm_from_read_model(r, path, value);
    const json_t *name = json_object_get(value, "pretrained_model_name_or_path");
    return name != NULL ? tdm_from_read_model(r, "model.config.pretrained_model_name_or_path", name)
                        : tdm_from_unnamed(r, path, "names no model that is shipped");
}

/* components/distributed/parallelizer.py: checkpoints of the modules of a layer. */
static enum tdm_status read_checkpoints(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "nothing is checkpointed");
    if (tdm_from_is(value, "selective"))
        return tdm_from_pair(r, "checkpointing", "selective");
    return json_is_true(value) || tdm_from_is(value, "full")
               ? tdm_from_pair(r, "checkpointing", "modules")
               : tdm_from_bad(r, path, value, "true, full, selective and false are known");
}

static enum tdm_status read_strategy(const struct tdm_from_reading *r, const char *path,
                                     const json_t *value)
{
    const char *name = last_part(value); /* FSDP2Manager in earlier files */
    if (strcmp(name, "ddp") == 0 || strcmp(name, "DDPManager") == 0)
        r->from->spread = "ddp";
    else if (strcmp(name, "fsdp2") != 0 && strcmp(name, "FSDP2Manager") != 0)
        return tdm_from_bad(r, path, value, "fsdp2 and ddp are known");
    return TDM_OK;
}

/* The output is alive in the backward, and so are the logits of a loss that takes them. */
static enum tdm_status read_loss(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    const char *name = last_part(value);
    if (strcmp(name, "MaskedCrossEntropy") == 0)
        return tdm_from_pair(r, "logits", "hf-held");
    if (strcmp(name, "FusedLinearCrossEntropy") == 0)
        return tdm_from_pair(r, "logits", "cut");
    if (strcmp(name, "ChunkedCrossEntropy") != 0 && strcmp(name, "TEParallelCrossEntropy") != 0)
        return tdm_from_bad(r, path, value,
                            "MaskedCrossEntropy, FusedLinearCrossEntropy, ChunkedCrossEntropy and "
                            "TEParallelCrossEntropy are known");
    enum tdm_status status = tdm_from_lack(r, path, "predicted as MaskedCrossEntropy");
    return status == TDM_OK ? tdm_from_pair(r, "logits", "hf-held") : status;
}

static enum tdm_status read_optimizer(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    const char *name = last_part(value);
    const bool fused = json_is_true(tdm_from_in(r, "optimizer", "fused"));
    if (strcmp(name, "Adam") == 0 || strcmp(name, "AdamW") == 0)
        return tdm_from_pair(r, "optimizer", fused ? "adamw-fused" : "adamw-foreach");
    if (strcmp(name, "SGD") == 0)
        return tdm_from_pair(r, "optimizer", "sgd");
    return tdm_from_bad(r, path, value, "torch.optim's Adam, AdamW and SGD are known");
}

/* "*" is every linear layer, so the head too (components/_peft/module_matcher.py). */
static enum tdm_status every_linear(const struct tdm_from_reading *r, const char *path)
{
    const enum tdm_status status = tdm_from_pair(r, "lora_targets", "all");
    return status == TDM_OK ? tdm_from_lack(r, path, "an adapter of the head is not counted")
                            : status;
}

/* One name or a list, with "*" before it: "*_proj" is all of them. */
static enum tdm_status read_targets(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    char text[TARGETS_BYTES] = "";
    size_t used = 0;
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count == 0)
        return tdm_from_bad(r, path, value, "adapters of no projection are not known");
    for (size_t i = 0; i < count; i++) {
        const char *name =
            json_string_value(json_is_array(value) ? json_array_get(value, i) : value);
        if (name != NULL && strcmp(name, "*") == 0)
            return every_linear(r, path);
        if (name != NULL && (strcmp(name, "*_proj") == 0 || strcmp(name, "*proj") == 0))
            return tdm_from_pair(r, "lora_targets", "all");
        if (name != NULL && *name == '*')
            name += name[1] == '.' ? 2 : 1;
        if (name == NULL || strstr(name, "_proj") == NULL || strchr(name, '*') != NULL ||
            strlen(name) > TARGET_MOST || used + TARGET_MOST + 2 > TARGETS_BYTES)
            return tdm_from_bad(r, path, value, "expected projections, as \"*_proj\"");
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i > 0 ? "," : "", name);
    }
    return tdm_from_pair(r, "lora_targets", text);
}

static enum tdm_status read_float8(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    const json_t *recipe = tdm_from_in(r, "fp8", "recipe_name");
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "products are of bf16");
    enum tdm_status status = tdm_from_pair(
        r, "float8_recipe", json_is_string(recipe) ? json_string_value(recipe) : "tensorwise");
    if (status == TDM_OK && json_is_true(tdm_from_in(r, "fp8", "enable_fsdp_float8_all_gather")))
        status = tdm_from_pair(r, "enable_fsdp_float8_all_gather", "yes");
    return status;
}

/* Tokens of a sequence that samples are packed into; 0: they are not packed. */
static enum tdm_status read_packed(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    static const struct tdm_from_rule context[] = {
        {"packed_sequence.packed_sequence_size", SAYS(CONTEXT)}, {.key = NULL}};
    return tdm_from_is_off(value) ? tdm_from_note(r, path, "samples are not packed")
                                  : tdm_from_apply_rules(r, context, path, value);
}

static enum tdm_status read_global_batch(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value)
{
    uint64_t sequences;
    const enum tdm_status status = tdm_from_count(r, path, value, &sequences);
    return status == TDM_OK ? tdm_from_note(r, path, "read with local_batch_size") : status;
}

/* Ranks that share the sequences of one. */
static json_int_t ranks_in_parts(const struct tdm_from_reading *r, const char *key)
{
    const json_int_t ranks = json_integer_value(tdm_from_in(r, "distributed", key));
    return ranks > 1 ? ranks : 1;
}

/* With sequence_parallel tokens are divided between products, else all ranks have all. Its loss
 * gathers logits (components/distributed/optimized_tp_plans.py, components/loss/masked_ce.py). */
static enum tdm_status read_tensor(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    uint64_t ranks;
    char text[32];
    const bool divides = json_is_true(tdm_from_in(r, "distributed", "sequence_parallel"));
    enum tdm_status status = tdm_from_count(r, path, value, &ranks);
    if (status != TDM_OK)
        return status;
    if (ranks == 1)
        return tdm_from_note(r, path, "off");
    snprintf(text, sizeof(text), "%" PRIu64, ranks);
    status = tdm_from_pair(r, divides ? "tensor_parallel_degree" : "tp_size", text);
    return status == TDM_OK && divides ? tdm_from_pair(r, "disable_loss_parallel", "yes") : status;
}

/* Micro-batches of a step: the global batch over all ranks that have data of their own
 * (components/training/step_scheduler.py, components/distributed/mesh_utils.py). */
static enum tdm_status add_micro_batches(const struct tdm_from_reading *r)
{
    const json_t *all = tdm_from_in(r, "step_scheduler", "global_batch_size"),
                 *own = tdm_from_in(r, "step_scheduler", "local_batch_size");
    const json_int_t gpus = r->from->asked_gpus > 0 ? (json_int_t)r->from->asked_gpus : 1,
                     whole = gpus / ranks_in_parts(r, "tp_size") / ranks_in_parts(r, "cp_size"),
                     ranks = whole > 1 ? whole : 1;
    if (!json_is_integer(all) || !json_is_integer(own) || json_integer_value(own) < 1 ||
        json_integer_value(all) / json_integer_value(own) <= ranks)
        return TDM_OK;
    return tdm_from_pair(r, "gradient_accumulation_steps", "2"); /* as any number above 1 */
}

#define USUAL_RANK "8" /* PeftConfig's */

static enum tdm_status settle(const struct tdm_from_reading *r)
{
    const json_t *peft = json_object_get(r->root, "peft");
    r->from->is_training = true;
    if (r->from->spread == NULL)
        r->from->spread = "fsdp";
    enum tdm_status status = add_micro_batches(r);
    /* Its loader's default, but for models in parts (_transformers/kernel_patches.py). */
    if (status == TDM_OK && !json_is_false(tdm_from_in(r, "model", "use_liger_kernel")) &&
        ranks_in_parts(r, "tp_size") == 1 && ranks_in_parts(r, "cp_size") == 1)
        status = tdm_from_pair(r, "liger", "all");
    if (status != TDM_OK || tdm_from_is_off(peft))
        return status;
    const json_t *rank = json_object_get(peft, "dim");
    if (rank == NULL || json_is_null(rank))
        status = tdm_from_pair(r, "lora_rank", USUAL_RANK);
    if (status == TDM_OK)
        status = tdm_from_quiet_pair(r, "lora", "bf16");
    return status;
}

static const struct tdm_from_rule rules[] = {
    {"recipe", READ(read_recipe)},
    {"recipe._target_", READ(read_recipe)},
    {"model._target_", READ(read_class)},
    {"model.pretrained_model_name_or_path", SAYS(MODEL)},
    {"model.config", READ(read_config)},
    {"model.torch_dtype", READ(tdm_from_read_dtype)},
    {"model.attn_implementation", READ(tdm_from_read_attention)},
    {"model.use_liger_kernel", IGNORE "read at the end"},
    {"model.quantization_config.load_in_4bit", SET "load_in_4bit"},
    {"model.quantization_config.load_in_8bit", SET "load_in_8bit"},
    {"model.quantization_config.bnb_4bit_use_double_quant", ON "double_quantization=yes"},
    {"model.quantization_config.*", IGNORE NO_MEMORY},
    {"model.*", IGNORE TDM_FROM_OF_MODEL},
    {"quantization.load_in_4bit", SET "load_in_4bit"},
    {"quantization.load_in_8bit", SET "load_in_8bit"},
    {"quantization.bnb_4bit_use_double_quant", ON "double_quantization=yes"},
    {"quantization.*", IGNORE NO_MEMORY},
    {"step_scheduler.local_batch_size", SAYS(BATCH)},
    {"step_scheduler.global_batch_size", READ(read_global_batch)},
    {"step_scheduler.*", IGNORE NO_MEMORY},
    {"packed_sequence.packed_sequence_size", READ(read_packed)},
    {"packed_sequence.*", IGNORE NO_MEMORY},
    {"dataset.seq_length", SAYS(CONTEXT)},
    {"dataset.seq_len", SAYS(CONTEXT)},
    {"dataset.*", IGNORE NO_MEMORY},
    {"validation_*", IGNORE "evaluation is not predicted"},
    {"dataloader.*", IGNORE NO_MEMORY},
    {"distributed.strategy", READ(read_strategy)},
    {"distributed._target_", READ(read_strategy)},
    {"distributed.tp_size", READ(read_tensor)},
    {"distributed.cp_size", READ(tdm_from_read_context)},
    {"distributed.pp_size", ONE "pipelines of fully_shard are not known"},
    {"distributed.ep_size", ONE "expert parallelism of fully_shard is not known"},
    {"distributed.dp_replicate_size", SET "dp_replicate_size"},
    {"distributed.dp_size", IGNORE "all other GPUs share the shards"},
    {"distributed.sequence_parallel", IGNORE "read with tp_size"},
    {"distributed.activation_checkpointing", READ(read_checkpoints)},
    {"distributed.activation_checkpointing_scope*", IGNORE "the language model's are predicted"},
    {"distributed.defer_fsdp_grad_sync",
     LACK "gradients are predicted as reduced in each backward"},
    {"distributed.offload_policy*", ON "offload_policy=cpu"},
    {"distributed.mp_policy.reduce_dtype", LACK "predicted in the dtype of the weights"},
    {"distributed.mp_policy.*", IGNORE NO_MEMORY},
    {"distributed.enable_fsdp2_prefetch", IGNORE "modules are gathered as fully_shard does"},
    {"distributed.enable_async_tensor_parallel", LACK "predicted without it"},
    {"distributed.reshard_after_forward", SET "reshard_after_forward"},
    {"distributed.enable_compile", ON "compile=layers"},
    {"distributed.pipeline*", IGNORE "read as pp_size"},
    {"distributed.mp_policy", IGNORE NO_MEMORY},
    {"distributed.moe*", IGNORE "read as ep_size"},
    {"distributed.*", REFUSE "fsdp2 and ddp with their degrees are known"},
    {"dist_env.*", IGNORE NO_MEMORY},
    {"loss_fn._target_", READ(read_loss)},
    {"loss_fn.*", IGNORE NO_MEMORY},
    {"optimizer._target_", READ(read_optimizer)},
    {"optimizer.*", IGNORE NO_MEMORY},
    {"clip_grad_norm.max_norm", SET "max_grad_norm"},
    {"clip_grad_norm.*", IGNORE NO_MEMORY},
    {"max_grad_norm", SET "max_grad_norm"},
    {"peft.dim", SET "lora_rank"},
    {"peft.target_modules", READ(read_targets)},
    {"peft.match_all_linear", ON "lora_targets=all"},
    {"peft.dropout", SET "lora_dropout"},
    {"peft.use_dora", ON "use_dora=yes"},
    {"peft.use_triton", LACK "its adapters are predicted by PyTorch's own operations"},
    {"peft.exclude_modules*", LACK "what it excludes is predicted with adapters"},
    {"peft.*", IGNORE NO_MEMORY},
    {"compile.enabled", ON "compile=all"},
    {"compile.*", IGNORE NO_MEMORY},
    {"fp8.enabled", READ(read_float8)},
    {"fp8.*", IGNORE "read with enabled"},
    {"qat*", REFUSE "training for quantized weights is not known"},
    {"parallelizer*", IGNORE "read as distributed"},
    {"freeze_config*", REFUSE OTHER},
    {"teacher*", REFUSE OTHER},
    {"kd_*", REFUSE OTHER},
    {"rng*", IGNORE NO_MEMORY},
    {"seed", IGNORE NO_MEMORY},
    {"checkpoint.*", IGNORE "it is for loading and saving"},
    {"lr_scheduler.*", IGNORE NO_MEMORY},
    {"wandb.*", IGNORE NO_MEMORY},
    {"mlflow.*", IGNORE NO_MEMORY},
    {"comet.*", IGNORE NO_MEMORY},
    {"logging.*", IGNORE NO_MEMORY},
    {"benchmark.*", IGNORE NO_MEMORY},
    {"tokenizer*", IGNORE NO_MEMORY},
    {"autopipeline.*", IGNORE "read as pp_size"},
    {"tool_call_eval*", IGNORE "evaluation is not predicted"},
    {"prewarm*", IGNORE NO_MEMORY},
    {"nvtx", IGNORE NO_MEMORY},
    {"ci.*", IGNORE NO_MEMORY},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_automodel = {.name = "a config of NeMo Automodel",
                                                 .rules = rules,
                                                 .signs = {"step_scheduler", "dist_env"},
                                                 .settle = settle};
