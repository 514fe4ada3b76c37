/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What joins the ranks of a step beyond one GPU's own links: the memory that NCCL takes, and the
 * network between nodes.
 *
 * NCCL's memory depends on its channels (NCCL_MAX_CTAS): a machine's description has "nccl_bytes",
 * measured pairs of channels and bytes, for a communicator and its first send and receive. A
 * schedule whose ranks NCCL joins has the memory in the machine that it was planned for: as part of
 * the runtime, and by itself in "nccl": {channels, bytes}.
 */
#ifndef TDM_MACHINES_NCCL_H
#define TDM_MACHINES_NCCL_H

#include "machines/machine.h"

/* Channels that are used if nobody says how many. */
#define TDM_NCCL_CHANNELS 8u

struct tdm_joined {
    uint32_t channels;      /* of NCCL; 0: NCCL is not used */
    uint64_t staging_bytes; /* that the transport takes on the device beside it */
    bool over_network;      /* ranks are in several nodes */
};

/* Reads "nccl_bytes" and "nccl" of a description. */
void tdm_nccl_read(struct tdm_json_reader *reader, struct tdm_machine *machine);

/* Bytes that NCCL takes with some channels: the measured ones of as many or more; 0: not known. */
uint64_t tdm_nccl_bytes(const struct tdm_machine *machine, uint32_t channels);

/* Replaces *machine by one that is joined so. Over a network the link between ranks has its rate,
 * if it is known, and node_rate is that between ranks of one node. A machine that is joined already
 * stays as it is. TDM_INPUT: the description does not say what NCCL takes. */
enum tdm_status tdm_machine_join(const struct tdm_joined *joined, struct tdm_machine **machine,
                                 struct tdm_error *err);

#endif
