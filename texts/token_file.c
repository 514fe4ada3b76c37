/* SPDX-License-Identifier: Apache-2.0 */
/* Token files: finds which format a file has, and where its tokens are. */
#include "texts/token_file.h"

#include "base/file.h"
#include "base/size.h"
#include "texts/indexed_dataset.h"
#include "texts/jsonl.h"
#include "texts/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LIMIT_BYTES ((uint64_t)4 << 30) /* a file is held in memory */

/* Byte-level vocabularies have 256 entries and a few special ones. */
#define MAX_BYTE_VOCABULARY 260u

/* ---- what a user asks for ---- */

/* A format of plain numbers, which a prefix names. */
struct raw {
    const char *prefix, *format;
    uint32_t width;
};

static const struct raw *raw_of(const char *what)
{
    static const struct raw raws[] = {
        {"uint16:", "uint16 numbers", 2}, {"uint32:", "uint32 numbers", 4}, {"bytes:", "bytes", 1}};
    for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++)
        if (strncmp(what, raws[i].prefix, strlen(raws[i].prefix)) == 0)
            return &raws[i];
    return NULL;
}

size_t tdm_token_file_prefix(const char *what)
{
    const struct raw *raw = raw_of(what);
    return raw == NULL ? 0 : strlen(raw->prefix);
}

static enum tdm_status check_name(const char *what, struct tdm_error *err)
{
    const struct raw *raw = raw_of(what);
    if (what[0] == '\0')
        return tdm_fail(err, TDM_USAGE, "the name of the tokens' file is empty");
    if (raw != NULL && what[strlen(raw->prefix)] == '\0')
        return tdm_fail(err, TDM_USAGE, "tokens \"%s\": no file is named behind the colon", what);
    return TDM_OK;
}

static bool ends_in(const char *path, const char *suffix)
{
    size_t length = strlen(path), end = strlen(suffix);
    return length > end && strcmp(path + length - end, suffix) == 0;
}

/* Names of a Megatron pair, malloc'ed; both NULL if memory ran out. */
struct pair {
    char *bin, *idx;
};

static void free_pair(struct pair *pair)
{
    free(pair->bin);
    free(pair->idx);
}

/* The pair that a name stands for. The name is that of one of its files, or their prefix. */
static struct pair pair_of(const char *path)
{
    size_t stem = strlen(path);
    if (ends_in(path, ".bin") || ends_in(path, ".idx"))
        stem -= 4;
    struct pair pair = {malloc(stem + 5), malloc(stem + 5)};
    if (pair.bin == NULL || pair.idx == NULL) {
        free_pair(&pair);
        return (struct pair){NULL, NULL};
    }
    snprintf(pair.bin, stem + 5, "%.*s.bin", (int)stem, path);
    snprintf(pair.idx, stem + 5, "%.*s.idx", (int)stem, path);
    return pair;
}

static bool is_file(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}

/* Does a name stand for a pair? It does not if a file has exactly that name and is neither of the
 * two. */
static bool is_pair(const char *path, const struct pair *pair)
{
    bool one_of_two = ends_in(path, ".bin") || ends_in(path, ".idx");
    return is_file(pair->idx) && (one_of_two || (!is_file(path) && is_file(pair->bin)));
}

enum tdm_status tdm_token_file_paths(const char *what, struct tdm_token_paths *paths,
                                     struct tdm_error *err)
{
    const struct raw *raw = raw_of(what);
    struct pair pair = {NULL, NULL};
    enum tdm_status status = check_name(what, err);
    if (status != TDM_OK)
        return status;
    if (raw == NULL) {
        pair = pair_of(what);
        if (pair.bin != NULL && is_pair(what, &pair)) {
            *paths = (struct tdm_token_paths){pair.bin, pair.idx};
            return TDM_OK;
        }
    }
    free_pair(&pair);
    char *tokens = strdup(raw != NULL ? what + strlen(raw->prefix) : what);
    if (tokens == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its name", what);
    paths->tokens = tokens;
    paths->documents = NULL;
    return TDM_OK;
}

/* ---- reading ---- */

static enum tdm_status read_whole(const char *path, char **data, uint64_t *bytes,
                                  struct tdm_error *err)
{
    struct stat found;
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode))
        return tdm_fail(err, TDM_INPUT, "%s: is not a regular file; give a file of tokens", path);
    return tdm_file_read(path, LIMIT_BYTES, data, bytes, err);
}

