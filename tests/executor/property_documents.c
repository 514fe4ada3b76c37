/* SPDX-License-Identifier: Apache-2.0 */
/* Property: documents found in the text of a step give the same results as the same documents in
 * the schedule. The loss is the same to the last bit. Gradients agree to rounding, because some of
 * their sums are split differently. */
#include "tests/support/random_schedule.h"
#include "tests/support/text_documents.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

enum { BASE_SEED = 52000 };

#define BOUND 1e-5

struct tally {
    uint64_t compared; /* cases with documents */
    double worst;
};

static bool run_case(uint64_t seed, struct tally *tally)
{
    struct tdm_random_options options = {.dtypes = TDM_RANDOM_FP32,
                                         .optimizer = TDM_RANDOM_NO_OPTIMIZER,
                                         .pass =
                                             seed % 7 == 0 ? TDM_RANDOM_EVALUATE : TDM_RANDOM_TRAIN,
                                         .max_tokens = seed % 4 == 0 ? 200 : 64};
    struct tdm_schedule *schedule;
    struct tdm_text_documents found;
    struct tdm_error err;
    char text[768];
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
    /* Blocks begin with the documents, so documents from the text are refused. */
    if (schedule->selector.kind == TDM_SELECT_BLOCK)
        schedule->selector = (struct tdm_selector){0};
    enum tdm_status status =
        tdm_text_documents_compare(schedule, &tdm_cpu_backend, seed, &found, &err);
    bool passed = status == TDM_OK && found.loss == 0 && found.values <= BOUND;
    if (!passed) {
        fprintf(stderr, "seed %llu: loss off by %.2e, gradients by %.2e%s%s\n",
                (unsigned long long)seed, found.loss, found.values, status == TDM_OK ? "" : "; ",
                status == TDM_OK ? "" : err.message);
        tdm_case_again("executor/property_documents", seed);
        fprintf(stderr, "  %s\n", tdm_schedule_describe(schedule, text, sizeof(text)));
    }
    tally->compared += found.documents > schedule->sequence_count;
    tally->worst = fmax(tally->worst, found.values);
    tdm_schedule_free(schedule);
    return passed;
}

static void documents_of_the_text_are_those_of_a_schedule(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint64_t cases = tdm_case_count(30, 200), failed = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !run_case(tdm_case_seed(BASE_SEED, i), &tally);
    print_message(
        "%llu cases from seed %llu, %llu with documents: gradients differ by %.2e at most\n",
        (unsigned long long)cases, (unsigned long long)tdm_case_seed(BASE_SEED, 0),
        (unsigned long long)tally.compared, tally.worst);
    assert_int_equal(failed, 0);
    assert_true(cases < 20 || tally.compared * 4 > cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_of_the_text_are_those_of_a_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
