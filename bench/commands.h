/* SPDX-License-Identifier: Apache-2.0 */
/* Runs commands of tidemark for a benchmark and reads their JSON output. */
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

/* Plans to STEM.json with these arguments of `tidemark plan`. Returns its JSON, or NULL. */
static inline json_t *tdm_bench_plan(const char *stem, const char *arguments, int *status)
{
    char line[4096];
    snprintf(line, sizeof(line), "tidemark plan %s -o '%s.json' --force --json", arguments, stem);
    return tdm_bench_command(line, status);
}

/* Runs the plan STEM.json with these arguments of `tidemark run` and writes the trace STEM.db. */
static inline int tdm_bench_run(const char *stem, const char *arguments)
{
    char line[4096];
    int status;
    snprintf(line, sizeof(line), "tidemark run '%s.json' --trace '%s.db' %s --force --json", stem,
             stem, arguments);
    json_decref(tdm_bench_command(line, &status));
    return status;
}

/* The report of a step of the trace STEM.db, or NULL. */
static inline json_t *tdm_bench_report(const char *stem, unsigned step)
{
    char line[4096];
    int status;
    snprintf(line, sizeof(line), "tidemark report '%s.db' --step %u --json", stem, step);
    return tdm_bench_command(line, &status);
}

#endif
