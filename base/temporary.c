/* SPDX-License-Identifier: Apache-2.0 */
/* Makes temporary files and directories, and removes those that killed processes left. */
#include "base/temporary.h"

#include "base/directory.h"
#include "base/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_ATTEMPTS 100u

static int make(const char *target, bool directory, char **name, int *fd)
{
    size_t bytes = strlen(target) + 40;
    char *made = malloc(bytes);
    if (made == NULL)
        return ENOMEM;
    int reason = EEXIST, opened = -1;
    for (unsigned attempt = 0; reason == EEXIST && attempt < MOST_ATTEMPTS; attempt++) {
        snprintf(made, bytes, "%s.tmp%ld-%u", target, (long)getpid(), attempt);
        if (directory) {
            reason = mkdir(made, 0777) == 0 ? 0 : errno;
        } else {
            opened = open(made, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            reason = opened < 0 ? errno : 0;
        }
    }
    if (reason == 0 && directory) {
        opened = open(made, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        reason = opened < 0 ? errno : 0;
        if (reason != 0)
            (void)rmdir(made);
    }
    if (reason != 0) {
        free(made);
        return reason;
    }
    (void)tdm_lock_take(opened); /* without locks, the process number must suffice */
    *name = made;
    *fd = opened;
    return 0;
}

int tdm_temporary_file(const char *target, char **name, int *fd)
{
    return make(target, false, name, fd);
}

int tdm_temporary_directory(const char *target, char **name, int *fd)
{
    return make(target, true, name, fd);
}

/* The process of the name "NAME.tmpPID-N", optionally followed by `suffix`; 0 if `entry` has
 * another name. */
static long process_of(const char *entry, const char *name, const char *suffix)
{
    size_t length = strlen(name);
    long process;
    unsigned number;
    int end = 0;
    if (strncmp(entry, name, length) != 0 ||
        sscanf(entry + length, ".tmp%ld-%u%n", &process, &number, &end) != 2 || end == 0 ||
        process <= 0)
        return 0;
    const char *rest = entry + length + end;
    return rest[0] == '\0' || (suffix != NULL && strcmp(rest, suffix) == 0) ? process : 0;
}

/* A process that was killed keeps its number until its parent takes note. In a container the first
 * process may never do that for those that lost theirs. */
static bool has_ended(long process)
{
    if (kill((pid_t)process, 0) != 0 && errno == ESRCH)
        return true;
    char path[64], text[128] = ""; /* "NUMBER (NAME) STATE ..." */
    snprintf(path, sizeof(path), "/proc/%ld/stat", process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        (void)close(fd);
    const char *state = length > 0 ? strrchr(text, ')') : NULL;
    return state != NULL && strncmp(state, ") Z", 3) == 0;
}

/* Was it left by a process that has ended? */
static bool is_left(const char *path, long process)
{
    struct stat info;
    /* an entry with our own number may come from an earlier process; in a container we may always
     * be the first */
    if (process != getpid() && !has_ended(process))
        return false;
    if (lstat(path, &info) != 0 || info.st_uid != geteuid() ||
        !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
        return false;
    /* the process may run where we cannot see it, in another container or on another host */
    int fd = open(path, (S_ISDIR(info.st_mode) ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_NOFOLLOW |
                            O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool left = tdm_lock_take(fd) == 0;
    (void)close(fd);
    return left;
}

void tdm_temporary_sweep(const char *target, const char *suffix,
                         void (*remove)(void *self, const char *path), void *self)
{
    const char *slash = strrchr(target, '/'), *name = slash == NULL ? target : slash + 1;
    char *parent = tdm_directory_parent(target);
    DIR *stream = parent == NULL ? NULL : opendir(parent);
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
        char path[PATH_MAX];
        long process = process_of(entry->d_name, name, suffix);
        int length = snprintf(path, sizeof(path), "%s/%s", parent, entry->d_name);
        if (process > 0 && length > 0 && (size_t)length < sizeof(path) && is_left(path, process))
            remove(self, path);
    }
    if (stream != NULL)
        (void)closedir(stream);
    free(parent);
}
