/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark calibrate`: hands over to tidemark-executor, which alone knows backends. */
#include "commands/cmd.h"
#include "commands/executor_path.h"

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    return tdm_executor_start(&tdm_cmd_calibrate, argc, argv, err);
}

const struct tdm_command tdm_cmd_calibrate = {
    .name = "calibrate",
    .usage = "calibrate [options]",
    .summary = "measure this machine, for plans that hold on it",
    .help =
        "tidemark-executor measures; it was not found. With it, tidemark calibrate --help lists\n"
        "the options.\n",
    .run = run,
};
