/* SPDX-License-Identifier: Apache-2.0 */
/* Writes files as a whole: a reader sees the old file or the new one, never a part of one, and a
 * failed write leaves nothing behind. Also reads whole files. */
#include "base/file.h"

#include "base/directory.h"
#include "base/lock.h"
#include "base/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns the errno of a failure, or 0. */
static int write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, data, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? errno : ENOSPC;
        data += written;
        bytes -= (size_t)written;
    }
    return 0;
}

enum tdm_status tdm_file_failed(const char *path, int reason, struct tdm_error *err)
{
    if (reason == ENOMEM)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", path);
    tdm_fail(err, TDM_IO, "%s: cannot be written: %s", path, strerror(reason));
    if (reason == ENOSPC || reason == EDQUOT)
        tdm_hint(err, "free space on that file system, or write elsewhere");
    else if (reason == ENOENT)
        tdm_hint(err, "create the directory first");
    else if (reason == ENOTDIR)
        tdm_hint(err, "a part of that path is a file");
    else if (reason == EACCES || reason == EROFS || reason == EPERM)
        tdm_hint(err, "write to a place that you may write to");
    else if (reason == ENAMETOOLONG)
        tdm_hint(err,
                 "choose a shorter name: while it is written a few characters are added to it");
    else if (reason == EFBIG)
        tdm_hint(err, "raise the limit on the size of files (ulimit -f)");
    return TDM_IO;
}

enum tdm_status tdm_file_put(int fd, const char *path, const void *data, size_t bytes,
                             struct tdm_error *err)
{
    int reason = write_all(fd, data, bytes);
    return reason == 0 ? TDM_OK : tdm_file_failed(path, reason, err);
}

static enum tdm_status write_stdout(const void *data, size_t bytes, struct tdm_error *err)
{
    if (fwrite(data, 1, bytes, stdout) != bytes || fflush(stdout) != 0) {
        int reason = errno;
        clearerr(stdout);
        return tdm_file_failed("standard output", reason, err);
    }
    return TDM_OK;
}

enum tdm_status tdm_stdout_end(struct tdm_error *err)
{
    errno = 0;
    const bool earlier = ferror(stdout);
    if (fflush(stdout) == 0 && !earlier)
        return TDM_OK;
    return tdm_file_failed("standard output", errno != 0 ? errno : EIO, err);
}

/* Writes to a device or a pipe. There is no old file to keep, and a rename would remove the
 * device. */
static enum tdm_status write_in_place(const char *path, const void *data, size_t bytes,
                                      struct tdm_error *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return tdm_file_failed(path, errno, err);
    int reason = write_all(fd, data, bytes);
    if (close(fd) != 0 && reason == 0)
        reason = errno;
    return reason == 0 ? TDM_OK : tdm_file_failed(path, reason, err);
}

int tdm_file_move(const char *temporary, const char *path, bool force)
{
    struct stat info;
    if (!force && lstat(path, &info) == 0)
        return EEXIST;
    return rename(temporary, path) == 0 ? 0 : errno;
}

static enum tdm_status write_renamed(const char *path, const void *data, size_t bytes, bool force,
                                     mode_t old_mode, struct tdm_error *err)
{
    char *temporary = NULL;
    int fd = -1, reason = tdm_temporary_file(path, &temporary, &fd);
    if (reason != 0)
        return tdm_file_failed(path, reason, err);
    if (old_mode != 0)
        (void)fchmod(fd, old_mode);
    reason = write_all(fd, data, bytes);
    if (reason == 0 && fsync(fd) != 0)
        reason = errno;
    if (close(fd) != 0 && reason == 0)
        reason = errno;
    if (reason == 0)
        reason = tdm_file_move(temporary, path, force);
    if (reason == 0)
        reason = tdm_directory_sync_parent(path); /* the name is on disk only when this is */
    else
        (void)unlink(temporary);
    free(temporary);
    return reason == 0 ? TDM_OK : tdm_file_failed(path, reason, err);
}

enum tdm_status tdm_file_check_link(const char *path, struct tdm_error *err)
{
    struct stat info;
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode) || stat(path, &info) == 0)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "%s: is a symbolic link that leads to nothing", path);
    return tdm_hint(err, "remove the link, or create what it names");
}

