/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot: a copy in host memory of the weights, masters and moments of a training after a step,
 * from which they can be read while the next step changes them. Of several processes each has one,
 * of the parts of its ranks.
 */
#ifndef TDM_EXECUTOR_SNAPSHOT_H
#define TDM_EXECUTOR_SNAPSHOT_H

#include "executor/arenas.h"

struct tdm_snapshot;

/* Takes memory for snapshots of a program's state, tdm_schedule_state_bytes() in all processes
 * together, and begins to touch it on a thread. The program must outlive it. TDM_NO_MEMORY. */
enum tdm_status tdm_snapshot_new(const struct tdm_program *program,
                                 const struct tdm_processes *processes,
                                 struct tdm_snapshot **snapshot, struct tdm_error *err);
void tdm_snapshot_free(struct tdm_snapshot *snapshot);

/* Copies the state from the arenas of the ranks of this process, on all processors that it may
 * use. */
enum tdm_status tdm_snapshot_take(struct tdm_snapshot *snapshot, const struct tdm_arenas *arenas,
                                  struct tdm_error *err);

/* Arenas for the functions of state.h that read state: they read it from the snapshot, which has
 * the parts of this process' ranks. */
const struct tdm_arenas *tdm_snapshot_arenas(const struct tdm_snapshot *snapshot);

/* Reads elements of a tensor's state as they are kept. The program has the content. */
void tdm_snapshot_read(const struct tdm_snapshot *snapshot, enum tdm_content content,
                       const struct tdm_tensor *tensor, uint64_t first, uint64_t count, void *data);

#endif
