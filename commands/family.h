/* SPDX-License-Identifier: Apache-2.0 */
/* The family of schedules: what each loop order can keep and hold, and what it costs. */
#ifndef TDM_COMMANDS_FAMILY_H
#define TDM_COMMANDS_FAMILY_H

#include "base/status.h"

#include <stdbool.h>

/* Prints the table to stdout, or as one JSON object: order x group size x residual set, kept or
 * held, x kv: allowed or why not, and the cost of what is allowed as lowering and simulator count
 * it. */
enum tdm_status tdm_family_print(bool as_json, struct tdm_error *err);

#endif
