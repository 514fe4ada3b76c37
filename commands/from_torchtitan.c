/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of torchtitan's TOML files: torchtitan/config/job_config.py as of 2026-01, the last version
 * that was configured by TOML, and of earlier ones. */
#include "commands/from_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY

/* Flavors of models, and shipped models of their shape: torchtitan/models/NAME/__init__.py. */
static const struct {
    const char *name, *flavor, *model;
} models[] = {
    {"llama3", "8B", "llama-3.1-8b"},
    {"llama3", "70B", "llama-3.1-70b"},
    {"llama3", "405B", "llama-3.1-405b"},
    {"llama4", "17bx16e", "llama-4-scout"},
    {"llama4", "17bx128e", "llama-4-maverick"},
    {"qwen3", "0.6B", "qwen3-0.6b"},
    {"qwen3", "1.7B", "qwen3-1.7b"},
    {"qwen3", "4B", "qwen3-4b"},
    {"qwen3", "8B", "qwen3-8b"},
    {"qwen3", "14B", "qwen3-14b"},
    {"qwen3", "32B", "qwen3-32b"},
    {"qwen3", "30B-A3B", "qwen3-30b-a3b"},
    {"qwen3", "235B-A22B", "qwen3-235b-a22b"},
    {"gpt_oss", "20b", "gpt-oss-20b"},
    {"gpt_oss", "120b", "gpt-oss-120b"},
    {"deepseek_v3", "16B", "deepseek-v2-lite"},
    {"deepseek_v3", "236B", "deepseek-v2"},
    {"deepseek_v3", "671B", "deepseek-v3"},
};
enum { MODELS = sizeof(models) / sizeof(models[0]) };

/* Says which flavors of this model are known, or which models. */
static enum tdm_status unknown_flavor(const struct tdm_from_reading *r, const char *name,
                                      const char *flavor)
{
    char why[256];
    bool known = false;
    for (size_t i = 0; i < MODELS; i++)
        known |= strcmp(models[i].name, name) == 0;
    size_t used =
        (size_t)snprintf(why, sizeof(why), "is \"%.32s\"; known are", known ? flavor : name);
    const char *last = "";
    for (size_t i = 0; i < MODELS; i++) {
        const char *word = known ? models[i].flavor : models[i].name;
        if (strcmp(last, word) == 0 || (known && strcmp(models[i].name, name) != 0))
            continue;
        used += (size_t)snprintf(why + used, sizeof(why) - used, "%s %s", *last != '\0' ? "," : "",
                                 word);
        last = word;
    }
    return tdm_from_unnamed(r, known ? "model.flavor" : "model.name", why);
}

/* What follows a "_" is the kind of attention: 8B_flex, 17bx16e_irope. Of transformers' models the
 * flavor "full" is the one that is named. */
static enum tdm_status read_flavor(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    const char *name = json_string_value(tdm_from_in(r, "model", "name"));
    const json_t *hub = tdm_from_in(r, "hf_transformers", "model");
    const char *flavor = json_string_value(value);
    if (flavor == NULL)
        return tdm_from_bad(r, path, value, "expected a name, as \"8B\"");
    if (hub != NULL && strcmp(flavor, "full") == 0)
        return tdm_from_read_model(r, "hf_transformers.model", hub);
    size_t length = strcspn(flavor, "_");
    for (size_t i = 0; i < MODELS && name != NULL; i++)
        if (strcmp(models[i].name, name) == 0 && strlen(models[i].flavor) == length &&
            strncmp(models[i].flavor, flavor, length) == 0) {
            r->from->model = models[i].model;
            return TDM_OK;
        }
    return unknown_flavor(r, name != NULL ? name : "", flavor);
}

/* default, always or never; a boolean in earlier versions is the same as always and never. */
static enum tdm_status read_reshard(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    if (tdm_from_is(value, "default"))
        return tdm_from_note(r, path, "assumed");
    bool always = tdm_from_is(value, "always");
    return always || tdm_from_is(value, "never")
               ? tdm_from_pair(r, "reshard_after_forward", always ? "yes" : "no")
               : tdm_from_bad(r, path, value, "default, always and never are known");
}

static bool keeps_operations(const struct tdm_from_reading *r)
{
    return tdm_from_is(tdm_from_in(r, "activation_checkpoint", "mode"), "selective") &&
           tdm_from_is(tdm_from_in(r, "activation_checkpoint", "selective_ac_option"), "op");
}

