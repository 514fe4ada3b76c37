/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights: a model in a directory in Hugging Face's layout. It has config.json, and the tensors
 * under the names of tdm_tensor_name(), either in model.safetensors or in shards that
 * model.safetensors.index.json lists. Tied embeddings are stored once; an lm_head.weight beside
 * them must be equal.
 *
 * Opening reads only headers and checks all of them against the model. A directory of gradients has
 * the same layout, with the word `gradients` in place of `model` and without config.json. A
 * checkpoint has a model's layout, and beside it a note and a folder with parts of the optimizer's
 * state (docs/formats.md).
 */
#ifndef TDM_MODELS_WEIGHTS_H
#define TDM_MODELS_WEIGHTS_H

#include "models/model.h"
#include "models/safetensors.h"

#include <stdbool.h>

/* The default limit on the size of a file; a larger model has shards. */
#define TDM_SHARD_BYTES (UINT64_C(5) << 30)

/* Where a tensor of the model is stored. */
struct tdm_weights_place {
    const struct tdm_safetensors *file;
    const struct tdm_safetensor *tensor;
};

struct tdm_weights {
    const struct tdm_model *model;
    uint32_t file_count;
    struct tdm_safetensors **files;
    struct tdm_weights_place *places;   /* [model->tensor_count] */
    struct tdm_weights_place tied_head; /* lm_head.weight of a tied model, if there is one */
    uint64_t bytes;                     /* of the model's tensors */
    bool has[TDM_DTYPES];               /* dtypes of the tensors */
};

/* Does the directory hold a model as safetensors, or an index of them? */
bool tdm_weights_exist(const char *directory);

/* Would reading a model in a directory read a file of this name: config, weights or index? */
bool tdm_weights_reads(const char *name);

/* Opens the weights of a model, which must outlive them. TDM_INPUT names the file. It means: no
 * weights, a wrong header (tdm_safetensors_open), a shard that is missing or outside the directory,
 * an index that does not match the shards, missing or extra tensors, shapes other than the
 * config's, or dtypes other than bf16, fp16 and fp32. On success the caller owns *weights. */
enum tdm_status tdm_weights_open(const char *directory, const struct tdm_model *model,
                                 struct tdm_weights **weights, struct tdm_error *err);
void tdm_weights_close(struct tdm_weights *weights);

/* Reads elements [first, first + count) of tensor number `tensor` of the model as fp32, exactly.
 * Errors as in tdm_safetensors_read(); also TDM_INPUT if tied weights differ there. */
enum tdm_status tdm_weights_read(const struct tdm_weights *weights, uint32_t tensor, uint64_t first,
                                 uint64_t count, float *values, struct tdm_error *err);

/* The shape of a model's tensor in a file: [columns] for norms and biases, else [rows, columns].
 * Returns the number of dimensions. */
uint32_t tdm_weights_shape(const struct tdm_tensor *tensor, uint64_t shape[2]);

/* The dtypes of the tensors: "bf16", "bf16, fp32". Returns `out`. */
const char *tdm_weights_dtypes(const struct tdm_weights *weights, char out[32]);

/* What is to be written: all tensors of a model, in its order, in one dtype. */
struct tdm_weights_target {
    const char *directory;
    const struct tdm_model *model;
    bool gradients;         /* gradients of the weights; else a model, with its config.json */
    bool checkpoint;        /* with a note and parts */
    enum tdm_dtype dtype;   /* fp32, bf16 or fp16 */
    uint64_t part_bytes;    /* of the parts of a checkpoint */
    uint64_t shard_bytes;   /* largest size of a file, unless one tensor is larger */
    uint32_t copies;        /* of what is written, that there must be space for; 0: one */
    const char *companions; /* directory from which tokenizer and generation files are copied; NULL:
                               none */
    bool force;             /* replace a directory that holds only files of this kind */
    bool only_checked;      /* nothing will be written: keep what killed processes left */
    bool shared;            /* several threads write it, or processes: see below */
};

/* Of a checkpoint: the note's name, the folder, and the parts that it may have. */
#define TDM_WEIGHTS_NOTE "checkpoint.json"
#define TDM_WEIGHTS_FOLDER "optimizer"
#define TDM_WEIGHTS_PART_NAMES                    \
    {                                             \
        "weights", "master", "moment1", "moment2" \
    }

/* Is this the name of a file in a checkpoint, in the sense of tdm_directory_owns? */
bool tdm_weights_owns_checkpoint(const char *name);

struct tdm_weights_writer;

/* Checks beforehand whether it could be written. TDM_USAGE: something exists there; TDM_IO: there
 * is no such place, or too little space. */
enum tdm_status tdm_weights_check(const struct tdm_weights_target *target, struct tdm_error *err);

/* Only the last of these. */
enum tdm_status tdm_weights_check_space(const struct tdm_weights_target *target,
                                        struct tdm_error *err);

/* Checks and begins. Nothing is at the target before tdm_weights_commit(). *target is copied; its
 * directory and model must outlive the writer. */
enum tdm_status tdm_weights_create(const struct tdm_weights_target *target,
                                   struct tdm_weights_writer **writer, struct tdm_error *err);

