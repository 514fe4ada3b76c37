/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of base/: units, dtypes, digests, JSON and its error messages, and whole-file writes. */
#include "base/digest.h"
#include "base/directory.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/install.h"
#include "base/json.h"
#include "base/output.h"
#include "base/size.h"
#include "base/text.h"
#include "base/units.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[256];

/* Uses TDM_SCRATCH if the test runner sets it, else a new folder that is not removed. */
static int make_scratch(void **state)
{
    (void)state;
    const char *given = getenv("TDM_SCRATCH");
    snprintf(scratch, sizeof(scratch), "%s", given != NULL ? given : "/tmp/unit_base.XXXXXX");
    return given == NULL && mkdtemp(scratch) == NULL ? -1 : 0;
}

static const char *in_scratch(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", scratch, name);
    return path;
}

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* Units. */

static void test_parse_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"123", 123},
        {"123B", 123},
        {"64K", 65536},
        {"64k", 65536},
        {"1KiB", 1024},
        {"512MiB", UINT64_C(512) << 20},
        {"80G", UINT64_C(80) << 30},
        {"80GiB", UINT64_C(80) << 30},
        {"80 GiB", UINT64_C(80) << 30},
        {"1.5GiB", UINT64_C(1610612736)},
        {"0.5K", 512},
        {"2T", UINT64_C(2) << 40},
        {"2.0", 2},
        {"12.34 GiB", UINT64_C(13249974108)}, /* rounded down */
        {"0.999999999999999999999999K", 1023},
        {"16777215.9T", UINT64_C(18446743963758388838)},
        {"18446744073709551614", UINT64_MAX - 1},
    };
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "is not a size"},
        {"G", "is not a size"},
        {"-1", "is not a size"},
        {"+1", "is not a size"},
        {" 1", "is not a size"},
        {"1 ", "is not a size"},
        {"1..5G", "is not a size"},
        {"1.G", "is not a size"},
        {".5G", "is not a size"},
        {"1e9", "is not a size"},
        {"0x10", "is not a size"},
        {"80GX", "is not a size"},
        {"80Gi", "is not a size"},
        {"80GB", "powers of 1000 or of 1024"},
        {"1.5", "not a whole number of bytes"},
        {"1.5B", "not a whole number of bytes"},
        {"16777216T", "more bytes than 64 bits"},
        {"99999999999999999999999", "more bytes than 64 bits"},
    };
    struct tdm_error err;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t bytes = 7;
        assert_int_equal(tdm_parse_bytes(good[i].text, "--memory", &bytes, &err), TDM_OK);
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t bytes = 7;
        assert_int_equal(tdm_parse_bytes(bad[i].text, "--memory", &bytes, &err), TDM_USAGE);
        assert_int_equal(bytes, 7);
        assert_contains(err.message, "--memory: \"");
        assert_contains(err.message, bad[i].message);
    }
    assert_int_equal(tdm_parse_bytes("nonsense", "--memory", &(uint64_t){0}, NULL), TDM_USAGE);
}

static void test_parse_tokens(void **state)
{
    (void)state;
    struct tdm_error err;
    uint64_t tokens;
    assert_int_equal(tdm_parse_tokens("4096", "--context", &tokens, &err), TDM_OK);
    assert_int_equal(tokens, 4096);
    assert_int_equal(tdm_parse_tokens("256K", "--context", &tokens, &err), TDM_OK);
    assert_int_equal(tokens, 262144);
    assert_int_equal(tdm_parse_tokens("1m", "--context", &tokens, &err), TDM_OK);
    assert_int_equal(tokens, 1048576);
    assert_int_equal(tdm_parse_tokens("0.5M", "--context", &tokens, &err), TDM_OK);
    assert_int_equal(tokens, 524288);

    static const struct {
        const char *text, *message;
    } bad[] = {
        {"0", "at least 1"},
        {"0K", "at least 1"},
        {"1.3K", "whole number"},
        {"1G", "not a count of tokens"},
        {"4KiB", "not a count"},
        {"-4K", "not a count"},
        {"", "not a count"},
        {"18446744073709551616", "more tokens than 64 bits"},
        {"17592186044416M", "more tokens"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tokens = 7;
        assert_int_equal(tdm_parse_tokens(bad[i].text, "--context", &tokens, &err), TDM_USAGE);
        assert_int_equal(tokens, 7);
        assert_contains(err.message, bad[i].message);
    }
}

static void test_parse_count(void **state)
{
    (void)state;
    struct tdm_error err;
    uint64_t count;
    assert_int_equal(tdm_parse_count("12", "--steps", 1, 100, &count, &err), TDM_OK);
    assert_int_equal(count, 12);
    static const char *const bad[] = {"0",  "101", "-1", "1.0",
                                      "1K", "",    "x",  "18446744073709551616"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tdm_parse_count(bad[i], "--steps", 1, 100, &count, &err), TDM_USAGE);
        assert_contains(err.message, "not a whole number from 1 to 100");
    }
    assert_int_equal(count, 12);
    assert_int_equal(tdm_parse_count("0", "--steps", 1, UINT64_MAX, &count, &err), TDM_USAGE);
    assert_contains(err.message, "at least 1");
}

