/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the files of --from by the table of rules of their kind, and settles what follows from all
 * of them together. */
#include "commands/predict_from.h"

#include "base/file.h"
#include "base/json.h"
#include "commands/from_file.h"
#include "commands/from_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define VALUE_BYTES 1024u

/* The first kind of which a file has a sign. Files of Axolotl and TRL have keys of
 * TrainingArguments and of adapters too. */
static const struct tdm_from_kind *const kinds[] = {
    &tdm_from_axolotl,   &tdm_from_accelerate,   &tdm_from_megatron, &tdm_from_torchtune,
    &tdm_from_automodel, &tdm_from_torchtitan,   &tdm_from_litgpt,   &tdm_from_swift,
    &tdm_from_deepspeed, &tdm_from_llamafactory, &tdm_from_training, &tdm_from_adapter};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* ---- what rules call ---- */

static enum tdm_status no_memory(const struct tdm_from_reading *r)
{
    return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its settings", r->file);
}

bool tdm_from_is(const json_t *value, const char *word)
{
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

bool tdm_from_is_off(const json_t *value)
{
    static const char *const words[] = {"", "none", "no", "off", "false", "disabled", "NO", NULL};
    if (value == NULL || json_is_null(value) || json_is_false(value))
        return true;
    if (json_is_number(value))
        return json_number_value(value) == 0;
    if (json_is_array(value))
        return json_array_size(value) == 0;
    if (json_is_object(value))
        return json_object_size(value) == 0;
    for (const char *const *word = words; *word != NULL; word++)
        if (tdm_from_is(value, *word))
            return true;
    return false;
}

const json_t *tdm_from_in(const struct tdm_from_reading *r, const char *section, const char *key)
{
    return json_object_get(json_object_get(r->root, section), key);
}

bool tdm_from_begins(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static enum tdm_status add_note(const struct tdm_from_reading *r, json_t *list, const char *path,
                                const char *why)
{
    json_t *text = json_sprintf("%s: %s (%s)", r->file, path, why);
    return json_array_append_new(list, text) == 0 ? TDM_OK : no_memory(r);
}

enum tdm_status tdm_from_note(const struct tdm_from_reading *r, const char *path, const char *why)
{
    return add_note(r, r->from->ignored, path, why);
}

enum tdm_status tdm_from_lack(const struct tdm_from_reading *r, const char *path, const char *why)
{
    return add_note(r, r->from->lacking, path, why);
}

enum tdm_status tdm_from_bad(const struct tdm_from_reading *r, const char *path,
                             const json_t *value, const char *expected)
{
    char shown[TDM_JSON_SHOWN];
    return tdm_fail(r->err, TDM_INPUT, "%s: \"%s\" is %s; %s", r->file, path,
                    tdm_json_show(value, shown), expected);
}

/* Takes over the reference to `pair`, and notes where it is said. */
static enum tdm_status append_pair(const struct tdm_from_reading *r, json_t *list, json_t *pair)
{
    json_t *source = r->from->key == NULL ? json_string(r->file)
                                          : json_sprintf("%s: \"%s\"", r->file, r->from->key);
    if (pair == NULL || json_object_set_new(r->from->sources, json_string_value(pair), source) != 0)
        json_decref(pair);
    else if (json_array_append_new(list, pair) == 0)
        return TDM_OK;
    return no_memory(r);
}

static enum tdm_status add_pair(const struct tdm_from_reading *r, json_t *list, const char *key,
                                const char *value)
{
    return append_pair(r, list, json_sprintf("%s=%s", key, value));
}

enum tdm_status tdm_from_pair(const struct tdm_from_reading *r, const char *key, const char *value)
{
    return add_pair(r, r->from->pairs, key, value);
}

enum tdm_status tdm_from_quiet_pair(const struct tdm_from_reading *r, const char *key,
                                    const char *value)
{
    return add_pair(r, r->from->quiet, key, value);
}

static bool is_digits(const json_t *value)
{
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

enum tdm_status tdm_from_count(const struct tdm_from_reading *r, const char *path,
                               const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 1)
        return tdm_from_bad(r, path, value,
                            is_digits(value) ? "it must be a whole number from 1, without quotes"
                                             : "it must be a whole number from 1");
    *out = (uint64_t)json_integer_value(value);
    return TDM_OK;
}

const char *tdm_from_keep(const struct tdm_from_reading *r, const char *word)
{
    json_t *kept = json_string(word);
    return json_array_append_new(r->from->words, kept) == 0 ? json_string_value(kept) : NULL;
}

enum tdm_status tdm_from_unnamed(const struct tdm_from_reading *r, const char *path,
                                 const char *why)
{
    json_t *text = json_sprintf("%s: \"%s\" %s", r->file, path, why);
    r->from->unnamed = json_string_value(text);
    return json_array_append_new(r->from->words, text) == 0 ? TDM_OK : no_memory(r);
}

/* true and false, also in quotes, or as 1 and 0: accelerate's str_to_bool, axolotl's pydantic. */
static enum tdm_status read_switch(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value, bool *out)
{
    /* transformers, hf_argparser.py string_to_bool */
    static const char *const words[2][6] = {{"false", "False", "no", "n", "f", NULL},
                                            {"true", "True", "yes", "y", "t", NULL}};
    const json_int_t number = json_integer_value(value);
    bool on = json_is_true(value) || (json_is_integer(value) && number == 1);
    bool off = json_is_false(value) || (json_is_integer(value) && number == 0);
    for (size_t i = 0; words[0][i] != NULL; i++) {
        off |= tdm_from_is(value, words[0][i]);
        on |= tdm_from_is(value, words[1][i]);
    }
    if (!on && !off)
        return tdm_from_bad(r, path, value, "it must be true or false");
    *out = on;
    return TDM_OK;
}

/* transformers, training_args.py torch_compile; accelerate, TorchDynamoPlugin: the whole model, by
 * its layers where compilation is regional. */
enum tdm_status tdm_from_read_compile(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    const json_t *regional = tdm_from_in(r, "dynamo_config", "dynamo_use_regional_compilation");
    bool on = false;
    if (tdm_from_is_off(value))
        return tdm_from_note(r, path, "off");
    if (!tdm_from_is(value, "inductor") && !tdm_from_is(value, "INDUCTOR")) {
        enum tdm_status status = read_switch(r, path, value, &on);
        if (status != TDM_OK)
            return json_is_string(value)
                       ? tdm_from_bad(r, path, value, "of torch.compile inductor is known")
                       : status;
        if (!on)
            return tdm_from_note(r, path, "off");
    }
    return tdm_from_pair(r, "compile", tdm_from_is_off(regional) ? "all" : "layers");
}

enum tdm_status tdm_from_read_compile_mode(const struct tdm_from_reading *r, const char *path,
                                           const json_t *value)
{
    if (tdm_from_is_off(value) || tdm_from_is(value, "default") || tdm_from_is(value, "auto") ||
        tdm_from_is(value, "max-autotune-no-cudagraphs"))
        return tdm_from_note(r, path, "it makes no CUDA graphs");
    return tdm_from_lack(r, path, "predicted without CUDA graphs");
}

enum tdm_status tdm_from_read_checkpoints(const struct tdm_from_reading *r, const char *path,
                                          const json_t *value)
{
    if (strcmp(path, "gradient_checkpointing") == 0 && json_is_true(value))
        r->from->model_checkpoints = true;
    return read_switch(r, path, value, &r->from->checkpoints);
}

/* Axolotl's "legacy" is Unsloth's, of inputs of layers too; its "disk" takes no host memory. */
enum tdm_status tdm_from_read_offloading(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value)
{
    bool on = tdm_from_is(value, "legacy") || tdm_from_is(value, "disk");
    enum tdm_status status = on ? TDM_OK : read_switch(r, path, value, &on);
    if (status == TDM_OK && tdm_from_is(value, "disk"))
        status = tdm_from_lack(r, path, "predicted in host memory");
    if (status == TDM_OK && on)
        r->from->offloads = r->file;
    return status;
}

enum tdm_status tdm_from_read_reentrant(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    return read_switch(r, path, value, &r->from->reentrant);
}

enum tdm_status tdm_from_read_bf16(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    if (tdm_from_is(value, "auto") || tdm_from_is(value, "full")) {
        r->from->bf16 = tdm_from_is(value, "auto");
        return TDM_OK;
    }
    enum tdm_status status = read_switch(r, path, value, &r->from->bf16);
    r->from->wide = status == TDM_OK && !r->from->bf16;
    return status;
}

enum tdm_status tdm_from_read_stage(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    static const char *const methods[] = {NULL, "deepspeed-zero1", "zero2", "zero3"};
    /* accelerate and DeepSpeed make a number of one in quotes */
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    json_int_t stage = strlen(text) == 1 ? text[0] - '0' : json_integer_value(value);
    if (stage < 1 || stage > 3)
        return tdm_from_bad(r, path, value,
                            stage == 0
                                ? "at stage 0 every GPU has all masters and states, which is not "
                                  "modelled; stages 1 to 3 are known"
                                : "stages 1 to 3 of DeepSpeed are known");
    r->from->method = methods[stage];
    return TDM_OK;
}

enum tdm_status tdm_from_read_deepspeed(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    /* --deepspeed of deepspeed.add_config_arguments is a switch */
    if (json_is_true(value) && (json_object_get(r->root, "deepspeed_config") != NULL ||
                                json_object_get(r->root, "zero_stage") != NULL))
        return tdm_from_note(r, path, "deepspeed_config or zero_stage says how");
    if (!json_is_string(value))
        return tdm_from_bad(r, path, value, "give that config as a file of its own to --from");
    r->from->deepspeed.by = r->file;
    r->from->deepspeed.name = tdm_from_keep(r, json_string_value(value));
    return r->from->deepspeed.name != NULL ? TDM_OK : no_memory(r);
}

enum tdm_status tdm_from_read_dtype(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    if (tdm_from_is(value, "float32") || tdm_from_is(value, "fp32"))
        return tdm_from_pair(r, "weights_dtype", "fp32");
    if (tdm_from_is(value, "bfloat16") || tdm_from_is(value, "bf16"))
        return tdm_from_quiet_pair(r, "weights_dtype", "bf16");
    if (tdm_from_is(value, "float16") || tdm_from_is(value, "fp16"))
        return tdm_from_lack(r, path, "predicted as bf16, which is as wide");
    return tdm_from_is(value, "auto")
               ? tdm_from_note(r, path, "auto")
               : tdm_from_bad(r, path, value, "bf16, fp16 and fp32 are known");
}

enum tdm_status tdm_from_read_attention(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    const char *name = json_string_value(value);
    if (name == NULL)
        return tdm_from_bad(r, path, value, "expected a word");
    if (strcmp(name, "eager") == 0 || strcmp(name, "sdpa") == 0)
        return tdm_from_pair(r, "attention", name);
    if (strcmp(name, "flash_attention_2") != 0 && strstr(name, "flash-attn2") == NULL &&
        tdm_from_lack(r, path, "predicted as FlashAttention-2") != TDM_OK)
        return TDM_NO_MEMORY;
    return tdm_from_pair(r, "attn_implementation", "flash_attention_2");
}

/* ---- a key ---- */

static bool rule_fits(const struct tdm_from_rule *rule, const char *path)
{
    size_t length = strlen(rule->key);
    bool beginning = rule->key[length - 1] == '*';
    return beginning ? strncmp(rule->key, path, length - 1) == 0 : strcmp(rule->key, path) == 0;
}

const struct tdm_from_rule *tdm_from_find_rule(const struct tdm_from_rule *rules, const char *path)
{
    while (rules->key != NULL && !rule_fits(rules, path))
        rules++;
    if (rules->key == NULL || rules->action != TDM_FROM_TABLE)
        return rules->key == NULL ? NULL : rules;
    const char *name = path + strlen(rules->key) - 1;
    size_t prefix = rules->prefix != NULL ? strlen(rules->prefix) : 0;
    if (prefix > 0 && strncmp(name, rules->prefix, prefix) == 0)
        name += prefix;
    return tdm_from_find_rule(rules->table, name);
}

/* A value as --set takes it: names of a list are separated by commas. False: it is no such value.
 */
static bool value_text(const json_t *value, char out[VALUE_BYTES])
{
    size_t used = 0;
    out[0] = '\0';
    if (json_is_string(value))
        return (size_t)snprintf(out, VALUE_BYTES, "%s",
                                tdm_from_is(value, "all-linear")
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

static enum tdm_status set(const struct tdm_from_reading *r, const struct tdm_from_rule *rule,
                           const char *path, const json_t *value)
{
    char text[VALUE_BYTES];
    if (tdm_from_is_off(value) && (json_is_array(value) || json_is_object(value)))
        return tdm_from_note(r, path, "empty");
    return value_text(value, text)
               ? tdm_from_pair(r, rule->to, text)
               : tdm_from_bad(r, path, value, "expected a word, a number or a list of words");
}

/* "attention=sdpa" */
static enum tdm_status set_if_on(const struct tdm_from_reading *r, const struct tdm_from_rule *rule,
                                 const char *path, const json_t *value)
{
    return tdm_from_is_off(value) ? tdm_from_note(r, path, "off")
                                  : append_pair(r, r->from->pairs, json_string(rule->to));
}

/* Of a folder that is elsewhere the last name, where a model has it; NULL: none has. */
static const char *name_of_folder(const struct tdm_from_reading *r, const char *folder)
{
    char name[VALUE_BYTES];
    size_t length = strlen(folder);
    struct tdm_model *model;
    struct tdm_error err;
    while (length > 1 && folder[length - 1] == '/')
        length--;
    if (length >= sizeof(name) || strchr("/.~", folder[0]) == NULL)
        return NULL;
    snprintf(name, sizeof(name), "%.*s", (int)length, folder);
    const char *last = strrchr(name, '/');
    if (last == NULL || tdm_file_same(name, name) ||
        tdm_model_load(last + 1, &model, &err) != TDM_OK)
        return NULL;
    tdm_model_free(model);
    return tdm_from_keep(r, last + 1);
}

enum tdm_status tdm_from_read_model(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    if (!json_is_string(value))
        return tdm_from_bad(r, path, value, "expected a name or a folder");
    const char *named = name_of_folder(r, json_string_value(value));
    r->from->model = named != NULL ? named : tdm_from_keep(r, json_string_value(value));
    if (r->from->model == NULL)
        return no_memory(r);
    return named == NULL
               ? TDM_OK
               : tdm_from_note(r, path, "no such folder is here: the model of that name is taken");
}

static enum tdm_status read_degree(const struct tdm_from_reading *r,
                                   const struct tdm_from_rule *rule, const char *path,
                                   const json_t *value)
{
    if (!json_is_integer(value))
        return tdm_from_bad(r, path, value, "expected a whole number");
    return json_integer_value(value) <= 1 ? tdm_from_note(r, path, "nothing is divided")
                                          : tdm_from_bad(r, path, value, rule->to);
}

static enum tdm_status refuse_key(const struct tdm_from_reading *r, const char *path)
{
    tdm_fail(r->err, TDM_INPUT, "%s: \"%s\" is not known of %s", r->file, path, r->kind->name);
    return tdm_hint(r->err, "leave it out if it changes no memory");
}

static enum tdm_status apply_rule(const struct tdm_from_reading *r,
                                  const struct tdm_from_rule *rule, const char *path,
                                  const json_t *value)
{
    switch (rule->action) {
    case TDM_FROM_SET:
    case TDM_FROM_SIZE:
        return set(r, rule, path, value);
    case TDM_FROM_ON:
        return set_if_on(r, rule, path, value);
    case TDM_FROM_IGNORE:
        return tdm_from_note(r, path, rule->to);
    case TDM_FROM_REFUSE:
        return tdm_from_is_off(value) ? tdm_from_note(r, path, "off")
                                      : tdm_from_bad(r, path, value, rule->to);
    case TDM_FROM_LACK:
        return tdm_from_is_off(value) ? tdm_from_note(r, path, "off")
                                      : tdm_from_lack(r, path, rule->to);
    case TDM_FROM_BATCH:
        return tdm_from_count(r, path, value, &r->from->batch);
    case TDM_FROM_CONTEXT:
        return tdm_from_count(r, path, value, &r->from->context);
    case TDM_FROM_GPUS:
        return tdm_from_count(r, path, value, &r->from->gpus);
    case TDM_FROM_NODES:
        return tdm_from_count(r, path, value, &r->from->nodes);
    case TDM_FROM_STEPS:
        return tdm_from_count(r, path, value, &r->from->accumulation);
    case TDM_FROM_MODEL:
        return tdm_from_read_model(r, path, value);
    case TDM_FROM_ONE:
        return read_degree(r, rule, path, value);
    case TDM_FROM_READ:
        return rule->read(r, path, value);
    case TDM_FROM_TABLE:
        break;
    }
    return refuse_key(r, path);
}

enum tdm_status tdm_from_apply_rules(const struct tdm_from_reading *r,
                                     const struct tdm_from_rule *rules, const char *path,
                                     const json_t *value)
{
    const struct tdm_from_rule *rule = tdm_from_find_rule(rules, path);
    return rule == NULL ? refuse_key(r, path) : apply_rule(r, rule, path, value);
}

/* Is the path that of an object, which is empty here? */
static bool is_object_path(const struct tdm_from_rule *rules, const char *path)
{
    size_t length = strlen(path);
    for (; rules->key != NULL; rules++)
        if (strncmp(rules->key, path, length) == 0 && rules->key[length] == '.')
            return true;
    return false;
}

static enum tdm_status read_leaf(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    const struct tdm_from_rule *rule = tdm_from_find_rule(r->kind->rules, path);
    r->from->key = path;
    if (rule == NULL && r->of_program)
        return tdm_from_is_off(value)
                   ? tdm_from_note(r, path, "the program's own, and off")
                   : tdm_from_lack(r, path, "the program's own, which is not known");
    if (rule == NULL)
        return tdm_from_is_off(value) && is_object_path(r->kind->rules, path)
                   ? tdm_from_note(r, path, "empty")
                   : refuse_key(r, path);
    if (rule->action == TDM_FROM_IGNORE)
        return tdm_from_note(r, path, rule->to);
    if (json_is_null(value))
        return tdm_from_note(r, path, "null");
    if (tdm_from_is(value, "auto") && rule->action != TDM_FROM_SIZE &&
        rule->action != TDM_FROM_READ)
        return tdm_from_note(r, path, "auto");
    return apply_rule(r, rule, path, value);
}

/* "--num-layers" is num_layers. */
static void option_name(char *path)
{
    size_t dashes = strspn(path, "-");
    memmove(path, path + dashes, strlen(path + dashes) + 1);
    for (; *path != '\0'; path++)
        if (*path == '-')
            *path = '_';
}

static enum tdm_status read_object(const struct tdm_from_reading *r, const char *prefix,
                                   const json_t *object)
{
    const char *key;
    json_t *value;
    enum tdm_status status = TDM_OK;
    json_object_foreach((json_t *)object, key, value)
    {
        char path[TDM_FROM_PATH_BYTES];
        if ((size_t)snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "",
                             key) >= sizeof(path))
            return tdm_fail(r->err, TDM_INPUT, "%s: \"%.64s\" is not known", r->file, path);
        if (r->kind->options)
            option_name(path + (prefix[0] != '\0' ? strlen(prefix) + 1 : 0));
        bool enters = json_is_object(value) && json_object_size(value) > 0 &&
                      tdm_from_find_rule(r->kind->rules, path) == NULL;
        status = enters ? read_object(r, path, value) : read_leaf(r, path, value);
        if (status != TDM_OK)
            return status;
    }
    return status;
}

/* ---- a file ---- */

/* The kind of which the object has a sign; NULL: there is none. */
static const struct tdm_from_kind *find_kind(const json_t *root)
{
    for (size_t k = 0; k < KINDS; k++)
        for (const char *const *sign = kinds[k]->signs; *sign != NULL; sign++)
            if (json_object_get(root, *sign) != NULL)
                return kinds[k];
    return NULL;
}

static bool has_options(const json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (strncmp(key, "--", 2) == 0)
            return true;
    }
    return false;
}

/* Options by the names of their keys: "--output-dir" is output_dir. NULL: no memory. */
static json_t *name_options(json_t *root)
{
    char name[TDM_FROM_PATH_BYTES];
    const char *key;
    json_t *value, *named = json_object();
    json_object_foreach(root, key, value)
    {
        snprintf(name, sizeof(name), "%s", key);
        option_name(name);
        if (json_object_set(named, name, value) != 0) {
            json_decref(named);
            return NULL;
        }
    }
    return named;
}

/* NULL: its options are told by their names. */
static const struct tdm_from_kind *kind_of_program(const char *program)
{
    static const struct {
        const char *program;
        const struct tdm_from_kind *kind;
    } own[] = {{"swift", &tdm_from_swift},
               {"megatron", &tdm_from_swift_megatron},
               {"vllm", &tdm_from_vllm},
               {"sglang", &tdm_from_sglang}};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]) && program != NULL; i++)
        if (strcmp(own[i].program, program) == 0)
            return own[i].kind;
    return NULL;
}

