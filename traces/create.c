/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates the file of a new trace. It is made under a temporary name in the same directory, with
 * schema and run in it, and then renamed. So a failure leaves an old file as it was, and no new
 * one. A run holds a lock on the trace that it writes, so that another run does not replace it.
 */
#include "traces/create.h"

#include "base/directory.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/temporary.h"
#include "traces/companions.h"
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
    if (reason == ENOMEM)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to create it", path);
    tdm_fail(err, TDM_IO, "%s: cannot be created: %s", path, strerror(reason));
    if (reason == ENOENT || reason == ENOTDIR)
        tdm_hint(err, "create the directory first");
    else if (reason == EACCES || reason == EROFS || reason == EPERM)
        tdm_hint(err, "write the trace to a place that you may write to");
    else if (reason == ENOSPC || reason == EDQUOT)
        tdm_hint(err, "free space on that file system, or write the trace elsewhere");
    return TDM_IO;
}

/* Removes a trace that is not open, after SQLite's files beside it: they are found by its name. */
static void remove_trace(const char *file)
{
    tdm_companions_remove(file);
    (void)unlink(file);
}

static enum tdm_status execute(sqlite3 *db, const char *path, const char *sql,
                               struct tdm_error *err)
{
    return tdm_sqlite_status(sqlite3_exec(db, sql, NULL, NULL, NULL), TDM_SQLITE_WRITE, path, db,
                             err);
}

