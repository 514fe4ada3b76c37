/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says how far a long answer is, and since when it is awaited: nothing in the first second, then on
 * a terminal one line that changes, else a line now and then. A thread of its own writes, so that
 * what takes long need not call back. Not for what writes to the same terminal meanwhile.
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
    char text[160]; /* what is being done */
    struct timespec begin;
    pthread_t thread;
    pthread_mutex_t lock; /* of text, ends */
    pthread_cond_t changed;
};

/* Begins to say on `out` what is being done: "looking for the fastest schedule". Says nothing if
 * TIDEMARK_PROGRESS is no, or no thread can be had. */
void tdm_ticker_begin(struct tdm_ticker *ticker, FILE *out, const char *text);

/* What is being done now. */
void tdm_ticker_say(struct tdm_ticker *ticker, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends it, and clears the line. What has ended, or is all zero, stays so. */
void tdm_ticker_end(struct tdm_ticker *ticker);

#endif
