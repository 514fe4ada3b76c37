/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulator: predicts event times on the lanes, live bytes by place and category, peak, stalls.
 *
 * It uses the rates of the program's machine. An op starts when its lane is free and all ops that
 * it waits for have ended. Copies that are under way at the same time share their links (lanes.h).
 */
#ifndef TDM_SIMULATOR_SIMULATE_H
#define TDM_SIMULATOR_SIMULATE_H

#include "schedule/order.h"
#include "schedule/program.h"
#include "schedule/ranks_sample.h"

/* Receives every op with its predicted time, in program order; `live_bytes`: while the op runs. A
 * team op (ops/team.h) starts when its own rank is ready for it, and waits for the others. */
typedef enum tdm_status (*tdm_simulated)(void *self, const struct tdm_op *op, double start_seconds,
                                         double end_seconds,
                                         const uint64_t live_bytes[TDM_MAX_PLACES][TDM_CATEGORIES],
                                         struct tdm_error *err);

/* Copies over a link. */
struct tdm_link_use {
    uint64_t bytes;
    double seconds;
};

/* One of several ranks. */
struct tdm_rank_use {
    uint32_t rank;
    double step_seconds;    /* until its own last op ends */
    double compute_seconds; /* of its compute lane, without team ops */
    double team_seconds;    /* of team ops, without waits */
    /* what of its team ops does not overlap: the compute lane and the step's end wait */
    double exposed_seconds;
    double wait_seconds; /* in team ops, for other ranks that are not ready */
    /* of these, by the rank that came last: its index in tdm_team_use.of */
    double wait_for_seconds[TDM_SIMULATED_RANKS];
    uint64_t received_bytes, sent_bytes;  /* from and to other ranks */
    uint64_t copied_bytes[TDM_MAX_LANES]; /* as below */
};

/* Several ranks: team.h. */
struct tdm_team_use {
    uint32_t ranks;     /* 1: the rest is not set */
    uint32_t simulated; /* those that were, by rising number; the first is rank 0 */
    struct tdm_rank_use of[TDM_SIMULATED_RANKS];
};

struct tdm_simulation {
    double step_seconds;
    double phase_seconds[TDM_PHASES]; /* compute lane, by the phase of the op */
    double busy_seconds[TDM_MAX_LANES];
    double stall_seconds; /* compute lane idle before its last op ends */
    double kind_seconds[TDM_OP_KINDS];
    double flops;                   /* all ops, with recompute */
    double attention_forward_flops; /* of all passes */
    double product_flops;
    uint64_t copied_bytes[TDM_MAX_LANES]; /* several links may have the same lane */
    struct tdm_link_use links[TDM_MAX_LINKS];
    struct tdm_team_use team;
    uint64_t arena_bytes[TDM_MAX_PLACES]; /* as packed */
    uint64_t live_peak_bytes[TDM_MAX_PLACES];
    /* arena, of all ranks in memory that they share, + the machine's runtime */
    uint64_t used_peak_bytes[TDM_MAX_PLACES];
    uint64_t peak_categories[TDM_MAX_PLACES]
                            [TDM_CATEGORIES]; /* at the peak of that place; with runtime */
    uint64_t category_peaks[TDM_MAX_PLACES]
                           [TDM_CATEGORIES];   /* maximum of each category; with runtime */
    uint64_t peak_op[TDM_MAX_PLACES];          /* number of the op at the peak */
    uint64_t peak_list_bytes, peak_mean_bytes; /* page lists and page means at the device's peak */
    uint64_t stored_peak_bytes; /* maximum of residuals + kv + kv_gradients, all places */
    uint64_t op_count;
    tdm_kinds kinds; /* of the ops */
};

/* A simulator takes the items of its program in order. The program must outlive it. With
 * keep_starts, tdm_simulator_times() may be called. */
struct tdm_simulator;
enum tdm_status tdm_simulator_new(const struct tdm_program *program, bool keep_starts,
                                  struct tdm_simulator **simulator, struct tdm_error *err);
/* `waits`: what the item waits for, if it is an op (tdm_order_push()). */
enum tdm_status tdm_simulator_take(struct tdm_simulator *simulator, const struct tdm_item *item,
                                   const struct tdm_waits *waits, struct tdm_error *err);
/* Live bytes after the last item: while it runs, if it was an op. Valid until the next item. */
const uint64_t (*tdm_simulator_live(const struct tdm_simulator *simulator))[TDM_CATEGORIES];
/* Call after the last item. */
enum tdm_status tdm_simulator_finish(struct tdm_simulator *simulator,
                                     struct tdm_simulation *simulation, struct tdm_error *err);
/* After that: the times of the op at a position on its lane, counted from 1. */
void tdm_simulator_times(const struct tdm_simulator *simulator, enum tdm_lane lane,
                         uint64_t position, double *start_seconds, double *end_seconds);
void tdm_simulator_free(struct tdm_simulator *simulator);

/* Simulates the whole step, of all its ranks (team.h); `see` may be NULL, else the program is
 * emitted twice. */
enum tdm_status tdm_simulate(const struct tdm_program *program, tdm_simulated see, void *self,
                             struct tdm_simulation *simulation, struct tdm_error *err);

#endif
