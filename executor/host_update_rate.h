/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how fast the host's cores run updates: for calibration, and a benchmark. */
#ifndef TDM_EXECUTOR_HOST_UPDATE_RATE_H
#define TDM_EXECUTOR_HOST_UPDATE_RATE_H

#include "schedule/schedule.h"

/* What runs beside updates: started just before the first one that is timed, and told when the last
 * one has ended. */
struct tdm_beside_updates {
    void *self;
    enum tdm_status (*begin)(void *self, struct tdm_error *err);
    void (*end)(void *self);
};

/* Updates layer 0 of a schedule's model repeatedly, on `threads` threads, for at least `seconds`.
 * The rate counts bytes of state and gradient that are read and written. Allocates its memory and
 * frees it. `beside` may be NULL. TDM_NO_MEMORY, and what begin() returns. */
enum tdm_status tdm_host_update_rate(const struct tdm_schedule *schedule, uint32_t threads,
                                     double seconds, const struct tdm_beside_updates *beside,
                                     double *bytes_per_second, struct tdm_error *err);

#endif