static void remove_left(void *unused, const char *path)
{
    (void)unused;
    (void)unlink(path);
}

enum tdm_status tdm_file_check(const char *path, bool force, struct tdm_error *err)
{
    struct stat info;
    if (strcmp(path, "-") == 0)
        return TDM_OK;
    if (path[0] == '\0')
        return tdm_fail(err, TDM_USAGE, "the name of a file to write is empty");
    bool exists = stat(path, &info) == 0;
    if (!exists && tdm_file_check_link(path, err) != TDM_OK)
        return TDM_USAGE;
    if (exists && S_ISDIR(info.st_mode))
        return tdm_fail(err, TDM_IO, "%s: is a directory; name a file in it", path);
    if (exists && !S_ISREG(info.st_mode))
        return TDM_OK;
    if (exists && !force) {
        tdm_fail(err, TDM_USAGE, "%s: exists already", path);
        return tdm_hint(err, "pass --force to overwrite it");
    }
    if (exists && tdm_lock_is_taken(path)) {
        tdm_fail(err, TDM_USAGE, "%s: another run is writing it", path);
        return tdm_hint(err, "wait until that ends, or name another file");
    }
    char *target = exists ? realpath(path, NULL) : strdup(path);
    int reason = target == NULL ? errno : tdm_directory_reason(target);
    if (reason == 0)
        tdm_temporary_sweep(target, NULL, remove_left, NULL);
    free(target);
    return reason == 0 ? TDM_OK : tdm_file_failed(path, reason, err);
}

enum tdm_status tdm_file_write(const char *path, const void *data, size_t bytes, bool force,
                               struct tdm_error *err)
{
    struct stat info;
    enum tdm_status status = tdm_file_check(path, force, err);
    if (status != TDM_OK)
        return status;
    if (strcmp(path, "-") == 0)
        return write_stdout(data, bytes, err);
    if (stat(path, &info) != 0)
        return write_renamed(path, data, bytes, force, 0, err);
    if (!S_ISREG(info.st_mode))
        return write_in_place(path, data, bytes, err);

    /* If `path` is a symbolic link, the file that it names is replaced, not the link. */
    char *target = realpath(path, NULL);
    if (target == NULL)
        return tdm_file_failed(path, errno, err);
    status = write_renamed(target, data, bytes, true, info.st_mode & 07777, err);
    free(target);
    return status;
}

enum tdm_status tdm_file_read(const char *path, uint64_t limit_bytes, char **data, uint64_t *bytes,
                              struct tdm_error *err)
{
    enum tdm_status status;
    char *text = NULL;
    size_t used = 0;
    size_t capacity = 0;

    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return tdm_fail(err, TDM_IO, "%s: cannot be opened: %s", path, strerror(errno));
    for (;;) {
        if (used == capacity) {
            size_t larger = capacity == 0 ? 16384 : capacity * 2;
            char *moved = larger > capacity ? realloc(text, larger + 1) : NULL;
            if (moved == NULL) {
                status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", path);
                goto close_file;
            }
            text = moved;
            capacity = larger;
        }
        size_t got = fread(text + used, 1, capacity - used, file);
        used += got;
        if (used > limit_bytes) {
            status = tdm_fail(err, TDM_INPUT, "%s: is larger than the %" PRIu64 " bytes allowed",
                              path, limit_bytes);
            goto close_file;
        }
        if (ferror(file)) {
            status = tdm_fail(err, TDM_IO, "%s: cannot be read: %s", path, strerror(errno));
            goto close_file;
        }
        if (got == 0)
            break;
    }
    text[used] = '\0';
    *data = text;
    *bytes = used;
    text = NULL;
    status = TDM_OK;
close_file:
    free(text);
    fclose(file);
    return status;
}

char *tdm_path_join(const char *directory, const char *name)
{
    size_t length = strlen(directory), bytes = length + strlen(name) + 2;
    char *path = malloc(bytes);
    while (length > 0 && directory[length - 1] == '/')
        length--;
    if (path != NULL)
        snprintf(path, bytes, "%.*s/%s", (int)length, directory, name);
    return path;
}

bool tdm_file_same(const char *a, const char *b)
{
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}
