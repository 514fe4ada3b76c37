/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors: a header that is not trusted, and elements as fp32 or as they are. */
#include "models/safetensors.h"

#include "base/json.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that are read and converted at once. */
#define BLOCK_BYTES (256u << 10)

/* Dtypes of the format whose elements are whole bytes. */
static const struct {
    const char *name;
    uint64_t bytes;
    enum tdm_dtype dtype;
} types[] = {
    {"BF16", 2, TDM_DTYPE_BF16},    {"F16", 2, TDM_DTYPE_FP16},     {"F32", 4, TDM_DTYPE_FP32},
    {"F64", 8, TDM_DTYPE_NONE},     {"BOOL", 1, TDM_DTYPE_NONE},    {"U8", 1, TDM_DTYPE_NONE},
    {"I8", 1, TDM_DTYPE_NONE},      {"F8_E4M3", 1, TDM_DTYPE_NONE}, {"F8_E5M2", 1, TDM_DTYPE_NONE},
    {"F8_E8M0", 1, TDM_DTYPE_NONE}, {"U16", 2, TDM_DTYPE_NONE},     {"I16", 2, TDM_DTYPE_NONE},
    {"U32", 4, TDM_DTYPE_NONE},     {"I32", 4, TDM_DTYPE_NONE},     {"U64", 8, TDM_DTYPE_NONE},
    {"I64", 8, TDM_DTYPE_NONE},     {"C64", 8, TDM_DTYPE_NONE},
};

const char *tdm_shown_name(const char *name, char out[TDM_SHOWN_NAME])
{
    size_t i = 0;
    for (; i < TDM_SHOWN_NAME - 1 && name[i] != '\0'; i++)
        out[i] = (char)(name[i] >= ' ' && name[i] <= '~' ? name[i] : '?');
    out[i] = '\0';
    if (name[i] != '\0')
        memcpy(out + TDM_SHOWN_NAME - 4, "...", 4);
    return out;
}

const char *tdm_shown_shape(uint32_t rank, const uint64_t *shape, char out[TDM_SHOWN_SHAPE])
{
    size_t used = (size_t)snprintf(out, TDM_SHOWN_SHAPE, "[");
    for (uint32_t i = 0; i < rank; i++)
        used += (size_t)snprintf(out + used, TDM_SHOWN_SHAPE - used, "%s%" PRIu64,
                                 i == 0 ? "" : ", ", shape[i]);
    snprintf(out + used, TDM_SHOWN_SHAPE - used, "]");
    return out;
}

/* ---- the header ---- */

/* Reports what is wrong with one tensor of a file. */
static enum tdm_status tensor_fail(const char *path, const char *name, const char *what,
                                   struct tdm_error *err)
{
    char shown[TDM_SHOWN_NAME];
    return tdm_fail(err, TDM_INPUT, "%s: tensor \"%s\" %s", path, tdm_shown_name(name, shown),
                    what);
}

static enum tdm_status read_type(const char *path, const json_t *entry,
                                 struct tdm_safetensor *tensor, uint64_t *element_bytes,
                                 struct tdm_error *err)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    if (type == NULL)
        return tensor_fail(path, tensor->name, "has no \"dtype\" that is a string", err);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type, types[i].name) == 0) {
            tensor->type = types[i].name;
            tensor->dtype = types[i].dtype;
            *element_bytes = types[i].bytes;
            return TDM_OK;
        }
    char what[TDM_SHOWN_NAME + 64], shown[TDM_SHOWN_NAME];
    snprintf(what, sizeof(what), "has the dtype \"%s\", which is not known",
             tdm_shown_name(type, shown));
    return tensor_fail(path, tensor->name, what, err);
}

/* Reads a number of the header that must be a count. Returns false if it is not one. */
static bool read_count(const json_t *value, uint64_t *count)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *count = (uint64_t)json_integer_value(value);
    return true;
}

static enum tdm_status read_shape(const char *path, const json_t *entry,
                                  struct tdm_safetensor *tensor, struct tdm_error *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return tensor_fail(path, tensor->name, "has no \"shape\" that is an array", err);
    if (json_array_size(shape) > TDM_SAFETENSORS_RANK)
        return tensor_fail(path, tensor->name, "has more than 8 dimensions", err);
    tensor->rank = (uint32_t)json_array_size(shape);
    tensor->elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (!read_count(json_array_get(shape, i), &tensor->shape[i]))
            return tensor_fail(path, tensor->name,
                               "has a \"shape\" with an entry that is not a count", err);
        tensor->elements = tdm_size_mul(tensor->elements, tensor->shape[i]);
    }
    return TDM_OK;
}

