/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the tests that compare backends: schedules that follow from a seed. */
#ifndef TDM_TESTS_BACKEND_CASES_H
#define TDM_TESTS_BACKEND_CASES_H

#include "schedule/schedule.h"

enum tdm_case {
    TDM_CASE_SMALL, /* odd sizes, any mix of dtypes, every kind of nest, optimizer and pass */
    TDM_CASE_WIDE,  /* heads of 34 to 256, up to 16 query heads a KV head, other sizes odd or not */
    TDM_CASE_LARGE, /* sizes as real models have them, but few: for vectors and tensor cores */
    TDM_CASES
};

const char *tdm_case_name(enum tdm_case kind);

/* The kind of a seed's case: each in turn, or all those that TDM_CASE names. */
enum tdm_case tdm_case_of(uint64_t seed);

/* The case of a seed. The caller owns *schedule. */
enum tdm_status tdm_backend_case(enum tdm_case kind, uint64_t seed, struct tdm_schedule **schedule,
                                 struct tdm_error *err);

#endif
