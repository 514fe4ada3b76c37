/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares documents that come from the text of a step with the same documents written in the
 * schedule.
 *
 * Both programs get the same weights, tokens and targets. The one that takes documents from the
 * text is planned for sequences of one document. So it has other buffers, and its attention gets
 * more keys, but it must compute the same results.
 */
#ifndef TDM_TESTS_TEXT_DOCUMENTS_H
#define TDM_TESTS_TEXT_DOCUMENTS_H

#include "executor/backends.h"
#include "schedule/schedule.h"

/* Differences between the first steps of both. */
struct tdm_text_documents {
    uint64_t documents; /* in the step; if no more than sequences: nothing to compare */
    double loss;        /* absolute */
    double values;      /* norm of difference / norm: of gradients; or the largest of those of
                         * weights, first and second moments */
    double of_loss;     /* the loss itself */
};

/* Runs both on a backend. `schedule` has the documents. */
enum tdm_status tdm_text_documents_compare(const struct tdm_schedule *schedule,
                                           const struct tdm_backend *backend, uint64_t seed,
                                           struct tdm_text_documents *differences,
                                           struct tdm_error *err);

#endif
