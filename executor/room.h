/* SPDX-License-Identifier: Apache-2.0 */
/* Is there room for what a plan takes? Asked before anything large is taken. */
#ifndef TDM_EXECUTOR_ROOM_H
#define TDM_EXECUTOR_ROOM_H

#include "base/status.h"

#include <stdint.h>

/* The device as its driver reports it, when the backend is open and the arena is not taken. */
struct tdm_device_room {
    uint64_t used_bytes;    /* by this process: what of the runtime is there already */
    uint64_t free_bytes;    /* that can still be taken */
    uint64_t runtime_bytes; /* beside the arena, by the schedule's machine */
};

/* TDM_INFEASIBLE if the arena and what of the runtime is still to come need more than is free: by
 * how much, and the --memory that would do. */
enum tdm_status tdm_room_check_device(const struct tdm_device_room *room, uint64_t arena_bytes,
                                      struct tdm_error *err);

/* The same for memory of this computer: `device_bytes` of arenas that stand for a device (cpu), and
 * `host_bytes`. */
enum tdm_status tdm_room_check_host(uint64_t room_bytes, uint64_t device_bytes, uint64_t host_bytes,
                                    struct tdm_error *err);

#endif