static void test_format(void **state)
{
    (void)state;
    char out[TDM_FORMAT_SIZE];
    assert_string_equal(tdm_format_bytes(0, out), "0 B");
    assert_string_equal(tdm_format_bytes(17, out), "17 B");
    assert_string_equal(tdm_format_bytes(1023, out), "1023 B");
    assert_string_equal(tdm_format_bytes(3072, out), "3 KiB");
    assert_string_equal(tdm_format_bytes(UINT64_C(512) << 20, out), "512 MiB");
    assert_string_equal(tdm_format_bytes(UINT64_C(13249974108), out), "12.34 GiB");
    assert_string_equal(tdm_format_bytes((UINT64_C(1) << 30) - 1, out), "1.00 GiB");
    assert_string_equal(tdm_format_bytes(UINT64_MAX, out), "16777216.00 TiB");

    assert_string_equal(tdm_format_tokens(262144, out), "256K");
    assert_string_equal(tdm_format_tokens(1 << 20, out), "1M");
    assert_string_equal(tdm_format_tokens(3 << 19, out), "1536K");
    assert_string_equal(tdm_format_tokens(4096, out), "4K");
    assert_string_equal(tdm_format_tokens(5000, out), "5000");
    assert_string_equal(tdm_format_tokens(0, out), "0");
    assert_string_equal(tdm_format_tokens(UINT64_MAX, out), "18446744073709551615");

    assert_string_equal(tdm_format_seconds(102.3, out), "102 s");
    assert_string_equal(tdm_format_seconds(9999.4, out), "9999 s");
    assert_string_equal(tdm_format_seconds(9999.6, out), "2.8 h");
    assert_string_equal(tdm_format_seconds(127435, out), "35.4 h");
    assert_string_equal(tdm_format_seconds(100 * 3600, out), "4.2 days");
    assert_string_equal(tdm_format_seconds(99.996, out), "100 s");
    assert_string_equal(tdm_format_seconds(31.5, out), "31.50 s");
    assert_string_equal(tdm_format_seconds(0.99996, out), "1.00 s");
    assert_string_equal(tdm_format_seconds(0.0123, out), "12.3 ms");
    assert_string_equal(tdm_format_seconds(45e-6, out), "45 us");
    assert_string_equal(tdm_format_seconds(3e-9, out), "3 ns");
    assert_string_equal(tdm_format_seconds(0, out), "0 s");
    assert_string_equal(tdm_format_seconds(-1.5, out), "-1.50 s");
    assert_true(strlen(tdm_format_seconds(-1e300, out)) < TDM_FORMAT_SIZE);
    assert_true(strlen(tdm_format_seconds((double)NAN, out)) < TDM_FORMAT_SIZE);
}

