/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legality: which loop order can keep and hold what.
 *
 * One table of refusals, each with its reason. Everything that no row refuses is allowed. The cost
 * of an allowed nest in sweeps and bytes is not stored here: lowering counts it (tidemark doctor
 * --schedules).
 */
#ifndef TDM_SCHEDULE_LEGALITY_H
#define TDM_SCHEDULE_LEGALITY_H

#include "schedule/schedule.h"

#include <stddef.h>

/* Why a group's settings are refused in this order; NULL if they are allowed. */
const char *tdm_group_refusal(enum tdm_order order, const struct tdm_group *group);

/* The reason in row `number` of the table; NULL after the last row. */
const char *tdm_refusal(size_t number);

/* Why allowed settings of a group have no effect; NULL if they have one. */
const char *tdm_group_remark(enum tdm_order order, const struct tdm_group *group);

#endif
