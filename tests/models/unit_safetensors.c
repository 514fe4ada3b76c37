/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of safetensors files: values of every dtype are read back, and every false statement in a
 * header is refused with a line that names file and tensor. */
#include "models/safetensors.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "t.safetensors"

/* Writes a file: a length, a header, and zero bytes of data. */
static void put(uint64_t length, const char *header, uint64_t header_bytes, uint64_t data_bytes)
{
    FILE *file = fopen(FILE_NAME, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 1, sizeof(length), file), sizeof(length));
    assert_int_equal(fwrite(header, 1, header_bytes, file), header_bytes);
    for (uint64_t i = 0; i < data_bytes; i++)
        fputc(0, file);
    assert_int_equal(fclose(file), 0);
}

/* Opening the file must fail with a message that holds both parts. */
static void refused(enum tdm_status due, const char *part, const char *other)
{
    struct tdm_safetensors *file = NULL;
    struct tdm_error err = {0};
    enum tdm_status status = tdm_safetensors_open(FILE_NAME, &file, &err);
    if (status != due)
        fail_msg("status %d, %d is due: %s", (int)status, (int)due, err.message);
    assert_null(file);
    assert_int_equal(strncmp(err.message, FILE_NAME ": ", strlen(FILE_NAME) + 2), 0);
    assert_null(strchr(err.message, '\n'));
    if (strstr(err.message, part) == NULL || strstr(err.message, other) == NULL)
        fail_msg("\"%s\" does not contain \"%s\" and \"%s\"", err.message, part, other);
}

/* Checks that a header before `data_bytes` bytes of data is refused. */
static void bad(const char *header, uint64_t data_bytes, const char *what, const char *tensor)
{
    put(strlen(header), header, strlen(header), data_bytes);
    refused(TDM_INPUT, what, tensor);
}

#define ENTRY(name, type, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_bad_lengths(void **unused)
{
    (void)unused;
    FILE *file = fopen(FILE_NAME, "wb");
    fputs("1234567", file);
    fclose(file);
    refused(TDM_INPUT, "has 7 bytes", "");
    put(3, "{}", 2, 0);
    refused(TDM_INPUT, "should have 3 bytes", "has 2 after");
    put(UINT64_MAX, "{}", 2, 0);
    refused(TDM_INPUT, "should have 18446744073709551615 bytes", "");
    put(UINT64_MAX - 7, "{}", 2, 0);
    refused(TDM_INPUT, "should have", "");
    put(0, "", 0, 0);
    refused(TDM_INPUT, "does not begin with {", "");
    put(TDM_SAFETENSORS_HEADER_BYTES + 1, "{}", 2, 0);
    assert_int_equal(truncate(FILE_NAME, (off_t)TDM_SAFETENSORS_HEADER_BYTES + 100), 0);
    refused(TDM_INPUT, "its header has 16777217 bytes", "");
    unlink(FILE_NAME);
    refused(TDM_IO, "cannot be opened", "");
    assert_int_equal(mkdir(FILE_NAME, 0777), 0);
    refused(TDM_INPUT, "not a regular file", "");
    assert_int_equal(rmdir(FILE_NAME), 0);
    assert_int_equal(mkfifo(FILE_NAME, 0666), 0);
    refused(TDM_INPUT, "not a regular file", "");
    assert_int_equal(unlink(FILE_NAME), 0);
}

