/* SPDX-License-Identifier: Apache-2.0 */
/* A validator for the parts of JSON Schema (2020-12) that docs/prediction.schema.json uses: type,
 * const, enum, minimum, properties, required, additionalProperties, items, anyOf, and $ref to
 * $defs. */
#ifndef TDM_TESTS_SUPPORT_JSON_SCHEMA_H
#define TDM_TESTS_SUPPORT_JSON_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#define JSON_SCHEMA_PROBLEM 640

/* False: `problem` says where the value differs. A keyword of the schema that is not known is a
 * difference too. */
bool json_schema_check(const json_t *schema, const json_t *value,
                       char problem[JSON_SCHEMA_PROBLEM]);

#endif
