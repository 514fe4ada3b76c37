/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of transformers' TrainingArguments, of TRL's SFTConfig, ModelConfig and ScriptArguments, and
 * of peft's adapter_config.json. */
#include "commands/from_rules.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY

/* ---- sharding ---- */

/* Shards within a node, of which other nodes have copies (torch/distributed/fsdp/_init_utils.py
 * _init_process_group_state_for_hybrid_shard). */
static enum tdm_status read_hybrid(const struct tdm_from_reading *r, const char *path,
                                   bool reshards)
{
    uint64_t nodes = 1;
    char digits[32];
    const json_t *machines = json_object_get(r->root, "num_machines");
    enum tdm_status status =
        machines == NULL
            ? tdm_fail(r->err, TDM_INPUT,
                       "%s: \"%s\": without num_machines say --set dp_replicate_size=NODES in its "
                       "place",
                       r->file, path)
            : tdm_from_count(r, "num_machines", machines, &nodes);
    snprintf(digits, sizeof(digits), "%" PRIu64, nodes);
    if (status == TDM_OK && nodes > 1)
        status = tdm_from_pair(r, "dp_replicate_size", digits);
    return status == TDM_OK ? tdm_from_pair(r, "reshard_after_forward", reshards ? "yes" : "no")
                            : status;
}

/* FULL_SHARD (1) and SHARD_GRAD_OP (2) of FSDP 1, or true and false. */
static enum tdm_status read_reshard(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    bool full =
        tdm_from_is(value, "FULL_SHARD") || json_is_true(value) || json_integer_value(value) == 1;
    if (full || tdm_from_is(value, "SHARD_GRAD_OP") || json_is_false(value) ||
        json_integer_value(value) == 2)
        return tdm_from_pair(r, "reshard_after_forward", full ? "yes" : "no");
    const bool hybrid = tdm_from_is(value, "HYBRID_SHARD") || json_integer_value(value) == 4;
    if (hybrid || tdm_from_is(value, "HYBRID_SHARD_ZERO2") || json_integer_value(value) == 5)
        return read_hybrid(r, path, hybrid);
    if (tdm_from_is(value, "NO_SHARD") || json_integer_value(value) == 3) {
        r->from->whole = true;
        return tdm_from_lack(r, path, "predicted as DDP, whose gradients are in buckets");
    }
    return tdm_from_bad(
        r, path, value,
        "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2 and NO_SHARD are "
        "known");
}

static enum tdm_status read_version(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    if (json_integer_value(value) == 2)
        return tdm_from_note(r, path, "fully_shard is predicted");
    if (json_integer_value(value) != 1)
        return tdm_from_bad(r, path, value, "versions 1 and 2 are known");
    r->from->fsdp_1 = true;
    return tdm_from_note(r, path, "FullyShardedDataParallel is predicted");
}

/* Of FSDP 1 alone: fully_shard has no such argument. */
static enum tdm_status read_sync(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    return json_is_true(value) ? tdm_from_quiet_pair(r, "sync_module_states", "yes")
                               : tdm_from_note(r, path, "off");
}

/* accelerate, utils/dataclasses.py FullyShardedDataParallelPlugin; transformers, fsdp_config. */
const struct tdm_from_rule tdm_from_fsdp_rules[] = {
    {"version", READ(read_version)},
    {"sharding_strategy", READ(read_reshard)},
    {"reshard_after_forward", READ(read_reshard)},
    {"offload_params", ON "offload_policy=cpu"},
    {"activation_checkpointing", READ(tdm_from_read_checkpoints)},
    {"min_num_params", LACK "every layer is a group"},
    {"auto_wrap_policy", IGNORE "every layer is a group"},
    {"transformer_layer_cls_to_wrap", IGNORE "every layer is a group"},
    {"state_dict_type", IGNORE "it is for saving"},
    {"final_state_dict_type", IGNORE "it is for saving"},
    {"use_orig_params", IGNORE NO_MEMORY},
    {"sync_module_states", READ(read_sync)},
    {"cpu_ram_efficient_loading", IGNORE "shards are assumed to be loaded one by one"},
    {"cpu_offload_pin_memory", IGNORE NO_MEMORY},
    {"backward_prefetch*", IGNORE "as fully_shard has it"},
    {"forward_prefetch", IGNORE "as fully_shard has it"},
    {"ignored_modules", REFUSE "all modules are sharded"},
    {"limit_all_gathers", IGNORE "as fully_shard has it"},
    {"mixed_precision_policy", LACK "parameters in bf16 and reductions in fp32 are assumed"},
    {"xla*", REFUSE "GPUs are known"},
    {.key = NULL},
};

/* One word of fsdp (transformers, trainer_utils.py FSDPOption). */
static enum tdm_status read_option(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value, const char *word, size_t length)
{
    static const struct {
        const char *word, *key, *value;
    } options[] = {{"offload", "offload_policy", "cpu"},
                   {"shard_grad_op", "reshard_after_forward", "no"},
                   {"full_shard", NULL, NULL},
                   {"auto_wrap", NULL, NULL}};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (strlen(options[i].word) == length && strncasecmp(options[i].word, word, length) == 0)
            return options[i].key == NULL ? TDM_OK
                                          : tdm_from_pair(r, options[i].key, options[i].value);
    return tdm_from_bad(r, path, value,
                        "full_shard, shard_grad_op, offload and auto_wrap are known (hybrid_shard "
                        "is --set dp_replicate_size=NODES)");
}

/* TrainingArguments: fsdp_config.get("sync_module_states", "true"). */
static enum tdm_status settle_sync(const struct tdm_from_reading *r)
{
    return tdm_from_in(r, "fsdp_config", "sync_module_states") == NULL &&
                   tdm_from_in(r, "fsdp_config", "fsdp_sync_module_states") == NULL &&
                   json_object_get(r->root, "fsdp_sync_module_states") == NULL
               ? tdm_from_quiet_pair(r, "sync_module_states", "yes")
               : TDM_OK;
}

