/* SPDX-License-Identifier: Apache-2.0 */
/* What predict says of tidemark's own schedule: the same rows and fields as of other methods. */
#ifndef TDM_PLANNER_OWN_REPORT_H
#define TDM_PLANNER_OWN_REPORT_H

#include "planner/own_schedule.h"

#include <jansson.h>
#include <stdio.h>

/* All steps take the same: the arenas are taken before the first. */
void tdm_own_table(FILE *out, const struct tdm_objective_found *found);

/* What is predicted, as plan says it, with a list of the one step that all are like. NULL: memory ran out. */
json_t *tdm_own_json(const struct tdm_objective_found *found);

/* Why nothing fits, and what would: TDM_INFEASIBLE, or what else went wrong. */
enum tdm_status tdm_own_fail(struct tdm_objective_found *found, struct tdm_error *err);

#endif
