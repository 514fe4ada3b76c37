/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The three amounts of memory that a run needs: device, pinned host and pageable host memory. They
 * are known before anything is allocated.
 */
#ifndef TDM_EXECUTOR_AMOUNTS_H
#define TDM_EXECUTOR_AMOUNTS_H

#include "executor/backend.h"

struct tdm_amounts {
    uint64_t device_bytes; /* the device arena of a rank; without a device it is host memory */
    uint64_t pinned_bytes; /* the host arenas of all ranks, if the backend has a device */
    uint64_t
        pageable_bytes; /* the host arenas otherwise; tokens; op times, also those in the trace */
};

/* The amounts of one program. Memory that grows with neither the context nor the number of ops is
 * left out: code, text, tables. */
struct tdm_amounts tdm_amounts_of(const struct tdm_program *program,
                                  const struct tdm_backend *backend, bool traced);

#endif
