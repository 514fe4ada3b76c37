/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of two sweeps: seconds of a step over the values of one, with a line for each value
 * of the other, and the bound of each line. */
#ifndef TDM_PLOTS_FRONTIER_PLOT_H
#define TDM_PLOTS_FRONTIER_PLOT_H

#include "plots/sweep_plot.h"

#define TDM_FRONTIER_MOST 8u /* lines */

struct tdm_frontier_line {
    char name[64]; /* "64 GiB of host memory" */
    size_t count;
    struct tdm_sweep_dot *dots; /* by rising x; of them x, fits, step_seconds and bound_seconds */
};

struct tdm_frontier_plot {
    char title[160], subtitle[320];
    const char *x_title;
    bool tokens; /* x are tokens, on a logarithmic axis */
    size_t count;
    struct tdm_frontier_line lines[TDM_FRONTIER_MOST];
};

/* Checks and draws, as tdm_picture_draw(). At least one dot fits. */
enum tdm_status tdm_frontier_plot_draw(const struct tdm_frontier_plot *plot,
                                       const struct tdm_picture *picture, struct tdm_error *err);

#endif
