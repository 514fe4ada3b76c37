/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights: a model in a directory as Hugging Face lays it out. config.json, and the tensors under
 * the names of tdm_tensor_name() either in model.safetensors or in shards that
 * model.safetensors.index.json names. Tied embeddings are stored once; an lm_head.weight beside
 * them must be equal.
 *
 * Opening reads headers only, and checks all of them against the model. A directory of gradients
 * has the same layout, with the word `gradients` in place of `model` and no config.json.
 */
#ifndef TDM_MODELS_WEIGHTS_H
#define TDM_MODELS_WEIGHTS_H

#include "models/model.h"
#include "models/safetensors.h"

#include <stdbool.h>

/* Largest file that is written, where nothing else is asked for: a larger model has shards. */
#define TDM_SHARD_BYTES (UINT64_C(5) << 30)

/* Where a tensor of the model is. */
struct tdm_weights_place {
    const struct tdm_safetensors *file;
    const struct tdm_safetensor *tensor;
};

struct tdm_weights {
    const struct tdm_model *model;
    uint32_t file_count;
    struct tdm_safetensors **files;
    struct tdm_weights_place *places;   /* [model->tensor_count] */
    struct tdm_weights_place tied_head; /* lm_head.weight of a tied model, if it is there */
    uint64_t bytes;                     /* of the model's tensors */
    bool has[TDM_DTYPES];               /* dtypes of the tensors */
};

/* Does the directory hold safetensors of a model, or an index of them? */
bool tdm_weights_exist(const char *directory);

/* Is a file of that name in the directory of a model read: its config, weights or their index? */
bool tdm_weights_reads(const char *name);

/* Opens the weights of a model, which must outlive them. TDM_INPUT, naming the file: none are
 * there, a header that is not right (tdm_safetensors_open), a shard that is missing or outside the
 * directory, an index that is not what the shards hold, tensors that are missing or that the model
 * does not have, shapes that are not those of the config, dtypes other than bf16, fp16 and fp32. On
 * success the caller owns *weights. */
enum tdm_status tdm_weights_open(const char *directory, const struct tdm_model *model,
                                 struct tdm_weights **weights, struct tdm_error *err);
void tdm_weights_close(struct tdm_weights *weights);

/* Reads elements [first, first + count) of tensor number `tensor` of the model as fp32, exactly.
 * Errors of tdm_safetensors_read(); TDM_INPUT too if tied weights differ there. */
enum tdm_status tdm_weights_read(const struct tdm_weights *weights, uint32_t tensor, uint64_t first,
                                 uint64_t count, float *values, struct tdm_error *err);

/* Shape of a tensor of a model in a file: [columns] of norms and biases, else [rows, columns].
 * Returns the number of dimensions. */
uint32_t tdm_weights_shape(const struct tdm_tensor *tensor, uint64_t shape[2]);

/* Dtypes of the tensors: "bf16", "bf16, fp32". Returns `out`. */
const char *tdm_weights_dtypes(const struct tdm_weights *weights, char out[32]);

/* What is written: all tensors of a model, in its order, at one dtype. */
struct tdm_weights_target {
    const char *directory;
    const struct tdm_model *model;
    bool gradients;       /* of the weights; else a model, with its config.json */
    enum tdm_dtype dtype; /* fp32, bf16 or fp16 */
    uint64_t shard_bytes; /* of a file at most, unless one tensor is larger */
    bool force;           /* replace a directory that holds such files and no others */
    bool repeated;        /* written again and again in its place */
    bool only_checked;    /* nothing will be written: what killed processes left stays */
};

struct tdm_weights_writer;

/* Could it be written, as far as one can see before? TDM_USAGE: something is there; TDM_IO: no
 * place, too little space. */
enum tdm_status tdm_weights_check(const struct tdm_weights_target *target, struct tdm_error *err);

/* Checks and begins: nothing is at its place before tdm_weights_commit(). The target is copied;
 * directory and model must outlive the writer. */
enum tdm_status tdm_weights_create(const struct tdm_weights_target *target,
                                   struct tdm_weights_writer **writer, struct tdm_error *err);

/* The next elements: tensors in the model's order, one after the other, no call across two of
 * them. */
enum tdm_status tdm_weights_append(struct tdm_weights_writer *writer, const float *values,
                                   uint64_t count, struct tdm_error *err);

/* Completes the directory, reads all of it back (headers, sizes, a checksum of the data) and puts
 * it in its place; frees the writer, also on failure. TDM_IO if what is read is not what was
 * written: then what was at its place stays. */
enum tdm_status tdm_weights_commit(struct tdm_weights_writer *writer, struct tdm_error *err);
/* Removes all that was written and frees the writer; takes NULL. */
void tdm_weights_abandon(struct tdm_weights_writer *writer);

#endif
