/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of directories of weights: every layout of files is read back, a directory is replaced
 * whole or not at all, and false statements in an index or a file are refused. */
#include "base/file.h"
#include "base/json.h"
#include "executor/random.h"
#include "models/weights.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIRECTORY "saved"
#define INDEX DIRECTORY "/model.safetensors.index.json"

/* A small model. */
static struct tdm_model *make_model(const char *architecture, bool tied)
{
    struct tdm_model *model = NULL;
    struct tdm_error err = {0};
    json_t *config =
        json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:s}", "architectures",
                  architecture, "num_hidden_layers", 2, "hidden_size", 24, "intermediate_size", 40,
                  "num_attention_heads", 4, "num_key_value_heads", 2, "head_dim", 6, "vocab_size",
                  37, "tie_word_embeddings", (int)tied, "dtype", "float64");
    if (tdm_model_from_config("config.json", "small", config, &model, &err) != TDM_OK)
        fail_msg("%s", err.message);
    json_decref(config);
    return model;
}

/* A value that every dtype holds. */
static float value_of(uint32_t tensor, uint64_t element)
{
    return (float)((tensor * 37 + element) % 201) / 8 - 12;
}

static enum tdm_status try_save(const struct tdm_weights_target *target, struct tdm_error *err)
{
    struct tdm_weights_writer *writer;
    enum tdm_status status = tdm_weights_create(target, &writer, err);
    if (status != TDM_OK)
        return status;
    const struct tdm_model *model = target->model;
    for (uint32_t t = 0; t < model->tensor_count; t++)
        for (uint64_t i = 0; i < model->tensors[t].elements && status == TDM_OK;) {
            float values[100];
            uint64_t count = 0;
            for (; count < 100 && i < model->tensors[t].elements; count++, i++)
                values[count] = value_of(t, i);
            status = tdm_weights_append(writer, values, count, err);
        }
    if (status == TDM_OK)
        return tdm_weights_commit(writer, err);
    tdm_weights_abandon(writer);
    return status;
}

static void save(const struct tdm_model *model, enum tdm_dtype dtype, uint64_t shard_bytes)
{
    struct tdm_weights_target target = {.directory = DIRECTORY,
                                        .model = model,
                                        .dtype = dtype,
                                        .shard_bytes = shard_bytes,
                                        .force = true};
    struct tdm_error err = {0};
    if (try_save(&target, &err) != TDM_OK)
        fail_msg("%s", err.message);
}

/* Counts the files in a directory whose names begin with `prefix`. */
static unsigned count_files(const char *directory, const char *prefix)
{
    DIR *stream = opendir(directory);
    unsigned count = 0;
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;)
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(stream);
    return count;
}

static void remove_saved(void)
{
    assert_int_equal(system("rm -rf " DIRECTORY), 0);
    assert_int_equal(count_files(".", DIRECTORY), 0);
}

static void check_values(const struct tdm_weights *weights)
{
    const struct tdm_model *model = weights->model;
    struct tdm_error err = {0};
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        uint64_t elements = model->tensors[t].elements, first = elements / 3;
        float *values = malloc(elements * sizeof(*values));
        assert_int_equal(tdm_weights_read(weights, t, 0, first, values, &err), TDM_OK);
        assert_int_equal(
            tdm_weights_read(weights, t, first, elements - first, values + first, &err), TDM_OK);
        for (uint64_t i = 0; i < elements; i++)
            assert_true(values[i] == value_of(t, i));
        free(values);
    }
}

static void test_round_trip(void **unused)
{
    (void)unused;
    static const char *const architectures[] = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                                "Qwen3ForCausalLM"};
    static const enum tdm_dtype dtypes[] = {TDM_DTYPE_FP32, TDM_DTYPE_BF16, TDM_DTYPE_FP16};
    static const uint64_t shards[] = {TDM_SHARD_BYTES, 6000, 1};
    for (int a = 0; a < 3; a++)
        for (int tied = 0; tied < 2; tied++)
            for (int d = 0; d < 3; d++)
                for (int s = 0; s < 3; s++) {
                    struct tdm_model *model = make_model(architectures[a], tied != 0);
                    struct tdm_weights *weights;
                    struct tdm_error err = {0};
                    char text[32];
                    save(model, dtypes[d], shards[s]);
                    assert_true(tdm_weights_exist(DIRECTORY));
                    if (tdm_weights_open(DIRECTORY, model, &weights, &err) != TDM_OK)
                        fail_msg("%s", err.message);
                    if (s == 1)
                        assert_in_range(weights->file_count, 2, model->tensor_count - 1);
                    else
                        assert_int_equal(weights->file_count, s == 0 ? 1 : model->tensor_count);
                    assert_int_equal(count_files(DIRECTORY, "model"),
                                     weights->file_count + (s > 0));
                    assert_int_equal(weights->bytes,
                                     model->parameters * tdm_dtype_bytes(dtypes[d]));
                    assert_string_equal(tdm_weights_dtypes(weights, text),
                                        tdm_dtype_name(dtypes[d]));
                    check_values(weights);
                    tdm_weights_close(weights);
                    tdm_model_free(model);
                    remove_saved();
                }
}

