/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a chunk's queries to the K and V of the chunks that they see, and its gradient.
 * Q, K and V, and the output are the same operands of both.
 *
 * An op with tdm_op.gathers has its pages at home on the host and gathers those that are listed, in
 * batches of query pages, into room in the scratch of the device (schedule/gather.h). */
#ifndef TDM_OPS_ATTENTION_H
#define TDM_OPS_ATTENTION_H

#include "base/dtype.h"
#include "base/size.h"
#include "ops/ops.h"
#include "ops/scratch.h"

/* The LSE behind an attention output begins on a fresh cache line of any machine. */
#define TDM_LSE_ALIGN 256u

/* Where pages are gathered from the host; where none are, only key_pages is not 0. */
struct tdm_gather_params {
    uint64_t pages;       /* of the room, for each list, before the chunk's own: whole chunks */
    uint64_t key_pages;   /* that an op may number: those of the longest sequence, or of the room */
    uint64_t batch_pages; /* query pages of a batch, at least; UINT64_MAX: all of a chunk */
    uint64_t kv_slot_bytes; /* of the room, which has slots for chunks: of one, and of all */
    uint64_t kv_room_bytes;
    uint64_t dkv_slot_bytes; /* of the gradients' room; 0 in an evaluation */
    uint64_t dkv_room_bytes;
};

struct tdm_attention_params {
    uint32_t query_heads;
    bool sums_dq; /* dtypes, head dim and pages are those of kernels that add up dQ in scratch */
    struct tdm_gather_params gather;
};

/* Scratch of attention: where its arrays begin, in bytes, one after the other; 0 of arrays that a
 * program does not need. */
struct tdm_attention_scratch {
    uint64_t from;    /* uint32_t [tokens], with room for 8 bytes each */
    uint64_t d;       /* fp32 [2, rows, query_heads], tdm_attend_rows() rows */
    uint64_t dq_sums; /* fp32 [rows, query_heads, head_dim] */
    uint64_t turns;   /* uint32_t, tdm_attend_turns() */
    /* with lists: */
    uint64_t start;   /* uint32_t [tokens] */
    uint64_t readers; /* uint32_t [key pages, lists, words, 2] */
    uint64_t order;   /* uint32_t, tdm_attend_order() */
    /* where pages are gathered: room for pages and their gradients, and what leads to it */
    uint64_t pages, gradients;
    uint64_t listed;       /* lists of a batch */
    uint64_t table;        /* uint32_t [lists, pages of the room] */
    uint64_t sight, begin; /* uint32_t [lists, tokens]: from and start over the room */
    uint64_t bounds;       /* uint32_t [batches + 1] */
    uint64_t ends;         /* uint32_t [3, lists] */
    uint64_t bytes;        /* all of it; saturates */
};
struct tdm_attention_scratch tdm_attention_scratch(const struct tdm_params *params,
                                                   uint64_t tokens);

/* Batches of the query pages of so many tokens, at most. */
uint64_t tdm_gather_batches(const struct tdm_params *params, uint64_t tokens);

/* Bytes from the begin of TDM_ATTENTION_O to its LSE, where `elements` of the output are stored as
 * `dtype`. */
static inline uint64_t tdm_lse_bytes_at(uint64_t elements, enum tdm_dtype dtype)
{
    return tdm_size_align(tdm_size_mul(elements, tdm_dtype_bytes(dtype)), TDM_LSE_ALIGN);
}

enum tdm_attention_operand {
    TDM_ATTENTION_Q,  /* read: rotated, [tokens, query_heads, head_dim] */
    TDM_ATTENTION_KV, /* read: pages of K and V of the chunks that the op's chunk sees */
    /* written: output [tokens, query_heads, head_dim], then LSE fp32 [tokens, query_heads] */
    TDM_ATTENTION_O,
    TDM_ATTENTION_LISTS, /* read where a selector lists pages, else absent */
    TDM_ATTENTION_OPERANDS
};
extern const struct tdm_op_type tdm_attention_type;

enum tdm_attention_grad_operand {
    TDM_ATTENTION_GRAD_Q = TDM_ATTENTION_Q,   /* read: rotated */
    TDM_ATTENTION_GRAD_KV = TDM_ATTENTION_KV, /* read */
    TDM_ATTENTION_GRAD_O = TDM_ATTENTION_O,   /* read: output and LSE of the forward */
    TDM_ATTENTION_GRAD_DO, /* read: gradient of the output, [tokens, query_heads, head_dim] */
    TDM_ATTENTION_GRAD_DQ, /* written: gradient of q */
    /* written: gradient of the pages of K and V of the chunks that no later chunk sees; absent if
     * there are none */
    TDM_ATTENTION_GRAD_DKV_OPENED,
    /* added to: the same of the chunks that a later chunk sees too; absent if there are none */
    TDM_ATTENTION_GRAD_DKV_ADDED,
    TDM_ATTENTION_GRAD_LISTS, /* read where a selector lists pages, else absent */
    TDM_ATTENTION_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_attention_grad_type;

#endif
