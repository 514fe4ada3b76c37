/* SPDX-License-Identifier: Apache-2.0 */
/* A listener of a run for tests: it keeps what a resumed run says of differences, and nothing else.
 */
#ifndef TDM_TESTS_QUIET_RUN_H
#define TDM_TESTS_QUIET_RUN_H

#include "executor/run.h"

/* `differences` has 512 bytes. */
struct tdm_run_listener tdm_quiet_listener(char *differences);

/* Writes a schedule to a file. False if that fails. */
bool tdm_quiet_schedule(const struct tdm_schedule *schedule, const char *path);

#endif
