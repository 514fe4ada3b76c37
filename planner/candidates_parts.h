/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the search: its state, and the questions and steps of its files.
 *
 * candidates.c goes through the places of updates and calls the steps. candidates_run.c opens,
 * closes and answers questions. candidates_bounds.c solves linear programs and rounds their
 * solutions; candidates_tighten.c makes bounds tighter in the end. candidates_try.c lowers and
 * simulates a schedule, and validates the winner. candidates_rounded.c decides which roundings are
 * simulated or searched longer. candidates_recipes.c goes through recipes. candidates_polish.c
 * searches neighbours by simulation. candidates_least.c finds the least memory. */
#ifndef TDM_PLANNER_CANDIDATES_PARTS_H
#define TDM_PLANNER_CANDIDATES_PARTS_H

#include "planner/candidates.h"
#include "planner/places.h"
#include "planner/recipes.h"
#include "planner/rounding.h"

/* Effort limit: ops lowered and simulated for recipes after a first schedule was found; roundings
 * have a part of it. One core does about two million a second. */
#define MOST_OPS 3000000u
#define COPIES 0.01 /* tdm_rounding_limits.copies; raised where the simulator finds stalls */
#define NO_BOUND 1e300
#define FAR_FROM_BOUND 1.04 /* step over bound */
#define TDM_TURNS 2u        /* of longer searches from a rounding */
#define SLOWER 0.0012       /* tdm_rounding_limits.slower */
#define SLOWER_LATE 0.0006  /* the same after the first walk from the winner */
#define TDM_WALKS 4u        /* from the winner, at a place of updates */
#define TDM_LAYER_TURNS 3u  /* from the winner, with more layers at home on the device */

/* Updates move to the host only if the step becomes faster by this factor, since simulated times
 * are not more exact, and by so many seconds, since the host's threads have to be woken, which
 * machines do not state. If the bound rules that out, the host is not searched. */
#define WORTH_THE_HOST 1.003
#define WORTH_THE_HOST_SECONDS 1e-3

/* Recipes by falling cost: the next one to examine is the last. */
struct tdm_recipe_queue {
    struct tdm_recipe *recipes;
    size_t count, capacity;
    int place; /* the cost is the bytes of this place, or the seconds if TDM_MAX_PLACES */
};

/* Result of a tried schedule: its step time (TDM_UNMEASURED: it did not fit) and the effort. */
struct measured {
    double step_seconds;
    uint64_t ops;
};

/* State of a search. */
struct tdm_candidates {
    struct tdm_search_space space;
    struct tdm_recipe_queue queue;
    uint64_t limit_bytes[TDM_MAX_PLACES];
    struct {
        struct tdm_home homes[TDM_STATES];
        struct tdm_rings rings;
        enum tdm_place on;
    } asked; /* of the schedule, when the search was opened */
    struct tdm_search_counts counts;
    uint64_t ops;
    bool no_memory;

    struct tdm_rounded *rounded; /* [rounded_count], those that fit */
    /* longer searches: in each turn, at the current place of updates; by order and chunk size */
    uint32_t all_deepened[TDM_TURNS], deepened[TDM_ORDERS][TDM_BASES];
    /* simulated over likely seconds of the last simulated schedule of each; 0: none was */
    double ratio[TDM_ORDERS][TDM_BASES];
    uint32_t rounded_count;
    enum tdm_place on; /* place of updates in the current pass over the two places */
    double bound_of[TDM_MAX_PLACES],
        bound_seconds;          /* with updates at each place; the minimum of both */
    struct tdm_relaxed binding; /* the solution that sets bound_seconds */
    /* For each order and chunk size: a lower bound on all schedules; whether its linear program is
     * deferred until the best schedule found is slower than this bound */
    double floor_seconds[TDM_ORDERS][TDM_BASES];
    bool is_put_off[TDM_ORDERS][TDM_BASES];
    bool passing[TDM_ORDERS][TDM_BASES]; /* as tdm_relaxed says */
    bool late;                           /* the second look at what was deferred */
    /* The same bound, or that of its program, less the savings of sets richer than those of the
     * search; NO_BOUND: not examined */
    double least_seconds[TDM_ORDERS][TDM_BASES];
    /* The best prices of each program that was solved; of the last of each order, or NULL: warm
     * starts for others */
    struct tdm_prices prices[TDM_ORDERS][TDM_BASES];
    const struct tdm_prices *last[TDM_ORDERS];
    struct tdm_relaxed tightened[TDM_ORDERS][TDM_BASES]; /* `solved`: these programs */
    /* for --write-lp: the program that sets bound_seconds, or NULL */
    char *program;
    uint64_t program_bytes;

