/* SPDX-License-Identifier: Apache-2.0 */
/* Methods that the planner predicts, and what was said of them in its words. */
#ifndef TDM_COMMANDS_OWN_METHOD_H
#define TDM_COMMANDS_OWN_METHOD_H

#include "methods/remedy.h"
#include "commands/own_schedule.h"

/* Is it tidemark's own? Others are predicted by tdm_method_predict(). */
static inline bool tdm_method_is_own(const struct tdm_method *method)
{
    return method->system == NULL;
}

/* What was said, and what is assumed for the rest, on a machine of that name and with that memory;
 * borrows all. */
struct tdm_own_words tdm_own_words(const struct tdm_method_settings *settings,
                                   const struct tdm_method_choices *choices, const char *model,
                                   const char *name, const struct tdm_machine *machine,
                                   double margin);

/* What would help where it does not fit, with so many bytes of the device at most (the margin
 * left): the three ways that cost least, whose peaks are what is enough; a shorter context is not
 * among them, but longest_tokens. */
void tdm_own_remedies(const struct tdm_own_miss *miss, uint64_t most_bytes,
                      struct tdm_remedies *out);

#endif