/* Reads one entry of the header and checks it by itself. The offset is relative to the data. */
static enum tdm_status read_tensor(const char *path, const json_t *entry, uint64_t data_bytes,
                                   struct tdm_safetensor *tensor, struct tdm_error *err)
{
    uint64_t element_bytes = 0, begin, end;
    if (!json_is_object(entry))
        return tensor_fail(path, tensor->name, "is not an object", err);
    enum tdm_status status = read_type(path, entry, tensor, &element_bytes, err);
    if (status == TDM_OK)
        status = read_shape(path, entry, tensor, err);
    if (status != TDM_OK)
        return status;

    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_count(json_array_get(offsets, 0), &begin) ||
        !read_count(json_array_get(offsets, 1), &end))
        return tensor_fail(path, tensor->name, "has no \"data_offsets\" that are two counts", err);
    tensor->bytes = tdm_size_mul(tensor->elements, element_bytes);
    tensor->offset = begin;
    char what[TDM_SHOWN_SHAPE + 160], shape[TDM_SHOWN_SHAPE];
    if (begin > end)
        snprintf(what, sizeof(what), "begins at byte %" PRIu64 " of the data and ends at %" PRIu64,
                 begin, end);
    else if (end > data_bytes)
        snprintf(what, sizeof(what),
                 "ends at byte %" PRIu64 " of the data, of which the file has %" PRIu64, end,
                 data_bytes);
    else if (end - begin != tensor->bytes)
        snprintf(what, sizeof(what),
                 "has %" PRIu64 " bytes of data, but its shape %s of %s needs %s%" PRIu64,
                 end - begin, tdm_shown_shape(tensor->rank, tensor->shape, shape), tensor->type,
                 tensor->bytes == TDM_SIZE_MAX ? "more than " : "",
                 tensor->bytes == TDM_SIZE_MAX ? tensor->bytes - 1 : tensor->bytes);
    else
        return TDM_OK;
    return tensor_fail(path, tensor->name, what, err);
}

static enum tdm_status check_metadata(const char *path, const json_t *metadata,
                                      struct tdm_error *err)
{
    bool strings = json_is_object(metadata);
    json_t *object = (json_t *)(uintptr_t)metadata; /* Jansson's iterator is not const */
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at))
        strings = strings && json_is_string(json_object_iter_value(at));
    return strings
               ? TDM_OK
               : tdm_fail(err, TDM_INPUT, "%s: \"__metadata__\" is not an object of strings", path);
}

static int by_offset(const void *a, const void *b)
{
    const struct tdm_safetensor *one = a, *other = b;
    if (one->offset != other->offset)
        return one->offset < other->offset ? -1 : 1;
    return one->bytes != other->bytes ? (one->bytes < other->bytes ? -1 : 1)
                                      : strcmp(one->name, other->name);
}

/* The sorted tensors must follow each other without overlap or hole up to the end of the data. */
static enum tdm_status check_cover(const char *path, const struct tdm_safetensors *file,
                                   uint64_t data_bytes, struct tdm_error *err)
{
    char what[TDM_SHOWN_NAME + 160], shown[TDM_SHOWN_NAME];
    uint64_t end = 0;
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const struct tdm_safetensor *tensor = &file->tensors[i];
        if (tensor->offset < end) {
            snprintf(what, sizeof(what),
                     "overlaps \"%s\": it begins at byte %" PRIu64 " of the data, before %" PRIu64,
                     tdm_shown_name(tensor[-1].name, shown), tensor->offset, end);
            return tensor_fail(path, tensor->name, what, err);
        }
        if (tensor->offset > end) {
            snprintf(what, sizeof(what),
                     "begins at byte %" PRIu64 " of the data; bytes from %" PRIu64
                     " on belong to no tensor",
                     tensor->offset, end);
            return tensor_fail(path, tensor->name, what, err);
        }
        end += tensor->bytes; /* at most data_bytes */
    }
    if (end != data_bytes)
        return tdm_fail(err, TDM_INPUT,
                        "%s: the last %" PRIu64 " of %" PRIu64 " bytes of data belong to no tensor",
                        path, data_bytes - end, data_bytes);
    return TDM_OK;
}

