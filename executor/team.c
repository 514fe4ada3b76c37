/* SPDX-License-Identifier: Apache-2.0 */
/* A team: a meeting point, what ranks show each other there, and where each of them is. */
#include "executor/team.h"

#include "base/clock.h"
#include "base/meeting.h"
#include "executor/processes.h"
#include "schedule/team_check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* When a rank is lost that others wait for. */
#define LATE_SECONDS 30.0
#define LATE_FACTOR 10.0

/* Where a rank is. */
struct position {
    bool begun; /* it has launched an op in this step */
    enum tdm_op_kind kind;
    uint32_t layer, chunk, round;
    uint32_t waits_for; /* TDM_NONE: it waits for nobody that it knows */
    double since;       /* on the clock */
    double left,
        left_as_predicted; /* when it left the last team op: on the clock, and in the step */
    double predicted;      /* when its op should begin, in the step */
    double longest;        /* stretch between two team ops */
};

struct tdm_team {
    struct tdm_meeting *meeting;
    struct tdm_meeting *here; /* of the ranks of this process alone */
    uint32_t ranks, first_here;
    struct tdm_team_options options;
    struct tdm_piece *pieces; /* of all exchanges */
    unsigned char id[TDM_TEAM_ID_BYTES];
    pthread_mutex_t lock;       /* of what follows, but for `shown` */
    struct position *positions; /* [ranks] */
    uint32_t failed;            /* TDM_NONE: no rank */
    bool is_lost;               /* the failed one is */
    struct tdm_error lost;
    /* What each rank shows: copies, because a rank that fails leaves while others still look. */
    struct shown {
        struct tdm_launch launch;
        struct tdm_op op;
        struct tdm_executor *executor;
        struct tdm_exchange exchange[TDM_TEAM_PHASES + 1]; /* of phases, and of a window */
        void *link;                                        /* of the transport */
    } * shown;                                             /* [ranks] */
};

/* Gives every exchange its space. */
static bool take_pieces(struct tdm_team *team)
{
    const uint32_t each = TDM_TEAM_PIECES * team->ranks;
    team->pieces =
        calloc((size_t)team->ranks * (TDM_TEAM_PHASES + 1) * 2 * each, sizeof(*team->pieces));
    struct tdm_piece *next = team->pieces;
    for (uint32_t rank = 0; next != NULL && rank < team->ranks; rank++)
        for (uint32_t phase = 0; phase <= TDM_TEAM_PHASES; phase++, next += 2 * (size_t)each)
            team->shown[rank].exchange[phase] =
                (struct tdm_exchange){.give = next, .take = next + each, .capacity = each};
    return next != NULL;
}

