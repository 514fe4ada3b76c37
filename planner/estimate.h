/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimates: lower bounds of a schedule's seconds and bytes, in closed form.
 *
 * A planner asks for them tens of thousands of times, so nothing is lowered for one. An estimator
 * is made once for a chunk size: it lowers and simulates a step of one sequence for every length of
 * chunk, and takes from it what each part of a layer costs and how much workspace it needs. Then a
 * schedule's seconds are counts of bodies times these costs, and its bytes are those that are live
 * together at the few moments where the peak can be. Both agree with the simulator to a fraction of
 * a percent, unless copies make the compute lane wait.
 */
#ifndef TDM_PLANNER_ESTIMATE_H
#define TDM_PLANNER_ESTIMATE_H

#include "schedule/schedule.h"

struct tdm_estimator;

struct tdm_estimate {
    double seconds;        /* no schedule with this nest is faster */
    double likely_seconds; /* with waits for copies, roughly: no bound */
    double copy_seconds;   /* of both directions, roughly: what may make the compute lane wait */
    uint64_t bytes[TDM_MAX_PLACES]; /* used, runtime included; no arena is smaller */
    uint64_t body_bytes;            /* device bytes while no LM-head tile is live */
    uint64_t head_bytes;            /* device bytes beside the LM head's tile of logits */
};

/* For the model, machine, sequences, dtypes and optimizer of `base`, at base->chunk_tokens. `base`
 * must outlive the estimator; its nest does not matter. The caller owns *estimator. */
enum tdm_status tdm_estimator_new(const struct tdm_schedule *base, struct tdm_estimator **estimator,
                                  struct tdm_error *err);
void tdm_estimator_free(struct tdm_estimator *estimator);

/* From now on for state with these homes, and rings of this length. */
void tdm_estimator_set_state(struct tdm_estimator *estimator,
                             const struct tdm_home homes[TDM_STATES],
                             const struct tdm_rings *rings);

/* Seconds of one forward through all layers, without the LM head. */
double tdm_estimator_forward_seconds(const struct tdm_estimator *estimator);

/* Bytes of weights, optimizer states and all else that is there all step long, of both places
 * together: the same wherever its homes are. */
uint64_t tdm_estimator_resident_bytes(const struct tdm_estimator *estimator);

/* The richest set that relaxation and rounding know. Richer ones save little, and are given to the
 * schedule that was found (tdm_enrich), so that what else was chosen does not depend on them. Their
 * bytes may be estimated too high, by the workspace of what they keep. */
#define TDM_SEARCHED_SET TDM_SET_ALL

/* Seconds that richer sets than that could save in a step at most, which a bound must allow for. */
double tdm_estimator_richer_seconds(const struct tdm_estimator *estimator);

/* Chunks of the step. */
uint32_t tdm_estimator_chunks(const struct tdm_estimator *estimator);

/* Estimates a schedule that differs from the estimator's in its nest only: order, groups and what
 * they keep and hold where, LM-head tile. */
void tdm_estimate(const struct tdm_estimator *estimator, const struct tdm_schedule *schedule,
                  struct tdm_estimate *estimate);

/* The bytes alone, with the largest LM-head tile, from `tile_tokens` down by halves, that does not
 * raise the peak; or with that one if it is fixed. Writes it into the schedule and returns it.
 * Seconds, which take most of the time of an estimate, are 0. */
uint64_t tdm_estimate_room(const struct tdm_estimator *estimator, struct tdm_schedule *schedule,
                           uint64_t tile_tokens, bool fixed, struct tdm_estimate *estimate);

/* `seconds` of an estimate alone. */
double tdm_estimate_least_seconds(const struct tdm_estimator *estimator,
                                  const struct tdm_schedule *schedule);

/* All of an estimate, with the LM-head tile of tdm_estimate_room(). */
uint64_t tdm_estimate_tile(const struct tdm_estimator *estimator, struct tdm_schedule *schedule,
                           uint64_t tile_tokens, bool fixed, struct tdm_estimate *estimate);

/* Tokens of an LM-head tile below which weights and gradients of the head are moved too often. */
#define TDM_LEAST_TILE 1024u

/* Bytes of a tile of logits, and of what is beside it where the vocabulary is cut into tiles. */
uint64_t tdm_estimate_logits(const struct tdm_estimator *estimator, uint64_t tile_tokens);

#endif