/* Reads the tensors of a parsed header. `data_bytes` bytes of data follow the header. */
static enum tdm_status read_tensors(struct tdm_safetensors *file, uint64_t header_bytes,
                                    uint64_t data_bytes, struct tdm_error *err)
{
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof(*file->tensors));
    if (file->tensors == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for %zu tensors", file->path,
                        json_object_size(file->header));
    enum tdm_status status = TDM_OK;
    for (void *at = json_object_iter(file->header); at != NULL && status == TDM_OK;
         at = json_object_iter_next(file->header, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *entry = json_object_iter_value(at);
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(file->path, entry, err);
            continue;
        }
        struct tdm_safetensor *tensor = &file->tensors[file->tensor_count++];
        tensor->name = name;
        status = read_tensor(file->path, entry, data_bytes, tensor, err);
    }
    if (status != TDM_OK)
        return status;
    qsort(file->tensors, file->tensor_count, sizeof(*file->tensors), by_offset);
    status = check_cover(file->path, file, data_bytes, err);
    for (uint32_t i = 0; i < file->tensor_count; i++)
        file->tensors[i].offset += 8 + header_bytes;
    return status;
}

/* ---- the file ---- */

static enum tdm_status read_at(const struct tdm_safetensors *file, void *data, uint64_t bytes,
                               uint64_t offset, struct tdm_error *err)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = pread(file->fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tdm_fail(err, TDM_IO, "%s: cannot be read: %s", file->path, strerror(errno));
        if (got == 0)
            return tdm_fail(err, TDM_IO, "%s: ends at byte %" PRIu64 "; it was longer when opened",
                            file->path, offset);
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return TDM_OK;
}

/* Reads the length of the header and computes that of the data after it. */
static enum tdm_status read_lengths(const struct tdm_safetensors *file, uint64_t *header_bytes,
                                    uint64_t *data_bytes, struct tdm_error *err)
{
    struct stat info;
    if (fstat(file->fd, &info) != 0)
        return tdm_fail(err, TDM_IO, "%s: cannot be read: %s", file->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return tdm_fail(err, TDM_INPUT, "%s: is not a regular file", file->path);
    uint64_t bytes = (uint64_t)info.st_size, length;
    if (bytes < sizeof(length))
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " bytes; a safetensors file begins with 8 of a length",
                        file->path, bytes);
    enum tdm_status status = read_at(file, &length, sizeof(length), 0, err);
    if (status != TDM_OK)
        return status;
    if (length > bytes - sizeof(length))
        return tdm_fail(err, TDM_INPUT,
                        "%s: its header should have %" PRIu64 " bytes, and the file has %" PRIu64
                        " after its length: it is cut off, or no safetensors file",
                        file->path, length, bytes - sizeof(length));
    if (length > TDM_SAFETENSORS_HEADER_BYTES)
        return tdm_fail(err, TDM_INPUT,
                        "%s: its header has %" PRIu64 " bytes; %" PRIu64 " are allowed", file->path,
                        length, TDM_SAFETENSORS_HEADER_BYTES);
    *header_bytes = length;
    *data_bytes = bytes - sizeof(length) - length;
    return TDM_OK;
}

static enum tdm_status parse(struct tdm_safetensors *file, const char *text, uint64_t bytes,
                             struct tdm_error *err)
{
    if (bytes == 0 || text[0] != '{')
        return tdm_fail(err, TDM_INPUT, "%s: its header does not begin with {: %s", file->path,
                        "it is not a safetensors file");
    char where[512];
    snprintf(where, sizeof(where), "%.480s: its header", file->path);
    return tdm_json_parse(where, text, bytes, &file->header, err);
}

