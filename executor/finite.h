/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the first op whose output is not finite, by comparing what an op writes before and after
 * it. Ops then run one by one, so this is for a step that is known to go wrong.
 */
#ifndef TDM_EXECUTOR_FINITE_H
#define TDM_EXECUTOR_FINITE_H

#include "executor/arenas.h"

struct tdm_finite;

/* For ops in `arenas`, which must outlive it. */
enum tdm_status tdm_finite_new(const struct tdm_arenas *arenas, struct tdm_finite **finite,
                               struct tdm_error *err);
void tdm_finite_free(struct tdm_finite *finite);

/* Waits for all ops before this one, and copies what it will write. TDM_NO_MEMORY. */
enum tdm_status tdm_finite_before(struct tdm_finite *finite, const struct tdm_launch *launch,
                                  struct tdm_error *err);

/* Waits for the op. TDM_INPUT, with the op, where it is in the step, and what it writes to, if an
 * element that it changed is infinite or NaN. */
enum tdm_status tdm_finite_after(struct tdm_finite *finite, const struct tdm_launch *launch,
                                 struct tdm_error *err);

#endif
