/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relaxation: a linear program whose value no schedule of one loop order and chunk size is
 * below.
 *
 * Sets. Layers j; chunks of a few classes; arcs (a, b): a group of layers a to b. A path of arcs
 * from layer 0 to the last is a list of groups.
 * Variables. `arc`: share of a group with all that its layers keep and hold of every chunk, and
 * where; they are made as they are needed (column generation): for the prices of a solution a
 * dynamic program over the layers finds the list of groups, and every chunk of every layer the sets
 * and places, that serve best. `weights`, `master`, `moments`: layers at home on the device;
 * `*_embedding`, `*_head`: share of these at home there. `refetched`: layers of which the weights
 * are fetched once more for running forward again. `forward`, `backward`: seconds of the phases.
 * `excess_*`: MiB that are too much, at a price that no schedule pays.
 * Constraints, in MiB and seconds.
 *   node_k      flow: what ends at a layer begins there
 *   device_j    bytes at the first backward chunk of layer j; device_forward: at the end of the
 *               forward; device_head: in the LM head; device_update: in its update;
 *               device_embedding: in the update of the embedding
 *   host_j, host_forward: the same on the host
 *   compute     backward >= all its ops; fetch_*, send_*: each phase >= its copies of a direction,
 *               less what rings let run ahead into it; both_ways: both phases >= all copies at the
 *               rate of both directions together
 *   refetched   >= layers that run again less those at home on the device
 * Objective: forward + backward.
 *
 * Why it is a bound, for sets up to TDM_SEARCHED_SET: every schedule is a path with whole layers at
 * home, uses no less of any row than its arcs are counted with, and each chunk chooses for itself
 * where in a schedule the chunks of a group share a set, a place and a split. Rings of states that
 * stream are on the line between none and all on the device, below what they are.
 */
#ifndef TDM_PLANNER_RELAXATION_H
#define TDM_PLANNER_RELAXATION_H

#include "planner/estimate.h"
#include "planner/group_lists.h"

#include <stdbool.h>

/* Slots of rings of layers that a search tries: more only take memory. */
#define TDM_MOST_SLOTS 4u

struct tdm_relaxation;

/* A row that binds: by how much a GiB more, or a second of copies less, lowers the bound. */
struct tdm_binding_row {
    char name[32];
    bool of_bytes;
    double seconds;
};
#define TDM_BINDING_ROWS 12u

/* What a solution says. */
struct tdm_relaxed {
    bool solved;                   /* at least once; else there is only the bound of 0 */
    double bound_seconds;          /* no schedule with sets up to TDM_SEARCHED_SET is faster */
    double device_seconds_per_gib; /* by which 1 GiB more lowers the bound, where it binds */
    double host_seconds_per_gib;
    double device_layers[TDM_STATES];               /* at home on the device */
    double embedding[TDM_STATES], head[TDM_STATES]; /* share on the device */
    struct tdm_binding_row rows[TDM_BINDING_ROWS];  /* those that cost most, dearest first */
    unsigned row_count;
};

/* For the estimator's step in an order, within limits of used bytes. `fixed_homes`: states whose
 * homes are those of the estimator; gradients always are. `sizes` (may be NULL): the one list of
 * groups. The estimator must outlive it. The caller owns *relaxation. TDM_NO_MEMORY; TDM_INTERNAL:
 * it is too large for the solver. */
enum tdm_status tdm_relaxation_new(const struct tdm_estimator *estimator, enum tdm_order order,
                                   const uint64_t limit_bytes[TDM_MAX_PLACES],
                                   const bool fixed_homes[TDM_STATES],
                                   const struct tdm_group_list *sizes,
                                   struct tdm_relaxation **relaxation, struct tdm_error *err);
void tdm_relaxation_free(struct tdm_relaxation *relaxation);

/* A bound that is found without a solver, in the time of a thirtieth of a solution: as if memory
 * and copies cost nothing. Arguments and errors as of tdm_relaxation_new(). */
enum tdm_status tdm_relaxation_floor(const struct tdm_estimator *estimator, enum tdm_order order,
                                     const uint64_t limit_bytes[TDM_MAX_PLACES],
                                     const bool fixed_homes[TDM_STATES],
                                     const struct tdm_group_list *sizes, double *floor_seconds,
                                     struct tdm_error *err);

/* Solves until the bound is within `tolerance` of the program's value or reaches `enough_seconds`,
 * or `most` solutions were made, or the solver gives up: what was found so far is a bound all the
 * same. TDM_NO_MEMORY. */
enum tdm_status tdm_relaxation_solve(struct tdm_relaxation *relaxation, double enough_seconds,
                                     double tolerance, unsigned most, struct tdm_relaxed *relaxed,
                                     struct tdm_error *err);

/* Begins with the best prices of another one, of the same model, limits and order. */
void tdm_relaxation_warm(struct tdm_relaxation *relaxation, const struct tdm_relaxation *other);

/* What groups follow from. */
enum tdm_rounding {
    TDM_BY_PRICES, /* the group list that the best prices choose: where neither memory nor copies
                      cost anything, all is on the device */
    TDM_FAR,       /* the same, with all that costs nothing on the host */
    TDM_NEAR,      /* by prices, with all state at home on the device */
    TDM_BY_SHARES, /* the last solution: shares of layers as numbers of layers */
    TDM_ROUNDINGS
};

/* Groups, each with the settings that are nearest to what its layers chose, with splits as
 * averages: `groups` has room for one a layer. *count: of them, 0 if there are none. Homes are not
 * in it. TDM_NO_MEMORY. */
enum tdm_status tdm_relaxation_groups(struct tdm_relaxation *relaxation, enum tdm_rounding rounding,
                                      struct tdm_group *groups, uint32_t *count,
                                      struct tdm_error *err);

/* Writes the program as it is, with the arcs made so far. */
enum tdm_status tdm_relaxation_write(const struct tdm_relaxation *relaxation, const char *path,
                                     struct tdm_error *err);

#endif
