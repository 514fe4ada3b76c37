/* SPDX-License-Identifier: Apache-2.0 */
/* Locks that tell that a file or a directory is being written. They end with the process that holds
 * them. */
#ifndef TDM_BASE_LOCK_H
#define TDM_BASE_LOCK_H

#include <stdbool.h>

/* Locks what `fd` has open until that is closed. Does not wait. Returns 0, EAGAIN if another open
 * file has the lock, or another errno if the file system has no locks, or has none for a file
 * opened only for reading. A file is locked at one byte far beyond its end, so that SQLite's own
 * locks are not affected. Closing another descriptor of the file does not end the lock. */
int tdm_lock_take(int fd);

/* Does another open file hold the lock of a file? Also true if that cannot be found out. `fd` may
 * be open only for reading. */
bool tdm_lock_is_held(int fd);

/* The same of a file by its name, as a run holds it on what it writes. False where that cannot be
 * found out. */
bool tdm_lock_is_taken(const char *path);

#endif
