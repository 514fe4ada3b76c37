/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the validator. One fault is planted in each copy of a correct random program. The
 * validator must catch every planted fault.
 *
 * A fault changes items before the order of ops is derived from them, as a mistake in the lowering
 * would. Ops are then renumbered, so that the count does not reveal the fault. A fault of order
 * changes the waits. If a mistake in the lowering would also give wrong tags, the fault changes the
 * tags in the same way. Planting checks what slots hold, so that no harmless fault is planted. For
 * example, a copy is dropped only if its destination holds something else.
 */
#include "ops/attention.h"
#include "ops/move.h"
#include "ops/rope.h"
#include "ops/select.h"
#include "ops/team.h"
#include "ops/update.h"
#include "schedule/cost.h"
#include "schedule/layout.h"
#include "schedule/program.h"
#include "schedule/queries.h"
#include "schedule/tags.h"
#include "schedule/team_check.h"
#include "schedule/validate.h"
#include "tests/support/random_schedule.h"
#include "tests/support/recording.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE_SEED 4000
#define BASE_SEED_OF_TEAMS 44000

/* A correct program, changed by one fault. */
struct trial {
    struct tdm_recording r;
    struct tdm_dice *dice;
    uint64_t capacity[TDM_MAX_PLACES];
    size_t wait_item; /* its wait for `wait_lane` becomes `wait` */
    int wait_lane;
    uint64_t wait;
    const struct tdm_waits *waits; /* [items] of the correct program */
};

/* ---- inspecting ---- */

static struct tdm_op *op_at(struct trial *t, size_t i)
{
    return t->r.items[i].item.kind == TDM_RUN ? &t->r.items[i].op : NULL;
}

static bool is_op(struct trial *t, size_t i, enum tdm_op_kind kind)
{
    return t->r.items[i].item.kind == TDM_RUN && t->r.items[i].op.kind == kind;
}

static bool is_item(struct trial *t, size_t i, enum tdm_item_kind kind, uint32_t buffer)
{
    return t->r.items[i].item.kind == kind && t->r.items[i].item.buffer == buffer;
}

static struct tdm_buffer *buffer_at(struct trial *t, uint32_t number)
{
    return &t->r.program.buffers[number];
}

/* Visits every item once, starting with a random one. */
#define EACH_ITEM(t, i)                                                                \
    size_t i = tdm_dice_roll((t)->dice, 0, (t)->r.count - 1), left_##i = (t)->r.count; \
    left_##i > 0;                                                                      \
    left_##i--, i = (i + 1) % (t)->r.count

/* An operand of an op. */
struct operand {
    size_t i;
    uint32_t a;
    size_t left; /* ops still to visit */
};

/* An iterator over every operand of every op, starting at a random op: for (struct operand o =
 * anywhere(t); next_operand(t, &o);). */
static struct operand anywhere(struct trial *t)
{
    return (struct operand){tdm_dice_roll(t->dice, 0, t->r.count - 1), UINT32_MAX, t->r.count};
}

static bool next_operand(struct trial *t, struct operand *o)
{
    for (; o->left > 0; o->left--, o->i = (o->i + 1) % t->r.count, o->a = UINT32_MAX) {
        const struct tdm_op *op = op_at(t, o->i);
        while (op != NULL && ++o->a < op->access_count)
            if (op->access[o->a].buffer != TDM_NONE)
                return true;
    }
    return false;
}

static struct tdm_access *operand_at(struct trial *t, const struct operand *o)
{
    return &t->r.items[o->i].op.access[o->a];
}

static bool same_tag(struct tdm_tag a, struct tdm_tag b)
{
    return a.content == b.content && a.layer == b.layer && a.chunk == b.chunk &&
           a.contributor == b.contributor && a.share == b.share;
}

static bool covers(const struct tdm_access *access, uint32_t buffer, uint32_t slot)
{
    return access->buffer == buffer && slot >= access->first_slot &&
           slot - access->first_slot < access->slots;
}

static struct tdm_tag shifted(struct tdm_tag tag, uint32_t by)
{
    if (tag.chunk != TDM_NONE)
        tag.chunk += by;
    else if (tag.layer != TDM_NONE)
        tag.layer += by;
    return tag;
}

/* What a slot, or a part of it, holds before item i. */
static struct tdm_tag held(struct trial *t, size_t i, uint32_t buffer, uint32_t slot, uint32_t part)
{
    while (i-- > 0) {
        const struct tdm_op *op = op_at(t, i);
        if (op == NULL) {
            if (t->r.items[i].item.buffer == buffer)
                break;
            continue;
        }
        for (uint32_t a = op->access_count; a-- > 0;) {
            const struct tdm_access *access = &op->access[a];
            if (access->mode != TDM_READ && covers(access, buffer, slot) &&
                (access->part == part || access->part == TDM_PART_ALL || part == TDM_PART_ALL))
                return shifted(access->after, slot - access->first_slot);
        }
    }
    return (struct tdm_tag){TDM_EMPTY, TDM_NONE, TDM_NONE, TDM_NONE, 0};
}

/* Would the slot that an access writes hold something else without the access? */
static bool leaves_a_trace(struct trial *t, size_t i, const struct tdm_access *access)
{
    return access->mode != TDM_READ &&
           !same_tag(held(t, i, access->buffer, access->first_slot, access->part), access->after);
}

static bool uses(struct trial *t, size_t i, uint32_t buffer)
{
    const struct tdm_op *op = op_at(t, i);
    for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
        if (op->access[a].buffer == buffer)
            return true;
    return false;
}

/* The next op, from item i on, that reads a slot; the number of items if there is none. */
static size_t next_reader(struct trial *t, size_t i, uint32_t buffer, uint32_t slot)
{
    for (; i < t->r.count; i++) {
        const struct tdm_op *op = op_at(t, i);
        for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
            if (op->access[a].mode != TDM_WRITE && covers(&op->access[a], buffer, slot))
                return i;
    }
    return i;
}

/* Is what a slot holds after item i read before something else is written there? */
static bool is_read(struct trial *t, size_t i, uint32_t buffer, uint32_t slot)
{
    for (i++; i < t->r.count && !is_item(t, i, TDM_FREE, buffer); i++) {
        const struct tdm_op *op = op_at(t, i);
        for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
            if (covers(&op->access[a], buffer, slot))
                return op->access[a].mode != TDM_WRITE;
    }
    return false;
}

static bool is_fetch(struct trial *t, size_t i)
{
    return is_op(t, i, TDM_OP_COPY) && op_at(t, i)->lane == TDM_LANE_H2D;
}

/* The next fetch after item i into the same ring, or the number of items. */
static size_t next_fetch(struct trial *t, size_t i)
{
    uint32_t ring = op_at(t, i)->access[TDM_COPY_TO].buffer;
    for (i++; i < t->r.count; i++)
        if (is_fetch(t, i) && op_at(t, i)->access[TDM_COPY_TO].buffer == ring)
            return i;
    return i;
}

/* ---- changing ---- */

/* Moves item `from` before the item that is now at `to`. */
static void move(struct trial *t, size_t from, size_t to)
{
    struct tdm_recorded item = t->r.items[from];
    tdm_recording_remove(&t->r, from);
    tdm_recording_insert(&t->r, to > from ? to - 1 : to, &item);
}

static void leave_out(struct tdm_access *access)
{
    *access = (struct tdm_access){.buffer = TDM_NONE};
}

/* A random number below `count` other than `not`; count > 1. */
static uint32_t another(struct trial *t, uint32_t count, uint32_t not )
{
    uint32_t number = (uint32_t)tdm_dice_roll(t->dice, 0, count - 2);
    return number >= not ? number + 1 : number;
}

static void swap_slots(struct tdm_access *a, struct tdm_access *b)
{
    uint32_t slot = a->first_slot;
    a->first_slot = b->first_slot;
    b->first_slot = slot;
}

/* ---- faults of memory ---- */

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

/* ---- faults of copies ---- */

/* Several ranks store the normed input twice, once for each part of a body: either copy will do. */
static bool is_stored_twice(struct trial *t, size_t i)
{
    return op_at(t, i)->access[TDM_COPY_TO].after.content == TDM_NORMED && t->r.program.ranks > 1;
}

static bool copy_dropped(struct trial *t, enum tdm_lane lane)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->lane == lane && !is_stored_twice(t, i) &&
            leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO])) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool fetch_dropped(struct trial *t)
{
    return copy_dropped(t, TDM_LANE_H2D);
}

static bool stash_dropped(struct trial *t)
{
    return copy_dropped(t, TDM_LANE_D2H);
}

static bool fetch_after_use(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i) || !leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO]))
            continue;
        const struct tdm_access *to = &op_at(t, i)->access[TDM_COPY_TO];
        size_t reader = next_reader(t, i + 1, to->buffer, to->first_slot);
        if (reader < t->r.count) {
            move(t, i, reader + 1);
            return true;
        }
    }
    return false;
}

static bool fetch_before_stored(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i))
            continue;
        const struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM];
        for (size_t j = i; j-- > 0;)
            if (is_op(t, j, TDM_OP_COPY) && op_at(t, j)->lane == TDM_LANE_D2H &&
                covers(&op_at(t, j)->access[TDM_COPY_TO], from->buffer, from->first_slot)) {
                if (!leaves_a_trace(t, j, &op_at(t, j)->access[TDM_COPY_TO]))
                    break;
                move(t, i, j);
                return true;
            }
    }
    return false;
}

static bool fetch_destinations_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i) || !leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO]))
            continue;
        size_t j = next_fetch(t, i);
        if (j == t->r.count)
            continue;
        struct tdm_access *one = &op_at(t, i)->access[TDM_COPY_TO],
                          *other = &op_at(t, j)->access[TDM_COPY_TO];
        if (one->first_slot == other->first_slot || same_tag(one->after, other->after))
            continue;
        swap_slots(one, other);
        return true;
    }
    return false;
}

static bool fetch_sources_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i))
            continue;
        size_t j = next_fetch(t, i);
        if (j == t->r.count ||
            op_at(t, i)->access[TDM_COPY_FROM].buffer !=
                op_at(t, j)->access[TDM_COPY_FROM].buffer ||
            op_at(t, i)->access[TDM_COPY_FROM].first_slot ==
                op_at(t, j)->access[TDM_COPY_FROM].first_slot)
            continue;
        swap_slots(&op_at(t, i)->access[TDM_COPY_FROM], &op_at(t, j)->access[TDM_COPY_FROM]);
        return true;
    }
    return false;
}

/* Two fetches in the wrong order. Each is correct except for its destination. */
static bool fetches_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i) || !leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO]))
            continue;
        size_t j = next_fetch(t, i);
        if (j == t->r.count)
            continue;
        struct tdm_op one = *op_at(t, i), other = *op_at(t, j);
        const struct tdm_access *to = &one.access[TDM_COPY_TO];
        if (same_tag(to->after, other.access[TDM_COPY_TO].after) ||
            to->first_slot == other.access[TDM_COPY_TO].first_slot ||
            next_reader(t, i, to->buffer, to->first_slot) < j)
            continue;
        *op_at(t, i) = other;
        *op_at(t, j) = one;
        op_at(t, i)->number = one.number;
        op_at(t, j)->number = other.number;
        swap_slots(&op_at(t, i)->access[TDM_COPY_TO], &op_at(t, j)->access[TDM_COPY_TO]);
        return true;
    }
    return false;
}

static bool copy_of_another_chunk(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_COPY))
            continue;
        struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM],
                          *to = &op_at(t, i)->access[TDM_COPY_TO];
        const struct tdm_buffer *buffer = buffer_at(t, from->buffer);
        if (buffer->slots == 1)
            continue;
        uint32_t slot = another(t, buffer->slots, from->first_slot);
        struct tdm_tag what = held(t, i, from->buffer, slot, from->part);
        if (tdm_tag_same(what, from->before)) /* a value that was made twice */
            continue;
        from->first_slot = slot;
        from->before = from->after = to->after = what;
        return true;
    }
    return false;
}

static bool copy_cut_short(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->access[TDM_COPY_FROM].bytes > 4) {
            op_at(t, i)->access[TDM_COPY_FROM].bytes -= 4;
            op_at(t, i)->access[TDM_COPY_TO].bytes -= 4;
            return true;
        }
    return false;
}

static bool operand_cut_short(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION)) {
            op_at(t, i)->access[TDM_ATTENTION_KV].bytes /= 2;
            return true;
        }
    return false;
}

static bool cost_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_PRODUCT)) {
            op_at(t, i)->flops /= 2;
            return true;
        }
    return false;
}

static bool bytes_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (t->r.items[i].item.kind == TDM_RUN) {
            op_at(t, i)->bytes++;
            return true;
        }
    return false;
}

static bool attends_by_lists(const struct tdm_op *op)
{
    return op->access[TDM_ATTENTION_LISTS].buffer != TDM_NONE;
}

/* One pair too many in layers that see a range, no pairs where there are lists. FLOPs follow. */
static bool pairs_forged(struct trial *t)
{
    const struct tdm_model *model = t->r.program.schedule->model;
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION)) {
            struct tdm_op *op = op_at(t, i);
            op->pairs = attends_by_lists(op) ? 0 : op->pairs + 1;
            op->flops = 4 * (uint64_t)model->query_heads * model->head_dim * op->pairs;
            return true;
        }
    return false;
}

