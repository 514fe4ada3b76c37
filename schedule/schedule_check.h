/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a schedule must be to be lowered. Above the optimizers, legality and gathering, each of
 * which has a part of the rules.
 */
#ifndef TDM_SCHEDULE_SCHEDULE_CHECK_H
#define TDM_SCHEDULE_SCHEDULE_CHECK_H

#include "schedule/schedule.h"

/* Checks everything that can be checked without lowering: ranges, group sizes, dtype combinations,
 * what an order can keep and hold. `file` names the schedule in messages. TDM_INPUT with the
 * reason. */
enum tdm_status tdm_schedule_check(const struct tdm_schedule *schedule, const char *file,
                                   struct tdm_error *err);

#endif
