/* SPDX-License-Identifier: Apache-2.0 */
/* Methods that the planner predicts, and their settings as planner input. */
#ifndef TDM_COMMANDS_OWN_METHOD_H
#define TDM_COMMANDS_OWN_METHOD_H

#include "methods/remedy.h"
#include "commands/own_schedule.h"

/* True if tidemark's planner predicts it. tdm_method_predict() predicts the others. */
static inline bool tdm_method_is_own(const struct tdm_method *method)
{
    return method->system == NULL && !method->serves;
}

/* The given settings, with the assumed values for the rest, on the named machine with that memory.
 * Borrows all pointers. */
struct tdm_own_words tdm_own_words(const struct tdm_method_settings *settings,
                                   const struct tdm_method_choices *choices, const char *model,
                                   const char *name, const struct tdm_machine *machine,
                                   double margin);

/* Remedies for a request that does not fit `gpus` GPUs: at most three, those with the least effect
 * first. `most_bytes` is the device memory without the margin. Each remedy's peaks are the memory
 * that is enough. A shorter context is not in the list; it is returned in longest_tokens. */
void tdm_own_remedies(const struct tdm_own_miss *miss, uint64_t gpus, uint64_t most_bytes,
                      struct tdm_remedies *out);

#endif
