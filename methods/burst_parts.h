/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of BurstEngine share. Not for use outside methods/burst_*.c. */
#ifndef TDM_METHODS_BURST_PARTS_H
#define TDM_METHODS_BURST_PARTS_H

#include "methods/burst.h"
#include "methods/context_parts.h"
#include "methods/method.h"

#define INT32 4u

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

/* A layer: its part of all its weights side by side, and the weights, whose memory is a buffer while it runs. */
struct burst_block {
    struct tdm_value *shard, *weights[BURST_WEIGHTS];
    struct tdm_value *gathered, *gradients;    /* of the whole, while they are there */
    struct tdm_value *kept_output, *kept_sums; /* of attention, from the forward */
};

struct burst_state {
    struct tdm_value *first, *second, *master;
    bool on_host;
};

struct burst_model {
    struct tdm_eager *m;
    const struct tdm_model *config;
    struct tdm_burst settings;
    uint64_t tokens, all_tokens, batch, ranks, shards, gpus_per_node;
    bool steps; /* there is an optimizer */
    struct burst_block *blocks;
    struct tdm_value *embedding, *final_norm, *head; /* parts */
    struct tdm_value *whole_head; /* that the fused loss was given when it was made */
    struct tdm_value *cosine, *sine, *ids, *targets, *others[3];
    struct tdm_value *loss;
    struct burst_state *states; /* of every block, embedding, norm, head */
};

/* ---- weights (burst_blocks.c) ---- */

/* A part of so many elements, the parameter of a rank. */
struct tdm_value *burst_shard(struct burst_model *b, uint64_t elements);
void burst_make_block(struct burst_model *b, uint32_t layer);
/* All of a parameter outside blocks, gathered; its gradient is reduced to the part. */
struct tdm_value *burst_gather(struct burst_model *b, struct tdm_value *shard, uint64_t rows,
                               uint64_t columns);
/* Around a layer's forward, and the same value as x, in whose backward a block is entered or left. */
void burst_enter(struct burst_model *b, uint32_t layer, bool backward);
void burst_exit(struct burst_model *b, uint32_t layer, bool backward);
struct tdm_value *burst_mark(struct burst_model *b, uint32_t layer, struct tdm_value *x,
                             bool output);

/* ---- attention (burst_attention.c) and the layer (burst_layer.c) ---- */

struct tdm_value *burst_attention(struct burst_model *b, uint32_t layer, struct tdm_value *q,
                                  struct tdm_value *k, struct tdm_value *v);
struct tdm_value *burst_norm(struct tdm_eager *m, struct tdm_value *x, struct tdm_value *weight);
struct tdm_value *burst_layer(struct tdm_eager *m, const void *model, uint32_t layer,
                              struct tdm_value *x);

/* ---- losses (burst_loss.c) ---- */

struct tdm_value *burst_plain_loss(struct burst_model *b, struct tdm_value *hidden);
struct tdm_value *burst_fused_loss(struct burst_model *b, struct tdm_value *hidden);

#endif
