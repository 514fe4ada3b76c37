/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the files of --from that --set changes, as launchers let their command line do. */
#include "base/yaml.h"
#include "commands/from_rules.h"

#include <stdio.h>
#include <string.h>

/* Does a method have the key, and such a value? */
static bool is_setting(const char *pair)
{
    char expected[TDM_OTHER_VALUES];
    const char *value;
    size_t k;
    for (const struct tdm_method *m = tdm_methods(); m->name != NULL; m++)
        if (tdm_method_read_pair(m, pair, &k, &value) || tdm_method_other_values(m, pair, expected))
            return true;
    return false;
}

void tdm_from_take_changes(struct tdm_from *from, struct tdm_setting_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        if (is_setting(list->pairs[i]))
            list->pairs[kept++] = list->pairs[i];
        else
            from->changes[from->change_count++] = list->pairs[i];
    list->count = kept;
}

void tdm_from_return_changes(const struct tdm_from *from, struct tdm_setting_list *list)
{
    for (size_t i = 0; i < from->change_count; i++)
        if (!from->changed[i])
            list->pairs[list->count++] = from->changes[i];
}

static bool is_list(const struct tdm_from_kind *kind, const char *path)
{
    for (const char *const *name = kind->lists; *name != NULL; name++)
        if (strcmp(*name, path) == 0)
            return true;
    return false;
}

/* Words between commas. NULL: no memory. */
static json_t *split(const char *text)
{
    json_t *list = json_array();
    while (list != NULL && *text != '\0') {
        const size_t part = strcspn(text, ",");
        if (json_array_append_new(list, tdm_yaml_scalar(text, part)) != 0) {
            json_decref(list);
            return NULL;
        }
        text += part;
        text += *text == ',';
    }
    return list;
}

/* "--training.compile true", "model.lora_rank=16": the key as a path, and the text of its value,
 * empty for an option alone. NULL: it is no pair. */
static const char *read_pair(const char *pair, char path[TDM_FROM_PATH_BYTES])
{
    const bool option = tdm_from_begins(pair, "--");
    const size_t dashes = option ? 2 : 0, length = strcspn(pair + dashes, option ? "=: " : "=:");
    const char *text = pair + dashes + length;
    if (length == 0 || length >= TDM_FROM_PATH_BYTES || (*text == '\0' && !option))
        return NULL;
    snprintf(path, TDM_FROM_PATH_BYTES, "%.*s", (int)length, pair + dashes);
    for (char *at = path; *at != '\0'; at++)
        if (*at == '-')
            *at = '_';
    text += *text != '\0';
    return text + strspn(text, " ");
}

/* The value of a key, of which commas make a list. NULL: no memory. */
static json_t *read_value(const struct tdm_from_kind *kind, const char *path, const char *text)
{
    const bool is_split = is_list(kind, path) || (strchr(text, ',') != NULL && text[0] != '[');
    return is_split ? split(text) : tdm_yaml_scalar(text, strlen(text));
}

/* Sets the value of a path, and makes the objects that are on the way. */
static bool set_path(json_t *root, const char *path, json_t *value)
{
    char name[TDM_FROM_PATH_BYTES];
    const char *dot;
    for (; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        snprintf(name, sizeof(name), "%.*s", (int)(dot - path), path);
        json_t *inside = json_object_get(root, name);
        if (inside == NULL && json_object_set_new(root, name, inside = json_object()) != 0)
            return false;
        root = inside;
    }
    return json_object_set(root, path, value) == 0;
}

enum tdm_status tdm_from_change(const struct tdm_from_reading *r, json_t *root)
{
    char path[TDM_FROM_PATH_BYTES];
    for (size_t i = 0; i < r->from->change_count && !r->kind->options; i++) {
        const char *text = read_pair(r->from->changes[i], path);
        if (text == NULL || tdm_from_find_rule(r->kind->rules, path) == NULL)
            continue;
        const bool is_switch = *text == '\0' && tdm_from_begins(r->from->changes[i], "--");
        json_t *value = is_switch ? json_true() : read_value(r->kind, path, text);
        if (value == NULL)
            return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its settings", r->file);
        r->from->changed[i] = set_path(root, path, value);
        json_decref(value);
    }
    return TDM_OK;
}
