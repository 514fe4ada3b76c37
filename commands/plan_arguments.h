/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidemark plan` is asked: its options, and what they may not say together. For cmd_plan.c
 * and plan_keys.c alone. */
#ifndef TDM_COMMANDS_PLAN_ARGUMENTS_H
#define TDM_COMMANDS_PLAN_ARGUMENTS_H

#include "commands/options.h"
#include "commands/sweep_report.h"
#include "planner/objective.h"

struct tdm_plan_arguments {
    struct tdm_request request;
    enum tdm_objective objective;
    double step_seconds; /* the most; 0: any */
    bool sweeps;
    struct tdm_sweep sweep;
    const char *output;
    const char *state_option;      /* the first that says what --like does; NULL: none */
    struct tdm_schedule *training; /* of --like; NULL: none */
    bool has_margin, force, json, explain;
};

extern const struct tdm_option tdm_plan_options[];

/* Presets, and keys of --set (plan_keys.c). */
extern const struct tdm_help_list tdm_plan_lists[];

/* Reads argv on top of what *arguments has, which holds on to argv. With --help prints the help and
 * is done (*help). The caller frees arguments->training, whatever is returned. TDM_USAGE, or what
 * reading the schedule of --like says. */
enum tdm_status tdm_plan_arguments_read(int argc, char **argv, struct tdm_plan_arguments *arguments,
                                        bool *help, struct tdm_error *err);

#endif
