/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark calibrate`: its options. tidemark-executor runs it (executor_calibrate.c), because only
 * that program has the backends. */
#include "commands/cmd.h"

#include "commands/common_options.h"
#include "commands/run_arguments.h"

#include <string.h>

#define PLACE(field) offsetof(struct tdm_calibrate_arguments, field)

static const struct tdm_option options[] = {
    {.as = &tdm_option_output,
     .place = PLACE(output),
     .help = "write the description to FILE, - is stdout; default "
             "$XDG_CONFIG_HOME/tidemark/machine.json, which is replaced"},
    {.as = &tdm_option_backend,
     .place = PLACE(backend),
     .help =
         "cuda: the NVIDIA GPU; cpu: this machine's cores; default cuda where there is one, else "
         "cpu",
     .values = TDM_VALUES_NAMES,
     .names = "cuda or cpu"},
    {.name = "from",
     .word = "TRACE",
     .place = PLACE(trace),
     .help =
         "measure nothing: take the machine of a trace and correct its rates by the ops that it "
         "timed; links and memory stay. Says what changed",
     .values = TDM_VALUES_FILES},
    {.name = "quick",
     .type = TDM_OPTION_FLAG,
     .place = PLACE(quick),
     .help = "in about 10 seconds, less exactly: fewer sizes, and not as hot"},
    {.as = &tdm_option_force, .place = PLACE(force), .help = "replace FILE"},
    {.as = &tdm_option_json,
     .place = PLACE(json),
     .help = "print the rates as one JSON object on stdout"},
    {.name = NULL}};

const struct tdm_command tdm_cmd_calibrate = {
    .name = "calibrate",
    .usage = "calibrate [options]",
    .summary = "measure this machine, for plans that hold on it",
    .options = options,
    .notes = "Measures this machine and writes its description, which --machine local then means: "
             "the rates of products, attention and memory-bound ops by size, of copies one way "
             "and both, of updates on the host and of both beside each other, what a launch and a "
             "copy cost at least, and what driver and libraries take. All ops are those of a run, "
             "in steps of short models. Takes about a minute; nothing else should run meanwhile.\n"
             "\n"
             "Examples:\n"
             "  tidemark calibrate\n"
             "  tidemark calibrate --backend cpu -o cores.json\n"
             "  tidemark calibrate --from run.db -o corrected.json\n",
};

enum tdm_status tdm_calibrate_arguments_read(int argc, char **argv,
                                             struct tdm_calibrate_arguments *a, bool *help,
                                             struct tdm_error *err)
{
    int first;
    *a = (struct tdm_calibrate_arguments){NULL};
    enum tdm_status status = tdm_options_read(&tdm_cmd_calibrate, argc, argv, a, &first, help, err);
    if (status != TDM_OK || *help)
        return status;
    if (first < argc)
        return tdm_fail(err, TDM_USAGE, "calibrate: takes no arguments; found \"%s\"", argv[first]);
    if (a->trace != NULL && (a->backend != NULL || a->quick))
        return tdm_fail(err, TDM_USAGE, "calibrate: --from measures nothing; leave %s out",
                        a->quick ? "--quick" : "--backend");
    if (a->json && a->output != NULL && strcmp(a->output, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "calibrate: -o - and --json both write to stdout");
    return TDM_OK;
}
