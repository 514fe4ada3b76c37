/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Temporary files and directories beside the file that they become: "TARGET.tmpPID-N". A killed
 * process leaves them behind; the next writer of the same target removes them.
 */
#ifndef TDM_BASE_TEMPORARY_H
#define TDM_BASE_TEMPORARY_H

/* Creates a file, open for reading and writing, or a directory, and locks it. Returns 0 or errno.
 * On success the caller owns *name, malloc'ed, and *fd, and keeps *fd open while it writes. */
int tdm_temporary_file(const char *target, char **name, int *fd);
int tdm_temporary_directory(const char *target, char **name, int *fd);

/* Calls `remove` for every file or directory "TARGET.tmpPID-N", and for those with `suffix` after
 * that name (NULL: none), if this user owns it and nobody writes it: the process of that number has
 * ended, and it is not locked. If that cannot be determined, it stays. Links are not followed. */
void tdm_temporary_sweep(const char *target, const char *suffix,
                         void (*remove)(void *self, const char *path), void *self);

#endif
