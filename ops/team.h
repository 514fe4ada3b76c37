/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Team ops: all ranks run them together, in the same order. Each has operands on its own rank only.
 *
 * A round is one chunk of a sequence for each rank (schedule/ranks.h). A rank that has no chunk in
 * a round takes part without one of its own.
 */
#ifndef TDM_OPS_TEAM_H
#define TDM_OPS_TEAM_H

#include "ops/ops.h"

/* Gives every rank the K and V of all chunks of a round; in the first forward of a layer whose
 * pages win by a vote, also the means of their pages. */
enum tdm_gather_operand {
    TDM_GATHER_OWN,       /* read: pages of the rank's own chunk */
    TDM_GATHER_BELOW,     /* written: pages of the chunks of the round before its own, */
    TDM_GATHER_ABOVE,     /* and after it; without a chunk of its own: all are BELOW */
    TDM_GATHER_OWN_MEANS, /* the same for page means; absent if there are none */
    TDM_GATHER_BELOW_MEANS,
    TDM_GATHER_ABOVE_MEANS,
    TDM_GATHER_OPERANDS
};
extern const struct tdm_op_type tdm_gather_type;

/* Gives every rank the sum of all shares of its own chunk's dK and dV, added in rank order in
 * fp32. A rank has a share of the chunks that its own chunks see. */
enum tdm_reduce_operand {
    TDM_REDUCE_OWN,   /* changed: the rank's share becomes the sum */
    TDM_REDUCE_BELOW, /* read: its shares of other chunks of the round, those before its own, */
    TDM_REDUCE_ABOVE, /* and those after it; without a chunk of its own: all are BELOW */
    TDM_REDUCE_OPERANDS
};
extern const struct tdm_op_type tdm_reduce_type;

/* Gives every rank the sum of all shares of a gradient of weights, added in rank order in fp32; or
 * of the sum of its squares, in fp64. */
enum tdm_reduce_all_operand {
    TDM_REDUCE_ALL_SUM, /* changed: the rank's share becomes the sum */
    TDM_REDUCE_ALL_OPERANDS
};
extern const struct tdm_op_type tdm_reduce_all_type;

/* Gives every rank the sum of all shares of a gradient of weights in the part that the rank updates
 * (schedule/slices.h), added in rank order in fp32. */
enum tdm_reduce_scatter_operand {
    TDM_REDUCE_SCATTER_SUM, /* changed: in its part the rank's share becomes the sum */
    TDM_REDUCE_SCATTER_OPERANDS
};
extern const struct tdm_op_type tdm_reduce_scatter_type;

/* Gives every rank the weights that each rank has updated (schedule/slices.h). */
enum tdm_gather_all_operand {
    TDM_GATHER_ALL_WEIGHTS, /* changed: the parts of other ranks are replaced by theirs */
    TDM_GATHER_ALL_OPERANDS
};
extern const struct tdm_op_type tdm_gather_all_type;

/* If ranks divide the heads of attention: turns the round's chunks, each on its rank with all
 * heads, into all chunks of the round with the rank's heads (CHUNK is read, HEADS written), or back
 * (HEADS is read, CHUNK written). */
enum tdm_all_to_all_operand {
    TDM_ALL_TO_ALL_CHUNK, /* the rank's own chunk; absent if it has none among them */
    TDM_ALL_TO_ALL_HEADS, /* its heads of all chunks; absent if the ranks with the same chunks have
                             none */
    /* written: workspace in which the heads of the own chunk lie by rank; absent without one */
    TDM_ALL_TO_ALL_PARTED,
    TDM_ALL_TO_ALL_OPERANDS
};
extern const struct tdm_op_type tdm_all_to_all_type;

/* Ranks in a ring: K and V of a chunk, or its queries, go from its rank to the next, and so on. A
 * hop brings them one rank further. Either operand is absent if nothing goes that way. */
enum tdm_hop_operand {
    TDM_HOP_SENT,     /* read: what the next rank gets: KVPAGES or QUERIES of a chunk */
    TDM_HOP_RECEIVED, /* written: those of the chunk that the rank before has */
    TDM_HOP_OPERANDS
};
extern const struct tdm_op_type tdm_hop_type;

/* The same for the gradients of K and V, or of queries, which end where they began. On the way each
 * rank adds, in fp32, what the queries of its chunk of a round contribute to those of K and V, or
 * its K and V to those of queries. */
enum tdm_hop_sum_operand {
    TDM_HOP_SUM_SENT, /* read: the sum so far, for the next rank */
    /* added to: what the rank itself contributes; written if that is nothing */
    TDM_HOP_SUM_RECEIVED,
    TDM_HOP_SUM_OPERANDS
};
extern const struct tdm_op_type tdm_hop_sum_type;

/* The kinds of team ops. */
#define TDM_TEAM_KINDS                                                                             \
    (TDM_KIND(TDM_OP_GATHER) | TDM_KIND(TDM_OP_REDUCE) | TDM_KIND(TDM_OP_REDUCE_ALL) |             \
     TDM_KIND(TDM_OP_REDUCE_SCATTER) | TDM_KIND(TDM_OP_GATHER_ALL) | TDM_KIND(TDM_OP_ALL_TO_ALL) | \
     TDM_KIND(TDM_OP_HOP) | TDM_KIND(TDM_OP_HOP_SUM))

/* The kinds that only programs of several ranks have: a rank merges what visiting keys give, and
 * packs its queries before they go around. */
#define TDM_RANKS_KINDS (TDM_TEAM_KINDS | TDM_KIND(TDM_OP_MERGE) | TDM_KIND(TDM_OP_PACK_QUERIES))

/* Where ranks do not read each other's memory, shares of a sum arrive in pieces in staging memory,
 * one from each other rank. All pieces together have so many bytes, but each at least a few. */
#define TDM_TEAM_STAGING_BYTES (UINT64_C(1) << 24)
#define TDM_TEAM_LEAST_WINDOW_BYTES (UINT64_C(1) << 16)

/* The most bytes of such a piece; a multiple of the bytes of every dtype. ranks >= 2. */
static inline uint64_t tdm_team_window_bytes(uint32_t ranks)
{
    const uint64_t share = TDM_TEAM_STAGING_BYTES / (ranks - 1) / 512 * 512;
    return share > TDM_TEAM_LEAST_WINDOW_BYTES ? share : TDM_TEAM_LEAST_WINDOW_BYTES;
}

#endif
