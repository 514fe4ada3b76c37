/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cpu backend whose ranks are hindered: their threads pause at random before ops, so that ranks
 * come to team ops in other orders, and one of them may fail at an op.
 */
#ifndef TDM_TESTS_HINDERED_H
#define TDM_TESTS_HINDERED_H

#include "executor/backend.h"

#include <stdatomic.h>

struct tdm_hindrance {
    uint64_t seed;                /* of the pauses */
    unsigned percent;             /* of the ops, before which a rank pauses */
    uint32_t longest_nanoseconds; /* of a pause */
    uint32_t fails;               /* the rank that fails; TDM_NONE: none */
    uint64_t at_op, of_step;      /* where it fails */
    uint64_t late_nanoseconds;    /* a pause before it fails */
    const atomic_bool *released;  /* it also waits until this is true; NULL: it does not */
};

/* Hinders the ops of all steps until the next call. Returns the backend. No step may run. */
const struct tdm_backend *tdm_hindered(const struct tdm_hindrance *hindrance);

/* Seconds (of CLOCK_MONOTONIC) at which the last failure was. No step may run. */
double tdm_hindered_failed_seconds(void);

#endif
