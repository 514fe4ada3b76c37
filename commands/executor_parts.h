/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that tidemark-executor runs. Only for executor_*.c. */
#ifndef TDM_COMMANDS_EXECUTOR_PARTS_H
#define TDM_COMMANDS_EXECUTOR_PARTS_H

#include "base/status.h"

#include <signal.h>
#include <stdbool.h>

/* What signals ask for; 0: nothing. */
struct tdm_signals {
    volatile sig_atomic_t stop;     /* end as soon as possible, in order (TDM_INTERRUPTED) */
    volatile sig_atomic_t cut;      /* and do not wait for a step or a save */
    volatile sig_atomic_t save_now; /* save and go on */
};

/* argv[0] is the command's name. Errors are returned in err and not printed. *hangs is set if a
 * thread is in an op that does not end: nothing may be released then. */
enum tdm_status tdm_executor_run(int argc, char **argv, struct tdm_signals *signals, bool *hangs,
                                 struct tdm_error *err);

/* Prints an error and its hint, once. */
void tdm_executor_say(struct tdm_error *err);

enum tdm_status tdm_executor_calibrate(int argc, char **argv, const volatile sig_atomic_t *stop,
                                       struct tdm_error *err);

#endif
