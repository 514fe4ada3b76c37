/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests edited safetensors files. Whatever a file holds, it is either read as it says, within its
 * bytes, or refused with one line that names it (tests/fuzz/files.c). Under sanitizers nothing else
 * may happen.
 *
 * It makes the same edits each time: TDM_CASES of them (default 200,000, 20,000 if short) from
 * TDM_SEED. The fuzz target of the same name makes its own.
 */
#include "tests/fuzz/fuzz.h"

#include "executor/random.h"

#include <inttypes.h>
#include <string.h>

#define CAPACITY 65536u /* for an edited file */

struct buffer {
    uint64_t bytes;
    unsigned char data[CAPACITY];
};

static uint64_t state;

/* A number below `limit`. */
static uint64_t draw(uint64_t limit)
{
    return tdm_random_mix(state++) % limit;
}

/* Valid files to begin with: the header, and the number of bytes of data after it. */
static const struct {
    const char *header;
    uint64_t data_bytes;
} seeds[] = {
    {"{}", 0},
    {"{\"__metadata__\":{\"format\":\"pt\"}}", 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24},
    {"{\"__metadata__\":{\"format\":\"pt\"},"
     "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
     "\"c\":{\"dtype\":\"F16\",\"shape\":[1,1,5],\"data_offsets\":[32,42]}}   ",
     42},
    {"{\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},"
     "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[2,2]},"
     "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[2,5]},"
     "\"long\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[5,13]}}",
     13},
};

static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "0",
    "1",
    "-1",
    "24",
    "9223372036854775807",
    "99999999999999999999",
    "4611686018427387904",
    "4294967296",
    "1e3",
    "0.5",
    "null",
    "true",
    "\"F32\"",
    "\"BF16\"",
    "\"I64\"",
    "\"F128\"",
    "\"a\":",
    "\"dtype\":",
    "\"shape\":",
    "\"data_offsets\":",
    "[0,24]",
    "[2,3]",
    "\\u0000",
    "\\u001b",
    "\xff",
    "\xc3\x28",
    "\n",
    "\"__metadata__\":",
    "{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}",
};
enum { WORDS = sizeof(words) / sizeof(words[0]), SEEDS = sizeof(seeds) / sizeof(seeds[0]) };

/* Replaces `gone` bytes at `at` by `bytes` of `data`, if they fit. */
static void replace(struct buffer *text, uint64_t at, uint64_t gone, const void *data,
                    uint64_t bytes)
{
    if (text->bytes - gone + bytes > CAPACITY / 2)
        return;
    memmove(text->data + at + bytes, text->data + at + gone, text->bytes - at - gone);
    memcpy(text->data + at, data, bytes);
    text->bytes += bytes - gone;
}

static void edit(struct buffer *text)
{
    uint64_t at = draw(text->bytes + 1), left = text->bytes - at;
    uint64_t some = draw(left < 40 ? left + 1 : 40);
    const char *word = words[draw(WORDS)];
    unsigned char copy[64];
    switch (draw(6)) {
    case 0:
        if (left > 0)
            text->data[at] ^= (unsigned char)(1u << draw(8));
        break;
    case 1:
        replace(text, at, some, "", 0);
        break;
    case 2: /* repeats a part */
        memcpy(copy, text->data + at, some);
        replace(text, at, 0, copy, some);
        break;
    case 3:
        replace(text, at, 0, word, strlen(word));
        break;
    case 4:
        replace(text, at, some, word, strlen(word));
        break;
    default: /* changes a number */
        while (at < text->bytes && (text->data[at] < '0' || text->data[at] > '9'))
            at++;
        if (at < text->bytes) {
            char number[32];
            snprintf(number, sizeof(number), "%" PRIu64,
                     draw(2) ? draw(50) : tdm_random_mix(state) >> draw(64));
            uint64_t end = at;
            while (end < text->bytes && text->data[end] >= '0' && text->data[end] <= '9')
                end++;
            replace(text, at, end - at, number, strlen(number));
        }
    }
}

/* A length for the header, mostly the right one. */
static uint64_t length_of(uint64_t bytes)
{
    switch (draw(16)) {
    case 0:
        return bytes + 1;
    case 1:
        return bytes - 1;
    case 2:
        return draw(bytes + 9);
    case 3:
        return tdm_random_mix(state) >> draw(64);
    default:
        return bytes;
    }
}

/* Is the edited file taken? */
static bool run_case(struct buffer *text, struct buffer *file)
{
    uint64_t seed = draw(SEEDS), edits = draw(4);
    text->bytes = strlen(seeds[seed].header);
    memcpy(text->data, seeds[seed].header, text->bytes);
    for (uint64_t i = 0; i < edits; i++)
        edit(text);
    uint64_t length = length_of(text->bytes), data = seeds[seed].data_bytes;
    if (draw(8) == 0)
        data = draw(100);
    memcpy(file->data, &length, sizeof(length));
    memcpy(file->data + 8, text->data, text->bytes);
    for (uint64_t i = 0; i < data; i++)
        file->data[8 + text->bytes + i] = (unsigned char)draw(256);
    file->bytes = 8 + text->bytes + data;
    if (draw(16) == 0)
        file->bytes = draw(file->bytes + 1);
    return tdm_fuzz_safetensors(file->data, file->bytes);
}

int main(void)
{
    const char *count = getenv("TDM_CASES"), *seed = getenv("TDM_SEED"),
               *longer = getenv("TDM_LONG");
    uint64_t cases = count != NULL && count[0] != '\0'    ? strtoull(count, NULL, 10)
                     : longer != NULL && longer[0] == '1' ? 200000
                                                          : 20000;
    uint64_t accepted = 0, first = seed != NULL && seed[0] != '\0' ? strtoull(seed, NULL, 10) : 0;
    struct buffer *text = malloc(sizeof(*text)), *file = malloc(sizeof(*file));
    TDM_FUZZ_CHECK(text != NULL && file != NULL);
    for (uint64_t i = 0; i < cases; i++) {
        state = (first + i) << 20;
        accepted += run_case(text, file);
    }
    free(text);
    free(file);
    uint64_t refused = cases - accepted;
    printf("%" PRIu64 " files accepted, %" PRIu64 " refused\n", accepted, refused);
    TDM_FUZZ_CHECK(accepted > cases / 10 && refused > cases / 3);
    return 0;
}
