/* SPDX-License-Identifier: Apache-2.0 */
/* The clock that measures how long something takes. */
#ifndef TDM_BASE_CLOCK_H
#define TDM_BASE_CLOCK_H

#include <time.h>

/* Seconds since some moment that is the same for the whole process; setting the time of day does
 * not change them. */
static inline double tdm_now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#endif
