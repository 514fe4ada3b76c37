/* SPDX-License-Identifier: Apache-2.0 */
/* Adds buffers to a program under construction. */
#include "schedule/buffers_parts.h"

#include "base/size.h"
#include "schedule/layout.h"
#include "schedule/slices.h"
#include "schedule/tags.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BUFFERS 64u /* initial capacity */

bool tdm_builder_grow(struct tdm_builder *b)
{
    struct tdm_program *program = b->program;
    if (program->buffer_count < b->buffer_capacity)
        return true;
    uint32_t capacity = b->buffer_capacity == 0 ? FIRST_BUFFERS : 2 * b->buffer_capacity;
    struct tdm_buffer *buffers =
        capacity <= UINT32_MAX / 2 ? realloc(program->buffers, capacity * sizeof(*buffers)) : NULL;
    if (buffers == NULL) {
        b->out_of_memory = true;
        return false;
    }
    program->buffers = buffers;
    b->buffer_capacity = capacity;
    return true;
}

uint32_t tdm_declare(struct tdm_builder *b, enum tdm_place place, enum tdm_category category,
                     enum tdm_axis axis, enum tdm_content content, uint32_t unit, uint64_t tokens,
                     uint32_t slots, const char *format, ...)
{
    if (!tdm_builder_grow(b))
        return 0;
    uint32_t number = b->program->buffer_count++;
    struct tdm_buffer *buffer = &b->program->buffers[number];
    memset(buffer, 0, sizeof(*buffer));
    va_list args;
    va_start(args, format);
    vsnprintf(buffer->name, sizeof(buffer->name), format, args);
    va_end(args);
    buffer->place = place;
    buffer->category = category;
    buffer->content = content;
    buffer->axis = axis;
    buffer->by_part = tdm_content_is_of_unit(content);
    buffer->dtype = tdm_content_dtype(b->schedule, content);
    buffer->slots = slots;
    buffer->slot_bytes =
        tdm_size_align(tdm_content_bytes(b->schedule, content, unit, tokens), TDM_SLOT_ALIGN);
    buffer->bytes = tdm_size_mul(buffer->slot_bytes, slots);
    return number;
}

void tdm_declare_slices(struct tdm_builder *b, uint32_t number, uint32_t unit, uint32_t slots)
{
    struct tdm_buffer *buffer = &b->program->buffers[number];
    buffer->slots = slots;
    buffer->slot_bytes = tdm_slice_slot_bytes(b->schedule, unit, buffer->dtype);
    buffer->bytes = tdm_size_mul(buffer->slot_bytes, slots);
}

uint32_t tdm_declare_resident(struct tdm_builder *b, uint32_t number, enum tdm_content content,
                              uint32_t layer, uint32_t chunk)
{
    struct tdm_buffer *buffer = &b->program->buffers[number];
    buffer->resident = true;
    buffer->initial = (struct tdm_tag){content, layer, chunk, TDM_NONE, 0};
    return number;
}
