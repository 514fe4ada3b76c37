/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the files of --from by a table for each kind of file. Objects inside are entered, so a key
 * is a path: "zero_optimization.stage". */
#include "commands/predict_from.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 160u
#define VALUE_BYTES 512u

enum action {
    SET,     /* a setting, whose key is `to` */
    SIZE,    /* the same, and "auto" is one of its values */
    IGNORE,  /* `to` says why */
    REFUSE,  /* unless it is off: false, null, 0, "none", "no" or empty; `to` says what is known */
    BATCH,   /* --batch */
    CONTEXT, /* --context */
    STAGE,   /* of ZeRO: the method */
    SHARDED, /* fsdp: the method, unless it is off */
    CHECKPOINTS,
    REENTRANT,
    ACCUMULATION, /* gradients are there before a backward */
};

struct rule {
    const char *key; /* a path; one that ends in "*" is the beginning of some */
    enum action action;
    const char *to;
};

#define NO_MEMORY "changes no memory"

/* DeepSpeed 0.19: runtime/config.py, zero/config.py. */
static const struct rule deepspeed_rules[] = {
    {"train_micro_batch_size_per_gpu", BATCH, NULL},
    {"train_batch_size", IGNORE, "it follows from the others"},
    {"gradient_accumulation_steps", SET, "gradient_accumulation_steps"},
    {"zero_optimization.stage", STAGE, NULL},
    {"zero_optimization.offload_optimizer.device", SET, "offload_optimizer"},
    {"zero_optimization.offload_optimizer.pin_memory", SET, "pin_memory"},
    {"zero_optimization.offload_param.device", SET, "offload_param"},
    {"zero_optimization.offload_param.pin_memory", SET, "pin_memory"},
    {"zero_optimization.offload_optimizer.*", IGNORE, "not modelled"},
    {"zero_optimization.offload_param.*", IGNORE, "not modelled"},
    {"zero_optimization.contiguous_gradients", SET, "contiguous_gradients"},
    {"zero_optimization.overlap_comm", SET, "overlap_comm"},
    {"zero_optimization.reduce_scatter", SET, "reduce_scatter"},
    {"zero_optimization.reduce_bucket_size", SIZE, "reduce_bucket_size"},
    {"zero_optimization.sub_group_size", SET, "sub_group_size"},
    {"zero_optimization.stage3_prefetch_bucket_size", SIZE, "stage3_prefetch_bucket_size"},
    {"zero_optimization.stage3_param_persistence_threshold", SIZE,
     "stage3_param_persistence_threshold"},
    {"zero_optimization.stage3_max_live_parameters", SET, "stage3_max_live_parameters"},
    {"zero_optimization.stage3_max_reuse_distance", SET, "stage3_max_reuse_distance"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", IGNORE, "it is for saving"},
    {"zero_optimization.allgather_*", IGNORE, "parameters are gathered in place"},
    {"zero_optimization.round_robin_gradients", IGNORE, NO_MEMORY},
    {"zero_optimization.ignore_unused_parameters", IGNORE, NO_MEMORY},
    {"zero_optimization.zero_hpz_partition_size", REFUSE, "ZeRO++ is not known"},
    {"zero_optimization.zero_quantized_*", REFUSE, "ZeRO++ is not known"},
    {"communication_data_type", SET, "communication_data_type"},
    {"data_types.grad_accum_dtype", SET, "grad_accum_dtype"},
    {"bf16.enabled", IGNORE, "bf16 is assumed"},
    {"bf16.*", IGNORE, "not modelled"},
    {"fp16.enabled", REFUSE, "only bf16 is known"},
    {"fp16.*", IGNORE, "fp16 is off"},
    {"optimizer.type", SET, "optimizer"},
    {"optimizer.params.torch_adam", REFUSE, "say --set optimizer=torch_adam"},
    {"optimizer.params.*", IGNORE, NO_MEMORY},
    {"scheduler.*", IGNORE, NO_MEMORY},
    {"gradient_clipping", IGNORE, "clipping is in place"},
    {"steps_per_print", IGNORE, NO_MEMORY},
    {"wall_clock_breakdown", IGNORE, NO_MEMORY},
    {"zero_allow_untested_optimizer", IGNORE, NO_MEMORY},
    {"activation_checkpointing.*", IGNORE,
     "transformers' own checkpoints are set by checkpointing"},
    {NULL, IGNORE, NULL},
};

/* transformers 5.17, training_args.py; trl, trainer/sft_config.py. */
static const struct rule training_rules[] = {
    {"per_device_train_batch_size", BATCH, NULL},
    {"max_length", CONTEXT, NULL},
    {"max_seq_length", CONTEXT, NULL},
    {"gradient_accumulation_steps", ACCUMULATION, NULL},
    {"gradient_checkpointing", CHECKPOINTS, NULL},
    {"gradient_checkpointing_kwargs.use_reentrant", REENTRANT, NULL},
    {"optim", SET, "optim"},
    {"use_liger_kernel", SET, "use_liger_kernel"},
    {"bf16", IGNORE, "autocast is --set autocast=bf16, or weights_dtype=fp32 if weights are"},
    {"fp16", REFUSE, "only bf16 is known"},
    {"fsdp", SHARDED, NULL},
    {"fsdp_config.*", IGNORE, "the keys of fsdp say it"},
    {"deepspeed", REFUSE, "give that file to --from too, and leave the key out"},
    {"torch_compile", REFUSE, "torch.compile is not known"},
    {"torch_compile_*", IGNORE, "torch.compile is off"},
    {"optim_args", IGNORE, NO_MEMORY},
    {"max_grad_norm", IGNORE, "the norms of clipping are not counted"},
    {"activation_offloading", REFUSE, "offloaded activations are not known here"},
    {"packing", IGNORE, "sequences are assumed to be full"},
    {"padding_free", IGNORE, "sequences are assumed to be full"},
    {"per_device_eval_batch_size", IGNORE, "evaluation is not predicted"},
    {"eval_*", IGNORE, "evaluation is not predicted"},
    {"do_*", IGNORE, NO_MEMORY},
    {"learning_rate", IGNORE, NO_MEMORY},
    {"weight_decay", IGNORE, NO_MEMORY},
    {"adam_*", IGNORE, NO_MEMORY},
    {"lr_scheduler_*", IGNORE, NO_MEMORY},
    {"warmup_*", IGNORE, NO_MEMORY},
    {"num_train_epochs", IGNORE, NO_MEMORY},
    {"max_steps", IGNORE, NO_MEMORY},
    {"logging_*", IGNORE, NO_MEMORY},
    {"log_level*", IGNORE, NO_MEMORY},
    {"save_*", IGNORE, NO_MEMORY},
    {"output_dir", IGNORE, NO_MEMORY},
    {"run_name", IGNORE, NO_MEMORY},
    {"report_to", IGNORE, NO_MEMORY},
    {"seed", IGNORE, NO_MEMORY},
    {"data_seed", IGNORE, NO_MEMORY},
    {"dataset_*", IGNORE, NO_MEMORY},
    {"dataloader_*", IGNORE, NO_MEMORY},
    {"push_to_hub*", IGNORE, NO_MEMORY},
    {"hub_*", IGNORE, NO_MEMORY},
    {"ddp_*", IGNORE, "the keys of ddp say it"},
    {"tf32", IGNORE, NO_MEMORY},
    {"remove_unused_columns", IGNORE, NO_MEMORY},
    {"load_best_model_at_end", IGNORE, NO_MEMORY},
    {"resume_from_checkpoint", IGNORE, NO_MEMORY},
    {NULL, IGNORE, NULL},
};

/* peft 0.21, tuners/lora/config.py. */
static const struct rule adapter_rules[] = {
    {"r", SET, "lora_rank"},
    {"target_modules", SET, "lora_targets"},
    {"lora_dropout", SET, "lora_dropout"},
    {"modules_to_save", SET, "modules_to_save"},
    {"use_dora", REFUSE, "DoRA is not known"},
    {"rank_pattern", REFUSE, "one rank for all is known"},
    {"lora_bias", REFUSE, "trained biases are not known"},
    {"peft_type", IGNORE, "LoRA"},
    {"lora_alpha", IGNORE, NO_MEMORY},
    {"use_rslora", IGNORE, NO_MEMORY},
    {"bias", REFUSE, "trained biases are not known"},
    {"task_type", IGNORE, NO_MEMORY},
    {"base_model_name_or_path", IGNORE, "the model is named on the command line"},
    {"inference_mode", IGNORE, NO_MEMORY},
    {"init_lora_weights", IGNORE, NO_MEMORY},
    {"fan_in_fan_out", IGNORE, NO_MEMORY},
    {"alpha_pattern", IGNORE, NO_MEMORY},
    {"revision", IGNORE, NO_MEMORY},
    {"peft_version", IGNORE, NO_MEMORY},
    {"auto_mapping", IGNORE, NO_MEMORY},
    {"exclude_modules", REFUSE, "name the modules in target_modules"},
    {"layers_to_transform", REFUSE, "adapters in all layers are known"},
    {"layers_pattern", REFUSE, "adapters in all layers are known"},
    {"layer_replication", REFUSE, "layers as the model has them are known"},
    {"trainable_token_indices", REFUSE, "single trained tokens are not known"},
    {NULL, IGNORE, NULL},
};

/* A kind of file, and keys of which it has one. */
static const struct kind {
    const char *name;
    const struct rule *rules;
    const char *signs[6];
} kinds[] = {
    {"a DeepSpeed config",
     deepspeed_rules,
     {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}},
    {"an adapter_config.json of peft", adapter_rules, {"peft_type", "lora_alpha"}},
    {"TrainingArguments",
     training_rules,
     {"per_device_train_batch_size", "output_dir", "gradient_checkpointing", "learning_rate",
      "optim"}},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct reading {
    struct tdm_from *from;
    const char *file;
    const struct kind *kind;
    struct tdm_error *err;
};

static enum tdm_status no_memory(const struct reading *r)
{
    return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its settings", r->file);
}

/* The longest rule that fits comes first where it matters; the first one that fits holds. */
static const struct rule *find_rule(const struct rule *rules, const char *path)
{
    for (; rules->key != NULL; rules++) {
        size_t length = strlen(rules->key);
        bool beginning = rules->key[length - 1] == '*';
        if (beginning ? strncmp(rules->key, path, length - 1) == 0 : strcmp(rules->key, path) == 0)
            return rules;
    }
    return NULL;
}

/* A value as --set takes it: names of a list are separated by commas. False: it is no such value.
 */
static bool value_text(const json_t *value, char out[VALUE_BYTES])
{
    size_t used = 0;
    out[0] = '\0';
    if (json_is_string(value))
        return (size_t)snprintf(out, VALUE_BYTES, "%s",
                                strcmp(json_string_value(value), "all-linear") == 0
                                    ? "all"
                                    : json_string_value(value)) < VALUE_BYTES;
    if (json_is_integer(value))
        return snprintf(out, VALUE_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value)) > 0;
    if (json_is_real(value))
        return snprintf(out, VALUE_BYTES, "%.15g", json_real_value(value)) > 0;
    if (json_is_boolean(value))
        return snprintf(out, VALUE_BYTES, "%s", json_is_true(value) ? "true" : "false") > 0;
    for (size_t i = 0; json_is_array(value) && i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (name == NULL || used + strlen(name) + 2 > VALUE_BYTES)
            return false;
        used += (size_t)snprintf(out + used, VALUE_BYTES - used, "%s%s", i > 0 ? "," : "", name);
    }
    return used > 0;
}

static bool is_off(const json_t *value)
{
    static const char *const words[] = {"", "none", "no", "off", "false"};
    if (json_is_null(value) || json_is_false(value))
        return true;
    if (json_is_number(value))
        return json_number_value(value) == 0;
    if (json_is_array(value))
        return json_array_size(value) == 0;
    if (json_is_object(value))
        return json_object_size(value) == 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && json_is_string(value); i++)
        if (strcmp(json_string_value(value), words[i]) == 0)
            return true;
    return false;
}

