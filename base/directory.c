/* SPDX-License-Identifier: Apache-2.0 */
/* Writes directories as a whole (base/directory.h). */
#include "base/directory.h"

#include "base/file.h"
#include "base/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Longest name of an entry of a folder within a directory: "FOLDER/NAME". */
#define INNER_NAME 512

/* Does `stream` hold only entries that `owns` accepts? If not, `found` gets the first other one. A
 * folder "F" is one if "F/" is accepted, and then its entries are asked for as "F/NAME". `within`
 * is "F/", or "" at the top. Counts the entries. */
static bool holds_owned(DIR *stream, const char *within, tdm_directory_owns owns, size_t *count,
                        char found[INNER_NAME])
{
    bool owned = true;
    for (struct dirent *entry; owned && (entry = readdir(stream)) != NULL;) {
        char folder[INNER_NAME];
        struct stat info;
        if (is_dots(entry->d_name))
            continue;
        ++*count;
        snprintf(found, INNER_NAME, "%s%s", within, entry->d_name);
        bool inner = within[0] == '\0' &&
                     fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                     S_ISDIR(info.st_mode);
        if (!inner) {
            owned = owns(found);
            continue;
        }
        snprintf(folder, sizeof(folder), "%s/", entry->d_name);
        int fd = owns(folder)
                     ? openat(dirfd(stream), entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                     : -1;
        DIR *inside = fd < 0 ? NULL : fdopendir(fd);
        owned = inside != NULL && holds_owned(inside, folder, owns, count, found);
        if (inside != NULL)
            (void)closedir(inside);
    }
    return owned;
}

/* The directory exists: may it be replaced? */
static enum tdm_status check_content(const char *path, bool force, tdm_directory_owns owns,
                                     struct tdm_error *err)
{
    size_t count = 0;
    char found[INNER_NAME];
    DIR *stream = opendir(path);
    if (stream == NULL)
        return tdm_fail(err, TDM_IO, "%s: cannot be read: %s", path, strerror(errno));
    bool owned = holds_owned(stream, "", owns, &count, found);
    (void)closedir(stream);
    if (!owned) {
        tdm_fail(err, TDM_USAGE, "%s: holds \"%.200s\", which would be lost", path, found);
        return tdm_hint(err, "name a new directory");
    }
    if (count == 0 || force)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "%s: exists already", path);
    return tdm_hint(err, "pass --force to replace it, or name a new directory");
}

char *tdm_directory_target(const char *path)
{
    char *target = realpath(path, NULL);
    if (target != NULL)
        return target;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return strndup(path, length);
}

char *tdm_directory_parent(const char *path)
{
    char *target = tdm_directory_target(path);
    char *slash = target == NULL ? NULL : strrchr(target, '/');
    if (slash == NULL) {
        free(target);
        return target == NULL ? NULL : strdup(".");
    }
    slash[slash == target] = '\0';
    return target;
}

enum tdm_status tdm_directory_is_written(const char *path, struct tdm_error *err)
{
    tdm_fail(err, TDM_USAGE, "%s: another run is writing there", path);
    return tdm_hint(err, "wait until that ends, or name another directory");
}

int tdm_directory_sync(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return 0; /* it may be written and not read */
    int reason = fsync(fd) == 0 ? 0 : errno;
    (void)close(fd);
    return reason == EIO || reason == ENOSPC || reason == EDQUOT ? reason : 0;
}

int tdm_directory_sync_parent(const char *path)
{
    char *parent = tdm_directory_parent(path);
    int reason = parent == NULL ? ENOMEM : tdm_directory_sync(parent);
    free(parent);
    return reason;
}

/* Until a file is complete it is called "NAME.tmpPID-N" (temporary.h). It can also have ".old" or a
 * suffix of SQLite's after its name. This is the longest addition. */
#define LONGEST_SUFFIX 24

static bool is_too_long(const char *path, const char *parent)
{
    char *target = tdm_directory_target(path);
    const char *slash = target == NULL ? NULL : strrchr(target, '/');
    long most = pathconf(parent, _PC_NAME_MAX);
    size_t length = target == NULL ? 0 : strlen(slash == NULL ? target : slash + 1);
    free(target);
    return most > 0 && length + LONGEST_SUFFIX > (size_t)most;
}

