/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values: how many bytes hold a live value while an op runs.
 *
 * A value lives in a slot (of a unit: in a part of it) from the op that writes it to the last op
 * that uses it, in program order. A slot whose first use in a step is not a write holds a value of
 * the step before. That value, or what the step makes of it, lives for the whole step. Scratch
 * lives for the whole step too.
 *
 * The rule depends only on accesses, not on allocations or times. The prediction applies it to the
 * ops of a program, the observer to the launches of an executor. So both are equal, byte for byte,
 * if the executor launches what the program says. Allocated bytes are never fewer: a buffer is
 * allocated as a whole, for as long as any of its slots is needed.
 */
#ifndef TDM_SCHEDULE_VALUES_H
#define TDM_SCHEDULE_VALUES_H

#include "schedule/program_types.h"

#include <stddef.h>

struct tdm_values;

/* Number of values that an op begins: one for each slot that it writes, or for each part of a unit
 * in it. */
uint64_t tdm_values_written(const struct tdm_op *op);

/* From this op on, `value_bytes` bytes of a place and category hold values. */
struct tdm_values_change {
    uint64_t op_number;
    enum tdm_place place;
    enum tdm_category category;
    uint64_t value_bytes;
};

/* A buffer that some op used. */
struct tdm_values_touch {
    uint32_t buffer; /* of the program */
    uint64_t bytes;  /* distinct bytes, by slots and meaningful bytes */
    uint64_t first_op, last_op;
};

/* Maximum number of changes in a step of a program. */
size_t tdm_values_change_capacity(const struct tdm_program *program);

/* Allocates all memory for one step of `program`, which must outlive it: the calls below allocate
 * nothing. TDM_NO_MEMORY. The caller owns *values. */
enum tdm_status tdm_values_new(const struct tdm_program *program, struct tdm_values **values,
                               struct tdm_error *err);
void tdm_values_free(struct tdm_values *values);

/* Resets to the begin of a step. */
void tdm_values_reset(struct tdm_values *values);

/* To be called when an op is launched. Op numbers must increase from one call to the next. */
void tdm_values_take(struct tdm_values *values, const struct tdm_op *op);

/* A value that has ended: where it was, what it was when it began, and for which ops. */
struct tdm_value_life {
    uint32_t buffer, slot; /* of the program */
    enum tdm_part part;    /* in a buffer by parts; else 0 */
    struct tdm_tag tag;    /* of its first op: after it wrote, or before it read */
    uint64_t bytes;
    uint64_t first_op, last_op; /* of a value that outlives the step: its first and last op */
    bool carried;               /* it was there before the step, and lives for all of it */
};
typedef void (*tdm_value_seen)(void *self, const struct tdm_value_life *life);

/* Has every value told as it ends; those that are left, by tdm_values_changes(). `see` must not
 * fail. */
void tdm_values_tell(struct tdm_values *values, tdm_value_seen see, void *self);

/* Writes the buffers that were used, by number, into [program->buffer_count]. Returns how many. */
size_t tdm_values_touches(const struct tdm_values *values, struct tdm_values_touch *touches);

/* tdm_values_take() as a sink of the program's items; `self` is the values. */
enum tdm_status tdm_values_read(void *self, const struct tdm_item *item, struct tdm_error *err);

/* Ends the step. Writes value bytes by place and category where they change, by ascending op
 * number, with at most one entry per place and category for an op; 0 before the first. Returns how
 * many. Call tdm_values_reset() afterwards. */
size_t tdm_values_changes(struct tdm_values *values, struct tdm_values_change *changes);

#endif
