/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops: the elements of a program, with one record for each kind.
 *
 * A record names the operands of a kind, tells how an op may work on each of them, and counts FLOPs
 * and scratch. Everything else that a family must know of the model and the schedule is in its
 * parameters (params.h). Each family of ops has its own header (move.h, embed.h, norm.h, product.h,
 * rope.h, select.h, attention.h, mlp.h, head.h, update.h, team.h) with an enum of operands for each
 * kind. That enum is the home of the contract: what an operand holds, and what the op does with it.
 * An operand's number is its index in tdm_op.access and in tdm_launch.operand.
 *
 * The validator has its own table (schedule/operands.c) of what an op must find for each part of
 * the model. It does not use the modes of the records.
 */
#ifndef TDM_OPS_OPS_H
#define TDM_OPS_OPS_H

#include "machines/rates.h"
#include "ops/content.h"

#include <stdbool.h>
#include <stdint.h>

/* All kinds, in families: OP(kind, record). Kinds are numbered in this order. */
#define TDM_OPS(OP)                                          \
    OP(COPY, copy) /* move.h */                              \
    OP(ZERO, zero)                                           \
    OP(EMBED, embed) /* embed.h; sort_tokens is in move.h */ \
    OP(SORT_TOKENS, sort_tokens)                             \
    OP(EMBED_GRAD, embed_grad)                               \
    OP(NORM, norm) /* norm.h */                              \
    OP(NORM_GRAD, norm_grad)                                 \
    OP(PRODUCT, product) /* product.h */                     \
    OP(PRODUCT_GRAD_INPUT, product_grad_input)               \
    OP(PRODUCT_GRAD_WEIGHT, product_grad_weight)             \
    OP(ROPE, rope) /* rope.h */                              \
    OP(ROPE_GRAD, rope_grad)                                 \
    OP(KV_WRITE, kv_write)                                   \
    OP(KV_GRAD_READ, kv_grad_read)                           \
    OP(PAGE_MEANS, page_means) /* select.h */                \
    OP(SELECT, select)                                       \
    OP(ATTENTION, attention) /* attention.h */               \
    OP(ATTENTION_GRAD, attention_grad)                       \
    OP(SWIGLU, swiglu) /* mlp.h */                           \
    OP(SWIGLU_GRAD, swiglu_grad)                             \
    OP(HEAD, head) /* head.h */                              \
    OP(LOSS, loss)                                           \
    OP(HEAD_GRAD, head_grad)                                 \
    OP(GRADIENT_NORM, gradient_norm) /* update.h */          \
    OP(OPTIMIZER, optimizer)                                 \
    OP(GATHER, gather) /* team.h */                          \
    OP(REDUCE, reduce)                                       \
    OP(REDUCE_ALL, reduce_all)                               \
    OP(REDUCE_SCATTER, reduce_scatter)                       \
    OP(GATHER_ALL, gather_all)                               \
    OP(ALL_TO_ALL, all_to_all)                               \
    OP(HOP, hop)                                             \
    OP(HOP_SUM, hop_sum)                                     \
    OP(MERGE, merge) /* attention.h */                       \
    OP(PACK_QUERIES, pack_queries)

#define TDM_OP_NUMBER(kind, record) TDM_OP_##kind,
enum tdm_op_kind { TDM_OPS(TDM_OP_NUMBER) TDM_OP_KINDS };
#undef TDM_OP_NUMBER

/* A set of kinds of ops, with a bit for each. */
typedef uint64_t tdm_kinds;
#define TDM_KIND(kind) ((tdm_kinds)1 << (kind))
#define TDM_ALL_KINDS (TDM_KIND(TDM_OP_KINDS) - 1)

/* The name of the kind's record: "embed_grad". */
const char *tdm_op_kind_name(enum tdm_op_kind kind);

/* How an op works on an operand. The tags `before` and `after` of its access (schedule/program.h)
 * tell what it holds before and after. */
enum tdm_mode {
    TDM_READ,       /* it must hold `before` */
    TDM_WRITE,      /* the op overwrites its part; then it holds `after` */
    TDM_ACCUMULATE, /* read, modified and written in program order: `before` becomes `after` */
};

/* A set of modes: those that an operand may have. In the families' headers, "written or added to"
 * means that the first addition to a sum writes and later ones accumulate. "changed" means that the
 * op turns the content into something else in place. */
enum tdm_modes {
    TDM_READS = 1 << TDM_READ,
    TDM_WRITES = 1 << TDM_WRITE,
    TDM_CHANGES = 1 << TDM_ACCUMULATE,
};

/* The largest number of operands of an op. */
#define TDM_OPERANDS 8

struct tdm_operand_type {
    const char *name; /* in words: "weights' gradient" */
    unsigned modes;   /* a set of enum tdm_modes */
    bool may_be_absent;
};

/* The parameters of all families: params.h. */
struct tdm_params;

/* What the cost of an op depends on besides the bytes of its operands: the pages of keys that its
 * queries see. */
enum tdm_sight {
    TDM_SIGHT_NONE,
    TDM_SIGHT_KEYS,  /* attention: (query, key) pairs */
    TDM_SIGHT_PAGES, /* a selection: pairs, and (query, page) pairs of its vote */
};

/* The amount of work of an op. */
struct tdm_work {
    uint64_t tokens, entries; /* as in tdm_op */
    enum tdm_part part;
    uint64_t pairs;  /* (query, key), with a sight */
    uint64_t scores; /* (query, page), with TDM_SIGHT_PAGES */
};

struct tdm_op_type {
    const char *name;
    uint32_t operands;                             /* absent ones included */
    struct tdm_operand_type operand[TDM_OPERANDS]; /* in the order of the family's enum */
    enum tdm_sight sight;
    /* by which a machine says how long it takes; schedule/cost.c has rates of its own for narrow
     * heads, and for updates on the host or with rounding */
    enum tdm_rate rate;
    /* FLOPs; tdm_no_flops() if the op's time follows from its bytes. Saturates. */
    uint64_t (*flops)(const struct tdm_params *params, const struct tdm_work *work);
    /* Bytes of scratch on the device for chunks of at most `tokens` tokens: scratch.h. NULL: none.
     * Saturates. */
    uint64_t (*scratch)(const struct tdm_params *params, uint64_t tokens);
};

/* For ops that move data, or do a few operations for each element. */
uint64_t tdm_no_flops(const struct tdm_params *params, const struct tdm_work *work);

/* The record of a kind. */
const struct tdm_op_type *tdm_op_type(enum tdm_op_kind kind);

#endif
