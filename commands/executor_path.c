/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the programs that tidemark starts. */
#include "commands/executor_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXECUTOR "tidemark-executor"

static bool is_program(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

static bool join(char *out, size_t out_bytes, const char *folder, size_t folder_length,
                 const char *name)
{
    int length = snprintf(out, out_bytes, "%.*s/%s", (int)folder_length, folder, name);
    return length > 0 && (size_t)length < out_bytes && is_program(out);
}

bool tdm_program_on_path(const char *name, char *out, size_t out_bytes)
{
    const char *path = getenv("PATH");
    while (path != NULL && *path != '\0') {
        size_t length = strcspn(path, ":");
        if (length > 0 && length < out_bytes && join(out, out_bytes, path, length, name))
            return true;
        path += length;
        path += *path == ':';
    }
    return false;
}

bool tdm_executor_find(char *out, size_t out_bytes)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length > 0) {
        self[length] = '\0';
        char *slash = strrchr(self, '/');
        if (slash != NULL && join(out, out_bytes, self, (size_t)(slash - self), EXECUTOR))
            return true;
    }
#ifdef TDM_EXECUTOR_PATH
    if (is_program(TDM_EXECUTOR_PATH) && strlen(TDM_EXECUTOR_PATH) < out_bytes) {
        memcpy(out, TDM_EXECUTOR_PATH, sizeof(TDM_EXECUTOR_PATH));
        return true;
    }
#endif
    return tdm_program_on_path(EXECUTOR, out, out_bytes);
}
