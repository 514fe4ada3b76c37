/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a method's step: live bytes by category over its allocations and frees, what its
 * allocator reserves, the phases, and the memory of the device. */
#ifndef TDM_PLOTS_EVENTS_PLOT_H
#define TDM_PLOTS_EVENTS_PLOT_H

#include "methods/timeline.h"
#include "plots/picture.h"

struct tdm_events_plot {
    char title[160], subtitle[320];
    uint64_t runtime_bytes, device_bytes;
    const struct tdm_method_timeline *timeline;
};

/* Checks and draws, as tdm_picture_draw(). */
enum tdm_status tdm_events_plot_draw(const struct tdm_events_plot *plot,
                                     const struct tdm_picture *picture, struct tdm_error *err);

#endif
