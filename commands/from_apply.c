/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a method what the files of --from say. What the method lacks is ignored, said in the
 * answer, or refused, by what the answer would be without it. */
#include "commands/predict_from.h"

#include "base/file.h"
#include "commands/from_rules.h"

#include <stdio.h>
#include <string.h>

#define MOST_METHODS 64u

/* ---- keys that a method lacks ---- */

enum effect {
    MUCH,   /* the step needs much more: refused */
    LITTLE, /* the step needs a little more */
    LESS    /* the step needs less */
};

/* What a key does to a step, by its name for --set and by those that users have for it. */
static const struct {
    const char *key;
    enum effect effect;
} effects[] = {
    {"trainer", MUCH},
    {"use_vllm", MUCH},
    {"vllm_mode", MUCH},
    {"modules_to_save", MUCH},
    {"use_dora", MUCH},
    {"peft_type", MUCH}, /* other weights are trained, and other sums of them kept */
    {"image_tokens", MUCH},
    {"lora_dropout", LITTLE},
    {"max_grad_norm", LITTLE},
    {"gradient_accumulation_steps", LITTLE},
    {"quantization", LESS},
    {"load_in_4bit", LESS},
    {"load_in_8bit", LESS},
    {"double_quantization", LESS},
    {"lora_rank", LESS},
    {"checkpointing", LESS},
    {"checkpoint_offload", LESS},
    {"logits", LESS},
    {"optimizer_in_bwd", LESS},
    {"liger", LESS},
    {"compile", LESS},
    {"float8_recipe", LESS},
    {"offload_policy", LESS},
    {"offload_optimizer", LESS},
    {"offload_param", LESS},
};

static bool is_key(const char *pair, const char *key)
{
    const size_t length = strcspn(pair, "=");
    return strlen(key) == length && strncmp(pair, key, length) == 0;
}

/* Does the method take the pair? */
static bool takes(const struct tdm_method *method, const char *pair)
{
    const char *value;
    size_t key;
    return tdm_method_read_pair(method, pair, &key, &value);
}

static enum tdm_status refuse_pair(const struct tdm_from *from, const struct tdm_method *method,
                                   const char *pair, struct tdm_error *err)
{
    char *names[MOST_METHODS + 1] = {NULL}, list[512];
    size_t count = 0;
    for (const struct tdm_method *m = tdm_methods(); m->name != NULL && count < MOST_METHODS; m++)
        if (takes(m, pair))
            names[count++] = (char *)m->name;
    tdm_fail(err, TDM_USAGE,
             "%s: %s is not modelled by method %s, whose answer would be too low without it",
             json_string_value(json_object_get(from->sources, pair)), pair, method->name);
    return tdm_hint(err, "methods that take it: %s", tdm_names_join(names, list, sizeof(list)));
}

/* Does a pair that the method lacks say what the method does anyway? */
static bool says_no(const char *pair)
{
    static const char *const words[] = {"=false",
                                        "=no",
                                        "=none",
                                        "=off",
                                        "=0",
                                        "trainer=sft",
                                        "peft_type=LORA",
                                        "gradient_accumulation_steps=1",
                                        "dp_replicate_size=1",
                                        "tensor_parallel_degree=1",
                                        "tp_size=1",
                                        NULL};
    const char *value = strchr(pair, '=');
    for (const char *const *word = words; *word != NULL && value != NULL; word++)
        if (strcmp(**word == '=' ? value : pair, *word) == 0)
            return true;
    return false;
}

static enum tdm_status lack_pair(struct tdm_from *from, const struct tdm_method *method,
                                 const char *pair, struct tdm_error *err)
{
    static const char *const words[] = {
        [LITTLE] = "the method has no such key; a step needs a little more",
        [LESS] = "the method has no such key; a step needs less"};
    const struct tdm_from_reading r = {.from = from, .file = method->name, .err = err};
    if (says_no(pair))
        return tdm_from_note(&r, pair, "the method has no such key");
    for (size_t i = 0; i < sizeof(effects) / sizeof(effects[0]); i++)
        if (is_key(pair, effects[i].key))
            return effects[i].effect == MUCH ? refuse_pair(from, method, pair, err)
                                             : tdm_from_lack(&r, pair, words[effects[i].effect]);
    return tdm_from_lack(&r, pair, "the method has no such key");
}

