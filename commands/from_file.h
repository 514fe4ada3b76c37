/* SPDX-License-Identifier: Apache-2.0 */
/* Files of settings in the formats that people have them in, as JSON values. */
#ifndef TDM_COMMANDS_FROM_FILE_H
#define TDM_COMMANDS_FROM_FILE_H

#include "base/status.h"

#include <jansson.h>

/* Reads a file of JSON, YAML, TOML, or arguments of a command line ("--micro-batch-size 1
 * --bf16"): by the end of its name (.json, .yaml, .yml, .toml, .args), else by how it begins. Keys
 * of arguments keep their dashes; one without a value is true. The caller owns the result. Errors
 * name the file, and the line where there is one. */
enum tdm_status tdm_from_load(const char *path, json_t **root, struct tdm_error *err);

#endif
