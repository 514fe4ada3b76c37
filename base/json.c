/* SPDX-License-Identifier: Apache-2.0 */
/* JSON through Jansson: strict loading, and getters whose messages name the file, the field and the
 * expected value. */
#include "base/json.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger than any config, machine or schedule. A file of weights given by mistake is refused
 * quickly. */
#define JSON_LIMIT_BYTES (UINT64_C(64) << 20)

/* If Jansson (2.14) runs out of memory while it reads a string, it continues without that
 * character. Without the closing quote it then writes beyond the memory of its copy. So the first
 * allocation that fails gets memory that was kept for it, is noted, and no more text is given. */
static json_malloc_t allocate_below;
static json_free_t release_below;
static _Thread_local bool ran_out;
static _Thread_local void *kept; /* kept_bytes of them; NULL: no text is parsed */
static _Thread_local size_t kept_bytes;
static pthread_mutex_t parsing = PTHREAD_MUTEX_INITIALIZER; /* Jansson has one allocator */

static void *allocate_noting(size_t bytes)
{
    void *memory = allocate_below(bytes);
    if (memory != NULL || ran_out)
        return memory;
    ran_out = true;
    return bytes <= kept_bytes ? kept : NULL;
}

static void release_noting(void *memory)
{
    if (memory != kept)
        release_below(memory);
}

struct text {
    const char *next, *end;
};

/* Gives Jansson one byte, so that nothing is read ahead of a failure. */
static size_t give(void *buffer, size_t most, void *data)
{
    struct text *text = data;
    (void)most;
    if (ran_out)
        return (size_t)-1;
    if (text->next == text->end)
        return 0;
    *(char *)buffer = *text->next++;
    return 1;
}

json_t *tdm_json_value(const char *text, size_t bytes, json_error_t *problem, bool *no_memory)
{
    struct text input = {.next = text, .end = text + bytes};
    pthread_mutex_lock(&parsing);
    /* a string of this text takes 16 bytes, then twice what it had, or one more than it needs */
    kept_bytes = 2 * (bytes + 16);
    kept = malloc(kept_bytes);
    ran_out = kept == NULL;
    json_get_alloc_funcs(&allocate_below, &release_below);
    json_set_alloc_funcs(allocate_noting, release_noting);
    json_t *value = ran_out ? NULL
                            : json_load_callback(give, &input,
                                                 JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, problem);
    *no_memory = ran_out;
    if (ran_out) {
        json_decref(value);
        value = NULL;
    }
    json_set_alloc_funcs(allocate_below, release_below);
    free(kept);
    kept = NULL;
    kept_bytes = 0;
    pthread_mutex_unlock(&parsing);
    return value;
}

enum tdm_status tdm_json_parse(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err)
{
    json_error_t problem;
    bool no_memory;
    json_t *value = tdm_json_value(text, bytes, &problem, &no_memory);
    if (value == NULL && no_memory)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to parse it", file);
    if (value == NULL)
        return tdm_fail(err, TDM_INPUT, "%s: line %d, column %d: not valid JSON: %s", file,
                        problem.line, problem.column, problem.text);
    if (!json_is_object(value)) {
        json_decref(value);
        return tdm_fail(err, TDM_INPUT, "%s: must hold a JSON object, { ... }", file);
    }
    *root = value;
    return TDM_OK;
}

#define SQLITE_BEGINS "SQLite format 3" /* followed by a zero */

enum tdm_status tdm_json_load(const char *path, json_t **root, struct tdm_error *err)
{
    char *text;
    uint64_t bytes;
    enum tdm_status status = tdm_file_read(path, JSON_LIMIT_BYTES, &text, &bytes, err);
    if (status != TDM_OK)
        return status;
    if (bytes >= sizeof(SQLITE_BEGINS) && memcmp(text, SQLITE_BEGINS, sizeof(SQLITE_BEGINS)) == 0) {
        tdm_fail(err, TDM_INPUT, "%s: is not JSON but an SQLite database, as a trace is", path);
        status = tdm_hint(err, "report, plot and calibrate --from read what `tidemark run --trace "
                               "FILE` wrote");
    } else if (bytes == 0) {
        status = tdm_fail(err, TDM_INPUT, "%s: is empty; expected JSON", path);
    } else {
        status = tdm_json_parse(path, text, (size_t)bytes, root, err);
    }
    free(text);
    return status;
}

char *tdm_json_dump(const json_t *value, size_t flags)
{
    size_t bytes = json_dumpb(value, NULL, 0, flags | JSON_ENCODE_ANY);
    char *text = bytes == 0 ? NULL : malloc(bytes + 1);
    if (text == NULL)
        return NULL;
    if (json_dumpb(value, text, bytes, flags | JSON_ENCODE_ANY) != bytes) {
        free(text);
        return NULL;
    }
    text[bytes] = '\0';
    return text;
}

