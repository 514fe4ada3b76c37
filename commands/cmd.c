/* SPDX-License-Identifier: Apache-2.0 */
/* What all commands share: how their help is printed. */
#include "commands/cmd.h"

#include <stdio.h>

void tdm_cmd_print_help(const struct tdm_command *command)
{
    printf("usage: tidemark %s\n\n%s\n\n%s", command->usage, command->summary, command->help);
}
