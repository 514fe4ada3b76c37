/* SPDX-License-Identifier: Apache-2.0 */
/* The files that SQLite keeps beside a database: its name with -wal, -shm or -journal after it. A
 * new trace removes what a killed run left of them, but no other file of such a name. */
#ifndef TDM_TRACES_COMPANIONS_H
#define TDM_TRACES_COMPANIONS_H

#include "base/status.h"

#include <stdbool.h>

#define TDM_COMPANIONS 3

/* Name of a companion, `which` < TDM_COMPANIONS, of the database that `path` names, links followed;
 * malloc'ed. NULL if memory ran out. */
char *tdm_companion_path(const char *path, unsigned which);

/* Refuses companions of `file` that must not be removed: TDM_USAGE. These are files that SQLite did
 * not write and, unless `force`, those whose database is not there (`exists`). */
enum tdm_status tdm_companions_check(const char *file, bool exists, bool force,
                                     struct tdm_error *err);

/* Removes them. */
void tdm_companions_remove(const char *file);

/* Removes those of temporary databases of `file` (base/temporary.h) that are gone, as are the
 * processes that wrote them. */
void tdm_companions_sweep(const char *file);

/* Gives them the names that they have beside `other`. Returns 0 or errno. */
int tdm_companions_move(const char *file, const char *other);

/* Is there a write-ahead log, because SQLite could not write a database's end? */
bool tdm_companions_left(const char *file);

#endif