static enum tdm_status note(const struct reading *r, const char *path, const char *why)
{
    json_t *text = json_sprintf("%s: %s (%s)", r->file, path, why);
    return json_array_append_new(r->from->ignored, text) == 0 ? TDM_OK : no_memory(r);
}

static enum tdm_status bad_value(const struct reading *r, const char *path, const json_t *value,
                                 const char *expected)
{
    char shown[TDM_JSON_SHOWN];
    return tdm_fail(r->err, TDM_INPUT, "%s: \"%s\" is %s; %s", r->file, path,
                    tdm_json_show(value, shown), expected);
}

static enum tdm_status add_pair(const struct reading *r, const char *key, const char *value)
{
    json_t *text = json_sprintf("%s=%s", key, value);
    return json_array_append_new(r->from->pairs, text) == 0 ? TDM_OK : no_memory(r);
}

static enum tdm_status read_count(const struct reading *r, const char *path, const json_t *value,
                                  uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 1)
        return bad_value(r, path, value, "it must be a whole number from 1");
    *out = (uint64_t)json_integer_value(value);
    return TDM_OK;
}

static enum tdm_status read_switch(const struct reading *r, const char *path, const json_t *value,
                                   bool *out)
{
    if (!json_is_boolean(value))
        return bad_value(r, path, value, "it must be true or false");
    *out = json_is_true(value);
    return TDM_OK;
}

