/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of saving. If memory runs out at any moment, saving fails or the save is complete. Files
 * that do not hold what was written do not replace those that were there. */
#include "base/digest.h"
#include "base/file.h"
#include "models/weights.h"
#include "tests/support/cases.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIRECTORY "saved"
#define SHARD_BYTES 9000 /* several shards */

/* ---- memory that runs out ---- */

/* Allocations until one fails; 0: none does. */
static uint64_t until_failure;
static bool failed;

static bool fails_now(void)
{
    if (until_failure == 0 || --until_failure > 0)
        return false;
    failed = true;
    return true;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(old, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails_now() ? NULL : __real_strdup(text);
}

/* Jansson's allocations, which the linker does not wrap. */
static void *json_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

/* ---- saving ---- */

static struct tdm_model *make_model(void)
{
    struct tdm_model *model = NULL;
    struct tdm_error err = {0};
    json_t *config =
        json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:{s:s, s:f}, s:s}",
                  "architectures", "Qwen3ForCausalLM", "num_hidden_layers", 2, "hidden_size", 24,
                  "intermediate_size", 40, "num_attention_heads", 4, "num_key_value_heads", 2,
                  "head_dim", 6, "vocab_size", 37, "tie_word_embeddings", 0, "rope_scaling",
                  "rope_type", "linear", "factor", 2.5, "dtype", "float64");
    if (tdm_model_from_config("config.json", "small", config, &model, &err) != TDM_OK)
        fail_msg("%s", err.message);
    json_decref(config);
    return model;
}

/* Writes a save whose tensors all hold `value`, up to the commit. */
static enum tdm_status begin(const struct tdm_model *model, enum tdm_dtype dtype, float value,
                             struct tdm_weights_writer **out, struct tdm_error *err)
{
    const struct tdm_weights_target target = {.directory = DIRECTORY,
                                              .model = model,
                                              .dtype = dtype,
                                              .shard_bytes = SHARD_BYTES,
                                              .force = true};
    struct tdm_weights_writer *writer;
    float values[2048];
    enum tdm_status status = tdm_weights_create(&target, &writer, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        values[i] = value;
    for (uint32_t t = 0; t < model->tensor_count && status == TDM_OK; t++)
        status = tdm_weights_append(writer, values, model->tensors[t].elements, err);
    if (status != TDM_OK) {
        tdm_weights_abandon(writer);
        return status;
    }
    *out = writer;
    return TDM_OK;
}

static enum tdm_status save(const struct tdm_model *model, enum tdm_dtype dtype, float value,
                            struct tdm_error *err)
{
    struct tdm_weights_writer *writer;
    enum tdm_status status = begin(model, dtype, value, &writer, err);
    return status == TDM_OK ? tdm_weights_commit(writer, err) : status;
}

/* Checks that the saved weights are complete and hold `value`, with the config of the model. */
static void holds(const struct tdm_model *model, float value)
{
    struct tdm_weights *weights = NULL;
    struct tdm_model *described = NULL;
    struct tdm_error err = {0};
    float found[2048];
    if (tdm_weights_open(DIRECTORY, model, &weights, &err) != TDM_OK ||
        tdm_model_load(DIRECTORY, &described, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_string_equal(described->digest, model->digest);
    assert_int_equal(json_object_size(described->config), json_object_size(model->config));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        uint64_t elements = model->tensors[t].elements;
        assert_int_equal(tdm_weights_read(weights, t, 0, elements, found, &err), TDM_OK);
        assert_true(found[0] == value && found[elements - 1] == value);
    }
    tdm_model_free(described);
    tdm_weights_close(weights);
}

/* Counts the names in the working directory that begin like the target's. */
static unsigned count_names(void)
{
    unsigned count = 0;
    DIR *stream = opendir(".");
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;)
        count += strncmp(entry->d_name, DIRECTORY, strlen(DIRECTORY)) == 0;
    closedir(stream);
    return count;
}

/* ---- the tests ---- */

/* The n-th allocation fails, for n upward until none does. A save that is reported as saved is
 * complete. */
static void fail_allocations(const struct tdm_model *model)
{
    struct tdm_error err = {0};
    uint64_t survived = 0;
    if (save(model, TDM_DTYPE_BF16, 1, &err) != TDM_OK)
        fail_msg("%s", err.message);
    float now = 1;
    failed = true;
    for (uint64_t n = 1; failed; n += tdm_case_long() ? 1 : 5) { /* each save waits for the disk */
        float next = (float)(n % 100);
        failed = false;
        until_failure = n;
        enum tdm_status status = save(model, TDM_DTYPE_FP32, next, &err);
        until_failure = 0;
        survived += failed && status == TDM_OK; /* it was not needed */
        if (status == TDM_OK)
            now = next;
        else if ((status != TDM_NO_MEMORY && status != TDM_IO) || err.message[0] == '\0')
            /* if memory runs out while JSON is parsed, the text may look wrong: TDM_IO */
            fail_msg("allocation %u: status %d, \"%s\"", (unsigned)n, (int)status, err.message);
        holds(model, now);
        assert_int_equal(count_names(), 1);
        assert_true(n < 20000);
    }
    print_message("%u failures did not matter\n", (unsigned)survived);
}

static void test_allocations(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model();
    fail_allocations(model);
    tdm_model_free(model);
}

/* Opens the file of this name in the temporary directory. */
static int open_unfinished(const char *name)
{
    char path[512] = "";
    DIR *stream = opendir(".");
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;)
        if (strncmp(entry->d_name, DIRECTORY ".tmp", strlen(DIRECTORY) + 4) == 0)
            snprintf(path, sizeof(path), "%.200s/%s", entry->d_name, name);
    closedir(stream);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

/* A file is changed between its writing and the commit. */
static void test_read_back(void **unused)
{
    (void)unused;
    static const struct {
        const char *file, *said;
        off_t at; /* from the end if negative */
        const char *text;
    } damages[] = {
        {"model-00001-of-00006.safetensors", "its data are not those that were written", -8, "x"},
        {"model-00003-of-00006.safetensors", "its data are not those that were written", -999,
         "step 1"},
        {"model-00006-of-00006.safetensors", "belong to no tensor", 1 << 20, "saving weights"},
        {"model-00002-of-00006.safetensors", "header", 0, "  saving weights: 50%"},
        {"model-00002-of-00006.safetensors", "its header does not list what was written", 41, "Z"},
        {"config.json", "does not hold what was written", -8, "3"},
        {"model.safetensors.index.json", "", 2, "saving"},
    };
    struct tdm_model *model = make_model();
    struct tdm_error err = {0};
    assert_int_equal(save(model, TDM_DTYPE_BF16, 3, &err), TDM_OK);
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        struct tdm_weights_writer *writer = NULL;
        if (begin(model, TDM_DTYPE_FP32, 4, &writer, &err) != TDM_OK)
            fail_msg("%s", err.message);
        int fd = open_unfinished(damages[i].file);
        off_t at = damages[i].at < 0 ? lseek(fd, damages[i].at, SEEK_END) : damages[i].at;
        ssize_t bytes = (ssize_t)strlen(damages[i].text);
        assert_int_equal(pwrite(fd, damages[i].text, (size_t)bytes, at), bytes);
        assert_int_equal(close(fd), 0);
        assert_int_equal(tdm_weights_commit(writer, &err), TDM_IO);
        if (strstr(err.message, "what was saved is not what is read back") == NULL ||
            strstr(err.message, damages[i].file) == NULL ||
            strstr(err.message, damages[i].said) == NULL)
            fail_msg("case %zu: \"%s\"", i, err.message);
        assert_non_null(strstr(err.hint, DIRECTORY " is as it was before"));
        holds(model, 3);
        assert_int_equal(count_names(), 1);
    }
    assert_int_equal(save(model, TDM_DTYPE_FP32, 4, &err), TDM_OK);
    holds(model, 4);
    tdm_model_free(model);
}

