/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a comparison: bars of what methods hold at one context, and lines of their peaks
 * over contexts, with the memory of the device. */
#ifndef TDM_PLOTS_COMPARE_PLOT_H
#define TDM_PLOTS_COMPARE_PLOT_H

#include "plots/picture.h"
#include "schedule/category.h"

#include <stddef.h>

#define TDM_COMPARE_DOTS 40u

struct tdm_compare_dot {
    uint64_t context, bytes;
};

struct tdm_compare_line {
    const char *name;
    bool has_bar; /* it fits at the bars' context */
    uint64_t categories[TDM_CATEGORIES];
    struct tdm_compare_dot dots[TDM_COMPARE_DOTS]; /* by rising context */
    size_t dot_count;
};

struct tdm_compare_plot {
    char title[160], subtitle[320];
    uint64_t bar_context, device_bytes;
    size_t count;
    struct tdm_compare_line *lines; /* bars from the left, the list from the top */
};

/* Checks and draws, as tdm_picture_draw(). At least one line has a dot. */
enum tdm_status tdm_compare_plot_draw(const struct tdm_compare_plot *plot,
                                      const struct tdm_picture *picture, struct tdm_error *err);

#endif