static enum tdm_status read_mode(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    if (keeps_operations(r))
        return tdm_from_pair(r, "checkpointing", "selective");
    if (tdm_from_is(value, "none"))
        return tdm_from_note(r, path, "off");
    if (!tdm_from_is(value, "full") && !tdm_from_is(value, "selective"))
        return tdm_from_bad(r, path, value, "none, selective and full are known");
    r->from->checkpoints = true;
    return TDM_OK;
}

/* A number N: every Nth layer; "op": some operations of every layer are kept, which read_mode has
 * read. It counts with mode = "selective" alone. */
static enum tdm_status read_option(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    const char *text = json_string_value(value);
    char every[32], *end;
    if (!tdm_from_is(tdm_from_in(r, "activation_checkpoint", "mode"), "selective"))
        return tdm_from_note(r, path, "mode is not selective");
    if (keeps_operations(r))
        return TDM_OK;
    long number = text != NULL ? strtol(text, &end, 10) : (long)json_integer_value(value);
    if (number < 1 || (text != NULL && *end != '\0'))
        return tdm_from_bad(r, path, value, "a number of layers and \"op\" are known");
    snprintf(every, sizeof(every), "%ld", number);
    return tdm_from_pair(r, "checkpoint_every", every);
}

/* job_config.py Optimizer: fused where nothing is said. */
static enum tdm_status set_implementation(const struct tdm_from_reading *r)
{
    const json_t *how = tdm_from_in(r, "optimizer", "implementation");
    if (how != NULL && !tdm_from_is(how, "fused") && !tdm_from_is(how, "foreach"))
        return tdm_from_bad(r, "optimizer.implementation", how, "fused and foreach are known");
    return tdm_from_pair(r, "optimizer",
                         tdm_from_is(how, "foreach") ? "adamw-foreach" : "adamw-fused");
}

static enum tdm_status read_optimizer(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    return tdm_from_is(value, "AdamW") || tdm_from_is(value, "Adam")
               ? set_implementation(r)
               : tdm_from_bad(r, path, value, "Adam and AdamW are known");
}

/* Checkpoints of whole layers, which are there before layers are compiled. */
static bool has_wrappers(const struct tdm_from_reading *r)
{
    const json_t *mode = tdm_from_in(r, "activation_checkpoint", "mode");
    return tdm_from_is(mode, "full") || (tdm_from_is(mode, "selective") && !keeps_operations(r));
}

/* distributed/parallelize: every layer by itself; compile.components: the loss too, as
 * training.compile does since April 2025 (#1033), which a file with local_batch_size (June 2025) is
 * later than. */
static enum tdm_status read_compile(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    const json_t *section = json_object_get(r->root, "compile");
    const json_t *parts = json_object_get(section, "components"), *part;
    bool loss =
        section != NULL ? parts == NULL : tdm_from_in(r, "training", "local_batch_size") != NULL;
    size_t i;
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    json_array_foreach((json_t *)(uintptr_t)parts, i, part) loss =
        loss || tdm_from_is(part, "loss");
    enum tdm_status status = tdm_from_pair(r, "compile", loss ? "all" : "layers");
    return status == TDM_OK && has_wrappers(r) ? tdm_from_pair(r, "checkpoint_wrapper", "yes")
                                               : status;
}

static const json_t *of_linear(const struct tdm_from_reading *r, const char *key)
{
    const json_t *linear = json_object_get(tdm_from_in(r, "quantize", "linear"), "float8");
    return json_object_get(linear, key);
}

/* A value of [quantize.linear.float8], [float8] in earlier versions. */
static const json_t *of_float8(const struct tdm_from_reading *r, const char *key)
{
    const json_t *value = of_linear(r, key);
    return value != NULL ? value : tdm_from_in(r, "float8", key);
}

/* The same is not what it should be. */
static enum tdm_status bad_float8(const struct tdm_from_reading *r, const char *key,
                                  const char *expected)
{
    char path[64];
    snprintf(path, sizeof(path), "%s.%s",
             of_linear(r, key) != NULL ? "quantize.linear.float8" : "float8", key);
    return tdm_from_bad(r, path, of_float8(r, key), expected);
}

/* Of converters torchao's Float8Linear is known. components/quantization/float8.py: without a
 * recipe it is tensorwise, and what filter_fqns names stays as it is. */
