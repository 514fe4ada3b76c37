/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the vote of a selection in double precision, using only the op's operands and the rule
 * in selector.h. */
#ifndef TDM_TESTS_VOTES_H
#define TDM_TESTS_VOTES_H

#include "executor/backend.h"

/* A vote for one list of a selection (by query page, then KV head). Candidates are pages [first,
 * first + count), with votes[count]. count 0: no vote, because all pages before the chunk have a
 * seat or there are none. */
struct tdm_election {
    uint64_t first, count, seats;
    double *votes; /* owned */
};

/* Counts votes. False if memory runs out; the caller frees the votes. */
bool tdm_elect(const struct tdm_launch *launch, uint64_t list, struct tdm_election *election);

/* (Fewest votes of a page in `list` - most of one not in it) / the former. Negative: a page not in
 * it has more. -INFINITY: `list` does not fill the seats. */
double tdm_election_margin(const struct tdm_election *election, const uint32_t *list);

#endif
