/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rings of GPUs cost in time, where links inside a node and between nodes differ: BurstEngine's equations for a
 * ring, LoongTrain's double ring and its own, with the bytes that are really sent (keys may have fewer heads than
 * queries, gradients may be wider).
 */
#ifndef TDM_METHODS_CONTEXT_COST_H
#define TDM_METHODS_CONTEXT_COST_H

#include "methods/cost.h"

#include <stdint.h>

/* One message takes its latency and its bytes by the bandwidth. */
struct tdm_links {
    double node_latency_seconds, node_bytes_per_second;
    double network_latency_seconds, network_bytes_per_second;
};

enum tdm_turn_kind { TDM_TURN_RING, TDM_TURN_DOUBLE_RING, TDM_TURN_BURST };

/* Attention of one layer. */
struct tdm_ring_turn {
    enum tdm_turn_kind kind;
    uint64_t ranks, nodes;
    double key_bytes, key_gradient_bytes; /* of K, and of its gradient, of one rank */
    double query_bytes, sum_bytes;        /* of Q, and of one number a row */
};

/* With G ranks on n nodes and T the time of one message: a ring takes 6 G max(T_intra, T_inter) for both, a double
 * ring 4 max((G - n) T_intra, n T_inter) + 2 ((G - n) T_intra + n T_inter), Burst 5 max((G - n) T_intra, n T_inter)
 * and what its two vectors take. */
double tdm_ring_forward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links);
double tdm_ring_backward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links);

/* A rank's share of the work of the whole sequence, and what sharding sends; rings and all-to-alls add to it. */
void tdm_context_share_cost(const struct tdm_model *model,
                            const struct tdm_method_settings *settings,
                            struct tdm_method_cost *cost);

#endif
