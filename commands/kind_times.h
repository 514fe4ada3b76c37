/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds per op kind, summed over all phases of a step: predicted and measured. */
#ifndef TDM_COMMANDS_KIND_TIMES_H
#define TDM_COMMANDS_KIND_TIMES_H

#include "traces/reader.h"

struct tdm_kind_time {
    enum tdm_op_kind kind;
    uint64_t ops;
    double predicted_seconds, measured_seconds;
};

/* Sums the rows of one program by op kind. Only measured kinds are returned, sorted by descending
 * absolute prediction error in seconds. Returns their number. */
size_t tdm_kind_times(const struct tdm_trace_time_row *rows, size_t row_count,
                      struct tdm_kind_time kinds[TDM_OP_KINDS]);

/* Predicted over measured time. NAN if no time was measured. */
double tdm_kind_ratio(const struct tdm_kind_time *time);

#endif