static bool keys_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION) && !attends_by_lists(op_at(t, i))) {
            op_at(t, i)->keys--;
            return true;
        }
    return false;
}

/* Fewer bytes than the chunk's own pages. */
static bool gathering_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION_GRAD) && op_at(t, i)->fetched_bytes > 0) {
            op_at(t, i)->fetched_bytes = 1;
            return true;
        }
    return false;
}

static bool sending_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION_GRAD) && op_at(t, i)->fetched_bytes > 0) {
            op_at(t, i)->sent_bytes += 8;
            return true;
        }
    return false;
}

/* Attention that gathers runs before the copy of K and V to their home. */
static bool gathered_too_early(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ATTENTION) || op_at(t, i)->fetched_bytes == 0)
            continue;
        for (size_t j = i; j-- > 0;)
            if (is_op(t, j, TDM_OP_COPY) && op_at(t, j)->lane == TDM_LANE_D2H &&
                covers(&op_at(t, i)->access[TDM_ATTENTION_KV],
                       op_at(t, j)->access[TDM_COPY_TO].buffer,
                       op_at(t, j)->access[TDM_COPY_TO].first_slot)) {
                move(t, j, i + 1);
                return true;
            }
    }
    return false;
}

static bool copy_lane_reversed(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY)) {
            struct tdm_op *op = op_at(t, i);
            op->lane = op->lane == TDM_LANE_H2D ? TDM_LANE_D2H : TDM_LANE_H2D;
            return true;
        }
    return false;
}

static bool copy_over_another_link(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->link != TDM_NO_LINK) {
            struct tdm_op *op = op_at(t, i);
            op->link = op->link == TDM_LINK_H2D ? TDM_LINK_D2H : TDM_LINK_H2D;
            return true;
        }
    return false;
}

static bool gather_over_another_link(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION) && op_at(t, i)->gathers) {
            op_at(t, i)->link = TDM_LINK_D2H;
            return true;
        }
    return false;
}

static bool compute_on_the_host(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i))
            continue;
        const struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM],
                                *to = &op_at(t, i)->access[TDM_COPY_TO];
        size_t j = next_reader(t, i + 1, to->buffer, to->first_slot);
        if (j == t->r.count)
            continue;
        for (uint32_t a = 0; a < op_at(t, j)->access_count; a++) {
            struct tdm_access *access = &op_at(t, j)->access[a];
            if (covers(access, to->buffer, to->first_slot)) {
                access->buffer = from->buffer;
                access->first_slot = from->first_slot;
                return true;
            }
        }
    }
    return false;
}

/* ---- faults of updates on the host ---- */

static bool update_on_another_lane(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_OPTIMIZER)) {
            struct tdm_op *op = op_at(t, i);
            op->lane = op->lane == TDM_LANE_HOST ? TDM_LANE_COMPUTE : TDM_LANE_HOST;
            return true;
        }
    return false;
}

/* Returns the item of the copy that brings operand `a` of some update to the host, or the number of
 * items. *update is the update's item. */
static size_t some_copy_for_update(struct trial *t, uint32_t a, size_t *update)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_OPTIMIZER) || op_at(t, i)->lane != TDM_LANE_HOST ||
            a >= op_at(t, i)->access_count || op_at(t, i)->access[a].buffer == TDM_NONE)
            continue;
        const struct tdm_access *access = &op_at(t, i)->access[a];
        for (size_t j = i; j-- > 0;)
            if (is_op(t, j, TDM_OP_COPY) && op_at(t, j)->lane == TDM_LANE_D2H &&
                covers(access, op_at(t, j)->access[TDM_COPY_TO].buffer,
                       op_at(t, j)->access[TDM_COPY_TO].first_slot)) {
                *update = i;
                return j;
            }
    }
    return t->r.count;
}

/* The update works on the copy's source, on the device. */
static bool update_far_from_home(struct trial *t, uint32_t a)
{
    size_t i, j = some_copy_for_update(t, a, &i);
    if (j == t->r.count || op_at(t, i)->access[a].slots > 1)
        return false;
    op_at(t, i)->access[a].buffer = op_at(t, j)->access[TDM_COPY_FROM].buffer;
    op_at(t, i)->access[a].first_slot = op_at(t, j)->access[TDM_COPY_FROM].first_slot;
    return true;
}

static bool host_reads_the_device(struct trial *t)
{
    return update_far_from_home(t, TDM_OPTIMIZER_GRADIENT);
}

static bool host_reads_norms_of_the_device(struct trial *t)
{
    return update_far_from_home(t, TDM_OPTIMIZER_NORMS);
}

static bool update_before_its_copy(struct trial *t, uint32_t a)
{
    size_t i, j = some_copy_for_update(t, a, &i);
    if (j < t->r.count)
        move(t, j, i + 1);
    return j < t->r.count;
}

static bool update_before_its_gradient(struct trial *t)
{
    return update_before_its_copy(t, TDM_OPTIMIZER_GRADIENT);
}

static bool update_before_its_norm(struct trial *t)
{
    return update_before_its_copy(t, TDM_OPTIMIZER_NORMS);
}

/* ---- faults of gradients that are sent part by part ---- */

static bool is_copy_of_part(const struct tdm_program *program, const struct tdm_op *op)
{
    return op->kind == TDM_OP_COPY && program->buffers[op->access[TDM_COPY_FROM].buffer].by_part &&
           op->access[TDM_COPY_FROM].part < TDM_PARTS;
}

/* Some copy of a part, or the number of items. */
static size_t some_copy_of_part(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (op_at(t, i) != NULL && is_copy_of_part(&t->r.program, op_at(t, i)))
            return i;
    return t->r.count;
}

static bool part_not_sent(struct trial *t)
{
    size_t i = some_copy_of_part(t);
    if (i == t->r.count)
        return false;
    tdm_recording_remove(&t->r, i);
    return true;
}

static void copy_part(struct trial *t, struct tdm_op *op, uint32_t part)
{
    const struct tdm_schedule *schedule = t->r.program.schedule;
    op->part = part < TDM_PARTS ? (enum tdm_part)part : 0;
    for (int a = 0; a < 2; a++) {
        op->access[a].part = part;
        op->access[a].bytes = tdm_part_bytes(schedule->model, op->layer, (enum tdm_part)part,
                                             buffer_at(t, op->access[a].buffer)->dtype);
    }
}

/* Sends another part instead, too early if it is not complete yet. */
static bool another_part_sent(struct trial *t)
{
    size_t i = some_copy_of_part(t);
    if (i == t->r.count)
        return false;
    struct tdm_op *op = op_at(t, i);
    uint32_t part = op->access[TDM_COPY_FROM].part;
    do
        part = (part + 1) % TDM_PARTS;
    while (tdm_part_bytes(t->r.program.schedule->model, op->layer, (enum tdm_part)part,
                          TDM_DTYPE_BF16) == 0);
    if (part == op->access[TDM_COPY_FROM].part)
        return false;
    copy_part(t, op, part);
    return true;
}

static bool absent_part_sent(struct trial *t)
{
    size_t i = some_copy_of_part(t);
    if (i == t->r.count)
        return false;
    copy_part(t, op_at(t, i), TDM_PART_HEAD);
    return true;
}

static bool part_of_another_name(struct trial *t)
{
    size_t i = some_copy_of_part(t);
    if (i == t->r.count)
        return false;
    struct tdm_op *op = op_at(t, i);
    op->part = op->part == TDM_PART_DOWN ? TDM_PART_GATE_UP : TDM_PART_DOWN;
    return true;
}

static bool part_before_its_sum(struct trial *t)
{
    size_t i = some_copy_of_part(t);
    if (i == t->r.count)
        return false;
    const struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM];
    for (size_t j = i; j-- > 0;)
        for (uint32_t a = 0; op_at(t, j) != NULL && a < op_at(t, j)->access_count; a++) {
            const struct tdm_access *sum = &op_at(t, j)->access[a];
            if (sum->mode == TDM_READ || sum->part != from->part ||
                !covers(sum, from->buffer, from->first_slot))
                continue;
            move(t, i, j);
            return true;
        }
    return false;
}

/* Copies only a part of what must be copied whole. */
static bool whole_unit_by_part(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_op *op = op_at(t, i);
        if (!is_op(t, i, TDM_OP_COPY) || !buffer_at(t, op->access[TDM_COPY_FROM].buffer)->by_part ||
            op->access[TDM_COPY_FROM].part < TDM_PARTS ||
            op->layer >= t->r.program.schedule->model->layers)
            continue;
        copy_part(t, op, TDM_PART_DOWN);
        return true;
    }
    return false;
}

static bool stale_ring_slot(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        const struct tdm_buffer *buffer = buffer_at(t, access->buffer);
        if (buffer->axis != TDM_AXIS_RING || buffer->slots == 1 || access->mode != TDM_READ)
            continue;
        uint32_t slot = (access->first_slot + 1) % buffer->slots;
        if (same_tag(held(t, o.i, access->buffer, slot, 0), access->before))
            continue;
        access->first_slot = slot;
        return true;
    }
    return false;
}

/* ---- faults of rows in which chunks move ---- */

/* A copy of a content within its row, or the number of items if there is none. */
static size_t some_move(struct trial *t, enum tdm_content content)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->lane == TDM_LANE_COMPUTE &&
            op_at(t, i)->access[TDM_COPY_FROM].before.content == content)
            return i;
    return t->r.count;
}

static bool move_dropped(struct trial *t, enum tdm_content content)
{
    size_t i = some_move(t, content);
    if (i < t->r.count)
        tdm_recording_remove(&t->r, i);
    return i < t->r.count;
}

static bool kv_move_dropped(struct trial *t)
{
    return move_dropped(t, TDM_KVPAGES);
}

static bool dkv_move_dropped(struct trial *t)
{
    return move_dropped(t, TDM_DKVPAGES);
}

/* The move runs after the op that reads its destination. */
static bool move_after_its_use(struct trial *t)
{
    size_t i = some_move(t, TDM_KVPAGES);
    if (i == t->r.count)
        return false;
    const struct tdm_access *to = &op_at(t, i)->access[TDM_COPY_TO];
    size_t j = next_reader(t, i + 1, to->buffer, to->first_slot);
    move(t, i, j + 1);
    return true;
}

/* The tags are those of a lowering that picks the wrong chunk to move. */
static bool move_from_another_slot(struct trial *t)
{
    size_t i = some_move(t, TDM_KVPAGES);
    if (i == t->r.count)
        return false;
    struct tdm_op *op = op_at(t, i);
    struct tdm_access *from = &op->access[TDM_COPY_FROM], *to = &op->access[TDM_COPY_TO];
    from->first_slot =
        another(t, buffer_at(t, from->buffer)->slots - from->slots + 1, from->first_slot);
    from->before = from->after = to->after = held(t, i, from->buffer, from->first_slot, 0);
    op->layer = from->before.layer;
    op->chunk = from->before.chunk;
    return true;
}

static bool move_to_another_slot(struct trial *t)
{
    size_t i = some_move(t, TDM_KVPAGES);
    if (i == t->r.count)
        return false;
    struct tdm_access *to = &op_at(t, i)->access[TDM_COPY_TO];
    to->first_slot = another(t, buffer_at(t, to->buffer)->slots - to->slots + 1, to->first_slot);
    return true;
}

static bool sums_of_another_contributor(struct trial *t)
{
    size_t i = some_move(t, TDM_DKVPAGES);
    if (i == t->r.count)
        return false;
    struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM],
                      *to = &op_at(t, i)->access[TDM_COPY_TO];
    from->before.contributor = from->after.contributor = to->after.contributor =
        from->before.contributor - 1;
    return true;
}

/* ---- faults of ranges ---- */

static bool is_prefix(const struct tdm_op *op, uint32_t a)
{
    return (op->kind == TDM_OP_ATTENTION && a == TDM_ATTENTION_KV) ||
           (op->kind == TDM_OP_SELECT && a == TDM_SELECT_MEANS) ||
           (op->kind == TDM_OP_ATTENTION_GRAD &&
            (a == TDM_ATTENTION_GRAD_KV || a == TDM_ATTENTION_GRAD_DKV_OPENED ||
             a == TDM_ATTENTION_GRAD_DKV_ADDED));
}

/* A prefix access to change. It has at least `slots` slots and space above for `above` more. */
static struct tdm_access *some_prefix(struct trial *t, uint32_t slots, uint32_t above)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (is_prefix(op_at(t, o.i), o.a) && access->slots >= slots &&
            access->first_slot + access->slots + above <= buffer_at(t, access->buffer)->slots)
            return access;
    }
    return NULL;
}

static bool range_shifted(struct trial *t)
{
    struct tdm_access *access = some_prefix(t, 1, 1);
    if (access != NULL)
        access->first_slot++;
    return access != NULL;
}

static bool range_shifted_with_tags(struct trial *t)
{
    struct tdm_access *access = some_prefix(t, 1, 1);
    if (access == NULL)
        return false;
    access->first_slot++;
    access->before.chunk++;
    access->after.chunk++;
    return true;
}

/* Removes the last slot of a range. */
static void shorten(struct trial *t, struct tdm_access *access)
{
    uint64_t left = --access->slots * buffer_at(t, access->buffer)->slot_bytes;
    access->bytes = access->bytes < left ? access->bytes : left;
}

static bool range_short_above(struct trial *t)
{
    struct tdm_access *access = some_prefix(t, 2, 0);
    if (access != NULL)
        shorten(t, access);
    return access != NULL;
}

