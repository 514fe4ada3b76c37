/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of token files. Every format gives the tokens of a text of the same bytes, a malformed file
 * is refused with its name, and documents reach the drawn batches. */
#include "base/inputs.h"
#include "base/json.h"
#include "executor/batch.h"
#include "executor/shuffle.h"
#include "texts/token_file.h"
#include "schedule/layout.h"

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

/* Writes a file as NumPy does: version, header, numbers of `width` bytes, then `more` bytes. */
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

static void write_raw(const char *path, uint64_t first, uint64_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++)
        fputc(number(first + i), file);
    assert_int_equal(fclose(file), 0);
}

static struct tdm_tokens *open_tokens(const char *path)
{
    struct tdm_tokens *tokens;
    struct tdm_error err = {0};
    if (tdm_tokens_open(path, 256, &tokens, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return tokens;
}

/* Its vocabulary is as large as that of any text here. */
static struct tdm_schedule *new_schedule(uint64_t context)
{
    struct tdm_model *shipped, *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err = {0};
    assert_int_equal(tdm_model_load("byte-1m", &shipped, &err), TDM_OK);
    json_t *config = tdm_json_copy(shipped->config);
    tdm_model_free(shipped);
    tdm_json_set(&config, "vocab_size", json_integer(50257));
    assert_int_equal(tdm_model_from_config("byte-1m", "byte-1m", config, &model, &err), TDM_OK);
    json_decref(config);
    assert_int_equal(tdm_machine_load("h200-published", &machine, &err), TDM_OK);
    assert_int_equal(tdm_schedule_new(model, machine, context, &schedule, &err), TDM_OK);
    return schedule;
}

static struct tdm_batch *new_batch(const struct tdm_tokens *tokens,
                                   const struct tdm_schedule *schedule)
{
    struct tdm_batch *batch;
    struct tdm_error err = {0};
    if (tdm_batch_new(tokens, schedule, &batch, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return batch;
}

static void same_batch(struct tdm_batch *a, struct tdm_batch *b)
{
    size_t bytes = tdm_schedule_tokens(a->schedule) * sizeof(int32_t);
    assert_memory_equal(a->inputs, b->inputs, bytes);
    assert_memory_equal(a->targets, b->targets, bytes);
    tdm_batch_free(a);
    tdm_batch_free(b);
}

static void compare_steps(const struct tdm_tokens *one, const struct tdm_tokens *other,
                          const struct tdm_schedule *schedule, uint64_t step)
{
    struct tdm_batch *a = new_batch(one, schedule), *b = new_batch(other, schedule);
    tdm_batch_step(a, 7, step);
    tdm_batch_step(b, 7, step);
    same_batch(a, b);
}

static void compare_windows(const struct tdm_tokens *one, const struct tdm_tokens *other,
                            const struct tdm_schedule *schedule)
{
    struct tdm_batch *a = new_batch(one, schedule), *b = new_batch(other, schedule);
    assert_int_equal(tdm_batch_windows(one, schedule), 1);
    tdm_batch_window(a, 7, 0);
    tdm_batch_window(b, 7, 0);
    same_batch(a, b);
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
    struct tdm_schedule *schedule = new_schedule(30);
    struct tdm_error err = {0};
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
            compare_steps(array, text, schedule, step);
            compare_windows(array_end, text_end, schedule);
        }
        tdm_tokens_free(array_end);
        tdm_tokens_free(text_end);
        tdm_tokens_free(array);
        tdm_tokens_free(text);
    }
    tdm_schedule_free(schedule);
}

static void refused_as(const char *what, uint32_t vocabulary, const char *file, const char *part)
{
    struct tdm_tokens *tokens = NULL;
    struct tdm_error err = {0};
    assert_int_equal(tdm_tokens_open(what, vocabulary, &tokens, &err), TDM_INPUT);
    assert_null(tokens);
    size_t length = strlen(file);
    if (strncmp(err.message, file, length) != 0 || strncmp(err.message + length, ": ", 2) != 0 ||
        strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not begin with \"%s\" or lacks \"%s\"", err.message, file, part);
}

static void refused(const char *part)
{
    refused_as(FILE_NAME, 200, FILE_NAME, part);
}

/* Tokens outside the vocabulary of 200. */
static void test_refused(void **unused)
{
    (void)unused;
    put_row(1, "<u4", 4, COUNT); /* number 6 is 6 * 37 */
    refused("token 6 of 100 is 222, but the model's vocabulary has 200");
    put(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", 8, 1, 0);
    FILE *file = fopen(FILE_NAME, "ab");
    const int64_t negative = -1;
    fwrite(&negative, 1, sizeof(negative), file);
    fclose(file);
    refused("token 1 of 2 is -1, but the model's vocabulary has 200");
    refused_as(FILE_NAME, TDM_ANY_VOCABULARY, FILE_NAME, "number 1 of 2 is -1; expected 0 to ");
    put(1, "{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }", 1, 1, 0);
    file = fopen(FILE_NAME, "ab");
    fwrite(&negative, 1, 1, file);
    fclose(file);
    refused("token 1 of 2 is -1, but the model's vocabulary has 200");
}

/* Each header is wrong in one way. */
static void test_headers(void **unused)
{
    (void)unused;
    static const char no_dictionary[] = "is not a dictionary";
    put_row(1, "<f4", 4, 5);
    refused("not little-endian integers");
    put_row(1, ">u2", 2, 5);
    refused("not little-endian integers");
    put(1, "{'descr': [('descr', '<u2'), ('b', '<u2')], 'fortran_order': False, 'shape': (1,), }",
        2, 2, 0);
    refused("not little-endian integers");
    put_row(1, "<u2", 2, 1);
    refused("has 1 token; at least 2 are needed");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 2), }", 2, 4, 0);
    refused("has 2 dimensions");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (), }", 2, 1, 0);
    refused("has 0 dimensions");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }", 2, 4, 0);
    refused("has 8 bytes of data, but 5 numbers of 2 bytes by its header");
    put(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", 2, 4, 3);
    refused("has 11 bytes of data, but 4 numbers");
    put(1, "{'descr': '<u8', 'fortran_order': False, 'shape': (99999999999999999999,), }", 8, 4, 0);
    refused("has 32 bytes of data");
    static const char *const broken[] = {
        "",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (-4,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4,,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shap': (4,), }",
        "{'descr': '<u2', 'fortran_order': False}",
        "{'descr': '<u2', 'shape': (4,), }",
        "{'descr': '<u2', 'fortran_order': 0, 'shape': (4,), }",
        "{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (4,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), 'more': 1}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), } and more",
        "{'descr': '<u2' 'fortran_order': False, 'shape': (4,), }",
        "{'descr': '<u2, 'fortran_order': False, 'shape': (4,), }",
        /* a search for 'descr': and 'shape': would accept these */
        "{'fortran_order': False, 'x': \"'descr': '<u2', 'shape': (4,)\"}",
    };
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        put(1, broken[i], 2, 4, 0);
        refused(no_dictionary);
    }
    put_row(2, "<u2", 2, 5);
    assert_int_equal(truncate(FILE_NAME, 30), 0);
    refused("its .npy header should have");
    assert_int_equal(truncate(FILE_NAME, 9), 0);
    refused("ends inside the header");
    put_row(4, "<u2", 2, 5);
    refused("is of version 4 of .npy");
}

