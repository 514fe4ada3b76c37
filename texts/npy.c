/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads NumPy's .npy files. The header is a Python dictionary as text with exactly three keys:
 *
 *     {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }
 *
 * It is parsed from left to right. The keys may come in any order.
 */
#include "texts/npy.h"

#include "base/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6u
#define MAX_HEADER_BYTES 4096u
#define MAX_DESCR_BYTES 16u
#define MAX_DIMENSIONS 32u

bool tdm_npy_is(const void *data, uint64_t bytes)
{
    return bytes >= MAGIC_BYTES && memcmp(data, MAGIC, MAGIC_BYTES) == 0;
}

/* ---- the header's text ---- */

/* What the header says. */
struct header {
    char descr[MAX_DESCR_BYTES]; /* "": a list of fields, or too long for a number */
    uint32_t dimensions;
    uint64_t count; /* of the first dimension */
    bool has_descr, has_order, has_shape;
};

static void skip_spaces(const char **at)
{
    while (**at == ' ' || **at == '\t' || **at == '\n' || **at == '\r')
        ++*at;
}

/* Takes `text` if it is next. */
static bool take(const char **at, const char *text)
{
    size_t length = strlen(text);
    skip_spaces(at);
    if (strncmp(*at, text, length) != 0)
        return false;
    *at += length;
    return true;
}

/* Takes a string in quotes, without escapes. One that is too long for `out` becomes "". */
static bool take_string(const char **at, char out[MAX_DESCR_BYTES])
{
    skip_spaces(at);
    char quote = **at;
    if (quote != '\'' && quote != '"')
        return false;
    const char *begin = ++*at;
    while (**at != '\0' && **at != quote && **at != '\\')
        ++*at;
    size_t length = (size_t)(*at - begin);
    if (**at != quote)
        return false;
    ++*at;
    out[0] = '\0';
    if (length < MAX_DESCR_BYTES) {
        memcpy(out, begin, length);
        out[length] = '\0';
    }
    return true;
}

/* Skips the list of fields of a structured array, with its brackets. */
static bool skip_list(const char **at)
{
    int depth = 0;
    do {
        if (**at == '\'' || **at == '"') {
            char ignored[MAX_DESCR_BYTES];
            if (!take_string(at, ignored))
                return false;
            continue;
        }
        depth += **at == '[' || **at == '(';
        depth -= **at == ']' || **at == ')';
        if (**at == '\0')
            return false;
        ++*at;
    } while (depth > 0);
    return true;
}

static bool take_descr(const char **at, struct header *header)
{
    skip_spaces(at);
    if (**at == '[') {
        header->descr[0] = '\0';
        return skip_list(at);
    }
    return take_string(at, header->descr);
}

/* Takes a dimension: digits, and the "L" that Python 2 wrote after a long one. *count is
 * TDM_SIZE_MAX if the number does not fit. */
static bool take_dimension(const char **at, uint64_t *count)
{
    skip_spaces(at);
    if (**at < '0' || **at > '9')
        return false;
    for (*count = 0; **at >= '0' && **at <= '9'; ++*at)
        *count = tdm_size_add(tdm_size_mul(*count, 10), (uint64_t)(**at - '0'));
    if (**at == 'L')
        ++*at;
    return true;
}

/* Takes a tuple: (), (5,), (2, 3). A single dimension needs its comma. */
static bool take_shape(const char **at, struct header *header)
{
    bool comma = true;
    if (!take(at, "("))
        return false;
    header->dimensions = 0;
    while (!take(at, ")")) {
        uint64_t count;
        if (!comma || header->dimensions == MAX_DIMENSIONS || !take_dimension(at, &count))
            return false;
        if (header->dimensions++ == 0)
            header->count = count;
        comma = take(at, ",");
    }
    return header->dimensions != 1 || comma;
}

/* Takes one key and its value. Each key may come once. */
static bool take_entry(const char **at, struct header *header)
{
    char key[MAX_DESCR_BYTES];
    if (!take_string(at, key) || !take(at, ":"))
        return false;
    if (strcmp(key, "descr") == 0 && !header->has_descr)
        return (header->has_descr = true) && take_descr(at, header);
    if (strcmp(key, "shape") == 0 && !header->has_shape)
        return (header->has_shape = true) && take_shape(at, header);
    if (strcmp(key, "fortran_order") == 0 && !header->has_order)
        return (header->has_order = true) && (take(at, "False") || take(at, "True"));
    return false;
}