static bool range_short_below(struct trial *t)
{
    struct tdm_access *access = some_prefix(t, 2, 0);
    if (access == NULL)
        return false;
    shorten(t, access);
    access->first_slot++;
    access->before.chunk++;
    access->after.chunk++;
    return true;
}

static bool range_long(struct trial *t)
{
    struct tdm_access *access = some_prefix(t, 1, 1);
    if (access != NULL)
        access->slots++;
    return access != NULL;
}

static bool range_outside(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        access->first_slot = buffer_at(t, access->buffer)->slots;
        return true;
    }
    return false;
}

/* Adds the slot below a range to the range. */
static void extend_below(struct trial *t, struct tdm_access *access)
{
    access->first_slot--;
    access->slots++;
    access->before.chunk--;
    access->after.chunk--;
    access->bytes += access->bytes / (access->slots - 1);
    if (access->bytes > access->slots * buffer_at(t, access->buffer)->slot_bytes)
        access->bytes = access->slots * buffer_at(t, access->buffer)->slot_bytes;
}

/* Attention that reads a chunk of which it sees nothing, in its own sequence or another. */
static bool range_beyond_document(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION) && op_at(t, i)->access[TDM_ATTENTION_KV].first_slot > 0) {
            extend_below(t, &op_at(t, i)->access[TDM_ATTENTION_KV]);
            return true;
        }
    return false;
}

/* Of the chunks that no later one sees, the last is added to as if one did. */
static bool opening_share_added(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ATTENTION_GRAD) ||
            op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_OPENED].buffer == TDM_NONE)
            continue;
        struct tdm_access *opens = &op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_OPENED],
                          *joins = &op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_ADDED];
        if (joins->buffer != TDM_NONE) {
            extend_below(t, joins);
        } else {
            *joins = *opens;
            joins->mode = TDM_ACCUMULATE;
            joins->first_slot += opens->slots - 1;
            joins->before.chunk = joins->after.chunk = opens->after.chunk + opens->slots - 1;
            joins->bytes /= opens->slots;
            joins->slots = 1;
        }
        opens->slots > 1 ? shorten(t, opens) : leave_out(opens);
        return true;
    }
    return false;
}

/* Of the chunks that a later one sees, the first is overwritten as if none did. */
static bool joining_share_overwrites(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ATTENTION_GRAD) ||
            op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_ADDED].buffer == TDM_NONE)
            continue;
        struct tdm_access *opens = &op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_OPENED],
                          *joins = &op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_ADDED];
        uint64_t bytes = joins->bytes / joins->slots;
        if (opens->buffer == TDM_NONE) {
            *opens = *joins;
            opens->mode = TDM_WRITE;
            opens->slots = 0;
            opens->bytes = 0;
        }
        opens->slots++;
        opens->bytes += bytes;
        joins->first_slot++;
        joins->before.chunk++;
        joins->after.chunk++;
        joins->slots > 1 ? shorten(t, joins) : leave_out(joins);
        return true;
    }
    return false;
}

/* ---- faults of sums ---- */

static bool is_sum(const struct tdm_access *access)
{
    enum tdm_content content = access->after.content;
    return access->mode != TDM_READ &&
           (content == TDM_UNIT_GRADIENT || content == TDM_TIED_GRADIENT ||
            content == TDM_DKVPAGES || content == TDM_LOSS ||
            (content == TDM_DNORMED && access->mode == TDM_ACCUMULATE));
}

static bool drop_addition(struct trial *t, enum tdm_content content)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (is_sum(access) && access->after.content == content && !is_op(t, o.i, TDM_OP_ZERO)) {
            leave_out(access);
            return true;
        }
    }
    return false;
}

static bool dkv_addition_dropped(struct trial *t)
{
    return drop_addition(t, TDM_DKVPAGES);
}

static bool gradient_addition_dropped(struct trial *t)
{
    return drop_addition(t, TDM_UNIT_GRADIENT);
}

static bool tied_addition_dropped(struct trial *t)
{
    return drop_addition(t, TDM_TIED_GRADIENT);
}

static bool loss_dropped(struct trial *t)
{
    return drop_addition(t, TDM_LOSS);
}

static bool addition_twice(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);)
        if (is_sum(operand_at(t, &o)) && operand_at(t, &o)->mode == TDM_ACCUMULATE) {
            tdm_recording_insert(&t->r, o.i, &t->r.items[o.i]);
            return true;
        }
    return false;
}

static bool addition_overwrites(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (is_sum(access) && access->mode == TDM_ACCUMULATE) {
            access->mode = TDM_WRITE;
            return true;
        }
    }
    return false;
}

/* The first addition adds to whatever the slot holds. Its tag expects exactly that. */
static bool first_addition_adds(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (is_sum(access) && access->mode == TDM_WRITE && !is_op(t, o.i, TDM_OP_ZERO)) {
            access->mode = TDM_ACCUMULATE;
            access->before = held(t, o.i, access->buffer, access->first_slot, access->part);
            return true;
        }
    }
    return false;
}

/* Swaps two chunks' contributions to a weight gradient: the same sum, rounded differently. */
static bool additions_in_another_order(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_PRODUCT_GRAD_WEIGHT))
            continue;
        for (size_t j = i + 1; j < t->r.count; j++) {
            struct tdm_op *one = op_at(t, i), *other = op_at(t, j);
            if (!is_op(t, j, TDM_OP_PRODUCT_GRAD_WEIGHT) || other->part != one->part ||
                other->layer != one->layer)
                continue;
            uint32_t chunk = one->chunk;
            uint64_t tokens = one->tokens;
            one->chunk = other->chunk;
            one->tokens = other->tokens;
            other->chunk = chunk;
            other->tokens = tokens;
            for (int a = 0; a < 2; a++) {
                struct tdm_access access = one->access[a];
                one->access[a] = other->access[a];
                other->access[a] = access;
            }
            return true;
        }
    }
    return false;
}

static bool zero_dropped(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ZERO)) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

/* ---- faults of ops ---- */

/* Is this operand never read? Page means of a sequence's last chunk are not, nor are K and V that a
 * rank gathers of a last round's chunks after its own, nor what ranks store twice: with K and V,
 * and then with the rest. */
static bool is_of_no_use(struct trial *t, const struct operand *o)
{
    const struct tdm_access *access = operand_at(t, o);
    return (is_op(t, o->i, TDM_OP_PAGE_MEANS) || is_op(t, o->i, TDM_OP_GATHER) ||
            is_op(t, o->i, TDM_OP_COPY)) &&
           !is_read(t, o->i, access->buffer, access->first_slot);
}

static bool op_dropped(struct trial *t)
{
    /* every kind is equally likely */
    enum tdm_op_kind first = (enum tdm_op_kind)tdm_dice_roll(t->dice, 0, TDM_OP_KINDS - 1);
    for (int n = 0; n < TDM_OP_KINDS; n++)
        for (struct operand o = anywhere(t); next_operand(t, &o);)
            if (is_op(t, o.i, (enum tdm_op_kind)(((int)first + n) % TDM_OP_KINDS)) &&
                leaves_a_trace(t, o.i, operand_at(t, &o)) && !is_of_no_use(t, &o)) {
                tdm_recording_remove(&t->r, o.i);
                return true;
            }
    return false;
}

/* Repeats an op that changes its operand in place. */
static bool op_twice(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        const struct tdm_access *access = operand_at(t, &o);
        if (access->mode == TDM_ACCUMULATE && !is_sum(access)) {
            tdm_recording_insert(&t->r, o.i, &t->r.items[o.i]);
            return true;
        }
    }
    return false;
}

/* Does an op sum a gradient over the ranks: all of it, or each rank its part? */
static bool sums_gradient(struct trial *t, size_t i)
{
    const bool by_part = t->r.program.schedule->optimizer.kind != TDM_OPTIMIZER_NONE;
    return is_op(t, i, by_part ? TDM_OP_REDUCE_SCATTER : TDM_OP_REDUCE_ALL);
}

static bool read_before_write(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        const struct tdm_access *access = operand_at(t, &o);
        if (!leaves_a_trace(t, o.i, access))
            continue;
        size_t j = next_reader(t, o.i + 1, access->buffer, access->first_slot);
        bool between = false; /* an alloc in between would be caught before the read */
        for (size_t k = o.i + 1; k < j && j < t->r.count; k++)
            between |= t->r.items[k].item.kind != TDM_RUN;
        /* sums over ranks of two parts of a unit are independent */
        bool parts = j < t->r.count && sums_gradient(t, o.i) && sums_gradient(t, j);
        if (j == t->r.count || between || parts)
            continue;
        move(t, j, o.i);
        return true;
    }
    return false;
}

static bool optimizer_dropped(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_OPTIMIZER)) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool optimizer_twice(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_OPTIMIZER)) {
            tdm_recording_insert(&t->r, i, &t->r.items[i]);
            return true;
        }
    return false;
}

/* An evaluate pass writes weights, which it may only read. The tags agree. */
static bool evaluation_updates(struct trial *t)
{
    for (struct operand o = anywhere(t);
         t->r.program.schedule->pass == TDM_EVALUATE && next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (access->after.content != TDM_UNIT_WEIGHTS)
            continue;
        access->mode = TDM_ACCUMULATE;
        access->after.contributor = 0;
        tdm_op_cost(&t->r.program, op_at(t, o.i));
        return true;
    }
    return false;
}

/* In a tile of an evaluate pass, the op also computes gradients. */
static bool evaluation_goes_backward(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_LOSS)) {
            op_at(t, i)->kind = TDM_OP_HEAD;
            tdm_op_cost(&t->r.program, op_at(t, i));
            return true;
        }
    return false;
}

static bool adds_to(struct trial *t, size_t i, const struct tdm_access *gradient)
{
    const struct tdm_op *op = op_at(t, i);
    for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
        if (op->access[a].mode != TDM_READ && op->access[a].buffer == gradient->buffer &&
            op->access[a].first_slot == gradient->first_slot)
            return true;
    return false;
}

/* Moves an op before the last addition to its operand `gradient`. */
static bool too_early(struct trial *t, enum tdm_op_kind kind, uint32_t gradient)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, kind))
            continue;
        for (size_t j = i; j-- > 0;)
            if (adds_to(t, j, &op_at(t, i)->access[gradient])) {
                move(t, i, j);
                return true;
            }
    }
    return false;
}

static bool optimizer_too_early(struct trial *t)
{
    return too_early(t, TDM_OP_OPTIMIZER, TDM_OPTIMIZER_GRADIENT);
}

static bool norm_too_early(struct trial *t)
{
    return too_early(t, TDM_OP_GRADIENT_NORM, TDM_GRADIENT_NORM_GRADIENT);
}

static bool norm_dropped(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_GRADIENT_NORM)) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

/* The norm of a tied embedding omits the head's part of the gradient. */
static bool norm_of_a_part(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_GRADIENT_NORM) &&
            op_at(t, i)->access[TDM_GRADIENT_NORM_TIED].buffer != TDM_NONE) {
            leave_out(&op_at(t, i)->access[TDM_GRADIENT_NORM_TIED]);
            return true;
        }
    return false;
}

/* The norms that some clipping update reads: one, or with `all` several. */
static struct tdm_access *some_norms(struct trial *t, bool all)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_OPTIMIZER) &&
            op_at(t, i)->access[TDM_OPTIMIZER_NORMS].buffer != TDM_NONE &&
            (op_at(t, i)->access[TDM_OPTIMIZER_NORMS].slots > 1) == all)
            return &op_at(t, i)->access[TDM_OPTIMIZER_NORMS];
    return NULL;
}

static bool clip_by_another_unit(struct trial *t)
{
    struct tdm_access *norm = some_norms(t, false);
    if (norm == NULL)
        return false;
    norm->first_slot = another(t, buffer_at(t, norm->buffer)->slots, norm->first_slot);
    norm->before.layer = norm->after.layer = norm->first_slot;
    return true;
}

static bool clip_without_a_unit(struct trial *t)
{
    struct tdm_access *norms = some_norms(t, true);
    if (norms == NULL)
        return false;
    norms->slots--;
    norms->bytes -= sizeof(double);
    return true;
}

static bool clip_forgotten(struct trial *t)
{
    struct tdm_access *norms = some_norms(t, tdm_dice_chance(t->dice, 50));
    if (norms != NULL)
        leave_out(norms);
    return norms != NULL;
}

/* The optimizer of a tied embedding omits the head's part of the gradient. */
static bool tied_gradient_ignored(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_OPTIMIZER) &&
            op_at(t, i)->access[TDM_OPTIMIZER_TIED].buffer != TDM_NONE) {
            leave_out(&op_at(t, i)->access[TDM_OPTIMIZER_TIED]);
            return true;
        }
    return false;
}

static bool moments_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_OPTIMIZER) &&
            op_at(t, i)->access[TDM_OPTIMIZER_MOMENT1].buffer != TDM_NONE) {
            struct tdm_access first = op_at(t, i)->access[TDM_OPTIMIZER_MOMENT1];
            op_at(t, i)->access[TDM_OPTIMIZER_MOMENT1] = op_at(t, i)->access[TDM_OPTIMIZER_MOMENT2];
            op_at(t, i)->access[TDM_OPTIMIZER_MOMENT2] = first;
            return true;
        }
    return false;
}

