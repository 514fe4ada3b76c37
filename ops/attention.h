/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a chunk's queries to the K and V of the chunks that they see, and its gradient. Q, K
 * and V, and the output are the same operands of both.
 *
 * The home of the pages of an op with tdm_op.gathers is on the host. The op gathers the listed
 * pages, in batches of query pages, into a buffer in the device's scratch (schedule/gather.h). */
#ifndef TDM_OPS_ATTENTION_H
#define TDM_OPS_ATTENTION_H

#include "base/dtype.h"
#include "base/size.h"
#include "ops/ops.h"
#include "ops/scratch.h"

/* The LSE after an attention output begins on a new cache line of any machine. */
#define TDM_LSE_ALIGN 256u

/* Parameters of gathering pages from the host. If no pages are gathered, all except key_pages are
 * 0. */
struct tdm_gather_params {
    uint64_t pages;     /* in the buffer for each list, before the chunk's own; whole chunks */
    uint64_t key_pages; /* that an op may number: those of the longest sequence or of the buffer */
    uint64_t batch_pages;   /* least number of query pages in a batch; UINT64_MAX: all of a chunk */
    uint64_t kv_slot_bytes; /* of one slot for a chunk in the buffer, and of all slots */
    uint64_t kv_buffer_bytes;
    uint64_t dkv_slot_bytes; /* the same for the gradients' buffer; 0 in an evaluation */
    uint64_t dkv_buffer_bytes;
};

struct tdm_attention_params {
    uint32_t query_heads;
    /* dtypes, head dim and pages suit the kernels that divide the keys of some items, and in a step
     * that trains those that sum dQ in scratch */
    bool divides_keys, sums_dq;
    struct tdm_gather_params gather;
};

/* The scratch of attention: where its arrays begin, in bytes, one after another. Arrays that a
 * program does not need are at 0. */
struct tdm_attention_scratch {
    uint64_t from;    /* uint32_t [tokens], with 8 bytes reserved for each */
    uint64_t d;       /* fp32 [2, rows, query_heads], tdm_attend_rows() rows */
    uint64_t dq_sums; /* fp32 [rows, query_heads, head_dim] */
    /* forward: fp32 [tdm_attend_part_tiles(), TDM_ATTEND_TILE, head_dim]; at dq_sums if that is
     * there. Their LSEs are at d. */
    uint64_t parts;
    uint64_t turns; /* uint32_t, tdm_attend_turns() */
    /* with lists: */
    uint64_t start;   /* uint32_t [tokens] */
    uint64_t readers; /* uint32_t [key pages, lists, words, 2] */
    uint64_t order;   /* uint32_t, tdm_attend_order() */
    /* with gathered pages: the buffers for pages and their gradients, and their tables */
    uint64_t pages, gradients;
    uint64_t listed;       /* lists of a batch */
    uint64_t table;        /* uint32_t [lists, pages of the buffer] */
    uint64_t sight, begin; /* uint32_t [lists, tokens]: `from` and `start` in the buffer */
    uint64_t bounds;       /* uint32_t [batches + 1] */
    uint64_t ends;         /* uint32_t [3, lists] */
    uint64_t bytes;        /* total; saturates */
};
struct tdm_attention_scratch tdm_attention_scratch(const struct tdm_params *params,
                                                   uint64_t tokens);

/* The largest number of batches of the query pages of `tokens` tokens. */
uint64_t tdm_gather_batches(const struct tdm_params *params, uint64_t tokens);

/* Bytes from the beginning of TDM_ATTENTION_O to its LSE, if `elements` elements of the output are
 * stored as `dtype`. */
static inline uint64_t tdm_lse_bytes_at(uint64_t elements, enum tdm_dtype dtype)
{
    return tdm_size_align(tdm_size_mul(elements, tdm_dtype_bytes(dtype)), TDM_LSE_ALIGN);
}

enum tdm_attention_operand {
    TDM_ATTENTION_Q,  /* read: rotated, [tokens, query_heads, head_dim] */
    TDM_ATTENTION_KV, /* read: pages of K and V of the chunks that the op's chunk sees */
    /* written: output [tokens, query_heads, head_dim], then LSE fp32 [tokens, query_heads] */
    TDM_ATTENTION_O,
    TDM_ATTENTION_LISTS, /* read if a selector lists pages, else absent */
    TDM_ATTENTION_OPERANDS
};
extern const struct tdm_op_type tdm_attention_type;

enum tdm_attention_grad_operand {
    /* read: rotated; if queries go around a ring of ranks, TDM_QUERIES, and O and DO are absent */
    TDM_ATTENTION_GRAD_Q = TDM_ATTENTION_Q,
    TDM_ATTENTION_GRAD_KV = TDM_ATTENTION_KV, /* read */
    TDM_ATTENTION_GRAD_O = TDM_ATTENTION_O,   /* read: output and LSE of the forward */
    TDM_ATTENTION_GRAD_DO, /* read: gradient of the output, [tokens, query_heads, head_dim] */
    TDM_ATTENTION_GRAD_DQ, /* written: gradient of q */
    /* written: gradient of the K and V pages of the chunks that no later chunk sees; absent if
     * there are none */
    TDM_ATTENTION_GRAD_DKV_OPENED,
    /* added to: the same for the chunks that a later chunk sees too; absent if there are none */
    TDM_ATTENTION_GRAD_DKV_ADDED,
    TDM_ATTENTION_GRAD_LISTS, /* read if a selector lists pages, else absent */
    TDM_ATTENTION_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_attention_grad_type;

/* Packs what the gradient of attention reads of a chunk's queries, so that it can go around a ring
 * of ranks: Q, the gradient of the output, the LSE, and the dot products of rows of the output and
 * its gradient, in place of the output. */
enum tdm_pack_queries_operand {
    TDM_PACK_QUERIES_Q,   /* read: rotated */
    TDM_PACK_QUERIES_O,   /* read: output and LSE */
    TDM_PACK_QUERIES_DO,  /* read: gradient of the output */
    TDM_PACK_QUERIES_OUT, /* written: TDM_QUERIES */
    TDM_PACK_QUERIES_OPERANDS
};
extern const struct tdm_op_type tdm_pack_queries_type;

/* Where the parts of TDM_QUERIES begin, in bytes, for `elements` elements of Q, of `rows` rows. */
struct tdm_queries_at {
    uint64_t d_out, lse, dots;
};

static inline struct tdm_queries_at tdm_queries_at(uint64_t elements, uint64_t rows,
                                                   enum tdm_dtype dtype)
{
    const uint64_t lse = tdm_lse_bytes_at(tdm_size_mul(2, elements), dtype);
    return (struct tdm_queries_at){tdm_size_mul(elements, tdm_dtype_bytes(dtype)), lse,
                                   tdm_size_add(lse, tdm_size_mul(rows, sizeof(float)))};
}

/* Merges the parts of an output that attention made over one chunk of keys each, by their LSE; or
 * adds the parts of dQ. */
enum tdm_merge_operand {
    TDM_MERGE_PART, /* read */
    TDM_MERGE_SUM,  /* written by the first part, changed by the next ones, read by the last */
    TDM_MERGE_OUT,  /* written with the last part: TDM_ATTENTION_OUT or TDM_DQ; else absent */
    TDM_MERGE_OPERANDS
};
extern const struct tdm_op_type tdm_merge_type;

/* The LSE of a row that sees none of the keys of a part; its output is zero. Finite, so that two
 * such parts can be merged. */
#define TDM_LSE_OF_NONE (-1e30f)

#endif
