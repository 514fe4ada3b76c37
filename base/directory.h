/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes directories as a whole. Files go into a directory with a temporary name beside the target,
 * which is then renamed. A reader of the target sees the old directory or the new one, never a
 * part.
 */
#ifndef TDM_BASE_DIRECTORY_H
#define TDM_BASE_DIRECTORY_H

#include "base/status.h"

#include <stdbool.h>

/* `path` without slashes at its end; with links resolved if it exists. malloc'ed. NULL if memory
 * ran out. */
char *tdm_directory_target(const char *path);

/* The directory that contains `path`; malloc'ed. NULL if memory ran out. */
char *tdm_directory_parent(const char *path);

/* Can something be created beside `path`? Returns 0, or the errno that tells why not. */
int tdm_directory_reason(const char *path);

/* May a file of this name be removed with the directory that is replaced? A folder within it is
 * asked for as "FOLDER/", and, if that is accepted, its files as "FOLDER/NAME". */
typedef bool (*tdm_directory_owns)(const char *name);

/* May `path` be written? Yes if it does not exist, is an empty directory or, with `force`, contains
 * only files that `owns` accepts. TDM_USAGE names what is there, TDM_IO what cannot be done. With
 * `sweeps`, removes what killed processes left beside it. */
enum tdm_status tdm_directory_check(const char *path, bool force, bool sweeps,
                                    tdm_directory_owns owns, struct tdm_error *err);

/* TDM_USAGE: another run has locked what it writes in this directory. */
enum tdm_status tdm_directory_is_written(const char *path, struct tdm_error *err);

/* Waits until the names in a directory are on disk, or those in the directory that contains `path`.
 * Returns 0, or the errno of a disk that fails; 0 too where a directory cannot be synced. */
int tdm_directory_sync(const char *directory);
int tdm_directory_sync_parent(const char *path);

#define TDM_DIRECTORY_FOLDERS 2

struct tdm_directory {
    char *path;      /* the target */
    char *temporary; /* its files are written here */
    int lock;        /* descriptor that holds the lock against other processes */
    bool force;      /* replaces what has files already */
    tdm_directory_owns owns;
    char *folders[TDM_DIRECTORY_FOLDERS]; /* in `temporary`; NULL: none */
};

/* Checks `path` and makes the temporary directory. On success the caller ends *directory with
 * tdm_directory_commit() or tdm_directory_abandon(). */
enum tdm_status tdm_directory_begin(const char *path, bool force, tdm_directory_owns owns,
                                    struct tdm_directory *directory, struct tdm_error *err);

/* Makes a folder in the temporary directory, TDM_DIRECTORY_FOLDERS at most. TDM_IO. */
enum tdm_status tdm_directory_folder(struct tdm_directory *directory, const char *name,
                                     struct tdm_error *err);

/* Puts the directory in place of the target and removes the old one. On failure only the old one
 * remains, unless the disk fails after that: then the new one may be there. Without `force` it
 * fails if another process has written the target since tdm_directory_begin(). */
enum tdm_status tdm_directory_commit(struct tdm_directory *directory, struct tdm_error *err);

/* Removes the directory with its files. Does nothing after commit or abandon. */
void tdm_directory_abandon(struct tdm_directory *directory);

/* Removes a directory that was written so: first its name disappears, then its owned files and it.
 * TDM_IO: what cannot be removed stays, under a temporary name, which the message has. */
enum tdm_status tdm_directory_remove(const char *path, tdm_directory_owns owns,
                                     struct tdm_error *err);

#endif
