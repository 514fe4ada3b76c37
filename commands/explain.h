/* SPDX-License-Identifier: Apache-2.0 */
/* What plan says of its bound, and why a schedule is as it is. */
#ifndef TDM_COMMANDS_EXPLAIN_H
#define TDM_COMMANDS_EXPLAIN_H

#include "planner/candidates.h"

#include <stdio.h>

/* The bound and the gap, and by how much a GiB more lowers the bound where that is worth a line. */
void tdm_bound_lines(FILE *out, const struct tdm_topology *topology,
                     const struct tdm_search *search);

/* The rows that bind, and where each kind of tensor is and why. */
void tdm_explain(FILE *out, const struct tdm_schedule *schedule, const struct tdm_search *search);

#endif
