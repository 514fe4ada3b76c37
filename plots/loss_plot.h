/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a training: loss and validation loss by step, and below them the norm of the
 * gradient. */
#ifndef TDM_PLOTS_LOSS_PLOT_H
#define TDM_PLOTS_LOSS_PLOT_H

#include "plots/picture.h"

/* Reads all steps and evaluations of the last program that was trained from a trace, checks and
 * draws, as tdm_picture_draw(). TDM_INPUT: it has no step with a loss. Errors of opening a trace.
 */
enum tdm_status tdm_loss_plot_draw(const char *trace, const struct tdm_picture *picture,
                                   struct tdm_error *err);

#endif
