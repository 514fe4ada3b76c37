/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a new trace. */
#ifndef TDM_TRACES_CREATE_H
#define TDM_TRACES_CREATE_H

#include "traces/trace.h"

#include <sqlite3.h>

/* Makes a database at `path` that holds the schema and the run, and opens it for the writing of
 * steps. An existing file is refused (TDM_USAGE, hint --force) unless `force`, which replaces it
 * at the last moment. On failure no new file is left. The caller owns *db and *file, the path
 * with symbolic links followed. */
enum tdm_status tdm_trace_create(const char *path, bool force, const struct tdm_trace_run *run,
                                 char **file, sqlite3 **db, struct tdm_error *err);

/* Removes a trace that is not open, with what SQLite keeps beside it. */
void tdm_trace_remove(const char *file);

#endif
