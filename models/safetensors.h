/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors: one file of named tensors, read and written.
 *
 * The format: 8 bytes, little-endian, with the length of a JSON header; the header, an object of
 * {"dtype", "shape", "data_offsets"} by name (and "__metadata__", strings); then the data, to which
 * the offsets are relative. A file is taken to be hostile: opening it reads the header only, and
 * refuses it unless the tensors cover the data exactly, each with the bytes of its dtype and shape.
 *
 * Numbers in files are little-endian, as are the machines that this is built for.
 */
#ifndef TDM_MODELS_SAFETENSORS_H
#define TDM_MODELS_SAFETENSORS_H

#include "base/digest.h"
#include "base/dtype.h"
#include "base/status.h"

#include <jansson.h>
#include <stdint.h>

/* Dimensions of a tensor, at most. */
#define TDM_SAFETENSORS_RANK 8

/* A header is no longer: room for 100,000 tensors, where the largest model of ours has 14,000. */
#define TDM_SAFETENSORS_HEADER_BYTES (UINT64_C(16) << 20)

struct tdm_safetensor {
    const char *name;
    const char *type;     /* dtype as the format spells it: "BF16", "I64" */
    enum tdm_dtype dtype; /* fp32, bf16, fp16; TDM_DTYPE_NONE: one that cannot be read */
    uint32_t rank;
    uint64_t shape[TDM_SAFETENSORS_RANK];
    uint64_t elements, bytes;
    uint64_t offset; /* of its first byte in the file */
};

/* An open file. What it points to lives until tdm_safetensors_close(). */
struct tdm_safetensors {
    char *path;
    int fd;
    json_t *header; /* holds the names */
    uint32_t tensor_count;
    struct tdm_safetensor *tensors; /* in the order of the data */
};

/* Opens a file and checks its header. TDM_IO if it cannot be read; TDM_INPUT, naming file and
 * tensor, if it is not what it says. On success the caller owns *file. */
enum tdm_status tdm_safetensors_open(const char *path, struct tdm_safetensors **file,
                                     struct tdm_error *err);
void tdm_safetensors_close(struct tdm_safetensors *file);

/* Reads elements [first, first + count) of a tensor that has a dtype as fp32, exactly. TDM_INPUT if
 * one of them is infinite or NaN; TDM_IO, also if the file has become shorter. */
enum tdm_status tdm_safetensors_read(const struct tdm_safetensors *file,
                                     const struct tdm_safetensor *tensor, uint64_t first,
                                     uint64_t count, float *values, struct tdm_error *err);

/* The checksum of all data of a file: what is behind the header. TDM_IO. */
enum tdm_status tdm_safetensors_checksum(const struct tdm_safetensors *file, uint64_t *checksum,
                                         struct tdm_error *err);

/* A file being written. */
struct tdm_safetensors_writer {
    char *path;
    int fd;
    enum tdm_dtype dtype;
    uint64_t left;                /* elements still to come */
    struct tdm_checksum checksum; /* of the data so far */
};

/* Creates a file, which must not exist, of tensors of one dtype (fp32, bf16 or fp16), of which
 * names, ranks and shapes are given, and writes its header. TDM_IO. On success the caller ends
 * *writer with tdm_safetensors_finish() or tdm_safetensors_abandon(). */
enum tdm_status tdm_safetensors_create(const char *path, enum tdm_dtype dtype,
                                       uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                       struct tdm_safetensors_writer *writer,
                                       struct tdm_error *err);

/* Bytes of the file that tdm_safetensors_create() would begin; TDM_SIZE_MAX if absurd. */
uint64_t tdm_safetensors_file_bytes(enum tdm_dtype dtype, uint32_t tensor_count,
                                    const struct tdm_safetensor *tensors);

/* Writes the next `count` elements, rounded to the dtype (nearest, ties to even): the tensors in
 * the order given, one after the other. */
enum tdm_status tdm_safetensors_append(struct tdm_safetensors_writer *writer, const float *values,
                                       uint64_t count, struct tdm_error *err);

/* Reads a finished file back: does it hold these tensors, of this dtype, in this order, and data of
 * this checksum? TDM_IO says where it does not. */
enum tdm_status tdm_safetensors_verify(const char *path, enum tdm_dtype dtype,
                                       uint32_t tensor_count, const struct tdm_safetensor *tensors,
                                       uint64_t checksum, struct tdm_error *err);

/* Flushes the file to the disk and closes it, whatever comes of it. */
enum tdm_status tdm_safetensors_finish(struct tdm_safetensors_writer *writer,
                                       struct tdm_error *err);
/* Closes it and removes it; does nothing after finish or abandon. */
void tdm_safetensors_abandon(struct tdm_safetensors_writer *writer);

/* A name that came from a file, as a message can show it: printable ASCII, cut. Returns `out`. */
#define TDM_SHOWN_NAME 100
const char *tdm_shown_name(const char *name, char out[TDM_SHOWN_NAME]);

/* "[2, 3]". Returns `out`. */
#define TDM_SHOWN_SHAPE 192
const char *tdm_shown_shape(uint32_t rank, const uint64_t *shape, char out[TDM_SHOWN_SHAPE]);

#endif
