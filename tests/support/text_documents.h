/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Documents that come from the text of a step, against the same documents written in the schedule.
 *
 * Both programs get the same weights, tokens and targets. The one that takes documents from the
 * text is planned for sequences of one document, so it has other buffers, and attention of it is
 * offered more keys; what it computes must be the same.
 */
#ifndef TDM_TESTS_TEXT_DOCUMENTS_H
#define TDM_TESTS_TEXT_DOCUMENTS_H

#include "executor/backends.h"
#include "schedule/schedule.h"

/* By how much the first step of both differs. */
struct tdm_text_documents {
    uint64_t documents; /* of the step; as many as it has sequences: nothing to compare */
    double loss;        /* absolute */
    double values; /* gradients, or weights and moments: norm of the difference over that of the
                      values */
};

/* Runs both on a backend. `schedule` has documents of its own. */
enum tdm_status tdm_text_documents_compare(const struct tdm_schedule *schedule,
                                           const struct tdm_backend *backend, uint64_t seed,
                                           struct tdm_text_documents *differences,
                                           struct tdm_error *err);

#endif
