/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legality: which loop order can keep and hold what.
 *
 * One table of refusals, each with its reason; what no row refuses is allowed. What an allowed nest
 * costs in sweeps and bytes is not written down anywhere: lowering counts it (tidemark doctor
 * --schedules).
 */
#ifndef TDM_SCHEDULE_LEGALITY_H
#define TDM_SCHEDULE_LEGALITY_H

#include "schedule/schedule.h"

#include <stddef.h>

/* Why a group cannot be as it is in this order; NULL if it can. */
const char *tdm_group_refusal(enum tdm_order order, const struct tdm_group *group);

/* All reasons for which a group can be refused, in the order of the table; NULL beyond the last. */
const char *tdm_refusal(size_t number);

/* Why settings of a group have no effect, though they are allowed; NULL if they have one. */
const char *tdm_group_remark(enum tdm_order order, const struct tdm_group *group);

#endif
