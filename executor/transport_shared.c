/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of ranks that are threads of one process and can read each other's memory. Nothing
 * is staged, and no library takes memory for it.
 *
 * The threads meet while they queue an op. Where ops end later than they are launched, the lanes
 * meet too, by the backend's marks.
 */
#include "executor/team.h"
#include "executor/transport.h"

/* Lets the lane wait until those of all other ranks have come to a point, which they have marked.
 */
static enum tdm_status follow_others(struct tdm_team *team, const struct tdm_team_op *op,
                                     uint32_t point, struct tdm_error *err)
{
    const struct tdm_program *program = op->launch->program;
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; op->verbs->follow != NULL && rank < program->ranks && status == TDM_OK;
         rank++)
        if (rank != program->rank)
            status = op->verbs->follow(op->executor, op->launch, tdm_team_executor(team, rank),
                                       point, err);
    return status;
}

/* What a rank gives another as its piece `number`; NULL: it gives fewer. */
static const struct tdm_piece *given(struct tdm_team *team, uint32_t from, uint32_t to,
                                     uint32_t phase, uint32_t number)
{
    const struct tdm_exchange *exchange = tdm_team_exchange(team, from, phase);
    for (uint32_t i = 0; i < exchange->give_count; i++)
        if (exchange->give[i].rank == to && number-- == 0)
            return &exchange->give[i];
    return NULL;
}

/* The pieces before one that are from the same rank. */
static uint32_t number_of(const struct tdm_exchange *exchange, uint32_t piece)
{
    uint32_t number = 0;
    for (uint32_t i = 0; i < piece; i++)
        number += exchange->take[i].rank == exchange->take[piece].rank;
    return number;
}

static enum tdm_status move(struct tdm_team *team, const struct tdm_team_op *op,
                            struct tdm_exchange *exchange, uint32_t phase, uint32_t window,
                            struct tdm_error *err)
{
    const uint32_t own = op->launch->program->rank;
    enum tdm_status status = TDM_OK;
    (void)window;
    if (op->verbs->reach != NULL) /* before the others wait for it */
        status = op->verbs->reach(op->executor, op->launch, phase, err);
    if (status == TDM_OK)
        status = phase == 0 ? tdm_team_enter(team, op->launch, op->executor, err)
                            : tdm_team_meet(team, own, err);
    if (status == TDM_OK)
        status = follow_others(team, op, phase, err);
    for (uint32_t i = 0; i < exchange->take_count && status == TDM_OK; i++) {
        struct tdm_piece *take = &exchange->take[i];
        const struct tdm_piece *give = given(team, take->rank, own, phase, number_of(exchange, i));
        if (give == NULL || give->bytes != take->bytes)
            return tdm_fail(err, TDM_INTERNAL,
                            "%s of layer %d: rank %u gives %llu bytes, rank %u takes %llu",
                            tdm_op_kind_name(op->launch->op->kind), (int)op->launch->op->layer,
                            take->rank, (unsigned long long)(give == NULL ? 0 : give->bytes), own,
                            (unsigned long long)take->bytes);
        if (take->data == NULL)
            take->data = give->data;
        else
            status =
                op->verbs->copy(op->executor, op->launch, take->data, give->data, take->bytes, err);
    }
    return status;
}

static enum tdm_status leave(struct tdm_team *team, const struct tdm_team_op *op,
                             struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (op->verbs->reach != NULL)
        status = op->verbs->reach(op->executor, op->launch, TDM_TEAM_PHASES, err);
    if (status == TDM_OK)
        status = tdm_team_meet(team, op->launch->program->rank, err);
    return status == TDM_OK ? follow_others(team, op, TDM_TEAM_PHASES, err) : status;
}

const struct tdm_transport tdm_transport_shared = {
    .name = "shared",
    .move = move,
    .leave = leave,
};
