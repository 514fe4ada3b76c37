/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lockstep: a backend against the cpu backend, op by op.
 *
 * Both have the arenas of one program. Before every op both hold the same bytes: those of the cpu
 * backend. What the op overwrites is poisoned first, so is what no buffer holds. Both run the op;
 * every element that the cpu wrote must have been written to within its bound (lockstep_slack.h),
 * and not one byte else may differ. Then the cpu's results go to the other backend. So differences
 * never add up: every op is tested by itself, in the place where a step has it, on operands of a
 * real step.
 */
#ifndef TDM_TESTS_LOCKSTEP_H
#define TDM_TESTS_LOCKSTEP_H

#include "executor/backends.h"

/* What was seen of elements: of those in bf16, or of others. */
struct tdm_lockstep_elements {
    uint64_t bounded; /* that may differ from the cpu's */
    uint64_t differ;  /* of these, that do */
    double off, size; /* sums of squares of differences and of values */
};

/* What was seen of the ops of a kind. */
struct tdm_lockstep_kind {
    uint64_t ops, elements; /* written */
    struct tdm_lockstep_elements bf16, others;
    double worst;   /* largest difference in units of its bound */
    uint64_t wrong; /* ops with an element beyond its bound, or with a byte too many */
};

struct tdm_lockstep {
    struct tdm_lockstep_kind kinds[TDM_OP_KINDS];
    uint64_t wrong;  /* ops */
    char first[512]; /* the first wrong op, in words */
};

/* Runs `steps` steps of a schedule, with weights and tokens that follow from the seed, and adds to
 * *lockstep. A failure is one to run: wrong results are counted. */
enum tdm_status tdm_lockstep_run(const struct tdm_schedule *schedule,
                                 const struct tdm_backend *backend, uint64_t seed, uint32_t steps,
                                 struct tdm_lockstep *lockstep, struct tdm_error *err);

/* Adds what was seen in one run to what was seen in others. */
void tdm_lockstep_add(struct tdm_lockstep *all, const struct tdm_lockstep *one);

#endif
