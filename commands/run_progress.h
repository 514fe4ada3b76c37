/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of a run on a stream: on a terminal one line that is rewritten, else a plain line now
 * and then. Part of the program, not of the library: this prints.
 */
#ifndef TDM_COMMANDS_RUN_PROGRESS_H
#define TDM_COMMANDS_RUN_PROGRESS_H

#include "base/ticker.h"
#include "executor/run.h"

#include <stdio.h>
#include <time.h>

struct tdm_progress {
    FILE *out;
    bool terminal;
    bool quiet;                        /* nothing is said within steps */
    uint64_t steps;                    /* to do with each schedule */
    struct timespec printed;           /* when a plain line was printed last */
    const char *moving;                /* what is being done with weights; NULL: nothing */
    const struct tdm_program *program; /* whose steps are counted */
    double seconds;
    double validation_loss;     /* the last one; NAN: none */
    struct tdm_ticker *waiting; /* says before the steps what takes long; NULL: nobody does */
};

/* Quiet if TIDEMARK_PROGRESS is no. */
void tdm_progress_begin(struct tdm_progress *progress, FILE *out, uint64_t steps);

/* Seconds between two plain lines when a step has taken so many: more, the longer it takes. */
double tdm_progress_pause(double seconds);

/* A listener that reports to `progress`, which must outlive it. */
struct tdm_run_listener tdm_progress_listener(struct tdm_progress *progress);

/* What came of it: losses, speed, memory planned and touched. */
void tdm_progress_end(struct tdm_progress *progress, const struct tdm_run_options *options,
                      const struct tdm_run_result *results, enum tdm_status status);

#endif
