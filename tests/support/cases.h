/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of property tests: from which seed they are drawn, how many, and whether enough of them had
 * what the property is about.
 *
 * The seed of a failing case is enough to see it again: TDM_SEED=N TDM_CASES=1 runs that one case
 * alone, and tests print the command.
 */
#ifndef TDM_TESTS_CASES_H
#define TDM_TESTS_CASES_H

#include <stdbool.h>
#include <stdint.h>

/* Seed of case `number` of a test: TDM_SEED, else `base`, + number. */
uint64_t tdm_case_seed(uint64_t base, uint64_t number);

/* Whether a test runs in its long form, as `make check-long` asks for: TDM_LONG=1, and no
 * sanitizers. */
bool tdm_case_long(void);

/* Cases that a test runs: TDM_CASES, else `many` in its long form, else `few`. */
uint64_t tdm_case_count(uint64_t few, uint64_t many);

/* Says on stderr how to run a case of tests/`test` alone. */
void tdm_case_again(const char *test, uint64_t seed);

/* Prints "HAD of DRAWN WHAT". False: less than `share` of the cases drawn had what the property is
 * about, so that it was hardly tested. Choose a share well below what is usual; of so few cases
 * that chance may decide (share * drawn < 5) none is asked for. */
bool tdm_case_enough(const char *what, uint64_t had, uint64_t drawn, double share);

#endif