/* The checksum does not depend on how the bytes are split, and shows any wrong bit. */
static void test_checksum(void **unused)
{
    (void)unused;
    unsigned char data[61];
    for (unsigned i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * 37);
    struct tdm_checksum whole = {0};
    tdm_checksum_add(&whole, data, sizeof(data));
    for (size_t first = 0; first <= sizeof(data); first++)
        for (size_t second = first; second <= sizeof(data); second++) {
            struct tdm_checksum parts = {0};
            tdm_checksum_add(&parts, data, first);
            tdm_checksum_add(&parts, data + first, second - first);
            tdm_checksum_add(&parts, data + second, sizeof(data) - second);
            assert_true(tdm_checksum_value(&parts) == tdm_checksum_value(&whole));
        }
    for (unsigned bit = 0; bit < 8 * sizeof(data); bit++) {
        struct tdm_checksum other = {0};
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        tdm_checksum_add(&other, data, sizeof(data));
        assert_true(tdm_checksum_value(&other) != tdm_checksum_value(&whole));
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    struct tdm_checksum shorter = {0}, longer = {0};
    tdm_checksum_add(&shorter, data, 16);
    tdm_checksum_add(&longer, data, 16);
    tdm_checksum_add(&longer, "\0", 1);
    assert_true(tdm_checksum_value(&shorter) != tdm_checksum_value(&longer));
}

int main(void)
{
    const char *scratch = getenv("TDM_SCRATCH");
    if (scratch != NULL && chdir(scratch) != 0)
        return 99;
    json_set_alloc_funcs(json_malloc, free);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_checksum),
                                       cmocka_unit_test(test_allocations),
                                       cmocka_unit_test(test_read_back)};
    return cmocka_run_group_tests_name("saving", tests, NULL, NULL);
}
