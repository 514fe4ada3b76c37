/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON through Jansson, with messages that name the file and the field.
 *
 * A struct tdm_json_reader carries the name of the file and the first error; the getters below are
 * no-ops after a failure, so a caller reads all fields and checks once with tdm_json_status().
 */
#ifndef TDM_BASE_JSON_H
#define TDM_BASE_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Reads and parses a file; the caller owns the result (json_decref). TDM_IO if it cannot be read,
 * TDM_INPUT with line and column if it is not JSON, has duplicate keys, or is not an object. */
enum tdm_status tdm_json_load(const char *path, json_t **root, struct tdm_error *err);

/* The same of text that comes from `file`. The text may have zeros in it, which is no JSON. One
 * thread at a time. */
enum tdm_status tdm_json_parse(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err);

/* Text of a value, all of it, by Jansson's flags (JSON_ENCODE_ANY is among them); malloc'ed, caller
 * frees. NULL if memory ran out. json_dumps() is not asked, as it may leave out a key then (Jansson
 * 2.14). */
char *tdm_json_dump(const json_t *value, size_t flags);

/* Deterministic one-line text of a value (sorted keys, compact); malloc'ed, caller frees. NULL if
 * memory ran out. */
char *tdm_json_canonical(const json_t *value);

/* Writes a value indented, with a newline, its keys sorted or as they were set, all of it or
 * nothing; takes the reference. TDM_NO_MEMORY, also for NULL: what was built below ran out of
 * memory; TDM_IO. */
enum tdm_status tdm_json_write(FILE *out, bool sorted, json_t *value, struct tdm_error *err);

/* Building. What could not be built is NULL, and what was to hold it becomes NULL too, so that a
 * caller checks once, at the end: both release *object or *array and set it to NULL if `value`, of
 * which they take the reference, is NULL or memory runs out, and do no more than release `value` if
 * it is NULL already. */
void tdm_json_set(json_t **object, const char *key, json_t *value);
void tdm_json_add(json_t **array, json_t *value);
/* All that `more` has, in the same way. */
void tdm_json_merge(json_t **object, json_t *more);

/* Text of unknown origin as a string, by tdm_text_clean(); null for NULL. NULL: memory ran out. */
json_t *tdm_json_text(const char *text);

/* A value as a message shows it, short and printable: a string in quotes, a number, "an array".
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

/* Each returns the value, or the fallback if the key is absent or null; a `required` variant fails
 * on absence. Wrong type or out of [low, high]: failure that names file, field and what is due. */
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

/* Records a failure of a check that the caller made: message is `FILE: "PREFIX.KEY" ...`. */
enum tdm_status tdm_json_fail(struct tdm_json_reader *reader, const char *key, const char *format,
                              ...) __attribute__((format(printf, 3, 4)));

/* Fails on the first key of the object that is not in the NULL-terminated list: an edited file with
 * a misspelt field must not be read as if the field were absent. */
enum tdm_status tdm_json_only(struct tdm_json_reader *reader, const char *const *keys);

#endif
