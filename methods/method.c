/* SPDX-License-Identifier: Apache-2.0 */
/* Finding methods by name, their keys, and the values that the user set. */
#include "methods/method.h"

#include "base/file.h"
#include "base/names.h"
#include "base/size.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Aliases of methods. An alias of one method stands for it; an alias of several only suggests them.
 */
static const struct {
    const char *name, *methods[4];
} aliases[] = {
    {"torch", {"parallel"}},
    {"pytorch", {"parallel"}},
    {"hf", {"parallel"}},
    {"huggingface", {"parallel"}},
    {"transformers", {"parallel"}},
    {"single", {"parallel"}}, /* the name in tables of measured peaks */
    {"fsdp2", {"fsdp"}},
    {"deepspeed", {"zero2", "zero3", "zero3-offload"}},
    {"deepspeed-zero2", {"zero2"}},
    {"deepspeed-zero3", {"zero3"}},
    {"ulysses-offload", {"fpdt"}},
    {"accelerate", {"parallel", "ddp", "fsdp"}},
    {"zero", {"zero2", "zero3", "zero3-offload"}},
    {"megatron", {"tensor-parallel", "megatron-cp"}},
    {"megatron-lm", {"tensor-parallel", "megatron-cp"}},
    {"cp", {"megatron-cp", "torch-cp", "ring", "ulysses"}},
    {"context-parallel", {"torch-cp"}},
    {"tp", {"tensor-parallel"}},
};

#define ALIASES (sizeof(aliases) / sizeof(aliases[0]))
#define MOST_METHODS 32u

/* The methods that an alias stands for, or NULL. */
static const char *const *find_alias(const char *name)
{
    const char *names[ALIASES + 1] = {NULL};
    for (size_t i = 0; i < ALIASES; i++)
        names[i] = aliases[i].name;
    const char *meant = tdm_name_meant(name, names);
    for (size_t i = 0; meant != NULL && i < ALIASES; i++)
        if (names[i] == meant)
            return aliases[i].methods;
    return NULL;
}

const char *tdm_method_alias(const struct tdm_method *method, size_t number)
{
    for (size_t i = 0; i < ALIASES; i++)
        if (aliases[i].methods[1] == NULL && strcmp(aliases[i].methods[0], method->name) == 0 &&
            number-- == 0)
            return aliases[i].name;
    return NULL;
}