static enum tdm_status read_converters(const struct tdm_from_reading *r, const char *path,
                                       const json_t *value)
{
    const json_t *recipe = of_float8(r, "recipe_name"), *kept = of_float8(r, "filter_fqns");
    const json_t *gathers = of_float8(r, "enable_fsdp_float8_all_gather");
    bool keeps_head = false;
    if (!json_is_array(value))
        return tdm_from_bad(r, path, value, "expected a list, as [\"float8\"]");
    if (json_array_size(value) == 0)
        return tdm_from_note(r, path, "there are none");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *name = json_array_get(value, i);
        if (!tdm_from_is(name, "float8") && !tdm_from_is(name, "quantize.linear.float8"))
            return tdm_from_bad(r, path, name,
                                "of converters float8 (quantize.linear.float8) is known");
    }
    if (recipe != NULL && !json_is_string(recipe))
        return bad_float8(r, "recipe_name", "expected a name, as \"rowwise\"");
    if (kept != NULL && !json_is_array(kept))
        return bad_float8(r, "filter_fqns", "expected a list, as [\"output\"]");
    if (gathers != NULL && !json_is_boolean(gathers))
        return bad_float8(r, "enable_fsdp_float8_all_gather", "expected true or false");
    for (size_t i = 0; i < json_array_size(kept); i++)
        keeps_head |= tdm_from_is(json_array_get(kept, i), "output") ||
                      tdm_from_is(json_array_get(kept, i), "lm_head");
    enum tdm_status status = tdm_from_pair(
        r, "float8_recipe", recipe != NULL ? json_string_value(recipe) : "tensorwise");
    if (status == TDM_OK && json_is_true(gathers))
        status = tdm_from_pair(r, "enable_fsdp_float8_all_gather", "yes");
    return status == TDM_OK && !keeps_head
               ? tdm_from_lack(r, path, "the head is predicted in bf16, as filter_fqns may have it")
               : status;
}

