/* SPDX-License-Identifier: Apache-2.0 */
/* Options that several commands share. A command's table refers to them: {.as =
 * &tdm_option_json, .place = offsetof(struct arguments, json)}. A row that needs a different
 * help text sets its own. */
#ifndef TDM_COMMANDS_COMMON_OPTIONS_H
#define TDM_COMMANDS_COMMON_OPTIONS_H

#include "commands/options.h"

extern const struct tdm_option tdm_option_context;     /* uint64_t tokens */
extern const struct tdm_option tdm_option_machine;     /* const char * */
extern const struct tdm_option tdm_option_memory;      /* struct tdm_said_memory */
extern const struct tdm_option tdm_option_host_memory; /* struct tdm_said_memory */
extern const struct tdm_option tdm_option_margin;      /* double, a fraction */
extern const struct tdm_option tdm_option_batch;       /* uint64_t */
extern const struct tdm_option tdm_option_gpus;        /* uint64_t */
extern const struct tdm_option tdm_option_method;      /* const char * */
extern const struct tdm_option tdm_option_set;         /* each command has its own reader */
extern const struct tdm_option tdm_option_backend;     /* const char * */
extern const struct tdm_option tdm_option_step;        /* uint64_t */
extern const struct tdm_option tdm_option_rank;        /* uint64_t */
extern const struct tdm_option tdm_option_output;      /* const char *, a path */
extern const struct tdm_option tdm_option_force;       /* bool */
extern const struct tdm_option tdm_option_json;        /* bool */

/* For tdm_command.refused: "--lr 1e-3" is a setting, given with --set. */
void tdm_training_explain(const char *command, int argc, char **argv, struct tdm_error *err);

#endif
