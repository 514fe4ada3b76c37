/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounding: turns a solution of the relaxation into a schedule whose estimate fits.
 *
 * Shares become counts. A local search then repairs what does not fit and fills free memory. It
 * moves splits, sets, places, homes and group boundaries while the estimate of the step falls;
 * bytes beyond the limits have a price. Effort is counted, not timed, so that the same request
 * gives the same plan.
 */
#ifndef TDM_PLANNER_ROUNDING_H
#define TDM_PLANNER_ROUNDING_H

#include "planner/recipes.h"
#include "planner/relaxation.h"

/* A schedule of the search space, with its estimate. */
struct tdm_rounded {
    uint32_t size; /* index of the chunk size in the search space */
    enum tdm_order order;
    uint32_t group_count;
    struct tdm_group *groups; /* owned; space for one per layer */
    struct tdm_home homes[TDM_STATES];
    struct tdm_rings rings;
    uint32_t prefetch; /* bodies by which fetches run ahead */
    struct tdm_tiles tiles;
    bool passes_only;               /* as tdm_search_space_passes() says of its base */
    double seconds, likely_seconds; /* as estimated */
    double cost;                    /* with a charge for copies that may stall */
    uint64_t bytes[TDM_MAX_PLACES]; /* as estimated */
    bool fits;
    uint64_t reserve[TDM_MAX_PLACES]; /* bytes by which packing exceeded the estimate */
    unsigned mended, dearer;          /* number of retries: for memory, for copies */
    unsigned turns;                   /* number of longer searches from it */
    bool simulated;                   /* as it is */
};

/* Limits of a search. */
struct tdm_rounding_limits {
    uint64_t bytes[TDM_MAX_PLACES];   /* used */
    uint64_t reserve[TDM_MAX_PLACES]; /* bytes by which packing exceeded estimates */
    bool fixed_homes[TDM_STATES];
    struct tdm_ring_pins fixed_rings;
    bool tied;    /* updates run on the host: masters and moments of layers follow their weights, or
                     are all on the host */
    bool passing; /* then layers on the device may have their weights alone there, too */
    bool fixed_groups, no_structure, no_fine;
    bool doubtful; /* likely seconds do not decide which neighbours are measured */
    bool grid;     /* begins with homes from a grid */
    bool evenly;   /* begins with layers that keep all, on the host or not, each kind spread evenly;
                      where these are slow, nothing is found: it does not fit */
    double evenly_cost; /* of the best schedule known: such layers may cost a little more */
    bool stashes;       /* changes the number of slots for chunks on their way to the host, too */
    bool deep; /* changes how far fetches run ahead, too, and moves homes together with what
                  fills the memory */
    unsigned most_estimates;
    unsigned travelled;   /* points of a walk that leaves local optima */
    unsigned walk;        /* its number: each takes other moves */
    double slower;        /* the share of the cost by which it may go up, at first */
    enum tdm_set richest; /* limit of the moves */
    double copies; /* cost of a second of copies, in addition to their estimated time: they overlap
                      the compute lane, but it sometimes waits for one */
};

/* Takes homes from `relaxed` and groups from the relaxation. The caller owns rounded->groups
 * (tdm_rounded_free). TDM_NO_MEMORY. */
enum tdm_status tdm_round(const struct tdm_search_space *space, uint32_t size, enum tdm_order order,
                          struct tdm_relaxation *relaxation, const struct tdm_relaxed *relaxed,
                          struct tdm_rounded *rounded, struct tdm_error *err);
void tdm_rounded_free(struct tdm_rounded *rounded);

/* Where others are updated on the host: puts so many layers at home on the device, with all their
 * state or, if `passing` or nothing else is allowed, with their weights alone. The first says which
 * of these it is. */
bool tdm_rounded_passes(const struct tdm_rounded *rounded);
void tdm_rounded_set_near(struct tdm_rounded *rounded, uint32_t device_layers, bool passing);

/* Copies into a struct with its own groups array, which must be large enough. */
void tdm_rounded_copy(struct tdm_rounded *to, const struct tdm_rounded *from);

/* Copies into a struct that owns groups of its own. False: out of memory. */
bool tdm_rounded_duplicate(const struct tdm_search_space *space, const struct tdm_rounded *from,
                           struct tdm_rounded *to);

/* Improves a schedule by local search; the result is never worse, but with limits->evenly, where it
 * may be slower by its estimate. TDM_NO_MEMORY. */
enum tdm_status tdm_improve(const struct tdm_search_space *space,
                            const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                            struct tdm_error *err);

/* Measures the true time of a schedule whose estimate fits; TDM_UNMEASURED: it does not fit after
 * all. False: no more measurements are possible. */
typedef bool (*tdm_measure)(void *self, const struct tdm_rounded *rounded, double *seconds);
#define TDM_UNMEASURED 1e300

/* The same search by measurement: measures neighbours whose estimates promise less time. The first
 * schedule takes `seconds` (TDM_UNMEASURED: it is measured first). If limits->richest is richer
 * than the sets of the search, first gives it to as many groups as fit, among those that have the
 * search's richest set. Ends when no neighbour is better, or no more can be measured. With
 * limits->travelled it walks instead.
 * TDM_NO_MEMORY. */
enum tdm_status tdm_polish(const struct tdm_search_space *space,
                           const struct tdm_rounding_limits *limits, struct tdm_rounded *rounded,
                           double seconds, tdm_measure measure, void *self, struct tdm_error *err);

/* The key of a search space's schedule: all fields that matter except the LM-head tile, which
 * follows from them. */
struct tdm_memo_key tdm_rounded_key(const struct tdm_rounded *rounded);

/* Writes a rounded schedule into the search space's schedule. */
void tdm_rounded_write(const struct tdm_search_space *space, const struct tdm_rounded *rounded);

#endif
