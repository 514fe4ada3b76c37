/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a new trace: made under a temporary name beside its own, with schema and run in it,
 * and then renamed, so that a failure leaves an old file as it was and no new one.
 */
#include "traces/create.h"

#include "traces/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum tdm_status create_failed(const char *path, int reason, struct tdm_error *err)
{
    tdm_fail(err, TDM_IO, "%s: cannot be created: %s", path, strerror(reason));
    if (reason == ENOENT || reason == ENOTDIR)
        tdm_hint(err, "create the directory first");
    else if (reason == EACCES || reason == EROFS || reason == EPERM)
        tdm_hint(err, "write the trace to a place that you may write to");
    else if (reason == ENOSPC || reason == EDQUOT)
        tdm_hint(err, "free space on that file system, or write the trace elsewhere");
    return TDM_IO;
}

static void unlink_beside(const char *file, const char *suffix)
{
    size_t room = strlen(file) + strlen(suffix) + 1;
    char *name = malloc(room);
    if (name == NULL)
        return;
    snprintf(name, room, "%s%s", file, suffix);
    (void)unlink(name);
    free(name);
}

/* What SQLite keeps beside a database. Left by a killed run, it would be read as part of a new
 * one. */
static void unlink_companions(const char *file)
{
    unlink_beside(file, "-wal");
    unlink_beside(file, "-shm");
    unlink_beside(file, "-journal");
}

void tdm_trace_remove(const char *file)
{
    (void)unlink(file);
    unlink_companions(file);
}

static enum tdm_status execute(sqlite3 *db, const char *path, const char *sql,
                               struct tdm_error *err)
{
    return tdm_sqlite_status(sqlite3_exec(db, sql, NULL, NULL, NULL), TDM_SQLITE_WRITE, path, db,
                             err);
}

