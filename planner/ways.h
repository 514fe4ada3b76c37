/* SPDX-License-Identifier: Apache-2.0 */
/* Remedies when no schedule fits, as keys and values. */
#ifndef TDM_PLANNER_WAYS_H
#define TDM_PLANNER_WAYS_H

#include "base/units.h"

#define TDM_SHORTAGE_CHANGES 4u
#define TDM_SHORTAGE_WAYS 5u

/* One remedy: changes that are enough together. */
struct tdm_shortage_way {
    struct {
        const char *key; /* "memory", "host_memory", "context", "optimizer", or a state: its home */
        char value[TDM_FORMAT_SIZE];
    } changes[TDM_SHORTAGE_CHANGES];
    size_t count;
    uint64_t device_bytes, host_bytes; /* memory that is enough */
};

#endif
