/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz targets of files: safetensors and their index, tokens. */
#include "tests/fuzz/fuzz.h"

#include "base/text.h"
#include "models/safetensors.h"
#include "models/weights.h"
#include "texts/indexed_dataset.h"
#include "texts/jsonl.h"
#include "texts/npy.h"
#include "texts/token_file.h"
#include "texts/tokens.h"

#include <string.h>
#include <unistd.h>

/* ---- safetensors ---- */

/* Checks an accepted file: tensors cover all that follows the header, and can be read. */
static void check_tensors(const struct tdm_safetensors *file, size_t bytes)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const struct tdm_safetensor *tensor = &file->tensors[i];
        uint64_t elements = 1;
        TDM_FUZZ_CHECK(tensor->rank <= TDM_SAFETENSORS_RANK);
        for (uint32_t side = 0; side < tensor->rank; side++)
            elements *= tensor->shape[side];
        TDM_FUZZ_CHECK(tensor->elements == elements);
        TDM_FUZZ_CHECK(i == 0 || tensor->offset == end);
        TDM_FUZZ_CHECK(tensor->offset >= 8 && tensor->offset <= bytes);
        TDM_FUZZ_CHECK(tensor->bytes <= bytes - tensor->offset);
        end = tensor->offset + tensor->bytes;
        if (tensor->dtype == TDM_DTYPE_NONE)
            continue;
        TDM_FUZZ_CHECK(tensor->bytes == elements * tdm_dtype_bytes(tensor->dtype));
        struct tdm_error err = {0};
        float *values = malloc(elements * sizeof(*values) + 1);
        TDM_FUZZ_CHECK(values != NULL);
        enum tdm_status status =
            tdm_safetensors_read(file, tensor, 0, tensor->elements, values, &err);
        TDM_FUZZ_CHECK(tdm_fuzz_taken(status, &err) || strstr(err.message, "finite") != NULL);
        free(values);
    }
    TDM_FUZZ_CHECK(file->tensor_count == 0 || end == bytes);
}

bool tdm_fuzz_safetensors(const uint8_t *data, size_t bytes)
{
    char path[TDM_FUZZ_PATH];
    int fd = tdm_fuzz_file(data, bytes, path);
    struct tdm_safetensors *file = NULL;
    struct tdm_error err = {0};
    bool taken = tdm_fuzz_taken(tdm_safetensors_open(path, &file, &err), &err);
    if (taken) {
        check_tensors(file, bytes);
        tdm_safetensors_close(file);
    } else {
        TDM_FUZZ_CHECK(file == NULL);
        TDM_FUZZ_CHECK(strncmp(err.message, path, strlen(path)) == 0);
    }
    close(fd);
    return taken;
}

/* ---- the index of shards ---- */

/* Writes the shards of a tiny model, all zeros: the tensors of the layer, and the rest. */
static struct tdm_model *write_shards(void)
{
    struct tdm_model *model;
    struct tdm_error err = {0};
    json_t *config = tdm_fuzz_seed("config/tiny.json");
    TDM_FUZZ_CHECK(tdm_model_from_config("tiny", "tiny", config, &model, &err) == TDM_OK);
    json_decref(config);
    for (int shard = 0; shard < 2; shard++) {
        uint64_t end = 0;
        json_t *header = json_object();
        for (uint32_t i = 0; i < model->tensor_count; i++) {
            const struct tdm_tensor *tensor = &model->tensors[i];
            uint64_t shape[2];
            char name[128];
            if ((tensor->unit < model->layers) != (shard == 0))
                continue;
            uint32_t rank = tdm_weights_shape(tensor, shape);
            tdm_tensor_name(model, tensor, name, sizeof(name));
            json_t *sides = json_array();
            for (uint32_t side = 0; side < rank; side++)
                json_array_append_new(sides, json_integer((json_int_t)shape[side]));
            uint64_t first = end;
            end += 2 * tensor->elements;
            json_object_set_new(header, name,
                                json_pack("{s:s, s:o, s:[I, I]}", "dtype", "BF16", "shape", sides,
                                          "data_offsets", (json_int_t)first, (json_int_t)end));
        }
        char *text = json_dumps(header, JSON_COMPACT);
        uint64_t length = strlen(text);
        char *file = calloc(1, 8 + length + end);
        TDM_FUZZ_CHECK(file != NULL);
        memcpy(file, &length, 8);
        memcpy(file + 8, text, length);
        tdm_fuzz_write(shard == 0 ? "layers.safetensors" : "rest.safetensors", file,
                       8 + length + end);
        free(file);
        free(text);
        json_decref(header);
    }
    return model;
}

bool tdm_fuzz_index(const uint8_t *data, size_t bytes)
{
    static struct tdm_model *model;
    if (model == NULL)
        model = write_shards();
    tdm_fuzz_write("model.safetensors.index.json", data, bytes);
    struct tdm_weights *weights = NULL;
    struct tdm_error err = {0};
    bool taken = tdm_fuzz_taken(tdm_weights_open(tdm_fuzz_folder(), model, &weights, &err), &err);
    if (taken) {
        for (uint32_t i = 0; i < model->tensor_count; i++)
            TDM_FUZZ_CHECK(weights->places[i].tensor->elements == model->tensors[i].elements);
        tdm_weights_close(weights);
    }
    return taken;
}

/* ---- tokens ---- */