static enum tdm_status find_raw(const struct raw *raw, uint64_t bytes, struct tdm_token_file *file,
                                struct tdm_error *err)
{
    if (bytes % raw->width != 0)
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " bytes, which is not a whole number of %s", file->path,
                        bytes, raw->format);
    file->format = raw->format;
    file->data = (const unsigned char *)file->bytes;
    file->count = bytes / raw->width;
    file->width = raw->width;
    return TDM_OK;
}

static enum tdm_status find_npy(uint64_t bytes, struct tdm_token_file *file, struct tdm_error *err)
{
    struct tdm_npy npy;
    enum tdm_status status = tdm_npy_find(file->path, file->bytes, bytes, &npy, err);
    if (status != TDM_OK)
        return status;
    file->format = "an array of NumPy";
    file->data = (const unsigned char *)file->bytes + npy.offset;
    file->count = npy.count;
    file->width = npy.width;
    file->is_signed = npy.is_signed;
    file->is_truth = npy.is_truth;
    return TDM_OK;
}

/* ---- llm.c ---- */

/* Data of llm.c (dev/data/data_common.py): a header of 256 int32, of which the first three are
 * used, then the tokens. */
struct llmc {
    int32_t magic, version;
    uint32_t width;
    uint64_t delimiter; /* the first token of every document */
    const char *format;
};

#define LLMC_HEADER_BYTES (256 * sizeof(int32_t))

static const struct llmc llmc_kinds[] = {
    {20240520, 1, 2, 50256, "llm.c data for GPT-2"},
    {20240801, 7, 4, 128000, "llm.c data for Llama 3"},
};

static const struct llmc *llmc_of(const char *data, uint64_t bytes)
{
    int32_t magic;
    if (bytes < sizeof(magic))
        return NULL;
    memcpy(&magic, data, sizeof(magic));
    for (size_t i = 0; i < sizeof(llmc_kinds) / sizeof(llmc_kinds[0]); i++)
        if (magic == llmc_kinds[i].magic)
            return &llmc_kinds[i];
    return NULL;
}

/* A document begins at each delimiter. The tokens before the first one are a document too. */
static enum tdm_status find_delimiters(uint64_t delimiter, struct tdm_token_file *file,
                                       struct tdm_error *err)
{
    uint64_t count = 1;
    for (uint64_t i = 1; i < file->count; i++)
        count += tdm_token_file_at(file, i) == delimiter;
    file->document_starts = malloc(count * sizeof(*file->document_starts));
    if (file->document_starts == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: out of memory for %" PRIu64 " documents",
                        file->path, count);
    file->document_starts[0] = 0;
    file->document_count = 1;
    for (uint64_t i = 1; i < file->count; i++)
        if (tdm_token_file_at(file, i) == delimiter)
            file->document_starts[file->document_count++] = i;
    file->opened_by_delimiter = true;
    return TDM_OK;
}

static enum tdm_status find_llmc(const struct llmc *kind, uint64_t bytes,
                                 struct tdm_token_file *file, struct tdm_error *err)
{
    int32_t header[3]; /* magic, version, tokens */
    if (bytes < LLMC_HEADER_BYTES)
        return tdm_fail(err, TDM_INPUT, "%s: ends inside the header of %s", file->path,
                        kind->format);
    memcpy(header, file->bytes, sizeof(header));
    if (header[1] != kind->version)
        return tdm_fail(err, TDM_INPUT,
                        "%s: is of version %" PRId32 " of %s; %" PRId32 " can be read", file->path,
                        header[1], kind->format, kind->version);
    if (header[2] < 0 ||
        tdm_size_mul((uint64_t)header[2], kind->width) != bytes - LLMC_HEADER_BYTES)
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " bytes of tokens, but %" PRId32 " tokens of %" PRIu32
                        " bytes by its header",
                        file->path, (uint64_t)(bytes - LLMC_HEADER_BYTES), header[2], kind->width);
    file->format = kind->format;
    file->data = (const unsigned char *)file->bytes + LLMC_HEADER_BYTES;
    file->count = (uint64_t)header[2];
    file->width = kind->width;
    return file->count < 2 ? TDM_OK : find_delimiters(kind->delimiter, file, err);
}

