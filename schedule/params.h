/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of ops, from a schedule. Only here does lowering decide what kernels know of
 * it. */
#ifndef TDM_SCHEDULE_PARAMS_H
#define TDM_SCHEDULE_PARAMS_H

#include "ops/params.h"
#include "schedule/schedule.h"

/* Fills the parameters for the programs of a schedule. The schedule and its model must outlive
 * them. Allocates nothing. */
void tdm_params_fill(const struct tdm_schedule *schedule, struct tdm_params *params);

#endif
