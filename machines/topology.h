/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology of a machine: tables of its places, of its lanes, and of the links between places.
 *
 * A place holds bytes. A link copies from one place to another, on its lane; a lane is an ordered
 * queue. A lane that computes has a place whose bytes its ops work on. Every machine has the rows
 * that the enums name. A description may add more (formats.md), and no other code has to know them.
 *
 * Several ranks are as many devices. The lane `peer` has what they exchange (ops/team.h), and its
 * link goes from a device to the same place of another rank.
 */
#ifndef TDM_MACHINES_TOPOLOGY_H
#define TDM_MACHINES_TOPOLOGY_H

#include "base/json.h"
#include "machines/rates.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows of the tables by number: those that every machine has, in this order. Rows that a
 * description adds get numbers from TDM_PLACES, TDM_LANES and TDM_LINKS on. */
enum tdm_place { TDM_DEVICE, TDM_HOST, TDM_PLACES };
enum tdm_lane {
    TDM_LANE_COMPUTE,
    TDM_LANE_H2D,
    TDM_LANE_D2H,
    TDM_LANE_HOST,
    TDM_LANE_PEER,
    TDM_LANES
};
enum tdm_link_number { TDM_LINK_H2D, TDM_LINK_D2H, TDM_LINK_PEER, TDM_LINKS };

/* The largest number of rows in each table. */
#define TDM_MAX_PLACES 4u
#define TDM_MAX_LANES 9u
#define TDM_MAX_LINKS 9u
#define TDM_MAX_SHARED 4u
#define TDM_ROW_NAME 16u

#define TDM_NO_LINK UINT32_MAX
#define TDM_NOT_SHARED UINT32_MAX

struct tdm_place_row {
    char name[TDM_ROW_NAME];
    uint64_t capacity_bytes; /* device: all of it; host: what plans may use */
    uint64_t runtime_bytes;  /* driver and libraries, outside the arena */
    bool host_memory;        /* memory of the computer itself; otherwise of a device */
};

struct tdm_lane_row {
    char name[TDM_ROW_NAME];
    bool computes;        /* otherwise it copies over a link */
    enum tdm_place place; /* whose bytes its ops work on, if it computes */
};

struct tdm_link {
    enum tdm_place from, to;
    enum tdm_lane lane;
    double bytes_per_second;           /* while no other link is busy */
    double both_ways_bytes_per_second; /* together with the opposite link; bytes of both */
    /* beside the opposite link and updates on the host, as the host's memory serves all; 0: as
     * without updates */
    double beside_updates_bytes_per_second;
    uint32_t shared; /* row of what it shares with other links, or TDM_NOT_SHARED */
};

/* Bandwidth that several links share, such as those of all GPUs of a node to its host, or both
 * directions of one link. */
struct tdm_shared_row {
    char name[TDM_ROW_NAME];
    double bytes_per_second;
};

struct tdm_topology {
    struct tdm_place_row places[TDM_MAX_PLACES];
    struct tdm_lane_row lanes[TDM_MAX_LANES];
    struct tdm_link links[TDM_MAX_LINKS];
    struct tdm_shared_row shared[TDM_MAX_SHARED];
    uint32_t place_count, lane_count, link_count, shared_count;
    enum tdm_place far; /* where plans put what is not on the device */
};

/* Makes the rows that every machine has, without bytes and rates. */
void tdm_topology_begin(struct tdm_topology *topology);

/* The keys of a description for a place that every machine has: "host_bytes", and
 * "runtime_host_bytes". */
const char *tdm_place_capacity_key(enum tdm_place place);
const char *tdm_place_runtime_key(enum tdm_place place);

/* Adds the rows in the members `places`, `shared` and `links` of a description, if it has them.
 * Errors go to the reader, with file and field. */
void tdm_topology_read(struct tdm_json_reader *reader, struct tdm_topology *topology);

/* Names: "device", "host"; "compute", "h2d", "d2h", "host", "peer". "unknown" for a number without
 * a row. */
const char *tdm_place_name(const struct tdm_topology *topology, enum tdm_place place);
const char *tdm_lane_name(const struct tdm_topology *topology, enum tdm_lane lane);

/* What the names of keys and options about a place begin with: "" for the device (memory_bytes),
 * "host_" for the host (host_memory_bytes). Returns `out`. */
#define TDM_PLACE_PREFIX (TDM_ROW_NAME + 1)
const char *tdm_place_prefix(const struct tdm_topology *topology, enum tdm_place place,
                             char out[TDM_PLACE_PREFIX]);

/* Finds the row of a name. If there is none, returns false and sets nothing. */
bool tdm_place_parse(const struct tdm_topology *topology, const char *name, enum tdm_place *place);
bool tdm_lane_parse(const struct tdm_topology *topology, const char *name, enum tdm_lane *lane);

/* The names of all places, or of those where a lane computes, as in "device, host or second".
 * Returns `text`. */
#define TDM_PLACE_LIST (TDM_MAX_PLACES * (TDM_ROW_NAME + 4)) /* bytes that hold all names */
const char *tdm_place_list(const struct tdm_topology *topology, bool that_compute,
                           char text[TDM_PLACE_LIST]);

/* The link from one place to another, and the link in the opposite direction; TDM_NO_LINK if there
 * is none. */
uint32_t tdm_link_find(const struct tdm_topology *topology, enum tdm_place from, enum tdm_place to);
uint32_t tdm_link_opposite(const struct tdm_topology *topology, uint32_t link);

/* The lane that computes at a place; TDM_MAX_LANES if there is none. */
enum tdm_lane tdm_lane_at(const struct tdm_topology *topology, enum tdm_place place);

/* In a mask of busy links: the host updates. */
#define TDM_UPDATES_BUSY (1u << 31)

/* Bytes/s over a link while the links in the bit mask `busy` are busy too. This is its own rate, or
 * half of both_ways_bytes_per_second if the opposite link is busy, or
 * beside_updates_bytes_per_second if the host updates then, or an equal part of what it shares,
 * whichever is least. */
double tdm_link_rate(const struct tdm_topology *topology, uint32_t link, uint32_t busy);

#endif