/* Headers that Python reads, but that numpy.save writes differently. */
static void test_other_words(void **unused)
{
    (void)unused;
    static const char *const right[] = {
        "{\"shape\": (4,), \"fortran_order\": True, \"descr\": \"<u2\"}\n",
        "{ 'descr' :'<u2','fortran_order':False,'shape':( 4L , )}",
    };
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        put(1, right[i], 2, 4, 0);
        struct tdm_tokens *tokens = open_tokens(FILE_NAME);
        assert_int_equal(tdm_tokens_count(tokens), 4);
        assert_int_equal(tdm_tokens_at(tokens, 3), number(3));
        tdm_tokens_free(tokens);
    }
}

/* ---- raw numbers, and bytes ---- */

static void put_numbers(const char *path, uint32_t width, uint64_t count, uint64_t more)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = number(i);
        fwrite(&value, 1, width, file);
    }
    for (uint64_t i = 0; i < more; i++)
        fputc(0, file);
    assert_int_equal(fclose(file), 0);
}

/* Is `path` one of the files that `what` is read from? */
static bool reads(const char *what, const char *path)
{
    struct tdm_token_paths paths;
    struct tdm_error err = {0};
    assert_int_equal(tdm_token_file_paths(what, &paths, &err), TDM_OK);
    bool found = tdm_path_within(paths.tokens, path) ||
                 (paths.documents != NULL && tdm_path_within(paths.documents, path));
    free(paths.tokens);
    free(paths.documents);
    return found;
}

static void test_raw(void **unused)
{
    (void)unused;
    static const struct {
        const char *what;
        uint32_t width;
    } kinds[] = {{"uint16:raw", 2}, {"uint32:raw", 4}, {"bytes:raw", 1}, {"raw", 1}};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        put_numbers("raw", kinds[k].width, COUNT, 0);
        struct tdm_tokens *tokens = open_tokens(kinds[k].what);
        assert_int_equal(tdm_tokens_count(tokens), COUNT);
        assert_int_equal(tdm_tokens_documents(tokens), 0);
        assert_string_equal(tdm_tokens_name(tokens), "raw");
        for (uint64_t i = 0; i < COUNT; i++)
            assert_int_equal(tdm_tokens_at(tokens, i), number(i));
        tdm_tokens_free(tokens);
        assert_true(reads(kinds[k].what, "./raw"));
        assert_false(reads(kinds[k].what, "text"));
    }
    put_numbers("raw", 2, COUNT, 1);
    refused_as("uint16:raw", 256, "raw",
               "has 201 bytes, which is not a whole number of uint16 numbers");
    refused_as("uint32:raw", 256, "raw",
               "has 201 bytes, which is not a whole number of uint32 numbers");
    put_numbers("raw", 4, COUNT, 0);
    refused_as("uint32:raw", 200, "raw",
               "token 6 of 100 is 222, but the model's vocabulary has 200");
    refused_as("uint32:.", 256, ".", "is not a regular file");
}

