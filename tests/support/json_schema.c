/* SPDX-License-Identifier: Apache-2.0 */
/* Walks a schema and a value together. */
#include "tests/support/json_schema.h"

#include <stdio.h>
#include <string.h>

struct walk {
    const json_t *root;
    char *problem;
};

static bool differs(const struct walk *w, const char *path, const char *what)
{
    snprintf(w->problem, JSON_SCHEMA_PROBLEM, "%s: %s", path, what);
    return false;
}

static bool has_type(const json_t *value, const char *type)
{
    return (strcmp(type, "object") == 0 && json_is_object(value)) ||
           (strcmp(type, "array") == 0 && json_is_array(value)) ||
           (strcmp(type, "string") == 0 && json_is_string(value)) ||
           (strcmp(type, "integer") == 0 && json_is_integer(value)) ||
           (strcmp(type, "number") == 0 && json_is_number(value)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(value)) ||
           (strcmp(type, "null") == 0 && json_is_null(value));
}

static bool has_one_type(const json_t *value, const json_t *types)
{
    size_t i;
    json_t *type;
    if (json_is_string(types))
        return has_type(value, json_string_value(types));
    json_array_foreach((json_t *)types, i, type)
    {
        if (has_type(value, json_string_value(type)))
            return true;
    }
    return false;
}

static bool is_one_of(const json_t *value, const json_t *list)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one)
    {
        if (json_equal((json_t *)value, one))
            return true;
    }
    return false;
}

static bool check(const struct walk *w, const json_t *schema, const json_t *value,
                  const char *path);

static bool check_members(const struct walk *w, const json_t *schema, const json_t *value,
                          const char *path)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *member;
    char below[512];
    json_object_foreach((json_t *)value, key, member)
    {
        const json_t *known = json_object_get(properties, key);
        snprintf(below, sizeof(below), "%s.%s", path, key);
        if (known == NULL && json_is_false(others))
            return differs(w, below, "is not known");
        known = known != NULL ? known : others;
        if (json_is_object(known) && !check(w, known, member, below))
            return false;
    }
    size_t i;
    json_t *name;
    json_array_foreach((json_t *)json_object_get(schema, "required"), i, name)
    {
        if (json_object_get(value, json_string_value(name)) == NULL) {
            snprintf(below, sizeof(below), "%s.%s", path, json_string_value(name));
            return differs(w, below, "is missing");
        }
    }
    return true;
}

static bool check_items(const struct walk *w, const json_t *schema, const json_t *value,
                        const char *path)
{
    const json_t *items = json_object_get(schema, "items");
    char below[512];
    for (size_t i = 0; items != NULL && i < json_array_size(value); i++) {
        snprintf(below, sizeof(below), "%s[%zu]", path, i);
        if (!check(w, items, json_array_get(value, i), below))
            return false;
    }
    return true;
}

static bool check_any(const struct walk *w, const json_t *list, const json_t *value,
                      const char *path)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one)
    {
        if (check(w, one, value, path))
            return true;
    }
    return list == NULL;
}

static bool knows_keywords(const struct walk *w, const json_t *schema, const char *path)
{
    static const char *const keywords[] = {
        "$schema",    "$defs",    "title",   "description",          "type",  "const", "enum",
        "properties", "required", "minimum", "additionalProperties", "items", "anyOf", NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value)
    {
        const char *const *known = keywords;
        while (*known != NULL && strcmp(*known, key) != 0)
            known++;
        if (*known == NULL)
            return differs(w, path, "the schema has a keyword that is not known");
    }
    return true;
}

static bool check(const struct walk *w, const json_t *schema, const json_t *value, const char *path)
{
    static const char defs[] = "#/$defs/";
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (reference != NULL) {
        const json_t *all = json_object_get(w->root, "$defs");
        schema = strncmp(reference, defs, strlen(defs)) == 0
                     ? json_object_get(all, reference + strlen(defs))
                     : NULL;
        if (schema == NULL)
            return differs(w, path, "the schema lacks a definition");
    }
    const json_t *type = json_object_get(schema, "type");
    const json_t *constant = json_object_get(schema, "const");
    const json_t *list = json_object_get(schema, "enum"),
                 *least = json_object_get(schema, "minimum");
    if (!knows_keywords(w, schema, path))
        return false;
    if (type != NULL && !has_one_type(value, type))
        return differs(w, path, "is of another type");
    if (constant != NULL && !json_equal((json_t *)value, (json_t *)constant))
        return differs(w, path, "is another value");
    if (list != NULL && !is_one_of(value, list))
        return differs(w, path, "is none of the values");
    if (least != NULL && json_is_number(value) &&
        json_number_value(value) < json_number_value(least))
        return differs(w, path, "is too small");
    return check_any(w, json_object_get(schema, "anyOf"), value, path) &&
           (!json_is_object(value) || check_members(w, schema, value, path)) &&
           check_items(w, schema, value, path);
}

bool json_schema_check(const json_t *schema, const json_t *value, char problem[JSON_SCHEMA_PROBLEM])
{
    const struct walk w = {.root = schema, .problem = problem};
    problem[0] = '\0';
    return check(&w, schema, value, "answer");
}
