/* SPDX-License-Identifier: Apache-2.0 */
/* Observer: values in slots, from the launch that writes them to the last that uses them. */
#include "executor/observer.h"

#include "schedule/lowering.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX

/* What a slot, or a part of one, holds. */
struct value {
    uint64_t first_op, last_op; /* NEVER: untouched */
    uint64_t bytes;
    bool carried; /* it was there before the step */
};

/* What a buffer saw. */
struct seen {
    uint32_t parts;
    struct value *values; /* [slots][parts] */
    uint64_t first_op, last_op;
};

/* Bytes of a category begin or end to live with an op. */
struct change {
    uint64_t op;
    int64_t time_ns;
    int64_t delta_bytes;
    uint8_t place, category;
    bool end;           /* at the end of the op, else at its begin */
    uint64_t successor; /* of an end: op that overwrites it; NEVER: none */
};

struct tdm_observer {
    const struct tdm_program *program;
    struct seen *seen;
    struct value *values; /* of all buffers */
    size_t value_count;
    struct change *changes;
    size_t change_count, change_capacity;
    int64_t *start_ns, *end_ns; /* [op_count] */
};

/* Values that a step can end: one for every write, and one for every slot that is left. */
static enum tdm_status count_writes(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    size_t *writes = self;
    (void)err;
    if (item->kind != TDM_RUN)
        return TDM_OK;
    for (uint32_t i = 0; i < item->op->access_count; i++)
        if (item->op->access[i].buffer != TDM_NONE && item->op->access[i].mode == TDM_WRITE)
            *writes += (size_t)item->op->access[i].slots *
                       (item->op->access[i].part >= TDM_PARTS ? TDM_PARTS : 1);
    return TDM_OK;
}

enum tdm_status tdm_observer_new(const struct tdm_program *program, struct tdm_observer **out,
                                 struct tdm_error *err)
{
    size_t writes = 0;
    enum tdm_status status = tdm_program_emit(program, count_writes, &writes, err);
    if (status != TDM_OK)
        return status;
    struct tdm_observer *observer = calloc(1, sizeof(*observer));
    if (observer == NULL)
        goto no_memory;
    observer->program = program;
    for (uint32_t i = 0; i < program->buffer_count; i++)
        observer->value_count +=
            (size_t)program->buffers[i].slots * (program->buffers[i].by_part ? TDM_PARTS : 1);
    observer->change_capacity = 2 * (writes + observer->value_count);
    observer->seen = calloc((size_t)program->buffer_count + 1, sizeof(*observer->seen));
    observer->values = calloc(observer->value_count + 1, sizeof(*observer->values));
    observer->changes = calloc(observer->change_capacity + 1, sizeof(*observer->changes));
    observer->start_ns = calloc(program->op_count + 1, sizeof(*observer->start_ns));
    observer->end_ns = calloc(program->op_count + 1, sizeof(*observer->end_ns));
    if (observer->seen == NULL || observer->values == NULL || observer->changes == NULL ||
        observer->start_ns == NULL || observer->end_ns == NULL)
        goto no_memory;
    struct value *next = observer->values;
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        observer->seen[i].parts = program->buffers[i].by_part ? TDM_PARTS : 1;
        observer->seen[i].values = next;
        next += (size_t)program->buffers[i].slots * observer->seen[i].parts;
    }
    tdm_observer_reset(observer);
    *out = observer;
    return TDM_OK;

no_memory:
    tdm_observer_free(observer);
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for observing a step");
}

void tdm_observer_free(struct tdm_observer *observer)
{
    if (observer == NULL)
        return;
    free(observer->seen);
    free(observer->values);
    free(observer->changes);
    free(observer->start_ns);
    free(observer->end_ns);
    free(observer);
}

