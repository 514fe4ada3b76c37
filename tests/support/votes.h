/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the vote of a selection in double precision, using only the op's operands and the rule
 * in selector.h. */
#ifndef TDM_TESTS_VOTES_H
#define TDM_TESTS_VOTES_H

#include "executor/backend.h"

/* A vote for one list of a selection (lists are numbered by query page, then KV head). The
 * candidates are pages [first, first + count), with votes[count]. count 0: there is no vote,
 * because all pages before the chunk have a seat or there are none. */
struct tdm_election {
    uint64_t first, count, seats;
    double *votes; /* owned */
};

/* Counts the votes for a list. False if memory runs out. The caller frees the votes. */
bool tdm_elect(const struct tdm_launch *launch, uint64_t list, struct tdm_election *election);

/* How clearly the pages in `list` won: the fewest votes of a winner less the most votes of a loser,
 * divided by the former. Negative: a loser has more votes. -INFINITY: the number of winners is not
 * the number of seats. */
double tdm_election_margin(const struct tdm_election *election, const uint32_t *list);

#endif