/* Finds what a file is. Arguments are a trainer's, by its signs, or Megatron-LM's: *root becomes
 * the former by the names of their keys. */
static enum tdm_status find_form(struct tdm_from_reading *r, json_t **root)
{
    if (!has_options(*root)) {
        r->kind = find_kind(*root);
        return TDM_OK;
    }
    json_t *named = name_options(*root);
    if (named == NULL)
        return no_memory(r);
    r->kind = find_kind(named);
    const struct tdm_from_kind *own = kind_of_program(r->from->program);
    if (own != NULL)
        r->kind = own;
    if (own != NULL || r->kind == &tdm_from_training || r->kind == &tdm_from_llamafactory ||
        r->kind == &tdm_from_swift) {
        r->of_program = true;
        json_decref(*root);
        *root = named;
        return TDM_OK;
    }
    r->kind = &tdm_from_megatron;
    json_decref(named);
    return TDM_OK;
}

/* Reads what a script says beside its arguments, and takes it from the file. */
static enum tdm_status read_launcher(const struct tdm_from_reading *r, json_t *root)
{
    static const char *const sections[] = {"launcher", "env"};
    struct tdm_from_reading of_launcher = *r;
    enum tdm_status status = TDM_OK;
    of_launcher.kind = &tdm_from_launcher;
    of_launcher.of_program = false;
    r->from->program = NULL;
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]) && status == TDM_OK; i++) {
        json_t *section = json_object_get(root, sections[i]), *named;
        if (section == NULL)
            continue;
        named = i == 0 ? name_options(section) : json_incref(section);
        status = named == NULL ? no_memory(r) : read_object(&of_launcher, sections[i], named);
        json_decref(named);
        json_object_del(root, sections[i]);
    }
    return status;
}