enum tdm_status tdm_from_read_fsdp(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    r->from->method = "fsdp";
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const char *at = json_string_value(json_is_array(value) ? json_array_get(value, i) : value);
        while (status == TDM_OK && at != NULL && *(at += strspn(at, " ,;")) != '\0') {
            const size_t length = strcspn(at, " ,;");
            status = read_option(r, path, value, at, length);
            at += length;
        }
    }
    if (status == TDM_OK)
        status = settle_sync(r);
    return status == TDM_OK ? tdm_from_fsdp_version(r, path) : status;
}

/* ---- DeepSpeed without a Trainer ---- */

/* DeepSpeed-Chat, dschat/utils/ds_utils.py get_train_ds_config: its optimizer is FusedAdam. */
static enum tdm_status read_own_stage(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    enum tdm_status status = tdm_from_read_stage(r, path, value);
    return status == TDM_OK ? tdm_from_pair(r, "optimizer", "AdamW") : status;
}

static enum tdm_status read_own_offload(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    if (!json_is_true(value))
        return tdm_from_note(r, path, "off");
    const json_int_t stage = json_integer_value(json_object_get(r->root, "zero_stage"));
    enum tdm_status status = tdm_from_pair(r, "offload_optimizer", "cpu");
    return status == TDM_OK && stage == 3 ? tdm_from_pair(r, "offload_param", "cpu") : status;
}

/* ---- adapters of TRL ---- */

static bool uses_adapters(const struct tdm_from_reading *r)
{
    return json_is_true(json_object_get(r->root, "use_peft")) ||
           json_is_true(json_object_get(r->root, "use_peft_lora"));
}

/* Keys of adapters are read where there are any: the setting is named by the key itself. */
static enum tdm_status read_adapter(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    static const struct tdm_from_rule named[] = {
        {"lora_target_modules", SET "lora_targets"},
        {"lora_modules_to_save", SET "modules_to_save"},
        {"lora_dropout", SET "lora_dropout"},
        {"lora_r", SET "lora_rank"},
        {.key = NULL},
    };
    if (!uses_adapters(r))
        return tdm_from_note(r, path, "use_peft is off");
    return tdm_from_apply_rules(r, named, path, value);
}

/* ---- trainers ---- */

/* Keys that only configs of a trainer have; those that DPOConfig shares with others come last. */
static const struct sign {
    const char *key, *trainer;
} signs[] = {{"rloo_k", "rloo"},
             {"reward_clip_range", "rloo"},
             {"normalize_advantages", "rloo"},
             {"num_ppo_epochs", "ppo"},
             {"vf_coef", "ppo"},
             {"cliprange_value", "ppo"},
             {"response_length", "ppo"},
             {"num_generations", "grpo"},
             {"max_completion_length", "grpo"},
             {"reward_funcs", "grpo"},
             {"reward_weights", "grpo"},
             {"desirable_weight", "kto"},
             {"undesirable_weight", "kto"},
             {"cpo_alpha", "cpo"},
             {"simpo_gamma", "cpo"},
             {"center_rewards_coefficient", "reward"},
             {"beta", "dpo"},
             {"precompute_ref_log_probs", "dpo"},
             {"max_prompt_length", "dpo"}};

/* NULL: supervised training. */
static const struct sign *sign_of(const struct tdm_from_reading *r)
{
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if (json_object_get(r->root, signs[i].key) != NULL)
            return &signs[i];
    return NULL;
}

static bool trains(const struct tdm_from_reading *r, const char *trainer)
{
    return sign_of(r) != NULL && strcmp(sign_of(r)->trainer, trainer) == 0;
}

/* GRPO and RLOO: with prompts and completions, and a weight of the KL. */
static bool generates(const struct tdm_from_reading *r)
{
    return trains(r, "grpo") || trains(r, "rloo");
}

static enum tdm_status read_beta(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    static const struct tdm_from_rule rule[] = {{"beta", SET "beta"}, {.key = NULL}};
    return generates(r) ? tdm_from_apply_rules(r, rule, path, value)
                        : tdm_from_note(r, path, NO_MEMORY);
}

enum tdm_status tdm_from_read_vllm_mode(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    if (tdm_from_is(value, "colocate"))
        return tdm_from_pair(r, "use_vllm", "yes");
    const json_t *used = json_object_get(r->root, "use_vllm");
    if (!tdm_from_is(value, "server") || (used != NULL && tdm_from_is_off(used)))
        return tdm_from_note(r, path, "vLLM is not used");
    enum tdm_status status = tdm_from_pair(r, "use_vllm", "yes");
    return status == TDM_OK ? tdm_from_pair(r, "vllm_mode", "server") : status;
}

/* Where vllm_mode is not said, TRL 1's is colocate; Axolotl says it. */
static enum tdm_status read_use_vllm(const struct tdm_from_reading *r, const char *path,
                                     const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "transformers generates");
    return json_object_get(r->root, "vllm_mode") != NULL
               ? tdm_from_note(r, path, "read as vllm_mode")
               : tdm_from_pair(r, "use_vllm", "yes");
}

static enum tdm_status read_vllm(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    static const struct tdm_from_rule named[] = {
        {"vllm_gpu_memory_utilization", SET "vllm_gpu_memory_utilization"},
        {"vllm_enable_sleep_mode", ON "vllm_enable_sleep_mode=yes"},
        {.key = NULL},
    };
    const json_t *mode = json_object_get(r->root, "vllm_mode");
    const json_t *used = json_object_get(r->root, "use_vllm");
    const bool here =
        mode == NULL ? used != NULL && !tdm_from_is_off(used) : tdm_from_is(mode, "colocate");
    return here ? tdm_from_apply_rules(r, named, path, value)
                : tdm_from_note(r, path, "vLLM runs elsewhere");
}

