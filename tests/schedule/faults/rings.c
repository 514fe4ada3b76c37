/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of rings. */
#include "tests/schedule/faults/trial.h"

#include "ops/attention.h"
#include "ops/team.h"

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

static bool hop_in_another_lap(struct trial *t)
{
    size_t i = some_of_ring(t, TDM_OP_HOP, TDM_HOP_SENT, TDM_READ);
    if (i < t->r.count)
        op_at(t, i)->lap++;
    return i < t->r.count;
}

/* Attention that adds to a sum of dK and dV, at home or as a second chunk of its set on the sum's
 * way, begins it again. */
static bool sum_begun_again(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!of_ring(t) || !is_op(t, i, TDM_OP_ATTENTION_GRAD))
            continue;
        struct tdm_access *access = op_at(t, i)->access;
        if (access[TDM_ATTENTION_GRAD_DKV_ADDED].buffer == TDM_NONE)
            continue;
        access[TDM_ATTENTION_GRAD_DKV_OPENED] = access[TDM_ATTENTION_GRAD_DKV_ADDED];
        access[TDM_ATTENTION_GRAD_DKV_OPENED].mode = TDM_WRITE;
        leave_out(&access[TDM_ATTENTION_GRAD_DKV_ADDED]);
        return true;
    }
    return false;
}

/* A part is merged with those of another chunk of its set. */
static bool part_of_another_chunk_of_the_set(struct trial *t)
{
    const uint32_t chunks = t->r.program.schedule->head_ranks;
    size_t i = some_of_ring(t, TDM_OP_MERGE, TDM_MERGE_SUM, TDM_ACCUMULATE);
    if (i == t->r.count || chunks < 2)
        return false;
    struct tdm_access *sum = &op_at(t, i)->access[TDM_MERGE_SUM];
    if (sum->after.content != TDM_OUT_SUM && sum->after.content != TDM_DQ_SUM)
        return false; /* on its way */
    sum->first_slot = (sum->first_slot + 1) % chunks;
    return true;
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

const struct fault faults_of_rings[] = {
    {.name = "a hop left out", .plant = hop_left_out, .of_team = true},
    {.name = "a hop after its use", .plant = hop_after_its_use, .of_team = true},
    {.name = "a hop of another chunk", .plant = hop_of_another_chunk, .of_team = true},
    {.name = "a hop of another distance", .plant = hop_of_another_distance, .of_team = true},
    {.name = "a hop in another lap", .plant = hop_in_another_lap, .of_team = true},
    {.name = "a sum that is begun again", .plant = sum_begun_again, .of_team = true},
    {.name = "a part of another chunk of the set",
     .plant = part_of_another_chunk_of_the_set,
     .of_team = true},
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
    {0},
};
