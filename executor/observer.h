/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Observer: records which slots the launches of a step touch, without using planned live ranges.
 *
 * The slots of an op are computed from the addresses in its launch, so they show what the executor
 * did. (A backend that executes nothing has no addresses.) The bytes that hold values follow by the
 * rule of schedule/values.h, as in the prediction.
 */
#ifndef TDM_EXECUTOR_OBSERVER_H
#define TDM_EXECUTOR_OBSERVER_H

#include "executor/arenas.h"
#include "schedule/values.h"

struct tdm_observer;

/* Creates an observer and allocates all memory for one step of `program`. The launches must use
 * `arenas`. Both must outlive the observer. */
enum tdm_status tdm_observer_new(const struct tdm_program *program, const struct tdm_arenas *arenas,
                                 struct tdm_observer **observer, struct tdm_error *err);
void tdm_observer_free(struct tdm_observer *observer);

/* Discards the last step. */
void tdm_observer_reset(struct tdm_observer *observer);

/* Records a launch. TDM_INTERNAL if an operand is not at the start of a slot of its buffer. */
enum tdm_status tdm_observer_launch(struct tdm_observer *observer, const struct tdm_launch *launch,
                                    struct tdm_error *err);

/* The observed values. */
struct tdm_values *tdm_observer_values(struct tdm_observer *observer);

#endif
