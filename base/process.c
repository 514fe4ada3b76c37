/* SPDX-License-Identifier: Apache-2.0 */
/* What both programs do before anything else. */
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
        /* the wrong way round: reading input and writing output fail with EBADF, as before */
        int fd = open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (fd != number) /* lower numbers are open, so this one is the next */
            return tdm_fail(err, TDM_IO,
                            "standard %s is closed, and /dev/null cannot be opened: %s",
                            names[number], strerror(errno));
    }
    /* what a limit on the size of files forbids is then an error with a message */
    (void)signal(SIGXFSZ, SIG_IGN);
    return TDM_OK;
}