static enum tdm_status read_stage(const struct reading *r, const char *path, const json_t *value)
{
    json_int_t stage = json_integer_value(value);
    if (!json_is_integer(value) || (stage != 2 && stage != 3))
        return bad_value(r, path, value, "stages 2 and 3 of DeepSpeed are known");
    r->from->method = stage == 2 ? "zero2" : "zero3";
    return TDM_OK;
}

static enum tdm_status read_accumulation(const struct reading *r, const char *path,
                                         const json_t *value)
{
    uint64_t steps = 1;
    enum tdm_status status = read_count(r, path, value, &steps);
    return status != TDM_OK || steps == 1 ? status : add_pair(r, "grads", "held");
}

static enum tdm_status read_leaf(const struct reading *r, const char *path, const json_t *value)
{
    char text[VALUE_BYTES];
    const struct rule *rule = find_rule(r->kind->rules, path);
    if (rule == NULL) {
        tdm_fail(r->err, TDM_INPUT, "%s: \"%s\" is not known of %s", r->file, path, r->kind->name);
        return tdm_hint(r->err, "leave it out if it changes no memory");
    }
    if (json_is_null(value))
        return note(r, path, "null");
    if (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0 &&
        rule->action != SIZE)
        return note(r, path, "auto");
    switch (rule->action) {
    case SET:
    case SIZE:
        if (is_off(value) && (json_is_array(value) || json_is_object(value)))
            return note(r, path, "empty");
        return value_text(value, text)
                   ? add_pair(r, rule->to, text)
                   : bad_value(r, path, value, "expected a word, a number or a list of words");
    case IGNORE:
        return note(r, path, rule->to);
    case REFUSE:
        return is_off(value) ? note(r, path, "off") : bad_value(r, path, value, rule->to);
    case BATCH:
        return read_count(r, path, value, &r->from->batch);
    case CONTEXT:
        return read_count(r, path, value, &r->from->context);
    case STAGE:
        return read_stage(r, path, value);
    case SHARDED:
        if (!is_off(value))
            r->from->method = "fsdp";
        return is_off(value) ? note(r, path, "off") : TDM_OK;
    case CHECKPOINTS:
        return read_switch(r, path, value, &r->from->checkpoints);
    case REENTRANT:
        return read_switch(r, path, value, &r->from->reentrant);
    case ACCUMULATION:
        return read_accumulation(r, path, value);
    }
    return TDM_OK;
}

