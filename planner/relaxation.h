/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * The relaxation: a linear program whose optimum bounds from below the step time of every schedule
 * of one order and chunk size.
 *
 * Sets. Layers j; chunks of a few classes; arcs (a, b): a group of layers a to b. A path of arcs
 * from layer 0 to the last is a list of groups.
 * Variables. `arc`: share of one group with one choice of what is kept and held, and where. Columns
 * are generated: for the prices of a solution a dynamic program over the layers finds the list of
 * groups, and every chunk of every layer the sets and places, that serve best. `weights`, `master`,
 * `moments`: layers at home on the device; `*_embedding`, `*_head`: share of these at home there.
 * `refetched`: layers of which the weights are fetched once more for running forward again.
 * `ahead_*`: MiB of state for the backward that are fetched before the forward ends; `there_*`:
 * before the head ends. `slots`: of the rings of masters and moments, beyond the first.
 * `tied`, `passing`: layers that are updated on the device beside others that are updated on the
 * host, with all their state there or with their weights alone; `ring`: the first slot for these.
 * `forward`, `backward`: seconds of the phases. `excess_*`: MiB that are too much, at a price that
 * no schedule pays.
 * Constraints, in MiB and seconds.
 *   node_k         flow: what ends at a layer begins there
 *   device_j       bytes at the first backward chunk of layer j; in layer-major order, of the top
 *                  layer of the group that layer j > 0 is in; device_forward: at the end of the
 *                  forward; device_head: in the LM head; device_update: in its update;
 *                  device_embedding: in the update of the embedding
 *   host_j         the same on the host; host_forward: at the end of the forward
 *   compute        backward >= all its ops, and then the copies of the embedding's updated state to
 *                  the host
 *   fetch_*        each phase >= its copies to the device, less what rings let run ahead into the
 *                  phase before
 *   send_*         each phase >= its copies to the host, less the same
 *   both_ways_*    both phases >= all copies at rates that both directions have beside each other:
 *                  _fetch where more goes to the device, _send where more goes to the host
 *   both_ways_backward_*   the same of the backward alone
 *   stall          what the head's update waits for: its state, less what is there before
 *   taken          slots x backward >= the times that units take slots of moments
 *   slots_*, unused_*, less_*   what runs ahead has slots, which cost memory if layers pass them
 *   send_updated   backward >= head and top layer, and then all copies of updated state to the
 *                  host, which begin when the first update is done; in layer-major order without
 *                  the head's
 *   both_ways_updated_*   the same from the first update on; only in tight programs, as the next
 *   *_beside       >= layers at home on the device less all: in a part that has the state's ring,
 *                  less none
 *   refetched      >= layers that run again less those at home on the device
 * Objective: forward + backward.
 *
 * Why it is a bound, for sets up to TDM_SEARCHED_SET: every schedule is a path with whole layers at
 * home, uses no less of any row than its arcs are counted with (in layer-major order, of the row of
 * the top layer of the same group, whose limit is the same), and each chunk chooses for itself
 * where in a schedule the chunks of a group share a set, a place and a split. Rings of states that
 * stream are on the line between none and all on the device, below what they are.
 */
/* clang-format on */
#ifndef TDM_PLANNER_RELAXATION_H
#define TDM_PLANNER_RELAXATION_H

#include "planner/estimate.h"
#include "planner/group_lists.h"

#include <stdbool.h>

/* Maximum slots of rings of layers that a search tries: more slots only take memory. */
#define TDM_MOST_SLOTS 4u

/* The same for chunks on their way to the host. */
#define TDM_MOST_STASHED 8u

/* The same for gradients on the host, of layers that are updated there. Two are enough where each
 * update takes as long as the next gradient's way; more even out groups of layers. */
#define TDM_MOST_HOST_GRADIENTS 4u

/* The fewest bodies by which fetches run ahead that a search tries, unless their number is pinned.
 */
#define TDM_LEAST_AHEAD 1u

struct tdm_relaxation;

/* A binding row: how much one more GiB, or one second less of copies, lowers the bound. */
struct tdm_binding_row {
    char name[32];
    bool of_bytes;
    double seconds;
};
#define TDM_BINDING_ROWS 12u

/* Result of a solution. */
struct tdm_relaxed {
    bool solved;                   /* at least once; otherwise the bound is 0 */
    double bound_seconds;          /* lower bound on schedules with sets up to TDM_SEARCHED_SET */
    double device_seconds_per_gib; /* how much 1 GiB more lowers the bound, if memory binds */
    double host_seconds_per_gib;
    double device_layers[TDM_STATES];               /* at home on the device */
    double embedding[TDM_STATES], head[TDM_STATES]; /* share on the device */
    /* beside layers that are updated on the host, others promise more seconds less with their
     * weights alone on the device than with all their state */
    bool passing;
    struct tdm_binding_row rows[TDM_BINDING_ROWS]; /* the most expensive ones, in falling order */
    unsigned row_count;
};