static bool norm_of_another_unit(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_GRADIENT_NORM)) {
            struct tdm_access *norm = &op_at(t, i)->access[TDM_GRADIENT_NORM_NORM];
            norm->first_slot = another(t, buffer_at(t, norm->buffer)->slots, norm->first_slot);
            return true;
        }
    return false;
}

/* An access to the weights of a layer, in a buffer with more than one slot. */
static struct tdm_access *some_weights(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (access->after.content == TDM_UNIT_WEIGHTS && access->mode == TDM_READ &&
            buffer_at(t, access->buffer)->slots > 1)
            return access;
    }
    return NULL;
}

static bool weights_slot_of_another_layer(struct trial *t)
{
    struct tdm_access *access = some_weights(t);
    if (access != NULL)
        access->first_slot = another(t, buffer_at(t, access->buffer)->slots, access->first_slot);
    return access != NULL;
}

static bool weights_of_another_layer(struct trial *t)
{
    struct tdm_access *access = some_weights(t);
    if (access == NULL)
        return false;
    access->first_slot = another(t, buffer_at(t, access->buffer)->slots, access->first_slot);
    access->before.layer = access->after.layer = access->first_slot;
    return true;
}

static bool weights_of_another_part(struct trial *t)
{
    struct tdm_access *access = some_weights(t);
    if (access != NULL) /* the first parts are those of a layer */
        access->part = another(t, TDM_PART_DOWN + 1, access->part);
    return access != NULL;
}

static bool kv_of_another_layer(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (!is_prefix(op_at(t, o.i), o.a) || access->mode != TDM_READ)
            continue;
        for (uint32_t b = 0; b < t->r.program.buffer_count; b++) {
            struct tdm_tag tag = held(t, o.i, b, access->first_slot, 0);
            if (b == access->buffer || tag.content != TDM_KVPAGES ||
                tag.layer == access->before.layer)
                continue;
            access->buffer = b;
            access->before.layer = access->after.layer = tag.layer;
            return true;
        }
    }
    return false;
}

/* Uses the slot of another chunk instead of the op's own, with that chunk's tags. */
static bool another_chunk(struct trial *t, enum tdm_content content)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        const struct tdm_buffer *buffer = buffer_at(t, access->buffer);
        if (access->after.content != content || is_prefix(op_at(t, o.i), o.a) ||
            buffer->axis != TDM_AXIS_CHUNK || buffer->slots != t->r.program.chunk_count ||
            buffer->slots == 1 || is_op(t, o.i, TDM_OP_COPY))
            continue;
        uint32_t slot = another(t, buffer->slots, access->first_slot);
        if (access->before.chunk != TDM_NONE)
            access->before.chunk = slot;
        access->after.chunk = access->first_slot = slot;
        return true;
    }
    return false;
}

static bool tokens_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_TOKENS);
}

static bool x_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_X);
}

static bool dx_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_DX);
}

static bool dkv_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_DKVPAGES);
}

/* ---- faults of page lists ---- */

static bool lists_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_PAGE_LISTS);
}

static bool means_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_PAGE_MEANS);
}

static bool drop_op(struct trial *t, enum tdm_op_kind kind)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, kind)) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool selection_dropped(struct trial *t)
{
    return drop_op(t, TDM_OP_SELECT);
}

static bool attention_without_lists(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        uint32_t lists =
            is_op(t, i, TDM_OP_ATTENTION) ? TDM_ATTENTION_LISTS : TDM_ATTENTION_GRAD_LISTS;
        bool attends = is_op(t, i, TDM_OP_ATTENTION) || is_op(t, i, TDM_OP_ATTENTION_GRAD);
        if (!attends || op_at(t, i)->access[lists].buffer == TDM_NONE)
            continue;
        leave_out(&op_at(t, i)->access[lists]);
        return true;
    }
    return false;
}

static bool vote_without_a_chunk(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_SELECT) || op_at(t, i)->access[TDM_SELECT_MEANS].buffer == TDM_NONE)
            continue;
        struct tdm_access *means = &op_at(t, i)->access[TDM_SELECT_MEANS];
        if (--means->slots == 0)
            leave_out(means);
        return true;
    }
    return false;
}

static bool kv_written_to_another_chunk(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_KV_WRITE))
            continue;
        struct tdm_access *access = &op_at(t, i)->access[TDM_KV_WRITE_PAGES];
        if (buffer_at(t, access->buffer)->slots == 1)
            continue;
        access->first_slot = another(t, buffer_at(t, access->buffer)->slots, access->first_slot);
        return true;
    }
    return false;
}

static bool rows_of_another_tile(struct trial *t)
{
    uint64_t tile = t->r.program.schedule->head_tile_tokens;
    for (EACH_ITEM(t, i)) {
        if (op_at(t, i) == NULL || op_at(t, i)->entries == 0)
            continue;
        struct tdm_op *op = op_at(t, i);
        if (t->r.program.chunks[op->chunk].tokens <= tile)
            continue;
        op->first_row = op->first_row == 0 ? tile : op->first_row - tile;
        op->tokens = t->r.program.chunks[op->chunk].tokens - op->first_row;
        op->tokens = op->tokens < tile ? op->tokens : tile;
        return true;
    }
    return false;
}

/* Two ops on the same tile of rows swap their parts of the vocabulary. */
static bool entries_of_another_tile(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_op *op = op_at(t, i), *next = i + 1 < t->r.count ? op_at(t, i + 1) : NULL;
        if (op == NULL || next == NULL || op->kind != next->kind || op->entries == 0 ||
            op->entries != next->entries || op->first_entry == next->first_entry)
            continue;
        uint32_t entry = op->first_entry;
        op->first_entry = next->first_entry;
        next->first_entry = entry;
        return true;
    }
    return false;
}

/* Drops the gradients that one part of the vocabulary contributes to the weight and to the rows. */
static bool head_gradient_dropped(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_HEAD_GRAD)) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool a_token_short(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (op_at(t, i) != NULL && op_at(t, i)->tokens > 0) {
            op_at(t, i)->tokens--;
            return true;
        }
    return false;
}

/* That a chunk is not sent on in a ring is seen where the ranks are compared (unit_team_check). */
static bool operand_left_out(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);)
        if (op_at(t, o.i)->kind != TDM_OP_COPY &&
            (op_at(t, o.i)->kind != TDM_OP_HOP || o.a != TDM_HOP_SENT)) {
            leave_out(operand_at(t, &o));
            return true;
        }
    return false;
}

/* ---- faults of team ops ---- */

static bool is_team_op(struct trial *t, size_t i)
{
    return t->r.items[i].item.kind == TDM_RUN &&
           (TDM_TEAM_KINDS & TDM_KIND(t->r.items[i].op.kind)) != 0;
}

/* Some op of a kind that has an operand, or the number of items. */
static size_t some_with(struct trial *t, enum tdm_op_kind kind, uint32_t operand)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, kind) && op_at(t, i)->access[operand].buffer != TDM_NONE)
            return i;
    return t->r.count;
}

static bool gather_dropped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_GATHER))
            continue;
        for (uint32_t a = TDM_GATHER_BELOW; a <= TDM_GATHER_ABOVE; a++) {
            const struct tdm_access *access = &op_at(t, i)->access[a];
            if (access->buffer == TDM_NONE || !leaves_a_trace(t, i, access) ||
                !is_read(t, i, access->buffer, access->first_slot))
                continue;
            tdm_recording_remove(&t->r, i);
            return true;
        }
    }
    return false;
}

/* Without a share of other chunks and without shares from other ranks it would do nothing, but the
 * sum would not be known to be complete. */
static bool reduce_dropped(struct trial *t)
{
    size_t i = some_with(t, TDM_OP_REDUCE, TDM_REDUCE_OWN);
    if (i < t->r.count)
        tdm_recording_remove(&t->r, i);
    return i < t->r.count;
}

/* The kind of op that sums gradients over the ranks. */
static enum tdm_op_kind sum_kind(const struct trial *t)
{
    return t->r.program.schedule->optimizer.kind == TDM_OPTIMIZER_NONE ? TDM_OP_REDUCE_ALL
                                                                       : TDM_OP_REDUCE_SCATTER;
}

static bool reduce_all_dropped(struct trial *t)
{
    return drop_op(t, sum_kind(t));
}

static bool twice(struct trial *t, enum tdm_op_kind kind, uint32_t operand)
{
    size_t i = some_with(t, kind, operand);
    if (i < t->r.count)
        tdm_recording_insert(&t->r, i, &t->r.items[i]);
    return i < t->r.count;
}

static bool reduce_twice(struct trial *t)
{
    return twice(t, TDM_OP_REDUCE, TDM_REDUCE_OWN);
}

static bool reduce_all_twice(struct trial *t)
{
    return twice(t, sum_kind(t), TDM_REDUCE_ALL_SUM);
}

static bool gather_after_its_use(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_GATHER))
            continue;
        for (uint32_t a = TDM_GATHER_BELOW; a <= TDM_GATHER_ABOVE; a++) {
            const struct tdm_access *access = &op_at(t, i)->access[a];
            if (access->buffer == TDM_NONE || !leaves_a_trace(t, i, access) ||
                !is_read(t, i, access->buffer, access->first_slot))
                continue;
            move(t, i, next_reader(t, i + 1, access->buffer, access->first_slot) + 1);
            return true;
        }
    }
    return false;
}

/* The rank's own K and V travel before they are written. */
static bool gather_before_its_source(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_GATHER) || op_at(t, i)->access[TDM_GATHER_OWN].buffer == TDM_NONE)
            continue;
        const struct tdm_access *own = &op_at(t, i)->access[TDM_GATHER_OWN];
        for (size_t j = i; j-- > 0;) {
            const struct tdm_op *op = op_at(t, j);
            for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
                if (op->access[a].mode != TDM_READ &&
                    covers(&op->access[a], own->buffer, own->first_slot)) {
                    if (!leaves_a_trace(t, j, &op->access[a]))
                        return false;
                    move(t, i, j);
                    return true;
                }
        }
    }
    return false;
}

/* Does a team op read anything of the rank? One that does not is the rank's part in the ops of
 * others, which tests/schedule/unit_team_check looks at. */
static bool takes_part(struct trial *t, size_t i)
{
    return is_team_op(t, i) && op_at(t, i)->access[0].buffer != TDM_NONE;
}

static bool team_op_of_another_layer(struct trial *t)
{
    const struct tdm_model *model = t->r.program.schedule->model;
    for (EACH_ITEM(t, i)) {
        if (!takes_part(t, i))
            continue;
        struct tdm_op *op = op_at(t, i);
        bool of_kv = op->kind == TDM_OP_GATHER || op->kind == TDM_OP_REDUCE;
        if (of_kv && model->layers == 1)
            continue;
        op->layer = another(t, of_kv ? model->layers : model->unit_count, op->layer);
        return true;
    }
    return false;
}

static bool team_op_of_another_layer_with_tags(struct trial *t)
{
    const uint32_t layers = t->r.program.schedule->model->layers;
    for (EACH_ITEM(t, i)) {
        struct tdm_op *op = op_at(t, i);
        if (!takes_part(t, i) || layers == 1 || op->layer >= layers)
            continue;
        op->layer = another(t, layers, op->layer);
        for (uint32_t a = 0; a < op->access_count; a++) {
            struct tdm_access *access = &op->access[a];
            if (access->before.layer != TDM_NONE)
                access->before.layer = op->layer;
            if (access->buffer != TDM_NONE)
                access->after.layer = op->layer;
        }
        return true;
    }
    return false;
}

/* Does an op exchange heads of chunks of which the rank has none? */
static bool exchanges_nothing(struct trial *t, size_t i)
{
    return is_op(t, i, TDM_OP_ALL_TO_ALL) &&
           op_at(t, i)->access[TDM_ALL_TO_ALL_HEADS].buffer == TDM_NONE;
}

/* Another chunk begins the round. Not that of a hop or an exchange of which a rank may have
 * nothing: there it is seen where the ranks are compared (unit_team_check). */
static bool team_op_of_another_round(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_team_op(t, i) && !is_op(t, i, TDM_OP_HOP_SUM) && !is_op(t, i, TDM_OP_HOP) &&
            !exchanges_nothing(t, i) && op_at(t, i)->chunk != TDM_NONE &&
            t->r.program.chunk_count > 1) {
            op_at(t, i)->chunk = another(t, t->r.program.chunk_count, op_at(t, i)->chunk);
            return true;
        }
    return false;
}

/* A rank takes the K and V of a round's first chunk for its own, or of its last one. */
static bool gather_of_another_owner(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_access *access = op_at(t, i) == NULL ? NULL : op_at(t, i)->access;
        if (!is_op(t, i, TDM_OP_GATHER) || access[TDM_GATHER_OWN].buffer == TDM_NONE)
            continue;
        for (uint32_t a = TDM_GATHER_BELOW; a <= TDM_GATHER_ABOVE; a++) {
            if (access[a].buffer == TDM_NONE || access[a].slots != 1)
                continue;
            struct tdm_access other = access[a];
            access[a] = access[TDM_GATHER_OWN];
            access[a].mode = TDM_WRITE;
            access[TDM_GATHER_OWN] = other;
            access[TDM_GATHER_OWN].mode = TDM_READ;
            access[TDM_GATHER_OWN].before = other.after;
            return true;
        }
    }
    return false;
}

