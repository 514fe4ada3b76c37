/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The longest context that a method fits on a machine.
 *
 * Allocated bytes grow almost linearly with the tokens. The bytes that the allocator caches
 * beyond them change in jumps, so a step may fit although a slightly shorter one does not. The
 * search extrapolates a line to the size of the device, tries the context found there, and
 * corrects the line, until the longest context that fits and the shortest that does not are
 * neighbours. Below a context that does not fit it goes down in steps that double. Where cached
 * memory must be given back, it halves what lies below the context whose allocated bytes alone
 * reach the size of the device. It then tries three more contexts above, and continues from there
 * if one of them fits. That takes about ten predictions, on a device smaller by the margin; the
 * context found is predicted on the whole device too.
 */
#ifndef TDM_METHODS_LONGEST_H
#define TDM_METHODS_LONGEST_H

#include "methods/prediction.h"

/* A context that is known to fit, or not to fit. */
struct tdm_known_context {
    uint64_t tokens;                   /* 0: no context is known */
    uint64_t used_bytes, cached_bytes; /* at the peak; cached_bytes are those of used_bytes that are
                                          not allocated; 0: not known */
    uint64_t host_bytes;               /* of all GPUs that share the host; 0: none, or not known */
    uint64_t fixed_bytes; /* those of used_bytes that do not depend on the context; 0: not known */
};

/* The granularity of contexts near `tokens`: 1K tokens, or else the least common multiple of 1K and
 * 2 slices a GPU, the first of these with which the method accepts a context. 0: it accepts
 * neither, and `err` says why. */
uint64_t tdm_context_grain(const struct tdm_model *model,
                           const struct tdm_method_settings *settings, uint64_t tokens,
                           struct tdm_error *err);

/* *tokens: the longest context, a multiple of `grain`, that fits with the settings (their own
 * tokens are ignored). Above 512K it is exact to one part in 512. It is at least that of `fits`,
 * which is known to fit (0: nothing is known), and less than that of `fails`, if set. *prediction
 * is for it, unless it is that of `fits`, which is not predicted again. *work grows by the work of
 * the predictions. */
enum tdm_status tdm_method_longest(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   uint64_t grain, const struct tdm_known_context *fits,
                                   const struct tdm_known_context *fails, uint64_t *tokens,
                                   struct tdm_method_prediction *prediction, uint64_t *work,
                                   struct tdm_error *err);

/* The same below a context that does not fit, for which `asked` is the result of tdm_method_need().
 * *tokens is 0 if none fits. *work grows. */
enum tdm_status tdm_method_longest_below(const struct tdm_model *model,
                                         const struct tdm_machine *machine,
                                         const struct tdm_method_settings *settings, double margin,
                                         const struct tdm_method_prediction *asked,
                                         uint64_t *tokens, uint64_t *work, struct tdm_error *err);

#endif
