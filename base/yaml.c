/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the events of libyaml into Jansson's values. Aliases are refused: a file of a few lines
 * could stand for a value of any size. */
#include "base/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#define MOST_DEPTH 64u

struct reading {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one */
    bool has_event;
    const char *file;
    unsigned depth;
    struct tdm_error *err;
};

static enum tdm_status no_memory(const struct reading *r)
{
    return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory to parse it", r->file);
}

static enum tdm_status refuse_at(const struct reading *r, yaml_mark_t at, const char *problem)
{
    return tdm_fail(r->err, TDM_INPUT, "%s: line %zu, column %zu: %s", r->file, at.line + 1,
                    at.column + 1, problem);
}

/* Names the place of the current event. */
static enum tdm_status refuse(const struct reading *r, const char *problem)
{
    return refuse_at(r, r->event.start_mark, problem);
}

static void drop_event(struct reading *r)
{
    if (r->has_event)
        yaml_event_delete(&r->event);
    r->has_event = false;
}

static enum tdm_status next(struct reading *r)
{
    drop_event(r);
    if (yaml_parser_parse(&r->parser, &r->event) != 0) {
        r->has_event = true;
        return TDM_OK;
    }
    if (r->parser.error == YAML_MEMORY_ERROR)
        return no_memory(r);
    return tdm_fail(r->err, TDM_INPUT, "%s: line %zu, column %zu: not valid YAML: %s", r->file,
                    r->parser.problem_mark.line + 1, r->parser.problem_mark.column + 1,
                    r->parser.problem != NULL ? r->parser.problem : "unknown problem");
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strcasecmp(text, *words) == 0)
            return true;
    return false;
}

/* Copies a number without the underscores that YAML 1.1 allows in it. False: it is too long. */
static bool copy_number(const char *text, char out[64])
{
    size_t used = 0;
    for (; *text != '\0'; text++) {
        if (*text != '_' && used + 1 == 64)
            return false;
        if (*text != '_')
            out[used++] = *text;
    }
    out[used] = '\0';
    return true;
}

/* An integer or a number; NULL: it is neither, or there is no memory, which *failed says. */
static json_t *number(const char *written, bool *failed)
{
    char text[64];
    if (!copy_number(written, text))
        return NULL;
    char *end;
    const char *digits = text + (*text == '-' || *text == '+');
    if (strspn(digits, "0123456789.eE+-") != strlen(digits) ||
        strpbrk(digits, "0123456789") == NULL || *digits == 'e' || *digits == 'E')
        return NULL;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    json_t *value = NULL;
    if (*end == '\0' && errno == 0) {
        value = json_integer(whole);
    } else {
        double real = strtod(text, &end);
        if (*end != '\0' || !isfinite(real))
            return NULL;
        value = json_real(real);
    }
    *failed = value == NULL;
    return value;
}

json_t *tdm_yaml_scalar(const char *text, size_t length)
{
    static const char *const nothing[] = {"", "~", "null", NULL};
    static const char *const yes[] = {"true", "yes", "on", NULL};
    static const char *const no[] = {"false", "no", "off", NULL};
    bool failed = false;
    if (strlen(text) != length) /* a zero byte inside */
        return json_stringn(text, length);
    if (is_one_of(text, nothing))
        return json_null();
    if (is_one_of(text, yes))
        return json_true();
    if (is_one_of(text, no))
        return json_false();
    json_t *value = number(text, &failed);
    return value != NULL || failed ? value : json_stringn(text, length);
}

static enum tdm_status read_value(struct reading *r, json_t **out);

static enum tdm_status read_scalar(const struct reading *r, json_t **out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    size_t length = r->event.data.scalar.length;
    if (r->event.data.scalar.tag != NULL)
        return refuse(r, "tags are not read");
    bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    *out = plain ? tdm_yaml_scalar(text, length) : json_stringn(text, length);
    return *out != NULL ? TDM_OK : no_memory(r);
}

static enum tdm_status read_list(struct reading *r, json_t *list)
{
    enum tdm_status status = next(r);
    while (status == TDM_OK && r->event.type != YAML_SEQUENCE_END_EVENT) {
        json_t *value = NULL;
        status = read_value(r, &value);
        if (status == TDM_OK && json_array_append_new(list, value) != 0)
            status = no_memory(r);
        if (status == TDM_OK)
            status = next(r);
    }
    return status;
}

