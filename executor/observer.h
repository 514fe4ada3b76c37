/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Observer: what the launches of a step touch, noted without reading any planned live range.
 *
 * A value lives in a slot (of a unit: in a part of it) from the launch that writes it to the last one
 * that uses it. A slot whose first touch in a step is not a write carries a value over from the step
 * before, and what it holds last is carried on. Live bytes follow from these and the measured times.
 */
#ifndef TDM_EXECUTOR_OBSERVER_H
#define TDM_EXECUTOR_OBSERVER_H

#include "executor/backend.h"
#include "traces/trace.h"

struct tdm_observer;

/* All memory for one step of `program` is taken here. */
enum tdm_status tdm_observer_new(const struct tdm_program *program, struct tdm_observer **observer,
                                 struct tdm_error *err);
void tdm_observer_free(struct tdm_observer *observer);

/* Forgets the last step. */
void tdm_observer_reset(struct tdm_observer *observer);

/* An op is launched. */
void tdm_observer_launch(struct tdm_observer *observer, const struct tdm_op *op);

/* Entries that the two calls below can give at most. */
size_t tdm_observer_touch_capacity(const struct tdm_observer *observer);
size_t tdm_observer_point_capacity(const struct tdm_observer *observer);

/* Every buffer that was touched: bytes, first and last op. Returns how many. */
size_t tdm_observer_touches(const struct tdm_observer *observer, struct tdm_trace_touch *touches);

/* Live bytes over time, where they change, by place and category; `timings` are those of all ops of
 * the step, in any order, relative to its begin; `end_ns` is its end. Returns how many. */
size_t tdm_observer_points(struct tdm_observer *observer, const struct tdm_trace_timing *timings,
                           size_t timing_count, int64_t end_ns, struct tdm_trace_observed *points);

#endif
