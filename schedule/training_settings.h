/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training settings that change neither memory nor operations: learning rate and its schedule,
 * decay rates, norms. A plan contains them, and a run may override them without a new plan.
 */
#ifndef TDM_SCHEDULE_TRAINING_SETTINGS_H
#define TDM_SCHEDULE_TRAINING_SETTINGS_H

#include "schedule/schedule.h"

enum tdm_training_setting {
    TDM_SETTING_LEARNING_RATE,
    TDM_SETTING_BETA1,
    TDM_SETTING_BETA2,
    TDM_SETTING_EPSILON,
    TDM_SETTING_WEIGHT_DECAY,
    TDM_SETTING_DECAYED,
    TDM_SETTING_WARMUP_STEPS,
    TDM_SETTING_RATE_SCHEDULE,
    TDM_SETTING_DECAY_STEPS,
    TDM_SETTING_FINAL_LEARNING_RATE,
    TDM_SETTING_CLIP_NORM,
    TDM_TRAINING_SETTINGS
};

/* Its key in --set: "optimizer.learning_rate". */
const char *tdm_training_setting_key(enum tdm_training_setting setting);

/* The text of its value where a schedule does not have it; NULL if all have it. */
const char *tdm_training_setting_absent(enum tdm_training_setting setting);

/* The setting that a name of `length` stands for: its key, what follows "optimizer." in it, or
 * "lr"; case, "-" and "_" are ignored in the last two. TDM_TRAINING_SETTINGS: none. */
enum tdm_training_setting tdm_training_setting_meant(const char *name, size_t length);

/* Parses a value. `what` names the option in messages. Ranges are checked by tdm_schedule_check().
 * TDM_USAGE. */
enum tdm_status tdm_training_setting_read(enum tdm_training_setting setting, const char *value,
                                          const char *what,
                                          struct tdm_optimizer_settings *optimizer,
                                          struct tdm_error *err);

/* Applies "KEY=VALUE" pairs to a planned schedule, and checks it. A KEY may also be what
 * tdm_training_setting_meant() accepts. A rate schedule that becomes
 * constant loses its decay. TDM_USAGE: a malformed pair, a key given twice, a key that would need
 * another plan, a value out of range. */
enum tdm_status tdm_training_settings_apply(const char *const *pairs, size_t count,
                                            struct tdm_schedule *schedule, struct tdm_error *err);

#endif