/* The current event becomes a key, malloc'ed. */
static enum tdm_status read_key(const struct reading *r, char **key)
{
    if (r->event.type == YAML_ALIAS_EVENT)
        return refuse(r, "aliases are not read");
    if (r->event.type != YAML_SCALAR_EVENT ||
        strlen((const char *)r->event.data.scalar.value) != r->event.data.scalar.length)
        return refuse(r, "expected a word as a key");
    if (strcmp((const char *)r->event.data.scalar.value, "<<") == 0)
        return refuse(r, "merge keys are not read");
    *key = strdup((const char *)r->event.data.scalar.value);
    return *key != NULL ? TDM_OK : no_memory(r);
}

/* A key may be there twice with the same value. Libraries take the last one without a word, so
 * another value is refused, at the place of the key. */
static enum tdm_status read_member(struct reading *r, json_t *object)
{
    char *key = NULL;
    json_t *value = NULL;
    const yaml_mark_t at = r->event.start_mark;
    enum tdm_status status = read_key(r, &key);
    if (status == TDM_OK)
        status = next(r);
    if (status == TDM_OK)
        status = read_value(r, &value);
    json_t *before = status == TDM_OK ? json_object_get(object, key) : NULL;
    if (before != NULL && json_equal(before, value) == 0) {
        json_decref(value);
        status = refuse_at(r, at, "the key is there twice, with different values");
    } else if (status == TDM_OK && json_object_set_new(object, key, value) != 0)
        status = no_memory(r);
    free(key);
    return status;
}

static enum tdm_status read_mapping(struct reading *r, json_t *object)
{
    enum tdm_status status = next(r);
    while (status == TDM_OK && r->event.type != YAML_MAPPING_END_EVENT) {
        status = read_member(r, object);
        if (status == TDM_OK)
            status = next(r);
    }
    return status;
}

/* The value that the current event begins; afterwards the current event is its last one. */
static enum tdm_status read_value(struct reading *r, json_t **out)
{
    if (r->event.type == YAML_SCALAR_EVENT)
        return read_scalar(r, out);
    if (r->event.type == YAML_ALIAS_EVENT)
        return refuse(r, "aliases are not read");
    bool list = r->event.type == YAML_SEQUENCE_START_EVENT;
    if ((list ? r->event.data.sequence_start.tag : r->event.data.mapping_start.tag) != NULL)
        return refuse(r, "tags are not read");
    if (r->depth == MOST_DEPTH)
        return refuse(r, "it is too deep");
    json_t *value = list ? json_array() : json_object();
    if (value == NULL)
        return no_memory(r);
    r->depth++;
    enum tdm_status status = list ? read_list(r, value) : read_mapping(r, value);
    r->depth--;
    if (status == TDM_OK)
        *out = value;
    else
        json_decref(value);
    return status;
}

static enum tdm_status read_document(struct reading *r, json_t **out)
{
    enum tdm_status status = next(r); /* the stream begins */
    if (status == TDM_OK)
        status = next(r);
    if (status == TDM_OK && r->event.type == YAML_STREAM_END_EVENT)
        return tdm_fail(r->err, TDM_INPUT, "%s: is empty; expected YAML", r->file);
    if (status == TDM_OK)
        status = next(r);
    if (status == TDM_OK && r->event.type != YAML_MAPPING_START_EVENT)
        status = refuse(r, "expected keys and values at the top");
    if (status == TDM_OK)
        status = read_value(r, out);
    if (status == TDM_OK)
        status = next(r); /* the document ends */
    if (status == TDM_OK)
        status = next(r);
    if (status == TDM_OK && r->event.type != YAML_STREAM_END_EVENT)
        status = refuse(r, "expected one document");
    return status;
}

enum tdm_status tdm_yaml_parse(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err)
{
    struct reading r = {.file = file, .err = err};
    json_t *value = NULL;
    if (yaml_parser_initialize(&r.parser) == 0)
        return no_memory(&r);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    enum tdm_status status = read_document(&r, &value);
    drop_event(&r);
    yaml_parser_delete(&r.parser);
    if (status == TDM_OK)
        *root = value;
    else
        json_decref(value);
    return status;
}