static enum tdm_status read_file(struct tdm_from *from, const char *path, struct tdm_error *err)
{
    struct tdm_from_reading r = {.from = from, .file = path, .err = err};
    json_t *root = NULL;
    enum tdm_status status = tdm_from_load(path, &root, err);
    if (status != TDM_OK)
        return status;
    if (has_options(root))
        status = read_launcher(&r, root);
    if (status == TDM_OK)
        status = find_form(&r, &root);
    r.root = root;
    if (status == TDM_OK && r.kind == NULL) {
        tdm_fail(err, TDM_INPUT, "%s: is none of the files that --from reads", path);
        status = tdm_hint(
            err, "a DeepSpeed or accelerate config, TrainingArguments, a config of "
                 "TRL (as response_length and num_ppo_epochs of PPO, rloo_k of RLOO), an "
                 "adapter_config.json, an Axolotl config, Megatron-LM's arguments, a "
                 "config of torchtitan, torchtune, LitGPT or NeMo Automodel, a script with "
                 "arguments");
    } else if (status == TDM_OK) {
        status = tdm_from_change(&r, root);
        if (status == TDM_OK)
            status = read_object(&r, "", root);
    }
    from->key = NULL;
    if (status == TDM_OK && r.kind->settle != NULL)
        status = r.kind->settle(&r);
    json_decref(root);
    return status;
}

