/* SPDX-License-Identifier: Apache-2.0 */
/* Starts tidemark-executor in place of this process. */
#include "commands/executor_path.h"
#include "commands/option_texts.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

enum tdm_status tdm_executor_start(const struct tdm_command *command, int argc, char **argv,
                                   struct tdm_error *err)
{
    char path[4096];
    if (!tdm_executor_find(path, sizeof(path))) {
        if (asks_for_help(argc, argv)) {
            tdm_help_print(command);
            return TDM_OK;
        }
        tdm_fail(err, TDM_IO, "tidemark-executor was not found");
        return tdm_hint(err, "it belongs beside tidemark, or on PATH: build it with make");
    }
    char **words = calloc((size_t)argc + 2, sizeof(*words));
    if (words == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %d arguments", argc);
    words[0] = path;
    memcpy(words + 1, argv, (size_t)argc * sizeof(*words));
    /* Threads that spin while they wait take cores from other threads on this machine. OpenMP reads
     * the policy at program start. */
    setenv("OMP_WAIT_POLICY", "passive", 0);
    /* OpenBLAS starts its own threads when it is loaded. They are not useful here: the executor's
     * threads each call it with their own work. If one of them cannot get its memory, the program
     * hangs at exit. */
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    execv(path, words);
    int reason = errno;
    free(words);
    return tdm_fail(err, TDM_IO, "%s: cannot be started: %s", path, strerror(reason));
}
