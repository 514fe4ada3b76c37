/* SPDX-License-Identifier: Apache-2.0 */
/* Text for plan: the lower bound on step time, and why a schedule was chosen. */
#ifndef TDM_COMMANDS_EXPLAIN_H
#define TDM_COMMANDS_EXPLAIN_H

#include "planner/candidates.h"

#include <stdio.h>

/* Prints the bound and the gap. For each memory, also prints how much 1 GiB more lowers the bound,
 * if that is significant. */
void tdm_bound_lines(FILE *out, const struct tdm_topology *topology,
                     const struct tdm_search *search);

/* Prints the binding constraints, and where each kind of tensor is and why. */
void tdm_explain(FILE *out, const struct tdm_schedule *schedule, const struct tdm_search *search);

#endif
