/* SPDX-License-Identifier: Apache-2.0 */
/* Writes safetensors: a header, then the elements as they arrive. Also reads a written file
 * back. */
#include "models/safetensors.h"

#include "base/file.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Elements that are rounded and written at once. */
#define BLOCK 65536u

static const char *type_name(enum tdm_dtype dtype)
{
    return dtype == TDM_DTYPE_FP32          ? "F32"
           : dtype == TDM_DTYPE_BF16        ? "BF16"
           : dtype == TDM_DTYPE_REMAINDER16 ? "I16"
                                            : "F16";
}

/* The number of elements of all tensors; TDM_SIZE_MAX if it exceeds 64 bits. */
static uint64_t count_elements(uint32_t tensor_count, const struct tdm_safetensor *tensors)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint64_t elements = 1;
        for (uint32_t side = 0; side < tensors[i].rank; side++)
            elements = tdm_size_mul(elements, tensors[i].shape[side]);
        sum = tdm_size_add(sum, elements);
    }
    return sum;
}

/* The text of the header, padded so that the data begin at a multiple of 8. malloc'ed; NULL if
 * memory ran out. */
static char *header_text(enum tdm_dtype dtype, uint32_t tensor_count,
                         const struct tdm_safetensor *tensors, uint64_t *bytes)
{
    /* transformers only reads files whose metadata names a known library, such as PyTorch */
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool whole = root != NULL; /* false: memory ran out and a part is missing */
    uint64_t offset = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        const struct tdm_safetensor *tensor = &tensors[i];
        uint64_t end = offset + count_elements(1, tensor) * tdm_dtype_bytes(dtype);
        json_t *shape = json_array();
        for (uint32_t side = 0; side < tensor->rank; side++)
            whole =
                json_array_append_new(shape, json_integer((json_int_t)tensor->shape[side])) == 0 &&
                whole;
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(dtype), "shape", shape,
                                  "data_offsets", (json_int_t)offset, (json_int_t)end);
        whole = json_object_set_new(root, tensor->name, entry) == 0 && whole;
        offset = end;
    }
    char *text = whole ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL)
        return NULL;
    uint64_t length = strlen(text), padded = tdm_size_align(length, 8);
    char *longer = realloc(text, padded + 1);
    if (longer == NULL) {
        free(text);
        return NULL;
    }
    memset(longer + length, ' ', padded - length);
    *bytes = padded;
    return longer;
}

uint64_t tdm_safetensors_file_bytes(enum tdm_dtype dtype, uint32_t tensor_count,
                                    const struct tdm_safetensor *tensors)
{
    uint64_t data = tdm_size_mul(count_elements(tensor_count, tensors), tdm_dtype_bytes(dtype));
    uint64_t header_bytes = 0;
    if (data > INT64_MAX)
        return TDM_SIZE_MAX;
    char *text = header_text(dtype, tensor_count, tensors, &header_bytes);
    uint64_t sum = text == NULL ? TDM_SIZE_MAX : tdm_size_add(8 + header_bytes, data);
    free(text);
    return sum;
}

