/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing: an offset for every buffer, so that buffers that are ever live together do not overlap.
 *
 * Works on conflicts, not on intervals, because a buffer may live many times in a step.
 */
#ifndef TDM_SCHEDULE_PACK_H
#define TDM_SCHEDULE_PACK_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Which of `count` buffers are ever live together: a symmetric bit matrix. */
struct tdm_conflicts {
    uint32_t count;
    uint32_t words; /* a row */
    uint64_t *bits; /* [count][words] */
};

enum tdm_status tdm_conflicts_new(uint32_t count, struct tdm_conflicts *conflicts,
                                  struct tdm_error *err);
void tdm_conflicts_free(struct tdm_conflicts *conflicts);

/* `buffer` becomes live while the set bits of `live` ([words]) are. */
void tdm_conflicts_add(struct tdm_conflicts *conflicts, uint32_t buffer, const uint64_t *live);
bool tdm_conflicts_test(const struct tdm_conflicts *conflicts, uint32_t a, uint32_t b);

/* Steps of search that a call may spend where greedy packing fails, a few nanoseconds each. This
 * many are for every day; the hardest public instances take some thirty times as many. */
#define TDM_PACK_EFFORT 6000000u

/* Chooses offsets, multiples of `align`, for the buffers with bytes[i] > 0, and the arena's bytes.
 * An arena of `goal_bytes` is good enough: the live peak, below which nothing fits, or a capacity.
 * Greedy orders are tried first, and where none reaches the goal, a search of `effort` steps (0: no
 * search). Where this ends above `capacity_bytes` (TDM_SIZE_MAX: there is no limit), all of it is
 * done again with the capacity as goal, and the result taken if it is within. So the arena is
 * within the capacity wherever a call with the capacity as goal finds one that is. The same input
 * gives the same offsets, on any machine. Fails only for memory. */
enum tdm_status tdm_pack(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                         uint64_t align, uint64_t goal_bytes, uint64_t capacity_bytes,
                         uint64_t effort, uint64_t *offsets, uint64_t *arena_bytes,
                         struct tdm_error *err);

#endif
