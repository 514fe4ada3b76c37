/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of chunk-recurrent training share. Not for use outside methods/chunk/. */
#ifndef TDM_METHODS_CHUNK_PARTS_H
#define TDM_METHODS_CHUNK_PARTS_H

#include "methods/method.h"
#include "methods/torch/parts.h"

/* K and V that one chunk left in one layer, and their gradients. Pages are allocated one by one;
 * here they lie in blocks of up to 1 MiB, which the allocator treats as it does theirs. */
struct chunk_pages {
    struct tdm_eager_value *kv[2], **grads;
    uint32_t grad_count;
};

/* Where the pages of a layer are, with offload. */
enum chunk_place { CHUNK_ON_GPU, CHUNK_LEAVING, CHUNK_IN_HOST };

struct chunk_layer {
    struct chunk_pages *chunks;        /* by chunk */
    struct tdm_eager_value *second[2]; /* SeCO: K and V of the chunk that is run again */
    struct tdm_eager_value **lists;    /* chosen pages, by chunk; NULL where all are read */
    struct tdm_eager_value *means;     /* of the keys of each page, for choosing */
    enum chunk_place place;
    struct tdm_eager_value **loaded; /* what came back from the host */
    uint32_t loaded_count;
};

struct tdm_chunk_run {
    struct tdm_eager *m;
    const struct tdm_model *config;
    const struct tdm_method_settings *settings;
    struct tdm_torch_model *model;
    struct tdm_eager_value *labels, *loss;
    struct chunk_layer *layers;
    uint64_t chunks;                     /* of the sequence */
    uint64_t held;                       /* chunks whose K and V there are */
    uint64_t number;                     /* of the chunk that runs */
    bool sweep;                          /* the first forward, without a graph */
    struct tdm_eager_value **block_room; /* one array for all blocks */
    /* What the chunks that are not run hold, and the latest of K, V and of gradients among it
     * (rows.c). */
    struct tdm_eager_value **rows, *row_ends[2];
    uint32_t row_count, row_room;
};

/* ---- pages (pages.c) ---- */

enum tdm_status tdm_chunk_pages_create(struct tdm_chunk_run *run, struct tdm_error *err);
void tdm_chunk_pages_free(struct tdm_chunk_run *run);

uint64_t tdm_chunk_tokens(const struct tdm_chunk_run *run,
                          uint64_t number); /* of a chunk, all its sequences */
uint64_t tdm_chunk_pages(const struct tdm_chunk_run *run, uint64_t number);
uint64_t tdm_chunk_pages_before(const struct tdm_chunk_run *run, uint64_t number);

/* Of K, or of V, of a chunk in one layer. */
uint64_t tdm_chunk_kv_bytes(const struct tdm_chunk_run *run, uint64_t number);

/* A layer is about to run, forward or (`reverse`) backward: its pages and those of the next come,
 * others leave. */
void tdm_chunk_visit(struct tdm_chunk_run *run, uint32_t layer, bool reverse);
/* K and V of a chunk become pages with zero gradients; NULL: the chunk is not run, they are made
 * here. */
void tdm_chunk_add(struct tdm_chunk_run *run, uint32_t layer, struct tdm_eager_value *k,
                   struct tdm_eager_value *v);
/* Chooses pages for the queries of the chunk that runs, in the sweep; NULL: the chunk is not
 * run. */
void tdm_chunk_choose(struct tdm_chunk_run *run, uint32_t layer, struct tdm_eager_value *queries);
/* The last chunk is done: its pages go, transfers end. */
void tdm_chunk_remove(struct tdm_chunk_run *run);

/* ---- chunks that are not run (rows.c) ---- */

bool tdm_chunk_is_run(const struct tdm_chunk_run *run, uint64_t number);
/* A tensor of such a chunk, of the category and label that are set. */
void tdm_chunk_row_add(struct tdm_chunk_run *run, uint64_t bytes);
void tdm_chunk_rows_drop(struct tdm_chunk_run *run);

/* ---- the model (layer.c, attention.c) ---- */

/* A layer of the chunk that runs; a struct tdm_function's run. */
struct tdm_eager_value *tdm_chunk_layer(struct tdm_eager *m, const void *run, uint32_t layer,
                                        struct tdm_eager_value *x);
/* Attention of the chunk's q, k, v to all K and V so far, by token then head: OOMB's and SeCO's. */
struct tdm_eager_value *tdm_chunk_paged_attention(struct tdm_chunk_run *run, uint32_t layer,
                                                  struct tdm_eager_value *q,
                                                  struct tdm_eager_value *k,
                                                  struct tdm_eager_value *v);
struct tdm_eager_value *tdm_chunk_joined_attention(struct tdm_chunk_run *run, uint32_t layer,
                                                   struct tdm_eager_value *q,
                                                   struct tdm_eager_value *k,
                                                   struct tdm_eager_value *v);

#endif