/* ---- Liger's kernels ---- */

enum tdm_status tdm_from_liger_parts(const struct tdm_from_reading *r, const json_t *table,
                                     const char *prefix, const char *mlp, bool unsaid)
{
    const struct {
        const char *key, *part;
    } parts[] = {{"rms_norm", "rms_norm"}, {mlp, "swiglu"}, {"rope", "rope"}};
    char names[32] = "", key[64];
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        snprintf(key, sizeof(key), "%s%s", prefix, parts[i].key);
        const json_t *value = json_object_get(table, key);
        size_t used = strlen(names);
        if (value == NULL ? unsaid : !tdm_from_is_off(value))
            snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? "," : "",
                     parts[i].part);
    }
    return names[0] == '\0' ? TDM_OK : tdm_from_pair(r, "liger", names);
}

/* Autocast to fp16 takes what that to bf16 does, and the six numbers of a GradScaler. It scales no
 * gradients of fp16 (torch/amp/grad_scaler.py `_unscale_grads_`), so what is trained is fp32. */
static enum tdm_status read_fp16(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "fp16 is off");
    r->from->bf16 = r->from->scales = true;
    return tdm_from_lack(r, path, "predicted as autocast to bf16, whose sizes are the same");
}

/* ---- arguments of optimizers ---- */

/* One of optim_args. Those of GaLore are its rank, and which side is projected; what Adafactor's
 * and Ademamix's change is no size. */
static enum tdm_status read_optim_arg(const struct tdm_from_reading *r, const char *path,
                                      const char *key, const char *value, bool galore)
{
    static const char *const harmless[] = {"update_proj_gap",
                                           "scale",
                                           "eps",
                                           "betas",
                                           "scale_parameter",
                                           "relative_step",
                                           "warmup_init",
                                           "clip_threshold",
                                           "decay_rate",
                                           "alpha",
                                           "beta3",
                                           "t_alpha",
                                           "t_beta3",
                                           NULL};
    char name[TDM_FROM_PATH_BYTES], why[TDM_FROM_PATH_BYTES];
    snprintf(name, sizeof(name), "%.32s %.64s=%.64s", path, key, value);
    if (strcmp(key, "rank") == 0 && galore)
        return tdm_from_pair(r, "galore_rank", value);
    if (strcmp(key, "proj_type") == 0 && galore && strcmp(value, "std") != 0)
        return tdm_from_lack(r, name, "GaLore is predicted with proj_type=std");
    if (strcmp(key, "rank") == 0 || strcmp(key, "proj_type") == 0)
        return tdm_from_note(r, name, galore ? "as assumed" : "the optimizer projects nothing");
    for (const char *const *word = harmless; *word != NULL; word++)
        if (strcmp(key, *word) == 0)
            return tdm_from_note(r, name, NO_MEMORY);
    snprintf(why, sizeof(why), "the optimizer is predicted without %.64s", key);
    return tdm_from_lack(r, name, why);
}

/* Without spaces. */
static void copy_word(char *out, const char *from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (from[i] != ' ')
            *out++ = from[i];
    *out = '\0';
}

/* "rank=64, scale=0.25" (transformers, Trainer._parse_optim_args), or an object of Axolotl's. */
enum tdm_status tdm_from_read_optim_args(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value)
{
    const json_t *optim = json_object_get(r->root, "optim"), *inside;
    if (optim == NULL)
        optim = json_object_get(r->root, "optimizer");
    const bool galore =
        json_is_string(optim) && tdm_from_begins(json_string_value(optim), "galore_");
    enum tdm_status status = TDM_OK;
    const char *key, *at = json_string_value(value);
    char name[64], text[64];
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    json_object_foreach((json_t *)(uintptr_t)value, key, inside)
    {
        char shown[TDM_JSON_SHOWN];
        const char *word =
            json_is_string(inside) ? json_string_value(inside) : tdm_json_show(inside, shown);
        status = status == TDM_OK ? read_optim_arg(r, path, key, word, galore) : status;
    }
    if (!json_is_object(value) && at == NULL)
        return tdm_from_bad(r, path, value, "expected words, as \"rank=64, scale=0.25\"");
    while (status == TDM_OK && at != NULL && *(at += strspn(at, " ,")) != '\0') {
        const size_t length = strcspn(at, ","), middle = strcspn(at, "=,");
        const size_t begin = middle + (middle < length);
        if (middle == length || middle >= sizeof(name) || length - begin >= sizeof(text))
            return tdm_from_bad(r, path, value, "expected words, as \"rank=64, scale=0.25\"");
        copy_word(name, at, middle);
        copy_word(text, at + begin, length - begin);
        status = read_optim_arg(r, path, name, text, galore);
        at += length;
    }
    return status;
}

/* use_liger_kernel, with the parts that liger_kernel_config switches off (transformers,
 * integrations/liger.py). */
static enum tdm_status read_liger(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    const json_t *config = json_object_get(r->root, "liger_kernel_config");
    const json_t *loss = json_object_get(config, "fused_linear_cross_entropy");
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    /* The trainers of two models have losses of their own, of which GRPO's is Liger's too, and
     * ms-swift over divided sequences. */
    const json_t *parts = json_object_get(r->root, "sequence_parallel_size");
    bool fuses = (loss == NULL || !tdm_from_is_off(loss)) &&
                 (sign_of(r) == NULL || trains(r, "grpo")) && json_integer_value(parts) <= 1;
    enum tdm_status status = fuses ? tdm_from_pair(r, "logits", "fused") : TDM_OK;
    return status == TDM_OK ? tdm_from_liger_parts(r, config, "", "swiglu", true) : status;
}