/* The config is the model's, with the dtype of the files. */
static void test_config(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model("Qwen2ForCausalLM", true), *back;
    struct tdm_error err = {0};
    save(model, TDM_DTYPE_BF16, TDM_SHARD_BYTES);
    assert_int_equal(tdm_model_load(DIRECTORY, &back, &err), TDM_OK);
    assert_string_equal(back->digest, model->digest);
    assert_string_equal(json_string_value(json_object_get(back->config, "torch_dtype")),
                        "bfloat16");
    assert_null(json_object_get(back->config, "dtype"));
    tdm_model_free(back);
    tdm_model_free(model);
    remove_saved();
}

static void test_gradients(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model("LlamaForCausalLM", true);
    struct tdm_weights_target target = {.directory = DIRECTORY,
                                        .model = model,
                                        .gradients = true,
                                        .dtype = TDM_DTYPE_FP32,
                                        .shard_bytes = TDM_SHARD_BYTES};
    struct tdm_safetensors *file;
    struct tdm_error err = {0};
    assert_int_equal(try_save(&target, &err), TDM_OK);
    assert_int_equal(count_files(DIRECTORY, ""), 2 + 1);
    assert_int_equal(tdm_safetensors_open(DIRECTORY "/gradients.safetensors", &file, &err), TDM_OK);
    assert_int_equal(file->tensor_count, model->tensor_count);
    tdm_safetensors_close(file);
    tdm_model_free(model);
    remove_saved();
}

/* ---- replaced whole or not at all ---- */

