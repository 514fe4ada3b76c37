/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of TOML by recursive descent (toml.io/en/v1.0.0). Debian 12 and Ubuntu 24.04 have no C
 * library for it. */
#include "base/toml.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 1024u
#define MOST_DEPTH 16u

struct reading {
    const char *at; /* the text ends with a zero byte */
    const char *file;
    unsigned line, depth;
    json_t *headed; /* tables that had a header: their addresses */
    struct tdm_error *err;
};

static enum tdm_status refuse(const struct reading *r, const char *problem)
{
    return tdm_fail(r->err, TDM_INPUT, "%s: line %u: %s", r->file, r->line, problem);
}

static enum tdm_status no_memory(const struct reading *r)
{
    return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory to parse it", r->file);
}

static void skip_blanks(struct reading *r)
{
    r->at += strspn(r->at, " \t");
}

/* Blanks, comments and ends of lines. */
static void skip_lines(struct reading *r)
{
    for (;;) {
        skip_blanks(r);
        if (*r->at == '#')
            r->at += strcspn(r->at, "\n");
        if (*r->at == '\r' && r->at[1] == '\n')
            r->at++;
        if (*r->at != '\n')
            return;
        r->at++;
        r->line++;
    }
}

/* What follows a value or a header on its line. */
static enum tdm_status end_line(struct reading *r)
{
    const char *before = r->at;
    skip_blanks(r);
    if (*r->at == '\0' || *r->at == '\n' || *r->at == '\r' || *r->at == '#')
        return TDM_OK;
    r->at = before;
    return refuse(r, "expected the end of the line");
}

/* One character behind a backslash; '\0': it is not read. */
static char escaped(char letter)
{
    static const char letters[] = "btnfr\"\\", values[] = "\b\t\n\f\r\"\\";
    const char *found = letter == '\0' ? NULL : strchr(letters, letter);
    return found == NULL ? '\0' : values[found - letters];
}

/* A string in single or double quotes. */
static enum tdm_status read_string(struct reading *r, char out[WORD_BYTES])
{
    const char quote = *r->at;
    size_t length = 0;
    if (r->at[1] == quote && r->at[2] == quote)
        return refuse(r, "strings of several lines are not read");
    for (r->at++; *r->at != quote; r->at++) {
        char letter = *r->at;
        if (letter == '\0' || letter == '\n')
            return refuse(r, "a string does not end on its line");
        if (letter == '\\' && quote == '"') {
            letter = escaped(*++r->at);
            if (letter == '\0')
                return refuse(r, "expected one of b, t, n, f, r, \" and \\ behind a backslash");
        } else if (iscntrl((unsigned char)letter) && letter != '\t') {
            return refuse(r, "a string has a control character");
        }
        if (length + 1 == WORD_BYTES)
            return refuse(r, "a string is too long");
        out[length++] = letter;
    }
    r->at++;
    out[length] = '\0';
    return TDM_OK;
}

/* One part of a key: bare or in quotes. */
static enum tdm_status read_part(struct reading *r, char out[WORD_BYTES])
{
    if (*r->at == '"' || *r->at == '\'')
        return read_string(r, out);
    size_t length = strspn(r->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-");
    if (length == 0 || length >= WORD_BYTES)
        return refuse(r, "expected a key");
    memcpy(out, r->at, length);
    out[length] = '\0';
    r->at += length;
    return TDM_OK;
}

/* The table of a name below another, which is made if it is not there. NULL: it is no table, or
 * there is no memory. */
static json_t *table_below(json_t *table, const char *name)
{
    json_t *below = json_object_get(table, name);
    if (below == NULL) {
        below = json_object();
        if (json_object_set_new(table, name, below) != 0)
            return NULL;
    }
    return json_is_object(below) ? below : NULL;
}

/* A key, whose parts but the last name tables below *table. */
static enum tdm_status read_key(struct reading *r, json_t **table, char last[WORD_BYTES])
{
    enum tdm_status status = read_part(r, last);
    skip_blanks(r);
    while (status == TDM_OK && *r->at == '.') {
        *table = table_below(*table, last);
        if (*table == NULL)
            return refuse(r, "a key is below one that is no table");
        r->at++;
        skip_blanks(r);
        status = read_part(r, last);
        skip_blanks(r);
    }
    return status;
}

static enum tdm_status read_value(struct reading *r, json_t **out);

static enum tdm_status read_array(struct reading *r, json_t *list)
{
    r->at++;
    for (skip_lines(r); *r->at != ']'; skip_lines(r)) {
        json_t *value = NULL;
        enum tdm_status status = read_value(r, &value);
        if (status != TDM_OK)
            return status;
        if (json_array_append_new(list, value) != 0)
            return no_memory(r);
        skip_lines(r);
        if (*r->at == ',')
            r->at++;
        else if (*r->at != ']')
            return refuse(r, "expected a comma or the end of the array");
    }
    r->at++;
    return TDM_OK;
}

/* Digits with underscores between them, as TOML has them, without these. */
static bool take_digits(const char *word, size_t length, char out[64])
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        if (word[i] == '_' && (i == 0 || i + 1 == length || !isdigit((unsigned char)word[i - 1]) ||
                               !isdigit((unsigned char)word[i + 1])))
            return false;
        if (word[i] != '_' && used + 1 == 64)
            return false;
        if (word[i] != '_')
            out[used++] = word[i];
    }
    out[used] = '\0';
    return used > 0;
}

