/* SPDX-License-Identifier: Apache-2.0 */
/* The walks of all ranks of this process, and their threads. */
#include "executor/team_walk.h"

#include "base/clock.h"
#include "executor/processes.h"
#include "schedule/program.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* After a failure the other ranks are waited for until they would be lost; if one is, so long. A
 * rank that hangs in an op is then left. */
#define LEAVE_SECONDS 1.0

/* How often the caller looks whether a rank has failed. */
#define LOOK_SECONDS 0.2

/* A rank of this process, and the step that its thread runs. */
struct member {
    struct tdm_program program; /* as this rank runs it */
    struct tdm_walk *walk;      /* NULL: the rank is of another process */
    struct tdm_team *team;
    struct tdm_step step; /* a copy: a rank that hangs outlives the caller's */
    struct tdm_observer *observer;
    const volatile sig_atomic_t *stop;
    struct tdm_team_needs needs;
    pthread_t thread;
    bool runs; /* the thread has been started, and not been joined */
    enum tdm_status status;
    struct tdm_error err;
};

struct tdm_team_walk {
    uint32_t ranks, first; /* the first rank of this process */
    struct tdm_team *team; /* NULL: one rank */
    struct tdm_processes *processes;
    struct member *members; /* [ranks] */
    struct tdm_team_walk *next_hanging;
};

/* Walks that could not be opened, whose threads still use them: a rank hangs. */
static struct tdm_team_walk *hanging;

static enum tdm_status open_member(struct tdm_team_walk *team, uint32_t rank,
                                   const struct tdm_program *program,
                                   struct tdm_forecast *const *forecasts,
                                   const struct tdm_arenas *arenas,
                                   const struct tdm_team_options *options, struct tdm_error *err)
{
    struct member *member = &team->members[rank];
    member->program = tdm_program_of_rank(program, rank);
    member->team = team->team;
    enum tdm_status status = tdm_walk_new(
        &member->program, forecasts == NULL ? NULL : forecasts[rank], arenas, &member->walk, err);
    if (status != TDM_OK || team->team == NULL)
        return status;
    tdm_walk_join(member->walk, team->team);
    return options->transport->open == NULL || !arenas->backend->executes
               ? TDM_OK
               : tdm_walk_team_needs(member->walk, &member->needs, err);
}

/* Waits for the thread of a rank, at most some seconds. */
static bool join(struct member *member, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    const int64_t end_ns = (int64_t)(1e9 * seconds) + until.tv_nsec;
    until.tv_sec += end_ns / 1000000000;
    until.tv_nsec = end_ns % 1000000000;
    if (member->runs && pthread_timedjoin_np(member->thread, NULL, &until) == 0)
        member->runs = false;
    return !member->runs;
}

/* Starts a function on a thread for each rank of this process. */
static enum tdm_status start_all(struct tdm_team_walk *team, void *(*function)(void *),
                                 struct tdm_error *err)
{
    for (uint32_t rank = 0; rank < team->ranks; rank++) {
        struct member *member = &team->members[rank];
        if (member->walk == NULL)
            continue;
        member->runs = pthread_create(&member->thread, NULL, function, member) == 0;
        if (member->runs)
            continue;
        tdm_team_fail(team->team, rank);
        return tdm_fail(err, TDM_NO_MEMORY, "no thread for rank %u of %u", rank, team->ranks);
    }
    return TDM_OK;
}

static void *open_transport(void *self)
{
    struct member *member = self;
    member->status =
        tdm_team_open(member->team, member->program.rank, &member->needs, &member->err);
    if (member->status != TDM_OK)
        tdm_team_fail(member->team, member->program.rank);
    return NULL;
}

/* The error of the rank that failed first, with its number; what is said of one that was lost; or
 * what another process says. */
static enum tdm_status first_failure(const struct tdm_team_walk *team, struct tdm_error *err)
{
    struct tdm_error why;
    char rank[32];
    const uint32_t failed = tdm_team_failed(team->team);
    if (failed == TDM_NONE)
        return TDM_OK;
    if (!tdm_team_lost(team->team, &why)) {
        if (team->members[failed].walk == NULL && tdm_processes_failed(team->processes, err))
            return err == NULL ? TDM_INTERRUPTED : err->status;
        why = team->members[failed].err;
        snprintf(rank, sizeof(rank), "rank %u", failed);
        tdm_about(&why, rank);
    }
    tdm_processes_fail(team->processes, &why);
    if (err != NULL)
        *err = why;
    return why.status;
}

/* Waits for the threads of all ranks, and after a failure for a while. */
static void join_all(struct tdm_team_walk *team)
{
    double until = INFINITY;
    for (uint32_t rank = 0; rank < team->ranks; rank++)
        while (!join(&team->members[rank], LOOK_SECONDS) && tdm_now_seconds() < until)
            if (isinf(until) && tdm_team_failed(team->team) != TDM_NONE) {
                tdm_team_abort(team->team);
                until = tdm_now_seconds() + (tdm_team_lost(team->team, NULL)
                                                 ? LEAVE_SECONDS
                                                 : tdm_team_late_seconds(team->team));
            }
}

