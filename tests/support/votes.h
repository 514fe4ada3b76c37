/* SPDX-License-Identifier: Apache-2.0 */
/* The vote of a selection in double precision, from the op's operands and the rule in selector.h
 * alone. */
#ifndef TDM_TESTS_VOTES_H
#define TDM_TESTS_VOTES_H

#include "executor/backend.h"

/* An election for one list of a selection (query page, then KV head): pages [first, first + count)
 * stand, and votes[count] are theirs; count 0: all pages before the chunk have a seat, or there are
 * none. */
struct tdm_election {
    uint64_t first, count, seats;
    double *votes; /* owned */
};

/* False if memory ran out; the caller frees the votes. */
bool tdm_elect(const struct tdm_launch *launch, uint64_t list, struct tdm_election *election);

/* By how much less than the least winner's votes, as a share of them, the best loser has of those
 * whom `list` seats; negative: a loser has more. */
double tdm_election_margin(const struct tdm_election *election, const uint32_t *list);

#endif