static enum tdm_status read_object(const struct reading *r, const char *prefix,
                                   const json_t *object)
{
    const char *key;
    json_t *value;
    enum tdm_status status = TDM_OK;
    json_object_foreach((json_t *)object, key, value)
    {
        char path[PATH_BYTES];
        if ((size_t)snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "",
                             key) >= sizeof(path))
            return tdm_fail(r->err, TDM_INPUT, "%s: \"%.64s\" is not known", r->file, path);
        bool enters = json_is_object(value) && json_object_size(value) > 0 &&
                      find_rule(r->kind->rules, path) == NULL;
        status = enters ? read_object(r, path, value) : read_leaf(r, path, value);
        if (status != TDM_OK)
            return status;
    }
    return status;
}

static enum tdm_status read_file(struct tdm_from *from, const char *path, struct tdm_error *err)
{
    struct reading r = {.from = from, .file = path, .err = err};
    json_t *root = NULL;
    enum tdm_status status = tdm_json_load(path, &root, err);
    if (status != TDM_OK)
        return status;
    for (size_t k = 0; k < KINDS && r.kind == NULL; k++)
        for (const char *const *sign = kinds[k].signs; *sign != NULL && r.kind == NULL; sign++)
            if (json_object_get(root, *sign) != NULL)
                r.kind = &kinds[k];
    if (r.kind == NULL)
        status = tdm_fail(err, TDM_INPUT,
                          "%s: is none of the files that --from reads: a DeepSpeed config, "
                          "TrainingArguments, an adapter_config.json",
                          path);
    else
        status = read_object(&r, "", root);
    json_decref(root);
    return status;
}

