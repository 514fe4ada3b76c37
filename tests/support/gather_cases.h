/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of attention that gathers the pages of its lists from the host: it computes what attention
 * over whole chunks does.
 *
 * A random chunk-major schedule with lists keeps K and V on the host. It runs with whole chunks
 * fetched; with room for all pages, which leaves the same bits; and with the least room that a
 * schedule may have, so that query pages take turns: then losses have the same bits, and gradients,
 * which have a sum for each batch, differ by rounding alone.
 */
#ifndef TDM_TESTS_GATHER_CASES_H
#define TDM_TESTS_GATHER_CASES_H

#include "executor/backend.h"
#include "schedule/schedule.h"

/* Small: fp32, odd shapes, short pages. Large: bf16, shapes and pages of tensor cores. The caller
 * owns *schedule. */
enum tdm_status tdm_gather_case(uint64_t seed, bool large, struct tdm_schedule **schedule,
                                struct tdm_error *err);

struct tdm_gather_outcome {
    bool same;        /* bits, with room for all */
    bool same_losses; /* bits, with the least room */
    double error;     /* of the norm of all gradients, with the least room */
    bool batched;     /* query pages took turns there */
    bool gathered;    /* some layer did */
};

/* Runs a case in its three ways. */
enum tdm_status tdm_gather_compare(struct tdm_schedule *schedule, const struct tdm_backend *backend,
                                   uint64_t seed, struct tdm_gather_outcome *outcome,
                                   struct tdm_error *err);

#endif
