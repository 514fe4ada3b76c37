/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the build makes of the commands' tables, on stdout:
 *
 *     write_docs man TEMPLATE      the manual page: TEMPLATE, with "@OPTIONS COMMAND@" and
 *                                  "@LIST COMMAND TITLE@" lines replaced
 *     write_docs bash-completion   the script that completes words in bash
 */
#include "commands/cmd.h"
#include "commands/option_texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tdm_command *find(const char *name)
{
    for (size_t i = 0; tdm_commands[i] != NULL; i++)
        if (strcmp(tdm_commands[i]->name, name) == 0)
            return tdm_commands[i];
    return NULL;
}

/* Writes the replacement of a template line. Returns false if the named command or list does not
 * exist. */
static bool write_line(const char *line)
{
    char name[32] = "", title[64] = "";
    if (line[0] != '@')
        return fputs(line, stdout) >= 0;
    if (sscanf(line, "@OPTIONS %31[a-z]@", name) == 1 && find(name) != NULL) {
        tdm_man_options(stdout, find(name));
        return true;
    }
    return sscanf(line, "@LIST %31[a-z] %63[^@]@", name, title) == 2 && find(name) != NULL &&
           tdm_man_list(stdout, find(name), title);
}

static int write_page(const char *path)
{
    char *line = NULL;
    size_t bytes = 0;
    unsigned long number = 0;
    int status = EXIT_SUCCESS;
    FILE *in = fopen(path, "r");
    if (in == NULL) {
        perror(path);
        return EXIT_FAILURE;
    }
    while (status == EXIT_SUCCESS && getline(&line, &bytes, in) >= 0) {
        number++;
        if (!write_line(line)) {
            fprintf(stderr, "%s: line %lu: use @OPTIONS COMMAND@ or @LIST COMMAND TITLE@: %s", path,
                    number, line);
            status = EXIT_FAILURE;
        }
    }
    free(line);
    fclose(in);
    return status;
}

int main(int argc, char **argv)
{
    int status = EXIT_FAILURE;
    if (argc == 3 && strcmp(argv[1], "man") == 0) {
        status = write_page(argv[2]);
    } else if (argc == 2 && strcmp(argv[1], "bash-completion") == 0) {
        tdm_bash_completion(stdout, tdm_commands);
        status = EXIT_SUCCESS;
    } else {
        fprintf(stderr, "usage: write_docs man TEMPLATE | write_docs bash-completion\n");
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? status : EXIT_FAILURE;
}