/* Reads tokens as a command does: describes them, splits, finds documents. */
static bool read_tokens(const char *what, uint32_t vocabulary)
{
    struct tdm_tokens *tokens = NULL, *last = NULL;
    struct tdm_error err = {0};
    if (!tdm_fuzz_taken(tdm_tokens_open(what, vocabulary, &tokens, &err), &err))
        return false;
    uint64_t count = tdm_tokens_count(tokens), before = 0;
    struct tdm_tokens_identity identity;
    TDM_FUZZ_CHECK(count >= 2);
    for (uint64_t i = 0; i < count; i++)
        TDM_FUZZ_CHECK(tdm_tokens_at(tokens, i) < vocabulary);
    for (uint64_t i = 0; i < tdm_tokens_documents(tokens); i++) {
        uint64_t start = tdm_tokens_document_start(tokens, i);
        TDM_FUZZ_CHECK(start < count && (i == 0 ? start == 0 : start > before));
        TDM_FUZZ_CHECK(tdm_tokens_document_of(tokens, start) == i);
        before = start;
    }
    tdm_tokens_identify(tokens, &identity);
    TDM_FUZZ_CHECK(identity.count == count);
    if (tdm_fuzz_taken(tdm_tokens_split(tokens, 0.25, &last, &err), &err)) {
        TDM_FUZZ_CHECK(tdm_tokens_count(tokens) + tdm_tokens_count(last) == count);
        tdm_tokens_free(last);
    }
    tdm_tokens_free(tokens);
    return true;
}

bool tdm_fuzz_npy(const uint8_t *data, size_t bytes)
{
    struct tdm_npy npy;
    struct tdm_error err = {0};
    char path[TDM_FUZZ_PATH];
    if (!tdm_npy_is(data, bytes) ||
        !tdm_fuzz_taken(tdm_npy_find("input", data, bytes, &npy, &err), &err))
        return false;
    TDM_FUZZ_CHECK(npy.offset <= bytes && npy.count * npy.width == bytes - npy.offset);
    int fd = tdm_fuzz_file(data, bytes, path);
    (void)read_tokens(path, 1000); /* whose ids may be too large */
    close(fd);
    return true;
}

bool tdm_fuzz_idx(const uint8_t *data, size_t bytes)
{
    uint32_t bin_bytes;
    struct tdm_indexed_dataset dataset;
    struct tdm_error err = {0};
    if (bytes < sizeof(bin_bytes))
        return false;
    memcpy(&bin_bytes, data, sizeof(bin_bytes));
    data += sizeof(bin_bytes);
    bytes -= sizeof(bin_bytes);
    if (!tdm_indexed_dataset_is(data, bytes) ||
        !tdm_fuzz_taken(tdm_indexed_dataset_read("input", data, bytes, bin_bytes, &dataset, &err),
                        &err))
        return false;
    TDM_FUZZ_CHECK(dataset.count * dataset.width == bin_bytes);
    free(dataset.document_starts);
    if (bin_bytes > 1u << 16)
        return true;
    char *zeros = calloc(1, bin_bytes + (size_t)1), path[TDM_FUZZ_PATH];
    TDM_FUZZ_CHECK(zeros != NULL);
    tdm_fuzz_write("pair.bin", zeros, bin_bytes);
    tdm_fuzz_write("pair.idx", data, bytes);
    free(zeros);
    (void)read_tokens(tdm_fuzz_path("pair.bin", path), 1000);
    return true;
}

bool tdm_fuzz_bin(const uint8_t *data, size_t bytes)
{
    char path[TDM_FUZZ_PATH], what[TDM_FUZZ_PATH + 8];
    int fd = tdm_fuzz_file(data, bytes, path);
    bool taken = read_tokens(path, 50257);
    taken |= read_tokens(path, 256);
    snprintf(what, sizeof(what), "uint16:%s", path);
    taken |= read_tokens(what, 50257);
    snprintf(what, sizeof(what), "uint32:%s", path);
    taken |= read_tokens(what, TDM_ANY_VOCABULARY);
    close(fd);
    return taken;
}

bool tdm_fuzz_jsonl(const uint8_t *data, size_t bytes)
{
    struct tdm_jsonl lines;
    struct tdm_error err = {0};
    char path[TDM_FUZZ_PATH];
    if (!tdm_fuzz_taken(tdm_jsonl_read("input", (const char *)data, bytes, &lines, &err), &err)) {
        TDM_FUZZ_CHECK(strncmp(err.message, "input: ", 7) == 0);
        return false;
    }
    uint64_t targets = 0;
    for (uint64_t i = 0; i < lines.count; i++)
        targets += lines.targets == NULL || lines.targets[i] != 0;
    TDM_FUZZ_CHECK(lines.count == 0 || targets > 0);
    TDM_FUZZ_CHECK(lines.targets == NULL || targets < lines.count);
    TDM_FUZZ_CHECK((lines.count > 0) == (lines.document_count > 0));
    for (uint64_t i = 0; i < lines.document_count; i++) {
        const uint64_t end =
            i + 1 == lines.document_count ? lines.count : lines.document_starts[i + 1];
        TDM_FUZZ_CHECK(i > 0 || lines.document_starts[0] == 0);
        TDM_FUZZ_CHECK(lines.document_starts[i] < end); /* a document has a token */
    }
    tdm_jsonl_free(&lines);
    tdm_fuzz_write("lines.jsonl", data, bytes);
    (void)read_tokens(tdm_fuzz_path("lines.jsonl", path), 1000); /* whose ids may be too large */
    return true;
}
