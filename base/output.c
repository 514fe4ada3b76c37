/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a file piece by piece, under a temporary name until it is whole. */
#include "base/output.h"

#include "base/directory.h"
#include "base/file.h"
#include "base/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES (1u << 20)

static bool is_stdout(const struct tdm_output *output)
{
    return output->file == stdout;
}

/* Returns an errno, or 0. `exists`: whether there is such a file; *info is of it. */
static int open_file(const char *path, bool exists, const struct stat *info,
                     struct tdm_output *output)
{
    int fd = -1;
    if (exists && !S_ISREG(info->st_mode)) {
        output->path = strdup(path);
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
            return errno;
    } else {
        /* if `path` is a symbolic link, the file that it names is replaced, not the link */
        output->path = exists ? realpath(path, NULL) : strdup(path);
        if (output->path == NULL)
            return errno;
        int reason = tdm_temporary_file(output->path, &output->temporary, &fd);
        if (reason != 0)
            return reason;
        if (exists)
            (void)fchmod(fd, info->st_mode & 07777);
    }
    output->file = fdopen(fd, "w");
    if (output->file == NULL) {
        int reason = errno;
        close(fd);
        return reason;
    }
    return output->path == NULL ? ENOMEM : 0;
}

enum tdm_status tdm_output_begin(const char *path, bool force, struct tdm_output *output,
                                 struct tdm_error *err)
{
    struct tdm_output opened = {.file = NULL};
    struct stat info;
    enum tdm_status status = tdm_file_check(path, force, err);
    if (status != TDM_OK)
        return status;
    if (strcmp(path, "-") == 0) {
        *output = (struct tdm_output){.file = stdout};
        return TDM_OK;
    }
    bool exists = stat(path, &info) == 0;
    int reason = open_file(path, exists, &info, &opened);
    if (reason != 0) {
        tdm_output_abandon(&opened);
        return tdm_file_failed(path, reason, err);
    }
    opened.force = force;
    (void)setvbuf(opened.file, NULL, _IOFBF, BUFFER_BYTES);
    *output = opened;
    return TDM_OK;
}

void tdm_output_abandon(struct tdm_output *output)
{
    if (output->file != NULL && !is_stdout(output))
        (void)fclose(output->file);
    if (output->temporary != NULL)
        (void)unlink(output->temporary);
    free(output->path);
    free(output->temporary);
    *output = (struct tdm_output){.file = NULL};
}

enum tdm_status tdm_output_commit(struct tdm_output *output, struct tdm_error *err)
{
    const char *name = is_stdout(output) ? "standard output" : output->path;
    errno = 0;
    bool failed = ferror(output->file);
    if (fflush(output->file) != 0)
        failed = true;
    if (!failed && output->temporary != NULL && fsync(fileno(output->file)) != 0)
        failed = true;
    if (failed && errno == 0 && output->temporary != NULL &&
        write(fileno(output->file), "", 1) >= 0) /* an earlier write failed: this says why */
        errno = EIO;
    int reason = failed && errno != 0 ? errno : EIO;
    if (is_stdout(output)) {
        clearerr(stdout);
        return failed ? tdm_file_failed(name, reason, err) : TDM_OK;
    }
    if (fclose(output->file) != 0 && !failed) {
        failed = true;
        reason = errno;
    }
    output->file = NULL;
    if (!failed && output->temporary != NULL) {
        reason = tdm_file_move(output->temporary, output->path, output->force);
        failed = reason != 0;
    }
    if (!failed && output->temporary != NULL) {
        free(output->temporary); /* it has the name of the file now, which must be on disk */
        output->temporary = NULL;
        reason = tdm_directory_sync_parent(output->path);
        failed = reason != 0;
    }
    enum tdm_status status = failed ? tdm_file_failed(name, reason, err) : TDM_OK;
    tdm_output_abandon(output);
    return status;
}
