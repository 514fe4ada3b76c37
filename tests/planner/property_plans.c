/* SPDX-License-Identifier: Apache-2.0 */
/* Property: plans run. What the planner finds for a random setting that fits (model, step,
 * optimizer, rates, limits of device and host memory) runs on the cpu backend: nothing fails, no
 * byte beyond the plan is touched, losses are numbers. */
#include "executor/backends.h"
#include "tests/support/plan_cases.h"
#include "tests/support/random_schedule.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

enum { BASE_SEED = 83000 };

/* Runs a case. If it fails, prints what is wrong to stderr and returns false. */
static bool run_case(uint64_t seed, struct tdm_plan_outcome *outcome)
{
    const struct tdm_backend *backend;
    struct tdm_error err;
    assert_int_equal(tdm_backend_find("cpu", &backend, &err), TDM_OK);
    if (tdm_plan_case_run(seed, backend, outcome, &err) == TDM_OK)
        return true;
    fprintf(stderr,
            "seed %" PRIu64 ": %s\n  device: least %" PRIu64 ", limit %" PRIu64 ", plan %" PRIu64
            "; host: least %" PRIu64 ", limit %" PRIu64 ", plan %" PRIu64 "\n  %s\n",
            seed, err.message, outcome->least_bytes[TDM_DEVICE], outcome->limit_bytes[TDM_DEVICE],
            outcome->planned_bytes[TDM_DEVICE], outcome->least_bytes[TDM_HOST],
            outcome->limit_bytes[TDM_HOST], outcome->planned_bytes[TDM_HOST], outcome->text);
    tdm_case_again("planner/property_plans", seed);
    return false;
}

/* This plan is within its limit only if packing aims at the limit. Packing that aimed at the live
 * peak took more. */
static void plan_is_packed_to_its_limit(void **state)
{
    (void)state;
    struct tdm_plan_outcome outcome;
    assert_true(run_case(UINT64_C(908019999), &outcome));
}

static void plans_run(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(8, 45), failed = 0, tight = 0, host = 0, compared = 0;
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_plan_outcome outcome;
        failed += !run_case(tdm_case_seed(BASE_SEED, n), &outcome);
        tight += outcome.limit_bytes[TDM_DEVICE] == outcome.least_bytes[TDM_DEVICE];
        compared += outcome.compared;
        host += outcome.offloads;
    }
    print_message("%" PRIu64 " plans from seed %" PRIu64 "\n", cases, tdm_case_seed(BASE_SEED, 0));
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("plans kept something on the host", host, cases, 0.2));
    assert_true(tdm_case_enough("plans had the least device memory", tight, cases, 0.1));
    assert_true(tdm_case_enough("plans were compared with another nest", compared, cases, 0.05));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plan_is_packed_to_its_limit),
                                       cmocka_unit_test(plans_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