/* A boolean, an integer or a number. */
static enum tdm_status read_word(struct reading *r, json_t **out)
{
    char digits[64], *end;
    size_t length = strcspn(r->at, " \t\r\n,]#");
    const char *word = r->at;
    r->at += length;
    if (length == 4 && memcmp(word, "true", 4) == 0) {
        *out = json_true();
        return TDM_OK;
    }
    if (length == 5 && memcmp(word, "false", 5) == 0) {
        *out = json_false();
        return TDM_OK;
    }
    if (!take_digits(word, length, digits) || strspn(digits, "0123456789.eE+-") != strlen(digits))
        return refuse(r, "expected a string in quotes, a number, true, false or an array");
    errno = 0;
    long long whole = strtoll(digits, &end, 10);
    if (*end == '\0' && errno == 0) {
        *out = json_integer(whole);
    } else {
        double real = strtod(digits, &end);
        if (*end != '\0')
            return refuse(r, "expected a number; dates are not read");
        *out = json_real(real); /* NULL: not finite */
    }
    return *out != NULL ? TDM_OK : refuse(r, "a number is too large");
}

static enum tdm_status read_value(struct reading *r, json_t **out)
{
    char text[WORD_BYTES];
    if (*r->at == '"' || *r->at == '\'') {
        enum tdm_status status = read_string(r, text);
        if (status != TDM_OK)
            return status;
        *out = json_string(text);
        return *out != NULL ? TDM_OK : refuse(r, "a string is not UTF-8");
    }
    if (*r->at == '{')
        return refuse(r, "inline tables are not read");
    if (*r->at != '[')
        return read_word(r, out);
    if (r->depth == MOST_DEPTH)
        return refuse(r, "it is too deep");
    json_t *list = json_array();
    if (list == NULL)
        return no_memory(r);
    r->depth++;
    enum tdm_status status = read_array(r, list);
    r->depth--;
    if (status == TDM_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

static enum tdm_status read_pair(struct reading *r, json_t *table)
{
    char key[WORD_BYTES];
    json_t *value = NULL;
    enum tdm_status status = read_key(r, &table, key);
    if (status != TDM_OK)
        return status;
    if (*r->at != '=')
        return refuse(r, "expected \"=\" behind a key");
    if (json_object_get(table, key) != NULL)
        return refuse(r, "the key is there twice");
    r->at++;
    skip_blanks(r);
    status = read_value(r, &value);
    if (status != TDM_OK)
        return status;
    return json_object_set_new(table, key, value) == 0 ? end_line(r) : no_memory(r);
}

/* "[a.b]" */
static enum tdm_status read_header(struct reading *r, json_t *root, json_t **table)
{
    char last[WORD_BYTES];
    if (r->at[1] == '[')
        return refuse(r, "arrays of tables are not read");
    r->at++;
    skip_blanks(r);
    *table = root;
    enum tdm_status status = read_key(r, table, last);
    if (status != TDM_OK)
        return status;
    if (*r->at != ']')
        return refuse(r, "expected \"]\" behind a table's name");
    r->at++;
    *table = table_below(*table, last);
    if (*table == NULL)
        return refuse(r, "the table is a key of another kind");
    char address[32];
    snprintf(address, sizeof(address), "%p", (void *)*table);
    if (json_object_get(r->headed, address) != NULL)
        return refuse(r, "the table is there twice");
    return json_object_set_new(r->headed, address, json_true()) == 0 ? end_line(r) : no_memory(r);
}

enum tdm_status tdm_toml_parse(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err)
{
    struct reading r = {.at = text, .file = file, .line = 1, .err = err};
    if (strlen(text) != bytes)
        return tdm_fail(err, TDM_INPUT, "%s: not TOML: it has a zero byte", file);
    json_t *all = json_object(), *table = all;
    r.headed = json_object();
    enum tdm_status status = all != NULL && r.headed != NULL ? TDM_OK : no_memory(&r);
    for (skip_lines(&r); status == TDM_OK && *r.at != '\0'; skip_lines(&r))
        status = *r.at == '[' ? read_header(&r, all, &table) : read_pair(&r, table);
    json_decref(r.headed);
    if (status == TDM_OK)
        *root = all;
    else
        json_decref(all);
    return status;
}