static enum tdm_status use_wal(sqlite3 *db, const char *path, struct tdm_error *err)
{
    /* If the file system does not support WAL, SQLite keeps its journal, which works too. */
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

/* Exchanges the finished file with an old one, which then has the temporary name, as have SQLite's
 * files beside it. Where names cannot be exchanged, the old one is lost. Sets *exchanged. Returns 0
 * or errno. */
static int exchange(const char *temporary, const char *file, bool *exchanged)
{
    int reason = tdm_companions_move(file, temporary);
    if (reason == 0)
        reason = tdm_directory_sync_parent(file); /* the new one must not meet the old one's */
    if (reason == 0 && renameat2(AT_FDCWD, temporary, AT_FDCWD, file, RENAME_EXCHANGE) != 0)
        reason = errno;
    *exchanged = reason == 0;
    if (reason == EINVAL || reason == ENOSYS) {
        tdm_companions_remove(temporary);
        return rename(temporary, file) == 0 ? 0 : errno;
    }
    if (reason != 0)
        (void)tdm_companions_move(temporary, file);
    return reason;
}

/* Gives the finished file a name that nothing has. Returns 0 or errno. */
static int rename_to(const char *temporary, const char *file)
{
    tdm_companions_remove(file); /* of a database that is not there any more */
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, file, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return errno;
    /* This file system does not support it: between the next two calls somebody may create it. */
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

static enum tdm_status is_written(const char *path, struct tdm_error *err)
{
    tdm_fail(err, TDM_USAGE, "%s: another run is writing it", path);
    return tdm_hint(err, "wait until that ends, or name another file");
}

/* Locks the existing file, so that no run loses the file that it writes, and no two runs replace it
 * at once. Where there are no locks, the file counts as free. On success *lock is a descriptor to
 * close, or -1 if there is no file. */
static enum tdm_status lock_old(const char *file, const char *path, int *lock,
                                struct tdm_error *err)
{
    struct stat locked, named;
    for (;;) {
        int fd = open(file, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0 && errno == ENOENT) {
            *lock = -1;
            return TDM_OK;
        }
        if (fd < 0)
            return create_failed(path, errno, err);
        if (tdm_lock_take(fd) == EAGAIN) {
            close(fd);
            return is_written(path, err);
        }
        bool same = fstat(fd, &locked) == 0 && stat(file, &named) == 0 &&
                    locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
        if (same) {
            *lock = fd;
            return TDM_OK;
        }
        close(fd); /* it was replaced meanwhile */
    }
}

bool tdm_trace_is_written(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    const bool held = tdm_lock_is_held(fd);
    close(fd);
    return held;
}

/* Creates the file of `file->path`, and sets its lock and its old file. */
static enum tdm_status create_file(struct tdm_trace_file *file, const char *path, bool replace,
                                   mode_t old_mode, const struct tdm_trace_run *run,
                                   struct tdm_error *err)
{
    bool exchanged = false;
    char *temporary = NULL;
    int fd = -1, reason = tdm_temporary_file(file->path, &temporary, &fd);
    if (reason != 0)
        return create_failed(path, reason, err);
    if (old_mode != 0)
        (void)fchmod(fd, old_mode);

    enum tdm_status status = fill_database(temporary, path, run, err);
    if (status == TDM_OK) {
        reason = replace ? exchange(temporary, file->path, &exchanged)
                         : rename_to(temporary, file->path);
        if (reason == EEXIST)
            status = exists_already(path, err);
        else if (reason != 0)
            status = create_failed(path, reason, err);
    }
    if (status != TDM_OK) {
        remove_trace(temporary);
        close(fd);
    } else {
        file->lock = fd;
        file->old = exchanged ? temporary : NULL;
    }
    if (!exchanged)
        free(temporary);
    return status;
}

/* Refuses to replace a file that is neither a trace nor empty: it is the work of others. */
static enum tdm_status check_replaced(const char *path, struct tdm_error *err)
{
    static const char magic[16] = "SQLite format 3"; /* sqlite.org/fileformat.html, 1.3 */
    enum { HEADER = 100, APPLICATION_ID = 68 };      /* big-endian */
    unsigned char header[HEADER], id[4];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t got = fd < 0 ? -1 : pread(fd, header, sizeof(header), 0);
    const int reason = errno;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return create_failed(path, reason, err);
    for (int i = 0; i < 4; i++)
        id[i] = (unsigned char)(TDM_TRACE_APPLICATION_ID >> (24 - 8 * i));
    if (got == 0 || (got == HEADER && memcmp(header, magic, sizeof(magic)) == 0 &&
                     memcmp(header + APPLICATION_ID, id, sizeof(id)) == 0))
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "%s: is no trace, so it is not overwritten", path);
    return tdm_hint(err, "name another file, or remove that one");
}

/* Finds the file that `path` names, following symbolic links, and whether it exists. Refuses what
 * must not be replaced. */
static enum tdm_status find_file(const char *path, bool force, char **file, bool *exists,
                                 mode_t *mode, struct tdm_error *err)
{
    struct stat info;
    if (path[0] == '\0')
        return tdm_fail(err, TDM_USAGE, "the name of the trace to write is empty");
    *exists = stat(path, &info) == 0;
    *mode = 0;
    if (!*exists && tdm_file_check_link(path, err) != TDM_OK)
        return TDM_USAGE;
    if (*exists) {
        enum tdm_status status = S_ISREG(info.st_mode) ? check_replaced(path, err) : TDM_OK;
        if (status != TDM_OK)
            return status;
        if (!force)
            return exists_already(path, err);
        if (!S_ISREG(info.st_mode))
            return tdm_fail(err, TDM_IO,
                            "%s: is not a regular file, so no trace can be written to it", path);
        *mode = info.st_mode & 07777;
    }
    *file = *exists ? realpath(path, NULL) : strdup(path);
    if (*file == NULL)
        return create_failed(path, errno, err);
    enum tdm_status status = tdm_companions_check(*file, *exists, force, err);
    if (status != TDM_OK)
        free(*file);
    return status;
}

static void remove_left(void *unused, const char *path)
{
    (void)unused;
    remove_trace(path);
}

enum tdm_status tdm_trace_check(const char *path, bool force, bool sweeps, struct tdm_error *err)
{
    char *name = NULL;
    bool exists = false;
    mode_t mode = 0;
    int lock = -1;
    enum tdm_status status = find_file(path, force, &name, &exists, &mode, err);
    if (status != TDM_OK)
        return status;
    int reason = tdm_directory_reason(name);
    if (reason != 0)
        status = create_failed(path, reason, err);
    else
        status = lock_old(name, path, &lock, err);
    if (status == TDM_OK && sweeps) {
        tdm_temporary_sweep(name, NULL, remove_left, NULL);
        tdm_companions_sweep(name);
    }
    if (lock >= 0)
        close(lock);
    free(name);
    return status;
}

void tdm_trace_file_keep(struct tdm_trace_file *file)
{
    if (file->old != NULL)
        remove_trace(file->old);
    free(file->old);
    file->old = NULL;
}

void tdm_trace_file_undo(struct tdm_trace_file *file)
{
    remove_trace(file->path);
    if (file->old != NULL && rename(file->old, file->path) == 0)
        (void)tdm_companions_move(file->old, file->path);
    free(file->old);
    file->old = NULL;
}

void tdm_trace_file_close(struct tdm_trace_file *file)
{
    if (file->path != NULL && file->lock >= 0)
        (void)close(file->lock);
    free(file->path);
    free(file->old);
    *file = (struct tdm_trace_file){.lock = -1};
}

enum tdm_status tdm_trace_create(const char *path, bool force, const struct tdm_trace_run *run,
                                 struct tdm_trace_file *out, sqlite3 **db, struct tdm_error *err)
{
    struct tdm_trace_file file = {.lock = -1};
    bool exists = false;
    mode_t old_mode = 0;
    sqlite3 *opened = NULL;
    int old_lock = -1;
    enum tdm_status status = find_file(path, force, &file.path, &exists, &old_mode, err);
    if (status != TDM_OK)
        return status;
    status = lock_old(file.path, path, &old_lock, err);
    if (status == TDM_OK)
        status = create_file(&file, path, exists, old_mode, run, err);
    if (old_lock >= 0)
        close(old_lock);
    if (status != TDM_OK)
        goto close_file;
    int reason = tdm_directory_sync_parent(file.path);
    status = reason == 0 ? tdm_sqlite_open(file.path, SQLITE_OPEN_READWRITE, NULL, &opened, err)
                         : create_failed(path, reason, err);
    if (status == TDM_OK)
        status = use_wal(opened, path, err);
    if (status != TDM_OK)
        goto undo;
    *out = file;
    *db = opened;
    return TDM_OK;

undo:
    sqlite3_close(opened);
    tdm_trace_file_undo(&file);
close_file:
    tdm_trace_file_close(&file);
    return status;
}
