/* SPDX-License-Identifier: Apache-2.0 */
/* The link that limits a transfer, and the times of rings. */
#include "methods/links.h"

#include <math.h>

/* Latency of a ring step, protocol Simple, over NVLink, PCIe and the network: NCCL
 * src/graph/tuning.cc `hwLat`. */
#define NVLINK_SECONDS 3.4e-6
#define PCIE_SECONDS 5.7e-6
#define NETWORK_SECONDS 9.6e-6

#define ASSUMED_NETWORK_RATE 12.5e9
#define ASSUMED_GPUS_PER_NODE 8u

struct tdm_links tdm_links_of(const struct tdm_machine *machine)
{
    double host = tdm_machine_link_rate(machine, TDM_LINK_H2D);
    double peers = machine->peer_rate > 0 ? machine->peer_rate : host;
    return (struct tdm_links){
        .node_latency_seconds = peers > host ? NVLINK_SECONDS : PCIE_SECONDS,
        .node_bytes_per_second = peers,
        .network_latency_seconds = NETWORK_SECONDS,
        .network_bytes_per_second =
            machine->network_rate > 0 ? machine->network_rate : fmin(ASSUMED_NETWORK_RATE, peers),
        .gpus_per_node =
            machine->gpus_per_node > 0 ? machine->gpus_per_node : ASSUMED_GPUS_PER_NODE,
    };
}

/* ---- groups ---- */

/* How many ranks of a group are in one node. */
static uint64_t ranks_inside(struct tdm_gpu_group group)
{
    if (group.gpus_per_node == 0 || group.ranks * group.stride <= group.gpus_per_node)
        return group.ranks;
    return group.stride >= group.gpus_per_node ? 1 : group.gpus_per_node / group.stride;
}

void tdm_traffic_add(struct tdm_traffic *traffic, struct tdm_gpu_group group, double bytes)
{
    *(ranks_inside(group) < group.ranks ? &traffic->network : &traffic->node) += bytes;
}

void tdm_traffic_add_exchange(struct tdm_traffic *traffic, struct tdm_gpu_group group, double bytes)
{
    if (group.ranks < 2)
        return;
    double leaving = (double)(group.ranks - ranks_inside(group)) / (double)(group.ranks - 1);
    traffic->network += bytes * leaving;
    traffic->node += bytes * (1 - leaving);
}

double tdm_traffic_bytes(const struct tdm_traffic *traffic)
{
    return traffic->node + traffic->network;
}

double tdm_traffic_seconds(const struct tdm_traffic *traffic, const struct tdm_links *links)
{
    return traffic->node / links->node_bytes_per_second +
           traffic->network / links->network_bytes_per_second;
}

/* ---- rings ---- */

struct tdm_ring_turn tdm_ring_of(struct tdm_gpu_group group)
{
    uint64_t inside = ranks_inside(group);
    return (struct tdm_ring_turn){.ranks = group.ranks,
                                  .nodes = (group.ranks + inside - 1) / inside};
}

static double inside(const struct tdm_links *links, double bytes)
{
    return bytes > 0 ? links->node_latency_seconds + bytes / links->node_bytes_per_second : 0;
}

static double between(const struct tdm_links *links, double bytes)
{
    return bytes > 0 ? links->network_latency_seconds + bytes / links->network_bytes_per_second : 0;
}

/* Time of one turn round all ranks. In a single ring the slower link sets the time of every step.
 * In a double ring both rings run at the same time, and the slower one sets the time; with `late`
 * they run one after the other. */
static double round_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links,
                            double node_bytes, double network_bytes, bool late)
{
    double ranks = (double)turn->ranks, nodes = (double)turn->nodes;
    if (turn->ranks <= 1)
        return 0;
    if (turn->nodes <= 1)
        return ranks * inside(links, node_bytes);
    if (!turn->double_ring)
        return ranks * fmax(inside(links, node_bytes), between(links, node_bytes));
    double inner = (ranks - nodes) * inside(links, node_bytes),
           outer = nodes * between(links, network_bytes);
    return late ? inner + outer : fmax(inner, outer);
}

double tdm_ring_forward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links)
{
    return round_seconds(turn, links, turn->forward_bytes, turn->forward_bytes, false);
}

double tdm_ring_backward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links)
{
    return round_seconds(turn, links, turn->backward_bytes, turn->backward_bytes, false) +
           round_seconds(turn, links, turn->gradient_bytes, turn->node_gradient_bytes, true);
}

double tdm_ring_forward_sent(const struct tdm_ring_turn *turn)
{
    return turn->ranks <= 1 ? 0 : (double)(turn->ranks - 1) * turn->forward_bytes;
}

double tdm_ring_backward_sent(const struct tdm_ring_turn *turn)
{
    if (turn->ranks <= 1)
        return 0;
    double outer = turn->double_ring && turn->nodes > 1 ? (double)turn->nodes : 0;
    return (double)(turn->ranks - 1) * turn->backward_bytes +
           ((double)turn->ranks - outer) * turn->gradient_bytes + outer * turn->node_gradient_bytes;
}