json_t *tdm_json_copy(const json_t *value)
{
    json_t *copy = json_deep_copy(value);
    if (copy == NULL || json_equal(copy, value))
        return copy;
    json_decref(copy);
    return NULL;
}

char *tdm_json_canonical(const json_t *value)
{
    return tdm_json_dump(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
}

enum tdm_status tdm_json_write(FILE *out, bool sorted, json_t *value, struct tdm_error *err)
{
    size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(12) | (sorted ? JSON_SORT_KEYS : 0);
    char *text = value == NULL ? NULL : tdm_json_dump(value, flags);
    json_decref(value);
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for JSON");
    bool written = fputs(text, out) != EOF && fputc('\n', out) != EOF;
    int reason = errno;
    free(text);
    return written ? TDM_OK : tdm_file_failed("standard output", reason, err);
}

enum tdm_status tdm_json_save(const char *directory, const char *name, const json_t *root,
                              struct tdm_error *err)
{
    char *path = tdm_path_join(directory, name);
    char *text = root == NULL ? NULL : tdm_json_dump(root, JSON_INDENT(2));
    enum tdm_status status;
    if (path == NULL || text == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for %s", directory, name);
    } else {
        size_t length = strlen(text);
        text[length] = '\n'; /* in place of the zero */
        status = tdm_file_write(path, text, length + 1, false, err);
    }
    free(path);
    free(text);
    return status;
}

enum tdm_status tdm_json_verify(const char *directory, const char *name, const json_t *due,
                                struct tdm_error *err)
{
    if (due == NULL)
        return TDM_OK;
    char *path = tdm_path_join(directory, name);
    json_t *root = NULL;
    enum tdm_status status =
        path == NULL ? tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for %s", directory, name)
                     : tdm_json_load(path, &root, err);
    if (status == TDM_OK && !json_equal(root, due))
        status = tdm_fail(err, TDM_IO, "%s: does not hold what was written", path);
    json_decref(root);
    free(path);
    return status;
}

/* Releases a container that could not be completed. */
static void give_up(json_t **container)
{
    json_decref(*container);
    *container = NULL;
}

void tdm_json_set(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) != 0) /* Jansson has released the value */
        give_up(object);
}

void tdm_json_add(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) != 0)
        give_up(array);
}

void tdm_json_merge(json_t **object, json_t *more)
{
    if (json_object_update(*object, more) != 0)
        give_up(object);
    json_decref(more);
}

json_t *tdm_json_text(const char *text)
{
    if (text == NULL)
        return json_null();
    char *copy = strdup(text);
    if (copy == NULL)
        return NULL;
    json_t *value = json_string(tdm_text_clean(copy));
    free(copy);
    return value;
}

const char *tdm_json_show(const json_t *value, char out[TDM_JSON_SHOWN])
{
    if (json_is_object(value) || json_is_array(value)) {
        snprintf(out, TDM_JSON_SHOWN, "%s", json_is_object(value) ? "an object" : "an array");
        return out;
    }
    char *text = tdm_json_dump(value, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    if (text == NULL)
        snprintf(out, TDM_JSON_SHOWN, "of the wrong type");
    else if (strlen(text) < TDM_JSON_SHOWN)
        snprintf(out, TDM_JSON_SHOWN, "%s", text);
    else
        snprintf(out, TDM_JSON_SHOWN, "%.*s...", TDM_JSON_SHOWN - 4, text);
    free(text);
    return out;
}

/* The member, or NULL if it is absent or null or the reader has failed. */
static const json_t *member(const struct tdm_json_reader *reader, const char *key)
{
    if (reader->status != TDM_OK)
        return NULL;
    const json_t *value = json_object_get(reader->object, key);
    return json_is_null(value) ? NULL : value;
}

bool tdm_json_has(const struct tdm_json_reader *reader, const char *key)
{
    const json_t *value = json_object_get(reader->object, key);
    return value != NULL && !json_is_null(value);
}

static enum tdm_status fail_list(struct tdm_json_reader *reader, const char *key,
                                 const char *format, va_list args)
{
    if (reader->status != TDM_OK)
        return reader->status;
    char text[512];
    vsnprintf(text, sizeof(text), format, args);
    reader->status = tdm_fail(reader->err, TDM_INPUT, "%s: \"%s%s%s\" %s", reader->file,
                              reader->prefix, reader->prefix[0] == '\0' ? "" : ".", key, text);
    return reader->status;
}

enum tdm_status tdm_json_fail(struct tdm_json_reader *reader, const char *key, const char *format,
                              ...)
{
    va_list args;
    va_start(args, format);
    enum tdm_status status = fail_list(reader, key, format, args);
    va_end(args);
    return status;
}

/* Reports a getter's failure: the member is missing or has the wrong value. */
static void fail_due(struct tdm_json_reader *reader, const char *key, const json_t *value,
                     const char *due)
{
    char shown[TDM_JSON_SHOWN];
    if (value == NULL)
        tdm_json_fail(reader, key, "is missing; add it as %s", due);
    else
        tdm_json_fail(reader, key, "is %s; it must be %s", tdm_json_show(value, shown), due);
}

static uint64_t count_of(struct tdm_json_reader *reader, const char *key, const json_t *value,
                         uint64_t low, uint64_t high)
{
    if (reader->status != TDM_OK)
        return low;
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        uint64_t count = (uint64_t)json_integer_value(value);
        if (count >= low && count <= high)
            return count;
    }
    char due[96];
    if (high >= INT64_MAX)
        snprintf(due, sizeof(due), "a whole number of at least %" PRIu64, low);
    else
        snprintf(due, sizeof(due), "a whole number from %" PRIu64 " to %" PRIu64, low, high);
    fail_due(reader, key, value, due);
    return low;
}