enum tdm_status tdm_safetensors_create(const char *path, enum tdm_dtype dtype,
                                       uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                       struct tdm_safetensors_writer *writer, struct tdm_error *err)
{
    uint64_t header_bytes, elements = count_elements(tensor_count, tensors);
    if (tdm_size_mul(elements, tdm_dtype_bytes(dtype)) > INT64_MAX)
        return tdm_fail(err, TDM_INPUT, "%s: its tensors would be larger than any file", path);
    char *text = header_text(dtype, tensor_count, tensors, &header_bytes);
    *writer = (struct tdm_safetensors_writer){
        .path = strdup(path), .fd = -1, .dtype = dtype, .left = elements};
    enum tdm_status status = TDM_OK;
    if (text == NULL || writer->path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its header", path);
    if (status == TDM_OK) {
        writer->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (writer->fd < 0)
            status = tdm_file_failed(path, errno, err);
    }
    if (status == TDM_OK)
        status = tdm_file_put(writer->fd, path, &header_bytes, sizeof(header_bytes), err);
    if (status == TDM_OK)
        status = tdm_file_put(writer->fd, path, text, header_bytes, err);
    free(text);
    if (status != TDM_OK)
        tdm_safetensors_abandon(writer);
    return status;
}

/* Writes a part of the data. */
static enum tdm_status put(struct tdm_safetensors_writer *writer, const void *data, uint64_t bytes,
                           struct tdm_error *err)
{
    tdm_checksum_add(&writer->checksum, data, bytes);
    return tdm_file_put(writer->fd, writer->path, data, bytes, err);
}

enum tdm_status tdm_safetensors_append(struct tdm_safetensors_writer *writer, const float *values,
                                       uint64_t count, struct tdm_error *err)
{
    if (count > writer->left)
        return tdm_fail(err, TDM_INTERNAL, "%s: more elements than its header has", writer->path);
    writer->left -= count;
    if (writer->dtype == TDM_DTYPE_FP32)
        return put(writer, values, count * sizeof(*values), err);
    uint16_t *block = malloc(BLOCK * sizeof(*block));
    if (block == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", writer->path);
    enum tdm_status status = TDM_OK;
    for (uint64_t done = 0; done < count && status == TDM_OK;) {
        uint64_t some = count - done < BLOCK ? count - done : BLOCK;
        for (uint64_t i = 0; i < some; i++)
            block[i] = writer->dtype == TDM_DTYPE_BF16 ? tdm_float_to_bf16(values[done + i])
                                                       : tdm_float_to_fp16(values[done + i]);
        status = put(writer, block, some * sizeof(*block), err);
        done += some;
    }
    free(block);
    return status;
}

enum tdm_status tdm_safetensors_append_stored(struct tdm_safetensors_writer *writer,
                                              const void *data, uint64_t count,
                                              struct tdm_error *err)
{
    if (count > writer->left)
        return tdm_fail(err, TDM_INTERNAL, "%s: more elements than its header has", writer->path);
    writer->left -= count;
    return put(writer, data, count * tdm_dtype_bytes(writer->dtype), err);
}

enum tdm_status tdm_safetensors_finish(struct tdm_safetensors_writer *writer, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (writer->left > 0)
        status =
            tdm_fail(err, TDM_INTERNAL, "%s: fewer elements than its header has", writer->path);
    if (status == TDM_OK && fsync(writer->fd) != 0)
        status = tdm_file_failed(writer->path, errno, err);
    if (status != TDM_OK) {
        tdm_safetensors_abandon(writer);
        return status;
    }
    if (close(writer->fd) != 0) {
        status = tdm_file_failed(writer->path, errno, err);
        (void)unlink(writer->path);
    }
    free(writer->path);
    *writer = (struct tdm_safetensors_writer){.fd = -1};
    return status;
}

void tdm_safetensors_abandon(struct tdm_safetensors_writer *writer)
{
    if (writer->fd >= 0) {
        (void)close(writer->fd);
        (void)unlink(writer->path);
    }
    free(writer->path);
    *writer = (struct tdm_safetensors_writer){.fd = -1};
}

bool tdm_safetensors_is(const struct tdm_safetensor *found, enum tdm_dtype dtype,
                        const struct tdm_safetensor *due)
{
    return strcmp(found->name, due->name) == 0 && strcmp(found->type, type_name(dtype)) == 0 &&
           found->rank == due->rank &&
           memcmp(found->shape, due->shape, due->rank * sizeof(*due->shape)) == 0;
}

enum tdm_status tdm_safetensors_sum(const char *path, enum tdm_dtype dtype, uint32_t tensor_count,
                                    const struct tdm_safetensor *tensors, uint64_t *checksum,
                                    struct tdm_error *err)
{
    struct tdm_safetensors *file;
    enum tdm_status status = tdm_safetensors_open(path, &file, err);
    if (status != TDM_OK)
        return status;
    bool same = file->tensor_count == tensor_count;
    for (uint32_t i = 0; same && i < tensor_count; i++)
        same = tdm_safetensors_is(&file->tensors[i], dtype, &tensors[i]);
    status = same ? tdm_safetensors_checksum(file, checksum, err)
                  : tdm_fail(err, TDM_IO, "%s: its header does not list what was written", path);
    tdm_safetensors_close(file);
    return status;
}

enum tdm_status tdm_safetensors_verify(const char *path, enum tdm_dtype dtype,
                                       uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                       uint64_t checksum, struct tdm_error *err)
{
    uint64_t found = 0;
    enum tdm_status status = tdm_safetensors_sum(path, dtype, tensor_count, tensors, &found, err);
    return status == TDM_OK && found != checksum
               ? tdm_fail(err, TDM_IO, "%s: its data are not those that were written", path)
               : status;
}
