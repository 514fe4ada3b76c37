/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark methods`: lists the systems that predict supports, or shows the keys of one. */
#include "commands/cmd.h"

#include "base/json.h"
#include "methods/method.h"
#include "commands/common_options.h"
#include "commands/print.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static json_t *method_json(const struct tdm_method *method)
{
    json_t *keys = json_array();
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++) {
        json_t *object = json_pack("{s:s, s:s, s:s}", "name", key->name, "values", key->values,
                                   "meaning", key->meaning);
        if (key->assumed != NULL)
            tdm_json_set(&object, "assumed", json_string(key->assumed));
        tdm_json_add(&keys, object);
    }
    json_t *aliases = json_array();
    const char *alias;
    for (size_t i = 0; (alias = tdm_method_alias(method, i)) != NULL; i++)
        tdm_json_add(&aliases, json_string(alias));
    return json_pack("{s:s, s:o, s:s, s:o}", "name", method->name, "aliases", aliases, "summary",
                     method->summary, "keys", keys);
}

/* Prints the other names, each after `before`. */
static void print_aliases(const struct tdm_method *method, const char *before)
{
    const char *alias;
    for (size_t i = 0; (alias = tdm_method_alias(method, i)) != NULL; i++)
        printf("%s%s", i == 0 ? before : ", ", alias);
}

static void print_method(const struct tdm_method *method)
{
    printf("%s: %s\n", method->name, method->summary);
    print_aliases(method, "also called ");
    printf("%skeys of --set:\n", tdm_method_alias(method, 0) != NULL ? "\n\n" : "\n");
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++) {
        printf("  %s=%s\n      %s", key->name, key->values, key->meaning);
        if (key->assumed != NULL)
            printf("; assumed: %s", key->assumed);
        putchar('\n');
    }
}

static enum tdm_status show_one(const char *name, bool as_json, struct tdm_error *err)
{
    const struct tdm_method *method = tdm_serving_find(name);
    enum tdm_status status = TDM_OK;
    if (method == NULL)
        status = tdm_method_find(name, &method, err);
    if (status != TDM_OK)
        return status;
    if (as_json)
        return tdm_print_json(method_json(method), err);
    print_method(method);
    return TDM_OK;
}

static void print_row(const struct tdm_method *method)
{
    printf("%-15s %s", method->name, method->summary);
    print_aliases(method, "\n                also called ");
    putchar('\n');
}

static enum tdm_status show_all(bool as_json, struct tdm_error *err)
{
    json_t *list = json_array();
    for (const struct tdm_method *method = tdm_methods(); method->name != NULL; method++) {
        if (as_json)
            tdm_json_add(&list, method_json(method));
        else
            print_row(method);
    }
    if (as_json) {
        tdm_json_add(&list, method_json(&tdm_serving_method));
        tdm_json_add(&list, method_json(&tdm_sglang_method));
        return tdm_print_json(json_pack("{s:o}", "methods", list), err);
    }
    print_row(&tdm_serving_method);
    print_row(&tdm_sglang_method);
    json_decref(list);
    return TDM_OK;
}

static const struct tdm_option options[] = {{.as = &tdm_option_json}, {.name = NULL}};

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    bool as_json = false, help;
    int first;
    enum tdm_status status =
        tdm_options_read(&tdm_cmd_methods, argc, argv, &as_json, &first, &help, err);
    if (status != TDM_OK || help)
        return status;
    if (argc - first > 1)
        return tdm_fail(err, TDM_USAGE, "methods: takes one method only");
    return first < argc ? show_one(argv[first], as_json, err) : show_all(as_json, err);
}

const struct tdm_command tdm_cmd_methods = {
    .name = "methods",
    .usage = "methods [METHOD] [--json]",
    .summary = "list the systems that predict knows, or one of them with its settings",
    .options = options,
    .notes = "Examples:\n"
             "  tidemark methods\n"
             "  tidemark methods parallel\n",
    .arguments = TDM_VALUES_METHODS,
    .run = run,
};