    enum tdm_status status; /* of the last measurement while polishing */
    struct tdm_error err;
    bool found;
    /* for each order and chunk size; `fits`: one was found */
    struct tdm_rounded best[TDM_ORDERS * TDM_BASES];
    const struct tdm_rounded *winner; /* one of these, or `grown` */
    struct tdm_rounded grown;         /* the winner with a larger LM-head tile */
    double other_seconds; /* with updates here, equal to the fastest schedule with updates at the
                             other place; 0: none */
    struct tdm_simulation simulation; /* of the winner */
    uint64_t most_ops;                /* limit while polishing */
    struct tdm_memo *measured; /* results of neighbours while polishing; NULL: not remembered */
};

/* A search that goes on with more device memory (ladder.h). */
#define TDM_CLIMBS 7u
struct tdm_climb {
    unsigned first;                 /* the step with which it begins */
    uint64_t bytes[TDM_CLIMBS + 1]; /* of device memory, rising */
    /* called with each schedule that is faster than those before, packed to the end */
    enum tdm_status (*found)(void *self, uint64_t bytes, const struct tdm_schedule *schedule,
                             const struct tdm_simulation *simulation, struct tdm_error *err);
    void *self;
};

/* ---- candidates.c ---- */

/* tdm_candidates_search() of one limit, schedule->memory_bytes; then, if `climb` is not NULL and
 * something was found, of its steps after the first. The schedule is then meaningless. On
 * TDM_INFEASIBLE search->bound_seconds is the bound of the program, or NO_BOUND if not even the
 * state fits. */
enum tdm_status tdm_candidates_climb(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     const struct tdm_climb *climb, struct tdm_search *search,
                                     struct tdm_error *err);

/* ---- candidates_run.c ---- */

/* Opens a search within the schedule's limits. Its queue is sorted by the bytes of `queue_place`,
 * which is then not limited, or by seconds if TDM_MAX_PLACES. State that is not pinned starts where
 * it is updated, whatever an earlier search found. Must be closed also on failure. TDM_USAGE: among
 * others, homes do not allow the updates on the host that are asked for. TDM_INPUT,
 * TDM_NO_MEMORY. */
enum tdm_status tdm_candidates_open(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                    int queue_place, struct tdm_candidates *run,
                                    struct tdm_error *err);

/* Gives a schedule the homes, rings and place of updates with which the search was opened. */
void tdm_candidates_restore(const struct tdm_candidates *run, struct tdm_schedule *schedule);

/* Frees what a search owns. */
void tdm_candidates_close(struct tdm_candidates *run);

/* Is a part of the search disabled (tdm_pins.without)? */
bool tdm_candidates_without(const struct tdm_candidates *run, enum tdm_heuristic heuristic);

/* Do the pins allow an order? */
bool tdm_candidates_may_have(const struct tdm_candidates *run, int order);

/* Does a base update units at the place of the current pass? */
bool tdm_candidates_is_due(const struct tdm_candidates *run, uint32_t size);

/* False if pins fix what rounding moves: then only recipes are candidates. */
bool tdm_candidates_may_round(const struct tdm_candidates *run);

/* Homes that must not move: pinned ones. If updates run on the host, all state of a layer moves
 * with its weights, and that of embedding and head does not. The second says it as
 * tdm_relaxation_new() asks for it. */