/* ---- all pairs ---- */

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

/* The value of a key: of the command line first, then of the files. NULL: nobody says it. */
static const char *said(const struct tdm_from *from, const struct tdm_method *method,
                        const struct tdm_setting_list *list, const char *name)
{
    const json_t *const files[] = {from->pairs, from->quiet};
    const char *value;
    size_t k;
    for (size_t i = 0; i < list->count; i++)
        if (tdm_method_read_pair(method, list->pairs[i], &k, &value) &&
            strcmp(tdm_method_key(method, k)->name, name) == 0)
            return value;
    for (unsigned f = 0; f < 2; f++)
        for (size_t i = 0; i < json_array_size(files[f]); i++)
            if (tdm_method_read_pair(method, json_string_value(json_array_get(files[f], i)), &k,
                                     &value) &&
                strcmp(tdm_method_key(method, k)->name, name) == 0)
                return value;
    return NULL;
}

static bool says(const struct tdm_from *from, const struct tdm_method *method,
                 const struct tdm_setting_list *list, const char *name, const char *value)
{
    const char *found = said(from, method, list, name);
    return found != NULL && strcmp(found, value) == 0;
}

/* Has the key no effect? Autocast, where the wrapper casts adapters as all else, as it does but for
 * LoRA of FSDP 1; the dtype of adapters among shards that are fp32 anyway, and where FSDP 1 has no
 * other; and how FSDP 1 loads, elsewhere. */
static bool is_vain(const struct tdm_from *from, const struct tdm_method *method,
                    const struct tdm_setting_list *list, const struct tdm_method_key *key)
{
    const bool first = says(from, method, list, "fsdp_version", "1");
    const char *adapter = said(from, method, list, "peft_type");
    if (strcmp(key->name, "sync_module_states") == 0)
        return !first;
    if (method->wrapper == NULL || !method->wrapper->mixes_precision)
        return false;
    const bool flat = first && (adapter == NULL || strcmp(adapter, "LORA") == 0);
    return strcmp(key->name, "autocast") == 0 ? !flat
           : strcmp(key->name, "lora") == 0
               ? (first && !flat) || says(from, method, list, "weights_dtype", "fp32")
               : false;
}

/* Is the version that is said of a library, as "4.48.1", before MAJOR.MINOR? Of none: no. */
static bool is_before(const struct tdm_from *from, const struct tdm_method *method,
                      const struct tdm_setting_list *list, const char *library, unsigned major,
                      unsigned minor)
{
    unsigned has_major = 0, has_minor = 0;
    const char *version = said(from, method, list, library);
    return version != NULL && sscanf(version, "%u.%u", &has_major, &has_minor) == 2 &&
           (has_major < major || (has_major == major && has_minor < minor));
}

/* transformers before 4.52 calls the wrapped layer in its checkpoint, later versions call the
 * checkpoint in the layer (GradientCheckpointingLayer). */
static bool checkpoints_units(const struct tdm_from *from, const struct tdm_method *method,
                              const struct tdm_setting_list *list)
{
    return from->model_checkpoints && is_before(from, method, list, "transformers", 4, 52) &&
           says(from, method, list, "fsdp_version", "1") &&
           says(from, method, list, "checkpointing", "on-reentrant") &&
           said(from, method, list, "checkpoint_of") == NULL;
}

/* The optimizer of a Trainer where nothing is said: torch's AdamW, fused since transformers 4.54
 * with torch from 2.8 (training_args.py default_optim). NULL: it is said, or DeepSpeedCPUAdam. */