/* The config that another file names, from the working directory as a trainer takes it, or beside
 * that file. Not found: settle() says so. */
static enum tdm_status read_named(const struct tdm_from_reading *r,
                                  const struct tdm_from_named *named)
{
    struct tdm_from *from = r->from;
    const char *slash;
    if (named->by == NULL || named->is_read)
        return TDM_OK;
    slash = strrchr(named->by, '/');
    json_t *path = json_string(named->name);
    if (!tdm_file_same(named->name, named->name) && slash != NULL && named->name[0] != '/') {
        json_decref(path);
        path = json_sprintf("%.*s/%s", (int)(slash - named->by), named->by, named->name);
    }
    if (json_array_append_new(from->words, path) != 0)
        return no_memory(r);
    const char *found = json_string_value(path);
    if (!tdm_file_same(found, found))
        return TDM_OK;
    const struct tdm_from_reading naming = {.from = from, .file = named->by, .err = r->err};
    enum tdm_status status = tdm_from_note(&naming, found, "read as the config it names");
    return status == TDM_OK ? read_file(from, found, r->err) : status;
}

enum tdm_status tdm_from_add(struct tdm_from *from, const char *path, struct tdm_error *err)
{
    if (from->count == TDM_FROM_FILES)
        return tdm_fail(err, TDM_USAGE, "--from: takes at most %u files", TDM_FROM_FILES);
    from->paths[from->count++] = path;
    return TDM_OK;
}

