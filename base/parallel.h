/* SPDX-License-Identifier: Apache-2.0 */
/* Runs independent tasks on the processors of this computer. */
#ifndef TDM_BASE_PARALLEL_H
#define TDM_BASE_PARALLEL_H

#include "base/status.h"

#include <stddef.h>

/* A task. Several run at the same time, each with its own *err. */
typedef enum tdm_status (*tdm_task)(void *self, size_t number, struct tdm_error *err);

/* Runs the tasks 0 to count - 1, in this order, as threads become free. There are at most
 * `most_threads`, the caller's included, and at most one per processor that this process may use.
 * Fails with the error of the failed task that has the lowest number; tasks that have not begun by
 * then are not run. */
enum tdm_status tdm_parallel(size_t count, size_t most_threads, tdm_task task, void *self,
                             struct tdm_error *err);

#endif
