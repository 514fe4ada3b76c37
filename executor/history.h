/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a training: the loss and the gradient norm of each step, from step 1 on. */
#ifndef TDM_EXECUTOR_HISTORY_H
#define TDM_EXECUTOR_HISTORY_H

#include "base/status.h"

#include <stdint.h>

struct tdm_history_step {
    double loss, gradient_norm; /* NAN: not known */
};

/* {0} is an empty one. */
struct tdm_history {
    uint64_t count, capacity;
    struct tdm_history_step *steps; /* [count] */
};

/* Adds the next step. TDM_NO_MEMORY. */
enum tdm_status tdm_history_add(struct tdm_history *history, double loss, double gradient_norm,
                                struct tdm_error *err);
/* Makes *copy, which the caller frees, one of its own. TDM_NO_MEMORY. */
enum tdm_status tdm_history_copy(const struct tdm_history *history, struct tdm_history *copy,
                                 struct tdm_error *err);
void tdm_history_free(struct tdm_history *history);

#endif
