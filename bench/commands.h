/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of tidemark, run by a benchmark, and what they print as JSON. */
#ifndef TDM_BENCH_COMMANDS_H
#define TDM_BENCH_COMMANDS_H

#include <jansson.h>
#include <stdio.h>
#include <sys/wait.h>

/* Runs a command and returns its standard output as JSON, or NULL; *status is its exit status. */
static inline json_t *tdm_bench_command(const char *line, int *status)
{
    FILE *pipe = popen(line, "r");
    *status = 1;
    if (pipe == NULL)
        return NULL;
    json_t *root = json_loadf(pipe, 0, NULL);
    int ended = pclose(pipe);
    *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
    return root;
}

static inline double tdm_bench_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

#endif
