/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner's search: the fastest schedule that fits, and how far from the best it can be.
 *
 * Loop order, chunk size and where units are updated are enumerated. For each combination a linear
 * program (relaxation.h) bounds all schedules that are left, and its solution is rounded and mended
 * (rounding.h). Recipes are enumerated as well: lists of groups, places, attention outputs not
 * stored, held or kept, each with an estimate (estimate.h). What is estimated fastest is lowered,
 * packed and simulated, until no estimate is below the best simulated time; the winner is
 * validated. Nothing is random. Effort is counted, not timed, but for one solution of a linear
 * program, which may take a second.
 */
#ifndef TDM_PLANNER_CANDIDATES_H
#define TDM_PLANNER_CANDIDATES_H

#include "planner/relaxation.h"
#include "simulator/simulate.h"
#include "schedule/schedule.h"

#include <stdbool.h>

/* What becomes of attention outputs. */
enum tdm_attention_store {
    TDM_ATTENTION_NONE, /* recomputed whenever they are needed */
    TDM_ATTENTION_HELD, /* held by the group that runs forward again */
    TDM_ATTENTION_KEPT, /* kept by the forward from some chunk on; before it held or recomputed */
    TDM_ATTENTION_STORES
};

enum tdm_split_unit { TDM_SPLIT_FREE, TDM_SPLIT_CHUNK, TDM_SPLIT_PERCENT };

/* Knobs that the caller fixes; all zero: every knob is free. */
struct tdm_pins {
    bool has_order, has_attention, has_input_place, has_kept_place, has_held_place;
    enum tdm_order order;
    enum tdm_attention_store attention;
    enum tdm_place input_place, kept_place, held_place;
    enum tdm_set kept_set,
        held_set; /* where attention outputs are: TDM_SET_INPUT stands for no more */
    bool has_home[TDM_STATES], has_rings, has_prefetch;
    bool has_update_place; /* schedule->optimizer.on */
    bool has_kv;
    enum tdm_kv kv;
    enum tdm_place kv_place, kv_gradients_place;
    uint32_t group_count;      /* 0: free; 1: the size repeats */
    uint32_t *groups;          /* owned by whoever owns the pins */
    uint64_t chunk_tokens;     /* 0: free */
    uint64_t head_tile_tokens; /* 0: free */
    enum tdm_split_unit kept_from_unit;
    uint32_t
        kept_from;    /* first chunk of which the attention output is kept, or percent of chunks */
    bool unchecked;   /* what is found is not validated: nobody will run it */
    bool quick;       /* any schedule near the best will do: no bound is found, and few are tried */
    unsigned without; /* heuristics that are switched off: bits of enum tdm_heuristic */
    const char *program_path; /* where to write the linear program that sets the bound; NULL:
                                 nowhere. Borrowed */
};

/* What the search does beside the linear program; each can be switched off, to see what it
 * gains. */
enum tdm_heuristic {
    TDM_ENUMERATION, /* recipes */
    TDM_ROUNDING,    /* schedules from the program's solution */
    TDM_STRUCTURE,   /* of these: places, homes and boundaries of groups are moved */
    TDM_FINE,        /* of these: splits and sets are moved, group by group */
    TDM_POLISH,      /* neighbours of the best are simulated */
    TDM_HEURISTICS
};

const char *tdm_heuristic_name(enum tdm_heuristic heuristic); /* "enumeration", "rounding", ... */

/* How a search went. */
struct tdm_search_counts {
    uint64_t examined;  /* combinations that got an estimate */
    uint64_t too_large; /* of these: cannot fit, by the estimate */
    uint64_t too_slow;  /* of these: cannot be faster than the best, by the estimate */
    uint64_t lowered;   /* lowered and packed; some more than once, with another split */
    uint64_t simulated; /* of these: fit, and were simulated */
    uint64_t programs;  /* linear programs solved */
    uint64_t rounded;   /* schedules from their solutions that fit, by their estimate */
    bool complete;      /* false: the effort of a search was spent before all were decided */
    bool recipes_alone; /* pins fix what rounding moves, so that only recipes were candidates */
};

struct tdm_search {
    struct tdm_search_counts counts;
    struct tdm_simulation simulation; /* of the schedule found */
    double bound_seconds;             /* no schedule of those searched is faster; 0: not known */
    double gap;                       /* (step - bound) / bound */
    struct tdm_relaxed binding; /* the linear program that sets the bound: prices, rows that bind */
};

/* Looks for the fastest schedule whose used bytes are within schedule->memory_bytes on the device
 * and schedule->host_memory_bytes on the host. Model, machine, sequences, dtypes, optimizer, page
 * size and prefetch are taken from `schedule`; its nest, homes of state and where that is updated,
 * as far as they are not pinned, are overwritten with those found. `search` is filled as far as the
 * search went, also on failure. TDM_INFEASIBLE: nothing fits (shortage.h says why). TDM_USAGE: pins
 * that contradict the model. */
enum tdm_status tdm_candidates_search(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      struct tdm_search *search, struct tdm_error *err);

/* The least used bytes of `place` with which some schedule fits, the limit on the other place kept.
 * Exact: such a schedule was lowered and packed; or, much faster, as the estimate of recipes has
 * it. TDM_INFEASIBLE: the other place's limit is too small for any. The nest of `schedule` is
 * overwritten. */
enum tdm_status tdm_candidates_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t *bytes, struct tdm_error *err);
enum tdm_status tdm_candidates_least_estimate(struct tdm_schedule *schedule,
                                              const struct tdm_pins *pins, enum tdm_place place,
                                              uint64_t *bytes, struct tdm_error *err);

const char *tdm_attention_store_name(enum tdm_attention_store store); /* "none", "held", "kept" */

void tdm_pins_free(struct tdm_pins *pins); /* what the pins own, not the struct */

#endif
