/* SPDX-License-Identifier: Apache-2.0 */
/* What would make a step fit, in the words of the system that runs it. */
#ifndef TDM_METHODS_REMEDY_H
#define TDM_METHODS_REMEDY_H

#include "methods/prediction.h"

#define TDM_REMEDY_TEXT 1024u

/* Writes to `out` which single changes of a setting make it fit, the cheapest first, at most three; if none
 * does, how many of them together do; and the longest context that fits as it is. "" if nothing helps.
 * `choices`: what the user said of the method's keys. */
enum tdm_status tdm_method_remedies(const struct tdm_method *method, const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_method_choices *choices, double margin,
                                    char out[TDM_REMEDY_TEXT], struct tdm_error *err);

#endif