/* The rank has a chunk in the round, but receives it as if another rank had made it. */
static bool own_chunk_gathered(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_access *access = op_at(t, i) == NULL ? NULL : op_at(t, i)->access;
        if (!is_op(t, i, TDM_OP_GATHER) || access[TDM_GATHER_OWN].buffer == TDM_NONE ||
            access[TDM_GATHER_BELOW].buffer == TDM_NONE)
            continue;
        access[TDM_GATHER_BELOW].slots++;
        access[TDM_GATHER_BELOW].bytes += access[TDM_GATHER_OWN].bytes;
        leave_out(&access[TDM_GATHER_OWN]);
        return true;
    }
    return false;
}

/* One of the round's chunks is not received. */
static bool gather_short_of_a_chunk(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_GATHER))
            continue;
        uint32_t a = TDM_GATHER_BELOW + (uint32_t)tdm_dice_roll(t->dice, 0, 1);
        struct tdm_access *access = &op_at(t, i)->access[a];
        if (access->buffer == TDM_NONE)
            continue;
        access->slots > 1 ? shorten(t, access) : leave_out(access);
        return true;
    }
    return false;
}

static bool gather_to_another_slot(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_GATHER))
            continue;
        uint32_t a = (uint32_t)tdm_dice_roll(t->dice, TDM_GATHER_BELOW, TDM_GATHER_ABOVE);
        struct tdm_access *access = &op_at(t, i)->access[a];
        if (access->buffer == TDM_NONE)
            continue;
        uint32_t places = buffer_at(t, access->buffer)->slots - access->slots + 1;
        uint32_t first = access->first_slot, last = first + access->slots - 1;
        if (places < 2)
            continue;
        uint32_t other = another(t, places, first), missed = other > first ? first : last;
        if (same_tag(held(t, i, access->buffer, missed, 0),
                     shifted(access->after, missed - first)) ||
            !is_read(t, i, access->buffer, missed))
            continue;
        access->first_slot = other;
        return true;
    }
    return false;
}

/* K and V of the chunk that is now in a slot, not of the round's. */
static bool stale_gather(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_GATHER) || op_at(t, i)->access[TDM_GATHER_OWN].buffer == TDM_NONE)
            continue;
        struct tdm_access *own = &op_at(t, i)->access[TDM_GATHER_OWN];
        uint32_t slots = buffer_at(t, own->buffer)->slots;
        if (slots < 2)
            continue;
        own->first_slot = another(t, slots, own->first_slot);
        own->before = own->after = held(t, i, own->buffer, own->first_slot, 0);
        return true;
    }
    return false;
}

/* The op that turns dK into the gradient of k reads the rank's share, not the sum. */
static bool reduce_after_its_use(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_REDUCE) || op_at(t, i)->access[TDM_REDUCE_OWN].buffer == TDM_NONE)
            continue;
        const struct tdm_access *own = &op_at(t, i)->access[TDM_REDUCE_OWN];
        size_t reader = next_reader(t, i + 1, own->buffer, own->first_slot);
        if (reader == t->r.count)
            continue;
        move(t, i, reader + 1);
        return true;
    }
    return false;
}

/* The shares travel before the rank's own chunk of the round has added to them. */
static bool reduce_before_the_last_addition(struct trial *t)
{
    return too_early(t, TDM_OP_REDUCE, TDM_REDUCE_OWN);
}

static bool reduce_all_before_the_last_addition(struct trial *t)
{
    return too_early(t, sum_kind(t), TDM_REDUCE_ALL_SUM);
}

/* The norm is that of the rank's share. */
static bool norm_before_the_reduce(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!sums_gradient(t, i))
            continue;
        const struct tdm_access *sum = &op_at(t, i)->access[TDM_REDUCE_ALL_SUM];
        for (size_t j = i + 1; j < t->r.count; j++)
            if (is_op(t, j, TDM_OP_GRADIENT_NORM) &&
                covers(&op_at(t, j)->access[TDM_GRADIENT_NORM_GRADIENT], sum->buffer,
                       sum->first_slot)) {
                move(t, i, j + 1);
                return true;
            }
    }
    return false;
}

/* The rank sums another chunk of the round than its own. */
static bool reduce_of_another_owner(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_access *access = op_at(t, i) == NULL ? NULL : op_at(t, i)->access;
        if (!is_op(t, i, TDM_OP_REDUCE) || access[TDM_REDUCE_OWN].buffer == TDM_NONE)
            continue;
        for (uint32_t a = TDM_REDUCE_BELOW; a <= TDM_REDUCE_ABOVE; a++) {
            if (access[a].buffer == TDM_NONE || access[a].slots != 1)
                continue;
            struct tdm_access other = access[a];
            access[a] = access[TDM_REDUCE_OWN];
            access[a].mode = TDM_READ;
            access[a].after = access[a].before;
            access[TDM_REDUCE_OWN] = other;
            access[TDM_REDUCE_OWN].mode = TDM_ACCUMULATE;
            access[TDM_REDUCE_OWN].after.share = 0;
            return true;
        }
    }
    return false;
}

static bool share_not_sent(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        uint32_t a = TDM_REDUCE_BELOW + (uint32_t)tdm_dice_roll(t->dice, 0, 1);
        if (!is_op(t, i, TDM_OP_REDUCE) || op_at(t, i)->access[a].buffer == TDM_NONE)
            continue;
        struct tdm_access *access = &op_at(t, i)->access[a];
        access->slots > 1 ? shorten(t, access) : leave_out(access);
        return true;
    }
    return false;
}

/* The rank's share of its own chunk is sent too, and would be added twice. */
static bool own_share_sent(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_access *access = op_at(t, i) == NULL ? NULL : op_at(t, i)->access;
        if (!is_op(t, i, TDM_OP_REDUCE) || access[TDM_REDUCE_OWN].buffer == TDM_NONE)
            continue;
        if (access[TDM_REDUCE_BELOW].buffer == TDM_NONE) {
            access[TDM_REDUCE_BELOW] = access[TDM_REDUCE_OWN];
            access[TDM_REDUCE_BELOW].mode = TDM_READ;
            access[TDM_REDUCE_BELOW].after = access[TDM_REDUCE_BELOW].before;
        } else {
            access[TDM_REDUCE_BELOW].slots++;
            access[TDM_REDUCE_BELOW].bytes += access[TDM_REDUCE_OWN].bytes;
        }
        return true;
    }
    return false;
}

/* A tag of a share names another rank. */
static bool share_of_another_rank(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (access->after.share == 0)
            continue;
        uint32_t share = 1 + another(t, t->r.program.ranks, access->after.share - 1);
        access->after.share = share;
        if (access->before.share != 0)
            access->before.share = share;
        return true;
    }
    return false;
}

/* An op adds to a share, and calls the result a sum over all ranks. */
static bool share_called_a_sum(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);) {
        struct tdm_access *access = operand_at(t, &o);
        if (access->after.share == 0 || access->mode == TDM_READ)
            continue;
        access->after.share = 0;
        return true;
    }
    return false;
}

/* The sum over ranks stays the rank's share. */
static bool sum_called_a_share(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_access *sum = op_at(t, i) == NULL ? NULL : &op_at(t, i)->access[0];
        if ((!is_op(t, i, TDM_OP_REDUCE) && !sums_gradient(t, i)) || sum->buffer == TDM_NONE)
            continue;
        sum->after = sum->before;
        return true;
    }
    return false;
}

/* A share with an addition less than the rank has made. */
static bool share_incomplete(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        uint32_t a = (uint32_t)tdm_dice_roll(t->dice, TDM_REDUCE_OWN, TDM_REDUCE_ABOVE);
        if (!is_op(t, i, TDM_OP_REDUCE) || op_at(t, i)->access[a].buffer == TDM_NONE)
            continue;
        op_at(t, i)->access[a].before.contributor++;
        if (a != TDM_REDUCE_OWN)
            op_at(t, i)->access[a].after.contributor++;
        return true;
    }
    return false;
}

/* Each sums the other's gradient. */
static bool reduce_alls_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!sums_gradient(t, i))
            continue;
        for (size_t j = 0; j < t->r.count; j++) {
            struct tdm_access *one = &op_at(t, i)->access[TDM_REDUCE_ALL_SUM];
            if (!sums_gradient(t, j) ||
                op_at(t, j)->access[TDM_REDUCE_ALL_SUM].buffer == one->buffer)
                continue;
            uint32_t buffer = one->buffer;
            one->buffer = op_at(t, j)->access[TDM_REDUCE_ALL_SUM].buffer;
            op_at(t, j)->access[TDM_REDUCE_ALL_SUM].buffer = buffer;
            return true;
        }
    }
    return false;
}

static bool reduce_all_of_a_part(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (sums_gradient(t, i) && op_at(t, i)->part == TDM_PART_ALL) {
            struct tdm_op *op = op_at(t, i);
            struct tdm_access *sum = &op->access[TDM_REDUCE_ALL_SUM];
            op->part = op->layer < t->r.program.schedule->model->layers ? TDM_PART_DOWN
                                                                        : TDM_PART_EMBEDDING;
            sum->part = op->part;
            sum->bytes = tdm_part_bytes(t->r.program.schedule->model, op->layer, op->part,
                                        buffer_at(t, sum->buffer)->dtype);
            return true;
        }
    return false;
}

/* All of a gradient is summed where each rank should have its part, or the other way round. */
static bool sum_of_the_other_kind(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (sums_gradient(t, i)) {
            struct tdm_op *op = op_at(t, i);
            bool by_part = op->kind == TDM_OP_REDUCE_SCATTER;
            struct tdm_tag *after = &op->access[0].after;
            op->kind = by_part ? TDM_OP_REDUCE_ALL : TDM_OP_REDUCE_SCATTER;
            after->contributor = by_part ? 0 : TDM_NONE;
            after->share = by_part ? 0 : t->r.program.rank + 1;
            tdm_op_cost(&t->r.program, op);
            return true;
        }
    return false;
}

/* The sum is of the part of another rank. */
static bool sum_of_another_owner(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_REDUCE_SCATTER)) {
            op_at(t, i)->access[0].after.share =
                another(t, t->r.program.ranks, t->r.program.rank) + 1;
            return true;
        }
    return false;
}

/* Is it the sum over ranks of a norm? */
static bool sums_norm(struct trial *t, size_t i)
{
    return is_op(t, i, TDM_OP_REDUCE_ALL) &&
           op_at(t, i)->access[TDM_REDUCE_ALL_SUM].after.content == TDM_GRADIENT_NORM;
}

static bool norm_not_summed(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (sums_norm(t, i)) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool norm_summed_twice(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (sums_norm(t, i)) {
            tdm_recording_insert(&t->r, i, &t->r.items[i]);
            return true;
        }
    return false;
}

/* The norm is of the part of another rank. */
static bool norm_of_another_part(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_op *op = op_at(t, i);
        if (!is_op(t, i, TDM_OP_GRADIENT_NORM) || op->elements == 0 || t->r.program.ranks == 1)
            continue;
        op->first_element += op->elements;
        return true;
    }
    return false;
}

/* A stale part: an update reads what another rank has summed. */
static bool update_from_another_part(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_OPTIMIZER) || t->r.program.ranks == 1)
            continue;
        struct tdm_access *gradient = &op_at(t, i)->access[TDM_OPTIMIZER_GRADIENT];
        gradient->before.share = gradient->after.share =
            another(t, t->r.program.ranks, t->r.program.rank) + 1;
        return true;
    }
    return false;
}

/* A rank's part of sliced weights is not brought: the others would get what the slot had before. */
static bool slice_not_brought(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && t->r.program.schedule->sliced_weights &&
            op_at(t, i)->access[TDM_COPY_FROM].before.content == TDM_UNIT_WEIGHTS) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

/* The copy is of the part of another rank. */
static bool slice_of_another_rank(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_op *op = op_at(t, i);
        if (!is_op(t, i, TDM_OP_COPY) || !t->r.program.schedule->sliced_weights ||
            op->access[TDM_COPY_FROM].before.content != TDM_UNIT_WEIGHTS)
            continue;
        op->first_element += 256;
        return true;
    }
    return false;
}

static bool gather_all_dropped(struct trial *t)
{
    return drop_op(t, TDM_OP_GATHER_ALL);
}

static bool gather_all_twice(struct trial *t)
{
    return twice(t, TDM_OP_GATHER_ALL, TDM_GATHER_ALL_WEIGHTS);
}

/* The weights travel before the rank has updated its part. */
static bool gather_all_before_the_update(struct trial *t)
{
    return too_early(t, TDM_OP_GATHER_ALL, TDM_GATHER_ALL_WEIGHTS);
}

/* The rank's part of the weights is called the whole, and the other parts stay as they were. */
static bool part_called_the_whole(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_op *op = op_at(t, i);
        for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
            if (is_op(t, i, TDM_OP_OPTIMIZER) && op->access[a].buffer != TDM_NONE &&
                op->access[a].after.content == TDM_UNIT_WEIGHTS && op->access[a].after.share != 0) {
                op->access[a].after.share = 0;
                return true;
            }
    }
    return false;
}

static bool team_ops_swapped(struct trial *t, enum tdm_op_kind kind)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, kind))
            continue;
        for (size_t j = i + 1; j < t->r.count; j++)
            if (is_op(t, j, kind) && op_at(t, j)->layer == op_at(t, i)->layer &&
                op_at(t, j)->chunk != op_at(t, i)->chunk) {
                struct tdm_op one = *op_at(t, i), other = *op_at(t, j);
                if (one.access[0].buffer == TDM_NONE || other.access[0].buffer == TDM_NONE)
                    break;
                *op_at(t, i) = other;
                *op_at(t, j) = one;
                op_at(t, i)->number = one.number;
                op_at(t, j)->number = other.number;
                return true;
            }
    }
    return false;
}