enum tdm_status tdm_safetensors_open(const char *path, struct tdm_safetensors **out,
                                     struct tdm_error *err)
{
    struct tdm_safetensors *file = calloc(1, sizeof(*file));
    char *text = NULL;
    if (file == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to open it", path);
    file->path = strdup(path);
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    uint64_t header_bytes = 0, data_bytes = 0;
    enum tdm_status status;
    if (file->path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to open it", path);
    else if (file->fd < 0)
        status = tdm_fail(err, TDM_IO, "%s: cannot be opened: %s", path, strerror(errno));
    else
        status = read_lengths(file, &header_bytes, &data_bytes, err);
    if (status != TDM_OK)
        goto close_file;
    text = malloc(header_bytes + 1);
    if (text == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its header", path);
    if (status == TDM_OK)
        status = read_at(file, text, header_bytes, 8, err);
    if (status == TDM_OK)
        status = parse(file, text, header_bytes, err);
    if (status == TDM_OK)
        status = read_tensors(file, header_bytes, data_bytes, err);
    free(text);
    if (status != TDM_OK)
        goto close_file;
    *out = file;
    return TDM_OK;

close_file:
    tdm_safetensors_close(file);
    return status;
}

void tdm_safetensors_close(struct tdm_safetensors *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0)
        (void)close(file->fd);
    json_decref(file->header);
    free(file->tensors);
    free(file->path);
    free(file);
}

/* ---- elements ---- */

/* Widens elements to fp32. Returns false if one is infinite or NaN. */
static bool widen(const void *data, enum tdm_dtype dtype, uint64_t count, float *values)
{
    const uint16_t *halves = data;
    uint32_t finite = 1;
    if (dtype == TDM_DTYPE_FP32)
        memcpy(values, data, count * sizeof(*values));
    else if (dtype == TDM_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            values[i] = tdm_bf16_to_float(halves[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            values[i] = tdm_fp16_to_float(halves[i]);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        finite &= (bits & 0x7f800000u) != 0x7f800000u;
    }
    return finite;
}

enum tdm_status tdm_safetensors_read(const struct tdm_safetensors *file,
                                     const struct tdm_safetensor *tensor, uint64_t first,
                                     uint64_t count, float *values, struct tdm_error *err)
{
    uint64_t size = tdm_dtype_bytes(tensor->dtype);
    if (size == 0 || first > tensor->elements || count > tensor->elements - first)
        return tdm_fail(err, TDM_INTERNAL, "%s: elements that \"%s\" does not have", file->path,
                        tensor->name);
    void *block = malloc(BLOCK_BYTES);
    if (block == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", file->path);
    enum tdm_status status = TDM_OK;
    for (uint64_t done = 0; done < count && status == TDM_OK;) {
        uint64_t some = count - done < BLOCK_BYTES / size ? count - done : BLOCK_BYTES / size;
        status = read_at(file, block, some * size, tensor->offset + (first + done) * size, err);
        if (status == TDM_OK && !widen(block, tensor->dtype, some, values + done))
            status = tensor_fail(file->path, tensor->name, "holds a value that is not finite", err);
        done += some;
    }
    free(block);
    return status;
}

enum tdm_status tdm_safetensors_read_stored(const struct tdm_safetensors *file,
                                            const struct tdm_safetensor *tensor, uint64_t first,
                                            uint64_t count, void *data, struct tdm_error *err)
{
    if (first > tensor->elements || count > tensor->elements - first)
        return tdm_fail(err, TDM_INTERNAL, "%s: elements that \"%s\" does not have", file->path,
                        tensor->name);
    uint64_t size = tensor->elements == 0 ? 0 : tensor->bytes / tensor->elements;
    return read_at(file, data, count * size, tensor->offset + first * size, err);
}

enum tdm_status tdm_safetensors_checksum(const struct tdm_safetensors *file, uint64_t *checksum,
                                         struct tdm_error *err)
{
    void *block = malloc(BLOCK_BYTES);
    if (block == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", file->path);
    struct tdm_checksum sum = {0};
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < file->tensor_count; i++) /* they cover the data */
        for (uint64_t done = 0; done < file->tensors[i].bytes && status == TDM_OK;) {
            uint64_t left = file->tensors[i].bytes - done;
            uint64_t some = left < BLOCK_BYTES ? left : BLOCK_BYTES;
            status = read_at(file, block, some, file->tensors[i].offset + done, err);
            if (status == TDM_OK)
                tdm_checksum_add(&sum, block, some);
            done += some;
        }
    free(block);
    if (status == TDM_OK)
        *checksum = tdm_checksum_value(&sum);
    return status;
}