void tdm_candidates_fixed_homes(const struct tdm_candidates *run, uint32_t size,
                                bool fixed[TDM_STATES]);
void tdm_candidates_program_homes(const struct tdm_candidates *run, uint32_t size,
                                  bool fixed[TDM_STATES]);

/* Limits of a search from a rounding, with the effort of a quick one. If updates run on the host
 * and none of its layers is at home on the device, none moves there: where that does not pay, moves
 * of layers only disturb. */
struct tdm_rounding_limits tdm_candidates_rounding_limits(const struct tdm_candidates *run,
                                                          const struct tdm_rounded *rounded);

/* State that is not pinned starts on the device, whatever an earlier search found; on the host if
 * updates run there. TDM_USAGE: host updates are requested and homes do not allow them. */
enum tdm_status tdm_candidates_forget_homes(struct tdm_schedule *schedule,
                                            const struct tdm_pins *pins, struct tdm_error *err);

/* Could a schedule that takes `seconds` or more be faster than the best so far, and is that one not
 * at the bound? */
bool tdm_candidates_could_win(const struct tdm_candidates *run, double seconds);

/* The best step so far; once something was found, with updates at any place. */
double tdm_candidates_best_seconds(const struct tdm_candidates *run);

/* The share of a longer search's effort that is worth it: 1 if the gap to the bound is wide. The
 * nearer the best schedule is to the bound, the less there is to gain. */
double tdm_candidates_share_of_effort(const struct tdm_candidates *run);

/* ---- candidates_bounds.c ---- */

/* The only allowed list of groups, or NULL. */
const struct tdm_group_list *tdm_candidates_pinned_list(const struct tdm_candidates *run);

/* Computes a floor, below which no schedule is, for each order and chunk size with updates at
 * run->on. *least: the minimum of them, or NO_BOUND if there are none. */
enum tdm_status tdm_candidates_find_floors(struct tdm_candidates *run, double *least,
                                           struct tdm_error *err);

/* Could a schedule of an order and chunk size be faster than the best so far, or lower the
 * bound? */
bool tdm_candidates_size_could_win(const struct tdm_candidates *run, int order, uint32_t size);

/* The minimum likely time of the roundings with updates at run->on, or NO_BOUND. */
double tdm_candidates_promised_seconds(const struct tdm_candidates *run);

/* Solves the programs of all orders and chunk sizes with updates at run->on. Defers those whose
 * floor is clearly slower than an existing rounding. */
enum tdm_status tdm_candidates_relax(struct tdm_candidates *run, struct tdm_error *err);

/* Computes the bound of an order and chunk size, and schedules rounded from its program. If the
 * program is too large for the solver, as with a model of hundreds of layers, no bound is known. */
enum tdm_status tdm_candidates_relax_one(struct tdm_candidates *run, enum tdm_order order,
                                         uint32_t size, struct tdm_error *err);

/* Finds the deferred program with the lowest floor among those that could still win. False: there
 * is none. */
bool tdm_candidates_next_put_off(const struct tdm_candidates *run, int *order, uint32_t *size);

/* Improves a schedule stored after the rounded ones. Adds it to them if it fits; else frees its
 * groups. */
enum tdm_status tdm_candidates_improve_new(struct tdm_candidates *run,
                                           const struct tdm_rounding_limits *limits,
                                           struct tdm_rounded *rounded, struct tdm_error *err);

/* Takes another rounding of the same order and chunk size if it promises more, and frees it else.
 */
void tdm_candidates_take_better(struct tdm_rounded *rounded, struct tdm_rounded *other);

/* A lower bound on schedules with any sets. */
double tdm_candidates_bound_of_all(const struct tdm_candidates *run);

/* How much sets richer than those of the programs may save of a bound. */
double tdm_candidates_richer_seconds(const struct tdm_candidates *run, uint32_t size);

/* ---- candidates_tighten.c ---- */

