/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between GPUs, inside a node and between nodes, and the time that transfers over them
 * take: collectives of groups of GPUs, and rings.
 *
 * GPUs are numbered node by node. A group consists of `ranks` GPUs, `stride` apart. It spans
 * nodes if it is longer than a node. Every GPU has its own port to the network.
 */
#ifndef TDM_METHODS_LINKS_H
#define TDM_METHODS_LINKS_H

#include "machines/machine.h"

#include <stdbool.h>
#include <stdint.h>

/* A message takes its latency plus its bytes divided by the bandwidth. */
struct tdm_links {
    double node_latency_seconds, node_bytes_per_second;
    double network_latency_seconds, network_bytes_per_second;
    uint64_t gpus_per_node;
};

/* The links of a machine. Defaults where its description does not say: GPUs of a node are joined by
 * the link to the host; nodes are joined by 100 Gb/s a GPU (or by what joins the GPUs of a node, if
 * that is slower); a node has 8 GPUs. */
struct tdm_links tdm_links_of(const struct tdm_machine *machine);

/* ---- groups ---- */

struct tdm_gpu_group {
    uint64_t ranks, stride;
    uint64_t gpus_per_node; /* 0: all GPUs are in one node */
};

/* Bytes that a GPU sends, by the link that limits them. */
struct tdm_traffic {
    double node, network;
};

/* For a collective that goes round the group (gather, scatter, reduce): its slowest link sets the
 * time. */
void tdm_traffic_add(struct tdm_traffic *traffic, struct tdm_gpu_group group, double bytes);
/* For an all-to-all: bytes for ranks of the same node stay in the node. */
void tdm_traffic_add_exchange(struct tdm_traffic *traffic, struct tdm_gpu_group group,
                              double bytes);
double tdm_traffic_bytes(const struct tdm_traffic *traffic);
double tdm_traffic_seconds(const struct tdm_traffic *traffic, const struct tdm_links *links);

/* ---- rings ---- */

/* The ring attention of one layer. All bytes are those of one rank. */
struct tdm_ring_turn {
    uint64_t ranks, nodes; /* one rank: no ring */
    bool double_ring;      /* rings inside nodes, and at the same time one ring of nodes */
    double forward_bytes, backward_bytes;
    /* What the backward computes and sends one step later. It may be narrower on the ring of nodes.
     */
    double gradient_bytes, node_gradient_bytes;
};

/* The single ring of a group. */
struct tdm_ring_turn tdm_ring_of(struct tdm_gpu_group group);

/* BurstEngine's equations. With G ranks on n nodes and T the time of one message, a tensor takes G
 * max(T_intra, T_inter) in a single ring. In a double ring it takes max((G - n) T_intra, n
 * T_inter), or (G - n) T_intra + n T_inter if it is sent one step late. A single ring and
 * LoongTrain's double ring pass two tensors in the forward; in the backward they pass two, and two
 * late ones. BurstEngine passes three tensors and two vectors in the backward, none of them late.
 */
double tdm_ring_forward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links);
double tdm_ring_backward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links);

/* Bytes that a rank sends. A block is not sent in the last step of a turn, but gradients return to
 * their rank. */
double tdm_ring_forward_sent(const struct tdm_ring_turn *turn);
double tdm_ring_backward_sent(const struct tdm_ring_turn *turn);

#endif
