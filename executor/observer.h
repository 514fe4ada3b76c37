/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Observer: what the launches of a step touch, noted without reading any planned live range.
 *
 * Which slots an op works on is read back from the addresses that its launch is given (a backend
 * that executes nothing has none), so that what is observed is what the executor did. How many
 * bytes hold a value follows by the rule of schedule/values.h, as in the prediction.
 */
#ifndef TDM_EXECUTOR_OBSERVER_H
#define TDM_EXECUTOR_OBSERVER_H

#include "executor/arenas.h"
#include "schedule/values.h"

struct tdm_observer;

/* All memory for one step of `program` is taken here. `arenas` are those that its launches work in;
 * both must outlive the observer. */
enum tdm_status tdm_observer_new(const struct tdm_program *program, const struct tdm_arenas *arenas,
                                 struct tdm_observer **observer, struct tdm_error *err);
void tdm_observer_free(struct tdm_observer *observer);

/* Forgets the last step. */
void tdm_observer_reset(struct tdm_observer *observer);

/* An op is launched. TDM_INTERNAL if an operand is not where a slot of its buffer begins. */
enum tdm_status tdm_observer_launch(struct tdm_observer *observer, const struct tdm_launch *launch,
                                    struct tdm_error *err);

/* What was observed. */
struct tdm_values *tdm_observer_values(struct tdm_observer *observer);

#endif
