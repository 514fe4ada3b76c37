/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of "no surprise": a random model, step, optimizer and machine, with limits of memory drawn
 * between the least that fits and ample, planned and executed.
 */
#ifndef TDM_TESTS_PLAN_CASES_H
#define TDM_TESTS_PLAN_CASES_H

#include "executor/backend.h"

#include <stdbool.h>
#include <stddef.h>

/* What a case was, for a report. */
struct tdm_plan_outcome {
    char text[1024];                      /* the plan */
    uint64_t limit_bytes[TDM_MAX_PLACES]; /* drawn */
    uint64_t
        least_bytes[TDM_MAX_PLACES]; /* of the device with ample host memory; of the host then */
    uint64_t planned_bytes[TDM_MAX_PLACES]; /* used, by plan */
    uint64_t used_bytes; /* of the device, as its driver reports; 0: none of its own */
    bool offloads;       /* the plan keeps something on the host */
    bool compared;       /* with a random nest, to the last bit */
};

/* Plans the case of a seed within its limits and executes the plan on a backend, at most three
 * steps. TDM_INTERNAL: a setting that fits was refused, the plan is over its limits, an arena was
 * touched beyond the plan, the driver reports more than that by over 64 MiB, a loss is not a
 * number, or the plan leaves other bits than a random nest of the same chunks (on some cases). Else
 * as planning and executing fail. */
enum tdm_status tdm_plan_case_run(uint64_t seed, const struct tdm_backend *backend,
                                  struct tdm_plan_outcome *outcome, struct tdm_error *err);

#endif
