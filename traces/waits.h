/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the compute lane waited for: every stall has a name.
 *
 * An op that begins later than the lane was free waited for the op of another lane that ended last
 * before it began; where none ended in the gap, for the host that launches. After its last op the
 * lane waits for what ends the step.
 */
#ifndef TDM_TRACES_WAITS_H
#define TDM_TRACES_WAITS_H

#include "traces/reader.h"

struct tdm_trace_wait {
    enum tdm_phase phase; /* of the op that waited */
    bool launch;          /* it waited for the host; what follows is nothing */
    enum tdm_lane lane;   /* of the op that was awaited */
    enum tdm_op_kind kind;
    enum tdm_content content;                   /* of a copy: what it moved; else TDM_EMPTY */
    uint64_t waits;                             /* measured, or predicted if nothing was measured */
    double predicted_seconds, measured_seconds; /* measured: NAN if nothing was */
};

/* Sums up the ops of one step, as tdm_trace_read_intervals() gives them; longest first, of equal
 * ones in the order of the step. Not `whole`: they are those of a step that did not end, and
 * nothing is said of the time after the compute lane's last one. TDM_NO_MEMORY. The caller frees
 * *waits, which is NULL if there is none. */
enum tdm_status tdm_trace_sum_waits(const struct tdm_trace_interval *intervals, size_t count,
                                    bool whole, struct tdm_trace_wait **waits, size_t *wait_count,
                                    struct tdm_error *err);

#endif