static const char *default_optimizer(const struct tdm_from *from, const struct tdm_method *method,
                                     const struct tdm_setting_list *list)
{
    const char *offload = said(from, method, list, "offload_optimizer");
    if (!from->is_trainer || said(from, method, list, "optimizer") != NULL ||
        (offload != NULL && strcmp(offload, "none") != 0))
        return NULL;
    return is_before(from, method, list, "transformers", 4, 54) ||
                   is_before(from, method, list, "torch", 2, 8)
               ? "adamw_torch"
               : "adamw_torch_fused";
}

/* Pairs that are left out in silence where the method lacks them. */
static enum tdm_status apply_quiet(struct tdm_from *from, const struct tdm_method *method,
                                   const struct tdm_setting_list *list, struct tdm_error *err)
{
    const struct tdm_from_reading r = {.from = from, .file = method->name, .err = err};
    if (checkpoints_units(from, method, list)) {
        enum tdm_status status = tdm_from_quiet_pair(&r, "checkpoint_of", "units");
        if (status != TDM_OK)
            return status;
    }
    const char *optimizer = default_optimizer(from, method, list);
    if (optimizer != NULL && tdm_from_quiet_pair(&r, "optim", optimizer) != TDM_OK)
        return TDM_NO_MEMORY;
    for (size_t i = 0; i < json_array_size(from->quiet); i++) {
        json_t *pair = json_array_get(from->quiet, i);
        const char *value;
        size_t k;
        if (tdm_method_read_pair(method, json_string_value(pair), &k, &value) &&
            !is_vain(from, method, list, tdm_method_key(method, k)) &&
            json_array_append(from->pairs, pair) != 0)
            return tdm_fail(err, TDM_NO_MEMORY, "no memory for the settings of --from");
    }
    return TDM_OK;
}

enum tdm_status tdm_from_apply(struct tdm_from *from, const struct tdm_method *method,
                               struct tdm_setting_list *list, struct tdm_error *err)
{
    const struct tdm_from_reading r = {.from = from, .file = method->name, .err = err};
    enum tdm_status status = apply_quiet(from, method, list, err);
    for (size_t i = 0; i < json_array_size(from->pairs) && status == TDM_OK; i++) {
        const char *pair = json_string_value(json_array_get(from->pairs, i)), *value;
        size_t k;
        if (!tdm_method_read_pair(method, pair, &k, &value))
            status = lack_pair(from, method, pair, err);
        else if (has_key(method, list, k))
            status = tdm_from_note(&r, pair, "said before");
        else
            status = tdm_settings_add(list, pair, err);
    }
    return status;
}

/* ---- whose fault it is ---- */

/* Where a pair of the list is said, if that is a file. */
static const char *source_of(const struct tdm_from *from, const char *pair)
{
    for (size_t i = 0; i < json_array_size(from->pairs); i++)
        if (json_string_value(json_array_get(from->pairs, i)) == pair)
            return json_string_value(json_object_get(from->sources, pair));
    return NULL;
}

enum tdm_status tdm_from_blame(const struct tdm_from *from, const struct tdm_method *method,
                               const struct tdm_setting_list *list, struct tdm_error *err)
{
    static const char start[] = "--set ";
    const char *key = err->message + sizeof(start) - 1, *end = strchr(err->message, ':'), *value;
    if (!tdm_from_begins(err->message, start) || end == NULL)
        return err->status;
    const size_t length = (size_t)(end - key);
    for (size_t i = 0; i < list->count; i++) {
        const char *source = source_of(from, list->pairs[i]);
        size_t k;
        if (source == NULL || !tdm_method_read_pair(method, list->pairs[i], &k, &value))
            continue;
        const char *name = tdm_method_key(method, k)->name;
        if (strlen(name) != length || strncmp(name, key, length) != 0)
            continue;
        struct tdm_error said = *err;
        tdm_fail(err, TDM_INPUT, "%s%s", source, said.message + (end - err->message));
        return said.hint[0] == '\0' ? TDM_INPUT : tdm_hint(err, "%s", said.hint);
    }
    return err->status;
}
