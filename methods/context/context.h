/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context parallelism: one sequence on many GPUs, each of which has a part of its tokens. Only
 * attention needs other parts: keys and values are passed round a ring of GPUs (ring, double
 * ring), or all GPUs exchange tokens for heads and back (Ulysses), or both (USP).
 * Sources: zhuzilin/ring-flash-attention; PyTorch's own; InternEvo's zigzag ring with sliding
 * windows, which is LoongTrain's double ring; feifeibear/long-context-attention (yunchang).
 */
#ifndef TDM_METHODS_CONTEXT_CONTEXT_H
#define TDM_METHODS_CONTEXT_CONTEXT_H

#include "methods/eager/eager.h"
#include "methods/eager/ops.h"
#include "methods/key.h"
#include "models/model.h"

struct tdm_block_shape;
struct tdm_method_cost;

/* Which tokens rank i of R has: slices i and 2R - 1 - i of 2R; every R-th token; slice i of R. */
enum tdm_ring_balance { TDM_RING_ZIGZAG, TDM_RING_STRIPED, TDM_RING_CONTIGUOUS };

/* K and V of a rank. */
struct tdm_pair {
    struct tdm_eager_value *k, *v;
};

struct tdm_context;

/* How attention is divided; a row of method.c. A divider may both exchange and ring: groups
 * exchange, and rings connect the groups. */
struct tdm_divider {
    const struct tdm_method_key *const *keys; /* tables, ended by NULL; NULL: it has none */
    uint32_t communicators; /* communicators that NCCL creates for it, beyond the first */
    bool exchanges;         /* all-to-all: ranks exchange tokens for heads and back */
    bool rings;             /* keys and values are passed round a ring */
    bool rings_of_nodes;    /* one ring within each node, and one ring of nodes */
    bool repeats_kv;        /* more ranks than KV heads: each KV head goes to several */
    bool heads_first;       /* what was exchanged is copied to heads, then tokens */
    bool caps_scores;       /* the ring's kernels support attn_logit_softcapping */
    /* The ring. forward returns the output and sets *sums to the log-sum-exps. The results of
     * backward are dQ, dK and dV. NULL: attention is that of one rank, or a system has its own. */
    struct tdm_eager_value *(*forward)(struct tdm_eager *m, const struct tdm_context *context,
                                       const struct tdm_block_shape *shape, struct tdm_pair kv,
                                       struct tdm_eager_value **sums);
    void (*backward)(struct tdm_eager *m, const struct tdm_context *context,
                     const struct tdm_block_shape *shape, const struct tdm_eager_value *q,
                     struct tdm_pair kv, struct tdm_eager_value **results);
    /* Refuses invalid combinations, and settles the degrees. NULL: the method's check does that. */
    enum tdm_status (*check)(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err);
    /* One line of assumptions, or NULL. */
    const char *(*assumption)(const struct tdm_model *model,
                              const struct tdm_method_settings *settings);
    /* Adds the bytes sent to a cost that has a rank's share of the FLOPs. */
    void (*cost)(const struct tdm_model *model, const struct tdm_method_settings *settings,
                 struct tdm_method_cost *cost);
};

struct tdm_context {
    const struct tdm_divider *divider; /* NULL: every rank has whole sequences */
    enum tdm_ring_balance balance;
    bool gathers;                         /* PyTorch's: K and V of all ranks at once */
    uint64_t ranks;                       /* that share a sequence; 0: all GPUs */
    uint64_t ring_degree, ulysses_degree; /* their product is the number of ranks */
    uint64_t gpus_per_node;               /* 0: all GPUs are in one node */
    uint64_t chunk_tokens; /* FPDT: tokens of all ranks that are computed together; 0: all */
};

/* The tokens of a sequence padded so that all ranks have equally many, and how many of them one
 * rank has. A rank has all of them if nothing divides attention. */
uint64_t tdm_context_padded_tokens(const struct tdm_context *context, uint64_t tokens);
uint64_t tdm_context_local_tokens(const struct tdm_context *context, uint64_t tokens);

/* Attention of a rank, in place of scaled_dot_product_attention. `shape` is that of the rank's
 * tokens. The result lies by token, then head. `context` must outlive the graph. */
struct tdm_eager_value *tdm_context_attention(struct tdm_eager *m,
                                              const struct tdm_context *context,
                                              const struct tdm_attention_shape *shape,
                                              struct tdm_eager_value *q, struct tdm_eager_value *k,
                                              struct tdm_eager_value *v);

/* ---- dividers and their limits (method.c) ---- */

extern const struct tdm_divider tdm_ring_divider, tdm_double_ring_divider, tdm_ulysses_divider,
    tdm_usp_divider, tdm_torch_ring_divider, tdm_alst_divider, tdm_fpdt_divider, tdm_burst_divider;

/* What FPDT's models have and no key sets: fused norms. */
void tdm_fpdt_preset(struct tdm_method_settings *settings);

/* Settles the degrees that the user did not set. */
void tdm_context_settle(const struct tdm_model *model, struct tdm_method_settings *settings);

/* For a method whose ring passes blocks of keys: refuses a window that masks some of the tokens. */
enum tdm_status tdm_context_refuse_window(const struct tdm_model *model,
                                          const struct tdm_method_settings *settings,
                                          struct tdm_error *err);

/* For rings of nodes: are these GPUs whole nodes, or all in one node? */
enum tdm_status tdm_check_nodes(const char *method, uint64_t ranks, uint64_t gpus_per_node,
                                struct tdm_error *err);

/* Adds the bytes of rings and all-to-alls (cost.c). */
void tdm_context_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                      struct tdm_method_cost *cost);
/* The same of FPDT: all-to-alls, chunks between GPU and host, and what runs again. */
void tdm_fpdt_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                   struct tdm_method_cost *cost);

#endif
