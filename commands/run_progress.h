/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports a run's progress to a stream. On a terminal it rewrites one line, else it prints a plain
 * line from time to time. Part of the program, not of the library, because it prints.
 */
#ifndef TDM_COMMANDS_RUN_PROGRESS_H
#define TDM_COMMANDS_RUN_PROGRESS_H

#include "base/ticker.h"
#include "executor/run.h"

#include <stdio.h>

struct tdm_progress {
    FILE *out;
    bool terminal;
    bool quiet;                        /* no output within steps */
    uint64_t steps;                    /* the last step of each schedule */
    uint64_t before;                   /* steps that an earlier run has done */
    bool saves_beside;                 /* checkpoints are written while steps run */
    double save_seconds;               /* of the last checkpoint; 0: none yet */
    bool stopping;                     /* it was said that the run ends after this step */
    double printed_seconds;            /* when, on the clock: the last plain line */
    const char *moving;                /* the current transfer of weights; NULL: none */
    const struct tdm_program *program; /* the program whose steps are counted */
    double seconds;
    double validation_loss;     /* the latest one; NAN: none */
    struct tdm_ticker *waiting; /* reports slow work before the first step; NULL: none */
};

/* Sets quiet if TIDEMARK_PROGRESS is "no". */
void tdm_progress_begin(struct tdm_progress *progress, FILE *out, uint64_t steps);

/* Seconds between two plain lines, from the duration of a step. Longer steps give longer pauses. */
double tdm_progress_pause(double seconds);

/* A listener that reports to `progress`, which must outlive it. */
struct tdm_run_listener tdm_progress_listener(struct tdm_progress *progress);

/* Did all schedules train to their end, and was saved what was to be saved? */
bool tdm_progress_finished(const struct tdm_run_options *options,
                           const struct tdm_run_result *results);

/* Prints the summary: losses, speed, memory planned and touched. */
void tdm_progress_end(struct tdm_progress *progress, const struct tdm_run_options *options,
                      const struct tdm_run_result *results, enum tdm_status status);

#endif
