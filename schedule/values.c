/* SPDX-License-Identifier: Apache-2.0 */
/* Values: how many bytes hold a live value while an op runs. */
#include "schedule/values.h"

#include "schedule/layout.h"
#include "schedule/slices.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX
#define NO_CHANGE SIZE_MAX

/* What a slot, or a part of one, holds. */
struct value {
    uint64_t first_op, last_op; /* NEVER: not used yet */
    uint64_t bytes;
    bool carried;       /* it was there before the step */
    struct tdm_tag tag; /* when it began */
};

/* How a buffer was used. */
struct seen {
    uint32_t parts;
    struct value *values; /* [slots][parts] */
    uint64_t first_op, last_op;
};

/* A change of the bytes of a place and category from an op on. */
struct change {
    int64_t delta_bytes;
    size_t next; /* the next one of the same op, or NO_CHANGE */
    uint8_t place, category;
};

struct tdm_values {
    const struct tdm_program *program;
    struct seen *seen;
    struct value *values; /* of all buffers */
    size_t value_count;
    struct change *changes;
    size_t change_count, change_capacity;
    size_t *first_change; /* [op_count + 1] by op; the last one: after the step */
    tdm_value_seen see;   /* NULL: nobody is told */
    void *self;
};

uint64_t tdm_values_written(const struct tdm_op *op)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer != TDM_NONE && access->mode == TDM_WRITE)
            count += (uint64_t)access->slots * (access->part >= TDM_PARTS ? TDM_PARTS : 1);
    }
    return count;
}

static size_t count_values(const struct tdm_program *program)
{
    size_t count = 0;
    for (uint32_t i = 0; i < program->buffer_count; i++)
        count += (size_t)program->buffers[i].slots * (program->buffers[i].by_part ? TDM_PARTS : 1);
    return count;
}

/* One begin and one end for each value that is written or is there before the step. */
size_t tdm_values_change_capacity(const struct tdm_program *program)
{
    return 2 * ((size_t)program->written_values + count_values(program));
}

enum tdm_status tdm_values_new(const struct tdm_program *program, struct tdm_values **out,
                               struct tdm_error *err)
{
    struct tdm_values *values = calloc(1, sizeof(*values));
    if (values == NULL)
        goto no_memory;
    values->program = program;
    values->value_count = count_values(program);
    values->change_capacity = tdm_values_change_capacity(program);
    values->seen = calloc((size_t)program->buffer_count + 1, sizeof(*values->seen));
    values->values = calloc(values->value_count + 1, sizeof(*values->values));
    values->changes = calloc(values->change_capacity + 1, sizeof(*values->changes));
    values->first_change = calloc(program->op_count + 1, sizeof(*values->first_change));
    if (values->seen == NULL || values->values == NULL || values->changes == NULL ||
        values->first_change == NULL)
        goto no_memory;
    struct value *next = values->values;
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        values->seen[i].parts = program->buffers[i].by_part ? TDM_PARTS : 1;
        values->seen[i].values = next;
        next += (size_t)program->buffers[i].slots * values->seen[i].parts;
    }
    tdm_values_reset(values);
    *out = values;
    return TDM_OK;

no_memory:
    tdm_values_free(values);
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the values of %llu ops",
                    (unsigned long long)program->op_count);
}

void tdm_values_free(struct tdm_values *values)
{
    if (values == NULL)
        return;
    free(values->seen);
    free(values->values);
    free(values->changes);
    free(values->first_change);
    free(values);
}

void tdm_values_reset(struct tdm_values *values)
{
    for (size_t i = 0; i < values->value_count; i++)
        values->values[i] = (struct value){.first_op = NEVER, .last_op = NEVER};
    for (uint32_t i = 0; i < values->program->buffer_count; i++)
        values->seen[i].first_op = values->seen[i].last_op = NEVER;
    for (uint64_t op = 0; op <= values->program->op_count; op++)
        values->first_change[op] = NO_CHANGE;
    values->change_count = 0;
}

void tdm_values_tell(struct tdm_values *values, tdm_value_seen see, void *self)
{
    values->see = see;
    values->self = self;
}

