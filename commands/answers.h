/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answers of commands as JSON objects: what they print with --json, and what the shared library
 * gives (library/). These functions print nothing.
 *
 * The caller owns *answer (json_decref). It is NULL, with TDM_OK, if memory ran out while it was
 * built, as in base/json.h.
 */
#ifndef TDM_COMMANDS_ANSWERS_H
#define TDM_COMMANDS_ANSWERS_H

#include "base/status.h"

#include <jansson.h>

/* {"models": [...]} if `name` is NULL, else the model of that name with its tensors. The errors of
 * tdm_model_load() and tdm_weights_beside(). */
enum tdm_status tdm_models_answer(const char *name, json_t **answer, struct tdm_error *err);

/* The same of machines. */
enum tdm_status tdm_machines_answer(const char *name, json_t **answer, struct tdm_error *err);

/* What `plan` and `predict` with --json print for a command line: argv[0] is the command's name.
 * Help, sweeps and pictures are refused with TDM_USAGE, and so is a schedule on stdout. With
 * TDM_INFEASIBLE *answer is set too. argv is reordered, as by getopt_long(). Not reentrant. */
enum tdm_status tdm_plan_answer(int argc, char **argv, json_t **answer, struct tdm_error *err);
enum tdm_status tdm_predict_answer(int argc, char **argv, json_t **answer, struct tdm_error *err);

#endif
