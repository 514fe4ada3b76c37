/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a process before main() does anything else (base/process.h). */
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum tdm_status tdm_process_begin(struct tdm_error *err)
{
    static const char *const names[] = {"input", "output", "error"};
    for (int number = STDIN_FILENO; number <= STDERR_FILENO; number++) {
        if (fcntl(number, F_GETFD) != -1 || errno != EBADF)
            continue;
        /* the wrong direction, so that reading input and writing output still fail with EBADF */
        int fd = open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (fd != number) /* lower numbers are open, so this number is the next free one */
            return tdm_fail(err, TDM_IO,
                            "standard %s is closed, and /dev/null cannot be opened: %s",
                            names[number], strerror(errno));
    }
    /* a write beyond the file size limit is then an error with a message */
    (void)signal(SIGXFSZ, SIG_IGN);
    return TDM_OK;
}
