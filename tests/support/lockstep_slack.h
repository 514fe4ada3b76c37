/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack: how far apart two correct results of an op may be.
 *
 * Where an op sums, both backends compute in fp32 (some sums in double) but in different orders.
 * Sums of k terms then differ by at most a small multiple of sqrt(k) 2^-24 times the sum of the
 * terms' sizes (Higham and Mary 2019, theorem 2.4, a bound that holds with high probability). The
 * sum of sizes is computed from the operands, with the Cauchy-Schwarz inequality where the exact
 * sum would cost as much as the op. Rounding to the result's dtype can enlarge a difference by one
 * unit in the last place, which the caller adds. Operands that are sums themselves (scores, logits)
 * pass on their slack by the derivatives. Results that an op only moves, and those of the
 * optimizer, whose operations have a fixed order, must have the same bits.
 */
#ifndef TDM_TESTS_LOCKSTEP_SLACK_H
#define TDM_TESTS_LOCKSTEP_SLACK_H

#include "executor/arenas.h"
#include "executor/products.h"
#include "executor/written.h"

#define TDM_SLACK_ARRAYS 9

struct tdm_slack {
    const struct tdm_launch *launch; /* operands as they were before the op, in host memory */
    const struct tdm_arenas *cpu;
    double *array[TDM_SLACK_ARRAYS]; /* what this kind of op needs, see lockstep_slack.c */
    double relative;                 /* of sums and products */
    struct tdm_part_tensors part;    /* of a product */
};

/* Prepares for an op. The caller calls tdm_slack_end(), also after a failure. */
enum tdm_status tdm_slack_begin(struct tdm_slack *slack, const struct tdm_launch *launch,
                                const struct tdm_arenas *cpu, struct tdm_error *err);
void tdm_slack_end(struct tdm_slack *slack);

/* Slack of an element of a piece, for which the cpu has `due`. Negative: the bits must be the same.
 * Infinite: the element is never read. */
double tdm_slack_of(const struct tdm_slack *slack, const struct tdm_written *piece,
                    uint64_t element, double due);

#endif