static const struct tdm_method *by_name(const char *name)
{
    for (const struct tdm_method *m = tdm_methods(); m->name != NULL; m++)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

enum tdm_status tdm_method_find(const char *name, const struct tdm_method **method,
                                struct tdm_error *err)
{
    const char *names[MOST_METHODS + 1] = {NULL};
    char list[512], suggestion[TDM_SUGGESTION_BYTES] = "";
    size_t count = 0;
    for (const struct tdm_method *m = tdm_methods(); m->name != NULL && count < MOST_METHODS; m++)
        names[count++] = m->name;
    /* Aliases come before parts of names ("megatron" in megatron-cp), because an alias may stand
     * for several methods. */
    const char *const *alias = by_name(name) == NULL ? find_alias(name) : NULL;
    const char *meant = alias == NULL      ? tdm_name_meant(name, names)
                        : alias[1] == NULL ? alias[0]
                                           : NULL;
    if (meant != NULL) {
        *method = by_name(meant);
        return TDM_OK;
    }
    tdm_fail(err, TDM_USAGE, "method \"%.64s\" is not known", name);
    if (alias != NULL)
        snprintf(suggestion, sizeof(suggestion), "did you mean %s%s%s or %s? ", alias[0],
                 alias[2] != NULL ? ", " : "", alias[2] != NULL ? alias[1] : "",
                 alias[2] != NULL ? alias[2] : alias[1]);
    else
        tdm_name_suggest(name, names, suggestion);
    return tdm_hint(err, "%smethods: %s", suggestion,
                    tdm_names_join((char *const *)names, list, sizeof(list)));
}

/* The tables of the divider, of the wrapper, then of the method; NULL past the last. */
static const struct tdm_method_key *table_of(const struct tdm_method *method, size_t number)
{
    const struct tdm_method_key *const *lists[] = {
        method->divider != NULL ? method->divider->keys : NULL,
        method->wrapper != NULL ? method->wrapper->keys : NULL,
        method->keys,
    };
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        for (size_t table = 0; lists[i] != NULL && lists[i][table] != NULL; table++)
            if (number-- == 0)
                return lists[i][table];
    return NULL;
}

/* A key is hidden by an earlier table that has it, or by a wrapper that lacks it. A method with a
 * wrapper of its own hides "sharding". */
static bool is_hidden(const struct tdm_method *method, size_t table, const char *name)
{
    for (size_t before = 0; before < table; before++)
        for (const struct tdm_method_key *key = table_of(method, before); key->name != NULL; key++)
            if (strcmp(key->name, name) == 0)
                return true;
    if (method->wrapper == NULL)
        return false;
    for (const char *const *less = method->wrapper->without; less != NULL && *less != NULL; less++)
        if (strcmp(*less, name) == 0)
            return true;
    return strcmp(name, "sharding") == 0;
}

/* Lists the first `most` keys. Returns how many. */
static size_t list_keys(const struct tdm_method *method, size_t most,
                        const struct tdm_method_key **keys)
{
    const struct tdm_method_key *key;
    size_t count = 0;
    for (size_t table = 0; (key = table_of(method, table)) != NULL; table++)
        for (; key->name != NULL && count < most; key++)
            if (!is_hidden(method, table, key->name))
                keys[count++] = key;
    return count;
}

/* The keys of all methods, looked up once: a search for remedies asks thousands of times. */
static struct {
    const struct tdm_method_key *keys[MOST_METHODS][TDM_METHOD_MOST_KEYS + 1]; /* ended by NULL */
    size_t counts[MOST_METHODS], methods;
} known;
static pthread_once_t knows = PTHREAD_ONCE_INIT;

static void look_up_all(void)
{
    const struct tdm_method *m = tdm_methods();
    for (size_t i = 0; i < MOST_METHODS && m[i].name != NULL; i++) {
        known.counts[i] = list_keys(&m[i], TDM_METHOD_MOST_KEYS, known.keys[i]);
        known.methods = i + 1;
    }
}

const struct tdm_method_key *tdm_method_key(const struct tdm_method *method, size_t number)
{
    pthread_once(&knows, look_up_all);
    for (size_t m = 0; m < known.methods; m++)
        if (method == &tdm_methods()[m])
            return number < known.counts[m] ? known.keys[m][number] : NULL;
    const struct tdm_method_key *keys[TDM_METHOD_MOST_KEYS]; /* of a method of a test's own */
    return number < list_keys(method, TDM_METHOD_MOST_KEYS, keys) ? keys[number] : NULL;
}

/* The key with a name, and its number; NULL: the method has none. */
static const struct tdm_method_key *key_named(const struct tdm_method *method, const char *name,
                                              size_t *number)
{
    const struct tdm_method_key *key;
    for (*number = 0; (key = tdm_method_key(method, *number)) != NULL; ++*number)
        if (strcmp(key->name, name) == 0)
            return key;
    return NULL;
}

/* What the user set of a key, or NULL. */
static const char *said(const struct tdm_method *method, const struct tdm_method_choices *choices,
                        const char *name)
{
    size_t number;
    return key_named(method, name, &number) != NULL ? choices->said[number] : NULL;
}

const char *tdm_method_value(const struct tdm_method *method,
                             const struct tdm_method_choices *choices, const char *name)
{
    size_t number;
    const struct tdm_method_key *key = key_named(method, name, &number);
    if (key == NULL)
        return NULL;
    return choices->said[number] != NULL ? choices->said[number] : key->assumed;
}

static enum tdm_status unknown_key(const struct tdm_method *method, const char *pair,
                                   struct tdm_error *err)
{
    const struct tdm_method_key *key;
    const char *names[TDM_METHOD_MOST_KEYS + 1] = {NULL}, *meant = tdm_method_option_meant(pair);
    char suggestion[TDM_SUGGESTION_BYTES], name[64], expected[TDM_OTHER_VALUES];
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL && k < TDM_METHOD_MOST_KEYS; k++)
        names[k] = key->name;
    bool option = strncmp(pair, "--", 2) == 0;
    size_t length = strcspn(pair, option ? "=: " : "=:");
    snprintf(name, sizeof(name), "%.*s", (int)length, pair);
    if (pair[length] != '\0' && tdm_method_other_values(method, pair, expected)) {
        const char *value = pair + length + 1;
        return tdm_fail(err, TDM_USAGE, "--set %s: \"%.64s\" is not known; expected %s",
                        name + (option ? 2 : 0), value + strspn(value, " "), expected);
    }
    if (option)
        tdm_fail(err, TDM_USAGE, "--set: method %s has no setting \"%s\"", method->name, name);
    else if (strcspn(pair, "=:") == strlen(pair) || name[0] == '\0')
        tdm_fail(err, TDM_USAGE, "--set: \"%.64s\" is not KEY=VALUE", pair);
    else
        tdm_fail(err, TDM_USAGE, "--set: method %s has no key \"%s\"", method->name, name);
    if (meant != NULL)
        return tdm_hint(err, "that is %s", meant);
    return tdm_hint(err, "%sthe nearest keys are %s; tidemark methods %s lists all",
                    option ? "leave it out if it changes no memory; " : "",
                    tdm_names_nearest(name, names, suggestion), method->name);
}