static void add_change(struct tdm_values *values, const struct tdm_buffer *buffer, uint64_t op,
                       int64_t delta_bytes)
{
    values->changes[values->change_count] = (struct change){.delta_bytes = delta_bytes,
                                                            .next = values->first_change[op],
                                                            .place = (uint8_t)buffer->place,
                                                            .category = (uint8_t)buffer->category};
    values->first_change[op] = values->change_count++;
}

/* The value ends: from op `end` on it is gone. */
static void end_value(struct tdm_values *values, uint32_t buffer, const struct value *value,
                      uint64_t end)
{
    const struct tdm_buffer *b = &values->program->buffers[buffer];
    add_change(values, b, value->carried ? 0 : value->first_op, (int64_t)value->bytes);
    if (!value->carried)
        add_change(values, b, end, -(int64_t)value->bytes);
    if (values->see == NULL || (end <= value->first_op && !value->carried))
        return;
    const struct seen *seen = &values->seen[buffer];
    const size_t at = (size_t)(value - seen->values);
    const struct tdm_value_life life = {.buffer = buffer,
                                        .slot = (uint32_t)(at / seen->parts),
                                        .part = (enum tdm_part)(at % seen->parts),
                                        .tag = value->tag,
                                        .bytes = value->bytes,
                                        .first_op = value->first_op,
                                        .last_op = end - 1,
                                        .carried = value->carried};
    values->see(values->self, &life);
}

/* The op uses slot `k` of the access, or a part of it. */
static void touch(struct tdm_values *values, const struct tdm_access *access, uint32_t k,
                  struct value *value, uint64_t bytes, uint64_t op)
{
    bool begins = value->first_op == NEVER || (access->mode == TDM_WRITE && !value->carried);
    if (begins && value->first_op != NEVER) {
        /* an op that reads a slot and then overwrites it has one value there, not two */
        end_value(values, access->buffer, value, value->last_op < op ? value->last_op + 1 : op);
        value->first_op = op;
        value->bytes = bytes;
    } else if (begins) {
        *value =
            (struct value){.first_op = op, .bytes = bytes, .carried = access->mode != TDM_WRITE};
    }
    if (begins) {
        value->tag = access->mode == TDM_WRITE ? access->after : access->before;
        if (value->tag.chunk != TDM_NONE)
            value->tag.chunk += k;
    }
    value->last_op = op;
    if (bytes > value->bytes)
        value->bytes = bytes;
}

/* An access to slices of a unit: they have no parts. */
static void touch_slices(struct tdm_values *values, const struct tdm_access *access,
                         struct value *slots, uint64_t op)
{
    const struct tdm_program *program = values->program;
    uint64_t element_bytes = tdm_dtype_bytes(program->buffers[access->buffer].dtype);
    for (uint32_t k = 0; k < access->slots; k++)
        touch(
            values, access, k, &slots[(size_t)k * TDM_PARTS],
            tdm_slice_at(program->schedule, access->after.layer, access->after.chunk + k).elements *
                element_bytes,
            op);
}

/* An access to all parts of a unit. Each part has its own bytes; those between tensors count for
 * none. */
static void touch_parts(struct tdm_values *values, const struct tdm_access *access,
                        struct value *parts, uint64_t op)
{
    const struct tdm_program *program = values->program;
    enum tdm_dtype dtype = program->buffers[access->buffer].dtype;
    if (tdm_is_of_state(access->after.content) && program->ranks > 1) { /* the rank's part of all */
        uint64_t elements =
            tdm_rank_part(program->schedule, access->after.layer, program->rank).elements;
        touch(values, access, 0, &parts[0], elements * tdm_dtype_bytes(dtype), op);
        return;
    }
    for (uint32_t part = 0; part < TDM_PARTS; part++) {
        uint64_t bytes = tdm_part_bytes(program->schedule->model, access->after.layer,
                                        (enum tdm_part)part, dtype);
        if (bytes > 0)
            touch(values, access, 0, &parts[part], bytes, op);
    }
}

static void note_use(struct seen *seen, uint64_t op)
{
    if (seen->first_op == NEVER)
        seen->first_op = op;
    seen->last_op = op;
}

