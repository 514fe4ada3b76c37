/* SPDX-License-Identifier: Apache-2.0 */
/* YAML files of settings as JSON values, through libyaml. */
#ifndef TDM_BASE_YAML_H
#define TDM_BASE_YAML_H

#include "base/status.h"

#include <jansson.h>
#include <stddef.h>

/* Parses text that comes from `file`: one document, which must be a mapping. Plain scalars become
 * null, booleans (yes and no too, as PyYAML has it), integers and numbers; all others are strings.
 * The caller owns the result. TDM_INPUT with line and column: invalid YAML, a duplicate key, an
 * alias, a tag, a key that is not a scalar, or a second document. */
enum tdm_status tdm_yaml_parse(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err);

/* The value of a plain scalar, as above. NULL: no memory. */
json_t *tdm_yaml_scalar(const char *text, size_t length);

#endif