uint64_t tdm_json_count(struct tdm_json_reader *reader, const char *key, uint64_t low,
                        uint64_t high)
{
    return count_of(reader, key, member(reader, key), low, high);
}

uint64_t tdm_json_count_or(struct tdm_json_reader *reader, const char *key, uint64_t low,
                           uint64_t high, uint64_t fallback)
{
    const json_t *value = member(reader, key);
    return value == NULL ? fallback : count_of(reader, key, value, low, high);
}

static double number_of(struct tdm_json_reader *reader, const char *key, const json_t *value,
                        double low, double high)
{
    if (reader->status != TDM_OK)
        return low;
    if (json_is_number(value)) {
        double number = json_number_value(value);
        if (number >= low && number <= high) /* false for NaN */
            return number;
    }
    char due[96];
    if (!isfinite(high))
        snprintf(due, sizeof(due), "a number of at least %g", low);
    else
        snprintf(due, sizeof(due), "a number from %g to %g", low, high);
    fail_due(reader, key, value, due);
    return low;
}

double tdm_json_number(struct tdm_json_reader *reader, const char *key, double low, double high)
{
    return number_of(reader, key, member(reader, key), low, high);
}

double tdm_json_number_or(struct tdm_json_reader *reader, const char *key, double low, double high,
                          double fallback)
{
    const json_t *value = member(reader, key);
    return value == NULL ? fallback : number_of(reader, key, value, low, high);
}

bool tdm_json_bool_or(struct tdm_json_reader *reader, const char *key, bool fallback)
{
    const json_t *value = member(reader, key);
    if (value == NULL)
        return fallback;
    if (!json_is_boolean(value))
        fail_due(reader, key, value, "true or false");
    return json_is_true(value);
}

static const char *string_of(struct tdm_json_reader *reader, const char *key, const json_t *value)
{
    if (reader->status != TDM_OK)
        return "";
    if (json_is_string(value))
        return json_string_value(value);
    fail_due(reader, key, value, "a string");
    return "";
}

const char *tdm_json_string(struct tdm_json_reader *reader, const char *key)
{
    return string_of(reader, key, member(reader, key));
}

const char *tdm_json_string_or(struct tdm_json_reader *reader, const char *key,
                               const char *fallback)
{
    const json_t *value = member(reader, key);
    return value == NULL ? fallback : string_of(reader, key, value);
}

const json_t *tdm_json_object(struct tdm_json_reader *reader, const char *key)
{
    const json_t *value = member(reader, key);
    if (json_is_object(value))
        return value;
    fail_due(reader, key, value, "an object, { ... }");
    return NULL;
}

const json_t *tdm_json_array(struct tdm_json_reader *reader, const char *key)
{
    const json_t *value = member(reader, key);
    if (json_is_array(value))
        return value;
    fail_due(reader, key, value, "an array, [ ... ]");
    return NULL;
}

static bool listed(const char *key, const char *const *keys)
{
    for (; *keys != NULL; keys++) {
        if (strcmp(key, *keys) == 0)
            return true;
    }
    return false;
}

enum tdm_status tdm_json_only(struct tdm_json_reader *reader, const char *const *keys)
{
    if (reader->status != TDM_OK)
        return reader->status;
    /* Jansson's iterator is not const, though reading through it changes nothing. */
    json_t *object = (json_t *)(uintptr_t)reader->object;
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        const char *key = json_object_iter_key(at);
        if (listed(key, keys))
            continue;
        json_t *quoted = json_string(key); /* a key may hold control characters */
        char shown[TDM_JSON_SHOWN];
        size_t length = strlen(tdm_json_show(quoted, shown));
        json_decref(quoted);
        bool whole = length >= 2 && shown[0] == '"' && shown[length - 1] == '"';
        if (whole)
            shown[length - 1] = '\0';
        tdm_json_fail(reader, whole ? shown + 1 : "(unreadable)",
                      "is not a known field; correct its spelling or remove it");
        if (reader->err != NULL) {
            char joined[sizeof(reader->err->hint) - 16];
            tdm_hint(reader->err, "known here: %s",
                     tdm_names_join((char *const *)(uintptr_t)keys, joined, sizeof(joined)));
        }
        break;
    }
    return reader->status;
}
