/* SPDX-License-Identifier: Apache-2.0 */
/* A program's items in memory, in a growing array. */
#include "tests/support/recording.h"

#include "schedule/program.h"

#include <stdlib.h>
#include <string.h>

static enum tdm_status reserve(struct tdm_recording *recording, size_t capacity,
                               struct tdm_error *err)
{
    struct tdm_recorded *items = realloc(recording->items, capacity * sizeof(*items));
    if (items == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu items", capacity);
    recording->items = items;
    recording->capacity = capacity;
    return TDM_OK;
}

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct tdm_recording *recording = self;
    if (recording->count == recording->capacity) {
        enum tdm_status status = reserve(recording, 2 * recording->capacity + 64, err);
        if (status != TDM_OK)
            return status;
    }
    struct tdm_recorded *recorded = &recording->items[recording->count++];
    recorded->item = *item;
    if (item->kind == TDM_RUN)
        recorded->op = *item->op;
    return TDM_OK;
}

/* Replaces the program's buffers, which belong to another program, with a copy. */
static enum tdm_status own_buffers(struct tdm_recording *recording, struct tdm_error *err)
{
    struct tdm_program *program = &recording->program;
    size_t bytes = program->buffer_count * sizeof(*program->buffers);
    struct tdm_buffer *buffers = malloc(bytes);
    if (buffers == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a copy of the buffers");
    memcpy(buffers, program->buffers, bytes);
    program->buffers = buffers;
    return TDM_OK;
}

enum tdm_status tdm_recording_new(const struct tdm_program *program,
                                  struct tdm_recording *recording, struct tdm_error *err)
{
    struct tdm_recording made = {.program = *program};
    enum tdm_status status = own_buffers(&made, err);
    if (status != TDM_OK)
        return status;
    status = tdm_program_emit(program, take_item, &made, err);
    if (status != TDM_OK) {
        tdm_recording_free(&made);
        return status;
    }
    *recording = made;
    return TDM_OK;
}

enum tdm_status tdm_recording_copy(const struct tdm_recording *from, struct tdm_recording *to,
                                   struct tdm_error *err)
{
    struct tdm_recording made = {.program = from->program};
    enum tdm_status status = own_buffers(&made, err);
    if (status != TDM_OK)
        return status;
    status = reserve(&made, from->count + 2, err);
    if (status != TDM_OK) {
        tdm_recording_free(&made);
        return status;
    }
    memcpy(made.items, from->items, from->count * sizeof(*made.items));
    made.count = from->count;
    *to = made;
    return TDM_OK;
}

void tdm_recording_free(struct tdm_recording *recording)
{
    free(recording->program.buffers);
    free(recording->items);
    *recording = (struct tdm_recording){0};
}

struct tdm_item tdm_recording_item(const struct tdm_recording *recording, size_t index)
{
    struct tdm_item item = recording->items[index].item;
    item.op = item.kind == TDM_RUN ? &recording->items[index].op : NULL;
    return item;
}

static void number_ops(struct tdm_recording *recording)
{
    uint64_t number = 0;
    for (size_t i = 0; i < recording->count; i++)
        if (recording->items[i].item.kind == TDM_RUN)
            recording->items[i].op.number = number++;
    recording->program.op_count = number;
}

void tdm_recording_remove(struct tdm_recording *recording, size_t index)
{
    recording->count--;
    memmove(&recording->items[index], &recording->items[index + 1],
            (recording->count - index) * sizeof(*recording->items));
    number_ops(recording);
}

void tdm_recording_insert(struct tdm_recording *recording, size_t index,
                          const struct tdm_recorded *item)
{
    struct tdm_recorded copy = *item; /* may be in the array */
    memmove(&recording->items[index + 1], &recording->items[index],
            (recording->count - index) * sizeof(*recording->items));
    recording->items[index] = copy;
    recording->count++;
    number_ops(recording);
}
