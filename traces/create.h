/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the file of a new trace. */
#ifndef TDM_TRACES_CREATE_H
#define TDM_TRACES_CREATE_H

#include "traces/trace.h"

#include <sqlite3.h>

/* Fails early where tdm_trace_create() would: an existing file without `force`, a file that another
 * run is writing, a file beside it that SQLite would need and did not write, a dangling link, a
 * directory that is not writable. With `sweeps`, also removes
 * temporary files that killed runs left beside it. */
enum tdm_status tdm_trace_check(const char *path, bool force, bool sweeps, struct tdm_error *err);

/* Creates a database at `path` with the schema and the run, and opens it for writing steps. An
 * existing file is refused (TDM_USAGE, hint --force) unless `force`, which replaces it at the last
 * moment, but never one that another run is writing. On failure no new file is left. The caller
 * owns *db; *file, the path with symbolic links resolved; and *lock, a descriptor that keeps others
 * from replacing the file. Close *lock after *db. */
enum tdm_status tdm_trace_create(const char *path, bool force, const struct tdm_trace_run *run,
                                 char **file, sqlite3 **db, int *lock, struct tdm_error *err);

/* Removes a trace that is not open, and SQLite's files beside it. */
void tdm_trace_remove(const char *file);

#endif