static bool has_pair(const json_t *pairs, const char *pair)
{
    for (size_t i = 0; i < json_array_size(pairs); i++)
        if (strcmp(json_string_value(json_array_get(pairs, i)), pair) == 0)
            return true;
    return false;
}

/* Shards. accelerate makes fp32 what is trained (accelerator.py `prepare_model`,
 * utils/fsdp_utils.py `fsdp2_prepare_model`), so a base under adapters stays as it is loaded. */
static enum tdm_status settle_shards(const struct tdm_from_reading *r)
{
    struct tdm_from *from = r->from;
    const bool sharded = from->method != NULL && strcmp(from->method, "fsdp") == 0;
    const struct tdm_from_reading naming = {.from = from, .file = from->widens_by, .err = r->err};
    enum tdm_status status = TDM_OK;
    if (from->widens_by != NULL && !from->adapters)
        status = tdm_from_pair(&naming, "weights_dtype", "fp32");
    if (status == TDM_OK && from->bytes_of_4_bits && !from->fsdp_1 && sharded)
        status = tdm_from_quiet_pair(r, "bnb_4bit_quant_storage", "uint8");
    if (status == TDM_OK && from->fsdp_1 && sharded)
        status = tdm_from_quiet_pair(r, "fsdp_version", "1");
    return status;
}

