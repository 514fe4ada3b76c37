/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of queries that go around. */
#include "tests/schedule/faults/trial.h"

#include "ops/team.h"
#include "schedule/queries.h"

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

/* Does an op complete dQ of a chunk? */
static bool completes_dq(struct trial *t, size_t i, uint32_t chunk)
{
    if (!is_op(t, i, TDM_OP_MERGE))
        return false;
    const struct tdm_access *out = &op_at(t, i)->access[TDM_MERGE_OUT];
    return out->buffer != TDM_NONE && out->after.chunk == chunk &&
           (out->after.content == TDM_DQ || out->after.content == TDM_HEADS_DQ);
}

/* dQ of the rank's own queries is completed before the others' sum has come home. */
static bool dq_complete_too_early(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_HOP_SUM) ||
            op_at(t, i)->access[TDM_HOP_SUM_RECEIVED].after.content != TDM_DQ_SUM)
            continue;
        const uint32_t chunk = op_at(t, i)->access[TDM_HOP_SUM_RECEIVED].after.chunk;
        size_t j = i + 1;
        while (j < t->r.count && !completes_dq(t, j, chunk))
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

const struct fault faults_of_queries[] = {
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
    {.name = "bytes from other ranks forged",
     .plant = receiving_forged,
     .of_cost = true,
     .of_team = true},
    {.name = "bytes to other ranks forged",
     .plant = team_sending_forged,
     .of_cost = true,
     .of_team = true},
    {0},
};