/* Writes the next elements: the tensors in the model's order, one after another. A call must not
 * cross from one tensor to the next. */
enum tdm_status tdm_weights_append(struct tdm_weights_writer *writer, const float *values,
                                   uint64_t count, struct tdm_error *err);

/* ---- several threads that write files of a checkpoint ----
 *
 * With target->shared: the sets are planned one after the other; then each file is written by one
 * thread, in any order.
 */

/* Plans the next set: the model (`part` NULL) or a part. */
enum tdm_status tdm_weights_plan(struct tdm_weights_writer *writer, const char *part,
                                 enum tdm_dtype dtype, struct tdm_error *err);

/* A file that is being written. */
struct tdm_weights_file {
    struct tdm_safetensors_writer data; /* to which its elements are appended */
    uint32_t set, shard;                /* it is file `shard` of that set */
    uint32_t first, end;                /* its tensors of the model */
};

/* Begins file `number` of those of all sets. Ends it: flushes it, and reads it back. One that is
 * not ended is abandoned with tdm_safetensors_abandon(). */
enum tdm_status tdm_weights_begin_file(const struct tdm_weights_writer *writer, uint32_t number,
                                       struct tdm_weights_file *file, struct tdm_error *err);
enum tdm_status tdm_weights_end_file(struct tdm_weights_writer *writer,
                                     struct tdm_weights_file *file, struct tdm_error *err);

/* ---- several processes that write together ----
 *
 * One creates, with target->shared, and tells the others the name of the directory, which they
 * join. It shares all sets first, the others after it. Then each puts what it has into the files,
 * several at the same time. When all have, the files are read for their checksums, which the first
 * one needs for all.
 */

/* The directory under its temporary name. */
const char *tdm_weights_temporary(const struct tdm_weights_writer *writer);

/* Joins one that another process creates. TDM_IO if its directory is not seen here. Only
 * tdm_weights_abandon() ends the writer, and it removes nothing. */
enum tdm_status tdm_weights_join(const struct tdm_weights_target *target, const char *temporary,
                                 struct tdm_weights_writer **writer, struct tdm_error *err);

/* Begins the next set: the model or the gradients (`part` NULL), or a part. */
enum tdm_status tdm_weights_share(struct tdm_weights_writer *writer, const char *part,
                                  enum tdm_dtype dtype, struct tdm_error *err);

/* A file of which this process writes a part. */
struct tdm_weights_part {
    struct tdm_safetensors_share data;
    uint32_t set, shard; /* it is file `shard` of that set */
    uint32_t first, end; /* its tensors of the model */
};

/* Opens file `number` of those of all sets, by one thread; puts elements of a tensor; and flushes
 * what was put and reads it back. One that is not left is dropped with tdm_safetensors_drop(), also
 * after a failure. */
enum tdm_status tdm_weights_join_file(const struct tdm_weights_writer *writer, uint32_t number,
                                      struct tdm_weights_part *part, struct tdm_error *err);
enum tdm_status tdm_weights_put(const struct tdm_weights_writer *writer,
                                struct tdm_weights_part *part, uint32_t tensor, uint64_t first,
                                const void *values, bool stored, uint64_t count,
                                struct tdm_error *err);
enum tdm_status tdm_weights_leave(struct tdm_weights_part *part, struct tdm_error *err);

/* Files of all sets; the checksum of one as it is read; and what it is found to be. */
uint32_t tdm_weights_files(const struct tdm_weights_writer *writer);
enum tdm_status tdm_weights_sum(const struct tdm_weights_writer *writer, uint32_t file,
                                uint64_t *checksum, struct tdm_error *err);
void tdm_weights_note_sum(struct tdm_weights_writer *writer, uint32_t file, uint64_t checksum);

/* Ends the last part. *sets describes the model and the parts by name, as tdm_tensor_set_open()
 * wants it, and *files the small files beside them, for tdm_weights_check_files() (new references;
 * NULL if memory ran out). */
enum tdm_status tdm_weights_describe(struct tdm_weights_writer *writer, json_t **sets,
                                     json_t **files, struct tdm_error *err);

/* Are the small files of a directory (config, tokenizer) those that `files` describes? `note`: its
 * source, for messages. TDM_INPUT names the first that differs; TDM_IO if one is missing. */
enum tdm_status tdm_weights_check_files(const char *directory, const char *note,
                                        const json_t *files, struct tdm_error *err);

/* Writes the note. Takes the reference, which may be NULL: TDM_NO_MEMORY. */
enum tdm_status tdm_weights_note(struct tdm_weights_writer *writer, json_t *note,
                                 struct tdm_error *err);

/* Completes the directory, reads all of it back (headers, sizes, a checksum of the data) and puts
 * it in its place. Frees the writer, also on failure. TDM_IO if the data read back differ from
 * those written; the old target then stays. */
enum tdm_status tdm_weights_commit(struct tdm_weights_writer *writer, struct tdm_error *err);
/* Removes everything written and frees the writer. Accepts NULL. */
void tdm_weights_abandon(struct tdm_weights_writer *writer);

#endif