enum tdm_status tdm_from_add(struct tdm_from *from, const char *path, struct tdm_error *err)
{
    if (from->count == TDM_FROM_FILES)
        return tdm_fail(err, TDM_USAGE, "--from: takes at most %u files", TDM_FROM_FILES);
    from->paths[from->count++] = path;
    return TDM_OK;
}

enum tdm_status tdm_from_read(struct tdm_from *from, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    from->pairs = json_array();
    from->ignored = json_array();
    if (from->pairs == NULL || from->ignored == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "no memory for the settings of --from");
    for (size_t i = 0; i < from->count && status == TDM_OK; i++)
        status = read_file(from, from->paths[i], err);
    const struct reading r = {.from = from, .file = from->paths[0], .err = err};
    if (status == TDM_OK && from->checkpoints)
        status = add_pair(&r, "checkpointing", from->reentrant ? "on-reentrant" : "on");
    return status;
}

void tdm_from_free(struct tdm_from *from)
{
    json_decref(from->pairs);
    json_decref(from->ignored);
}

/* Does the list have a pair of this key? */
static bool has_key(const struct tdm_method *method, const struct tdm_setting_list *list, size_t k)
{
    for (size_t i = 0; i < list->count; i++) {
        size_t other;
        const char *value;
        if (tdm_method_read_pair(method, list->pairs[i], &other, &value) && other == k)
            return true;
    }
    return false;
}

enum tdm_status tdm_from_apply(struct tdm_from *from, const struct tdm_method *method,
                               struct tdm_setting_list *list, struct tdm_error *err)
{
    const struct reading r = {.from = from, .file = method->name, .err = err};
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < json_array_size(from->pairs) && status == TDM_OK; i++) {
        const char *pair = json_string_value(json_array_get(from->pairs, i)), *value;
        size_t k;
        if (!tdm_method_read_pair(method, pair, &k, &value))
            status = note(&r, pair, "the method has no such key");
        else if (has_key(method, list, k))
            status = note(&r, pair, "said before");
        else
            status = tdm_settings_add(list, pair, err);
    }
    return status;
}