/* The optimizer of a DeepSpeed config comes before the trainer's; and accelerate makes
 * DeepSpeedCPUAdam of torch's AdamW where states are offloaded (utils/deepspeed.py
 * map_pytorch_optim_to_deepspeed). */
static enum tdm_status settle_optimizer(const struct tdm_from_reading *r)
{
    json_t *pairs = r->from->pairs;
    bool said = has_pair(pairs, "optimizer=AdamW");
    bool offloads =
        has_pair(pairs, "offload_optimizer=cpu") || has_pair(pairs, "offload_optimizer=nvme");
    const char *why = said ? "the DeepSpeed config says it"
                           : "states that are offloaded are stepped by DeepSpeedCPUAdam";
    for (size_t i = json_array_size(pairs); i-- > 0 && (said || offloads);) {
        const char *pair = json_string_value(json_array_get(pairs, i));
        if (!tdm_from_begins(pair, said ? "optim=" : "optim=adamw_torch"))
            continue;
        enum tdm_status status = tdm_from_note(r, "optim", why);
        if (status != TDM_OK)
            return status;
        json_array_remove(pairs, i);
    }
    return TDM_OK;
}

static enum tdm_status check_named(const struct tdm_from_reading *r,
                                   const struct tdm_from_named *named, const char *system)
{
    if (named->by == NULL || named->is_read)
        return TDM_OK;
    tdm_fail(r->err, TDM_INPUT, "%s: names the %s config %.128s", named->by, system, named->name);
    return tdm_hint(r->err, "give that file to --from too");
}

