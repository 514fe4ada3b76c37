/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of team ops that sum gradients and norms, and bring updated weights. */
#include "tests/schedule/faults/trial.h"

#include "ops/move.h"
#include "ops/team.h"
#include "schedule/cost.h"
#include "schedule/layout.h"

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

const struct fault faults_of_team_state[] = {
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
    {0},
};
