/* SPDX-License-Identifier: Apache-2.0 */
/* Live bytes by category over the allocations and frees of one step of a method. */
#ifndef TDM_METHODS_TIMELINE_H
#define TDM_METHODS_TIMELINE_H

#include "methods/prediction.h"

#define TDM_TIMELINE_POINTS 2048u

/* The event with the most allocated bytes among `stretch` consecutive events. */
struct tdm_timeline_point {
    uint64_t event; /* its number in the step, from 0 */
    enum tdm_torch_phase phase;
    uint64_t live_bytes[TDM_METHOD_CATEGORIES];
    uint64_t reserved_bytes;
};

struct tdm_method_timeline {
    uint32_t step;
    uint64_t events, stretch; /* events of the step; events that a point stands for */
    uint64_t phase_events[TDM_TORCH_PHASES]; /* of each phase */
    uint32_t count;
    struct tdm_timeline_point points[TDM_TIMELINE_POINTS];
};

/* Runs the method again up to the end of `step` (from 1) and records the events of that step. If
 * `endless`, the device has no limit. `run`: as in the prediction. The caller frees *timeline
 * with free(). */
enum tdm_status tdm_method_timeline(const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings, uint32_t step,
                                    bool endless, enum tdm_megatron_run run,
                                    struct tdm_method_timeline **timeline, struct tdm_error *err);

#endif
