/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of ops and of their order. */
#include "tests/schedule/faults/trial.h"

#include "schedule/cost.h"

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

const struct fault faults_of_ops[] = {
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
    {.name = "a wait dropped", .plant = wait_dropped},
    {.name = "a wait one op too short", .plant = wait_too_short},
    {.name = "a wait for an op that never comes", .plant = wait_for_the_future},
    {0},
};
