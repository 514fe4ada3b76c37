/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The longest context that a method fits on a machine.
 *
 * What is allocated is nearly a line over the tokens. What the allocator holds beside it changes in
 * leaps, so that a step may fit where a little shorter one does not. The search guesses where the
 * line, with what is held beside it, meets the device, tries that, and corrects the line, until
 * what fits and what does not are neighbours; then it looks at three more, and goes on from there
 * if one of them fits. That takes about eight predictions.
 */
#ifndef TDM_METHODS_LONGEST_H
#define TDM_METHODS_LONGEST_H

#include "methods/prediction.h"

/* A context of which it is known whether it fits. */
struct tdm_known_context {
    uint64_t tokens; /* 0: nothing is known */
    uint64_t used_bytes,
        cached_bytes; /* at the peak; of these held beside what is allocated; 0: not known */
};

/* Of 1K tokens and a multiple by which a sequence is cut for so many GPUs: the least that the
 * method takes near `tokens`; 0: it takes none, and `err` says why. */
uint64_t tdm_context_grain(const struct tdm_model *model,
                           const struct tdm_method_settings *settings, uint64_t tokens,
                           struct tdm_error *err);

/* *tokens: the longest context, a multiple of `grain`, with which the settings (whatever their
 * tokens) fit, above 512K right to one part in 512; longer than `fits`, which does, or that one, or
 * 0; and shorter than `fails`, if there is one. *prediction is of it, unless it is `fits`, which is
 * not tried again. *work grows by that of the predictions. */
enum tdm_status tdm_method_longest(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   uint64_t grain, const struct tdm_known_context *fits,
                                   const struct tdm_known_context *fails, uint64_t *tokens,
                                   struct tdm_method_prediction *prediction, uint64_t *work,
                                   struct tdm_error *err);

/* The same below a context that does not fit, of which `asked` is what tdm_method_need() said; 0:
 * none does. *work grows. */
enum tdm_status tdm_method_longest_below(const struct tdm_model *model,
                                         const struct tdm_machine *machine,
                                         const struct tdm_method_settings *settings, double margin,
                                         const struct tdm_method_prediction *asked,
                                         uint64_t *tokens, uint64_t *work, struct tdm_error *err);

#endif
