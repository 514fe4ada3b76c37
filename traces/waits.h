/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the compute lane waited for: names the cause of every stall.
 *
 * If an op starts later than the lane was free, it waited for the op of another lane that ended
 * last before it started. If none ended in the gap, it waited for the host to launch it. After its
 * last op the lane waits for the op that ends the step.
 */
#ifndef TDM_TRACES_WAITS_H
#define TDM_TRACES_WAITS_H

#include "traces/reader.h"

struct tdm_trace_wait {
    enum tdm_phase phase; /* of the op that waited */
    bool launch;          /* it waited for the host; the next three fields are unused */
    enum tdm_lane lane;   /* of the op that it waited for */
    enum tdm_op_kind kind;
    enum tdm_content content; /* of a copy: what it moved; else TDM_EMPTY */
    uint64_t waits; /* number of measured waits, or of predicted ones if nothing was measured */
    double predicted_seconds, measured_seconds; /* measured: NAN if nothing was */
};

/* Sums the waits over the ops of one step, as tdm_trace_read_intervals() returns them. Longest
 * first; equal ones in the order of the step. Without `whole` the ops are of an unfinished step,
 * and the time after the compute lane's last op is not counted. TDM_NO_MEMORY. The caller frees
 * *waits, which is NULL if there are none. */
enum tdm_status tdm_trace_sum_waits(const struct tdm_trace_interval *intervals, size_t count,
                                    bool whole, struct tdm_trace_wait **waits, size_t *wait_count,
                                    struct tdm_error *err);

#endif