/* A printed size parses back to within its rounding error. */
static void test_format_reads_back(void **state)
{
    (void)state;
    for (uint64_t bytes = 1; bytes < UINT64_MAX / 7; bytes = bytes * 7 / 3 + 1) {
        char out[TDM_FORMAT_SIZE];
        uint64_t again;
        assert_int_equal(tdm_parse_bytes(tdm_format_bytes(bytes, out), "size", &again, NULL),
                         TDM_OK);
        double off = fabs((double)again - (double)bytes) / (double)bytes;
        assert_true(off <= 0.005);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(tdm_size_add(UINT64_MAX, 1), TDM_SIZE_MAX);
    assert_int_equal(tdm_size_mul(UINT64_C(1) << 32, UINT64_C(1) << 32), TDM_SIZE_MAX);
    assert_int_equal(tdm_size_mul(TDM_SIZE_MAX, 2), TDM_SIZE_MAX);
    assert_int_equal(tdm_size_align(1, 128), 128);
    assert_int_equal(tdm_size_align(128, 128), 128);
    assert_int_equal(tdm_size_align(UINT64_MAX - 3, 128), TDM_SIZE_MAX);
    assert_int_equal(tdm_size_ceil_div(UINT64_MAX, 2), UINT64_C(1) << 63);
}

/* Types. */

static void test_dtype_names(void **state)
{
    (void)state;
    static const uint64_t bytes[TDM_DTYPES] = {0, 4, 2, 2, 2, 4, 8};
    for (unsigned i = 0; i < TDM_DTYPES; i++) {
        enum tdm_dtype again = TDM_DTYPES;
        assert_true(tdm_dtype_parse(tdm_dtype_name((enum tdm_dtype)i), &again));
        assert_int_equal(again, i);
        assert_int_equal(tdm_dtype_bytes((enum tdm_dtype)i), bytes[i]);
    }
    enum tdm_dtype untouched = TDM_DTYPE_INT32;
    assert_false(tdm_dtype_parse("BF16", &untouched));
    assert_int_equal(untouched, TDM_DTYPE_INT32);
}

/* The value of an IEEE-like bit pattern, computed from the definition. */
static double value_of(unsigned bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1));
    double size;
    if (exponent == (1 << exponent_bits) - 1)
        size = mantissa == 0 ? (double)INFINITY : (double)NAN;
    else if (exponent == 0)
        size = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        size = ldexp(mantissa + ldexp(1, mantissa_bits), exponent - bias - mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) ? -size : size;
}

static uint16_t to_bf16(float value)
{
    return tdm_float_to_bf16(value);
}

static float from_bf16(uint16_t bits)
{
    return tdm_bf16_to_float(bits);
}

