/* SPDX-License-Identifier: Apache-2.0 */
/* Property, on the cpu backend: gathered pages give the same as whole chunks (gather_cases.h). */
#include "executor/backends.h"
#include "tests/support/gather_cases.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

#define BASE_SEED 91000u

/* The worst error in 400 cases was 4e-7. */
#define ROUNDING 1e-5

static bool gathers_the_same(uint64_t seed, uint64_t *gathered, uint64_t *batched, double *worst)
{
    char text[768];
    struct tdm_schedule *schedule;
    struct tdm_gather_outcome outcome;
    struct tdm_error err;
    if (tdm_gather_case(seed, false, &schedule, &err) != TDM_OK ||
        tdm_gather_compare(schedule, &tdm_cpu_backend, seed, &outcome, &err) != TDM_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.message);
    bool passed = outcome.same && outcome.same_losses && outcome.error <= ROUNDING;
    *gathered += outcome.gathered;
    *batched += outcome.batched;
    if (outcome.error > *worst)
        *worst = outcome.error;
    if (!passed) {
        fprintf(
            stderr,
            "seed %llu: with a buffer for all %s, with the least losses %s and off by %.1e: %s\n",
            (unsigned long long)seed, outcome.same ? "the same" : "not the same",
            outcome.same_losses ? "the same" : "not the same", outcome.error,
            tdm_schedule_describe(schedule, text, sizeof(text)));
        tdm_case_again("executor/property_gather", seed);
    }
    tdm_schedule_free(schedule);
    return passed;
}

static void gathered_pages_are_the_pages(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(10, 40), failed = 0, gathered = 0, batched = 0;
    double worst = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !gathers_the_same(tdm_case_seed(BASE_SEED, i), &gathered, &batched, &worst);
    print_message("%llu cases from seed %llu, off by %.1e at worst\n", (unsigned long long)cases,
                  (unsigned long long)tdm_case_seed(BASE_SEED, 0), worst);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("cases gathered pages", gathered, cases, 0.3));
    assert_true(tdm_case_enough("cases gathered them in batches", batched, cases, 0.05));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gathered_pages_are_the_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
