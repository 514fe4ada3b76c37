/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of the plots: writes what a gnuplot script draws, thinned, to a temporary directory, runs
 * gnuplot on it, and puts the picture in its place when it is whole.
 */
#ifndef TDM_PLOTS_PLOT_H
#define TDM_PLOTS_PLOT_H

#include "plots/source.h"

/* Bounds of a picture's width and height in pixels. */
#define TDM_PICTURE_LEAST 400
#define TDM_PICTURE_MOST 10000

struct tdm_picture {
    const char *path;       /* ends in ".png" or ".svg" */
    bool force;             /* overwrites */
    uint32_t width, height; /* pixels */
};

/* Whether a picture could be drawn there: TDM_USAGE for another suffix, and for a file that exists
 * without `force`. */
enum tdm_status tdm_picture_check(const struct tdm_picture *picture, struct tdm_error *err);

/* Checks and draws. TDM_IO if there is no gnuplot, if it fails (with its first error line), or if a
 * file cannot be written. SIGINT, SIGTERM and SIGHUP wait until the temporary directory is gone. */
enum tdm_status tdm_plot_draw(const struct tdm_plot *plot, const struct tdm_picture *picture,
                              struct tdm_error *err);

#endif