/* Makes a relaxation for the estimator's step in an order, within limits of used bytes.
 * `fixed_homes`: states that stay at the estimator's homes; gradients always do. Where updates run
 * on the host and weights may move: masters or moments that stay there, so that layers with weights
 * on the device have nothing else there. `sizes` (may be
 * NULL): the only allowed list of groups. `tight`: for tdm_relaxation_tighten(), with rows that no
 * schedule is rounded from. The estimator must outlive it. The caller owns *relaxation.
 * TDM_NO_MEMORY; TDM_INTERNAL: too large for the solver. */
enum tdm_status tdm_relaxation_new(const struct tdm_estimator *estimator, enum tdm_order order,
                                   const uint64_t limit_bytes[TDM_MAX_PLACES],
                                   const bool fixed_homes[TDM_STATES],
                                   const struct tdm_group_list *sizes, bool tight,
                                   struct tdm_relaxation **relaxation, struct tdm_error *err);
void tdm_relaxation_free(struct tdm_relaxation *relaxation);

/* A bound without a solver, in a thirtieth of the time of a solution: memory and copies are free.
 * Arguments and errors as of tdm_relaxation_new(). */
enum tdm_status tdm_relaxation_floor(const struct tdm_estimator *estimator, enum tdm_order order,
                                     const uint64_t limit_bytes[TDM_MAX_PLACES],
                                     const bool fixed_homes[TDM_STATES],
                                     const struct tdm_group_list *sizes, double *floor_seconds,
                                     struct tdm_error *err);

/* Solves until the bound is within `tolerance` of the program's value or reaches `enough_seconds`,
 * or `most` solutions were made, or the solver gives up. The best bound so far is valid in each
 * case. TDM_NO_MEMORY. */
enum tdm_status tdm_relaxation_solve(struct tdm_relaxation *relaxation, double enough_seconds,
                                     double tolerance, unsigned most, struct tdm_relaxed *relaxed,
                                     struct tdm_error *err);

/* Where layers are updated on the host, others have all their state on the device, or their weights
 * alone, and the rest passes. Goes to homes and prices of the way that does not have the bound.
 * False: there is none, since weights alone promise no less seconds. */
bool tdm_relaxation_turn(struct tdm_relaxation *relaxation, struct tdm_relaxed *relaxed);

/* Prices of rows. The owner frees of_rows. */
struct tdm_prices {
    int count;
    double *of_rows; /* [count]; NULL: not known */
};

/* A lower bound on the used bytes of `place`, with the other place's limit kept: the same program,
 * which minimises bytes instead of seconds. It need not be more than `enough`. `prices`: NULL, or
 * of a similar program (of_rows NULL: none yet): nothing is solved if they prove enough for this
 * one too, else they are replaced. Arguments and errors as of tdm_relaxation_new(). */
enum tdm_status tdm_relaxation_least(const struct tdm_estimator *estimator, enum tdm_order order,
                                     const uint64_t limit_bytes[TDM_MAX_PLACES],
                                     const bool fixed_homes[TDM_STATES],
                                     const struct tdm_group_list *sizes, enum tdm_place place,
                                     uint64_t enough, struct tdm_prices *prices, uint64_t *bytes,
                                     struct tdm_error *err);

/* Copies the best prices; none without memory. */
struct tdm_prices tdm_relaxation_prices(const struct tdm_relaxation *relaxation);

/* Starts from the best prices of another relaxation with the same model, limits and order, if they
 * are known. */
void tdm_relaxation_warm(struct tdm_relaxation *relaxation, const struct tdm_prices *prices);

/* Goes on from a solution of a tight program: what is whole in a schedule becomes whole, until the
 * bound reaches `enough_seconds`, or about `most` more solutions were made. *made: their number.
 * The bound is never less than before. TDM_NO_MEMORY. */
enum tdm_status tdm_relaxation_tighten(struct tdm_relaxation *relaxation, double enough_seconds,
                                       double tolerance, unsigned most, unsigned *made,
                                       struct tdm_relaxed *relaxed, struct tdm_error *err);

/* Makes the list of groups that is best at the best prices, each with the settings nearest to what
 * its layers chose, and average splits. `groups` has space for one group per layer. *count: their
 * number. Homes are not included. */
void tdm_relaxation_groups(struct tdm_relaxation *relaxation, struct tdm_group *groups,
                           uint32_t *count);

/* The current program, with the arcs made so far, as a text (tdm_solver_text()). */
enum tdm_status tdm_relaxation_text(const struct tdm_relaxation *relaxation, char **text,
                                    uint64_t *bytes, struct tdm_error *err);

#endif
