/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of property tests: their seeds, their number, and whether enough of them had what the
 * property is about.
 *
 * The seed of a failing case is enough to repeat it: TDM_SEED=N TDM_CASES=1 runs only that case.
 * Tests print the command.
 */
#ifndef TDM_TESTS_CASES_H
#define TDM_TESTS_CASES_H

#include <stdbool.h>
#include <stdint.h>

/* Seed of case `number` of a test: TDM_SEED, or else `base`, plus `number`. */
uint64_t tdm_case_seed(uint64_t base, uint64_t number);

/* Does a test run in its long form? `make check-long` asks for it with TDM_LONG=1. Not with
 * sanitizers. */
bool tdm_case_long(void);

/* Was the test built with sanitizers? Then what counts is which code runs: cases that run the same
 * code on other numbers may be left out. */
bool tdm_case_sanitized(void);

/* Number of cases of a test: TDM_CASES, or `many` in the long form, or `few`. */
uint64_t tdm_case_count(uint64_t few, uint64_t many);

/* Prints to stderr how to run only this case of tests/`test`. */
void tdm_case_again(const char *test, uint64_t seed);

/* Prints "HAD of DRAWN WHAT". False if less than `share` of the drawn cases had what the property
 * is about, because then it was hardly tested. Choose a share well below the usual one. Always true
 * for so few cases that chance decides (share * drawn < 5). */
bool tdm_case_enough(const char *what, uint64_t had, uint64_t drawn, double share);

/* Prints "HAD of DRAWN WHAT". False if so few of them mean that something is wrong: if a case has
 * it with probability `usual`, chance gives as few in less than one of 100,000 tests. */
bool tdm_case_usual(const char *what, uint64_t had, uint64_t drawn, double usual);

/* Are the seeds those of the test, and not from the environment? */
bool tdm_case_fixed(void);

#endif
