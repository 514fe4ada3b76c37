/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order: who waits for whom, derived from accesses.
 *
 * Items are pushed in program order. Ops of one lane run in program order anyway; an op waits for
 * the last op of another lane that it conflicts with: same slot, in a buffer of units (by_part) the
 * same part of it too, and at least one of the two writes.
 * Bytes of the arena that a freed buffer leaves to a new one carry its last uses over. A wait that
 * follows from an earlier one is left out. The simulator asks when an op may start, an executor
 * where an event is recorded and awaited.
 */
#ifndef TDM_SCHEDULE_ORDER_H
#define TDM_SCHEDULE_ORDER_H

#include "schedule/program.h"

struct tdm_order_tracker;

/* What an op waits for: for each lane the position (1, 2, ... counted on that lane) of the op that
 * must have finished; 0: nothing. `position` is the op's own on its lane. */
struct tdm_waits {
    uint64_t lane_position[TDM_MAX_LANES];
    uint64_t position;
};

enum tdm_status tdm_order_new(const struct tdm_program *program, struct tdm_order_tracker **order,
                              struct tdm_error *err);
void tdm_order_free(struct tdm_order_tracker *order);

/* Forgets everything: the begin of another step. */
void tdm_order_reset(struct tdm_order_tracker *order);

/* Takes the next item; for TDM_RUN fills *waits. No allocation, O(log(slots * parts)) an access. */
void tdm_order_push(struct tdm_order_tracker *order, const struct tdm_item *item,
                    struct tdm_waits *waits);

#endif