static bool reduces_swapped(struct trial *t)
{
    return team_ops_swapped(t, TDM_OP_REDUCE);
}

static bool team_op_on_another_lane(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_team_op(t, i)) {
            op_at(t, i)->lane = (enum tdm_lane)another(t, TDM_LANES, (uint32_t)op_at(t, i)->lane);
            return true;
        }
    return false;
}

static bool team_tokens_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_team_op(t, i)) {
            op_at(t, i)->tokens++;
            return true;
        }
    return false;
}

static bool team_operand_cut_short(struct trial *t)
{
    for (struct operand o = anywhere(t); next_operand(t, &o);)
        if (is_team_op(t, o.i)) {
            operand_at(t, &o)->bytes -= 2;
            return true;
        }
    return false;
}

/* The means of other ranks' pages are not gathered. */
static bool means_not_gathered(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_GATHER))
            continue;
        for (uint32_t a = TDM_GATHER_OWN_MEANS; a <= TDM_GATHER_ABOVE_MEANS; a++)
            if (op_at(t, i)->access[a].buffer != TDM_NONE) {
                leave_out(&op_at(t, i)->access[a]);
                return true;
            }
    }
    return false;
}

/* ---- faults of exchanges of heads ---- */

/* Some exchange that gives the rank its heads of all chunks (or, with `back`, gives it its chunk);
 * else the number of items. */
static size_t some_exchange(struct trial *t, bool back)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ALL_TO_ALL))
            continue;
        const struct tdm_access *access = op_at(t, i)->access;
        if ((access[TDM_ALL_TO_ALL_HEADS].mode == TDM_READ) == back &&
            (!back || access[TDM_ALL_TO_ALL_CHUNK].buffer != TDM_NONE))
            return i;
    }
    return t->r.count;
}

static bool remove_found(struct trial *t, size_t i)
{
    if (i < t->r.count)
        tdm_recording_remove(&t->r, i);
    return i < t->r.count;
}

static bool heads_not_exchanged(struct trial *t)
{
    return remove_found(t, some_exchange(t, false));
}

static bool heads_not_given_back(struct trial *t)
{
    return remove_found(t, some_exchange(t, true));
}

static bool exchange_after_its_use(struct trial *t)
{
    size_t i = some_exchange(t, false);
    if (i == t->r.count)
        return false;
    const struct tdm_access *heads = &op_at(t, i)->access[TDM_ALL_TO_ALL_HEADS];
    move(t, i, next_reader(t, i + 1, heads->buffer, heads->first_slot) + 1);
    return true;
}

/* An exchange moves before the op that makes what it reads. */
static bool exchange_before_its_source(struct trial *t)
{
    const bool back = tdm_dice_chance(t->dice, 50);
    size_t i = some_exchange(t, back);
    if (i == t->r.count)
        return false;
    const struct tdm_access *from =
        &op_at(t, i)->access[back ? TDM_ALL_TO_ALL_HEADS : TDM_ALL_TO_ALL_CHUNK];
    for (size_t j = i; j-- > 0 && from->buffer != TDM_NONE;) {
        const struct tdm_op *op = op_at(t, j);
        for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
            if (op->access[a].buffer == from->buffer && op->access[a].mode != TDM_READ &&
                op->access[a].first_slot == from->first_slot) {
                move(t, i, j);
                return true;
            }
    }
    return false;
}

static bool exchange_turned_around(struct trial *t)
{
    size_t i = some_exchange(t, tdm_dice_chance(t->dice, 50));
    for (uint32_t a = 0; i < t->r.count && a < TDM_ALL_TO_ALL_OPERANDS; a++) {
        struct tdm_access *access = &op_at(t, i)->access[a];
        access->mode = access->mode == TDM_READ ? TDM_WRITE : TDM_READ;
        access->before = access->after;
    }
    return i < t->r.count;
}

static bool own_heads_not_sent(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ALL_TO_ALL) &&
            op_at(t, i)->access[TDM_ALL_TO_ALL_CHUNK].buffer != TDM_NONE) {
            leave_out(&op_at(t, i)->access[TDM_ALL_TO_ALL_CHUNK]);
            return true;
        }
    return false;
}

/* q for the gradient of the output, which has the same bytes, and the other way round. */
static bool other_heads_exchanged(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ALL_TO_ALL))
            continue;
        struct tdm_access *heads = &op_at(t, i)->access[TDM_ALL_TO_ALL_HEADS];
        const enum tdm_content content = heads->after.content;
        if (content != TDM_HEADS_Q && content != TDM_HEADS_DOUT)
            continue;
        heads->after.content = content == TDM_HEADS_Q ? TDM_HEADS_DOUT : TDM_HEADS_Q;
        return true;
    }
    return false;
}

/* The last of several chunks stays where it is, in all that the op says. */
static bool exchange_short_of_a_chunk(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ALL_TO_ALL))
            continue;
        struct tdm_op *op = op_at(t, i);
        struct tdm_access *heads = &op->access[TDM_ALL_TO_ALL_HEADS];
        const uint32_t last = heads->after.chunk + heads->slots - 1;
        const struct tdm_chunk *chunk = &t->r.program.chunks[last];
        if (heads->mode == TDM_READ || heads->slots == 1 || chunk->rank == t->r.program.rank)
            continue;
        heads->slots--;
        heads->bytes -= tdm_chunks_bytes(&t->r.program, heads->after.content, last, last + 1);
        op->tokens -= chunk->tokens;
        return true;
    }
    return false;
}

/* Sums of dK and dV are exchanged before the first chunk of the round adds to them, or before the
 * shares of them are added up. */
static bool sums_exchanged_too_early(struct trial *t)
{
    const bool shares = tdm_schedule_gathers(t->r.program.schedule);
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ALL_TO_ALL) || tdm_team_exchanged(op_at(t, i)) != TDM_DKVPAGES)
            continue;
        const struct tdm_op *op = op_at(t, i);
        for (size_t j = i; j-- > 0;)
            if (shares ? is_op(t, j, TDM_OP_REDUCE) && op_at(t, j)->chunk == op->chunk
                       : is_op(t, j, TDM_OP_ATTENTION_GRAD)) {
                move(t, i, j);
                return true;
            }
    }
    return false;
}

static bool sums_of_another_chunk(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ALL_TO_ALL))
            continue;
        struct tdm_access *heads = &op_at(t, i)->access[TDM_ALL_TO_ALL_HEADS];
        if (heads->after.content != TDM_DKVPAGES)
            continue;
        heads->before.contributor = heads->after.contributor = heads->after.chunk;
        return true;
    }
    return false;
}

/* ---- faults of rings ---- */

static bool of_ring(struct trial *t)
{
    return tdm_schedule_rings(t->r.program.schedule);
}

/* Some op of a kind after a random item that has an operand in a mode; else the number of items. */
static size_t some_of_ring(struct trial *t, enum tdm_op_kind kind, uint32_t operand,
                           enum tdm_mode mode)
{
    for (EACH_ITEM(t, i)) {
        if (!of_ring(t) || !is_op(t, i, kind))
            continue;
        const struct tdm_access *access = &op_at(t, i)->access[operand];
        if (access->buffer != TDM_NONE && access->mode == mode)
            return i;
    }
    return t->r.count;
}

static bool hop_left_out(struct trial *t)
{
    return remove_found(t, some_of_ring(t, TDM_OP_HOP, TDM_HOP_RECEIVED, TDM_WRITE));
}

static bool hop_after_its_use(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP, TDM_HOP_RECEIVED, TDM_WRITE);
    if (i == t->r.count)
        return false;
    const struct tdm_access *to = &op_at(t, i)->access[TDM_HOP_RECEIVED];
    move(t, i, next_reader(t, i + 1, to->buffer, to->first_slot) + 1);
    return true;
}

static bool hop_of_another_chunk(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP, TDM_HOP_RECEIVED, TDM_WRITE);
    if (i < t->r.count)
        op_at(t, i)->access[TDM_HOP_RECEIVED].after.chunk ^= 1;
    return i < t->r.count;
}

static bool hop_of_another_distance(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP, TDM_HOP_SENT, TDM_READ);
    if (i < t->r.count)
        op_at(t, i)->hops++;
    return i < t->r.count;
}

static bool hop_into_the_slot_in_use(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP, TDM_HOP_RECEIVED, TDM_WRITE);
    if (i < t->r.count)
        op_at(t, i)->access[TDM_HOP_RECEIVED].first_slot ^= 1;
    return i < t->r.count;
}

static bool part_not_merged(struct trial *t)
{
    return remove_found(t, some_of_ring(t, TDM_OP_MERGE, TDM_MERGE_PART, TDM_READ));
}

static bool part_merged_twice(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_MERGE, TDM_MERGE_SUM, TDM_ACCUMULATE);
    if (i == t->r.count)
        return false;
    tdm_recording_insert(&t->r, i, &t->r.items[i]);
    return true;
}

static bool first_part_added(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_MERGE, TDM_MERGE_SUM, TDM_WRITE);
    if (i == t->r.count)
        return false;
    struct tdm_access *sum = &op_at(t, i)->access[TDM_MERGE_SUM];
    sum->mode = TDM_ACCUMULATE;
    sum->before = sum->after;
    return true;
}

static bool last_part_not_the_last(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_MERGE, TDM_MERGE_OUT, TDM_WRITE);
    if (i < t->r.count)
        leave_out(&op_at(t, i)->access[TDM_MERGE_OUT]);
    return i < t->r.count;
}

/* Attention to a chunk of another rank is left out, with its part. */
static bool visit_left_out(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!of_ring(t) || !is_op(t, i, TDM_OP_ATTENTION) ||
            op_at(t, i)->access[TDM_ATTENTION_O].after.content != TDM_OUT_PART)
            continue;
        size_t j = i + 1;
        while (j < t->r.count && !is_op(t, j, TDM_OP_MERGE))
            j++;
        if (j < t->r.count)
            tdm_recording_remove(&t->r, j);
        tdm_recording_remove(&t->r, i);
        return j < t->r.count;
    }
    return false;
}

/* A part called the whole, in all that is said of it. */
static bool part_called_whole(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_ATTENTION, TDM_ATTENTION_O, TDM_WRITE);
    if (i == t->r.count)
        return false;
    struct tdm_access *out = &op_at(t, i)->access[TDM_ATTENTION_O];
    if (out->after.content != TDM_OUT_PART)
        return false;
    out->after.content = TDM_ATTENTION_OUT;
    out->after.contributor = TDM_NONE;
    return true;
}

static bool sum_goes_no_further(struct trial *t)
{
    return remove_found(t, some_of_ring(t, TDM_OP_HOP_SUM, TDM_HOP_SUM_RECEIVED, TDM_ACCUMULATE));
}

static bool sum_replaces_a_share(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP_SUM, TDM_HOP_SUM_RECEIVED, TDM_ACCUMULATE);
    if (i == t->r.count)
        return false;
    struct tdm_op *op = op_at(t, i);
    op->access[TDM_HOP_SUM_RECEIVED].mode = TDM_WRITE;
    op->bytes -= op->access[TDM_HOP_SUM_RECEIVED].bytes;
    return true;
}

static bool sum_sent_before_its_share(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP_SUM, TDM_HOP_SUM_SENT, TDM_READ);
    if (i == t->r.count)
        return false;
    const struct tdm_access *from = &op_at(t, i)->access[TDM_HOP_SUM_SENT];
    for (size_t j = i; j-- > 0;) {
        const struct tdm_op *op = op_at(t, j);
        for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
            if (op->access[a].buffer == from->buffer && op->access[a].mode != TDM_READ &&
                op->access[a].first_slot == from->first_slot) {
                move(t, i, j);
                return true;
            }
    }
    return false;
}

static bool sum_of_another_contributor(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP_SUM, TDM_HOP_SUM_SENT, TDM_READ);
    if (i == t->r.count)
        return false;
    struct tdm_access *from = &op_at(t, i)->access[TDM_HOP_SUM_SENT];
    from->before.contributor++;
    from->after = from->before;
    return true;
}

/* ---- faults of queries that go around ---- */

/* Some gradient of attention from packed queries, of the rank's own chunk or of another's, to a
 * chunk that is not their own; else the number of items. */
static size_t some_from_queries(struct trial *t, bool own)
{
    const struct tdm_program *program = &t->r.program;
    for (EACH_ITEM(t, i)) {
        const struct tdm_op *op = op_at(t, i);
        if (is_op(t, i, TDM_OP_ATTENTION_GRAD) &&
            op->access[TDM_ATTENTION_GRAD_Q].before.content == TDM_QUERIES &&
            op->access[TDM_ATTENTION_GRAD_KV].before.chunk != op->chunk &&
            own == (program->chunks[op->chunk].rank == program->rank))
            return i;
    }
    return t->r.count;
}

static bool queries_not_packed(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_PACK_QUERIES))
            return remove_found(t, i);
    return false;
}

static bool queries_packed_after_they_left(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_PACK_QUERIES))
            continue;
        const struct tdm_access *to = &op_at(t, i)->access[TDM_PACK_QUERIES_OUT];
        move(t, i, next_reader(t, i + 1, to->buffer, to->first_slot) + 1);
        return true;
    }
    return false;
}

