/* SPDX-License-Identifier: Apache-2.0 */
/* Contents: the data that ops work on, and the parts of a model's units that hold their weights. */
#ifndef TDM_OPS_CONTENT_H
#define TDM_OPS_CONTENT_H

#include "models/model.h"

/* What a slot can hold. X of layer l is the input of layer l; X of `layers` is the last output. */
enum tdm_content {
    TDM_EMPTY,
    TDM_TOKENS,
    /* rows of a chunk by rising token, equal ones in their order: int32 [tokens], and the same
     * again for the sort */
    TDM_TOKEN_ORDER,
    TDM_UNIT_WEIGHTS,
    TDM_UNIT_MASTER,
    TDM_UNIT_MOMENT1,
    TDM_UNIT_MOMENT2,
    TDM_UNIT_GRADIENT,
    TDM_X,      /* [tokens, hidden] */
    TDM_DX,     /* gradient of X, same shape */
    TDM_NORMED, /* attention norm of X [tokens, hidden] */
    TDM_Q,      /* rotated [tokens, query_heads, head_dim]; QRAW before rotation */
    TDM_QRAW,
    TDM_KVRAW,         /* [tokens, K then V: 2 * kv_heads * head_dim] */
    TDM_KVPAGES,       /* pages of K (rotated) and V */
    TDM_PAGE_MEANS,    /* [pages, kv_heads, head_dim]: means of the pages' K */
    TDM_PAGE_LISTS,    /* which pages each query page sees: schedule/layout.h */
    TDM_ATTENTION_OUT, /* output [tokens, query_heads, head_dim], then LSE fp32 [tokens, heads] */
    TDM_Y,             /* X + attention product [tokens, hidden] */
    TDM_MLP_NORMED,
    TDM_GATE_UP,   /* [tokens, gate then up: 2 * intermediate] */
    TDM_ACTIVATED, /* silu(gate) * up [tokens, intermediate] */
    TDM_DACTIVATED,
    TDM_DGATE_UP,
    TDM_DMLP_NORMED,
    TDM_DY, /* gradient of Y */
    TDM_DATTENTION,
    TDM_DQ, /* of rotated q; DQRAW after rotating back */
    TDM_DQRAW,
    TDM_DKVPAGES,
    TDM_DKVRAW,
    TDM_DNORMED,
    TDM_TIED_GRADIENT, /* the head's part of a tied embedding's gradient */
    TDM_FINAL_NORMED,  /* [tokens, hidden] */
    TDM_DFINAL_NORMED,
    TDM_LOGIT_TILE, /* [tile tokens, tile vocabulary] */
    /* fp64 [tile tokens, 3] over the vocabulary so far: largest logit, sum of exp(logit - largest)
     * without the target's, logit of the target. Only with vocabulary tiles. */
    TDM_HEAD_LSE,
    /* fp32 [tile tokens, hidden]: DFINAL_NORMED over the vocabulary so far. Only with vocabulary
     * tiles. */
    TDM_HEAD_SUM,
    TDM_LOSS,          /* fp64 [1] for a chunk */
    TDM_GRADIENT_NORM, /* fp64 [1] for a unit: sum of squares */
    /* If ranks divide the heads of attention (schedule/ranks.h), KVPAGES and DKVPAGES have only the
     * rank's KV heads. Then these are the pages of all KV heads of a rank's own chunk, */
    TDM_OWN_KVPAGES,
    TDM_OWN_DKVPAGES,
    /* and these are Q, ATTENTION_OUT, DATTENTION and DQ with only the rank's query heads. */
    TDM_HEADS_Q,
    TDM_HEADS_OUT,
    TDM_HEADS_DOUT,
    TDM_HEADS_DQ,
    /* Bytes of a rank's own chunk on their way: the heads of each other rank, as that rank has
     * them, in rank order. */
    TDM_PARTED,
    /* If K and V go around a ring of ranks, attention takes one chunk of them at a time. These are
     * ATTENTION_OUT and DQ over the keys of one chunk, and */
    TDM_OUT_PART,
    TDM_DQ_PART,
    /* over those of several, in fp32: output [tokens, query_heads, head_dim], then LSE [tokens,
     * query_heads]; and dQ. */
    TDM_OUT_SUM,
    TDM_DQ_SUM,
    /* DKVPAGES of another rank's chunk on their way to it: the sum over the chunks of one round. */
    TDM_PASSING_DKV,
    /* If queries go around it in the backward: Q, then the gradient of the attention output, then
     * fp32 [2, tokens, query_heads]: LSE, and the dot products of rows of the output and its
     * gradient (ops/attention.h). */
    TDM_QUERIES,
    /* DQ of another rank's chunk on their way to it, in fp32. */
    TDM_PASSING_DQ,
    TDM_SCRATCH, /* of the running op: schedule/scratch.h */
    TDM_CONTENTS
};

const char *tdm_content_name(enum tdm_content content);

/* The tensors of a unit that one op works on: a matrix with its bias, K with V, gate with up. */
enum tdm_part {
    TDM_PART_ATTENTION_NORM,
    TDM_PART_Q,
    TDM_PART_KV,
    TDM_PART_Q_NORM,
    TDM_PART_K_NORM,
    TDM_PART_O,
    TDM_PART_MLP_NORM,
    TDM_PART_GATE_UP,
    TDM_PART_DOWN,
    TDM_PART_EMBEDDING,
    TDM_PART_FINAL_NORM,
    TDM_PART_HEAD,
    TDM_PARTS,
    TDM_PART_ALL = 255 /* every part that the unit has */
};

const char *tdm_part_name(enum tdm_part part); /* "q", "gate_up", ... */

/* The part that a role belongs to. */
enum tdm_part tdm_part_of(enum tdm_role role);

#endif