enum tdm_status tdm_team_new(uint32_t ranks, const struct tdm_team_options *options,
                             struct tdm_team **out, struct tdm_error *err)
{
    struct tdm_team *team = calloc(1, sizeof(*team));
    if (team == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a team of %u ranks", ranks);
    team->ranks = ranks;
    team->options = *options;
    team->failed = TDM_NONE;
    if (options->late_seconds == 0)
        team->options.late_seconds = LATE_SECONDS;
    pthread_mutex_init(&team->lock, NULL); /* does not fail without attributes */
    team->shown = calloc(ranks, sizeof(*team->shown));
    team->positions = calloc(ranks, sizeof(*team->positions));
    enum tdm_status status =
        team->shown == NULL || team->positions == NULL || !take_pieces(team)
            ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for a team of %u ranks", ranks)
            : tdm_meeting_new(ranks, 0, &team->meeting, err);
    team->first_here = tdm_processes_first(options->processes, ranks);
    if (status == TDM_OK)
        status =
            tdm_meeting_new(tdm_processes_ranks(options->processes, ranks), 0, &team->here, err);
    if (status != TDM_OK) {
        tdm_team_free(team);
        return status;
    }
    tdm_team_reset(team);
    *out = team;
    return TDM_OK;
}

void tdm_team_free(struct tdm_team *team)
{
    if (team == NULL)
        return;
    for (uint32_t rank = 0; rank < team->ranks && team->shown != NULL; rank++)
        if (team->options.transport->close != NULL)
            team->options.transport->close(team->shown[rank].link);
    tdm_meeting_free(team->meeting);
    tdm_meeting_free(team->here);
    pthread_mutex_destroy(&team->lock);
    free(team->pieces);
    free(team->positions);
    free(team->shown);
    free(team);
}

void tdm_team_reset(struct tdm_team *team)
{
    double now = tdm_now_seconds();
    pthread_mutex_lock(&team->lock);
    team->failed = TDM_NONE;
    team->is_lost = false;
    for (uint32_t rank = 0; rank < team->ranks; rank++)
        team->positions[rank] = (struct position){
            .waits_for = TDM_NONE, .left = now, .longest = team->positions[rank].longest};
    pthread_mutex_unlock(&team->lock);
    tdm_meeting_reset(team->meeting);
    tdm_meeting_reset(team->here);
}

/* ---- where ranks are ---- */

void tdm_team_at(struct tdm_team *team, uint32_t rank, const struct tdm_op *op,
                 double predicted_seconds)
{
    struct position *at = &team->positions[rank];
    double now = tdm_now_seconds();
    pthread_mutex_lock(&team->lock);
    at->begun = true;
    at->kind = op->kind;
    at->layer = op->layer;
    at->chunk = op->chunk;
    at->since = now;
    at->predicted = predicted_seconds;
    pthread_mutex_unlock(&team->lock);
}

void tdm_team_waits(struct tdm_team *team, uint32_t rank, uint32_t waits_for)
{
    pthread_mutex_lock(&team->lock);
    team->positions[rank].waits_for = waits_for;
    pthread_mutex_unlock(&team->lock);
}

/* "attention, layer 13, chunk 57", as far as it is known. */
/* Layers, chunks and rounds are counted from 1, as in the line of progress. */
static void name_op(enum tdm_op_kind kind, uint32_t layer, const char *what, uint32_t number,
                    char out[TDM_TEAM_WHERE])
{
    int at = snprintf(out, TDM_TEAM_WHERE, "%s", tdm_op_kind_name(kind));
    if (layer != TDM_NONE)
        at += snprintf(out + at, TDM_TEAM_WHERE - (size_t)at, ", layer %u", layer + 1);
    if (number != TDM_NONE)
        snprintf(out + at, TDM_TEAM_WHERE - (size_t)at, ", %s %u", what, number + 1);
}

static const char *describe(const struct position *at, double now, char out[TDM_TEAM_WHERE])
{
    char op[TDM_TEAM_WHERE];
    name_op(at->kind, at->layer, "chunk", at->chunk, op);
    if (at->begun)
        snprintf(out, TDM_TEAM_WHERE, "at %.100s for %.0f s", op, now - at->since);
    else
        snprintf(out, TDM_TEAM_WHERE, "before its first op for %.0f s", now - at->left);
    return out;
}

const char *tdm_team_describe(struct tdm_team *team, uint32_t rank, uint32_t *waits_for,
                              char out[TDM_TEAM_WHERE])
{
    pthread_mutex_lock(&team->lock);
    *waits_for = team->positions[rank].waits_for;
    describe(&team->positions[rank], tdm_now_seconds(), out);
    pthread_mutex_unlock(&team->lock);
    return out;
}

double tdm_team_patience(struct tdm_team *team, uint32_t rank)
{
    struct position *at = &team->positions[rank];
    double now = tdm_now_seconds();
    pthread_mutex_lock(&team->lock);
    at->longest = fmax(at->longest, now - at->left);
    double stretch = fmax(at->longest, at->predicted - at->left_as_predicted);
    pthread_mutex_unlock(&team->lock);
    return fmax(team->options.late_seconds, LATE_FACTOR * stretch);
}

void tdm_team_goes_on(struct tdm_team *team, uint32_t rank)
{
    struct position *at = &team->positions[rank];
    double now = tdm_now_seconds();
    pthread_mutex_lock(&team->lock);
    at->waits_for = TDM_NONE;
    at->left = now;
    at->left_as_predicted = at->predicted;
    pthread_mutex_unlock(&team->lock);
}

/* Ends the waits of all ranks: `failed` has failed, or is lost. */
static void end_waits(struct tdm_team *team, uint32_t failed)
{
    tdm_meeting_fail(team->meeting, failed);
    const uint32_t here = failed - team->first_here; /* of another process: any */
    tdm_meeting_fail(team->here, here < team->ranks ? here : 0);
}

/* A rank is lost to others that wait for it at `goal`. */
static enum tdm_status lose(struct tdm_team *team, uint32_t lost, const char *goal,
                            const char *where, struct tdm_error *err)
{
    pthread_mutex_lock(&team->lock);
    if (team->failed == TDM_NONE || (team->failed == lost && !team->is_lost)) {
        team->failed = lost;
        team->is_lost = true;
        tdm_fail(&team->lost, TDM_IO, "rank %u has not reached %s; it has been %s", lost, goal,
                 where);
    }
    if (err != NULL)
        *err = team->lost;
    pthread_mutex_unlock(&team->lock);
    end_waits(team, lost);
    return TDM_IO;
}

enum tdm_status tdm_team_lose(struct tdm_team *team, uint32_t rank, uint32_t lost,
                              const char *where, struct tdm_error *err)
{
    const struct tdm_launch *launch = &team->shown[rank].launch;
    char op[TDM_TEAM_WHERE];
    const uint32_t chunk = launch->op->chunk;
    name_op(launch->op->kind, launch->op->layer, "round",
            chunk == TDM_NONE || launch->program->chunks == NULL
                ? TDM_NONE
                : launch->program->chunks[chunk].round,
            op);
    return lose(team, lost, op, where, err);
}

/* ---- meeting ---- */

/* Waits for all ranks, which are of this process. */
static enum tdm_status wait(struct tdm_team *team, uint32_t rank, struct tdm_error *err)
{
    enum tdm_status status =
        tdm_meeting_wait_for(team->meeting, rank, tdm_team_patience(team, rank), err);
    const uint32_t lost = status == TDM_OK ? TDM_NOBODY : tdm_meeting_lost(team->meeting);
    char where[TDM_TEAM_WHERE];
    uint32_t waits_for;
    tdm_team_goes_on(team, rank);
    if (lost == TDM_NOBODY)
        return status;
    return tdm_team_lose(team, rank, lost, tdm_team_describe(team, lost, &waits_for, where), err);
}

enum tdm_status tdm_team_meet_here(struct tdm_team *team, uint32_t rank, bool patient,
                                   struct tdm_error *err)
{
    char where[TDM_TEAM_WHERE];
    uint32_t waits_for;
    enum tdm_status status = tdm_meeting_wait_for(team->here, rank - team->first_here,
                                                  patient ? 0 : tdm_team_patience(team, rank), err);
    const uint32_t lost = status == TDM_OK ? TDM_NOBODY : tdm_meeting_lost(team->here);
    if (lost == TDM_NOBODY)
        return status;
    const uint32_t lost_rank = team->first_here + lost;
    return lose(team, lost_rank, "a pause of its backward",
                tdm_team_describe(team, lost_rank, &waits_for, where), err);
}

/* A rank that has no heads of the chunks that exchange them has no operand that says which. */
static bool exchange_the_same(const struct tdm_op *first, const struct tdm_op *op)
{
    const enum tdm_content one = tdm_team_exchanged(first), other = tdm_team_exchanged(op);
    return one == other || one == TDM_EMPTY || other == TDM_EMPTY;
}

/* All ranks find the same rank at another op than rank 0, so none looks at memory that the other op
 * does not have. */
static enum tdm_status check_same_op(const struct tdm_team *team, struct tdm_error *err)
{
    const struct tdm_op *first = &team->shown[0].op;
    for (uint32_t rank = 1; rank < team->ranks; rank++) {
        const struct tdm_op *op = &team->shown[rank].op;
        if (first->kind != op->kind || first->layer != op->layer || first->chunk != op->chunk ||
            first->part != op->part || first->lap != op->lap || first->hops != op->hops ||
            first->queries != op->queries || !exchange_the_same(first, op))
            return tdm_fail(err, TDM_INTERNAL,
                            "rank %u is at %s of layer %d, rank 0 at %s of layer %d", rank,
                            tdm_op_kind_name(op->kind), (int)op->layer,
                            tdm_op_kind_name(first->kind), (int)first->layer);
    }
    return TDM_OK;
}

void tdm_team_show(struct tdm_team *team, const struct tdm_launch *launch,
                   struct tdm_executor *executor)
{
    struct shown *shown = &team->shown[launch->program->rank];
    shown->launch = *launch;
    shown->op = *launch->op;
    shown->launch.op = &shown->op;
    shown->executor = executor;
}

enum tdm_status tdm_team_enter(struct tdm_team *team, const struct tdm_launch *launch,
                               struct tdm_executor *executor, struct tdm_error *err)
{
    tdm_team_show(team, launch, executor);
    enum tdm_status status = wait(team, launch->program->rank, err);
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

uint32_t tdm_team_ranks(const struct tdm_team *team)
{
    return team->ranks;
}

double tdm_team_late_seconds(const struct tdm_team *team)
{
    return team->options.late_seconds;
}

const struct tdm_transport *tdm_team_transport(const struct tdm_team *team)
{
    return team->options.transport;
}

struct tdm_processes *tdm_team_processes(const struct tdm_team *team)
{
    return team->options.processes;
}

struct tdm_exchange *tdm_team_exchange(struct tdm_team *team, uint32_t rank, uint32_t phase)
{
    return &team->shown[rank].exchange[phase];
}

enum tdm_status tdm_team_open(struct tdm_team *team, uint32_t rank,
                              const struct tdm_team_needs *needs, struct tdm_error *err)
{
    const struct tdm_transport *transport = team->options.transport;
    return transport->open == NULL ? TDM_OK
                                   : transport->open(team, needs, &team->shown[rank].link, err);
}

void tdm_team_abort(struct tdm_team *team)
{
    for (uint32_t rank = 0; rank < team->ranks; rank++)
        if (team->options.transport->abort != NULL)
            team->options.transport->abort(team->shown[rank].link);
}

void tdm_team_set_id(struct tdm_team *team, const void *id, size_t bytes)
{
    memcpy(team->id, id, bytes);
}

void tdm_team_get_id(const struct tdm_team *team, void *id, size_t bytes)
{
    memcpy(id, team->id, bytes);
}

void *tdm_team_link(const struct tdm_team *team, uint32_t rank)
{
    return team->shown[rank].link;
}

enum tdm_status tdm_team_meet(struct tdm_team *team, uint32_t rank, struct tdm_error *err)
{
    return wait(team, rank, err);
}

/* ---- failures ---- */

void tdm_team_fail(struct tdm_team *team, uint32_t rank)
{
    pthread_mutex_lock(&team->lock);
    if (team->failed == TDM_NONE)
        team->failed = rank;
    pthread_mutex_unlock(&team->lock);
    end_waits(team, rank);
}

uint32_t tdm_team_failed(struct tdm_team *team)
{
    pthread_mutex_lock(&team->lock);
    uint32_t failed = team->failed;
    pthread_mutex_unlock(&team->lock);
    return failed;
}

bool tdm_team_lost(struct tdm_team *team, struct tdm_error *err)
{
    pthread_mutex_lock(&team->lock);
    bool lost = team->is_lost;
    if (lost && err != NULL)
        *err = team->lost;
    pthread_mutex_unlock(&team->lock);
    return lost;
}