static bool queries_of_another_visit(struct trial *t)
{
    size_t i = some_from_queries(t, false);
    if (i < t->r.count)
        op_at(t, i)->access[TDM_ATTENTION_GRAD_Q].first_slot ^= 3;
    return i < t->r.count;
}

static bool queries_over_ones_own(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_HOP) ||
            op_at(t, i)->access[TDM_HOP_RECEIVED].after.content != TDM_QUERIES)
            continue;
        op_at(t, i)->access[TDM_HOP_RECEIVED].first_slot = 0;
        return true;
    }
    return false;
}

/* Attention from the queries of a chunk to a key is left out, with its part of dQ. */
static bool key_left_out(struct trial *t)
{
    size_t i = some_from_queries(t, tdm_dice_chance(t->dice, 50)), j = i + 1;
    while (j < t->r.count && !is_op(t, j, TDM_OP_MERGE))
        j++;
    if (j >= t->r.count)
        return false;
    tdm_recording_remove(&t->r, j);
    tdm_recording_remove(&t->r, i);
    return true;
}

static bool key_attended_twice(struct trial *t)
{
    size_t i = some_from_queries(t, false);
    if (i == t->r.count ||
        op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_ADDED].buffer == TDM_NONE) /* or it overwrites */
        return false;
    tdm_recording_insert(&t->r, i, &t->r.items[i]);
    return true;
}

/* It adds to another key's dK and dV, and says so. */
static bool key_of_another_chunk(struct trial *t)
{
    size_t i = some_from_queries(t, false);
    if (i == t->r.count)
        return false;
    struct tdm_op *op = op_at(t, i);
    op->access[TDM_ATTENTION_GRAD_KV].before.chunk ^= 1;
    op->access[TDM_ATTENTION_GRAD_KV].after.chunk ^= 1;
    return true;
}

static bool key_sum_opened_again(struct trial *t)
{
    size_t i = some_from_queries(t, false);
    if (i == t->r.count)
        return false;
    struct tdm_access *access = op_at(t, i)->access;
    if (access[TDM_ATTENTION_GRAD_DKV_ADDED].buffer == TDM_NONE)
        return false;
    access[TDM_ATTENTION_GRAD_DKV_OPENED] = access[TDM_ATTENTION_GRAD_DKV_ADDED];
    access[TDM_ATTENTION_GRAD_DKV_OPENED].mode = TDM_WRITE;
    leave_out(&access[TDM_ATTENTION_GRAD_DKV_ADDED]);
    return true;
}

/* A part of dQ is merged into the sum of another visit. */
static bool dq_into_another_sum(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_MERGE) ||
            op_at(t, i)->access[TDM_MERGE_SUM].after.content != TDM_PASSING_DQ)
            continue;
        struct tdm_access *sum = &op_at(t, i)->access[TDM_MERGE_SUM];
        sum->first_slot = (sum->first_slot + 1) % TDM_PASSING_DQ_SLOTS;
        return true;
    }
    return false;
}

/* A share of dQ that is called the sum. */
static bool dq_share_called_a_sum(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_MERGE) || op_at(t, i)->access[TDM_MERGE_SUM].after.share == 0)
            continue;
        op_at(t, i)->access[TDM_MERGE_SUM].after.share = 0;
        return true;
    }
    return false;
}

/* dQ of the rank's own queries is completed before the others' sum has come home. */
static bool dq_complete_too_early(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_HOP_SUM) ||
            op_at(t, i)->access[TDM_HOP_SUM_RECEIVED].after.content != TDM_DQ_SUM)
            continue;
        size_t j = i + 1;
        while (j < t->r.count && !(is_op(t, j, TDM_OP_MERGE) &&
                                   op_at(t, j)->access[TDM_MERGE_OUT].after.content == TDM_DQ))
            j++;
        if (j == t->r.count)
            return false;
        move(t, i, j + 1);
        return true;
    }
    return false;
}

static bool receiving_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_team_op(t, i)) {
            op_at(t, i)->fetched_bytes++;
            return true;
        }
    return false;
}

static bool team_sending_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_team_op(t, i)) {
            op_at(t, i)->sent_bytes++;
            return true;
        }
    return false;
}

/* ---- faults of order ---- */

/* Changes one wait that an op has. */
static bool change_wait(struct trial *t, uint64_t (*change)(uint64_t))
{
    for (EACH_ITEM(t, i))
        for (int lane = 0; lane < TDM_LANES; lane++)
            if (op_at(t, i) != NULL && t->waits[i].lane_position[lane] > 0) {
                t->wait_item = i;
                t->wait_lane = lane;
                t->wait = change(t->waits[i].lane_position[lane]);
                return true;
            }
    return false;
}

static uint64_t none(uint64_t wait)
{
    (void)wait;
    return 0;
}

static uint64_t one_less(uint64_t wait)
{
    return wait - 1;
}

static uint64_t far_ahead(uint64_t wait)
{
    return wait + 1000000;
}

static bool wait_dropped(struct trial *t)
{
    return change_wait(t, none);
}

static bool wait_too_short(struct trial *t)
{
    return change_wait(t, one_less);
}

static bool wait_for_the_future(struct trial *t)
{
    return change_wait(t, far_ahead);
}

/* ---- the table ---- */

static struct fault {
    const char *name;
    bool (*plant)(struct trial *t); /* false: this program has no place for the fault */
    bool of_cost;                   /* costs stay as the fault set them */
    bool of_team;                   /* only streams of several ranks have a place for it */
    uint64_t planted, caught;
    char example[256]; /* the validator's last message */
} faults[] = {
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
    {.name = "a fetch dropped", .plant = fetch_dropped},
    {.name = "a copy to the host dropped", .plant = stash_dropped},
    {.name = "a fetch after its use", .plant = fetch_after_use},
    {.name = "a fetch before its source is stored", .plant = fetch_before_stored},
    {.name = "two fetches, destinations swapped", .plant = fetch_destinations_swapped},
    {.name = "two fetches, sources swapped", .plant = fetch_sources_swapped},
    {.name = "two fetches swapped", .plant = fetches_swapped},
    {.name = "a copy of another chunk", .plant = copy_of_another_chunk},
    {.name = "a copy on the wrong lane", .plant = copy_lane_reversed},
    {.name = "a copy over another link", .plant = copy_over_another_link},
    {.name = "pages gathered over another link",
     .plant = gather_over_another_link,
     .of_cost = true},
    {.name = "a copy cut short", .plant = copy_cut_short},
    {.name = "an operand cut short", .plant = operand_cut_short},
    {.name = "FLOPs forged", .plant = cost_forged, .of_cost = true},
    {.name = "bytes forged", .plant = bytes_forged, .of_cost = true},
    {.name = "pairs forged", .plant = pairs_forged, .of_cost = true},
    {.name = "keys forged", .plant = keys_forged, .of_cost = true},
    {.name = "the bytes of a gathering forged", .plant = gathering_forged, .of_cost = true},
    {.name = "the bytes that a gathering sends forged", .plant = sending_forged, .of_cost = true},
    {.name = "K, V gathered before they are at home", .plant = gathered_too_early},
    {.name = "an op on a host buffer", .plant = compute_on_the_host},
    {.name = "an update on another lane", .plant = update_on_another_lane},
    {.name = "an update on the host of a gradient on the device", .plant = host_reads_the_device},
    {.name = "an update on the host that clips by the device's norm",
     .plant = host_reads_norms_of_the_device},
    {.name = "an update on the host before its gradient comes",
     .plant = update_before_its_gradient},
    {.name = "an update on the host before its norm comes", .plant = update_before_its_norm},
    {.name = "a part of a gradient not sent", .plant = part_not_sent},
    {.name = "another part of a gradient sent", .plant = another_part_sent},
    {.name = "a part that the unit has not sent", .plant = absent_part_sent},
    {.name = "a copy of a part by another's name", .plant = part_of_another_name},
    {.name = "a part sent before its sum is complete", .plant = part_before_its_sum},
    {.name = "a part of what is copied whole", .plant = whole_unit_by_part},
    {.name = "a stale ring slot", .plant = stale_ring_slot},
    {.name = "a move of K, V dropped", .plant = kv_move_dropped},
    {.name = "a move of dK, dV dropped", .plant = dkv_move_dropped},
    {.name = "a move of K, V after its use", .plant = move_after_its_use},
    {.name = "a move from another slot, tags too", .plant = move_from_another_slot},
    {.name = "a move to another slot", .plant = move_to_another_slot},
    {.name = "a move of dK, dV with one addition more", .plant = sums_of_another_contributor},
    {.name = "a range shifted", .plant = range_shifted},
    {.name = "a range shifted, tags too", .plant = range_shifted_with_tags},
    {.name = "a range short of its last slot", .plant = range_short_above},
    {.name = "a range short of its first slot", .plant = range_short_below},
    {.name = "a range one slot long", .plant = range_long},
    {.name = "a range outside its buffer", .plant = range_outside},
    {.name = "a range beyond the document", .plant = range_beyond_document},
    {.name = "a first share of dK, dV adds", .plant = opening_share_added},
    {.name = "a later share of dK, dV overwrites", .plant = joining_share_overwrites},
    {.name = "an addition to dK, dV dropped", .plant = dkv_addition_dropped},
    {.name = "an addition to a weight gradient dropped", .plant = gradient_addition_dropped},
    {.name = "an addition to a tied gradient dropped", .plant = tied_addition_dropped},
    {.name = "a loss dropped", .plant = loss_dropped},
    {.name = "an addition twice", .plant = addition_twice},
    {.name = "an addition overwrites", .plant = addition_overwrites},
    {.name = "a first addition adds to rubbish", .plant = first_addition_adds},
    {.name = "additions in another order", .plant = additions_in_another_order},
    {.name = "the zeroing of a gradient dropped", .plant = zero_dropped},
    {.name = "an op dropped", .plant = op_dropped},
    {.name = "an op twice", .plant = op_twice},
    {.name = "a read before the write", .plant = read_before_write},
    {.name = "an optimizer dropped", .plant = optimizer_dropped},
    {.name = "an optimizer twice", .plant = optimizer_twice},
    {.name = "an optimizer before the last addition", .plant = optimizer_too_early},
    {.name = "weights updated by an evaluate pass", .plant = evaluation_updates},
    {.name = "an evaluate pass that goes backward", .plant = evaluation_goes_backward},
    {.name = "a tied gradient ignored", .plant = tied_gradient_ignored},
    {.name = "moments swapped", .plant = moments_swapped},
    {.name = "a gradient norm in another unit's slot", .plant = norm_of_another_unit},
    {.name = "a gradient norm dropped", .plant = norm_dropped},
    {.name = "a gradient norm before the last addition", .plant = norm_too_early},
    {.name = "a gradient norm of a part of a tied gradient", .plant = norm_of_a_part},
    {.name = "clipping by another unit's norm, tags too", .plant = clip_by_another_unit},
    {.name = "clipping without the norm of a unit", .plant = clip_without_a_unit},
    {.name = "clipping forgotten", .plant = clip_forgotten},
    {.name = "weights from another layer's slot", .plant = weights_slot_of_another_layer},
    {.name = "weights of another layer, tags too", .plant = weights_of_another_layer},
    {.name = "weights of another part", .plant = weights_of_another_part},
    {.name = "K, V of another layer, tags too", .plant = kv_of_another_layer},
    {.name = "tokens of another chunk, tags too", .plant = tokens_of_another_chunk},
    {.name = "X of another chunk, tags too", .plant = x_of_another_chunk},
    {.name = "dX of another chunk, tags too", .plant = dx_of_another_chunk},
    {.name = "dK, dV of another chunk, tags too", .plant = dkv_of_another_chunk},
    {.name = "page lists of another chunk, tags too", .plant = lists_of_another_chunk},
    {.name = "page means of another chunk, tags too", .plant = means_of_another_chunk},
    {.name = "a selection dropped", .plant = selection_dropped},
    {.name = "attention without its lists", .plant = attention_without_lists},
    {.name = "a vote without the means of a chunk", .plant = vote_without_a_chunk},
    {.name = "K, V written to another chunk's slot", .plant = kv_written_to_another_chunk},
    {.name = "the rows of another LM-head tile", .plant = rows_of_another_tile},
    {.name = "another part of the vocabulary", .plant = entries_of_another_tile},
    {.name = "no gradient of a part of the vocabulary", .plant = head_gradient_dropped},
    {.name = "an op a token short", .plant = a_token_short},
    {.name = "an operand left out", .plant = operand_left_out},
    {.name = "a wait dropped", .plant = wait_dropped},
    {.name = "a wait one op too short", .plant = wait_too_short},
    {.name = "a wait for an op that never comes", .plant = wait_for_the_future},
    {.name = "a gather dropped", .plant = gather_dropped, .of_team = true},
    {.name = "a reduce dropped", .plant = reduce_dropped, .of_team = true},
    {.name = "a sum over ranks dropped", .plant = reduce_all_dropped, .of_team = true},
    {.name = "a reduce twice", .plant = reduce_twice, .of_team = true},
    {.name = "a sum over ranks twice", .plant = reduce_all_twice, .of_team = true},
    {.name = "a gather after its use", .plant = gather_after_its_use, .of_team = true},
    {.name = "a gather before its source", .plant = gather_before_its_source, .of_team = true},
    {.name = "a team op of another layer", .plant = team_op_of_another_layer, .of_team = true},
    {.name = "a team op of another layer, tags too",
     .plant = team_op_of_another_layer_with_tags,
     .of_team = true},
    {.name = "a team op of another round", .plant = team_op_of_another_round, .of_team = true},
    {.name = "a gather of another owner", .plant = gather_of_another_owner, .of_team = true},
    {.name = "a rank that receives its own chunk", .plant = own_chunk_gathered, .of_team = true},
    {.name = "a gather a chunk short", .plant = gather_short_of_a_chunk, .of_team = true},
    {.name = "a gather to another slot", .plant = gather_to_another_slot, .of_team = true},
    {.name = "a gather of a stale slot, tags too", .plant = stale_gather, .of_team = true},
    {.name = "a reduce after its use", .plant = reduce_after_its_use, .of_team = true},
    {.name = "a reduce before the last addition",
     .plant = reduce_before_the_last_addition,
     .of_team = true},
    {.name = "a sum over ranks before the last addition",
     .plant = reduce_all_before_the_last_addition,
     .of_team = true},
    {.name = "a norm of a share", .plant = norm_before_the_reduce, .of_team = true},
    {.name = "a reduce of another owner", .plant = reduce_of_another_owner, .of_team = true},
    {.name = "a share not sent", .plant = share_not_sent, .of_team = true},
    {.name = "a share of one's own sent", .plant = own_share_sent, .of_team = true},
    {.name = "a share of another rank", .plant = share_of_another_rank, .of_team = true},
    {.name = "a share called a sum", .plant = share_called_a_sum, .of_team = true},
    {.name = "a sum called a share", .plant = sum_called_a_share, .of_team = true},
    {.name = "a share with an addition less", .plant = share_incomplete, .of_team = true},
    {.name = "two sums over ranks, buffers swapped", .plant = reduce_alls_swapped, .of_team = true},
    {.name = "a sum over ranks of a part", .plant = reduce_all_of_a_part, .of_team = true},
    {.name = "all of a gradient summed, or a part",
     .plant = sum_of_the_other_kind,
     .of_team = true},
    {.name = "a gradient's sum of another owner", .plant = sum_of_another_owner, .of_team = true},
    {.name = "a norm not summed over ranks", .plant = norm_not_summed, .of_team = true},
    {.name = "a norm summed twice", .plant = norm_summed_twice, .of_team = true},
    {.name = "a norm of another part", .plant = norm_of_another_part, .of_team = true},
    {.name = "an update from another part", .plant = update_from_another_part, .of_team = true},
    {.name = "a slice of weights not brought", .plant = slice_not_brought, .of_team = true},
    {.name = "a slice of another rank", .plant = slice_of_another_rank, .of_team = true},
    {.name = "updated weights not gathered", .plant = gather_all_dropped, .of_team = true},
    {.name = "updated weights gathered twice", .plant = gather_all_twice, .of_team = true},
    {.name = "weights gathered before their update",
     .plant = gather_all_before_the_update,
     .of_team = true},
    {.name = "a part of the weights called the whole",
     .plant = part_called_the_whole,
     .of_team = true},
    {.name = "page means not gathered", .plant = means_not_gathered, .of_team = true},
    {.name = "heads not exchanged", .plant = heads_not_exchanged, .of_team = true},
    {.name = "heads not given back", .plant = heads_not_given_back, .of_team = true},
    {.name = "an exchange after its use", .plant = exchange_after_its_use, .of_team = true},
    {.name = "an exchange before its source", .plant = exchange_before_its_source, .of_team = true},
    {.name = "an exchange turned around", .plant = exchange_turned_around, .of_team = true},
    {.name = "one's own heads not sent", .plant = own_heads_not_sent, .of_team = true},
    {.name = "the heads of another value", .plant = other_heads_exchanged, .of_team = true},
    {.name = "an exchange a chunk short", .plant = exchange_short_of_a_chunk, .of_team = true},
    {.name = "sums exchanged before the last addition",
     .plant = sums_exchanged_too_early,
     .of_team = true},
    {.name = "sums of one chunk exchanged for all",
     .plant = sums_of_another_chunk,
     .of_team = true},
    {.name = "a hop left out", .plant = hop_left_out, .of_team = true},
    {.name = "a hop after its use", .plant = hop_after_its_use, .of_team = true},
    {.name = "a hop of another chunk", .plant = hop_of_another_chunk, .of_team = true},
    {.name = "a hop of another distance", .plant = hop_of_another_distance, .of_team = true},
    {.name = "a hop into the other slot", .plant = hop_into_the_slot_in_use, .of_team = true},
    {.name = "a part not merged", .plant = part_not_merged, .of_team = true},
    {.name = "a part merged twice", .plant = part_merged_twice, .of_team = true},
    {.name = "a first part added", .plant = first_part_added, .of_team = true},
    {.name = "a last part that completes nothing",
     .plant = last_part_not_the_last,
     .of_team = true},
    {.name = "attention to a chunk left out", .plant = visit_left_out, .of_team = true},
    {.name = "a part called the whole", .plant = part_called_whole, .of_team = true},
    {.name = "a sum that goes no further", .plant = sum_goes_no_further, .of_team = true},
    {.name = "a sum that replaces a share", .plant = sum_replaces_a_share, .of_team = true},
    {.name = "a sum sent before its share", .plant = sum_sent_before_its_share, .of_team = true},
    {.name = "a sum of another contributor", .plant = sum_of_another_contributor, .of_team = true},
    {.name = "queries not packed", .plant = queries_not_packed, .of_team = true},
    {.name = "queries packed after they left",
     .plant = queries_packed_after_they_left,
     .of_team = true},
    {.name = "queries of another visit", .plant = queries_of_another_visit, .of_team = true},
    {.name = "queries received over one's own", .plant = queries_over_ones_own, .of_team = true},
    {.name = "a key that queries do not attend to", .plant = key_left_out, .of_team = true},
    {.name = "a key attended to twice", .plant = key_attended_twice, .of_team = true},
    {.name = "a key of another chunk", .plant = key_of_another_chunk, .of_team = true},
    {.name = "sums of a key opened again", .plant = key_sum_opened_again, .of_team = true},
    {.name = "a part of dQ in another sum", .plant = dq_into_another_sum, .of_team = true},
    {.name = "a share of dQ called a sum", .plant = dq_share_called_a_sum, .of_team = true},
    {.name = "dQ complete before the others' sum", .plant = dq_complete_too_early, .of_team = true},
    {.name = "two reduces swapped", .plant = reduces_swapped, .of_team = true},
    {.name = "a team op on another lane", .plant = team_op_on_another_lane, .of_team = true},
    {.name = "a team op of other tokens", .plant = team_tokens_forged, .of_team = true},
    {.name = "an operand of a team op cut short", .plant = team_operand_cut_short, .of_team = true},
    {.name = "bytes from other ranks forged",
     .plant = receiving_forged,
     .of_cost = true,
     .of_team = true},
    {.name = "bytes to other ranks forged",
     .plant = team_sending_forged,
     .of_cost = true,
     .of_team = true},
};

