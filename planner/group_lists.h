/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of group sizes that a planner tries: equal sizes, and sizes that fall from layer 0 up,
 * since what a group holds adds to what the groups below it have stored.
 */
#ifndef TDM_PLANNER_GROUP_LISTS_H
#define TDM_PLANNER_GROUP_LISTS_H

#include "base/status.h"

#include <stdint.h>

struct tdm_group_list {
    uint32_t count;
    uint32_t *sizes; /* [count], from layer 0 up */
};

struct tdm_group_lists {
    uint32_t count;
    struct tdm_group_list *lists; /* no two alike */
};

/* All lists for a number of layers (at least 1): one size that repeats, the last group smaller if
 * it does not divide; and falling lists of every length up to 12: linear (7,6,5,4,3,2,1), twice as
 * flat, geometric. The caller frees them with tdm_group_lists_free. TDM_NO_MEMORY. */
enum tdm_status tdm_group_lists_make(uint32_t layers, struct tdm_group_lists *lists,
                                     struct tdm_error *err);

/* The one list that was asked for: `sizes` add up to the layers, or one size that repeats.
 * TDM_USAGE if they do not. */
enum tdm_status tdm_group_lists_fixed(uint32_t layers, const uint32_t *sizes, uint32_t count,
                                      struct tdm_group_lists *lists, struct tdm_error *err);

void tdm_group_lists_free(struct tdm_group_lists *lists);

#endif
