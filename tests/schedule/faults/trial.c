/* SPDX-License-Identifier: Apache-2.0 */
/* Inspecting and changing the items of a trial. */
#include "tests/schedule/faults/trial.h"

#include "ops/move.h"
#include "ops/team.h"

struct tdm_op *op_at(struct trial *t, size_t i)
{
    return t->r.items[i].item.kind == TDM_RUN ? &t->r.items[i].op : NULL;
}

bool is_op(struct trial *t, size_t i, enum tdm_op_kind kind)
{
    return t->r.items[i].item.kind == TDM_RUN && t->r.items[i].op.kind == kind;
}

bool is_item(struct trial *t, size_t i, enum tdm_item_kind kind, uint32_t buffer)
{
    return t->r.items[i].item.kind == kind && t->r.items[i].item.buffer == buffer;
}

struct tdm_buffer *buffer_at(struct trial *t, uint32_t number)
{
    return &t->r.program.buffers[number];
}

struct operand anywhere(struct trial *t)
{
    return (struct operand){tdm_dice_roll(t->dice, 0, t->r.count - 1), UINT32_MAX, t->r.count};
}

bool next_operand(struct trial *t, struct operand *o)
{
    for (; o->left > 0; o->left--, o->i = (o->i + 1) % t->r.count, o->a = UINT32_MAX) {
        const struct tdm_op *op = op_at(t, o->i);
        while (op != NULL && ++o->a < op->access_count)
            if (op->access[o->a].buffer != TDM_NONE)
                return true;
    }
    return false;
}

struct tdm_access *operand_at(struct trial *t, const struct operand *o)
{
    return &t->r.items[o->i].op.access[o->a];
}

bool same_tag(struct tdm_tag a, struct tdm_tag b)
{
    return a.content == b.content && a.layer == b.layer && a.chunk == b.chunk &&
           a.contributor == b.contributor && a.share == b.share;
}

bool covers(const struct tdm_access *access, uint32_t buffer, uint32_t slot)
{
    return access->buffer == buffer && slot >= access->first_slot &&
           slot - access->first_slot < access->slots;
}

struct tdm_tag shifted(struct tdm_tag tag, uint32_t by)
{
    if (tag.chunk != TDM_NONE)
        tag.chunk += by;
    else if (tag.layer != TDM_NONE)
        tag.layer += by;
    return tag;
}

struct tdm_tag held(struct trial *t, size_t i, uint32_t buffer, uint32_t slot, uint32_t part)
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

bool leaves_a_trace(struct trial *t, size_t i, const struct tdm_access *access)
{
    return access->mode != TDM_READ &&
           !same_tag(held(t, i, access->buffer, access->first_slot, access->part), access->after);
}

bool uses(struct trial *t, size_t i, uint32_t buffer)
{
    const struct tdm_op *op = op_at(t, i);
    for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
        if (op->access[a].buffer == buffer)
            return true;
    return false;
}

size_t next_reader(struct trial *t, size_t i, uint32_t buffer, uint32_t slot)
{
    for (; i < t->r.count; i++) {
        const struct tdm_op *op = op_at(t, i);
        for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
            if (op->access[a].mode != TDM_WRITE && covers(&op->access[a], buffer, slot))
                return i;
    }
    return i;
}

bool is_read(struct trial *t, size_t i, uint32_t buffer, uint32_t slot)
{
    for (i++; i < t->r.count && !is_item(t, i, TDM_FREE, buffer); i++) {
        const struct tdm_op *op = op_at(t, i);
        for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
            if (covers(&op->access[a], buffer, slot))
                return op->access[a].mode != TDM_WRITE;
    }
    return false;
}

bool is_fetch(struct trial *t, size_t i)
{
    return is_op(t, i, TDM_OP_COPY) && op_at(t, i)->lane == TDM_LANE_H2D;
}

size_t next_fetch(struct trial *t, size_t i)
{
    uint32_t ring = op_at(t, i)->access[TDM_COPY_TO].buffer;
    for (i++; i < t->r.count; i++)
        if (is_fetch(t, i) && op_at(t, i)->access[TDM_COPY_TO].buffer == ring)
            return i;
    return i;
}

void move(struct trial *t, size_t from, size_t to)
{
    struct tdm_recorded item = t->r.items[from];
    tdm_recording_remove(&t->r, from);
    tdm_recording_insert(&t->r, to > from ? to - 1 : to, &item);
}

