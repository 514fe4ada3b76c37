/* SPDX-License-Identifier: Apache-2.0 */
/* Files of settings in TOML 1.0 as JSON values: the part of the format that settings use. */
#ifndef TDM_BASE_TOML_H
#define TDM_BASE_TOML_H

#include "base/status.h"

#include <jansson.h>
#include <stddef.h>

/* Parses text that comes from `file`: tables, keys with or without dots and quotes, strings on one
 * line, integers, numbers, booleans, and arrays of these. The caller owns the result. TDM_INPUT
 * with the line: anything else of TOML (dates, inline tables, arrays of tables, strings of several
 * lines), a duplicate key, and what is no TOML. */
enum tdm_status tdm_toml_parse(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err);

#endif
