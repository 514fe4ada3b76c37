/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that a plan fits into free memory, before anything large is allocated. */
#ifndef TDM_EXECUTOR_FREE_MEMORY_H
#define TDM_EXECUTOR_FREE_MEMORY_H

#include "base/status.h"

#include <stdint.h>

/* Device memory as its driver reports it, after the backend is opened and before the arena is
 * allocated. */
struct tdm_device_memory {
    uint64_t used_bytes;    /* by this process: the part of the runtime that is already loaded */
    uint64_t free_bytes;    /* still free */
    uint64_t runtime_bytes; /* outside the arena, by the schedule's machine */
};

/* TDM_INFEASIBLE if the arena and the rest of the runtime need more than is free. The message says
 * by how much, and which --memory would fit. */
enum tdm_status tdm_free_memory_check_device(const struct tdm_device_memory *memory,
                                             uint64_t arena_bytes, struct tdm_error *err);

/* The same for host memory: `device_bytes` of arenas that stand in for a device (cpu), and
 * `host_bytes`. */
enum tdm_status tdm_free_memory_check_host(uint64_t usable_bytes, uint64_t device_bytes,
                                           uint64_t host_bytes, struct tdm_error *err);

#endif
