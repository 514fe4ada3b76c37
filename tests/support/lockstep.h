/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lockstep: compares a backend with the cpu backend, op by op.
 *
 * Both have the arenas of one program. Before every op both hold the same bytes, those of the cpu
 * backend. Outputs that are overwritten are first filled with poison, and so is memory of no
 * buffer. Both run the op. The backend must write every element that the cpu wrote, within its
 * bound (lockstep_slack.h), and change no other byte. Then the cpu's results are copied to the
 * other backend. So differences never accumulate: every op is tested separately, on operands of a
 * real step.
 */
#ifndef TDM_TESTS_LOCKSTEP_H
#define TDM_TESTS_LOCKSTEP_H

#include "executor/backends.h"

/* Statistics of elements: of those in bf16, or of all others. */
struct tdm_lockstep_elements {
    uint64_t bounded; /* elements that have a bound */
    uint64_t differ;  /* of these, those that differ */
    double off, size; /* sums of squares of differences and of the cpu's values */
};

/* Statistics of the ops of one kind. */
struct tdm_lockstep_kind {
    uint64_t ops, elements; /* elements: written */
    struct tdm_lockstep_elements bf16, others;
    double worst;   /* largest difference, as a multiple of its bound */
    uint64_t wrong; /* ops with an element beyond its bound, or with an extra byte written */
};

struct tdm_lockstep {
    struct tdm_lockstep_kind kinds[TDM_OP_KINDS];
    uint64_t wrong;  /* number of wrong ops */
    char first[512]; /* describes the first wrong op */
};

/* Runs `steps` steps of a schedule, with weights and tokens from the seed, and adds to *lockstep.
 * It fails only if it cannot run; wrong results are counted. */
enum tdm_status tdm_lockstep_run(const struct tdm_schedule *schedule,
                                 const struct tdm_backend *backend, uint64_t seed, uint32_t steps,
                                 struct tdm_lockstep *lockstep, struct tdm_error *err);

/* Adds the statistics of one run to `all`. */
void tdm_lockstep_add(struct tdm_lockstep *all, const struct tdm_lockstep *one);

#endif
