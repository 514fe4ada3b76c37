/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that a run evaluates on (`--validation [NAME=]WHAT`), and their names. */
#ifndef TDM_COMMANDS_RUN_TEXTS_H
#define TDM_COMMANDS_RUN_TEXTS_H

#include "executor/run.h"

/* Adds a text to `run`, a struct tdm_run_options: a share of --tokens, or a file of which it keeps
 * a pointer into `text`. What is before the "=" of a path is no name if there is a file of that
 * path, or if it can be no name because it holds "/", ":", "," or a pattern. TDM_USAGE,
 * TDM_NO_MEMORY. */
enum tdm_status tdm_run_text_read(const char *text, void *run, struct tdm_error *err);

/* Names those that have no name. TDM_USAGE: two have the same name, or are shares of --tokens. */
enum tdm_status tdm_run_texts_name(struct tdm_run_options *run, struct tdm_error *err);

#endif