void tdm_observer_reset(struct tdm_observer *observer)
{
    for (size_t i = 0; i < observer->value_count; i++)
        observer->values[i] = (struct value){NEVER, NEVER, 0, false};
    for (uint32_t i = 0; i < observer->program->buffer_count; i++)
        observer->seen[i].first_op = observer->seen[i].last_op = NEVER;
    observer->change_count = 0;
}

/* `successor`: the op that overwrites it, or NEVER. */
static void end_value(struct tdm_observer *observer, uint32_t buffer, const struct value *value,
                      bool carried_on, uint64_t successor)
{
    const struct tdm_buffer *b = &observer->program->buffers[buffer];
    struct change change = {.op = value->first_op,
                            .delta_bytes = (int64_t)value->bytes,
                            .place = (uint8_t)b->place,
                            .category = (uint8_t)b->category};
    if (value->carried)
        change.op = NEVER; /* since before the step */
    observer->changes[observer->change_count++] = change;
    if (carried_on)
        return;
    change.op = value->last_op;
    change.end = true;
    change.successor = successor;
    change.delta_bytes = -change.delta_bytes;
    observer->changes[observer->change_count++] = change;
}

static void touch(struct tdm_observer *observer, uint32_t buffer, struct value *value,
                  uint64_t bytes, enum tdm_mode mode, uint64_t op)
{
    if (value->first_op == NEVER) {
        *value = (struct value){op, op, bytes, mode != TDM_WRITE};
        return;
    }
    if (mode == TDM_WRITE && !value->carried) {
        end_value(observer, buffer, value, false, op);
        value->first_op = op;
        value->bytes = bytes;
    }
    value->last_op = op;
    if (bytes > value->bytes)
        value->bytes = bytes;
}

/* An access to all parts of a unit: each has its own bytes. What lies between tensors is nobody's. */
static void touch_parts(struct tdm_observer *observer, const struct tdm_access *access,
                        struct value *values, uint64_t op)
{
    const struct tdm_program *program = observer->program;
    enum tdm_dtype dtype = program->buffers[access->buffer].dtype;
    for (uint32_t part = 0; part < TDM_PARTS; part++) {
        uint64_t bytes = tdm_part_bytes(program->schedule->model, access->after.layer,
                                        (enum tdm_part)part, dtype);
        if (bytes > 0)
            touch(observer, access->buffer, &values[part], bytes, access->mode, op);
    }
}

/* Every op of the compute lane is handed scratch, which nothing goes in or out of. */
static void touch_scratch(struct tdm_observer *observer, const struct tdm_op *op)
{
    uint32_t scratch = observer->program->scratch;
    struct seen *seen = &observer->seen[scratch];
    if (op->lane != TDM_LANE_COMPUTE)
        return;
    if (seen->first_op == NEVER)
        seen->first_op = op->number;
    seen->last_op = op->number;
    touch(observer, scratch, seen->values, observer->program->buffers[scratch].bytes,
          TDM_ACCUMULATE, op->number);
}

void tdm_observer_launch(struct tdm_observer *observer, const struct tdm_op *op)
{
    touch_scratch(observer, op);
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE)
            continue;
        struct seen *seen = &observer->seen[access->buffer];
        if (seen->first_op == NEVER)
            seen->first_op = op->number;
        seen->last_op = op->number;
        struct value *values = &seen->values[(size_t)access->first_slot * seen->parts];
        if (seen->parts > 1 && access->part >= TDM_PARTS) {
            touch_parts(observer, access, values, op->number);
            continue;
        }
        uint64_t each = access->bytes / access->slots;
        for (uint32_t k = 0; k < access->slots; k++) {
            /* the last slot of a ragged range has less; what wrote it said how much */
            uint64_t bytes = access->slots == 1 ? access->bytes : 0;
            struct value *value = &values[(size_t)k * seen->parts + access->part];
            if (value->first_op == NEVER || access->mode == TDM_WRITE)
                bytes = access->slots == 1 ? access->bytes : each;
            touch(observer, access->buffer, value, bytes, access->mode, op->number);
        }
    }
}

