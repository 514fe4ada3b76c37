/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine: places with capacities, lanes, links between places (topology.h), and the rates that
 * predict time.
 */
#ifndef TDM_MACHINES_MACHINE_H
#define TDM_MACHINES_MACHINE_H

#include "base/status.h"
#include "machines/rates.h"
#include "machines/topology.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first field of a description. The top of machine.c describes the others. */
#define TDM_MACHINE_FORMAT "tidemark-machine-1"

struct tdm_machine {
    char name[64];
    char title[96];   /* "NVIDIA H200 141 GB SXM" */
    char source[128]; /* "measured by tidemark calibrate", or the datasheet with place and date */
    struct tdm_topology topology; /* places, lanes, links */
    char server_name[48];         /* a computer sold with such cards; "": not known */
    uint64_t server_host_bytes;   /* its host memory, for all its GPUs */
    struct tdm_rate_table table[TDM_RATES];
    double rate[TDM_RATES]; /* the largest of each table */
    double peak_flops;      /* dense bf16 tensor peak, for MFU */
    double peer_rate;       /* bytes/s between two GPUs of a node, one way; 0: not known */
    double peer_seconds;    /* fixed time of a team op, beside its bytes */
    double network_rate;    /* bytes/s between two GPUs of different nodes, one way; 0: not known */
    double node_rate;       /* where peer_rate is the network's: that of a node; 0: it is not */
    uint32_t multiprocessors; /* 0: not known */
    uint64_t gpus_per_node;   /* GPUs connected by more than the network; 0: not known */
    uint64_t nccl_base_bytes; /* what NCCL takes beside its channels (nccl.h); 0: not known */
    uint32_t joined_channels; /* NCCL joins ranks with these, and is part of the runtime; 0: no */
    double launch_seconds;    /* shortest time of one op on the compute lane */
    double copy_seconds;      /* fixed time of one copy */
    double host_bytes_per_copied_byte; /* of updates on the host, as its memory serves both */
    double h2d_beside_updates, d2h_beside_updates; /* bytes/s: tdm_link.beside_updates_... */
    bool measured;       /* calibrate measured all rates, according to the provenance */
    bool shipped;        /* loaded from a description that comes with tidemark */
    char missing[400];   /* keys missing in the file, "" if none: see tdm_machine_from_json */
    json_t *description; /* the complete description, kept for the schedule; owned */
};

/* Loads the machine of --machine: a shipped name ("h200"; if there is no such file, also "H200" or
 * "4090", and "NVIDIA A100-SXM4-40GB", as drivers name cards), a FILE, or "local". "local" is what
 * calibrate wrote to $XDG_CONFIG_HOME/tidemark/machine.json, else this computer's cores and memory
 * for the cpu backend, with assumed rates, which `source` states. The caller owns *machine. */
enum tdm_status tdm_machine_load(const char *name_or_path, struct tdm_machine **machine,
                                 struct tdm_error *err);

/* Does the machine's "card" stand in the driver's name of a card, as a word of its own? */
bool tdm_machine_is_card(const struct tdm_machine *machine, const char *driver_name);

/* Writes to `out` the file that tdm_machine_load() would read, whether it exists or not; "" if
 * there is none. TDM_INPUT if the name is too long. */
enum tdm_status tdm_machine_path(const char *name_or_path, char *out, size_t out_bytes,
                                 struct tdm_error *err);

/* Makes a machine from a parsed description (borrowed; kept by reference). `file` names it in
 * messages. A required rate, or the time of a launch or a copy, may be missing. It is then taken
 * from the shipped machine that the description names as its `base`, else it is a low estimate,
 * some from the peak FLOP/s. */
enum tdm_status tdm_machine_from_json(const char *file, json_t *description,
                                      struct tdm_machine **machine, struct tdm_error *err);

/* Where calibrate writes this machine's description, by the XDG base directory rules. False if
 * neither XDG_CONFIG_HOME nor HOME is set to an absolute path. */
bool tdm_machine_local_path(char *out, size_t out_bytes);

/* Describes this computer's cores and memory for the cpu backend, with assumed rates, ignoring what
 * calibrate wrote. The caller owns the description. */
enum tdm_status tdm_machine_describe_computer(json_t **description, struct tdm_error *err);

/* The place where plans put what is not on the device. */
static inline const struct tdm_place_row *tdm_machine_far(const struct tdm_machine *machine)
{
    return &machine->topology.places[machine->topology.far];
}

/* Bytes/s of a link to or from the host, when it is the only busy one; then beside the other one;
 * then of both together. */
static inline double tdm_machine_link_rate(const struct tdm_machine *machine,
                                           enum tdm_link_number link)
{
    return machine->topology.links[link].bytes_per_second;
}

static inline double tdm_machine_rate_beside(const struct tdm_machine *machine,
                                             enum tdm_link_number link)
{
    return tdm_link_rate(&machine->topology, link,
                         1u << (link == TDM_LINK_H2D ? TDM_LINK_D2H : TDM_LINK_H2D));
}

/* Beside the other one and updates on the host. */
static inline double tdm_machine_rate_beside_updates(const struct tdm_machine *machine,
                                                     enum tdm_link_number link)
{
    return tdm_link_rate(&machine->topology, link,
                         TDM_UPDATES_BUSY |
                             1u << (link == TDM_LINK_H2D ? TDM_LINK_D2H : TDM_LINK_H2D));
}

static inline double tdm_machine_both_ways_rate(const struct tdm_machine *machine)
{
    return machine->topology.links[TDM_LINK_H2D].both_ways_bytes_per_second;
}

/* Sets the rates of the links that every machine has from the machine's copy rates, and from what
 * the links share with others. */
void tdm_machine_set_links(struct tdm_machine *machine);

void tdm_machine_free(struct tdm_machine *machine);

/* Names of the shipped machines, sorted; see tdm_model_names(). */
enum tdm_status tdm_machine_names(char ***names, struct tdm_error *err);

#endif
