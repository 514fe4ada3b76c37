/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the tests that compare backends: schedules derived from a seed. */
#ifndef TDM_TESTS_BACKEND_CASES_H
#define TDM_TESTS_BACKEND_CASES_H

#include "schedule/schedule.h"

enum tdm_case {
    TDM_CASE_SMALL, /* odd sizes, any mix of dtypes, every kind of nest, optimizer and pass */
    /* Heads of 34 to 256, up to 16 query heads per KV head, other sizes odd or not. */
    TDM_CASE_WIDE,
    TDM_CASE_LARGE, /* sizes like those of real models, but few: for vectors and tensor cores */
    TDM_CASES
};

const char *tdm_case_name(enum tdm_case kind);

/* The kind of a seed's case: the kinds in turn, or the one that TDM_CASE names. */
enum tdm_case tdm_case_of(uint64_t seed);

/* Creates the case of a seed. The caller owns *schedule. */
enum tdm_status tdm_backend_case(enum tdm_case kind, uint64_t seed, struct tdm_schedule **schedule,
                                 struct tdm_error *err);

/* Creates the case of a seed for ranks in a ring, 2 to `most`: heads of 64 or 128, pages of 128 and
 * bf16, as fast kernels for one GPU want it, with odd ends, windows and documents. Gradients alone.
 */
enum tdm_status tdm_ring_case(uint64_t seed, uint32_t most, struct tdm_schedule **schedule,
                              struct tdm_error *err);

#endif
