/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that two schedules share: one trains, the other evaluates between its steps on the very
 * weights that it leaves in memory. Both must have the same optimizer, dtypes of state and homes.
 */
#ifndef TDM_SCHEDULE_SHARED_STATE_H
#define TDM_SCHEDULE_SHARED_STATE_H

#include "schedule/schedule.h"

/* Gives `evaluation`, of the same model, all that it must have in common with `training`. */
void tdm_shared_state_take(struct tdm_schedule *evaluation, const struct tdm_schedule *training);

/* Do both have in common what they must? Models are compared too. TDM_INPUT names `path`, the field
 * and what `training_path` has. */
enum tdm_status tdm_shared_state_check(const char *path, const struct tdm_schedule *evaluation,
                                       const char *training_path,
                                       const struct tdm_schedule *training, struct tdm_error *err);

#endif
