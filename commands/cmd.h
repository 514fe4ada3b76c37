/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands. Each subcommand has one file that ends in a const descriptor (commands/options.h).
 * Only these files, their reports and main.c print to the terminal. Data goes to stdout,
 * everything else to stderr.
 */
#ifndef TDM_COMMANDS_CMD_H
#define TDM_COMMANDS_CMD_H

#include "commands/options.h"

extern const struct tdm_command tdm_cmd_plan, tdm_cmd_models, tdm_cmd_machines, tdm_cmd_run,
    tdm_cmd_report, tdm_cmd_plot, tdm_cmd_doctor, tdm_cmd_compare, tdm_cmd_diff, tdm_cmd_calibrate,
    tdm_cmd_predict, tdm_cmd_methods, tdm_cmd_export;

/* All commands, in the order of --help. Ends with NULL. */
extern const struct tdm_command *const tdm_commands[];

#endif
