/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the estimates: seconds of a step by the clocks of its lanes, body by body. */
#ifndef TDM_PLANNER_ESTIMATE_LANES_H
#define TDM_PLANNER_ESTIMATE_LANES_H

#include "planner/estimate.h"

struct tdm_lanes; /* memory for an estimate */

/* Takes memory for steps of these sizes. NULL: out of memory. The caller owns it. */
struct tdm_lanes *tdm_lanes_new(const struct tdm_schedule *schedule, uint32_t chunks);
void tdm_lanes_free(struct tdm_lanes *lanes);

/* Seconds of a step that trains, with the waits of computing for copies; no bound. 0: the step has
 * too many bodies, or does something that this estimate does not know. *is_cut: it ended early,
 * because the step takes `enough_seconds` or more; then they are fewer than it takes. Call after
 * tdm_estimate_seconds(). */
double tdm_estimate_lanes(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          double enough_seconds, bool *is_cut);

#endif
