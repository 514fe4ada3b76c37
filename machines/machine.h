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

/* First field of a description; what the others are is said at the top of machine.c. */
#define TDM_MACHINE_FORMAT "tidemark-machine-1"

struct tdm_machine {
    char name[64];
    char title[96];               /* "NVIDIA H200 141 GB SXM" */
    char source[128];             /* "measured by tidemark calibrate" or "datasheet", where, when */
    struct tdm_topology topology; /* places, lanes, links */
    char server_name[48];         /* a computer that is sold with such cards; "": not known */
    uint64_t server_host_bytes;   /* and its host memory, of all its GPUs */
    struct tdm_rate_table table[TDM_RATES];
    double rate[TDM_RATES]; /* the largest of each table */
    double peak_flops;      /* dense bf16 tensor peak, for MFU */
    double peer_rate;       /* bytes/s between two GPUs of a node, one way; 0: not known */
    double network_rate;    /* bytes/s between two GPUs of different nodes, one way; 0: not known */
    uint64_t gpus_per_node; /* that are joined by more than the network; 0: not known */
    double launch_seconds;  /* least time of one op on the compute lane */
    double copy_seconds;    /* fixed time of one copy */
    bool measured;          /* all rates, by tidemark calibrate: its provenance says so */
    char missing[400];      /* keys that were missing when it was read, "" if none: see below */
    json_t *description;    /* what it was read from, complete, kept for the schedule; owned */
};

/* Reads --machine: a shipped name ("h200"; where there is no such file, also "H200" or "4090"), a
 * FILE, or "local": what calibrate wrote ($XDG_CONFIG_HOME/tidemark/machine.json), else this
 * computer's cores and memory for the cpu backend with assumed rates, and `source` says so. Caller
 * owns *machine. */
enum tdm_status tdm_machine_load(const char *name_or_path, struct tdm_machine **machine,
                                 struct tdm_error *err);

/* The file that it would read, whether it is there or not, written to `out`; "" if there is none.
 * TDM_INPUT if the name is too long. */
enum tdm_status tdm_machine_path(const char *name_or_path, char *out, size_t out_bytes,
                                 struct tdm_error *err);

/* From a parsed description (borrowed; kept by reference); `file` names it in messages. A rate that
 * every machine must have, or the time of a launch or a copy, may be missing: it is taken from the
 * shipped machine that the description names as its `base`, else it is low for the peak FLOP/s. */
enum tdm_status tdm_machine_from_json(const char *file, json_t *description,
                                      struct tdm_machine **machine, struct tdm_error *err);

/* Where calibrate writes this machine's description, by the XDG base directory rules. False if
 * neither XDG_CONFIG_HOME nor HOME says so. */
bool tdm_machine_local_path(char *out, size_t out_bytes);

/* This computer's cores and memory for the cpu backend, with assumed rates; whatever calibrate
 * wrote. The caller owns the description. */
enum tdm_status tdm_machine_describe_computer(json_t **description, struct tdm_error *err);

/* Bytes/s alone over a link that every machine has, and over both of these together. */
static inline double tdm_machine_link_rate(const struct tdm_machine *machine,
                                           enum tdm_link_number link)
{
    return machine->topology.links[link].bytes_per_second;
}

static inline double tdm_machine_both_ways_rate(const struct tdm_machine *machine)
{
    return machine->topology.links[TDM_LINK_H2D].both_ways_bytes_per_second;
}

/* Gives the links that every machine has their rates, which are among those of ops. */
void tdm_machine_set_links(struct tdm_machine *machine);

void tdm_machine_free(struct tdm_machine *machine);

/* Names of the shipped machines, sorted; as tdm_model_names. */
enum tdm_status tdm_machine_names(char ***names, struct tdm_error *err);

#endif
