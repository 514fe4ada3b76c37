/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulator: predicts event times on the lanes, live bytes by place and category, peak, stalls.
 *
 * It uses the rates of the program's machine. An op starts when its lane is free and all ops that
 * it waits for have ended.
 */
#ifndef TDM_SIMULATOR_SIMULATE_H
#define TDM_SIMULATOR_SIMULATE_H

#include "schedule/order.h"
#include "schedule/program.h"

/* Receives every op with its predicted time, in program order; `live_bytes`: while the op runs. */
typedef enum tdm_status (*tdm_simulated)(void *self, const struct tdm_op *op, double start_seconds,
                                         double end_seconds,
                                         const uint64_t live_bytes[TDM_MAX_PLACES][TDM_CATEGORIES],
                                         struct tdm_error *err);

/* Copies over a link. */
struct tdm_link_use {
    uint64_t bytes;
    double seconds;
};

/* Several ranks: team.h. */
struct tdm_team_use {
    uint32_t ranks;      /* 1: the rest is 0 */
    double wait_seconds; /* this rank's, for other ranks that are not ready */
    /* what of this rank's team ops does not overlap: the compute lane and the step's end wait */
    double exposed_seconds;
    double least_wait_seconds, most_wait_seconds; /* over the ranks that were simulated */
    double least_exposed_seconds, most_exposed_seconds;
    uint64_t received_bytes, sent_bytes; /* from and to other ranks */
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

/* A simulator takes the items of its program in order. The program must outlive it; `see` may be
 * NULL. */
struct tdm_simulator;
enum tdm_status tdm_simulator_new(const struct tdm_program *program, tdm_simulated see, void *self,
                                  struct tdm_simulator **simulator, struct tdm_error *err);
/* `waits`: what the item waits for, if it is an op (tdm_order_push()). Returns errors of `see`. */
enum tdm_status tdm_simulator_take(struct tdm_simulator *simulator, const struct tdm_item *item,
                                   const struct tdm_waits *waits, struct tdm_error *err);
/* Several ranks: the clock on which the program's rank meets the others, as their `member`. */
struct tdm_team_clock;
void tdm_simulator_join(struct tdm_simulator *simulator, struct tdm_team_clock *clock,
                        uint32_t member);
/* The same without the others: when they are ready for the rank's team ops, in their order (a copy
 * of `seconds` is kept). TDM_NO_MEMORY. */
enum tdm_status tdm_simulator_meet_at(struct tdm_simulator *simulator, const double *seconds,
                                      size_t count, struct tdm_error *err);
/* Call after the last item. */
void tdm_simulator_finish(const struct tdm_simulator *simulator, struct tdm_simulation *simulation);
void tdm_simulator_free(struct tdm_simulator *simulator);

/* Simulates the whole step, of all its ranks (team.h); `see` may be NULL. */
enum tdm_status tdm_simulate(const struct tdm_program *program, tdm_simulated see, void *self,
                             struct tdm_simulation *simulation, struct tdm_error *err);

#endif
