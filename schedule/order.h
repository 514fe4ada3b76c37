/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order: which op waits for which, derived from accesses.
 *
 * Items are pushed in program order. Ops of one lane run in program order anyway. An op waits for
 * the last op of another lane with which it conflicts: both access the same slot (in a buffer of
 * units, by_part, the same part of it), and at least one writes. A buffer that reuses arena bytes
 * of a freed buffer inherits the last uses of those bytes. A wait that an earlier one implies is
 * left out. The simulator uses this to find when an op may start, an executor to find where an
 * event is recorded and awaited.
 */
#ifndef TDM_SCHEDULE_ORDER_H
#define TDM_SCHEDULE_ORDER_H

#include "schedule/program_types.h"

struct tdm_order_tracker;

/* What an op waits for: for each lane, the position (counted from 1 on that lane) of the op that
 * must have finished; 0: nothing. `position` is the op's own position on its lane. */
struct tdm_waits {
    uint64_t lane_position[TDM_MAX_LANES];
    uint64_t position;
};

enum tdm_status tdm_order_new(const struct tdm_program *program, struct tdm_order_tracker **order,
                              struct tdm_error *err);
void tdm_order_free(struct tdm_order_tracker *order);

/* Resets the tracker for another step. */
void tdm_order_reset(struct tdm_order_tracker *order);

/* Takes the next item; for TDM_RUN fills *waits. Allocates nothing. O(log(slots * parts)) per
 * access. */
void tdm_order_push(struct tdm_order_tracker *order, const struct tdm_item *item,
                    struct tdm_waits *waits);

/* Receives an item, and for TDM_RUN what it waits for. */
typedef enum tdm_status (*tdm_ordered_sink)(void *self, const struct tdm_item *item,
                                            const struct tdm_waits *waits, struct tdm_error *err);

/* Emits a program (tdm_program_emit()) to a reader of its own, with what each op waits for. Returns
 * errors of `take`. TDM_NO_MEMORY. */
enum tdm_status tdm_order_emit(const struct tdm_program *program, tdm_ordered_sink take, void *self,
                               struct tdm_error *err);

#endif
