/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology of a machine: tables of its places, of its lanes, and of the links between places.
 *
 * A place holds bytes. A link copies from one place to another, on its lane; a lane is an ordered
 * queue. Lanes that compute have a place whose bytes their ops work on. Every machine has the rows
 * that the enums name; a description may add more (formats.md), and nothing else has to know them.
 */
#ifndef TDM_MACHINES_TOPOLOGY_H
#define TDM_MACHINES_TOPOLOGY_H

#include "base/json.h"
#include "machines/rates.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows of the tables by number: those that every machine has, in this order. Numbers from
 * TDM_PLACES and TDM_LANES on are rows that a description adds. */
enum tdm_place { TDM_DEVICE, TDM_HOST, TDM_PLACES };
enum tdm_lane { TDM_LANE_COMPUTE, TDM_LANE_H2D, TDM_LANE_D2H, TDM_LANE_HOST, TDM_LANES };
enum tdm_link_number { TDM_LINK_H2D, TDM_LINK_D2H, TDM_LINKS };

/* Rows that the tables have room for. */
#define TDM_MAX_PLACES 4u
#define TDM_MAX_LANES 8u
#define TDM_MAX_LINKS 8u
#define TDM_MAX_SHARED 4u
#define TDM_ROW_NAME 16u

#define TDM_NO_LINK UINT32_MAX
#define TDM_NOT_SHARED UINT32_MAX

struct tdm_place_row {
    char name[TDM_ROW_NAME];
    uint64_t capacity_bytes; /* of the device all; of the host what may be planned on */
    uint64_t runtime_bytes;  /* driver and libraries, outside the arena */
};

struct tdm_lane_row {
    char name[TDM_ROW_NAME];
    bool computes;        /* else it copies, over a link */
    enum tdm_place place; /* whose bytes its ops work on, if it computes */
};

struct tdm_link {
    enum tdm_place from, to;
    enum tdm_lane lane;
    double bytes_per_second;           /* alone */
    double both_ways_bytes_per_second; /* with the link the other way, of both together */
    uint32_t shared;                   /* row of what it shares with others; TDM_NOT_SHARED */
};

/* What several links have together, as those of all GPUs of a node to its host. */
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
};

/* The rows that every machine has, without bytes and rates. */
void tdm_topology_begin(struct tdm_topology *topology);

/* Adds the rows of the members `places`, `shared` and `links` of a description, if it has them.
 * Errors go to the reader, with file and field. */
void tdm_topology_read(struct tdm_json_reader *reader, struct tdm_topology *topology);

/* Names: "device", "host"; "compute", "h2d", "d2h", "host". "unknown" of a number without a row. */
const char *tdm_place_name(const struct tdm_topology *topology, enum tdm_place place);
const char *tdm_lane_name(const struct tdm_topology *topology, enum tdm_lane lane);

/* The row of a name. False, and nothing is set, if none has it. */
bool tdm_place_parse(const struct tdm_topology *topology, const char *name, enum tdm_place *place);
bool tdm_lane_parse(const struct tdm_topology *topology, const char *name, enum tdm_lane *lane);

/* The link from a place to another, and the one the other way; TDM_NO_LINK if there is none. */
uint32_t tdm_link_find(const struct tdm_topology *topology, enum tdm_place from, enum tdm_place to);
uint32_t tdm_link_opposite(const struct tdm_topology *topology, uint32_t link);

/* The lane that computes at a place; TDM_MAX_LANES if none does. */
enum tdm_lane tdm_lane_at(const struct tdm_topology *topology, enum tdm_place place);

/* Bytes/s over a link while the links of `busy`, bits by number, are busy too: half of what it and
 * the link the other way have together, and an equal part of what it shares, where these are
 * less than it has alone. */
double tdm_link_rate(const struct tdm_topology *topology, uint32_t link, uint32_t busy);

#endif
