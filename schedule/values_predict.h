/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a program, predicted by the rule of values.h. */
#ifndef TDM_SCHEDULE_VALUES_PREDICT_H
#define TDM_SCHEDULE_VALUES_PREDICT_H

#include "schedule/values.h"

/* The prediction: the changes of the ops of a program; malloc'ed, the caller frees. */
enum tdm_status tdm_values_predict(const struct tdm_program *program,
                                   struct tdm_values_change **changes, size_t *count,
                                   struct tdm_error *err);

#endif