/* ---- Megatron-LM ---- */

static enum tdm_status read_pair(struct pair *pair, struct tdm_token_file *file,
                                 struct tdm_error *err)
{
    struct tdm_indexed_dataset dataset;
    char *index = NULL;
    uint64_t index_bytes, bytes = 0;
    enum tdm_status status = read_whole(pair->idx, &index, &index_bytes, err);
    if (status == TDM_OK && !tdm_indexed_dataset_is(index, index_bytes))
        status = tdm_fail(err, TDM_INPUT, "%s: does not begin as an index of Megatron-LM does",
                          pair->idx);
    if (status == TDM_OK)
        status = read_whole(pair->bin, &file->bytes, &bytes, err);
    if (status == TDM_OK)
        status = tdm_indexed_dataset_read(pair->idx, index, index_bytes, bytes, &dataset, err);
    free(index);
    if (status != TDM_OK)
        return status;
    file->path = pair->bin;
    pair->bin = NULL;
    file->format = "a dataset of Megatron-LM";
    file->data = (const unsigned char *)file->bytes;
    file->count = dataset.count;
    file->width = dataset.width;
    file->is_signed = dataset.is_signed;
    file->document_count = dataset.document_count;
    file->document_starts = dataset.document_starts;
    return TDM_OK;
}

/* ---- JSON lines ---- */

/* Takes the place of the file's text, which is not needed any more. */
static enum tdm_status find_jsonl(uint64_t bytes, struct tdm_token_file *file,
                                  struct tdm_error *err)
{
    struct tdm_jsonl lines;
    enum tdm_status status = tdm_jsonl_read(file->path, file->bytes, bytes, &lines, err);
    if (status != TDM_OK)
        return status;
    free(file->bytes);
    file->bytes = (char *)lines.tokens;
    file->format = "JSON lines of token ids";
    file->data = (const unsigned char *)lines.tokens;
    file->count = lines.count;
    file->width = sizeof(*lines.tokens);
    file->document_count = lines.document_count;
    file->document_starts = lines.document_starts;
    file->targets = lines.targets;
    return TDM_OK;
}

/* ---- all formats ---- */

static enum tdm_status refuse_unknown(const char *path, uint32_t vocabulary, struct tdm_error *err)
{
    tdm_fail(err, TDM_INPUT,
             "%s: is neither a .npy array, nor data of llm.c or Megatron-LM, and bytes are no "
             "tokens of a vocabulary of %" PRIu32,
             path, vocabulary);
    return tdm_hint(err,
                    "give token ids as a .npy array, as llm.c's or Megatron-LM's .bin (the latter "
                    "with its .idx), as lines of JSON (.jsonl), as uint16:FILE or uint32:FILE; or "
                    "bytes:FILE for one token a byte");
}

/* Reads a file that has no prefix and no index: its contents tell the format. */
static enum tdm_status read_by_contents(const char *what, uint32_t vocabulary,
                                        struct tdm_token_file *file, struct tdm_error *err)
{
    static const struct raw bytes_of = {"", "bytes", 1};
    uint64_t bytes;
    enum tdm_status status = read_whole(what, &file->bytes, &bytes, err);
    if (status != TDM_OK)
        return status;
    if (ends_in(what, ".jsonl"))
        return find_jsonl(bytes, file, err);
    const struct llmc *kind = llmc_of(file->bytes, bytes);
    if (tdm_npy_is(file->bytes, bytes))
        return find_npy(bytes, file, err);
    if (kind != NULL)
        return find_llmc(kind, bytes, file, err);
    if (tdm_indexed_dataset_is(file->bytes, bytes))
        return tdm_fail(err, TDM_INPUT,
                        "%s: is an index of Megatron-LM; name it PREFIX.idx, beside PREFIX.bin",
                        what);
    bool has_bytes = vocabulary <= MAX_BYTE_VOCABULARY || vocabulary == TDM_ANY_VOCABULARY;
    return has_bytes ? find_raw(&bytes_of, bytes, file, err)
                     : refuse_unknown(what, vocabulary, err);
}