/* Has an earlier pair the same name? Two names may say the same: load_in_4bit=true and
 * bnb_4bit_quant_type=nf4. */
static bool is_named_again(const char *const *pairs, size_t number)
{
    size_t length = strcspn(pairs[number], "=: ");
    for (size_t i = 0; i < number; i++)
        if (strcspn(pairs[i], "=: ") == length && strncmp(pairs[i], pairs[number], length) == 0)
            return true;
    return false;
}

static enum tdm_status note_said(const struct tdm_method *method, const char *const *pairs,
                                 size_t number, struct tdm_method_choices *choices,
                                 struct tdm_error *err)
{
    size_t k;
    const char *pair = pairs[number], *value;
    if (!tdm_method_read_pair(method, pair, &k, &value)) {
        if (k == TDM_METHOD_MOST_KEYS && tdm_method_is_given(method, pair))
            return TDM_OK;
        if (k < TDM_METHOD_MOST_KEYS || method->system != NULL || method->serves ||
            choices->other_count == TDM_METHOD_MOST_KEYS)
            return unknown_key(method, pair, err);
        choices->others[choices->other_count++] = pair;
        return TDM_OK;
    }
    if (choices->said[k] != NULL &&
        (strcasecmp(choices->said[k], value) != 0 || is_named_again(pairs, number)))
        return tdm_fail(err, TDM_USAGE, "--set: \"%s\" is given twice",
                        tdm_method_key(method, k)->name);
    choices->said[k] = value;
    if (tdm_method_read_also(method, pair, &k, &value) && choices->said[k] == NULL)
        choices->said[k] = value;
    return TDM_OK;
}

enum tdm_status tdm_method_settle(const struct tdm_method *method,
                                  const struct tdm_method_choices *choices,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_method_key *key;
    enum tdm_status status = TDM_OK;
    settings->method = method;
    settings->torch.grads = TDM_GRADS_UNSAID;
    settings->torch.wrapper = method->wrapper != NULL ? method->wrapper : &tdm_no_wrapper;
    settings->communicators = (method->most_gpus > 1) + settings->torch.wrapper->communicators;
    if (method->divider != NULL) {
        settings->torch.context = (struct tdm_context){.divider = method->divider};
        settings->communicators += method->divider->communicators;
        settings->peers = 1;
    }
    if (method->preset != NULL)
        method->preset(settings);
    for (size_t k = 0; status == TDM_OK && (key = tdm_method_key(method, k)) != NULL; k++) {
        const char *value = choices->said[k] != NULL ? choices->said[k] : key->assumed;
        if (value != NULL && key->read != NULL)
            status = key->read(key, value, settings, err);
    }
    return status;
}

enum tdm_status tdm_method_apply(const struct tdm_method *method, const char *const *pairs,
                                 size_t count, struct tdm_method_settings *settings,
                                 struct tdm_method_choices *choices, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    memset(choices, 0, sizeof(*choices));
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        status = note_said(method, pairs, i, choices, err);
    if (status == TDM_OK)
        status = tdm_adapter_check_said(said(method, choices, "peft_type"),
                                        said(method, choices, "lora_rank"),
                                        said(method, choices, "oft_block_size"), err);
    return status == TDM_OK ? tdm_method_settle(method, choices, settings, err) : status;
}

/* Learned positions are rows of a table, and a longer context would look up rows that are not
 * there. A trained prompt has positions too. */
static enum tdm_status check_positions(const struct tdm_model *model, uint64_t tokens,
                                       uint64_t prompt_tokens, struct tdm_error *err)
{
    const uint64_t most = tdm_model_position_limit(model);
    if (most == 0 || tokens + prompt_tokens <= most)
        return TDM_OK;
    if (prompt_tokens >= most)
        return tdm_fail(err, TDM_USAGE,
                        "--set num_virtual_tokens: a prompt of %" PRIu64
                        " leaves none of the %" PRIu64 " learned positions of %s for tokens",
                        prompt_tokens, most, model->name);
    if (prompt_tokens > 0) {
        tdm_fail(err, TDM_USAGE,
                 "--context: %" PRIu64 " tokens and a prompt of %" PRIu64
                 " are more than the %" PRIu64 " learned positions of %s",
                 tokens, prompt_tokens, most, model->name);
        return tdm_hint(err, "--context %" PRIu64, most - prompt_tokens);
    }
    tdm_fail(err, TDM_USAGE,
             "--context: %" PRIu64 " tokens are more than the %" PRIu64 " learned positions of %s",
             tokens, most, model->name);
    return tdm_hint(err, "--context %" PRIu64 ", or a model whose positions are rotations", most);
}