static void test_bad_headers(void **unused)
{
    (void)unused;
    bad(" {}", 0, "does not begin with {", "");
    bad("[]", 0, "does not begin with {", "");
    bad("{\"a\"", 0, "its header: line 1", "column 4");
    bad("{} x", 0, "not valid JSON", "end of file expected");
    bad("{\"a\xff\":1}", 0, "not valid JSON", "decode byte 0xff");
    bad("{\"a\\u0000\":1}", 0, "not valid JSON", "");
    bad("{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("a", "F32", "[1]", "[0,4]") "}", 4,
        "duplicate object key", "");
    bad("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
        "duplicate object key", "");
    bad("{\"__metadata__\":[]}", 0, "\"__metadata__\" is not an object of strings", "");
    bad("{\"__metadata__\":{\"a\":1}}", 0, "\"__metadata__\" is not an object of strings", "");
    bad("{\"w\":7}", 0, "is not an object", "\"w\"");
    bad("{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no \"dtype\"", "\"w\"");
    bad("{" ENTRY("w", "F31", "[1]", "[0,4]") "}", 4, "dtype \"F31\", which is not known", "\"w\"");
    bad("{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no \"shape\"", "\"w\"");
    bad("{" ENTRY("w", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "more than 8 dimensions",
        "\"w\"");
    bad("{" ENTRY("w", "F32", "[-1]", "[0,4]") "}", 4, "not a count", "\"w\"");
    bad("{" ENTRY("w", "F32", "[1.0]", "[0,4]") "}", 4, "not a count", "\"w\"");
    bad("{" ENTRY("w", "F32", "[99999999999999999999]", "[0,4]") "}", 4, "too big integer", "");
    bad("{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no \"data_offsets\"", "\"w\"");
    bad("{" ENTRY("w", "F32", "[1]", "[4]") "}", 4, "no \"data_offsets\"", "\"w\"");
    bad("{" ENTRY("w", "F32", "[1]", "[0,-4]") "}", 4, "no \"data_offsets\"", "\"w\"");
    bad("{" ENTRY("evil\\u001b[2J\\nname", "F32", "[1]", "[0,2]") "}", 2, "needs 4",
        "\"evil?[2J?name\"");
}

