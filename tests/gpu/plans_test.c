/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that plans run on a GPU. What the planner finds for random settings that fit runs on the
 * cuda backend. Nothing fails, no byte beyond the plan is touched, losses are numbers, and some
 * cases leave the same bits as another nest. Cases are those of tests/planner/property_plans.
 * TDM_CASES=N TDM_SEED=S runs cases S to S + N - 1. */
#include "executor/backends.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/plan_cases.h"
#include "tests/support/random_schedule.h"

#include <inttypes.h>

#define BASE_SEED 84000u

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    const struct tdm_backend *backend;
    struct tdm_error err = {0};
    if (tdm_backend_find(gpu_test_backend(), &backend, &err) != TDM_OK) {
        printf("Bail out! %s\n", err.message);
        return 1;
    }
    uint64_t cases = tdm_case_count(12, 30);
    for (uint64_t n = 0; n < cases; n++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, n);
        struct tdm_plan_outcome outcome;
        enum tdm_status status = tdm_plan_case_run(seed, backend, &outcome, &err);
        gpu_test_case(&test, status == TDM_OK,
                      "seed %" PRIu64 ": device %" PRIu64 " of %" PRIu64 " B, host %" PRIu64
                      " of %" PRIu64 " B; %" PRIu64 " B used%s%s%s%s%s",
                      seed, outcome.planned_bytes[TDM_DEVICE], outcome.limit_bytes[TDM_DEVICE],
                      outcome.planned_bytes[TDM_HOST], outcome.limit_bytes[TDM_HOST],
                      outcome.used_bytes, outcome.compared ? "; as another nest" : "",
                      status == TDM_OK ? "" : ": ", status == TDM_OK ? "" : err.message,
                      status == TDM_OK ? "" : "; ", status == TDM_OK ? "" : outcome.text);
    }
    return gpu_test_end(&test);
}
