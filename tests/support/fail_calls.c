/* SPDX-License-Identifier: Apache-2.0 */
/* A library to preload: fails one call of a program that changes files.
 *
 * TDM_FAIL_CALL names the call (open, write, fsync, close, rename, symlink, mkdir), TDM_FAIL_NUMBER
 * which one fails, counted from 1, TDM_FAIL_PATH a part of the path that it must have to count. A
 * write that fails writes the half first, and the next one fails with ENOSPC; the others fail with
 * EIO. A close that fails has closed. Whether a call failed is appended to the file TDM_FAIL_LOG.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static const char *failing_call, *path_part, *log_path;
static long number; /* calls until one fails */
static bool disk_is_full;

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static void note(void)
{
    FILE *file = log_path == NULL ? NULL : fopen(log_path, "a");
    if (file != NULL) {
        fprintf(file, "failed\n");
        fclose(file);
    }
}

/* Does this call fail? */
static bool fails(const char *call, const char *path)
{
    if (failing_call == NULL || strcmp(call, failing_call) != 0 || path == NULL ||
        strstr(path, path_part) == NULL || __sync_sub_and_fetch(&number, 1) != 0)
        return false;
    note();
    return true;
}

static const char *path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return NULL;
    path[length] = '\0';
    return path;
}

static int broken(void)
{
    errno = EIO;
    return -1;
}

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (fails("open", path))
        return broken();
    return ((int (*)(const char *, int, ...))real("open"))(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return open(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    char path[PATH_MAX];
    ssize_t (*call)(int, const void *, size_t) =
        (ssize_t(*)(int, const void *, size_t))real("write");
    const char *where = failing_call == NULL ? NULL : path_of(fd, path);
    if (disk_is_full && where != NULL && strstr(where, path_part) != NULL) {
        errno = ENOSPC;
        return -1;
    }
    if (!fails("write", where))
        return call(fd, data, bytes);
    disk_is_full = true;
    return bytes < 2 ? write(fd, data, bytes) : call(fd, data, bytes / 2);
}

int fsync(int fd)
{
    char path[PATH_MAX];
    return fails("fsync", path_of(fd, path)) ? broken() : ((int (*)(int))real("fsync"))(fd);
}

int close(int fd)
{
    char path[PATH_MAX];
    bool failing = fails("close", path_of(fd, path));
    int status = ((int (*)(int))real("close"))(fd);
    return failing ? broken() : status;
}

int rename(const char *from, const char *to)
{
    return fails("rename", to) ? broken()
                               : ((int (*)(const char *, const char *))real("rename"))(from, to);
}

int symlink(const char *target, const char *path)
{
    return fails("symlink", path)
               ? broken()
               : ((int (*)(const char *, const char *))real("symlink"))(target, path);
}

int mkdir(const char *path, mode_t mode)
{
    return fails("mkdir", path) ? broken()
                                : ((int (*)(const char *, mode_t))real("mkdir"))(path, mode);
}

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("TDM_FAIL_NUMBER");
    path_part = getenv("TDM_FAIL_PATH");
    log_path = getenv("TDM_FAIL_LOG");
    number = text == NULL ? 0 : atol(text);
    failing_call = path_part == NULL ? NULL : getenv("TDM_FAIL_CALL");
}
