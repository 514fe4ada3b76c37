/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of memory. */
#include "tests/schedule/faults/trial.h"

static bool overlap_live_buffers(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (t->r.items[i].item.kind != TDM_ALLOC)
            continue;
        uint32_t fresh = t->r.items[i].item.buffer;
        for (size_t j = i; j-- > 0;) {
            uint32_t other = t->r.items[j].item.buffer;
            bool lives = t->r.items[j].item.kind == TDM_ALLOC && other != fresh;
            for (size_t k = j + 1; k < i && lives; k++)
                lives = !is_item(t, k, TDM_FREE, other);
            if (!lives || buffer_at(t, other)->place != buffer_at(t, fresh)->place)
                continue;
            bool smaller = buffer_at(t, other)->bytes < buffer_at(t, fresh)->bytes;
            buffer_at(t, smaller ? other : fresh)->offset =
                buffer_at(t, smaller ? fresh : other)->offset;
            return true;
        }
    }
    return false;
}

/* Does the stream take a buffer? One that another rank uses need not be used by this one. */
static bool is_taken(struct trial *t, uint32_t buffer)
{
    for (size_t i = 0; i < t->r.count; i++)
        if (is_item(t, i, TDM_ALLOC, buffer))
            return true;
    return false;
}

static struct tdm_buffer *some_used_buffer(struct trial *t)
{
    uint32_t number;
    do
        number = (uint32_t)tdm_dice_roll(t->dice, 0, t->r.program.buffer_count - 1);
    while (!is_taken(t, number));
    return buffer_at(t, number);
}

static bool buffer_beyond_arena(struct trial *t)
{
    struct tdm_buffer *buffer = some_used_buffer(t);
    buffer->offset = (t->r.program.arena_bytes[buffer->place] - buffer->bytes + 512) / 512 * 512;
    return buffer->offset + buffer->bytes > t->r.program.arena_bytes[buffer->place];
}

/* Is a buffer ever live on this rank? Others may use more of them. */
static bool is_ever_live(struct trial *t, uint32_t buffer)
{
    for (size_t i = 0; i < t->r.count; i++)
        if (is_item(t, i, TDM_ALLOC, buffer))
            return true;
    return buffer_at(t, buffer)->resident;
}

static bool capacity_exceeded(struct trial *t)
{
    enum tdm_place place = some_used_buffer(t)->place;
    uint64_t end = 0;
    for (uint32_t i = 0; i < t->r.program.buffer_count; i++) {
        const struct tdm_buffer *buffer = buffer_at(t, i);
        if (buffer->used && buffer->place == place && buffer->offset + buffer->bytes > end &&
            is_ever_live(t, i))
            end = buffer->offset + buffer->bytes;
    }
    t->capacity[place] = end - 1;
    return true;
}

static bool slots_too_small(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        const struct tdm_access *access = operand_at(t, &o);
        struct tdm_buffer *buffer = buffer_at(t, access->buffer);
        if (access->mode != TDM_WRITE || access->slots != 1 || buffer->axis == TDM_AXIS_UNIT)
            continue;
        buffer->slot_bytes = access->bytes - 1;
        buffer->bytes = buffer->slots * buffer->slot_bytes;
        return true;
    }
    return false;
}

static bool too_few_slots(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        const struct tdm_access *access = operand_at(t, &o);
        struct tdm_buffer *buffer = buffer_at(t, access->buffer);
        if (access->first_slot + access->slots != buffer->slots || buffer->slots == 1)
            continue;
        buffer->slots--;
        buffer->bytes -= buffer->slot_bytes;
        return true;
    }
    return false;
}

static bool free_too_early(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (t->r.items[i].item.kind != TDM_FREE)
            continue;
        for (size_t j = i; j-- > 0 && !is_item(t, j, TDM_ALLOC, t->r.items[i].item.buffer);)
            if (uses(t, j, t->r.items[i].item.buffer)) {
                move(t, i, j);
                return true;
            }
    }
    return false;
}

static bool free_missing(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (t->r.items[i].item.kind == TDM_FREE) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool free_twice(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (t->r.items[i].item.kind == TDM_FREE) {
            tdm_recording_insert(&t->r, i, &t->r.items[i]);
            return true;
        }
    return false;
}

static bool alloc_missing(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (t->r.items[i].item.kind == TDM_ALLOC) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool alloc_too_late(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (t->r.items[i].item.kind != TDM_ALLOC)
            continue;
        for (size_t j = i + 1;
             j < t->r.count && !is_item(t, j, TDM_FREE, t->r.items[i].item.buffer); j++)
            if (uses(t, j, t->r.items[i].item.buffer)) {
                move(t, i, j + 1);
                return true;
            }
    }
    return false;
}

/* Frees weights and allocates them again. Nothing would load them again. */
static bool resident_taken_again(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        uint32_t buffer = operand_at(t, &o)->buffer;
        if (!buffer_at(t, buffer)->resident)
            continue;
        struct tdm_recorded item = {.item = {.kind = TDM_ALLOC, .buffer = buffer}};
        tdm_recording_insert(&t->r, o.i, &item);
        item.item.kind = TDM_FREE;
        tdm_recording_insert(&t->r, o.i, &item);
        return true;
    }
    return false;
}

const struct fault faults_of_memory[] = {
    {.name = "two live buffers overlap", .plant = overlap_live_buffers},
    {.name = "a buffer beyond the arena's end", .plant = buffer_beyond_arena},
    {.name = "a capacity exceeded", .plant = capacity_exceeded},
    {.name = "slots too small", .plant = slots_too_small},
    {.name = "a slot too few", .plant = too_few_slots},
    {.name = "a free too early", .plant = free_too_early},
    {.name = "a free missing", .plant = free_missing},
    {.name = "a free twice", .plant = free_twice},
    {.name = "an alloc missing", .plant = alloc_missing},
    {.name = "an alloc too late", .plant = alloc_too_late},
    {.name = "a resident buffer freed and taken again", .plant = resident_taken_again},
    {0},
};