static void test_bad_offsets(void **unused)
{
    (void)unused;
    bad("{" ENTRY("w", "F32", "[1]", "[4,0]") "}", 4, "begins at byte 4 of the data and ends at 0",
        "\"w\"");
    bad("{" ENTRY("w", "F32", "[2]", "[0,8]") "}", 4,
        "ends at byte 8 of the data, of which the file has 4", "\"w\"");
    bad("{" ENTRY("w", "F32", "[1]", "[9223372036854775800,9223372036854775804]") "}", 4,
        "of which the file has 4", "\"w\"");
    bad("{" ENTRY("w", "BF16", "[2,3]", "[0,8]") "}", 8,
        "has 8 bytes of data, but its shape [2, 3] of BF16 needs 12", "\"w\"");
    bad("{" ENTRY("w", "F32", "[4611686018427387904,4]", "[0,0]") "}", 0, "needs more than",
        "\"w\"");
    bad("{" ENTRY("w", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "needs more than", "\"w\"");
    bad("{" ENTRY("v", "F32", "[2]", "[0,8]") "," ENTRY("w", "F32", "[2]", "[4,12]") "}", 12,
        "overlaps \"v\": it begins at byte 4 of the data, before 8", "\"w\"");
    bad("{" ENTRY("v", "F32", "[2]", "[0,8]") "," ENTRY("w", "F32", "[2]", "[0,8]") "}", 8,
        "overlaps \"v\"", "\"w\"");
    bad("{" ENTRY("v", "F32", "[1]", "[0,4]") "," ENTRY("w", "F32", "[1]", "[8,12]") "}", 12,
        "bytes from 4 on belong to no tensor", "\"w\"");
    bad("{" ENTRY("w", "F32", "[1]", "[4,8]") "}", 8, "bytes from 0 on belong to no tensor",
        "\"w\"");
    bad("{" ENTRY("w", "F32", "[1]", "[0,4]") "}", 9,
        "the last 5 of 9 bytes of data belong to no tensor", "");
    bad("{}", 3, "the last 3 of 3 bytes", "");
}

/* Unusual but valid files. */
static void test_accepted(void **unused)
{
    (void)unused;
    const char *header = "{" ENTRY("scalar", "F32", "[]", "[1,5]") "," ENTRY(
        "none", "BF16", "[3,0]", "[5,5]") "," ENTRY("flag", "BOOL", "[1]", "[0,1]") "}  \n";
    struct tdm_safetensors *file;
    struct tdm_error err = {0};
    put(strlen(header), header, strlen(header), 5);
    assert_int_equal(symlink(FILE_NAME, "link"), 0);
    if (tdm_safetensors_open("link", &file, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(file->tensor_count, 3);
    assert_string_equal(file->tensors[0].name, "flag");
    assert_string_equal(file->tensors[0].type, "BOOL");
    assert_int_equal(file->tensors[0].dtype, TDM_DTYPE_NONE);
    assert_string_equal(file->tensors[1].name, "scalar");
    assert_int_equal(file->tensors[1].elements, 1);
    assert_int_equal(file->tensors[1].offset, 8 + strlen(header) + 1);
    assert_string_equal(file->tensors[2].name, "none");
    assert_int_equal(file->tensors[2].elements, 0);
    float value = 1;
    assert_int_equal(tdm_safetensors_read(file, &file->tensors[1], 0, 1, &value, &err), TDM_OK);
    assert_true(value == 0);
    assert_int_equal(tdm_safetensors_read(file, &file->tensors[1], 1, 1, &value, &err),
                     TDM_INTERNAL);
    assert_int_equal(tdm_safetensors_read(file, &file->tensors[0], 0, 1, &value, &err),
                     TDM_INTERNAL);
    assert_int_equal(truncate(FILE_NAME, 20), 0);
    assert_int_equal(tdm_safetensors_read(file, &file->tensors[1], 0, 1, &value, &err), TDM_IO);
    assert_non_null(strstr(err.message, "it was longer when opened"));
    tdm_safetensors_close(file);
    unlink("link");
    unlink(FILE_NAME);
}

/* ---- written and read ---- */

/* Values that all three dtypes can hold, of both signs, with zeros. */
static float value_of(uint64_t i)
{
    float value = (float)(i % 251) / 64;
    return i % 3 == 0 ? -value : value;
}

static void write_file(enum tdm_dtype dtype, const struct tdm_safetensor *tensors, uint32_t count,
                       uint64_t elements, const float *values)
{
    struct tdm_safetensors_writer writer;
    struct tdm_error err = {0};
    assert_int_equal(tdm_safetensors_create(FILE_NAME, dtype, count, tensors, &writer, &err),
                     TDM_OK);
    for (uint64_t done = 0; done < elements;) { /* pieces that do not begin where tensors do */
        uint64_t some = elements - done < 1000 ? elements - done : 1000;
        assert_int_equal(tdm_safetensors_append(&writer, values + done, some, &err), TDM_OK);
        done += some;
    }
    assert_int_equal(tdm_safetensors_append(&writer, values, 1, &err), TDM_INTERNAL);
    assert_int_equal(tdm_safetensors_finish(&writer, &err), TDM_OK);
}

static void test_round_trip(void **unused)
{
    (void)unused;
    static const struct tdm_safetensor tensors[] = {
        {.name = "first", .rank = 2, .shape = {300, 257}},
        {.name = "second", .rank = 1, .shape = {5}},
        {.name = "third", .rank = 3, .shape = {2, 3, 300}},
    };
    static const enum tdm_dtype dtypes[] = {TDM_DTYPE_FP32, TDM_DTYPE_BF16, TDM_DTYPE_FP16};
    enum { COUNT = 300 * 257 + 5 + 1800 };
    float *values = malloc(COUNT * sizeof(*values)), *back = malloc(COUNT * sizeof(*back));
    for (uint64_t i = 0; i < COUNT; i++)
        values[i] = value_of(i);
    for (int d = 0; d < 3; d++) {
        struct tdm_safetensors *file;
        struct tdm_error err = {0};
        struct stat info;
        write_file(dtypes[d], tensors, 3, COUNT, values);
        assert_int_equal(stat(FILE_NAME, &info), 0);
        assert_int_equal(info.st_size, tdm_safetensors_file_bytes(dtypes[d], 3, tensors));
        if (tdm_safetensors_open(FILE_NAME, &file, &err) != TDM_OK)
            fail_msg("%s", err.message);
        assert_int_equal(file->tensor_count, 3);
        assert_int_equal(file->tensors[0].offset % 8, 0);
        for (uint32_t t = 0, at = 0; t < 3; t++) {
            const struct tdm_safetensor *tensor = &file->tensors[t];
            assert_string_equal(tensor->name, tensors[t].name);
            assert_int_equal(tensor->dtype, dtypes[d]);
            assert_int_equal(tensor->rank, tensors[t].rank);
            assert_memory_equal(tensor->shape, tensors[t].shape, sizeof(tensor->shape));
            uint64_t half = tensor->elements / 2; /* in two parts */
            assert_int_equal(tdm_safetensors_read(file, tensor, 0, half, back, &err), TDM_OK);
            assert_int_equal(tdm_safetensors_read(file, tensor, half, tensor->elements - half,
                                                  back + half, &err),
                             TDM_OK);
            assert_memory_equal(back, values + at, tensor->elements * sizeof(*back));
            at += (uint32_t)tensor->elements;
        }
        tdm_safetensors_close(file);
        struct tdm_safetensors_writer writer; /* an existing file is not replaced */
        assert_int_equal(tdm_safetensors_create(FILE_NAME, dtypes[d], 3, tensors, &writer, &err),
                         TDM_IO);
        assert_int_equal(unlink(FILE_NAME), 0);
    }
    free(values);
    free(back);
}

static void test_not_finite(void **unused)
{
    (void)unused;
    static const struct tdm_safetensor tensor = {.name = "w", .rank = 1, .shape = {3}};
    static const enum tdm_dtype dtypes[] = {TDM_DTYPE_FP32, TDM_DTYPE_BF16, TDM_DTYPE_FP16};
    const float values[] = {INFINITY, -INFINITY, NAN};
    for (int d = 0; d < 3; d++)
        for (int v = 0; v < 3; v++) {
            float row[3] = {1, 2, values[v]};
            struct tdm_safetensors *file;
            struct tdm_error err = {0};
            write_file(dtypes[d], &tensor, 1, 3, row);
            assert_int_equal(tdm_safetensors_open(FILE_NAME, &file, &err), TDM_OK);
            assert_int_equal(tdm_safetensors_read(file, file->tensors, 0, 2, row, &err), TDM_OK);
            assert_int_equal(tdm_safetensors_read(file, file->tensors, 0, 3, row, &err), TDM_INPUT);
            assert_non_null(strstr(err.message, "\"w\" holds a value that is not finite"));
            tdm_safetensors_close(file);
            unlink(FILE_NAME);
        }
}

/* If the disk is full after n bytes, there is an error and no file. */
static void test_full_disk(void **unused)
{
    (void)unused;
    static const struct tdm_safetensor tensor = {.name = "w", .rank = 1, .shape = {100}};
    const uint64_t bytes = tdm_safetensors_file_bytes(TDM_DTYPE_FP32, 1, &tensor);
    float values[100] = {0};
    struct rlimit old, low;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (uint64_t limit = 0; limit <= bytes; limit += 7) {
        struct tdm_safetensors_writer writer;
        struct tdm_error err = {0};
        low = old;
        low.rlim_cur = limit + 7 > bytes ? bytes : limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        enum tdm_status status =
            tdm_safetensors_create(FILE_NAME, TDM_DTYPE_FP32, 1, &tensor, &writer, &err);
        if (status == TDM_OK) {
            status = tdm_safetensors_append(&writer, values, 100, &err);
            if (status == TDM_OK)
                status = tdm_safetensors_finish(&writer, &err);
            else
                tdm_safetensors_abandon(&writer);
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, low.rlim_cur == bytes ? TDM_OK : TDM_IO);
        assert_int_equal(access(FILE_NAME, F_OK), status == TDM_OK ? 0 : -1);
    }
    signal(SIGXFSZ, SIG_DFL);
    unlink(FILE_NAME);
}

static int enter_scratch(void **unused)
{
    (void)unused;
    const char *scratch = getenv("TDM_SCRATCH");
    return scratch == NULL ? 0 : chdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_lengths), cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_offsets), cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
