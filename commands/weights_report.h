/* SPDX-License-Identifier: Apache-2.0 */
/* The weights next to a model's config: checked by their headers, and reported. */
#ifndef TDM_COMMANDS_WEIGHTS_REPORT_H
#define TDM_COMMANDS_WEIGHTS_REPORT_H

#include "models/weights.h"

#include <stdio.h>

/* Opens the weights in the directory that tdm_model_load(model_or_path) loaded `model` from.
 * *weights is NULL if the model came from elsewhere or the directory has none. Fails with the
 * errors of tdm_weights_open(). */
enum tdm_status tdm_weights_beside(const char *model_or_path, const struct tdm_model *model,
                                   struct tdm_weights **weights, struct tdm_error *err);

/* Prints "1 file, 290 tensors of bf16, 942.30 MiB" and a newline. Prints nothing if `weights` is
 * NULL. */
void tdm_weights_line(FILE *out, const char *title, const struct tdm_weights *weights);

/* {"files", "tensors", "bytes", "dtypes"}, or JSON null. */
json_t *tdm_weights_json(const struct tdm_weights *weights);

#endif