static enum tdm_status read_any(const char *what, uint32_t vocabulary, struct tdm_token_file *file,
                                struct tdm_error *err)
{
    const struct raw *raw = raw_of(what);
    const char *path = raw == NULL ? what : what + strlen(raw->prefix);
    uint64_t bytes;
    enum tdm_status status = check_name(what, err);
    if (status != TDM_OK)
        return status;
    struct pair pair = pair_of(path);
    file->path = strdup(path);
    if (file->path == NULL || pair.bin == NULL) {
        free_pair(&pair);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for tokens");
    }
    if (raw != NULL) {
        status = read_whole(path, &file->bytes, &bytes, err);
        if (status == TDM_OK)
            status = find_raw(raw, bytes, file, err);
    } else if (is_pair(path, &pair)) {
        free(file->path);
        file->path = NULL;
        status = read_pair(&pair, file, err);
    } else {
        status = read_by_contents(path, vocabulary, file, err);
    }
    free_pair(&pair);
    return status;
}

/* A little-endian number of `width` bytes. A negative one becomes a very large one. */
static uint64_t number_at(const unsigned char *data, uint32_t width, bool is_signed)
{
    uint64_t number = 0;
    switch (width) {
    case 1:
        number = *data;
        break;
    case 2:
        memcpy(&number, data, 2);
        break;
    case 4:
        memcpy(&number, data, 4);
        break;
    default:
        memcpy(&number, data, 8);
        return number;
    }
    unsigned bits = 8 * width;
    return is_signed && number >> (bits - 1) != 0 ? number | UINT64_MAX << bits : number;
}

uint64_t tdm_token_file_at(const struct tdm_token_file *file, uint64_t i)
{
    return number_at(file->data + i * file->width, file->width, file->is_signed);
}

static enum tdm_status check_vocabulary(const struct tdm_token_file *file, uint32_t vocabulary,
                                        struct tdm_error *err)
{
    for (uint64_t i = 0; i < file->count; i++) {
        uint64_t token = tdm_token_file_at(file, i);
        if (token < vocabulary)
            continue;
        bool text = strcmp(file->format, "bytes") == 0;
        bool negative = file->is_signed && token >> 63 != 0;
        const char *const sign = negative ? "-" : "";
        const uint64_t size = negative ? -token : token;
        if (vocabulary == TDM_ANY_VOCABULARY)
            return tdm_fail(err, TDM_INPUT,
                            "%s: number %" PRIu64 " of %" PRIu64 " is %s%" PRIu64
                            "; expected 0 to %" PRIu32,
                            file->path, i, file->count, sign, size, vocabulary - 1);
        tdm_fail(err, TDM_INPUT,
                 "%s: %s %" PRIu64 " of %" PRIu64 " is %s%" PRIu64
                 ", but the model's vocabulary has %" PRIu32 " entries",
                 file->path, text ? "byte" : "token", i, file->count, sign, size, vocabulary);
        return tdm_hint(err, text ? "train a model whose vocab_size is 256 or more on bytes"
                                  : "the ids must be those of the model's own tokenizer");
    }
    return TDM_OK;
}

enum tdm_status tdm_token_file_read(const char *what, uint32_t vocabulary,
                                    struct tdm_token_file *out, struct tdm_error *err)
{
    struct tdm_token_file file = {0};
    enum tdm_status status = read_any(what, vocabulary, &file, err);
    if (status == TDM_OK && file.count < 2)
        status = tdm_fail(err, TDM_INPUT, "%s: has %" PRIu64 " token%s; at least 2 are needed",
                          file.path, file.count, file.count == 1 ? "" : "s");
    if (status == TDM_OK)
        status = check_vocabulary(&file, vocabulary, err);
    if (status != TDM_OK) {
        tdm_token_file_free(&file);
        return status;
    }
    *out = file;
    return TDM_OK;
}

void tdm_token_file_free(struct tdm_token_file *file)
{
    free(file->path);
    free(file->bytes);
    free(file->document_starts);
    free(file->targets);
    *file = (struct tdm_token_file){0};
}
