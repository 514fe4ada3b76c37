/* SPDX-License-Identifier: Apache-2.0 */
/* What is made of the tables of commands: --help, the parts of the manual page that explain
 * options, and completion for bash. */
#ifndef TDM_COMMANDS_OPTION_TEXTS_H
#define TDM_COMMANDS_OPTION_TEXTS_H

#include "commands/options.h"

#include <stdio.h>

/* Usage, summary, options, lists and notes of a command on stdout. */
void tdm_help_print(const struct tdm_command *command);

/* An entry for every option of a command, in roff. */
void tdm_man_options(FILE *out, const struct tdm_command *command);

/* An entry for everything that the list of that title explains, in roff; false: the command has no
 * such list. */
bool tdm_man_list(FILE *out, const struct tdm_command *command, const char *title);

/* A script that completes `tidemark` in bash. `commands` is ended by NULL. */
void tdm_bash_completion(FILE *out, const struct tdm_command *const *commands);

#endif