enum { FAULTS = sizeof(faults) / sizeof(faults[0]), NEEDED = 20 };

/* ---- trials ---- */

static void must(uint64_t seed, enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err->message);
}

/* The order tracker trusts accesses. It is not given an op with an access outside its buffer, and
 * the validator gets no waits for that op. */
static bool inside_buffers(const struct tdm_recording *r, const struct tdm_item *item)
{
    for (uint32_t a = 0; item->kind == TDM_RUN && a < item->op->access_count; a++) {
        const struct tdm_access *access = &item->op->access[a];
        if (access->buffer != TDM_NONE &&
            (uint64_t)access->first_slot + access->slots > r->program.buffers[access->buffer].slots)
            return false;
    }
    return true;
}

static enum tdm_status validate(const struct trial *t, struct tdm_waits *waits_seen,
                                struct tdm_error *err)
{
    struct tdm_order_tracker *order = NULL;
    struct tdm_validator *validator = NULL;
    enum tdm_status status = tdm_order_new(&t->r.program, &order, err);
    if (status == TDM_OK)
        status = tdm_validator_new(&t->r.program, t->capacity, &validator, err);
    for (size_t i = 0; i < t->r.count && status == TDM_OK; i++) {
        struct tdm_item item = tdm_recording_item(&t->r, i);
        struct tdm_waits waits = {0};
        bool inside = inside_buffers(&t->r, &item);
        if (inside)
            tdm_order_push(order, &item, &waits);
        if (waits_seen != NULL)
            waits_seen[i] = waits;
        if (i == t->wait_item)
            waits.lane_position[t->wait_lane] = t->wait;
        status = tdm_validator_push(validator, &item, inside ? &waits : NULL, err);
    }
    if (status == TDM_OK)
        status = tdm_validator_finish(validator, err);
    tdm_validator_free(validator);
    tdm_order_free(order);
    return status;
}

static void plant_all(uint64_t seed, const struct tdm_recording *correct)
{
    struct tdm_waits *waits = calloc(correct->count + 2, sizeof(*waits));
    struct tdm_dice dice;
    struct tdm_error err;
    tdm_dice_seed(&dice, seed);
    assert_non_null(waits);
    for (int f = -1; f < FAULTS; f++) { /* the first round plants no fault */
        struct trial t = {.dice = &dice, .wait_item = SIZE_MAX, .waits = waits};
        memcpy(t.capacity, correct->program.arena_bytes, sizeof(t.capacity));
        must(seed, tdm_recording_copy(correct, &t.r, &err), &err);
        if (f < 0) {
            must(seed, validate(&t, waits, &err), &err);
        } else if ((!faults[f].of_team || t.r.program.ranks > 1) && faults[f].plant(&t)) {
            faults[f].planted++;
            if (!faults[f].of_cost) /* a mistake in the lowering has costs that match it */
                for (size_t i = 0; i < t.r.count; i++)
                    if (t.r.items[i].item.kind == TDM_RUN)
                        tdm_op_cost(&t.r.program, &t.r.items[i].op);
            if (validate(&t, NULL, &err) == TDM_OK) {
                print_error("seed %llu: %s: not caught\n", (unsigned long long)seed,
                            faults[f].name);
            } else {
                assert_int_equal(err.status, TDM_INPUT);
                faults[f].caught++;
                snprintf(faults[f].example, sizeof(faults[f].example), "%.250s", err.message);
            }
        }
        tdm_recording_free(&t.r);
    }
    free(waits);
}

/* Do K and V move in their rows, are they gathered from the host, are gradients sent by part, or
 * do ranks pass around what they add up? Few programs do any of these. */
static bool is_rare(const struct tdm_recording *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct tdm_op *op = &r->items[i].op;
        bool moves = op->kind == TDM_OP_COPY && op->lane == TDM_LANE_COMPUTE;
        if (r->items[i].item.kind == TDM_RUN &&
            (moves || op->fetched_bytes > 0 || is_copy_of_part(&r->program, op) ||
             op->kind == TDM_OP_HOP_SUM))
            return true;
    }
    return false;
}

/* Plants all faults in random programs; returns their number. With `ranks` each program is that of
 * a random rank of up to as many. */
static uint64_t plant_in_programs(uint64_t base, uint32_t ranks, uint64_t cases, uint64_t rare)
{
    const struct tdm_random_options options = {
        .pass = TDM_RANDOM_ANY_PASS, .max_tokens = 40, .ranks = ranks};
    uint64_t programs = 0;
    for (uint64_t n = 0; n < cases + rare; n++) {
        uint64_t seed = tdm_case_seed(base, n);
        struct tdm_schedule *schedule = NULL;
        struct tdm_program *program = NULL;
        struct tdm_recording recording;
        struct tdm_error err;
        must(seed, tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(seed, tdm_program_lower(schedule, &program, &err), &err);
        const struct tdm_program view =
            tdm_program_of_rank(program, (uint32_t)(seed % program->ranks));
        if (view.op_count <= 4000) {
            must(seed, tdm_recording_new(&view, &recording, &err), &err);
            if (n < cases || is_rare(&recording)) {
                plant_all(seed, &recording);
                programs++;
            }
            tdm_recording_free(&recording);
        }
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    return programs;
}

static void test_faults(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(10, 200), planted = 0, caught = 0;
    uint64_t programs = plant_in_programs(BASE_SEED, 0, cases, 7 * cases);
    programs += plant_in_programs(BASE_SEED_OF_TEAMS, 4, 3 * cases, 2 * cases);

    print_message("%llu programs from seed %d; planted, caught:\n", (unsigned long long)programs,
                  BASE_SEED);
    uint64_t kinds = 0;
    for (int f = 0; f < FAULTS; f++) {
        print_message("%5llu %5llu  %s (%s)\n", (unsigned long long)faults[f].planted,
                      (unsigned long long)faults[f].caught, faults[f].name, faults[f].example);
        planted += faults[f].planted;
        caught += faults[f].caught;
        kinds += faults[f].planted >= NEEDED && faults[f].caught == faults[f].planted;
    }
    print_message("%llu of %d kinds caught every time in %d programs or more; %llu planted, %llu "
                  "caught\n",
                  (unsigned long long)kinds, (int)FAULTS, (int)NEEDED, (unsigned long long)planted,
                  (unsigned long long)caught);
    assert_int_equal(planted, caught);
    if (cases >= 200)
        assert_int_equal(kinds, FAULTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
