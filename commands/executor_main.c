/* SPDX-License-Identifier: Apache-2.0 */
/* tidemark-executor: runs schedules and calibrates. tidemark starts it, as git starts its
 * commands. */
#include "base/file.h"
#include "base/process.h"
#include "commands/executor_parts.h"
#include "executor/processes.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct tdm_signals signals;

/* The first signal asks to stop, the second to stop in the middle of what the first one lets end,
 * and the third kills. */
static void interrupt(int signal_number)
{
    if (!signals.stop) {
        signals.stop = 1;
        return;
    }
    signals.cut = 1;
    (void)signal(signal_number, SIG_DFL);
}

static void save_now(int signal_number)
{
    (void)signal_number;
    signals.save_now = 1;
}

/* The first thing: SIGUSR1 kills a program that does not take it. tidemark held back what came
 * before.
 */
static void take_signals(bool runs)
{
    struct sigaction action = {.sa_handler = interrupt}, saving = {.sa_handler = save_now};
    struct sigaction hangup;
    sigset_t held;
    if (runs)
        sigaction(SIGUSR1, &saving, NULL);
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &held, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* SIGHUP ends a run like SIGTERM, unless nohup ignores it */
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
}

static enum tdm_status start(int argc, char **argv, bool *hangs, struct tdm_error *err)
{
    const bool runs = argc >= 2 && strcmp(argv[1], "run") == 0;
    take_signals(runs);
    enum tdm_status status = tdm_process_begin(err);
    if (status != TDM_OK)
        return status;
    if (runs)
        return tdm_executor_run(argc - 1, argv + 1, &signals, hangs, err);
    if (argc >= 2 && strcmp(argv[1], "calibrate") == 0)
        return tdm_executor_calibrate(argc - 1, argv + 1, &signals.stop, err);
    return tdm_fail(err, TDM_USAGE,
                    "tidemark-executor is started by tidemark run and tidemark calibrate");
}

void tdm_executor_say(struct tdm_error *err)
{
    if (err->message[0] == '\0') /* it has been said, or another process says it */
        return;
    fprintf(stderr, "tidemark: %s\n", err->message);
    if (err->hint[0] != '\0')
        fprintf(stderr, "hint: %s\n", err->hint);
    err->message[0] = '\0';
}

int main(int argc, char **argv)
{
    struct tdm_error err = {0};
    bool hangs = false;
    enum tdm_status status = start(argc, argv, &hangs, &err);
    if (status == TDM_OK)
        status = tdm_stdout_end(&err);
    if (status != TDM_OK)
        tdm_executor_say(&err);
    tdm_processes_abort(tdm_exit_code(status));
    if (hangs) /* libraries might wait for the thread at exit */
        _exit(tdm_exit_code(status));
    return tdm_exit_code(status);
}
