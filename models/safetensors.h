/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors: one file of named tensors, read and written.
 *
 * The format: 8 bytes, little-endian, with the length of a JSON header; the header, an object of
 * {"dtype", "shape", "data_offsets"} by name (and "__metadata__", strings); then the data, to which
 * the offsets are relative. Files are not trusted: opening one reads only the header, and refuses
 * it unless the tensors cover the data exactly, each with the bytes of its dtype and shape.
 *
 * Numbers in files are little-endian, like the machines that this is built for.
 */
#ifndef TDM_MODELS_SAFETENSORS_H
#define TDM_MODELS_SAFETENSORS_H

#include "base/digest.h"
#include "base/dtype.h"
#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The largest number of dimensions of a tensor. */
#define TDM_SAFETENSORS_RANK 8

/* The longest header: enough for 100,000 tensors; our largest model has 14,000. */
#define TDM_SAFETENSORS_HEADER_BYTES (UINT64_C(16) << 20)

struct tdm_safetensor {
    const char *name;
    const char *type;     /* dtype as the format spells it: "BF16", "I64" */
    enum tdm_dtype dtype; /* fp32, bf16, fp16; TDM_DTYPE_NONE: it cannot be read */
    uint32_t rank;
    uint64_t shape[TDM_SAFETENSORS_RANK];
    uint64_t elements, bytes;
    uint64_t offset; /* of its first byte in the file */
};

/* An open file. Its pointers are valid until tdm_safetensors_close(). */
struct tdm_safetensors {
    char *path;
    int fd;
    json_t *header; /* holds the names */
    uint32_t tensor_count;
    struct tdm_safetensor *tensors; /* in the order of the data */
};

/* Opens a file and checks its header. TDM_IO if it cannot be read; TDM_INPUT, which names file and
 * tensor, if the header is wrong. On success the caller owns *file. */
enum tdm_status tdm_safetensors_open(const char *path, struct tdm_safetensors **file,
                                     struct tdm_error *err);
void tdm_safetensors_close(struct tdm_safetensors *file);

/* Reads elements [first, first + count) of a tensor whose dtype is not TDM_DTYPE_NONE as fp32,
 * exactly. TDM_INPUT if one of them is infinite or NaN; TDM_IO, also if the file has become
 * shorter. */
enum tdm_status tdm_safetensors_read(const struct tdm_safetensors *file,
                                     const struct tdm_safetensor *tensor, uint64_t first,
                                     uint64_t count, float *values, struct tdm_error *err);

/* Reads elements as they are stored, in `dtype`, which may be any. TDM_IO. */
enum tdm_status tdm_safetensors_read_stored(const struct tdm_safetensors *file,
                                            const struct tdm_safetensor *tensor, uint64_t first,
                                            uint64_t count, void *data, struct tdm_error *err);

/* Does a tensor of a file have the name and shape of `due`, and this dtype? */
bool tdm_safetensors_is(const struct tdm_safetensor *found, enum tdm_dtype dtype,
                        const struct tdm_safetensor *due);

/* The checksum of all data of a file, which is everything after the header. TDM_IO. */
enum tdm_status tdm_safetensors_checksum(const struct tdm_safetensors *file, uint64_t *checksum,
                                         struct tdm_error *err);

/* A file being written. */
struct tdm_safetensors_writer {
    char *path;
    int fd;
    enum tdm_dtype dtype;
    uint64_t left;                /* elements not written yet */
    struct tdm_checksum checksum; /* of the data written so far */
};

/* Creates a file, which must not exist, for tensors of one dtype (fp32, bf16, fp16 or remainder16,
 * which is stored as I16), and writes its header. `tensors` gives their names, ranks and shapes.
 * TDM_IO. On success the caller ends *writer with tdm_safetensors_finish() or
 * tdm_safetensors_abandon(). */
enum tdm_status tdm_safetensors_create(const char *path, enum tdm_dtype dtype,
                                       uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                       struct tdm_safetensors_writer *writer,
                                       struct tdm_error *err);

