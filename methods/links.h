/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between GPUs, inside a node and between nodes, and how long it takes what goes over them:
 * collectives of groups of GPUs, and rings.
 *
 * GPUs are numbered node by node. A group is `ranks` of them, `stride` apart, and spans nodes where
 * it is longer than a node. Every GPU has its own port to the network.
 */
#ifndef TDM_METHODS_LINKS_H
#define TDM_METHODS_LINKS_H

#include "machines/machine.h"

#include <stdbool.h>
#include <stdint.h>

/* One message takes its latency and its bytes by the bandwidth. */
struct tdm_links {
    double node_latency_seconds, node_bytes_per_second;
    double network_latency_seconds, network_bytes_per_second;
    uint64_t gpus_per_node;
};

/* Of a machine. Where it does not say so, GPUs of a node are joined by the link to the host, nodes
 * by 100 Gb/s a GPU (or what joins GPUs of a node, if that is slower), and a node has 8. */
struct tdm_links tdm_links_of(const struct tdm_machine *machine);

/* ---- groups ---- */

struct tdm_gpu_group {
    uint64_t ranks, stride;
    uint64_t gpus_per_node; /* 0: all GPUs are in one */
};

/* Bytes that a GPU sends, by the link that they wait for. */
struct tdm_traffic {
    double node, network;
};

/* Of a collective that goes round the group (gather, scatter, reduce): its slowest link rules. */
void tdm_traffic_add(struct tdm_traffic *traffic, struct tdm_gpu_group group, double bytes);
/* Of an all-to-all: what goes to ranks of the own node does not leave it. */
void tdm_traffic_add_exchange(struct tdm_traffic *traffic, struct tdm_gpu_group group,
                              double bytes);
double tdm_traffic_bytes(const struct tdm_traffic *traffic);
double tdm_traffic_seconds(const struct tdm_traffic *traffic, const struct tdm_links *links);

/* ---- rings ---- */

/* Attention of one layer: what goes round between ranks, all bytes those of one rank. */
struct tdm_ring_turn {
    uint64_t ranks, nodes; /* one rank: there is no ring */
    bool double_ring;      /* rings inside nodes, and one of nodes at the same time */
    double forward_bytes, backward_bytes;
    /* What the backward makes and sends on one step later; not as wide on the ring of nodes, it may
     * be. */
    double gradient_bytes, node_gradient_bytes;
};

/* The ring of a group, single. */
struct tdm_ring_turn tdm_ring_of(struct tdm_gpu_group group);

/* BurstEngine's equations. With G ranks on n nodes and T the time of one message, a tensor takes G
 * max(T_intra, T_inter) in a ring, max((G - n) T_intra, n T_inter) in a double ring, and there (G -
 * n) T_intra + n T_inter if it is one step late. A ring and LoongTrain's double ring have two
 * tensors in the forward and, in the backward, two and two late ones; BurstEngine has three and two
 * vectors, none of them late. */
double tdm_ring_forward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links);
double tdm_ring_backward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links);

/* Bytes that a rank sends: its own block stays at the end of a turn, but gradients come home. */
double tdm_ring_forward_sent(const struct tdm_ring_turn *turn);
double tdm_ring_backward_sent(const struct tdm_ring_turn *turn);

#endif
