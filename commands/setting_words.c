/* SPDX-License-Identifier: Apache-2.0 */
/* Parses options of other systems. A string with several options is split before each option, and
 * at "and" and commas, which hints use. */
#include "commands/setting_words.h"

#include "commands/common_options.h"

#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#define REMARK " (" /* start of a hint's remark, which is not part of the setting */

static bool is_option(const char *text)
{
    return strncmp(text, "--", 2) == 0 && isalpha((unsigned char)text[2]);
}

/* KEY= of another pair. */
static bool is_pair(const char *text)
{
    const char *end = text;
    while (isalnum((unsigned char)*end) || *end == '_' || *end == '-' || *end == '.')
        end++;
    return isalpha((unsigned char)*text) && *end == '=';
}

/* Length of the separator between two settings at this position: the space before an option or a
 * pair, or the " and " or ", " of a hint. 0: no separator. */
static size_t joint(const char *text)
{
    if (strncmp(text, " and ", 5) == 0)
        return 5;
    if (strncmp(text, ", ", 2) == 0)
        return 2;
    return isspace((unsigned char)*text) && (is_option(text + 1) || is_pair(text + 1)) ? 1 : 0;
}

/* The end of the first setting in a string. Skips separators inside a remark. */
static const char *end_of_setting(const char *text)
{
    for (; *text != '\0' && joint(text) == 0; text++) {
        const char *close = strncmp(text, REMARK, strlen(REMARK)) == 0 ? strchr(text, ')') : NULL;
        if (close != NULL)
            text = close;
    }
    return text;
}

static enum tdm_status add(struct tdm_setting_list *list, const char *pair, struct tdm_error *err)
{
    if (list->count == TDM_METHOD_MOST_KEYS)
        return tdm_fail(err, TDM_USAGE, "more than %u --set", TDM_METHOD_MOST_KEYS);
    list->pairs[list->count++] = pair;
    return TDM_OK;
}

enum tdm_status tdm_settings_add(struct tdm_setting_list *list, const char *text,
                                 struct tdm_error *err)
{
    const char *option = text + strspn(text, " ");
    if (*end_of_setting(option) == '\0' && strstr(option, REMARK) == NULL)
        return add(list, text, err);
    while (*option != '\0') {
        const char *end = end_of_setting(option);
        const char *remark = strstr(option, REMARK);
        size_t length = (size_t)((remark != NULL && remark < end ? remark : end) - option);
        char *copy = list->text + list->used_bytes;
        while (length > 0 && isspace((unsigned char)option[length - 1]))
            length--;
        if (length >= sizeof(list->text) - list->used_bytes)
            return tdm_fail(err, TDM_USAGE, "--set: \"%.40s...\" is too long", text);
        memcpy(copy, option, length);
        copy[length] = '\0';
        list->used_bytes += length + 1;
        enum tdm_status status = add(list, copy, err);
        if (status != TDM_OK)
            return status;
        option = end + joint(end);
    }
    return TDM_OK;
}

static enum tdm_status read_setting(const char *text, void *value, struct tdm_error *err)
{
    return tdm_settings_add(value, text, err);
}

static enum tdm_status read_optimizer(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_setting_list *list = value;
    if ((size_t)snprintf(list->optimizer, sizeof(list->optimizer), "optimizer=%s", text) >=
        sizeof(list->optimizer))
        return tdm_fail(err, TDM_USAGE, "--optimizer: \"%.32s...\" is too long", text);
    return tdm_settings_add(list, list->optimizer, err);
}

const struct tdm_option tdm_option_method_optimizer = {
    .name = "optimizer",
    .word = "NAME",
    .read = read_optimizer,
    .help = "the optimizer, by the method's name for it: as --set optimizer=NAME"};

const struct tdm_option tdm_option_method_setting = {
    .name = "set",
    .word = "KEY=VALUE",
    .read = read_setting,
    .repeats = true,
    .help = "a setting of the method (tidemark methods NAME lists them), or several with spaces "
            "between; may be repeated, a key only once"};

static bool is_setting(const char *option)
{
    const char *value;
    size_t key;
    for (const struct tdm_method *method = tdm_methods(); method->name != NULL; method++)
        if (tdm_method_read_pair(method, option, &key, &value))
            return true;
    return false;
}

void tdm_settings_explain(const char *command, int argc, char **argv, struct tdm_error *err)
{
    const char *option = optind >= 1 && optind <= argc ? argv[optind - 1] : "";
    const char *next = optind < argc ? argv[optind] : "-";
    if (!is_option(option) || !is_setting(option))
        return;
    tdm_fail(err, TDM_USAGE, "%s: \"%.64s\" is a setting of a method: give it with --set", command,
             option);
    if (strchr(option, '=') == NULL && next[0] != '-')
        tdm_hint(err, "--set \"%.64s %.64s\"", option, next);
    else
        tdm_hint(err, "--set \"%.64s\"", option);
}