/* Bytes are tokens only of byte-level vocabularies, unless the user says so. */
static void test_bytes(void **unused)
{
    (void)unused;
    struct tdm_tokens *tokens;
    struct tdm_error err = {0};
    put_numbers("raw", 1, COUNT, 0);
    assert_int_equal(tdm_tokens_open("raw", 260, &tokens, &err), TDM_OK);
    tdm_tokens_free(tokens);
    refused_as("raw", 261, "raw", "bytes are no tokens of a vocabulary of 261");
    assert_int_equal(tdm_tokens_open("raw", 261, &tokens, &err), TDM_INPUT);
    static const char *const ways[] = {".npy",        "llm.c",       "Megatron-LM",
                                       "uint16:FILE", "uint32:FILE", "bytes:FILE"};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        assert_non_null(strstr(err.hint, ways[i]));
    assert_int_equal(tdm_tokens_open("bytes:raw", 50257, &tokens, &err), TDM_OK);
    tdm_tokens_free(tokens);
    refused_as("raw", 200, "raw", "byte 6 of 100 is 222, but the model's vocabulary has 200");
}

/* ---- llm.c ---- */

struct llmc {
    int32_t magic, version, count;
    uint32_t width, delimiter;
};

static const struct llmc gpt2 = {20240520, 1, COUNT, 2, 50256};
static const struct llmc llama3 = {20240801, 7, COUNT, 4, 128000};

/* Writes COUNT tokens as llm.c does. Every tenth from number 5 on is the delimiter. */
static void put_llmc(const struct llmc *kind)
{
    FILE *file = fopen("data.bin", "wb");
    int32_t header[256] = {kind->magic, kind->version, kind->count};
    assert_non_null(file);
    fwrite(header, sizeof(header), 1, file);
    for (uint64_t i = 0; i < COUNT; i++) {
        uint32_t value = i % 10 == 5 ? kind->delimiter : number(i);
        fwrite(&value, 1, kind->width, file);
    }
    assert_int_equal(fclose(file), 0);
}

static void test_llmc(void **unused)
{
    (void)unused;
    const struct llmc *const kinds[] = {&gpt2, &llama3};
    for (size_t k = 0; k < 2; k++) {
        struct llmc wrong = *kinds[k];
        struct tdm_tokens *tokens, *last;
        struct tdm_error err = {0};
        put_llmc(kinds[k]);
        assert_int_equal(tdm_tokens_open("data.bin", 128256, &tokens, &err), TDM_OK);
        assert_int_equal(tdm_tokens_count(tokens), COUNT);
        assert_int_equal(tdm_tokens_at(tokens, 4), number(4));
        assert_int_equal(tdm_tokens_at(tokens, 5), kinds[k]->delimiter);
        /* one lies before the first delimiter */
        assert_int_equal(tdm_tokens_documents(tokens), 11);
        assert_int_equal(tdm_tokens_document_start(tokens, 0), 0);
        assert_int_equal(tdm_tokens_document_start(tokens, 10), 95);
        assert_int_equal(tdm_tokens_document_of(tokens, 94), 9);
        assert_int_equal(tdm_tokens_document_of(tokens, 95), 10);
        assert_true(tdm_tokens_predict_documents(tokens));
        assert_int_equal(tdm_tokens_split(tokens, 0.22, &last, &err), TDM_OK);
        assert_int_equal(tdm_tokens_documents(tokens), 9); /* up to token 77 */
        assert_int_equal(tdm_tokens_documents(last), 3);
        assert_int_equal(tdm_tokens_document_start(last, 0), 0);
        assert_int_equal(tdm_tokens_document_start(last, 1), 85 - 78);
        assert_int_equal(tdm_tokens_document_of(last, 6), 0);
        assert_int_equal(tdm_tokens_document_of(last, 17), 2);
        tdm_tokens_free(last);
        tdm_tokens_free(tokens);
        refused_as("data.bin", 300, "data.bin", "token 5 of 100 is");
        wrong.version++;
        put_llmc(&wrong);
        refused_as("data.bin", 128256, "data.bin", "is of version");
        wrong = *kinds[k];
        wrong.count++;
        put_llmc(&wrong);
        refused_as("data.bin", 128256, "data.bin", "but 101 tokens of");
        wrong.count = -1;
        put_llmc(&wrong);
        refused_as("data.bin", 128256, "data.bin", "but -1 tokens of");
        put_llmc(kinds[k]);
        assert_int_equal(truncate("data.bin", 1000), 0);
        refused_as("data.bin", 128256, "data.bin", "ends inside the header of llm.c data");
        assert_int_equal(truncate("data.bin", 1024), 0);
        refused_as("data.bin", 128256, "data.bin", "has 0 bytes of tokens");
    }
    assert_int_equal(remove("data.bin"), 0);
}

