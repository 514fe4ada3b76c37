/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of page lists. */
#include "tests/schedule/faults/trial.h"

#include "ops/team.h"

static bool lists_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_PAGE_LISTS);
}

static bool means_of_another_chunk(struct trial *t)
{
    return another_chunk(t, TDM_PAGE_MEANS);
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

/* Not an exchange of heads in rows of ranks: if the last chunk of it has one token and is another
 * row's, the rank's part is right without it. That is seen where the ranks are compared
 * (unit_team_check). */
static bool a_token_short(struct trial *t)
{
    const bool rows = tdm_exchange_kind_has_rows(t->r.program.schedule->exchange);
    for (EACH_ITEM(t, i))
        if (op_at(t, i) != NULL && op_at(t, i)->tokens > 0 &&
            !(rows && is_op(t, i, TDM_OP_ALL_TO_ALL))) {
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

const struct fault faults_of_lists[] = {
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
    {0},
};
