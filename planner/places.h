/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places in the planner's model. Plans use two places of a machine: the device, and the far place
 * of its tables (machines/topology.h), where they put what is not on the device. Arrays by place
 * have an entry for every place that a machine can have; those of other places stay 0.
 */
#ifndef TDM_PLANNER_PLACES_H
#define TDM_PLANNER_PLACES_H

#include "schedule/schedule.h"

/* Is a place another one than the device, so that what lies there is copied to be used? */
static inline bool tdm_is_far(enum tdm_place place)
{
    return place != TDM_DEVICE;
}

static inline enum tdm_place tdm_far_place(const struct tdm_schedule *schedule)
{
    return schedule->machine->topology.far;
}

/* The places that plans use, for loops: the device, then the far place. */
#define TDM_PLANNED_PLACES 2

static inline enum tdm_place tdm_planned_place(const struct tdm_schedule *schedule, int number)
{
    return number == 0 ? TDM_DEVICE : tdm_far_place(schedule);
}

/* The other one of these two. */
static inline enum tdm_place tdm_other_place(const struct tdm_schedule *schedule,
                                             enum tdm_place place)
{
    return tdm_is_far(place) ? TDM_DEVICE : tdm_far_place(schedule);
}

/* The bytes that a plan may use at each place, as the schedule says. */
static inline void tdm_place_limits(const struct tdm_schedule *schedule,
                                    uint64_t limit_bytes[TDM_MAX_PLACES])
{
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        limit_bytes[place] = 0;
    limit_bytes[TDM_DEVICE] = schedule->memory_bytes;
    limit_bytes[tdm_far_place(schedule)] = schedule->host_memory_bytes;
}

#endif
