/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests edited safetensors files. Whatever a file holds, it is either read as it says, within its
 * bytes, or refused with one line that names it. Under sanitizers nothing else may happen.
 *
 * As a test it makes the same edits each time: TDM_CASES of them (default 200,000, 20,000 if short)
 * from TDM_SEED. libFuzzer makes its own edits; from a configured build folder:
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -DTDM_LIBFUZZER -D_GNU_SOURCE -I. -ISOURCES \
 *       SOURCES/tests/models/fuzz_safetensors.c SOURCES/models/safetensors*.c \
 *       SOURCES/base/?*.c -ljansson -lm -lpthread -o fuzz_safetensors
 */
#include "base/text.h"
#include "models/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                             \
        }                                                                        \
    } while (0)

/* Creates a file in memory, sets `path` to its name, and returns its descriptor. */
static int put_file(const void *data, size_t bytes, char path[64])
{
    int fd = memfd_create("edited", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(bytes == 0 || write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* Checks an accepted file: tensors cover all that follows the header, and can be read. */
static void check_tensors(const struct tdm_safetensors *file, size_t bytes)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const struct tdm_safetensor *tensor = &file->tensors[i];
        uint64_t elements = 1;
        CHECK(tensor->rank <= TDM_SAFETENSORS_RANK);
        for (uint32_t side = 0; side < tensor->rank; side++)
            elements *= tensor->shape[side];
        CHECK(tensor->elements == elements);
        CHECK(i == 0 || tensor->offset == end);
        CHECK(tensor->offset >= 8 && tensor->offset <= bytes);
        CHECK(tensor->bytes <= bytes - tensor->offset);
        end = tensor->offset + tensor->bytes;
        if (tensor->dtype == TDM_DTYPE_NONE)
            continue;
        CHECK(tensor->bytes == elements * tdm_dtype_bytes(tensor->dtype));
        struct tdm_error err = {0};
        float *values = malloc(elements * sizeof(*values) + 1);
        CHECK(values != NULL);
        enum tdm_status status =
            tdm_safetensors_read(file, tensor, 0, tensor->elements, values, &err);
        CHECK(status == TDM_OK || (status == TDM_INPUT && strstr(err.message, "finite") != NULL));
        free(values);
    }
    CHECK(file->tensor_count == 0 || end == bytes);
}

static uint64_t accepted, refused;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    int fd = put_file(data, bytes, path);
    struct tdm_safetensors *file = NULL;
    struct tdm_error err = {0};
    enum tdm_status status = tdm_safetensors_open(path, &file, &err);
    if (status == TDM_OK) {
        accepted++;
        check_tensors(file, bytes);
        tdm_safetensors_close(file);
    } else {
        refused++;
        CHECK(status == TDM_INPUT);
        CHECK(file == NULL);
        CHECK(strncmp(err.message, path, strlen(path)) == 0);
        struct tdm_error copy = err; /* the line is already clean for display */
        CHECK(strcmp(tdm_text_clean(copy.message), err.message) == 0);
    }
    close(fd);
    return 0;
}

#ifndef TDM_LIBFUZZER

#include "executor/random.h"

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

static void run_case(struct buffer *text, struct buffer *file)
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
    LLVMFuzzerTestOneInput(file->data, file->bytes);
}

int main(void)
{
    const char *count = getenv("TDM_CASES"), *seed = getenv("TDM_SEED"),
               *longer = getenv("TDM_LONG");
    uint64_t cases = count != NULL && count[0] != '\0'    ? strtoull(count, NULL, 10)
                     : longer != NULL && longer[0] == '1' ? 200000
                                                          : 20000;
    uint64_t first = seed != NULL && seed[0] != '\0' ? strtoull(seed, NULL, 10) : 0;
    struct buffer *text = malloc(sizeof(*text)), *file = malloc(sizeof(*file));
    CHECK(text != NULL && file != NULL);
    for (uint64_t i = 0; i < cases; i++) {
        state = (first + i) << 20;
        run_case(text, file);
    }
    free(text);
    free(file);
    printf("%" PRIu64 " files accepted, %" PRIu64 " refused\n", accepted, refused);
    CHECK(accepted > cases / 10 && refused > cases / 3);
    return 0;
}

#endif
