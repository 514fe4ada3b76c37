/* SPDX-License-Identifier: Apache-2.0 */
/* The list of commands. */
#include "commands/cmd.h"

const struct tdm_command *const tdm_commands[] = {
    &tdm_cmd_plan,     &tdm_cmd_run,
    &tdm_cmd_report,   &tdm_cmd_plot,
    &tdm_cmd_export,   &tdm_cmd_diff,
    &tdm_cmd_predict,  &tdm_cmd_compare,
    &tdm_cmd_methods,  &tdm_cmd_models,
    &tdm_cmd_machines, &tdm_cmd_calibrate,
    &tdm_cmd_doctor,   NULL,
};
