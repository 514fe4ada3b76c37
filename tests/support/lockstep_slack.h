/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack: how far two right results of an op may be apart.
 *
 * Where an op sums, both backends compute in fp32 (some sums in double) but in different orders:
 * sums of k terms differ by no more than a small multiple of sqrt(k) 2^-24 times the sum of the
 * terms' sizes (Higham and Mary 2019, theorem 2.4, a bound that holds with high probability), which
 * is taken from the operands, by Cauchy and Schwarz where the exact one would cost as much as the
 * op. To this comes what a rounding to the result's dtype can make of a difference before it: one
 * unit in the last place, which the caller adds. Operands that are sums themselves (scores, logits)
 * hand their slack on by the derivatives. What an op only moves, and the optimizer, whose
 * operations have one order, must be the same bits.
 */
#ifndef TDM_TESTS_LOCKSTEP_SLACK_H
#define TDM_TESTS_LOCKSTEP_SLACK_H

#include "executor/arenas.h"
#include "executor/products.h"
#include "tests/support/written.h"

#define TDM_SLACK_ARRAYS 9

struct tdm_slack {
    const struct tdm_launch *launch; /* operands as they were before the op, in host memory */
    const struct tdm_arenas *cpu;
    double *array[TDM_SLACK_ARRAYS]; /* what the kind of op needs: lockstep_slack.c */
    double relative;                 /* of sums and products */
    struct tdm_part_tensors part;    /* of a product */
};

/* Prepares for an op. The caller ends it, also after a failure. */
enum tdm_status tdm_slack_begin(struct tdm_slack *slack, const struct tdm_launch *launch,
                                const struct tdm_arenas *cpu, struct tdm_error *err);
void tdm_slack_end(struct tdm_slack *slack);

/* Slack of an element of a piece, of which the cpu has `due`; negative: the bits must be the same;
 * infinite: nobody reads it. */
double tdm_slack_of(const struct tdm_slack *slack, const struct tdm_written *piece,
                    uint64_t element, double due);

#endif
