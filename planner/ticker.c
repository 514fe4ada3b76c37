/* SPDX-License-Identifier: Apache-2.0 */
/* How far a long answer is, on stderr. */
#include "planner/ticker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUIET_SECONDS 2.0    /* at the begin, and between lines that stay they are longer */
#define TERMINAL_SECONDS 0.1 /* between changes of the line */
#define LINE_SECONDS 10.0    /* between lines that stay */

void tdm_ticker_begin(struct tdm_ticker *ticker)
{
    const char *wanted = getenv("TIDEMARK_PROGRESS");
    *ticker = (struct tdm_ticker){.terminal = isatty(STDERR_FILENO) == 1,
                                  .silent = wanted != NULL && strcmp(wanted, "no") == 0};
    clock_gettime(CLOCK_MONOTONIC, &ticker->last);
}

void tdm_ticker_say(struct tdm_ticker *ticker, const char *format, ...)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (double)(now.tv_sec - ticker->last.tv_sec) +
                    1e-9 * (double)(now.tv_nsec - ticker->last.tv_nsec);
    double due = !ticker->terminal ? LINE_SECONDS
                 : ticker->shown   ? TERMINAL_SECONDS
                                   : QUIET_SECONDS;
    if (ticker->silent || passed < due)
        return;
    va_list args;
    va_start(args, format);
    if (ticker->terminal)
        fputs("\r\033[K", stderr);
    vfprintf(stderr, format, args);
    if (!ticker->terminal)
        fputc('\n', stderr);
    fflush(stderr);
    va_end(args);
    ticker->last = now;
    ticker->shown = true;
}

void tdm_ticker_end(struct tdm_ticker *ticker)
{
    if (ticker->terminal && ticker->shown)
        fputs("\r\033[K", stderr);
    ticker->shown = false;
}
