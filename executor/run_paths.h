/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the files of a run; a part of run.c. */
#ifndef TDM_EXECUTOR_RUN_PATHS_H
#define TDM_EXECUTOR_RUN_PATHS_H

#include "executor/run.h"

/* Checks them before anything is read. TDM_IO if a text cannot be opened; TDM_USAGE if an output of
 * the run would replace one of its inputs or another of its outputs; errors of tdm_trace_check().
 * */
enum tdm_status tdm_run_check_paths(const struct tdm_run_options *options, struct tdm_error *err);

#endif
