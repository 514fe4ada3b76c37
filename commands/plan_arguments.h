/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of `tidemark plan`: its options, and the checks of their combinations. Only for
 * cmd_plan.c and plan_keys.c. */
#ifndef TDM_COMMANDS_PLAN_ARGUMENTS_H
#define TDM_COMMANDS_PLAN_ARGUMENTS_H

#include "commands/options.h"
#include "commands/sweep_report.h"
#include "planner/objective.h"

struct tdm_plan_arguments {
    struct tdm_request request;
    enum tdm_objective objective;
    double step_seconds; /* upper limit; 0: none */
    bool sweeps;
    struct tdm_sweep sweep, lines; /* lines: a second --sweep, if it has values */
    const char *output;
    const char
        *state_option; /* the first given option that sets what --like sets too; NULL: none */
    struct tdm_schedule *training; /* the schedule of --like; NULL: none */
    bool has_margin, force, json, explain;
};

extern const struct tdm_option tdm_plan_options[];

/* Presets, and the keys of --set (plan_keys.c). */
extern const struct tdm_help_list tdm_plan_lists[];

extern const struct tdm_plan_arguments tdm_plan_defaults;

/* Parses argv over the defaults in *arguments, which keeps pointers into argv. With --help, prints
 * the help and sets *help; without `help`, that is no option. The caller frees arguments->training,
 * also on failure. Fails with TDM_USAGE, or with the error of reading the --like schedule. */
enum tdm_status tdm_plan_arguments_read(int argc, char **argv, struct tdm_plan_arguments *arguments,
                                        bool *help, struct tdm_error *err);

#endif
