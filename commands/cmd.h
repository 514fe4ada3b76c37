/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands: one file a subcommand, each ending in a const descriptor; main.c holds the table.
 * Only these files and main.c print to the terminal. Data goes to stdout, all else to stderr.
 */
#ifndef TDM_COMMANDS_CMD_H
#define TDM_COMMANDS_CMD_H

#include "base/options.h"
#include "base/status.h"

struct tdm_command {
    const char *name;
    const char *usage;   /* "plan MODEL --context N [options]" */
    const char *summary; /* one line, lower case, no full stop */
    const char *help;    /* the options, one a line, and examples; ends with a newline */
    /* argv[0] is the command's name. Fills err on failure; main.c prints it and exits. */
    enum tdm_status (*run)(int argc, char **argv, struct tdm_error *err);
};

extern const struct tdm_command tdm_cmd_plan, tdm_cmd_models, tdm_cmd_machines, tdm_cmd_run,
    tdm_cmd_report, tdm_cmd_plot, tdm_cmd_doctor, tdm_cmd_compare, tdm_cmd_diff, tdm_cmd_calibrate,
    tdm_cmd_predict, tdm_cmd_methods;

/* Usage and help of a command on stdout. */
void tdm_cmd_print_help(const struct tdm_command *command);

#endif