static void test_replace(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model("LlamaForCausalLM", false);
    struct tdm_weights_target target = {
        .directory = DIRECTORY "//", .model = model, .dtype = TDM_DTYPE_BF16, .shard_bytes = 6000};
    struct tdm_error err = {0};
    assert_int_equal(mkdir(DIRECTORY, 0777), 0); /* an empty directory counts as absent */
    assert_int_equal(try_save(&target, &err), TDM_OK);
    assert_true(count_files(DIRECTORY, "model-") > 1);

    assert_int_equal(tdm_weights_check(&target, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "exists already"));
    assert_non_null(strstr(err.hint, "--force"));
    assert_int_equal(try_save(&target, &err), TDM_USAGE);
    target.force = true;
    target.shard_bytes = TDM_SHARD_BYTES;
    assert_int_equal(tdm_weights_check(&target, &err), TDM_OK);
    assert_int_equal(try_save(&target, &err), TDM_OK);
    assert_int_equal(count_files(DIRECTORY, "model-"), 0); /* the old shards are gone */
    assert_int_equal(count_files(DIRECTORY, "model.safetensors"), 1);

    assert_int_equal(symlink(DIRECTORY, "link"), 0); /* the directory is replaced, not the link */
    target.directory = "link";
    assert_int_equal(try_save(&target, &err), TDM_OK);
    struct stat info;
    assert_int_equal(lstat("link", &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(unlink("link"), 0);

    target.directory = DIRECTORY;
    assert_int_equal(tdm_file_write(DIRECTORY "/tokenizer.json", "{}", 2, false, &err), TDM_OK);
    assert_int_equal(try_save(&target, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "\"tokenizer.json\", which would be lost"));
    assert_int_equal(count_files(".", DIRECTORY), 1); /* no temporary name is left beside it */
    remove_saved();

    assert_int_equal(tdm_file_write(DIRECTORY, "", 0, false, &err), TDM_OK);
    assert_int_equal(try_save(&target, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "is not a directory"));
    assert_int_equal(unlink(DIRECTORY), 0);
    target.directory = "no-such/" DIRECTORY;
    assert_int_equal(try_save(&target, &err), TDM_IO);
    assert_non_null(strstr(err.hint, "create the directory first"));
    target.directory = "";
    assert_int_equal(try_save(&target, &err), TDM_USAGE);
    tdm_model_free(model);
}

/* Gemma 2 has four norms per layer, each a vector, with the names that transformers gives them.
 * They multiply by 1 + weight, so weights start at 0. */
static void test_gemma(void **unused)
{
    (void)unused;
    static const char *const norms[] = {
        "model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.pre_feedforward_layernorm.weight",
        "model.layers.1.post_feedforward_layernorm.weight", "model.norm.weight"};
    struct tdm_model *model = make_model("Gemma2ForCausalLM", true);
    struct tdm_model *llama = make_model("LlamaForCausalLM", true);
    struct tdm_safetensors *file = NULL;
    struct tdm_weights *weights = NULL;
    struct tdm_error err = {0};
    uint32_t found = 0;

    save(model, TDM_DTYPE_BF16, TDM_SHARD_BYTES);
    assert_int_equal(tdm_safetensors_open(DIRECTORY "/model.safetensors", &file, &err), TDM_OK);
    assert_int_equal(file->tensor_count, 2 * 11 + 2);
    for (uint32_t i = 0; i < file->tensor_count; i++)
        for (size_t n = 0; n < sizeof(norms) / sizeof(norms[0]); n++)
            if (strcmp(file->tensors[i].name, norms[n]) == 0) {
                found++;
                assert_int_equal(file->tensors[i].rank, 1);
                assert_int_equal(file->tensors[i].shape[0], 24);
            }
    assert_int_equal(found, sizeof(norms) / sizeof(norms[0]));
    tdm_safetensors_close(file);
    if (tdm_weights_open(DIRECTORY, model, &weights, &err) != TDM_OK)
        fail_msg("%s", err.message);
    check_values(weights);
    tdm_weights_close(weights);

    for (int role = 0; role < TDM_ROLES; role++) {
        bool norm = tdm_role_is_norm((enum tdm_role)role);
        assert_true(!norm || tdm_role_is_vector((enum tdm_role)role));
        assert_true(tdm_model_vector_start(model, (enum tdm_role)role) == 0);
        assert_true(tdm_model_vector_start(llama, (enum tdm_role)role) == (norm ? 1 : 0));
    }
    assert_true(tdm_role_is_norm(TDM_ROLE_POST_ATTENTION_NORM));
    assert_true(tdm_role_is_norm(TDM_ROLE_POST_MLP_NORM));
    tdm_model_free(model);
    tdm_model_free(llama);
    remove_saved();
}

/* If the disk is full after n bytes of a file, there is an error, and only the old files stay. */
static void test_full_disk(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model("Qwen3ForCausalLM", false);
    struct tdm_weights_target target = {.directory = DIRECTORY,
                                        .model = model,
                                        .dtype = TDM_DTYPE_FP32,
                                        .shard_bytes = 9000,
                                        .force = true};
    struct tdm_weights *weights;
    struct tdm_error err = {0};
    struct rlimit old, low;
    save(model, TDM_DTYPE_BF16, TDM_SHARD_BYTES);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    enum tdm_status status = TDM_IO;
    for (rlim_t limit = 0; status != TDM_OK; limit += 97) {
        low.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        status = try_save(&target, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_true(status == TDM_OK || status == TDM_IO);
        assert_int_equal(count_files(".", DIRECTORY), 1);
        assert_int_equal(tdm_weights_open(DIRECTORY, model, &weights, &err), TDM_OK);
        assert_true(weights->has[status == TDM_OK ? TDM_DTYPE_FP32 : TDM_DTYPE_BF16]);
        check_values(weights);
        tdm_weights_close(weights);
    }
    signal(SIGXFSZ, SIG_DFL);
    tdm_model_free(model);
    remove_saved();
}

/* ---- refusals ---- */

static void refused(const struct tdm_model *model, const char *file, const char *part)
{
    struct tdm_weights *weights = NULL;
    struct tdm_error err = {0};
    assert_int_equal(tdm_weights_open(DIRECTORY, model, &weights, &err), TDM_INPUT);
    assert_null(weights);
    assert_null(strchr(err.message, '\n'));
    if (strncmp(err.message, file, strlen(file)) != 0 || strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not name %s and \"%s\"", err.message, file, part);
}

/* Weights of one model are refused for another. */
static void test_other_model(void **unused)
{
    (void)unused;
    struct tdm_model *llama = make_model("LlamaForCausalLM", false);
    struct tdm_model *tied = make_model("LlamaForCausalLM", true);
    struct tdm_model *qwen = make_model("Qwen2ForCausalLM", false);
    const char *file = DIRECTORY "/model.safetensors";
    struct tdm_weights *weights;
    struct tdm_error err = {0};

    assert_int_equal(mkdir(DIRECTORY, 0777), 0);
    assert_false(tdm_weights_exist(DIRECTORY));
    refused(llama, DIRECTORY, "holds no model.safetensors");
    save(llama, TDM_DTYPE_FP32, TDM_SHARD_BYTES);
    refused(
        qwen, file,
        "lacks 6 of 27 tensors that config.json asks for: "
        "\"model.layers.0.self_attn.q_proj.bias\", "
        "\"model.layers.0.self_attn.k_proj.bias\", \"model.layers.0.self_attn.v_proj.bias\", ...");
    save(qwen, TDM_DTYPE_FP32, TDM_SHARD_BYTES);
    refused(llama, file, "has 6 tensors that config.json has no place for: \"");
    save(tied, TDM_DTYPE_FP32, TDM_SHARD_BYTES);
    refused(llama, file, "lacks 1 of 21 tensors that config.json asks for: \"lm_head.weight\"");

    /* a tied model may have a head in its file, which must equal the embedding */
    save(llama, TDM_DTYPE_FP32, TDM_SHARD_BYTES);
    assert_int_equal(tdm_weights_open(DIRECTORY, tied, &weights, &err), TDM_OK);
    assert_non_null(weights->tied_head.tensor);
    float values[8];
    uint32_t embedding = tied->units[tdm_model_embedding_unit(tied)].first_tensor;
    assert_int_equal(tdm_weights_read(weights, embedding, 0, 8, values, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "\"lm_head.weight\" differs from"));
    tdm_weights_close(weights);

    llama->tensors[1].rows = 25; /* q of layer 0, 24 x 24 */
    refused(llama, file,
            "\"model.layers.0.self_attn.q_proj.weight\" has the shape [24, 24]; config.json "
            "expects [25, 24]");
    tdm_model_free(llama);
    tdm_model_free(tied);
    tdm_model_free(qwen);
    remove_saved();
}

/* Writes one file by hand: `entries` of the header, and zeros. */
static void put_file(const char *name, const char *entries, uint64_t data_bytes)
{
    char header[4096] = {0}, path[256];
    uint64_t length = (uint64_t)snprintf(header, sizeof(header), "{%s}", entries);
    snprintf(path, sizeof(path), DIRECTORY "/%s", name);
    FILE *file = fopen(path, "wb");
    fwrite(&length, 1, sizeof(length), file);
    fwrite(header, 1, length, file);
    for (uint64_t i = 0; i < data_bytes; i++)
        fputc(0, file);
    fclose(file);
}

static void test_dtypes(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model("LlamaForCausalLM", false);
    assert_int_equal(mkdir(DIRECTORY, 0777), 0);
    put_file("model.safetensors",
             "\"model.norm.weight\":{\"dtype\":\"F64\",\"shape\":[24],\"data_offsets\":[0,192]}",
             192);
    refused(model, DIRECTORY "/model.safetensors",
            "tensor \"model.norm.weight\" is of dtype F64; expected BF16, F16 or F32");
    put_file("model.safetensors",
             "\"model.layers.0.self_attn.rotary_emb.inv_freq\":"
             "{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}",
             12);
    refused(model, DIRECTORY "/model.safetensors", "lacks 21 of 21 tensors"); /* and not "has 1" */
    tdm_model_free(model);
    remove_saved();
}

/* Changes the index: maps a tensor to a file, or removes it if `file` is NULL. */
static void change_index(const char *tensor, const char *file)
{
    json_t *root;
    struct tdm_error err = {0};
    assert_int_equal(tdm_json_load(INDEX, &root, &err), TDM_OK);
    json_t *map = json_object_get(root, "weight_map");
    if (file == NULL)
        json_object_del(map, tensor);
    else
        json_object_set_new(map, tensor, json_string(file));
    char *text = json_dumps(root, 0);
    assert_int_equal(tdm_file_write(INDEX, text, strlen(text), true, &err), TDM_OK);
    free(text);
    json_decref(root);
}

static void test_index(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model("LlamaForCausalLM", false);
    struct tdm_error err = {0};
    const char *norm = "model.norm.weight";
    static const char *const outside[] = {
        "../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "",
        ".safetensors",         "config.json"};
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        save(model, TDM_DTYPE_BF16, 6000);
        change_index(norm, outside[i]);
        refused(model, INDEX, "which is not the name of a safetensors file in this directory");
    }
    save(model, TDM_DTYPE_BF16, 6000);
    change_index(norm, "model-00099-of-00099.safetensors");
    refused(model, INDEX, "in \"model-00099-of-00099.safetensors\", which is missing");
    save(model, TDM_DTYPE_BF16, 6000);
    change_index(norm, "model-00001-of-00004.safetensors");
    refused(model, DIRECTORY, "tensor \"model.norm.weight\" is not in the index for this file");
    save(model, TDM_DTYPE_BF16, 6000);
    change_index(norm, NULL);
    refused(model, DIRECTORY, "tensor \"model.norm.weight\" is not in the index");
    save(model, TDM_DTYPE_BF16, 6000);
    change_index("more", "model-00001-of-00004.safetensors");
    refused(model, INDEX,
            "\"more\" is in \"model-00001-of-00004.safetensors\", which does not have");

    save(model, TDM_DTYPE_BF16, 6000);
    assert_int_equal(truncate(DIRECTORY "/model-00002-of-00004.safetensors", 3000), 0);
    refused(model, DIRECTORY "/model-00002-of-00004.safetensors", "of the data, of which the file");
    save(model, TDM_DTYPE_BF16, 6000);
    assert_int_equal(tdm_file_write(INDEX, "{}", 2, true, &err), TDM_OK);
    refused(model, INDEX, "has no \"weight_map\"");
    assert_int_equal(tdm_file_write(INDEX, "{\"weight_map\":{\"a\":1}}", 22, true, &err), TDM_OK);
    refused(model, INDEX, "names no file for tensor \"a\"");
    assert_int_equal(tdm_file_write(INDEX, "{\"weight_map\":{\"a\":", 18, true, &err), TDM_OK);
    refused(model, INDEX, "not valid JSON");

    /* shards may be links, as in a cache */
    save(model, TDM_DTYPE_BF16, 6000);
    assert_int_equal(rename(DIRECTORY "/model-00001-of-00004.safetensors", "blob"), 0);
    assert_int_equal(symlink("../blob", DIRECTORY "/model-00001-of-00004.safetensors"), 0);
    struct tdm_weights *weights;
    if (tdm_weights_open(DIRECTORY, model, &weights, &err) != TDM_OK)
        fail_msg("%s", err.message);
    check_values(weights);
    tdm_weights_close(weights);
    tdm_model_free(model);
    remove_saved();
    unlink("blob");
}

/* An index with bytes changed, removed or repeated gives the model, or an error of one line. */
static void test_edited_index(void **unused)
{
    (void)unused;
    struct tdm_model *model = make_model("LlamaForCausalLM", false);
    struct tdm_error err = {0};
    char *text, edited[8192];
    uint64_t bytes;
    unsigned accepted = 0;
    save(model, TDM_DTYPE_BF16, 6000);
    assert_int_equal(tdm_file_read(INDEX, sizeof(edited) - 16, &text, &bytes, &err), TDM_OK);
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t at = tdm_random_bits(1, 0, 0, i) % bytes, length = bytes;
        uint64_t drawn = tdm_random_bits(1, 1, 0, i), some = drawn % 9;
        memcpy(edited, text, bytes);
        if (drawn % 4 == 0) {
            edited[at] ^= (char)(1 << drawn / 4 % 8);
        } else if (drawn % 4 == 1) {
            length = at + some < bytes ? bytes - some : at;
            memmove(edited + at, edited + bytes - length + at, length - at);
        } else { /* repeats a part: braces, quotes, names */
            memmove(edited + at + some, edited + at, bytes - at);
            length = bytes + some;
        }
        assert_int_equal(tdm_file_write(INDEX, edited, length, true, &err), TDM_OK);
        struct tdm_weights *weights;
        enum tdm_status status = tdm_weights_open(DIRECTORY, model, &weights, &err);
        if (status == TDM_OK) {
            accepted++;
            check_values(weights);
            tdm_weights_close(weights);
            continue;
        }
        assert_int_equal(status, TDM_INPUT);
        assert_int_equal(strncmp(err.message, DIRECTORY "/", strlen(DIRECTORY) + 1), 0);
        for (const char *c = err.message; *c != '\0'; c++)
            assert_true(*c >= ' ' && *c <= '~');
    }
    assert_in_range(accepted, 30, 2000); /* edits of white space and of total_size */
    free(text);
    tdm_model_free(model);
    remove_saved();
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
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_config),
        cmocka_unit_test(test_gradients),   cmocka_unit_test(test_replace),
        cmocka_unit_test(test_gemma),       cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_other_model), cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_index),       cmocka_unit_test(test_edited_index),
    };
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