/* Checks the value and round trip of every pattern, and rounding at and beside each midpoint. */
static void check_half(uint16_t (*to)(float), float (*from)(uint16_t), int exponent_bits,
                       int mantissa_bits)
{
    unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    for (unsigned bits = 0; bits < 65536; bits++) {
        double expected = value_of(bits, exponent_bits, mantissa_bits);
        float value = from((uint16_t)bits);
        if (isnan(expected)) {
            assert_true(isnan(value));
            assert_true(isnan(from(to(value))));
        } else {
            assert_true((double)value == expected);
            assert_int_equal(to(value), bits);
        }
    }
    /* Above the largest finite value, the midpoint is half a unit in the last place away, as if
     * infinity were the next value. */
    for (unsigned bits = 0; bits < infinity; bits++) {
        double below = value_of(bits, exponent_bits, mantissa_bits);
        double above = bits + 1 < infinity
                           ? value_of(bits + 1, exponent_bits, mantissa_bits)
                           : 2 * below - value_of(bits - 1, exponent_bits, mantissa_bits);
        float middle = (float)((below + above) / 2);
        unsigned even = bits % 2 == 0 ? bits : bits + 1;
        assert_int_equal(to(middle), even);
        assert_int_equal(to(nextafterf(middle, 0)), bits);
        assert_int_equal(to(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(to(-middle), even | 0x8000u);
    }
    assert_int_equal(to(INFINITY), infinity);
    assert_int_equal(to(-INFINITY), infinity | 0x8000u);
}

static void test_bf16(void **state)
{
    (void)state;
    check_half(to_bf16, from_bf16, 8, 7);
}

static void test_fp16(void **state)
{
    (void)state;
    check_half(tdm_float_to_fp16, tdm_fp16_to_float, 5, 10);
    assert_int_equal(tdm_float_to_fp16(3e38f), 0x7c00);
    assert_int_equal(tdm_float_to_fp16(1e-30f), 0);
}

static void test_digest(void **state)
{
    (void)state;
    char out[TDM_DIGEST_SIZE];
    assert_string_equal(tdm_digest_text("", out), "cbf29ce484222325");
    assert_string_equal(tdm_digest_text("a", out), "af63dc4c8601ec8c");
    assert_string_equal(tdm_digest_text("foobar", out), "85944171f73967e8");
}

/* JSON. */

static struct tdm_json_reader reader_of(json_t *object, struct tdm_error *err)
{
    return (struct tdm_json_reader){.file = "x.json", .prefix = "", .object = object, .err = err};
}

/* A message with a long name has its reason, and whole characters. */
static void test_long_messages(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    char path[3000], shown[16];
    memset(path, 'a', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    for (size_t length = sizeof(path) - 1; length > 600; length -= 7) {
        path[length] = '\0';
        memcpy(path, "begin", 5);
        memcpy(path + length - 3, "end", 3);
        assert_int_equal(tdm_fail(&err, TDM_IO, "%s: cannot be created: %s", path, "too long"),
                         TDM_IO);
        assert_memory_equal(err.message, "begina", 6);
        assert_contains(err.message, "aend: cannot be created: too long");
        tdm_hint(&err, "see %s, which is there", path);
        assert_contains(err.hint, "aend, which is there");
        tdm_about(&err, path);
        assert_memory_equal(err.message, "begina", 6);
        assert_contains(err.message, "aend: begina");
        assert_contains(err.message, "cannot be created: too long");
    }
    tdm_text_shorten("0123456789", shown, 11);
    assert_string_equal(shown, "0123456789");
    tdm_text_shorten("0123456789", shown, 10);
    assert_string_equal(shown, "012...789");
    tdm_text_shorten("01\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", shown, 10);
    assert_string_equal(shown, "01...\xc3\xa4");
    memset(path, 0x80, 100); /* no characters at all */
    path[100] = '\0';
    tdm_text_shorten(path, shown, 16);
    assert_true(strlen(shown) <= 15);
}

static void test_json_getters(void **state)
{
    (void)state;
    struct tdm_error err;
    json_t *object = json_pack("{s:i, s:f, s:b, s:s, s:{}, s:[], s:n}", "count", 3, "number", 2.5,
                               "yes", 1, "text", "word", "object", "array", "nothing");
    struct tdm_json_reader reader = reader_of(object, &err);
    assert_int_equal(tdm_json_count(&reader, "count", 1, 3), 3);
    assert_int_equal(tdm_json_count_or(&reader, "absent", 1, 3, 99), 99);
    assert_int_equal(tdm_json_count_or(&reader, "nothing", 1, 3, 98), 98);
    assert_true(tdm_json_number(&reader, "number", 0, 10) == 2.5);
    assert_true(tdm_json_number(&reader, "count", 0, 10) == 3);
    assert_true(tdm_json_number_or(&reader, "nothing", 0, 10, -1) == -1);
    assert_true(tdm_json_bool_or(&reader, "yes", false));
    assert_true(tdm_json_bool_or(&reader, "nothing", true));
    assert_string_equal(tdm_json_string(&reader, "text"), "word");
    assert_string_equal(tdm_json_string_or(&reader, "absent", "other"), "other");
    assert_non_null(tdm_json_object(&reader, "object"));
    assert_non_null(tdm_json_array(&reader, "array"));
    assert_true(tdm_json_has(&reader, "count"));
    assert_false(tdm_json_has(&reader, "nothing"));
    assert_int_equal(tdm_json_status(&reader), TDM_OK);

    /* After the first failure, later calls do nothing. */
    tdm_json_count(&reader, "count", 4, 10);
    tdm_json_string(&reader, "absent");
    assert_null(tdm_json_object(&reader, "object"));
    assert_int_equal(tdm_json_status(&reader), TDM_INPUT);
    assert_string_equal(err.message,
                        "x.json: \"count\" is 3; it must be a whole number from 4 to 10");
    json_decref(object);
}

enum getter { COUNT, NUMBER, BOOL, STRING, OBJECT, ARRAY };

static void test_json_messages(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum getter getter;
        const char *message;
    } cases[] = {
        {"{}", COUNT, "x.json: \"a.b\" is missing; add it as a whole number from 1 to 10"},
        {"{\"b\": null}", COUNT, "\"a.b\" is missing"},
        {"{\"b\": 0}", COUNT, "\"a.b\" is 0; it must be a whole number from 1 to 10"},
        {"{\"b\": -1}", COUNT, "\"a.b\" is -1;"},
        {"{\"b\": 1.5}", COUNT, "\"a.b\" is 1.5; it must be a whole number"},
        {"{\"b\": \"7\"}", COUNT, "\"a.b\" is \"7\"; it must be a whole number"},
        {"{\"b\": {}}", COUNT, "\"a.b\" is an object; it must be a whole number"},
        {"{\"b\": 11}", NUMBER, "\"a.b\" is 11; it must be a number from 1 to 10"},
        {"{\"b\": true}", NUMBER, "\"a.b\" is true; it must be a number"},
        {"{\"b\": 1}", BOOL, "\"a.b\" is 1; it must be true or false"},
        {"{\"b\": 1}", STRING, "\"a.b\" is 1; it must be a string"},
        {"{\"b\": []}", OBJECT, "\"a.b\" is an array; it must be an object"},
        {"{\"b\": {}}", ARRAY, "\"a.b\" is an object; it must be an array"},
        {"{\"b\": \"0123456789012345678901234567890123456789012345678901234567890\"}", COUNT,
         "\"a.b\" is \"0123456789012345678901234567890123456789012...; it must"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_error err = {0};
        json_t *object = json_loads(cases[i].text, 0, NULL);
        assert_non_null(object);
        struct tdm_json_reader reader = reader_of(object, &err);
        reader.prefix = "a";
        switch (cases[i].getter) {
        case COUNT:
            tdm_json_count(&reader, "b", 1, 10);
            break;
        case NUMBER:
            tdm_json_number(&reader, "b", 1, 10);
            break;
        case BOOL:
            tdm_json_bool_or(&reader, "b", true);
            break;
        case STRING:
            tdm_json_string(&reader, "b");
            break;
        case OBJECT:
            tdm_json_object(&reader, "b");
            break;
        case ARRAY:
            tdm_json_array(&reader, "b");
            break;
        }
        assert_int_equal(tdm_json_status(&reader), TDM_INPUT);
        assert_contains(err.message, cases[i].message);
        json_decref(object);
    }
}

static void test_json_only(void **state)
{
    (void)state;
    static const char *const keys[] = {"alpha", "beta", NULL};
    struct tdm_error err;
    json_t *object = json_pack("{s:i, s:i}", "alpha", 1, "bta", 2);
    struct tdm_json_reader reader = reader_of(object, &err);
    assert_int_equal(tdm_json_only(&reader, keys), TDM_INPUT);
    assert_string_equal(err.message, "x.json: \"bta\" is not a known field; correct its spelling "
                                     "or remove it");
    assert_string_equal(err.hint, "known here: alpha, beta");
    json_object_del(object, "bta");
    reader = reader_of(object, NULL);
    assert_int_equal(tdm_json_only(&reader, keys), TDM_OK);
    json_decref(object);
}

static void test_json_canonical(void **state)
{
    (void)state;
    json_t *object = json_loads("{\"b\": [1, 2.5], \"a\": {\"d\": null, \"c\": true}}", 0, NULL);
    char *text = tdm_json_canonical(object);
    assert_string_equal(text, "{\"a\":{\"c\":true,\"d\":null},\"b\":[1,2.5]}");
    free(text);
    json_decref(object);
}

static void test_json_load(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "is empty"},
        {"{\"a\": 1,\n}", "line 2, column 1: not valid JSON"},
        {"{\"a\": NaN}", "line 1, column 9: not valid JSON"},
        {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
        {"{\"a\": 1e999}", "real number overflow"},
        {"{\"a\": 99999999999999999999}", "too big integer"},
        {"{} {}", "not valid JSON"},
        {"[1]", "must hold a JSON object"},
        {"7", "must hold a JSON object"},
    };
    struct tdm_error err;
    json_t *root = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const char *path = in_scratch("bad.json");
        assert_int_equal(tdm_file_write(path, bad[i].text, strlen(bad[i].text), true, &err),
                         TDM_OK);
        assert_int_equal(tdm_json_load(path, &root, &err), TDM_INPUT);
        assert_contains(err.message, path);
        assert_contains(err.message, bad[i].message);
        assert_null(root);
        unlink(path);
    }
    assert_int_equal(tdm_json_load(in_scratch("absent.json"), &root, &err), TDM_IO);
    assert_contains(err.message, "absent.json: cannot be opened: No such file");
    assert_int_equal(tdm_json_load(scratch, &root, &err), TDM_IO);
    assert_contains(err.message, "Is a directory");
    assert_int_equal(tdm_json_load("/dev/zero", &root, &err), TDM_INPUT);
    assert_contains(err.message, "is larger than");
}

/* Files. */

static unsigned files_in_scratch(void)
{
    unsigned count = 0;
    DIR *folder = opendir(scratch);
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void assert_file_holds(const char *path, const char *expected)
{
    char *data = NULL;
    uint64_t bytes;
    assert_int_equal(tdm_file_read(path, 1 << 20, &data, &bytes, NULL), TDM_OK);
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(data, expected);
    free(data);
}

static void test_path_join(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a", "a/x"}, {"a//", "a/x"}, {"a/b/", "a/b/x"}, {"/", "/x"}, {".", "./x"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *path = tdm_path_join(cases[i][0], "x");
        assert_string_equal(path, cases[i][1]);
        free(path);
    }
}

static void test_write_whole(void **state)
{
    (void)state;
    struct tdm_error err;
    const char *path = in_scratch("file");
    assert_int_equal(tdm_file_write(path, "one", 3, false, &err), TDM_OK);
    assert_file_holds(path, "one");
    assert_int_equal(tdm_file_write(path, "two", 3, false, &err), TDM_USAGE);
    assert_contains(err.message, "exists already");
    assert_contains(err.hint, "--force");
    assert_file_holds(path, "one");
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(tdm_file_write(path, "three", 5, true, &err), TDM_OK);
    assert_file_holds(path, "three");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    assert_int_equal(files_in_scratch(), 1);
    unlink(path);
}

static void test_write_through_link(void **state)
{
    (void)state;
    char target[512];
    snprintf(target, sizeof(target), "%s", in_scratch("target"));
    assert_int_equal(tdm_file_write(target, "one", 3, false, NULL), TDM_OK);
    const char *link = in_scratch("link");
    assert_int_equal(symlink("target", link), 0);
    assert_int_equal(tdm_file_write(link, "two", 3, true, NULL), TDM_OK);
    assert_file_holds(target, "two");
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    unlink(link);
    unlink(target);
}

static bool owns_all(const char *name)
{
    (void)name;
    return true;
}

/* Of two processes that write one new name the second one fails, and the file stays. */
static void test_write_meanwhile(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    struct tdm_output output = {0};
    struct tdm_directory directory = {0};
    char *path = strdup(in_scratch("meanwhile")), *folder = strdup(in_scratch("meanwhile.d")),
         *inner = tdm_path_join(folder, "config.json");
    assert_int_equal(tdm_output_begin(path, false, &output, &err), TDM_OK);
    assert_int_equal(tdm_file_write(path, "one", 3, false, &err), TDM_OK);
    fputs("two", output.file);
    assert_int_equal(tdm_output_commit(&output, &err), TDM_IO);
    assert_file_holds(path, "one");
    assert_int_equal(tdm_file_move(inner, path, false), EEXIST);
    assert_int_equal(tdm_directory_begin(folder, false, owns_all, &directory, &err), TDM_OK);
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_int_equal(tdm_file_write(inner, "one", 3, false, &err), TDM_OK);
    assert_int_equal(tdm_directory_commit(&directory, &err), TDM_IO);
    assert_file_holds(inner, "one");
    unlink(path);
    unlink(inner);
    rmdir(folder);
    assert_int_equal(files_in_scratch(), 0);
    free(path);
    free(folder);
    free(inner);
}

static void test_write_failures(void **state)
{
    (void)state;
    struct tdm_error err;
    assert_int_equal(tdm_file_write(in_scratch("no/such/file"), "x", 1, false, &err), TDM_IO);
    assert_contains(err.message, "no/such/file: cannot be written: No such file or directory");
    assert_int_equal(tdm_file_write(scratch, "x", 1, true, &err), TDM_IO);
    assert_contains(err.message, "is a directory");
    assert_int_equal(tdm_file_write("", "x", 1, true, &err), TDM_USAGE);
    assert_int_equal(files_in_scratch(), 0);

    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(tdm_file_write("/dev/full", "x", 1, false, &err), TDM_IO);
        assert_contains(err.message, "No space left on device");
        assert_contains(err.hint, "free space");
        struct stat info;
        assert_int_equal(stat("/dev/full", &info), 0);
        assert_true(S_ISCHR(info.st_mode));
    }
}

