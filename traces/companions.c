/* SPDX-License-Identifier: Apache-2.0 */
/* The files that SQLite keeps beside a database (traces/companions.h). */
#include "traces/companions.h"

#include "base/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD 8

/* How each begins (sqlite.org/fileformat.html, sqlite.org/walformat.html). Both forms of a log
 * differ in the order of bytes of its checksums; an index has the byte order of the machine, and
 * the first bytes of a journal that has ended may be zeroed. */
static const struct {
    const char *suffix;
    size_t bytes;
    unsigned char head[2][HEAD];
} kinds[TDM_COMPANIONS] = {
    {"-wal", 4, {{0x37, 0x7f, 0x06, 0x82}, {0x37, 0x7f, 0x06, 0x83}}},
    {"-shm", 4, {{0x18, 0xe2, 0x2d, 0x00}, {0x00, 0x2d, 0xe2, 0x18}}},
    {"-journal", 8, {{0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7}, {0}}},
};

/* The name of the file with a suffix; malloc'ed, NULL if memory ran out. */
static char *name_of(const char *file, unsigned which)
{
    size_t bytes = strlen(file) + strlen(kinds[which].suffix) + 1;
    char *name = malloc(bytes);
    if (name != NULL)
        snprintf(name, bytes, "%s%s", file, kinds[which].suffix);
    return name;
}

char *tdm_companion_path(const char *path, unsigned which)
{
    char *file = realpath(path, NULL);
    char *name = name_of(file == NULL ? path : file, which);
    free(file);
    return name;
}

/* Does a file begin as one of the kind does? Where a write was cut off, zeros follow. */
static bool begins_so(const unsigned char bytes[HEAD], unsigned which)
{
    static const unsigned char zeros[HEAD];
    for (int form = 0; form < 2; form++) {
        size_t same = 0;
        while (same < kinds[which].bytes && bytes[same] == kinds[which].head[form][same])
            same++;
        if (same == kinds[which].bytes || memcmp(bytes + same, zeros, HEAD - same) == 0)
            return true;
    }
    return false;
}

/* Did SQLite write this file? Its files are empty, or all zeros, before their first use; an index
 * has three of these for a moment. */
static bool is_sqlites(const char *name, unsigned which)
{
    static const unsigned char zeros[HEAD];
    struct stat info;
    unsigned char head[HEAD];
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    ssize_t got = regular ? read(fd, head, sizeof(head)) : -1;
    close(fd);
    if (got < 0)
        return false;
    return got < (ssize_t)sizeof(head) ? memcmp(head, zeros, (size_t)got) == 0
                                       : begins_so(head, which);
}

static enum tdm_status check_one(const char *name, unsigned which, bool exists, bool force,
                                 struct tdm_error *err)
{
    struct stat info;
    if (lstat(name, &info) != 0)
        return TDM_OK; /* if it cannot be looked at, nor can it be removed */
    if (!is_sqlites(name, which)) {
        tdm_fail(err, TDM_USAGE,
                 "%s: is not a file of SQLite's, which needs this name beside the trace", name);
        return tdm_hint(err, "name another trace, or move that file");
    }
    if (!exists && !force) {
        tdm_fail(err, TDM_USAGE, "%s: belongs to a database that is not here", name);
        return tdm_hint(err, "name another trace, or pass --force to remove it");
    }
    return TDM_OK;
}

enum tdm_status tdm_companions_check(const char *file, bool exists, bool force,
                                     struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (unsigned which = 0; which < TDM_COMPANIONS && status == TDM_OK; which++) {
        char *name = name_of(file, which);
        status = name == NULL
                     ? tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for the names beside it", file)
                     : check_one(name, which, exists, force, err);
        free(name);
    }
    return status;
}

void tdm_companions_remove(const char *file)
{
    for (unsigned which = 0; which < TDM_COMPANIONS; which++) {
        char *name = name_of(file, which);
        if (name != NULL)
            (void)unlink(name);
        free(name);
    }
}

/* `self`: the kind. Called for databases too, which are not removed here. */
static void remove_orphan(void *self, const char *path)
{
    const unsigned *which = self;
    const char *suffix = kinds[*which].suffix;
    const size_t bytes = strlen(path), suffix_bytes = strlen(suffix);
    if (bytes < suffix_bytes || strcmp(path + bytes - suffix_bytes, suffix) != 0)
        return;
    char *database = strndup(path, bytes - suffix_bytes);
    if (database != NULL && access(database, F_OK) != 0 && errno == ENOENT &&
        is_sqlites(path, *which))
        (void)unlink(path);
    free(database);
}

void tdm_companions_sweep(const char *file)
{
    for (unsigned which = 0; which < TDM_COMPANIONS; which++)
        tdm_temporary_sweep(file, kinds[which].suffix, remove_orphan, &which);
}

int tdm_companions_move(const char *file, const char *other)
{
    int reason = 0;
    for (unsigned which = 0; which < TDM_COMPANIONS && reason == 0; which++) {
        char *from = name_of(file, which), *to = name_of(other, which);
        if (from == NULL || to == NULL)
            reason = ENOMEM;
        else if (rename(from, to) != 0 && errno != ENOENT)
            reason = errno;
        free(from);
        free(to);
    }
    return reason;
}

bool tdm_companions_left(const char *file)
{
    char *name = name_of(file, 0);
    bool left = name != NULL && access(name, F_OK) == 0;
    free(name);
    return left;
}
