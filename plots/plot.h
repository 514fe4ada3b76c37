/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of one step, which plots/timeline.gp draws from thinned data. */
#ifndef TDM_PLOTS_PLOT_H
#define TDM_PLOTS_PLOT_H

#include "plots/picture.h"
#include "plots/source.h"

/* Checks and draws, as tdm_picture_draw(). */
enum tdm_status tdm_plot_draw(const struct tdm_plot *plot, const struct tdm_picture *picture,
                              struct tdm_error *err);

#endif