static enum tdm_status read_loss(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    if (sign_of(r) != NULL)
        return tdm_from_note(r, path, NO_MEMORY);
    if (tdm_from_is(value, "nll"))
        return tdm_from_note(r, path, "the model's own loss");
    return tdm_from_is(value, "chunked_nll")
               ? tdm_from_pair(r, "logits", "chunked")
               : tdm_from_bad(r, path, value, "nll and chunked_nll are known");
}

/* Sequences of GRPO have a prompt and a completion, whose lengths say the context if nothing does.
 */
static enum tdm_status settle_lengths(const struct tdm_from_reading *r)
{
    static const char *const names[] = {"max_prompt_length", "max_completion_length"};
    uint64_t tokens[2] = {0, 0};
    enum tdm_status status = TDM_OK;
    for (unsigned i = 0; i < 2 && status == TDM_OK; i++) {
        const json_t *value = json_object_get(r->root, names[i]);
        if (value == NULL || json_is_null(value) || r->from->context > 0)
            return TDM_OK;
        status = tdm_from_count(r, names[i], value, &tokens[i]);
    }
    if (status == TDM_OK)
        r->from->context = tokens[0] + tokens[1];
    return status;
}

/* PPOTrainer never calls what enables checkpoints (trl/experimental/ppo/ppo_trainer.py train). */
static enum tdm_status read_checkpoints(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    return trains(r, "ppo") ? tdm_from_note(r, path, "PPOTrainer does not enable checkpoints")
                            : tdm_from_read_checkpoints(r, path, value);
}

/* The reward model of TRL's examples, which the value model is too. */
static enum tdm_status read_reward_model(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value)
{
    const char *name = json_string_value(value);
    if (!trains(r, "ppo") || name == NULL)
        return tdm_from_bad(r, path, value,
                            "reward models take memory of their own, which is modelled of PPO");
    return tdm_from_lack(r, path,
                         "predicted as large as the policy: --set reward_model=MODEL says another");
}

/* ---- defaults of TRL's trainers ---- */

static bool has_any(const struct tdm_from_reading *r, const char *const *keys)
{
    while (*keys != NULL && json_object_get(r->root, *keys) == NULL)
        keys++;
    return *keys != NULL;
}

/* Is it of TRL's SFTConfig, DPOConfig, GRPOConfig or ModelConfig, and not by names that went before
 * 1.0? Those of transformers have none of these keys. */
static bool is_trl(const struct tdm_from_reading *r)
{
    static const char *const now[] = {"max_length",
                                      "packing",
                                      "packing_strategy",
                                      "padding_free",
                                      "activation_offloading",
                                      "loss_type",
                                      "completion_only_loss",
                                      "assistant_only_loss",
                                      "dataset_text_field",
                                      "dataset_num_proc",
                                      "chat_template_path",
                                      "use_peft",
                                      "lora_target_modules",
                                      "num_generations",
                                      "max_completion_length",
                                      "reward_funcs",
                                      "precompute_ref_log_probs",
                                      "num_ppo_epochs",
                                      "response_length",
                                      NULL};
    static const char *const before[] = {
        "max_seq_length", "max_seq_len", "max_prompt_length",
        "torch_dtype",    "use_liger",   "gradient_checkpointing_use_reentrant",
        "use_peft_lora",  NULL};
    return has_any(r, now) && !has_any(r, before);
}

/* trl/trainer/base_config.py and utils.py create_model_from_path: checkpoints are on since 0.22,
 * weights that it loads fp32 where no dtype is said since 0.27, and the forward runs under autocast
 * to bf16; adapters of quantized weights are bf16 (sft_trainer.py). */
static enum tdm_status settle_trl(const struct tdm_from_reading *r)
{
    static const char *const dtypes[] = {"dtype", "model_init_kwargs", NULL};
    static const char *const mixed[] = {"bf16", "fp16", NULL};
    static const char *const quantized[] = {"load_in_4bit", "load_in_8bit", NULL};
    const json_t *storage = json_object_get(r->root, "bnb_4bit_quant_storage");
    if (json_object_get(r->root, "gradient_checkpointing") == NULL && !trains(r, "ppo"))
        r->from->checkpoints = r->from->model_checkpoints = true;
    if (!has_any(r, mixed))
        r->from->bf16 = true;
    r->from->narrow_adapters = has_any(r, quantized);
    r->from->bytes_of_4_bits = json_is_true(json_object_get(r->root, "load_in_4bit")) &&
                               (storage == NULL || tdm_from_is(storage, "uint8"));
    /* A file that names no model does not say how it is loaded. */
    return has_any(r, dtypes) || json_object_get(r->root, "model_name_or_path") == NULL
               ? TDM_OK
               : tdm_from_quiet_pair(r, "weights_dtype", "fp32");
}

static enum tdm_status settle_training(const struct tdm_from_reading *r)
{
    const struct sign *sign = sign_of(r);
    enum tdm_status status = TDM_OK;
    r->from->is_training = r->from->is_trainer = true;
    if (is_trl(r))
        status = settle_trl(r);
    if (status == TDM_OK && sign != NULL) {
        r->from->key = sign->key;
        status = tdm_from_pair(r, "trainer", sign->trainer);
        r->from->key = NULL;
    }
    if (status == TDM_OK && generates(r))
        status = settle_lengths(r);
    if (status == TDM_OK && trains(r, "dpo"))
        status = tdm_from_lack(r, "beta",
                               "predicted as DPO, whose keys ORPO shares: --set trainer=orpo");
    if (!uses_adapters(r) || status != TDM_OK)
        return status;
    r->from->adapters = true;
    /* trl/trainer/model_config.py: lora_r is 16 where it is not said */
    return json_object_get(r->root, "lora_r") != NULL ? TDM_OK
                                                      : tdm_from_pair(r, "lora_rank", "16");
}

