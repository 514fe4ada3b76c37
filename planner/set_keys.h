/* SPDX-License-Identifier: Apache-2.0 */
/* --set KEY=VALUE: knobs that a user pins for the search. */
#ifndef TDM_PLANNER_SET_KEYS_H
#define TDM_PLANNER_SET_KEYS_H

#include "planner/candidates.h"

#include <stddef.h>

/* Reads `count` texts "KEY=VALUE" into `pins` (freed by the caller with tdm_pins_free, also after
 * failure) and into `schedule`: page size, prefetch, dtypes and optimizer settings are not
 * searched. A repeated key is refused. TDM_USAGE names the key, the value and what is expected; an
 * unknown key gets the list of keys. */
enum tdm_status tdm_set_keys_apply(const char *const *pairs, size_t count,
                                   struct tdm_schedule *schedule, struct tdm_pins *pins,
                                   struct tdm_error *err);

/* Is the key of a text "KEY=VALUE" known, whatever its value? */
bool tdm_set_keys_know(const char *pair);

#endif
