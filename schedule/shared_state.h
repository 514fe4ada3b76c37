/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that two schedules share: one trains, and the other evaluates between its steps with the
 * weights that it leaves in memory. Both must have the same optimizer, dtypes of state and homes.
 */
#ifndef TDM_SCHEDULE_SHARED_STATE_H
#define TDM_SCHEDULE_SHARED_STATE_H

#include "schedule/schedule.h"

/* Copies to `evaluation`, of the same model, all settings that must equal those of `training`. */
void tdm_shared_state_take(struct tdm_schedule *evaluation, const struct tdm_schedule *training);

/* Checks that those settings, and the models, are equal. TDM_INPUT names `path`, the field and the
 * value in `training_path`. */
enum tdm_status tdm_shared_state_check(const char *path, const struct tdm_schedule *evaluation,
                                       const char *training_path,
                                       const struct tdm_schedule *training, struct tdm_error *err);

#endif