/* ---- Megatron-LM ---- */

/* An index as Megatron-LM writes it; tests change single fields. */
struct index {
    char magic[9];
    uint64_t version, sequences, entries;
    uint8_t code;
    int32_t lengths[6];
    int64_t pointers[6], documents[5];
    bool modes;
};

/* Documents of 10, 20, 0 and 30 tokens: five sequences, one of them empty. */
static const struct index right_index = {.magic = "MMIDIDX\0",
                                         .version = 1,
                                         .sequences = 5,
                                         .entries = 5,
                                         .lengths = {10, 15, 0, 5, 30},
                                         .documents = {0, 1, 4, 4, 5}};

static void put_index(const struct index *index)
{
    FILE *file = fopen("set.idx", "wb");
    assert_non_null(file);
    fwrite(index->magic, 9, 1, file);
    fwrite(&index->version, 8, 1, file);
    fwrite(&index->code, 1, 1, file);
    fwrite(&index->sequences, 8, 1, file);
    fwrite(&index->entries, 8, 1, file);
    fwrite(index->lengths, 4, 5, file);
    fwrite(index->pointers, 8, 5, file);
    fwrite(index->documents, 8, 5, file);
    if (index->modes)
        fwrite("\1\1\1\1\1", 1, 5, file);
    assert_int_equal(fclose(file), 0);
}

static struct index index_of(uint8_t code, uint32_t width)
{
    struct index index = right_index;
    int64_t byte = 0;
    index.code = code;
    for (int i = 0; i < 5; i++) {
        index.pointers[i] = byte;
        byte += (int64_t)index.lengths[i] * width;
    }
    return index;
}

static void test_megatron(void **unused)
{
    (void)unused;
    static const struct {
        uint8_t code;
        uint32_t width;
    } kinds[] = {{1, 1}, {3, 2}, {8, 2}, {4, 4}, {5, 8}};
    static const char *const names[] = {"set.bin", "set.idx", "set"};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct index index = index_of(kinds[k].code, kinds[k].width);
        index.modes = k == 2;
        put_index(&index);
        put_numbers("set.bin", kinds[k].width, 60, 0);
        for (size_t n = 0; n < 3; n++) {
            struct tdm_tokens *tokens = open_tokens(names[n]);
            assert_string_equal(tdm_tokens_name(tokens), "set.bin");
            assert_int_equal(tdm_tokens_count(tokens), 60);
            for (uint64_t i = 0; i < 60; i++)
                assert_int_equal(tdm_tokens_at(tokens, i), number(i));
            assert_int_equal(tdm_tokens_documents(tokens), 3);
            assert_int_equal(tdm_tokens_document_start(tokens, 1), 10);
            assert_int_equal(tdm_tokens_document_start(tokens, 2), 30);
            assert_false(tdm_tokens_predict_documents(tokens));
            tdm_tokens_free(tokens);
            assert_true(reads(names[n], "./set.bin"));
            assert_true(reads(names[n], "./set.idx"));
            assert_false(reads(names[n], "text"));
        }
    }
}

static void refused_index(const struct index *index, const char *part)
{
    put_index(index);
    refused_as("set.bin", 256, "set.idx", part);
}

static void test_broken_index(void **unused)
{
    (void)unused;
    struct index index;
    put_numbers("set.bin", 2, 60, 0);
#define BROKEN(change, part)         \
    do {                             \
        index = index_of(8, 2);      \
        change;                      \
        refused_index(&index, part); \
    } while (0)
    BROKEN(index.magic[0] = 'T', "does not begin as an index of Megatron-LM does");
    BROKEN(index.version = 2, "is of version 2");
    BROKEN(index.code = 7, "its dtype code is 7, which is not a whole number");
    BROKEN(index.code = 200, "its dtype code is 200");
    BROKEN(index.sequences = 6, "an index of 6 sequences and 5 document entries has");
    BROKEN(index.sequences = UINT64_MAX / 4, "an index of");
    BROKEN(index.entries = UINT64_MAX, "an index of");
    BROKEN(index.lengths[1] = -15, "sequence 1 has -15 tokens");
    BROKEN(index.lengths[1] = 16, "sequence 2 begins at byte 50, but those before it end at 52");
    BROKEN(index.pointers[0] = 2, "sequence 0 begins at byte 2");
    BROKEN(index.pointers[3] = -1, "sequence 3 begins at byte -1");
    BROKEN(index.lengths[4] = 31, "have 61 tokens of 2 bytes, but the .bin file has 120 bytes");
    BROKEN(index.code = 4; index.pointers[1] = 40; index.pointers[2] = index.pointers[3] = 100;
           index.pointers[4] = 120, "have 60 tokens of 4 bytes, but the .bin file has 120 bytes");
    BROKEN(index.documents[0] = 1, "entry 0 of its document index is 1; expected 0");
    BROKEN(index.documents[2] = 0, "entry 2 of its document index is 0");
    BROKEN(index.documents[4] = 6, "entry 4 of its document index is 6");
    BROKEN(index.documents[4] = 4, "its document index ends at sequence 4 of 5");
#undef BROKEN
    index = index_of(8, 2);
    put_index(&index);
    assert_int_equal(truncate("set.idx", 33), 0);
    refused_as("set", 256, "set.idx", "ends inside the header of a Megatron index");
    assert_int_equal(truncate("set.idx", 70), 0);
    refused_as("set", 256, "set.idx", "has 70 bytes");
    put_index(&index);
    refused_as("set", 200, "set.bin", "token 6 of 60 is 222");
    assert_int_equal(remove("set.bin"), 0);
    struct tdm_tokens *tokens;
    struct tdm_error err = {0};
    assert_int_equal(tdm_tokens_open("set.idx", 256, &tokens, &err), TDM_IO);
    assert_int_equal(strncmp(err.message, "set.bin: ", 9), 0);
    assert_int_equal(remove("set.idx"), 0);
}

