/* SPDX-License-Identifier: Apache-2.0 */
/* The family of schedules: what each loop order can keep and hold, and its cost. */
#ifndef TDM_COMMANDS_FAMILY_H
#define TDM_COMMANDS_FAMILY_H

#include "base/status.h"

#include <stdbool.h>

/* Prints the table to stdout, or one JSON object. Rows are order x group size x residual set, kept
 * or held, x kv. Each row says whether the combination is allowed, else why not. Allowed rows have
 * their cost, from lowering and the simulator. */
enum tdm_status tdm_family_print(bool as_json, struct tdm_error *err);

#endif
