/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a run: part of run.c, in a file of its own. */
#ifndef TDM_EXECUTOR_RUN_PATHS_H
#define TDM_EXECUTOR_RUN_PATHS_H

#include "executor/run.h"

/* What can be told of them before anything is read: TDM_IO if a text cannot be opened; TDM_USAGE if
 * something that the run writes would take the place of what it reads, or of another thing that it
 * writes; errors of tdm_trace_check(). */
enum tdm_status tdm_run_check_paths(const struct tdm_run_options *options, struct tdm_error *err);

#endif