/* Without expert parallelism the key need not be one of the method. */
static enum tdm_status read_experts(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    char degree[32];
    if (!json_is_integer(value) || json_integer_value(value) < 1)
        return tdm_from_bad(r, path, value, "expected a number from 1 on");
    if (json_integer_value(value) == 1)
        return tdm_from_note(r, path, "off");
    snprintf(degree, sizeof(degree), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return tdm_from_pair(r, "expert_parallel_degree", degree);
}

static enum tdm_status read_backend(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    return tdm_from_is(value, "standard")
               ? tdm_from_note(r, path, "all-to-alls of PyTorch")
               : tdm_from_lack(r, path, "buffers of DeepEP; all-to-alls of PyTorch are predicted");
}

/* Until 28 July 2025 embedding, last norm and head were one group of fully_shard, the root's; since
 * then the embedding is one, and the norm with the head (83e69410, Improve reshard_after_forward
 * logic). Keys that the config had only before that day, and only after it, by the history of
 * config/job_config.py and config_manager.py. A key of NULL: any of the section. */
static const struct {
    const char *section, *key;
    bool later;
} dated[] = {
    {"compile", NULL, true},
    {"quantize", NULL, true},
    {"debug", NULL, true},
    {"model", "hf_assets_path", true},
    {"training", "dtype", true},
    {"training", "debug_moe_force_load_balance", true},
    {"activation_checkpoint", "early_stop", true},
    {"activation_checkpoint", "memory_budget", true},
    {"activation_checkpoint", "preserve_rng_state", true},
    {"checkpoint", "enable", true},
    {"checkpoint", "initial_load_in_hf", true},
    {"memory_estimation", "enable", true},
    {"validation", "enable", true},
    {"lr_scheduler", "min_lr_factor", true},
    {"parallelism", "expert_tensor_parallel_degree", true},
    {"parallelism", "module_fqns_per_model_part", true},
    {"parallelism", "pipeline_parallel_first_stage_less_layers", true},
    {"parallelism", "pipeline_parallel_last_stage_less_layers", true},
    {"training", "batch_size", false},
    {"training", "warmup_steps", false},
    {"training", "data_parallel_degree", false},
    {"training", "data_parallel_shard_degree", false},
    {"training", "data_parallel_replicate_degree", false},
    {"training", "tensor_parallel_degree", false},
    {"training", "fsdp_reshard_after_forward", false},
    {"experimental", "pipeline_parallel_degree", false},
    {"experimental", "context_parallel_degree", false},
    {"experimental", "enable_async_tensor_parallel", false},
    {"model", "norm_type", false},
    {"float8", "enable_float8_linear", false},
    {"float8", "force_recompute_fp8_weight_in_bwd", false},
    {"checkpoint", "model_weights_only", false},
    {"checkpoint", "last_save_model_weights_only", false},
    {"lr_scheduler", "lr_min", false},
    {"parallelism", "pipeline_parallel_microbatches", false},
};

#define DATED (sizeof(dated) / sizeof(dated[0]))

/* The first key of one of these times that the file has. DATED: none. */
static size_t find_dated(const struct tdm_from_reading *r, bool later)
{
    size_t i = 0;
    while (i < DATED &&
           (dated[i].later != later ||
            (dated[i].key == NULL ? json_object_get(r->root, dated[i].section)
                                  : tdm_from_in(r, dated[i].section, dated[i].key)) == NULL))
        i++;
    return i;
}

static void name_dated(size_t told, char path[TDM_FROM_PATH_BYTES])
{
    snprintf(path, TDM_FROM_PATH_BYTES, "%s%s%s", dated[told].section,
             dated[told].key == NULL ? "" : ".", dated[told].key == NULL ? "" : dated[told].key);
}

/* Keys of both times, which no version has. */
static enum tdm_status note_both(const struct tdm_from_reading *r, size_t later, size_t earlier)
{
    char new[TDM_FROM_PATH_BYTES], old[TDM_FROM_PATH_BYTES], why[2 * TDM_FROM_PATH_BYTES];
    name_dated(later, new);
    name_dated(earlier, old);
    snprintf(why, sizeof(why),
             "is of a torchtitan before 28 July 2025, and %s of one since; taken as later "
             "(units=layers+ends), else --set units=layers",
             new);
    return tdm_from_lack(r, old, why);
}

static enum tdm_status set_units(const struct tdm_from_reading *r)
{
    char path[TDM_FROM_PATH_BYTES] = "parallelism";
    const size_t later = find_dated(r, true), earlier = find_dated(r, false),
                 told = later < DATED ? later : earlier;
    const bool ends = later < DATED || earlier == DATED;
    if (told < DATED)
        name_dated(told, path);
    enum tdm_status status =
        later < DATED && earlier < DATED ? note_both(r, later, earlier)
        : later < DATED
            ? tdm_from_note(r, path, "shows a torchtitan since 28 July 2025: units=layers+ends")
        : ends
            ? tdm_from_lack(r, path,
                            "no key shows whether torchtitan is of before 28 July 2025; taken as "
                            "later (units=layers+ends), else --set units=layers")
            : tdm_from_lack(r, path,
                            "shows a torchtitan of before 28 July 2025, so units=layers; for a "
                            "later one --set units=layers+ends");
    return status == TDM_OK ? tdm_from_pair(r, "units", ends ? "layers+ends" : "layers") : status;
}

/* Both names of the batch: the newer one came with another version (job_config.py). */
static enum tdm_status check_batch(const struct tdm_from_reading *r)
{
    if (tdm_from_in(r, "training", "batch_size") == NULL ||
        tdm_from_in(r, "training", "local_batch_size") == NULL)
        return TDM_OK;
    return tdm_fail(r->err, TDM_INPUT,
                    "%s: \"training.batch_size\" and \"training.local_batch_size\" are both there; "
                    "no torchtitan has both: leave one out",
                    r->file);
}

/* One GPU has no shards, and autocast instead of their policy (distributed/utils.py
 * maybe_enable_amp). run_train.sh, which starts it, has expandable segments since October 2024. */
static enum tdm_status settle(const struct tdm_from_reading *r)
{
    enum tdm_status status = check_batch(r);
    r->from->is_training = true;
    if (status != TDM_OK)
        return status;
    if (r->from->asked_gpus == 1) {
        r->from->method = "parallel";
    } else {
        tdm_from_name_fsdp(r);
        status = set_units(r);
    }
    if (status == TDM_OK && tdm_from_in(r, "training", "dtype") == NULL)
        status = tdm_from_pair(r, "weights_dtype", "fp32");
    if (status == TDM_OK && tdm_from_in(r, "optimizer", "name") == NULL)
        status = set_implementation(r);
    if (status == TDM_OK)
        status = tdm_from_quiet_pair(r, "allocator_conf", "expandable_segments:True");
    if (status == TDM_OK)
        status = tdm_from_lack(r, "model", "predicted as transformers' model of the same shape");
    return status;
}

static const struct tdm_from_rule rules[] = {
    {"training.local_batch_size", SAYS(BATCH)},
    {"training.batch_size", SAYS(BATCH)},
    {"training.seq_len", SAYS(CONTEXT)},
    {"training.global_batch_size", IGNORE "one micro-batch a step is predicted"},
    {"training.dtype", READ(tdm_from_read_dtype)},
    {"training.mixed_precision_param", IGNORE "bf16"},
    {"training.mixed_precision_reduce", IGNORE "as weights_dtype has it"},
    {"training.enable_cpu_offload", ON "offload_policy=cpu"},
    {"training.compile", READ(read_compile)},
    {"training.enable_fp8_linear", REFUSE "only bf16 is known"},
    {"training.data_parallel_*", IGNORE "all GPUs share the shards"},
    {"training.tensor_parallel_degree", SET "tensor_parallel_degree"},
    {"training.max_norm", SET "max_grad_norm"},
    {"training.*", IGNORE NO_MEMORY},
    {"parallelism.data_parallel_shard_degree", IGNORE "all GPUs share the shards"},
    {"parallelism.data_parallel_replicate_degree", SET "dp_replicate_size"},
    {"parallelism.fsdp_reshard_after_forward", READ(read_reshard)},
    {"parallelism.tensor_parallel_degree", SET "tensor_parallel_degree"},
    {"parallelism.disable_loss_parallel", SET "disable_loss_parallel"},
    {"parallelism.enable_async_tensor_parallel",
     LACK "its symmetric buffers, two of a rank's hidden states, are not counted"},
    {"parallelism.pipeline_parallel_degree", ONE "pipelines under fully_shard are not known"},
    {"parallelism.context_parallel_degree", READ(tdm_from_read_context)},
    {"parallelism.context_parallel_rotate_method", SET "rotate_method"},
    {"parallelism.expert_parallel_degree", READ(read_experts)},
    {"parallelism.expert_tensor_parallel_degree",
     ONE "experts that tensor ranks divide are not known"},
    {"parallelism.expert_parallel_comm_backend", READ(read_backend)},
    {"parallelism.enable_compiled_autograd", REFUSE "compiled autograd is not known"},
    {"parallelism.*", IGNORE NO_MEMORY},
    {"experimental.context_parallel_degree", READ(tdm_from_read_context)},
    {"experimental.context_parallel_rotate_method", SET "rotate_method"},
    {"experimental.pipeline_parallel_degree", ONE "pipelines under fully_shard are not known"},
    {"experimental.*", IGNORE NO_MEMORY},
    {"activation_checkpoint.mode", READ(read_mode)},
    {"activation_checkpoint.selective_ac_option", READ(read_option)},
    {"activation_checkpoint.*", IGNORE "of operations that are kept"},
    {"optimizer.name", READ(read_optimizer)},
    {"optimizer.early_step_in_backward", REFUSE "a step in the backward is not known"},
    {"optimizer.*", IGNORE NO_MEMORY},
    {"compile.enable", READ(read_compile)},
    {"compile.components", IGNORE "read with compile.enable"},
    {"compile.*", IGNORE NO_MEMORY},
    {"model.converters", READ(read_converters)},
    {"model.name", IGNORE "read with model.flavor"},
    {"model.flavor", READ(read_flavor)},
    {"model.*", IGNORE TDM_FROM_OF_MODEL},
    {"hf_transformers.*", IGNORE "read with model.flavor"},
    {"quantize.*", IGNORE "read with model.converters"},
    {"float8.*", IGNORE "read with model.converters"},
    {"mx.*", IGNORE "there are no converters"},
    {"job.*", IGNORE NO_MEMORY},
    {"profiling.*", IGNORE NO_MEMORY},
    {"metrics.*", IGNORE NO_MEMORY},
    {"lr_scheduler.*", IGNORE NO_MEMORY},
    {"checkpoint.*", IGNORE "it is for saving"},
    {"comm.*", IGNORE NO_MEMORY},
    {"debug.*", IGNORE NO_MEMORY},
    {"data.*", IGNORE NO_MEMORY},
    {"memory_estimation.*", IGNORE NO_MEMORY},
    {"fault_tolerance.enable", REFUSE "torchft is not known"},
    {"fault_tolerance.*", IGNORE NO_MEMORY},
    {"validation.*", IGNORE "evaluation is not predicted"},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_torchtitan = {
    .name = "a config of torchtitan",
    .rules = rules,
    .signs = {"parallelism", "activation_checkpoint", "job", "training"},
    .lists = {"model.converters", "float8.filter_fqns", "quantize.linear.float8.filter_fqns"},
    .settle = settle};