/* transformers 5.17, training_args.py; trl, trainer/sft_config.py, model_config.py,
 * scripts/utils.py. */
const struct tdm_from_rule tdm_from_training_rules[] = {
    {"model_name_or_path", SAYS(MODEL)},
    {"model_name", SAYS(MODEL)}, /* of programs of their own */
    {"model_id", SAYS(MODEL)},
    {"block_size", SAYS(CONTEXT)}, /* transformers' run_clm.py */
    {"per_device_train_batch_size", SAYS(BATCH)},
    {"max_length", SAYS(CONTEXT)},
    {"max_seq_length", SAYS(CONTEXT)},
    {"model_max_length", SAYS(CONTEXT)}, /* FastChat's, Alpaca's and Qwen's */
    {"gradient_accumulation_steps", SAYS(STEPS)},
    {"gradient_checkpointing", READ(read_checkpoints)},
    {"gradient_checkpointing_kwargs.offload", ON "checkpoint_offload=yes"},
    {"gradient_checkpointing_kwargs.use_reentrant", READ(tdm_from_read_reentrant)},
    {"gradient_checkpointing_use_reentrant", READ(tdm_from_read_reentrant)},
    {"optim", SET "optim"},
    {"use_liger_kernel", READ(read_liger)},
    {"use_liger", READ(read_liger)},
    {"liger_kernel_config*", IGNORE "read with use_liger_kernel"},
    {"bf16", READ(tdm_from_read_bf16)},
    {"fp16", READ(read_fp16)},
    {"dtype", READ(tdm_from_read_dtype)},
    {"torch_dtype", READ(tdm_from_read_dtype)},
    {"attn_implementation", READ(tdm_from_read_attention)},
    {"model_init_kwargs.dtype", READ(tdm_from_read_dtype)},
    {"model_init_kwargs.torch_dtype", READ(tdm_from_read_dtype)},
    {"model_init_kwargs.attn_implementation", READ(tdm_from_read_attention)},
    {"model_init_kwargs.*", IGNORE NO_MEMORY},
    {"fsdp", READ(tdm_from_read_fsdp)},
    {"fsdp_config.*", TABLE(tdm_from_fsdp_rules), .prefix = "fsdp_"},
    {"fsdp_transformer_layer_cls_to_wrap", IGNORE "every layer is a group"},
    {"deepspeed", READ(tdm_from_read_deepspeed)},
    {"deepspeed_config", READ(tdm_from_read_deepspeed)}, /* deepspeed.add_config_arguments */
    /* DeepSpeed-Chat's programs */
    {"zero_stage", READ(read_own_stage)},
    {"offload", READ(read_own_offload)},
    {"lora_dim", SET "lora_rank"},
    {"lora_module_name", IGNORE "all projections are taken to have adapters"},
    {"only_optimize_lora", IGNORE "what is frozen is all else"},
    {"data_path", IGNORE NO_MEMORY},
    {"data_split", IGNORE NO_MEMORY},
    {"data_output_path", IGNORE NO_MEMORY},
    {"num_warmup_steps", IGNORE NO_MEMORY},
    {"parallelism_config*", REFUSE "name the method, as --method ring"},
    {"torch_compile", READ(tdm_from_read_compile)},
    {"torch_compile_mode", READ(tdm_from_read_compile_mode)},
    {"torch_compile_backend", READ(tdm_from_read_compile)},
    {"torchdynamo", READ(tdm_from_read_compile)},
    /* adapters and quantized weights */
    {"use_peft", IGNORE "keys of adapters say it"},
    {"lora_r", READ(read_adapter)},
    {"lora_target_modules", READ(read_adapter)},
    {"lora_modules_to_save", READ(read_adapter)},
    {"lora_dropout", READ(read_adapter)},
    {"lora_target_parameters", REFUSE "adapters of projections are known"},
    {"lora_alpha", IGNORE NO_MEMORY},
    {"lora_task_type", IGNORE NO_MEMORY},
    {"use_rslora", IGNORE NO_MEMORY},
    {"use_dora", ON "use_dora=yes"},
    {"load_in_4bit", ON "load_in_4bit=true"},
    {"load_in_8bit", ON "load_in_8bit=true"},
    {"bnb_4bit_quant_type", IGNORE "nf4 and fp4 take the same"},
    {"bnb_4bit_quant_storage", IGNORE "read with load_in_4bit"},
    {"use_bnb_nested_quant", ON "double_quantization=yes"},
    /* what is not modelled */
    {"activation_offloading", READ(tdm_from_read_offloading)},
    {"label_smoothing_factor", REFUSE "the loss of smoothed labels is not known"},
    {"optim_target_modules", LACK "GaLore is predicted with projections of all matrices of layers"},
    {"neftune_noise_alpha", LACK "noise of the embedding"},
    {"torch_empty_cache_steps", LACK "cached memory is kept"},
    {"auto_find_batch_size", LACK "the batch is as said"},
    {"loss_type", READ(read_loss)},
    /* DPOConfig, GRPOConfig, RLOOConfig, PPOConfig, KTOConfig, CPOConfig and RewardConfig */
    {"desirable_weight", IGNORE "read as trainer=kto"},
    {"undesirable_weight", IGNORE "read as trainer=kto"},
    {"cpo_alpha", SET "cpo_alpha"},
    {"simpo_gamma", IGNORE "read as trainer=cpo"},
    {"center_rewards_coefficient", IGNORE "read as trainer=reward"},
    {"beta", READ(read_beta)},
    {"max_prompt_length", IGNORE "the context has prompt and completion"},
    {"max_completion_length", SET "max_completion_length"},
    {"response_length", SET "max_completion_length"},
    {"local_rollout_forward_batch_size", SET "local_rollout_forward_batch_size"},
    {"sft_model_path", SAYS(MODEL)},
    {"rloo_k", LACK "predicted as the RLOOTrainer since 0.22, which scores by a reference"},
    {"num_mini_batches", IGNORE NO_MEMORY},
    {"num_ppo_epochs", IGNORE NO_MEMORY},
    {"num_sample_generations", IGNORE "what is logged is not predicted"},
    {"total_episodes", IGNORE NO_MEMORY},
    {"vf_coef", IGNORE NO_MEMORY},
    {"cliprange*", IGNORE NO_MEMORY},
    {"kl_*", IGNORE NO_MEMORY},
    {"gamma", IGNORE NO_MEMORY},
    {"lam", IGNORE NO_MEMORY},
    {"whiten_rewards", IGNORE NO_MEMORY},
    {"normalize_*", IGNORE NO_MEMORY},
    {"missing_eos_penalty", IGNORE NO_MEMORY},
    {"stop_token*", IGNORE NO_MEMORY},
    {"ds3_gather_for_generation", IGNORE "parameters are predicted as gathered"},
    {"num_generations", IGNORE "the batch counts completions"},
    {"num_iterations", IGNORE NO_MEMORY},
    {"steps_per_generation", SET "steps_per_generation"},
    {"precompute_ref_log_probs", ON "precompute_ref_log_probs=yes"},
    {"sync_ref_model", REFUSE "a reference that changes is not known"},
    {"use_vllm", READ(read_use_vllm)},
    {"vllm_mode", READ(tdm_from_read_vllm_mode)},
    {"vllm_gpu_memory_utilization", READ(read_vllm)},
    {"vllm_enable_sleep_mode", READ(read_vllm)},
    {"vllm_*", IGNORE NO_MEMORY},
    {"fast_inference", ON "fast_inference=yes"}, /* of programs that call Unsloth */
    {"reward_model*", READ(read_reward_model)},
    {"reward_*", IGNORE NO_MEMORY},
    {"temperature", IGNORE NO_MEMORY},
    {"top_p", IGNORE NO_MEMORY},
    {"top_k", IGNORE NO_MEMORY},
    {"epsilon*", IGNORE NO_MEMORY},
    {"scale_rewards", IGNORE NO_MEMORY},
    {"mask_truncated_completions", IGNORE NO_MEMORY},
    /* the rest of transformers */
    {"optim_args", READ(tdm_from_read_optim_args)},
    {"max_grad_norm", SET "max_grad_norm"},
    {"per_device_eval_batch_size", IGNORE "evaluation is not predicted"},
    {"eval*", IGNORE "evaluation is not predicted"},
    {"batch_eval_metrics", IGNORE "evaluation is not predicted"},
    {"prediction_loss_only", IGNORE "evaluation is not predicted"},
    {"do_*", IGNORE NO_MEMORY},
    {"learning_rate", IGNORE NO_MEMORY},
    {"weight_decay", IGNORE NO_MEMORY},
    {"adam_*", IGNORE NO_MEMORY},
    {"lr_scheduler_*", IGNORE NO_MEMORY},
    {"warmup_*", IGNORE NO_MEMORY},
    {"num_train_epochs", IGNORE NO_MEMORY},
    {"max_steps", IGNORE NO_MEMORY},
    {"log*", IGNORE NO_MEMORY},
    {"save_*", IGNORE NO_MEMORY},
    {"output_dir", IGNORE NO_MEMORY},
    {"overwrite_output_dir", IGNORE NO_MEMORY},
    {"overwrite_hub_revision", IGNORE NO_MEMORY},
    {"run_name", IGNORE NO_MEMORY},
    {"report_to", IGNORE NO_MEMORY},
    {"project", IGNORE NO_MEMORY},
    {"wandb_*", IGNORE NO_MEMORY},
    {"trackio_*", IGNORE NO_MEMORY},
    {"seed", IGNORE NO_MEMORY},
    {"data_seed", IGNORE NO_MEMORY},
    {"full_determinism", IGNORE "as kernels are by default"},
    {"dataset*", IGNORE NO_MEMORY},
    {"dataloader_*", IGNORE NO_MEMORY},
    {"shuffle_dataset", IGNORE NO_MEMORY},
    {"group_by_length", IGNORE "sequences are assumed to be full"},
    {"length_column_name", IGNORE NO_MEMORY},
    {"train_sampling_strategy", IGNORE "sequences are assumed to be full"},
    {"push_to_hub*", IGNORE NO_MEMORY},
    {"hub_*", IGNORE NO_MEMORY},
    {"ddp_*", IGNORE "the keys of ddp say it"},
    {"local_rank", IGNORE NO_MEMORY},
    {"tf32", IGNORE NO_MEMORY},
    {"half_precision_backend", IGNORE NO_MEMORY},
    {"bf16_full_eval", IGNORE "evaluation is not predicted"},
    {"fp16_*", IGNORE "fp16 is off"},
    {"remove_unused_columns", IGNORE NO_MEMORY},
    {"label_names", IGNORE NO_MEMORY},
    {"load_best_model_at_end", IGNORE NO_MEMORY},
    {"metric_for_best_model", IGNORE NO_MEMORY},
    {"greater_is_better", IGNORE NO_MEMORY},
    {"ignore_data_skip", IGNORE NO_MEMORY},
    {"accelerator_config*", IGNORE NO_MEMORY},
    {"resume_from_checkpoint", IGNORE NO_MEMORY},
    {"include_*", IGNORE NO_MEMORY},
    {"average_tokens_across_devices", IGNORE NO_MEMORY},
    {"disable_tqdm", IGNORE NO_MEMORY},
    {"skip_memory_metrics", IGNORE NO_MEMORY},
    {"use_cpu", REFUSE "GPUs are known"},
    {"debug", IGNORE NO_MEMORY},
    {"ray_scope", IGNORE NO_MEMORY},
    {"use_legacy_prediction_loop", IGNORE NO_MEMORY},
    {"enable_jit_checkpoint", IGNORE NO_MEMORY},
    /* peft's examples/sft/train.py */
    {"max_seq_len", SAYS(CONTEXT)},
    {"use_flash_attn", ON "attn_implementation=flash_attention_2"},
    {"use_reentrant", READ(tdm_from_read_reentrant)},
    {"use_peft_lora", IGNORE "keys of adapters say it"},
    {"use_4bit_quantization", ON "load_in_4bit=true"},
    {"use_8bit_quantization", ON "load_in_8bit=true"},
    {"use_nested_quant", ON "double_quantization=yes"},
    {"bnb_4bit_compute_dtype", IGNORE "products are in bf16"},
    {"bnb_4bit_quant_storage_dtype", IGNORE NO_MEMORY},
    {"use_unsloth", LACK "predicted without Unsloth's kernels"},
    {"add_special_tokens", IGNORE NO_MEMORY},
    {"append_concat_token", IGNORE NO_MEMORY},
    {"splits", IGNORE NO_MEMORY},
    /* the rest of TRL and of recipes that are read with it */
    {"model_revision", IGNORE NO_MEMORY},
    {"trust_remote_code", IGNORE NO_MEMORY},
    {"tokenizer_*", IGNORE NO_MEMORY},
    {"chat_template*", IGNORE NO_MEMORY},
    {"system_prompt", IGNORE NO_MEMORY},
    {"eos_token", IGNORE NO_MEMORY},
    {"pad_token", IGNORE NO_MEMORY},
    {"pad_to_multiple_of", IGNORE "sequences are assumed to be full"},
    {"packing*", IGNORE "sequences are assumed to be full"},
    {"padding_free", IGNORE "sequences are assumed to be full"},
    {"truncation_mode", IGNORE NO_MEMORY},
    {"completion_only_loss", IGNORE NO_MEMORY},
    {"assistant_only_loss", IGNORE NO_MEMORY},
    {"router_aux_loss_coef", IGNORE NO_MEMORY},
    {"ignore_bias_buffers", IGNORE NO_MEMORY},
    {"benchmarks", IGNORE NO_MEMORY},
    {"callbacks", IGNORE NO_MEMORY},
    {"env*", IGNORE NO_MEMORY},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_training = {
    .name = "TrainingArguments",
    .rules = tdm_from_training_rules,
    .signs = {"per_device_train_batch_size", "output_dir", "gradient_checkpointing",
              "learning_rate", "optim", "model_name_or_path",
              /* of configs of TRL's trainers alone */
              "rloo_k", "reward_clip_range", "normalize_advantages", "num_ppo_epochs", "vf_coef",
              "cliprange_value", "response_length", "local_rollout_forward_batch_size",
              "sft_model_path", "reward_model_path", "num_generations", "max_completion_length"},
    .settle = settle_training};

/* ---- peft ---- */

static enum tdm_status settle_adapter(const struct tdm_from_reading *r)
{
    r->from->adapters = true;
    return TDM_OK;
}

static bool is_peft_type(const struct tdm_from_reading *r, const char *name)
{
    return tdm_from_is(json_object_get(r->root, "peft_type"), name);
}

static enum tdm_status read_peft_type(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    static const struct tdm_from_rule rule[] = {{"peft_type", SET "peft_type"}, {.key = NULL}};
    return tdm_from_is(value, "LORA") ? tdm_from_note(r, path, "LoRA")
                                      : tdm_from_apply_rules(r, rule, path, value);
}

/* LN tuning has its own: norms, of which all are known. */
static enum tdm_status read_target_modules(const struct tdm_from_reading *r, const char *path,
                                           const json_t *value)
{
    static const struct tdm_from_rule rule[] = {{"target_modules", SET "lora_targets"},
                                                {.key = NULL}};
    return is_peft_type(r, "LN_TUNING") ? tdm_from_note(r, path, "all norms of hidden states")
                                        : tdm_from_apply_rules(r, rule, path, value);
}

/* OFT's r is a number of blocks, and 0 where oft_block_size says how large they are. */
static enum tdm_status read_rank(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    static const struct tdm_from_rule rule[] = {{"r", SET "lora_rank"}, {.key = NULL}};
    return is_peft_type(r, "OFT") && tdm_from_is_off(value)
               ? tdm_from_note(r, path, "oft_block_size says it")
               : tdm_from_apply_rules(r, rule, path, value);
}

/* OFT's transform of blocks. */
static enum tdm_status read_cayley(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    const bool known =
        json_is_boolean(value) ? json_is_true(value) : json_integer_value(value) == 5;
    return known ? tdm_from_note(r, path, "as assumed")
                 : tdm_from_bad(r, path, value, "five terms of Neumann's series are known");
}

static enum tdm_status read_encoder(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    return tdm_from_is(value, "MLP") ? tdm_from_note(r, path, "as assumed")
                                     : tdm_from_bad(r, path, value, "MLP is known");
}

static bool scales_down(const struct tdm_from_reading *r)
{
    const json_t *targets = json_object_get(r->root, "target_modules"), *target;
    size_t i;
    bool found = !json_is_array(targets);
    json_array_foreach((json_t *)(uintptr_t)targets, i, target) found |=
        tdm_from_is(target, "down_proj");
    return found;
}

/* IA3: which products' inputs are scaled. */
static enum tdm_status read_feedforward(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    const bool one = json_is_array(value) && json_array_size(value) == 1;
    if (json_is_array(value) && json_array_size(value) == 0 && !scales_down(r))
        return tdm_from_note(r, path, "none of the targets is one");
    return one && tdm_from_is(json_array_get(value, 0), "down_proj")
               ? tdm_from_note(r, path, "as assumed")
               : tdm_from_bad(r, path, value, "expected [\"down_proj\"]");
}

/* peft 0.21,
 * tuners/{lora,ia3,vera,ln_tuning,loha,lokr,oft,boft,prompt_tuning,p_tuning,prefix_tuning}/config.py.
 */
static const struct tdm_from_rule adapter_rules[] = {
    {"r", READ(read_rank)},
    {"target_modules", READ(read_target_modules)},
    {"lora_dropout", SET "lora_dropout"},
    {"modules_to_save", SET "modules_to_save"},
    {"use_dora", ON "use_dora=yes"},
    {"rank_pattern", REFUSE "one rank for all is known"},
    {"lora_bias", REFUSE "trained biases are not known"},
    {"peft_type", READ(read_peft_type)},
    {"feedforward_modules", READ(read_feedforward)},
    {"init_ia3_weights", IGNORE NO_MEMORY},
    {"vera_dropout", SET "lora_dropout"},
    {"d_initial", IGNORE NO_MEMORY},
    {"projection_prng_key", IGNORE NO_MEMORY},
    {"save_projection", IGNORE NO_MEMORY},
    {"init_weights", IGNORE NO_MEMORY},
    {"alpha", IGNORE NO_MEMORY},
    {"rank_dropout", REFUSE "dropout of an adapter's inputs is known, of its rank is not"},
    {"module_dropout", REFUSE "dropout of an adapter's inputs is known, of whole modules is not"},
    {"boft_dropout", REFUSE "dropout of an adapter's inputs is known, of its blocks is not"},
    {"rank_dropout_scale", IGNORE NO_MEMORY},
    {"use_effective_conv2d", IGNORE "the model has no such layers"},
    {"decompose_both", ON "decompose_both=yes"},
    {"decompose_factor", SET "decompose_factor"},
    {"oft_block_size", SET "oft_block_size"},
    {"block_share", ON "block_share=yes"},
    {"coft", REFUSE "OFT without its constraint is known"},
    {"eps", IGNORE NO_MEMORY},
    {"use_cayley_neumann", READ(read_cayley)},
    {"num_cayley_neumann_terms", READ(read_cayley)},
    {"boft_block_size", SET "boft_block_size"},
    {"boft_block_num", REFUSE "boft_block_size is known"},
    {"boft_n_butterfly_factor", ONE "one butterfly factor is known"},
    {"num_virtual_tokens", SET "num_virtual_tokens"},
    {"token_dim", IGNORE TDM_FROM_OF_MODEL},
    {"num_transformer_submodules", IGNORE TDM_FROM_OF_MODEL},
    {"num_attention_heads", IGNORE TDM_FROM_OF_MODEL},
    {"num_layers", IGNORE TDM_FROM_OF_MODEL},
    {"encoder_reparameterization_type", READ(read_encoder)},
    {"encoder_hidden_size", SET "encoder_hidden_size"},
    {"encoder_num_layers", IGNORE "it is of LSTM"},
    {"encoder_dropout", IGNORE "it is of LSTM"},
    {"prefix_projection", ON "prefix_projection=yes"},
    {"prompt_tuning_init", IGNORE NO_MEMORY},
    {"prompt_tuning_init_text", IGNORE NO_MEMORY},
    {"tokenizer_name_or_path", IGNORE NO_MEMORY},
    {"tokenizer_kwargs", IGNORE NO_MEMORY},
    {"lora_alpha", IGNORE NO_MEMORY},
    {"use_rslora", IGNORE NO_MEMORY},
    {"use_qalora", REFUSE "QA-LoRA is not known"},
    {"bias", REFUSE "trained biases are not known"},
    {"task_type", IGNORE NO_MEMORY},
    {"base_model_name_or_path", SAYS(MODEL)},
    {"inference_mode", IGNORE NO_MEMORY},
    {"init_lora_weights", IGNORE NO_MEMORY},
    {"fan_in_fan_out", IGNORE NO_MEMORY},
    {"alpha_pattern", IGNORE NO_MEMORY},
    {"revision", IGNORE NO_MEMORY},
    {"peft_version", IGNORE NO_MEMORY},
    {"auto_mapping", IGNORE NO_MEMORY},
    {"ensure_weight_tying", IGNORE NO_MEMORY},
    {"qalora_group_size", IGNORE NO_MEMORY},
    {"loftq_config", IGNORE NO_MEMORY},
    {"eva_config", IGNORE NO_MEMORY},
    {"corda_config", IGNORE NO_MEMORY},
    {"megatron_config", IGNORE NO_MEMORY},
    {"megatron_core", IGNORE NO_MEMORY},
    {"exclude_modules", REFUSE "name the modules in target_modules"},
    {"target_parameters", REFUSE "adapters of projections are known"},
    {"layers_to_transform", REFUSE "adapters in all layers are known"},
    {"layers_pattern", REFUSE "adapters in all layers are known"},
    {"layer_replication", REFUSE "layers as the model has them are known"},
    {"trainable_token_indices", REFUSE "single trained tokens are not known"},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_adapter = {.name = "an adapter_config.json of peft",
                                               .rules = adapter_rules,
                                               .signs = {"peft_type", "lora_alpha"},
                                               .settle = settle_adapter};
