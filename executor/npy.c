/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files: the header, a Python dictionary as text. */
#include "executor/npy.h"

#include "base/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6u
#define MOST_HEADER_BYTES 4096u

bool tdm_npy_is(const void *data, uint64_t bytes)
{
    return bytes >= MAGIC_BYTES && memcmp(data, MAGIC, MAGIC_BYTES) == 0;
}

/* What follows 'KEY': in the header, spaces skipped; NULL if the key is not there. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    if (at == NULL)
        return NULL;
    at += strlen(key);
    while (*at == ' ')
        at++;
    return at;
}

/* Bytes of a number by its descr: '<u2', '|u1'; 0 if it cannot be a token. */
static uint32_t width_of(const char *descr)
{
    static const struct {
        const char *descr;
        uint32_t width;
    } known[] = {{"'|u1'", 1}, {"'<u2'", 2}, {"'<u4'", 4}, {"'<u8'", 8},
                 {"'|i1'", 1}, {"'<i2'", 2}, {"'<i4'", 4}, {"'<i8'", 8}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(descr, known[i].descr, strlen(known[i].descr)) == 0)
            return known[i].width;
    return 0;
}

/* The header as a string, and where the numbers begin. */
static enum tdm_status read_header(const char *path, const unsigned char *data, uint64_t bytes,
                                   char header[MOST_HEADER_BYTES + 1], uint64_t *offset,
                                   struct tdm_error *err)
{
    uint64_t length = 0, begin = MAGIC_BYTES + 2;
    uint32_t length_bytes = bytes > MAGIC_BYTES && data[MAGIC_BYTES] == 1 ? 2 : 4;
    if (bytes < begin + length_bytes)
        return tdm_fail(err, TDM_INPUT, "%s: ends inside the header of a .npy file", path);
    memcpy(&length, data + begin, length_bytes);
    begin += length_bytes;
    if (length > MOST_HEADER_BYTES || length > bytes - begin)
        return tdm_fail(err, TDM_INPUT, "%s: its .npy header should have %" PRIu64 " bytes", path,
                        length);
    memcpy(header, data + begin, length);
    header[length] = '\0';
    *offset = begin + length;
    return TDM_OK;
}

enum tdm_status tdm_npy_find(const char *path, const void *data, uint64_t bytes,
                             struct tdm_npy *npy, struct tdm_error *err)
{
    char header[MOST_HEADER_BYTES + 1];
    uint64_t offset = 0;
    enum tdm_status status = read_header(path, data, bytes, header, &offset, err);
    if (status != TDM_OK)
        return status;
    const char *descr = value_of(header, "'descr':"), *shape = value_of(header, "'shape':");
    if (descr == NULL || shape == NULL || *shape != '(')
        return tdm_fail(err, TDM_INPUT, "%s: its .npy header lacks 'descr' or 'shape'", path);
    uint32_t width = width_of(descr);
    if (width == 0) {
        tdm_fail(err, TDM_INPUT, "%s: its numbers are no little-endian whole numbers", path);
        return tdm_hint(err, "save them with numpy as uint16 or uint32");
    }
    char *end;
    uint64_t count = strtoull(shape + 1, &end, 10);
    if (shape[1] < '0' || shape[1] > '9' || strncmp(end, ",)", 2) != 0) {
        tdm_fail(err, TDM_INPUT, "%s: has not one dimension; a row of tokens is due", path);
        return tdm_hint(err, "save array.ravel()");
    }
    if (tdm_size_mul(count, width) != bytes - offset)
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " bytes of data, but %" PRIu64 " numbers of %" PRIu32
                        " bytes by its header",
                        path, bytes - offset, count, width);
    *npy = (struct tdm_npy){offset, count, width, descr[2] == 'i'};
    return TDM_OK;
}
