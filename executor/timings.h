/* SPDX-License-Identifier: Apache-2.0 */
/* Queue of the times of ended ops: a ring buffer that drops the oldest when full. */
#ifndef TDM_EXECUTOR_TIMINGS_H
#define TDM_EXECUTOR_TIMINGS_H

#include "executor/backend.h"

#include <stdlib.h>

struct tdm_timings {
    struct tdm_timing *items; /* [capacity], owned */
    uint64_t capacity, first, count;
};

/* Allocates space for the ops of a step of the longest of `count` programs; false if out of memory.
 * */
static inline bool tdm_timings_open(struct tdm_timings *timings, uint32_t count,
                                    const struct tdm_program *const *programs)
{
    *timings = (struct tdm_timings){.capacity = 1024};
    for (uint32_t i = 0; i < count; i++)
        if (programs[i]->op_count > timings->capacity)
            timings->capacity = programs[i]->op_count;
    timings->items = malloc(timings->capacity * sizeof(*timings->items));
    return timings->items != NULL;
}

static inline void tdm_timings_push(struct tdm_timings *timings, struct tdm_timing timing)
{
    if (timings->count == timings->capacity) {
        timings->first = (timings->first + 1) % timings->capacity;
        timings->count--;
    }
    timings->items[(timings->first + timings->count++) % timings->capacity] = timing;
}

/* Removes at most `capacity` of them, the oldest first; returns how many. */
static inline size_t tdm_timings_reap(struct tdm_timings *timings, struct tdm_timing *taken,
                                      size_t capacity)
{
    size_t count = 0;
    for (; count < capacity && timings->count > 0; count++) {
        taken[count] = timings->items[timings->first];
        timings->first = (timings->first + 1) % timings->capacity;
        timings->count--;
    }
    return count;
}

#endif
