/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner's search: finds the fastest schedule that fits, and bounds how far it is from the
 * best.
 *
 * The search enumerates loop order, chunk size and the place where units are updated. For each
 * combination a linear program (relaxation.h) bounds all remaining schedules; its solution is
 * rounded and repaired (rounding.h). Where that finds nothing, the search enumerates recipes: group
 * lists, places, and attention outputs that are recomputed, held or kept. Each recipe gets an
 * estimate (estimate.h).
 * Candidates are lowered, packed and simulated in order of rising estimate, until no estimate is
 * below the best simulated time. The winner is validated. Nothing is random. Effort is counted,
 * not timed.
 */
#ifndef TDM_PLANNER_CANDIDATES_H
#define TDM_PLANNER_CANDIDATES_H

#include "planner/relaxation.h"
#include "simulator/simulate.h"
#include "schedule/schedule.h"

#include <stdbool.h>

/* What happens to attention outputs. */
enum tdm_attention_store {
    TDM_ATTENTION_NONE, /* recomputed whenever they are needed */
    TDM_ATTENTION_HELD, /* held by the group when it runs forward again */
    TDM_ATTENTION_KEPT, /* kept by the forward from some chunk on; earlier chunks are held or
                           recomputed */
    TDM_ATTENTION_STORES
};

enum tdm_split_unit { TDM_SPLIT_FREE, TDM_SPLIT_CHUNK, TDM_SPLIT_PERCENT };

/* Rings on the device whose slots the caller fixes. */
struct tdm_ring_pins {
    bool weights, optimizer, stashed, kv, gather, ahead;
};

/* Knobs that the caller fixes. All zero: every knob is free. */
struct tdm_pins {
    uint32_t *groups;     /* owned by the owner of the pins */
    uint32_t group_count; /* 0: free; 1: the size repeats */
    bool has_order, has_attention, has_input_place, has_kept_place, has_held_place;
    enum tdm_order order;
    enum tdm_attention_store attention;
    enum tdm_place input_place, kept_place, held_place;
    enum tdm_set kept_set, held_set; /* set where attention outputs are kept or held; TDM_SET_INPUT:
                                        only the attention output */
    bool has_home[TDM_STATES], has_prefetch, has_exchange;
    struct tdm_ring_pins has_ring;
    bool has_host_gradients; /* rings.host_gradients */
    bool has_update_place;   /* schedule->optimizer.on */
    bool has_kv;
    enum tdm_kv kv;
    enum tdm_place kv_place, kv_gradients_place;
    uint64_t chunk_tokens;   /* 0: free */
    uint32_t gradient_slots; /* rings.gradients of several ranks: team_search.h; 0: free */
    bool has_weight_slices, weight_slices; /* weights.sliced of several ranks */
    uint64_t head_tile_tokens;             /* 0: free */
    enum tdm_split_unit kept_from_unit;
    uint32_t kept_from; /* first chunk whose attention output is kept, or percent of chunks */
    bool unchecked;     /* do not validate the result: nobody will run it */
    bool brief; /* do not improve what was found: no other chunk sizes, walks from it, richer sets
                   or simulated neighbours; and solve programs roughly, so the bound is lower */
    bool quick; /* accept any schedule near the best: compute no bound, try few candidates */
    bool as_tried;             /* leave the result packed as it was when it was found to fit */
    unsigned without;          /* disabled heuristics: bits of enum tdm_heuristic */
    unsigned effort;           /* 0, 1: one search; 2: a ladder of searches (ladder.h) */
    struct tdm_ladder *ladder; /* of effort 2: remembers its rungs; or NULL. Borrowed */
    const char
        *program_path; /* file for the linear program that sets the bound; NULL: none. Borrowed */
};

#define TDM_MOST_EFFORT 2u

/* Parts of the search beside the linear program. Each can be disabled, to measure its benefit. */
enum tdm_heuristic {
    TDM_ENUMERATION, /* recipes */
    TDM_ROUNDING,    /* schedules rounded from the program's solution */
    TDM_STRUCTURE,   /* of rounding: moves of places, homes and group boundaries */
    TDM_FINE,        /* of rounding: moves of splits and sets, group by group */
    TDM_POLISH,      /* of a small step: simulation of the best schedules' neighbours */
    TDM_HEURISTICS
};

const char *tdm_heuristic_name(enum tdm_heuristic heuristic); /* "enumeration", "rounding", ... */

