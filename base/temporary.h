/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Temporary files and directories beside the file that they become: "TARGET.tmpPID-N". A process
 * that is killed leaves them behind; whoever writes the same target next removes them.
 */
#ifndef TDM_BASE_TEMPORARY_H
#define TDM_BASE_TEMPORARY_H

/* Makes a new file, open for reading and writing, or a directory, and locks it. Returns 0 or errno.
 * On success the caller owns *name, malloc'ed, and *fd, and keeps *fd open for as long as it
 * writes. */
int tdm_temporary_file(const char *target, char **name, int *fd);
int tdm_temporary_directory(const char *target, char **name, int *fd);

/* Calls `remove` for every file or directory "TARGET.tmpPID-N", and for what has `suffix` behind
 * that name (NULL: none), that is this user's and that nobody writes: no process has that number,
 * and it is not locked. Where that cannot be told it stays. Links are not followed. */
void tdm_temporary_sweep(const char *target, const char *suffix,
                         void (*remove)(void *self, const char *path), void *self);

#endif
