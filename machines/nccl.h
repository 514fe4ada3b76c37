/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What joins the ranks of a step beyond one GPU's own links: the memory that NCCL takes, and the
 * network between nodes.
 *
 * NCCL takes memory for its kernels, which a machine's description has ("nccl_base_bytes"), and for
 * its channels and connections, which follows from their number and from the sizes of its buffers.
 * The executor sets these (executor/nccl.c). A schedule whose ranks NCCL joins has all of it in the
 * machine that it was planned for: as part of the runtime, and by itself in "nccl": {channels,
 * bytes}.
 */
#ifndef TDM_MACHINES_NCCL_H
#define TDM_MACHINES_NCCL_H

#include "machines/machine.h"

/* Channels that are used if nobody says how many, and the most that NCCL has. */
#define TDM_NCCL_CHANNELS 8u
#define TDM_NCCL_MOST_CHANNELS 64u

/* The buffers of a connection, by NCCL's protocols. Sends and receives use the simple one alone if
 * NCCL is told so. Then the others can be small: NCCL wants 120 times a power of two. */
struct tdm_nccl_buffers {
    uint64_t simple, ll, ll128; /* bytes; NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE */
};

/* Those that the executor sets: with them a connection's buffers fit into 2 MiB. */
extern const struct tdm_nccl_buffers tdm_nccl_buffers;

struct tdm_joined {
    uint32_t channels; /* of NCCL; 0: NCCL is not used */
    uint32_t ranks;
    uint32_t ranks_per_node; /* fewer than ranks: they are joined over a network */
    uint64_t staging_bytes;  /* that the transport takes on the device beside NCCL */
};

/* Reads "nccl_base_bytes" and "nccl" of a description. */
void tdm_nccl_read(struct tdm_json_reader *reader, struct tdm_machine *machine);

/* Device memory of a rank's channels, with connections from and to `peers` other ranks: of NCCL
 * 2.28, for sends and receives between GPUs that can read each other's memory. It takes device
 * memory in steps of 2 MiB: three for arrays of a channel; one for what the sender of a connection
 * keeps, and the receiver's buffers (src/channel.cc, src/transport/p2p.cc). Channels are a power of
 * two, or rounded up to one. */
uint64_t tdm_nccl_channel_bytes(const struct tdm_nccl_buffers *buffers, uint32_t channels,
                                uint64_t peers);

/* Replaces *machine by one that is joined so. Over a network the link between ranks has its rate,
 * if it is known, and node_rate is that between ranks of one node; all ranks of other nodes count
 * as one peer, because NCCL's connections over a network share their buffers. A machine that is
 * joined already stays as it is. TDM_INPUT: the description does not say what NCCL takes. */
enum tdm_status tdm_machine_join(const struct tdm_joined *joined, struct tdm_machine **machine,
                                 struct tdm_error *err);

#endif
