/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the programs that tidemark starts. */
#ifndef TDM_COMMANDS_EXECUTOR_PATH_H
#define TDM_COMMANDS_EXECUTOR_PATH_H

#include "commands/cmd.h"

#include <stdbool.h>
#include <stddef.h>

/* Finds tidemark-executor: next to the running program, else in its configured install path, else
 * on PATH. Returns false if none of these has it. */
bool tdm_executor_find(char *out, size_t out_bytes);

/* Replaces this process with tidemark-executor and passes the command's arguments on. Only the
 * command's help works without it (commands/executor_start.c). Returns only on failure. */
enum tdm_status tdm_executor_start(const struct tdm_command *command, int argc, char **argv,
                                   struct tdm_error *err);

/* Finds a program on PATH. Returns false if there is none. */
bool tdm_program_on_path(const char *name, char *out, size_t out_bytes);

#endif