/* ---- batches ---- */

/* Checks that a step's documents are those of the text where its sequences were drawn. */
static void check_documents(const struct tdm_tokens *tokens, const struct tdm_batch *batch)
{
    uint64_t row = 0, trained = 0;
    for (uint32_t s = 0; s < batch->schedule->sequence_count; s++) {
        const struct tdm_sequence *sequence = &batch->sequences[s];
        assert_int_equal(sequence->tokens, batch->schedule->sequences[s].tokens);
        assert_int_equal(sequence->document_starts[0], 0);
        for (uint64_t t = 0; t < sequence->tokens; t++, row++) {
            /* all tokens of the text differ, so a token shows its place */
            uint64_t at = (uint64_t)batch->inputs[row];
            uint64_t document = tdm_tokens_document_of(tokens, at);
            bool ends = at + 1 < tdm_tokens_count(tokens) &&
                        tdm_tokens_document_of(tokens, at + 1) != document &&
                        t + 1 < sequence->tokens;
            uint32_t d = tdm_document_of(sequence, t);
            uint64_t back = t - tdm_document_start(sequence, d);
            assert_int_equal(tdm_tokens_document_of(tokens, at - back), document);
            assert_true(at == back || tdm_document_start(sequence, d) == 0 ||
                        tdm_tokens_document_of(tokens, at - back - 1) != document);
            assert_int_equal(batch->targets[row], ends ? TDM_NO_TARGET : (int32_t)at + 1);
            assert_int_equal(tdm_document_end(sequence, d) == t + 1 && t + 1 < sequence->tokens,
                             ends);
            trained += !ends;
        }
    }
    assert_int_equal(batch->trained_tokens, trained);
}

/* Does a step know which tokens a batch has, and no others? */
static void check_used_rows(const struct tdm_batch *batch)
{
    const uint32_t vocabulary = batch->schedule->model->vocabulary;
    struct tdm_step step = {.number = 1};
    bool *has = calloc(vocabulary, sizeof(*has));
    uint32_t tokens = 0;
    assert_non_null(has);
    for (uint64_t i = 0; i < tdm_schedule_tokens(batch->schedule); i++)
        has[batch->inputs[i]] = true;
    tdm_batch_describe(batch, &step);
    for (uint32_t token = 0; token < vocabulary; token++) {
        assert_int_equal(step.used_rows[token / 64] >> token % 64 & 1, has[token]);
        tokens += has[token];
    }
    assert_in_range(tokens, 1, vocabulary - 1);
    free(has);
}

static void test_batches(void **unused)
{
    (void)unused;
    struct index index = index_of(8, 2);
    struct tdm_schedule *schedule = new_schedule(25);
    struct tdm_error err = {0};
    struct tdm_batch *batch = NULL;
    struct tdm_step step = {.number = 1};
    assert_int_equal(tdm_schedule_set_sequences(schedule, 2, 25, &err), TDM_OK);
    put_index(&index);
    FILE *file = fopen("set.bin", "wb");
    for (uint16_t i = 0; i < 60; i++)
        fwrite(&i, 2, 1, file);
    fclose(file);
    struct tdm_tokens *tokens = open_tokens("set"), *text = open_tokens("bytes:set.bin");
    batch = new_batch(tokens, schedule); /* the schedule has one document per sequence */
    assert_null(batch->sequences);
    tdm_batch_describe(batch, &step);
    assert_null(step.sequences);
    tdm_batch_free(batch);

    schedule->documents_of_text = true;
    batch = new_batch(tokens, schedule);
    for (uint64_t number = 1; number < 60; number++) {
        tdm_batch_step(batch, 5, number);
        check_documents(tokens, batch);
        check_used_rows(batch);
    }
    tdm_batch_describe(batch, &step);
    assert_ptr_equal(step.sequences, batch->sequences);
    assert_int_equal(step.trained_tokens, batch->trained_tokens);
    assert_int_equal(tdm_batch_windows(tokens, schedule), 1);
    tdm_batch_window(batch, 5, 0);
    check_documents(tokens, batch);
    check_used_rows(batch);
    assert_int_equal(batch->inputs[0], 0);
    assert_int_equal(batch->sequences[0].document_count, 2);
    tdm_batch_free(batch);
    batch = NULL;
    assert_int_equal(tdm_batch_new(text, schedule, &batch, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "set.bin: the schedule takes documents from the text"));
    assert_null(batch);

    /* the text is not longer than a sequence */
    schedule->documents_of_text = false;
    assert_int_equal(tdm_schedule_set_sequences(schedule, 1, 60, &err), TDM_OK);
    assert_int_equal(tdm_batch_new(tokens, schedule, &batch, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "set.bin: 60 tokens are fewer than a sequence of 60"));
    assert_int_equal(tdm_batch_windows(tokens, schedule), 0);
    assert_int_equal(tdm_sequence_divide(&schedule->sequences[0], "test", 59, &err), TDM_OK);
    tdm_batch_free(new_batch(tokens, schedule)); /* each document is drawn by itself */
    assert_int_equal(tdm_schedule_set_sequences(schedule, 1, 59, &err), TDM_OK);
    tdm_batch_free(new_batch(tokens, schedule));
    tdm_tokens_free(tokens);
    tdm_tokens_free(text);
    tdm_schedule_free(schedule);
    assert_int_equal(remove("set.bin"), 0);
    assert_int_equal(remove("set.idx"), 0);
}

