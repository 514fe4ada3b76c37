/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal to the simulator: when the ops of a program start and end on their lanes.
 *
 * An op starts when its lane is free and all ops that it waits for have ended. Copies that are
 * under way at the same time share what their links carry together (tdm_link_rate()): each is
 * slowed as long as the other goes on, whichever began first. So the end of a copy may depend on
 * ops that come later in the program. Ops queue on their lanes until their times are known. Copies
 * from and to host memory also slow updates there, and updates slow copies in both directions.
 */
#ifndef TDM_SIMULATOR_LANES_H
#define TDM_SIMULATOR_LANES_H

#include "schedule/order.h"

struct tdm_lane_op {
    double seconds;                /* alone */
    double slower;                 /* seconds that a byte copied meanwhile adds to an update */
    double link_bytes;             /* of these, bytes over `link` at the rate of the link */
    double start_seconds;          /* when its rank is ready for it */
    double begin_seconds;          /* of the work itself: a team op waits for other ranks */
    uint64_t team_number;          /* of a team op: among them */
    uint32_t after[TDM_MAX_LANES]; /* as tdm_waits.lane_position */
    uint32_t link;
    uint8_t kind, phase, lane; /* enums of struct tdm_op */
    bool of_team, shares, updates_host, has_begun;
};

/* Asks the other ranks when all are ready for a team op: *seconds is when this one is. */
typedef enum tdm_status (*tdm_lanes_meet)(void *self, double *seconds, struct tdm_error *err);
/* The times of an op are known. `peers_end_seconds`: when the ops of lane `peer` that it waited for
 * ended; `ready_seconds`: the same of all others, and of its lane. */
typedef void (*tdm_lanes_ended)(void *self, const struct tdm_lane_op *op, double ready_seconds,
                                double peers_end_seconds, double end_seconds);

struct tdm_lane_queue {
    struct tdm_lane_op *ops; /* [capacity], a power of two; from `first` on, around the end */
    size_t capacity, first, count;
    double *starts, *ends; /* [op_count] by position on the lane; starts may be NULL */
    uint32_t ended;        /* ops whose times are known */
    double free_seconds;   /* when the last one of these ended */
    /* that the first op still takes, if it shares and has begun; of an update seconds alone in
     * place of bytes */
    double bytes, fixed_seconds;
};

struct tdm_lanes {
    const struct tdm_machine *machine;
    struct tdm_lane_queue queue[TDM_MAX_LANES];
    bool link_shares[TDM_MAX_LINKS]; /* its rate depends on other links, or theirs on it */
    bool lane_shares[TDM_MAX_LANES]; /* a link of it does */
    uint64_t team_taken, team_met;
    double seconds;    /* up to here copies that share were followed */
    uint32_t short_of; /* a lane whose next op must be known to go on, or TDM_MAX_LANES */
    tdm_lanes_meet meet;
    tdm_lanes_ended see;
    void *self;
};

/* `op_count` of the program. With keep_starts, starts are kept too. TDM_NO_MEMORY: then
 * tdm_lanes_close() frees what there is. */
enum tdm_status tdm_lanes_open(struct tdm_lanes *lanes, const struct tdm_machine *machine,
                               uint64_t op_count, bool keep_starts, struct tdm_error *err);
void tdm_lanes_close(struct tdm_lanes *lanes);

/* Takes the next op in program order, and calls `see` for all ops whose times are then known; by
 * lane, these are in program order. Errors of `meet`, TDM_NO_MEMORY. */
enum tdm_status tdm_lanes_take(struct tdm_lanes *lanes, const struct tdm_op *op,
                               const struct tdm_waits *waits, struct tdm_error *err);
/* The program has no more ops: the times of all are found. */
enum tdm_status tdm_lanes_finish(struct tdm_lanes *lanes, struct tdm_error *err);

#endif
