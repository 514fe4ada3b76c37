/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of attention that gathers the pages of its lists from the host. It must compute the same as
 * attention over whole chunks.
 *
 * A random chunk-major schedule with lists keeps K and V on the host. It runs with whole chunks
 * fetched; with space for all pages, which gives the same bits; and with the least space that a
 * schedule may have, so that query pages run in batches. Then losses have the same bits, and
 * gradients, with a sum for each batch, differ by rounding only.
 */
#ifndef TDM_TESTS_GATHER_CASES_H
#define TDM_TESTS_GATHER_CASES_H

#include "executor/backend.h"
#include "schedule/schedule.h"

/* Small: fp32, odd shapes, short pages. Large: bf16, shapes and pages for tensor cores. The caller
 * owns *schedule. */
enum tdm_status tdm_gather_case(uint64_t seed, bool large, struct tdm_schedule **schedule,
                                struct tdm_error *err);

struct tdm_gather_outcome {
    bool same;        /* all bits, with space for all pages */
    bool same_losses; /* all bits, with the least space */
    double error;     /* relative, in the norm of all gradients, with the least space */
    bool batched;     /* query pages ran in batches there */
    bool gathered;    /* some layer gathered */
};

/* Runs a case in its three ways and compares. */
enum tdm_status tdm_gather_compare(struct tdm_schedule *schedule, const struct tdm_backend *backend,
                                   uint64_t seed, struct tdm_gather_outcome *outcome,
                                   struct tdm_error *err);

#endif