/* Statistics of a search. */
struct tdm_search_counts {
    uint64_t examined;  /* combinations that were estimated */
    uint64_t too_large; /* of these: the estimate does not fit */
    uint64_t too_slow;  /* of these: the estimate is slower than the best */
    uint64_t lowered;   /* lowered and packed; some more than once, with different splits */
    uint64_t simulated; /* of these: fit and were simulated */
    uint64_t programs;  /* linear programs solved */
    uint64_t rounded;   /* schedules rounded from their solutions whose estimate fits */
    bool complete;      /* false: the effort limit was reached before all candidates were decided */
    bool recipes_alone; /* pins fix what rounding moves, so only recipes were candidates */
    bool least_alone;   /* of several ranks: the least memory was sought, and no faster schedule */
};

struct tdm_search {
    struct tdm_search_counts counts;
    struct tdm_simulation simulation; /* of the schedule found */
    double bound_seconds;             /* lower bound on all schedules searched; 0: unknown */
    double beyond_seconds;            /* by which that was above the step: no more than rounding */
    double gap;                       /* (step - bound) / bound */
    struct tdm_relaxed binding; /* the linear program that sets the bound: prices, binding rows */
};

/* Sets the bound and the gap of a search with a simulation. What was found is fast enough to be the
 * bound itself, if `seconds` is above it. */
void tdm_search_set_bound(struct tdm_search *search, double seconds);

/* Finds the fastest schedule whose used bytes are at most schedule->memory_bytes on the device and
 * schedule->host_memory_bytes on the host. Model, machine, sequences, dtypes, optimizer, page size
 * and prefetch are inputs from `schedule`. Its nest, the homes of state and the place of updates
 * are overwritten with the result, except where pinned. `search` is filled as far as the search
 * went, also on failure. TDM_INFEASIBLE: nothing fits (shortage.h explains why). TDM_USAGE: pins
 * contradict the model. */
enum tdm_status tdm_candidates_search(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      struct tdm_search *search, struct tdm_error *err);

/* The minimum used bytes of `place` for which some schedule fits, with the limit on the other place
 * kept. The first function is exact: it lowers and packs such a schedule. The second uses the
 * estimates of recipes and is much faster. Of several ranks both are tdm_team_least(). *bytes is 0
 * if no schedule fits the other place's limit. The nest of `schedule` is overwritten. */
enum tdm_status tdm_candidates_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t *bytes, struct tdm_error *err);
enum tdm_status tdm_candidates_least_estimate(struct tdm_schedule *schedule,
                                              const struct tdm_pins *pins, enum tdm_place place,
                                              uint64_t *bytes, struct tdm_error *err);

/* A lower bound on the used bytes of `place` of every schedule searched, with the limit on the
 * other place kept: proved by linear programs that minimise bytes. 0: not known, as with several
 * ranks, an evaluation, or a model that is too large for the solver. The schedule stays as it is.
 */
enum tdm_status tdm_candidates_least_proved(struct tdm_schedule *schedule,
                                            const struct tdm_pins *pins, enum tdm_place place,
                                            uint64_t *bytes, struct tdm_error *err);

/* Is it proved in this way that every schedule takes more than `bytes` of `place`? It ends as soon
 * as that is known. */
enum tdm_status tdm_candidates_prove_more(struct tdm_schedule *schedule,
                                          const struct tdm_pins *pins, enum tdm_place place,
                                          uint64_t bytes, bool *is_proved, struct tdm_error *err);

/* Is so much of `place` enough for some schedule, with the limit on the other place kept? Faster
 * than the minimum. The nest of `schedule` is overwritten. */
enum tdm_status tdm_candidates_enough(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      enum tdm_place place, uint64_t enough, bool *is_enough,
                                      struct tdm_error *err);

/* The same of the device and of several ranks, with a memo (team_least.h), which is filled.
 * `doubts`: asks what *memo knows, if it knows anything of such a schedule: many times as fast, but
 * a no may be wrong. */
struct tdm_team_memo;
enum tdm_status tdm_candidates_enough_of_team(struct tdm_schedule *schedule,
                                              const struct tdm_pins *pins, uint64_t enough,
                                              bool doubts, struct tdm_team_memo *memo,
                                              bool *is_enough, struct tdm_error *err);

const char *tdm_attention_store_name(enum tdm_attention_store store); /* "none", "held", "kept" */

/* Copies what a search chooses between schedules of the same model and step. */
void tdm_copy_choices(struct tdm_schedule *to, const struct tdm_schedule *from);

/* Do the pins fix what is stored, or where, beside attention outputs? */
bool tdm_pins_fix_stores(const struct tdm_pins *pins);

void tdm_pins_free(struct tdm_pins *pins); /* frees what the pins own, not the struct */

#endif
