/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of team ops that gather chunks and reduce shares of them. */
#include "tests/schedule/faults/trial.h"

#include "ops/team.h"

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
    const struct tdm_op *op = op_at(t, i);
    bool has_something = false;
    for (uint32_t a = 0; a < op->access_count; a++)
        has_something = has_something || op->access[a].buffer != TDM_NONE;
    return !has_something ||
           (is_op(t, i, TDM_OP_ALL_TO_ALL) && op->access[TDM_ALL_TO_ALL_HEADS].buffer == TDM_NONE);
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

/* Not an exchange of heads in rows of ranks, as in a_token_short() of lists.c: another row may have
 * the chunk that is cut there. */
static bool team_tokens_forged(struct trial *t)
{
    const bool rows = tdm_exchange_kind_has_rows(t->r.program.schedule->exchange);
    for (EACH_ITEM(t, i))
        if (is_team_op(t, i) && !(rows && is_op(t, i, TDM_OP_ALL_TO_ALL))) {
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

const struct fault faults_of_team[] = {
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
    {.name = "page means not gathered", .plant = means_not_gathered, .of_team = true},
    {.name = "two reduces swapped", .plant = reduces_swapped, .of_team = true},
    {.name = "a team op on another lane", .plant = team_op_on_another_lane, .of_team = true},
    {.name = "a team op of other tokens", .plant = team_tokens_forged, .of_team = true},
    {.name = "an operand of a team op cut short", .plant = team_operand_cut_short, .of_team = true},
    {0},
};
