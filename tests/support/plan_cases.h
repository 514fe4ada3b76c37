/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of "no surprise": a random model, step, optimizer and machine, with memory limits between
 * the least that fits and ample, are planned and executed.
 */
#ifndef TDM_TESTS_PLAN_CASES_H
#define TDM_TESTS_PLAN_CASES_H

#include "executor/backend.h"

#include <stdbool.h>
#include <stddef.h>

/* Describes a case, for a report. */
struct tdm_plan_outcome {
    char text[1024];                      /* the plan */
    uint64_t limit_bytes[TDM_MAX_PLACES]; /* the drawn limits */
    /* Least that fits: of the device with ample host memory; of the host at the device limit. */
    uint64_t least_bytes[TDM_MAX_PLACES];
    uint64_t planned_bytes[TDM_MAX_PLACES]; /* peak of used bytes in the plan */
    uint64_t used_bytes; /* of the device, as its driver reports; 0: no memory of its own */
    bool offloads;       /* the plan uses host memory */
    bool compared;       /* compared with a random nest, bit by bit */
};

/* Plans the case of a seed within its limits and executes the plan on a backend, at most three
 * steps. TDM_INTERNAL: a setting that fits was refused, the plan is over its limits, an arena was
 * touched beyond the plan, the driver reports over 64 MiB more than planned, a loss is not finite,
 * or the plan gives other bits than a random nest of the same chunks (on some cases). Otherwise as
 * planning and executing fail. */
enum tdm_status tdm_plan_case_run(uint64_t seed, const struct tdm_backend *backend,
                                  struct tdm_plan_outcome *outcome, struct tdm_error *err);

#endif
