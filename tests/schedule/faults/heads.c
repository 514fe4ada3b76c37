/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of exchanges of heads. */
#include "tests/schedule/faults/trial.h"

#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/team_check.h"

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

/* Does an op add to sums of dK and dV that are at home, and not on their way around a ring? */
static bool adds_at_home(struct trial *t, size_t i)
{
    if (!is_op(t, i, TDM_OP_ATTENTION_GRAD))
        return false;
    const struct tdm_access *opened = &op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_OPENED],
                            *added = &op_at(t, i)->access[TDM_ATTENTION_GRAD_DKV_ADDED];
    return (opened->buffer != TDM_NONE && opened->after.content == TDM_DKVPAGES) ||
           (added->buffer != TDM_NONE && added->after.content == TDM_DKVPAGES);
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
                       : adds_at_home(t, j)) {
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

const struct fault faults_of_heads[] = {
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
    {0},
};
