/* SPDX-License-Identifier: Apache-2.0 */
/* What all commands share: their help, and what is wrong with an option. */
#include "planner/cmd.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

void tdm_cmd_print_help(const struct tdm_command *command)
{
    printf("usage: tidemark %s\n\n%s\n\n%s", command->usage, command->summary, command->help);
}

/* getopt has passed the option at fault: it is the word before optind, or a letter inside a word. */
enum tdm_status tdm_cmd_bad_option(const struct tdm_command *command, int argc, char **argv,
                                   int option, struct tdm_error *err)
{
    char letter[3] = {'-', (char)optopt, '\0'};
    const char *word = optind >= 1 && optind <= argc ? argv[optind - 1] : "";
    if (strncmp(word, "--", 2) != 0 && optopt != 0)
        word = letter;
    if (option == ':')
        tdm_fail(err, TDM_USAGE, "%s: option \"%s\" needs a value", command->name, word);
    else if (optopt != 0 && strchr(word, '=') != NULL)
        tdm_fail(err, TDM_USAGE, "%s: option \"%.*s\" takes no value", command->name,
                 (int)strcspn(word, "="), word);
    else
        tdm_fail(err, TDM_USAGE, "%s: unknown option \"%.*s\"", command->name,
                 (int)strcspn(word, "="), word);
    return tdm_hint(err, "tidemark %s --help lists the options", command->name);
}
