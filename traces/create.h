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

/* Does a run write the trace at `path`? Also true where there are no locks to tell. Not to be asked
 * while this process has the trace open: it would lose SQLite's locks. */
bool tdm_trace_is_written(const char *path);

/* The file of a new trace. */
struct tdm_trace_file {
    char *path; /* with symbolic links resolved; owned */
    char *old; /* the name of the file that it replaced, until that is removed; NULL: none; owned */
    int lock;  /* descriptor that keeps others from replacing the file; closed after the database */
};

/* Creates a database at `path` with the schema and the run, and opens it for writing steps. An
 * existing file is refused (TDM_USAGE, hint --force) unless `force`, which replaces it at the last
 * moment, but never one that another run is writing. On failure no new file is left, and the old
 * one is as it was. The caller owns *db, and ends *file with tdm_trace_file_close() after it. */
enum tdm_status tdm_trace_create(const char *path, bool force, const struct tdm_trace_run *run,
                                 struct tdm_trace_file *file, sqlite3 **db, struct tdm_error *err);

/* The new trace stays: removes the file that it replaced. */
void tdm_trace_file_keep(struct tdm_trace_file *file);

/* It does not: removes it, whose database is closed, and gives the old one its name again. */
void tdm_trace_file_undo(struct tdm_trace_file *file);

/* Closes the lock, and frees. */
void tdm_trace_file_close(struct tdm_trace_file *file);

#endif
