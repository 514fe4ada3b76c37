/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of `tidemark run` and `tidemark calibrate`. tidemark uses their tables for help, manual
 * page and completion; tidemark-executor parses the command line by them. */
#ifndef TDM_COMMANDS_RUN_ARGUMENTS_H
#define TDM_COMMANDS_RUN_ARGUMENTS_H

#include "executor/run.h"

#define TDM_RUN_MOST_PAIRS 32u /* limit of --set; more than the number of keys */

struct tdm_run_arguments {
    struct tdm_run_options run; /* without backend, command and stop */
    const char *backend;        /* its name */
    const char *transport;      /* its name; NULL: not given */
    const char *pairs[TDM_RUN_MOST_PAIRS];
    uint32_t devices[TDM_MAX_RANKS];
    bool json;
};

/* Parses argv. *arguments keeps pointers into argv and into itself, so it must not be moved.
 * Options that are not given have the defaults stated in the help. With --help, prints the help and
 * sets *help. Fails with TDM_USAGE. */
enum tdm_status tdm_run_arguments_read(int argc, char **argv, struct tdm_run_arguments *arguments,
                                       bool *help, struct tdm_error *err);

struct tdm_calibrate_arguments {
    const char *output, *backend, *trace; /* NULL: not given */
    bool quick, force, json;
};

/* The same for `tidemark calibrate`. */
enum tdm_status tdm_calibrate_arguments_read(int argc, char **argv,
                                             struct tdm_calibrate_arguments *arguments, bool *help,
                                             struct tdm_error *err);

#endif