/* Every op of the compute lane gets the scratch, which carries no data from op to op. */
static void touch_scratch(struct tdm_values *values, const struct tdm_op *op)
{
    uint32_t scratch = values->program->scratch;
    if (op->lane != TDM_LANE_COMPUTE)
        return;
    note_use(&values->seen[scratch], op->number);
    const struct tdm_tag tag = {TDM_SCRATCH, TDM_NONE, TDM_NONE, TDM_NONE, 0};
    const struct tdm_access access = {
        .buffer = scratch, .slots = 1, .mode = TDM_ACCUMULATE, .before = tag, .after = tag};
    touch(values, &access, 0, values->seen[scratch].values, values->program->buffers[scratch].bytes,
          op->number);
}

void tdm_values_take(struct tdm_values *values, const struct tdm_op *op)
{
    touch_scratch(values, op);
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE)
            continue;
        struct seen *seen = &values->seen[access->buffer];
        struct value *of_slot = &seen->values[(size_t)access->first_slot * seen->parts];
        note_use(seen, op->number);
        if (seen->parts > 1 && access->after.chunk != TDM_NONE) {
            touch_slices(values, access, of_slot, op->number);
            continue;
        }
        if (seen->parts > 1 && access->part >= TDM_PARTS) {
            touch_parts(values, access, of_slot, op->number);
            continue;
        }
        uint64_t each = access->bytes / access->slots;
        for (uint32_t k = 0; k < access->slots; k++) {
            /* the last slot of a ragged range has less; the op that wrote it gave its bytes */
            uint64_t bytes = access->slots == 1 ? access->bytes : 0;
            struct value *value = &of_slot[(size_t)k * seen->parts + access->part];
            if (value->first_op == NEVER || access->mode == TDM_WRITE)
                bytes = access->slots == 1 ? access->bytes : each;
            touch(values, access, k, value, bytes, op->number);
        }
    }
}

size_t tdm_values_touches(const struct tdm_values *values, struct tdm_values_touch *touches)
{
    size_t count = 0;
    for (uint32_t i = 0; i < values->program->buffer_count; i++) {
        const struct seen *seen = &values->seen[i];
        if (seen->first_op == NEVER)
            continue;
        uint64_t bytes = 0;
        for (size_t v = 0; v < (size_t)values->program->buffers[i].slots * seen->parts; v++)
            bytes += seen->values[v].bytes;
        touches[count++] = (struct tdm_values_touch){i, bytes, seen->first_op, seen->last_op};
    }
    return count;
}

size_t tdm_values_changes(struct tdm_values *values, struct tdm_values_change *changes)
{
    const struct tdm_program *program = values->program;
    for (uint32_t i = 0; i < program->buffer_count; i++)
        for (size_t v = 0; v < (size_t)program->buffers[i].slots * values->seen[i].parts; v++) {
            const struct value *value = &values->seen[i].values[v];
            if (value->first_op != NEVER)
                end_value(values, i, value, value->last_op + 1);
        }

    uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES] = {{0}},
             told[TDM_MAX_PLACES][TDM_CATEGORIES] = {{0}};
    size_t count = 0;
    for (uint64_t op = 0; op < program->op_count; op++) {
        for (size_t i = values->first_change[op]; i != NO_CHANGE; i = values->changes[i].next)
            live[values->changes[i].place][values->changes[i].category] +=
                (uint64_t)values->changes[i].delta_bytes;
        for (size_t i = values->first_change[op]; i != NO_CHANGE; i = values->changes[i].next) {
            const struct change *change = &values->changes[i];
            uint64_t bytes = live[change->place][change->category];
            if (bytes == told[change->place][change->category])
                continue;
            told[change->place][change->category] = bytes;
            changes[count++] =
                (struct tdm_values_change){.op_number = op,
                                           .place = (enum tdm_place)change->place,
                                           .category = (enum tdm_category)change->category,
                                           .value_bytes = bytes};
        }
    }
    return count;
}

enum tdm_status tdm_values_read(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    (void)err;
    if (item->kind == TDM_RUN)
        tdm_values_take(self, item->op);
    return TDM_OK;
}
