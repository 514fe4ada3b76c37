/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark run`: hands over to tidemark-executor, which alone knows backends. */
#include "commands/cmd.h"
#include "commands/executor_path.h"

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    return tdm_executor_start(&tdm_cmd_run, argc, argv, err);
}

const struct tdm_command tdm_cmd_run = {
    .name = "run",
    .usage = "run SCHEDULE... [options]",
    .summary = "train by schedules that plan wrote",
    .help =
        "tidemark-executor runs schedules; it was not found. With it, tidemark run --help lists\n"
        "the options.\n",
    .run = run,
};
