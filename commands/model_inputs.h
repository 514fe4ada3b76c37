/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a command reads for its model and machine. */
#ifndef TDM_COMMANDS_MODEL_INPUTS_H
#define TDM_COMMANDS_MODEL_INPUTS_H

#include "base/status.h"

/* Refuses to overwrite an input: fails with TDM_USAGE if `path`, given by `option`, is a file that
 * `model` (a shipped name, a file, or a directory with its weights) or `machine` is read from.
 * `model` and `machine` may be NULL. `path` is NULL if nothing is written. */
enum tdm_status tdm_model_inputs_spare(const char *model, const char *machine, const char *option,
                                       const char *path, struct tdm_error *err);

#endif
