/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the progress of a long computation (base/ticker.h): a thread waits and writes at
 * intervals. */
#include "base/ticker.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUIET_SECONDS 1    /* at the beginning */
#define TERMINAL_SECONDS 1 /* between updates of the line */
#define LINE_SECONDS 10    /* between lines that stay */

static double seconds_since(const struct timespec *begin)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin->tv_sec) + 1e-9 * (double)(now.tv_nsec - begin->tv_nsec);
}

/* The caller holds the lock. */
static void write_line(struct tdm_ticker *ticker)
{
    fprintf(ticker->out, ticker->terminal ? "\r\033[K%s (%.0f s)" : "%s (%.0f s)\n", ticker->text,
            seconds_since(&ticker->begin));
    fflush(ticker->out);
    ticker->shown = true;
}

static void *tick(void *self)
{
    struct tdm_ticker *ticker = self;
    struct timespec due = ticker->begin;
    pthread_mutex_lock(&ticker->lock);
    due.tv_sec += QUIET_SECONDS;
    while (!ticker->ends) {
        if (pthread_cond_timedwait(&ticker->changed, &ticker->lock, &due) == 0)
            continue; /* it ends, or this was a spurious wake-up */
        write_line(ticker);
        due.tv_sec += ticker->terminal ? TERMINAL_SECONDS : LINE_SECONDS;
    }
    pthread_mutex_unlock(&ticker->lock);
    return NULL;
}

/* The condition uses a clock that nobody sets. */
static bool open_locks(struct tdm_ticker *ticker)
{
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic) != 0)
        return false;
    bool made = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(&ticker->changed, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    if (made && pthread_mutex_init(&ticker->lock, NULL) != 0) {
        pthread_cond_destroy(&ticker->changed);
        made = false;
    }
    return made;
}

static void close_locks(struct tdm_ticker *ticker)
{
    pthread_mutex_destroy(&ticker->lock);
    pthread_cond_destroy(&ticker->changed);
}

void tdm_ticker_begin(struct tdm_ticker *ticker, FILE *out, const char *text)
{
    const char *wanted = getenv("TIDEMARK_PROGRESS");
    *ticker = (struct tdm_ticker){.out = out, .terminal = out != NULL && isatty(fileno(out)) == 1};
    if (out == NULL || (wanted != NULL && strcmp(wanted, "no") == 0) || !open_locks(ticker))
        return;
    snprintf(ticker->text, sizeof(ticker->text), "%s", text);
    clock_gettime(CLOCK_MONOTONIC, &ticker->begin);
    /* signals go to the threads of the command, which may have blocked them */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ticker->runs = pthread_create(&ticker->thread, NULL, tick, ticker) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!ticker->runs)
        close_locks(ticker);
}

void tdm_ticker_say(struct tdm_ticker *ticker, const char *format, ...)
{
    if (!ticker->runs)
        return;
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&ticker->lock);
    vsnprintf(ticker->text, sizeof(ticker->text), format, args);
    pthread_mutex_unlock(&ticker->lock);
    va_end(args);
}

void tdm_ticker_end(struct tdm_ticker *ticker)
{
    if (!ticker->runs)
        return;
    pthread_mutex_lock(&ticker->lock);
    ticker->ends = true;
    pthread_cond_signal(&ticker->changed);
    pthread_mutex_unlock(&ticker->lock);
    pthread_join(ticker->thread, NULL);
    close_locks(ticker);
    ticker->runs = false;
    if (ticker->terminal && ticker->shown) {
        fputs("\r\033[K", ticker->out);
        fflush(ticker->out);
    }
}
