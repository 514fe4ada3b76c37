/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidemark run` and `tidemark calibrate` are asked. tidemark has their tables for help,
 * manual page and completion; tidemark-executor reads the command line by them. */
#ifndef TDM_COMMANDS_RUN_ARGUMENTS_H
#define TDM_COMMANDS_RUN_ARGUMENTS_H

#include "executor/run.h"

#define TDM_RUN_MOST_PAIRS 32u /* of --set: more than there are keys */

struct tdm_run_arguments {
    struct tdm_run_options run; /* without backend, command and stop */
    const char *backend;        /* its name */
    const char *pairs[TDM_RUN_MOST_PAIRS];
    bool json;
};

/* Reads argv, to which *arguments then points and of which it may not be moved; what is not said is
 * as the help says. With --help prints the help and is done (*help). TDM_USAGE. */
enum tdm_status tdm_run_arguments_read(int argc, char **argv, struct tdm_run_arguments *arguments,
                                       bool *help, struct tdm_error *err);

struct tdm_calibrate_arguments {
    const char *output, *backend, *trace; /* NULL: not said */
    bool quick, force, json;
};

/* The same of `tidemark calibrate`. */
enum tdm_status tdm_calibrate_arguments_read(int argc, char **argv,
                                             struct tdm_calibrate_arguments *arguments, bool *help,
                                             struct tdm_error *err);

#endif
