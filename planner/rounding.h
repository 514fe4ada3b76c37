/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounding: from a solution of the relaxation to a schedule that fits, by its estimate.
 *
 * Shares become counts; then a local search mends what does not fit and fills what is free: it
 * moves splits, sets, places, homes and boundaries of groups while the estimate of the step, with a
 * price on bytes beyond the limits, falls. Its effort is counted, not timed, so that the same
 * request gives the same plan.
 */
#ifndef TDM_PLANNER_ROUNDING_H
#define TDM_PLANNER_ROUNDING_H

#include "planner/recipes.h"
#include "planner/relaxation.h"

/* A schedule of the kitchen, with its estimate. */
struct tdm_rounded {
    uint32_t size; /* of chunks, in the kitchen */
    enum tdm_order order;
    uint32_t group_count;
    struct tdm_group *groups; /* owned; room for one a layer */
    struct tdm_home homes[TDM_STATES];
    struct tdm_rings rings;
    uint64_t head_tile_tokens;
    double seconds, likely_seconds; /* as estimated */
    double cost;                    /* with what copies may cost beside */
    uint64_t bytes[TDM_MAX_PLACES]; /* as estimated */
    bool fits;
    uint64_t reserve[TDM_MAX_PLACES]; /* by which packing exceeded its estimate */
    unsigned mended, dearer;          /* times that it was searched again: for memory, for copies */
};

/* What a kitchen remembers of a schedule: its estimate, and the LM-head tile that goes with it. */
struct tdm_rounded_estimate {
    struct tdm_estimate estimate;
    uint64_t head_tile_tokens;
};

/* What a search may spend. */
struct tdm_rounding_limits {
    uint64_t bytes[TDM_MAX_PLACES];   /* used */
    uint64_t reserve[TDM_MAX_PLACES]; /* by which packing exceeded estimates */
    bool fixed_homes[TDM_STATES], fixed_rings;
    bool fixed_groups, no_structure, no_fine;
    unsigned most_estimates;
    enum tdm_set richest; /* that moves reach */
    double copies; /* what a second of copies costs beside the time that they are known to take:
                      they run beside the compute lane, but now and then it waits for one */
};

/* Takes what `relaxed` says of homes and the groups of the relaxation. The caller owns
 * rounded->groups (tdm_rounded_free). group_count is 0 if there are none. TDM_NO_MEMORY. */
enum tdm_status tdm_round(const struct tdm_kitchen *kitchen, uint32_t size, enum tdm_order order,
                          struct tdm_relaxation *relaxation, const struct tdm_relaxed *relaxed,
                          enum tdm_rounding rounding, struct tdm_rounded *rounded,
                          struct tdm_error *err);
void tdm_rounded_free(struct tdm_rounded *rounded);

/* Into one that has groups of its own, with room for as many. */
void tdm_rounded_copy(struct tdm_rounded *to, const struct tdm_rounded *from);

/* Searches from a schedule: it only becomes better. TDM_NO_MEMORY. */
enum tdm_status tdm_improve(const struct tdm_kitchen *kitchen,
                            const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                            struct tdm_error *err);

/* Says what a schedule that fits by its estimate really takes: TDM_UNMEASURED if it does not fit
 * after all. False: no more can be measured. */
typedef bool (*tdm_measure)(void *self, const struct tdm_rounded *rounded, double *seconds);
#define TDM_UNMEASURED 1e300

/* The same search, from a schedule that takes `seconds` (TDM_UNMEASURED: it is measured first), by
 * what its neighbours really take where their estimates promise less. Ends when none is better, or
 * no more can be measured. TDM_NO_MEMORY. */
enum tdm_status tdm_polish(const struct tdm_kitchen *kitchen,
                           const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                           double seconds, tdm_measure measure, void *self, struct tdm_error *err);

/* The key of a schedule of a kitchen: all of it but the LM-head tile, which follows from the rest.
 */
struct tdm_memo_key tdm_rounded_key(const struct tdm_rounded *rounded);

/* The same with richer sets, limits->richest, than those of the search: at first groups that have
 * the richest of the search take it, as many as fit. TDM_NO_MEMORY. */
enum tdm_status tdm_enrich(const struct tdm_kitchen *kitchen,
                           const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                           double seconds, tdm_measure measure, void *self, struct tdm_error *err);

/* Writes it into the kitchen's schedule. */
void tdm_rounded_write(const struct tdm_kitchen *kitchen, const struct tdm_rounded *rounded);

#endif
