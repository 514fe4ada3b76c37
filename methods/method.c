/* SPDX-License-Identifier: Apache-2.0 */
/* Methods by name, their keys, and what was said of these. */
#include "methods/method.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* As tables of measured peaks call them. */
static const struct {
    const char *name, *method;
} aliases[] = {{"single", "parallel"}, {"fsdp2", "fsdp"}};

enum tdm_status tdm_method_find(const char *name, const struct tdm_method **method,
                                struct tdm_error *err)
{
    char list[512] = "";
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (strcmp(name, aliases[i].name) == 0)
            name = aliases[i].method;
    for (const struct tdm_method *m = tdm_methods(); m->name != NULL; m++) {
        size_t used = strlen(list);
        if (strcmp(m->name, name) == 0) {
            *method = m;
            return TDM_OK;
        }
        snprintf(list + used, sizeof(list) - used, "%s%s", used == 0 ? "" : ", ", m->name);
    }
    tdm_fail(err, TDM_USAGE, "method \"%.64s\" is not known", name);
    return tdm_hint(err, "methods: %s", list);
}

/* Hidden by a table before it, or taken from the method by name. */
static bool is_hidden(const struct tdm_method *method, size_t table, const char *name)
{
    for (size_t before = 0; before < table; before++)
        for (const struct tdm_method_key *key = method->keys[before]; key->name != NULL; key++)
            if (strcmp(key->name, name) == 0)
                return true;
    for (const char *const *less = method->without; table > 0 && less != NULL && *less != NULL;
         less++)
        if (strcmp(*less, name) == 0)
            return true;
    return false;
}

const struct tdm_method_key *tdm_method_key(const struct tdm_method *method, size_t number)
{
    for (size_t table = 0; method->keys[table] != NULL; table++)
        for (const struct tdm_method_key *key = method->keys[table]; key->name != NULL; key++)
            if (!is_hidden(method, table, key->name) && number-- == 0)
                return key;
    return NULL;
}

const char *tdm_method_value(const struct tdm_method *method,
                             const struct tdm_method_choices *choices, const char *name)
{
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++)
        if (strcmp(key->name, name) == 0)
            return choices->said[k] != NULL ? choices->said[k] : key->assumed;
    return NULL;
}

static enum tdm_status unknown_key(const struct tdm_method *method, const char *pair,
                                   struct tdm_error *err)
{
    const struct tdm_method_key *key;
    char list[1024] = "";
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", used == 0 ? "" : ", ", key->name);
    }
    if (strchr(pair, '=') == NULL)
        tdm_fail(err, TDM_USAGE, "--set: \"%.64s\" is not KEY=VALUE", pair);
    else
        tdm_fail(err, TDM_USAGE, "--set: method %s has no key \"%.*s\"", method->name,
                 (int)strcspn(pair, "="), pair);
    return tdm_hint(err, "keys: %s", list);
}

static enum tdm_status note_said(const struct tdm_method *method, const char *pair,
                                 struct tdm_method_choices *choices, struct tdm_error *err)
{
    const struct tdm_method_key *key;
    size_t k = 0, span = strcspn(pair, "=");
    while ((key = tdm_method_key(method, k)) != NULL &&
           (strlen(key->name) != span || memcmp(key->name, pair, span) != 0))
        k++;
    if (key == NULL && method->system == NULL && choices->other_count < TDM_METHOD_MOST_KEYS) {
        choices->others[choices->other_count++] = pair;
        return TDM_OK;
    }
    if (key == NULL || pair[span] != '=')
        return unknown_key(method, pair, err);
    if (choices->said[k] != NULL)
        return tdm_fail(err, TDM_USAGE, "--set: \"%s\" is given twice", key->name);
    choices->said[k] = pair + span + 1;
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
    settings->communicators = method->most_gpus > 1;
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
        status = note_said(method, pairs[i], choices, err);
    return status == TDM_OK ? tdm_method_settle(method, choices, settings, err) : status;
}

enum tdm_status tdm_method_check(const struct tdm_model *model,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_method *method = settings->method;
    uint64_t gpus = settings->torch.ranks;
    if (gpus < method->least_gpus) {
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
    return method->check == NULL ? TDM_OK : method->check(model, settings, err);
}

const char *tdm_method_assumption(const struct tdm_model *model,
                                  const struct tdm_method_settings *settings)
{
    const struct tdm_method *method = settings->method;
    return method->assumption == NULL ? NULL : method->assumption(model, settings);
}
