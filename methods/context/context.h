/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context parallelism: one sequence over many GPUs, each of which has a part of its tokens. Only attention sees
 * more than that part: keys and values go round a ring of GPUs (ring, double ring), or all GPUs change tokens for
 * heads and back (Ulysses), or both (USP).
 * Sources: zhuzilin/ring-flash-attention; InternEvo's zigzag ring with sliding windows, which is LoongTrain's double
 * ring; feifeibear/long-context-attention (yunchang).
 */
#ifndef TDM_METHODS_CONTEXT_CONTEXT_H
#define TDM_METHODS_CONTEXT_CONTEXT_H

#include "methods/eager/eager.h"
#include "methods/key.h"
#include "methods/eager/ops.h"
#include "models/model.h"

struct tdm_method_cost;

enum tdm_context_kind {
    TDM_CONTEXT_NONE,
    TDM_CONTEXT_RING,
    TDM_CONTEXT_DOUBLE_RING,
    TDM_CONTEXT_ULYSSES,
    TDM_CONTEXT_USP,
};

/* Which tokens a rank has: slices i and 2R - 1 - i of 2R; every R-th; slice i of R. */
enum tdm_ring_balance { TDM_RING_ZIGZAG, TDM_RING_STRIPED, TDM_RING_CONTIGUOUS };

struct tdm_context {
    enum tdm_context_kind kind;
    enum tdm_ring_balance balance;
    uint64_t ranks;                       /* that share a sequence; 0: all GPUs */
    uint64_t ring_degree, ulysses_degree; /* their product is the number of ranks */
    uint64_t gpus_per_node;               /* 0: all GPUs are in one node */
};

/* Tokens of a sequence after padding, so that every rank has as many; their number on a rank. */
uint64_t tdm_context_padded_tokens(const struct tdm_context *context, uint64_t tokens);
uint64_t tdm_context_local_tokens(const struct tdm_context *context, uint64_t tokens);

/* Attention of a rank in place of scaled_dot_product_attention; `shape` is that of its own tokens. The result lies by
 * token, then head. `context` must outlive the graph. */
struct tdm_eager_value *tdm_context_attention(struct tdm_eager *m,
                                              const struct tdm_context *context,
                                              const struct tdm_attention_shape *shape,
                                              struct tdm_eager_value *q, struct tdm_eager_value *k,
                                              struct tdm_eager_value *v);

/* ---- methods (method.c) ---- */

extern const struct tdm_method_key *const tdm_ring_keys[];
extern const struct tdm_method_key *const tdm_double_ring_keys[];
extern const struct tdm_method_key *const tdm_ulysses_keys[];
extern const struct tdm_method_key *const tdm_usp_keys[];

void tdm_ring_preset(struct tdm_method_settings *settings);
void tdm_double_ring_preset(struct tdm_method_settings *settings);
void tdm_ulysses_preset(struct tdm_method_settings *settings);
void tdm_usp_preset(struct tdm_method_settings *settings);
enum tdm_status tdm_context_check(const struct tdm_model *model,
                                  struct tdm_method_settings *settings, struct tdm_error *err);

const char *tdm_context_assumption(const struct tdm_model *model,
                                   const struct tdm_method_settings *settings);

/* Refuses, for a method whose ring passes blocks of keys, a window that hides some of the tokens. */
enum tdm_status tdm_context_refuse_window(const struct tdm_model *model,
                                          const struct tdm_method_settings *settings,
                                          struct tdm_error *err);

/* Rings of nodes: are these GPUs whole nodes, or all in one? */
enum tdm_status tdm_check_nodes(const char *method, uint64_t ranks, uint64_t gpus_per_node,
                                struct tdm_error *err);

/* ---- costs (cost.c) ---- */

/* A rank's share of the work of the whole sequence, and what sharding sends; rings and all-to-alls add to it. */
void tdm_context_share_cost(const struct tdm_model *model,
                            const struct tdm_method_settings *settings,
                            struct tdm_method_cost *cost);

void tdm_context_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                      struct tdm_method_cost *cost);

#endif
