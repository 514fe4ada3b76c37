/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's methods, for the table of methods. */
#ifndef TDM_METHODS_DEEPSPEED_METHOD_H
#define TDM_METHODS_DEEPSPEED_METHOD_H

#include "methods/method.h"

extern const char *const tdm_zero_without[]; /* keys of tdm_keys_torch that these have not */

void tdm_zero2_preset(struct tdm_method_settings *settings);
void tdm_zero3_preset(struct tdm_method_settings *settings);
enum tdm_status tdm_zero_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                               struct tdm_error *err);
void tdm_zero_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                   struct tdm_method_cost *cost);

#endif