static bool parse(const char *text, struct header *header)
{
    const char *at = text;
    bool comma = true;
    *header = (struct header){.count = 0};
    if (!take(&at, "{"))
        return false;
    while (!take(&at, "}")) {
        if (!comma || !take_entry(&at, header))
            return false;
        comma = take(&at, ",");
    }
    skip_spaces(&at);
    return *at == '\0' && header->has_descr && header->has_order && header->has_shape;
}

/* ---- the file ---- */

/* The width of a number from its descr ('<u2', '|u1'); 0 if it cannot be a token. Truth values
 * ('|b1') are for masks. */
static uint32_t width_of(const char *descr)
{
    static const struct {
        const char *descr;
        uint32_t width;
    } known[] = {{"|u1", 1}, {"|b1", 1}, {"<u2", 2}, {"<u4", 4}, {"<u8", 8},
                 {"|i1", 1}, {"<i2", 2}, {"<i4", 4}, {"<i8", 8}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(descr, known[i].descr) == 0)
            return known[i].width;
    return 0;
}

/* Reads the header as a string, and finds where the numbers begin. */
static enum tdm_status read_header(const char *path, const unsigned char *data, uint64_t bytes,
                                   char text[MAX_HEADER_BYTES + 1], uint64_t *offset,
                                   struct tdm_error *err)
{
    uint64_t length = 0, begin = MAGIC_BYTES + 2;
    unsigned version = bytes > MAGIC_BYTES ? data[MAGIC_BYTES] : 1;
    if (version < 1 || version > 3)
        return tdm_fail(err, TDM_INPUT, "%s: is of version %u of .npy; 1, 2 and 3 can be read",
                        path, version);
    uint32_t length_bytes = version == 1 ? 2 : 4;
    if (bytes < begin + length_bytes)
        return tdm_fail(err, TDM_INPUT, "%s: ends inside the header of a .npy file", path);
    memcpy(&length, data + begin, length_bytes);
    begin += length_bytes;
    if (length > MAX_HEADER_BYTES || length > bytes - begin)
        return tdm_fail(
            err, TDM_INPUT, "%s: its .npy header should have %" PRIu64 " bytes; %s", path, length,
            length > MAX_HEADER_BYTES ? "at most 4096 are supported" : "the file ends before");
    memcpy(text, data + begin, length);
    text[length] = '\0';
    *offset = begin + length;
    return strlen(text) == length
               ? TDM_OK
               : tdm_fail(err, TDM_INPUT, "%s: its .npy header holds a zero byte", path);
}

enum tdm_status tdm_npy_find(const char *path, const void *data, uint64_t bytes,
                             struct tdm_npy *npy, struct tdm_error *err)
{
    char text[MAX_HEADER_BYTES + 1];
    struct header header;
    uint64_t offset = 0;
    enum tdm_status status = read_header(path, data, bytes, text, &offset, err);
    if (status != TDM_OK)
        return status;
    if (!parse(text, &header))
        return tdm_fail(err, TDM_INPUT,
                        "%s: its .npy header is not a dictionary of 'descr', 'fortran_order' and "
                        "'shape'",
                        path);
    uint32_t width = width_of(header.descr);
    if (width == 0) {
        tdm_fail(err, TDM_INPUT, "%s: its numbers are not little-endian integers", path);
        return tdm_hint(err, "save them with numpy as uint16 or uint32");
    }
    if (header.dimensions != 1) {
        tdm_fail(err, TDM_INPUT, "%s: has %" PRIu32 " dimensions; tokens must have one", path,
                 header.dimensions);
        return tdm_hint(err, "save array.ravel()");
    }
    if (header.count == TDM_SIZE_MAX)
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " bytes of data, but more numbers by its header than 64 "
                        "bits can count",
                        path, bytes - offset);
    if (tdm_size_mul(header.count, width) != bytes - offset)
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " bytes of data, but %" PRIu64 " numbers of %" PRIu32
                        " bytes by its header",
                        path, bytes - offset, header.count, width);
    *npy = (struct tdm_npy){offset, header.count, width, header.descr[1] == 'i',
                            header.descr[1] == 'b'};
    return TDM_OK;
}
