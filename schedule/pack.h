/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing: an offset for every buffer, so that buffers that are ever live together do not overlap.
 *
 * Input is a set of conflicts, not intervals, because a buffer may live many times in a step.
 */
#ifndef TDM_SCHEDULE_PACK_H
#define TDM_SCHEDULE_PACK_H

#include "schedule/conflicts.h"

/* Default limit on search steps, for inputs that greedy packing does not solve. A step takes a few
 * nanoseconds. The hardest public instances need about thirty times as many. */
#define TDM_PACK_EFFORT 6000000u

/* Chooses offsets, multiples of `align`, for the buffers with bytes[i] > 0, and the size of the
 * arena. An arena of `goal_bytes` is good enough: the live peak, which is a lower bound, or a
 * capacity. Greedy orders are tried first; if none reaches the goal, a search of `effort` steps (0:
 * no search). If the result is above `capacity_bytes` (TDM_SIZE_MAX: no limit), everything is
 * repeated with the capacity as the goal, and that result is taken if it is within the capacity. So
 * the arena is within the capacity whenever a call with the capacity as goal would find such an
 * arena. The same input gives the same offsets on any machine. Fails only if memory runs out. */
enum tdm_status tdm_pack(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                         uint64_t align, uint64_t goal_bytes, uint64_t capacity_bytes,
                         uint64_t effort, uint64_t *offsets, uint64_t *arena_bytes,
                         struct tdm_error *err);

/* The same for those who look for less than `below_bytes`: where no arena can be that small, by the
 * bytes of buffers that all conflict, none is searched for, and the result is what the greedy
 * orders found. */
enum tdm_status tdm_pack_below(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                               uint64_t align, uint64_t goal_bytes, uint64_t capacity_bytes,
                               uint64_t below_bytes, uint64_t effort, uint64_t *offsets,
                               uint64_t *arena_bytes, struct tdm_error *err);

#endif