/* What follows from all files together. */
static enum tdm_status settle(const struct tdm_from_reading *r, uint64_t gpus)
{
    struct tdm_from *from = r->from;
    enum tdm_status status = TDM_OK;
    char steps[32];
    status = check_named(r, &from->deepspeed, "DeepSpeed");
    if (status == TDM_OK)
        status = check_named(r, &from->accelerate, "accelerate");
    if (status != TDM_OK)
        return status;
    if (from->gpus == 0 && from->gpus_of_node > 0)
        from->gpus = from->gpus_of_node * (from->nodes > 0 ? from->nodes : 1);
    gpus = gpus > 0 ? gpus : from->gpus;
    if (from->method == NULL && from->is_training && gpus > 1)
        from->method = from->spread != NULL ? from->spread : "ddp";
    if (from->checkpoints)
        status = tdm_from_pair(r, "checkpointing", from->reentrant ? "on-reentrant" : "on");
    if (status == TDM_OK && from->offloads != NULL) {
        const struct tdm_from_reading naming = {
            .from = from, .file = from->offloads, .err = r->err};
        status = from->checkpoints
                     ? tdm_from_pair(&naming, "checkpoint_offload", "yes")
                     : tdm_from_lack(&naming, "activation offloading",
                                     "without checkpoints of layers activations are predicted on "
                                     "the GPU");
    }
    /* FSDP 1 under accelerate makes all that is trained fp32 again (accelerator.py prepare_model).
     */
    const bool narrow =
        from->narrow_adapters && !(from->fsdp_1 && from->widens_by != NULL &&
                                   from->method != NULL && strcmp(from->method, "fsdp") == 0);
    if (status == TDM_OK && from->adapters) /* by peft, which makes them fp32 */
        status = tdm_from_quiet_pair(r, "lora", narrow ? "bf16" : "peft");
    if (status == TDM_OK && from->adapters && narrow && has_pair(from->quiet, "weights_dtype=fp32"))
        status = tdm_from_quiet_pair(r, "lora_dtype", "bf16");
    if (status == TDM_OK && from->adapters && from->bf16 && !narrow &&
        !has_pair(from->quiet, "weights_dtype=fp32")) /* which are under autocast anyway */
        status = tdm_from_quiet_pair(r, "autocast", "bf16");
    if (status == TDM_OK && !from->adapters && from->scales)
        status = tdm_from_pair(r, "weights_dtype", "fp32");
    if (status == TDM_OK && from->wide && !from->bf16 &&
        has_pair(from->pairs, "weights_dtype=fp32"))
        status = tdm_from_quiet_pair(r, "autocast", "no");
    if (status == TDM_OK && from->adapters && from->checkpoints && from->is_trainer)
        status = tdm_from_quiet_pair(r, "loss_held", "no");
    if (status == TDM_OK)
        status = settle_shards(r);
    if (status == TDM_OK)
        status = settle_optimizer(r);
    snprintf(steps, sizeof(steps), "%" PRIu64, from->accumulation);
    if (status == TDM_OK && from->accumulation > 0)
        status = tdm_from_pair(r, "gradient_accumulation_steps", steps);
    return status;
}

enum tdm_status tdm_from_read(struct tdm_from *from, uint64_t gpus, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    json_t **const lists[] = {&from->pairs, &from->quiet, &from->ignored, &from->lacking,
                              &from->words};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        *lists[i] = json_array();
        if (*lists[i] == NULL)
            status = tdm_fail(err, TDM_NO_MEMORY, "no memory for the settings of --from");
    }
    from->sources = json_object();
    from->asked_gpus = gpus;
    if (from->sources == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "no memory for the settings of --from");
    for (size_t i = 0; i < from->count && status == TDM_OK; i++)
        status = read_file(from, from->paths[i], err);
    const struct tdm_from_reading r = {.from = from, .file = from->paths[0], .err = err};
    if (status == TDM_OK) /* an accelerate config may name one of DeepSpeed */
        status = read_named(&r, &from->accelerate);
    if (status == TDM_OK)
        status = read_named(&r, &from->deepspeed);
    return status == TDM_OK ? settle(&r, gpus) : status;
}

void tdm_from_free(struct tdm_from *from)
{
    json_decref(from->pairs);
    json_decref(from->quiet);
    json_decref(from->ignored);
    json_decref(from->lacking);
    json_decref(from->words);
    json_decref(from->sources);
    json_decref(from->config);
}
