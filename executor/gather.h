/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of other processes have of a recorded step: their processes send it to process 0,
 * which writes the trace. */
#ifndef TDM_EXECUTOR_GATHER_H
#define TDM_EXECUTOR_GATHER_H

#include "executor/backend.h"
#include "executor/processes.h"
#include "traces/trace.h"

/* All: how far the clock of process `from` is ahead of that of process 0; 0 if they agree as far as
 * messages can tell. Only process 0 learns it. now(executor) reads the clock of this process. */
enum tdm_status tdm_gather_clock(struct tdm_processes *processes, uint32_t from,
                                 int64_t (*now)(struct tdm_executor *),
                                 struct tdm_executor *executor, int64_t *ahead_ns,
                                 struct tdm_error *err);

/* All: the arrays of a batch, its scalars and one number of process `from` come to process 0. There
 * the batch has the same capacity. */
enum tdm_status tdm_gather_batch(struct tdm_processes *processes, uint32_t from,
                                 struct tdm_trace_batch *batch, int64_t *number,
                                 struct tdm_error *err);

#endif
