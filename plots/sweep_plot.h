/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a sweep: seconds of a step, MFU and peaks over contexts or limits, and where one
 * nest takes over from another. */
#ifndef TDM_PLOTS_SWEEP_PLOT_H
#define TDM_PLOTS_SWEEP_PLOT_H

#include "machines/machine.h"
#include "plots/picture.h"

#include <stddef.h>

struct tdm_sweep_dot {
    double x; /* tokens or GiB */
    bool fits;
    double step_seconds, bound_seconds, mfu; /* bound 0: not known */
    uint64_t peak_bytes[TDM_MAX_PLACES], limit_bytes[TDM_MAX_PLACES];
    char nest[128];
};

struct tdm_sweep_plot {
    char title[160], subtitle[320];
    const char *x_title; /* "context (tokens)" */
    bool tokens;         /* x are tokens, on a logarithmic axis */
    size_t count;
    struct tdm_sweep_dot *dots; /* by rising x */
};

/* Writes ticks at powers of two of tokens, few enough to be read; without `tokens`, none. */
void tdm_sweep_plot_ticks(FILE *file, bool tokens, double low, double high);

/* Checks and draws, as tdm_picture_draw(). At least one dot fits. */
enum tdm_status tdm_sweep_plot_draw(const struct tdm_sweep_plot *plot,
                                    const struct tdm_picture *picture, struct tdm_error *err);

#endif
