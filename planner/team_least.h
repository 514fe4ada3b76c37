/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least memory with which several ranks have a schedule.
 *
 * A rank has the chunks of a step that is as many times shorter as there are ranks, and beside
 * these a part of the state and what it exchanges. So recipes are estimated for one rank with its
 * part of the sequences, and lowered for all ranks. How much more or less than estimated that takes
 * is about the same for all recipes with one chunk size and one choice of where state is: what was
 * lowered corrects the other estimates.
 */
#ifndef TDM_PLANNER_TEAM_LEAST_H
#define TDM_PLANNER_TEAM_LEAST_H

#include "planner/candidates.h"
#include "planner/team_choices.h"

#define TDM_TEAM_STAGES 3u /* where state is: as asked for, streamed, updated by the far place */

/* What a search has learned of a request, for the same one with a little more or less context. All
 * zero: nothing. */
struct tdm_team_memo {
    uint64_t chunk_tokens; /* the longest chunks tried; 0: nothing is known */
    enum tdm_exchange_kind exchange;
    uint32_t head_ranks;
    /* by chunk size, stage and whether weights are sliced: the bytes that schedules took more than
     * estimated */
    struct tdm_team_correction {
        bool known;
        int64_t bytes[TDM_MAX_PLACES];
    } corrections[TDM_TEAM_SIZES][TDM_TEAM_STAGES][2];
};

/* Finds a schedule of schedule->ranks (more than one) ranks that uses few bytes of `place`, within
 * the limit of the other place: of the device those of each rank, of the host those of all ranks of
 * a node. Ends as soon as it is at most `enough`; 0: finds the least. *bytes: what it uses, from
 * lowering it. `schedule` has all its choices then. *memo is filled. TDM_INFEASIBLE: none is within
 * the limit of the other place; TDM_USAGE: pins that several ranks cannot follow. */
enum tdm_status tdm_team_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                               enum tdm_place place, uint64_t enough, struct tdm_team_memo *memo,
                               uint64_t *bytes, struct tdm_error *err);

/* The same with what *memo knows: schedules are not lowered that take too much by it, so this is
 * many times as fast, but may miss one that is enough. *tried: false if nothing is known of
 * schedules with such chunks, and nothing was sought. */
enum tdm_status tdm_team_least_alike(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t enough,
                                     struct tdm_team_memo *memo, bool *tried, uint64_t *bytes,
                                     struct tdm_error *err);

#endif
