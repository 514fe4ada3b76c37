/* SPDX-License-Identifier: Apache-2.0 */
/* Reads Megatron's index of a token file. Every field is checked before it is used. */
#include "texts/indexed_dataset.h"

#include "base/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "MMIDIDX\0"
#define MAGIC_BYTES 9u /* with the zero byte that ends the string */
#define HEADER_BYTES 34u

/* The arrays of an index. */
struct arrays {
    const char *path;
    const unsigned char *lengths, *pointers, *documents;
    uint64_t sequences, entries;
};

static uint64_t read_u64(const unsigned char *data)
{
    uint64_t value;
    memcpy(&value, data, sizeof(value));
    return value;
}

static int64_t read_i64(const unsigned char *array, uint64_t i)
{
    int64_t value;
    memcpy(&value, array + i * sizeof(value), sizeof(value));
    return value;
}

static int32_t read_i32(const unsigned char *array, uint64_t i)
{
    int32_t value;
    memcpy(&value, array + i * sizeof(value), sizeof(value));
    return value;
}

bool tdm_indexed_dataset_is(const void *data, uint64_t bytes)
{
    return bytes >= MAGIC_BYTES && memcmp(data, MAGIC, MAGIC_BYTES) == 0;
}

/* Width and sign of a dtype code; width 0: not an integer. */
static uint32_t width_of(unsigned code, bool *is_signed)
{
    static const uint32_t width[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    *is_signed = code >= 2 && code <= 5;
    return code < sizeof(width) / sizeof(width[0]) ? width[code] : 0;
}

static enum tdm_status find_arrays(const char *path, const unsigned char *data, uint64_t bytes,
                                   struct arrays *a, struct tdm_indexed_dataset *dataset,
                                   struct tdm_error *err)
{
    if (bytes < HEADER_BYTES)
        return tdm_fail(err, TDM_INPUT, "%s: ends inside the header of a Megatron index", path);
    uint64_t version = read_u64(data + MAGIC_BYTES);
    unsigned code = data[17];
    if (version != 1)
        return tdm_fail(err, TDM_INPUT,
                        "%s: is of version %" PRIu64 " of Megatron's index; 1 can be read", path,
                        version);
    dataset->width = width_of(code, &dataset->is_signed);
    if (dataset->width == 0)
        return tdm_fail(err, TDM_INPUT, "%s: its dtype code is %u, which is not a whole number",
                        path, code);
    *a = (struct arrays){
        .path = path, .sequences = read_u64(data + 18), .entries = read_u64(data + 26)};
    uint64_t lengths = tdm_size_mul(a->sequences, sizeof(int32_t));
    uint64_t pointers = tdm_size_mul(a->sequences, sizeof(int64_t));
    uint64_t documents = tdm_size_mul(a->entries, sizeof(int64_t));
    uint64_t due =
        tdm_size_add(tdm_size_add(HEADER_BYTES, lengths), tdm_size_add(pointers, documents));
    uint64_t modes = tdm_size_add(due, a->sequences);
    if (bytes != due && bytes != modes)
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " bytes; an index of %" PRIu64 " sequences and %" PRIu64
                        " document entries has %" PRIu64,
                        path, bytes, a->sequences, a->entries, due);
    a->lengths = data + HEADER_BYTES;
    a->pointers = a->lengths + lengths;
    a->documents = a->pointers + pointers;
    return TDM_OK;
}

/* Sequences follow each other from byte 0 to the end of the .bin file. */
static enum tdm_status check_sequences(const struct arrays *a, uint64_t bin_bytes,
                                       struct tdm_indexed_dataset *dataset, struct tdm_error *err)
{
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < a->sequences; i++) {
        int64_t length = read_i32(a->lengths, i), pointer = read_i64(a->pointers, i);
        if (length < 0)
            return tdm_fail(err, TDM_INPUT, "%s: sequence %" PRIu64 " has %" PRId64 " tokens",
                            a->path, i, length);
        if (pointer < 0 || (uint64_t)pointer != tokens * dataset->width)
            return tdm_fail(err, TDM_INPUT,
                            "%s: sequence %" PRIu64 " begins at byte %" PRId64
                            ", but those before it end at %" PRIu64,
                            a->path, i, pointer, tokens * dataset->width);
        tokens += (uint64_t)length; /* below 2^31 per sequence of the file: no overflow */
    }
    if (tdm_size_mul(tokens, dataset->width) != bin_bytes)
        return tdm_fail(err, TDM_INPUT,
                        "%s: its sequences have %" PRIu64 " tokens of %" PRIu32
                        " bytes, but the .bin file has %" PRIu64 " bytes",
                        a->path, tokens, dataset->width, bin_bytes);
    dataset->count = tokens;
    return TDM_OK;
}

/* Turns the document index into first tokens. Documents without a token are left out. */
static enum tdm_status read_documents(const struct arrays *a, struct tdm_indexed_dataset *dataset,
                                      struct tdm_error *err)
{
    uint64_t sequence = 0, tokens = 0, count = 0;
    uint64_t *starts = malloc((a->entries + 1) * sizeof(*starts)); /* the file is larger */
    if (starts == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %" PRIu64 " documents of %s",
                        a->entries, a->path);
    enum tdm_status status = TDM_OK;
    for (uint64_t i = 0; i < a->entries; i++) {
        int64_t first = read_i64(a->documents, i);
        if (first < 0 || (uint64_t)first < sequence || (uint64_t)first > a->sequences ||
            (i == 0 && first != 0)) {
            status = tdm_fail(
                err, TDM_INPUT,
                "%s: entry %" PRIu64 " of its document index is %" PRId64 "; expected %s", a->path,
                i, first, i == 0 ? "0" : "sequences in rising order, and no more than there are");
            break;
        }
        for (; sequence < (uint64_t)first; sequence++)
            tokens += (uint64_t)read_i32(a->lengths, sequence);
        if (count > 0 && starts[count - 1] == tokens)
            count--; /* the document before has no token */
        starts[count++] = tokens;
    }
    if (status == TDM_OK && (a->entries == 0 || sequence != a->sequences))
        status = tdm_fail(err, TDM_INPUT,
                          "%s: its document index ends at sequence %" PRIu64 " of %" PRIu64,
                          a->path, sequence, a->sequences);
    if (status != TDM_OK) {
        free(starts);
        return status;
    }
    dataset->document_count = count - 1; /* the last entry is the end */
    dataset->document_starts = starts;
    return TDM_OK;
}

enum tdm_status tdm_indexed_dataset_read(const char *path, const void *data, uint64_t bytes,
                                         uint64_t bin_bytes, struct tdm_indexed_dataset *dataset,
                                         struct tdm_error *err)
{
    struct arrays arrays = {0};
    struct tdm_indexed_dataset found = {0};
    enum tdm_status status = find_arrays(path, data, bytes, &arrays, &found, err);
    if (status == TDM_OK)
        status = check_sequences(&arrays, bin_bytes, &found, err);
    if (status == TDM_OK)
        status = read_documents(&arrays, &found, err);
    if (status == TDM_OK)
        *dataset = found;
    return status;
}
