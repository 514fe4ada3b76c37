/* SPDX-License-Identifier: Apache-2.0 */
/* Locks that say that a file or a directory is being written. They end with the process that holds
 * them. */
#ifndef TDM_BASE_LOCK_H
#define TDM_BASE_LOCK_H

/* Locks what `fd` has open until that is closed; it does not wait. Returns 0, EAGAIN if another
 * open file has the lock, or another errno where the file system has no locks, or none for a file
 * that is open for reading alone. A file is locked at one byte far behind its end, so that SQLite's
 * own locks are not touched; closing another descriptor of the file does not end the lock. */
int tdm_lock_take(int fd);

#endif
