/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that tidemark-executor carries out. For executor_*.c alone. */
#ifndef TDM_COMMANDS_EXECUTOR_PARTS_H
#define TDM_COMMANDS_EXECUTOR_PARTS_H

#include "base/status.h"

#include <signal.h>

/* argv[0] is the command's name; a non-zero *stop ends it (TDM_INTERRUPTED). What fails is in err
 * and not printed. */
enum tdm_status tdm_executor_run(int argc, char **argv, const volatile sig_atomic_t *stop,
                                 struct tdm_error *err);
enum tdm_status tdm_executor_calibrate(int argc, char **argv, const volatile sig_atomic_t *stop,
                                       struct tdm_error *err);

#endif