/* Beyond the limit these kernels fail ("an illegal memory access"), whatever memory there is. */
static enum tdm_status check_liger(const struct tdm_model *model,
                                   const struct tdm_method_settings *settings,
                                   struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const uint64_t most = tdm_liger_most_tokens(model, torch);
    if (most == UINT64_MAX)
        return TDM_OK;
    const struct tdm_context *c = &torch->context;
    const uint64_t ranks = c->divider != NULL ? c->ring_degree * c->ulysses_degree : 1;
    if (tdm_size_mul(tdm_context_local_tokens(c, torch->tokens), torch->batch) <= most)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "--set liger_version: to 0.6.0 Liger's norms and rotations fail on more than %" PRIu64
             " tokens of a GPU: they count elements of %s in 32 bits",
             most, model->name);
    return tdm_hint(err, "--context %" PRIu64 ", or liger_version=now",
                    most / torch->batch * ranks);
}

enum tdm_status tdm_method_check(const struct tdm_model *model,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_method *method = settings->method;
    uint64_t gpus = settings->torch.ranks;
    if (gpus < method->least_gpus && !(gpus == 1 && method->runs_on_one)) {
        tdm_fail(err, TDM_USAGE, "--gpus: method %s runs on %" PRIu64 " or more", method->name,
                 method->least_gpus);
        return tdm_hint(err, "--gpus %" PRIu64 ", or method parallel on one", method->least_gpus);
    }
    if (gpus > method->most_gpus) {
        tdm_fail(err, TDM_USAGE, "--gpus: method %s runs on %s", method->name,
                 method->most_gpus == 1 ? "one GPU" : "fewer");
        return tdm_hint(
            err, "--gpus %" PRIu64 "; for several: ddp, fsdp, ring and others (tidemark methods)",
            method->most_gpus);
    }
    const struct tdm_wrapper *wrapper = settings->torch.wrapper;
    const char *mixer = tdm_model_other_mixer(model);
    const bool hybrid = method->system == &tdm_megatron_system && model->mamba.heads > 0;
    if (mixer != NULL && method->system != &tdm_torch_system && !hybrid && !method->serves)
        return tdm_fail(err, TDM_USAGE, "method %s: %s, which %s has, are not modelled",
                        method->name, mixer, model->architecture);
    enum tdm_status status = check_positions(model, settings->torch.tokens,
                                             tdm_adapter_prompt_tokens(&settings->torch) +
                                                 tdm_adapter_prefix_tokens(&settings->torch),
                                             err);
    if (status == TDM_OK)
        status = tdm_torch_settle_base(model, settings, err);
    if (status == TDM_OK && wrapper->check != NULL)
        status = wrapper->check(model, settings, err);
    if (status == TDM_OK && method->divider != NULL && method->divider->check != NULL)
        status = method->divider->check(model, settings, err);
    if (status == TDM_OK)
        status = check_liger(model, settings, err);
    return status != TDM_OK || method->check == NULL ? status : method->check(model, settings, err);
}

bool tdm_method_is_limit(const char *assumption)
{
    return strncmp(assumption, TDM_NOT_MEASURED, sizeof(TDM_NOT_MEASURED) - 1) == 0 ||
           strncmp(assumption, TDM_NOT_COUNTED, sizeof(TDM_NOT_COUNTED) - 1) == 0;
}

const char *tdm_method_summary(const struct tdm_method_settings *settings)
{
    const struct tdm_wrapper *wrapper = settings->torch.wrapper;
    const char *of_wrapper =
        wrapper == NULL || wrapper->summary == NULL ? NULL : wrapper->summary(settings);
    return of_wrapper != NULL ? of_wrapper : settings->method->summary;
}

const char *tdm_method_assumption(const struct tdm_model *model,
                                  const struct tdm_method_settings *settings)
{
    const struct tdm_method *method = settings->method;
    if (method->assumption != NULL)
        return method->assumption(model, settings);
    return method->divider == NULL || method->divider->assumption == NULL
               ? NULL
               : method->divider->assumption(model, settings);
}
