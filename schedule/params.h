/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of ops, from a schedule: the one place where lowering decides what kernels must
 * know of it. */
#ifndef TDM_SCHEDULE_PARAMS_H
#define TDM_SCHEDULE_PARAMS_H

#include "ops/params.h"
#include "schedule/schedule.h"

/* Parameters of the programs of a schedule, which must outlive them, and its model too. Allocates
 * nothing. */
void tdm_params_fill(const struct tdm_schedule *schedule, struct tdm_params *params);

#endif
