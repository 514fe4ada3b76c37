/* SPDX-License-Identifier: Apache-2.0 */
/* Seeds and numbers of cases from the environment, and the check that enough cases had what a test
 * is about. */
#include "tests/support/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tdm_case_fixed(void)
{
    const char *seed = getenv("TDM_SEED");
    return seed == NULL || *seed == '\0';
}

uint64_t tdm_case_seed(uint64_t base, uint64_t number)
{
    return (tdm_case_fixed() ? base : strtoull(getenv("TDM_SEED"), NULL, 0)) + number;
}

static bool asked_for(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && strcmp(value, "1") == 0;
}

bool tdm_case_sanitized(void)
{
    return asked_for("TDM_SANITIZED");
}

bool tdm_case_long(void)
{
    return asked_for("TDM_LONG") && !tdm_case_sanitized();
}

uint64_t tdm_case_count(uint64_t few, uint64_t many)
{
    const char *cases = getenv("TDM_CASES");
    if (cases != NULL && *cases != '\0')
        return strtoull(cases, NULL, 0);
    return tdm_case_long() ? many : few;
}

void tdm_case_again(const char *test, uint64_t seed)
{
    fprintf(stderr, "  again: make check-property PROPERTY=tests/%s TDM_SEED=%llu TDM_CASES=1\n",
            test, (unsigned long long)seed);
}

bool tdm_case_enough(const char *what, uint64_t had, uint64_t drawn, double share)
{
    double due = share * (double)drawn;
    bool enough = due < 5 || (double)had >= due;
    printf("# %llu of %llu %s\n", (unsigned long long)had, (unsigned long long)drawn, what);
    fflush(stdout);
    if (!enough)
        fprintf(stderr, "only %llu of %llu %s: %.0f are the least\n", (unsigned long long)had,
                (unsigned long long)drawn, what, due);
    return enough;
}

bool tdm_case_usual(const char *what, uint64_t had, uint64_t drawn, double usual)
{
    /* of the binomial distribution: the logarithm of its term of `count`, and the sum up to `had`
     */
    double chance = 0;
    for (uint64_t count = 0; count <= had; count++)
        chance += exp(lgamma((double)drawn + 1) - lgamma((double)count + 1) -
                      lgamma((double)(drawn - count) + 1) + (double)count * log(usual) +
                      (double)(drawn - count) * log1p(-usual));
    printf("# %llu of %llu %s\n", (unsigned long long)had, (unsigned long long)drawn, what);
    fflush(stdout);
    if (chance < 1e-5)
        fprintf(stderr, "only %llu of %llu %s: %g%% are usual\n", (unsigned long long)had,
                (unsigned long long)drawn, what, 100 * usual);
    return chance >= 1e-5;
}
