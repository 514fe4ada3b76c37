/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a schedule and its prediction as a table. */
#ifndef TDM_COMMANDS_SCHEDULE_TABLE_H
#define TDM_COMMANDS_SCHEDULE_TABLE_H

#include "planner/candidates.h"

#include <stdio.h>

/* Prints model, machine, limits, nest, and the prediction. */
void tdm_schedule_table(FILE *out, const struct tdm_schedule *schedule,
                        const struct tdm_simulation *simulation);

/* Prints one line of search statistics. */
void tdm_search_line(FILE *out, const struct tdm_search_counts *counts);

/* Group sizes in the syntax of --set groups ("13,8,4,2,1", "4"), truncated with "..." if too long.
 * Returns `out`. */
const char *tdm_groups_text(const struct tdm_schedule *schedule, char *out, size_t out_bytes);

#endif