/* Opens the transport for all ranks of this process at once: they may have to meet for it. */
static enum tdm_status open_transports(struct tdm_team_walk *team,
                                       const struct tdm_transport *transport, struct tdm_error *err)
{
    enum tdm_status status = transport->begin == NULL ? TDM_OK : transport->begin(team->team, err);
    if (status != TDM_OK || transport->open == NULL)
        return status;
    status = start_all(team, open_transport, err);
    join_all(team);
    return status == TDM_OK ? first_failure(team, err) : status;
}

enum tdm_status tdm_team_walk_open(const struct tdm_program *program,
                                   struct tdm_forecast *const *forecasts,
                                   const struct tdm_arenas *arenas,
                                   const struct tdm_team_options *options,
                                   struct tdm_team_walk **out, struct tdm_error *err)
{
    struct tdm_team_walk *team = calloc(1, sizeof(*team));
    enum tdm_status status = TDM_OK;
    if (team != NULL)
        team->members = calloc(program->ranks, sizeof(*team->members));
    if (team == NULL || team->members == NULL) {
        free(team);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", program->ranks);
    }
    team->ranks = program->ranks;
    team->processes = options->processes;
    team->first = (uint32_t)(tdm_arenas_here(arenas) - arenas);
    if (team->ranks > 1)
        status = tdm_team_new(team->ranks, options, &team->team, err);
    for (uint32_t rank = 0; rank < team->ranks && status == TDM_OK; rank++)
        if (arenas[rank].backend != NULL)
            status = open_member(team, rank, program, forecasts, &arenas[rank], options, err);
    if (status == TDM_OK && team->team != NULL && tdm_arenas_here(arenas)->backend->executes)
        status = open_transports(team, options->transport, err);
    if (status != TDM_OK && tdm_team_walk_hangs(team)) {
        team->next_hanging = hanging;
        hanging = team;
    } else if (status != TDM_OK)
        tdm_team_walk_free(team);
    if (status != TDM_OK)
        return status;
    *out = team;
    return TDM_OK;
}

enum tdm_status tdm_team_walk_new(const struct tdm_program *program,
                                  struct tdm_forecast *const *forecasts,
                                  const struct tdm_arenas *arenas, struct tdm_team_walk **walk,
                                  struct tdm_error *err)
{
    const struct tdm_team_options options = {.transport = &tdm_transport_shared};
    return tdm_team_walk_open(program, forecasts, arenas, &options, walk, err);
}

bool tdm_team_walk_hangs(const struct tdm_team_walk *team)
{
    for (uint32_t rank = 0; team != NULL && rank < team->ranks; rank++)
        if (!join(&team->members[rank], 0))
            return true;
    return false;
}

void tdm_team_walk_free(struct tdm_team_walk *team)
{
    if (team == NULL || tdm_team_walk_hangs(team))
        return;
    for (uint32_t rank = 0; rank < team->ranks; rank++)
        tdm_walk_free(team->members[rank].walk);
    tdm_team_free(team->team);
    free(team->members);
    free(team);
}

struct tdm_team *tdm_team_walk_team(const struct tdm_team_walk *team)
{
    return team->team;
}

struct tdm_walk *tdm_team_walk_of(const struct tdm_team_walk *team, uint32_t rank)
{
    return team->members[rank].walk;
}

struct tdm_walk *tdm_team_walk_first(const struct tdm_team_walk *team)
{
    return team->members[team->first].walk;
}

const struct tdm_program *tdm_team_walk_program(const struct tdm_team_walk *team, uint32_t rank)
{
    return &team->members[rank].program;
}

enum tdm_status tdm_team_walk_prepare(struct tdm_team_walk *team, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; rank < team->ranks && status == TDM_OK; rank++)
        if (team->members[rank].walk != NULL)
            status = tdm_walk_prepare(team->members[rank].walk, err);
    return status;
}

static void *run_member(void *self)
{
    struct member *member = self;
    member->status =
        tdm_walk_step(member->walk, &member->step, member->observer, member->stop, &member->err);
    if (member->status != TDM_OK && member->team != NULL)
        tdm_team_fail(member->team, member->program.rank);
    return NULL;
}

static enum tdm_status run_members(struct tdm_team_walk *team, struct tdm_error *err)
{
    tdm_team_reset(team->team);
    tdm_processes_join(team->processes, team->team);
    enum tdm_status status = start_all(team, run_member, err);
    join_all(team);
    tdm_processes_join(team->processes, NULL);
    return status == TDM_OK ? first_failure(team, err) : status;
}

enum tdm_status tdm_team_walk_step(struct tdm_team_walk *team, const struct tdm_step *step,
                                   struct tdm_observer *const *observers,
                                   const volatile sig_atomic_t *stop, struct tdm_error *err)
{
    for (uint32_t rank = 0; rank < team->ranks; rank++) {
        struct member *member = &team->members[rank];
        member->step = *step;
        member->observer = observers == NULL ? NULL : observers[rank];
        member->stop = stop;
        member->status = TDM_OK;
    }
    if (team->team != NULL)
        return run_members(team, err);
    (void)run_member(&team->members[0]); /* on the caller's thread */
    if (team->members[0].status != TDM_OK && err != NULL)
        *err = team->members[0].err;
    return team->members[0].status;
}
