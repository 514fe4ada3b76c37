/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories written whole: files go into a directory of a temporary name beside the target, which
 * is then renamed. Whoever looks at the target sees the old directory or the new one, never a part.
 */
#ifndef TDM_BASE_DIRECTORY_H
#define TDM_BASE_DIRECTORY_H

#include "base/status.h"

#include <stdbool.h>

/* The directory that holds `path`; malloc'ed, NULL: no memory. */
char *tdm_directory_parent(const char *path);

/* Can something be made beside `path`? 0, or the errno that says why not. */
int tdm_directory_reason(const char *path);

/* May a file of this name be removed with the directory that is replaced? */
typedef bool (*tdm_directory_owns)(const char *name);

/* May `path` be written? Yes if there is nothing, or an empty directory, or, with `force`, one that
 * holds only files that `owns` accepts. TDM_USAGE says what is there, TDM_IO what cannot be done.
 * With `sweeps`, what processes that were killed left beside it is removed. */
enum tdm_status tdm_directory_check(const char *path, bool force, bool sweeps,
                                    tdm_directory_owns owns, struct tdm_error *err);

struct tdm_directory {
    char *path;      /* the target */
    char *temporary; /* where its files are to be written */
    int lock;        /* descriptor that keeps others off it */
    tdm_directory_owns owns;
};

/* Checks `path` and makes the temporary directory. On success the caller ends *directory with
 * tdm_directory_commit() or tdm_directory_abandon(). */
enum tdm_status tdm_directory_begin(const char *path, bool force, tdm_directory_owns owns,
                                    struct tdm_directory *directory, struct tdm_error *err);

/* Puts it in place of the target and removes what was there. On failure nothing is left but what
 * was there. */
enum tdm_status tdm_directory_commit(struct tdm_directory *directory, struct tdm_error *err);

/* Removes it with its files; does nothing after commit or abandon. */
void tdm_directory_abandon(struct tdm_directory *directory);

#endif
