/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plot shows, from a schedule (predicted: lowered and simulated) or from a trace (predicted
 * and one measured step, as recorded).
 */
#ifndef TDM_PLOTS_SOURCE_H
#define TDM_PLOTS_SOURCE_H

#include "plots/timeline.h"

/* As `step`: the first of these that the trace has.
 * 1. The last step whose ops were timed and whose memory was observed.
 * 2. The last step whose ops were timed.
 * 3. A step that did not end, with the ops that had ended.
 * 4. No step: only the predicted panel, of the program of the last step, else of the first one. */
#define TDM_PLOT_LAST_STEP INT64_C(-1)

/* As `rank`: the lanes of all ranks, and the memory of rank 0. */
#define TDM_PLOT_ALL_RANKS UINT32_MAX

enum tdm_plot_side { TDM_PREDICTED, TDM_MEASURED, TDM_PLOT_SIDES };

struct tdm_plot_panel {
    bool known;
    struct tdm_timeline timeline;                  /* of the rank whose memory is shown */
    struct tdm_timeline *ranks;                    /* [shown_ranks] ops of each; one: NULL */
    double end_seconds;                            /* more than 0; of all these */
    struct tdm_timeline_peak peak[TDM_MAX_PLACES]; /* of values */
    char peak_op[TDM_MAX_PLACES][96]; /* "backward norm, layer 1, chunk 63"; empty: not known */
};

struct tdm_plot {
    struct tdm_schedule *schedule; /* the plan; owned */
    struct tdm_topology topology;  /* of the machine of the plan */
    char title[160];               /* model and context */
    char subtitle[320];            /* nest, machine, host, backend */
    bool from_trace;
    size_t programs;                      /* of the trace that train; the last one is drawn */
    char program_name[128];               /* of the one that is drawn */
    int64_t step;                         /* of the measured panel */
    uint32_t rank;                        /* whose memory is shown */
    uint32_t shown_ranks;                 /* whose lanes are, from rank 0 on; 1: those of `rank` */
    uint32_t timed_ranks;                 /* of a measured step: from rank 0 on, those with times */
    bool unfinished;                      /* that step did not end */
    uint64_t limit_bytes[TDM_MAX_PLACES]; /* of used bytes, as planned */
    uint64_t runtime_bytes[TDM_MAX_PLACES]; /* outside the arena, by the machine's description */
    uint64_t arena_bytes[TDM_MAX_PLACES];   /* as packed */
    uint64_t used_bytes[TDM_MAX_PLACES];    /* measured in the step of that panel; 0: unknown */
    struct tdm_plot_panel panels[TDM_PLOT_SIDES];
};

/* Reads `path`, a schedule or a trace. TDM_INPUT if it is neither, TDM_USAGE for a step or a rank
 * that it does not have. The caller owns *plot. */
enum tdm_status tdm_plot_read(const char *path, int64_t step, uint32_t rank, struct tdm_plot **plot,
                              struct tdm_error *err);
void tdm_plot_free(struct tdm_plot *plot);

#endif