static enum tdm_status use_wal(sqlite3 *db, const char *path, struct tdm_error *err)
{
    /* Where a file system cannot do WAL, SQLite stays with its journal, which serves as well. */
    return execute(db, path, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;", err);
}

/* Writes schema and run into the empty file `file`; messages name `path`. */
static enum tdm_status fill_database(const char *file, const char *path,
                                     const struct tdm_trace_run *run, struct tdm_error *err)
{
    sqlite3 *db;
    enum tdm_status status = tdm_sqlite_open(file, SQLITE_OPEN_READWRITE, NULL, &db, err);
    if (status != TDM_OK)
        return status;

    char identity[96];
    snprintf(identity, sizeof(identity), "PRAGMA application_id = %d; PRAGMA user_version = %d;",
             TDM_TRACE_APPLICATION_ID, TDM_TRACE_VERSION);
    sqlite3_stmt *insert_run = NULL;
    status = use_wal(db, path, err);
    if (status == TDM_OK)
        status = execute(db, path, "BEGIN", err);
    if (status == TDM_OK)
        status = execute(db, path, identity, err);
    if (status == TDM_OK)
        status = execute(db, path, tdm_trace_schema, err);
    if (status == TDM_OK)
        status = tdm_sqlite_status(sqlite3_prepare_v2(db,
                                                      "INSERT INTO run (command, backend, ran_on, "
                                                      "versions, started_at, resumed_from, "
                                                      "pinned_bytes, pageable_bytes) "
                                                      "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                                                      -1, &insert_run, NULL),
                                   TDM_SQLITE_WRITE, path, db, err);
    if (status == TDM_OK) {
        struct tdm_value values[] = {tdm_text(run->command),       tdm_text(run->backend),
                                     tdm_text(run->where),         tdm_text(run->versions),
                                     tdm_text(run->started_at),    tdm_text(run->resumed_from),
                                     tdm_count(run->pinned_bytes), tdm_count(run->pageable_bytes)};
        status =
            tdm_sqlite_run(db, path, insert_run, sizeof(values) / sizeof(values[0]), values, err);
    }
    sqlite3_finalize(insert_run);
    if (status == TDM_OK)
        status = execute(db, path, "COMMIT", err);
    if (status == TDM_OK)
        status = execute(db, path, "PRAGMA wal_checkpoint(TRUNCATE)", err);
    sqlite3_close(db);
    return status;
}

/* Gives the finished file its name: over an old file only if `replace`. 0 or errno. */
static int rename_to(const char *temporary, const char *file, bool replace)
{
    if (replace)
        return rename(temporary, file) == 0 ? 0 : errno;
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, file, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return errno;
    /* This file system cannot: a moment in which somebody else may create the file. */
    if (access(file, F_OK) == 0)
        return EEXIST;
    return rename(temporary, file) == 0 ? 0 : errno;
}

static enum tdm_status exists_already(const char *path, struct tdm_error *err)
{
    tdm_fail(err, TDM_USAGE, "%s: exists already", path);
    tdm_hint(err, "pass --force to overwrite it");
    return TDM_USAGE;
}

static enum tdm_status create_file(const char *file, const char *path, bool replace,
                                   mode_t old_mode, const struct tdm_trace_run *run,
                                   struct tdm_error *err)
{
    size_t room = strlen(file) + 40;
    char *temporary = malloc(room);
    if (temporary == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for the name of a file", path);
    int fd = -1;
    int reason = EEXIST;
    for (unsigned attempt = 0; reason == EEXIST && attempt < 100; attempt++) {
        snprintf(temporary, room, "%s.tmp%ld-%u", file, (long)getpid(), attempt);
        fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        reason = fd < 0 ? errno : 0;
    }
    enum tdm_status status;
    if (reason != 0) {
        status = create_failed(path, reason, err);
        goto free_name;
    }
    if (old_mode != 0)
        (void)fchmod(fd, old_mode);
    close(fd);

    status = fill_database(temporary, path, run, err);
    if (status != TDM_OK)
        goto remove_temporary;
    unlink_companions(file);
    reason = rename_to(temporary, file, replace);
    if (reason == 0)
        goto free_name;
    status = reason == EEXIST ? exists_already(path, err) : create_failed(path, reason, err);

remove_temporary:
    tdm_trace_remove(temporary);
free_name:
    free(temporary);
    return status;
}

/* The file that `path` names, symbolic links followed, and whether it is there. */
static enum tdm_status find_file(const char *path, bool force, char **file, bool *exists,
                                 mode_t *mode, struct tdm_error *err)
{
    struct stat info;
    if (path[0] == '\0')
        return tdm_fail(err, TDM_USAGE, "the name of the trace to write is empty");
    *exists = stat(path, &info) == 0;
    *mode = 0;
    if (*exists) {
        if (!force)
            return exists_already(path, err);
        if (!S_ISREG(info.st_mode))
            return tdm_fail(err, TDM_IO,
                            "%s: is not a regular file, so no trace can be written to it", path);
        *mode = info.st_mode & 07777;
    }
    *file = *exists ? realpath(path, NULL) : strdup(path);
    return *file == NULL ? create_failed(path, errno, err) : TDM_OK;
}

enum tdm_status tdm_trace_create(const char *path, bool force, const struct tdm_trace_run *run,
                                 char **file, sqlite3 **db, struct tdm_error *err)
{
    char *name = NULL;
    bool exists = false;
    mode_t old_mode = 0;
    sqlite3 *opened = NULL;
    enum tdm_status status = find_file(path, force, &name, &exists, &old_mode, err);
    if (status != TDM_OK)
        return status;
    status = create_file(name, path, exists, old_mode, run, err);
    if (status != TDM_OK)
        goto free_name;
    status = tdm_sqlite_open(name, SQLITE_OPEN_READWRITE, NULL, &opened, err);
    if (status == TDM_OK)
        status = use_wal(opened, path, err);
    if (status != TDM_OK)
        goto remove_file;
    *file = name;
    *db = opened;
    return TDM_OK;

remove_file:
    sqlite3_close(opened);
    tdm_trace_remove(name);
free_name:
    free(name);
    return status;
}
