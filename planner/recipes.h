/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipes: the nests that the search enumerates, each a few bytes, with estimates.
 *
 * A recipe is a point in the space of knobs; writing it into a schedule gives the nest. The search
 * space: what all recipes share, which is the group lists and an estimator for each chunk size and
 * place of updates.
 */
#ifndef TDM_PLANNER_RECIPES_H
#define TDM_PLANNER_RECIPES_H

#include "planner/candidates.h"
#include "planner/estimate.h"
#include "planner/group_lists.h"
#include "planner/memo.h"

/* LM-head tiles for a schedule. A tile that does not raise the peak does not compete with what
 * groups keep, so the bytes of an estimate are those with the safe one. */
struct tdm_tiles {
    uint64_t
        safe; /* tokens: the largest that does not raise the peak; of a measured schedule its own */
    uint64_t large; /* tokens: the largest that fits by the estimate; at least as large */
};

/* One combination of knobs. */
struct tdm_recipe {
    uint32_t number; /* in order of enumeration */
    uint32_t list;   /* index of the group list */
    uint32_t size;   /* index into the search space's bases */
    enum tdm_order order;
    enum tdm_place input_place, kept_place, held_place;
    bool kept, held;
    uint32_t kept_from_chunk;
    struct tdm_tiles tiles;
    double seconds;                   /* estimated */
    double cost;                      /* by which the search sorts: seconds, or bytes */
    uint64_t bytes[TDM_MAX_PLACES];   /* estimated */
    uint64_t reserve[TDM_MAX_PLACES]; /* bytes by which packing exceeded the estimate so far */
};

#define TDM_CHUNK_SIZES 8u
/* Bases of a search: chunk sizes with updates on the device, on the host, and there in another way:
 * but for embedding and head, or, if weights are pinned, with all masters and moments on the host.
 */
#define TDM_BASES (3 * TDM_CHUNK_SIZES)

struct tdm_search_space {
    struct tdm_schedule *schedule; /* borrowed; recipes are written into it */
    const struct tdm_pins *pins;   /* borrowed */
    bool least; /* the minimum memory is sought: enumerates only suitable recipes; keeps as little
                   as possible */
    struct tdm_group_lists lists;
    uint32_t size_count;
    struct tdm_schedule bases[TDM_BASES]; /* shallow copies */
    struct tdm_estimator *estimators[TDM_BASES];
    struct tdm_memo *estimates; /* of rounded schedules; NULL: none are remembered. Owned */
};

/* Checks that some chunk size can be searched. TDM_INFEASIBLE: for none is there space for the
 * pages that attention gathers. */
enum tdm_status tdm_search_space_check(const struct tdm_schedule *schedule,
                                       const struct tdm_pins *pins, struct tdm_error *err);

/* Homes of state if units are updated on the host: all state there; unpinned state follows the
 * pinned homes. False: pins or the optimizer do not allow it; `err` says why. */
bool tdm_host_homes(const struct tdm_schedule *schedule, const struct tdm_pins *pins,
                    struct tdm_home homes[TDM_STATES], struct tdm_error *err);

/* Where a base updates units on the host: do pins put masters and moments of all layers there and
 * leave the weights free? Then layers that are updated on the device have their weights alone at
 * home there. */
bool tdm_search_space_passes(const struct tdm_search_space *space, uint32_t size);

/* Opens a search space. Must be closed also on failure. TDM_USAGE: pins contradict the model;
 * TDM_INPUT, TDM_NO_MEMORY. */
enum tdm_status tdm_search_space_open(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      bool least, struct tdm_search_space *space,
                                      struct tdm_error *err);
void tdm_search_space_close(struct tdm_search_space *space);

/* Moves state that is not pinned to the host, except where it is updated there. */
void tdm_search_space_stream_state(struct tdm_search_space *space);

/* Receives a recipe; false ends the enumeration. */
typedef bool (*tdm_recipe_visitor)(void *self, const struct tdm_recipe *recipe);

/* Calls `visit` for every combination that the pins allow, with updates at one place. Estimates are
 * not filled. */
void tdm_recipes_enumerate(const struct tdm_search_space *space, enum tdm_place on,
                           tdm_recipe_visitor visit, void *self);

/* Chooses the tiles for an estimate without one, and adds the safe one to it. `most_bytes`: of the
 * device, with the large tile. */
void tdm_tiles_choose(const struct tdm_search_space *space, uint32_t size, uint64_t most_bytes,
                      struct tdm_estimate *estimate, struct tdm_tiles *tiles);

/* Writes a recipe into the search space's schedule, with the safe tile. */
void tdm_recipe_write(const struct tdm_search_space *space, const struct tdm_recipe *recipe);

/* Fills the estimates, with the LM-head tiles and (unless pinned) the split that are best within
 * `limit_bytes` less the recipe's reserve. False if it cannot fit: then the bytes are of the
 * nearest attempt, and the seconds are meaningless. They are also meaningless if the minimum memory
 * is sought. */
bool tdm_recipe_estimate(const struct tdm_search_space *space, struct tdm_recipe *recipe,
                         const uint64_t limit_bytes[TDM_MAX_PLACES]);

#endif
