/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by source.c, which reads traces, and source_schedule.c, which reads schedules; private to
 * these two. */
#ifndef TDM_PLOTS_SOURCE_PARTS_H
#define TDM_PLOTS_SOURCE_PARTS_H

#include "plots/source.h"
#include "schedule/values.h"

/* Sets titles, topology and limits, and which ranks are shown: plot->rank is as asked for.
 * TDM_USAGE if there is no such rank. */
enum tdm_status tdm_plot_describe(const char *path, const struct tdm_schedule *schedule,
                                  struct tdm_plot *plot, struct tdm_error *err);

/* Adds changes of values to a timeline. */
enum tdm_status tdm_plot_add_values(struct tdm_timeline *timeline,
                                    const struct tdm_values_change *rows, size_t count,
                                    struct tdm_error *err);

/* Makes room for the lanes of all shown ranks. */
enum tdm_status tdm_plot_open_ranks(const struct tdm_plot *plot, struct tdm_plot_panel *panel,
                                    struct tdm_error *err);

/* Sets the end and the peaks of a panel whose timelines are complete. */
void tdm_plot_finish_panel(const struct tdm_plot *plot, const struct tdm_schedule *schedule,
                           struct tdm_plot_panel *panel);

/* Lowers and simulates a schedule. */
enum tdm_status tdm_plot_read_schedule(const char *path, struct tdm_plot *plot,
                                       struct tdm_error *err);

#endif
