/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor set: all tensors of a model in one dtype, in the model's order and under their names, in
 * STEM.safetensors or in shards with an index. A saved model is one; the gradients of a step and
 * the parts of an optimizer's state are others.
 */
#ifndef TDM_MODELS_TENSOR_SET_H
#define TDM_MODELS_TENSOR_SET_H

#include "models/model.h"
#include "models/safetensors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* A file of a set. */
struct tdm_tensor_shard;

/* A set that is being written. {0} is one that tdm_tensor_set_free() accepts. */
struct tdm_tensor_set {
    char *directory; /* that its files are in */
    char stem[32];
    const struct tdm_model *model;
    enum tdm_dtype dtype;           /* fp32, bf16, fp16 or remainder16 */
    char *names;                    /* of all tensors */
    struct tdm_safetensor *tensors; /* [tensor_count]: name and shape */
    struct tdm_tensor_shard *shards;
    uint32_t shard_count, current;
    uint64_t bytes;                     /* of the tensors */
    json_t *index;                      /* its contents; NULL: one file needs none */
    struct tdm_safetensors_writer file; /* of shard `current` */
    bool read_back;                     /* who writes a file of the set reads it back */
};

/* Is this the name of a file of a set? */
bool tdm_tensor_set_owns(const char *name, const char *stem);

/* Begins a set in a directory that exists; a file has at most `shard_bytes`, unless one tensor is
 * larger. The model must outlive *set. The caller frees *set, also after a failure. */
enum tdm_status tdm_tensor_set_begin(const char *directory, const char *stem,
                                     const struct tdm_model *model, enum tdm_dtype dtype,
                                     uint64_t shard_bytes, struct tdm_tensor_set *set,
                                     struct tdm_error *err);

/* Writes the next elements, which must not cross from one tensor to the next, rounded from fp32. */
enum tdm_status tdm_tensor_set_append(struct tdm_tensor_set *set, const float *values,
                                      uint64_t count, struct tdm_error *err);

/* Flushes the last file. TDM_INTERNAL if elements are missing. */
enum tdm_status tdm_tensor_set_finish(struct tdm_tensor_set *set, struct tdm_error *err);

/* Reads a finished set back through the file system's cache: index, headers, sizes and a checksum
 * of the data. TDM_IO or TDM_INPUT if it does not hold what was written. */
enum tdm_status tdm_tensor_set_verify(const struct tdm_tensor_set *set, struct tdm_error *err);

/* Describes a finished set for a reader: {"dtype": D, "files": [{"name": N, "checksum": C}, ...]}.
 * NULL if memory ran out. */
json_t *tdm_tensor_set_describe(const struct tdm_tensor_set *set);

/* A set whose files are written in any order, also at the same time: plans it, and writes its
 * index.
 */
enum tdm_status tdm_tensor_set_plan(const char *directory, const char *stem,
                                    const struct tdm_model *model, enum tdm_dtype dtype,
                                    uint64_t shard_bytes, struct tdm_tensor_set *set,
                                    struct tdm_error *err);

/* The tensors [*first, *end) of file `shard`. */
void tdm_tensor_set_range(const struct tdm_tensor_set *set, uint32_t shard, uint32_t *first,
                          uint32_t *end);

/* Begins file `shard`; its elements are appended to *file. Ends it: flushes it, and reads it back.
 * A file that is not ended is abandoned. */
enum tdm_status tdm_tensor_set_begin_file(const struct tdm_tensor_set *set, uint32_t shard,
                                          struct tdm_safetensors_writer *file,
                                          struct tdm_error *err);
enum tdm_status tdm_tensor_set_end_file(struct tdm_tensor_set *set, uint32_t shard,
                                        struct tdm_safetensors_writer *file, struct tdm_error *err);

/* For several processes that write a set together: plans it; with `makes`, in one of them, before
 * the others write, also makes its files in their full size. */
enum tdm_status tdm_tensor_set_share(const char *directory, const char *stem,
                                     const struct tdm_model *model, enum tdm_dtype dtype,
                                     uint64_t shard_bytes, bool makes, struct tdm_tensor_set *set,
                                     struct tdm_error *err);

/* Opens file `shard` of such a set, when all are made. Several threads may have one each. The
 * caller ends *file with tdm_safetensors_leave() or tdm_safetensors_drop(), also after a failure.
 */
enum tdm_status tdm_tensor_set_join_file(const struct tdm_tensor_set *set, uint32_t shard,
                                         struct tdm_safetensors_share *file, struct tdm_error *err);

/* Writes `count` elements of tensor number `tensor`, which file `shard` has, from `first` on:
 * rounded from fp32, or, if `stored`, as they are in the dtype of the set. */
enum tdm_status tdm_tensor_set_put(const struct tdm_tensor_set *set, uint32_t shard,
                                   struct tdm_safetensors_share *file, uint32_t tensor,
                                   uint64_t first, const void *values, bool stored, uint64_t count,
                                   struct tdm_error *err);

/* When all have left: reads file `shard` of the set, of which it checks the header, and sets the
 * checksum of its data; tdm_tensor_set_describe() needs those of all. */
enum tdm_status tdm_tensor_set_sum(const struct tdm_tensor_set *set, uint32_t shard,
                                   uint64_t *checksum, struct tdm_error *err);
void tdm_tensor_set_note_sum(struct tdm_tensor_set *set, uint32_t shard, uint64_t checksum);

/* Frees a set. The file that is being written is removed. */
void tdm_tensor_set_free(struct tdm_tensor_set *set);

/* A set that is being read from its first element to its last. */
struct tdm_tensor_set_reader;

/* Opens a set in a directory by its description, of which `file` is the source and `key` the name,
 * for messages. Checks the headers: TDM_INPUT unless the files hold exactly the tensors of the
 * model in `dtype`. On success the caller owns *reader. */
enum tdm_status tdm_tensor_set_open(const char *directory, const char *file, const char *key,
                                    const json_t *description, const struct tdm_model *model,
                                    enum tdm_dtype dtype, struct tdm_tensor_set_reader **reader,
                                    struct tdm_error *err);
void tdm_tensor_set_close(struct tdm_tensor_set_reader *reader);

/* Reads the next `count` elements as they are stored; a call must not cross from one tensor to the
 * next. With the last element of a file the checksum of its data is compared: TDM_INPUT if it is
 * another. */
enum tdm_status tdm_tensor_set_next(struct tdm_tensor_set_reader *reader, void *values,
                                    uint64_t count, struct tdm_error *err);

#endif