/* A write fails in the middle of a file: the limit on file sizes stands for a full disk. */
static void test_write_cut_short(void **state)
{
    (void)state;
    struct tdm_error err;
    static char large[100000];
    const char *path = in_scratch("file");
    assert_int_equal(tdm_file_write(path, "old", 3, false, &err), TDM_OK);

    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit limit = {.rlim_cur = 40000, .rlim_max = before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    enum tdm_status over_old = tdm_file_write(path, large, sizeof(large), true, &err);
    char message[sizeof(err.message)];
    memcpy(message, err.message, sizeof(message));
    enum tdm_status anew = tdm_file_write(in_scratch("new"), large, sizeof(large), false, &err);
    struct tdm_output output; /* whose buffer is full before the end */
    enum tdm_status begun = tdm_output_begin(in_scratch("new"), false, &output, &err);
    for (size_t i = 0; i < 21 && begun == TDM_OK; i++)
        (void)fwrite(large, 1, sizeof(large), output.file);
    enum tdm_status pieces = begun == TDM_OK ? tdm_output_commit(&output, &err) : begun;
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);

    assert_int_equal(over_old, TDM_IO);
    assert_contains(message, "cannot be written: File too large");
    assert_int_equal(anew, TDM_IO);
    assert_int_equal(pieces, TDM_IO);
    assert_contains(err.message, "cannot be written: File too large");
    assert_file_holds(in_scratch("file"), "old");
    assert_int_equal(files_in_scratch(), 1);
    unlink(in_scratch("file"));
}

