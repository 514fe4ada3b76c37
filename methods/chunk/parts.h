/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of chunk-recurrent training share. Not for use outside methods/chunk/. */
#ifndef TDM_METHODS_CHUNK_PARTS_H
#define TDM_METHODS_CHUNK_PARTS_H

#include "methods/method.h"
#include "methods/torch/parts.h"

/* K and V that a chunk left in a layer, and their gradients. OOMB allocates pages one by one. Here
 * blocks of up to 1 MiB stand for them, which the allocator places alike. `grads` is NULL if the
 * chunk is not run. */
struct chunk_pages {
    struct tdm_eager_value *kv[2], **grads;
    uint32_t grad_count;
};

/* Where the pages of a layer are, with offload. */
enum chunk_place { CHUNK_ON_GPU, CHUNK_LEAVING, CHUNK_IN_HOST };

struct chunk_layer {
    struct chunk_pages *chunks;        /* by chunk */
    struct tdm_eager_value *second[2]; /* SeCO: K and V of the chunk that is recomputed */
    struct tdm_eager_value **lists;    /* chosen pages, by chunk; NULL if all pages are read */
    struct tdm_eager_value *means;     /* mean keys of each page, by which pages are chosen */
    enum chunk_place place;
    struct tdm_eager_value **loaded; /* pages loaded from the host */
    uint32_t loaded_count;
};

struct tdm_chunk_run {
    struct tdm_eager *m;
    const struct tdm_model *config; /* with this rank's heads: `rank` */
    struct tdm_model rank;
    const struct tdm_method_settings *settings;
    struct tdm_torch_model *model;
    struct tdm_eager_value *labels, *loss;
    struct chunk_layer *layers;
    uint64_t chunks;                     /* chunks in the sequence */
    uint64_t held;                       /* chunks whose K and V exist */
    uint64_t number;                     /* the chunk that is running */
    bool sweep;                          /* the first forward, without a graph */
    struct tdm_eager_value **all_blocks; /* those of all layers and chunks that are run */
    /* Tensors of the chunks that are not run, and the latest block of K and V, and of gradients
     * (rows.c). */
    struct tdm_eager_value **rows;
    struct chunk_row_end {
        struct tdm_eager_value *row; /* NULL: there is none */
        struct tdm_torch_block *block;
    } row_ends[2];
    struct tdm_torch_block *row_last; /* of the last row */
    uint32_t row_count, row_capacity;
};

/* ---- pages (pages.c) ---- */

enum tdm_status tdm_chunk_pages_create(struct tdm_chunk_run *run, struct tdm_error *err);
void tdm_chunk_pages_free(struct tdm_chunk_run *run);

uint64_t tdm_chunk_tokens(const struct tdm_chunk_run *run,
                          uint64_t number); /* of a chunk, over all sequences of the batch */
uint64_t tdm_chunk_pages(const struct tdm_chunk_run *run, uint64_t number);
uint64_t tdm_chunk_pages_before(const struct tdm_chunk_run *run, uint64_t number);

/* Bytes of K, or of V, of a chunk in one layer. */
uint64_t tdm_chunk_kv_bytes(const struct tdm_chunk_run *run, uint64_t number);

/* Called before a layer runs, forward or (`reverse`) backward. Loads the pages of that layer and of
 * the next, and offloads others. */
void tdm_chunk_visit(struct tdm_chunk_run *run, uint32_t layer, bool reverse);
/* K and V of a chunk become pages with zero gradients. NULL: the chunk is not run, and its K and V
 * are made here. */
void tdm_chunk_add(struct tdm_chunk_run *run, uint32_t layer, struct tdm_eager_value *k,
                   struct tdm_eager_value *v);
/* Chooses pages for the queries of the running chunk, in the sweep. NULL: the chunk is not run. */
void tdm_chunk_choose(struct tdm_chunk_run *run, uint32_t layer, struct tdm_eager_value *queries);
/* The last chunk is done: frees its pages and waits for transfers. */
void tdm_chunk_remove(struct tdm_chunk_run *run);

/* ---- chunks that are not run (rows.c) ---- */

bool tdm_chunk_is_run(const struct tdm_chunk_run *run, uint64_t number);
/* The next chunk that is run, if this one is. */
uint64_t tdm_chunk_next_run(const struct tdm_chunk_run *run, uint64_t number);
/* Adds equal tensors of such a chunk, with the category and label that are set. */
void tdm_chunk_row_add(struct tdm_chunk_run *run, uint64_t bytes, uint64_t count);
void tdm_chunk_rows_drop(struct tdm_chunk_run *run);

/* ---- several GPUs (tensor.c) ---- */

/* *rank: the model with the heads of one of `ranks`. It borrows all else from `whole`. */
void tdm_chunk_rank_model(const struct tdm_model *whole, uint64_t ranks, struct tdm_model *rank);
/* Replaces the weights of a whole model by a rank's parts. One rank: nothing is done. */
void tdm_chunk_divide(struct tdm_chunk_run *run);
/* Logits of all ranks from those of this one, which are taken. */
struct tdm_eager_value *tdm_chunk_gather_logits(struct tdm_chunk_run *run,
                                                struct tdm_eager_value *logits);

/* ---- the model (layer.c, attention.c) ---- */

/* A layer of the running chunk, as the `run` of a struct tdm_function. */
struct tdm_eager_value *tdm_chunk_layer(struct tdm_eager *m, const void *run, uint32_t layer,
                                        struct tdm_eager_value *x);
/* Attention of the chunk's q, k, v to all K and V so far, by token then head: that of OOMB and that
 * of SeCO. */
struct tdm_eager_value *tdm_chunk_paged_attention(struct tdm_chunk_run *run, uint32_t layer,
                                                  struct tdm_eager_value *q,
                                                  struct tdm_eager_value *k,
                                                  struct tdm_eager_value *v);
struct tdm_eager_value *tdm_chunk_joined_attention(struct tdm_chunk_run *run, uint32_t layer,
                                                   struct tdm_eager_value *q,
                                                   struct tdm_eager_value *k,
                                                   struct tdm_eager_value *v);

#endif
