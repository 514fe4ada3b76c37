/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What queries saw in steps of the cpu backend, so that the reference can see the same.
 *
 * The rules of the selectors are implemented here a second time, token by token, except the choice
 * of bigbird's random pages. Only the pages that won a vote are taken from the lists that the
 * backend made. When the backend makes a list, its winners are checked.
 */
#ifndef TDM_TESTS_SEEN_H
#define TDM_TESTS_SEEN_H

#include "executor/backend.h"

#define TDM_SEEN_STEPS 4u

struct tdm_seen {
    const struct tdm_schedule *schedule;
    uint64_t chunks;
    uint64_t step;    /* whose lists tdm_seen() uses, from 1 */
    uint32_t **lists; /* [steps, layers, chunks]: page lists of the last attention; owned */
    /* Ops whose lists differ from those recorded before for the same layer, chunk and step. */
    uint64_t changed;
    uint64_t miscounted; /* forward selections of the first step with a wrong number of pairs */
    /* Lists decided by a vote, and those in which a page won with fewer votes than a loser. */
    uint64_t elections, wrong;
};

/* Starts recording the lists of a schedule's steps. Until tdm_seen_end() use the returned backend
 * as the cpu backend. One at a time. */
const struct tdm_backend *tdm_seen_begin(struct tdm_seen *seen,
                                         const struct tdm_schedule *schedule);
void tdm_seen_end(struct tdm_seen *seen);

/* A tdm_reference_sees; `context` is a struct tdm_seen. Both tokens must be in one document. */
bool tdm_seen(const void *context, uint32_t layer, uint64_t kv_head, uint64_t query, uint64_t key);

#endif
