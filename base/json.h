/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON through Jansson, with messages that name the file and the field.
 *
 * A struct tdm_json_reader carries the name of the file and the first error. After a failure the
 * getters below do nothing, so a caller reads all fields and checks once with tdm_json_status().
 */
#ifndef TDM_BASE_JSON_H
#define TDM_BASE_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Parses any JSON value. Duplicate keys are refused. NULL: *no_memory is true, or *problem says
 * what is wrong with the text. The caller owns the value (json_decref). Jansson's own functions
 * must not be used for this: without memory they drop characters of strings, or write beyond them.
 */
json_t *tdm_json_value(const char *text, size_t bytes, json_error_t *problem, bool *no_memory);

/* Reads and parses a file. The caller owns the result (json_decref). TDM_IO if it cannot be read,
 * TDM_INPUT with line and column if it is not JSON, has duplicate keys, or is not an object. */
enum tdm_status tdm_json_load(const char *path, json_t **root, struct tdm_error *err);

/* The same for text that comes from `file`. A zero byte in the text is invalid JSON. Not
 * thread-safe: one thread at a time. */
enum tdm_status tdm_json_parse(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err);

/* The complete text of a value by Jansson's flags, with JSON_ENCODE_ANY added. malloc'ed; the
 * caller frees it. NULL if memory ran out. json_dumps() is not used because it may then leave out a
 * key (Jansson 2.14). */
char *tdm_json_dump(const json_t *value, size_t flags);

/* A copy of a value and all that it holds. The caller releases it. NULL for NULL, and if memory ran
 * out. json_deep_copy() and json_copy() are not used because they may then leave out a key (Jansson
 * 2.14). */
json_t *tdm_json_copy(const json_t *value);

/* Deterministic one-line text of a value (sorted keys, compact). malloc'ed; the caller frees it.
 * NULL if memory ran out. */
char *tdm_json_canonical(const json_t *value);

/* Writes a value indented, with a newline, its keys sorted or in the order they were set. Writes
 * either all of it or nothing, and takes the reference. TDM_NO_MEMORY, also if `value` is NULL
 * because memory ran out while it was built; TDM_IO. */
enum tdm_status tdm_json_write(FILE *out, bool sorted, json_t *value, struct tdm_error *err);

/* Writes `root`, indented, to a new file DIRECTORY/NAME, whole or not at all. TDM_NO_MEMORY, also
 * if `root` is NULL; TDM_IO. */
enum tdm_status tdm_json_save(const char *directory, const char *name, const json_t *root,
                              struct tdm_error *err);

/* Reads the file back. TDM_IO if it does not hold `due`; errors of tdm_json_load(). `due` NULL:
 * nothing is expected there. */
enum tdm_status tdm_json_verify(const char *directory, const char *name, const json_t *due,
                                struct tdm_error *err);

/* Building. A value that could not be built is NULL, and the container that should hold it becomes
 * NULL too, so that a caller checks once, at the end. Both take the reference of `value`. If it is
 * NULL or memory runs out, they release *object or *array and set it to NULL. If that is NULL
 * already, they only release `value`. */
void tdm_json_set(json_t **object, const char *key, json_t *value);
void tdm_json_add(json_t **array, json_t *value);
/* Adds all members of `more` in the same way. */
void tdm_json_merge(json_t **object, json_t *more);

/* A string from text of unknown origin, through tdm_text_clean(); JSON null for NULL. Returns NULL
 * if memory ran out. */
json_t *tdm_json_text(const char *text);

/* A value in the form for messages, short and printable: a string in quotes, a number, "an array".
 * Returns `out`. */
enum { TDM_JSON_SHOWN = 48 };
const char *tdm_json_show(const json_t *value, char out[TDM_JSON_SHOWN]);

/* Reading fields of one object. */
struct tdm_json_reader {
    const char *file;     /* shown first in messages; not owned */
    const char *prefix;   /* dotted path of the object inside the file, "" at the root; not owned */
    const json_t *object; /* borrowed */
    struct tdm_error *err;  /* filled at the first failure */
    enum tdm_status status; /* TDM_OK until a field is missing, of the wrong type or out of range */
};

/* The first failure, or TDM_OK. */
static inline enum tdm_status tdm_json_status(const struct tdm_json_reader *reader)
{
    return reader->status;
}

bool tdm_json_has(const struct tdm_json_reader *reader, const char *key); /* present and not null */

/* Each returns the value. If the key is absent or null, the _or variants return the fallback and
 * the others fail. A wrong type or a value outside [low, high] is a failure whose message names the
 * file, the field and the expected value. */
uint64_t tdm_json_count(struct tdm_json_reader *reader, const char *key, uint64_t low,
                        uint64_t high);
uint64_t tdm_json_count_or(struct tdm_json_reader *reader, const char *key, uint64_t low,
                           uint64_t high, uint64_t fallback);
double tdm_json_number(struct tdm_json_reader *reader, const char *key, double low, double high);
double tdm_json_number_or(struct tdm_json_reader *reader, const char *key, double low, double high,
                          double fallback);
bool tdm_json_bool_or(struct tdm_json_reader *reader, const char *key, bool fallback);
const char *tdm_json_string(struct tdm_json_reader *reader, const char *key);
const char *tdm_json_string_or(struct tdm_json_reader *reader, const char *key,
                               const char *fallback);
/* A member that is an object or array; NULL after failure. */
const json_t *tdm_json_object(struct tdm_json_reader *reader, const char *key);
const json_t *tdm_json_array(struct tdm_json_reader *reader, const char *key);

/* Records a failed check of the caller. The message is `FILE: "PREFIX.KEY" ...`. */
enum tdm_status tdm_json_fail(struct tdm_json_reader *reader, const char *key, const char *format,
                              ...) __attribute__((format(printf, 3, 4)));

/* Fails on the first key of the object that is not in the NULL-terminated list. Otherwise a
 * misspelt field of an edited file would be read as absent. */
enum tdm_status tdm_json_only(struct tdm_json_reader *reader, const char *const *keys);

#endif
