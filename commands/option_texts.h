/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that are generated from the command tables: --help, the option sections of the manual page,
 * and bash completion. */
#ifndef TDM_COMMANDS_OPTION_TEXTS_H
#define TDM_COMMANDS_OPTION_TEXTS_H

#include "commands/options.h"

#include <stdio.h>

/* Prints usage, summary, options, lists and notes of a command to stdout. */
void tdm_help_print(const struct tdm_command *command);

/* Prints an entry for every option of a command, as roff. */
void tdm_man_options(FILE *out, const struct tdm_command *command);

/* Prints an entry for every item of the list with that title, as roff. Returns false if the command
 * has no such list. */
bool tdm_man_list(FILE *out, const struct tdm_command *command, const char *title);

/* Prints a bash completion script for `tidemark`. `commands` ends with NULL. */
void tdm_bash_completion(FILE *out, const struct tdm_command *const *commands);

#endif
