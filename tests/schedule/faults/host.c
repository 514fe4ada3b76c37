/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of updates on the host, and of gradients that are sent there part by part. */
#include "tests/schedule/faults/trial.h"

#include "ops/move.h"
#include "schedule/layout.h"

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

/* The update of the embedding's rows that no token uses, or the number of items. */
static size_t update_of_unused(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (op_at(t, i) != NULL && op_at(t, i)->rows == TDM_ROWS_UNUSED)
            return i;
    return t->r.count;
}

static bool unused_rows_not_updated(struct trial *t)
{
    return remove_found(t, update_of_unused(t));
}

static bool unused_rows_updated_twice(struct trial *t)
{
    const size_t i = update_of_unused(t);
    if (i < t->r.count)
        tdm_recording_insert(&t->r, i, &t->r.items[i]);
    return i < t->r.count;
}

/* With its gradient and in its bytes it is the update of a whole embedding. */
static bool all_rows_with_the_used(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        struct tdm_op *op = op_at(t, i);
        if (op == NULL || op->rows != TDM_ROWS_USED)
            continue;
        op->rows = TDM_ROWS_ALL;
        for (uint32_t a = 0; a < op->access_count; a++)
            if (op->access[a].buffer != TDM_NONE && a != TDM_OPTIMIZER_NORMS)
                op->access[a].bytes =
                    tdm_part_bytes(t->r.program.schedule->model, op->layer, TDM_PART_ALL,
                                   buffer_at(t, op->access[a].buffer)->dtype);
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

const struct fault faults_of_host[] = {
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
    {.name = "rows that no token uses, not updated", .plant = unused_rows_not_updated},
    {.name = "rows that no token uses, updated twice", .plant = unused_rows_updated_twice},
    {.name = "rows that no token uses, updated with the others too",
     .plant = all_rows_with_the_used},
    {0},
};
