/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark calibrate`, as tidemark-executor carries it out. */
#ifndef TDM_EXECUTOR_CMD_CALIBRATE_H
#define TDM_EXECUTOR_CMD_CALIBRATE_H

#include "base/status.h"

#include <signal.h>

/* argv[0] is "calibrate". A non-zero *stop ends it: TDM_INTERRUPTED. */
enum tdm_status tdm_cmd_calibrate(int argc, char **argv, const volatile sig_atomic_t *stop,
                                  struct tdm_error *err);

#endif
