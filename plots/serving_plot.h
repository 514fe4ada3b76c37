/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a server: how many sequences of a context its cache holds, for each dtype of K and
 * V, over contexts. */
#ifndef TDM_PLOTS_SERVING_PLOT_H
#define TDM_PLOTS_SERVING_PLOT_H

#include "plots/picture.h"

#include <stddef.h>

struct tdm_serving_dot {
    uint64_t context, sequences;
};

struct tdm_serving_line {
    const char *name; /* "bf16" */
    bool asked;       /* the dtype that the answer is for */
    const struct tdm_serving_dot *dots;
    size_t count;
};

#define TDM_SERVING_MOST_LINES 8u

struct tdm_serving_plot {
    char title[160], subtitle[320];
    uint64_t context, batch; /* what is asked for */
    const struct tdm_serving_line *lines;
    size_t count;
};

/* Checks and draws, as tdm_picture_draw(). */
enum tdm_status tdm_serving_plot_draw(const struct tdm_serving_plot *plot,
                                      const struct tdm_picture *picture, struct tdm_error *err);

#endif
