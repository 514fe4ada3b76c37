/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows the progress of a long computation and how long it has taken. It shows nothing in the first
 * second, then one changing line on a terminal, or else a line from time to time. It writes from
 * its own thread, so that the computation need not call back. Do not use it while something else
 * writes to the same terminal.
 */
#ifndef TDM_BASE_TICKER_H
#define TDM_BASE_TICKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

struct tdm_ticker {
    FILE *out;
    bool terminal, runs, ends, shown;
    char text[160]; /* the current activity */
    struct timespec begin;
    pthread_t thread;
    pthread_mutex_t lock; /* of text, ends */
    pthread_cond_t changed;
};

/* Begins to show the current activity on `out`: "looking for the fastest schedule". Shows nothing
 * if `out` is NULL, if TIDEMARK_PROGRESS is "no", or if no thread can be started. */
void tdm_ticker_begin(struct tdm_ticker *ticker, FILE *out, const char *text);

/* Sets the current activity. */
void tdm_ticker_say(struct tdm_ticker *ticker, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends the display and clears its line. Does nothing if it has ended or if *ticker is all zero. */
void tdm_ticker_end(struct tdm_ticker *ticker);

#endif