int tdm_directory_reason(const char *path)
{
    struct stat info;
    char *parent = tdm_directory_parent(path);
    int reason = parent == NULL                     ? ENOMEM
                 : stat(parent, &info) != 0         ? errno
                 : !S_ISDIR(info.st_mode)           ? ENOTDIR
                 : access(parent, W_OK | X_OK) != 0 ? errno
                 : is_too_long(path, parent)        ? ENAMETOOLONG
                                                    : 0;
    free(parent);
    return reason;
}

/* Also true for the temporary name of an owned file. */
static bool is_owned(const char *name, tdm_directory_owns owns)
{
    const char *dot = strstr(name, ".tmp");
    char *whole = dot == NULL ? NULL : strndup(name, (size_t)(dot - name));
    bool owned = owns(name) || (whole != NULL && owns(whole));
    free(whole);
    return owned;
}

/* Removes the owned files of the directory `name` in `parent`, and then the directory. Other files
 * in it stay, and then the directory does too. `within` is as in holds_owned(). */
static void remove_within(int parent, const char *name, const char *within, tdm_directory_owns owns)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (stream == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char inner[INNER_NAME], folder[INNER_NAME];
        if (is_dots(entry->d_name))
            continue;
        snprintf(inner, sizeof(inner), "%s%s", within, entry->d_name);
        snprintf(folder, sizeof(folder), "%s/", entry->d_name);
        if (is_owned(inner, owns))
            (void)unlinkat(dirfd(stream), entry->d_name, 0);
        else if (within[0] == '\0' && owns(folder))
            remove_within(dirfd(stream), entry->d_name, folder, owns);
    }
    (void)closedir(stream);
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

static void remove_directory(const char *path, tdm_directory_owns owns)
{
    remove_within(AT_FDCWD, path, "", owns);
}

/* Suffix of a temporary directory's name for the old directory, while the two are exchanged in two
 * steps. */
#define ASIDE ".old"

struct left {
    const char *target;
    tdm_directory_owns owns;
};

/* Removes what a killed process left. If it was killed between the two steps, the old directory
 * gets its name back. */
static void remove_left(void *self, const char *path)
{
    const struct left *left = self;
    size_t length = strlen(path), end = strlen(ASIDE);
    bool aside = length > end && strcmp(path + length - end, ASIDE) == 0;
    if (aside && access(left->target, F_OK) != 0)
        (void)rename(path, left->target);
    else
        remove_directory(path, left->owns);
}

static void sweep(const char *target, tdm_directory_owns owns)
{
    struct left left = {target, owns};
    tdm_temporary_sweep(target, ASIDE, remove_left, &left);
}

enum tdm_status tdm_directory_check(const char *path, bool force, bool sweeps,
                                    tdm_directory_owns owns, struct tdm_error *err)
{
    struct stat info;
    if (path[0] == '\0')
        return tdm_fail(err, TDM_USAGE, "the name of a directory to write is empty");
    char *target = tdm_directory_target(path);
    if (target == NULL)
        return tdm_file_failed(path, ENOMEM, err);
    enum tdm_status status = tdm_file_check_link(target, err);
    int reason = tdm_directory_reason(target);
    if (sweeps)
        sweep(target, owns);
    if (status == TDM_OK && stat(target, &info) == 0)
        status = S_ISDIR(info.st_mode) ? check_content(target, force, owns, err)
                                       : tdm_fail(err, TDM_USAGE, "%s: is not a directory", path);
    if (status == TDM_OK && reason != 0)
        status = tdm_file_failed(path, reason, err);
    free(target);
    return status;
}

enum tdm_status tdm_directory_begin(const char *path, bool force, tdm_directory_owns owns,
                                    struct tdm_directory *directory, struct tdm_error *err)
{
    enum tdm_status status = tdm_directory_check(path, force, true, owns, err);
    if (status != TDM_OK)
        return status;
    char *target = tdm_directory_target(path), *temporary = NULL;
    int lock = -1;
    int reason = target == NULL ? ENOMEM : tdm_temporary_directory(target, &temporary, &lock);
    if (reason != 0) {
        free(target);
        return tdm_file_failed(path, reason, err);
    }
    *directory = (struct tdm_directory){
        .path = target, .temporary = temporary, .lock = lock, .force = force, .owns = owns};
    return TDM_OK;
}

enum tdm_status tdm_directory_folder(struct tdm_directory *directory, const char *name,
                                     struct tdm_error *err)
{
    uint32_t number = 0;
    while (number < TDM_DIRECTORY_FOLDERS - 1 && directory->folders[number] != NULL)
        number++;
    char *folder = tdm_path_join(directory->temporary, name);
    if (folder == NULL)
        return tdm_file_failed(directory->path, ENOMEM, err);
    directory->folders[number] = folder;
    return mkdir(folder, 0777) == 0 ? TDM_OK : tdm_file_failed(folder, errno, err);
}