static void test_write_stdout(void **state)
{
    (void)state;
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    assert_true(kept >= 0);
    assert_non_null(freopen(in_scratch("stdout"), "w", stdout));
    enum tdm_status status = tdm_file_write("-", "out", 3, false, NULL);
    enum tdm_status full = TDM_IO;
    if (access("/dev/full", W_OK) == 0 && freopen("/dev/full", "w", stdout) != NULL)
        full = tdm_file_write("-", "out", 3, false, NULL);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    clearerr(stdout);
    assert_int_equal(status, TDM_OK);
    assert_int_equal(full, TDM_IO);
    assert_file_holds(in_scratch("stdout"), "out");
    unlink(in_scratch("stdout"));
}

static void test_read_limit(void **state)
{
    (void)state;
    struct tdm_error err;
    char *data = NULL;
    uint64_t bytes;
    static char text[70001];
    memset(text, 'x', sizeof(text) - 1);
    const char *path = in_scratch("file");
    assert_int_equal(tdm_file_write(path, text, sizeof(text) - 1, false, &err), TDM_OK);
    assert_int_equal(tdm_file_read(path, sizeof(text) - 2, &data, &bytes, &err), TDM_INPUT);
    assert_contains(err.message, "is larger than the 69999 bytes allowed");
    assert_null(data);
    assert_file_holds(path, text);
    unlink(path);
}

