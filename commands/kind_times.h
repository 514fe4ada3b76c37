/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of op kinds over all phases of a step: predicted and measured. */
#ifndef TDM_COMMANDS_KIND_TIMES_H
#define TDM_COMMANDS_KIND_TIMES_H

#include "traces/reader.h"

struct tdm_kind_time {
    enum tdm_op_kind kind;
    uint64_t ops;
    double predicted_seconds, measured_seconds;
};

/* Adds the rows of a program up by kind: those that were measured, first the kinds whose prediction
 * is off by most seconds. Returns how many there are. */
size_t tdm_kind_times(const struct tdm_trace_time_row *rows, size_t row_count,
                      struct tdm_kind_time kinds[TDM_OP_KINDS]);

/* Predicted over measured; NAN if no time was measured. */
double tdm_kind_ratio(const struct tdm_kind_time *time);

#endif