void leave_out(struct tdm_access *access)
{
    *access = (struct tdm_access){.buffer = TDM_NONE};
}

uint32_t another(struct trial *t, uint32_t count, uint32_t not )
{
    uint32_t number = (uint32_t)tdm_dice_roll(t->dice, 0, count - 2);
    return number >= not ? number + 1 : number;
}

void swap_slots(struct tdm_access *a, struct tdm_access *b)
{
    uint32_t slot = a->first_slot;
    a->first_slot = b->first_slot;
    b->first_slot = slot;
}

/* Do both have a part of the content in common? TDM_PARTS and more: they have all. */
static bool share_a_part(const struct tdm_access *a, const struct tdm_access *b)
{
    return a->part >= TDM_PARTS || b->part >= TDM_PARTS || a->part == b->part;
}

bool adds_to(struct trial *t, size_t i, const struct tdm_access *gradient)
{
    const struct tdm_op *op = op_at(t, i);
    for (uint32_t a = 0; op != NULL && a < op->access_count; a++)
        if (op->access[a].mode != TDM_READ && op->access[a].buffer == gradient->buffer &&
            op->access[a].first_slot == gradient->first_slot &&
            share_a_part(&op->access[a], gradient))
            return true;
    return false;
}

bool is_copy_of_part(const struct tdm_program *program, const struct tdm_op *op)
{
    return op->kind == TDM_OP_COPY && program->buffers[op->access[TDM_COPY_FROM].buffer].by_part &&
           op->access[TDM_COPY_FROM].part < TDM_PARTS;
}

bool is_prefix(const struct tdm_op *op, uint32_t a)
{
    return (op->kind == TDM_OP_ATTENTION && a == TDM_ATTENTION_KV) ||
           (op->kind == TDM_OP_SELECT && a == TDM_SELECT_MEANS) ||
           (op->kind == TDM_OP_ATTENTION_GRAD &&
            (a == TDM_ATTENTION_GRAD_KV || a == TDM_ATTENTION_GRAD_DKV_OPENED ||
             a == TDM_ATTENTION_GRAD_DKV_ADDED));
}

void shorten(struct trial *t, struct tdm_access *access)
{
    uint64_t left = --access->slots * buffer_at(t, access->buffer)->slot_bytes;
    access->bytes = access->bytes < left ? access->bytes : left;
}

bool is_sum(const struct tdm_access *access)
{
    enum tdm_content content = access->after.content;
    return access->mode != TDM_READ &&
           (content == TDM_UNIT_GRADIENT || content == TDM_TIED_GRADIENT ||
            content == TDM_DKVPAGES || content == TDM_LOSS ||
            (content == TDM_DNORMED && access->mode == TDM_ACCUMULATE));
}

bool sums_gradient(struct trial *t, size_t i)
{
    const bool by_part = t->r.program.schedule->optimizer.kind != TDM_OPTIMIZER_NONE;
    return is_op(t, i, by_part ? TDM_OP_REDUCE_SCATTER : TDM_OP_REDUCE_ALL);
}

bool too_early(struct trial *t, enum tdm_op_kind kind, uint32_t gradient)
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

bool another_chunk(struct trial *t, enum tdm_content content)
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

bool drop_op(struct trial *t, enum tdm_op_kind kind)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, kind)) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

bool is_team_op(struct trial *t, size_t i)
{
    return t->r.items[i].item.kind == TDM_RUN &&
           (TDM_TEAM_KINDS & TDM_KIND(t->r.items[i].op.kind)) != 0;
}

bool remove_found(struct trial *t, size_t i)
{
    if (i < t->r.count)
        tdm_recording_remove(&t->r, i);
    return i < t->r.count;
}

size_t some_with(struct trial *t, enum tdm_op_kind kind, uint32_t operand)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, kind) && op_at(t, i)->access[operand].buffer != TDM_NONE)
            return i;
    return t->r.count;
}

bool twice(struct trial *t, enum tdm_op_kind kind, uint32_t operand)
{
    size_t i = some_with(t, kind, operand);
    if (i < t->r.count)
        tdm_recording_insert(&t->r, i, &t->r.items[i]);
    return i < t->r.count;
}