/* Removes an old directory that has given up its name. Not before this is on disk: otherwise a
 * power loss could leave the old name with a part of the files. */
static int remove_old(const char *path, tdm_directory_owns owns)
{
    int reason = tdm_directory_sync_parent(path);
    if (reason == 0)
        remove_directory(path, owns);
    return reason;
}

/* For file systems that cannot exchange two names: the old directory is renamed first. Returns
 * errno or 0. */
static int replace_in_two_steps(const struct tdm_directory *directory)
{
    size_t bytes = strlen(directory->temporary) + 8;
    char *aside = malloc(bytes);
    if (aside == NULL)
        return ENOMEM;
    snprintf(aside, bytes, "%s" ASIDE, directory->temporary);
    int reason = rename(directory->path, aside) == 0 ? 0 : errno;
    if (reason == 0 && rename(directory->temporary, directory->path) != 0) {
        reason = errno;
        (void)rename(aside, directory->path);
    }
    if (reason == 0) {
        reason = remove_old(aside, directory->owns);
        if (reason != 0 && rename(directory->path, directory->temporary) == 0)
            (void)rename(aside, directory->path);
    }
    free(aside);
    return reason;
}

/* Exchanges the names of the directory and the old one, and removes this. Returns errno or 0. */
static int exchange(const struct tdm_directory *directory)
{
    const char *one = directory->temporary, *other = directory->path;
    if (renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) != 0)
        return errno;
    int reason = remove_old(directory->temporary, directory->owns);
    if (reason != 0)
        (void)renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
    return reason;
}

static void release(struct tdm_directory *directory)
{
    if (directory->temporary != NULL)
        (void)close(directory->lock);
    for (int i = 0; i < TDM_DIRECTORY_FOLDERS; i++)
        free(directory->folders[i]);
    free(directory->path);
    free(directory->temporary);
    *directory = (struct tdm_directory){0};
}

enum tdm_status tdm_directory_commit(struct tdm_directory *directory, struct tdm_error *err)
{
    int reason = 0;
    for (int i = 0; i < TDM_DIRECTORY_FOLDERS && reason == 0; i++)
        if (directory->folders[i] != NULL)
            reason = tdm_directory_sync(directory->folders[i]);
    if (reason == 0)
        reason = tdm_directory_sync(directory->temporary);
    /* this replaces nothing or an empty directory; otherwise the two names are exchanged */
    if (reason == 0 && rename(directory->temporary, directory->path) != 0)
        reason = errno;
    if (directory->force && (reason == ENOTEMPTY || reason == EEXIST)) {
        reason = exchange(directory);
        if (reason == EINVAL || reason == ENOSYS)
            reason = replace_in_two_steps(directory);
    }
    if (reason != 0) {
        enum tdm_status status = tdm_file_failed(directory->path, reason, err);
        tdm_directory_abandon(directory);
        return status;
    }
    reason = tdm_directory_sync_parent(directory->path);
    enum tdm_status status = reason == 0 ? TDM_OK : tdm_file_failed(directory->path, reason, err);
    release(directory);
    return status;
}

void tdm_directory_abandon(struct tdm_directory *directory)
{
    if (directory->temporary != NULL)
        remove_directory(directory->temporary, directory->owns);
    release(directory);
}

enum tdm_status tdm_directory_remove(const char *path, tdm_directory_owns owns,
                                     struct tdm_error *err)
{
    char *temporary;
    int lock, reason = tdm_temporary_directory(path, &temporary, &lock);
    if (reason != 0)
        return tdm_fail(err, TDM_IO, "%s: cannot be removed: %s", path, strerror(reason));
    if (rename(path, temporary) != 0) {
        reason = errno;
        (void)rmdir(temporary);
        tdm_fail(err, TDM_IO, "%s: cannot be removed: %s", path, strerror(reason));
    } else if ((reason = remove_old(temporary, owns)) != 0 || access(temporary, F_OK) == 0) {
        tdm_fail(err, TDM_IO, "%s: cannot be removed: %s; the rest is %s", path,
                 reason != 0 ? strerror(reason)
                             : "some files were not written with it, or cannot be removed",
                 temporary);
        reason = reason != 0 ? reason : EEXIST;
    }
    (void)close(lock);
    free(temporary);
    return reason == 0 ? TDM_OK : TDM_IO;
}