/* Size of the complete file that tdm_safetensors_create() would begin; TDM_SIZE_MAX if it is too
 * large for any file, or if memory ran out. */
uint64_t tdm_safetensors_file_bytes(enum tdm_dtype dtype, uint32_t tensor_count,
                                    const struct tdm_safetensor *tensors);

/* Writes the next `count` elements, rounded to the dtype (nearest, ties to even). The tensors come
 * one after another, in the given order. */
enum tdm_status tdm_safetensors_append(struct tdm_safetensors_writer *writer, const float *values,
                                       uint64_t count, struct tdm_error *err);

/* Writes the next `count` elements, which are in the dtype already. */
enum tdm_status tdm_safetensors_append_stored(struct tdm_safetensors_writer *writer,
                                              const void *data, uint64_t count,
                                              struct tdm_error *err);

/* Reads a finished file back. Checks that it holds these tensors with this dtype in this order, and
 * data with this checksum. TDM_IO states the difference. */
enum tdm_status tdm_safetensors_verify(const char *path, enum tdm_dtype dtype,
                                       uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                       uint64_t checksum, struct tdm_error *err);

/* The same without a checksum to compare with: sets it. */
enum tdm_status tdm_safetensors_sum(const char *path, enum tdm_dtype dtype, uint32_t tensor_count,
                                    const struct tdm_safetensor *tensors, uint64_t *checksum,
                                    struct tdm_error *err);

/* Flushes the file to the disk and closes it, in any case. On failure removes it. */
enum tdm_status tdm_safetensors_finish(struct tdm_safetensors_writer *writer,
                                       struct tdm_error *err);
/* Closes and removes the file. Does nothing after finish or abandon. */
void tdm_safetensors_abandon(struct tdm_safetensors_writer *writer);

/* A file that several processes write together, as one of them sees it. {.writer.fd = -1}: none. */
struct tdm_safetensors_share {
    struct tdm_safetensors_writer writer; /* its checksum is of the pieces, in their order */
    uint64_t elements, begin;             /* of all data; byte at which these begin */
    struct tdm_safetensors_piece {
        uint64_t first, count; /* elements of the data */
    } * pieces;                /* [count] that were written here */
    size_t count, capacity;
};

/* Creates a file in its full size, with its header, for tdm_safetensors_join(). It is flushed. */
enum tdm_status tdm_safetensors_reserve(const char *path, enum tdm_dtype dtype,
                                        uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                        struct tdm_error *err);

/* Opens such a file, with the same arguments. The caller ends *share with tdm_safetensors_leave()
 * or tdm_safetensors_drop(), also after a failure. */
enum tdm_status tdm_safetensors_join(const char *path, enum tdm_dtype dtype, uint32_t tensor_count,
                                     const struct tdm_safetensor *tensors,
                                     struct tdm_safetensors_share *share, struct tdm_error *err);

/* Writes `count` elements from element `first` of the data on: rounded from fp32, or, if `stored`,
 * as they are. */
enum tdm_status tdm_safetensors_put(struct tdm_safetensors_share *share, uint64_t first,
                                    const void *values, bool stored, uint64_t count,
                                    struct tdm_error *err);

/* Flushes what was written here, reads it back, and closes the file. TDM_IO if it is not there. */
enum tdm_status tdm_safetensors_leave(struct tdm_safetensors_share *share, struct tdm_error *err);
void tdm_safetensors_drop(struct tdm_safetensors_share *share);

/* A name from a file in a form for messages: printable ASCII, cut if too long. Returns `out`. */
#define TDM_SHOWN_NAME 100
const char *tdm_shown_name(const char *name, char out[TDM_SHOWN_NAME]);

/* A shape as text: "[2, 3]". Returns `out`. */
#define TDM_SHOWN_SHAPE 192
const char *tdm_shown_shape(uint32_t rank, const uint64_t *shape, char out[TDM_SHOWN_SHAPE]);

#endif