static void test_install_way(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *way;
    } cases[] = {
        {"/usr/bin", "/usr/share/tidemark", "../share/tidemark"},
        {"/usr/lib/x86_64-linux-gnu", "/usr/share/tidemark", "../../share/tidemark"},
        {"/usr/lib", "/usr/lib/tidemark/a.so", "tidemark/a.so"},
        {"/usr/lib", "/usr/libexec", "../libexec"},
        {"/opt/t", "/opt/t", ""},
        {"/bin", "/share", "../share"},
        {"/a//b/", "/a/c", "../c"},
    };
    char way[64], path[64];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(tdm_install_way(cases[i].from, cases[i].to, way, sizeof(way)));
        assert_string_equal(way, cases[i].way);
    }
    assert_false(tdm_install_way("/a/b/c/d", "/e", way, 8));
    assert_false(tdm_install_way("/a", "/b", way, 4));
    assert_true(tdm_install_path("/nowhere/file", path, sizeof(path)));
    assert_string_equal(path, "/nowhere/file");
    assert_false(tdm_install_path("/nowhere/file", path, 4));
}

static void test_data_directory(void **state)
{
    (void)state;
    struct tdm_error err;
    char path[64];
    char **names;
    const char *set = getenv("TIDEMARK_DATA");
    char *kept = set == NULL ? NULL : strdup(set);

    setenv("TIDEMARK_DATA", scratch, 1);
    assert_string_equal(tdm_data_directory(), scratch);
    assert_int_equal(tdm_data_names("absent", ".json", &names, &err), TDM_IO);
    assert_contains(err.hint, "TIDEMARK_DATA");
    assert_int_equal(tdm_file_write(in_scratch("b.json"), "", 0, false, &err), TDM_OK);
    assert_int_equal(tdm_file_write(in_scratch("a.json"), "", 0, false, &err), TDM_OK);
    assert_int_equal(tdm_file_write(in_scratch("c.txt"), "", 0, false, &err), TDM_OK);
    assert_int_equal(tdm_data_names(".", ".json", &names, &err), TDM_OK);
    assert_string_equal(names[0], "a");
    assert_string_equal(names[1], "b");
    assert_null(names[2]);
    char joined[16];
    assert_string_equal(tdm_names_join(names, joined, sizeof(joined)), "a, b");
    assert_string_equal(tdm_names_join(names, joined, 9), "a, ...");
    free(names);
    unlink(in_scratch("a.json"));
    unlink(in_scratch("b.json"));
    unlink(in_scratch("c.txt"));

    setenv("TIDEMARK_DATA", "/data", 1);
    assert_int_equal(tdm_data_path("plots", "memory", ".gp", path, sizeof(path), &err), TDM_OK);
    assert_string_equal(path, "/data/plots/memory.gp");
    assert_int_equal(tdm_data_path("plots", "memory", ".gp", path, 21, &err), TDM_INPUT);
    setenv("TIDEMARK_DATA", "", 1);
    assert_string_not_equal(tdm_data_directory(), "");

    if (kept != NULL)
        setenv("TIDEMARK_DATA", kept, 1);
    else
        unsetenv("TIDEMARK_DATA");
    free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_bytes),
        cmocka_unit_test(test_parse_tokens),
        cmocka_unit_test(test_parse_count),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_format_reads_back),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_dtype_names),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp16),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_long_messages),
        cmocka_unit_test(test_json_getters),
        cmocka_unit_test(test_json_messages),
        cmocka_unit_test(test_json_only),
        cmocka_unit_test(test_json_canonical),
        cmocka_unit_test(test_json_load),
        cmocka_unit_test(test_path_join),
        cmocka_unit_test(test_write_whole),
        cmocka_unit_test(test_write_through_link),
        cmocka_unit_test(test_write_meanwhile),
        cmocka_unit_test(test_write_failures),
        cmocka_unit_test(test_write_cut_short),
        cmocka_unit_test(test_write_stdout),
        cmocka_unit_test(test_read_limit),
        cmocka_unit_test(test_install_way),
        cmocka_unit_test(test_data_directory),
    };
    return cmocka_run_group_tests_name("base", tests, make_scratch, NULL);
}
