/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of files of tokens: a .npy of any width gives the tokens that a text of its bytes would, and one
 * that is not what it says is refused. */
#include "executor/tokens.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "tokens.npy"
#define COUNT 100u

static unsigned char number(uint64_t i)
{
    return (unsigned char)(i * 37 % 256);
}

/* A file as NumPy writes it: version, header, numbers of `width` bytes, then `more` bytes. */
static void put(unsigned version, const char *header, uint32_t width, uint64_t count, uint64_t more)
{
    FILE *file = fopen(FILE_NAME, "wb");
    uint32_t length = (uint32_t)strlen(header);
    assert_non_null(file);
    fprintf(file, "\x93NUMPY%c%c", (int)version, 0);
    fwrite(&length, 1, version == 1 ? 2 : 4, file);
    fputs(header, file);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = number(i);
        fwrite(&value, 1, width, file);
    }
    for (uint64_t i = 0; i < more; i++)
        fputc(0, file);
    assert_int_equal(fclose(file), 0);
}

static void put_row(unsigned version, const char *descr, uint32_t width, uint64_t count)
{
    char header[256];
    snprintf(header, sizeof(header),
             "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ",), }      \n", descr,
             count);
    put(version, header, width, count, 0);
}

static struct tdm_tokens *open_tokens(const char *path)
{
    struct tdm_tokens *tokens;
    struct tdm_error err = {0};
    if (tdm_tokens_open(path, 256, &tokens, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return tokens;
}

static void test_widths(void **unused)
{
    (void)unused;
    static const struct {
        const char *descr;
        uint32_t width;
    } kinds[] = {{"|u1", 1}, {"<u2", 2}, {"<i4", 4}, {"<u4", 4}, {"<i8", 8}, {"<u8", 8}};
    FILE *file = fopen("text", "wb");
    for (uint64_t i = 0; i < COUNT; i++)
        fputc(number(i), file);
    fclose(file);
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err = {0};
    assert_int_equal(tdm_model_load("byte-1m", &model, &err), TDM_OK);
    assert_int_equal(tdm_machine_load("h200", &machine, &err), TDM_OK);
    assert_int_equal(tdm_schedule_new(model, machine, 30, &schedule, &err), TDM_OK);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        put_row(1 + k % 3, kinds[k].descr, kinds[k].width, COUNT);
        struct tdm_tokens *array = open_tokens(FILE_NAME), *text = open_tokens("text");
        struct tdm_tokens *array_end, *text_end;
        assert_int_equal(tdm_tokens_count(array), COUNT);
        assert_true(tdm_tokens_unigram_entropy(array) == tdm_tokens_unigram_entropy(text));
        assert_int_equal(tdm_tokens_split(array, 0.4, &array_end, &err), TDM_OK);
        assert_int_equal(tdm_tokens_split(text, 0.4, &text_end, &err), TDM_OK);
        assert_int_equal(tdm_tokens_count(array_end), 40);
        for (uint64_t step = 1; step < 5; step++) {
            int32_t mine[2][30], due[2][30];
            tdm_tokens_step(array, schedule, 7, step, mine[0], mine[1]);
            tdm_tokens_step(text, schedule, 7, step, due[0], due[1]);
            assert_memory_equal(mine, due, sizeof(mine));
            tdm_tokens_window(array_end, schedule, 7, step % 2, mine[0], mine[1]);
            tdm_tokens_window(text_end, schedule, 7, step % 2, due[0], due[1]);
            assert_memory_equal(mine, due, sizeof(mine));
        }
        tdm_tokens_free(array_end);
        tdm_tokens_free(text_end);
        tdm_tokens_free(array);
        tdm_tokens_free(text);
    }
    tdm_schedule_free(schedule);
}

static void refused(const char *part)
{
    struct tdm_tokens *tokens = NULL;
    struct tdm_error err = {0};
    assert_int_equal(tdm_tokens_open(FILE_NAME, 200, &tokens, &err), TDM_INPUT);
    assert_null(tokens);
    if (strncmp(err.message, FILE_NAME ": ", 12) != 0 || strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", err.message, part);
}

/* Tokens that the vocabulary of 200 does not have. */
static void test_refused(void **unused)
{
    (void)unused;
    put_row(1, "<u4", 4, COUNT); /* number 6 is 6 * 37 */
    refused("token 6 is 222, and the model's vocabulary has 200");
    put(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", 8, 1, 0);
    FILE *file = fopen(FILE_NAME, "ab");
    const int64_t negative = -1;
    fwrite(&negative, 1, sizeof(negative), file);
    fclose(file);
    refused("token 1 is -1, and the model's vocabulary has 200");
    put(1, "{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }", 1, 1, 0);
    file = fopen(FILE_NAME, "ab");
    fwrite(&negative, 1, 1, file);
    fclose(file);
    refused("token 1 is -1, and the model's vocabulary has 200");
}

/* Each header is wrong in one way. */
static void test_headers(void **unused)
{
    (void)unused;
    put_row(1, "<f4", 4, 5);
    refused("no little-endian whole numbers");
    put_row(1, ">u2", 2, 5);
    refused("no little-endian whole numbers");
    put_row(1, "<u2", 2, 1);
    refused("1 tokens; a text of at least 2 is due");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 2), }", 2, 4, 0);
    refused("has not one dimension");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (), }", 2, 1, 0);
    refused("has not one dimension");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (-4,), }", 2, 4, 0);
    refused("has not one dimension");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }", 2, 4, 0);
    refused("has 8 bytes of data, but 5 numbers of 2 bytes by its header");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", 2, 4, 3);
    refused("has 11 bytes of data, but 4 numbers");
    put(1, "{'descr': '<u8', 'fortran_order': False, 'shape': (99999999999999999999,), }", 8, 4, 0);
    refused("has 32 bytes of data");
    put(1, "{'descr': '<u2', 'shap': (4,), }", 2, 4, 0);
    refused("lacks 'descr' or 'shape'");
    put(1, "", 2, 0, 0);
    refused("lacks 'descr' or 'shape'");
    put_row(2, "<u2", 2, 5);
    assert_int_equal(truncate(FILE_NAME, 30), 0);
    refused("its .npy header should have");
    assert_int_equal(truncate(FILE_NAME, 9), 0);
    refused("ends inside the header");
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
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_headers),
    };
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
