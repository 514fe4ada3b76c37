/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a new trace. */
#ifndef TDM_TRACES_CREATE_H
#define TDM_TRACES_CREATE_H

#include "traces/trace.h"

#include <sqlite3.h>

/* Refuses what tdm_trace_create() would, before the work for it is done: an existing file without
 * `force`, one that another run is writing, a link that leads to nothing, a directory that cannot
 * be written. With `sweeps`, what killed runs left beside it is removed. */
enum tdm_status tdm_trace_check(const char *path, bool force, bool sweeps, struct tdm_error *err);

/* Makes a database at `path` that holds the schema and the run, and opens it for the writing of
 * steps. An existing file is refused (TDM_USAGE, hint --force) unless `force`, which replaces it at
 * the last moment, but not one that another run is writing. On failure no new file is left. The
 * caller owns *db, *file, the path with symbolic links followed, and *lock, a descriptor that keeps
 * others from replacing the file; it is to be closed after *db. */
enum tdm_status tdm_trace_create(const char *path, bool force, const struct tdm_trace_run *run,
                                 char **file, sqlite3 **db, int *lock, struct tdm_error *err);

/* Does SQLite keep files beside a trace that is closed, as where it could not write the last of
 * it? */
bool tdm_trace_has_companions(const char *file);

/* Removes a trace that is not open, with what SQLite keeps beside it. */
void tdm_trace_remove(const char *file);

#endif
