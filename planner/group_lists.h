/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of group sizes that a planner tries: equal sizes, and sizes that decrease from layer 0 up.
 * They decrease because what a group holds adds to what the groups below it have stored.
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
    struct tdm_group_list *lists; /* no duplicates */
};

/* Makes all lists for a number of layers (at least 1): one repeated size, with a smaller last group
 * if it does not divide; and decreasing lists of every length up to 12: linear (7,6,5,4,3,2,1),
 * half as steep, geometric. The caller frees them with tdm_group_lists_free. TDM_NO_MEMORY. */
enum tdm_status tdm_group_lists_make(uint32_t layers, struct tdm_group_lists *lists,
                                     struct tdm_error *err);

/* Makes the one requested list: `sizes` add up to the layers, or are one size that repeats.
 * TDM_USAGE if not. */
enum tdm_status tdm_group_lists_fixed(uint32_t layers, const uint32_t *sizes, uint32_t count,
                                      struct tdm_group_lists *lists, struct tdm_error *err);

void tdm_group_lists_free(struct tdm_group_lists *lists);

#endif
