/* SPDX-License-Identifier: Apache-2.0 */
/* Where the programs are that tidemark starts. */
#ifndef TDM_COMMANDS_EXECUTOR_PATH_H
#define TDM_COMMANDS_EXECUTOR_PATH_H

#include "commands/cmd.h"

#include <stdbool.h>
#include <stddef.h>

/* The path of tidemark-executor: beside the running program, else where it was to be installed,
 * else on PATH. False if it is in none of these. */
bool tdm_executor_find(char *out, size_t out_bytes);

/* Starts it in place of this program, with the words of a command; its help alone is known without
 * it (commands/executor_start.c). Returns only on failure. */
enum tdm_status tdm_executor_start(const struct tdm_command *command, int argc, char **argv,
                                   struct tdm_error *err);

/* The path of a program on PATH; false if there is none. */
bool tdm_program_on_path(const char *name, char *out, size_t out_bytes);

#endif
