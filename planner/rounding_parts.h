/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to rounding: the state of a local search, and what its files do with it.
 *
 * rounding.c turns shares into counts and handles rounded schedules. rounding_point.c estimates the
 * point of a search and keeps it if it is better. rounding_moves.c changes the point.
 * rounding_travel.c is a walk that leaves local optima. rounding_search.c puts them together. */
#ifndef TDM_PLANNER_ROUNDING_PARTS_H
#define TDM_PLANNER_ROUNDING_PARTS_H

#include "planner/places.h"
#include "planner/rounding.h"

/* State of a local search. */
struct tdm_local_search {
    const struct tdm_search_space *space;
    const struct tdm_rounding_limits *limits;
    struct tdm_estimator *estimator;
    struct tdm_home homes[TDM_STATES]; /* current homes of the estimator */
    struct tdm_rings rings;
    struct tdm_rounded point; /* being changed */
    struct tdm_rounded *best;
    double best_cost, price;   /* seconds per byte beyond a limit */
    double enough;             /* points slower than this are refused without an exact estimate */
    unsigned left;             /* remaining estimates */
    enum tdm_set kept, held;   /* sets that tdm_rounding_decide_fit() stores */
    uint64_t scramble;         /* state of the order of tdm_rounding_travel() */
    size_t sets;               /* number of the choice of these */
    bool far_kv;               /* K and V that a set needs are at the place where the set is kept */
    struct tdm_memo_key sized; /* the point whose bytes were estimated last, */
    struct tdm_estimate of_sized;  /* and they */
    struct tdm_memo_key with_most; /* the last point, with the most slots for gradients on the */
    uint32_t host_gradients;       /* host, and how many of these it has */
    bool no_memory;                /* a start was left out: the search fails */
    tdm_measure measure;           /* NULL: estimates decide */
    void *self;
};

/* ---- rounding_point.c ---- */

/* The effort of a search in estimates, if it is `estimates` for a model of 28 layers. An estimate
 * takes less time for a model of few layers, and more for a step of many bodies, on which a deep
 * search is shorter. */
unsigned tdm_rounding_affordable(const struct tdm_search_space *space, uint32_t size, bool deep,
                                 unsigned estimates);

/* Does the point fit by its estimate? Like tdm_rounding_cost_of(), without the cost. */
bool tdm_rounding_fits(struct tdm_local_search *s);

/* Its bytes, with the smallest tile. */
struct tdm_estimate tdm_rounding_size_up(struct tdm_local_search *s);

/* Does it fit the device? */
bool tdm_rounding_fits_device(struct tdm_local_search *s);

/* Estimates the point. Returns its seconds, with a charge for copies and for bytes beyond the
 * limits. */
double tdm_rounding_cost_of(struct tdm_local_search *s);

/* Keeps the point if it is better than the best; otherwise restores the best. */
bool tdm_rounding_decide(struct tdm_local_search *s);

/* Finds the earliest splits that fit, the same in all groups, for the current places, homes and
 * groups; then calls tdm_rounding_decide(). */
bool tdm_rounding_decide_fit(struct tdm_local_search *s);

/* ---- rounding_moves.c ---- */

enum {
    MOVE_KEPT_RICHER,
    MOVE_KEPT_POORER,
    MOVE_HELD_RICHER,
    MOVE_HELD_POORER,
    MOVE_KEPT_PLACE,
    MOVE_HELD_PLACE,
    MOVE_INPUT_PLACE,
    MOVE_KV,
    MOVE_KV_PLACE,
    MOVE_KV_GRADIENTS_PLACE,
    MOVES
};

/* Moves of a group: a split by a step, of what is kept or held, or one of its settings. */
#define STEPS 8u
#define GROUP_MOVES (2 * STEPS + MOVES)

/* Applies a move, of GROUP_MOVES, to a group. */
void tdm_rounding_move_group(const struct tdm_local_search *s, struct tdm_group *group, size_t move,
                             uint32_t chunks);

