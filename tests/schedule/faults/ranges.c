/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of ranges of slots, and of sums in them. */
#include "tests/schedule/faults/trial.h"

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

const struct fault faults_of_ranges[] = {
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
    {0},
};