static struct tdm_batch *ordered_batch(struct tdm_tokens *tokens,
                                       const struct tdm_schedule *schedule,
                                       enum tdm_text_order order)
{
    struct tdm_error err = {0};
    if (tdm_tokens_read_in(tokens, order, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return new_batch(tokens, schedule);
}

/* In a shuffled order every part of the text comes once before any comes again, in another order
 * each time; and the targets are the tokens behind. */
static void test_shuffled(void **unused)
{
    (void)unused;
    enum { CONTEXT = 16, TOKENS = 400, PARTS = (TOKENS - 1) / CONTEXT };
    struct tdm_schedule *schedule = new_schedule(CONTEXT);
    struct tdm_error err = {0};
    assert_int_equal(tdm_schedule_set_sequences(schedule, 5, CONTEXT, &err), TDM_OK);
    FILE *file = fopen("text.u16", "wb");
    for (uint16_t i = 0; i < TOKENS; i++)
        fwrite(&i, 2, 1, file);
    fclose(file);
    struct tdm_tokens *tokens;
    assert_int_equal(tdm_tokens_open("uint16:text.u16", 512, &tokens, &err), TDM_OK);
    struct tdm_batch *batch = ordered_batch(tokens, schedule, TDM_TEXT_SHUFFLED);
    int32_t first[PARTS] = {0};
    uint64_t moved = 0, piece = 0;
    unsigned char seen[TOKENS] = {0};
    assert_int_equal(PARTS % 5, 4); /* so that a step has parts of two readings */
    for (uint64_t step = 1; piece < 3 * PARTS; step++) {
        tdm_batch_step(batch, 3, step);
        for (uint32_t s = 0; s < 5 && piece < 3 * PARTS; s++, piece++) {
            const int32_t *row = batch->inputs + s * CONTEXT;
            if (piece % PARTS == 0)
                memset(seen, 0, sizeof(seen));
            for (int t = 0; t < CONTEXT; t++) {
                assert_int_equal(row[t], row[0] + t);
                assert_int_equal(batch->targets[s * CONTEXT + t], row[t] + 1);
                assert_int_equal(seen[row[t]]++, 0);
            }
            moved += piece >= PARTS && row[0] / CONTEXT != first[piece % PARTS] / CONTEXT;
            if (piece < PARTS)
                first[piece] = row[0];
        }
    }
    assert_true(moved > PARTS);
    tdm_batch_free(batch);
    assert_int_equal(tdm_tokens_read_in(tokens, TDM_TEXT_PACKED, &err), TDM_OK);
    assert_int_equal(tdm_batch_new(tokens, schedule, &batch, &err), TDM_USAGE);
    assert_non_null(strstr(err.hint, "documents=file"));
    tdm_tokens_free(tokens);
    assert_int_equal(tdm_tokens_open(NULL, 256, &tokens, &err), TDM_OK);
    assert_int_equal(tdm_tokens_read_in(tokens, TDM_TEXT_SHUFFLED, &err), TDM_USAGE);
    tdm_tokens_free(tokens);
    tdm_schedule_free(schedule);
    assert_int_equal(remove("text.u16"), 0);
}

/* The permutations of small counts: each number once, and not always the same order. */
static void test_permutations(void **unused)
{
    (void)unused;
    unsigned char seen[300];
    for (uint64_t count = 1; count < 300; count += 1 + count / 9) {
        uint64_t same = 0;
        for (uint64_t epoch = 0; epoch < 4; epoch++) {
            memset(seen, 0, sizeof(seen));
            for (uint64_t i = 0; i < count; i++) {
                uint64_t at = tdm_shuffle(i, count, 9, epoch);
                assert_true(at < count);
                assert_int_equal(seen[at]++, 0);
                same += at == tdm_shuffle(i, count, 9, epoch + 1);
            }
        }
        assert_true(count < 20 || same < count);
    }
}

/* Where the mask is 0 there is no target, in steps and in what is split off. */
static void test_mask(void **unused)
{
    (void)unused;
    struct tdm_schedule *schedule = new_schedule(25);
    struct tdm_tokens *tokens, *last;
    struct tdm_error err = {0};
    struct tdm_step step = {.number = 1};
    struct tdm_tokens_identity plain, masked, shuffled;
    write_raw("text", 0, COUNT);
    FILE *file = fopen("mask", "wb");
    for (uint64_t i = 0; i < COUNT; i++)
        fputc(i % 3 == 0 ? 0 : (int)i, file);
    assert_int_equal(fclose(file), 0);
    tokens = open_tokens("text");
    tdm_tokens_identify(tokens, &plain);
    assert_int_equal(tdm_tokens_mask(tokens, "none", &err), TDM_IO);
    write_raw("short", 0, COUNT - 1);
    assert_int_equal(tdm_tokens_mask(tokens, "short", &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "short: has 99 numbers, but text has 100 tokens"));
    put_row(1, "|b1", 1, COUNT); /* truth values are a mask, and no tokens */
    assert_int_equal(tdm_tokens_mask(tokens, FILE_NAME, &err), TDM_OK);
    refused_as(FILE_NAME, 256, FILE_NAME, "has truth values");
    refused_as("text," FILE_NAME, TDM_ANY_VOCABULARY, FILE_NAME, "has truth values");
    assert_int_equal(tdm_tokens_mask(tokens, "mask", &err), TDM_OK);
    tdm_tokens_identify(tokens, &masked);
    assert_int_equal(tdm_tokens_read_in(tokens, TDM_TEXT_SHUFFLED, &err), TDM_OK);
    tdm_tokens_identify(tokens, &shuffled);
    assert_string_not_equal(plain.digest, masked.digest);
    assert_string_not_equal(masked.digest, shuffled.digest);
    assert_string_equal(plain.ids, shuffled.ids);
    assert_string_equal(plain.mask, "");
    assert_string_equal(masked.mask, shuffled.mask);
    assert_string_equal(masked.order, "random");
    assert_string_equal(shuffled.order, "shuffled");
    assert_int_equal(tdm_tokens_split(tokens, 0.4, &last, &err), TDM_OK);
    assert_int_equal(tdm_tokens_order(last), TDM_TEXT_RANDOM);
    for (int part = 0; part < 2; part++) {
        struct tdm_batch *batch = new_batch(part == 0 ? tokens : last, schedule);
        uint64_t trained = 0;
        tdm_batch_window(batch, 1, 0);
        for (uint64_t i = 0; i < 25; i++) {
            uint64_t target = (uint64_t)part * 60 + i + 1;
            assert_int_equal(batch->inputs[i], number(target - 1));
            assert_int_equal(batch->targets[i], target % 3 == 0 ? TDM_NO_TARGET : number(target));
            trained += target % 3 != 0;
        }
        tdm_batch_describe(batch, &step);
        assert_int_equal(step.trained_tokens, trained);
        assert_null(step.sequences);
        tdm_batch_free(batch);
    }
    tdm_tokens_free(last);
    tdm_tokens_free(tokens);
    tdm_schedule_free(schedule);
    remove("text");
    remove("mask");
    remove("short");
}

/* Packed sequences have whole documents, and nothing is trained on twice in a reading. */
static void test_packed(void **unused)
{
    (void)unused;
    struct index index = index_of(8, 2);
    struct tdm_schedule *schedule = new_schedule(32);
    struct tdm_error err = {0};
    assert_int_equal(tdm_schedule_set_sequences(schedule, 2, 32, &err), TDM_OK);
    schedule->documents_of_text = true;
    put_index(&index); /* documents of 10, 20 and 30 tokens */
    FILE *file = fopen("set.bin", "wb");
    for (uint16_t i = 0; i < 60; i++)
        fwrite(&i, 2, 1, file);
    fclose(file);
    struct tdm_tokens *tokens = open_tokens("set");
    struct tdm_batch *batch = ordered_batch(tokens, schedule, TDM_TEXT_PACKED);
    assert_int_equal(batch->packing.sequence_count, 2);
    for (uint64_t step = 1; step < 20; step++) {
        uint64_t seen[60] = {0}, trained = 0;
        tdm_batch_step(batch, 5, step);
        for (uint32_t s = 0; s < 2; s++) {
            const struct tdm_sequence *sequence = &batch->sequences[s];
            const int32_t *inputs = batch->inputs + 32 * s, *targets = batch->targets + 32 * s;
            assert_int_equal(sequence->tokens, 32);
            for (uint32_t d = 0; d < sequence->document_count; d++) {
                uint64_t from = tdm_document_start(sequence, d), to = tdm_document_end(sequence, d);
                bool empty = to == 32 && targets[from] == TDM_NO_TARGET;
                for (uint64_t t = from; t < to; t++) {
                    if (empty) {
                        assert_int_equal(inputs[t], 0);
                        assert_int_equal(targets[t], TDM_NO_TARGET);
                        continue;
                    }
                    seen[inputs[t]]++;
                    assert_int_equal(tdm_tokens_document_of(tokens, (uint64_t)inputs[t]),
                                     tdm_tokens_document_of(tokens, (uint64_t)inputs[from]));
                    assert_int_equal(targets[t], t + 1 == to ? TDM_NO_TARGET : inputs[t] + 1);
                    trained += t + 1 < to;
                }
            }
        }
        for (int i = 0; i < 60; i++)
            assert_int_equal(seen[i], 1);
        assert_int_equal(trained, 57);
        assert_int_equal(batch->trained_tokens, trained);
        check_used_rows(batch);
    }
    tdm_batch_free(batch);
    tdm_tokens_free(tokens);
    tdm_schedule_free(schedule);
    assert_int_equal(remove("set.bin"), 0);
    assert_int_equal(remove("set.idx"), 0);
}

/* In llm.c's data the token before a delimiter predicts it. */
static void test_delimiters(void **unused)
{
    (void)unused;
    struct tdm_schedule *schedule = new_schedule(40);
    struct tdm_tokens *tokens;
    struct tdm_error err = {0};
    schedule->documents_of_text = true;
    put_llmc(&gpt2);
    assert_int_equal(tdm_tokens_open("data.bin", 50257, &tokens, &err), TDM_OK);
    struct tdm_batch *batch = new_batch(tokens, schedule);
    tdm_batch_window(batch, 1, 1); /* tokens 40 to 79 */
    const struct tdm_sequence *sequence = &batch->sequences[0];
    assert_int_equal(sequence->document_count, 5);
    for (uint32_t d = 1; d < 5; d++) {
        uint64_t start = sequence->document_starts[d];
        assert_int_equal(start, 10 * d - 5);
        assert_int_equal(batch->inputs[start], 50256);
        assert_int_equal(batch->targets[start - 1], 50256);
    }
    assert_int_equal(batch->trained_tokens, 40);
    tdm_batch_free(batch);
    tdm_tokens_free(tokens);
    tdm_schedule_free(schedule);
    assert_int_equal(remove("data.bin"), 0);
}

static int enter_scratch(void **unused)
{
    (void)unused;
    const char *scratch = getenv("TDM_SCRATCH");
    return scratch == NULL ? 0 : chdir(scratch);
}

/* Files with commas between them, and patterns, are one text: the tokens of one behind those of the
 * other. A file that has such a name is that file. */
static void test_several(void **state)
{
    (void)state;
    static const char *const whats[] = {"part-0,part-1,part-2", "part-?", "part-0,part-[12]",
                                        "bytes:part-*", "part-0,bytes:part-1,part-2"};
    struct tdm_tokens *tokens;
    struct tdm_error err = {0};
    write_raw("part-0", 0, 50);
    write_raw("part-1", 50, 2);
    write_raw("part-2", 52, 48);
    for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++) {
        tokens = open_tokens(whats[i]);
        assert_int_equal(tdm_tokens_count(tokens), COUNT);
        for (uint64_t t = 0; t < COUNT; t++)
            assert_int_equal(tdm_tokens_at(tokens, t), number(t));
        assert_string_equal(tdm_tokens_name(tokens), "3 files, part-0 to part-2");
        assert_string_equal(tdm_tokens_format(tokens), "bytes");
        tdm_tokens_free(tokens);
    }
    write_raw("part-*", 7, 9);
    write_raw("part-0,part-1", 9, 7);
    tokens = open_tokens("part-*");
    assert_int_equal(tdm_tokens_count(tokens), 9);
    tdm_tokens_free(tokens);
    tokens = open_tokens("part-0,part-1");
    assert_int_equal(tdm_tokens_count(tokens), 7);
    tdm_tokens_free(tokens);
    remove("part-*");
    remove("part-0,part-1");

    assert_int_equal(tdm_tokens_open("none-*", 256, &tokens, &err), TDM_IO);
    assert_non_null(strstr(err.message, "none-*: no file has such a name"));
    assert_int_equal(tdm_tokens_open("part-0,none", 256, &tokens, &err), TDM_IO);
    assert_int_equal(tdm_tokens_open("part-0,,part-1", 256, &tokens, &err), TDM_USAGE);
    assert_int_equal(tdm_tokens_open("part-0,", 256, &tokens, &err), TDM_USAGE);
    for (int i = 0; i < 3; i++) {
        char path[16];
        snprintf(path, sizeof(path), "part-%d", i);
        remove(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffled),    cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_packed),      cmocka_unit_test(test_mask),
        cmocka_unit_test(test_several),     cmocka_unit_test(test_widths),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_headers),
        cmocka_unit_test(test_other_words), cmocka_unit_test(test_raw),
        cmocka_unit_test(test_bytes),       cmocka_unit_test(test_llmc),
        cmocka_unit_test(test_megatron),    cmocka_unit_test(test_broken_index),
        cmocka_unit_test(test_batches),     cmocka_unit_test(test_delimiters),
    };
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