/* Tries all moves on the groups [from, to) together; repeats a move of a split while it helps. */
bool tdm_rounding_move_groups(struct tdm_local_search *s, uint32_t from, uint32_t to);

/* Tries pairs of moves, in one group or two, until one pair helps. */
bool tdm_rounding_move_pair(struct tdm_local_search *s);

/* Homes and rings change together with what fills the memory that a change leaves, or frees what it
 * needs: as many layers of one state at home on the device as fit. */
enum { FILL_NOTHING = TDM_STATE_MOMENTS + 1, FILLS };

/* Sets how many layers of a state are at home on the device, or the most that may be; of all states
 * if they are tied. */
void tdm_rounding_set_layers(struct tdm_local_search *s, int state, uint32_t device_layers);

/* Moves as many layers of a state to the device as fit. */
void tdm_rounding_fill(struct tdm_local_search *s, int state);

/* The number of slots for chunks on their way to the host that is nearest to `slots`, and allowed:
 * what is asked for, or more, up to as many as there are chunks. */
uint32_t tdm_rounding_stashed(const struct tdm_local_search *s, uint32_t slots);

/* Changes of homes and rings, by number. */
#define RING_CHANGES 4u
#define CHANGES_OF_STATE (STEPS + 2)
#define STASHED_CHANGES (RING_CHANGES + (TDM_STATE_MOMENTS + 1) * CHANGES_OF_STATE)
#define AHEAD_CHANGES (STASHED_CHANGES + 2)
#define KV_AHEAD_CHANGE (AHEAD_CHANGES + 2)
#define HOME_CHANGES (KV_AHEAD_CHANGE + 1)

/* Applies a change, of HOME_CHANGES. False: it is not allowed, or changes nothing. *state: the
 * state that it changes; FILL_NOTHING: it changes a ring. */
bool tdm_rounding_change_home(struct tdm_local_search *s, uint32_t change, int *state);

/* Tries all changes of homes and rings. `decided`: keeps the point if it is better. */
bool tdm_rounding_move_homes(struct tdm_local_search *s,
                             bool (*decided)(struct tdm_local_search *));

/* Moves a layer of group g to the group above it, or of that group to g. A group without layers
 * ends. */
void tdm_rounding_move_layer(struct tdm_local_search *s, uint32_t g, bool up);

/* Cuts group g in two, of which the lower has `below` layers. */
void tdm_rounding_cut_group(struct tdm_local_search *s, uint32_t g, uint32_t below);

/* In layer-major order of up to so many groups: lets each group hold the most that fits. What one
 * group holds is gone before the next one runs again, so no group takes from another. Where a group
 * holds on the host, the last chunks are held on the device, as many as fit. */
#define TDM_MOST_HOLDING 64u
void tdm_rounding_hold(struct tdm_local_search *s);
bool tdm_rounding_decide_held(struct tdm_local_search *s);

/* Moves boundaries: one layer to the group above or below (which joins groups of one layer), or one
 * group cut in two. */
bool tdm_rounding_move_boundaries(struct tdm_local_search *s,
                                  bool (*decided)(struct tdm_local_search *));

/* Tries the other places for what the groups [from, to) keep and hold, and for their inputs, each
 * with the splits that fit. */
bool tdm_rounding_move_places(struct tdm_local_search *s, uint32_t from, uint32_t to);

/* ---- rounding_stack.c ---- */

/* In layer-major order: tries the list of groups that is best if memory decides how much is
 * computed again, with the homes and rings of the point. */
bool tdm_rounding_stack(struct tdm_local_search *s);

/* ---- rounding_travel.c ---- */

/* A longer search, which leaves local optima (rounding_travel.c). TDM_NO_MEMORY. */
enum tdm_status tdm_rounding_travel(struct tdm_local_search *s, struct tdm_error *err);

#endif
