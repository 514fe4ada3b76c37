/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimates: lower bounds of a schedule's seconds and bytes, in closed form.
 *
 * A planner asks for tens of thousands of estimates, so an estimate lowers nothing. An estimator
 * is made once per chunk size. It lowers a step with one sequence per chunk length, and records the
 * cost and workspace of each part of a layer. A schedule's seconds are then counts of bodies times
 * these costs. Its bytes are the live bytes at the few moments where the peak can be. Both agree
 * with the simulator to a fraction of a percent, unless the compute lane waits for copies.
 */
#ifndef TDM_PLANNER_ESTIMATE_H
#define TDM_PLANNER_ESTIMATE_H

#include "schedule/schedule.h"

struct tdm_estimator;

struct tdm_estimate {
    double seconds;        /* no schedule with this nest is faster */
    double likely_seconds; /* includes approximate waits for copies; not a bound */
    bool is_cut;           /* likely_seconds are only a lower bound of what they would be */
    double copy_seconds; /* both directions, approximate: copies that may stall the compute lane */
    uint64_t bytes[TDM_MAX_PLACES]; /* used, with the runtime; no arena is smaller */
    uint64_t body_bytes;            /* device bytes while no LM-head tile is live */
    uint64_t head_bytes;            /* device bytes besides the LM head's tile of logits */
};

/* Makes an estimator for the model, machine, sequences, dtypes and optimizer of `base`, at
 * base->chunk_tokens. `base` must outlive the estimator; its nest is ignored. The caller owns
 * *estimator. */
enum tdm_status tdm_estimator_new(const struct tdm_schedule *base, struct tdm_estimator **estimator,
                                  struct tdm_error *err);

/* The same. `untimed`: for bytes alone, in a third of the time; its seconds are meaningless.
 * `like`: an estimator whose base differs at most in homes and in where updates run, or NULL. Costs
 * that depend on neither are taken from it. */
enum tdm_status tdm_estimator_new_like(const struct tdm_schedule *base, bool untimed,
                                       const struct tdm_estimator *like,
                                       struct tdm_estimator **estimator, struct tdm_error *err);
void tdm_estimator_free(struct tdm_estimator *estimator);

/* Sets the homes of state and the ring lengths for the following estimates. */
void tdm_estimator_set_state(struct tdm_estimator *estimator,
                             const struct tdm_home homes[TDM_STATES],
                             const struct tdm_rings *rings);

/* Seconds of one forward through all layers, without the LM head. */
double tdm_estimator_forward_seconds(const struct tdm_estimator *estimator);

/* Bytes of weights, optimizer states and everything else that is resident during the whole step,
 * both places together. They do not depend on homes. */
uint64_t tdm_estimator_resident_bytes(const struct tdm_estimator *estimator);

/* The richest set used by relaxation and rounding. Richer sets save little. They are tried only on
 * the schedule found (tdm_enrich), so that other choices do not depend on them. Their bytes may be
 * overestimated by the workspace of what they keep. */
#define TDM_SEARCHED_SET TDM_SET_ALL

/* Maximum seconds per step that sets richer than TDM_SEARCHED_SET could save. A bound must allow
 * for them. */
double tdm_estimator_richer_seconds(const struct tdm_estimator *estimator);

/* Are likely seconds those of the step's lanes, within a percent or two of the simulator?
 * Otherwise, for steps of many chunks, they are rough. */
bool tdm_estimator_knows_lanes(const struct tdm_estimator *estimator);

/* Number of chunks of the step. */
uint32_t tdm_estimator_chunks(const struct tdm_estimator *estimator);

/* Estimates a schedule that differs from the estimator's only in its nest: order, groups, what they
 * keep and hold and where, LM-head tile. */
void tdm_estimate(const struct tdm_estimator *estimator, const struct tdm_schedule *schedule,
                  struct tdm_estimate *estimate);

/* Adds the seconds to an estimate of bytes only. If likely seconds, and `copies` times the seconds
 * of copies, are not below `enough_seconds`, they are cut: they take most of the time. */
void tdm_estimate_add_seconds(const struct tdm_estimator *estimator,
                              const struct tdm_schedule *schedule, double enough_seconds,
                              double copies, struct tdm_estimate *estimate);

/* Adds the LM-head tile to an estimate without one: the largest, from `tile_tokens` down by halves,
 * with which the device bytes are at most `most_bytes`, or do not rise. `fixed`: `tile_tokens`.
 * Returns the tile. The seconds are those of a tile of the estimator's schedule. */
uint64_t tdm_estimate_add_tile(const struct tdm_estimator *estimator, uint64_t tile_tokens,
                               bool fixed, uint64_t most_bytes, struct tdm_estimate *estimate);

/* How many seconds longer the LM head takes with tiles of `tile_tokens` than with those of the
 * estimator's schedule, as far as the rates of the machine tell. */
double tdm_estimator_tile_seconds(const struct tdm_estimator *estimator, uint64_t tile_tokens);

/* Bytes only, without an LM-head tile, for tdm_estimate_add_tile() and tdm_estimate_add_seconds().
 * Without the latter the seconds are meaningless. */
void tdm_estimate_bytes_only(const struct tdm_estimator *estimator,
                             const struct tdm_schedule *schedule, struct tdm_estimate *estimate);

/* Only `seconds` of an estimate. */
double tdm_estimate_least_seconds(const struct tdm_estimator *estimator,
                                  const struct tdm_schedule *schedule);

/* With a smaller LM-head tile, weights and gradients of the head are moved too often. */
#define TDM_LEAST_TILE 1024u

/* Bytes of a tile of logits, and of its companions where the vocabulary is cut into tiles. */
uint64_t tdm_estimate_logits(const struct tdm_estimator *estimator, uint64_t tile_tokens);

#endif
