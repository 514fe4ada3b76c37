/* SPDX-License-Identifier: Apache-2.0 */
/* Says on stderr how far a long answer is: one line that changes on a terminal, else a line now and then. */
#ifndef TDM_PLANNER_TICKER_H
#define TDM_PLANNER_TICKER_H

#include <stdbool.h>
#include <time.h>

struct tdm_ticker {
    bool terminal, shown, silent;
    struct timespec last;
};

/* Silent if TIDEMARK_PROGRESS is no. */
void tdm_ticker_begin(struct tdm_ticker *ticker);

/* Says it, unless that comes too early: nothing is said of the first two seconds. */
void tdm_ticker_say(struct tdm_ticker *ticker, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Clears the line. */
void tdm_ticker_end(struct tdm_ticker *ticker);

#endif
