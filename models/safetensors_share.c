/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors that several processes write together: one makes the file in its full size, and each
 * writes pieces of its data and reads them back. */
#include "models/safetensors.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES (UINT64_C(4) << 20)

enum tdm_status tdm_safetensors_reserve(const char *path, enum tdm_dtype dtype,
                                        uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                        struct tdm_error *err)
{
    struct tdm_safetensors_writer writer;
    enum tdm_status status =
        tdm_safetensors_create(path, dtype, tensor_count, tensors, &writer, err);
    if (status != TDM_OK)
        return status;
    const uint64_t bytes = tdm_safetensors_file_bytes(dtype, tensor_count, tensors);
    if (ftruncate(writer.fd, (off_t)bytes) != 0) {
        status = tdm_file_failed(path, errno, err);
        tdm_safetensors_abandon(&writer);
        return status;
    }
    writer.left = 0;
    return tdm_safetensors_finish(&writer, err);
}

enum tdm_status tdm_safetensors_join(const char *path, enum tdm_dtype dtype, uint32_t tensor_count,
                                     const struct tdm_safetensor *tensors,
                                     struct tdm_safetensors_share *share, struct tdm_error *err)
{
    const uint64_t bytes = tdm_safetensors_file_bytes(dtype, tensor_count, tensors);
    uint64_t elements = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint64_t some = 1;
        for (uint32_t side = 0; side < tensors[i].rank; side++)
            some *= tensors[i].shape[side];
        elements += some;
    }
    *share =
        (struct tdm_safetensors_share){.writer = {.path = strdup(path), .fd = -1, .dtype = dtype},
                                       .elements = elements,
                                       .begin = bytes - elements * tdm_dtype_bytes(dtype)};
    if (share->writer.path == NULL || bytes == UINT64_MAX)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", path);
    share->writer.fd = open(path, O_RDWR | O_CLOEXEC);
    return share->writer.fd < 0 ? tdm_file_failed(path, errno, err) : TDM_OK;
}

enum tdm_status tdm_safetensors_put(struct tdm_safetensors_share *share, uint64_t first,
                                    const void *values, bool stored, uint64_t count,
                                    struct tdm_error *err)
{
    struct tdm_safetensors_writer *writer = &share->writer;
    if (share->count == share->capacity) {
        const size_t capacity = share->capacity == 0 ? 64 : 2 * share->capacity;
        void *more = realloc(share->pieces, capacity * sizeof(*share->pieces));
        if (more == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", writer->path);
        share->pieces = more;
        share->capacity = capacity;
    }
    if (first > share->elements)
        return tdm_fail(err, TDM_INTERNAL, "%s: more elements than its header has", writer->path);
    share->pieces[share->count].first = first;
    share->pieces[share->count++].count = count;
    writer->left = share->elements - first;
    const uint64_t at = share->begin + first * tdm_dtype_bytes(writer->dtype);
    if (lseek(writer->fd, (off_t)at, SEEK_SET) < 0)
        return tdm_file_failed(writer->path, errno, err);
    return stored ? tdm_safetensors_append_stored(writer, values, count, err)
                  : tdm_safetensors_append(writer, values, count, err);
}

/* Reads a piece into the checksum. */
static enum tdm_status read_piece(const struct tdm_safetensors_share *share, uint64_t first,
                                  uint64_t count, void *block, struct tdm_checksum *sum,
                                  struct tdm_error *err)
{
    const struct tdm_safetensors_writer *writer = &share->writer;
    const uint64_t size = tdm_dtype_bytes(writer->dtype), bytes = count * size;
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t most = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        ssize_t some = pread(writer->fd, block, most, (off_t)(share->begin + first * size + done));
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return tdm_fail(err, TDM_IO, "%s: cannot be read back: %s", writer->path,
                            some < 0 ? strerror(errno) : "it is shorter than it was");
        tdm_checksum_add(sum, block, (size_t)some);
        done += (uint64_t)some;
    }
    return TDM_OK;
}

enum tdm_status tdm_safetensors_leave(struct tdm_safetensors_share *share, struct tdm_error *err)
{
    struct tdm_safetensors_writer *writer = &share->writer;
    struct tdm_checksum sum = {0};
    enum tdm_status status = TDM_OK;
    if (writer->fd < 0)
        return TDM_OK;
    void *block = malloc(BLOCK_BYTES);
    if (block == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it back", writer->path);
    else if (fsync(writer->fd) != 0)
        status = tdm_file_failed(writer->path, errno, err);
    for (size_t i = 0; i < share->count && status == TDM_OK; i++)
        status =
            read_piece(share, share->pieces[i].first, share->pieces[i].count, block, &sum, err);
    if (status == TDM_OK && tdm_checksum_value(&sum) != tdm_checksum_value(&writer->checksum))
        status =
            tdm_fail(err, TDM_IO, "%s: its data are not those that were written", writer->path);
    free(block);
    if (close(writer->fd) != 0 && status == TDM_OK)
        status = tdm_file_failed(writer->path, errno, err);
    writer->fd = -1;
    tdm_safetensors_drop(share);
    return status;
}

void tdm_safetensors_drop(struct tdm_safetensors_share *share)
{
    if (share->writer.path != NULL && share->writer.fd >= 0)
        (void)close(share->writer.fd);
    free(share->writer.path);
    free(share->pieces);
    *share = (struct tdm_safetensors_share){.writer = {.fd = -1}};
}