size_t tdm_observer_touch_capacity(const struct tdm_observer *observer)
{
    return observer->program->buffer_count;
}

size_t tdm_observer_point_capacity(const struct tdm_observer *observer)
{
    return observer->change_capacity;
}

size_t tdm_observer_touches(const struct tdm_observer *observer, struct tdm_trace_touch *touches)
{
    size_t count = 0;
    for (uint32_t i = 0; i < observer->program->buffer_count; i++) {
        const struct seen *seen = &observer->seen[i];
        if (seen->first_op == NEVER)
            continue;
        uint64_t bytes = 0;
        for (size_t v = 0; v < (size_t)observer->program->buffers[i].slots * seen->parts; v++)
            bytes += seen->values[v].bytes;
        touches[count++] = (struct tdm_trace_touch){i, bytes, seen->first_op, seen->last_op};
    }
    return count;
}

/* What begins to live comes before what ends at the same moment: a peak is not lost. But what an op overwrites has
 * made room before it. */
static uint64_t turn(const struct change *change)
{
    if (!change->end)
        return change->op == NEVER ? 0 : 2 * change->op + 1;
    return change->successor == NEVER ? NEVER : 2 * change->successor;
}

static int by_time(const void *a, const void *b)
{
    const struct change *left = a, *right = b;
    if (left->time_ns != right->time_ns)
        return left->time_ns < right->time_ns ? -1 : 1;
    return turn(left) < turn(right) ? -1 : turn(left) > turn(right);
}

/* The times of two ops may overlap by what a clock cannot tell; the bytes of two values that one slot holds one
 * after the other do not. */
static int64_t time_of(const struct tdm_observer *observer, const struct change *change)
{
    if (change->op == NEVER)
        return 0;
    if (!change->end)
        return observer->start_ns[change->op];
    int64_t end = observer->end_ns[change->op];
    if (change->successor == NEVER || observer->start_ns[change->successor] > end)
        return end;
    return observer->start_ns[change->successor];
}

size_t tdm_observer_points(struct tdm_observer *observer, const struct tdm_trace_timing *timings,
                           size_t timing_count, int64_t end_ns, struct tdm_trace_observed *points)
{
    for (uint32_t i = 0; i < observer->program->buffer_count; i++)
        for (size_t v = 0;
             v < (size_t)observer->program->buffers[i].slots * observer->seen[i].parts; v++)
            if (observer->seen[i].values[v].first_op != NEVER)
                end_value(observer, i, &observer->seen[i].values[v],
                          observer->seen[i].values[v].carried, NEVER);
    for (size_t i = 0; i < timing_count; i++) {
        observer->start_ns[timings[i].op_number] = timings[i].start_ns;
        observer->end_ns[timings[i].op_number] = timings[i].end_ns;
    }
    for (size_t i = 0; i < observer->change_count; i++) {
        struct change *change = &observer->changes[i];
        change->time_ns = time_of(observer, change);
        if (change->time_ns > end_ns)
            change->time_ns = end_ns;
    }
    qsort(observer->changes, observer->change_count, sizeof(*observer->changes), by_time);

    uint64_t live[TDM_PLACES][TDM_CATEGORIES] = {{0}};
    size_t count = 0;
    for (size_t i = 0; i < observer->change_count; i++) {
        const struct change *change = &observer->changes[i];
        uint64_t *bytes = &live[change->place][change->category];
        *bytes += (uint64_t)change->delta_bytes;
        bool same_moment = count > 0 && points[count - 1].time_ns == change->time_ns &&
                           points[count - 1].place == (enum tdm_place)change->place &&
                           points[count - 1].category == (enum tdm_category)change->category &&
                           !change->end;
        if (!same_moment)
            count++;
        points[count - 1] =
            (struct tdm_trace_observed){change->time_ns, (enum tdm_place)change->place,
                                        (enum tdm_category)change->category, *bytes};
    }
    return count;
}
