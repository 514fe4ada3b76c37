/* SPDX-License-Identifier: Apache-2.0 */
/* Locks files and directories (base/lock.h). */
#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_BYTE (INT64_C(1) << 62)

static struct flock byte(void)
{
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BYTE, .l_len = 1};
}

int tdm_lock_take(int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return errno;
    if (S_ISDIR(info.st_mode))
        return flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    struct flock lock = byte();
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EACCES ? EAGAIN : errno; /* POSIX allows either */
}

bool tdm_lock_is_held(int fd)
{
    struct flock lock = byte();
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool tdm_lock_is_taken(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool taken = fd >= 0 && tdm_lock_take(fd) == EAGAIN;
    if (fd >= 0)
        close(fd);
    return taken;
}
