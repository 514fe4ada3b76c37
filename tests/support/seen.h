/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What queries saw in steps of the cpu backend, for the reference to see the same.
 *
 * The rules of the selectors are written here a second time, token by token, but for the drawing of
 * bigbird's random pages. Only which pages won a vote is taken from the lists that the backend
 * made; that they won rightly is checked when it makes them.
 */
#ifndef TDM_TESTS_SEEN_H
#define TDM_TESTS_SEEN_H

#include "executor/backend.h"

#define TDM_SEEN_STEPS 4u

struct tdm_seen {
    const struct tdm_schedule *schedule;
    uint64_t chunks;
    uint64_t step;    /* whose lists tdm_seen() asks, from 1 */
    uint32_t **lists; /* [steps, layers, chunks]: page lists of the last attention; owned */
    uint64_t changed; /* attention ops that read other lists than the one before them in the step */
    uint64_t miscounted; /* forward select ops of the first step: pairs that are not as counted */
    uint64_t
        elections, /* of lists, and those in which a page won with less votes than one that lost */
        wrong;
};

/* Begins to note the lists of a schedule's steps: the cpu backend is to be used through the
 * returned one until tdm_seen_end(). One at a time. */
const struct tdm_backend *tdm_seen_begin(struct tdm_seen *seen,
                                         const struct tdm_schedule *schedule);
void tdm_seen_end(struct tdm_seen *seen);

/* tdm_reference_sees of a struct tdm_seen; of which sequences the documents are is known to
 * both. */
bool tdm_seen(const void *context, uint32_t layer, uint64_t kv_head, uint64_t query, uint64_t key);

#endif
