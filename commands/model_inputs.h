/* SPDX-License-Identifier: Apache-2.0 */
/* What commands read that take a model and a machine. */
#ifndef TDM_COMMANDS_MODEL_INPUTS_H
#define TDM_COMMANDS_MODEL_INPUTS_H

#include "base/status.h"

/* Refuses to write `path`, which `option` names, if it is what `model` (a shipped name, a file, or
 * a directory with its weights) or `machine` is read from: TDM_USAGE. Either may be NULL, and
 * `path` if nothing is written. */
enum tdm_status tdm_model_inputs_spare(const char *model, const char *machine, const char *option,
                                       const char *path, struct tdm_error *err);

#endif
