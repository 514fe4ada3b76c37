/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of BurstEngine share. Not for use outside methods/context/burst_*.c. */
#ifndef TDM_METHODS_CONTEXT_BURST_PARTS_H
#define TDM_METHODS_CONTEXT_BURST_PARTS_H

#include "methods/context/burst.h"
#include "methods/context/parts.h"
#include "methods/method.h"

enum {
    BURST_ATTENTION_NORM,
    BURST_Q,
    BURST_K,
    BURST_V,
    BURST_O,
    BURST_MLP_NORM,
    BURST_GATE,
    BURST_UP,
    BURST_DOWN,
    BURST_WEIGHTS
};

/* The weights of one kind of a layer, contiguous: this rank's shard, and all of them while the
 * layer runs. */
struct burst_storage {
    struct tdm_eager_value *shard; /* NULL: the layer has none of this kind */
    struct tdm_eager_value *gathered, *gradients;
};

/* BMTrain stores frozen and trained weights separately. */
enum { BURST_BASE, BURST_ADAPTERS, BURST_STORAGES };

/* A layer. Its weights use the memory of its storages. */
struct burst_block {
    struct burst_storage storages[BURST_STORAGES];
    struct tdm_eager_value *weights[BURST_WEIGHTS];
    struct tdm_eager_value *down[BURST_WEIGHTS], *up[BURST_WEIGHTS]; /* LoRA's A and B, or NULL */
    struct tdm_eager_value *kept_output, *kept_sums; /* of attention, from the forward */
};

struct burst_state {
    struct tdm_eager_value *first, *second, *master;
    bool on_host;
};

/* Of flex_attention's BlockMask: partial and full blocks, by queries and by keys; numbers of them,
 * and their indices. */
#define BURST_TABLES 8u

struct burst_model {
    struct tdm_eager *m;
    const struct tdm_model *config;
    struct tdm_burst settings;
    uint64_t tokens, all_tokens, batch, ranks, shards, gpus_per_node;
    uint64_t lora_rank;    /* 0: all parameters are trained */
    uint32_t lora_targets; /* bits of enum tdm_projection */
    bool steps;            /* there is an optimizer */
    struct burst_block *blocks;
    struct tdm_eager_value *embedding, *final_norm, *head; /* shards */
    struct tdm_eager_value
        *whole_head; /* the gathered head, as passed to the fused loss when that was created */
    struct tdm_eager_value *block_tables[BURST_TABLES]; /* of a mask of blocks */
    struct tdm_eager_value *cosine, *sine, *ids, *targets, *others[3];
    struct tdm_eager_value
        *placeholder; /* stands for a gradient if the layer's input requires none */
    struct tdm_eager_value *first_input; /* held by the graph if nothing before it has a gradient */
    struct tdm_eager_value *loss;
    struct burst_state *states; /* of every shard that is trained */
};

/* ---- weights (burst_blocks.c) ---- */

/* A shard of so many elements over all ranks: the parameter that this rank holds. */
struct tdm_eager_value *burst_shard(struct burst_model *b, uint64_t elements, bool trained);
void burst_make_block(struct burst_model *b, uint32_t layer);
/* Gathers a parameter outside blocks. Its gradient is reduced to the shard. */
struct tdm_eager_value *burst_gather(struct burst_model *b, struct tdm_eager_value *shard,
                                     uint64_t rows, uint64_t columns);
/* enter and exit are called around a layer's forward. mark returns x with a node whose backward
 * enters or leaves a block. */
void burst_enter(struct burst_model *b, uint32_t layer, bool backward);
void burst_exit(struct burst_model *b, uint32_t layer);
struct tdm_eager_value *burst_mark(struct burst_model *b, uint32_t layer, struct tdm_eager_value *x,
                                   bool output);
/* Runs the first layer if its input has no gradient: without a graph, and again in the backward. */
struct tdm_eager_value *burst_first_layer(struct burst_model *b, struct tdm_eager_value *x);

/* ---- attention (burst_attention.c) and the layer (burst_layer.c) ---- */

struct tdm_eager_value *burst_attention(struct burst_model *b, uint32_t layer,
                                        struct tdm_eager_value *q, struct tdm_eager_value *k,
                                        struct tdm_eager_value *v);
struct tdm_eager_value *burst_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                   struct tdm_eager_value *weight);
struct tdm_eager_value *burst_layer(struct tdm_eager *m, const void *model, uint32_t layer,
                                    struct tdm_eager_value *x);

/* ---- losses (burst_loss.c) ---- */

struct tdm_eager_value *burst_plain_loss(struct burst_model *b, struct tdm_eager_value *hidden);

#endif
