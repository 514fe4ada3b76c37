/* SPDX-License-Identifier: Apache-2.0 */
/* A team: a meeting point, and the launches that ranks show each other. */
#include "executor/team.h"

#include "base/meeting.h"
#include "schedule/team_check.h"

#include <stdlib.h>

/* A rank that comes this much later than another one is taken to be lost. */
#define LATE_SECONDS 600u

struct tdm_team {
    struct tdm_meeting *meeting;
    uint32_t ranks;
    const struct tdm_transport *transport;
    struct tdm_piece *pieces; /* of all exchanges */
    /* What each rank shows: copies, because a rank that fails leaves while others still look. */
    struct shown {
        struct tdm_launch launch;
        struct tdm_op op;
        struct tdm_executor *executor;
        struct tdm_exchange exchange[TDM_TEAM_PHASES];
    } * shown; /* [ranks] */
};

/* Gives every exchange its space. */
static bool take_pieces(struct tdm_team *team)
{
    const uint32_t each = TDM_TEAM_PIECES * team->ranks;
    team->pieces = calloc((size_t)team->ranks * TDM_TEAM_PHASES * 2 * each, sizeof(*team->pieces));
    struct tdm_piece *next = team->pieces;
    for (uint32_t rank = 0; next != NULL && rank < team->ranks; rank++)
        for (uint32_t phase = 0; phase < TDM_TEAM_PHASES; phase++, next += 2 * (size_t)each)
            team->shown[rank].exchange[phase] =
                (struct tdm_exchange){.give = next, .take = next + each, .capacity = each};
    return next != NULL;
}

enum tdm_status tdm_team_new(uint32_t ranks, const struct tdm_transport *transport,
                             struct tdm_team **out, struct tdm_error *err)
{
    struct tdm_team *team = calloc(1, sizeof(*team));
    if (team != NULL)
        team->shown = calloc(ranks, sizeof(*team->shown));
    if (team != NULL) {
        team->ranks = ranks;
        team->transport = transport;
    }
    enum tdm_status status =
        team == NULL || team->shown == NULL || !take_pieces(team)
            ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for a team of %u ranks", ranks)
            : tdm_meeting_new(ranks, LATE_SECONDS, &team->meeting, err);
    if (status != TDM_OK) {
        tdm_team_free(team);
        return status;
    }
    *out = team;
    return TDM_OK;
}

void tdm_team_free(struct tdm_team *team)
{
    if (team == NULL)
        return;
    tdm_meeting_free(team->meeting);
    free(team->pieces);
    free(team->shown);
    free(team);
}

void tdm_team_reset(struct tdm_team *team)
{
    tdm_meeting_reset(team->meeting);
}

/* All ranks find the same rank at another op than rank 0, so none looks at memory that the other op
 * does not have. */
static enum tdm_status check_same_op(const struct tdm_team *team, struct tdm_error *err)
{
    const struct tdm_op *first = &team->shown[0].op;
    for (uint32_t rank = 1; rank < team->ranks; rank++) {
        const struct tdm_op *op = &team->shown[rank].op;
        if (first->kind != op->kind || first->layer != op->layer || first->chunk != op->chunk ||
            first->part != op->part || tdm_team_exchanged(first) != tdm_team_exchanged(op))
            return tdm_fail(err, TDM_INTERNAL,
                            "rank %u is at %s of layer %d, rank 0 at %s of layer %d", rank,
                            tdm_op_kind_name(op->kind), (int)op->layer,
                            tdm_op_kind_name(first->kind), (int)first->layer);
    }
    return TDM_OK;
}

enum tdm_status tdm_team_enter(struct tdm_team *team, const struct tdm_launch *launch,
                               struct tdm_executor *executor, struct tdm_error *err)
{
    const uint32_t rank = launch->program->rank;
    struct shown *shown = &team->shown[rank];
    shown->launch = *launch;
    shown->op = *launch->op;
    shown->launch.op = &shown->op;
    shown->executor = executor;
    enum tdm_status status = tdm_meeting_wait(team->meeting, rank, err);
    return status == TDM_OK ? check_same_op(team, err) : status;
}

const struct tdm_launch *tdm_team_shown(const struct tdm_team *team, uint32_t rank)
{
    return &team->shown[rank].launch;
}

struct tdm_executor *tdm_team_executor(const struct tdm_team *team, uint32_t rank)
{
    return team->shown[rank].executor;
}

const struct tdm_transport *tdm_team_transport(const struct tdm_team *team)
{
    return team->transport;
}

struct tdm_exchange *tdm_team_exchange(struct tdm_team *team, uint32_t rank, uint32_t phase)
{
    return &team->shown[rank].exchange[phase];
}

enum tdm_status tdm_team_meet(struct tdm_team *team, uint32_t rank, struct tdm_error *err)
{
    return tdm_meeting_wait(team->meeting, rank, err);
}

void tdm_team_fail(struct tdm_team *team, uint32_t rank)
{
    tdm_meeting_fail(team->meeting, rank);
}

uint32_t tdm_team_failed(struct tdm_team *team)
{
    uint32_t failed = tdm_meeting_failed(team->meeting);
    return failed == TDM_NOBODY ? TDM_NONE : failed;
}