/* Tightens the programs whose bounds are below the best step, the lowest ones first, as far as the
 * effort allows. */
enum tdm_status tdm_candidates_tighten(struct tdm_candidates *run, struct tdm_error *err);

/* ---- candidates_try.c ---- */

/* Lowers the search space's schedule and reports its used bytes. `quick`: packing stops once it is
 * within the limits. */
enum tdm_status tdm_candidates_lower(struct tdm_candidates *run, bool quick,
                                     struct tdm_program **program,
                                     uint64_t used_bytes[TDM_MAX_PLACES], struct tdm_error *err);

/* Reserves the bytes that packing took beyond an estimate, for the next try. */
void tdm_candidates_add_reserve(const struct tdm_candidates *run,
                                const uint64_t used_bytes[TDM_MAX_PLACES],
                                const uint64_t estimated_bytes[TDM_MAX_PLACES],
                                uint64_t reserve[TDM_MAX_PLACES]);

/* Lowers and simulates the search space's schedule with one of two tiles; keeps it if it is the
 * fastest so far of its order and chunk size. *fits: it was within the limits and takes
 * *step_seconds; else `used_bytes` shows the excess. */
enum tdm_status tdm_candidates_try_schedule(struct tdm_candidates *run, uint32_t size,
                                            const struct tdm_tiles *tiles, bool *fits,
                                            uint64_t used_bytes[TDM_MAX_PLACES],
                                            double *step_seconds, struct tdm_error *err);

/* Validates the winner; uses the larger tile only if it is no slower after complete packing. */
enum tdm_status tdm_candidates_validate_best(struct tdm_candidates *run, struct tdm_error *err);

/* ---- candidates_rounded.c ---- */

/* Simulates the roundings, the most promising one first. Of each order and chunk size, first one as
 * it is, which shows how far estimates are off; then the best ones are searched longer. */
enum tdm_status tdm_candidates_try_rounded(struct tdm_candidates *run, struct tdm_error *err);

/* Solves the deferred programs that could still win, and simulates their roundings. */
enum tdm_status tdm_candidates_try_put_off(struct tdm_candidates *run, struct tdm_error *err);

/* Tries the best schedule so far in the other chunk sizes. */
enum tdm_status tdm_candidates_try_other_sizes(struct tdm_candidates *run, struct tdm_error *err);

/* Walks on from the winner, within limits that have risen; each `number` walks another way. */
enum tdm_status tdm_candidates_walk_on(struct tdm_candidates *run, unsigned number,
                                       struct tdm_error *err);

/* ---- candidates_recipes.c ---- */

/* Fills the queue with the recipes that fit, with updates at run->on. */
enum tdm_status tdm_candidates_enumerate(struct tdm_candidates *run, struct tdm_error *err);

/* The recipe of the least cost, or NULL if there is none. */
const struct tdm_recipe *tdm_candidates_first(const struct tdm_recipe_queue *queue);

/* Tries recipes with state where the user put it. If nothing fits, moves state that is not pinned
 * to the host, as tdm_candidates_least() does. */
enum tdm_status tdm_candidates_look_at_recipes(struct tdm_candidates *run, bool trains,
                                               struct tdm_error *err);

/* ---- candidates_polish.c ---- */

/* Polishes the best schedules of a small step by simulation, and those from other starting points,
 * as far as the effort allows. Estimates of small steps are less exact. */
enum tdm_status tdm_candidates_polish(struct tdm_candidates *run, struct tdm_error *err);

/* Where layers are updated on the host, far from the bound and of a step that is simulated in a few
 * milliseconds: simulates the roundings that were left, and walks by simulation from the fastest
 * schedules, as far as the effort allows. */
enum tdm_status tdm_candidates_walk_by_simulation(struct tdm_candidates *run,
                                                  struct tdm_error *err);

/* The last phase: tries richer sets on the fastest schedule of each order. */
enum tdm_status tdm_candidates_enrich(struct tdm_candidates *run, struct tdm_error *err);

#endif
