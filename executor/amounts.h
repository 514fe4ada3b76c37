/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The three amounts of memory that a run takes: of the device, of pinned and of pageable host
 * memory. They are known before anything is taken.
 */
#ifndef TDM_EXECUTOR_AMOUNTS_H
#define TDM_EXECUTOR_AMOUNTS_H

#include "executor/backend.h"

struct tdm_amounts {
    uint64_t
        device_bytes; /* the arena; on a backend without a device it is memory of this computer */
    uint64_t pinned_bytes;   /* the host arena, of a backend with a device */
    uint64_t pageable_bytes; /* else that; tokens, times of ops and what the trace holds of them */
};

/* Of one program. What grows with neither the context nor the ops is left out: code, text,
 * tables. */
struct tdm_amounts tdm_amounts_of(const struct tdm_program *program,
                                  const struct tdm_backend *backend, bool traced);

#endif
